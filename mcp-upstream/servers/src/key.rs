//! Keys of connections, and the parameters with which a connection is opened.

use std::fmt;
use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher};
use std::sync::Arc;

use http::HeaderMap;
use tooldock_protocol::version::{ClientIdentity, Era, EraSupport};
use tooldock_workers::remote::BackendId;

use crate::handshake::ProbedEra;
use crate::link::Inbound;

/// Key of a connection: requests with equal keys share the connection.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ConnectionKey {
    /// The connection that all clients share.
    Shared,
    /// The connection at this backend that all clients share. For a server with several backends, the pool distributes requests
    /// with the key [`Self::Shared`] over such connections.
    Replica(BackendId),
    /// A connection for one session only. The value is the session's tag, which identifies it in logs.
    Session(Arc<str>),
    /// The connection of one principal.
    Principal(Arc<str>),
    /// A connection for a single request, which is not shared and ends with the request.
    Exclusive,
}

/// The connection on which the eras of a server are detected.
#[derive(Debug, Clone)]
pub enum Opener {
    /// The connection that all clients share.
    Everybody,
    /// The principal's own connection, which is opened with its credentials.
    Principal(Arc<str>),
    /// A separate connection for one client, with these headers of the client.
    Client(Arc<HeaderMap>),
}

/// Parameters with which a process is opened, taken from the first request that needs the process.
#[derive(Clone)]
pub struct OpenAs {
    /// The era of the request. A server that supports both eras is opened in this era; any other server in the only one it
    /// supports.
    pub era: Era,
    /// The client's description in the handshake. For a process that several clients use, it describes the gateway.
    pub identity: Arc<ClientIdentity>,
    /// The principal for whose limit the process is counted; `None` if only the limit of the pool applies.
    pub principal: Option<Arc<str>>,
    /// Handler for messages that belong to no call, of a process that serves one session or one request. `None` for shared
    /// processes: changes are then passed to the subscribers of the namespace, and requests are refused. The handler may be
    /// dropped while the pool is locked, so dropping it must not call the pools.
    pub inbound: Option<Arc<dyn Inbound>>,
    /// Headers of the only client that uses the connection; `None` if it is shared. Messages that the gateway sends on the
    /// connection on its own behalf, not for a call, carry these headers.
    pub headers: Option<Arc<HeaderMap>>,
    /// Hash that identifies the client, for servers whose backend is chosen by client.
    pub hash: u64,
    /// Backends that have already failed to answer the request.
    pub avoid: Vec<BackendId>,
}

/// Key of a process in the state machine: a [`ConnectionKey`], with a number for each exclusive connection.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum ProcessKey {
    Shared,
    Replica(BackendId),
    Session(Arc<str>),
    Principal(Arc<str>),
    Exclusive(u64),
}

/// Key of a slot. A slot has at most one process at a time; a server that supports both eras has a slot for each era.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct SlotKey {
    pub(crate) key: ProcessKey,
    pub(crate) era: Era,
}

impl ConnectionKey {
    /// Returns true if several clients use the connection, so that it is opened with the gateway's own identity.
    #[inline]
    pub fn is_common(&self) -> bool {
        matches!(self, Self::Shared | Self::Replica(_) | Self::Principal(_))
    }
}

impl ProcessKey {
    /// Returns the backend of the connection if the key determines it.
    pub(crate) fn replica(&self) -> Option<&BackendId> {
        match self {
            Self::Replica(backend) => Some(backend),
            _ => None,
        }
    }

    /// Returns the hash of the key, by which a backend is chosen.
    pub(crate) fn hash(&self) -> u64 {
        BuildHasherDefault::<DefaultHasher>::default().hash_one(self)
    }

    /// Returns true if all clients share the connection.
    pub(crate) fn is_shared(&self) -> bool {
        matches!(self, Self::Shared | Self::Replica(_))
    }

