//! Sessions in this process.
//!
//! Looking one up touches a sharded map and one atomic. Order is kept lazily: an index remembers when each session was
//! last *seen by the index*, and an entry that turns out to have been used since goes back in under its newer time. So
//! neither expiry nor eviction ever walks the table; what they do is paid for by uses and by sessions that end.
//!
//! Who goes when a table is full: within a principal its least recently used session without an open stream, and one
//! with an open stream only if there is no other; with the whole table full, that session of the principal that holds
//! the most, so that one client cannot push the others out. Sessions found with an open stream are set aside, so that
//! the search does not meet them again before their last reader has left.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use dashmap::DashMap;
use tokio::time::Instant;

use super::released::Released;
use super::store::{Created, SessionStore, StoreError};
use super::{Binding, Session, SessionId, SessionKey};

/// The most entries one sweep looks at: it holds the lock that opening a session needs.
const SWEEP_MAX: usize = 10_000;
/// What ids made here say about their replica. With sessions in one process there is one.
const REPLICA: u32 = 0;

/// The embedded store.
#[derive(Debug)]
pub struct MemoryStore {
    sessions: DashMap<SessionId, Arc<Session>>,
    /// Taken by create, remove and expiry, never by a lookup. A std mutex: nothing awaits under it.
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
    /// Sessions of all principals together.
    pub max: usize,
    /// Sessions of one principal.
    pub per_principal: usize,
}

type Principal = Option<Arc<str>>;
type ByAge = BTreeSet<(Instant, SessionId)>;

#[derive(Debug, Default)]
struct Index {
    known: HashMap<SessionId, Known>,
    all: ByAge,
    principals: HashMap<Principal, Held>,
    /// (sessions held, principal), to find the one that holds the most.
    by_count: BTreeSet<(usize, Principal)>,
}

#[derive(Debug)]
struct Known {
    /// When the index last saw it used.
    seen: Instant,
    principal: Principal,
    aside: bool,
}

/// The sessions of one principal.
#[derive(Debug, Default)]
struct Held {
    candidates: ByAge,
    /// Those that had an open stream when they were last looked at.
    aside: ByAge,
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

    /// Closes the least recently used session of a principal, one with an open stream only if all have one.
    fn close_oldest_of(&self, index: &mut Index, principal: &Principal, now: Instant) -> bool {
        let Some(candidates) = index.held(principal).map(|held| held.candidates.len()) else {
            return false;
        };
        let mut in_use = None;
        // Each turn that does not end here moves one entry forward or aside, so these turns have seen them all.
        for _ in 0..candidates {
            let Some((seen, id)) = index.oldest_candidate(principal) else {
                break;
            };
            if self.has_stream(&id) {
                index.set_aside(&id, true);
                continue;
            }
            let used = self.used_at(&id, seen, now);
            if used <= seen {
                return self.close(index, &id);
            }
            index.see(&id, used);
            in_use.get_or_insert(id);
        }
        // All of them are in use at this moment: the one that was oldest on the books goes.
        in_use
            .or_else(|| Some(index.held(principal)?.aside.first()?.1.clone()))
            .is_some_and(|id| self.close(index, &id))
    }

    /// Whether a session has an open stream; if so, its end will be heard of through `released`.
    fn has_stream(&self, id: &SessionId) -> bool {
        self.sessions.get(id).is_some_and(|session| {
            session.streams().any_read() && session.set_aside(&self.released)
        })
    }

    fn make_room(&self, index: &mut Index, principal: &Principal, now: Instant) -> usize {
        let mut evicted = 0;
        for id in self.released.take() {
            index.set_aside(&id, false);
        }
        let held = |index: &Index| index.held(principal).map_or(0, Held::len);
        while held(index) >= self.limits.per_principal.max(1)
            && self.close_oldest_of(index, principal, now)
        {
            evicted += 1;
        }
        while index.known.len() >= self.limits.max.max(1) {
            let Some((_, most)) = index.by_count.last().cloned() else {
                break;
            };
            if !self.close_oldest_of(index, &most, now) {
                break;
            }
            evicted += 1;
        }
        evicted
    }
}

#[async_trait]
impl SessionStore for MemoryStore {
    async fn create(&self, binding: Binding, now: Instant) -> Result<Created, StoreError> {
        let minted = self.key.mint(REPLICA, &binding, SystemTime::now());
        let id = minted.map_err(|error| StoreError(error.to_string()))?;
        let principal = binding.principal.clone();
        let session = Arc::new(Session::new(id.clone(), binding, now));
        let mut index = self.index();
        let evicted = self.make_room(&mut index, &principal, now);
        index.insert(id.clone(), principal, now);
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

    async fn remove(&self, id: &str) -> Result<bool, StoreError> {
        let Some(session) = self.peek(id) else {
            return Ok(false);
        };
        Ok(self.close(&mut self.index(), session.id()))
    }

    async fn evict_expired(&self, now: Instant) -> usize {
        let mut evicted = 0;
        let mut index = self.index();
        for _ in 0..SWEEP_MAX {
            let Some((seen, id)) = index.all.first().cloned() else {
                break;
            };
            if now.saturating_duration_since(seen) < self.limits.ttl {
                break;
            }
            let used = self.used_at(&id, seen, now);
            if used > seen {
                index.see(&id, used);
            } else {
                evicted += usize::from(self.close(&mut index, &id));
            }
        }
        evicted
    }

    fn count(&self) -> usize {
        self.sessions.len()
    }
}

impl Index {
    fn held(&self, principal: &Principal) -> Option<&Held> {
        self.principals.get(principal)
    }

