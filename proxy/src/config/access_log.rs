//! The key `observability.access_log:` — `off`, or the target of the access log and the format of its lines.

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use tooldock_base::off_or;
use tooldock_sessions::log_file::LogTarget;

use super::log_pattern::LogPattern;

/// Value of the key `path` that means standard output.
const STDOUT: &str = "stdout";

/// The key `observability.access_log:` of the configuration file.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) enum AccessLogConfig {
    /// No access log is written.
    #[default]
    Off,
    /// A line is written for each request.
    On(AccessLogSettings),
}

/// The target of the access log, and the format of its lines.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct AccessLogSettings {
    /// Path of the file, or the word `stdout`.
    path: PathBuf,
    /// Format of the lines: `combined`, `json`, or a pattern.
    #[serde(default)]
    pub(crate) format: AccessLogFormat,
}

impl AccessLogSettings {
    /// Returns the target of the lines. In the data directory, tool code could place a link or device at the path, so that only a
    /// regular file is accepted there.
    pub(crate) fn target(&self, data_dir: &Path) -> LogTarget {
        if self.path.as_os_str() == STDOUT {
            return LogTarget::Stdout;
        }
        let absolute = std::path::absolute(&self.path).unwrap_or_else(|_| self.path.clone());
        let folder = absolute.parent().and_then(|it| it.canonicalize().ok());
        let real_data_dir = data_dir.canonicalize();
        let is_in = |data_dir: &Path| {
            let found = folder.as_deref().unwrap_or(&absolute);
            found.starts_with(data_dir) || absolute.starts_with(data_dir)
        };
        match is_in(data_dir) || real_data_dir.is_ok_and(|it| is_in(&it)) {
            true => LogTarget::Regular(self.path.clone()),
            false => LogTarget::Path(self.path.clone()),
        }
    }
}

/// Formats of a line in the access log.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) enum AccessLogFormat {
    /// The combined log format of common web servers.
    #[default]
    Combined,
    /// A JSON object per line.
    Json,
    /// A pattern that the operator has written.
    Pattern(Arc<LogPattern>),
}

impl TryFrom<String> for AccessLogFormat {
    type Error = <LogPattern as FromStr>::Err;

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
        let settings = match self {
            Self::Off => None,
            Self::On(settings) => Some(settings),
        };
        off_or::serialize(settings, serializer)
    }
}

impl<'de> Deserialize<'de> for AccessLogConfig {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let settings = off_or::deserialize(deserializer, "`off` or {path, format}")?;
        Ok(settings.map_or(Self::Off, Self::On))
    }
}

#[cfg(test)]
mod tests {
    use tooldock_base::yaml;

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
        assert_eq!(stdout.target(Path::new("/data")), LogTarget::Stdout);
        assert_eq!(stdout.format, AccessLogFormat::Combined);
        let file = on("{ path: /var/log/access.log, format: json }");
        assert_eq!(
            file.target(Path::new("/data")),
            LogTarget::Path("/var/log/access.log".into())
        );
        assert_eq!(
            file.target(Path::new("/var/log")),
            LogTarget::Regular("/var/log/access.log".into()),
            "where tool code can write"
        );
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
