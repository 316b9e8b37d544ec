//! Who a process is for, and how it is opened.

use std::fmt;
use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher};
use std::sync::Arc;

use http::HeaderMap;
use tooldock_workers::remote::BackendId;

use crate::protocol::{ClientIdentity, Era, EraSupport};
use crate::stdio::handshake::ProbedEra;
use crate::stdio::link::Inbound;

/// Whose process a request wants.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum ConnectionKey {
    /// The one of everybody.
    Shared,
    /// The one of everybody at that backend. Requests for the one of everybody are spread over these by the pool of a
    /// server that has several.
    Replica(BackendId),
    /// A session's own, by the session's tag.
    Session(Arc<str>),
    /// The one of a principal.
    Principal(Arc<str>),
    /// One nobody else has until the request is over.
    Exclusive,
}

/// Whose connection finds out what a server speaks.
#[derive(Debug, Clone)]
pub(crate) enum Opener {
    /// Everybody's.
    Everybody,
    /// That principal's, with its credentials.
    Principal(Arc<str>),
    /// The one of a client with these headers of its own, and of no other.
    Client(Arc<HeaderMap>),
}

/// How a process is opened for whoever asks first.
#[derive(Clone)]
pub(crate) struct OpenAs {
    /// The era of the request. A server that speaks both is opened in it; any other as it can be.
    pub(crate) era: Era,
    /// What the server is told about the client. A shared process has one handshake whatever clients come, so it hears
    /// of the gateway instead.
    pub(crate) identity: Arc<ClientIdentity>,
    /// Whose processes it counts among. Nobody's are only bounded together.
    pub(crate) principal: Option<Arc<str>>,
    /// Who hears what a session's or leased process says on its own. Without one it is as for a shared process: what
    /// changed goes to the audience of the namespace, requests are refused. It may be dropped under the pool's lock, so
    /// dropping it must lead to nothing that comes back to the pools.
    pub(crate) inbound: Option<Arc<dyn Inbound>>,
    /// What of the client's own headers goes with what opens and keeps a connection that is nobody else's.
    pub(crate) headers: Option<Arc<HeaderMap>>,
    /// The same for the same client, where a server's backends are chosen by that.
    pub(crate) hash: u64,
    /// Backends that did not answer the request before.
    pub(crate) avoid: Vec<BackendId>,
}

/// What a request asks the state machine for: [`ConnectionKey`], with exclusive ones told apart.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(in crate::stdio) enum Key {
    Shared,
    Replica(BackendId),
    Session(Arc<str>),
    Principal(Arc<str>),
    Exclusive(u64),
}

/// A place for one process at a time. A server of both eras has one of each kind.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(in crate::stdio) struct SlotKey {
    pub(in crate::stdio) key: Key,
    pub(in crate::stdio) era: Era,
}

impl ConnectionKey {
    /// Whether several clients speak with its process, so that it is opened with the gateway's own words.
    pub(crate) fn is_common(&self) -> bool {
        matches!(self, Self::Shared | Self::Replica(_) | Self::Principal(_))
    }
}

impl Key {
    /// The backend that its connection is for, where that is settled.
    pub(in crate::stdio) fn replica(&self) -> Option<&BackendId> {
        match self {
            Self::Replica(backend) => Some(backend),
            _ => None,
        }
    }

    /// A number that stands for the client it is for.
    pub(in crate::stdio) fn hash(&self) -> u64 {
        BuildHasherDefault::<DefaultHasher>::default().hash_one(self)
    }

    /// Whether everybody shares its process.
    pub(in crate::stdio) fn is_shared(&self) -> bool {
        matches!(self, Self::Shared | Self::Replica(_))
    }

    /// The key of a request; nothing for what is one request's alone.
    pub(super) fn lasting(key: &ConnectionKey) -> Option<Self> {
        Some(match key {
            ConnectionKey::Shared => Self::Shared,
            ConnectionKey::Replica(backend) => Self::Replica(backend.clone()),
            ConnectionKey::Session(tag) => Self::Session(Arc::clone(tag)),
            ConnectionKey::Principal(name) => Self::Principal(Arc::clone(name)),
            ConnectionKey::Exclusive => return None,
        })
    }

    /// Whether its process is for one session.
    pub(in crate::stdio) fn is_of_session(&self) -> bool {
        matches!(self, Self::Session(_))
    }

    /// Whether its process is for one session or one request.
    pub(in crate::stdio) fn is_private(&self) -> bool {
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
    /// The gateway itself, for a process of several clients.
    pub(crate) fn gateway(era: Era) -> Self {
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

    /// What a process opened as this was told of its client, for a process of that era, is the same as with `other`.
    pub(super) fn same_handshake(&self, other: &Self, era: Era) -> bool {
        if self.headers != other.headers {
            return false;
        }
        let (one, other) = (&self.identity, &other.identity);
        // A modern process is told with every request.
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
