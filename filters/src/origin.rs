//! Requests from web pages: the origins that may use the server (SEC-04), CORS headers, and answers to preflights.
//!
//! Usually a page needs a token, which it sends in a header; there are no cookies. So `*` gives a page no additional rights, and
//! the list of origins only protects against DNS rebinding and against pages on the user's own machine (K-45).
//!
//! Some listeners require no credentials, or accept credentials that a browser adds automatically. There, only the Origin
//! distinguishes a foreign page from a trusted one, so `*` is ignored. If no credentials are required, pages from this machine
//! are allowed in addition to the listed origins. If browsers add credentials, pages from this machine must be listed, too.

use std::borrow::Cow;
use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS,
    ACCESS_CONTROL_REQUEST_METHOD, ALLOW, VARY,
};
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use serde::{Deserialize, Serialize};
use tooldock_workers::remote::is_of_the_gateway;

use crate::fields::{Field, Fields};
use crate::namespace::Directory;
use crate::rejection::{Reason, Rejection};
use crate::route::RouteSpec;

const ALLOWED_REQUEST_HEADERS: &str = "Authorization, Content-Type, Accept, X-Namespace, Mcp-Session-Id, MCP-Protocol-Version, Last-Event-ID, Mcp-Method, Mcp-Name, X-Request-Id, traceparent, tracestate, baggage";

/// Prefix of headers that repeat arguments of a tool (MCP 2026-07-28). The rest of the name depends on the tool.
const ARGUMENT_HEADER_PREFIX: &str = "mcp-param-";

/// Maximum length of the list of allowed headers in the answer to a preflight, in bytes. Further headers are left out.
const ALLOWED_HEADERS_MAX: usize = 4096;

/// Maximum number of header names that are read from a preflight; further ones are ignored. Real pages request few. The bound
/// is needed since anyone can send preflights without a credential.
const ASKED_HEADERS_MAX: usize = 64;

const EXPOSED_RESPONSE_HEADERS: HeaderValue = HeaderValue::from_static(
    "Mcp-Session-Id, MCP-Protocol-Version, WWW-Authenticate, Retry-After, RateLimit, RateLimit-Policy, X-Request-Id",
);

/// Time for which browsers cache the response to a preflight: two hours, the longest time that all browsers accept. For a header
/// that the response did not list, a browser sends another preflight anyway.
const PREFLIGHT_MAX_AGE_SECONDS: HeaderValue = HeaderValue::from_static("7200");

/// An entry of `admission.origins`: `scheme://host[:port]`, or `*` for any origin.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct OriginPattern(Pattern);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Pattern {
    Any,
    Exactly {
        scheme: String,
        host: String,
        port: Option<u16>,
    },
}

/// Error about a text that is not a valid entry of `admission.origins`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid origin {0:?}: use scheme://host[:port] without a path or trailing slash, or *")]
pub struct InvalidOrigin(String);

impl OriginPattern {
    /// The pattern `*`, which matches every origin, including `null`.
    pub const ANY: Self = Self(Pattern::Any);

    /// Returns true if the pattern is `*`, which matches every origin.
    pub fn is_any(&self) -> bool {
        self.0 == Pattern::Any
    }

    fn matches(&self, origin: &Origin<'_>) -> bool {
        match &self.0 {
            Pattern::Any => true,
            Pattern::Exactly { scheme, host, port } => {
                scheme.eq_ignore_ascii_case(origin.scheme)
                    && host.eq_ignore_ascii_case(origin.host)
                    && *port == origin.port
            }
        }
    }
}

impl FromStr for OriginPattern {
    type Err = InvalidOrigin;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "*" {
            return Ok(Self::ANY);
        }
        let origin = Origin::parse(text).ok_or_else(|| InvalidOrigin(text.to_owned()))?;
        Ok(Self(Pattern::Exactly {
            scheme: origin.scheme.to_ascii_lowercase(),
            host: origin.host.to_ascii_lowercase(),
            port: origin.port,
        }))
    }
}

impl TryFrom<String> for OriginPattern {
    type Error = InvalidOrigin;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<OriginPattern> for String {
    fn from(pattern: OriginPattern) -> Self {
        pattern.to_string()
    }
}

impl fmt::Display for OriginPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Pattern::Any => f.write_str("*"),
            Pattern::Exactly { scheme, host, port } => {
                write!(f, "{scheme}://{host}")?;
                match port {
                    Some(port) => write!(f, ":{port}"),
                    None => Ok(()),
                }
            }
        }
    }
}

