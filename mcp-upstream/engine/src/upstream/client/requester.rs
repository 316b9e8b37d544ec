//! The requester: properties of a caller that decide about its connection, its backend and its headers.

use std::borrow::Cow;
use std::sync::Arc;

use http::{HeaderMap, HeaderName};
use serde_json::Value;
use tooldock_base::names::NamespaceName;
use tooldock_base::trace::PassedTrace;
use tooldock_protocol::bridge::params::{self, Trace};
use tooldock_protocol::jsonrpc::Request;
use tooldock_servers::http::hash;
use tooldock_servers::http::passed::{self, REQUEST_ID, TRACEPARENT, TRACESTATE};
use tooldock_servers::link::CallOwner;
use tooldock_sessions::caller::CallNote;
use tooldock_workers::registry::UpstreamKind;
use tooldock_workers::remote::Balance;

use crate::trace;
use crate::upstream::CallContext;

/// The client that makes a request, as the connections to servers need it.
#[derive(Clone, Default)]
pub(crate) struct Requester {
    /// The principal of the request's token.
    pub(crate) principal: Option<Arc<str>>,
    /// The client's headers to send with this request only. Used only for servers over HTTP.
    pub(super) headers: Option<Arc<HeaderMap>>,
    /// Hash of the client, for servers whose backend is chosen by the client's hash.
    pub(super) hash: u64,
    /// The aggregate through which the request came, if any.
    pub(super) aggregate: Option<NamespaceName>,
    /// The gateway's id of the request, for servers that are reached over pipes.
    pub(super) request_id: Option<Arc<str>>,
    /// Record of the backend that took the request, for the access log.
    pub(super) note: Option<Arc<CallNote>>,
}

impl Requester {
    /// The requester of a message.
    pub(crate) fn of(cx: &CallContext<'_>) -> Self {
        let mut requester = Self {
            principal: cx.caller.principal.clone(),
            aggregate: match cx.depth {
                0 => None,
                _ => cx.caller.namespace.clone(),
            },
            ..Self::default()
        };
        if let UpstreamKind::External(_) = &cx.namespace.upstream {
            requester.request_id = Some(Arc::clone(&cx.caller.request_id));
        }
        if let UpstreamKind::Remote(server) = &cx.namespace.upstream {
            let passed = passed::of_caller(cx.caller, &server.spec.headers);
            // The gateway's trace context is sent as a header, too.
            let is_sent = !passed.is_empty() || cx.caller.trace.is_some();
            requester.headers = is_sent.then(|| Arc::new(passed));
            requester.note.clone_from(&cx.caller.note);
            if server.spec.balance == Balance::Hash {
                requester.hash = hash::of_client(cx.caller, cx.session().map(|it| &**it));
            }
        }
        requester
    }

    /// The owner of the requester's calls at a server.
    pub(crate) fn owner(&self) -> CallOwner {
        CallOwner {
            principal: self.principal.clone(),
            aggregate: self.aggregate.clone(),
        }
    }

    /// The client's headers that are sent with a request.
    pub(crate) fn headers(&self) -> Option<&Arc<HeaderMap>> {
        self.headers.as_ref()
    }

    /// Returns true if the headers identify the client to the server. The server's responses may then be valid for this client
    /// alone.
    pub(crate) fn identifies_client(&self) -> bool {
        let headers = self.headers.as_ref();
        headers.is_some_and(|it| it.keys().any(|name| !passed::names_the_request(name)))
    }

    /// The headers for opening a connection that only this client uses. They do not contain the trace of the request.
    pub(crate) fn opener(&self) -> Option<Arc<HeaderMap>> {
        let headers = self.headers.as_ref().filter(|_| self.identifies_client())?;
        let mut headers = HeaderMap::clone(headers);
        headers.remove(TRACEPARENT);
        headers.remove(TRACESTATE);
        headers.remove(REQUEST_ID);
        Some(Arc::new(headers))
    }

    /// The client's headers that are sent with a request. If the gateway traces the request, they contain the gateway's trace.
    pub(crate) fn traced_headers(&self, trace: Option<&PassedTrace>) -> Option<Arc<HeaderMap>> {
        let headers = self.headers.as_ref()?;
        let Some(trace) = trace.filter(|it| it.is_own) else {
            return Some(Arc::clone(headers));
        };
        let mut headers = HeaderMap::clone(headers);
        trace::set_headers(&mut headers, trace);
        Some(Arc::new(headers))
    }

    /// Adds the trace to the metadata of a client's request, unless the metadata contain a trace. A trace of the gateway replaces
    /// the existing one.
    pub(crate) fn traced<'a>(
        &self,
        request: &'a Request,
        passed: Option<&PassedTrace>,
    ) -> Cow<'a, Request> {
        if let Some(passed) = passed {
            let json = |text: &str| Value::from(text).to_string();
            let state = passed.state.as_deref().map(json);
            let trace = Trace {
                parent: &json(&passed.parent),
                state: state.as_deref(),
                replaces: passed.is_own,
            };
            return params::traced(request, trace).map_or(Cow::Borrowed(request), Cow::Owned);
        }
        let header = |name: HeaderName| {
            let value = self.headers.as_ref()?.get(name)?.to_str().ok()?;
            Some(Value::from(value).to_string())
        };
        let Some(parent) = header(TRACEPARENT) else {
            return Cow::Borrowed(request);
        };
        let state = header(TRACESTATE);
        let trace = Trace {
            parent: &parent,
            state: state.as_deref(),
            replaces: false,
        };
        params::traced(request, trace).map_or(Cow::Borrowed(request), Cow::Owned)
    }
}
