//! Sessions: a session is the conversation of one client with one namespace.
//!
//! ```text
//!   initialize ──▶ New ── notifications/initialized ──▶ Ready
//!    GET /sse       │                                     │
//!                   └───── DELETE, expiry, eviction, ─────┴──▶ Closed
//!                          the end of an /sse stream
//! ```
//!
//! A session belongs to one namespace and one principal; requests of others get the response for an unknown session (Q-07).
//! Calls made in a session outlive their requests: they end with their response, by `notifications/cancelled`, or with the
//! session.
//!
//! Closing a session releases all that it owns in one step: its calls are cancelled, its streams end and drop their events, its
//! open questions fail, and it receives no further changes. A session with a running call or a stream with a reader is in use,
//! even if its client sends nothing.
//!
//! A session is live in one process. Its [`SessionRecord`] outlives the process: the table writes the record when the session
//! begins, and a [`SessionPatch`] changes it. A process that adopts the session writes itself into the record as the session's
//! home. Calls, readers and open questions end with the process.
//!
//! The memory that clients can make a session use is computed ([`Session::weight`]), so that the table can bound it in bytes.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};
use tooldock_base::names::NamespaceName;
use tooldock_process::worker::LogLevel;
use tooldock_protocol::jsonrpc::Response;
use tooldock_protocol::seal::NoRandomness;
use tooldock_protocol::version::ProtocolVersion;

use crate::interaction::{AnswerOutcome, Interaction, SessionInteractions};
use crate::replicas::ReplicaId;

mod affinity;
pub mod client;
pub mod config;
pub mod in_flight;
mod last_use;
pub mod patch;
mod per_session;
mod readers;
pub mod record;
mod registration;
pub mod store;
pub mod subscriptions;
pub mod table;
pub mod toolset;
mod unclaimed;
mod weight;

use crate::stream::OwnedStreams;
pub use affinity::{Affinity, UPSTREAM_ID_MAX};
pub use client::ClientFacts;
pub use in_flight::{CancelNotice, InFlightCalls};
use last_use::LastUse;
pub use patch::{PatchRefused, SessionPatch};
pub use per_session::PerSession;
use per_session::SessionGuard;
use readers::ReleasedSessions;
pub use record::{Home, SessionRecord};
pub(crate) use registration::{RegisteredSessions, Registration};
use subscriptions::Subscriptions;
pub use table::SessionTable;
pub use tooldock_protocol::seal::{SessionId, SessionKey};
pub use toolset::Toolset;
pub use unclaimed::EndSession;
pub use unclaimed::UnclaimedSession;

/// The state of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum SessionState {
    /// The gateway has answered `initialize`; the client has not confirmed the handshake yet.
    New = 0,
    /// The client has confirmed the handshake.
    Ready = 1,
    /// The session has ended.
    Closed = 2,
}

/// The transport of a session's client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SessionTransport {
    /// Streamable HTTP: a single endpoint, and streams that can be resumed.
    Streamable,
    /// HTTP+SSE (2024-11-05): `GET /sse` and `POST /messages`. The session ends with its stream.
    Sse,
}

/// The properties of a session that are fixed when it is opened.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Binding {
    /// The namespace of the session.
    pub namespace: NamespaceName,
    /// The principal whose token opened the session; `None` without authentication.
    pub principal: Option<Arc<str>>,
    /// The protocol version with which the session was opened. Over HTTP+SSE the version is negotiated later;
    /// [`Session::version`] returns the version in force.
    pub version: ProtocolVersion,
    /// The transport of the client.
    pub transport: SessionTransport,
}

impl Binding {
    /// Generates an id for a new session with this binding, which is opened at `replica`.
    ///
    /// # Errors
    ///
    /// [`NoRandomness`], if the operating system's source of random bytes fails.
    pub fn mint_id(
        &self,
        key: &SessionKey,
        replica: ReplicaId,
        now: SystemTime,
    ) -> Result<SessionId, NoRandomness> {
        let principal = self.principal.as_deref();
        key.seal_id(replica.0, &self.namespace, principal, self.version, now)
    }
}

