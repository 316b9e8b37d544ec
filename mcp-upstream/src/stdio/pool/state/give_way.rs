//! Room for those who wait: processes nobody has end first, then those of sessions whose clients are away.
//!
//! Many clients never end their session: they are simply gone, and their processes would stay for `idle_stop`. While
//! somebody waits for a place the pool asks whose clients are away ([`State::to_ask`]) and says so ([`Event::Away`]);
//! only that event lets a process give way, so that what is decided by is never old. A process with a call in flight is
//! leased, and one with an open question has a client that is not away, so neither gives way. What lasts in its place is
//! kept: if the session comes back, its next process is opened as this one was, and told again.
//!
//! A principal's process has no one session and does not give way.
//!
//! [`Event::Away`]: super::Event::Away

use std::sync::Arc;

use tokio::time::Instant;

use super::super::key::Key;
use super::super::rules::AWAY;
use super::{Action, Duty, ProcessId, State, StopReason};
use crate::stdio::link::Inbound;

/// Who needs room, and who may make it.
#[derive(Debug, Default)]
pub(super) struct Room {
    /// Somebody waits for a place.
    wanted: bool,
    /// Processes on their way out whose places no waiter counts on yet.
    freeing: usize,
    /// Processes whose clients are away, those that are so longest first. Known only while that is told.
    away: Vec<(Instant, ProcessId)>,
    /// When the next of them will have been away for long enough.
    next: Option<Instant>,
}

impl Room {
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

impl State {
    /// Waiters are about to be placed.
    pub(super) fn count_room(&mut self) {
        let stopping = self.processes.values();
        let stopping = stopping.filter(|it| matches!(it.duty, Duty::Stopping));
        self.room.freeing = stopping.count();
        self.room.wanted = false;
    }

    /// The processes whose clients may be away: whoever hears them knows. None while nobody waits for a place.
    pub(in crate::stdio::pool) fn to_ask(&self) -> Vec<(ProcessId, Arc<dyn Inbound>)> {
        if !self.room.wanted {
            return Vec::new();
        }
        let sessions = self.processes.iter().filter_map(|(process, entry)| {
            let Duty::Serving { slot, .. } = &entry.duty else {
                return None;
            };
            let unused = entry.users == 0 && matches!(slot.key, Key::Session(_));
            let place = self.slots.get(slot).filter(|_| unused)?;
            Some((*process, Arc::clone(place.open.inbound.as_ref()?)))
        });
        sessions.collect()
    }

    /// When the next process may give way, while somebody waits for that.
    pub(super) fn room_at(&self) -> Option<Instant> {
        self.room.next.filter(|_| self.room.wanted)
    }

    /// Sees to it that a process ends for one who needs a process, if any may: one that is on its way out already, one
    /// that is nobody's, or, for one who waits for it, one whose client is away.
    pub(super) fn make_room(&mut self, waits: bool, now: Instant, actions: &mut Vec<Action>) {
        self.room.wanted |= waits;
        if self.room.freeing == 0
            && !self.end_nobodys(now, actions)
            && !(waits && self.give_way(None, now, actions))
        {
            return;
        }
        self.room.freeing -= 1;
    }

    /// The same for one whose principal has as many as it may. Answers whether one of them ends.
    pub(super) fn make_room_for(
        &mut self,
        principal: Option<&Arc<str>>,
        now: Instant,
        actions: &mut Vec<Action>,
    ) -> bool {
        self.room.wanted = true;
        self.give_way(principal, now, actions)
    }

    fn end_nobodys(&mut self, now: Instant, actions: &mut Vec<Action>) -> bool {
        let nobodys = self.processes.iter().find_map(|(process, entry)| {
            matches!(entry.duty, Duty::Returned { .. }).then_some(*process)
        });
        if let Some(process) = nobodys {
            self.room.freeing += 1;
            self.stop(process, StopReason::Surplus, now, actions);
        }
        nobodys.is_some()
    }

    /// Ends the process whose client has been away longest, of that principal if one is given.
    fn give_way(
        &mut self,
        principal: Option<&Arc<str>>,
        now: Instant,
        actions: &mut Vec<Action>,
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
