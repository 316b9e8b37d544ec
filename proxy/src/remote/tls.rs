//! The certificates for connections to a remote server. They are checked before they are used.

use std::sync::Arc;

use pingora_core::protocols::tls::CaType;
use pingora_core::utils::tls::{CertKey, WrappedX509, parse_x509};
use rustls::RootCertStore;
use rustls::crypto::ring::sign::any_supported_type;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use tooldock_workers::remote::TlsSpec;
use x509_parser::prelude::{FromDer, X509Certificate};

/// The trusted authorities and the client certificate for TLS connections to a remote server.
#[derive(Clone, Default)]
pub(crate) struct Material {
    /// Authorities that must have issued the backends' certificates. `None` to use the system's trusted authorities.
    pub(super) ca: Option<Arc<CaType>>,
    /// The client certificate that the gateway presents; `None` without one.
    pub(super) identity: Option<Arc<CertKey>>,
}

/// A key in the configuration's section `tls:`, and the fault in the file that it names.
pub(crate) type Wrong = (&'static str, String);

impl Material {
    /// Reads the certificates that the configuration contains.
    ///
    /// # Errors
    ///
    /// The key whose certificate cannot be used, and the reason.
    pub(crate) fn new(spec: &TlsSpec) -> Result<Self, Wrong> {
        let ca = spec.ca.as_ref().map(|pem| authorities(&pem.0));
        let identity = spec
            .identity
            .as_ref()
            .map(|identity| own(&identity.cert.0, identity.key.expose().as_bytes()));
        Ok(Self {
            ca: ca.transpose()?,
            identity: identity.transpose()?,
        })
    }
}

fn authorities(pem: &[u8]) -> Result<Arc<CaType>, Wrong> {
    let wrong = |what: String| ("tls.ca", what);
    let certificates = certificates(pem).map_err(wrong)?;
    let mut store = RootCertStore::empty();
    for certificate in &certificates {
        let added = store.add(certificate.clone());
        added.map_err(|error| wrong(format!("has a certificate that cannot vouch: {error}")))?;
    }
    Ok(certificates.into_iter().map(wrapped).collect())
}

fn own(cert: &[u8], key: &[u8]) -> Result<Arc<CertKey>, Wrong> {
    let chain = certificates(cert).map_err(|what| ("tls.cert", what))?;
    let private = PrivateKeyDer::from_pem_slice(key)
        .map_err(|_| ("tls.key", "has no private key in it".to_owned()))?;
    let signing = any_supported_type(&private)
        .map_err(|error| ("tls.key", format!("has a key that cannot be used: {error}")))?;
    let certified = CertifiedKey::new(chain.clone(), signing);
    certified.keys_match().map_err(|_| {
        let what = "does not belong to the certificate in tls.cert".to_owned();
        ("tls.key", what)
    })?;
    let chain = chain.iter().map(|it| it.to_vec()).collect();
    Ok(Arc::new(CertKey::new(chain, private.secret_der().to_vec())))
}

/// Reads the certificates in a PEM file. Each is parsed here, because Pingora does not check that it can be parsed.
fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let found = found.map_err(|error| format!("is not PEM: {error}"))?;
    if found.is_empty() {
        return Err("has no certificate in it".to_owned());
    }
    for certificate in &found {
        X509Certificate::from_der(certificate)
            .map_err(|error| format!("has a certificate that cannot be read: {error}"))?;
    }
    Ok(found)
}

fn wrapped(certificate: CertificateDer<'static>) -> WrappedX509 {
    WrappedX509::new(certificate.to_vec(), parse_x509)
}

#[cfg(test)]
mod tests {
    use tooldock_base::secret::Secret;
    use tooldock_workers::remote::{Pem, TlsIdentity};

    use super::*;

    fn pem(text: &str) -> Pem {
        Pem(text.as_bytes().into())
    }

    fn pair() -> (String, String) {
        let made = rcgen::generate_simple_self_signed(["a.example".to_owned()]).expect("a pair");
        (made.cert.pem(), made.signing_key.serialize_pem())
    }

    fn refused(spec: &TlsSpec) -> String {
        let (key, what) = Material::new(spec).err().expect("refused");
        format!("{key}: {what}")
    }

    fn identity(cert: &str, key: &str) -> TlsSpec {
        TlsSpec {
            identity: Some(TlsIdentity {
                cert: pem(cert),
                key: Secret::new(key),
            }),
            ..TlsSpec::default()
        }
    }

    #[test]
    fn what_cannot_be_used_names_its_key_and_shows_nothing_of_it() {
        let ((cert, key), (_, other)) = (pair(), pair());
        assert!(Material::new(&identity(&cert, &key)).is_ok());
        let ca = |text: &str| TlsSpec {
            ca: Some(pem(text)),
            ..TlsSpec::default()
        };
        assert!(Material::new(&ca(&cert)).is_ok());
        for (spec, said) in [
            (
                identity(&cert, &other),
                "tls.key: does not belong to the certificate",
            ),
            (identity(&cert, "x"), "tls.key: has no private key"),
            (identity("x", &key), "tls.cert: has no certificate"),
            (ca(&key), "tls.ca: has no certificate"),
            (
                ca("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"),
                "tls.ca: has a certificate that cannot be read",
            ),
        ] {
            let error = refused(&spec);
            assert!(error.starts_with(said), "{error}");
            assert!(!error.contains("BEGIN"), "{error}");
        }
    }
}
