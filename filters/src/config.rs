//! The `admission:` keys of the configuration file. The `Default` implementations define the keys' defaults.
//!
//! Networks, hosts, origins and digests are parsed while the file is read. [`AdmissionConfig::validate`] checks the rules that
//! concern several values together.

mod certificate_name;
mod failures;
mod oauth;
mod public_url;
mod validate;

use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZeroU32;
use std::time::Duration;

use bytesize::ByteSize;
use serde::de::value::SeqAccessDeserializer;
use serde::de::{self, Deserializer, IntoDeserializer as _, SeqAccess, Visitor};
use serde::{Deserialize, Serialize, Serializer};
use tooldock_base::names::NamespaceName;
use tooldock_base::network::Cidr;
use tooldock_base::off_or;

use crate::host::HostPattern;
use crate::origin::OriginPattern;
use crate::token::TokenDigest;

pub use certificate_name::CertificateName;
pub use failures::{FailureConfig, FailuresConfig};
pub use oauth::{
    Audience, ClaimedNamespaces, ClientSecret, Introspection, IntrospectionConfig, JwksSource,
    LoginResource, OauthConfig, TokenNamespaces, WebLogin, WebLoginConfig,
};
pub use public_url::PublicUrl;

/// `admission:` — the clients that are admitted, their networks, and limits on the rate and size of requests.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AdmissionConfig {
    /// Host names that listeners accept. Empty: loopback listeners accept loopback names, all others accept any name.
    pub hosts: Vec<HostPattern>,
    /// Origins of web pages whose requests are accepted.
    pub origins: Vec<OriginPattern>,
    /// Client networks that may connect, and client networks that may not.
    pub cidrs: CidrsConfig,
    /// Client networks that may call `/reload`.
    pub internal_cidrs: Vec<Cidr>,
    /// Proxies whose `X-Forwarded-For` is trusted.
    pub trusted_proxies: Vec<Cidr>,
    /// Named tokens, in addition to `BEARER_TOKEN`.
    pub tokens: Vec<TokenConfig>,
    /// Principals of the client certificates of TLS listeners.
    pub certificates: Vec<CertificateConfig>,
    /// The gateway's public address, as clients use it. Used in documents that contain addresses of the gateway.
    pub public_url: PublicUrl,
    /// The authorization servers whose access tokens are accepted.
    pub oauth: Vec<OauthConfig>,
    /// Rate limit per client address that applies before credentials are checked.
    pub flood: Flood,
    /// Delays for clients that send many wrong credentials.
    pub failures: FailuresConfig,
    /// Rate limits on requests and tool calls.
    pub rate_limits: Vec<RateLimitConfig>,
    /// Limits on sizes of requests and answers, and on numbers of connections, streams and sessions.
    pub limits: LimitsConfig,
    /// Time limits for clients that send or read slowly.
    pub timeouts: TimeoutsConfig,
}

/// `admission.cidrs:` — client networks that may connect or not. `deny` takes precedence; an empty `allow` means all networks.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CidrsConfig {
    /// Client networks that may connect; empty means all.
    pub allow: Vec<Cidr>,
    /// Client networks that may not connect, even if `allow` contains them.
    pub deny: Vec<Cidr>,
}

/// An entry of `admission.tokens`: a bearer token and its principal.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenConfig {
    /// The principal's name in logs, limits and sessions. Two tokens may have the same name while a token is being replaced.
    pub name: String,
    /// SHA-256 digest of the token. The configuration does not contain the token itself.
    pub sha256: TokenDigest,
    /// The namespaces that the token gives access to: names and globs.
    pub namespaces: Vec<String>,
}

/// An entry of `admission.certificates`: the name of a client certificate (a subject alternative name, or the subject), and its
/// principal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CertificateConfig {
    /// The principal's name in logs, limits and sessions. Several certificates and tokens may have the same name.
    pub name: String,
    /// A subject alternative name of the certificate: a host name, an IP address, an e-mail address or a URI.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub san: Option<String>,
    /// The complete subject of the certificate, such as `CN=ci,O=Example`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
    /// The namespaces that the certificate gives access to: names and globs.
    pub namespaces: Vec<String>,
    /// Names of the listeners at which the entry applies. Empty: all listeners that request client certificates. A name in a
    /// certificate is only as trustworthy as the authority that signed it, and each listener has its own authorities.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub listeners: Vec<String>,
}

