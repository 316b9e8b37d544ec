//! What the store is told of sessions besides their changes: which are in use, and which are over.

use std::sync::{MutexGuard, PoisonError};

use super::SessionTable;
use crate::session::SessionId;
use crate::stream::StoreError;

impl SessionTable {
    /// Tells the store which sessions are in use. A session without a record was ended elsewhere, unless its record could not
    /// be written: that is made up for by `record_again`.
    pub(super) async fn keep_recorded(&self, ids: &[SessionId]) {
        let Some(store) = &self.store else {
            return;
        };
        let recorded = ids.iter().filter(|id| !self.is_unrecorded(id));
        let ids: Vec<_> = recorded.cloned().collect();
        if ids.is_empty() {
            return;
        }
        match store.touch(&ids).await {
            // A session ends at its home alone, so a missing record was lost by the store.
            Ok(gone) if self.replicas.are_many() => {
                for session in gone.iter().filter_map(|id| self.live(id.as_str())) {
                    self.note_unrecorded(&session, &StoreError("records were lost".into()));
                }
            }
            Ok(gone) => {
                let mut index = self.index();
                for id in gone {
                    self.close(&mut index, &id);
                }
            }
            Err(error) => tracing::error!(%error, "the records of sessions in use may expire"),
        }
    }

    /// Forgets the records of sessions that were closed. What the store does not forget now, it forgets by time.
    pub(super) async fn forget_ended(&self) {
        if self.store.is_none() {
            return;
        }
        let ended = std::mem::take(&mut *self.ended());
        // One that its client has come back to meanwhile keeps its record.
        for id in ended.iter().filter(|id| self.live(id.as_str()).is_none()) {
            if let Err(error) = self.forget(id).await {
                tracing::error!(%error, "the record of a closed session was not removed");
            }
        }
    }

    /// Forgets what is recorded of a session and of its streams.
    pub(super) async fn forget(&self, id: &SessionId) -> Result<(), StoreError> {
        if let Some(store) = &self.store {
            store.remove(id).await?;
            self.events.forget(id).await?;
        }
        Ok(())
    }

    pub(super) fn ended(&self) -> MutexGuard<'_, Vec<SessionId>> {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
