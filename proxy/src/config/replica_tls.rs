//! The key `replicas.tls:` — mutual TLS between replicas.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tooldock_base::server_failure::InvalidServer;
use tooldock_workers::remote::{RemoteTls, TlsSpec, is_server_name};

use super::tls::{ClientAuth, KeyPairFiles, TlsConfig, TlsVersion};

/// `replicas.tls:` — PEM files by which replicas authenticate each other. Either all three files are set, or none, for
/// connections without TLS.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct ReplicaTls {
    /// File with the certificate authority that has signed the certificates of all replicas.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ca: Option<PathBuf>,
    /// File with the certificate chain of this replica, used for connections from and to other replicas.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cert: Option<PathBuf>,
    /// File with the private key of `cert`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) key: Option<PathBuf>,
    /// The name that the certificates of the other replicas must contain; `None` for the host in their `replicas.address`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) server_name: Option<String>,
}

/// This replica's certificate, with the properties that other replicas require of it.
pub(crate) struct ReplicaCertificate<'a> {
    /// File with the certificate authority that must have signed the certificate.
    pub(crate) ca: &'a Path,
    /// File with the certificate chain of this replica.
    pub(crate) cert: &'a Path,
    /// The host name that the certificate must contain.
    pub(crate) name: &'a str,
}

impl ReplicaTls {
    /// Returns this replica's certificate and the name that other replicas expect in it; `None` without TLS. `address` is the
    /// value of `replicas.address`.
    pub(super) fn certificate<'a>(&'a self, address: &'a str) -> Option<ReplicaCertificate<'a>> {
        let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
        let host = host.trim_matches(['[', ']']).trim_end_matches('.');
        Some(ReplicaCertificate {
            ca: self.ca.as_deref()?,
            cert: self.cert.as_deref()?,
            name: self.server_name.as_deref().unwrap_or(host),
        })
    }

    /// Returns the TLS settings of the listener at `replicas.address`, which requires client certificates; `None` without TLS.
    pub(crate) fn listener(&self) -> Option<TlsConfig> {
        let (ca, cert, key) = (self.ca.clone()?, self.cert.clone()?, self.key.clone()?);
        Some(TlsConfig {
            certificates: vec![KeyPairFiles { cert, key }],
            min_version: TlsVersion::V1_3,
            client_ca: Some(ca),
            client_auth: ClientAuth::Required,
        })
    }

    /// Reads the files for connections to other replicas; returns `None` without TLS.
    ///
    /// # Errors
    ///
    /// [`InvalidServer`] with the key below `replicas` whose file cannot be read.
    pub(crate) fn read(&self) -> Result<Option<TlsSpec>, InvalidServer> {
        if self.ca.is_none() {
            return Ok(None);
        }
        let files = RemoteTls {
            ca: self.ca.clone(),
            cert: self.cert.clone(),
            key: self.key.clone(),
            server_name: self.server_name.clone(),
            verify: true,
        };
        files.read().map(Some)
    }

    /// Checks that either all keys or none are set.
    ///
    /// # Errors
    ///
    /// The faulty key below `replicas`, and the reason.
    pub(super) fn check(&self, has_address: bool) -> Result<(), (&'static str, &'static str)> {
        if *self == Self::default() {
            return Ok(());
        }
        let files = [
            ("tls.ca", &self.ca),
            ("tls.cert", &self.cert),
            ("tls.key", &self.key),
        ];
        if let Some((key, _)) = files.into_iter().find(|(_, file)| file.is_none()) {
            return Err((
                key,
                "is missing: TLS between replicas is mutual, and needs ca, cert and key (PEM files)",
            ));
        }
        let name = self.server_name.as_deref();
        if name.is_some_and(|name| !is_server_name(name)) {
            return Err(("tls.server_name", "is neither a host name nor an address"));
        }
        if !has_address {
            return Err((
                "tls",
                "needs replicas.address: replicas of one data directory reach each other by Unix sockets, without TLS",
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use tooldock_base::yaml;

    use super::*;

    fn parse(yaml: &str) -> ReplicaTls {
        yaml::from_str(yaml).expect(yaml)
    }

    #[test]
    fn tls_between_replicas_demands_certificates_of_both_sides() {
        let tls = parse("{ ca: a, cert: c, key: k }");
        assert_eq!(tls.check(true), Ok(()));
        let listener = tls.listener().expect("TLS");
        assert_eq!(listener.validate("tls"), Ok(()));
        assert_eq!(listener.client_auth, ClientAuth::Required);
        assert_eq!(listener.default_certificate().cert, PathBuf::from("c"));
        assert_eq!(parse("{}").listener(), None);
        assert_eq!(parse("{}").check(false), Ok(()));
    }

    #[test]
    fn a_certificate_is_checked_by_the_server_name_or_the_host_of_the_address() {
        let files = "ca: a, cert: c, key: k";
        for (tls, address, expected) in [
            (format!("{{ {files} }}"), "gateway-1:7100", "gateway-1"),
            (format!("{{ {files} }}"), "gateway-1.:7100", "gateway-1"),
            (format!("{{ {files} }}"), "[::1]:7100", "::1"),
            (
                format!("{{ {files}, server_name: all }}"),
                "10.0.0.7:7100",
                "all",
            ),
        ] {
            let tls = parse(&tls);
            assert_eq!(tls.certificate(address).expect("TLS").name, expected);
        }
        assert!(parse("{}").certificate("gateway-1:7100").is_none());
    }

    #[test]
    fn parts_of_it_name_the_key_that_is_missing_or_wrong() {
        for (yaml, has_address, at_fault) in [
            ("{ cert: c, key: k }", true, "tls.ca"),
            ("{ ca: a, key: k }", true, "tls.cert"),
            ("{ ca: a, cert: c }", true, "tls.key"),
            ("{ server_name: gateways }", true, "tls.ca"),
            (
                "{ ca: a, cert: c, key: k, server_name: 'a b' }",
                true,
                "tls.server_name",
            ),
            ("{ ca: a, cert: c, key: k }", false, "tls"),
        ] {
            let error = parse(yaml).check(has_address).expect_err(yaml);
            assert_eq!(error.0, at_fault, "{yaml}");
        }
        let unknown = yaml::from_str::<ReplicaTls>("{ verify: false }").expect_err("unknown");
        assert!(unknown.to_string().contains("verify"), "{unknown}");
    }
}
