//! Headers that are forwarded with a client's message to the server, and with the server's response to the client.
//!
//! To the server: the headers of the protocol, and those headers of the client that the server's `headers.pass` names. To the
//! client: the headers of the protocol; cookies, challenges and headers that describe the server are removed.

use std::sync::Arc;

use http::header::{
    ACCEPT, ACCEPT_ENCODING, ALLOW, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_TYPE, HeaderName,
    HeaderValue, RETRY_AFTER,
};
use http::{HeaderMap, Method};
use smallvec::SmallVec;
use tooldock_servers::http::passed;
use tooldock_servers::http::port::RequestHeaders;
use tooldock_sessions::profile::AcceptRule;

use crate::mcp::head::SESSION_HEADER;
use crate::reply::JSON;

/// Value of `Accept` with both media types that MCP servers may answer with.
const BOTH_TYPES: HeaderValue = HeaderValue::from_static("application/json, text/event-stream");
/// The prefix of header names that MCP defines.
const MCP: &str = "mcp-";
pub(super) const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
pub(super) const PROTOCOL_VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");
const SESSION: HeaderName = HeaderName::from_static(SESSION_HEADER);

/// Returns the headers that are sent to the server with a client's message, without the server's session id.
pub(super) fn for_server(client: &HeaderMap, pass: &[String], rule: AcceptRule) -> HeaderMap {
    let mut up = passed::of_client(client, pass);
    for decided in [CONTENT_TYPE, SESSION] {
        up.remove(decided);
    }
    // This `Accept-Encoding` is only for the gateway's HTTP client, which does not send it to the server: it decides whether
    // a compressed answer is forwarded to the client without decoding.
    if let Some(codings) = client.get(ACCEPT_ENCODING) {
        up.insert(ACCEPT_ENCODING, codings.clone());
    }
    for (name, value) in client {
        if name.as_str().starts_with(MCP) && *name != SESSION || *name == LAST_EVENT_ID {
            up.append(name, value.clone());
        }
    }
    up.insert(ACCEPT, accept(client, rule));
    up
}

/// Returns the `Accept` header for the server. Servers require that it names both JSON and event streams. So both are sent if
/// the client's `Accept` covers everything, and on lenient listeners, where the gateway converts the response.
fn accept(client: &HeaderMap, rule: AcceptRule) -> HeaderValue {
    match client.get(ACCEPT) {
        _ if rule == AcceptRule::Lenient => BOTH_TYPES,
        Some(accept) if memchr::memmem::find(accept.as_bytes(), b"*/*").is_none() => accept.clone(),
        _ => BOTH_TYPES,
    }
}

/// Returns the headers of one request to the server, with the server's session id if there is one.
pub(super) fn in_session(
    up: &Arc<HeaderMap>,
    method: &Method,
    session: Option<&str>,
) -> RequestHeaders {
    let mut headers = RequestHeaders::sharing(up);
    if *method == Method::POST {
        headers = headers.with(CONTENT_TYPE, JSON);
    }
    match session.and_then(|id| HeaderValue::from_str(id).ok()) {
        Some(id) => headers.with(SESSION, id),
        None => headers,
    }
}

/// Returns the headers of a server's response that the client gets, without the server's session id.
pub(super) fn for_client(server: &HeaderMap) -> SmallVec<[(HeaderName, HeaderValue); 2]> {
    let mut down = SmallVec::new();
    for (name, value) in server {
        let protocol = name.as_str().starts_with(MCP) && *name != SESSION;
        if protocol || [CONTENT_TYPE, RETRY_AFTER, CACHE_CONTROL, ALLOW].contains(name) {
            down.push((name.clone(), value.clone()));
        }
    }
    down
}

/// The kind of a response's body, as its headers declare it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BodyKind {
    /// The body is a single JSON message, or empty.
    Json,
    /// The body is a stream of server-sent events (`text/event-stream`).
    Events,
    /// The body has no media type or one that MCP does not use, or is compressed.
    Other,
}

