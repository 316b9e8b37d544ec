//! Restarts by an operator: every process ends, and new processes start after all old ones have entirely ended.
//!
//! An old process may occupy a port or a lock file that the new one needs, so the two never run at the same time. Subscriptions
//! and log levels stay in the slots, and waiting requests continue to wait.

use tokio::time::Instant;

use super::{
    PoolAction, PoolSlot, PoolStateMachine, Presence, ProcessId, ProcessState, Spares, StopReason,
};
use crate::breaker::{Breaker, BreakerState};
use crate::key::ProcessKey;

/// Restart reason of the processes that replace those ended by an operator, as a metrics label.
const REQUESTED: &str = "requested";

impl PoolStateMachine {
    pub(super) fn restart(&mut self, now: Instant, actions: &mut Vec<PoolAction>) {
        if self.retired {
            return;
        }
        let all: Vec<_> = self.processes.keys().copied().collect();
        for process in all {
            self.end_for_restart(process, now, actions);
        }
        // The restarted server may be another version, so everything that was learned about the old one is dropped.
        self.breaker = Breaker::new(self.rules.breaker);
        self.server = None;
        self.scout = None;
        self.last_error = None;
        self.last_end = None;
        self.spares = Spares {
            asked_for: self.spares.asked_for,
            ..Spares::default()
        };
        for (key, place) in &mut self.slots {
            let lost = self.rules.keeps_state && key.key.is_of_session();
            if lost && place.dead {
                continue;
            }
            place.failures = 0;
            place.not_before = None;
            place.not_filled_before = None;
            place.dead = false;
            place.away = false;
            place.eager = key.key.is_shared() || place.replay_state.is_awaited();
        }
    }

    /// Starts the shared process again if it has ended for good or waits after a failure. Processes of sessions and single
    /// requests are not affected.
    pub(super) fn revive(&mut self, now: Instant) {
        if self.retired || !self.is_down(now) {
            return;
        }
        self.breaker = Breaker::new(self.rules.breaker);
        self.last_error = None;
        self.last_end = None;
        let shared = self.slots.iter_mut();
        for (_, place) in shared.filter(|(slot, _)| slot.key.is_shared()) {
            place.failures = 0;
            place.not_before = None;
            place.not_filled_before = None;
            place.dead = false;
            place.away = false;
            place.eager = true;
        }
    }

    /// Returns true if the shared process has ended for good, or waits for the end of a delay after a failure.
    pub(in super::super) fn is_down(&self, now: Instant) -> bool {
        let mut shared = self.slots.iter().filter(|(slot, _)| slot.key.is_shared());
        let waits = |place: &PoolSlot| {
            place.process.is_none() && (place.delayed(now).is_some() || place.is_failing(now))
        };
        let refused = self.breaker.state(now) == BreakerState::Open;
        match self.presence() {
            Presence::Dead => true,
            Presence::Away => refused || shared.any(|(_, place)| waits(place)),
            Presence::There => false,
        }
    }

    fn end_for_restart(&mut self, process: ProcessId, now: Instant, actions: &mut Vec<PoolAction>) {
        let Some(entry) = self.processes.get(&process) else {
            return;
        };
        let slot = match &entry.duty {
            ProcessState::Stopping => return,
            ProcessState::Starting(slot) | ProcessState::Serving { slot, .. } => Some(slot.clone()),
            ProcessState::Spare { .. }
            | ProcessState::Returned { .. }
            | ProcessState::Draining { .. } => None,
        };
        let served = matches!(entry.duty, ProcessState::Serving { .. });
        match slot {
            Some(slot) if matches!(slot.key, ProcessKey::Exclusive(_)) => {
                self.slots.remove(&slot);
            }
            Some(slot) => {
                let lost = self.keeps_state_of(&slot);
                if let Some(place) = self.slots.get_mut(&slot) {
                    place.process = None;
                    place.last_used = now;
                    if served {
                        place.ended = Some(REQUESTED);
                        place.dead = lost;
                    }
                }
            }
            None => {}
        }
        self.stop(process, StopReason::Restarted, now, actions);
        self.restarting.insert(process);
    }
}
