//! Reports to the store about sessions in use, and about sessions that have ended.

use std::sync::{MutexGuard, PoisonError};

use super::SessionTable;
use crate::session::SessionId;
use crate::stream::StoreError;

impl SessionTable {
    /// Renews the records of sessions in use. A missing record means that another process has ended the session, which is then
    /// closed here, unless the record could not be written or the store has lost it: then the session continues, and
    /// `record_again` writes the record.
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
            // With replicas, only the process that has a session removes its record. A record that is missing here was therefore
            // lost by the store.
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

    /// Removes the records of sessions that were closed. Records that cannot be removed now expire by themselves.
    pub(super) async fn forget_ended(&self) {
        if self.store.is_none() {
            return;
        }
        let ended = std::mem::take(&mut *self.ended());
        // A session that is live again keeps its record.
        for id in ended.iter().filter(|id| self.live(id.as_str()).is_none()) {
            if let Err(error) = self.forget(id).await {
                tracing::error!(%error, "the record of a closed session was not removed");
            }
        }
    }

    /// Removes the record of a session and the events of its streams, unless another replica has claimed the session.
    pub(super) async fn forget(&self, id: &SessionId) -> Result<(), StoreError> {
        if let Some(store) = &self.store
            && store.remove(id).await?
        {
            self.events.forget(id).await?;
        }
        Ok(())
    }

    pub(super) fn ended(&self) -> MutexGuard<'_, Vec<SessionId>> {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
