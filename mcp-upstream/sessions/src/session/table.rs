//! The live sessions of this process. Records of sessions are changed only through this table.
//!
//! A lookup accesses a sharded map and one atomic. Order is kept lazily: the index stores when it last saw each session, and an
//! entry that turns out to have been used since is inserted again with the newer time. Expiry and eviction never walk the whole
//! table; their cost grows with the number of uses and of ended sessions.
//!
//! A session is *live* in the process that has its calls, streams and questions. With a store, a session also has a record,
//! from which another process can continue it (`adopt`). Without a store nothing is recorded, and sessions end with the
//! process.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use dashmap::DashMap;
use tokio::time::Instant;
use tooldock_base::names::NamespaceName;

use super::patch::{PatchRefused, SessionPatch};
use super::readers::ReleasedSessions;
use super::store::SessionStore;
use super::{Binding, ClientFacts, Home, Session, SessionId, SessionKey};
use crate::replicas::{ReplicaId, Replicas};
use crate::stream::{EventLog, StoreError};

mod adopt;
mod doubt;
#[cfg(any(test, feature = "testing"))]
mod forgetful;
mod index;
mod recorded;
mod resume;
mod room;
mod unrecorded;

use adopt::Adoptions;
use doubt::Doubts;
use index::Index;
pub use resume::ResumedStream;
use unrecorded::Unrecorded;

/// Number of sessions that a sweep looks up in the store concurrently. All replicas may sweep at the same time after an outage
/// of the store.
const AT_ONCE: usize = 32;
/// Time limit of one sweep over sessions in doubt, and of one over sessions with outdated records: the control loop waits for
/// the sweep.
const SWEEP_MAX: Duration = Duration::from_millis(500);

/// The live sessions of this process. An id is valid only while it is in the table or in the store.
pub struct SessionTable {
    sessions: DashMap<SessionId, Arc<Session>>,
    /// Locked by create, weigh, remove and expiry, never by a lookup, and always before the locks of a session. A std mutex:
    /// no code awaits under it.
    index: Mutex<Index>,
    limits: TableLimits,
    key: SessionKey,
    released: Arc<ReleasedSessions>,
    /// Event log that contains the events of the sessions' streams.
    events: Arc<EventLog>,
    /// Store of session records; `None` if sessions end with this process.
    store: Option<Arc<dyn SessionStore>>,
    /// Other processes that may have sessions of the store.
    replicas: Arc<Replicas>,
    doubts: Doubts,
    adoptions: Adoptions,
    unrecorded: Unrecorded,
    /// Sessions that were closed for lack of room or because they expired, and still have a record. The code that closed them
    /// removes the records right after.
    ended: Mutex<Vec<SessionId>>,
    #[cfg(any(test, feature = "testing"))]
    forgetful: std::sync::atomic::AtomicBool,
}

/// Bounds of the table.
#[derive(Debug, Clone, Copy)]
pub struct TableLimits {
    /// Lifetime of a session after its last use.
    pub ttl: Duration,
    /// Lifetime of a session that is not used after it was opened; no longer than `ttl`.
    pub unused_ttl: Duration,
    /// Maximum number of sessions of all principals together.
    pub max: usize,
    /// Maximum number of sessions of one principal.
    pub per_principal: usize,
    /// Maximum memory of the sessions of all principals together, in bytes.
    pub bytes: usize,
    /// Maximum memory of the sessions of one principal, in bytes.
    pub bytes_per_principal: usize,
}

/// Location of a session.
#[derive(Debug)]
pub enum Located {
    /// The session does not exist.
    Absent,
    /// The session is live in this process.
    Live(Arc<Session>),
    /// The session had only a record, and is now live in this process.
    Adopted(Created),
    /// The session is live in another replica.
    Elsewhere(ReplicaId),
}

/// Outcome of opening or adopting a session.
#[derive(Debug)]
pub struct Created {
    /// The session.
    pub session: Arc<Session>,
    /// Number of sessions that were closed to make room.
    pub evicted: usize,
}

/// Outcome of changing a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Committed {
    /// True if the session is different now.
    pub changed: bool,
    /// Number of sessions that were closed to make room.
    pub evicted: usize,
}

impl SessionTable {
    /// Creates an empty table. Session ids are sealed with `key`, and streams are kept in `events`.
    pub fn new(
        limits: TableLimits,
        key: SessionKey,
        events: Arc<EventLog>,
        store: Option<Arc<dyn SessionStore>>,
        replicas: Arc<Replicas>,
    ) -> Self {
        Self {
            sessions: DashMap::new(),
            index: Mutex::default(),
            limits,
            key,
            released: Arc::default(),
            events,
            store,
            replicas,
            doubts: Doubts::default(),
            adoptions: Adoptions::default(),
            unrecorded: Unrecorded::default(),
            ended: Mutex::default(),
            #[cfg(any(test, feature = "testing"))]
            forgetful: Default::default(),
        }
    }

