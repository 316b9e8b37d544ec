//! Trust in the certificate of a core that another process asks over TLS.

use std::path::Path;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};

use crate::tls::certificates_in;

/// The certificates that vouch for a core.
#[derive(Debug, Clone, Default)]
pub(crate) enum CoreTrust {
    /// The roots of the system.
    #[default]
    System,
    /// The certificates of a file.
    Authorities(Vec<CertificateDer<'static>>),
    /// None is asked for: for addresses of this machine alone.
    Any,
}

impl CoreTrust {
    /// The certificates of a file in place of the system's.
    ///
    /// # Errors
    ///
    /// A line that names the file.
    pub(crate) fn of_file(file: &Path) -> Result<Self, String> {
        let certificates = certificates_in(file)?;
        store(&certificates).map_err(|error| format!("{}: {error}", file.display()))?;
        Ok(Self::Authorities(certificates))
    }

    /// The configuration of connections to the core.
    ///
    /// # Errors
    ///
    /// Why there can be no connection.
    pub(super) fn client(&self) -> Result<ClientConfig, String> {
        let provider = Arc::new(ring::default_provider());
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?;
        let roots = match self {
            Self::System => {
                let found = rustls_native_certs::load_native_certs().certs;
                let mut roots = RootCertStore::empty();
                roots.add_parsable_certificates(found);
                roots
            }
            Self::Authorities(certificates) => store(certificates)?,
            Self::Any => {
                let verifier = Arc::new(AnyCertificate(provider));
                let config = builder
                    .dangerous()
                    .with_custom_certificate_verifier(verifier);
                return Ok(config.with_no_client_auth());
            }
        };
        if roots.is_empty() {
            return Err("the system has no certificates of authorities".to_owned());
        }
        Ok(builder.with_root_certificates(roots).with_no_client_auth())
    }
}

fn store(certificates: &[CertificateDer<'static>]) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates {
        let added = roots.add(certificate.clone());
        added.map_err(|error| format!("has a certificate that cannot vouch: {error}"))?;
    }
    Ok(roots)
}

/// Takes every certificate whose key signs the handshake.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signed, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
