//! Replicas that stopped beating without an announced shutdown: they have ended, or are disconnected from the directory and
//! continue with their sessions. Beats cannot distinguish the two cases; requests to `replicas.address` can.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{Announcement, ReplicaId};

/// Most recent announcements of the replicas that count as gone by their beats, but have not been found to have ended.
#[derive(Debug, Default)]
pub(super) struct SilentReplicas(Mutex<HashMap<ReplicaId, Announcement>>);

impl SilentReplicas {
    /// Adds the replicas of `before` that are missing from `heard`, unless they announced their shutdown. Removes the replicas of
    /// `heard`.
    pub(super) fn note(&self, before: &HashMap<ReplicaId, Announcement>, heard: &[Announcement]) {
        let mut silent = self.lock();
        let fell_silent = before.values().filter(|other| !other.leaving);
        silent.extend(fell_silent.map(|other| (other.id, other.clone())));
        silent.retain(|id, _| !heard.iter().any(|other| other.id == *id));
    }

    /// Removes a replica that has ended. Returns true if it was in the list.
    pub(super) fn remove(&self, id: ReplicaId) -> bool {
        self.lock().remove(&id).is_some()
    }

    pub(super) fn contains(&self, id: ReplicaId) -> bool {
        self.lock().contains_key(&id)
    }

    pub(super) fn all(&self) -> Vec<Announcement> {
        self.lock().values().cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ReplicaId, Announcement>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
