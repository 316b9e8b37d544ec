//! Sessions in this process.
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
//! answer. It lives [`StoreLimits::unused_ttl`] only. Any request in the session, or an open stream, gives it the usual life.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use dashmap::DashMap;
use tokio::time::Instant;

use super::released::Released;
use super::store::{Created, SessionStore, StoreError};
use super::{Binding, ClientFacts, Session, SessionId, SessionKey};

mod index;

use index::{Index, Principal};

/// The most entries one sweep looks at: it holds the lock that opening a session needs.
const SWEEP_MAX: usize = 10_000;
/// What ids made here say about their replica. With sessions in one process there is one.
const REPLICA: u32 = 0;
/// A session whose weight has changed by less, in bytes, keeps the one that is booked: 1 KiB.
const UNBOOKED_MAX: usize = 1024;

/// The embedded store.
#[derive(Debug)]
pub struct MemoryStore {
    sessions: DashMap<SessionId, Arc<Session>>,
    /// Taken by create, weigh, remove and expiry, never by a lookup, and before the locks of a session. A std mutex: nothing
    /// awaits under it.
    index: Mutex<Index>,
    limits: StoreLimits,
    key: SessionKey,
    released: Arc<Released>,
}

/// Bounds of the table.
#[derive(Debug, Clone, Copy)]
pub struct StoreLimits {
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

/// What room is made for.
#[derive(Debug, Clone, Copy, Default)]
struct Coming {
    sessions: usize,
    bytes: usize,
}

impl MemoryStore {
    /// An empty table, whose ids are sealed with that key.
    pub fn new(limits: StoreLimits, key: SessionKey) -> Self {
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

#[async_trait]
impl SessionStore for MemoryStore {
    async fn create(
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

    async fn get(&self, id: &str, now: Instant) -> Result<Option<Arc<Session>>, StoreError> {
        let Some(session) = self.peek(id) else {
            return Ok(None);
        };
        // Expired but not swept yet: gone for the client.
        if session.idle_for(self.limits.ttl, now) {
            return Ok(None);
        }
        Ok(Some(session))
    }

    fn peek(&self, id: &str) -> Option<Arc<Session>> {
        self.sessions.get(id).map(|entry| Arc::clone(&entry))
    }

    fn weigh(&self, session: &Session, now: Instant) -> usize {
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

    async fn remove(&self, id: &str) -> Result<bool, StoreError> {
        let Some(session) = self.peek(id) else {
            return Ok(false);
        };
        Ok(self.close(&mut self.index(), session.id()))
    }

    async fn evict_expired(&self, now: Instant) -> usize {
        let StoreLimits {
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

    fn count(&self) -> usize {
        self.sessions.len()
    }

    fn bytes(&self) -> usize {
        self.index().held().bytes
    }
}

#[cfg(test)]
mod tests;