/// Returns the kind of body that the headers declare.
pub(super) fn kind(server: &HeaderMap) -> BodyKind {
    let coded = server.get(CONTENT_ENCODING);
    if coded.is_some_and(|coding| !coding.as_bytes().eq_ignore_ascii_case(b"identity")) {
        return BodyKind::Other;
    }
    let value = server
        .get(CONTENT_TYPE)
        .map_or(&[][..], HeaderValue::as_bytes);
    let end = memchr::memchr(b';', value).unwrap_or(value.len());
    let media = value[..end].trim_ascii();
    if media.eq_ignore_ascii_case(b"application/json") {
        BodyKind::Json
    } else if media.eq_ignore_ascii_case(b"text/event-stream") {
        BodyKind::Events
    } else {
        BodyKind::Other
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(headers: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, HeaderValue::from_static(value));
        }
        map
    }

    #[test]
    fn of_the_clients_headers_only_the_protocols_and_those_named_go_up() {
        let client = map(&[
            ("host", "gateway"),
            ("authorization", "Bearer gateway"),
            ("cookie", "a=b"),
            ("x-namespace", "search"),
            ("x-tenant", "acme"),
            ("accept-encoding", "gzip"),
            ("content-type", "application/json"),
            ("mcp-session-id", "ours"),
            ("mcp-protocol-version", "2025-11-25"),
            ("mcp-param-region", "eu"),
            ("traceparent", "00-1-2-01"),
            ("tracestate", "v=1"),
            ("last-event-id", "7"),
        ]);
        let names = |pass: &[&str]| {
            let pass: Vec<_> = pass.iter().map(|&it| it.to_owned()).collect();
            let mut names: Vec<_> = for_server(&client, &pass, AcceptRule::Strict)
                .keys()
                .map(|name| name.as_str().to_owned())
                .collect();
            names.sort_unstable();
            names
        };
        let always = [
            "accept",
            "accept-encoding",
            "last-event-id",
            "mcp-param-region",
            "mcp-protocol-version",
            "traceparent",
            "tracestate",
        ];
        assert_eq!(names(&[]), always);
        let named = names(&[
            "authorization",
            "x-tenant",
            "accept-encoding",
            "mcp-session-id",
        ]);
        assert_eq!(named.len(), always.len() + 2);
        assert!(named.contains(&"authorization".to_owned()));
        let session = in_session(
            &Arc::new(for_server(&client, &[], AcceptRule::Strict)),
            &Method::POST,
            Some("theirs"),
        );
        assert_eq!(session["content-type"], "application/json");
        assert_eq!(session["mcp-session-id"], "theirs");
    }

    #[test]
    fn a_client_that_takes_anything_takes_both_types_by_name() {
        for (sent, goes_up) in [
            (None, "application/json, text/event-stream"),
            (Some("*/*"), "application/json, text/event-stream"),
            (Some("application/json"), "application/json"),
        ] {
            let client = match sent {
                Some(sent) => map(&[("accept", sent)]),
                None => HeaderMap::new(),
            };
            assert_eq!(
                for_server(&client, &[], AcceptRule::Strict)[ACCEPT],
                goes_up
            );
            assert_eq!(
                for_server(&client, &[], AcceptRule::Lenient)[ACCEPT],
                BOTH_TYPES
            );
        }
    }

    #[test]
    fn a_server_says_nothing_of_itself_to_clients() {
        let server = map(&[
            ("content-type", "application/json"),
            ("set-cookie", "a=b"),
            ("server", "x"),
            ("www-authenticate", "Bearer"),
            ("mcp-session-id", "theirs"),
            ("mcp-extra", "1"),
            ("cache-control", "no-store"),
        ]);
        let names: Vec<_> = for_client(&server)
            .into_iter()
            .map(|(name, _)| name.as_str().to_owned())
            .collect();
        assert_eq!(names, ["content-type", "mcp-extra", "cache-control"]);
    }

    #[test]
    fn a_coded_body_or_another_type_is_no_answer() {
        for (headers, expected) in [
            (
                map(&[("content-type", "application/json; charset=utf-8")]),
                BodyKind::Json,
            ),
            (
                map(&[("content-type", "Text/Event-Stream")]),
                BodyKind::Events,
            ),
            (map(&[("content-type", "text/html")]), BodyKind::Other),
            (HeaderMap::new(), BodyKind::Other),
            (
                map(&[
                    ("content-type", "application/json"),
                    ("content-encoding", "gzip"),
                ]),
                BodyKind::Other,
            ),
        ] {
            assert_eq!(kind(&headers), expected);
        }
    }
}
