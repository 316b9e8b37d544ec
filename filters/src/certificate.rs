//! Client certificates as credentials: maps a verified certificate to a principal.
//!
//! The TLS handshake has verified the certificate before; this module only compares names. A name matches only as a whole, and
//! only a name of the same kind: a host name in a certificate is never taken for a URI or for the subject.

use std::collections::HashMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tooldock_base::namespace_scope::NamespaceScope;

use crate::config::{CertificateConfig, CertificateName};
use crate::makers;
use crate::principal::Principal;

/// The names of a client certificate that the handshake has verified.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientCertificate {
    /// All names of the certificate: its subject alternative names and its subject.
    pub names: Vec<CertificateName>,
}

/// The client certificate of a request's connection.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum PeerCertificate<'a> {
    /// The client has shown no certificate.
    #[default]
    Nothing,
    /// The client has shown a certificate that the TLS handshake has verified.
    Certificate(&'a ClientCertificate),
    /// The client's certificate has expired since the handshake, or its authorities are no longer trusted.
    Outdated,
}

/// The entries of `admission.certificates`, by certificate name.
#[derive(Debug, Default)]
pub(crate) struct Certificates {
    by_name: HashMap<CertificateName, Vec<CertificateEntry>>,
}

/// A compiled entry of `admission.certificates`.
#[derive(Debug)]
struct CertificateEntry {
    /// Index of the entry in `admission.certificates`. If several entries match a certificate, the one with the lowest index
    /// applies.
    place: usize,
    /// Names of the listeners where the entry applies. Empty: it applies to all listeners that request client certificates.
    listeners: Vec<String>,
    principal: Arc<Principal>,
}

impl Certificates {
    /// Indexes the entries by certificate name. The error names the entry and the key of a certificate name that cannot be used;
    /// validation has found all other faults before.
    pub(crate) fn new(certificates: &[CertificateConfig]) -> Result<Self, String> {
        let mut by_name: HashMap<_, Vec<_>> = HashMap::new();
        for (place, certificate) in certificates.iter().enumerate() {
            let name = CertificateName::of_config(certificate)
                .map_err(|(key, message)| format!("[{place}].{key}: {message}"))?;
            let namespaces = NamespaceScope::new(&certificate.namespaces)?;
            let principal = Principal::unlimited(&certificate.name, namespaces);
            let principal = principal.making(makers::of_certificate(certificate));
            by_name.entry(name).or_default().push(CertificateEntry {
                place,
                listeners: certificate.listeners.clone(),
                principal: Arc::new(principal),
            });
        }
        Ok(Self { by_name })
    }

    /// Finds the principal of a certificate at a listener; `None` if no entry for this listener matches the certificate.
    pub(crate) fn principal(
        &self,
        certificate: &ClientCertificate,
        listener: &str,
    ) -> Option<&Arc<Principal>> {
        let names = certificate.names.iter();
        let found = names.filter_map(|name| self.by_name.get(name)).flatten();
        let here = found.filter(|entry| entry.is_about(listener));
        let first = here.min_by_key(|entry| entry.place);
        first.map(|entry| &entry.principal)
    }
}

impl CertificateEntry {
    fn is_about(&self, listener: &str) -> bool {
        self.listeners.is_empty() || self.listeners.iter().any(|name| name == listener)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &str, san: Option<&str>, subject: Option<&str>) -> CertificateConfig {
        CertificateConfig {
            name: name.to_owned(),
            san: san.map(str::to_owned),
            subject: subject.map(str::to_owned),
            namespaces: vec!["*".to_owned()],
            listeners: Vec::new(),
        }
    }

    fn at(listener: &str, certificate: CertificateConfig) -> CertificateConfig {
        CertificateConfig {
            listeners: vec![listener.to_owned()],
            ..certificate
        }
    }

    fn principal(entries: &[CertificateConfig], names: &[CertificateName]) -> Option<String> {
        principal_at("core", entries, names)
    }

    fn principal_at(
        listener: &str,
        entries: &[CertificateConfig],
        names: &[CertificateName],
    ) -> Option<String> {
        let certificates = Certificates::new(entries).unwrap();
        let certificate = ClientCertificate {
            names: names.to_vec(),
        };
        let principal = certificates.principal(&certificate, listener)?;
        Some(principal.name.to_string())
    }

    #[test]
    fn an_entry_counts_at_its_listeners_alone() {
        let entries = [
            at("partners", entry("partner", Some("ci.example"), None)),
            at("core", entry("own", Some("ci.example"), None)),
            entry("everywhere", Some("desk.example"), None),
        ];
        let host = |name: &str| [CertificateName::host(name)];
        for (listener, name, expected) in [
            ("partners", "ci.example", Some("partner")),
            ("core", "ci.example", Some("own")),
            ("other", "ci.example", None),
            ("other", "desk.example", Some("everywhere")),
        ] {
            let found = principal_at(listener, &entries, &host(name));
            assert_eq!(found.as_deref(), expected, "{name} at {listener}");
        }
    }

    #[test]
    fn a_certificate_is_known_by_each_kind_of_name_and_by_no_part_of_one() {
        let entries = [
            entry("host", Some("CI.example"), None),
            entry("address", Some("192.0.2.7"), None),
            entry("email", Some("ci@example.com"), None),
            entry("uri", Some("spiffe://example/ci"), None),
            entry("subject", None, Some("cn=ci , O=Example")),
        ];
        let uri = |text: &str| CertificateName::Uri(text.to_owned());
        for (name, expected) in [
            (CertificateName::host("ci.EXAMPLE"), Some("host")),
            (CertificateName::host("a.ci.example"), None),
            (uri("ci.example"), None),
            (
                CertificateName::Address("192.0.2.7".parse().unwrap()),
                Some("address"),
            ),
            (CertificateName::host("192.0.2.7"), None),
            (
                CertificateName::Email("ci@example.com".into()),
                Some("email"),
            ),
            (uri("spiffe://example/ci"), Some("uri")),
            (uri("spiffe://example/ci/more"), None),
            (
                CertificateName::Subject("CN=ci,O=Example".into()),
                Some("subject"),
            ),
            (CertificateName::Subject("CN=ci".into()), None),
            (CertificateName::Subject("CN=ci\\,O\\=Example".into()), None),
        ] {
            let found = principal(&entries, std::slice::from_ref(&name));
            assert_eq!(found.as_deref(), expected, "{name:?}");
        }
    }

    #[test]
    fn the_first_entry_that_fits_decides() {
        let entries = [
            entry("first", Some("b.example"), None),
            entry("second", Some("a.example"), None),
        ];
        let names = ["a.example", "b.example"].map(CertificateName::host);
        assert_eq!(principal(&entries, &names).as_deref(), Some("first"));
        assert_eq!(principal(&entries, &names[..1]).as_deref(), Some("second"));
        assert_eq!(principal(&entries, &[]), None);
    }
}
