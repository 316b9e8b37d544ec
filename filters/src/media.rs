//! Checks of Content-Type, Accept and the announced size of the body. They are the last checks before the body is read.
//!
//! A GET that opens a stream on `/mcp` must list `text/event-stream` by name in Accept. On `/sse`, which returns nothing but
//! streams, a wildcard or a missing Accept suffices.
//!
//! The rule for Accept on `POST /mcp` depends on the protocol version: the version in the request's header, else the version
//! of its session (K-12). For `initialize` the version is in the body, so the parsed [`AcceptFlags`] are passed to the service,
//! which completes the check. An unknown version gets the lenient rule here, since the header of an `initialize` may contain
//! one; for other requests the service refuses the version. A session of another principal gets the lenient rule, too.

use http::header::{ACCEPT, CONTENT_LENGTH};
use http::{HeaderName, HeaderValue, Method};
use tooldock_base::route::RouteId;

use crate::fields::{Field, Fields};
use crate::namespace::Directory;
use crate::rejection::{Reason, Rejection};
use crate::route::{RouteBody, RouteSpec};
use crate::version::{FIRST_MODERN_VERSION, MCP_PROTOCOL_VERSION, modern_version_named};

const MCP_SESSION_ID: HeaderName = HeaderName::from_static("mcp-session-id");
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

const USUAL_ACCEPT: &str = "application/json, text/event-stream";

/// A listener's rule for the Accept header of `POST /mcp`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AcceptRule {
    /// The client must accept JSON or a stream, whatever the protocol version. The answer has the form that the client accepts.
    Lenient,
    /// The client must list JSON and streams by name, if its protocol version requires that; otherwise it must accept JSON.
    Auto,
}

/// The media types that the client accepts: only those that admission and the service need to know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AcceptFlags {
    /// True if Accept lists `application/json` by name; wildcards do not count.
    pub json_named: bool,
    /// True if Accept lists `text/event-stream` by name; wildcards do not count.
    pub sse_named: bool,
    /// True if the client accepts JSON: by name, by wildcard, or because the request has no Accept.
    pub json_acceptable: bool,
    /// True if the client accepts a stream: by name, by wildcard, or because the request has no Accept.
    pub sse_acceptable: bool,
}

impl AcceptFlags {
    /// Flags of a request without an Accept header, which accepts any type.
    pub const ANY: Self = Self {
        json_named: false,
        sse_named: false,
        json_acceptable: true,
        sse_acceptable: true,
    };

    /// Parses all Accept headers of a request as one list. Elements that are not media ranges are skipped.
    pub(crate) fn of(fields: &Fields<'_>) -> Self {
        match fields.accept {
            Field::Absent => Self::ANY,
            // Fast path: nearly every MCP client sends exactly this value.
            Field::Once(value) if value == USUAL_ACCEPT => Self {
                json_named: true,
                sse_named: true,
                json_acceptable: true,
                sse_acceptable: true,
            },
            _ => Self::parse(fields.map.get_all(ACCEPT).iter()),
        }
    }

    /// Parses Accept more leniently if the strict parser finds neither JSON nor a stream. `*` then means `*/*`, a malformed
    /// weight counts as above 0, and a header without any media range accepts everything. Older HTTP libraries send `*;q=.2`.
    fn leniently(fields: &Fields<'_>) -> Self {
        let usual = Self::of(fields);
        if usual.json_acceptable || usual.sse_acceptable {
            return usual;
        }
        let ranges = || {
            let values = fields.map.get_all(ACCEPT).iter();
            values.flat_map(|value| elements(value.as_bytes()))
        };
        let name = |range| unquoted_split(range, b';').map(<[u8]>::trim_ascii).next();
        let is_range = |range| name(range).is_some_and(|name| name == b"*" || name.contains(&b'/'));
        if !ranges().any(is_range) {
            return Self::ANY;
        }
        let accepts = |types: &[&[u8]]| {
            ranges().any(|range| {
                let mut parameters = unquoted_split(range, b';').map(<[u8]>::trim_ascii);
                let name = parameters.next().unwrap_or_default();
                let is_named = types.iter().any(|it| name.eq_ignore_ascii_case(it));
                is_named && odd_weight_above_zero(parameters)
            })
        };
        Self {
            json_acceptable: accepts(&[b"application/json", b"application/*", b"*/*", b"*"]),
            sse_acceptable: accepts(&[b"text/event-stream", b"text/*", b"*/*", b"*"]),
            ..usual
        }
    }

