//! The relay: tools for processes in containers, over a Unix socket, with an API key in every frame (REL-01…20).
//!
//! ```text
//!   socket ─▶ half frames end ─▶ lines ─▶ frame ─┬─ a call ─▶ whose key? ─▶ Caller ─▶ Engine::run ─▶ reply ─┐
//!                                                ├─ the tools ─▶ whose key? ─▶ View ────────────▶ reply ─┼─▶ outbox ─▶ socket
//!                                                └─ cancelled: ends its call                             │
//!                                                       progress of calls ───────────────────────────────┘
//! ```
//!
//! A frame is one JSON-RPC message on one line, with methods of the relay's own: `oubliette_tools` and `oubliette_call_tool`.
//! There is no session. Each frame contains its key, which is looked up when the frame is read, so that a revoked key is
//! refused at the next frame on any connection (SEC-18).
//!
//! | file | holds |
//! |---|---|
//! | `relay/frame.rs` | parses lines into frames, or refuses them; pure |
//! | `relay/reply.rs` | frames for the client: results, errors and their codes; pure |
//! | `relay/connection.rs` | one connection, its running requests and its end |
//! | `relay/call.rs` | a frame's key, its caller, and the call |
//! | `relay/tokens.rs` | tools for keys, in every relay |
//! | `relay/room.rs` | the connections, and the choice of the one that is ended for another |
//! | `relay/memory.rs` | memory for long frames, and the choice of the one that loses it |
//! | `relay/whole_lines.rs` | a reader that ends at incomplete frames, and reserves memory for long ones |
//! | `relay/warnings.rs` | bounds the refusals that are logged as warnings |
//!
//! Limits: connections, in total and per key; the size of a frame; the memory of all long frames; the time for an incomplete
//! frame; concurrent calls; bytes that wait for the client; and the time that the client has to read one line.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::time::Instant;
use tooldock_base::failures::{FailureLimits, FailureOutcome, FailureTable};
use tooldock_base::names::NamespaceName;
use tooldock_base::trace::TraceSink;
use tooldock_credentials::keys::{ApiKey, KeyState, KeyStore, KeyTables};
use tooldock_sessions::profile::Profile;

use crate::upstream::system::KeyTools;

mod call;
mod connection;
mod frame;
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
pub use room::Guest;

/// State that all connections of a relay share.
pub struct Relay {
    namespace: NamespaceName,
    profile: Arc<Profile>,
    keys: KeyTables,
    tokens: KeyTools,
    frames: FrameLimits,
    room: Arc<Room>,
    warnings: Warnings,
    /// Counts of wrong keys by the user of the client's process; `None` if wrong keys are not delayed.
    failures: Option<FailureTable>,
    started: Instant,
    request_ids: Arc<dyn Fn() -> Arc<str> + Send + Sync>,
    /// Receiver of finished requests for the export; `None` without one.
    traces: Option<Arc<dyn TraceSink>>,
}

/// Limits of frames' sizes, in bytes.
#[derive(Debug, Clone, Copy)]
pub struct FrameLimits {
    /// Maximum size of one frame, in bytes.
    pub each: usize,
    /// Maximum size of all long frames in memory, in bytes. Clients with and clients without a valid key have separate shares.
    pub total: usize,
}

impl Relay {
    /// The relay of a namespace, whose clients have keys of this store. `request_ids` makes an id for each frame, for the log
    /// and the audit log.
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

    /// Exports the traces of frames.
    #[must_use]
    pub fn traced(mut self, traces: Option<Arc<dyn TraceSink>>) -> Self {
        self.traces = traces;
        self
    }

    /// Delays the answers to wrong keys if a user sends many.
    #[must_use]
    pub fn slowing_failures(mut self, limits: Option<FailureLimits>) -> Self {
        self.failures = limits.map(FailureTable::new);
        self
    }

    /// Counts a wrong key of a user. Returns the remaining delay if the user's answers are delayed at present.
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

    /// Seats a newly connected client of this user. `None` if too many connections are leaving.
    pub fn enter(&self, uid: u32) -> Option<Guest> {
        let guest = self.room.enter(uid);
        if guest.is_none() {
            self.note_refused(format_args!(
                "a connection on the relay's socket was turned away: more than {CONNECTIONS_MAX} are open uid={uid}"
            ));
        }
        guest
    }

    /// Waits while so many connections are closing that the next client would be refused.
    pub async fn way_out(&self) {
        self.room.way_out().await;
    }

    /// The number of connected clients.
    pub fn connections(&self) -> usize {
        self.room.taken()
    }

    /// Logs the reason why a client was refused.
    fn note_refused(&self, what: fmt::Arguments<'_>) {
        match self.warnings.admit() {
            true => tracing::warn!("{what}"),
            false => tracing::debug!("{what}"),
        }
    }
}

/// Checks keys that connections have shown: a key is valid while the current table contains it unchanged, it has not expired,
/// and it opens the relay's namespace.
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
