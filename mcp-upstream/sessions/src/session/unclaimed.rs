//! A new session whose client has not yet received its id.

use std::fmt;
use std::sync::Arc;

use super::Session;

/// Ends sessions from code that cannot await.
pub trait EndSession: Send + Sync {
    /// Ends the session immediately, and deletes its record in the background.
    fn end_without_waiting(self: Arc<Self>, session: Arc<Session>);
}

/// A new session whose id has not been sent to its client yet. If this is dropped before the response with the id was written,
/// the session ends, since no client could use it.
pub struct UnclaimedSession(Option<(Arc<dyn EndSession>, Arc<Session>)>);

impl UnclaimedSession {
    /// Creates the guard of a session, which `owner` ends unless the session's id is delivered.
    pub fn new(owner: Arc<dyn EndSession>, session: &Arc<Session>) -> Self {
        Self(Some((owner, Arc::clone(session))))
    }

    /// Records that the response with the session's id was written, so that the session does not end when this is dropped.
    pub fn delivered(mut self) {
        self.0 = None;
    }
}

impl Drop for UnclaimedSession {
    fn drop(&mut self) {
        if let Some((owner, session)) = self.0.take() {
            owner.end_without_waiting(session);
        }
    }
}

impl fmt::Debug for UnclaimedSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Unclaimed")
    }
}
