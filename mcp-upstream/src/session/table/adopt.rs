//! Going on with a session that another process had, or this one before it ended: from its record, and with the general
//! stream its client listens to.
//!
//! What comes over: everything of the [`SessionRecord`](crate::session::SessionRecord), and what its streams keep. What
//! does not: calls that ran, which are answered with an error on the stream their client resumes; questions to the client,
//! whose late answers are taken and go nowhere; what a stdio server holds for the session, in a process of its own or as
//! watches of a shared one; changes that were announced while no process had the session. A session over HTTP+SSE is its
//! stream, and ended with it.

use std::sync::Arc;

use dashmap::DashMap;
use dashmap::mapref::entry::Entry;
use tokio::sync::watch;
use tokio::time::Instant;

use super::{Created, Located, SessionTable};
use crate::replicas::{ReplicaId, Standing};
use crate::session::store::SessionStore;
use crate::session::{Home, Session, SessionTransport};
use crate::stream::StoreError;

/// The sessions that are being taken up at this moment, by id: no more than there are requests. Whoever asks for one of
/// them meanwhile waits for its end.
#[derive(Debug, Default)]
pub(super) struct Adoptions(DashMap<Box<str>, watch::Receiver<()>>);

/// One that goes on. Dropping it lets those who wait look again.
struct Adoption<'a> {
    all: &'a Adoptions,
    id: &'a str,
    _done: watch::Sender<()>,
}

impl Adoptions {
    /// Begins, or gives back what to wait for.
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
    /// Takes up the session of that id, if it has a record that is to be taken up here.
    pub(super) async fn adopt(
        &self,
        store: &dyn SessionStore,
        id: &str,
        now: Instant,
    ) -> Result<Located, StoreError> {
        // Ids that were never given out make the store work for nothing.
        let Some(sealed) = self.key.open(id) else {
            return Ok(Located::Absent);
        };
        let opener = ReplicaId(sealed.replica);
        loop {
            match self.adoptions.begin(id) {
                Ok(_adoption) => {
                    // Another may just have done it.
                    return match self.live(id) {
                        Some(session) => Ok(Located::Live(session)),
                        None => self.adopt_alone(store, id, opener, now).await,
                    };
                }
                // An error is the end of the other one, too.
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
            // A session that was opened while the store was away has no record, and lives where it was opened.
            Ok(None) => return self.without_record(opener).await,
            Err(error) => {
                return match self.with_opener(opener) {
                    Located::Absent => Err(error),
                    elsewhere => Ok(elsewhere),
                };
            }
        };
        match self.replicas.settled_standing(found.home.replica).await {
            Standing::Own | Standing::Gone | Standing::Leaving => {}
            // While the directory is silent the recorded home is asked.
            Standing::Up(_) | Standing::Unclear => {
                return Ok(Located::Elsewhere(found.home.replica));
            }
        }
        if found.binding.transport == SessionTransport::Sse {
            self.forget(&found.id).await?;
            return Ok(Located::Absent);
        }
        let by = Home {
            replica: self.replicas.own(),
            epoch: found.home.epoch.saturating_add(1),
        };
        let Some(record) = store.claim(&found.id, by, found.home).await? else {
            // Another replica was faster.
            return Ok(match store.load(id).await? {
                Some(record) if record.home.replica != self.replicas.own() => {
                    Located::Elsewhere(record.home.replica)
                }
                _ => Located::Absent,
            });
        };
        let session = Arc::new(Session::adopted(record, now));
        self.events.restore(&session).await?;
        let evicted = self.enter(&session, now);
        self.forget_ended().await;
        Ok(Located::Adopted(Created { session, evicted }))
    }

    /// The place of a session that the store does not know.
    ///
    /// # Errors
    ///
    /// [`StoreError`] while replicas write records again that the store has lost: the session may be among them.
    async fn without_record(&self, opener: ReplicaId) -> Result<Located, StoreError> {
        match self.replicas.standing(opener) {
            Standing::Up(_) | Standing::Unclear => Ok(Located::Elsewhere(opener)),
            Standing::Own | Standing::Leaving | Standing::Gone => {
                match self.replicas.are_records_missing().await {
                    true => Err(StoreError(
                        "it has lost records, which are written again".into(),
                    )),
                    false => Ok(Located::Absent),
                }
            }
        }
    }

    /// The place of a session while the store is away: with the replica that opened it, while that is up.
    fn with_opener(&self, opener: ReplicaId) -> Located {
        match self.replicas.standing(opener) {
            Standing::Up(_) => Located::Elsewhere(opener),
            _ => Located::Absent,
        }
    }
}
