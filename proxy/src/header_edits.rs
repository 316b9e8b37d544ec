//! The key `listeners[].headers:` — headers that a listener sets and removes: in requests before any other code reads them, and
//! in every response.
//!
//! Headers that the gateway itself uses cannot be changed: framing, credentials, the session, and the origin of a web page. A
//! configuration with one of those names is refused.

mod config;

use http::{HeaderMap, HeaderName, HeaderValue};
use pingora_http::RequestHeader;

pub(crate) use self::config::{HeaderEditsConfig, HeadersConfig};

/// Names of headers that cannot be changed in requests or responses: framing, the connection, the MCP session.
const PROTECTED: &[&str] = &[
    "connection",
    "content-encoding",
    "content-length",
    "keep-alive",
    "mcp-protocol-version",
    "mcp-session-id",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// Names of headers that cannot be changed in requests, either: the client, its address, and the body.
const PROTECTED_IN_REQUESTS: &[&str] = &[
    "authorization",
    "content-type",
    "expect",
    "host",
    "last-event-id",
    "mcp-method",
    "mcp-name",
    "origin",
    "proxy-authorization",
    "x-forwarded-for",
    "x-manager-token",
];

/// Names of headers that cannot be changed in responses, either: the body, and the gateway's messages to clients.
const PROTECTED_IN_RESPONSES: &[&str] = &[
    "allow",
    "content-type",
    "date",
    "retry-after",
    "vary",
    "www-authenticate",
    "x-request-id",
];

/// Prefix of CORS headers. They cannot be changed in responses, since `admission.origins` determines them.
const CORS_PREFIX: &str = "access-control-";

/// Prefix of the headers in a browser's preflight request. They cannot be changed.
const PREFLIGHT_PREFIX: &str = "access-control-request-";

/// Prefix of headers that repeat a tool's arguments (MCP 2026-07-28). They cannot be changed, since they must equal the arguments
/// in the body.
const ARGUMENT_PREFIX: &str = "mcp-param-";

/// Maximum number of entries in a list of header changes.
const EDITS_MAX: usize = 64;

/// A listener's changes to the headers of requests and responses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HeaderEdits {
    /// Changes to requests, applied before admission.
    pub(crate) request: Edits,
    /// Changes to every response, including refusals and streams.
    pub(crate) response: Edits,
}

/// Changes to the headers of requests, or to those of responses.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Edits {
    set: Vec<(HeaderName, HeaderValue)>,
    remove: Vec<HeaderName>,
}

/// An invalid change: the configuration key below `headers`, and the reason.
pub(crate) type InvalidEdit = (String, String);

impl HeaderEdits {
    /// Compiles the configured changes; returns `None` if there are none.
    ///
    /// # Errors
    ///
    /// The first invalid change.
    pub(crate) fn of(config: &HeadersConfig) -> Result<Option<Self>, InvalidEdit> {
        let request = Edits::of("request", &config.request, |name| {
            PROTECTED_IN_REQUESTS.contains(&name)
                || name.starts_with(PREFLIGHT_PREFIX)
                || name.starts_with(ARGUMENT_PREFIX)
        })?;
        let response = Edits::of("response", &config.response, |name| {
            PROTECTED_IN_RESPONSES.contains(&name) || name.starts_with(CORS_PREFIX)
        })?;
        let none = request.is_empty() && response.is_empty();
        Ok((!none).then_some(Self { request, response }))
    }
}

impl Edits {
    fn of(
        at: &str,
        config: &HeaderEditsConfig,
        protected: impl Fn(&str) -> bool,
    ) -> Result<Self, InvalidEdit> {
        let name = |list: &str, text: &str| {
            let key = || format!("{at}.{list}");
            let name: HeaderName = text
                .parse()
                .map_err(|_| (key(), format!("{text:?} is no name of a header")))?;
            if PROTECTED.contains(&name.as_str()) || protected(name.as_str()) {
                let reason = format!("{name} is the gateway's own: leave it out");
                return Err((key(), reason));
            }
            Ok(name)
        };
        for (list, length) in [("set", config.set.len()), ("remove", config.remove.len())] {
            if length > EDITS_MAX {
                return Err((
                    format!("{at}.{list}"),
                    format!("more than {EDITS_MAX} headers"),
                ));
            }
        }
        let mut set: Vec<(HeaderName, HeaderValue)> = Vec::new();
        for (text, value) in &config.set {
            let name = name("set", text)?;
            if set.iter().any(|(other, _)| *other == name) {
                return Err((format!("{at}.set"), format!("{name} stands there twice")));
            }
            let value = HeaderValue::from_str(value).map_err(|_| {
                let reason = format!("the value of {name} has characters that no header may have");
                (format!("{at}.set"), reason)
            })?;
            set.push((name, value));
        }
        let mut remove = Vec::new();
        for text in &config.remove {
            let name = name("remove", text)?;
            if set.iter().any(|(other, _)| *other == name) {
                let reason = format!("{name} is set, too: write it in one of both");
                return Err((format!("{at}.remove"), reason));
            }
            remove.push(name);
        }
        Ok(Self { set, remove })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.set.is_empty() && self.remove.is_empty()
    }