/// An origin from the Origin header: scheme, host and port. `null` and texts with a path are not parsed as an origin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Origin<'a> {
    scheme: &'a str,
    host: &'a str,
    /// Port of the origin; `None` if it is the default port of the scheme.
    port: Option<u16>,
}

impl<'a> Origin<'a> {
    fn parse(text: &'a str) -> Option<Self> {
        let (scheme, authority) = text.split_once("://")?;
        let in_scheme =
            |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.');
        if scheme.is_empty() || !scheme.bytes().all(in_scheme) {
            return None;
        }
        // The host ends at the colon before the port. An IPv6 host ends at its bracket, since it contains colons itself.
        let host_end = match authority.strip_prefix('[') {
            Some(inside) => inside.find(']')? + 2,
            None => authority.find(':').unwrap_or(authority.len()),
        };
        let (host, port) = authority.split_at(host_end);
        let in_host = |byte: u8| {
            byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'[' | b']' | b':')
        };
        if host.is_empty() || !host.bytes().all(in_host) {
            return None;
        }
        let port = match port.strip_prefix(':') {
            Some(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => {
                Some(digits.parse().ok()?)
            }
            None if port.is_empty() => None,
            _ => return None,
        };
        let own = match scheme {
            _ if scheme.eq_ignore_ascii_case("https") => Some(443),
            _ if scheme.eq_ignore_ascii_case("http") => Some(80),
            _ => None,
        };
        let port = port.filter(|port| Some(*port) != own);
        Some(Self { scheme, host, port })
    }

    /// Returns true if the page was loaded from the same host and port that the request is sent to. The caller has checked that
    /// the host belongs to the listener.
    fn is_of(&self, parts: &Parts, fields: &Fields<'_>) -> bool {
        let named = match (parts.uri.authority(), fields.host) {
            (Some(authority), _) => Some(authority.as_str()),
            (None, Field::Once(host)) => host.to_str().ok(),
            (None, _) => None,
        };
        let Some(named) = named.and_then(|named| {
            let text = format!("{}://{named}", self.scheme);
            Origin::parse(&text).map(|it| (it.host.to_ascii_lowercase(), it.port))
        }) else {
            return false;
        };
        named == (self.host.to_ascii_lowercase(), self.port)
    }

    /// Returns true if the page was loaded from this machine (`localhost` or a loopback address).
    fn is_loopback(&self) -> bool {
        let web = ["http", "https"].map(|scheme| self.scheme.eq_ignore_ascii_case(scheme));
        let v6 = || self.host.strip_prefix('[')?.strip_suffix(']');
        web.contains(&true)
            && (self.host.eq_ignore_ascii_case("localhost")
                || self.host.parse().is_ok_and(|it: Ipv4Addr| it.is_loopback())
                || v6().is_some_and(|it| it.parse().is_ok_and(|it: Ipv6Addr| it.is_loopback())))
    }
}

/// CORS headers, which allow a page of an accepted origin to read the response, even if it is a refusal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CorsHeaders {
    allow_origin: HeaderValue,
}

impl CorsHeaders {
    /// The CORS headers, in no particular order. They include `Vary`: a response that already has a `Vary` header must merge
    /// both.
    pub fn headers(&self) -> [(HeaderName, HeaderValue); 3] {
        [
            (ACCESS_CONTROL_ALLOW_ORIGIN, self.allow_origin.clone()),
            (ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED_RESPONSE_HEADERS),
            (VARY, HeaderValue::from_static("Origin")),
        ]
    }
}

/// A listener's rule for requests from pages that do not have a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Openness {
    /// Requests without a token are refused, and browsers add no credentials automatically.
    Closed,
    /// Browsers may add credentials automatically: a client certificate, or a user name and token.
    ToCertificates,
    /// Requests without credentials are accepted, so any page could send them.
    ToEverybody,
}

/// Refuses a request whose Origin is not allowed. A request without an Origin is accepted: it does not come from the script of a
/// page of another origin that could read the response.
pub(crate) fn check(
    fields: &Fields<'_>,
    allowed: &[OriginPattern],
    openness: Openness,
) -> Result<Option<CorsHeaders>, Rejection> {
    let origin = match fields.origin {
        Field::Absent => return Ok(None),
        Field::Once(origin) => origin,
        Field::Several => {
            return Err(Rejection::new(
                Reason::DuplicateHeader,
                "The request has several Origin headers; a browser sends one.",
            ));
        }
    };
    if openness == Openness::Closed && allowed.iter().any(OriginPattern::is_any) {
        return Ok(Some(CorsHeaders {
            allow_origin: HeaderValue::from_static("*"),
        }));
    }
    let listed = origin
        .to_str()
        .ok()
        .and_then(Origin::parse)
        .is_some_and(|origin| {
            let mut named = allowed.iter().filter(|pattern| !pattern.is_any());
            named.any(|pattern| pattern.matches(&origin))
                || (openness == Openness::ToEverybody && origin.is_loopback())
        });
    if listed {
        Ok(Some(CorsHeaders {
            allow_origin: origin.clone(),
        }))
    } else {
        Err(Rejection::new(
            Reason::OriginNotAllowed,
            "Pages of this Origin may not use this server. The operator lists the allowed ones in admission.origins (CORS_ORIGINS).",
        ))
    }
}