/// `admission.flood:` — `off`, or a limit on the rate of requests per client address.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Flood {
    /// The rate of requests per client address is not limited.
    #[default]
    Off,
    /// The rate of requests per client address is limited to this rate.
    On(RateConfig),
}

/// A rate limit: events per second, and the size of bursts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RateConfig {
    /// The sustained rate, in events per second.
    pub rate: NonZeroU32,
    /// Maximum number of events in a burst, which is available after a pause.
    pub burst: NonZeroU32,
}

/// An entry of `admission.rate_limits`: a limit on the rate of requests or tool calls.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RateLimitConfig {
    /// The key that the limit counts by, or several keys. Each combination of their values has a separate budget.
    pub key: LimitKeys,
    /// The sustained rate, in events per second.
    pub rate: NonZeroU32,
    /// Maximum number of events in a burst, which is available after a pause.
    pub burst: NonZeroU32,
    /// The unit that the limit counts: requests or tool calls.
    #[serde(default)]
    pub unit: LimitUnit,
    /// The only namespace that the limit counts; `None`: the limit counts all namespaces.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<NamespaceName>,
    /// The cost of tool calls, by tool name or glob. If several globs match, the alphabetically first one applies. A call that
    /// matches none costs 1.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub weights: BTreeMap<String, NonZeroU32>,
}

/// The keys by which a rate limit counts. Each combination of their values has a separate budget.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitKeys(pub Vec<LimitKey>);

impl Serialize for LimitKeys {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &*self.0 {
            [one] => one.serialize(serializer),
            several => several.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for LimitKeys {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OneOrSeveral;

        impl<'de> Visitor<'de> for OneOrSeveral {
            type Value = LimitKeys;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("principal, namespace, tool or address, or a list of these")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<LimitKeys, E> {
                let one = LimitKey::deserialize(text.into_deserializer())?;
                Ok(LimitKeys(vec![one]))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, items: A) -> Result<LimitKeys, A::Error> {
                Vec::deserialize(SeqAccessDeserializer::new(items)).map(LimitKeys)
            }
        }

        deserializer.deserialize_any(OneOrSeveral)
    }
}

/// A key by which a rate limit counts requests or tool calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LimitKey {
    /// Each principal has a separate budget of the rate limit.
    Principal,
    /// Each namespace has a separate budget of the rate limit.
    Namespace,
    /// Each tool of each namespace has a separate budget of the rate limit.
    Tool,
    /// Each client address has a separate budget of the rate limit.
    Address,
}

/// The unit that a rate limit counts: requests or tool calls.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LimitUnit {
    /// The rate limit counts HTTP requests; requests beyond it are refused with 429.
    #[default]
    Request,
    /// The rate limit counts tool calls, by whatever protocol they arrive.
    ToolCall,
}

/// `admission.limits:` — limits on sizes of requests and answers, and on numbers of connections, streams and sessions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LimitsConfig {
    /// Maximum size of a request head. Requests with a larger one are refused.
    pub header_bytes: ByteSize,
    /// Maximum number of header fields of a request. Requests with more are refused.
    pub header_fields: usize,
    /// Maximum size of a request body. Requests with a larger one are refused.
    pub body: ByteSize,
    /// Maximum memory for all request bodies that are being read at the same time.
    pub bodies_total: ByteSize,
    /// Maximum total memory for large answers, and for answers that clients have not read completely yet.
    pub answers_total: ByteSize,
    /// Maximum number of client connections of one gateway process.
    pub connections: usize,
    /// Limits on concurrent requests, per principal and per client address.
    pub concurrency: ConcurrencyConfig,
    /// Maximum number of open streams of one principal. Further streams are refused.
    pub streams_per_principal: usize,
    /// Maximum number of sessions of one principal.
    pub sessions_per_principal: usize,
    /// Maximum memory for all sessions of one principal, without the events that their streams keep for resumption.
    pub session_bytes_per_principal: ByteSize,
}

/// `admission.limits.concurrency:` — limits on concurrent requests. Long-lived streams are limited separately.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ConcurrencyConfig {
    /// The limit on concurrent requests per principal.
    pub per_principal: AtOnce,
    /// The limit on concurrent requests per client address.
    pub per_address: AtOnce,
}

