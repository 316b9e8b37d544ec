//! The `admission:` keys of the configuration file. `Default` is the reference for their defaults.
//!
//! Networks, hosts, origins and digests are parsed as the file is read; [`AdmissionConfig::validate`] checks what
//! only shows when values are seen together.

use std::collections::{HashMap, HashSet};
use std::num::NonZeroU32;
use std::time::Duration;

use bytesize::ByteSize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{self, Deserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize, Serializer};
use tooldock_workers::names::NamespaceName;

use crate::bearer::{ANONYMOUS, BEARER, NamespaceScope};
use crate::host::HostPattern;
use crate::network::Cidr;
use crate::origin::OriginPattern;
use crate::token::TokenDigest;

/// `admission:` — who gets in, from where, how often, and how large.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AdmissionConfig {
    /// Host names answered for; empty: loopback names on loopback listeners, any elsewhere.
    pub hosts: Vec<HostPattern>,
    /// Origins of web pages that may use the server.
    pub origins: Vec<OriginPattern>,
    /// Client networks.
    pub cidrs: CidrsConfig,
    /// Client networks that may call `/reload`.
    pub internal_cidrs: Vec<Cidr>,
    /// Proxies whose `X-Forwarded-For` counts.
    pub trusted_proxies: Vec<Cidr>,
    /// Named tokens, beside `BEARER_TOKEN`.
    pub tokens: Vec<TokenConfig>,
    /// The limit per client address before credentials are looked at.
    pub flood: Flood,
    /// Limits on requests and tool calls.
    pub rate_limits: Vec<RateLimitConfig>,
    /// Sizes and counts.
    pub limits: LimitsConfig,
    /// How long a client may take.
    pub timeouts: TimeoutsConfig,
}

/// `admission.cidrs:` — deny wins; an empty allow-list is everyone.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CidrsConfig {
    /// Who may connect.
    pub allow: Vec<Cidr>,
    /// Who may not, whatever `allow` says.
    pub deny: Vec<Cidr>,
}

/// One entry of `admission.tokens`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenConfig {
    /// The principal's name in logs, limits and sessions. Two tokens may share one, for rotation.
    pub name: String,
    /// The token's SHA-256 digest.
    pub sha256: TokenDigest,
    /// Which namespaces it opens: names and globs.
    pub namespaces: Vec<String>,
}

/// `admission.flood:` — `off`, or a rate per client address.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Flood {
    /// No guard.
    #[default]
    Off,
    /// So much per client address.
    On(RateConfig),
}

/// So many per second, with bursts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RateConfig {
    /// Sustained, per second.
    pub rate: NonZeroU32,
    /// At once, after a pause.
    pub burst: NonZeroU32,
}

/// One entry of `admission.rate_limits`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RateLimitConfig {
    /// Whose budget it is.
    pub key: LimitKey,
    /// Sustained, per second.
    pub rate: NonZeroU32,
    /// At once, after a pause.
    pub burst: NonZeroU32,
    /// What is counted.
    #[serde(default)]
    pub unit: LimitUnit,
    /// Only in this namespace; absent: in each.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<NamespaceName>,
}

/// Whose budget a rate limit is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LimitKey {
    /// One per principal.
    Principal,
    /// One per namespace.
    Namespace,
    /// One per tool of a namespace.
    Tool,
    /// One per client address.
    Address,
}

/// What a rate limit counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LimitUnit {
    /// HTTP requests, refused with 429.
    #[default]
    Request,
    /// Tool calls, however they arrive.
    ToolCall,
}

/// `admission.limits:` — sizes and counts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LimitsConfig {
    /// The size of a request head.
    pub header_bytes: ByteSize,
    /// The number of header fields.
    pub header_fields: usize,
    /// The size of a request body.
    pub body: ByteSize,
    /// Connections of one process.
    pub connections: usize,
    /// Open streams of one principal.
    pub streams_per_principal: usize,
    /// Sessions of one principal.
    pub sessions_per_principal: usize,
}