/// Returns true if the request comes from a page of this server. Such a page can read the responses without CORS headers.
pub(crate) fn is_own(parts: &Parts, fields: &Fields<'_>) -> bool {
    let Field::Once(origin) = fields.origin else {
        return false;
    };
    let origin = origin.to_str().ok().and_then(Origin::parse);
    origin.is_some_and(|origin| origin.is_of(parts, fields))
}

/// A complete response without a body, for requests that the admission layer answers itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// The HTTP status.
    pub status: StatusCode,
    /// HTTP headers of the response.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// Label of the request's path in metrics.
    pub route: &'static str,
}

/// Builds the response to a CORS preflight; `None` if the request is not one. No credentials are required, since browsers send
/// none with a preflight.
pub(crate) fn preflight(
    parts: &Parts,
    route: &RouteSpec,
    cors: Option<&CorsHeaders>,
    directory: &dyn Directory,
) -> Option<Answer> {
    let asked = parts.method == Method::OPTIONS
        && parts.headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD);
    let cors = cors.filter(|_| asked)?;
    let mut answer = options(route);
    answer.headers.extend(cors.headers());
    answer.headers.extend([
        (
            ACCESS_CONTROL_ALLOW_METHODS,
            HeaderValue::from_static(route.allow()),
        ),
        (
            ACCESS_CONTROL_ALLOW_HEADERS,
            allowed_request_headers(&parts.headers, directory),
        ),
        (ACCESS_CONTROL_MAX_AGE, PREFLIGHT_MAX_AGE_SECONDS),
    ]);
    Some(answer)
}

/// The headers that a page may send: a fixed list, and some of the headers that the preflight requests. These are headers that
/// repeat arguments of a tool, and headers that are passed on to an upstream server. Headers with credentials for the gateway
/// are not added.
fn allowed_request_headers(headers: &HeaderMap, directory: &dyn Directory) -> HeaderValue {
    let mut allowed = Cow::Borrowed(ALLOWED_REQUEST_HEADERS);
    let asked = headers
        .get_all(ACCESS_CONTROL_REQUEST_HEADERS)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .take(ASKED_HEADERS_MAX)
        .map(str::trim);
    for name in asked {
        let Ok(name) = HeaderName::from_bytes(name.as_bytes()) else {
            continue;
        };
        let name_text = name.as_str();
        let is_sent = name_text.starts_with(ARGUMENT_HEADER_PREFIX)
            || (!is_of_the_gateway(name_text) && directory.passes_header(name_text));
        if !is_sent {
            continue;
        }
        if allowed.len() + name.as_str().len() > ALLOWED_HEADERS_MAX {
            break;
        }
        let allowed = allowed.to_mut();
        allowed.push_str(", ");
        allowed.push_str(name.as_str());
    }
    match allowed {
        Cow::Borrowed(known) => HeaderValue::from_static(known),
        // The conversion cannot fail, since header names contain only valid characters. The fixed list would be the fallback.
        Cow::Owned(all) => {
            HeaderValue::try_from(all).unwrap_or(HeaderValue::from_static(ALLOWED_REQUEST_HEADERS))
        }
    }
}

/// Builds the response to an `OPTIONS` request that is not a preflight.
pub(crate) fn options(route: &RouteSpec) -> Answer {
    Answer {
        status: StatusCode::NO_CONTENT,
        headers: vec![(ALLOW, HeaderValue::from_static(route.allow()))],
        route: route.label,
    }
}

#[cfg(test)]
mod tests {
    use http::header::ORIGIN;
    use tooldock_base::names::NamespaceName;

    use super::*;
    use crate::namespace::Access;

    /// A directory with a server that gets the API keys of its clients and, against the rules, the manager's token.
    struct PassesApiKey;

    impl Directory for PassesApiKey {
        fn namespace(&self, _name: &str, _principal: &str) -> Access {
            Access::Unknown
        }

        fn has_folder(&self, _name: &NamespaceName) -> bool {
            false
        }