/// A limit on concurrent requests: `off`, or a number.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum AtOnce {
    /// The number of concurrent requests is not limited.
    #[default]
    Off,
    /// Maximum number of concurrent requests; requests beyond it are refused.
    AtMost(NonZeroU32),
}

/// `admission.timeouts:` — time limits for clients that send or read slowly.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TimeoutsConfig {
    /// Time limit for a client to send a complete request head.
    #[serde(with = "humantime_serde")]
    pub header: Duration,
    /// Time limit for a client to send a request body.
    #[serde(with = "humantime_serde")]
    pub body: Duration,
    /// Maximum time that a connection may stay idle between two requests.
    #[serde(with = "humantime_serde")]
    pub keepalive: Duration,
    /// Time limit for a client to read the bytes that were written to its connection.
    #[serde(with = "humantime_serde")]
    pub write: Duration,
}

impl Default for AdmissionConfig {
    fn default() -> Self {
        let internal = ["172.30.0.10/32", "127.0.0.1/32"];
        Self {
            hosts: Vec::new(),
            origins: vec![OriginPattern::ANY],
            cidrs: CidrsConfig::default(),
            internal_cidrs: internal
                .map(|cidr| cidr.parse().expect("a literal network"))
                .into(),
            trusted_proxies: Vec::new(),
            tokens: Vec::new(),
            certificates: Vec::new(),
            public_url: PublicUrl::default(),
            oauth: Vec::new(),
            flood: Flood::Off,
            failures: FailuresConfig::default(),
            rate_limits: Vec::new(),
            limits: LimitsConfig::default(),
            timeouts: TimeoutsConfig::default(),
        }
    }
}

impl Default for LimitsConfig {
    fn default() -> Self {
        Self {
            header_bytes: ByteSize::kib(32),
            header_fields: 100,
            body: ByteSize::mib(4),
            bodies_total: ByteSize::mib(256),
            answers_total: ByteSize::mib(256),
            connections: 100_000,
            concurrency: ConcurrencyConfig::default(),
            streams_per_principal: 10_000,
            sessions_per_principal: 10_000,
            session_bytes_per_principal: ByteSize::mib(64),
        }
    }
}

impl Default for TimeoutsConfig {
    fn default() -> Self {
        Self {
            header: Duration::from_secs(15),
            body: Duration::from_secs(30),
            keepalive: Duration::from_secs(75),
            write: Duration::from_secs(30),
        }
    }
}

impl Serialize for Flood {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let rate = match self {
            Self::Off => None,
            Self::On(rate) => Some(rate),
        };
        off_or::serialize(rate, serializer)
    }
}

impl<'de> Deserialize<'de> for Flood {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let rate = off_or::deserialize(deserializer, "`off` or {rate, burst}")?;
        Ok(rate.map_or(Self::Off, Self::On))
    }
}

impl Serialize for AtOnce {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let max = match self {
            Self::Off => None,
            Self::AtMost(max) => Some(max),
        };
        off_or::serialize(max, serializer)
    }
}

impl<'de> Deserialize<'de> for AtOnce {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let expected = "`off` or a number from 1 to 1000000";
        let Some(max) = off_or::deserialize::<_, NonZeroU32>(deserializer, expected)? else {
            return Ok(Self::Off);
        };
        if max.get() > AT_ONCE_MAX {
            let number = de::Unexpected::Unsigned(max.get().into());
            return Err(de::Error::invalid_value(number, &expected));
        }
        Ok(Self::AtMost(max))
    }
}

/// Highest limit on concurrent requests that can be configured. No process can run more requests than that.
const AT_ONCE_MAX: u32 = 1_000_000;

/// Error about a value of the configuration that cannot be used. Contains the path of its key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {message}")]
pub struct ConfigError {
    /// The key's path from the top of the configuration file, or the name of an environment variable.
    pub key: String,
    /// Description of the fault, and of a correct value.
    pub message: String,
}

#[cfg(test)]
mod tests {
    use tooldock_base::yaml;

    use super::*;

    const DIGEST: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    fn parse(yaml: &str) -> Result<AdmissionConfig, String> {
        yaml::from_str(yaml).map_err(|error| error.to_string())
    }

