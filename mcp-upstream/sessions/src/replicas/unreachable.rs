//! Replicas that beat, but do not respond at their `replicas.address`, because of the network or certificates.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::ReplicaId;

/// The replicas that are up and do not answer, with the reasons.
#[derive(Debug, Default)]
pub(super) struct UnreachableReplicas(Mutex<HashMap<ReplicaId, Arc<str>>>);

impl UnreachableReplicas {
    /// Sets the reason why a replica does not respond; `None` if it responds. Returns true if the replica became reachable or
    /// unreachable by this.
    pub(super) fn note(&self, id: ReplicaId, reason: Option<Arc<str>>) -> bool {
        let mut reasons = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let answers = reason.is_none();
        let before = match reason {
            Some(reason) => reasons.insert(id, reason),
            None => reasons.remove(&id),
        };
        before.is_none() != answers
    }

    /// The reason why a replica does not respond; `None` if it responds.
    pub(super) fn reason(&self, id: ReplicaId) -> Option<Arc<str>> {
        let reasons = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        reasons.get(&id).cloned()
    }

    /// Removes replicas that are no longer up.
    pub(super) fn retain(&self, is_up: impl Fn(ReplicaId) -> bool) {
        let mut reasons = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        reasons.retain(|id, _| is_up(*id));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replica_changes_when_it_stops_to_answer_and_when_it_answers_again() {
        let replicas = UnreachableReplicas::default();
        let id = ReplicaId(7);
        assert!(!replicas.note(id, None), "it answered before");
        assert!(replicas.note(id, Some("refused".into())));
        assert!(!replicas.note(id, Some("expired".into())));
        assert_eq!(replicas.reason(id).as_deref(), Some("expired"));
        assert!(replicas.note(id, None));
        assert_eq!(replicas.reason(id), None);
        replicas.note(id, Some("refused".into()));
        replicas.retain(|it| it != id);
        assert_eq!(replicas.reason(id), None, "it is gone");
    }
}
