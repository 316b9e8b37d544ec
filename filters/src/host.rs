//! Checks that a request's Host is a name that the listener accepts. Protects against DNS rebinding and misrouted traffic.
//!
//! A loopback listener always accepts loopback names, since no attacker can make a loopback name resolve elsewhere; further
//! names come from `admission.hosts`. The host of `admission.public_url` is always accepted, since reverse proxies and tunnels
//! forward it. Other listeners accept the configured names, or any name if none is configured.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use http::Version;
use http::request::Parts;
use serde::{Deserialize, Serialize};

use crate::fields::{Field, Fields};
use crate::rejection::{Reason, Rejection, quoted};

/// An entry of `admission.hosts`: `gw.example.com`, `*.example.com`, `10.0.0.7`, `[::1]`, or `*` for any host. Has no port.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct HostPattern(Pattern);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Pattern {
    Any,
    Name(String),
    /// A domain suffix with its leading dot, such as `.example.com`.
    Suffix(String),
    Address(IpAddr),
}

/// Error about a text that is not a valid entry of `admission.hosts`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid host {0:?}: use a name without port, *.suffix, an IP address, or *")]
pub struct InvalidHostPattern(String);

impl HostPattern {
    /// Returns true if the pattern is `*`, which matches every host.
    pub fn is_any(&self) -> bool {
        self.0 == Pattern::Any
    }

    /// Returns true if a certificate with this DNS name is valid for a host that the pattern matches. The name is in lower case,
    /// and its first label may be `*`.
    pub fn is_certified_by(&self, certified: &str) -> bool {
        let (wildcard, parent) = match certified.strip_prefix('*') {
            Some(parent) => (parent.starts_with('.'), parent),
            None => (false, certified),
        };
        match &self.0 {
            Pattern::Any => true,
            // A wildcard in a certificate matches exactly one label.
            Pattern::Name(name) if wildcard => name
                .strip_suffix(parent)
                .is_some_and(|label| !label.is_empty() && !label.contains('.')),
            Pattern::Name(name) => name == certified,
            Pattern::Suffix(suffix) if wildcard => parent.ends_with(suffix),
            Pattern::Suffix(suffix) => certified.ends_with(suffix),
            Pattern::Address(_) => false,
        }
    }

    /// Returns true if the pattern is exactly this IP address.
    pub fn is_address(&self, address: IpAddr) -> bool {
        self.0 == Pattern::Address(address.to_canonical())
    }

    fn matches(&self, host: &Host<'_>) -> bool {
        match (&self.0, host) {
            (Pattern::Any, _) => true,
            // Patterns are in lower case, and so is nearly every Host: the exact comparison is tried first because it is faster.
            (Pattern::Name(name), Host::Name(host)) => {
                name == host || name.eq_ignore_ascii_case(host)
            }
            (Pattern::Suffix(suffix), Host::Name(host)) => host
                .len()
                .checked_sub(suffix.len())
                .and_then(|start| host.as_bytes().get(start..))
                .is_some_and(|end| {
                    end.eq_ignore_ascii_case(suffix.as_bytes()) && end.len() < host.len()
                }),
            (Pattern::Address(address), Host::Address(host)) => address == host,
            _ => false,
        }
    }
}

impl FromStr for HostPattern {
    type Err = InvalidHostPattern;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let invalid = || InvalidHostPattern(text.to_owned());
        if text == "*" {
            return Ok(Self(Pattern::Any));
        }
        if let Ok(address) = text.parse::<IpAddr>() {
            return Ok(Self(Pattern::Address(address.to_canonical())));
        }
        let (suffix, name) = match text.strip_prefix("*.") {
            Some(name) => (true, name),
            None => (false, text),
        };
        match Authority::parse(name) {
            Some(Authority {
                host: Host::Name(name),
                port: None,
            }) => {
                let name = name.to_ascii_lowercase();
                Ok(Self(if suffix {
                    Pattern::Suffix(format!(".{name}"))
                } else {
                    Pattern::Name(name)
                }))
            }
            Some(Authority {
                host: Host::Address(address),
                port: None,
            }) if !suffix => Ok(Self(Pattern::Address(address))),
            _ => Err(invalid()),
        }
    }
}

