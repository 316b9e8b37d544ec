//! Grants processes to waiting requests, or starts processes for them.

use std::sync::Arc;

use tokio::time::Instant;

use super::{
    LeaseRefusal, Order, PoolAction, PoolLimit, PoolProcess, PoolSlot, PoolStateMachine, ProcessId,
    ProcessState, QueuedRequest, UnplannedRestart,
};
use crate::breaker::StartDecision;
use crate::key::{OpenAs, ProcessKey, SlotKey};

/// Decision about a waiting request: granted, refused, or still waiting.
enum Placement {
    Granted(ProcessId),
    Refused(LeaseRefusal),
    Waits(WaitReason),
}

/// The event for which a request waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WaitReason {
    /// The request waits for a process to start. The start has its own time limit.
    Start,
    /// The request waits for the end of a delay after a failure.
    Delay(Instant),
    /// The request waits until the number of processes is below this limit.
    Place(PoolLimit),
}

impl PoolStateMachine {
    pub(super) fn serve(&mut self, now: Instant, actions: &mut Vec<PoolAction>) {
        self.count_room();
        let mut waiting = std::mem::take(&mut self.waiting);
        waiting.retain(|waiter| {
            let refusal = match self.place(waiter, now, actions) {
                Placement::Granted(process) => {
                    let waiter = waiter.id;
                    actions.push(PoolAction::Grant { waiter, process });
                    return false;
                }
                Placement::Waits(WaitReason::Start) => return true,
                Placement::Waits(WaitReason::Delay(until)) if until <= waiter.deadline => {
                    return true;
                }
                Placement::Waits(WaitReason::Delay(until)) => LeaseRefusal::Unavailable {
                    retry_after: until - now,
                },
                Placement::Waits(WaitReason::Place(_)) if now < waiter.deadline => return true,
                Placement::Waits(WaitReason::Place(full)) => LeaseRefusal::Overloaded(full),
                Placement::Refused(refusal) => refusal,
            };
            let waiter = waiter.id;
            actions.push(PoolAction::Refuse { waiter, refusal });
            false
        });
        self.waiting = waiting;
    }

    fn place(
        &mut self,
        waiter: &QueuedRequest,
        now: Instant,
        actions: &mut Vec<PoolAction>,
    ) -> Placement {
        let wanted = waiter.open.era;
        let slot = SlotKey {
            key: waiter.key.clone(),
            era: self.server.map_or(wanted, |it| it.opened_for(wanted)),
        };
        if let Some(place) = self.slots.get_mut(&slot) {
            if place.dead {
                return Placement::Refused(
                    match self.rules.keeps_state && slot.key.is_of_session() {
                        true => LeaseRefusal::StateLost,
                        false => LeaseRefusal::Dead,
                    },
                );
            }
            if let Some(process) = place.process {
                return match self.processes.get_mut(&process) {
                    Some(entry) if matches!(entry.duty, ProcessState::Serving { .. }) => {
                        entry.users += 1;
                        Placement::Granted(process)
                    }
                    _ => Placement::Waits(WaitReason::Start),
                };
            }
            if let Some(until) = place.delayed(now) {
                return Placement::Waits(WaitReason::Delay(until));
            }
        }
        if let Some(process) = self.returned(&slot, &waiter.open) {
            return self.lease_again(process, slot, waiter, now, actions);
        }
        if self.is_trial(&slot) && !self.has_room() {
            // No second process can be started to test the handshake. So the server is treated as modern only, and the request
            // gets a modern process.
            self.settle_on_modern(&slot);
            return self.place(waiter, now, actions);
        }
        self.start(slot, &waiter.open, true, now, actions)
    }

    /// Returns a kept process that the same principal leased before and that was opened in the same way. Processes of other
    /// principals are not used, since messages about unfinished work for the former request could reach the wrong client.
    fn returned(&self, slot: &SlotKey, open: &OpenAs) -> Option<ProcessId> {
        let ProcessKey::Exclusive(_) = slot.key else {
            return None;
        };
        let fits = |entry: &PoolProcess| match &entry.duty {
            ProcessState::Returned { open: told, era } => {
                *era == slot.era
                    && told.principal == open.principal
                    && told.same_handshake(open, *era)
            }
            _ => false,
        };
        let mut all = self.processes.iter();
        all.find_map(|(process, entry)| fits(entry).then_some(*process))
    }

    fn lease_again(
        &mut self,
        process: ProcessId,
        slot: SlotKey,
        waiter: &QueuedRequest,
        now: Instant,
        actions: &mut Vec<PoolAction>,
    ) -> Placement {
        let principal = waiter.open.principal.as_ref();
        if self.is_full_for(&waiter.open) && !self.make_room_for(principal, now, actions) {
            return Placement::Waits(WaitReason::Place(PoolLimit::Principal));
        }
        if let Some(entry) = self.processes.get_mut(&process) {
            entry.users = 1;
            entry.principal.clone_from(&waiter.open.principal);
            entry.duty = ProcessState::Serving {
                slot: slot.clone(),
                since: now,
            };
        }
        let mut place = PoolSlot::new(Arc::clone(&waiter.open), now);
        place.process = Some(process);
        self.slots.insert(slot, place);
        Placement::Granted(process)
    }

