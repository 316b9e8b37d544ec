//! Checks on configuration values that parsing alone does not make. Each error names its key.

use std::collections::{HashMap, HashSet};
use std::num::NonZeroU32;

use tooldock_workers::bounds::within;

use super::{AdmissionConfig, ConfigError, Flood, LimitKey, LimitUnit, RateConfig};
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
        Ok(())
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
        within(value.get(), &(1..=max))
            .map_err(|message| ConfigError::new(format!("{key}.{name}"), message))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use tooldock_workers::yaml;

    use super::*;

    const DIGEST: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    fn validated(yaml: &str) -> Result<(), String> {
        let config: AdmissionConfig = yaml::from_str(yaml).unwrap();
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
