//! The key `observability.otlp:` — `off`, or the receiver of traces, metrics and logs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use http::uri::PathAndQuery;
use http::{HeaderName, HeaderValue, Uri};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use tooldock_base::bounds::within;
use tooldock_base::off_or;
use tooldock_base::template::{NoValue, Sources, Template};
use tooldock_base::yaml;
use tooldock_workers::remote::pem_path;

use super::ConfigError;

/// Path of the configuration key for OTLP.
const KEY: &str = "observability.otlp";
/// Names of headers that OTLP's protocols use themselves, and that cannot be configured.
const OWN_HEADERS: [&str; 8] = [
    "connection",
    "content-encoding",
    "content-length",
    "content-type",
    "host",
    "te",
    "transfer-encoding",
    "user-agent",
];

/// `observability.otlp:` — the export of traces, metrics and logs by OTLP.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) enum OtlpConfig {
    /// The export is off.
    #[default]
    Off,
    /// Traces, metrics or logs are sent to a receiver.
    On(Box<OtlpSettings>),
}

/// The receiver (an OpenTelemetry Collector), the signals that it gets, and the connection to it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct OtlpSettings {
    /// URL of the receiver. For HTTP, the paths `/v1/traces`, `/v1/metrics` and `/v1/logs` are appended.
    pub(crate) endpoint: String,
    /// Protocol by which the receiver is reached.
    #[serde(default)]
    pub(crate) protocol: OtlpProtocol,
    /// The exported signals: traces, metrics, logs.
    #[serde(default = "all_signals")]
    pub(crate) signals: Vec<OtlpSignal>,
    /// Share of recorded traces, 0 to 1, among the traces that begin at the gateway.
    #[serde(default = "every_trace")]
    pub(crate) sample: f64,
    /// Time between two exports of the metrics.
    #[serde(default = "usual_interval", with = "humantime_serde")]
    pub(crate) interval: Duration,
    /// The attribute `service.name`, by which the receiver identifies this gateway.
    #[serde(default = "usual_name")]
    pub(crate) service_name: String,
    /// Headers of each request to the receiver. A value is a secret, and may name variables as `${NAME}`.
    #[serde(default)]
    pub(crate) headers: BTreeMap<String, HeaderTemplate>,
    /// Certificates, for an endpoint with `https://`.
    #[serde(default)]
    pub(crate) tls: OtlpTls,
}

/// `observability.otlp.protocol`: the protocol of requests to the receiver.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum OtlpProtocol {
    /// Protobuf over HTTP.
    #[default]
    Http,
    /// gRPC.
    Grpc,
}

/// An entry of `observability.otlp.signals`: a kind of data that is exported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum OtlpSignal {
    /// Traces: spans of requests.
    Traces,
    /// The metrics of the Prometheus listener, and durations of requests.
    Metrics,
    /// The gateway's log.
    Logs,
}

/// `observability.otlp.tls:` — certificates for connections to the receiver.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct OtlpTls {
    /// File with the certificates of authorities that may sign the receiver's certificate, in place of the system's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ca: Option<PathBuf>,
    /// File with the gateway's client certificate and its chain.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cert: Option<PathBuf>,
    /// File with the private key of `cert`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) key: Option<PathBuf>,
}

/// Value of a header, which may refer to variables as `${NAME}`. When it is printed, only such references are shown and all other
/// text is masked.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub(crate) struct HeaderTemplate(Template);

impl Serialize for HeaderTemplate {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.0.masked())
    }
}

fn all_signals() -> Vec<OtlpSignal> {
    vec![OtlpSignal::Traces, OtlpSignal::Metrics, OtlpSignal::Logs]
}

fn every_trace() -> f64 {
    1.0
}

fn usual_interval() -> Duration {
    Duration::from_secs(60)
}

fn usual_name() -> String {
    "tooldock".to_owned()
}

impl OtlpConfig {
    /// Returns the settings of the export; `None` if it is off.
    pub(crate) fn settings(&self) -> Option<&OtlpSettings> {
        match self {
            Self::Off => None,
            Self::On(settings) => Some(settings),
        }
    }

    /// Checks the values of the section.
    ///
    /// # Errors
    ///
    /// The first key whose value cannot be used.
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        self.settings().map_or(Ok(()), OtlpSettings::check)
    }
}

impl OtlpSettings {
    /// Reads the settings from a separate file, for `tooldock toolman`, which does not read the gateway's configuration.
    ///
    /// # Errors
    ///
    /// A line that names the file, the key and the fault.
    pub(crate) fn read(file: &Path) -> Result<Self, String> {
        let wrong = |what: &dyn std::fmt::Display| format!("{}: {what}", file.display());
        let text = std::fs::read_to_string(file).map_err(|error| wrong(&error))?;
        let settings: Self = yaml::from_str(&text).map_err(|error| wrong(&error))?;
        settings.check().map_err(|error| wrong(&error))?;
        Ok(settings)
    }

    /// Returns true if the signal is exported.
    pub(crate) fn has(&self, signal: OtlpSignal) -> bool {
        self.signals.contains(&signal)
    }

