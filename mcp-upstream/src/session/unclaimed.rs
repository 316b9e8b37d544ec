//! A session whose client does not know of it yet.

use std::fmt;
use std::sync::Arc;

use super::Session;

/// Ends sessions where nothing can be awaited.
pub(crate) trait EndSession: Send + Sync {
    /// From here on nobody finds the session; its record follows.
    fn end_without_waiting(self: Arc<Self>, session: Arc<Session>);
}

/// A new session on its way to its client, with the answer that names it. Dropped before that was written, it ends the
/// session: nobody could ever use it.
pub struct Unclaimed(Option<(Arc<dyn EndSession>, Arc<Session>)>);

impl Unclaimed {
    pub(crate) fn new(owner: Arc<dyn EndSession>, session: &Arc<Session>) -> Self {
        Self(Some((owner, Arc::clone(session))))
    }

    /// The answer was written: the session is the client's.
    pub fn delivered(mut self) {
        self.0 = None;
    }
}

impl Drop for Unclaimed {
    fn drop(&mut self) {
        if let Some((owner, session)) = self.0.take() {
            owner.end_without_waiting(session);
        }
    }
}

impl fmt::Debug for Unclaimed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Unclaimed")
    }
}
