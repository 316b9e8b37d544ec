//! Selects a listener's certificate by the name that the client requests in the handshake (SNI).

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use super::KeyPair;

/// The certificates of a listener, indexed by name.
pub(super) struct CertificatesByName {
    /// The certificate for clients that request no name, or a name without a certificate.
    default: Arc<CertifiedKey>,
    /// The certificates by name, in lower case. The key for a wildcard name begins with a dot. Such a key matches names with
    /// exactly one label before that dot.
    names: HashMap<Box<str>, Arc<CertifiedKey>>,
}

impl CertificatesByName {
    /// Indexes certificates by their names. The first certificate is the default.
    ///
    /// # Errors
    ///
    /// A line of text about two certificates for the same name. They are refused because the choice would depend on their order.
    pub(super) fn new(pairs: &[KeyPair]) -> Result<Self, String> {
        let Some(first) = pairs.first() else {
            return Err("no certificate".to_owned());
        };
        let mut names = HashMap::new();
        let mut files: HashMap<Box<str>, &Path> = HashMap::new();
        for pair in pairs {
            let mut own: Vec<&str> = pair.facts.host_names().collect();
            // Duplicates are removed, because a certificate may contain a name twice.
            own.sort_unstable();
            own.dedup();
            for name in own {
                let wildcard = name.starts_with("*.");
                let key: Box<str> = name[usize::from(wildcard)..].into();
                match files.entry(key.clone()) {
                    Entry::Occupied(other) => {
                        return Err(format!(
                            "{} and {} are both for {name}: leave one of them out",
                            other.get().display(),
                            pair.file.display()
                        ));
                    }
                    Entry::Vacant(free) => free.insert(&pair.file),
                };
                names.insert(key, Arc::clone(&pair.certified));
            }
        }
        Ok(Self {
            default: Arc::clone(&first.certified),
            names,
        })
    }

    /// The certificate for a name. A wildcard certificate is used only if there is none for exactly this name.
    fn of(&self, name: Option<&str>) -> &Arc<CertifiedKey> {
        let found = name.and_then(|name| {
            let name = name.to_ascii_lowercase();
            let above = || name.find('.').and_then(|dot| self.names.get(&name[dot..]));
            self.names.get(name.as_str()).or_else(above)
        });
        found.unwrap_or(&self.default)
    }
}

impl ResolvesServerCert for CertificatesByName {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        if self.names.is_empty() {
            return Some(Arc::clone(&self.default));
        }
        Some(Arc::clone(self.of(hello.server_name())))
    }
}

impl fmt::Debug for CertificatesByName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CertificatesByName")
            .field("names", &self.names.keys())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair as GeneratedKey};

    use super::*;
    use crate::config::KeyPairFiles;

    fn pair(folder: &Path, file: &str, names: &[&str]) -> KeyPair {
        let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
        let key = GeneratedKey::generate().expect("a key");
        let certificate = CertificateParams::new(names).expect("names");
        let certificate = certificate.self_signed(&key).expect("a certificate");
        let files = KeyPairFiles {
            cert: folder.join(format!("{file}.pem")),
            key: folder.join(format!("{file}.key")),
        };
        std::fs::write(&files.cert, certificate.pem()).expect("written");
        std::fs::write(&files.key, key.serialize_pem()).expect("written");
        KeyPair::read(&files).expect("readable")
    }

    #[test]
    fn a_name_chooses_its_certificate_and_an_unknown_one_the_first() {
        let folder = tempfile::TempDir::new().expect("a folder");
        let pairs = [
            pair(folder.path(), "first", &["gw.example"]),
            pair(
                folder.path(),
                "second",
                &["*.tools.example", "tools.example"],
            ),
            pair(folder.path(), "third", &["Own.tools.example"]),
        ];
        let names = CertificatesByName::new(&pairs).expect("different names");
        for (asked, expected) in [
            (None, 0),
            (Some("gw.example"), 0),
            (Some("nobody.example"), 0),
            (Some("example"), 0),
            (Some("tools.example"), 1),
            (Some("a.TOOLS.example"), 1),
            (Some("a.b.tools.example"), 0),
            (Some("own.tools.example"), 2),
        ] {
            let shown = names.of(asked);
            assert!(Arc::ptr_eq(shown, &pairs[expected].certified), "{asked:?}");
        }
    }

    #[test]
    fn two_certificates_for_one_name_are_named_both() {
        let folder = tempfile::TempDir::new().expect("a folder");
        let pairs = [
            pair(folder.path(), "first", &["a.example", "*.b.example"]),
            pair(folder.path(), "second", &["*.b.example"]),
        ];
        let error = CertificatesByName::new(&pairs).expect_err("twice");
        for part in ["first.pem", "second.pem", "*.b.example"] {
            assert!(error.contains(part), "{error}");
        }
    }
}