    /// Applies the changes to a request's head.
    pub(crate) fn apply_to_request(&self, head: &mut RequestHeader) {
        for name in &self.remove {
            head.remove_header(name);
        }
        for (name, value) in &self.set {
            // An error would mean too many headers, and such requests are refused before.
            let _ = head.insert_header(name.clone(), value.clone());
        }
    }

    /// Applies the changes to a response's headers.
    pub(crate) fn apply(&self, headers: &mut HeaderMap) {
        for name in &self.remove {
            headers.remove(name);
        }
        for (name, value) in &self.set {
            headers.insert(name.clone(), value.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use tooldock_base::yaml;

    use super::*;

    fn edits(yaml: &str) -> Result<Option<HeaderEdits>, InvalidEdit> {
        let config: HeadersConfig = yaml::from_str(yaml).expect(yaml);
        HeaderEdits::of(&config)
    }

    #[test]
    fn headers_are_removed_and_then_set() {
        let yaml = "response: { set: { Server: gw, strict-transport-security: max-age=1 }, remove: [X-Old] }";
        let edits = edits(yaml).expect("valid").expect("some");
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("server", "a"),
            ("server", "b"),
            ("x-old", "c"),
            ("x-kept", "d"),
        ] {
            headers.append(name, HeaderValue::from_static(value));
        }
        edits.response.apply(&mut headers);
        let mut left: Vec<_> = headers
            .iter()
            .map(|(name, value)| (name.as_str(), value.to_str().expect("text")))
            .collect();
        left.sort_unstable();
        let expected = [
            ("server", "gw"),
            ("strict-transport-security", "max-age=1"),
            ("x-kept", "d"),
        ];
        assert_eq!(left, expected);

        let mut head = RequestHeader::build("GET", b"/", None).expect("a head");
        head.append_header("x-old", "a").expect("room");
        let request = "request: { set: { X-New: b }, remove: [x-old] }";
        let edits = super::tests::edits(request).expect("valid").expect("some");
        edits.request.apply_to_request(&mut head);
        assert!(!head.headers.contains_key("x-old"));
        assert_eq!(head.headers["x-new"], "b");
    }

    #[test]
    fn nothing_to_change_is_nothing() {
        for yaml in ["{}", "request: { set: {} }", "response: { remove: [] }"] {
            assert_eq!(edits(yaml), Ok(None), "{yaml}");
        }
    }

    #[test]
    fn what_cannot_be_changed_is_named() {
        for (yaml, key, named) in [
            (
                "request: { set: { Content-Length: '1' } }",
                "request.set",
                "content-length",
            ),
            (
                "request: { remove: [Authorization] }",
                "request.remove",
                "authorization",
            ),
            (
                "request: { set: { X-Forwarded-For: a } }",
                "request.set",
                "x-forwarded-for",
            ),
            (
                "request: { set: { Content-Type: text/plain } }",
                "request.set",
                "content-type",
            ),
            (
                "request: { set: { Access-Control-Request-Method: GET } }",
                "request.set",
                "own",
            ),
            (
                "request: { set: { Mcp-Param-Id: '1' } }",
                "request.set",
                "own",
            ),
            (
                "response: { remove: [Mcp-Session-Id] }",
                "response.remove",
                "mcp-session-id",
            ),
            (
                "response: { set: { Transfer-Encoding: chunked } }",
                "response.set",
                "own",
            ),
            (
                "response: { set: { Access-Control-Allow-Origin: '*' } }",
                "response.set",
                "own",
            ),
            ("response: { set: { 'a b': c } }", "response.set", "no name"),
            (
                "response: { set: { a: \"b\\nc: d\" } }",
                "response.set",
                "characters",
            ),
            ("response: { set: { A: b, a: c } }", "response.set", "twice"),
            (
                "response: { set: { a: b }, remove: [A] }",
                "response.remove",
                "set, too",
            ),
        ] {
            let (at, what) = edits(yaml).expect_err(yaml);
            assert_eq!(at, key, "{yaml}");
            assert!(what.contains(named), "{yaml}: {what}");
        }
    }
}
