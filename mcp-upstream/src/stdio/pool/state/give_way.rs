//! Ends processes for waiting requests: unowned processes first, then those of sessions with inactive clients.
//!
//! Many clients never end their session, and their processes would stay for `idle_stop`. While a request waits for a slot, the
//! pool determines which clients are inactive ([`PoolStateMachine::to_ask`]) and reports them ([`PoolEvent::Away`]); only that
//! event lets a session's process end early, so that decisions never use outdated data. A process with a call in flight is
//! leased, and one with an open question has an active client, so neither is ended. The slot's lasting requests are kept: if
//! the session becomes active again, its next process is opened in the same way, and gets them again.
//!
//! A principal's process belongs to no single session and is not ended for a waiting request.
//!
//! [`PoolEvent::Away`]: super::PoolEvent::Away

use std::sync::Arc;

use tokio::time::Instant;

use super::super::key::ProcessKey;
use super::super::rules::AWAY;
use super::{Duty, PoolAction, PoolStateMachine, ProcessId, StopReason};
use crate::stdio::link::Inbound;

/// Demand for free slots, and the processes that may be ended for it.
#[derive(Debug, Default)]
pub(super) struct RoomDemand {
    /// True while a request waits for a slot.
    wanted: bool,
    /// Number of ending processes whose slots no waiter counts on yet.
    freeing: usize,
    /// Processes with inactive clients, longest inactivity first. Filled only while [`super::PoolEvent::Away`] is handled.
    away: Vec<(Instant, ProcessId)>,
    /// Time when the next client will have been inactive for long enough.
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
    /// Resets the demand and counts ending processes, before waiters are served.
    pub(super) fn count_room(&mut self) {
        let stopping = self.processes.values();
        let stopping = stopping.filter(|it| matches!(it.duty, Duty::Stopping));
        self.room.freeing = stopping.count();
        self.room.wanted = false;
    }

    /// Processes whose clients may be inactive, with the handlers that report since when. Empty unless a request waits for a
    /// slot.
    pub(in crate::stdio::pool) fn to_ask(&self) -> Vec<(ProcessId, Arc<dyn Inbound>)> {
        if !self.room.wanted {
            return Vec::new();
        }
        let sessions = self.processes.iter().filter_map(|(process, entry)| {
            let Duty::Serving { slot, .. } = &entry.duty else {
                return None;
            };
            let unused = entry.users == 0 && matches!(slot.key, ProcessKey::Session(_));
            let place = self.slots.get(slot).filter(|_| unused)?;
            Some((*process, Arc::clone(place.open.inbound.as_ref()?)))
        });
        sessions.collect()
    }

    /// Time when the next process may be ended, while a request waits for that.
    pub(super) fn room_at(&self) -> Option<Instant> {
        self.room.next.filter(|_| self.room.wanted)
    }

    /// Frees a slot for one process, if possible: counts a process that is already ending, or ends an unowned process or, if
    /// `waits` is set, a process with an inactive client.
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

    /// Frees a slot within a principal's limit. Returns true if a process of the principal ends.
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
            matches!(entry.duty, Duty::Returned { .. }).then_some(*process)
        });
        if let Some(process) = nobodys {
            self.room.freeing += 1;
            self.stop(process, StopReason::Surplus, now, actions);
        }
        nobodys.is_some()
    }

    /// Ends the process whose client has been inactive longest; with `principal`, only a process of that principal. Returns
    /// false if there is none.
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
                    && matches!(entry.duty, Duty::Serving { .. })
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