impl TryFrom<String> for HostPattern {
    type Error = InvalidHostPattern;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<HostPattern> for String {
    fn from(pattern: HostPattern) -> Self {
        pattern.to_string()
    }
}

impl fmt::Display for HostPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Pattern::Any => f.write_str("*"),
            Pattern::Name(name) => f.write_str(name),
            Pattern::Suffix(suffix) => write!(f, "*{suffix}"),
            Pattern::Address(address) => address.fmt(f),
        }
    }
}

/// The host that a request names, without its port, its brackets and its trailing dot. Comparisons ignore case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Host<'a> {
    Name(&'a str),
    Address(IpAddr),
}

impl Host<'_> {
    fn is_loopback(&self) -> bool {
        match self {
            Self::Name(name) => name.eq_ignore_ascii_case("localhost"),
            Self::Address(address) => address.is_loopback(),
        }
    }

    fn same_as(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Name(a), Self::Name(b)) => a.eq_ignore_ascii_case(b),
            (a, b) => a == b,
        }
    }
}

/// A host with an optional port, as in the Host header and in `:authority`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Authority<'a> {
    pub(crate) host: Host<'a>,
    pub(crate) port: Option<u16>,
}

/// Maximum length of a DNS name in text form, in bytes.
const NAME_BYTES_MAX: usize = 253;

impl<'a> Authority<'a> {
    /// Parses `host[:port]`. Returns `None` for anything else, for example user information, spaces, a bad port, an empty label
    /// or a byte outside ASCII.
    pub(crate) fn parse(text: &'a str) -> Option<Self> {
        if let Some(rest) = text.strip_prefix('[') {
            let (inside, after) = rest.split_once(']')?;
            let address = IpAddr::V6(inside.parse::<Ipv6Addr>().ok()?).to_canonical();
            let port = match after.strip_prefix(':') {
                Some(port) => parse_port(port)?,
                None if after.is_empty() => None,
                None => return None,
            };
            return Some(Self {
                host: Host::Address(address),
                port,
            });
        }
        let (name, port) = match text.bytes().position(|byte| byte == b':') {
            Some(colon) => (&text[..colon], parse_port(&text[colon + 1..])?),
            None => (text, None),
        };
        let name = name.strip_suffix('.').unwrap_or(name);
        let bytes = name.as_bytes();
        let mut last_label = 0;
        for (at, byte) in bytes.iter().enumerate() {
            match byte {
                b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' => {}
                // A dot ends a label. After an empty label, the next match arm refuses the name.
                b'.' if at > last_label => last_label = at + 1,
                _ => return None,
            }
        }
        let last_label = &bytes[last_label..];
        // If the last label consists only of digits, browsers and resolvers read the host as an IP address, also in unusual
        // spellings (`127.1`, `0177.0.0.1`, `2130706433`).
        let numeric = last_label.iter().all(u8::is_ascii_digit)
            || (last_label.get(..2)).is_some_and(|start| start.eq_ignore_ascii_case(b"0x"));
        if numeric {
            let address = name.parse::<Ipv4Addr>().ok()?;
            return Some(Self {
                host: Host::Address(address.into()),
                port,
            });
        }
        let valid = name.len() <= NAME_BYTES_MAX;
        valid.then_some(Self {
            host: Host::Name(name),
            port,
        })
    }
}

/// Parses the port after the colon. Returns `None` for an invalid port, and `Some(None)` for a colon without digits, which
/// RFC 3986 allows.
fn parse_port(text: &str) -> Option<Option<u16>> {
    if text.is_empty() {
        return Some(None);
    }
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().ok()).flatten().map(Some)
}

/// Refuses a health check whose Host is missing, malformed or ambiguous. Any well-formed name is accepted. Two forms that load
/// balancers send without a name are also accepted: an empty Host, and an address with its zone (`[fe80::1%eth0]`).
pub(crate) fn check_probe(parts: &Parts, fields: &Fields<'_>) -> Result<(), Rejection> {
    if let Field::Once(value) = fields.host
        && parts.uri.authority().is_none()
        && value.to_str().is_ok_and(|it| it.is_empty() || has_zone(it))
    {
        return Ok(());
    }
    host_of(parts, fields).map(drop)
}

