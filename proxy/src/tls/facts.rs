//! Reads the validity and the names of a certificate.

use std::net::IpAddr;
use std::time::{SystemTime, UNIX_EPOCH};

use tooldock_filters::host::HostPattern;
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate, X509Version};
use x509_parser::time::ASN1Time;

use super::client::address;

/// Maximum number of a certificate's names that are listed in a message about a wrong name.
const NAMES_SHOWN: usize = 5;

/// The validity dates and the names of a certificate.
#[derive(Debug, Clone)]
pub(super) struct CertificateFacts {
    not_before: ASN1Time,
    not_after: ASN1Time,
    names: Vec<Name>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Name {
    /// A DNS name in lower case. Its first label may be `*`.
    Dns(String),
    Address(IpAddr),
}

/// The names that a listener's certificate should have.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ExpectedNames<'a> {
    /// The host names in `admission.hosts`. Empty if all names are accepted.
    pub(crate) hosts: &'a [HostPattern],
    /// True if the listener is bound to a loopback address. It then also serves loopback names, such as `localhost`.
    pub(crate) loopback: bool,
}

impl ExpectedNames<'static> {
    /// Accepts certificates with any name.
    pub(crate) const ANY: Self = Self {
        hosts: &[],
        loopback: false,
    };
}

impl CertificateFacts {
    /// Reads the validity and the names of a certificate.
    ///
    /// # Errors
    ///
    /// The reason why no client would accept the certificate.
    pub(super) fn of(der: &[u8]) -> Result<Self, String> {
        let (_, certificate) =
            X509Certificate::from_der(der).map_err(|_| "not an X.509 certificate".to_owned())?;
        if certificate.version() != X509Version::V3 {
            return Err(format!(
                "an X.509 certificate of version {}, which clients refuse: make one of version 3, with \
                 subjectAltName",
                certificate.version().0 + 1
            ));
        }
        let names = match certificate.subject_alternative_name() {
            Ok(Some(names)) => names.value.general_names.iter().filter_map(name).collect(),
            Ok(None) => Vec::new(),
            Err(_) => return Err("a certificate whose subjectAltName cannot be read".to_owned()),
        };
        Ok(Self {
            not_before: certificate.validity().not_before,
            not_after: certificate.validity().not_after,
            names,
        })
    }

    /// The expiry of the certificate, in seconds since the Unix epoch.
    pub(super) fn not_after(&self) -> i64 {
        self.not_after.timestamp()
    }

    /// The host names of the certificate, in lower case.
    pub(super) fn host_names(&self) -> impl Iterator<Item = &str> {
        self.names.iter().filter_map(|name| match name {
            Name::Dns(name) => Some(name.as_str()),
            Name::Address(_) => None,
        })
    }

    /// The reason why clients would refuse the certificate at the time `now`; `None` if they accept it.
    pub(super) fn problem(&self, now: SystemTime, expected: ExpectedNames<'_>) -> Option<String> {
        let now = now
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| since.as_secs().cast_signed());
        if now > self.not_after.timestamp() {
            return Some(format!("expired on {}", self.not_after));
        }
        if now < self.not_before.timestamp() {
            return Some(format!("not valid before {}", self.not_before));
        }
        if !self.fits(expected) {
            return Some(format!(
                "for {}, and for none of admission.hosts",
                self.shown()
            ));
        }
        None
    }

    /// Returns true if at least one name in the certificate is a name of the listener.
    fn fits(&self, expected: ExpectedNames<'_>) -> bool {
        if expected.hosts.is_empty() || expected.hosts.iter().any(HostPattern::is_any) {
            return true;
        }
        self.names.iter().any(|name| match name {
            Name::Dns(name) => {
                (expected.loopback && name == "localhost")
                    || expected.hosts.iter().any(|host| host.is_certified_by(name))
            }
            Name::Address(address) => {
                (expected.loopback && address.is_loopback())
                    || expected.hosts.iter().any(|host| host.is_address(*address))
            }
        })
    }

    fn shown(&self) -> String {
        if self.names.is_empty() {
            return "no host at all (it has no subjectAltName)".to_owned();
        }
        let name = |name: &Name| match name {
            Name::Dns(name) => name.clone(),
            Name::Address(address) => address.to_string(),
        };
        let mut shown: Vec<_> = self.names.iter().take(NAMES_SHOWN).map(name).collect();
        if self.names.len() > NAMES_SHOWN {
            shown.push(format!("{} more", self.names.len() - NAMES_SHOWN));
        }
        shown.join(", ")
    }
}

