//! Sessions whose records are behind, because the store failed when they were opened or changed. They continue in this
//! process as if there were no store, and are recorded as a whole once the store works again.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use futures_util::future::join_all;
use tokio::time::Instant;

use super::{AT_ONCE, SWEEP_MAX, SessionTable};
use crate::session::store::SessionStore;
use crate::session::{Session, SessionId, SessionRecord};
use crate::stream::StoreError;

/// Ids of sessions whose records are behind: no more than there are live sessions, apart from those that ended since the
/// last sweep.
#[derive(Debug, Default)]
pub(super) struct Unrecorded {
    ids: Mutex<HashSet<SessionId>>,
    /// Number of losses of the store's data after which all sessions were noted as unrecorded.
    losses: AtomicU64,
}

impl Unrecorded {
    fn ids(&self) -> MutexGuard<'_, HashSet<SessionId>> {
        self.ids.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SessionTable {
    /// Number of sessions of this process whose records are behind.
    pub fn unrecorded(&self) -> usize {
        self.unrecorded.ids().len()
    }

    /// True if the record of a session is behind, or missing.
    pub(super) fn is_unrecorded(&self, id: &SessionId) -> bool {
        self.unrecorded.ids().contains(id)
    }

    /// Notes that the record of a session is behind. The first such session is logged: the store has just begun to fail.
    pub(super) fn note_unrecorded(&self, session: &Session, error: &StoreError) {
        let mut ids = self.unrecorded.ids();
        if ids.is_empty() {
            tracing::error!(
                %error,
                "the session store cannot be written: sessions go on in the memory of this process until it can"
            );
        }
        ids.insert(session.id().clone());
    }

    /// Records the sessions whose records are behind, as far as the store works again; the next sweep continues where time runs
    /// out. Meanwhile the other replicas are told, so that they do not answer a client that its session does not exist.
    pub(super) async fn record_again(&self) {
        let Some(store) = &self.store else {
            return;
        };
        self.record_for_a_while(&**store).await;
        self.replicas.set_behind(self.unrecorded() > 0);
    }

    async fn record_for_a_while(&self, store: &dyn SessionStore) {
        let losses = self.replicas.losses();
        if self.unrecorded.losses.swap(losses, Ordering::AcqRel) != losses {
            let lost = StoreError("it has lost the records of sessions".into());
            for session in self.all() {
                self.note_unrecorded(&session, &lost);
            }
        }
        let behind: Vec<_> = self.unrecorded.ids().iter().cloned().collect();
        if behind.is_empty() {
            return;
        }
        self.replicas.set_behind(true);
        let end = Instant::now() + SWEEP_MAX;
        for some in behind.chunks(AT_ONCE) {
            let recorded = some.iter().map(|id| self.record_one(store, id));
            // The next sweep tries again.
            if join_all(recorded).await.contains(&false) || Instant::now() >= end {
                return;
            }
        }
        if self.unrecorded() == 0 {
            tracing::info!("the session store works again: all sessions are recorded");
        }
    }

    /// Records one session whose record is behind. Returns false if the store fails.
    async fn record_one(&self, store: &dyn SessionStore, id: &SessionId) -> bool {
        let recorded = match self.live(id.as_str()) {
            None => Ok(true),
            Some(session) => self.record_whole(store, &session).await,
        };
        if let Ok(true) = recorded {
            self.unrecorded.ids().remove(id);
        }
        recorded.is_ok()
    }

    /// Writes the whole record of a session. Returns false if the session was changed while its record was written: the record
    /// may have replaced that change. A session that ended meanwhile keeps no record; a session that another replica has claimed
    /// keeps the record of that replica, and is given up.
    async fn record_whole(
        &self,
        store: &dyn SessionStore,
        session: &Session,
    ) -> Result<bool, StoreError> {
        let home = self.home(session);
        let text = |record: &SessionRecord| {
            serde_json::to_string(record).map_err(|error| StoreError(error.to_string()))
        };
        let record = session.record(home);
        if !store.insert(&record).await? {
            self.give_up(session.id());
            return Ok(true);
        }
        if self.live(session.id().as_str()).is_none() {
            self.forget(session.id()).await?;
            return Ok(true);
        }
        Ok(text(&record)? == text(&session.record(home))?)
    }
}
