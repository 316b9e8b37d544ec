//! Eviction of sessions when the table is full, and expiry.
//!
//! The table has bounds on sessions and on bytes ([`Session::weight`]), for each principal and in total. When a principal
//! reaches its bound, its least recently used session without an open stream is closed, or one with an open stream if there is
//! no other. When a total is reached, the session is chosen from the principal that has the most, so that one client cannot
//! evict the sessions of others. Sessions found with an open stream are removed from the search order until their last reader
//! disconnects.
//!
//! A session without any request after `initialize` has probably lost its client, which may never have received the response.
//! Its lifetime is [`TableLimits::unused_ttl`]. Any request in the session, or an open stream, gives it the usual lifetime.

use std::sync::{Arc, PoisonError};

use tokio::time::Instant;

use super::index::{Index, Principal};
use super::{SessionTable, TableLimits};
use crate::session::{Session, SessionId};

/// Maximum number of entries that one sweep checks. Opening a session waits meanwhile, since both need the same lock.
const SWEEP_MAX: usize = 10_000;
/// Change of a session's weight, in bytes, below which the index is not updated: 1 KiB.
const UNBOOKED_MAX: usize = 1024;

/// Numbers of sessions and bytes that are about to be added. Other sessions are closed to make room for them.
#[derive(Debug, Clone, Copy, Default)]
struct RoomRequest {
    sessions: usize,
    bytes: usize,
}

impl SessionTable {
    /// Adds a session to the table. Returns the number of sessions that were closed to make room for it.
    pub(super) fn enter(&self, session: &Arc<Session>, now: Instant) -> usize {
        let principal = &session.binding().principal;
        let coming = RoomRequest {
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
        drop(index);
        self.doubt_until_settled(session.id());
        evicted
    }

    /// Updates the stored weight of a session; to be called after its weight may have changed. If all sessions together then
    /// exceed their maximum memory, others are closed. Returns the number of closed sessions.
    pub(super) fn weigh(&self, session: &Session, now: Instant) -> usize {
        let changed = |weight: usize| weight.abs_diff(session.recorded_weight()) >= UNBOOKED_MAX;
        if !changed(session.weight()) {
            return 0;
        }
        let mut index = self.index();
        // The weight is read again under the lock, since another request may just have stored a newer one.
        let weight = session.weight();
        if !index.book(session.id(), weight) {
            return 0;
        }
        session.book(weight);
        let principal = &session.binding().principal;
        let spared = Some(session.id());
        self.make_room(&mut index, principal, RoomRequest::default(), spared, now)
    }

    /// Closes expired sessions. Returns their number, and the checked sessions that have not expired; a session is checked about
    /// once in its lifetime.
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

    /// Last use of a session; `seen` if the session is no longer in the map.
    fn used_at(&self, id: &SessionId, seen: Instant, now: Instant) -> Instant {
        self.sessions
            .get(id)
            .map_or(seen, |session| session.used_at(now))
    }

    /// Closes a session without its client's request, and lists its record for removal.
    fn evict(&self, index: &mut Index, id: &SessionId) -> bool {
        if self.store.is_some() {
            self.ended().push(id.clone());
        }
        self.close(index, id)
    }

    /// Closes a session. Returns true if it was in the table.
    pub(super) fn close(&self, index: &mut Index, id: &SessionId) -> bool {
        index.remove(id);
        let removed = self.sessions.remove(id.as_str());
        if let Some((_, session)) = &removed {
            session.close();
        }
        removed.is_some()
    }

    /// Removes from the table a session that another replica has claimed. This process, which is shutting down, still answers the
    /// session's calls. Returns true if the session was in the table.
    pub(super) fn hand_over(&self, id: &SessionId) -> bool {
        self.index().remove(id);
        let removed = self.sessions.remove(id.as_str());
        if let Some((_, session)) = &removed {
            session.hand_over();
        }
        removed.is_some()
    }

    /// Closes the least recently used session of a principal, but never `spared`. A session with an open stream is closed only
    /// if all sessions of the principal have one. Returns true if a session was closed.
    fn close_oldest_of(
        &self,
        index: &mut Index,
        principal: &Principal,
        spared: Option<&SessionId>,
        now: Instant,
    ) -> bool {
        let mut in_use = None;
        // Each iteration that does not return moves one entry to a later time or excludes it from the search, so the loop
        // visits all entries.
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
        // All sessions are in use now: the one that was oldest in the index is closed.
        in_use
            .or_else(|| index.oldest_aside(principal, spared))
            .is_some_and(|id| self.evict(index, &id))
    }

    /// Returns true if a session has an open stream. When its last reader disconnects, the session's id is sent through
    /// `released`.
    fn has_stream(&self, id: &SessionId) -> bool {
        self.sessions.get(id).is_some_and(|session| {
            session.streams().any_read() && session.set_aside(&self.released)
        })
    }

    /// Closes sessions until there is room for the additional sessions and bytes (`coming`) of a principal, but never `spared`.
    /// Returns the number of closed sessions.
    fn make_room(
        &self,
        index: &mut Index,
        principal: &Principal,
        coming: RoomRequest,
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
