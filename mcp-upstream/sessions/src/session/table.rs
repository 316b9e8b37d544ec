//! The live sessions of this process. Records of sessions are changed only through this table.
//!
//! A lookup accesses a sharded map and one atomic. The index of last uses is updated lazily: a use of a session does not change
//! the index. If an entry is the next to expire, but its session was used after the time in the entry, the entry is inserted
//! again with the newer time. Expiry and eviction never walk the whole table; their cost grows with the number of uses and of
//! ended sessions.
//!
//! A session is *live* in the process that has its calls, streams and questions. With a store, a session also has a record.
//! Another process can continue the session from that record (`adopt`). Without a store nothing is recorded, and sessions end
//! with the process.

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
#[cfg(any(test, feature = "testing"))]
mod forgetful;
mod index;
mod record_checks;
mod recorded;
mod resume;
mod room;
mod unrecorded;

use adopt::Adoptions;
use index::Index;
use record_checks::RecordChecks;
pub use resume::ResumedStream;
use unrecorded::OutdatedRecords;

/// Number of sessions that one sweep looks up in the store concurrently. It is small because all replicas may sweep at the same
/// time after an outage of the store.
const AT_ONCE: usize = 32;
/// Time limit of one sweep over sessions in doubt, and of one sweep over sessions with outdated records. It is short because the
/// control loop waits for the sweep.
const SWEEP_MAX: Duration = Duration::from_millis(500);

/// The live sessions of this process. An id is valid only while it is in the table or in the store.
pub struct SessionTable {
    sessions: DashMap<SessionId, Arc<Session>>,
    /// Index of the sessions. It is locked to add, measure, remove and expire sessions, but never for a lookup. The lock is taken
    /// before the locks of a session, and never held across an await.
    index: Mutex<Index>,
    limits: TableLimits,
    key: SessionKey,
    released: Arc<ReleasedSessions>,
    /// Event log that contains the events of the sessions' streams.
    events: Arc<EventLog>,
    /// Store of session records; `None` if there is no store, so that sessions end with this process.
    store: Option<Arc<dyn SessionStore>>,
    /// The replicas of this gateway: this process, and others that may have sessions of the same store.
    replicas: Arc<Replicas>,
    doubts: RecordChecks,
    adoptions: Adoptions,
    unrecorded: OutdatedRecords,
    /// Sessions that were closed to make room or because they expired, and still have a record. The code that closed them removes
    /// the records immediately afterwards.
    ended: Mutex<Vec<SessionId>>,
    #[cfg(any(test, feature = "testing"))]
    forgetful: std::sync::atomic::AtomicBool,
}

/// Bounds of the session table.
#[derive(Debug, Clone, Copy)]
pub struct TableLimits {
    /// Lifetime of a session after its last use.
    pub ttl: Duration,
    /// Lifetime of a session that is not used after it was opened. Not longer than `ttl`.
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

/// Result of looking up a session.
#[derive(Debug)]
pub enum Located {
    /// The session does not exist.
    Absent,
    /// The session is live in this process.
    Live(Arc<Session>),
    /// This process has just adopted the session from its record in the store.
    Adopted(OpenedSession),
    /// The session is live in another replica.
    Elsewhere(ReplicaId),
}

/// Outcome of opening or adopting a session.
#[derive(Debug)]
pub struct OpenedSession {
    /// The opened or adopted session.
    pub session: Arc<Session>,
    /// Number of sessions that were closed to make room.
    pub evicted: usize,
}

/// Outcome of changing a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CommitOutcome {
    /// True if the change had an effect on the session.
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
            doubts: RecordChecks::default(),
            adoptions: Adoptions::default(),
            unrecorded: OutdatedRecords::default(),
            ended: Mutex::default(),
            #[cfg(any(test, feature = "testing"))]
            forgetful: Default::default(),
        }
    }

    /// Opens a session; `client` is the client's description, if it is known already. If the table has its maximum of sessions or
    /// bytes, other sessions are closed instead of refusing the new one. A session that is not used soon after its creation ends
    /// early.
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
    ) -> Result<OpenedSession, StoreError> {
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
            // A store refuses a record if it has another one of this id. A new id has none, so an error means that the store failed.
            if let Err(error) = inserted {
                self.note_unrecorded(&session, &error);
            }
        }
        let evicted = self.enter(&session, now);
        self.forget_ended().await;
        Ok(OpenedSession { session, evicted })
    }

    /// Home of a session that is live in this process: this replica, and the session's epoch.
    fn home(&self, session: &Session) -> Home {
        Home {
            replica: self.replicas.own(),
            epoch: session.epoch,
        }
    }

    /// Returns the namespace that a session id contains in sealed form, for a session that may be live in another replica; `None`
    /// without replicas.
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
            // The future is boxed because this wait is rare, and inline it would enlarge the future of every request.
            Box::pin(self.resolve_doubt(id)).await?;
        }
        if let Some(session) = self.live(id) {
            // A session that has expired but was not swept yet gets the same response as after the sweep.
            return Ok(match session.idle_for(self.limits.ttl, now) {
                true => Located::Absent,
                false => Located::Live(session),
            });
        }
        match &self.store {
            None => Ok(Located::Absent),
            // The future is boxed because an adoption is rare, and inline it would enlarge the future of every request.
            Some(store) => Box::pin(self.adopt(&**store, id, now)).await,
        }
    }

    /// Changes a session and its record: first the live session, then the record in the store, so that the change is stored
    /// before the client's request is answered. If two concurrent changes set the same field, either may be the last. If the
    /// sessions then exceed their maximum memory, other sessions are closed.
    ///
    /// # Errors
    ///
    /// [`PatchRefused`]: nothing was changed. A failing store is no error: the change is recorded later.
    pub async fn commit(
        &self,
        session: &Session,
        patch: SessionPatch,
        now: Instant,
    ) -> Result<CommitOutcome, PatchRefused> {
        let changed = session.apply(&patch)?;
        let evicted = self.weigh(session, now);
        if let Some(store) = &self.store {
            self.forget_ended().await;
            let stored = store.patch(session.id(), &patch).await;
            stored.unwrap_or_else(|error| self.note_unrecorded(session, &error));
        }
        Ok(CommitOutcome { changed, evicted })
    }

    /// Ends a session. Returns true if the session was live in this process.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the store cannot be written: the session continues.
    pub async fn remove(&self, id: &str) -> Result<bool, StoreError> {
        let Some(session) = self.live(id) else {
            return Ok(false);
        };
        let may_be_recorded_again = self.is_unrecorded(session.id());
        // The record is removed first, so that no process adopts a session that has ended.
        self.forget(session.id()).await?;
        let was_there = self.close(&mut self.index(), session.id());
        if may_be_recorded_again {
            // A sweep may have written the record again before the session was closed, so it is removed once more. Later sweeps
            // find that the session has ended.
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