/// Returns true for an IPv6 address with a zone, in brackets and perhaps with a port. The zone may follow `%` or `%25`.
fn has_zone(text: &str) -> bool {
    let Some((address, rest)) = text.split_once('%') else {
        return false;
    };
    let Some((zone, port)) = rest.split_once(']') else {
        return false;
    };
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    let zone = zone
        .strip_prefix("25")
        .filter(|it| !it.is_empty())
        .unwrap_or(zone);
    let is_zone = !zone.is_empty() && zone.bytes().all(plain);
    is_zone && address.starts_with('[') && Authority::parse(&format!("{address}]{port}")).is_some()
}

/// Refuses a request whose Host is missing, malformed, ambiguous or not accepted by the listener.
pub(crate) fn check(
    parts: &Parts,
    fields: &Fields<'_>,
    loopback_listener: bool,
    (allowed, public): (&[HostPattern], Option<&HostPattern>),
) -> Result<(), Rejection> {
    let any = (allowed.is_empty() && !loopback_listener) || allowed.iter().any(HostPattern::is_any);
    let Some(host) = host_of(parts, fields)? else {
        // HTTP/1.0 requests may omit Host. They are accepted only by listeners that accept any name.
        return if any {
            Ok(())
        } else {
            Err(not_allowed("no Host header"))
        };
    };
    let allowed = any
        || (loopback_listener && host.is_loopback())
        || allowed
            .iter()
            .chain(public)
            .any(|pattern| pattern.matches(&host));
    if allowed {
        return Ok(());
    }
    Err(match host {
        Host::Name(name) => not_allowed(&quoted(name)),
        Host::Address(address) => not_allowed(&address.to_string()),
    })
}

fn not_allowed(what: &str) -> Rejection {
    Rejection::new(
        Reason::HostNotAllowed,
        format!(
            "This listener does not answer for this Host ({what}). The operator lists the names it answers for in admission.hosts."
        ),
    )
}

/// Finds the host of a request in its Host header or in its target (absolute form, or HTTP/2 `:authority`). If both name a host,
/// they must agree.
fn host_of<'a>(parts: &'a Parts, fields: &Fields<'a>) -> Result<Option<Host<'a>>, Rejection> {
    let bad = |message: &'static str| Rejection::new(Reason::BadRequest, message);
    let malformed = || {
        bad("The Host is malformed: it has to be a name or an IP address, with an optional port.")
    };

    let header = match fields.host {
        Field::Several => return Err(bad("The request has several Host headers.")),
        Field::Once(value) => {
            let text = value.to_str().map_err(|_| malformed())?;
            Some(Authority::parse(text).ok_or_else(malformed)?.host)
        }
        Field::Absent => None,
    };
    let target = match parts.uri.authority() {
        Some(authority) => Some(
            Authority::parse(authority.as_str())
                .ok_or_else(malformed)?
                .host,
        ),
        None => None,
    };
    match (header, target) {
        (Some(header), Some(target)) if !header.same_as(&target) => Err(bad(
            "The Host header and the request target name different hosts.",
        )),
        (Some(host), _) | (None, Some(host)) => Ok(Some(host)),
        (None, None) if parts.version < Version::HTTP_11 => Ok(None),
        (None, None) => Err(bad("The request has no Host header.")),
    }
}

#[cfg(test)]
mod tests {
    use http::header::HOST;

    use super::*;

    fn patterns(texts: &[&str]) -> Vec<HostPattern> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn with_hosts(hosts: &[&[u8]]) -> Parts {
        let mut request = http::Request::get("/mcp");
        for host in hosts {
            request = request.header(HOST, *host);
        }
        request.body(()).unwrap().into_parts().0
    }

    fn checked(parts: &Parts, loopback: bool, allowed: &[HostPattern]) -> Result<(), Rejection> {
        let fields = Fields::of(&parts.headers);
        check(parts, &fields, loopback, (allowed, None))
    }

    fn reason(host: &str, loopback: bool, allowed: &[&str]) -> Option<Reason> {
        checked(
            &with_hosts(&[host.as_bytes()]),
            loopback,
            &patterns(allowed),
        )
        .err()
        .map(|rejection| rejection.reason)
    }

