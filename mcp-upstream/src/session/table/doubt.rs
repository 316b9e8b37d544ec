//! Sessions that another replica may have claimed while this process was silent: stopped, or cut off from the store. Each
//! is compared with its record before it is used again, and closed here where another replica has it.

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::Instant;

use super::{AT_ONCE, SWEEP_MAX, SessionTable};
use crate::replicas::{BEAT_EVERY, BEAT_LIFE};
use crate::session::SessionId;
use crate::stream::StoreError;

/// The sessions to be compared, as of the last lapse that was looked at.
#[derive(Debug, Default)]
pub(super) struct Doubts(Mutex<Doubted>);

#[derive(Debug, Default)]
struct Doubted {
    lapses: u64,
    sessions: HashSet<SessionId>,
    /// The time from which no replica holds this one for gone any more, so that a comparison is the last one.
    settled: Option<Instant>,
}

/// The longest time in which others may still claim sessions after this process beats again: they have heard of it then, or
/// take no claims since they hear nothing.
const SETTLING: Duration = BEAT_LIFE.saturating_add(BEAT_EVERY);

impl Doubts {
    fn doubted(&self) -> MutexGuard<'_, Doubted> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SessionTable {
    /// Compares a session with its record, if this process was silent since it was last sure of the session, or is leaving.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the store does not answer, and this process was silent: another replica may have the session by now.
    pub(super) async fn resolve_doubt(&self, id: &str) -> Result<(), StoreError> {
        self.notice_lapse().await;
        if self.replicas.is_leaving()
            && let Some(session) = self.live(id)
        {
            // Sessions that are not claimed stay here until the process ends, whether or not the store answers.
            let _ = self.compare(session.id()).await;
            return Ok(());
        }
        let doubted = self.doubts.doubted().sessions.get(id).cloned();
        match doubted {
            Some(id) => self.compare(&id).await,
            None => Ok(()),
        }
    }

    /// Compares doubted sessions with their records, also without a request for them, so that streams of claimed sessions end.
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
        doubted.lapses = lapses;
        doubted.settled = Some(Instant::now() + SETTLING);
        doubted.sessions = self.all().iter().map(|it| it.id().clone()).collect();
        if !doubted.sessions.is_empty() {
            tracing::warn!(
                sessions = doubted.sessions.len(),
                "this replica was silent for so long that others may have claimed its sessions: each is checked"
            );
        }
    }

    /// Compares one session with its record. Where the store does not answer, the session stays in doubt.
    async fn compare(&self, id: &SessionId) -> Result<(), StoreError> {
        let Some(store) = &self.store else {
            return Ok(());
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
        // Without a record nobody has claimed it: the sweep records it again.
        let claimed = record.is_some_and(|record| record.home.replica != self.replicas.own());
        if claimed && self.close(&mut self.index(), id) {
            tracing::info!("a session goes on in the replica that claimed it");
        }
        Ok(())
    }
}
