//! Checks regularly that the other replicas answer at their `replicas.address`.
//!
//! Heartbeats are sent through the store. They do not show that a network, a firewall or a certificate separates two replicas.
//! Therefore a replica that does not answer two consecutive checks is recorded as unreachable in
//! [`Replicas`](tooldock_sessions::replicas::Replicas). Replicas whose heartbeats have stopped are checked, too: if such a
//! replica answers, it has only lost the store and has not ended.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::{MissedTickBehavior, interval};
use tooldock_sessions::replicas::{Announcement, ReplicaId};

use super::ReplicaLink;

/// Interval between two checks of the same replica.
const EVERY: Duration = Duration::from_secs(5);
/// Number of consecutive checks without an answer after which a replica counts as unreachable.
const UNANSWERED_MAX: u32 = 2;

/// Checks the other replicas until the future is dropped.
pub(crate) async fn follow(link: Arc<ReplicaLink>) {
    let mut unanswered: HashMap<ReplicaId, u32> = HashMap::new();
    let mut tick = interval(EVERY);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        let (up, silent) = (link.replicas.forwarded_to(), link.replicas.silent());
        let others: Vec<_> = up.iter().chain(&silent).collect();
        let checks = join_all(others.iter().map(|other| link.check(other))).await;
        unanswered.retain(|id, _| others.iter().any(|other| other.id == *id));
        for (at, (other, checked)) in others.iter().zip(checks).enumerate() {
            let failures = unanswered.entry(other.id).or_default();
            *failures = match &checked {
                Ok(()) => 0,
                Err(_) => *failures + 1,
            };
            let is_unreachable = *failures >= UNANSWERED_MAX;
            if at >= up.len() {
                if is_unreachable {
                    link.replicas.note_ended(other);
                }
            } else if checked.is_ok() || is_unreachable {
                link.replicas.note_unreachable(other, checked.err());
            }
        }
    }
}

impl ReplicaLink {
    async fn check(&self, other: &Announcement) -> Result<(), String> {
        let question = || self.question(other);
        self.forwarder.check(other, question).await
    }
}
