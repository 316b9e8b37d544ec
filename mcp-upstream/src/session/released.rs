//! Word from sessions to the table: the last reader of a session that was set aside has left.

use std::sync::{Mutex, PoisonError};

use super::SessionId;

/// Sessions that can be looked at again. Holds each at most once per time it was set aside.
#[derive(Debug, Default)]
pub(super) struct Released(Mutex<Vec<SessionId>>);

impl Released {
    pub(super) fn put(&self, id: SessionId) {
        self.lock().push(id);
    }

    pub(super) fn take(&self) -> Vec<SessionId> {
        std::mem::take(&mut *self.lock())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<SessionId>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
