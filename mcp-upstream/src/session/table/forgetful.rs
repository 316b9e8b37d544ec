//! For tests: a table that loses its sessions between their requests, as if the process ended and another went on.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::SessionTable;
use crate::session::SessionTransport;

/// What refers to a session in which nothing goes on: the table, and who asks.
const IDLE: usize = 2;

impl SessionTable {
    pub(crate) fn set_forgetful(&self, forgetful: bool) {
        self.forgetful.store(forgetful, Ordering::Relaxed);
    }

    /// Loses a session that could be taken up without anybody noticing: nothing runs in it, and nobody reads from it.
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

    /// Loses a session with everything that goes on in it; its record stays.
    pub(crate) fn lose(&self, id: &str) {
        if let Some(session) = self.live(id) {
            self.close(&mut self.index(), session.id());
        }
    }
}
