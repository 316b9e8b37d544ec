//! Which sessions go when the table is full, and when their time is up.
//!
//! The table is bounded twice, in sessions and in bytes ([`Session::weight`]), for each principal and in total. Who goes
//! when a bound is reached: within a principal its least recently used session without an open stream, and one with an open
//! stream only if there is no other; where the total is reached, that session of the principal that holds the most of what
//! there is too much of, so that one client cannot push the others out. Sessions found with an open stream are set aside,
//! so that the search does not meet them again before their last reader has left.
//!
//! A session whose client says nothing after `initialize` has probably lost its client, which may never have got the
//! answer. It lives [`TableLimits::unused_ttl`] only. Any request in the session, or an open stream, gives it the usual life.

use std::sync::{Arc, PoisonError};

use tokio::time::Instant;

use super::index::{Index, Principal};
use super::{SessionTable, TableLimits};
use crate::session::{Session, SessionId};

/// The most entries one sweep looks at: it holds the lock that opening a session needs.
const SWEEP_MAX: usize = 10_000;
/// A session whose weight has changed by less, in bytes, keeps the one that is booked: 1 KiB.
const UNBOOKED_MAX: usize = 1024;

/// What room is made for.
#[derive(Debug, Clone, Copy, Default)]
struct Coming {
    sessions: usize,
    bytes: usize,
}

impl SessionTable {
    /// Enters a session into the table, and answers how many others had to go.
    pub(super) fn enter(&self, session: &Arc<Session>, now: Instant) -> usize {
        let principal = &session.binding().principal;
        let coming = Coming {
            sessions: 1,
            bytes: session.weight(),
        };
        session.book(coming.bytes);
        let due = now + self.limits.unused_ttl.min(self.limits.ttl);
        let id = session.id().clone();
        let mut index = self.index();
        let evicted = self.make_room(&mut index, principal, coming, None, now);
        index.insert(id.clone(), principal.clone(), coming.bytes, now, due);
        self.sessions.insert(id, Arc::clone(session));
        evicted
    }

    /// To be called after a session has come to hold more or less. Closes other sessions where that is too much together,
    /// and answers how many.
    pub(super) fn weigh(&self, session: &Session, now: Instant) -> usize {
        let changed = |weight: usize| weight.abs_diff(session.booked()) >= UNBOOKED_MAX;
        if !changed(session.weight()) {
            return 0;
        }
        let mut index = self.index();
        // Again, because another may just have booked it.
        let weight = session.weight();
        if !index.book(session.id(), weight) {
            return 0;
        }
        session.book(weight);
        let principal = &session.binding().principal;
        let spared = Some(session.id());
        self.make_room(&mut index, principal, Coming::default(), spared, now)
    }

    /// Closes the sessions whose time is up and answers how many, and which of those it looked at live on: each session
    /// is among them about once in its lifetime.
    pub(super) fn sweep(&self, now: Instant) -> (usize, Vec<SessionId>) {
        let TableLimits {
            ttl, unused_ttl, ..
        } = self.limits;
        let (mut evicted, mut used_on) = (0, Vec::new());
        let mut index = self.index();
        for _ in 0..SWEEP_MAX {
            let Some((due, id)) = index.first_due() else {
                break;
            };
            if now < due {
                break;
            }
            let used = self.sessions.get(&id).map(|session| {
                let ttl = match session.is_used() {
                    true => ttl,
                    false => unused_ttl.min(ttl),
                };
                let used = session.used_at(now);
                (used, used + ttl)
            });
            match used {
                Some((used, due)) if now < due => {
                    index.see(&id, used, due);
                    used_on.push(id);
                }
                _ => evicted += usize::from(self.evict(&mut index, &id)),
            }
        }
        (evicted, used_on)
    }

    pub(super) fn index(&self) -> std::sync::MutexGuard<'_, Index> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// When a session was last used; one that is gone from the map is as old as can be.
    fn used_at(&self, id: &SessionId, seen: Instant, now: Instant) -> Instant {
        self.sessions
            .get(id)
            .map_or(seen, |session| session.used_at(now))
    }

    /// Closes a session that its client did not end.
    fn evict(&self, index: &mut Index, id: &SessionId) -> bool {
        if self.store.is_some() {
            self.ended().push(id.clone());
        }
        self.close(index, id)
    }

    /// Closes a session.
    pub(super) fn close(&self, index: &mut Index, id: &SessionId) -> bool {
        index.remove(id);
        let removed = self.sessions.remove(id.as_str());
        if let Some((_, session)) = &removed {
            session.close();
        }
        removed.is_some()
    }

    /// Closes the least recently used session of a principal, one with an open stream only if all have one, and never
    /// `spared`.
    fn close_oldest_of(
        &self,
        index: &mut Index,
        principal: &Principal,
        spared: Option<&SessionId>,
        now: Instant,
    ) -> bool {
        let mut in_use = None;
        // Each turn that does not end here moves one entry forward or aside, so these turns have seen them all.
        for _ in 0..index.candidates(principal) {
            let Some((seen, id)) = index.oldest_candidate(principal) else {
                break;
            };
            if Some(&id) == spared || self.has_stream(&id) {
                index.set_aside(&id, true);
                continue;
            }
            let used = self.used_at(&id, seen, now);
            if used <= seen {
                return self.evict(index, &id);
            }
            index.see(&id, used, used + self.limits.ttl);
            in_use.get_or_insert(id);
        }
        // All of them are in use at this moment: the one that was oldest on the books goes.
        in_use
            .or_else(|| index.oldest_aside(principal, spared))
            .is_some_and(|id| self.evict(index, &id))
    }

    /// Whether a session has an open stream; if so, its end will be heard of through `released`.
    fn has_stream(&self, id: &SessionId) -> bool {
        self.sessions.get(id).is_some_and(|session| {
            session.streams().any_read() && session.set_aside(&self.released)
        })
    }

    /// Closes sessions until there is room for what comes of that principal, but never `spared`. Answers how many.
    fn make_room(
        &self,
        index: &mut Index,
        principal: &Principal,
        coming: Coming,
        spared: Option<&SessionId>,
        now: Instant,
    ) -> usize {
        for id in self.released.take() {
            index.set_aside(&id, false);
        }
        let limits = &self.limits;
        let mut evicted = 0;
        loop {
            let own = index.held_by(principal);
            let all = index.held();
            let too_many = |held: usize, max: usize| held + coming.sessions > max.max(1);
            let too_much = |held: usize, max: usize| held + coming.bytes > max;
            let from = if too_many(own.sessions, limits.per_principal)
                || own.sessions > 0 && too_much(own.bytes, limits.bytes_per_principal)
            {
                principal.clone()
            } else if too_many(all.sessions, limits.max) {
                index.most_sessions()
            } else if all.sessions > 0 && too_much(all.bytes, limits.bytes) {
                index.most_bytes()
            } else {
                break;
            };
            if !self.close_oldest_of(index, &from, spared, now) {
                break;
            }
            evicted += 1;
        }
        if let Some(spared) = spared {
            index.set_aside(spared, false);
        }
        evicted
    }
}
