//! The changes of a session that outlive a process. Nothing else changes what is recorded of a live session, and only
//! [`SessionTable::commit`](super::table::SessionTable::commit) makes them.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tooldock_workers::worker::LogLevel;

use super::client::{ClientFacts, TooMuch};
use super::subscriptions::TooManySubscriptions;
use crate::protocol::ProtocolVersion;

/// One change.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SessionPatch {
    /// The client confirmed the handshake. Says nothing to a closed session.
    Confirm,
    /// `initialize` in a session that is open already, as HTTP+SSE has it: the version is settled, the client says what
    /// it is. Once in a session.
    Initialize {
        /// The version in force from now on.
        version: ProtocolVersion,
        /// What the client says about itself.
        client: ClientFacts,
    },
    /// The least severe log messages the client wants.
    LogLevel(LogLevel),
    /// The client wants to hear of a resource; again is fine.
    Subscribe(Arc<str>),
    /// The client does not want to hear of a resource any more.
    Unsubscribe(Arc<str>),
    /// A stream of that number was opened.
    OpenStream(u32),
}

/// Why a change was not made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PatchRefused {
    /// The client said before what it is.
    #[error("the session is initialized already")]
    Initialized,
    /// The client says too much about itself.
    #[error(transparent)]
    TooMuch(#[from] TooMuch),
    /// The session subscribes to as much as it may.
    #[error(transparent)]
    TooManySubscriptions(#[from] TooManySubscriptions),
}