    fn insert(&mut self, id: SessionId, principal: Principal, seen: Instant) {
        self.all.insert((seen, id.clone()));
        let own = self.principals.entry(principal.clone()).or_default();
        let before = own.len();
        own.candidates.insert((seen, id.clone()));
        self.by_count.remove(&(before, principal.clone()));
        self.by_count.insert((before + 1, principal.clone()));
        let known = Known {
            seen,
            principal,
            aside: false,
        };
        self.known.insert(id, known);
    }

    fn remove(&mut self, id: &SessionId) {
        let Some(known) = self.known.remove(id) else {
            return;
        };
        let entry = (known.seen, id.clone());
        self.all.remove(&entry);
        let Some(own) = self.principals.get_mut(&known.principal) else {
            return;
        };
        let before = own.len();
        own.of(known.aside).remove(&entry);
        self.by_count.remove(&(before, known.principal.clone()));
        if before > 1 {
            self.by_count.insert((before - 1, known.principal));
        } else {
            self.principals.remove(&known.principal);
        }
    }

    /// Moves a session to a newer time.
    fn see(&mut self, id: &SessionId, used: Instant) {
        let Some(known) = self.known.get_mut(id) else {
            return;
        };
        let old = (std::mem::replace(&mut known.seen, used), id.clone());
        self.all.remove(&old);
        self.all.insert((used, id.clone()));
        if let Some(own) = self.principals.get_mut(&known.principal) {
            let own = own.of(known.aside);
            own.remove(&old);
            own.insert((used, id.clone()));
        }
    }

    /// Moves a session out of the way of the search, or back.
    fn set_aside(&mut self, id: &SessionId, aside: bool) {
        let Some(known) = self.known.get_mut(id) else {
            return;
        };
        let entry = (known.seen, id.clone());
        if let Some(own) = self.principals.get_mut(&known.principal) {
            own.of(known.aside).remove(&entry);
            own.of(aside).insert(entry);
        }
        known.aside = aside;
    }

    fn oldest_candidate(&self, principal: &Principal) -> Option<(Instant, SessionId)> {
        self.held(principal)?.candidates.first().cloned()
    }
}

impl Held {
    fn len(&self) -> usize {
        self.candidates.len() + self.aside.len()
    }

