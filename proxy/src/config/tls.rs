//! The key `listeners[].tls:` — the certificates of a listener, and the client certificates that it accepts.
//!
//! This module only parses; other modules read and check the files.

use std::fmt;
use std::path::PathBuf;

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use super::ConfigError;

/// `listeners[].tls:` — the TLS settings of a listener.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Spelling", into = "Spelling")]
pub(crate) struct TlsConfig {
    /// The listener's certificates, at least one. The first is sent to clients that request no server name, or one without a
    /// certificate.
    pub(crate) certificates: Vec<KeyPairFiles>,
    /// The oldest TLS version that clients may use.
    pub(crate) min_version: TlsVersion,
    /// PEM file with the authorities that may sign client certificates.
    pub(crate) client_ca: Option<PathBuf>,
    /// The rule for client certificates: not requested, optional or required.
    pub(crate) client_auth: ClientAuth,
}

impl TlsConfig {
    /// Returns the certificate for clients that request no server name, or one without a certificate.
    pub(crate) fn default_certificate(&self) -> &KeyPairFiles {
        self.certificates
            .first()
            .expect("reading the configuration refuses an empty list")
    }

    /// Checks that the keys about client certificates are consistent.
    ///
    /// # Errors
    ///
    /// The faulty key. `at` is the path of the section, with which the key begins.
    pub(crate) fn validate(&self, at: &str) -> Result<(), ConfigError> {
        match (&self.client_ca, self.client_auth) {
            (None, ClientAuth::Optional | ClientAuth::Required) => Err(ConfigError::key(
                format!("{at}.client_auth"),
                "needs client_ca: a PEM file with the authorities whose client certificates count",
            )),
            (Some(_), ClientAuth::None) => Err(ConfigError::key(
                format!("{at}.client_ca"),
                "is not used: write client_auth: optional or client_auth: required beside it",
            )),
            _ => Ok(()),
        }
    }
}

/// A certificate chain and its private key, in two PEM files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct KeyPairFiles {
    /// File with the certificate chain.
    pub(crate) cert: PathBuf,
    /// File with the private key of the certificate.
    pub(crate) key: PathBuf,
}

/// `listeners[].tls.client_auth`: whether clients have to send a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ClientAuth {
    /// Client certificates are not requested.
    #[default]
    None,
    /// Client certificates are requested, and checked if a client sends one.
    Optional,
    /// Clients without a valid certificate are refused.
    Required,
}

/// `listeners[].tls.min_version`: the oldest TLS version that clients may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub(crate) enum TlsVersion {
    /// TLS 1.2.
    #[default]
    #[serde(rename = "1.2")]
    V1_2,
    /// TLS 1.3.
    #[serde(rename = "1.3")]
    V1_3,
}

impl<'de> Deserialize<'de> for TlsVersion {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // The value is parsed by a visitor, because YAML reads `1.2` without quotes as a number.
        struct Version;
        impl Visitor<'_> for Version {
            type Value = TlsVersion;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("1.2 or 1.3, the TLS versions that are supported")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<TlsVersion, E> {
                match text {
                    "1.2" => Ok(TlsVersion::V1_2),
                    "1.3" => Ok(TlsVersion::V1_3),
                    _ => Err(E::invalid_value(de::Unexpected::Str(text), &self)),
                }
            }

            fn visit_f64<E: de::Error>(self, number: f64) -> Result<TlsVersion, E> {
                self.visit_str(&number.to_string())
            }
        }
        deserializer.deserialize_any(Version)
    }
}

/// The keys for certificates as they stand in the file: a single certificate as `cert` and `key`, several as `certificates`.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Spelling {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cert: Option<PathBuf>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    key: Option<PathBuf>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    certificates: Vec<KeyPairFiles>,
    #[serde(default)]
    min_version: TlsVersion,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    client_ca: Option<PathBuf>,
    #[serde(default)]
    client_auth: ClientAuth,
}

impl TryFrom<Spelling> for TlsConfig {
    type Error = &'static str;