    #[test]
    fn the_documented_spelling_is_the_default() {
        let documented = r#"
            hosts: []
            origins: ["*"]
            cidrs: { allow: [], deny: [] }
            internal_cidrs: ["172.30.0.10/32", "127.0.0.1/32"]
            trusted_proxies: []
            tokens: []
            certificates: []
            public_url: off
            oauth: []
            flood: off
            failures: { free: 30, window: 1m, max_delay: 1m }
            rate_limits: []
            limits: { header_bytes: 32KiB, header_fields: 100, body: 4MiB, bodies_total: 256MiB, answers_total: 256MiB, connections: 100000, concurrency: { per_principal: off, per_address: off }, streams_per_principal: 10000, sessions_per_principal: 10000, session_bytes_per_principal: 64MiB }
            timeouts: { header: 15s, body: 30s, keepalive: 75s, write: 30s }
        "#;
        assert_eq!(parse(documented).unwrap(), AdmissionConfig::default());
        assert_eq!(AdmissionConfig::default().validate(), Ok(()));
    }

    #[test]
    fn every_documented_form_is_read() {
        let yaml = format!(
            r#"
            hosts: [gw.example, "*.tools.example"]
            origins: ["https://ok.example"]
            cidrs: {{ allow: [10.0.0.0/8], deny: [10.6.6.6] }}
            tokens: [ {{ name: ci, sha256: {DIGEST}, namespaces: ["github", "dev-*"] }} ]
            certificates:
              - {{ name: build, san: "build.example", namespaces: ["*"] }}
              - {{ name: desk, subject: "CN=desk, O=Example", namespaces: ["dev-*"] }}
            flood: {{ rate: 2000, burst: 4000 }}
            failures: off
            rate_limits:
              - {{ key: principal, rate: 100, burst: 200 }}
              - {{ key: tool, rate: 1, burst: 1, unit: tool_call, namespace: github }}
              - {{ key: [principal, tool], rate: 1, burst: 9, unit: tool_call, weights: {{ "search_*": 5 }} }}
            limits: {{ concurrency: {{ per_principal: 20, per_address: off }} }}
            "#
        );
        let config = parse(&yaml).unwrap();
        assert_eq!(config.validate(), Ok(()));
        assert!(matches!(config.flood, Flood::On(RateConfig { rate, .. }) if rate.get() == 2000));
        assert_eq!(config.failures, FailuresConfig::Off);
        assert_eq!(config.rate_limits[0].unit, LimitUnit::Request);
    }

    #[test]
    fn it_reads_what_it_writes_except_digests() {
        let config = AdmissionConfig {
            flood: Flood::On(RateConfig {
                rate: NonZeroU32::MIN,
                burst: NonZeroU32::MIN,
            }),
            ..AdmissionConfig::default()
        };
        assert_eq!(parse(&yaml::to_string(&config).unwrap()), Ok(config));
    }

    #[test]
    fn unknown_keys_and_wrong_values_name_themselves() {
        for (yaml, said) in [
            ("hostz: []", "hostz"),
            ("flood: { rate: 1, burst: 1, per: s }", "per"),
            ("flood: on", "flood"),
            ("failures: on", "`off` or"),
            ("failures: { max: 3 }", "max"),
            ("flood: { rate: 0, burst: 1 }", "rate"),
            ("flood: { rate: 1 }", "burst"),
            ("cidrs: { allow: [10.0.0.0/99] }", "10.0.0.0/99"),
            (
                "tokens: [ { name: a, sha256: abc, namespaces: [a] } ]",
                "64 hexadecimal",
            ),
            ("origins: [null]", "origins"),
            ("rate_limits: [ { key: user, rate: 1, burst: 1 } ]", "user"),
            (
                "rate_limits: [ { key: 5, rate: 1, burst: 1 } ]",
                "or a list of these",
            ),
            ("limits: { body: lots }", "body"),
            ("limits: { concurrency: { per_principal: 0 } }", "from 1 to"),
            ("limits: { concurrency: { per_address: many } }", "`off` or"),
            ("limits: { concurrency: 5 }", "concurrency"),
            ("public_url: gw.example", "https://gw.example"),
        ] {
            let error = parse(yaml).unwrap_err();
            assert!(error.contains(said), "{yaml}: {error}");
        }
    }

    #[test]
    fn no_output_shows_a_digest() {
        let yaml = format!("tokens: [ {{ name: ci, sha256: {DIGEST}, namespaces: [a] }} ]");
        let config = parse(&yaml).unwrap();
        let shown = format!("{config:?}{}", yaml::to_string(&config).unwrap());
        assert!(!shown.contains("ba7816"), "{shown}");
    }
}
