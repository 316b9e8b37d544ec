//! One client's conversation with one namespace.
//!
//! ```text
//!   initialize ──▶ New ── notifications/initialized ──▶ Ready
//!    GET /sse       │                                     │
//!                   └───── DELETE, expiry, eviction, ─────┴──▶ Closed
//!                          the end of an /sse stream
//! ```
//!
//! A session belongs to one namespace and one principal; for everyone else it does not exist (Q-07). Calls made in it
//! outlive the request that brought them: they end with their answer, by `notifications/cancelled`, or with the session.
//!
//! Closing is one step for everything a session has: its calls are cancelled, its streams end and forget their events,
//! the questions it has open fail, and nothing is announced to it any more. A session with a call or with a stream
//! somebody reads is in use, however long nothing is heard of its client.
//!
//! A session is live in one process. What outlives the process is its [`SessionRecord`]: the table writes it when the
//! session begins, a [`SessionPatch`] changes it, and a process that takes the session up makes itself its home. Calls,
//! readers and open questions end with the process.
//!
//! What a client can make a session hold is weighed ([`Session::weight`]), so that the table can bound it in bytes.

use std::any::Any;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};
use tooldock_workers::names::NamespaceName;
use tooldock_workers::worker::LogLevel;

use crate::interaction::{AnswerFate, Interaction, SessionInteractions};
use crate::jsonrpc::Response;
use crate::protocol::ProtocolVersion;
use crate::replicas::ReplicaId;
use crate::seal::NoRandomness;

mod affinity;
pub mod client;
pub mod config;
pub(crate) mod in_flight;
mod last_use;
pub mod patch;
mod readers;
pub mod record;
pub mod store;
pub(crate) mod subscriptions;
pub mod table;
pub mod toolset;
mod unclaimed;
mod weight;

pub use crate::seal::{SessionId, SessionKey};
use crate::stream::OwnedStreams;
pub use affinity::{Affinity, UPSTREAM_ID_MAX};
pub use client::ClientFacts;
pub(crate) use in_flight::{CancelNotice, InFlight};
use last_use::LastUse;
pub use patch::{PatchRefused, SessionPatch};
use readers::Released;
pub use record::{Home, SessionRecord};
use subscriptions::Subscriptions;
pub use table::SessionTable;
pub use toolset::Toolset;
pub(crate) use unclaimed::EndSession;
pub use unclaimed::Unclaimed;

/// Where a session is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum SessionState {
    /// Initialized by us, not yet confirmed by the client.
    New = 0,
    /// In use.
    Ready = 1,
    /// Over; nothing brings it back.
    Closed = 2,
}

/// How the client of a session talks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SessionTransport {
    /// One endpoint for everything, streams that can be resumed.
    Streamable,
    /// `GET /sse` and `POST /messages` (2024-11-05). The session ends with its stream.
    Sse,
}

/// What a session is bound to, fixed when it is opened.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Binding {
    /// The namespace it talks to.
    pub namespace: NamespaceName,
    /// Whose token opened it.
    pub principal: Option<Arc<str>>,
    /// The version it is opened with. One over HTTP+SSE negotiates later: [`Session::version`] is what holds.
    pub version: ProtocolVersion,
    /// How its client talks.
    pub transport: SessionTransport,
}

impl SessionKey {
    /// A new id for a session.
    ///
    /// # Errors
    ///
    /// [`NoRandomness`] when the operating system's source fails.
    pub fn mint(
        &self,
        replica: ReplicaId,
        binding: &Binding,
        now: SystemTime,
    ) -> Result<SessionId, NoRandomness> {
        let principal = binding.principal.as_deref();
        self.seal_id(
            replica.0,
            &binding.namespace,
            principal,
            binding.version,
            now,
        )
    }
}