fn name(name: &GeneralName<'_>) -> Option<Name> {
    match name {
        // A name with control characters is omitted, because names are external input and may be written to the log.
        GeneralName::DNSName(name) if !name.contains(char::is_control) => {
            Some(Name::Dns(name.to_ascii_lowercase()))
        }
        GeneralName::IPAddress(bytes) => address(bytes).map(Name::Address),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    use super::*;

    /// A certificate for these names, valid in the year 2026.
    fn facts(names: &[&str]) -> CertificateFacts {
        let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).expect("names");
        params.not_before = date_time_ymd(2026, 1, 1);
        params.not_after = date_time_ymd(2027, 1, 1);
        let key = KeyPair::generate().expect("a key");
        let certificate = params.self_signed(&key).expect("a certificate");
        CertificateFacts::of(certificate.der()).expect("readable")
    }

    /// New year of a year, give or take the leap days.
    fn year(year: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs((year - 1970) * 31_556_952)
    }

    fn hosts(patterns: &[&str]) -> Vec<HostPattern> {
        let parsed = patterns.iter().map(|it| it.parse().expect("a pattern"));
        parsed.collect()
    }

    fn problem(names: &[&str], served: &[&str], loopback: bool) -> Option<String> {
        let expected = ExpectedNames {
            hosts: &hosts(served),
            loopback,
        };
        facts(names).problem(year(2026) + Duration::from_secs(9_000_000), expected)
    }

    #[test]
    fn a_certificate_is_good_between_its_dates() {
        let any = ExpectedNames {
            hosts: &[],
            loopback: false,
        };
        let facts = facts(&["gw.example.com"]);
        assert_eq!(
            facts.problem(year(2026) + Duration::from_secs(86_400), any),
            None
        );
        let expired = facts.problem(year(2028), any).expect("a problem");
        assert!(expired.starts_with("expired on Jan "), "{expired}");
        let early = facts.problem(year(2020), any).expect("a problem");
        assert!(early.starts_with("not valid before Jan "), "{early}");
    }

    #[test]
    fn a_certificate_is_for_one_of_the_hosts_at_least() {
        for (names, served) in [
            (&["gw.example.com"][..], &["gw.example.com"][..]),
            (&["old.example.com", "GW.example.com"], &["gw.example.com"]),
            (&["*.example.com"], &["gw.example.com"]),
            (&["*.example.com"], &["*.example.com"]),
            (&["gw.example.com"], &["*.example.com"]),
            (&["10.0.0.7"], &["10.0.0.7"]),
            (&["whatever"], &["*"]),
            (&["whatever"], &[]),
        ] {
            assert_eq!(problem(names, served, false), None, "{names:?} {served:?}");
        }
        for (names, served) in [
            (&["gw.example.com"][..], &["gw.example.org"][..]),
            (&["*.example.com"], &["a.b.example.com"]),
            (&["*.example.com"], &["example.com"]),
            (&["badexample.com"], &["*.example.com"]),
            (&["10.0.0.8"], &["10.0.0.7"]),
            (&["localhost"], &["gw.example.com"]),
        ] {
            let problem = problem(names, served, false).expect("a problem");
            assert!(problem.contains(names[0]), "{problem}");
        }
        assert_eq!(problem(&["localhost"], &["gw.example.com"], true), None);
        assert_eq!(problem(&["127.0.0.1"], &["gw.example.com"], true), None);
        let nameless = problem(&[], &["gw.example.com"], false).expect("a problem");
        assert!(nameless.contains("no subjectAltName"), "{nameless}");
    }
}
