//! Reloads that one replica has requested of all replicas, and their outcomes.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::{Instant, timeout_at};

use super::{Announcement, Replicas};

/// Maximum time to wait for the outcomes of other replicas. A replica that takes longer, for example because it installs
/// packages, is reported as pending.
const OTHERS_MAX: Duration = Duration::from_secs(5);

/// Most recent reload that a replica made because another replica requested it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct AnnouncedReload {
    /// Number of the reload: how many reloads have been requested of all replicas, including this one.
    pub number: u64,
    /// Number of namespaces after the reload, and number of those that could not be updated; `None` if the complete reload
    /// failed.
    pub counts: Option<(usize, usize)>,
}

/// Outcome of a requested reload in another replica, for the response to the request that caused the reload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct OtherReload {
    /// The name of the replica.
    pub name: Arc<str>,
    /// Outcome of the reload.
    pub outcome: OtherReloadOutcome,
    /// Number of namespaces that the replica has after the reload.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespaces: Option<usize>,
    /// Number of namespaces that could not be brought up to date.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed: Option<usize>,
}

/// The outcome of a reload in another replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum OtherReloadOutcome {
    /// The replica has reloaded.
    Ok,
    /// The reload failed and changed nothing; the replica's log gives the reason.
    Failed,
    /// The replica has not reported the end of its reload.
    Pending,
    /// The store was unavailable, so the reload was not requested of the replica.
    NotTold,
}

impl Replicas {
    /// Announces to the other replicas that this replica carried out a requested reload.
    pub fn note_reload(&self, made: AnnouncedReload) {
        let mut last = self.reloaded.lock().unwrap_or_else(PoisonError::into_inner);
        if last.is_none_or(|last| last.number < made.number) {
            *last = Some(made);
        }
        self.due.notify_one();
    }

    pub(super) fn last_reload(&self) -> Option<AnnouncedReload> {
        *self.reloaded.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets the most recent reload if its number is above the store's count: the store has lost its data and counts from zero
    /// again.
    pub(super) fn count_reloads_from(&self, reloads: u64) {
        let mut last = self.reloaded.lock().unwrap_or_else(PoisonError::into_inner);
        last.take_if(|last| last.number > reloads);
    }

    /// Outcomes of the most recent reload that this replica requested, sorted by the name of the replica. Waits for them for 5 s
    /// at most. `None` for a gateway without replicas.
    pub async fn other_reloads(&self) -> Option<Vec<OtherReload>> {
        self.directory.as_ref()?;
        let asked = *self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        let deadline = Instant::now() + OTHERS_MAX;
        let mut beats = self.known.subscribe();
        let mut others = BTreeMap::new();
        loop {
            let mut waits = false;
            // Replicas that have ended since the request are included.
            for other in self.known.borrow().others.values() {
                let reload = reload_of(other, asked);
                waits |= reload.outcome == OtherReloadOutcome::Pending;
                others.insert(Arc::clone(&other.name), reload);
            }
            if !waits || !matches!(timeout_at(deadline, beats.changed()).await, Ok(Ok(()))) {
                return Some(others.into_values().collect());
            }
        }
    }
}

fn reload_of(other: &Announcement, asked: Option<u64>) -> OtherReload {
    let made = other.reloaded.filter(|made| Some(made.number) >= asked);
    let counts = made.and_then(|made| made.counts);
    OtherReload {
        name: Arc::clone(&other.name),
        outcome: match (asked, made) {
            (None, _) => OtherReloadOutcome::NotTold,
            (Some(_), None) => OtherReloadOutcome::Pending,
            (Some(_), Some(_)) if counts.is_none() => OtherReloadOutcome::Failed,
            (Some(_), Some(_)) => OtherReloadOutcome::Ok,
        },
        namespaces: counts.map(|it| it.0),
        failed: counts.map(|it| it.1),
    }
}
