//! Traces of requests: the attributes of a message for its span, and the trace context for upstreams.

use std::sync::Arc;
use std::time::Instant;

use http::{HeaderMap, HeaderValue};
use tooldock_base::error::CallErrorCode;
use tooldock_base::json;
use tooldock_base::trace::{Origin, PassedTrace, RequestTrace, TraceSink};
use tooldock_sessions::caller::Caller;

use crate::jsonrpc::{Key, Members, spans};
use crate::protocol::Method;

/// Member of the metadata, and header, with the span that a request belongs to (W3C Trace Context).
pub(crate) const PARENT: &str = "traceparent";
/// Member of the metadata, and header, with additions of tracing systems.
pub(crate) const STATE: &str = "tracestate";

/// Name of the span of a call's wait in the queue of its namespace.
pub(crate) const QUEUE: &str = "queue";

/// Methods that are not sent to upstreams, in addition to those of [`Method`].
const OWN_METHODS: [&str; 5] = [
    "initialize",
    "ping",
    "server/discover",
    "subscriptions/listen",
    "tools/call",
];

/// Route of requests over the pipes of this process.
pub(crate) const PIPES: &str = "stdio";
/// Route of frames over the relay's socket.
pub(crate) const RELAY: &str = "relay";

/// `traceparent` and `tracestate` in the metadata of a message.
#[derive(Debug, Default)]
pub(crate) struct SentTrace {
    parent: Option<Box<str>>,
    state: Option<Box<str>>,
}

impl SentTrace {
    /// Reads the metadata of a message.
    pub(crate) fn of(members: &Members<'_>) -> Self {
        let meta = members.raw(Key::Meta);
        let text = |name| {
            let value = json::raw(spans::find(meta?, name)?)?;
            serde_json::from_str(value.get()).ok()
        };
        Self {
            parent: text(PARENT),
            state: text(STATE),
        }
    }

    /// The trace as [`RequestTrace::message`] takes it.
    pub(crate) fn shown(&self) -> Option<(&str, Option<&str>)> {
        Some((self.parent.as_deref()?, self.state.as_deref()))
    }
}

/// Begins the trace of a request that arrived without HTTP at that time. `is_refused`: the client is not admitted, so that its
/// own trace does not count.
pub(crate) fn begin(
    sink: &Arc<dyn TraceSink>,
    route: &'static str,
    started: Instant,
    is_refused: bool,
) -> Arc<RequestTrace> {
    let origin = Origin {
        started,
        parent: None,
        state: None,
        route,
        is_refused,
    };
    RequestTrace::begin(sink, origin)
}

/// Notes the message that a request carries. Costs a comparison if nothing is traced.
#[inline]
pub(crate) fn note_message(caller: &Caller, id: Option<&str>, method: &str, members: &Members<'_>) {
    if let Some(trace) = &caller.trace {
        note(trace, id, method, members);
    }
}

#[cold]
fn note(trace: &RequestTrace, id: Option<&str>, method: &str, members: &Members<'_>) {
    trace.message(label(method), id, SentTrace::of(members).shown());
}

/// Records that a message was refused with this code.
pub(crate) fn note_refusal(caller: &Caller, code: &'static str) {
    if let Some(trace) = &caller.trace {
        trace.failed(code);
    }
}

/// The method as a name with few values.
fn label(method: &str) -> &'static str {
    let own = OWN_METHODS.into_iter().find(|known| *known == method);
    own.unwrap_or_else(|| match method.starts_with("notifications/") {
        true => "notification",
        false => Method::of(method).label(),
    })
}

/// The `error.type` of a call with this status; `None` for a success.
pub(crate) fn error_of(status: Result<&'static str, CallErrorCode>) -> Option<&'static str> {
    match status {
        Ok("ok") => None,
        Ok(status) => Some(status),
        Err(code) => Some(code.as_str()),
    }
}

/// Headers with the trace of a request to an upstream.
pub(crate) fn set_headers(headers: &mut HeaderMap, trace: &PassedTrace) {
    if let Ok(parent) = HeaderValue::from_str(&trace.parent) {
        headers.insert(PARENT, parent);
    }
    let state = trace.state.as_deref();
    match state.and_then(|it| HeaderValue::from_str(it).ok()) {
        Some(state) => drop(headers.insert(STATE, state)),
        None => drop(headers.remove(STATE)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_cannot_make_names_of_spans() {
        for (method, expected) in [
            ("tools/call", "tools/call"),
            ("resources/read", "resources/read"),
            ("initialize", "initialize"),
            ("notifications/made-up", "notification"),
            ("made/up", "other"),
        ] {
            assert_eq!(label(method), expected);
        }
    }

    #[test]
    fn the_spans_of_the_gateway_replace_the_trace_in_headers() {
        let mut headers = HeaderMap::new();
        headers.insert(PARENT, HeaderValue::from_static("old"));
        headers.insert(STATE, HeaderValue::from_static("old"));
        let trace = PassedTrace {
            parent: "new".into(),
            state: None,
            is_own: true,
        };
        set_headers(&mut headers, &trace);
        assert_eq!(headers[PARENT], "new");
        assert!(!headers.contains_key(STATE));
    }
}
