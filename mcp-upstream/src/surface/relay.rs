//! The relay: tools for processes in containers, over a Unix socket, with an API key in every frame (REL-01…20).
//!
//! ```text
//!   socket ─▶ half frames end ─▶ lines ─▶ frame ─┬─ a call ─▶ whose key? ─▶ Caller ─▶ Engine::run ─▶ reply ─┐
//!                                                ├─ the tools ─▶ whose key? ─▶ View ────────────▶ reply ─┼─▶ outbox ─▶ socket
//!                                                └─ cancelled: its call ends                             │
//!                                                       progress of calls ───────────────────────────────┘
//! ```
//!
//! A frame is one JSON-RPC message on one line, and its methods are the relay's own: `oubliette_tools` and
//! `oubliette_call_tool`. There is no session. Each frame brings its key, which is looked up when the frame is read, so a
//! key that was revoked counts no more with the next frame on any connection (SEC-18).
//!
//! | file | holds |
//! |---|---|
//! | `relay/frame.rs` | what a line is, and why it is refused; pure |
//! | `relay/reply.rs` | frames for the client: results, errors and their codes; pure |
//! | `relay/connection.rs` | one connection: what runs for it and how it ends |
//! | `relay/call.rs` | a frame's key, its caller, and the call |
//! | `relay/tokens.rs` | the tools for keys, which every relay has |
//! | `relay/room.rs` | who is connected, and how much their frames may hold in memory |
//! | `relay/whole_lines.rs` | a reader that ends where half a frame stays half, and waits for memory for a long one |
//! | `relay/warnings.rs` | how many refusals the log has as warnings |
//!
//! Bounds: connections, in all and of one key, the size of a frame, the memory of long frames together, the time for half
//! a frame, calls at once, bytes on their way to the client, and the time in which the client has to take one line.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tooldock_workers::failures::{FailureLimits, FailureOutcome, FailureTable};
use tooldock_workers::keys::{KeyStore, KeyTables};
use tooldock_workers::names::NamespaceName;

use crate::profile::Profile;
use crate::upstream::system::KeyTools;

mod call;
mod connection;
mod frame;
mod reply;
mod room;
mod tokens;
mod warnings;
mod whole_lines;

use room::{CONNECTIONS_MAX, Room};
use warnings::Warnings;

pub(crate) use connection::serve;
pub use room::Guest;

/// What every connection of a relay shares.
pub struct Relay {
    namespace: NamespaceName,
    profile: Arc<Profile>,
    keys: KeyTables,
    tokens: KeyTools,
    frames: FrameLimits,
    room: Arc<Room>,
    warnings: Warnings,
    /// Wrong keys by the user of the client's process; None where they are not slowed.
    failures: Option<FailureTable>,
    started: Instant,
    request_ids: Arc<dyn Fn() -> Arc<str> + Send + Sync>,
}

/// How many bytes frames may have.
#[derive(Debug, Clone, Copy)]
pub struct FrameLimits {
    /// One of them.
    pub each: usize,
    /// All long ones that are held, those of clients with and without valid keys apart.
    pub total: usize,
}

impl Relay {
    /// The relay of a namespace, whose callers have these keys. `request_ids` makes an id for each frame, by which the log
    /// and the audit log tell of it.
    pub fn new(
        namespace: NamespaceName,
        keys: Arc<KeyStore>,
        frames: FrameLimits,
        request_ids: Arc<dyn Fn() -> Arc<str> + Send + Sync>,
    ) -> Self {
        Self {
            profile: Arc::new(Profile::relay(namespace.clone())),
            namespace,
            keys: keys.tables(),
            tokens: KeyTools::of_relay(keys),
            room: Arc::new(Room::new(frames.total, frames.each)),
            frames,
            warnings: Warnings::new(),
            failures: None,
            started: Instant::now(),
            request_ids,
        }
    }

    /// Slows wrong keys where one user sends many.
    #[must_use]
    pub fn slowing_failures(mut self, limits: Option<FailureLimits>) -> Self {
        self.failures = limits.map(FailureTable::new);
        self
    }

    /// Counts a wrong key of a user. Gives the time that is left of a delay, where the key came within one.
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

    /// A place for a client that has connected. None where there is none left.
    pub fn enter(&self) -> Option<Guest> {
        let guest = self.room.enter();
        if guest.is_none() {
            self.note_refused(format_args!(
                "a connection on the relay's socket was turned away: {CONNECTIONS_MAX} are open"
            ));
        }
        guest
    }

    /// Clients that are connected.
    pub fn connections(&self) -> usize {
        self.room.taken()
    }

    /// Logs why a client was refused.
    fn note_refused(&self, what: fmt::Arguments<'_>) {
        match self.warnings.admit() {
            true => tracing::warn!("{what}"),
            false => tracing::debug!("{what}"),
        }
    }
}

impl fmt::Debug for Relay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Relay")
            .field("namespace", &self.namespace)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
