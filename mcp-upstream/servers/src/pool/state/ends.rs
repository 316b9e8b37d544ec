//! Transitions of a pool when a process has started, fails to start, or ends by itself.

use std::sync::Arc;

use tokio::time::Instant;
use tooldock_base::error::CallError;
use tooldock_protocol::version::{Era, EraSupport};

use super::super::rules::{PoolRules, SPREAD_DELAY_MAX};
use super::{
    LeaseRefusal, PoolAction, PoolStateMachine, ProcessEnd, ProcessFailure, ProcessId,
    ProcessState, StopReason,
};
use crate::key::{ProcessKey, SlotKey};

impl PoolStateMachine {
    pub(super) fn started(
        &mut self,
        process: ProcessId,
        server: EraSupport,
        opened: Era,
        now: Instant,
        actions: &mut Vec<PoolAction>,
    ) {
        let slot = match self.processes.get(&process).map(|entry| &entry.duty) {
            Some(ProcessState::Starting(slot)) => slot.clone(),
            _ => return,
        };
        self.forget_scout(process);
        let server = match (server, self.server) {
            // This process was opened before another process showed the eras exactly. The exact result is kept.
            (EraSupport::ModernAtLeast, Some(known @ (EraSupport::Modern | EraSupport::Dual))) => {
                known
            }
            (server, _) => server,
        };
        self.server = Some(server);
        self.breaker.succeeded();
        self.last_error = None;
        self.last_end = None;
        self.settle_eras(server, &slot);
        // The process may have been opened in another era than the one it was started for.
        let actual = SlotKey {
            key: slot.key.clone(),
            era: opened,
        };
        if actual != slot && !self.move_slot(&slot, &actual) {
            self.stop(process, StopReason::Surplus, now, actions);
            return;
        }
        if matches!(actual.key, ProcessKey::Exclusive(_))
            && !self.waiting.iter().any(|waiter| waiter.key == actual.key)
        {
            self.set_aside(process, &actual, now, actions);
            return;
        }
        if let Some(place) = self.slots.get_mut(&actual) {
            place.eager = false;
            place.away = false;
            place.last_used = now;
        }
        if let Some(entry) = self.processes.get_mut(&process) {
            entry.idle_since = now;
            entry.duty = ProcessState::Serving {
                slot: actual,
                since: now,
            };
        }
    }

    /// Keeps a process that has served a single request, for the next request that needs an equal process. If such processes are
    /// not reused, it is ended.
    pub(super) fn set_aside(
        &mut self,
        process: ProcessId,
        slot: &SlotKey,
        now: Instant,
        actions: &mut Vec<PoolAction>,
    ) {
        let removed = self.slots.remove(slot);
        let kept = removed.filter(|_| self.rules.reuses() && !self.retired);
        match (kept, self.processes.get_mut(&process)) {
            (Some(removed), Some(entry)) => {
                let (open, era) = (removed.open, slot.era);
                entry.duty = ProcessState::Returned { open, era };
                entry.idle_since = now;
                // A kept process counts for no principal's limit until it is leased again.
                entry.principal = None;
            }
            _ => self.stop(process, StopReason::Used, now, actions),
        }
    }

    /// Moves empty slots to the other era if the server does not support theirs.
    fn settle_eras(&mut self, server: EraSupport, but: &SlotKey) {
        let empty = self.slots.iter().filter(|(_, slot)| slot.process.is_none());
        let other = empty.filter(|(key, _)| server.opened_for(key.era) != key.era);
        let other: Vec<_> = other.map(|(key, _)| key.clone()).collect();
        for from in other.into_iter().filter(|key| key != but) {
            let to = SlotKey {
                key: from.key.clone(),
                era: server.opened_for(from.era),
            };
            self.move_slot(&from, &to);
        }
    }

    /// Moves a slot to another key. Returns false if the slot no longer exists, or if there is a process under the other key
    /// already.
    fn move_slot(&mut self, from: &SlotKey, to: &SlotKey) -> bool {
        let Some(moved) = self.slots.remove(from) else {
            return false;
        };
        match self.slots.get(to) {
            Some(taken) if taken.process.is_some() => {
                taken.replay_state.take_over(&moved.replay_state);
                false
            }
            Some(empty) => {
                moved.replay_state.take_over(&empty.replay_state);
                self.slots.insert(to.clone(), moved);
                true
            }
            None => {
                self.slots.insert(to.clone(), moved);
                true
            }
        }
    }

    pub(super) fn start_failed(
        &mut self,
        process: ProcessId,
        failure: ProcessFailure,
        now: Instant,
        jitter: f64,
        actions: &mut Vec<PoolAction>,
    ) {
        let Some(entry) = self.processes.get_mut(&process) else {
            return;
        };
        let duty = std::mem::replace(&mut entry.duty, ProcessState::Stopping);
        match duty {
            ProcessState::Starting(slot) if self.is_trial(&slot) => {
                self.breaker.undecided(now);
                self.settle_on_modern(&slot);
            }
            ProcessState::Starting(slot) => {
                match failure.elsewhere {
                    true => self.breaker.undecided(now),
                    false => {
                        self.count_failure(now);
                        self.last_error = Some(failure.clone());
                    }
                }
                let scouted = self.scout == Some(process) && !failure.elsewhere;
                self.forget_scout(process);
                self.refuse_waiting(&slot, scouted, &failure.error, actions);
                self.failed(&slot, false, now, jitter);
                // The recorded eras may be wrong, so the next process probes the server again.
                let mut others = self.processes.values();
                if !others.any(|it| matches!(it.duty, ProcessState::Serving { .. })) {
                    self.server = None;
                }
            }
            ProcessState::Spare { runs } => {
                if !runs {
                    self.count_failure(now);
                    self.last_error = Some(failure);
                }
                self.spare_failed(now, jitter);
            }
            _ => {}
        }
    }