    /// Returns the headers with their variables replaced.
    ///
    /// # Errors
    ///
    /// The header whose value cannot be used.
    pub(crate) fn header_values(
        &self,
        environment: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Vec<(HeaderName, HeaderValue)>, ConfigError> {
        let secrets = BTreeMap::new();
        let sources = Sources {
            secrets: &secrets,
            environment,
            allowed: None,
        };
        let header = |(name, value): (&String, &HeaderTemplate)| {
            let refused = |reason: String| at(&format!("headers.{name}"), reason);
            let value = value.0.fill(&sources).map_err(|error| {
                refused(match error {
                    NoValue::Missing(variable) => {
                        format!("the variable {variable} is not set in the gateway's environment")
                    }
                    other => other.to_string(),
                })
            })?;
            let mut value = HeaderValue::from_str(value.expose().trim()).map_err(|_| {
                refused("its value has characters that no header may have".to_owned())
            })?;
            value.set_sensitive(true);
            let name = HeaderName::from_bytes(name.as_bytes())
                .map_err(|_| refused("is no name of a header".to_owned()))?;
            Ok((name, value))
        };
        self.headers.iter().map(header).collect()
    }

    fn check(&self) -> Result<(), ConfigError> {
        let is_tls = endpoint(&self.endpoint, self.protocol)
            .map_err(|reason| at("endpoint", reason.to_owned()))?;
        if self.signals.is_empty() {
            let reason = "names no signal: write traces, metrics or logs, or otlp: off";
            return Err(at("signals", reason.to_owned()));
        }
        if !(0.0..=1.0).contains(&self.sample) {
            let reason = format!("{} is not a share between 0 and 1", self.sample);
            return Err(at("sample", reason));
        }
        let bounds = Duration::from_secs(1)..=Duration::from_secs(3600);
        within(self.interval, &bounds).map_err(|reason| at("interval", reason.to_string()))?;
        if self.service_name.trim().is_empty() {
            return Err(at("service_name", "is empty".to_owned()));
        }
        for (name, value) in &self.headers {
            let refused = |reason: String| at(&format!("headers.{name}"), reason);
            let known = HeaderName::from_bytes(name.as_bytes())
                .map_err(|_| refused("is no name of a header".to_owned()))?;
            if OWN_HEADERS.contains(&known.as_str()) || known.as_str().starts_with("grpc-") {
                return Err(refused("is set by the export itself".to_owned()));
            }
            value
                .0
                .check()
                .map_err(|error| refused(error.to_string()))?;
        }
        let tls = &self.tls;
        if !is_tls && *tls != OtlpTls::default() {
            let reason = "has no effect on an endpoint with http: write https, or leave it out";
            return Err(at("tls", reason.to_owned()));
        }
        match (&tls.cert, &tls.key) {
            (Some(_), None) => Err(at("tls.key", "is missing beside tls.cert".to_owned())),
            (None, Some(_)) => Err(at("tls.cert", "is missing beside tls.key".to_owned())),
            _ => Ok(()),
        }
    }
}

impl OtlpTls {
    /// Reads the file that a key of this section names; `None` if it names none.
    ///
    /// # Errors
    ///
    /// If the file cannot be read.
    pub(crate) fn read(
        key: &'static str,
        file: Option<&Path>,
    ) -> Result<Option<Vec<u8>>, ConfigError> {
        let Some(file) = file else {
            return Ok(None);
        };
        let path = pem_path(file).map_err(|reason| at(key, reason))?;
        let read = std::fs::read(path);
        read.map(Some)
            .map_err(|error| at(key, format!("{}: {error}", path.display())))
    }
}

/// Creates an error about a key below `observability.otlp`.
pub(crate) fn at(key: &str, reason: String) -> ConfigError {
    ConfigError::key(format!("{KEY}.{key}"), reason)
}

/// Checks the URL of an endpoint. Returns true if its scheme is `https`.
fn endpoint(text: &str, protocol: OtlpProtocol) -> Result<bool, &'static str> {
    const FORM: &str = "is not a URL such as http://collector:4318 or https://collector:4317";
    let uri: Uri = text.parse().map_err(|_| FORM)?;
    let is_tls = match uri.scheme_str() {
        Some("https") => true,
        Some("http") => false,
        _ => return Err(FORM),
    };
    let authority = uri.authority().ok_or(FORM)?;
    if authority.host().is_empty() {
        return Err(FORM);
    }
    // A login is refused, since the endpoint appears in logs. The error does not repeat it.
    if authority.as_str().contains('@') {
        return Err("has a login in it: write it as a header, such as authorization: ${NAME}");
    }
    if uri.query().is_some() {
        return Err("has a query in it: write credentials as headers");
    }
    let has_path = uri
        .path_and_query()
        .map(PathAndQuery::path)
        .is_some_and(|path| path != "/");
    if has_path && protocol == OtlpProtocol::Grpc {
        return Err("has a path, which gRPC does not use: write host and port alone");
    }
    if ["/v1/traces", "/v1/metrics", "/v1/logs"]
        .iter()
        .any(|path| uri.path().trim_end_matches('/').ends_with(path))
    {
        return Err("ends with the path of one signal, which is added by itself: leave it out");
    }
    Ok(is_tls)
}

