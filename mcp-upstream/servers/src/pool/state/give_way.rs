//! Ends processes to free slots for waiting requests: first processes that no client uses, then those of sessions with inactive
//! clients.
//!
//! Many clients never end their session, and their processes would stay for `idle_stop`. While a request waits for a slot, the
//! pool determines which clients are inactive ([`PoolStateMachine::to_ask`]) and reports them ([`PoolEvent::Away`]). A session's
//! process is ended early only while this event is handled, so that the decision never uses outdated data. A process that runs
//! a call is leased, and the client of a process that waits for an answer counts as active, so neither is ended. The
//! subscriptions and log level stay in the slot: if the session becomes active again, its next process is opened in the same
//! way, and gets them again.
//!
//! A principal's process belongs to no single session and is not ended for a waiting request.
//!
//! [`PoolEvent::Away`]: super::PoolEvent::Away

use std::sync::Arc;

use tokio::time::Instant;

use super::super::rules::AWAY;
use super::{PoolAction, PoolStateMachine, ProcessId, ProcessState, StopReason};
use crate::key::ProcessKey;
use crate::link::Inbound;

/// The demand for free slots, and the processes that may be ended to meet it.
#[derive(Debug, Default)]
pub(super) struct RoomDemand {
    /// True while a request waits for a free slot.
    wanted: bool,
    /// Number of ending processes whose slots are not yet intended for a waiting request.
    freeing: usize,
    /// Processes with inactive clients, ordered by the length of the inactivity, the longest first. Empty except while
    /// [`super::PoolEvent::Away`] is handled.
    away: Vec<(Instant, ProcessId)>,
    /// Time at which the next client will have been inactive long enough for its process to be ended.
    next: Option<Instant>,
}

impl RoomDemand {
    pub(super) fn note_away(&mut self, since: Vec<(ProcessId, Instant)>, now: Instant) {
        let swapped = since.into_iter().map(|(process, since)| (since, process));
        self.away = swapped.collect();
        self.away.sort_unstable();
        let due = self.away.iter().map(|(since, _)| *since + AWAY);
        self.next = due.filter(|at| *at > now).min();
    }

    pub(super) fn forget_away(&mut self) {
        self.away.clear();
    }
}

impl PoolStateMachine {
    /// Resets the demand and counts the processes that are ending. Called before waiting requests are served.
    pub(super) fn count_room(&mut self) {
        let stopping = self.processes.values();
        let stopping = stopping.filter(|it| matches!(it.duty, ProcessState::Stopping));
        self.room.freeing = stopping.count();
        self.room.wanted = false;
    }

    /// Returns the processes whose clients may be inactive, each with the handler that reports the time of the last activity.
    /// Empty unless a request waits for a slot.
    pub(in crate::pool) fn to_ask(&self) -> Vec<(ProcessId, Arc<dyn Inbound>)> {
        if !self.room.wanted {
            return Vec::new();
        }
        let sessions = self.processes.iter().filter_map(|(process, entry)| {
            let ProcessState::Serving { slot, .. } = &entry.duty else {
                return None;
            };
            let unused = entry.users == 0 && matches!(slot.key, ProcessKey::Session(_));
            let place = self.slots.get(slot).filter(|_| unused)?;
            Some((*process, Arc::clone(place.open.inbound.as_ref()?)))
        });
        sessions.collect()
    }

    /// Returns the time at which the next process may be ended, if a request waits for that.
    pub(super) fn room_at(&self) -> Option<Instant> {
        self.room.next.filter(|_| self.room.wanted)
    }

    /// Frees a slot for one process, if possible. A process that is already ending is counted for it; otherwise a process that no
    /// client uses is ended or, if `waits` is set, a process with an inactive client.
    pub(super) fn make_room(&mut self, waits: bool, now: Instant, actions: &mut Vec<PoolAction>) {
        self.room.wanted |= waits;
        if self.room.freeing == 0
            && !self.end_nobodys(now, actions)
            && !(waits && self.give_way(None, now, actions))
        {
            return;
        }
        self.room.freeing -= 1;
    }

    /// Frees a slot within a principal's limit. Returns true if one of the principal's processes was ended for it.
    pub(super) fn make_room_for(
        &mut self,
        principal: Option<&Arc<str>>,
        now: Instant,
        actions: &mut Vec<PoolAction>,
    ) -> bool {
        self.room.wanted = true;
        self.give_way(principal, now, actions)
    }

    fn end_nobodys(&mut self, now: Instant, actions: &mut Vec<PoolAction>) -> bool {
        let nobodys = self.processes.iter().find_map(|(process, entry)| {
            matches!(entry.duty, ProcessState::Returned { .. }).then_some(*process)
        });
        if let Some(process) = nobodys {
            self.room.freeing += 1;
            self.stop(process, StopReason::Surplus, now, actions);
        }
        nobodys.is_some()
    }

    /// Ends the process whose client has been inactive for the longest time. With `principal`, only processes of that principal
    /// are considered. Returns false if there is no such process.
    fn give_way(
        &mut self,
        principal: Option<&Arc<str>>,
        now: Instant,
        actions: &mut Vec<PoolAction>,
    ) -> bool {
        let mut away = self.room.away.iter();
        let gives_way = away.position(|(since, process)| {
            let entry = self.processes.get(process);
            entry.is_some_and(|entry| {
                *since + AWAY <= now
                    && entry.users == 0
                    && matches!(entry.duty, ProcessState::Serving { .. })
                    && principal.is_none_or(|it| entry.principal.as_ref() == Some(it))
            })
        });
        let Some(place) = gives_way else {
            return false;
        };
        let (_, process) = self.room.away.remove(place);
        self.vacate(process, now, false);
        self.room.freeing += 1;
        self.stop(process, StopReason::GaveWay, now, actions);
        true
    }
}