    fn try_from(spelling: Spelling) -> Result<Self, Self::Error> {
        let mut certificates = spelling.certificates;
        match (spelling.cert, spelling.key) {
            (Some(cert), Some(key)) => certificates.insert(0, KeyPairFiles { cert, key }),
            (Some(_), None) => return Err("missing field `key`"),
            (None, Some(_)) => return Err("missing field `cert`"),
            (None, None) if certificates.is_empty() => {
                return Err(
                    "no certificate: write cert and key, or certificates: [{ cert, key }, …]",
                );
            }
            (None, None) => {}
        }
        Ok(Self {
            certificates,
            min_version: spelling.min_version,
            client_ca: spelling.client_ca,
            client_auth: spelling.client_auth,
        })
    }
}

impl From<TlsConfig> for Spelling {
    fn from(config: TlsConfig) -> Self {
        let mut certificates = config.certificates;
        let only = if certificates.len() == 1 {
            certificates.pop()
        } else {
            None
        };
        let (cert, key) = only.map(|files| (files.cert, files.key)).unzip();
        Self {
            cert,
            key,
            certificates,
            min_version: config.min_version,
            client_ca: config.client_ca,
            client_auth: config.client_auth,
        }
    }
}

#[cfg(test)]
mod tests {
    use tooldock_base::yaml;

    use super::*;

    fn parse(yaml: &str) -> Result<TlsConfig, String> {
        yaml::from_str(yaml).map_err(|error| error.to_string())
    }

    #[test]
    fn one_certificate_is_spelled_alone_and_several_as_a_list_whose_first_is_the_default() {
        let one = parse("{ cert: c, key: k }").expect("valid");
        assert_eq!(
            one,
            parse("{ certificates: [{ cert: c, key: k }] }").expect("valid")
        );
        let several = "{ cert: a, key: b, certificates: [{ cert: c, key: d }], min_version: 1.3 }";
        let several = parse(several).expect("valid");
        assert_eq!(several.default_certificate().cert, PathBuf::from("a"));
        assert_eq!(several.certificates.len(), 2);
        assert_eq!(several.min_version, TlsVersion::V1_3);
        for config in [one, several] {
            let printed = yaml::to_string(&config).expect("yaml");
            assert_eq!(parse(&printed), Ok(config));
        }
    }

    #[test]
    fn mistakes_are_named() {
        for (yaml, named) in [
            ("{ cert: c }", "missing field `key`"),
            ("{ key: k }", "missing field `cert`"),
            ("{}", "no certificate: write cert and key"),
            ("{ certificates: [] }", "no certificate"),
            ("{ certificates: [{ cert: c }] }", "missing field `key`"),
            ("{ cert: c, key: k, min_version: 1.1 }", "1.2 or 1.3"),
            ("{ cert: c, key: k, min_version: TLSv1.2 }", "1.2 or 1.3"),
            ("{ cert: c, key: k, ciphers: all }", "ciphers"),
        ] {
            let error = parse(yaml).expect_err(yaml);
            assert!(error.contains(named), "{yaml}: {error}");
        }
    }

    #[test]
    fn client_certificates_need_an_authority_and_an_authority_needs_them() {
        let wrong = |yaml: &str| {
            let config = parse(yaml).expect("valid");
            let error = config
                .validate("listeners[0].tls")
                .expect_err("contradictory");
            error.to_string()
        };
        for asked in ["optional", "required"] {
            let error = wrong(&format!("{{ cert: c, key: k, client_auth: {asked} }}"));
            assert!(
                error.starts_with("listeners[0].tls.client_auth: needs client_ca"),
                "{error}"
            );
        }
        let error = wrong("{ cert: c, key: k, client_ca: a }");
        assert!(
            error.starts_with("listeners[0].tls.client_ca: is not used"),
            "{error}"
        );
        for yaml in [
            "{ cert: c, key: k }",
            "{ cert: c, key: k, client_ca: a, client_auth: required }",
        ] {
            assert_eq!(parse(yaml).expect("valid").validate("tls"), Ok(()));
        }
    }
}
