//! Timers of a pool: idle processes are stopped, old processes are replaced, spare processes are started and stopped, and slots
//! that are no longer needed are removed.

use std::time::Duration;

use tokio::time::Instant;

use super::super::rules::SLOTS_MAX;
use super::{
    PoolAction, PoolProcess, PoolSlot, PoolStateMachine, ProcessId, ProcessState, SlotKey,
    StopReason,
};
use crate::breaker::{BreakerState, StartDecision};

/// Time for which a slot's failures are remembered after its last delay has ended.
const REMEMBERED: Duration = Duration::from_secs(120);

/// Action that the timer of a process requires.
enum ProcessTimer {
    Stop(StopReason),
    /// The process gets no new requests, and is ended once it is idle.
    Drain,
    At(Instant),
    Never,
}

impl PoolStateMachine {
    pub(super) fn keep_up(&mut self, now: Instant, actions: &mut Vec<PoolAction>) {
        let all: Vec<_> = self.processes.keys().copied().collect();
        for process in all {
            match self.due(process, now) {
                ProcessTimer::Stop(reason) => {
                    self.vacate(process, now, true);
                    self.stop(process, reason, now, actions);
                }
                ProcessTimer::Drain => {
                    self.vacate(process, now, true);
                    self.drain(process, StopReason::Lifetime, now, actions);
                }
                ProcessTimer::At(_) | ProcessTimer::Never => {}
            }
        }
        let idle_stop = self.rules.idle_stop;
        let crowded = self.slots.len() > SLOTS_MAX;
        for slot in self.slots.values_mut() {
            // If a slot had no request for a long time, its process is started only for the next request.
            if slot.eager && !slot.replay_state.is_awaited() && slot.last_used + idle_stop <= now {
                slot.eager = false;
            }
        }
        self.slots
            .retain(|_, slot| slot.is_needed() || (!crowded && slot.is_remembered(now)));
    }

    /// Removes a process that is about to end from its slot. `refill`: true to start a replacement if the slot has subscriptions.
    pub(super) fn vacate(&mut self, process: ProcessId, now: Instant, refill: bool) {
        let Some(ProcessState::Serving { slot, .. }) =
            self.processes.get(&process).map(|it| &it.duty)
        else {
            return;
        };
        let slot: SlotKey = slot.clone();
        if let Some(place) = self.slots.get_mut(&slot)
            && place.process == Some(process)
        {
            place.process = None;
            place.last_used = now;
            // A slot with subscriptions is filled without a request, since its clients wait for notifications and may send none.
            place.eager = refill && place.replay_state.is_awaited();
        }
    }

    fn due(&self, process: ProcessId, now: Instant) -> ProcessTimer {
        let Some(entry) = self.processes.get(&process) else {
            return ProcessTimer::Never;
        };
        let old = entry.born + self.rules.max_lifetime;
        let unused = entry.users == 0;
        match &entry.duty {
            ProcessState::Spare { .. } => match self.spares_until() {
                Some(until) if until > now && old > now => ProcessTimer::At(until.min(old)),
                _ => ProcessTimer::Stop(StopReason::Idle),
            },
            ProcessState::Serving { slot, .. } => {
                if old <= now {
                    return if unused {
                        ProcessTimer::Stop(StopReason::Lifetime)
                    } else {
                        ProcessTimer::Drain
                    };
                }
                let awaited = self
                    .slots
                    .get(slot)
                    .is_some_and(|it| it.replay_state.is_awaited());
                let idle = entry.idle_since + self.rules.idle_stop;
                match unused && !awaited {
                    true if idle <= now => ProcessTimer::Stop(StopReason::Idle),
                    true => ProcessTimer::At(idle.min(old)),
                    // A later use or the age of the process is checked when this timer is due. This costs less than setting a
                    // timer at every use.
                    false => ProcessTimer::At(old.min(now + self.rules.idle_stop)),
                }
            }
            ProcessState::Returned { .. } => {
                let idle = entry.idle_since + self.rules.returned_idle();
                match idle.min(old) {
                    at if at <= now => ProcessTimer::Stop(StopReason::Idle),
                    at => ProcessTimer::At(at),
                }
            }
            ProcessState::Draining { until, reason } if unused || *until <= now => {
                ProcessTimer::Stop(*reason)
            }
            ProcessState::Draining { until, .. } => ProcessTimer::At(*until),
            ProcessState::Starting(_) | ProcessState::Stopping => ProcessTimer::Never,
        }
    }