/// `admission.timeouts:` — how long a client may take.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TimeoutsConfig {
    /// For a whole request head.
    #[serde(with = "humantime_serde")]
    pub header: Duration,
    /// For a body.
    #[serde(with = "humantime_serde")]
    pub body: Duration,
    /// Between two requests of a connection.
    #[serde(with = "humantime_serde")]
    pub keepalive: Duration,
    /// For taking what is written to it.
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
            flood: Flood::Off,
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
            connections: 100_000,
            streams_per_principal: 10_000,
            sessions_per_principal: 10_000,
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
        match self {
            Self::Off => serializer.serialize_str("off"),
            Self::On(rate) => rate.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Flood {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // By hand rather than `untagged`, whose errors do not say what is wrong inside the map.
        struct OffOrRate;
        impl<'de> Visitor<'de> for OffOrRate {
            type Value = Flood;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("`off` or {rate, burst}")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Flood, E> {
                match text {
                    "off" => Ok(Flood::Off),
                    _ => Err(E::invalid_value(de::Unexpected::Str(text), &self)),
                }
            }

            fn visit_bool<E: de::Error>(self, value: bool) -> Result<Flood, E> {
                // YAML 1.1 tools turn `off` into `false`.
                match value {
                    false => Ok(Flood::Off),
                    true => Err(E::invalid_value(de::Unexpected::Bool(true), &self)),
                }
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Flood, A::Error> {
                RateConfig::deserialize(MapAccessDeserializer::new(map)).map(Flood::On)
            }
        }
        deserializer.deserialize_any(OffOrRate)
    }
}

/// A value that cannot be used, by the path of its key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {message}")]
pub struct ConfigError {
    /// The key's path from the top of the file, or the name of an environment variable.
    pub key: String,
    /// What is wrong and what would be right.
    pub message: String,
}

impl ConfigError {
    fn new(key: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            key: key.into(),
            message: message.into(),
        }
    }
}

/// Rates above this are no limit a machine could reach.
const RATE_MAX: u32 = 1_000_000;
/// Bursts above this are no limit either.
const BURST_MAX: u32 = 10_000_000;
/// What the HTTP parser itself takes; larger limits would never be reached.
const HEADER_FIELDS_MAX: usize = 256;
const HEADER_BYTES_MAX: ByteSize = ByteSize::kib(1023);
/// Less than any real client sends.
const HEADER_BYTES_MIN: ByteSize = ByteSize::kib(1);
const PRINCIPAL_BYTES_MAX: usize = 64;

impl AdmissionConfig {
    /// Checks what parsing alone does not show.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] names the first key that cannot be used.
    pub fn validate(&self) -> Result<(), ConfigError> {
        self.validate_tokens()?;
        if let Flood::On(RateConfig { rate, burst }) = self.flood {
            validate_rate("admission.flood", rate, burst)?;
        }
        for (index, rule) in self.rate_limits.iter().enumerate() {
            let key = format!("admission.rate_limits[{index}]");
            validate_rate(&key, rule.rate, rule.burst)?;
            if rule.key == LimitKey::Tool && rule.unit == LimitUnit::Request {
                return Err(ConfigError::new(
                    format!("{key}.unit"),
                    "a limit per tool counts tool calls: write `unit: tool_call`",
                ));
            }
        }
        self.limits.validate()?;
        self.timeouts.validate()
    }

    fn validate_tokens(&self) -> Result<(), ConfigError> {
        let mut digests = HashSet::new();
        let mut namespaces_of = HashMap::new();
        for (index, token) in self.tokens.iter().enumerate() {
            let error = |key: &str, message: String| {
                Err(ConfigError::new(
                    format!("admission.tokens[{index}].{key}"),
                    message,
                ))
            };
            if let Err(message) = validate_principal(&token.name) {
                return error("name", message);
            }
            if !digests.insert(token.sha256) {
                return error("sha256", "the same token is listed twice".into());
            }
            if token.namespaces.is_empty() {
                return error(
                    "namespaces",
                    "no namespace is listed; write [\"*\"] for all".into(),
                );
            }
            if let Err(message) = NamespaceScope::new(&token.namespaces) {
                return error("namespaces", message);
            }
            let first = namespaces_of
                .entry(&token.name)
                .or_insert(&token.namespaces);
            if *first != &token.namespaces {
                return error(
                    "namespaces",
                    format!(
                        "tokens named {:?} are one principal and need the same namespaces",
                        token.name
                    ),
                );
            }
        }
        Ok(())
    }
}