    fn parse<'a>(values: impl Iterator<Item = &'a HeaderValue>) -> Self {
        let (mut json, mut sse, mut application, mut text, mut any) =
            (None, None, None, None, None);
        let mut empty = true;
        for range in values.flat_map(|value| elements(value.as_bytes())) {
            empty = false;
            let mut parameters = unquoted_split(range, b';').map(<[u8]>::trim_ascii);
            let name = parameters.next().unwrap_or_default();
            let slot = match name {
                _ if name.eq_ignore_ascii_case(b"application/json") => &mut json,
                _ if name.eq_ignore_ascii_case(b"text/event-stream") => &mut sse,
                _ if name.eq_ignore_ascii_case(b"application/*") => &mut application,
                _ if name.eq_ignore_ascii_case(b"text/*") => &mut text,
                b"*/*" => &mut any,
                _ => continue,
            };
            if let Some(wanted) = wanted(parameters) {
                // A type may be listed twice, for example with different parameters. It is accepted if at least one entry accepts
                // it.
                *slot = Some(slot.unwrap_or(false) || wanted);
            }
        }
        if empty {
            return Self::ANY;
        }
        Self {
            json_named: json == Some(true),
            sse_named: sse == Some(true),
            // The most specific media range decides (RFC 9110 §12.5.1).
            json_acceptable: json.or(application).or(any).unwrap_or(false),
            sse_acceptable: sse.or(text).or(any).unwrap_or(false),
        }
    }

    /// Returns true if Accept lists JSON and streams by name, as protocol versions since 2025-06-18 require.
    pub fn names_both(self) -> bool {
        self.json_named && self.sse_named
    }
}

/// Returns true if Accept lists `*/*`, as curl and other command-line tools do.
pub fn lists_any_type(fields: &Fields<'_>) -> bool {
    let lists = |value: &HeaderValue| {
        elements(value.as_bytes()).any(|range| {
            let mut parameters = unquoted_split(range, b';').map(<[u8]>::trim_ascii);
            parameters.next() == Some(b"*/*") && wanted(parameters) == Some(true)
        })
    };
    fields.any(fields.accept, ACCEPT, lists)
}

/// Returns true if the parameters of a media range accept it, that is, if `q` is above 0 or missing; `None` if `q` is malformed.
fn wanted<'a>(parameters: impl Iterator<Item = &'a [u8]>) -> Option<bool> {
    for parameter in parameters {
        let Some((b'q' | b'Q', rest)) = parameter.split_first() else {
            continue;
        };
        let Some(weight) = rest.trim_ascii_start().strip_prefix(b"=") else {
            continue;
        };
        return weight_above_zero(weight.trim_ascii_start());
    }
    Some(true)
}

/// Returns false only if `q` is a number that is not above 0. A missing or malformed `q` counts as above 0.
fn odd_weight_above_zero<'a>(parameters: impl Iterator<Item = &'a [u8]>) -> bool {
    for parameter in parameters {
        let Some((b'q' | b'Q', rest)) = parameter.split_first() else {
            continue;
        };
        let weight = rest.trim_ascii_start().strip_prefix(b"=").unwrap_or(rest);
        let weight = std::str::from_utf8(weight.trim_ascii()).ok();
        let weight = weight.and_then(|weight| weight.parse::<f32>().ok());
        return weight.is_none_or(|weight| weight > 0.0);
    }
    true
}

/// Returns true if a weight such as `0.5` is above 0; `None` if it is malformed (RFC 9110 §12.4.2).
fn weight_above_zero(weight: &[u8]) -> Option<bool> {
    let (whole, decimals) = match weight {
        [whole, b'.', decimals @ ..] if decimals.len() <= 3 => (*whole, decimals),
        [whole] => (*whole, &[][..]),
        _ => return None,
    };
    let zeros = decimals.iter().all(|digit| *digit == b'0');
    match whole {
        b'1' if zeros => Some(true),
        b'0' if decimals.iter().all(u8::is_ascii_digit) => Some(!zeros),
        _ => None,
    }
}

/// The elements of a comma-separated header value, without empty ones.
fn elements(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    unquoted_split(value, b',')
        .map(<[u8]>::trim_ascii)
        .filter(|element| !element.is_empty())
}

