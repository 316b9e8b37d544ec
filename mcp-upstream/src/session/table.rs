//! The live sessions of this process, and the one place through which what is recorded of them changes.
//!
//! Looking one up touches a sharded map and one atomic. Order is kept lazily: the index remembers when each session was
//! last *seen by the index*, and an entry that turns out to have been used since goes back in under its newer time. So
//! neither expiry nor eviction ever walks the table; what they do is paid for by uses and by sessions that end.
//!
//! A session is *live* here: its calls, streams and questions are of this process. With a store it is recorded as well, and
//! another process can go on with it (`adopt`); without one nothing is written, and sessions end with the process.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use dashmap::DashMap;
use tokio::time::Instant;
use tooldock_workers::names::NamespaceName;

use super::patch::{PatchRefused, SessionPatch};
use super::readers::ReleasedSessions;
use super::store::SessionStore;
use super::{Binding, ClientFacts, Home, Session, SessionId, SessionKey};
use crate::replicas::{ReplicaId, Replicas};
use crate::stream::{EventLog, StoreError};

mod adopt;
mod doubt;
#[cfg(test)]
mod forgetful;
mod index;
mod recorded;
mod room;
mod unrecorded;

use adopt::Adoptions;
use doubt::Doubts;
use index::Index;
use unrecorded::Unrecorded;

/// Sessions that a sweep asks the store about at a time. All replicas may sweep at the same time, after a silence of the store.
const AT_ONCE: usize = 32;
/// The time of one sweep for sessions in doubt, and for those whose records are behind: the control loop waits for it.
const SWEEP_MAX: Duration = Duration::from_millis(500);

/// The live sessions of this process. An id is valid only while the table knows it, or the store.
pub struct SessionTable {
    sessions: DashMap<SessionId, Arc<Session>>,
    /// Taken by create, weigh, remove and expiry, never by a lookup, and before the locks of a session. A std mutex: nothing
    /// awaits under it.
    index: Mutex<Index>,
    limits: TableLimits,
    key: SessionKey,
    released: Arc<ReleasedSessions>,
    /// What their streams keep.
    events: Arc<EventLog>,
    /// Where they are recorded, if they are to outlive this process.
    store: Option<Arc<dyn SessionStore>>,
    /// The other processes that may have sessions of the store.
    replicas: Arc<Replicas>,
    doubts: Doubts,
    adoptions: Adoptions,
    unrecorded: Unrecorded,
    /// Sessions that were closed for want of room or at the end of their time, and still have a record. Whatever closed
    /// them forgets them right after.
    ended: Mutex<Vec<SessionId>>,
    #[cfg(test)]
    forgetful: std::sync::atomic::AtomicBool,
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

/// Where a session is.
#[derive(Debug)]
pub enum Located {
    /// Nowhere.
    Absent,
    /// In this process.
    Live(Arc<Session>),
    /// In this process from now on: so far it had only a record of the session.
    Adopted(Created),
    /// In another replica, which is up.
    Elsewhere(ReplicaId),
}

/// What opening a session did, or taking it up.
#[derive(Debug)]
pub struct Created {
    /// The session.
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

impl SessionTable {
    /// An empty table, whose ids are sealed with that key and whose streams are in that log.
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
            #[cfg(test)]
            forgetful: Default::default(),
        }
    }

    /// Opens a session, whose client may have said already what it is. A full table makes room, in sessions and in bytes;
    /// the new session is not refused for it. A session that is not used for a while after that ends.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when no id can be made, or the client said too much. A store that fails is no error: the session is
    /// recorded later.
    pub async fn create(
        &self,
        binding: Binding,
        client: Option<ClientFacts>,
        now: Instant,
    ) -> Result<Created, StoreError> {
        let minted = self
            .key
            .mint(self.replicas.own(), &binding, SystemTime::now());
        let id = minted.map_err(|error| StoreError(error.to_string()))?;
        let session = Session::new(id, binding, now);
        if let Some(client) = client {
            let remembered = session.set_client(client);
            remembered.map_err(|error| StoreError(error.to_string()))?;
        }
        let session = Arc::new(session);
        if let Some(store) = &self.store {
            let inserted = store.insert(&session.record(self.home())).await;
            inserted.unwrap_or_else(|error| self.note_unrecorded(&session, &error));
        }
        let evicted = self.enter(&session, now);
        self.forget_ended().await;
        Ok(Created { session, evicted })
    }

    /// The home of sessions that are opened here.
    fn home(&self) -> Home {
        Home {
            replica: self.replicas.own(),
            epoch: 0,
        }
    }

    /// The namespace that an id names, for a session that another replica may have.
    pub fn sealed_namespace(&self, id: &str) -> Option<NamespaceName> {
        let facts = self.replicas.are_many().then(|| self.key.open(id))??;
        Some(facts.namespace)
    }

    /// The replicas that share the store.
    pub fn replicas(&self) -> &Arc<Replicas> {
        &self.replicas
    }

    /// The session of that id, if it lives here. Does not wait, and is no use of the session.
    pub fn live(&self, id: &str) -> Option<Arc<Session>> {
        self.sessions.get(id).map(|entry| Arc::clone(&entry))
    }

    /// The session of that id if it is alive, here or in the store. Finding it is no use of it: that is the caller's to
    /// say, once it knows that the session is the client's ([`Session::touch`]).
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the store cannot be asked.
    pub async fn locate(&self, id: &str, now: Instant) -> Result<Located, StoreError> {
        #[cfg(test)]
        self.forget_idle(id);
        if self.replicas.are_many() {
            // Boxed: it is a rare wait, and each request would have room for it.
            Box::pin(self.resolve_doubt(id)).await?;
        }
        if let Some(session) = self.live(id) {
            // Expired but not swept yet: gone for the client.
            return Ok(match session.idle_for(self.limits.ttl, now) {
                true => Located::Absent,
                false => Located::Live(session),
            });
        }
        match &self.store {
            None => Ok(Located::Absent),
            // Boxed: it is rare, and each request would have room for it.
            Some(store) => Box::pin(self.adopt(&**store, id, now)).await,
        }
    }

    /// Changes what is recorded of a session: here, then in the store, so that what a client is told was done is done. Of
    /// two changes of one thing at a time either may be the last. Where the session then holds too much, other sessions of
    /// its principal are closed.
    ///
    /// # Errors
    ///
    /// [`PatchRefused`]: nothing was changed. A store that fails is no error: the change is recorded later.
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

    /// Ends a session. Answers whether it was there.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the store cannot be written: the session goes on.
    pub async fn remove(&self, id: &str) -> Result<bool, StoreError> {
        let Some(session) = self.live(id) else {
            return Ok(false);
        };
        let may_be_recorded_again = self.is_unrecorded(session.id());
        // First, so that nobody finds a record of a session that is over.
        self.forget(session.id()).await?;
        let was_there = self.close(&mut self.index(), session.id());
        if may_be_recorded_again {
            // A sweep may have written the record while it was removed; from now on it sees that the session is over.
            self.forget(session.id()).await?;
        }
        Ok(was_there)
    }

    /// Ends sessions whose time is up and answers how many; a large backlog takes several sweeps. Costs by the number
    /// ended, not by the number alive.
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

    /// Sessions alive in this process.
    pub fn count(&self) -> usize {
        self.sessions.len()
    }

    /// What they hold, in bytes.
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
