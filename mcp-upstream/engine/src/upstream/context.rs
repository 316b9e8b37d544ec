//! The context of a message: its caller, its namespace, and the other data that an upstream needs.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::value::RawValue;
use tooldock_process::worker::LogLevel;
use tooldock_protocol::format::{ModernFormat, ResultFormat};
use tooldock_protocol::version::{Method, ProtocolVersion};
use tooldock_sessions::audit::Transport;
use tooldock_sessions::caller::Caller;
use tooldock_sessions::catalogue::View;
use tooldock_sessions::session::Session;
use tooldock_workers::registry::Namespace;

use super::Upstream;
use crate::engine::{CallFacts, CallMessages, CallTask};

/// Context of a message while it is handled.
pub struct CallContext<'a> {
    /// The caller, as the edge has authenticated it.
    pub caller: &'a Caller,
    /// The bytes of the message. Its spans are parts of these bytes.
    pub body: &'a Bytes,
    /// The namespace, from the snapshot that was current when the request began.
    pub namespace: Arc<Namespace>,
    /// The upstream that runs the namespace.
    pub upstream: &'a dyn Upstream,
    /// The client, with its session or its metadata.
    pub client: Client,
    /// True if the client accepts events before its response; false if no notification or question can be sent before the
    /// response.
    pub streams: bool,
    /// Number of aggregates through which the request came.
    pub depth: u8,
}

impl<'a> CallContext<'a> {
    /// The context of a call whose caller does not speak MCP.
    pub fn plain(
        caller: &'a Caller,
        body: &'a Bytes,
        namespace: &Arc<Namespace>,
        upstream: &'a dyn Upstream,
    ) -> Self {
        Self {
            caller,
            body,
            namespace: Arc::clone(namespace),
            upstream,
            client: Client::Plain,
            streams: false,
            depth: 0,
        }
    }
}

/// The client that makes a request, with the data that an upstream needs.
#[derive(Debug, Clone)]
pub enum Client {
    /// A client in a session, which `initialize` opened.
    Session(Arc<Session>),
    /// A client without a session, of a protocol version that begins with `initialize`.
    Legacy(ProtocolVersion),
    /// A client of version 2026-07-28, with the metadata of its request.
    Modern(RequestMeta),
    /// A REST caller, which does not speak MCP.
    Plain,
}

/// The metadata in `params._meta` of a request of version 2026-07-28. The spans are views into the request's body.
#[derive(Debug, Clone)]
pub struct RequestMeta {
    /// The client's capabilities as a JSON object.
    pub capabilities: Bytes,
    /// The client's description of itself as a JSON object.
    pub client_info: Option<Bytes>,
    /// Lowest severity of the log messages that the client wants; `None` if it wants no log messages.
    pub log_level: Option<LogLevel>,
    /// The token for progress notifications, as raw JSON: a string or number.
    pub progress_token: Option<Bytes>,
    /// Answers to the server's questions that the client sent along with the call: a JSON object of objects.
    pub inputs: Option<Bytes>,
}

impl Client {
    /// Returns true if the client uses the modern era of MCP.
    pub fn is_modern(&self) -> bool {
        matches!(self, Self::Modern(_))
    }

    /// Returns true if the client may use the methods that version 2026-07-28 removed.
    #[inline]
    pub fn is_legacy(&self) -> bool {
        matches!(self, Self::Session(_) | Self::Legacy(_))
    }

    /// The session; `None` for modern clients and legacy clients without a session.
    pub(crate) fn session(&self) -> Option<&Arc<Session>> {
        match self {
            Self::Session(session) => Some(session),
            Self::Legacy(_) | Self::Modern(_) | Self::Plain => None,
        }
    }

    /// The protocol version of a legacy client; `None` for other clients.
    pub fn version(&self) -> Option<ProtocolVersion> {
        match self {
            Self::Session(session) => Some(session.version()),
            Self::Legacy(version) => Some(*version),
            Self::Modern(_) | Self::Plain => None,
        }
    }
}

impl CallContext<'_> {
    /// The session; `None` for modern clients and legacy clients without a session.
    pub fn session(&self) -> Option<&Arc<Session>> {
        self.client.session()
    }

    /// The protocol version of a legacy client; `None` for other clients.
    pub fn version(&self) -> Option<ProtocolVersion> {
        self.client.version()
    }

    /// The caller's view of the namespace: the tools that it may see and call.
    #[inline]
    pub fn view(&self) -> View<'_> {
        View::of(self.caller, &self.namespace)
    }

    /// The format of MCP results for this client. It is not used for REST.
    #[inline]
    pub fn result_format(&self) -> ResultFormat {
        match self.version() {
            Some(version) => ResultFormat::Legacy(version),
            None => ResultFormat::Modern(ModernFormat::new(self.namespace.name.clone())),
        }
    }

    /// The transport of the request.
    #[inline]
    pub fn transport(&self) -> Transport {
        match self.client {
            _ if self.caller.relay.is_some() => Transport::Relay,
            Client::Plain => Transport::Rest,
            Client::Session(_) | Client::Legacy(_) | Client::Modern(_) => Transport::Mcp,
        }
    }

    /// The protocol version of the request, as it is written on the wire; `None` for REST and the relay.
    #[inline]
    pub fn wire_version(&self) -> Option<&'static str> {
        match &self.client {
            _ if self.caller.relay.is_some() => None,
            Client::Session(_) | Client::Legacy(_) => self.version().map(ProtocolVersion::as_str),
            Client::Modern(_) => Some(tooldock_protocol::version::MODERN),
            Client::Plain => None,
        }
    }

    /// Facts of a call in this context, which sends no messages before its reply.
    #[inline]
    pub fn facts(
        &self,
        method: Method,
        subject: impl Into<Arc<str>>,
        arguments: Bytes,
    ) -> CallFacts {
        CallFacts {
            namespace: Arc::clone(&self.namespace),
            method,
            subject: subject.into(),
            arguments,
            transport: self.transport(),
            version: self.wire_version(),
            session: self.session().map(|session| Arc::clone(session.tag())),
            talks: CallMessages::No,
            progress_token: None,
            asks_singly: false,
            task: CallTask::No,
        }
    }

    /// Converts a span to owned bytes. A span of at least half the body becomes a view into the body, a smaller span is copied. A
    /// view keeps the complete body in memory, also in queues that count only the view's bytes.
    #[inline]
    pub fn own(&self, span: &[u8]) -> Bytes {
        if span.len() * 2 < self.body.len() {
            Bytes::copy_from_slice(span)
        } else {
            self.body.slice_ref(span)
        }
    }

    /// Owned bytes of an object; `{}` if it is absent.
    pub(crate) fn own_object(&self, span: Option<&RawValue>) -> Bytes {
        span.map_or_else(
            || Bytes::from_static(b"{}"),
            |span| self.own(span.get().as_bytes()),
        )
    }
}
