//! Bookkeeping of the session table: its sessions, their principals, their memory, and the order in which they are closed.
//! Plain data without a lock or a clock.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use tokio::time::Instant;

use crate::session::SessionId;

pub(super) type Principal = Option<Arc<str>>;
type ByTime = BTreeSet<(Instant, SessionId)>;

#[derive(Debug, Default)]
pub(super) struct Index {
    known: HashMap<SessionId, IndexEntry>,
    bytes: usize,
    /// Sessions by the time at which they must be checked for expiry.
    by_due: ByTime,
    principals: HashMap<Principal, Owned>,
    /// Pairs (number of sessions, principal) and (bytes, principal), to find the principal that has the most.
    by_sessions: BTreeSet<(usize, Principal)>,
    by_bytes: BTreeSet<(usize, Principal)>,
}

#[derive(Debug)]
struct IndexEntry {
    /// Most recent use of the session that was reported to the index. Later uses may not be reported yet.
    seen: Instant,
    due: Instant,
    principal: Principal,
    bytes: usize,
    aside: bool,
}

/// Sessions of one principal.
#[derive(Debug, Default)]
struct Owned {
    bytes: usize,
    candidates: ByTime,
    /// Sessions that had an open stream when they were last checked. They are excluded from the search for sessions to close.
    aside: ByTime,
}

/// Number of sessions, and their memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct SessionUsage {
    pub(super) sessions: usize,
    pub(super) bytes: usize,
}

impl Index {
    /// Sessions and bytes of all principals.
    pub(super) fn held(&self) -> SessionUsage {
        SessionUsage {
            sessions: self.known.len(),
            bytes: self.bytes,
        }
    }

    /// Sessions and bytes of one principal.
    pub(super) fn held_by(&self, principal: &Principal) -> SessionUsage {
        let owned = self.principals.get(principal);
        owned.map(Owned::held).unwrap_or_default()
    }

    /// The principal with the most sessions.
    pub(super) fn most_sessions(&self) -> Principal {
        let most = self.by_sessions.last();
        most.and_then(|(_, principal)| principal.clone())
    }

    /// The principal whose sessions use the most bytes.
    pub(super) fn most_bytes(&self) -> Principal {
        let most = self.by_bytes.last();
        most.and_then(|(_, principal)| principal.clone())
    }

    /// The session that must be checked for expiry first, and the time of that check.
    pub(super) fn first_due(&self) -> Option<(Instant, SessionId)> {
        self.by_due.first().cloned()
    }

    /// Adds a session to the index.
    pub(super) fn insert(
        &mut self,
        id: SessionId,
        principal: Principal,
        bytes: usize,
        seen: Instant,
        due: Instant,
    ) {
        self.by_due.insert((due, id.clone()));
        self.bytes += bytes;
        self.change(&principal, |owned| {
            owned.bytes += bytes;
            owned.candidates.insert((seen, id.clone()));
        });
        let known = IndexEntry {
            seen,
            due,
            principal,
            bytes,
            aside: false,
        };
        self.known.insert(id, known);
    }

    pub(super) fn remove(&mut self, id: &SessionId) {
        let Some(known) = self.known.remove(id) else {
            return;
        };
        self.by_due.remove(&(known.due, id.clone()));
        self.bytes -= known.bytes;
        self.change(&known.principal, |owned| {
            owned.bytes -= known.bytes;
            owned.of(known.aside).remove(&(known.seen, id.clone()));
        });
    }

    /// Records the memory of a session in the index, in bytes. Returns false if the session is not in the index.
    pub(super) fn book(&mut self, id: &SessionId, bytes: usize) -> bool {
        let Some(known) = self.known.get_mut(id) else {
            return false;
        };
        let before = std::mem::replace(&mut known.bytes, bytes);
        let principal = known.principal.clone();
        self.bytes = self.bytes - before + bytes;
        self.change(&principal, |owned| {
            owned.bytes = owned.bytes - before + bytes;
        });
        true
    }

