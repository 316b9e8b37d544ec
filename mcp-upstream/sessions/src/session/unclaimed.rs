//! A new session whose client has not yet received its id.

use std::fmt;
use std::sync::Arc;

use super::Session;

/// Ends sessions in code that cannot await.
pub trait EndSession: Send + Sync {
    /// Ends the session immediately, and deletes its record in the background.
    fn end_without_waiting(self: Arc<Self>, session: Arc<Session>);
}

/// A new session on its way to its client, with the answer that names it. If dropped before the answer was written, it ends the
/// session, which no client could ever use.
pub struct UnclaimedSession(Option<(Arc<dyn EndSession>, Arc<Session>)>);

impl UnclaimedSession {
    /// A session that `owner` ends unless its id is delivered.
    pub fn new(owner: Arc<dyn EndSession>, session: &Arc<Session>) -> Self {
        Self(Some((owner, Arc::clone(session))))
    }

    /// Records that the answer was written: the session now belongs to the client.
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
