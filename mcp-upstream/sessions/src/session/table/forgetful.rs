//! Test aid: a table that loses its sessions between their requests, as if the process had ended and another process had started.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::SessionTable;
use crate::session::SessionTransport;

/// Number of references to an idle session: one in the session table, one held by the caller.
const IDLE: usize = 2;

impl SessionTable {
    /// Sets whether the table loses idle sessions between their requests.
    pub fn set_forgetful(&self, forgetful: bool) {
        self.forgetful.store(forgetful, Ordering::Relaxed);
    }

    /// Drops a session that can be adopted again without a visible difference: no call runs in it, and no stream is read.
    pub(super) fn forget_idle(&self, id: &str) {
        if !self.forgetful.load(Ordering::Relaxed) {
            return;
        }
        let Some(session) = self.live(id) else {
            return;
        };
        let sse = session.binding().transport == SessionTransport::Sse;
        if !sse && !session.is_busy() && Arc::strong_count(&session) == IDLE {
            self.lose(id);
        }
    }

    /// Drops a session with its running calls and open streams, but not its record.
    pub fn lose(&self, id: &str) {
        if let Some(session) = self.live(id) {
            self.close(&mut self.index(), session.id());
        }
    }
}