    /// Updates the time of a session's last use, and the time of its next check.
    pub(super) fn see(&mut self, id: &SessionId, used: Instant, due: Instant) {
        let Some(known) = self.known.get_mut(id) else {
            return;
        };
        let seen = std::mem::replace(&mut known.seen, used);
        let was_due = std::mem::replace(&mut known.due, due);
        self.by_due.remove(&(was_due, id.clone()));
        self.by_due.insert((due, id.clone()));
        if let Some(owned) = self.principals.get_mut(&known.principal) {
            let own = owned.of(known.aside);
            own.remove(&(seen, id.clone()));
            own.insert((used, id.clone()));
        }
    }

    /// Excludes a session from the search for sessions to close, or includes it again.
    pub(super) fn set_aside(&mut self, id: &SessionId, aside: bool) {
        let Some(known) = self.known.get_mut(id) else {
            return;
        };
        let entry = (known.seen, id.clone());
        if let Some(owned) = self.principals.get_mut(&known.principal) {
            owned.of(known.aside).remove(&entry);
            owned.of(aside).insert(entry);
        }
        known.aside = aside;
    }

    /// Number of sessions of a principal that the search for sessions to close includes.
    pub(super) fn candidates(&self, principal: &Principal) -> usize {
        let owned = self.principals.get(principal);
        owned.map_or(0, |owned| owned.candidates.len())
    }

    pub(super) fn oldest_candidate(&self, principal: &Principal) -> Option<(Instant, SessionId)> {
        self.principals.get(principal)?.candidates.first().cloned()
    }

    /// The oldest session of a principal that is excluded from the search for sessions to close, other than `spared`.
    pub(super) fn oldest_aside(
        &self,
        principal: &Principal,
        spared: Option<&SessionId>,
    ) -> Option<SessionId> {
        let mut aside = self.principals.get(principal)?.aside.iter();
        let (_, id) = aside.find(|(_, id)| Some(id) != spared)?;
        Some(id.clone())
    }

    /// Changes the sessions of a principal, and updates the principal's rank by number of sessions and by bytes.
    fn change(&mut self, principal: &Principal, change: impl FnOnce(&mut Owned)) {
        let owned = self.principals.entry(principal.clone()).or_default();
        let before = owned.held();
        change(owned);
        let after = owned.held();
        if before.sessions != after.sessions {
            self.by_sessions
                .remove(&(before.sessions, principal.clone()));
            if after.sessions > 0 {
                self.by_sessions.insert((after.sessions, principal.clone()));
            }
        }
        if before.bytes != after.bytes {
            self.by_bytes.remove(&(before.bytes, principal.clone()));
            if after.sessions > 0 {
                self.by_bytes.insert((after.bytes, principal.clone()));
            }
        }
        if after.sessions == 0 {
            self.principals.remove(principal);
        }
    }

    /// Asserts that the collections of the index are consistent, with a total of `sessions` sessions.
    #[cfg(test)]
    pub(super) fn balance(&self, sessions: usize) {
        let owned = || self.principals.values();
        let all = self.held();
        assert_eq!(all.sessions, sessions);
        assert_eq!(self.by_due.len(), sessions);
        assert_eq!(
            owned().map(|it| it.held().sessions).sum::<usize>(),
            sessions
        );
        assert_eq!(owned().map(|it| it.bytes).sum::<usize>(), all.bytes);
        let booked = self.known.values().map(|known| known.bytes);
        assert_eq!(booked.sum::<usize>(), all.bytes);
        for (ranked, total) in [(&self.by_sessions, sessions), (&self.by_bytes, all.bytes)] {
            assert_eq!(ranked.len(), self.principals.len());
            assert_eq!(ranked.iter().map(|(held, _)| held).sum::<usize>(), total);
        }
    }
}

impl Owned {
    fn held(&self) -> SessionUsage {
        SessionUsage {
            sessions: self.candidates.len() + self.aside.len(),
            bytes: self.bytes,
        }
    }

    fn of(&mut self, aside: bool) -> &mut ByTime {
        if aside {
            &mut self.aside
        } else {
            &mut self.candidates
        }
    }
}