/// A live session, shared by the table and the requests in it.
pub struct Session {
    id: SessionId,
    binding: Binding,
    /// Stands for the id in logs: an id is a credential.
    tag: Arc<str>,
    state: AtomicU8,
    became_ready: Notify,
    last_use: LastUse,
    in_flight: InFlight,
    negotiated: OnceLock<ProtocolVersion>,
    client: OnceLock<Box<ClientFacts>>,
    log_level: AtomicU8,
    subscriptions: Subscriptions,
    streams: OwnedStreams,
    questions: SessionInteractions,
    /// Its place in the audience, from its first general stream on; dropping the place gives it back.
    seat: Mutex<Option<Seat>>,
    /// The backend and the server's session to which the session's requests are passed on; `None` in client mode.
    affinity: Mutex<Option<Arc<Affinity>>>,
    /// What it turned on and off, where its namespace is an aggregate.
    toolset: Mutex<Arc<Toolset>>,
    /// What each server keeps for it, by namespace: that of its own namespace, or those behind an aggregate. They end with
    /// the session.
    upstream_bindings: Mutex<Vec<(NamespaceName, UpstreamPart)>>,
    /// The table has set it aside because of its streams and wants to hear when the last reader leaves.
    set_aside: AtomicBool,
    released: OnceLock<Arc<Released>>,
    /// The weight the table has on its books.
    booked: AtomicUsize,
}

/// What one server keeps for a session. Whoever speaks with the server knows what it is.
type UpstreamPart = Arc<dyn Any + Send + Sync>;

/// A place among those who hear of a namespace's changes. Whoever gives places out knows what they are; dropping one gives
/// it back.
pub(crate) type Seat = Box<dyn Any + Send + Sync>;

/// What stands for a session in logs: part of a digest of its id, which is as good as a credential.
pub fn tag(id: &str) -> String {
    hex::encode(&Sha256::digest(id.as_bytes())[..8])
}

impl Session {
    /// A new session.
    pub fn new(id: SessionId, binding: Binding, now: Instant) -> Self {
        Self {
            tag: tag(id.as_str()).into(),
            id,
            binding,
            state: AtomicU8::new(SessionState::New as u8),
            became_ready: Notify::new(),
            last_use: LastUse::new(now),
            in_flight: InFlight::default(),
            negotiated: OnceLock::new(),
            client: OnceLock::new(),
            log_level: AtomicU8::new(LogLevel::Info as u8),
            subscriptions: Subscriptions::default(),
            streams: OwnedStreams::default(),
            questions: SessionInteractions::default(),
            seat: Mutex::default(),
            affinity: Mutex::default(),
            toolset: Mutex::default(),
            upstream_bindings: Mutex::default(),
            set_aside: AtomicBool::new(false),
            released: OnceLock::new(),
            booked: AtomicUsize::new(0),
        }
    }

    /// Its id.
    pub fn id(&self) -> &SessionId {
        &self.id
    }

    /// What it is bound to.
    pub fn binding(&self) -> &Binding {
        &self.binding
    }

    /// The version in force: the one that was negotiated in the session, else the one it was opened with.
    pub fn version(&self) -> ProtocolVersion {
        self.negotiated
            .get()
            .copied()
            .unwrap_or(self.binding.version)
    }

    /// Whether the version was settled in the open session.
    pub(crate) fn is_negotiated(&self) -> bool {
        self.negotiated.get().is_some()
    }

    /// What the client said about itself. Before it has, and for ever if it does not: nothing.
    pub fn client(&self) -> &ClientFacts {
        match self.client.get() {
            Some(facts) => facts,
            None => ClientFacts::none(),
        }
    }

    /// The least severe log messages the client wants.
    pub fn log_level(&self) -> LogLevel {
        let level = usize::from(self.log_level.load(Ordering::Relaxed));
        LogLevel::ALL.get(level).copied().unwrap_or(LogLevel::Info)
    }

    /// A short digest of the id, for logs.
    pub fn tag(&self) -> &Arc<str> {
        &self.tag
    }

    /// Where it is in its life.
    pub fn state(&self) -> SessionState {
        match self.state.load(Ordering::Acquire) {
            0 => SessionState::New,
            1 => SessionState::Ready,
            _ => SessionState::Closed,
        }
    }

    /// Whether the session is this namespace's and this principal's.
    pub fn belongs_to(&self, namespace: &NamespaceName, principal: Option<&str>) -> bool {
        self.binding.namespace == *namespace && self.binding.principal.as_deref() == principal
    }

    /// Waits until the session is confirmed, at most so long: a request may overtake the confirmation on another
    /// connection (K-15). Answers whether it is.
    pub async fn confirmed_within(&self, patience: Duration) -> bool {
        if self.state() != SessionState::New {
            return self.state() == SessionState::Ready;
        }
        // Registered before the state is read again, so that a confirmation in between is not missed.
        let changed = self.became_ready.notified();
        tokio::pin!(changed);
        changed.as_mut().enable();
        if self.state() == SessionState::New {
            let _ = timeout(patience, changed).await;
        }
        self.state() == SessionState::Ready
    }

