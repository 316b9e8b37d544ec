//! Traces of requests: the attributes of a message for its span, and the trace context that is sent to upstreams.

use std::sync::Arc;
use std::time::Instant;

use http::{HeaderMap, HeaderValue};
use tooldock_base::error::CallErrorCode;
use tooldock_base::json;
use tooldock_base::trace::{Origin, PassedTrace, RequestTrace, TraceSink};
use tooldock_protocol::jsonrpc::{Key, Members, spans};
use tooldock_protocol::version::Method;
use tooldock_sessions::caller::Caller;

/// Name of the header, and of the member of `_meta`, that names the span to which a request belongs (W3C Trace Context).
pub(crate) const PARENT: &str = "traceparent";
/// Name of the header, and of the member of `_meta`, with additional data of tracing systems (W3C Trace Context).
pub(crate) const STATE: &str = "tracestate";

/// Name of the span in which a call waits in the queue of its namespace.
pub(crate) const QUEUE: &str = "queue";

/// Methods that the gateway answers itself, in addition to those of [`Method`].
const OWN_METHODS: [&str; 5] = [
    "initialize",
    "ping",
    "server/discover",
    "subscriptions/listen",
    "tools/call",
];

/// Route name of requests over the pipes of this process, in traces.
pub const PIPES: &str = "stdio";
/// Route name of frames over the relay's socket, in traces.
pub const RELAY: &str = "relay";

/// The trace context in the metadata of a message: `traceparent` and `tracestate`.
#[derive(Debug, Default)]
pub struct SentTrace {
    parent: Option<Box<str>>,
    state: Option<Box<str>>,
}

impl SentTrace {
    /// Reads the trace context from the metadata of a message.
    pub fn of(members: &Members<'_>) -> Self {
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

    /// Returns the trace context as parameters of [`RequestTrace::message`].
    #[inline]
    pub fn parameters(&self) -> Option<(&str, Option<&str>)> {
        Some((self.parent.as_deref()?, self.state.as_deref()))
    }
}

/// Begins the trace of a request that arrived without HTTP at the time `started`. `is_refused`: true if the client is not
/// admitted; its own trace context is then ignored.
pub fn begin(
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

/// Records the message of a request in its trace. Costs only a comparison if the request is not traced.
#[inline]
pub fn note_message(caller: &Caller, id: Option<&str>, method: &str, members: &Members<'_>) {
    if let Some(trace) = &caller.trace {
        note(trace, id, method, members);
    }
}

#[cold]
fn note(trace: &RequestTrace, id: Option<&str>, method: &str, members: &Members<'_>) {
    trace.message(label(method), id, SentTrace::of(members).parameters());
}

/// Records in the trace that a message was refused with this error code.
#[inline]
pub fn note_refusal(caller: &Caller, code: &'static str) {
    if let Some(trace) = &caller.trace {
        trace.failed(code);
    }
}

/// Returns the method as a name for traces. There are only few such names, whatever methods clients send.
fn label(method: &str) -> &'static str {
    let own = OWN_METHODS.into_iter().find(|known| *known == method);
    own.unwrap_or_else(|| match method.starts_with("notifications/") {
        true => "notification",
        false => Method::of(method).label(),
    })
}

/// Returns the `error.type` of a call with this status, for its span; `None` for a success.
pub(crate) fn error_of(status: Result<&'static str, CallErrorCode>) -> Option<&'static str> {
    match status {
        Ok("ok") => None,
        Ok(status) => Some(status),
        Err(code) => Some(code.as_str()),
    }
}

/// Adds the trace context of a request to the headers for an upstream.
pub fn set_headers(headers: &mut HeaderMap, trace: &PassedTrace) {
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