/// Splits a text at a separator, but not within quoted strings: `a/b;c="x,y"` stays one element.
fn unquoted_split(text: &[u8], separator: u8) -> impl Iterator<Item = &[u8]> {
    let (mut quoted, mut escaped) = (false, false);
    text.split(move |&byte| {
        if escaped {
            escaped = false;
        } else if quoted && byte == b'\\' {
            escaped = true;
        } else if byte == b'"' {
            quoted = !quoted;
        }
        byte == separator && !quoted
    })
}

/// Returns true if the protocol version requires clients to list both JSON and streams by name in Accept.
fn demands_both(version: &str) -> bool {
    matches!(version, "2025-06-18" | "2025-11-25" | FIRST_MODERN_VERSION)
}

/// Refuses a request whose body is not announced as JSON, on routes that need JSON.
pub(crate) fn check_content_type(
    method: &Method,
    fields: &Fields<'_>,
    route: &RouteSpec,
) -> Result<(), Rejection> {
    let required = match route.body {
        _ if *method != Method::POST => return Ok(()),
        RouteBody::Json => true,
        // The body is optional here: without a body there is no type to check.
        RouteBody::JsonOrNothing => body_announced(fields),
        RouteBody::None | RouteBody::Any => return Ok(()),
    };
    let unsupported = |message| Err(Rejection::new(Reason::UnsupportedMediaType, message));
    match fields.content_type {
        Field::Absent if required => {
            unsupported("The body has no Content-Type; send `Content-Type: application/json`.")
        }
        Field::Absent => Ok(()),
        Field::Several => {
            unsupported("Several Content-Type headers; send `Content-Type: application/json` once.")
        }
        Field::Once(value) if is_json(value.as_bytes()) => Ok(()),
        Field::Once(_) => {
            unsupported("The body has to be JSON; send `Content-Type: application/json`.")
        }
    }
}

/// Returns true if a Content-Type is `application/json`, with or without parameters.
fn is_json(value: &[u8]) -> bool {
    // Fast path: nearly every client sends exactly this value.
    if value == b"application/json" {
        return true;
    }
    let name = unquoted_split(value, b';').next().unwrap_or_default();
    name.trim_ascii().eq_ignore_ascii_case(b"application/json")
}

fn body_announced(fields: &Fields<'_>) -> bool {
    let length = fields.map.get(CONTENT_LENGTH);
    !fields.transfer_encoding.is_absent() || length.is_some_and(|length| length != "0")
}

/// Refuses a request whose Accept excludes all possible response types. Otherwise returns the accepted types.
pub(crate) fn check_accept(
    method: &Method,
    fields: &Fields<'_>,
    route: &RouteSpec,
    rule: AcceptRule,
    (directory, principal): (&dyn Directory, &str),
) -> Result<AcceptFlags, Rejection> {
    if route.id == RouteId::Sse {
        let accept = AcceptFlags::of(fields);
        return match accept.sse_acceptable {
            true => Ok(accept),
            false => Err(not_acceptable(
                "The answer is a stream, which Accept excludes; send `Accept: text/event-stream`.",
            )),
        };
    }
    if route.id != RouteId::Mcp {
        return Ok(AcceptFlags::ANY);
    }
    let modern = modern_version_named(fields);
    let version =
        single(fields.protocol_version, &MCP_PROTOCOL_VERSION).map_err(|mut rejection| {
            if modern {
                rejection.reason = Reason::HeaderMismatch;
            }
            rejection
        })?;
    // Modern versions have neither sessions nor resumption: their headers are ignored, even if repeated (MOD-04).
    let session = if modern {
        None
    } else {
        single(fields.last_event_id, &LAST_EVENT_ID)?;
        single(fields.session_id, &MCP_SESSION_ID)?
    };
    let accept = match rule {
        AcceptRule::Lenient => AcceptFlags::leniently(fields),
        AcceptRule::Auto => AcceptFlags::of(fields),
    };
    if *method == Method::GET && !accept.sse_named {
        return Err(not_acceptable(
            "GET opens a stream: send `Accept: text/event-stream`; wildcards do not count.",
        ));
    }
    if *method != Method::POST {
        return Ok(accept);
    }
    let both = match rule {
        AcceptRule::Lenient => false,
        AcceptRule::Auto => version
            .or_else(|| directory.session_version(session?, principal))
            .is_some_and(demands_both),
    };
    if both && !accept.names_both() {
        return Err(not_acceptable(
            "This protocol version needs `Accept: application/json, text/event-stream`; wildcards do not count. For \
             clients that cannot send it, the operator sets `accept: lenient` for the listener.",
        ));
    }
    if accept.json_acceptable || (rule == AcceptRule::Lenient && accept.sse_acceptable) {
        return Ok(accept);
    }
    Err(not_acceptable(match accept.sse_acceptable {
        true => {
            "The answer is JSON, which Accept excludes; send `Accept: application/json, text/event-stream`. For clients \
             that cannot send it, the operator sets `accept: lenient` for the listener."
        }
        false => {
            "The answer is JSON or a stream of events, and Accept excludes both; send \
             `Accept: application/json, text/event-stream`."
        }
    }))
}

