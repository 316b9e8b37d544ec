//! Sessions with outdated records, because the store failed when they were opened or changed. They continue in this process as
//! they would without a store, and are recorded completely once the store works again.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use futures_util::future::join_all;
use tokio::time::Instant;

use super::{AT_ONCE, SWEEP_MAX, SessionTable};
use crate::session::store::SessionStore;
use crate::session::{Session, SessionId, SessionRecord};
use crate::stream::StoreError;

/// Ids of sessions with outdated records: at most as many as live sessions, plus those that ended since the last sweep.
#[derive(Debug, Default)]
pub(super) struct OutdatedRecords {
    ids: Mutex<HashSet<SessionId>>,
    /// Number of known losses of the store's data. When the replicas report a higher number, all sessions are added here, since
    /// their records were lost.
    losses: AtomicU64,
}

impl OutdatedRecords {
    fn ids(&self) -> MutexGuard<'_, HashSet<SessionId>> {
        self.ids.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SessionTable {
    /// Number of sessions of this process with outdated records.
    pub fn unrecorded(&self) -> usize {
        self.unrecorded.ids().len()
    }

    /// True if the record of a session is outdated or missing.
    pub(super) fn is_unrecorded(&self, id: &SessionId) -> bool {
        self.unrecorded.ids().contains(id)
    }

    /// Marks the record of a session as outdated. If no other record was outdated before, the failure of the store is logged.
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

    /// Writes outdated records while the store works. If the time limit is reached, the next sweep writes the others. As long
    /// as any is outdated, the other replicas are informed, so that they do not tell a client that its session does not exist.
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
            // The next sweep writes the remaining records.
            if join_all(recorded).await.contains(&false) || Instant::now() >= end {
                return;
            }
        }
        if self.unrecorded() == 0 {
            tracing::info!("the session store works again: all sessions are recorded");
        }
    }

    /// Writes the outdated record of one session. Returns false if the store fails.
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

    /// Writes the complete record of a session. Returns false if the session was changed during the write, since the record may
    /// have overwritten that change. If the session has ended meanwhile, its record is deleted. If another replica has claimed
    /// the session, the record is not changed, and the session is released.
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
