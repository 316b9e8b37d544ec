//! TLS configuration for connections to the OTLP receiver.

use std::sync::Arc;

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

use crate::Tls;

/// A certificate or key that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("tls.{key} {reason}")]
pub struct TlsFault {
    /// The configuration key below `tls` that names the file: `ca`, `cert` or `key`.
    pub key: &'static str,
    /// The reason, for the error message.
    pub reason: String,
}

fn fault(key: &'static str, reason: impl Into<String>) -> TlsFault {
    let reason = reason.into();
    TlsFault { key, reason }
}

/// Creates the TLS configuration of connections to the receiver.
///
/// # Errors
///
/// The certificate or key that cannot be used.
pub(crate) fn client(tls: &Tls) -> Result<ClientConfig, TlsFault> {
    let mut roots = RootCertStore::empty();
    match &tls.ca {
        Some(pem) => {
            for certificate in certificates("ca", pem)? {
                let added = roots.add(certificate);
                added.map_err(|error| {
                    fault(
                        "ca",
                        format!("has a certificate that cannot vouch: {error}"),
                    )
                })?;
            }
        }
        None => {
            let found = rustls_native_certs::load_native_certs().certs;
            roots.add_parsable_certificates(found);
        }
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| fault("ca", error.to_string()))?
        .with_root_certificates(roots);
    let Some((cert, key)) = &tls.identity else {
        return Ok(builder.with_no_client_auth());
    };
    let chain = certificates("cert", cert)?;
    let key = PrivateKeyDer::from_pem_slice(key.expose().as_bytes())
        .map_err(|_| fault("key", "has no private key in it"))?;
    let config = builder.with_client_auth_cert(chain, key);
    config.map_err(|error| fault("cert", format!("does not go with tls.key: {error}")))
}

fn certificates(key: &'static str, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsFault> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let found = found.map_err(|error| fault(key, format!("is not PEM: {error}")))?;
    match found.is_empty() {
        true => Err(fault(key, "has no certificate in it")),
        false => Ok(found),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_certificate_or_key_is_named() {
        let ca = |text: &str| Tls {
            ca: Some(text.into()),
            identity: None,
        };
        let refused = |tls: &Tls| client(tls).map(drop).expect_err("refused").to_string();
        assert_eq!(refused(&ca("hello")), "tls.ca has no certificate in it");
        let broken = "-----BEGIN CERTIFICATE-----\n####\n-----END CERTIFICATE-----\n";
        assert!(refused(&ca(broken)).starts_with("tls.ca is not PEM"));
        assert!(client(&Tls::default()).is_ok());
    }
}