    /// Returns true if a start in this slot tests whether the server accepts a handshake (`initialize`).
    pub(super) fn is_trial(&self, slot: &SlotKey) -> bool {
        slot.era == Era::Legacy
            && matches!(
                self.server,
                Some(EraSupport::Modern | EraSupport::ModernAtLeast)
            )
    }

    /// Records that the server does not accept a handshake (`initialize`), or that this cannot be tested. Requests that wait for
    /// a handshake get a process of the modern era as long as this server runs.
    pub(super) fn settle_on_modern(&mut self, tried: &SlotKey) {
        self.server = Some(EraSupport::Modern);
        if let Some(place) = self.slots.get_mut(tried) {
            place.process = None;
        }
        let served = SlotKey {
            key: tried.key.clone(),
            era: Era::Modern,
        };
        self.settle_eras(EraSupport::Modern, &served);
    }

    /// Refuses the requests that wait for a start that has failed. With `all`, every waiting request is refused: while the
    /// server's eras are unknown, other starts would fail, too.
    fn refuse_waiting(
        &mut self,
        slot: &SlotKey,
        all: bool,
        error: &CallError,
        actions: &mut Vec<PoolAction>,
    ) {
        let server = self.server;
        self.waiting.retain(|waiter| {
            let wanted = waiter.open.era;
            let era = server.map_or(wanted, |it| it.opened_for(wanted));
            if !all && (waiter.key != slot.key || era != slot.era) {
                return true;
            }
            let refusal = LeaseRefusal::Failed(error.clone());
            let waiter = waiter.id;
            actions.push(PoolAction::Refuse { waiter, refusal });
            false
        });
    }

    pub(super) fn lost(&mut self, process: ProcessId, end: ProcessEnd, now: Instant, jitter: f64) {
        let Some(entry) = self.processes.get_mut(&process) else {
            return;
        };
        let in_use = entry.users > 0;
        let last_used = if in_use { now } else { entry.idle_since };
        let duty = std::mem::replace(&mut entry.duty, ProcessState::Stopping);
        match duty {
            ProcessState::Spare { .. } => self.spare_failed(now, jitter),
            ProcessState::Starting(slot) => {
                // The process is lost while it starts only if the keeper's task panicked. Otherwise the keeper reports a failed
                // start.
                self.count_failure(now);
                self.forget_scout(process);
                self.failed(&slot, false, now, jitter);
            }
            ProcessState::Serving { slot, since } => {
                let proven = now.saturating_duration_since(since) > self.breaker.window();
                if proven {
                    self.breaker.reset_backoff();
                }
                // Only the shared process is counted: the end of a session's process says nothing about other processes.
                if slot.key == ProcessKey::Shared && !(proven && end == ProcessEnd::Clean) {
                    self.count_failure(now);
                }
                if matches!(slot.key, ProcessKey::Exclusive(_)) {
                    self.slots.remove(&slot);
                    return;
                }
                let eager = self.rules.restarts(end == ProcessEnd::Clean);
                if let Some(place) = self.slots.get_mut(&slot) {
                    if proven {
                        place.failures = 0;
                    }
                    place.last_used = last_used;
                    place.ended = Some(end.as_str());
                    place.eager =
                        eager && (slot.key.is_shared() || place.replay_state.is_awaited());
                }
                self.failed(&slot, true, now, jitter);
            }
            ProcessState::Returned { .. }
            | ProcessState::Draining { .. }
            | ProcessState::Stopping => {}
        }
    }

    /// Records a failure in the slot and removes the process from it.
    fn failed(&mut self, slot: &SlotKey, had_worked: bool, now: Instant, jitter: f64) {
        if let ProcessKey::Exclusive(_) = slot.key {
            self.slots.remove(slot);
            return;
        }
        let never = self.rules.restart == tooldock_workers::external::Restart::Never;
        let lost_with_it = self.keeps_state_of(slot);
        let spreads = self.rules.spreads;
        let Some(place) = self.slots.get_mut(slot) else {
            return;
        };
        place.process = None;
        place.away = true;
        place.failures = place.failures.saturating_add(1);
        let delay = PoolRules::delay(place.failures, had_worked, jitter);
        place.not_filled_before = Some(now + delay);
        // Health checks detect when a backend can be reached again, so requests are delayed only for a short time.
        let of_requests = match spreads {
            true => delay.min(SPREAD_DELAY_MAX),
            false => delay,
        };
        place.not_before = Some(now + of_requests);
        place.dead = never || (had_worked && lost_with_it);
    }

    fn spare_failed(&mut self, now: Instant, jitter: f64) {
        self.spares.failures = self.spares.failures.saturating_add(1);
        let delay = PoolRules::delay(self.spares.failures, false, jitter);
        self.spares.not_before = Some(now + delay);
    }

    /// Returns the subscriptions and log level in the slot of a leased process.
    pub(in crate::pool) fn replay_state_of(
        &self,
        process: ProcessId,
    ) -> Option<Arc<super::ReplayState>> {
        match &self.processes.get(&process)?.duty {
            ProcessState::Serving { slot, .. } => {
                self.slots.get(slot).map(|it| Arc::clone(&it.replay_state))
            }
            _ => None,
        }
    }
}
