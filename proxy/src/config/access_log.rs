//! The key `observability.access_log:` — `off`, or where the access log goes and how its lines look.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use serde::de::value::MapAccessDeserializer;
use serde::de::{self, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use tooldock_upstream::log_file::Target;

use super::later::OFF;
use crate::access_log::Pattern;

/// The path that stands for standard output.
const STDOUT: &str = "stdout";

/// `observability.access_log:`
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) enum AccessLogConfig {
    /// No access log.
    #[default]
    Off,
    /// A line per request.
    On(AccessLogSettings),
}

/// Where the access log goes, and how a line looks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct AccessLogSettings {
    /// `stdout`, or a file.
    path: PathBuf,
    /// `combined`, `json`, or a pattern.
    #[serde(default)]
    pub(crate) format: AccessLogFormat,
}

impl AccessLogSettings {
    /// Where the lines go.
    pub(crate) fn target(&self) -> Target {
        if self.path.as_os_str() == STDOUT {
            Target::Stdout
        } else {
            Target::Path(self.path.clone())
        }
    }
}

/// How a line looks.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) enum AccessLogFormat {
    /// As web servers write it.
    #[default]
    Combined,
    /// One JSON object.
    Json,
    /// As the operator says.
    Pattern(Arc<Pattern>),
}

impl TryFrom<String> for AccessLogFormat {
    type Error = <Pattern as FromStr>::Err;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        Ok(match text.as_str() {
            "combined" => Self::Combined,
            "json" => Self::Json,
            pattern => Self::Pattern(Arc::new(pattern.parse()?)),
        })
    }
}

impl From<AccessLogFormat> for String {
    fn from(format: AccessLogFormat) -> Self {
        match format {
            AccessLogFormat::Combined => "combined".to_owned(),
            AccessLogFormat::Json => "json".to_owned(),
            AccessLogFormat::Pattern(pattern) => pattern.to_string(),
        }
    }
}

impl Serialize for AccessLogConfig {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Off => serializer.serialize_str(OFF),
            Self::On(settings) => settings.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for AccessLogConfig {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // By hand rather than `untagged`, whose errors do not say what is wrong inside the map.
        struct OffOrSettings;
        impl<'de> Visitor<'de> for OffOrSettings {
            type Value = AccessLogConfig;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("`off` or {path, format}")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<AccessLogConfig, E> {
                match text {
                    OFF => Ok(AccessLogConfig::Off),
                    _ => Err(E::invalid_value(de::Unexpected::Str(text), &self)),
                }
            }

            fn visit_bool<E: de::Error>(self, value: bool) -> Result<AccessLogConfig, E> {
                // YAML 1.1 tools turn `off` into `false`.
                match value {
                    false => Ok(AccessLogConfig::Off),
                    true => Err(E::invalid_value(de::Unexpected::Bool(true), &self)),
                }
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<AccessLogConfig, A::Error> {
                AccessLogSettings::deserialize(MapAccessDeserializer::new(map))
                    .map(AccessLogConfig::On)
            }
        }
        deserializer.deserialize_any(OffOrSettings)
    }
}

#[cfg(test)]
mod tests {
    use tooldock_workers::yaml;

    use super::*;

    fn parse(yaml: &str) -> Result<AccessLogConfig, String> {
        yaml::from_str(yaml).map_err(|error| error.to_string())
    }

    fn on(yaml: &str) -> AccessLogSettings {
        match parse(yaml).expect(yaml) {
            AccessLogConfig::On(settings) => settings,
            AccessLogConfig::Off => panic!("off"),
        }
    }

    #[test]
    fn every_documented_form_is_read_and_printed_alike() {
        assert_eq!(parse("off"), Ok(AccessLogConfig::Off));
        assert_eq!(parse("false"), Ok(AccessLogConfig::Off));
        let stdout = on("{ path: stdout }");
        assert_eq!(stdout.target(), Target::Stdout);
        assert_eq!(stdout.format, AccessLogFormat::Combined);
        let file = on("{ path: /var/log/access.log, format: json }");
        assert_eq!(file.target(), Target::Path("/var/log/access.log".into()));
        for yaml in [
            "off",
            "{ path: a, format: json }",
            "{ path: a, format: '{address} \"{path}\"' }",
        ] {
            let config = parse(yaml).expect(yaml);
            let printed = yaml::to_string(&config).expect("yaml");
            assert_eq!(parse(&printed), Ok(config));
        }
    }

    #[test]
    fn mistakes_are_named() {
        for (yaml, named) in [
            ("on", "`off` or {path, format}"),
            ("stdout", "`off` or {path, format}"),
            ("{ format: json }", "path"),
            ("{ path: a, colour: red }", "colour"),
            (
                "{ path: a, format: apache }",
                "use combined, json, or a pattern",
            ),
            ("{ path: a, format: '{adress}' }", "no field {adress}"),
        ] {
            let error = parse(yaml).expect_err(yaml);
            assert!(error.contains(named), "{yaml}: {error}");
        }
    }
}