    /// Returns the time until which spare processes are kept. It depends on the last demand for them.
    fn spares_until(&self) -> Option<Instant> {
        let wanted = self.rules.warm > 0 && !self.retired;
        let asked_for = self.spares.asked_for.filter(|_| wanted)?;
        Some(asked_for + self.rules.idle_stop)
    }

    fn lacks_spares(&self, now: Instant) -> bool {
        let spares = self.processes.values().filter(|it| it.is_spare()).count();
        self.spares_until().is_some_and(|until| until > now)
            && spares < self.rules.warm
            && self.processes.len() < self.rules.max_processes
            && self.restarting.is_empty()
    }

    pub(super) fn keep_spares(&mut self, now: Instant, actions: &mut Vec<PoolAction>) {
        while self.lacks_spares(now)
            && self.spares.not_before.is_none_or(|at| at <= now)
            && self.breaker.state(now) == BreakerState::Closed
        {
            let process = self.new_process();
            let entry = PoolProcess {
                duty: ProcessState::Spare { runs: false },
                born: now,
                installing: false,
                users: 0,
                idle_since: now,
                principal: None,
            };
            self.processes.insert(process, entry);
            actions.push(PoolAction::Spare { process });
        }
    }

    /// Returns the time at which [`super::PoolEvent::Tick`] is due, if no other event comes before. Timers that became due since
    /// the last step are included; timers that the last step itself has seen as due are not.
    pub(in crate::pool) fn wake_at(&self) -> Option<Instant> {
        let now = self.looked_at?;
        let processes = self
            .processes
            .keys()
            .filter_map(|it| match self.due(*it, now) {
                ProcessTimer::At(at) => Some(at),
                ProcessTimer::Stop(_) | ProcessTimer::Drain => Some(now),
                ProcessTimer::Never => None,
            });
        let delays = self.slots.values();
        let delays = delays
            .flat_map(|it| [it.not_before, it.not_filled_before])
            .flatten();
        let waiters = self.waiting.iter().map(|it| it.deadline);
        let tried = !self.waiting.is_empty() || self.slots.values().any(|it| it.eager);
        let breaker = match self.breaker.admits(now) {
            StartDecision::Not(until) if tried => Some(until),
            _ => None,
        };
        let spares = self.spares.not_before.filter(|_| self.lacks_spares(now));
        let later = |at: &Instant| *at > now;
        processes
            .chain(delays.filter(later))
            .chain(waiters.filter(later))
            .chain(breaker)
            .chain(spares.filter(later))
            .chain(self.room_at().filter(later))
            .min()
    }
}

impl PoolProcess {
    fn is_spare(&self) -> bool {
        matches!(self.duty, ProcessState::Spare { .. })
    }
}

impl PoolSlot {
    /// Returns true if the slot has a process, or one is to be started for it.
    fn is_needed(&self) -> bool {
        self.process.is_some() || self.eager || self.replay_state.is_awaited()
    }

    /// Returns true if the slot contains information that its next process needs. Failures are forgotten after a while;
    /// subscriptions and log levels are not.
    fn is_remembered(&self, now: Instant) -> bool {
        let recent = self
            .not_filled_before
            .is_some_and(|at| now < at + REMEMBERED);
        self.dead || self.replay_state.has_lasting_state() || (self.failures > 0 && recent)
    }
}
