//! Client certificates: verifies them in handshakes, and reads the names in a verified certificate.

use std::fmt::Write;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::CertificateDer;
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use tooldock_filters::{CertificateName, ClientCertificate};
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};
use x509_parser::x509::{AttributeTypeAndValue, X509Name};

use super::certificates_in;
use crate::config::ClientAuth;

/// Object that verifies client certificates in handshakes.
pub(super) type Verifier = Arc<dyn ClientCertVerifier>;

/// Certificates of authorities that may issue client certificates.
pub(super) type Authorities = Vec<CertificateDer<'static>>;

/// Reads the authorities for client certificates. `None` if clients are not requested to send certificates.
///
/// # Errors
///
/// A line of text that names the file.
pub(super) fn authorities(file: &Path, auth: ClientAuth) -> Result<Option<Authorities>, String> {
    match auth {
        ClientAuth::None => Ok(None),
        ClientAuth::Optional | ClientAuth::Required => certificates_in(file).map(Some),
    }
}

/// Creates a verifier that accepts certificates issued by one of `authorities`, which were read from `file`. Returns the verifier
/// and its store of authorities.
///
/// # Errors
///
/// A line of text that names the file of the authorities.
pub(super) fn verifier(
    file: &Path,
    authorities: &Authorities,
    auth: ClientAuth,
    provider: &Arc<CryptoProvider>,
) -> Result<(Arc<RootCertStore>, Verifier), String> {
    let mut roots = RootCertStore::empty();
    for authority in authorities {
        roots
            .add(authority.clone())
            .map_err(|error| format!("{}: unusable authority: {error}", file.display()))?;
    }
    let roots = Arc::new(roots);
    let builder =
        WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(provider));
    let builder = match auth {
        ClientAuth::Optional => builder.allow_unauthenticated(),
        _ => builder,
    };
    let verifier = builder.build();
    let verifier = verifier.map_err(|error| format!("{}: {error}", file.display()))?;
    Ok((roots, verifier))
}

/// Reads a verified client certificate: its names, and its expiry in seconds since the Unix epoch. Names that cannot be read are
/// omitted. If the certificate cannot be read, the expiry is 0.
pub(super) fn certificate(der: &[u8]) -> (ClientCertificate, i64) {
    let Ok((_, certificate)) = X509Certificate::from_der(der) else {
        return (ClientCertificate::default(), 0);
    };
    let alternatives = match certificate.subject_alternative_name() {
        Ok(Some(names)) => names.value.general_names.as_slice(),
        _ => &[],
    };
    let mut names: Vec<_> = alternatives.iter().filter_map(alternative).collect();
    names.extend(subject(certificate.subject()).map(CertificateName::Subject));
    let not_after = certificate.validity().not_after.timestamp();
    (ClientCertificate { names }, not_after)
}

fn alternative(name: &GeneralName<'_>) -> Option<CertificateName> {
    match name {
        GeneralName::DNSName(name) => Some(CertificateName::host(name)),
        GeneralName::RFC822Name(address) => Some(CertificateName::Email((*address).to_owned())),
        GeneralName::URI(uri) => Some(CertificateName::Uri((*uri).to_owned())),
        GeneralName::IPAddress(bytes) => address(bytes).map(CertificateName::Address),
        _ => None,
    }
}

/// The IP address in a subject alternative name. `None` if it does not have 4 or 16 bytes.
pub(super) fn address(bytes: &[u8]) -> Option<IpAddr> {
    let address = <[u8; 4]>::try_from(bytes)
        .map(IpAddr::from)
        .or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from));
    Some(address.ok()?.to_canonical())
}

/// A subject as text in the form of RFC 4514: the most specific element first, special characters escaped. `None` if the subject
/// is empty or contains an element that is not text.
fn subject(name: &X509Name<'_>) -> Option<String> {
    let mut parts = Vec::new();
    for part in name.iter_rdn() {
        let attributes: Option<Vec<_>> = part.iter().map(attribute).collect();
        parts.push(attributes?.join("+"));
    }
    parts.reverse();
    (!parts.is_empty()).then(|| parts.join(","))
}

