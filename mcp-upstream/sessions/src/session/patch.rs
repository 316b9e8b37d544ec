//! Changes of a session that are recorded outside the process. The recorded state of a live session is changed by patches only,
//! and only [`SessionTable::commit`](super::table::SessionTable::commit) applies them.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use serde::{Deserialize, Serialize};
use tooldock_process::worker::LogLevel;
use tooldock_protocol::jsonrpc::RequestError;
use tooldock_protocol::version::ProtocolVersion;

use super::Affinity;
use super::client::{self, ClientFacts, ClientFactsTooLong};
use super::subscriptions::TooManySubscriptions;
use super::{Session, SessionState, Toolset};

/// A change of a session's recorded state.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SessionPatch {
    /// The client confirmed the handshake. Ignored in a closed session.
    Confirm,
    /// `initialize` in a session that is already open, as in HTTP+SSE: sets the protocol version and the client's description.
    /// Allowed once in a session.
    Initialize {
        /// The negotiated version.
        version: ProtocolVersion,
        /// The client's description of itself.
        client: ClientFacts,
    },
    /// The least severe level of log messages that the client has requested.
    LogLevel(LogLevel),
    /// Subscribes the session to a resource; has no effect if it is subscribed already.
    Subscribe(Arc<str>),
    /// Unsubscribes from a resource.
    Unsubscribe(Arc<str>),
    /// The backend that gets this session's requests from now on, and the session that was opened at that backend for them.
    Affinity(Affinity),
    /// The complete set of tools and resources that the session activated and deactivated in an aggregate. Replaces the earlier
    /// set.
    Toolset(Toolset),
    /// A stream with this number was opened.
    OpenStream(u32),
}

/// Error: a change was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PatchRefused {
    /// The client has sent its description before.
    #[error("the session is initialized already")]
    Initialized,
    /// The client's description is too long.
    #[error(transparent)]
    ClientFactsTooLong(#[from] ClientFactsTooLong),
    /// The session has the maximum number of subscriptions.
    #[error(transparent)]
    TooManySubscriptions(#[from] TooManySubscriptions),
}

impl From<PatchRefused> for RequestError {
    fn from(refused: PatchRefused) -> Self {
        match refused {
            PatchRefused::Initialized => Self::Shape("the session is initialized already".into()),
            PatchRefused::ClientFactsTooLong(error) => {
                Self::InvalidParams(error.to_string().into())
            }
            PatchRefused::TooManySubscriptions(_) => Self::InvalidParams(
                "the session has the maximum of subscriptions: unsubscribe from a resource first"
                    .into(),
            ),
        }
    }
}

impl Session {
    /// Stores the client's description from `initialize`. Later descriptions have no effect.
    pub(super) fn set_client(&self, facts: ClientFacts) -> Result<(), client::ClientFactsTooLong> {
        client::check(Some(&facts.capabilities), facts.info.as_deref())?;
        let _ = self.client.set(Box::new(facts));
        Ok(())
    }

    /// Applies a patch to the live session. Returns true if this changed the session.
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
            // Only the record changes: the live session assigned the stream's number when it created the stream.
            SessionPatch::OpenStream(_) => Ok(true),
        }
    }

    /// Applies a patch to a session that is in no table, for tests.
    #[cfg(any(test, feature = "testing"))]
    pub fn change(&self, patch: SessionPatch) -> bool {
        self.apply(&patch).expect("within the bounds")
    }

    /// Confirms the handshake. Returns true if the session was waiting for that; a confirmed or closed session is unchanged.
    pub(super) fn confirm(&self) -> bool {
        let (new, ready) = (SessionState::New as u8, SessionState::Ready as u8);
        let (acquired, kept) = (Ordering::AcqRel, Ordering::Acquire);
        let confirmed = self.state.compare_exchange(new, ready, acquired, kept);
        self.became_ready.notify_waiters();
        confirmed.is_ok()
    }
}
