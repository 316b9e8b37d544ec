//! The live sessions of this process, and the one place through which what is recorded of them changes.
//!
//! Looking one up touches a sharded map and one atomic. Order is kept lazily: the index remembers when each session was
//! last *seen by the index*, and an entry that turns out to have been used since goes back in under its newer time. So
//! neither expiry nor eviction ever walks the table; what they do is paid for by uses and by sessions that end.
//!
//! The table is bounded twice, in sessions and in bytes ([`Session::weight`]), for each principal and in total. Who goes
//! when a bound is reached: within a principal its least recently used session without an open stream, and one with an open
//! stream only if there is no other; where the total is reached, that session of the principal that holds the most of what
//! there is too much of, so that one client cannot push the others out. Sessions found with an open stream are set aside,
//! so that the search does not meet them again before their last reader has left.
//!
//! A session whose client says nothing after `initialize` has probably lost its client, which may never have got the
//! answer. It lives [`TableLimits::unused_ttl`] only. Any request in the session, or an open stream, gives it the usual life.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use dashmap::DashMap;
use tokio::time::Instant;

use super::patch::{PatchRefused, SessionPatch};
use super::released::Released;
use super::{Binding, ClientFacts, Session, SessionId, SessionKey};
use crate::stream::StoreError;

mod index;

use index::{Index, Principal};

/// The most entries one sweep looks at: it holds the lock that opening a session needs.
const SWEEP_MAX: usize = 10_000;
/// What ids made here say about their replica. With sessions in one process there is one.
const REPLICA: u32 = 0;
/// A session whose weight has changed by less, in bytes, keeps the one that is booked: 1 KiB.
const UNBOOKED_MAX: usize = 1024;

/// The live sessions of this process. An id is valid only while the table knows it.
#[derive(Debug)]
pub struct SessionTable {
    sessions: DashMap<SessionId, Arc<Session>>,
    /// Taken by create, weigh, remove and expiry, never by a lookup, and before the locks of a session. A std mutex: nothing
    /// awaits under it.
    index: Mutex<Index>,
    limits: TableLimits,
    key: SessionKey,
    released: Arc<Released>,
}

/// Bounds of the table.
#[derive(Debug, Clone, Copy)]
pub struct TableLimits {
    /// How long a session lives after its last use.
    pub ttl: Duration,
    /// How long a session lives that is not used after it was opened; no longer than `ttl`.
    pub unused_ttl: Duration,
    /// Sessions of all principals together.
    pub max: usize,
    /// Sessions of one principal.
    pub per_principal: usize,
    /// What the sessions of all principals hold together, in bytes.
    pub bytes: usize,
    /// What the sessions of one principal hold, in bytes.
    pub bytes_per_principal: usize,
}

/// What opening a session did.
#[derive(Debug)]
pub struct Created {
    /// The new session.
    pub session: Arc<Session>,
    /// Sessions that were closed to make room.
    pub evicted: usize,
}

/// What changing a session did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Committed {
    /// Something is different now.
    pub changed: bool,
    /// Sessions that were closed to make room.
    pub evicted: usize,
}

