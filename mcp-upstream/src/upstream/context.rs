//! Who asks, and for what namespace: what an upstream knows of a request beside its message.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::value::RawValue;
use tooldock_workers::registry::Namespace;
use tooldock_workers::worker::LogLevel;

use super::Upstream;
use crate::audit::Transport;
use crate::caller::Caller;
use crate::catalogue::View;
use crate::format::{ModernFormat, ResultFormat};
use crate::protocol::ProtocolVersion;
use crate::session::Session;

/// One message's context. Lives as long as its message.
pub(crate) struct CallContext<'a> {
    pub(crate) caller: &'a Caller,
    /// The bytes the message's spans point into.
    pub(crate) body: &'a Bytes,
    /// Out of the snapshot the request began with.
    pub(crate) namespace: Arc<Namespace>,
    /// What runs that namespace.
    pub(crate) upstream: &'a dyn Upstream,
    pub(crate) client: Client,
    /// Whether the client takes events with its answer. One that does not can be told and asked nothing before it.
    pub(crate) streams: bool,
    /// How many aggregates the request came through.
    pub(crate) depth: u8,
}

impl<'a> CallContext<'a> {
    /// The context of a caller that does not speak MCP.
    pub(crate) fn plain(
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

/// Who makes a request, as far as an upstream may know.
#[derive(Debug, Clone)]
pub(crate) enum Client {
    /// A client in a session, which `initialize` opened.
    Session(Arc<Session>),
    /// A client without a session, of a version that `initialize` opens.
    Legacy(ProtocolVersion),
    /// A client of 2026-07-28, with what its request says about it.
    Modern(RequestMeta),
    /// A caller that does not speak MCP: REST.
    Plain,
}

/// What a request of 2026-07-28 says about itself in `params._meta`. The spans are views into its body.
#[derive(Debug, Clone)]
pub(crate) struct RequestMeta {
    /// What the client can be asked: a JSON object.
    pub(crate) capabilities: Bytes,
    /// Who the client says it is: a JSON object.
    pub(crate) client_info: Option<Bytes>,
    /// From which severity on it wants log messages; without one it wants none.
    pub(crate) log_level: Option<LogLevel>,
    /// What its progress notifications are to carry: a JSON string or number.
    pub(crate) progress_token: Option<Bytes>,
    /// Answers sent along with a first call: a JSON object of objects.
    pub(crate) inputs: Option<Bytes>,
}

impl Client {
    /// Whether messages of its own era are the modern one's.
    pub(crate) fn is_modern(&self) -> bool {
        matches!(self, Self::Modern(_))
    }

    /// Whether the methods that went with 2026-07-28 are there for it.
    pub(crate) fn is_legacy(&self) -> bool {
        matches!(self, Self::Session(_) | Self::Legacy(_))
    }

    /// The session, which only legacy clients have, and not all of them.
    pub(crate) fn session(&self) -> Option<&Arc<Session>> {
        match self {
            Self::Session(session) => Some(session),
            Self::Legacy(_) | Self::Modern(_) | Self::Plain => None,
        }
    }

    /// The version a legacy client speaks.
    pub(crate) fn version(&self) -> Option<ProtocolVersion> {
        match self {
            Self::Session(session) => Some(session.version()),
            Self::Legacy(version) => Some(*version),
            Self::Modern(_) | Self::Plain => None,
        }
    }
}

impl CallContext<'_> {
    /// The session, which only legacy conversations have, and not all of them.
    pub(crate) fn session(&self) -> Option<&Arc<Session>> {
        self.client.session()
    }

    /// The version a legacy conversation is in.
    pub(crate) fn version(&self) -> Option<ProtocolVersion> {
        self.client.version()
    }

    /// What the caller may see and call of the namespace.
    pub(crate) fn view(&self) -> View<'_> {
        View::of(self.caller, &self.namespace)
    }

    /// What results of this conversation begin with and hold. REST reads none of it.
    pub(crate) fn result_format(&self) -> ResultFormat {
        match self.version() {
            Some(version) => ResultFormat::Legacy(version),
            None => ResultFormat::Modern(ModernFormat::new(self.namespace.name.clone())),
        }
    }

    /// How the request came in.
    pub(crate) fn transport(&self) -> Transport {
        match self.client {
            _ if self.caller.relay.is_some() => Transport::Relay,
            Client::Plain => Transport::Rest,
            Client::Session(_) | Client::Legacy(_) | Client::Modern(_) => Transport::Mcp,
        }
    }

    /// The version in force, as it is spelled on the wire.
    pub(crate) fn wire_version(&self) -> Option<&'static str> {
        match &self.client {
            _ if self.caller.relay.is_some() => None,
            Client::Session(_) | Client::Legacy(_) => self.version().map(ProtocolVersion::as_str),
            Client::Modern(_) => Some(crate::protocol::MODERN),
            Client::Plain => None,
        }
    }

    /// A span as bytes of its own: a view into the body where it is most of it, else a copy, since a view keeps the
    /// whole body alive in queues that count only what they see.
    pub(crate) fn own(&self, span: &[u8]) -> Bytes {
        if span.len() * 2 < self.body.len() {
            Bytes::copy_from_slice(span)
        } else {
            self.body.slice_ref(span)
        }
    }

    /// A span that may be absent, as an object.
    pub(crate) fn own_object(&self, span: Option<&RawValue>) -> Bytes {
        span.map_or_else(
            || Bytes::from_static(b"{}"),
            |span| self.own(span.get().as_bytes()),
        )
    }
}
