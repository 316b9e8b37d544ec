//! A session whose client does not know of it yet.

use std::fmt;
use std::sync::Arc;

use tokio::runtime::Handle;

use super::forget_session;
use crate::session::Session;
use crate::state::Core;

/// A new session on its way to its client, with the answer that names it. Dropped before that was written, it ends the
/// session: nobody could ever use it.
pub struct Unclaimed(Option<(Arc<Core>, Arc<Session>)>);

impl Unclaimed {
    pub(super) fn new(core: &Arc<Core>, session: &Arc<Session>) -> Self {
        Self(Some((Arc::clone(core), Arc::clone(session))))
    }

    /// The answer was written: the session is the client's.
    pub fn delivered(mut self) {
        self.0 = None;
    }
}

impl Drop for Unclaimed {
    fn drop(&mut self) {
        if let Some((core, session)) = self.0.take() {
            end_without_waiting(core, session);
        }
    }
}

impl fmt::Debug for Unclaimed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Unclaimed")
    }
}

/// Ends a session where nothing can be awaited. From here on nobody finds it; its record follows.
pub(crate) fn end_without_waiting(core: Arc<Core>, session: Arc<Session>) {
    session.close();
    if let Ok(runtime) = Handle::try_current() {
        runtime.spawn(async move {
            // A store that cannot be asked has said so in the log, and forgets by time.
            let _ = forget_session(&core, &session).await;
        });
    }
}
