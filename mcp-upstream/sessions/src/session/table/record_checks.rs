//! Sessions in doubt: another replica may have claimed them while this process sent no beats, because it was suspended,
//! disconnected from the store, or just started. Each session is compared with its record before its next use. If another
//! replica has the session, this process closes it with its calls; during shutdown it hands the session over instead, and still
//! answers its calls.

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::Instant;

use super::{AT_ONCE, SWEEP_MAX, SessionTable};
use crate::replicas::{BEAT_EVERY, BEAT_LIFE, ReplicaId};
use crate::session::SessionId;
use crate::stream::StoreError;

/// Sessions that must be compared with their records, because the beats of this process have paused.
#[derive(Debug, Default)]
pub(super) struct RecordChecks(Mutex<UncheckedSessions>);

#[derive(Debug, Default)]
struct UncheckedSessions {
    lapses: u64,
    sessions: HashSet<SessionId>,
    /// Time from which no other replica can consider this one gone any more. The result of a comparison is final only after it.
    settled: Option<Instant>,
    /// True if sessions in doubt are refused while the store does not respond. False after the start of the process, when an
    /// unavailable store must not prevent the use of new sessions.
    strict: bool,
}

/// Maximum time for which other replicas may still claim sessions after this process beats again. By then they have received a
/// beat of this process, or receive no beats at all, in which case they claim no sessions.
const SETTLING: Duration = BEAT_LIFE.saturating_add(BEAT_EVERY);

impl RecordChecks {
    fn doubted(&self) -> MutexGuard<'_, UncheckedSessions> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SessionTable {
    /// Compares a session with its record if this process has sent no beats for a while since the last comparison, if this
    /// process is shutting down, or if its beats are refused.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the store does not respond after a pause of the beats: another replica may have the session by now.
    pub(super) async fn resolve_doubt(&self, id: &str) -> Result<(), StoreError> {
        self.notice_lapse().await;
        if (self.replicas.is_leaving() || self.replicas.is_refused())
            && let Some(session) = self.live(id)
        {
            // A session that is not claimed remains in this process, even if the store does not respond.
            let _ = self.compare(session.id()).await;
            return Ok(());
        }
        let (doubted, strict) = {
            let doubted = self.doubts.doubted();
            (doubted.sessions.get(id).cloned(), doubted.strict)
        };
        match doubted {
            Some(id) => match self.compare(&id).await {
                Err(error) if strict => Err(error),
                _ => Ok(()),
            },
            None => Ok(()),
        }
    }

    /// Compares sessions in doubt with their records before requests use them, so that the streams of claimed sessions end.
    pub(super) async fn resolve_doubts(&self) {
        if !self.replicas.are_many() {
            return;
        }
        self.notice_lapse().await;
        let some: Vec<SessionId> = {
            let doubted = self.doubts.doubted();
            doubted.sessions.iter().cloned().collect()
        };
        let end = Instant::now() + SWEEP_MAX;
        for some in some.chunks(AT_ONCE) {
            let compared = join_all(some.iter().map(|id| self.compare(id))).await;
            if compared.iter().any(Result::is_err) || Instant::now() >= end {
                return;
            }
        }
    }

    async fn notice_lapse(&self) {
        let lapses = self.replicas.lapses().await;
        let mut doubted = self.doubts.doubted();
        if doubted.lapses == lapses {
            return;
        }
        doubted.strict = doubted.lapses > 0 || lapses > 1;
        doubted.lapses = lapses;
        doubted.settled = Some(Instant::now() + SETTLING);
        doubted.sessions = self.all().iter().map(|it| it.id().clone()).collect();
        if !doubted.sessions.is_empty() {
            tracing::warn!(
                sessions = doubted.sessions.len(),
                "the other replicas did not hear this one for so long that they may have claimed its sessions: each is checked"
            );
        }
    }

    /// Marks a session that has become live in this process as in doubt, if other replicas may still consider this process gone.
    pub(super) fn doubt_until_settled(&self, id: &SessionId) {
        let mut doubted = self.doubts.doubted();
        if doubted
            .settled
            .is_some_and(|settled| Instant::now() < settled)
        {
            doubted.sessions.insert(id.clone());
        }
    }

    /// Compares one session with its record, and releases the session if another replica has claimed it. Returns the replica
    /// that the record names as the session's home; `None` without a record. If the store does not respond, the session remains
    /// in doubt.
    pub(super) async fn compare(&self, id: &SessionId) -> Result<Option<ReplicaId>, StoreError> {
        let Some(store) = &self.store else {
            return Ok(None);
        };
        let record = store.load(id.as_str()).await?;
        let mut doubted = self.doubts.doubted();
        if doubted
            .settled
            .is_none_or(|settled| Instant::now() >= settled)
        {
            doubted.sessions.remove(id);
        }
        drop(doubted);
        // A session without a record has not been claimed; a later sweep writes its record again.
        let home = record.map(|record| record.home.replica);
        if home.is_some_and(|home| home != self.replicas.own()) {
            self.give_up(id);
        }
        Ok(home)
    }

    /// Releases a session that another replica has claimed.
    pub(super) fn give_up(&self, id: &SessionId) {
        let given_up = match self.replicas.is_leaving() {
            true => self.hand_over(id),
            false => self.close(&mut self.index(), id),
        };
        if given_up {
            tracing::info!("a session goes on in the replica that claimed it");
        }
    }
}
