//! Selects the certificates to trust when another process connects to the core over TLS.

use std::path::Path;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
};

use crate::tls::certificates_in;

/// The certificates with which the core's certificate is verified.
#[derive(Debug, Clone, Default)]
pub(crate) enum CoreTrust {
    /// The trusted certificates of the system.
    #[default]
    System,
    /// The certificates in a file that the user has named.
    Authorities(Vec<CertificateDer<'static>>),
    /// Any certificate is accepted. Only allowed for addresses of this machine.
    Any,
}

impl CoreTrust {
    /// Reads a file of certificates that are trusted in place of the system's.
    ///
    /// # Errors
    ///
    /// A line of text that names the file.
    pub(crate) fn of_file(file: &Path) -> Result<Self, String> {
        let certificates = certificates_in(file)?;
        store(&certificates).map_err(|error| format!("{}: {error}", file.display()))?;
        Ok(Self::Authorities(certificates))
    }

    /// The TLS configuration for connections to the core.
    ///
    /// # Errors
    ///
    /// The reason why no connection can be made.
    pub(crate) fn client(&self) -> Result<ClientConfig, String> {
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
            Self::Authorities(certificates) => {
                let verifier = NamedCertificates::new(certificates, provider)?;
                let config = builder
                    .dangerous()
                    .with_custom_certificate_verifier(Arc::new(verifier));
                return Ok(config.with_no_client_auth());
            }
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

/// Accepts certificates that the certificates in the file have signed, and also the certificates in the file themselves. The
/// second case needs special code: a self-signed certificate usually declares itself to be an authority, and the rules for web
/// certificates do not allow a server to use the certificate of an authority.
#[derive(Debug)]
struct NamedCertificates {
    rules: Arc<WebPkiServerVerifier>,
    named: Vec<CertificateDer<'static>>,
}

impl NamedCertificates {
    fn new(
        named: &[CertificateDer<'static>],
        provider: Arc<CryptoProvider>,
    ) -> Result<Self, String> {
        let roots = Arc::new(store(named)?);
        let rules = WebPkiServerVerifier::builder_with_provider(roots, provider).build();
        Ok(Self {
            rules: rules.map_err(|error| error.to_string())?,
            named: named.to_vec(),
        })
    }
}

impl ServerCertVerifier for NamedCertificates {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let judged = (self.rules).verify_server_cert(certificate, intermediates, name, ocsp, now);
        match judged {
            // The library has verified the certificate's dates before it returned this error, but has not verified the host
            // name.
            Err(error) if is_of_an_authority(&error) && self.named.contains(certificate) => {
                verify_server_name(&ParsedCertificate::try_from(certificate)?, name)?;
                Ok(ServerCertVerified::assertion())
            }
            judged => judged,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.rules
            .verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.rules
            .verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.rules.supported_verify_schemes()
    }
}

/// Returns true if a server's certificate was refused because it is that of an authority. The error is recognized by its text,
/// because its type is not exported.
fn is_of_an_authority(error: &Error) -> bool {
    let Error::InvalidCertificate(CertificateError::Other(refused)) = error else {
        return false;
    };
    refused.to_string().contains("CaUsedAsEndEntity")
}

/// Accepts any certificate. It only verifies that the server has the certificate's private key.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn certificate(name: &str, is_authority: bool) -> CertificateDer<'static> {
        let key = rcgen::KeyPair::generate().expect("a key");
        let mut parameters = rcgen::CertificateParams::new(vec![name.to_owned()]).expect("a name");
        if is_authority {
            parameters.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        }
        let made = parameters.self_signed(&key).expect("signed");
        made.der().clone()
    }

    #[test]
    fn a_self_signed_certificate_that_is_named_is_taken_for_its_names_and_times_alone() {
        let named = certificate("localhost", true);
        let provider = Arc::new(ring::default_provider());
        let verifier = NamedCertificates::new(std::slice::from_ref(&named), provider);
        let verifier = verifier.expect("a verifier");
        let judged = |certificate: &CertificateDer<'static>, name: &'static str, now| {
            let name = ServerName::try_from(name).expect("a name");
            let judged = verifier.verify_server_cert(certificate, &[], &name, &[], now);
            judged.map(drop)
        };
        let now = UnixTime::now();
        assert_eq!(judged(&named, "localhost", now), Ok(()));
        assert!(judged(&named, "other.test", now).is_err());
        let late = UnixTime::since_unix_epoch(std::time::Duration::from_secs(1 << 40));
        assert!(judged(&named, "localhost", late).is_err());
        for is_authority in [true, false] {
            let other = certificate("localhost", is_authority);
            assert!(judged(&other, "localhost", now).is_err());
        }
    }
}