fn attribute(attribute: &AttributeTypeAndValue<'_>) -> Option<String> {
    let oid = attribute.attr_type().to_id_string();
    let name = match oid.as_str() {
        "2.5.4.3" => "CN",
        "2.5.4.5" => "SERIALNUMBER",
        "2.5.4.6" => "C",
        "2.5.4.7" => "L",
        "2.5.4.8" => "ST",
        "2.5.4.9" => "STREET",
        "2.5.4.10" => "O",
        "2.5.4.11" => "OU",
        "0.9.2342.19200300.100.1.1" => "UID",
        "0.9.2342.19200300.100.1.25" => "DC",
        "1.2.840.113549.1.9.1" => "EMAILADDRESS",
        other => other,
    };
    let value = attribute.as_str().ok()?;
    let mut text = format!("{name}=");
    for (at, c) in value.char_indices() {
        let at_an_end = at == 0 || at + c.len_utf8() == value.len();
        match c {
            ',' | '+' | '"' | '\\' | '<' | '>' | ';' => text.extend(['\\', c]),
            '#' if at == 0 => text.push_str("\\#"),
            ' ' if at_an_end => text.push_str("\\20"),
            c if c.is_control() => {
                let mut bytes = [0; 4];
                for byte in c.encode_utf8(&mut bytes).bytes() {
                    let _ = write!(text, "\\{byte:02X}");
                }
            }
            c => text.push(c),
        }
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DnType, KeyPair, SanType};

    use super::*;

    #[test]
    fn a_certificate_gives_all_its_names_each_of_its_kind() {
        let mut params = CertificateParams::new(vec!["CI.example".to_owned()]).expect("names");
        let text = |text: &str| text.try_into().expect("ASCII");
        params.subject_alt_names.extend([
            SanType::URI(text("spiffe://example/ci")),
            SanType::Rfc822Name(text("ci@example.com")),
            SanType::IpAddress("192.0.2.7".parse().expect("an address")),
        ]);
        params.distinguished_name = rcgen::DistinguishedName::new();
        let name = &mut params.distinguished_name;
        name.push(DnType::OrganizationName, "Example, Inc");
        name.push(DnType::CommonName, "ci,O=Else ");
        let key = KeyPair::generate().expect("a key");
        let made = params.self_signed(&key).expect("a certificate");
        let expected = [
            CertificateName::Host("ci.example".to_owned()),
            CertificateName::Uri("spiffe://example/ci".to_owned()),
            CertificateName::Email("ci@example.com".to_owned()),
            CertificateName::Address("192.0.2.7".parse().expect("an address")),
            CertificateName::Subject("CN=ci\\,O=Else\\20,O=Example\\, Inc".to_owned()),
        ];
        let (read, not_after) = certificate(made.der());
        assert_eq!(read.names, expected);
        assert_eq!(not_after, rcgen::date_time_ymd(4096, 1, 1).unix_timestamp());
    }

    #[test]
    fn names_with_a_nul_or_a_wildcard_are_no_other_names() {
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        let text = |text: &str| text.try_into().expect("ASCII");
        params.subject_alt_names.extend([
            SanType::DnsName(text("ci.example\0.evil.example")),
            SanType::DnsName(text("*.example")),
            SanType::DnsName(text("192.0.2.7")),
            SanType::URI(text("spiffe://example/ci\0x")),
            SanType::Rfc822Name(text("spiffe://example/ci")),
        ]);
        params.distinguished_name = rcgen::DistinguishedName::new();
        let name = &mut params.distinguished_name;
        name.push(DnType::CommonName, "ci\0x");
        let key = KeyPair::generate().expect("a key");
        let made = params.self_signed(&key).expect("a certificate");
        let (read, _) = certificate(made.der());
        let others = [
            CertificateName::host("ci.example"),
            CertificateName::host("a.example"),
            CertificateName::Address("192.0.2.7".parse().expect("an address")),
            CertificateName::Uri("spiffe://example/ci".to_owned()),
            CertificateName::Subject("CN=ci".to_owned()),
        ];
        for other in others {
            assert!(!read.names.contains(&other), "{other:?}: {:?}", read.names);
        }
    }

    #[test]
    fn what_is_no_certificate_has_no_names() {
        assert_eq!(certificate(b"none"), (ClientCertificate::default(), 0));
    }
}
