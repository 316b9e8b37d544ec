//! The changes of a session that outlive a process. Nothing else changes what is recorded of a live session, and only
//! [`SessionTable::commit`](super::table::SessionTable::commit) makes them.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use serde::{Deserialize, Serialize};
use tooldock_workers::worker::LogLevel;

use super::Affinity;
use super::client::{self, ClientFacts, TooMuch};
use super::subscriptions::TooManySubscriptions;
use super::{Session, SessionState, Toolset};
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
    /// Its requests are passed on there from now on.
    Affinity(Affinity),
    /// The whole set of tools and resources that the session turned on and off in an aggregate. It replaces the set before.
    Toolset(Toolset),
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

impl Session {
    /// Remembers what the client says about itself at `initialize`. Later words change nothing.
    pub(super) fn set_client(&self, facts: ClientFacts) -> Result<(), client::TooMuch> {
        client::check(Some(&facts.capabilities), facts.info.as_deref())?;
        let _ = self.client.set(Box::new(facts));
        Ok(())
    }

    /// Makes a change. Answers whether anything is different now.
    pub(super) fn apply(&self, patch: &SessionPatch) -> Result<bool, PatchRefused> {
        match patch {
            SessionPatch::Confirm => Ok(self.confirm()),
            SessionPatch::Initialize { version, client } => {
                client::check(Some(&client.capabilities), client.info.as_deref())?;
                if self.negotiated.set(*version).is_err() {
                    return Err(PatchRefused::Initialized);
                }
                self.set_client(client.clone())?;
                Ok(true)
            }
            SessionPatch::LogLevel(level) => {
                let before = self.log_level.swap(*level as u8, Ordering::Relaxed);
                Ok(before != *level as u8)
            }
            SessionPatch::Subscribe(uri) => Ok(self.subscriptions.add(uri)?),
            SessionPatch::Unsubscribe(uri) => Ok(self.subscriptions.remove(uri)),
            SessionPatch::Affinity(affinity) => {
                self.set_affinity(affinity.clone());
                Ok(true)
            }
            SessionPatch::Toolset(toolset) => {
                self.set_toolset(toolset.clone());
                Ok(true)
            }
            // The number was taken when the stream was made.
            SessionPatch::OpenStream(_) => Ok(true),
        }
    }

    /// Makes a change of a session that is in no table.
    #[cfg(test)]
    pub(crate) fn change(&self, patch: SessionPatch) -> bool {
        self.apply(&patch).expect("within the bounds")
    }

    /// The client confirmed the handshake. Says nothing to a closed session.
    pub(super) fn confirm(&self) -> bool {
        let (new, ready) = (SessionState::New as u8, SessionState::Ready as u8);
        let (acquired, kept) = (Ordering::AcqRel, Ordering::Acquire);
        let confirmed = self.state.compare_exchange(new, ready, acquired, kept);
        self.became_ready.notify_waiters();
        confirmed.is_ok()
    }
}