/// A live session, shared by the session table and the requests of the session.
pub struct Session {
    id: SessionId,
    binding: Binding,
    /// Digest that identifies the session in logs, since its id is a credential.
    tag: Arc<str>,
    /// Number of processes that had the session before this one ([`Home`]).
    epoch: u32,
    state: AtomicU8,
    became_ready: Notify,
    last_use: LastUse,
    in_flight: InFlightCalls,
    negotiated: OnceLock<ProtocolVersion>,
    client: OnceLock<Box<ClientFacts>>,
    log_level: AtomicU8,
    subscriptions: Subscriptions,
    streams: OwnedStreams,
    questions: SessionInteractions,
    /// Registration for the changes of the session's namespace (`broadcast::Audience`), made when the client first opens a
    /// general stream (by `GET`, not for a request). Dropping it ends the registration.
    registration: Mutex<Option<Registration>>,
    /// The backend, and the session at that backend, to which the session's requests are passed on; `None` in client mode.
    affinity: Mutex<Option<Arc<Affinity>>>,
    /// The tools and resources that the session activated and deactivated, if its namespace is an aggregate.
    toolset: Mutex<Arc<Toolset>>,
    /// Guards of the session's values in the tables of other parts of the gateway ([`PerSession`]), such as its state at MCP
    /// servers. Dropped when the session is closed.
    guards: Mutex<Vec<Box<dyn SessionGuard>>>,
    /// True if the table has skipped the session in its search for idle sessions, because it had an open stream. Set to false
    /// when the last reader disconnects.
    set_aside: AtomicBool,
    released: OnceLock<Arc<ReleasedSessions>>,
    /// The session's memory in bytes, as last recorded in the table's index.
    recorded_weight: AtomicUsize,
}

/// Returns a text that identifies a session in logs: a part of a digest of its id, since the id itself is a credential.
pub fn tag(id: &str) -> String {
    hex::encode(&Sha256::digest(id.as_bytes())[..8])
}

impl Session {
    /// Returns true if this process has adopted the session, which another process had before.
    pub fn is_adopted(&self) -> bool {
        self.epoch > 0
    }

    /// Creates a session that its client has not confirmed yet and that no other process had before (epoch 0).
    pub fn new(id: SessionId, binding: Binding, now: Instant) -> Self {
        Self {
            tag: tag(id.as_str()).into(),
            id,
            binding,
            epoch: 0,
            state: AtomicU8::new(SessionState::New as u8),
            became_ready: Notify::new(),
            last_use: LastUse::new(now),
            in_flight: InFlightCalls::default(),
            negotiated: OnceLock::new(),
            client: OnceLock::new(),
            log_level: AtomicU8::new(LogLevel::Info as u8),
            subscriptions: Subscriptions::default(),
            streams: OwnedStreams::default(),
            questions: SessionInteractions::default(),
            registration: Mutex::default(),
            affinity: Mutex::default(),
            toolset: Mutex::default(),
            guards: Mutex::default(),
            set_aside: AtomicBool::new(false),
            released: OnceLock::new(),
            recorded_weight: AtomicUsize::new(0),
        }
    }

    /// The session's id.
    pub fn id(&self) -> &SessionId {
        &self.id
    }

    /// The fixed properties of the session.
    pub fn binding(&self) -> &Binding {
        &self.binding
    }

    /// The protocol version in force: the negotiated version, or else the version with which the session was opened.
    pub fn version(&self) -> ProtocolVersion {
        self.negotiated
            .get()
            .copied()
            .unwrap_or(self.binding.version)
    }

    /// Returns true if the protocol version was negotiated after the session was opened, as over HTTP+SSE.
    pub fn is_negotiated(&self) -> bool {
        self.negotiated.get().is_some()
    }

    /// The client's description of itself; empty until the client has sent it.
    pub fn client(&self) -> &ClientFacts {
        match self.client.get() {
            Some(facts) => facts,
            None => ClientFacts::none(),
        }
    }

    /// The least severe level of log messages that the client has requested.
    pub fn log_level(&self) -> LogLevel {
        let level = usize::from(self.log_level.load(Ordering::Relaxed));
        LogLevel::ALL.get(level).copied().unwrap_or(LogLevel::Info)
    }

    /// A short digest of the id, for logs.
    pub fn tag(&self) -> &Arc<str> {
        &self.tag
    }

    /// The state of the session.
    pub fn state(&self) -> SessionState {
        match self.state.load(Ordering::Acquire) {
            0 => SessionState::New,
            1 => SessionState::Ready,
            _ => SessionState::Closed,
        }
    }

    /// Returns true if the session belongs to this namespace and this principal.
    pub fn belongs_to(&self, namespace: &NamespaceName, principal: Option<&str>) -> bool {
        self.binding.namespace == *namespace && self.binding.principal.as_deref() == principal
    }