    fn of(&mut self, aside: bool) -> &mut ByAge {
        if aside {
            &mut self.aside
        } else {
            &mut self.candidates
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::ProtocolVersion;
    use crate::session::config::EventLogConfig;
    use crate::session::{SessionTransport, State};
    use crate::stream::{EventLog, MemoryEventLog, Pulse, StreamKind, StreamMetrics, Subscription};

    fn store(max: usize, per_principal: usize) -> MemoryStore {
        let limits = StoreLimits {
            ttl: Duration::from_secs(60),
            max,
            per_principal,
        };
        MemoryStore::new(limits, SessionKey::from_text("a key"))
    }

    async fn read(session: &Arc<Session>) -> Subscription {
        let pulse = Pulse::new(Duration::from_secs(15));
        let limits = EventLogConfig::default();
        let log = MemoryEventLog::new(limits, pulse, StreamMetrics::unregistered());
        let stream = log.open(session, StreamKind::General, false).await;
        stream.expect("memory").read()
    }

    async fn open(store: &MemoryStore, principal: &str, now: Instant) -> Arc<Session> {
        let binding = Binding {
            namespace: "shared".parse().expect("a name"),
            principal: Some(principal.into()),
            version: ProtocolVersion::V2025_11_25,
            transport: SessionTransport::Streamable,
        };
        store.create(binding, now).await.expect("memory").session
    }

    async fn alive(store: &MemoryStore, session: &Session, now: Instant) -> bool {
        let found = store.get(session.id().as_str(), now).await.expect("memory");
        found.inspect(|session| session.touch(now)).is_some()
    }

    fn books_balance(store: &MemoryStore) {
        let index = store.index();
        assert_eq!(index.known.len(), store.count());
        assert_eq!(index.all.len(), store.count());
        assert_eq!(
            index.principals.values().map(Held::len).sum::<usize>(),
            store.count()
        );
        assert_eq!(
            index.by_count.iter().map(|(count, _)| count).sum::<usize>(),
            store.count()
        );
    }

    #[tokio::test]
    async fn a_full_principal_loses_its_least_recently_used_session() {
        let store = store(100, 2);
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let first = open(&store, "a", at(0)).await;
        let second = open(&store, "a", at(1)).await;
        let other = open(&store, "b", at(0)).await;
        assert!(alive(&store, &first, at(2)).await);
        let third = open(&store, "a", at(3)).await;
        assert_eq!(second.state(), State::Closed);
        assert!(!alive(&store, &second, at(3)).await);
        for session in [&first, &third, &other] {
            assert!(alive(&store, session, at(3)).await);
        }
        books_balance(&store);
    }

    #[tokio::test]
    async fn a_full_table_takes_from_the_principal_that_holds_the_most() {
        let store = store(4, 10);
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let quiet = open(&store, "quiet", at(0)).await;
        let mut greedy = Vec::new();
        for second in 1..8 {
            greedy.push(open(&store, "greedy", at(second)).await);
        }
        assert_eq!(store.count(), 4);
        assert!(alive(&store, &quiet, at(9)).await);
        let survivors = greedy
            .iter()
            .filter(|session| session.state() != State::Closed);
        assert_eq!(survivors.count(), 3);
        assert!(alive(&store, &greedy[6], at(9)).await);
        books_balance(&store);
    }

    #[tokio::test]
    async fn sessions_expire_by_their_last_use() {
        let store = store(100, 100);
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let used = open(&store, "a", at(0)).await;
        let idle = open(&store, "a", at(0)).await;
        assert!(alive(&store, &used, at(50)).await);
        assert!(!alive(&store, &idle, at(60)).await);
        assert_eq!(store.evict_expired(at(59)).await, 0);
        assert_eq!(store.evict_expired(at(60)).await, 1);
        assert_eq!(idle.state(), State::Closed);
        assert!(alive(&store, &used, at(109)).await);
        assert_eq!(store.evict_expired(at(168)).await, 0);
        assert_eq!(store.evict_expired(at(169)).await, 1);
        assert_eq!(store.count(), 0);
        books_balance(&store);
    }

    #[tokio::test]
    async fn removal_leaves_nothing_behind() {
        let store = store(100, 100);
        let now = Instant::now();
        for _ in 0..50 {
            let session = open(&store, "a", now).await;
            assert!(store.remove(session.id().as_str()).await.expect("memory"));
            assert!(!store.remove(session.id().as_str()).await.expect("memory"));
        }
        assert_eq!(store.count(), 0);
        books_balance(&store);
    }

    #[tokio::test]
    async fn a_table_of_sessions_all_in_use_still_makes_room() {
        use crate::session::InFlight;
        use futures_util::future::AbortHandle;
        let store = store(2, 2);
        let start = Instant::now();
        let mut calls = Vec::new();
        let mut sessions = Vec::new();
        for second in 0..4 {
            let session = open(&store, "a", start + Duration::from_secs(second)).await;
            calls.push(InFlight::enter(
                &session,
                "1",
                AbortHandle::new_pair().0,
                None,
            ));
            sessions.push(session);
        }
        assert_eq!(store.count(), 2);
        assert_eq!(sessions[0].state(), State::Closed);
        assert_ne!(sessions[3].state(), State::Closed);
    }

    #[tokio::test]
    async fn a_full_principal_keeps_the_sessions_with_an_open_stream() {
        let store = store(100, 3);
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let streaming = open(&store, "a", at(0)).await;
        let stream = read(&streaming).await;
        let other = open(&store, "a", at(1)).await;
        let other_stream = read(&other).await;
        let idle = open(&store, "a", at(2)).await;
        let next = open(&store, "a", at(3)).await;
        assert_eq!(idle.state(), State::Closed);
        drop(other_stream);
        open(&store, "a", at(20)).await;
        assert_eq!(other.state(), State::Closed);
        assert_ne!(streaming.state(), State::Closed);
        assert_ne!(next.state(), State::Closed);
        books_balance(&store);
        drop(stream);
    }

    #[tokio::test]
    async fn if_all_sessions_have_a_stream_the_oldest_goes() {
        let store = store(100, 3);
        let start = Instant::now();
        let mut streams = Vec::new();
        let mut sessions = Vec::new();
        for second in 0..5 {
            let session = open(&store, "a", start + Duration::from_secs(second)).await;
            streams.push(read(&session).await);
            sessions.push(session);
        }
        let closed: Vec<_> = sessions
            .iter()
            .map(|it| it.state() == State::Closed)
            .collect();
        assert_eq!(closed, [true, true, false, false, false]);
        assert_eq!(streams[0].next().await, None);
        books_balance(&store);
    }

    #[tokio::test]
    async fn a_session_lives_as_long_as_a_stream_of_it_is_read() {
        let store = store(100, 100);
        let start = Instant::now();
        let session = open(&store, "a", start).await;
        let stream = read(&session).await;
        let late = start + Duration::from_secs(1000);
        assert_eq!(store.evict_expired(late).await, 0);
        assert!(alive(&store, &session, start + Duration::from_secs(900)).await);
        drop(stream);
        assert_eq!(store.evict_expired(late + Duration::from_secs(59)).await, 0);
        assert_eq!(store.evict_expired(late + Duration::from_secs(61)).await, 1);
        assert_eq!(session.state(), State::Closed);
    }
}
