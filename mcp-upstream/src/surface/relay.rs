//! The relay: tools for processes in containers, over a Unix socket, with an API key in every frame (REL-01…20).
//!
//! ```text
//!   socket ─▶ whole lines ─▶ frame ─┬─ a call ────▶ check of the key ─▶ Caller ─▶ Engine::run ─▶ reply ─┐
//!                                   ├─ list tools ▶ check of the key ─▶ View ───────────────────▶ reply ─┼─▶ outbox ─▶ socket
//!                                   └─ cancelled: ends its call                                         │
//!                                          progress of calls ──────────────────────────────────────────┘
//! ```
//!
//! A frame is one JSON-RPC message on one line. The relay defines its own methods: `oubliette_tools` and
//! `oubliette_call_tool`. There is no session. Each frame contains its key, which is checked when the frame is read, so that a
//! revoked key is refused at the next frame on any connection (SEC-18).
//!
//! | file | contents |
//! |---|---|
//! | `relay/frame.rs` | parses lines into frames, or refuses them; pure functions |
//! | `relay/reply.rs` | frames for the client: results, errors and their codes; pure functions |
//! | `relay/connection.rs` | one connection, its running requests and its end |
//! | `relay/call.rs` | a frame's key, its caller, and the call |
//! | `relay/tokens.rs` | the tools that manage API keys, which every relay offers |
//! | `relay/room.rs` | the connections; if there are too many, the choice of the connection that is ended |
//! | `relay/memory.rs` | memory for long frames; if there is too little, the choice of the frame that is ended |
//! | `relay/whole_lines.rs` | a reader that stops at incomplete frames, and reserves memory for long ones |
//! | `relay/warnings.rs` | limits the number of refusals that are logged as warnings |
//!
//! Limits apply to: connections, in total and per key; the size of a frame; the memory of all long frames; the time for an
//! incomplete frame; concurrent calls; bytes that wait for the client; and the time that the client has to read one line.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::time::Instant;
use tooldock_base::failures::{FailureLimits, FailureOutcome, FailureTable};
use tooldock_base::names::NamespaceName;
use tooldock_base::trace::TraceSink;
use tooldock_credentials::keys::{ApiKey, KeyState, KeyStore, KeyTables};
use tooldock_engine::upstream::system::KeyTools;
use tooldock_sessions::profile::Profile;

mod call;
mod connection;
mod frame;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
mod memory;
mod reply;
mod room;
mod tokens;
mod warnings;
mod whole_lines;

use memory::MemoryStore;
use room::{CONNECTIONS_MAX, Counts, Room};
use warnings::Warnings;

pub(crate) use connection::serve;
pub use room::RelayRegistration;

/// State that all connections of a relay share.
pub struct Relay {
    namespace: NamespaceName,
    profile: Arc<Profile>,
    keys: KeyTables,
    tokens: KeyTools,
    frames: FrameLimits,
    room: Arc<Room>,
    warnings: Warnings,
    /// Numbers of recent wrong keys, by the operating-system user of the client; `None` if wrong keys are not limited.
    failures: Option<FailureTable>,
    started: Instant,
    request_ids: Arc<dyn Fn() -> Arc<str> + Send + Sync>,
    /// Receiver of finished requests for the export of traces; `None` if traces are not exported.
    traces: Option<Arc<dyn TraceSink>>,
}

/// Limits on the sizes of frames, in bytes.
#[derive(Debug, Clone, Copy)]
pub struct FrameLimits {
    /// Maximum size of one frame, in bytes.
    pub each: usize,
    /// Maximum size of all long frames in memory together, in bytes. It applies separately to clients with and without a valid
    /// key.
    pub total: usize,
}

impl Relay {
    /// Creates the relay of a namespace, for clients with keys of this store. `request_ids` returns a new id for each frame, for
    /// the log and the audit log.
    pub fn new(
        namespace: NamespaceName,
        keys: Arc<KeyStore>,
        frames: FrameLimits,
        request_ids: Arc<dyn Fn() -> Arc<str> + Send + Sync>,
    ) -> Self {
        let counts = counts(&namespace, keys.tables());
        let memory = MemoryStore::new(frames.total, frames.each, Arc::clone(&counts));
        Self {
            profile: Arc::new(Profile::relay(namespace.clone())),
            namespace,
            keys: keys.tables(),
            tokens: KeyTools::of_relay(keys),
            room: Arc::new(Room::new(memory, counts)),
            frames,
            warnings: Warnings::new(),
            failures: None,
            started: Instant::now(),
            request_ids,
            traces: None,
        }
    }

    /// Sets the receiver of finished requests, so that traces of frames are exported.
    #[must_use]
    pub fn traced(mut self, traces: Option<Arc<dyn TraceSink>>) -> Self {
        self.traces = traces;
        self
    }

    /// Limits wrong keys: a user with too many wrong keys gets `rate_limited` for further ones.
    #[must_use]
    pub fn slowing_failures(mut self, limits: Option<FailureLimits>) -> Self {
        self.failures = limits.map(FailureTable::new);
        self
    }

    /// Counts a wrong key of an operating-system user. Returns the time until which the user's wrong keys are answered with
    /// `rate_limited`; `None` if they are not limited at present.
    fn key_failed(&self, uid: u32) -> Option<Duration> {
        let outcome = self.failures.as_ref()?.note(uid, self.started.elapsed());
        match outcome {
            FailureOutcome::Answered => None,
            FailureOutcome::SpellBegan => {
                tracing::warn!(
                    uid,
                    "wrong API keys come often from this user on the relay's socket: from now on they are slowed; right ones are not"
                );
                None
            }
            FailureOutcome::Delayed(left) => Some(left),
        }
    }

    /// Registers a newly connected client of this operating-system user. `None` if too many connections are being ended.
    pub fn enter(&self, uid: u32) -> Option<RelayRegistration> {
        let guest = self.room.enter(uid);
        if guest.is_none() {
            self.note_refused(format_args!(
                "a connection on the relay's socket was turned away: more than {CONNECTIONS_MAX} are open uid={uid}"
            ));
        }
        guest
    }

    /// Waits while so many connections are being ended that the next client would be refused.
    pub async fn room_for_next(&self) {
        self.room.room_for_next().await;
    }

    /// Returns the number of connected clients.
    pub fn connections(&self) -> usize {
        self.room.taken()
    }

    /// Logs the reason for a refusal, as a warning or, if there were many, at debug level.
    fn note_refused(&self, what: fmt::Arguments<'_>) {
        match self.warnings.admit() {
            true => tracing::warn!("{what}"),
            false => tracing::debug!("{what}"),
        }
    }
}

/// Returns the function that checks the keys of connections. A key is valid while the current table of API keys contains
/// it unchanged, it has not expired, and it gives access to the relay's namespace.
fn counts(namespace: &NamespaceName, keys: KeyTables) -> Counts {
    let namespace = namespace.clone();
    Arc::new(move |key: &Arc<ApiKey>| {
        let table = keys.load();
        let record = key.record();
        let is_in_force = table.get(record.id).is_some_and(|it| Arc::ptr_eq(it, key));
        is_in_force
            && record.state(SystemTime::now()) == KeyState::Active
            && key.namespaces().opens(&namespace)
    })
}

impl fmt::Debug for Relay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Relay")
            .field("namespace", &self.namespace)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
