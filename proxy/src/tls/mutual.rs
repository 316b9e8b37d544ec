//! Checks the certificate that a replica uses for connections with other replicas, as a client and as a server.

use std::path::Path;
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier as _;
use rustls::pki_types::{ServerName, UnixTime};
use rustls::{CertificateError, Error};

use super::{certificates_in, client, default_provider};
use crate::config::{ClientAuth, ReplicaCertificate};

/// Checks that replicas with the same authorities accept the certificate, both as that of a client and as that of a server.
///
/// # Errors
///
/// The reason why replicas would refuse the certificate, with its file.
pub(crate) fn check(certificate: &ReplicaCertificate<'_>) -> Result<(), String> {
    let ReplicaCertificate { ca, cert, name } = *certificate;
    let authorities = certificates_in(ca)?;
    let chain = certificates_in(cert)?;
    let (own, intermediates) = chain.split_first().expect("a file has a certificate");
    let provider = Arc::new(default_provider());
    let (roots, clients) = client::verifier(ca, &authorities, ClientAuth::Required, &provider)?;
    let servers = WebPkiServerVerifier::builder_with_provider(roots, provider)
        .build()
        .map_err(|error| format!("{}: {error}", ca.display()))?;
    let server = ServerName::try_from(name).map_err(|error| format!("{name}: {error}"))?;
    let now = UnixTime::now();
    let as_client = clients.verify_client_cert(own, intermediates, now);
    let refused = match as_client {
        Ok(_) => servers
            .verify_server_cert(own, intermediates, &server, &[], now)
            .err()
            .map(|error| reason(&error, ca, name, "serverAuth")),
        Err(error) => Some(reason(&error, ca, name, "clientAuth")),
    };
    match refused {
        None => Ok(()),
        Some(reason) => Err(format!(
            "{}: other replicas will refuse this certificate: {reason}",
            cert.display()
        )),
    }
}

fn reason(error: &Error, ca: &Path, name: &str, usage: &str) -> String {
    use CertificateError as Fault;
    let Error::InvalidCertificate(fault) = error else {
        return error.to_string();
    };
    match fault {
        Fault::UnknownIssuer | Fault::BadSignature => {
            format!("no authority in {} has signed it", ca.display())
        }
        Fault::NotValidForName | Fault::NotValidForNameContext { .. } => format!(
            "it is not for {name}: set replicas.tls.server_name to a name in it, at all replicas"
        ),
        Fault::InvalidPurpose | Fault::InvalidPurposeContext { .. } => {
            format!("its extended key usage lacks {usage}")
        }
        Fault::Expired | Fault::ExpiredContext { .. } => "it has ended".to_owned(),
        Fault::NotValidYet | Fault::NotValidYetContext { .. } => "it is not valid yet".to_owned(),
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use rcgen::{
        BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
        date_time_ymd,
    };
    use tempfile::TempDir;

    use super::*;

    /// Writes `ca.pem`, and `cert.pem` signed by that authority, by another for `signed: false`.
    fn written(usage: &[ExtendedKeyUsagePurpose], until: i32, signed: bool) -> TempDir {
        let folder = TempDir::new().expect("a temporary directory");
        let authority = || {
            let mut params = CertificateParams::new(Vec::new()).expect("no names");
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            let key = KeyPair::generate().expect("a key");
            let pem = params.self_signed(&key).expect("a certificate").pem();
            (Issuer::new(params, key), pem)
        };
        let (issuer, pem) = authority();
        fs::write(folder.path().join("ca.pem"), pem).expect("writable");
        let issuer = if signed { issuer } else { authority().0 };
        let mut params = CertificateParams::new(vec!["a.example".to_owned()]).expect("a name");
        params.extended_key_usages = usage.to_vec();
        params.not_after = date_time_ymd(until, 1, 1);
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &issuer).expect("a certificate");
        fs::write(folder.path().join("cert.pem"), certificate.pem()).expect("writable");
        folder
    }

    fn checked(folder: &TempDir, name: &str) -> Result<(), String> {
        check(&ReplicaCertificate {
            ca: &folder.path().join("ca.pem"),
            cert: &folder.path().join("cert.pem"),
            name,
        })
    }

    #[test]
    fn a_certificate_of_both_usages_for_the_name_is_accepted() {
        use ExtendedKeyUsagePurpose::{ClientAuth, ServerAuth};
        let both = written(&[ClientAuth, ServerAuth], 4000, true);
        assert_eq!(checked(&both, "a.example"), Ok(()));
        let without_usages = written(&[], 4000, true);
        assert_eq!(checked(&without_usages, "a.example"), Ok(()));
    }

    #[test]
    fn a_certificate_that_other_replicas_refuse_is_named_with_the_reason() {
        use ExtendedKeyUsagePurpose::{ClientAuth, ServerAuth};
        for (usage, until, signed, name, expected) in [
            (vec![], 4000, false, "a.example", "has signed it"),
            (vec![], 4000, true, "b.example", "it is not for b.example"),
            (vec![], 2001, true, "a.example", "it has ended"),
            (
                vec![ServerAuth],
                4000,
                true,
                "a.example",
                "lacks clientAuth",
            ),
            (
                vec![ClientAuth],
                4000,
                true,
                "a.example",
                "lacks serverAuth",
            ),
        ] {
            let folder = written(&usage, until, signed);
            let error = checked(&folder, name).expect_err(expected);
            assert!(
                error.contains(expected) && error.contains("cert.pem"),
                "{error}"
            );
        }
    }
}