fn not_acceptable(message: &'static str) -> Rejection {
    Rejection::new(Reason::NotAcceptable, message)
}

/// The value of a header that must not be repeated. A value that is not valid text is returned as an empty string.
fn single<'a>(field: Field<'a>, name: &HeaderName) -> Result<Option<&'a str>, Rejection> {
    match field {
        Field::Several => Err(Rejection::new(
            Reason::DuplicateHeader,
            format!("The header {name} was sent several times; send it once."),
        )),
        Field::Once(value) => Ok(Some(value.to_str().unwrap_or_default())),
        Field::Absent => Ok(None),
    }
}

/// Refuses a request whose `Content-Length` is above the limit, or is not a number.
pub(crate) fn check_body_size(fields: &Fields<'_>, limit_bytes: u64) -> Result<(), Rejection> {
    match fields.content_length {
        Field::Absent => Ok(()),
        Field::Once(length) => check_length(length, limit_bytes),
        Field::Several => (fields.map.get_all(CONTENT_LENGTH).iter())
            .try_for_each(|length| check_length(length, limit_bytes)),
    }
}

fn check_length(value: &HeaderValue, limit_bytes: u64) -> Result<(), Rejection> {
    let digits = value.as_bytes();
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return Err(Rejection::new(
            Reason::BadRequest,
            "Content-Length is not a number.",
        ));
    }
    let length = digits.iter().try_fold(0_u64, |length, digit| {
        length.checked_mul(10)?.checked_add(u64::from(digit - b'0'))
    });
    // A length that overflows 64 bits is above every limit.
    if length.is_none_or(|length| length > limit_bytes) {
        return Err(Rejection::body_too_large(limit_bytes));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use http::HeaderMap;

    use super::*;
    use tooldock_base::names::NamespaceName;

    use crate::namespace::Access;
    use crate::route;

    /// A directory with a single session: of protocol version 2025-11-25 and principal `ci`.
    struct OneSession;

    impl Directory for OneSession {
        fn has_folder(&self, _name: &NamespaceName) -> bool {
            false
        }

        fn namespace(&self, _name: &str, _principal: &str) -> Access {
            Access::Unknown
        }

        fn session_version(&self, session_id: &str, principal: &str) -> Option<&'static str> {
            (session_id == "live" && principal == "ci").then_some("2025-11-25")
        }

        fn session_namespace(&self, _session_id: &str) -> Option<NamespaceName> {
            None
        }
    }

    fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            let name: HeaderName = name.parse().unwrap();
            headers.append(name, value.parse().unwrap());
        }
        headers
    }

    fn accepted(rule: AcceptRule, pairs: &[(&str, &str)]) -> Result<(), Reason> {
        let headers = headers(pairs);
        let fields = Fields::of(&headers);
        let directory = (&OneSession as &dyn Directory, "ci");
        check_accept(&Method::POST, &fields, route::of("/mcp"), rule, directory)
            .map(|_| ())
            .map_err(|rejection| rejection.reason)
    }

    const BOTH: &str = "application/json, text/event-stream";

    #[test]
    fn both_types_have_to_be_named_since_2025_06_18() {
        for context in [
            ("mcp-protocol-version", "2025-11-25"),
            ("mcp-protocol-version", "2025-06-18"),
            ("mcp-protocol-version", "2026-07-28"),
            ("mcp-session-id", "live"),
        ] {
            for accept in [
                BOTH,
                "text/event-stream;q=0.1 , Application/JSON; charset=utf-8",
            ] {
                assert_eq!(
                    accepted(AcceptRule::Auto, &[context, ("accept", accept)]),
                    Ok(())
                );
            }
            let split = [
                context,
                ("accept", "application/json"),
                ("accept", "text/event-stream"),
            ];
            assert_eq!(accepted(AcceptRule::Auto, &split), Ok(()));
            for accept in [
                "application/json",
                "text/event-stream",
                "*/*",
                "application/*, text/event-stream",
                "application/json, text/event-stream;q=0",
                "application/json;q=0, text/event-stream",
                "",
                "application/json;x=\", text/event-stream\"",
            ] {
                let outcome = accepted(AcceptRule::Auto, &[context, ("accept", accept)]);
                assert_eq!(outcome, Err(Reason::NotAcceptable), "{accept}");
            }
            assert_eq!(
                accepted(AcceptRule::Auto, &[context]),
                Err(Reason::NotAcceptable)
            );
        }
    }

    #[test]
    fn json_is_enough_in_every_other_context() {
        for context in [
            ("mcp-protocol-version", "2025-03-26"),
            ("mcp-protocol-version", "1999-01-01"),
            ("mcp-protocol-version", "2027-03-01"),
            ("mcp-session-id", "unknown"),
            ("x-none", ""),
        ] {
            assert_eq!(accepted(AcceptRule::Auto, &[context]), Ok(()));
            for accept in [
                "application/json",
                "application/*",
                "*/*",
                "",
                BOTH,
                "text/html, */*;q=0.1",
                "application/json;q=0.001",
                "*/*;q=0, application/json",
                "application/json;Q=1.000",
                "application/json;q=0, application/json",
            ] {
                let outcome = accepted(AcceptRule::Auto, &[context, ("accept", accept)]);
                assert_eq!(outcome, Ok(()), "{accept}");
            }
            for accept in [
                "text/html",
                "text/event-stream",
                "application/json;q=0",
                "application/json;q=0.000, */*",
                "application/*;q=0, */*",
                "*/*;q=0",
                "application/json;q=2",
                "application/json;q=0.5555",
                "garbage",
                "application/json; q = 0",
            ] {
                let outcome = accepted(AcceptRule::Auto, &[context, ("accept", accept)]);
                assert_eq!(outcome, Err(Reason::NotAcceptable), "{accept}");
            }
        }
    }

    #[test]
    fn a_stream_has_to_be_asked_for_by_name_except_on_sse() {
        let get = |path, accept: Option<&str>| {
            let accept = accept.map(|accept| ("accept", accept));
            let headers = headers(accept.as_slice());
            let fields = Fields::of(&headers);
            let route = route::of(path);
            let directory = (&OneSession as &dyn Directory, "ci");
            check_accept(&Method::GET, &fields, route, AcceptRule::Auto, directory).is_ok()
        };
        for (accept, mcp, sse) in [
            (None, false, true),
            (Some("*/*"), false, true),
            (Some("text/*"), false, true),
            (Some("application/json"), false, false),
            (Some("text/event-stream;q=0, */*"), false, false),
            (Some("Text/Event-Stream; charset=utf-8"), true, true),
            (Some("application/json, text/event-stream"), true, true),
        ] {
            assert_eq!(get("/mcp", accept), mcp, "{accept:?}");
            assert_eq!(get("/sse", accept), sse, "{accept:?}");
            assert!(get("/messages", accept));
        }
    }

    #[test]
    fn a_header_outranks_the_session() {
        let headers = [
            ("mcp-protocol-version", "2025-03-26"),
            ("mcp-session-id", "live"),
        ];
        assert_eq!(accepted(AcceptRule::Auto, &headers), Ok(()));
    }

    #[test]
    fn a_lenient_listener_takes_all_that_can_be_answered() {
        for version in ["2025-03-26", "2025-11-25", "2026-07-28", "2027-03-01"] {
            let version = ("mcp-protocol-version", version);
            assert_eq!(accepted(AcceptRule::Lenient, &[version]), Ok(()));
            for accept in [
                "application/json",
                "text/event-stream",
                "text/*",
                "application/*, text/*",
                "*/*",
                "",
                "text/event-stream, */*;q=0.1",
                "text/html, text/*;q=0.5",
                "application/json;q=0, text/event-stream;q=0.001",
                "text/html, image/gif, image/jpeg, *; q=.2, */*; q=.2",
                "*",
                "*; q=.2",
                "application/json;q=.5",
                "application/json;q=2",
                "garbage",
            ] {
                let outcome = accepted(AcceptRule::Lenient, &[("accept", accept), version]);
                assert_eq!(outcome, Ok(()), "{accept}");
            }
            for accept in ["text/html", "*/*;q=0", "application/json;q=0", "*;q=0"] {
                let outcome = accepted(AcceptRule::Lenient, &[("accept", accept), version]);
                assert_eq!(outcome, Err(Reason::NotAcceptable), "{accept}");
            }
        }
    }

    #[test]
    fn version_session_and_last_event_may_be_sent_once() {
        for name in ["mcp-protocol-version", "mcp-session-id", "last-event-id"] {
            let twice = [(name, "live"), (name, "live"), ("accept", BOTH)];
            assert_eq!(
                accepted(AcceptRule::Auto, &twice),
                Err(Reason::DuplicateHeader)
            );
        }
    }

    #[test]
    fn a_modern_version_twice_is_a_header_mismatch_and_the_headers_of_sessions_mean_nothing() {
        let version = ("mcp-protocol-version", "2026-07-28");
        for other in [version, ("mcp-protocol-version", "2025-11-25")] {
            assert_eq!(
                accepted(AcceptRule::Auto, &[other, version, ("accept", BOTH)]),
                Err(Reason::HeaderMismatch)
            );
        }
        let session = ("mcp-session-id", "live");
        let headers = [version, session, session, ("accept", BOTH)];
        assert_eq!(accepted(AcceptRule::Auto, &headers), Ok(()));
    }

    #[test]
    fn any_type_is_listed_by_name_and_not_by_silence() {
        let listed = |values: &[&str]| {
            let pairs: Vec<_> = values.iter().map(|value| ("accept", *value)).collect();
            lists_any_type(&Fields::of(&headers(&pairs)))
        };
        for values in [
            &["*/*"][..],
            &["text/html, */*;q=0.8"],
            &["application/json", "*/*"],
        ] {
            assert!(listed(values), "{values:?}");
        }
        for values in [
            &[][..],
            &[""],
            &["application/json"],
            &["*/*;q=0"],
            &["text/*"],
        ] {
            assert!(!listed(values), "{values:?}");
        }
    }

    #[test]
    fn an_mcp_body_has_to_be_announced_as_json() {
        let refused = |pairs: &[(&str, &str)]| {
            let headers = headers(pairs);
            check_content_type(&Method::POST, &Fields::of(&headers), route::of("/mcp"))
                .err()
                .map(|rejection| rejection.reason)
        };
        for value in [
            "application/json",
            "Application/JSON",
            "application/json ; charset=utf-8",
        ] {
            assert_eq!(refused(&[("content-type", value)]), None, "{value}");
        }
        for value in [
            "text/plain",
            "application/jsonp",
            "application/json, text/plain",
            "",
            "application/*",
            "json",
        ] {
            let outcome = refused(&[("content-type", value)]);
            assert_eq!(outcome, Some(Reason::UnsupportedMediaType), "{value}");
        }
        let twice = [("content-type", "application/json"); 2];
        assert_eq!(refused(&twice), Some(Reason::UnsupportedMediaType));
        assert_eq!(refused(&[]), Some(Reason::UnsupportedMediaType));
    }

    #[test]
    fn a_rest_call_without_a_body_needs_no_type() {
        let tool = route::of("/tools/x");
        let passes = |pairs: &[(&str, &str)]| {
            let headers = headers(pairs);
            check_content_type(&Method::POST, &Fields::of(&headers), tool).is_ok()
        };
        assert!(passes(&[]));
        assert!(passes(&[("content-length", "0")]));
        assert!(passes(&[
            ("content-length", "2"),
            ("content-type", "application/json")
        ]));
        assert!(!passes(&[("content-length", "2")]));
        assert!(!passes(&[("transfer-encoding", "chunked")]));
        assert!(!passes(&[("content-type", "text/plain")]));
    }

    #[test]
    fn announced_sizes_above_the_limit_are_refused_and_close() {
        let refused = |lengths: &[&str]| {
            let pairs: Vec<_> = lengths
                .iter()
                .map(|length| ("content-length", *length))
                .collect();
            check_body_size(&Fields::of(&headers(&pairs)), 1000).err()
        };
        assert!(refused(&[]).is_none());
        assert!(refused(&["0"]).is_none());
        assert!(refused(&["1000"]).is_none());
        for lengths in [
            &["1001"][..],
            &["1073741824"],
            &["99999999999999999999999"],
            &["5", "1001"],
        ] {
            let rejection = refused(lengths).unwrap();
            assert_eq!(rejection.reason, Reason::BodyTooLarge);
            assert!(rejection.close);
        }
        for length in ["", "-1", "+8", "1e3", "0x10", "5, 5", "5 "] {
            assert_eq!(
                refused(&[length]).unwrap().reason,
                Reason::BadRequest,
                "{length}"
            );
        }
    }
}
