//! Checks on configuration values that parsing does not make, such as bounds and conflicts. Each error names its key.

mod oauth;

use std::collections::{HashMap, HashSet};
use std::num::NonZeroU32;
use std::ops::RangeInclusive;
use std::time::Duration;

use globset::Glob;
use tooldock_base::bounds::within;
use tooldock_base::namespace_scope::NamespaceScope;

use super::{
    AdmissionConfig, CertificateConfig, CertificateName, ConfigError, FailuresConfig, Flood,
    LimitKey, LimitUnit, RateConfig, RateLimitConfig,
};
use crate::principal::{ANONYMOUS, BEARER, GATEWAY};

impl ConfigError {
    fn new(key: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            key: key.into(),
            message: message.into(),
        }
    }
}

/// Highest rate that can be configured, in events per second. No machine can process more.
const RATE_MAX: u32 = 1_000_000;
/// Largest burst that can be configured, in events. No machine can process a larger one.
const BURST_MAX: u32 = 10_000_000;
const PRINCIPAL_BYTES_MAX: usize = 64;
/// Maximum number of wrong credentials without a delay that can be configured. A higher number would have no effect as a limit.
const FREE_FAILURES_MAX: u32 = 1_000_000;
/// Allowed range for the durations in `admission.failures`: one second to one day.
const FAILURE_TIMES: RangeInclusive<Duration> =
    Duration::from_secs(1)..=Duration::from_secs(24 * 3600);

impl RateLimitConfig {
    /// Checks the keys and the weights of a rate limit. `at` is the path of the limit's entry in the configuration.
    fn validate_keys(&self, at: &str) -> Result<(), ConfigError> {
        let keys = &self.key.0;
        let is_twice = |(place, key): (usize, &LimitKey)| keys[..place].contains(key);
        if keys.is_empty() || keys.iter().enumerate().any(is_twice) {
            return Err(ConfigError::new(
                format!("{at}.key"),
                "name each of principal, namespace, tool and address once, and at least one of them",
            ));
        }
        if !self.weights.is_empty() && self.unit == LimitUnit::Request {
            return Err(ConfigError::new(
                format!("{at}.weights"),
                "only tool calls have weights: write `unit: tool_call`",
            ));
        }
        for (pattern, weight) in &self.weights {
            let key = || format!("{at}.weights.{pattern}");
            Glob::new(pattern).map_err(|error| {
                ConfigError::new(key(), format!("invalid pattern: {}", error.kind()))
            })?;
            if *weight > self.burst {
                return Err(ConfigError::new(
                    key(),
                    format!(
                        "a call of weight {weight} never fits into a burst of {}: write a smaller weight or a larger burst",
                        self.burst
                    ),
                ));
            }
        }
        Ok(())
    }
}

impl CertificateConfig {
    /// Checks the certificate name of this entry.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] names the key whose value is not a valid certificate name.
    pub fn check(&self) -> Result<(), ConfigError> {
        let name = CertificateName::of_config(self);
        name.map(drop)
            .map_err(|(key, message)| ConfigError::new(key, message))
    }
}

impl AdmissionConfig {
    /// Checks the rules that parsing does not check, such as bounds and conflicts between values.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] names the first key that cannot be used.
    pub fn validate(&self) -> Result<(), ConfigError> {
        self.validate_principals()?;
        self.validate_oauth()?;
        if let Flood::On(RateConfig { rate, burst }) = self.flood {
            validate_rate("admission.flood", rate, burst)?;
        }
        self.validate_failures()?;
        for (index, rule) in self.rate_limits.iter().enumerate() {
            let key = format!("admission.rate_limits[{index}]");
            validate_rate(&key, rule.rate, rule.burst)?;
            rule.validate_keys(&key)?;
            if rule.key.0.contains(&LimitKey::Tool) && rule.unit == LimitUnit::Request {
                return Err(ConfigError::new(
                    format!("{key}.unit"),
                    "a limit per tool counts tool calls: write `unit: tool_call`",
                ));
            }
        }
        Ok(())
    }

    fn validate_failures(&self) -> Result<(), ConfigError> {
        let FailuresConfig::Slowed(slowed) = self.failures else {
            return Ok(());
        };
        let at = |key: &str| format!("admission.failures.{key}");
        within(slowed.free, &(1..=FREE_FAILURES_MAX))
            .map_err(|message| ConfigError::new(at("free"), message))?;
        for (key, time) in [("window", slowed.window), ("max_delay", slowed.max_delay)] {
            within(time, &FAILURE_TIMES).map_err(|message| ConfigError::new(at(key), message))?;
        }
        Ok(())
    }

    /// Checks the entries that define principals: tokens and certificates.
    fn validate_principals(&self) -> Result<(), ConfigError> {
        let mut namespaces_of = HashMap::new();
        let mut digests = HashSet::new();
        for (index, token) in self.tokens.iter().enumerate() {
            let at = format!("admission.tokens[{index}]");
            validate_principal(&at, &token.name, &token.namespaces, &mut namespaces_of)?;
            if !digests.insert(token.sha256) {
                let message = "the same token is listed twice";
                return Err(ConfigError::new(format!("{at}.sha256"), message));
            }
        }
        let mut names: HashMap<_, Vec<&[String]>> = HashMap::new();
        for (index, certificate) in self.certificates.iter().enumerate() {
            let at = format!("admission.certificates[{index}]");
            let (name, namespaces) = (&certificate.name, &certificate.namespaces);
            validate_principal(&at, name, namespaces, &mut namespaces_of)?;
            let name = CertificateName::of_config(certificate)
                .map_err(|(key, message)| ConfigError::new(format!("{at}.{key}"), message))?;
            let others = names.entry(name).or_default();
            if others
                .iter()
                .any(|other| overlap(other, &certificate.listeners))
            {
                let message = "the same certificate is listed twice for one listener";
                return Err(ConfigError::new(at, message));
            }
            others.push(&certificate.listeners);
        }
        Ok(())
    }
}