    /// Opens a session; `client` describes the client, if known already. If the table is full, in sessions or in bytes, other
    /// sessions are closed; the new one is not refused. A session that is not used soon after its creation ends early.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when no id can be generated, or the client's description is too large. A failing store is no error: the
    /// session is recorded later.
    pub async fn create(
        &self,
        binding: Binding,
        client: Option<ClientFacts>,
        now: Instant,
    ) -> Result<Created, StoreError> {
        let minted = binding.mint_id(&self.key, self.replicas.own(), SystemTime::now());
        let id = minted.map_err(|error| StoreError(error.to_string()))?;
        let session = Session::new(id, binding, now);
        if let Some(client) = client {
            let remembered = session.set_client(client);
            remembered.map_err(|error| StoreError(error.to_string()))?;
        }
        let session = Arc::new(session);
        if let Some(store) = &self.store {
            let inserted = store.insert(&session.record(self.home(&session))).await;
            // A new id has no earlier record, so `insert` cannot be refused; only a failure counts.
            if let Err(error) = inserted {
                self.note_unrecorded(&session, &error);
            }
        }
        let evicted = self.enter(&session, now);
        self.forget_ended().await;
        Ok(Created { session, evicted })
    }

    /// Home of a session that is live in this process.
    fn home(&self, session: &Session) -> Home {
        Home {
            replica: self.replicas.own(),
            epoch: session.epoch,
        }
    }

    /// Namespace that is sealed in an id, for a session that may live in another replica; `None` without replicas.
    pub fn sealed_namespace(&self, id: &str) -> Option<NamespaceName> {
        let facts = self.replicas.are_many().then(|| self.key.open(id))??;
        Some(facts.namespace)
    }

    /// The replicas that share the store.
    pub fn replicas(&self) -> &Arc<Replicas> {
        &self.replicas
    }

    /// Session with that id, if it is live in this process. Does not wait, and does not count as a use of the session.
    pub fn live(&self, id: &str) -> Option<Arc<Session>> {
        self.sessions.get(id).map(|entry| Arc::clone(&entry))
    }

    /// Finds the session with that id, in this process or in the store. This does not count as a use of the session: callers
    /// report the use by [`Session::touch`] once they know that the session belongs to the client.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the store is unavailable.
    pub async fn locate(&self, id: &str, now: Instant) -> Result<Located, StoreError> {
        #[cfg(any(test, feature = "testing"))]
        self.forget_idle(id);
        if self.replicas.are_many() {
            // Boxed: the wait is rare, and inline it would enlarge the future of every request.
            Box::pin(self.resolve_doubt(id)).await?;
        }
        if let Some(session) = self.live(id) {
            // Expired but not swept yet: the client gets the same response as after the sweep.
            return Ok(match session.idle_for(self.limits.ttl, now) {
                true => Located::Absent,
                false => Located::Live(session),
            });
        }
        match &self.store {
            None => Ok(Located::Absent),
            // Boxed: adoption is rare, and inline it would enlarge the future of every request.
            Some(store) => Box::pin(self.adopt(&**store, id, now)).await,
        }
    }

    /// Changes a session and its record: first the live session, then the record in the store, so that the change is stored
    /// before the client's request is answered. Of two concurrent changes to the same field either may be the last. If sessions
    /// then exceed their memory, other sessions are closed.
    ///
    /// # Errors
    ///
    /// [`PatchRefused`]: nothing was changed. A failing store is no error: the change is recorded later.
    pub async fn commit(
        &self,
        session: &Session,
        patch: SessionPatch,
        now: Instant,
    ) -> Result<Committed, PatchRefused> {
        let changed = session.apply(&patch)?;
        let evicted = self.weigh(session, now);
        if let Some(store) = &self.store {
            self.forget_ended().await;
            let stored = store.patch(session.id(), &patch).await;
            stored.unwrap_or_else(|error| self.note_unrecorded(session, &error));
        }
        Ok(Committed { changed, evicted })
    }

    /// Ends a session. Returns true if it was live here.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the store cannot be written: the session continues.
    pub async fn remove(&self, id: &str) -> Result<bool, StoreError> {
        let Some(session) = self.live(id) else {
            return Ok(false);
        };
        let may_be_recorded_again = self.is_unrecorded(session.id());
        // Removed first, so that no process finds a record of a session that is over.
        self.forget(session.id()).await?;
        let was_there = self.close(&mut self.index(), session.id());
        if may_be_recorded_again {
            // A sweep may have rewritten the record while it was deleted; later sweeps see that the session has ended.
            self.forget(session.id()).await?;
        }
        Ok(was_there)
    }

    /// Ends expired sessions and returns their number; a large backlog takes several sweeps. The cost depends on the number of
    /// ended sessions, not of live ones.
    pub async fn evict_expired(&self, now: Instant) -> usize {
        let (evicted, used_on) = self.sweep(now);
        self.forget_ended().await;
        self.resolve_doubts().await;
        self.keep_recorded(&used_on).await;
        self.record_again().await;
        evicted
    }

    /// All sessions that are live in this process, in no particular order.
    pub fn all(&self) -> Vec<Arc<Session>> {
        self.sessions
            .iter()
            .map(|it| Arc::clone(it.value()))
            .collect()
    }

    /// Number of sessions that are live in this process.
    pub fn count(&self) -> usize {
        self.sessions.len()
    }

    /// Memory of the live sessions, in bytes.
    pub fn bytes(&self) -> usize {
        self.index().held().bytes
    }
}

impl fmt::Debug for SessionTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SessionTable")
            .field("sessions", &self.count())
            .field("recorded", &self.store.is_some())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