    #[test]
    fn every_listener_answers_for_the_host_of_the_public_url() {
        let public: HostPattern = "gw.example".parse().unwrap();
        let admits = |host: &str, loopback: bool, allowed: &[&str]| {
            let parts = with_hosts(&[host.as_bytes()]);
            let allowed = (&*patterns(allowed), Some(&public));
            check(&parts, &Fields::of(&parts.headers), loopback, allowed).is_ok()
        };
        for host in [
            "gw.example",
            "GW.example:443",
            "gw.example:8000",
            "gw.example.",
        ] {
            assert!(admits(host, true, &[]), "{host}");
            assert!(admits(host, true, &["other.example"]), "{host}");
            assert!(admits(host, false, &["other.example"]), "{host}");
        }
        for host in ["evil.example", "x.gw.example", "gw.example.evil"] {
            assert!(!admits(host, true, &[]), "{host}");
            assert!(!admits(host, false, &["other.example"]), "{host}");
            // A listener without configured names still answers for any host.
            assert!(admits(host, false, &[]), "{host}");
        }
        assert!(admits("localhost", true, &[]));
    }

    #[test]
    fn a_loopback_listener_answers_for_loopback_names_in_every_spelling() {
        for host in [
            "localhost",
            "LocalHost:8000",
            "localhost.",
            "localhost.:1",
            "127.0.0.1:8000",
            "127.9.8.7",
            "[::1]",
            "[::1]:8000",
            "[0:0:0:0:0:0:0:1]",
            "[::ffff:127.0.0.1]:80",
            "localhost:",
        ] {
            assert_eq!(reason(host, true, &[]), None, "{host}");
        }
    }

    #[test]
    fn a_loopback_listener_refuses_names_that_could_be_rebound() {
        for host in [
            "evil.example",
            "localhost.evil.example",
            "evillocalhost",
            "x.localhost",
            "128.0.0.1",
            "[::2]",
            "0.0.0.0",
            "127.0.0.1.nip.io",
            "[::]",
        ] {
            assert_eq!(
                reason(host, true, &[]),
                Some(Reason::HostNotAllowed),
                "{host}"
            );
        }
    }

    #[test]
    fn a_malformed_host_is_a_bad_request_whatever_is_allowed() {
        for host in [
            "",
            " ",
            "a b",
            "user@localhost",
            "user:pw@localhost",
            "localhost:99999",
            "localhost:8a",
            "localhost:+80",
            "localhost:80:80",
            "[::1",
            "::1",
            "[::1]x",
            "[::1%25lo]",
            "[127.0.0.1]",
            "localhost..",
            ".",
            "..",
            "a..b",
            "/",
            "localhost/",
            "localhost?",
            "localhost#",
            "a,b",
            "127.1",
            "0x7f.0.0.1",
            "0x7f000001",
            "2130706433",
            "0177.0.0.1",
            "127.0.0.256",
            "a\\b",
            "%6cocalhost",
            "*.example",
        ] {
            for (loopback, allowed) in [(true, &[][..]), (false, &[][..]), (false, &["*"][..])] {
                assert_eq!(
                    reason(host, loopback, allowed),
                    Some(Reason::BadRequest),
                    "{host:?}"
                );
            }
        }
        let not_text = checked(&with_hosts(&[b"localhost\xff"]), true, &[]).unwrap_err();
        assert_eq!(not_text.reason, Reason::BadRequest);
    }

    #[test]
    fn a_probe_passes_with_an_empty_host_or_a_zone_and_with_no_other_malformed_host() {
        let passes = |host: &str| {
            let parts = with_hosts(&[host.as_bytes()]);
            check_probe(&parts, &Fields::of(&parts.headers)).is_ok()
        };
        for host in [
            "",
            "[fe80::1%eth0]",
            "[fe80::1%25eth0]:8000",
            "[fe80::1%2]",
            "[fe80::1%25]",
            "gw.example:80",
            "10.0.0.7",
        ] {
            assert!(passes(host), "{host:?}");
        }
        for host in [
            "fe80::1%eth0",
            "[fe80::1%]",
            "[fe80::1%a b]",
            "[fe80::1%eth0]x",
            "[fe80::1%eth0]:99999",
            "[gw%eth0]",
            "gw%eth0",
            "a b",
        ] {
            assert!(!passes(host), "{host:?}");
        }
        let none = with_hosts(&[]);
        assert!(check_probe(&none, &Fields::of(&none.headers)).is_err());
    }