fn validate_principal(name: &str) -> Result<(), String> {
    let letter =
        |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'@');
    let valid = name.len() <= PRINCIPAL_BYTES_MAX
        && name.starts_with(|first: char| first.is_ascii_alphanumeric())
        && name.bytes().all(letter);
    if !valid {
        return Err(format!(
            "invalid name {name:?}: use 1 to {PRINCIPAL_BYTES_MAX} letters, digits, '-', '_', '.' or '@', beginning with a letter or digit"
        ));
    }
    if [BEARER, ANONYMOUS].contains(&name) {
        return Err(format!(
            "{name:?} is reserved: {BEARER:?} is who BEARER_TOKEN stands for, {ANONYMOUS:?} who needs no token"
        ));
    }
    Ok(())
}

fn validate_rate(key: &str, rate: NonZeroU32, burst: NonZeroU32) -> Result<(), ConfigError> {
    for (name, value, max) in [("rate", rate, RATE_MAX), ("burst", burst, BURST_MAX)] {
        if value.get() > max {
            return Err(ConfigError::new(
                format!("{key}.{name}"),
                format!("{value} is above {max}"),
            ));
        }
    }
    Ok(())
}

impl LimitsConfig {
    fn validate(&self) -> Result<(), ConfigError> {
        let error = |key: &str, message: String| {
            Err(ConfigError::new(format!("admission.limits.{key}"), message))
        };
        if !(HEADER_BYTES_MIN..=HEADER_BYTES_MAX).contains(&self.header_bytes) {
            return error(
                "header_bytes",
                format!("has to be {HEADER_BYTES_MIN} to {HEADER_BYTES_MAX}"),
            );
        }
        if !(1..=HEADER_FIELDS_MAX).contains(&self.header_fields) {
            return error(
                "header_fields",
                format!("has to be 1 to {HEADER_FIELDS_MAX}"),
            );
        }
        for (key, empty) in [
            ("body", self.body.as_u64() == 0),
            ("connections", self.connections == 0),
            ("streams_per_principal", self.streams_per_principal == 0),
            ("sessions_per_principal", self.sessions_per_principal == 0),
        ] {
            if empty {
                return error(key, "has to be above 0".into());
            }
        }
        Ok(())
    }
}

