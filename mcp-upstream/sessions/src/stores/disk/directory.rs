//! Directory of the replicas that share an SQLite file. Locked folders show which replicas are up, and tables of the file contain
//! the replicas' news.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use rusqlite::Connection;
use tokio::task::spawn_blocking;
use tooldock_base::budget::BudgetUse;

use super::folder::ReplicaFolder;
use super::{DiskStore, connect, failed, news};
use crate::replicas::{Announcement, DirectoryReply, ReplicaDirectory, ReplicaId, local_millis};
use crate::stream::StoreError;

/// Maximum time that a news operation waits for writes of other processes. Beats wait for the operation, so this is short
/// compared with the time for which a beat is valid.
const BUSY: Duration = Duration::from_millis(500);

/// The replicas of one machine that share the sessions of a data directory.
pub struct DiskDirectory(Arc<Mutex<State>>);

struct State {
    folder: ReplicaFolder,
    /// Separate connection to the file, so that a beat does not wait for the requests of the store.
    connection: Connection,
}

impl DiskDirectory {
    /// Opens the directory of a store's replicas, for the replica that owns `folder`.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the file cannot be written.
    pub fn of(store: &DiskStore, folder: ReplicaFolder) -> Result<Self, StoreError> {
        let open = || {
            let connection = connect(&store.file)?;
            connection.busy_timeout(BUSY)?;
            news::make_tables(&connection)?;
            Ok(connection)
        };
        let state = State {
            folder,
            connection: open().map_err(failed)?,
        };
        Ok(Self(Arc::new(Mutex::new(state))))
    }

    /// Runs `work` on a thread that may block on file operations.
    async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut State) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let state = Arc::clone(&self.0);
        let worked = spawn_blocking(move || {
            let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
            work(&mut state)
        });
        let worked = worked.await;
        worked.map_err(|error| StoreError(error.to_string()))?
    }
}

impl State {
    fn beat(
        &mut self,
        own: &Announcement,
        seen: Option<u64>,
    ) -> Result<DirectoryReply, StoreError> {
        let mut others = self.folder.beat(own)?;
        let all = others.len();
        // A replica whose name leads to this replica's number is left out. Numbers are 32-bit digests of names: among some 65,000
        // names, two are expected to have equal numbers.
        others.retain(|other| other.id != own.id);
        let unheard = news::read(&self.connection, own.id, seen).map_err(failed)?;
        Ok(DirectoryReply {
            rival: others.len() < all,
            others,
            settled: true,
            known: true,
            reloads: unheard.reloads,
            newest: unheard.newest,
            news: unheard.news,
            now: local_millis(),
        })
    }
}

#[async_trait]
impl ReplicaDirectory for DiskDirectory {
    fn is_local(&self) -> bool {
        true
    }

    async fn beat(
        &self,
        own: &Announcement,
        seen: Option<u64>,
    ) -> Result<DirectoryReply, StoreError> {
        let own = own.clone();
        self.run(move |state| state.beat(&own, seen)).await
    }

    async fn tell(&self, own: ReplicaId, news: &[String]) -> Result<(), StoreError> {
        let news = news.to_vec();
        self.run(move |state| match state.folder.others()?.is_empty() {
            // The only gateway of a data directory has no other replicas to inform.
            true => Ok(()),
            false => news::tell(&mut state.connection, own, &news).map_err(failed),
        })
        .await
    }

    async fn leave(&self, _own: &Announcement) -> Result<(), StoreError> {
        self.run(|state| {
            state.folder.leave();
            Ok(())
        })
        .await
    }

    async fn ask_reload(&self) -> Result<u64, StoreError> {
        self.run(|state| news::ask_reload(&mut state.connection).map_err(failed))
            .await
    }

    async fn take_budgets(
        &self,
        used: &[BudgetUse],
        _replicas: usize,
    ) -> Result<Vec<Duration>, StoreError> {
        // Limits are not shared on one machine: each process counts for itself.
        Ok(used.iter().map(|budget| budget.whole_in).collect())
    }
}

impl fmt::Debug for DiskDirectory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DiskDirectory").finish_non_exhaustive()
    }
}
