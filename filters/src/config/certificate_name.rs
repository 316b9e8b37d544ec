//! Names of client certificates, as they are written in `admission.certificates`.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::CertificateConfig;

/// A name in a client certificate. Names of different kinds are never equal.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CertificateName {
    /// A host name, in lower case.
    Host(String),
    /// An IP address.
    Address(IpAddr),
    /// An e-mail address.
    Email(String),
    /// A URI, for example a SPIFFE id.
    Uri(String),
    /// The subject of a certificate, most specific attribute first: `CN=ci,O=Example`. Special characters are escaped by
    /// backslashes.
    Subject(String),
}

impl CertificateName {
    /// Creates a host name; it is converted to lower case.
    pub fn host(name: &str) -> Self {
        Self::Host(name.to_ascii_lowercase())
    }

    /// Parses the certificate name of an entry of `admission.certificates`. The error is a pair of the key at fault and a
    /// message.
    pub(crate) fn of_config(
        certificate: &CertificateConfig,
    ) -> Result<Self, (&'static str, &'static str)> {
        match (&certificate.san, &certificate.subject) {
            (Some(san), None) => Self::alternative(san).map_err(|message| ("san", message)),
            (None, Some(subject)) => {
                let subject = normal_subject(subject);
                subject
                    .map(Self::Subject)
                    .ok_or(("subject", "write a subject as CN=ci,O=Example"))
            }
            (None, None) => Err(("san", "say which certificate: write san, or subject")),
            (Some(_), Some(_)) => Err(("subject", "write either san or subject, not both")),
        }
    }

    /// Parses a subject alternative name. Its form determines its kind: address, e-mail address, URI or host name.
    fn alternative(text: &str) -> Result<Self, &'static str> {
        if text.is_empty() || text.chars().any(|c| c.is_control() || c.is_whitespace()) {
            return Err("write a host name, an address, an e-mail address or a URI");
        }
        if text.contains('*') {
            return Err("names are compared whole: write one entry for each name, without *");
        }
        if let Ok(address) = text.parse::<IpAddr>() {
            return Ok(Self::Address(address.to_canonical()));
        }
        Ok(if text.contains(':') {
            Self::Uri(text.to_owned())
        } else if text.contains('@') {
            Self::Email(text.to_owned())
        } else {
            Self::host(text)
        })
    }
}

/// Normalises a subject: removes blanks around its attributes, and writes attribute names in upper case. Returns `None` if an
/// attribute does not have the form `NAME=value`.
fn normal_subject(text: &str) -> Option<String> {
    let mut parts = vec![String::new()];
    let mut escaped = false;
    for c in text.chars() {
        if c == ',' && !escaped {
            parts.push(String::new());
            continue;
        }
        escaped = c == '\\' && !escaped;
        parts.last_mut()?.push(c);
    }
    let parts = parts.iter().map(|part| {
        let (name, value) = part.trim().split_once('=')?;
        let (name, value) = (name.trim(), value.trim());
        let named = !name.is_empty() && !value.is_empty();
        named.then(|| format!("{}={value}", name.to_ascii_uppercase()))
    });
    Some(parts.collect::<Option<Vec<_>>>()?.join(","))
}