    /// Waits until the client has confirmed the session, at most for `patience`: a request may arrive before the confirmation if
    /// it uses another connection (K-15). Returns true if the session is confirmed.
    pub async fn confirmed_within(&self, patience: Duration) -> bool {
        if self.state() != SessionState::New {
            return self.state() == SessionState::Ready;
        }
        // The waiter is registered before the state is read again, so that a confirmation in between is not missed.
        let changed = self.became_ready.notified();
        tokio::pin!(changed);
        changed.as_mut().enable();
        if self.state() == SessionState::New {
            let _ = timeout(patience, changed).await;
        }
        self.state() == SessionState::Ready
    }

    /// Ends the session with all its calls, streams and questions.
    pub fn close(&self) {
        self.state
            .store(SessionState::Closed as u8, Ordering::SeqCst);
        self.became_ready.notify_waiters();
        self.in_flight.cancel_all();
        self.questions.close();
        self.streams.close();
        self.subscriptions.clear();
        self.set_registration(None);
        let guards = {
            let own = self.guards.lock();
            std::mem::take(&mut *own.unwrap_or_else(PoisonError::into_inner))
        };
        drop(guards);
    }

    /// Hands the session over to the replica that has claimed it. Its general streams are ended, so that the client resumes
    /// them at that replica. Running calls are still answered by this process.
    pub(crate) fn hand_over(&self) {
        self.subscriptions.clear();
        self.set_registration(None);
        self.streams.end_long();
    }

    /// Holds a guard until the session is closed or dropped. If the session is closed already, the guard is dropped at once.
    fn hold(&self, guard: Box<dyn SessionGuard>) {
        let mut own = self.guards.lock().unwrap_or_else(PoisonError::into_inner);
        if self.state() == SessionState::Closed {
            drop(own);
            return drop(guard);
        }
        own.push(guard);
    }

    /// The tools and resources that the session activated and deactivated, if its namespace is an aggregate.
    pub fn toolset(&self) -> Arc<Toolset> {
        Arc::clone(&self.toolset.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn set_toolset(&self, toolset: Toolset) {
        let mut own = self.toolset.lock().unwrap_or_else(PoisonError::into_inner);
        *own = Arc::new(toolset);
    }

    /// Moves the time of the last use to `now`.
    pub fn touch(&self, now: Instant) {
        self.last_use.touch(now);
    }

    /// Returns the time of the last use: `now` for a session with a running call or a stream with a reader, which is in use.
    pub fn used_at(&self, now: Instant) -> Instant {
        if self.is_busy() {
            now
        } else {
            self.last_use.at()
        }
    }

    /// Returns true if the session was used since it was opened, or is in use now.
    fn is_used(&self) -> bool {
        self.last_use.is_touched() || self.is_busy()
    }

    fn is_busy(&self) -> bool {
        self.in_flight.keep_session() || self.streams.any_read()
    }

    /// Returns true if the session has not been used for `patience`.
    pub fn idle_for(&self, patience: Duration, now: Instant) -> bool {
        // Nearly always the stored time alone decides, and the lock of the second condition is not taken.
        now.saturating_duration_since(self.last_use.at()) >= patience
            && now.saturating_duration_since(self.used_at(now)) >= patience
    }

    /// The running calls of the session.
    pub fn in_flight(&self) -> &InFlightCalls {
        &self.in_flight
    }

    /// The streams of the session.
    pub fn streams(&self) -> &OwnedStreams {
        &self.streams
    }

    /// The resources that the session subscribes to.
    pub fn subscriptions(&self) -> &Subscriptions {
        &self.subscriptions
    }

    /// Registers a question to the client, and returns the request that asks it. Returns `None` if an answer is no longer
    /// wanted, or if the question failed because the session has ended or has a thousand open questions.
    pub fn ask(&self, question: &Arc<Interaction>) -> Option<Vec<u8>> {
        self.questions.ask(question)
    }

    /// Passes the client's answer to a question. `id` is the question's id as raw JSON.
    pub fn answer(&self, id: &str, answer: Response) -> AnswerOutcome {
        self.questions.answer(id, answer)
    }

    /// Returns true if the session is registered for the changes of its namespace.
    pub(crate) fn is_registered(&self) -> bool {
        self.registration().is_some()
    }

    /// Registers the session for the changes of its namespace, or with `None` ends its registration. A registration for a closed
    /// session is dropped.
    pub(crate) fn set_registration(&self, registration: Option<Registration>) {
        let before = {
            let mut own = self.registration();
            let registration = registration.filter(|_| self.state() != SessionState::Closed);
            std::mem::replace(&mut *own, registration)
        };
        drop(before);
    }

    fn registration(&self) -> std::sync::MutexGuard<'_, Option<Registration>> {
        self.registration
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
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
