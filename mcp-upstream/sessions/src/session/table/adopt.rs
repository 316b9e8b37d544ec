//! Adoption of a session of another process, or of an earlier process of this replica. The session continues in this process
//! from its record, with the general stream of its client.
//!
//! Kept: the complete [`SessionRecord`](crate::session::SessionRecord), and the stored events of the session's streams.
//!
//! Lost:
//! - running calls: the client gets an error for each on the stream that it resumes;
//! - questions to the client: late answers are accepted and ignored;
//! - state of the session at a stdio server: in its own process, or as subscriptions at a shared process;
//! - changes that were announced while no process had the session.
//!
//! A session over HTTP+SSE ends with its stream and is not adopted.

use std::sync::Arc;

use dashmap::DashMap;
use dashmap::mapref::entry::Entry;
use tokio::sync::watch;
use tokio::time::Instant;

use super::{Located, OpenedSession, SessionTable};
use crate::replicas::{ReplicaId, ReplicaStatus};
use crate::session::store::SessionStore;
use crate::session::{Home, Session, SessionPatch, SessionTransport};
use crate::stream::StoreError;

/// Adoptions in progress, by session id; there are at most as many as requests. A request for a session that is being adopted
/// already waits until that adoption has ended.
#[derive(Debug, Default)]
pub(super) struct Adoptions(DashMap<Box<str>, watch::Receiver<()>>);

/// An adoption in progress. Dropping it wakes the waiters.
struct Adoption<'a> {
    all: &'a Adoptions,
    id: &'a str,
    _done: watch::Sender<()>,
}

impl Adoptions {
    /// Begins an adoption. If the session is being adopted already, returns a receiver that is woken when that adoption ends.
    fn begin<'a>(&'a self, id: &'a str) -> Result<Adoption<'a>, watch::Receiver<()>> {
        match self.0.entry(id.into()) {
            Entry::Occupied(other) => Err(other.get().clone()),
            Entry::Vacant(free) => {
                let (done, wait) = watch::channel(());
                free.insert(wait);
                Ok(Adoption {
                    all: self,
                    id,
                    _done: done,
                })
            }
        }
    }
}

impl Drop for Adoption<'_> {
    fn drop(&mut self) {
        self.all.0.remove(self.id);
    }
}

impl SessionTable {
    /// Adopts the session with that id, if it has a record and no other replica that is up has it.
    pub(super) async fn adopt(
        &self,
        store: &dyn SessionStore,
        id: &str,
        now: Instant,
    ) -> Result<Located, StoreError> {
        // Ids that this gateway has never issued must not cause requests to the store.
        let Some(sealed) = self.key.open(id) else {
            return Ok(Located::Absent);
        };
        let opener = ReplicaId(sealed.replica);
        loop {
            match self.adoptions.begin(id) {
                Ok(_adoption) => {
                    // Another request may just have adopted the session.
                    return match self.live(id) {
                        Some(session) => Ok(Located::Live(session)),
                        None => self.adopt_alone(store, id, opener, now).await,
                    };
                }
                // Waits until the adoption that another request began has ended. That adoption then drops its sender, so the
                // error that `changed` returns is expected.
                Err(mut other) => drop(other.changed().await),
            }
        }
    }

    async fn adopt_alone(
        &self,
        store: &dyn SessionStore,
        id: &str,
        opener: ReplicaId,
        now: Instant,
    ) -> Result<Located, StoreError> {
        let found = match store.load(id).await {
            Ok(Some(found)) => found,
            // A session that was opened while the store was unavailable has no record, and is live where it was opened.
            Ok(None) => return self.without_record(opener).await,
            Err(error) => {
                return match self.with_opener(opener) {
                    Located::Absent => Err(error),
                    elsewhere => Ok(elsewhere),
                };
            }
        };
        match self.replicas.settled_status(found.home.replica).await {
            ReplicaStatus::Own | ReplicaStatus::Gone | ReplicaStatus::Leaving => {}
            // While the directory does not respond (`Unclear`), the request is sent to the replica that the session's record
            // names.
            ReplicaStatus::Up(_) | ReplicaStatus::Unclear => {
                return Ok(Located::Elsewhere(found.home.replica));
            }
        }
        let by = Home {
            replica: self.replicas.own(),
            epoch: found.home.epoch.saturating_add(1),
        };
        let Some(mut record) = store.claim(&found.id, by, found.home).await? else {
            // Another replica has claimed the session in the meantime.
            return Ok(match store.load(id).await? {
                Some(record) if record.home.replica != self.replicas.own() => {
                    Located::Elsewhere(record.home.replica)
                }
                _ => Located::Absent,
            });
        };
        if record.binding.transport == SessionTransport::Sse {
            self.forget(&record.id).await?;
            return Ok(Located::Absent);
        }
        let streams = SessionPatch::OpenStream(record.streams.highest_unrecorded());
        record.apply(&streams);
        let session = Arc::new(Session::adopted(record, now));
        let (restored, stored) = tokio::join!(
            self.events.restore(&session),
            store.patch(session.id(), &streams)
        );
        restored?;
        stored.unwrap_or_else(|error| self.note_unrecorded(&session, &error));
        let evicted = self.enter(&session, now);
        self.forget_ended().await;
        Ok(Located::Adopted(OpenedSession { session, evicted }))
    }

    /// Locates a session that has no record in the store.
    ///
    /// # Errors
    ///
    /// [`StoreError`] while replicas rewrite records that the store has lost: the session may be among them.
    async fn without_record(&self, opener: ReplicaId) -> Result<Located, StoreError> {
        match self.replicas.standing(opener) {
            ReplicaStatus::Up(_) | ReplicaStatus::Unclear => Ok(Located::Elsewhere(opener)),
            // The replica may still run without a connection to the store, and have the session without a record. Only that
            // replica can then answer the request.
            ReplicaStatus::Gone if self.replicas.may_be_cut_off(opener) => {
                Ok(Located::Elsewhere(opener))
            }
            ReplicaStatus::Own | ReplicaStatus::Leaving | ReplicaStatus::Gone => {
                self.records_complete().await?;
                Ok(Located::Absent)
            }
        }
    }

    /// Checks that the store has the records of all sessions.
    ///
    /// # Errors
    ///
    /// [`StoreError`] while replicas rewrite records that the store has lost.
    pub(super) async fn records_complete(&self) -> Result<(), StoreError> {
        match self.replicas.are_records_missing().await {
            true => Err(StoreError(
                "it has lost records, which are written again".into(),
            )),
            false => Ok(()),
        }
    }

    /// Returns where a session is while the store is unavailable: in the replica that opened it, if that is up.
    fn with_opener(&self, opener: ReplicaId) -> Located {
        match self.replicas.standing(opener) {
            ReplicaStatus::Up(_) => Located::Elsewhere(opener),
            _ => Located::Absent,
        }
    }
}