        fn session_version(&self, _session_id: &str, _principal: &str) -> Option<&'static str> {
            None
        }

        fn session_namespace(&self, _session_id: &str) -> Option<NamespaceName> {
            None
        }

        fn passes_header(&self, name: &str) -> bool {
            matches!(name, "x-api-key" | "x-manager-token")
        }
    }

    fn patterns(texts: &[&str]) -> Vec<OriginPattern> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn headers(origins: &[&[u8]]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for origin in origins {
            headers.append(ORIGIN, HeaderValue::from_bytes(origin).unwrap());
        }
        headers
    }

    /// The allowed origin of the answer, or the reason of the refusal.
    fn told(origin: &str, allowed: &[&str]) -> Result<HeaderValue, Reason> {
        match check(
            &Fields::of(&headers(&[origin.as_bytes()])),
            &patterns(allowed),
            Openness::Closed,
        ) {
            Ok(cors) => Ok(cors.unwrap().allow_origin),
            Err(rejection) => Err(rejection.reason),
        }
    }

    const LISTED: &[&str] = &[
        "https://ok.example",
        "http://dev.example:3000",
        "http://[::1]:5173",
        "vscode-webview://abc",
    ];

    #[test]
    fn a_listed_origin_is_echoed_as_it_was_sent() {
        for origin in [
            "https://ok.example",
            "HTTPS://OK.example",
            "https://ok.example:443",
            "http://dev.example:3000",
            "http://[::1]:5173",
            "vscode-webview://abc",
        ] {
            assert_eq!(
                told(origin, LISTED),
                Ok(HeaderValue::from_str(origin).unwrap())
            );
        }
    }

    #[test]
    fn everything_near_a_listed_origin_is_refused() {
        for origin in [
            "https://ok.example.evil",
            "https://ok.example:8443",
            "http://ok.example",
            "https://xok.example",
            "https://sub.ok.example",
            "https://ok.example/",
            "https://ok.example/x",
            "https://ok.example@evil.example",
            "https://evil.example#https://ok.example",
            "https://ok.example.",
            "https://ok.example:",
            "https://",
            "://ok.example",
            "ok.example",
            "null",
            "",
            "*",
            "https://ok.example, https://evil.example",
            "https://ok.example:0443x",
            "https://ok.example\t",
            "https://ok.example\u{e9}",
        ] {
            assert_eq!(
                told(origin, LISTED),
                Err(Reason::OriginNotAllowed),
                "{origin:?}"
            );
        }
    }

    #[test]
    fn a_star_passes_everything_and_says_so() {
        for origin in ["https://any.example", "null", "garbage"] {
            assert_eq!(told(origin, &["*"]), Ok(HeaderValue::from_static("*")));
        }
    }

    #[test]
    fn without_credentials_only_listed_and_loopback_pages_pass() {
        let passes = |origin: &str, allowed: &[&str]| {
            let headers = headers(&[origin.as_bytes()]);
            check(
                &Fields::of(&headers),
                &patterns(allowed),
                Openness::ToEverybody,
            )
            .is_ok()
        };
        for origin in [
            "http://localhost:6274",
            "HTTPS://LocalHost",
            "http://127.0.0.1:3000",
            "http://127.8.9.10",
            "http://[::1]:5173",
        ] {
            assert!(passes(origin, &[]), "{origin}");
            assert_eq!(told(origin, LISTED).is_ok(), LISTED.contains(&origin));
        }
        for origin in [
            "https://evil.example",
            "http://localhost.evil.example",
            "http://127.0.0.1.evil.example",
            "http://10.0.0.1",
            "http://[::2]",
            "ftp://localhost",
            "null",
        ] {
            assert!(!passes(origin, &[]), "{origin}");
            assert!(!passes(origin, &["*"]), "{origin}");
        }
        assert!(passes("https://ok.example", LISTED));
    }

    #[test]
    fn no_origin_is_fine_and_two_are_not() {
        let none = HeaderMap::new();
        let checked = check(&Fields::of(&none), &patterns(LISTED), Openness::Closed);
        assert_eq!(checked.unwrap(), None);
        let two = headers(&[b"https://ok.example", b"https://ok.example"]);
        for allowed in [LISTED, &["*"]] {
            let refused =
                check(&Fields::of(&two), &patterns(allowed), Openness::Closed).unwrap_err();
            assert_eq!(refused.reason, Reason::DuplicateHeader);
        }
    }

    #[test]
    fn an_empty_list_refuses_every_page() {
        assert_eq!(
            told("https://ok.example", &[]),
            Err(Reason::OriginNotAllowed)
        );
    }

    #[test]
    fn patterns_keep_their_spelling_and_bad_ones_are_refused() {
        for text in [
            "*",
            "https://ok.example",
            "http://dev.example:3000",
            "http://[::1]:5173",
        ] {
            assert_eq!(text.parse::<OriginPattern>().unwrap().to_string(), text);
        }
        for text in [
            "",
            "null",
            "ok.example",
            "https://ok.example/",
            "https://*.example",
            "https://ok.example:x",
            "http://[::1",
        ] {
            assert!(text.parse::<OriginPattern>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_page_may_send_the_arguments_it_asks_to_send_and_nothing_else_it_names() {
        let told = |asked: &[&str]| {
            let mut headers = HeaderMap::new();
            for asked in asked {
                headers.append(
                    ACCESS_CONTROL_REQUEST_HEADERS,
                    HeaderValue::from_str(asked).unwrap(),
                );
            }
            let allowed = allowed_request_headers(&headers, &PassesApiKey);
            let allowed = allowed.to_str().unwrap();
            allowed
                .strip_prefix(ALLOWED_REQUEST_HEADERS)
                .unwrap()
                .to_owned()
        };
        assert_eq!(told(&[]), "");
        assert_eq!(told(&["authorization,x-secret, mcp-params"]), "");
        assert_eq!(
            told(&["mcp-param-region, X-Api-Key, x-manager-token, traceparent"]),
            ", mcp-param-region, x-api-key"
        );
        assert_eq!(
            told(&["Mcp-Param-Region,content-type", "mcp-param-b"]),
            ", mcp-param-region, mcp-param-b"
        );
        assert_eq!(told(&["mcp-param-a b,mcp-param-\u{e9}"]), "");
        let many = vec!["mcp-param-x"; 1000].join(",");
        assert!(told(&[&many]).len() < ALLOWED_HEADERS_MAX);
    }

    /// Counts the questions about headers.
    #[derive(Default)]
    struct Counting(std::cell::Cell<usize>);

    impl Directory for Counting {
        fn namespace(&self, _name: &str, _principal: &str) -> Access {
            Access::Unknown
        }

        fn has_folder(&self, _name: &NamespaceName) -> bool {
            false
        }

        fn session_version(&self, _session_id: &str, _principal: &str) -> Option<&'static str> {
            None
        }

        fn session_namespace(&self, _session_id: &str) -> Option<NamespaceName> {
            None
        }

        fn passes_header(&self, name: &str) -> bool {
            self.0.set(self.0.get() + 1);
            name == "x-last"
        }
    }

    #[test]
    fn no_more_than_64_names_of_a_preflight_are_looked_at() {
        let asked = |before: usize, in_fields: usize| {
            let directory = Counting::default();
            let mut headers = HeaderMap::new();
            let names = vec!["x-other"; before];
            for part in names.chunks(before.div_ceil(in_fields)) {
                let part = HeaderValue::try_from(part.join(",")).unwrap();
                headers.append(ACCESS_CONTROL_REQUEST_HEADERS, part);
            }
            let last = HeaderValue::from_static("x-last");
            headers.append(ACCESS_CONTROL_REQUEST_HEADERS, last);
            let allowed = allowed_request_headers(&headers, &directory);
            let is_allowed = allowed.to_str().unwrap().ends_with(", x-last");
            (directory.0.get(), is_allowed)
        };
        assert_eq!(asked(63, 1), (64, true));
        assert_eq!(asked(64, 1), (64, false));
        assert_eq!(asked(4000, 3), (64, false));
    }

    #[test]
    fn trace_context_may_be_sent_and_limits_may_be_read() {
        for name in ["traceparent", "tracestate", "baggage"] {
            assert!(ALLOWED_REQUEST_HEADERS.contains(name), "{name}");
        }
        let exposed = EXPOSED_RESPONSE_HEADERS;
        let exposed: Vec<_> = exposed.to_str().unwrap().split(", ").collect();
        for name in ["RateLimit", "RateLimit-Policy", "Retry-After"] {
            assert!(exposed.contains(&name), "{name}");
        }
    }

    #[test]
    fn an_answer_varies_by_origin_and_exposes_the_session() {
        let cors = CorsHeaders {
            allow_origin: HeaderValue::from_static("*"),
        };
        let headers: HeaderMap = cors.headers().into_iter().collect();
        assert_eq!(headers[VARY], "Origin");
        let exposed = headers[ACCESS_CONTROL_EXPOSE_HEADERS].to_str().unwrap();
        assert!(exposed.contains("Mcp-Session-Id") && exposed.contains("WWW-Authenticate"));
    }
}
