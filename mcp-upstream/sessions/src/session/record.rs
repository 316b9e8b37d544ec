//! The recorded state of a session: all that another process needs to continue it. Calls, readers and open questions belong to
//! one process and end with it.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex, OnceLock};

use serde::{Deserialize, Serialize};
use tokio::time::Instant;
use tooldock_process::worker::LogLevel;
use tooldock_protocol::version::ProtocolVersion;

use super::subscriptions::Subscriptions;
use super::{
    Affinity, Binding, ClientFacts, Session, SessionId, SessionPatch, SessionState, Toolset,
};
use crate::interaction::SessionInteractions;
use crate::replicas::ReplicaId;
use crate::stream::{OwnedStreams, StreamCounts};

/// A session as a store keeps it. The id is a credential, and is written to no other place.
#[derive(Clone, Serialize, Deserialize)]
pub struct SessionRecord {
    /// The session's id.
    pub id: SessionId,
    /// The fixed properties of the session.
    pub binding: Binding,
    /// The process in which the session is live.
    pub home: Home,
    /// True if the client has confirmed the handshake.
    pub confirmed: bool,
    /// The protocol version, if it was negotiated after the session was opened.
    pub negotiated: Option<ProtocolVersion>,
    /// The client's description of itself.
    pub client: Option<ClientFacts>,
    /// The least severe level of log messages that the client has requested.
    pub log_level: LogLevel,
    /// The backend, and the session at that backend, to which the session's requests are passed on; `None` in client mode.
    #[serde(default)]
    pub affinity: Option<Affinity>,
    /// The resources that the client subscribes to.
    pub subscriptions: BTreeSet<Box<str>>,
    /// The tools and resources that the session activated and deactivated, if its namespace is an aggregate.
    #[serde(default)]
    pub toolset: Toolset,
    /// Number of streams that were opened in the session.
    pub streams: StreamCounts,
}

/// The process in which a session is live. A process that adopts a session increments the epoch, so that only one of two
/// concurrent claims succeeds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Home {
    /// The replica that the process belongs to.
    pub replica: ReplicaId,
    /// Number of adoptions of the session since it was opened.
    pub epoch: u32,
}

impl SessionRecord {
    /// Applies a patch, as stores do. A patch overwrites the values that it names: the last patch of a kind wins, and applying
    /// a patch twice has the same effect as applying it once.
    pub fn apply(&mut self, patch: &SessionPatch) {
        match patch {
            SessionPatch::Confirm => self.confirmed = true,
            SessionPatch::Initialize { version, client } => {
                self.negotiated = Some(*version);
                self.client = Some(client.clone());
            }
            SessionPatch::LogLevel(level) => self.log_level = *level,
            SessionPatch::Subscribe(uri) => {
                self.subscriptions.insert((**uri).into());
            }
            SessionPatch::Unsubscribe(uri) => {
                self.subscriptions.remove(&**uri);
            }
            SessionPatch::Affinity(affinity) => self.affinity = Some(affinity.clone()),
            SessionPatch::Toolset(toolset) => self.toolset = toolset.clone(),
            SessionPatch::OpenStream(number) => self.streams.raise(*number),
        }
    }
}

impl Session {
    /// Creates the live session of a record, in the process that adopts it. The session counts as just used, and is confirmed
    /// if the record states so.
    pub(super) fn adopted(record: SessionRecord, now: Instant) -> Self {
        let mut session = Self::new(record.id, record.binding, now);
        if record.confirmed {
            *session.state.get_mut() = SessionState::Ready as u8;
        }
        session.negotiated = record.negotiated.map_or_else(OnceLock::new, OnceLock::from);
        session.client = record
            .client
            .map_or_else(OnceLock::new, |facts| Box::new(facts).into());
        *session.log_level.get_mut() = record.log_level as u8;
        session.affinity = Mutex::new(record.affinity.map(Arc::new));
        session.toolset = Mutex::new(Arc::new(record.toolset));
        session.subscriptions = Subscriptions::recorded(record.subscriptions);
        session.streams = OwnedStreams::after(record.streams);
        session.epoch = record.home.epoch;
        session.questions = SessionInteractions::of_epoch(record.home.epoch);
        session.touch(now);
        session
    }

    /// Returns the session as another process would adopt it from its record.
    #[cfg(any(test, feature = "testing"))]
    pub fn as_adopted(&self) -> Self {
        let home = Home {
            replica: ReplicaId::ALONE,
            epoch: self.epoch + 1,
        };
        let record = serde_json::to_string(&self.record(home)).expect("plain data");
        let record = serde_json::from_str(&record).expect("as written");
        Self::adopted(record, Instant::now())
    }

    /// The record of the session.
    pub(super) fn record(&self, home: Home) -> SessionRecord {
        SessionRecord {
            id: self.id.clone(),
            binding: self.binding.clone(),
            home,
            confirmed: self.state() == SessionState::Ready,
            negotiated: self.negotiated.get().copied(),
            client: self.client.get().map(|facts| (**facts).clone()),
            log_level: self.log_level(),
            affinity: self.affinity().map(|affinity| (*affinity).clone()),
            subscriptions: self.subscriptions.all(),
            toolset: (*self.toolset()).clone(),
            streams: self.streams.counts(),
        }
    }
}

impl fmt::Debug for SessionRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SessionRecord")
            .field("binding", &self.binding)
            .field("home", &self.home)
            .finish_non_exhaustive()
    }
}