impl Serialize for OtlpConfig {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        off_or::serialize(self.settings(), serializer)
    }
}

impl<'de> Deserialize<'de> for OtlpConfig {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let settings = off_or::deserialize(deserializer, "`off` or {endpoint, protocol, …}")?;
        Ok(settings.map_or(Self::Off, |it| Self::On(Box::new(it))))
    }
}

#[cfg(test)]
mod tests {
    use tooldock_base::yaml;

    use super::*;

    fn parse(text: &str) -> Result<OtlpConfig, String> {
        yaml::from_str(text).map_err(|error| error.to_string())
    }

    fn on(text: &str) -> OtlpSettings {
        match parse(text).expect(text) {
            OtlpConfig::On(settings) => *settings,
            OtlpConfig::Off => panic!("off"),
        }
    }

    #[test]
    fn an_endpoint_is_enough_and_every_signal_is_exported() {
        assert_eq!(parse("off"), Ok(OtlpConfig::Off));
        let settings = on("{ endpoint: 'http://collector:4318' }");
        assert_eq!(settings.check(), Ok(()));
        assert_eq!(settings.protocol, OtlpProtocol::Http);
        assert_eq!(settings.signals, all_signals());
        assert!((settings.sample - 1.0).abs() < f64::EPSILON);
        let printed = yaml::to_string(&OtlpConfig::On(Box::new(settings.clone()))).expect("yaml");
        assert_eq!(on(&printed), settings);
    }

    #[test]
    fn a_wrong_value_names_its_key_and_the_remedy() {
        for (more, key, reason) in [
            ("endpoint: 'collector:4318'", "endpoint", "is not a URL"),
            ("endpoint: 'ftp://a'", "endpoint", "is not a URL"),
            ("endpoint: 'http://u:hunter2@a'", "endpoint", "a login"),
            ("endpoint: 'http://a/?key=hunter2'", "endpoint", "a query"),
            ("endpoint: 'http://a/v1/traces'", "endpoint", "one signal"),
            (
                "endpoint: 'http://a/x', protocol: grpc",
                "endpoint",
                "a path",
            ),
            ("endpoint: 'http://a', signals: []", "signals", "no signal"),
            ("endpoint: 'http://a', sample: 1.5", "sample", "1.5"),
            ("endpoint: 'http://a', sample: .nan", "sample", "share"),
            ("endpoint: 'http://a', interval: 1ms", "interval", "1"),
            (
                "endpoint: 'http://a', service_name: ''",
                "service_name",
                "empty",
            ),
            (
                "endpoint: 'http://a', headers: { 'a b': x }",
                "headers.a b",
                "no name",
            ),
            (
                "endpoint: 'http://a', headers: { Host: x }",
                "headers.Host",
                "itself",
            ),
            (
                "endpoint: 'http://a', headers: { k: '${' }",
                "headers.k",
                "variable name",
            ),
            ("endpoint: 'http://a', tls: { ca: f }", "tls", "https"),
            (
                "endpoint: 'https://a', tls: { cert: f }",
                "tls.key",
                "missing",
            ),
        ] {
            let error = on(&format!("{{ {more} }}"))
                .check()
                .expect_err(more)
                .to_string();
            let begin = format!("{KEY}.{key}: ");
            assert!(
                error.starts_with(&begin) && error.contains(reason),
                "{error}"
            );
            assert!(!error.contains("hunter2"), "{error}");
        }
        let unknown = parse("{ endpoint: 'http://a', tsl: {} }").expect_err("unknown");
        assert!(unknown.contains("tsl"), "{unknown}");
        let endless = parse("{ protocol: grpc }").expect_err("no endpoint");
        assert!(endless.contains("endpoint"), "{endless}");
    }

    #[test]
    fn values_of_headers_come_from_variables_and_are_never_printed() {
        let settings = on(
            "{ endpoint: 'http://a', headers: { authorization: 'Bearer ${KEY}', x-b: '${KEY}', x-c: hunter2 } }",
        );
        let environment = |name: &str| (name == "KEY").then(|| "hunter2".to_owned());
        let headers = settings.header_values(&environment).expect("values");
        assert_eq!(headers[0].1, "Bearer hunter2");
        let printed = yaml::to_string(&settings).expect("yaml");
        let debug = format!("{settings:?} {headers:?}");
        assert!(
            !printed.contains("hunter2") && !debug.contains("hunter2"),
            "{printed} {debug}"
        );
        assert!(printed.contains("${KEY}"), "{printed}");
        let error = settings
            .header_values(&|_| None)
            .expect_err("not set")
            .to_string();
        assert_eq!(
            error,
            "observability.otlp.headers.authorization: the variable KEY is not set in the gateway's environment"
        );
    }
}