    #[test]
    fn several_hosts_are_a_bad_request_even_when_equal() {
        let parts = with_hosts(&[b"localhost", b"localhost"]);
        assert_eq!(
            checked(&parts, true, &[]).unwrap_err().reason,
            Reason::BadRequest
        );
    }

    #[test]
    fn a_missing_host_is_a_bad_request_in_http_1_1() {
        let mut parts = with_hosts(&[]);
        assert_eq!(
            checked(&parts, false, &[]).unwrap_err().reason,
            Reason::BadRequest
        );
        parts.version = Version::HTTP_10;
        assert!(checked(&parts, false, &[]).is_ok());
        assert_eq!(
            checked(&parts, true, &[]).unwrap_err().reason,
            Reason::HostNotAllowed
        );
    }

    #[test]
    fn configured_names_match_exactly_and_suffixes_below_them() {
        let allowed = &["gw.example.com", "*.tools.example", "10.0.0.7", "[fd00::7]"];
        for host in [
            "GW.example.com:443",
            "gw.example.com.",
            "a.tools.example",
            "a.b.TOOLS.example:1",
            "10.0.0.7:80",
            "[fd00::7]",
        ] {
            assert_eq!(reason(host, false, allowed), None, "{host}");
        }
        for host in [
            "example.com",
            "x.gw.example.com",
            "tools.example",
            "atools.example",
            "localhost",
            "10.0.0.8",
            "gw.example.com.evil",
        ] {
            assert_eq!(
                reason(host, false, allowed),
                Some(Reason::HostNotAllowed),
                "{host}"
            );
        }
        assert_eq!(reason("localhost", true, allowed), None);
    }

    #[test]
    fn without_configured_names_other_listeners_answer_for_any() {
        assert_eq!(reason("anything.example:80", false, &[]), None);
    }

    #[test]
    fn the_authority_of_http_2_counts_as_the_host() {
        let parts = |uri: &str, host: Option<&str>| {
            let mut request = http::Request::get(uri).version(Version::HTTP_2);
            if let Some(host) = host {
                request = request.header(HOST, host);
            }
            request.body(()).unwrap().into_parts().0
        };
        let reason = |parts: &Parts| checked(parts, true, &[]).err().map(|r| r.reason);
        assert_eq!(reason(&parts("https://localhost:8000/mcp", None)), None);
        assert_eq!(
            reason(&parts("https://localhost/mcp", Some("LOCALHOST"))),
            None
        );
        assert_eq!(
            reason(&parts("https://evil.example/mcp", None)),
            Some(Reason::HostNotAllowed)
        );
        assert_eq!(
            reason(&parts("https://localhost/mcp", Some("evil.example"))),
            Some(Reason::BadRequest)
        );
        assert_eq!(
            reason(&parts("https://user@localhost/mcp", None)),
            Some(Reason::BadRequest)
        );
    }

    #[test]
    fn patterns_keep_their_spelling_and_bad_ones_are_refused() {
        for text in ["*", "gw.example", "*.example", "10.0.0.7", "fd00::7"] {
            assert_eq!(text.parse::<HostPattern>().unwrap().to_string(), text);
        }
        for text in [
            "",
            "gw.example:80",
            "*.",
            "**",
            "*.10.0.0.7",
            "a.*.b",
            "http://x",
            "x/y",
            "*example",
        ] {
            assert!(text.parse::<HostPattern>().is_err(), "{text}");
        }
    }

    #[test]
    fn no_bytes_make_the_parser_panic_or_pass_as_loopback() {
        // Every text of up to four characters over an alphabet of what matters to the parser.
        let alphabet = ['1', '7', '.', ':', '[', ']', '@', 'x', 'l', ' ', '%', 'é'];
        let mut texts = vec![String::new()];
        for _ in 0..4 {
            texts = texts
                .iter()
                .flat_map(|text| alphabet.iter().map(move |c| format!("{text}{c}")))
                .collect();
            for text in &texts {
                if let Some(authority) = Authority::parse(text) {
                    assert!(
                        !authority.host.is_loopback() || text.contains("::1"),
                        "{text}"
                    );
                }
            }
        }
    }
}
