//! Certificates of TLS listeners: read and checked before anything starts, swapped while running.
//!
//! Pingora is given a resolver instead of files. A reload reads the files again and swaps the key pair in one step; a
//! certificate that cannot be used is reported and the one before stays in force.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use arc_swap::ArcSwap;
use async_trait::async_trait;
use pingora_core::listeners::TlsAccept;
use pingora_core::listeners::tls::TlsSettings;
use pingora_core::protocols::tls::TlsRef;
use rustls::crypto::ring::sign::any_supported_type;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

/// The certificate of one listener.
pub(crate) struct Certificate {
    certificate_file: PathBuf,
    key_file: PathBuf,
    current: ArcSwap<CertifiedKey>,
}

impl Certificate {
    /// Reads and checks a certificate chain and its key.
    ///
    /// # Errors
    ///
    /// One line that names the file at fault.
    pub(crate) fn open(certificate: &Path, key: &Path) -> Result<Arc<Self>, String> {
        Ok(Arc::new(Self {
            current: ArcSwap::from_pointee(read(certificate, key)?),
            certificate_file: certificate.to_owned(),
            key_file: key.to_owned(),
        }))
    }

    /// Reads the files again. New handshakes use what they hold now.
    ///
    /// # Errors
    ///
    /// One line that names the file at fault; the certificate in use stays.
    pub(crate) fn reload(&self) -> Result<(), String> {
        let next = read(&self.certificate_file, &self.key_file)?;
        self.current.store(Arc::new(next));
        Ok(())
    }

    /// Pingora's settings for a listener with this certificate: HTTP/2 and HTTP/1.1 by ALPN.
    pub(crate) fn settings(self: &Arc<Self>) -> pingora_core::Result<TlsSettings> {
        let mut settings = TlsSettings::with_callbacks(Box::new(MarkConnections))?;
        settings.set_cert_resolver(Arc::clone(self) as Arc<dyn ResolvesServerCert>);
        settings.enable_h2();
        Ok(settings)
    }
}

/// Checks a certificate and key pair without keeping it, for `tooldock check`.
///
/// # Errors
///
/// One line that names the file at fault.
pub(crate) fn check(certificate: &Path, key: &Path) -> Result<(), String> {
    read(certificate, key).map(|_| ())
}

fn read(certificate: &Path, key: &Path) -> Result<CertifiedKey, String> {
    let chain: Vec<_> = CertificateDer::pem_file_iter(certificate)
        .and_then(Iterator::collect)
        .map_err(|error| format!("{}: {error}", certificate.display()))?;
    if chain.is_empty() {
        return Err(format!("{}: no certificate in it", certificate.display()));
    }
    let private =
        PrivateKeyDer::from_pem_file(key).map_err(|error| format!("{}: {error}", key.display()))?;
    let signing = any_supported_type(&private)
        .map_err(|error| format!("{}: unusable key: {error}", key.display()))?;
    let certified = CertifiedKey::new(chain, signing);
    certified.keys_match().map_err(|_| {
        format!(
            "{} does not belong to the certificate {}",
            key.display(),
            certificate.display()
        )
    })?;
    Ok(certified)
}

impl ResolvesServerCert for Certificate {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.current.load_full())
    }
}

impl fmt::Debug for Certificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Certificate")
            .field("certificate_file", &self.certificate_file)
            .finish_non_exhaustive()
    }
}

/// Set when the first request of a TLS connection has arrived.
///
/// An HTTP/2 connection's requests run in tasks of their own; what they share with their connection is the TLS digest,
/// and this rides in it.
#[derive(Debug, Default)]
pub(crate) struct FirstRequest(pub(crate) AtomicBool);

/// Gives every TLS connection its mark.
struct MarkConnections;

#[async_trait]
impl TlsAccept for MarkConnections {
    async fn handshake_complete_callback(
        &self,
        _tls: &TlsRef,
    ) -> Option<Arc<dyn std::any::Any + Send + Sync>> {
        Some(Arc::new(FirstRequest::default()))
    }
}