/// Why a session was not changed.
#[derive(Debug, thiserror::Error)]
pub enum CommitError {
    /// The session may not be changed like that.
    #[error(transparent)]
    Refused(#[from] PatchRefused),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// What room is made for.
#[derive(Debug, Clone, Copy, Default)]
struct Coming {
    sessions: usize,
    bytes: usize,
}

impl SessionTable {
    /// An empty table, whose ids are sealed with that key.
    pub fn new(limits: TableLimits, key: SessionKey) -> Self {
        Self {
            sessions: DashMap::new(),
            index: Mutex::default(),
            limits,
            key,
            released: Arc::default(),
        }
    }

    fn index(&self) -> std::sync::MutexGuard<'_, Index> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// When a session was last used; one that is gone from the map is as old as can be.
    fn used_at(&self, id: &SessionId, seen: Instant, now: Instant) -> Instant {
        self.sessions
            .get(id)
            .map_or(seen, |session| session.used_at(now))
    }

    fn close(&self, index: &mut Index, id: &SessionId) -> bool {
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
                return self.close(index, &id);
            }
            index.see(&id, used, used + self.limits.ttl);
            in_use.get_or_insert(id);
        }
        // All of them are in use at this moment: the one that was oldest on the books goes.
        in_use
            .or_else(|| index.oldest_aside(principal, spared))
            .is_some_and(|id| self.close(index, &id))
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

impl SessionTable {
    /// Opens a session, whose client may have said already what it is. A full table makes room, in sessions and in bytes;
    /// the new session is not refused for it. A session that is not used for a while after that ends.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when no id can be made, or the client said too much.
    pub async fn create(
        &self,
        binding: Binding,
        client: Option<ClientFacts>,
        now: Instant,
    ) -> Result<Created, StoreError> {
        let minted = self.key.mint(REPLICA, &binding, SystemTime::now());
        let id = minted.map_err(|error| StoreError(error.to_string()))?;
        let principal = binding.principal.clone();
        let session = Session::new(id.clone(), binding, now);
        if let Some(client) = client {
            let remembered = session.set_client(client);
            remembered.map_err(|error| StoreError(error.to_string()))?;
        }
        let session = Arc::new(session);
        let coming = Coming {
            sessions: 1,
            bytes: session.weight(),
        };
        session.book(coming.bytes);
        let due = now + self.limits.unused_ttl.min(self.limits.ttl);
        let mut index = self.index();
        let evicted = self.make_room(&mut index, &principal, coming, None, now);
        index.insert(id.clone(), principal, coming.bytes, now, due);
        self.sessions.insert(id, Arc::clone(&session));
        Ok(Created { session, evicted })
    }

    /// The session of that id, if it lives here. Does not wait, and is no use of the session.
    pub fn live(&self, id: &str) -> Option<Arc<Session>> {
        self.sessions.get(id).map(|entry| Arc::clone(&entry))
    }

    /// The session of that id if it is alive. Finding it is no use of it: that is the caller's to say, once it knows
    /// that the session is the client's ([`Session::touch`]).
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the store cannot be asked.
    pub async fn locate(&self, id: &str, now: Instant) -> Result<Option<Arc<Session>>, StoreError> {
        let live = self.live(id);
        // Expired but not swept yet: gone for the client.
        Ok(live.filter(|session| !session.idle_for(self.limits.ttl, now)))
    }

    /// Changes what is recorded of a session. Where the session then holds too much, other sessions of its principal are
    /// closed.
    ///
    /// # Errors
    ///
    /// [`CommitError`]: nothing was changed.
    pub async fn commit(
        &self,
        session: &Session,
        patch: SessionPatch,
        now: Instant,
    ) -> Result<Committed, CommitError> {
        let changed = session.apply(&patch)?;
        let evicted = self.weigh(session, now);
        Ok(Committed { changed, evicted })
    }

    /// To be called after a session has come to hold more or less. Closes other sessions where that is too much together,
    /// and answers how many.
    pub fn weigh(&self, session: &Session, now: Instant) -> usize {
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

    /// Ends a session. Answers whether it was there.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the store cannot be written.
    pub async fn remove(&self, id: &str) -> Result<bool, StoreError> {
        let Some(session) = self.live(id) else {
            return Ok(false);
        };
        Ok(self.close(&mut self.index(), session.id()))
    }

    /// Ends sessions whose time is up and answers how many; a large backlog takes several sweeps. Costs by the number
    /// ended, not by the number alive.
    pub async fn evict_expired(&self, now: Instant) -> usize {
        let TableLimits {
            ttl, unused_ttl, ..
        } = self.limits;
        let mut evicted = 0;
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
                Some((used, due)) if now < due => index.see(&id, used, due),
                _ => evicted += usize::from(self.close(&mut index, &id)),
            }
        }
        evicted
    }

    /// Sessions alive in this process.
    pub fn count(&self) -> usize {
        self.sessions.len()
    }

    /// What they hold, in bytes.
    pub fn bytes(&self) -> usize {
        self.index().held().bytes
    }
}

#[cfg(test)]
mod tests;