impl TimeoutsConfig {
    fn validate(&self) -> Result<(), ConfigError> {
        for (key, timeout) in [
            ("header", self.header),
            ("body", self.body),
            ("keepalive", self.keepalive),
            ("write", self.write),
        ] {
            if timeout.is_zero() {
                return Err(ConfigError::new(
                    format!("admission.timeouts.{key}"),
                    "has to be above 0",
                ));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIGEST: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    fn parse(yaml: &str) -> Result<AdmissionConfig, String> {
        serde_yaml::from_str(yaml).map_err(|error| error.to_string())
    }

    fn key_refused(yaml: &str) -> String {
        parse(yaml).unwrap().validate().unwrap_err().key
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
            flood: off
            rate_limits: []
            limits: { header_bytes: 32KiB, header_fields: 100, body: 4MiB, connections: 100000, streams_per_principal: 10000, sessions_per_principal: 10000 }
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
            flood: {{ rate: 2000, burst: 4000 }}
            rate_limits:
              - {{ key: principal, rate: 100, burst: 200 }}
              - {{ key: tool, rate: 1, burst: 1, unit: tool_call, namespace: github }}
            "#
        );
        let config = parse(&yaml).unwrap();
        assert_eq!(config.validate(), Ok(()));
        assert!(matches!(config.flood, Flood::On(RateConfig { rate, .. }) if rate.get() == 2000));
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
        assert_eq!(parse(&serde_yaml::to_string(&config).unwrap()), Ok(config));
    }

    #[test]
    fn unknown_keys_and_wrong_values_name_themselves() {
        for (yaml, said) in [
            ("hostz: []", "hostz"),
            ("flood: { rate: 1, burst: 1, per: s }", "per"),
            ("flood: on", "flood"),
            ("flood: { rate: 0, burst: 1 }", "rate"),
            ("flood: { rate: 1 }", "burst"),
            ("cidrs: { allow: [10.0.0.0/99] }", "10.0.0.0/99"),
            (
                "tokens: [ { name: a, sha256: abc, namespaces: [a] } ]",
                "64 hexadecimal",
            ),
            ("origins: [null]", "origins"),
            ("rate_limits: [ { key: user, rate: 1, burst: 1 } ]", "user"),
            ("limits: { body: lots }", "body"),
        ] {
            let error = parse(yaml).unwrap_err();
            assert!(error.contains(said), "{yaml}: {error}");
        }
    }

    #[test]
    fn validation_names_the_key() {
        let token = |name: &str, namespaces: &str| {
            format!("{{ name: {name:?}, sha256: {DIGEST}, namespaces: {namespaces} }}")
        };
        let tokens = |list: &[String]| format!("tokens: [ {} ]", list.join(", "));
        let other = format!(
            "{{ name: ci, sha256: {}, namespaces: [b] }}",
            "0".repeat(64)
        );
        for (yaml, key) in [
            (tokens(&[token("", "[a]")]), "admission.tokens[0].name"),
            (tokens(&[token("a b", "[a]")]), "admission.tokens[0].name"),
            (
                tokens(&[token("bearer", "[a]")]),
                "admission.tokens[0].name",
            ),
            (
                tokens(&[token("ci", "[]")]),
                "admission.tokens[0].namespaces",
            ),
            (
                tokens(&[token("ci", "['[']")]),
                "admission.tokens[0].namespaces",
            ),
            (
                tokens(&[token("ci", "[a]"), token("dev", "[a]")]),
                "admission.tokens[1].sha256",
            ),
            (
                tokens(&[token("ci", "[a]"), other]),
                "admission.tokens[1].namespaces",
            ),
            (
                "flood: { rate: 4000000000, burst: 1 }".into(),
                "admission.flood.rate",
            ),
            (
                "rate_limits: [ { key: tool, rate: 1, burst: 1 } ]".into(),
                "admission.rate_limits[0].unit",
            ),
            (
                "rate_limits: [ { key: address, rate: 1, burst: 4000000000 } ]".into(),
                "admission.rate_limits[0].burst",
            ),
            (
                "limits: { header_bytes: 10 }".into(),
                "admission.limits.header_bytes",
            ),
            (
                "limits: { header_fields: 257 }".into(),
                "admission.limits.header_fields",
            ),
            (
                "limits: { connections: 0 }".into(),
                "admission.limits.connections",
            ),
            ("timeouts: { write: 0s }".into(), "admission.timeouts.write"),
        ] {
            assert_eq!(key_refused(&yaml), key, "{yaml}");
        }
    }

    #[test]
    fn two_tokens_may_share_a_name_for_rotation() {
        let yaml = format!(
            "tokens: [ {{ name: ci, sha256: {DIGEST}, namespaces: [a] }}, {{ name: ci, sha256: {}, namespaces: [a] }} ]",
            "0".repeat(64)
        );
        assert_eq!(parse(&yaml).unwrap().validate(), Ok(()));
    }

    #[test]
    fn no_output_shows_a_digest() {
        let yaml = format!("tokens: [ {{ name: ci, sha256: {DIGEST}, namespaces: [a] }} ]");
        let config = parse(&yaml).unwrap();
        let shown = format!("{config:?}{}", serde_yaml::to_string(&config).unwrap());
        assert!(!shown.contains("ba7816"), "{shown}");
    }
}