    /// Returns the process key for a request's connection; `None` if the connection is for a single request.
    pub(crate) fn lasting(key: &ConnectionKey) -> Option<Self> {
        Some(match key {
            ConnectionKey::Shared => Self::Shared,
            ConnectionKey::Replica(backend) => Self::Replica(backend.clone()),
            ConnectionKey::Session(tag) => Self::Session(Arc::clone(tag)),
            ConnectionKey::Principal(name) => Self::Principal(Arc::clone(name)),
            ConnectionKey::Exclusive => return None,
        })
    }

    /// Returns true if the connection is for one session.
    pub(crate) fn is_of_session(&self) -> bool {
        matches!(self, Self::Session(_))
    }

    /// Returns true if the connection is for one session or one request.
    pub(crate) fn is_private(&self) -> bool {
        matches!(self, Self::Session(_) | Self::Exclusive(_))
    }
}

impl From<&ProbedEra> for EraSupport {
    fn from(era: &ProbedEra) -> Self {
        match era {
            ProbedEra::Legacy { .. } => Self::Legacy,
            ProbedEra::Modern { .. } => Self::ModernAtLeast,
            ProbedEra::Dual { .. } => Self::Dual,
        }
    }
}

impl OpenAs {
    /// Returns the parameters for a process that several clients use: the gateway opens it with its own description.
    pub fn gateway(era: Era) -> Self {
        Self {
            era,
            identity: Arc::clone(ClientIdentity::gateway()),
            principal: None,
            inbound: None,
            headers: None,
            hash: 0,
            avoid: Vec::new(),
        }
    }

    /// Returns true if a process of this era would be opened in the same way with `self` and `other`.
    pub(crate) fn same_handshake(&self, other: &Self, era: Era) -> bool {
        if self.headers != other.headers {
            return false;
        }
        let (one, other) = (&self.identity, &other.identity);
        // The client's description is not part of a modern handshake: it is sent with every request.
        era == Era::Modern
            || (one.version == other.version
                && one.capabilities.get() == other.capabilities.get()
                && one.info.get() == other.info.get())
    }
}

impl fmt::Debug for OpenAs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenAs")
            .field("era", &self.era)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::value::RawValue;

    use super::*;

    fn legacy(capabilities: &str) -> OpenAs {
        let capabilities = RawValue::from_string(capabilities.to_owned()).expect("JSON");
        let identity = ClientIdentity {
            capabilities: capabilities.into(),
            ..ClientIdentity::clone(ClientIdentity::gateway())
        };
        OpenAs {
            identity: Arc::new(identity),
            ..OpenAs::gateway(Era::Legacy)
        }
    }

    #[test]
    fn only_what_a_process_was_told_makes_a_handshake_different() {
        let (one, other) = (legacy(r#"{"roots":{}}"#), legacy("{}"));
        assert!(one.same_handshake(&one, Era::Legacy));
        assert!(!one.same_handshake(&other, Era::Legacy));
        assert!(one.same_handshake(&other, Era::Modern));
        let gateway = OpenAs::gateway(Era::Legacy);
        assert!(gateway.same_handshake(&other, Era::Legacy));
    }

    #[test]
    fn a_connection_that_was_opened_with_one_clients_headers_is_no_others() {
        let with = |token: &'static str| OpenAs {
            headers: Some(Arc::new(HeaderMap::from_iter([(
                http::header::AUTHORIZATION,
                http::HeaderValue::from_static(token),
            )]))),
            ..OpenAs::gateway(Era::Modern)
        };
        for era in [Era::Legacy, Era::Modern] {
            assert!(with("a").same_handshake(&with("a"), era));
            assert!(!with("a").same_handshake(&with("b"), era));
            assert!(!with("a").same_handshake(&OpenAs::gateway(era), era));
        }
    }

    #[test]
    fn a_server_of_both_eras_is_opened_as_the_request_wants() {
        use Era::{Legacy, Modern};
        for wanted in [Legacy, Modern] {
            assert_eq!(EraSupport::Legacy.opened_for(wanted), Legacy);
            assert_eq!(EraSupport::Modern.opened_for(wanted), Modern);
            for either in [EraSupport::Dual, EraSupport::ModernAtLeast] {
                assert_eq!(either.opened_for(wanted), wanted);
            }
        }
    }
}
