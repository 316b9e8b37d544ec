//! Checks on configuration values that parsing alone does not make. Each error names its key.

use std::collections::{HashMap, HashSet};
use std::num::NonZeroU32;

use bytesize::ByteSize;

use super::{
    AdmissionConfig, ConfigError, Flood, LimitKey, LimitUnit, LimitsConfig, RateConfig,
    TimeoutsConfig,
};
use crate::bearer::{ANONYMOUS, BEARER, NamespaceScope};

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
        if self.bodies_total < self.body {
            return error(
                "bodies_total",
                format!("is below admission.limits.body, which is {}", self.body),
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

    fn validated(yaml: &str) -> Result<(), String> {
        let config: AdmissionConfig = serde_yaml::from_str(yaml).unwrap();
        config.validate().map_err(|error| error.key)
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
            assert_eq!(validated(&yaml), Err(key.to_owned()), "{yaml}");
        }
    }

    #[test]
    fn two_tokens_may_share_a_name_for_rotation() {
        let yaml = format!(
            "tokens: [ {{ name: ci, sha256: {DIGEST}, namespaces: [a] }}, {{ name: ci, sha256: {}, namespaces: [a] }} ]",
            "0".repeat(64)
        );
        assert_eq!(validated(&yaml), Ok(()));
    }
}