    /// Ends the session and everything in it.
    pub fn close(&self) {
        self.state
            .store(SessionState::Closed as u8, Ordering::SeqCst);
        self.became_ready.notify_waiters();
        self.in_flight.cancel_all();
        self.questions.close();
        self.streams.close();
        self.subscriptions.clear();
        self.take_seat(None);
        let upstream_bindings = {
            let own = self.upstream_bindings.lock();
            std::mem::take(&mut *own.unwrap_or_else(PoisonError::into_inner))
        };
        drop(upstream_bindings);
    }

    /// What the server of a namespace keeps for it, made when there is none. In a closed session it is not kept.
    pub(crate) fn upstream_binding<T: Any + Send + Sync>(
        &self,
        namespace: &NamespaceName,
        make: impl FnOnce() -> Arc<T>,
    ) -> Arc<T> {
        let mut own = self
            .upstream_bindings
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let at = own.iter().position(|(name, _)| name == namespace);
        let known = at.and_then(|at| Arc::clone(&own[at].1).downcast::<T>().ok());
        let upstream_binding = known.unwrap_or_else(make);
        if self.state() != SessionState::Closed {
            let part = Arc::clone(&upstream_binding) as UpstreamPart;
            match at {
                Some(at) => own[at].1 = part,
                None => own.push((namespace.clone(), part)),
            }
        }
        upstream_binding
    }

    /// What it turned on and off, where its namespace is an aggregate.
    pub(crate) fn toolset(&self) -> Arc<Toolset> {
        Arc::clone(&self.toolset.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn set_toolset(&self, toolset: Toolset) {
        let mut own = self.toolset.lock().unwrap_or_else(PoisonError::into_inner);
        *own = Arc::new(toolset);
    }

    /// The session was used.
    pub fn touch(&self, now: Instant) {
        self.last_use.touch(now);
    }

    /// When the session was last used; a session with a call in flight or a stream that is read is in use.
    pub fn used_at(&self, now: Instant) -> Instant {
        if self.is_busy() {
            now
        } else {
            self.last_use.at()
        }
    }

    /// Whether it was used since it was opened, or is in use.
    fn is_used(&self) -> bool {
        self.last_use.is_touched() || self.is_busy()
    }

    fn is_busy(&self) -> bool {
        !self.in_flight.is_empty() || self.streams.any_read()
    }

    /// Whether it was not used for so long.
    pub(crate) fn idle_for(&self, patience: Duration, now: Instant) -> bool {
        // The time alone is enough for nearly all who ask, and costs no lock.
        now.saturating_duration_since(self.last_use.at()) >= patience
            && now.saturating_duration_since(self.used_at(now)) >= patience
    }

    /// The calls running in it.
    pub(crate) fn in_flight(&self) -> &InFlight {
        &self.in_flight
    }

    /// Its streams.
    pub(crate) fn streams(&self) -> &OwnedStreams {
        &self.streams
    }

    /// The resources it wants to hear of.
    pub(crate) fn subscriptions(&self) -> &Subscriptions {
        &self.subscriptions
    }

    /// Notes a question to the client, and gives the request that asks it. `None`: nobody wants an answer any more, or the
    /// question has failed, because the session ended or a thousand questions are open.
    pub(crate) fn ask(&self, question: &Arc<Interaction>) -> Option<Vec<u8>> {
        self.questions.ask(question)
    }

    /// Takes the client's answer to a question; `id` is raw JSON.
    pub(crate) fn answer(&self, id: &str, answer: Response) -> AnswerFate {
        self.questions.answer(id, answer)
    }

    /// Whether it has a place in the audience.
    pub(crate) fn is_seated(&self) -> bool {
        self.seat().is_some()
    }

    /// Takes a place in the audience, or leaves it. A place taken after the end of the session is given back.
    pub(crate) fn take_seat(&self, seat: Option<Seat>) {
        let before = {
            let mut own = self.seat();
            let seat = seat.filter(|_| self.state() != SessionState::Closed);
            std::mem::replace(&mut *own, seat)
        };
        drop(before);
    }

    fn seat(&self) -> std::sync::MutexGuard<'_, Option<Seat>> {
        self.seat.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("tag", &self.tag)
            .field("binding", &self.binding)
            .field("state", &self.state())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
pub(crate) mod tests;