    /// Starts a process in an empty slot, if that is possible now. `waits`: true if a request waits for the process.
    fn start(
        &mut self,
        slot: SlotKey,
        open: &Arc<OpenAs>,
        waits: bool,
        now: Instant,
        actions: &mut Vec<PoolAction>,
    ) -> Placement {
        if self.retired {
            return Placement::Refused(LeaseRefusal::Retired);
        }
        if !self.restarting.is_empty() || (self.server.is_none() && self.scout.is_some()) {
            return Placement::Waits(WaitReason::Start);
        }
        match self.breaker.admits(now) {
            StartDecision::Yes => {}
            StartDecision::Wait => return Placement::Waits(WaitReason::Start),
            StartDecision::Not(until) => {
                return Placement::Refused(LeaseRefusal::Unavailable {
                    retry_after: until - now,
                });
            }
        }
        let full = !slot.key.is_shared() && self.is_full_for(open);
        if full && !(waits && self.make_room_for(open.principal.as_ref(), now, actions)) {
            return Placement::Waits(WaitReason::Place(PoolLimit::Principal));
        }
        let spare = self.spare();
        if !self.has_room() {
            self.make_room(waits, now, actions);
            return Placement::Waits(WaitReason::Place(PoolLimit::Processes));
        }
        self.breaker.attempted(now);
        let process = spare.unwrap_or_else(|| self.new_process());
        // The slots of all backends share the same subscriptions and log level.
        let lasting = self.of_replicas(&slot);
        let place = self
            .slots
            .entry(slot.clone())
            .or_insert_with(|| PoolSlot::lasting(Arc::clone(open), lasting, now));
        place.process = Some(process);
        place.open = Arc::clone(open);
        place.not_before = None;
        place.not_filled_before = None;
        let order = Order {
            slot: slot.clone(),
            open: Arc::clone(open),
            replay_state: Arc::clone(&place.replay_state),
            server: self.server,
            restart: place.ended.take(),
        };
        if let Some(reason) = order.restart {
            self.last_restart = Some(UnplannedRestart { reason, at: now });
        }
        let entry = PoolProcess {
            duty: ProcessState::Starting(slot.clone()),
            born: self.processes.get(&process).map_or(now, |it| it.born),
            installing: false,
            users: 0,
            idle_since: now,
            principal: match slot.key {
                ProcessKey::Shared | ProcessKey::Replica(_) => None,
                ProcessKey::Principal(name) => Some(name),
                ProcessKey::Session(_) | ProcessKey::Exclusive(_) => open.principal.clone(),
            },
        };
        self.processes.insert(process, entry);
        if self.server.is_none() {
            self.scout = Some(process);
        }
        actions.push(match spare {
            Some(_) => PoolAction::Adopt { process, order },
            None => PoolAction::Start { process, order },
        });
        Placement::Waits(WaitReason::Start)
    }

    /// Starts processes in the slots that are to have one without a request.
    pub(super) fn fill_eagerly(&mut self, now: Instant, actions: &mut Vec<PoolAction>) {
        let eager: Vec<_> = self
            .slots
            .iter()
            .filter(|(_, slot)| {
                slot.eager && slot.process.is_none() && !slot.dead && !slot.is_failing(now)
            })
            .map(|(key, slot)| (key.clone(), Arc::clone(&slot.open)))
            .collect();
        for (slot, open) in eager {
            // If the process cannot be started now, this is tried again at the next event or when its delay has ended.
            let _ = self.start(slot, &open, false, now, actions);
        }
    }

    /// Returns a running spare process, which can be opened.
    fn spare(&self) -> Option<ProcessId> {
        self.processes.iter().find_map(|(process, entry)| {
            matches!(entry.duty, ProcessState::Spare { runs: true }).then_some(*process)
        })
    }

    fn has_room(&self) -> bool {
        self.processes.len() < self.rules.max_processes || self.spare().is_some()
    }

    pub(super) fn new_process(&mut self) -> ProcessId {
        self.next_process += 1;
        self.next_process
    }

    /// Returns true if the principal has reached its maximum number of processes.
    fn is_full_for(&self, open: &OpenAs) -> bool {
        let Some(principal) = &open.principal else {
            return false;
        };
        let counts = |entry: &&PoolProcess| {
            entry.principal.as_ref() == Some(principal)
                && !matches!(entry.duty, ProcessState::Stopping)
        };
        self.processes.values().filter(counts).count() >= self.rules.max_per_principal
    }
}