/// Returns true if two lists contain a common listener. An empty list means all listeners.
fn overlap(one: &[String], other: &[String]) -> bool {
    one.is_empty() || other.is_empty() || one.iter().any(|name| other.contains(name))
}

/// Checks a token or certificate. Entries with the same name belong to one principal, so they must list the same namespaces.
fn validate_principal<'a>(
    at: &str,
    name: &'a str,
    namespaces: &'a Vec<String>,
    namespaces_of: &mut HashMap<&'a str, &'a Vec<String>>,
) -> Result<(), ConfigError> {
    let error = |key: &str, message: String| Err(ConfigError::new(format!("{at}.{key}"), message));
    if let Err(message) = validate_name(name) {
        return error("name", message);
    }
    if namespaces.is_empty() {
        let message = "no namespace is listed; write [\"*\"] for all";
        return error("namespaces", message.into());
    }
    if let Err(message) = NamespaceScope::new(namespaces) {
        return error("namespaces", message);
    }
    if *namespaces_of.entry(name).or_insert(namespaces) != namespaces {
        let message = format!(
            "tokens and certificates named {name:?} are one principal and need the same namespaces"
        );
        return error("namespaces", message);
    }
    Ok(())
}

fn validate_name(name: &str) -> Result<(), String> {
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
    if [BEARER, ANONYMOUS, GATEWAY].contains(&name) {
        return Err(format!(
            "{name:?} is reserved: {BEARER:?} is who BEARER_TOKEN stands for, {ANONYMOUS:?} who needs no token, {GATEWAY:?} the \
             gateway's own calls for hooks; choose another name"
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
    use tooldock_base::yaml;

    use super::*;

    const DIGEST: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    fn validated(yaml: &str) -> Result<(), String> {
        let config: AdmissionConfig = yaml::from_str(yaml).unwrap();
        config.validate().map_err(|error| error.key)
    }

    #[test]
    fn a_certificate_alone_is_checked_by_its_name() {
        let checked = |yaml: &str| {
            let config: CertificateConfig = yaml::from_str(yaml).unwrap();
            config.check().map_err(|error| error.key)
        };
        let subject = checked("{ name: a, subject: 'CN=a,O=b', namespaces: [a] }");
        assert_eq!(subject, Ok(()));
        let wrong = checked("{ name: a, subject: a, namespaces: [a] }");
        assert_eq!(wrong, Err("subject".into()));
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
                "certificates: [ { name: a, namespaces: [a] } ]".into(),
                "admission.certificates[0].san",
            ),
            (
                "certificates: [ { name: a, san: a, subject: CN=a, namespaces: [a] } ]".into(),
                "admission.certificates[0].subject",
            ),
            (
                "certificates: [ { name: a, san: '*.a', namespaces: [a] } ]".into(),
                "admission.certificates[0].san",
            ),
            (
                "certificates: [ { name: a, subject: ci, namespaces: [a] } ]".into(),
                "admission.certificates[0].subject",
            ),
            (
                "certificates: [ { name: a, san: x.y, namespaces: [a] }, { name: b, san: X.y, namespaces: [a] } ]".into(),
                "admission.certificates[1]",
            ),
            (
                "certificates: [ { name: a, san: x.y, namespaces: [a], listeners: [l, m] }, { name: b, san: x.y, namespaces: [a], listeners: [m] } ]".into(),
                "admission.certificates[1]",
            ),
            (
                format!(
                    "tokens: [ {} ]\ncertificates: [ {{ name: ci, san: x.y, namespaces: [b] }} ]",
                    token("ci", "[a]")
                ),
                "admission.certificates[0].namespaces",
            ),
            (
                "flood: { rate: 4000000000, burst: 1 }".into(),
                "admission.flood.rate",
            ),
            (
                "rate_limits: [ { key: [], rate: 1, burst: 1 } ]".into(),
                "admission.rate_limits[0].key",
            ),
            (
                "rate_limits: [ { key: [tool, tool], rate: 1, burst: 1, unit: tool_call } ]".into(),
                "admission.rate_limits[0].key",
            ),
            (
                "rate_limits: [ { key: [principal, tool], rate: 1, burst: 1 } ]".into(),
                "admission.rate_limits[0].unit",
            ),
            (
                "rate_limits: [ { key: principal, rate: 1, burst: 9, weights: { a: 2 } } ]".into(),
                "admission.rate_limits[0].weights",
            ),
            (
                "rate_limits: [ { key: tool, unit: tool_call, rate: 1, burst: 9, weights: { a: 10 } } ]".into(),
                "admission.rate_limits[0].weights.a",
            ),
            (
                "rate_limits: [ { key: tool, unit: tool_call, rate: 1, burst: 9, weights: { '[': 1 } } ]".into(),
                "admission.rate_limits[0].weights.[",
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
