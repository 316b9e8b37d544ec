//! The store of one machine: an SQLite file in the data directory (`sessions.store: disk`).
//!
//! ```text
//!   requests ──▶ bounded queue ──▶ writer thread ── one transaction per group ──▶ sessions.db-wal
//!                                  housekeeper thread ── checkpoints, expiry ───▶ sessions.db
//! ```
//!
//! A request waits until the transaction of its group is committed. A commit writes to the write-ahead log without waiting for
//! the disk (`synchronous=NORMAL`): a killed process loses nothing, a power failure may lose the last seconds but never damages
//! the file. The housekeeper copies the log into the file, which does wait for the disk, on a separate connection.
//!
//! Several processes of one machine may have the file open; SQLite's locks serialize their transactions. The processes find
//! each other by [`DiskDirectory`]. The file must be on a local file system: write-ahead logs do not work over NFS.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use rusqlite::Connection;

use crate::replicas::ReplicaId;
use crate::session::config::SessionsConfig;
use crate::session::store::SessionStore;
use crate::session::{Home, SessionId, SessionPatch, SessionRecord};
use crate::stream::store::{AppendOutcome, Replay, StoredEvent, StreamRef};
use crate::stream::{EventStore, StoreError, in_memory};

mod directory;
mod events;
mod file;
mod folder;
mod housekeeper;
mod news;
mod records;
mod tasks;
#[cfg(test)]
mod tests;
mod writer;

pub use directory::DiskDirectory;
pub use folder::ReplicaFolder;
use housekeeper::Housekeeper;
use writer::Writer;

/// Maximum time that a transaction waits for a transaction of another process before it fails.
const BUSY: Duration = Duration::from_secs(2);

/// Size of the write-ahead log, in pages of 4 KiB, above which a write copies the log into the file itself: 64 MiB.
const LOG_PAGES_MAX: u32 = 16 * 1024;

/// Bounds on the contents of the SQLite file.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Time for which a record is kept after the last use of its session.
    pub records_for: Duration,
    /// Maximum number of session records.
    pub records: usize,
    /// Maximum number of messages kept per stream.
    pub stream_events: usize,
    /// Maximum size of the messages kept per stream, in bytes.
    pub stream_bytes: usize,
    /// Time for which a message is kept.
    pub events_for: Duration,
    /// Used bytes of the file above which the oldest messages of all streams are deleted.
    pub bytes: u64,
}

impl Bounds {
    /// Returns the bounds of a configuration. Streams have the bounds of the event log. Records have twice the lifetime and twice
    /// the number of live sessions, since sessions that are live in no process are stored as well.
    pub fn of(sessions: &SessionsConfig) -> Self {
        let log = &sessions.event_log;
        Self {
            records_for: sessions.ttl.saturating_mul(2),
            records: sessions.max.saturating_mul(2),
            stream_events: log.events,
            stream_bytes: in_memory(log.bytes),
            events_for: log.age,
            // Doubled, because indexes and half-filled pages take about as much space as the rows.
            bytes: (log.total.as_u64())
                .saturating_add(sessions.bytes.as_u64())
                .saturating_mul(2),
        }
    }
}

/// Sessions and their events in an SQLite file.
pub struct DiskStore {
    file: PathBuf,
    writer: Writer,
    /// Replica that uses this store: events and changes of sessions that another replica has are not written. `None` if all are
    /// written.
    replica: Option<ReplicaId>,
    _housekeeper: Housekeeper,
}

impl DiskStore {
    /// Opens the file, or creates it. A damaged file is renamed, which is logged, and replaced by an empty one.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the file cannot be created, read or written, belongs to another program, or was written by a newer
    /// version.
    pub fn open(file: &Path, bounds: Bounds) -> Result<Self, StoreError> {
        let connection = file::open(file)?;
        let housekeeper = Housekeeper::start(file, bounds)?;
        Ok(Self {
            file: file.to_owned(),
            writer: Writer::start(connection, bounds)?,
            replica: None,
            _housekeeper: housekeeper,
        })
    }

    /// Binds the store to a replica: events and changes of sessions that another replica has claimed are then not written. A
    /// process that was frozen during a call therefore does not write between the events of the process that now has the
    /// session.
    pub fn of_replica(self, replica: ReplicaId) -> Self {
        Self {
            replica: Some(replica),
            ..self
        }
    }
}

impl fmt::Debug for DiskStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DiskStore")
            .field("file", &self.file)
            .finish_non_exhaustive()
    }
}

#[async_trait]
impl SessionStore for DiskStore {
    async fn insert(&self, record: &SessionRecord) -> Result<bool, StoreError> {
        let record = record.clone();
        self.writer
            .run(move |connection, _| records::insert(connection, &record))
            .await
    }

    async fn load(&self, id: &str) -> Result<Option<SessionRecord>, StoreError> {
        let key = records::Key::of(id);
        self.writer
            .run(move |connection, _| records::load(connection, key))
            .await
    }

    async fn patch(&self, id: &SessionId, patch: &SessionPatch) -> Result<(), StoreError> {
        let (key, patch) = (records::Key::of(id.as_str()), patch.clone());
        let replica = self.replica;
        let change = move |record: &mut SessionRecord| {
            record.apply(&patch);
            replica.is_none_or(|own| own == record.home.replica)
        };
        self.writer
            .run(move |connection, _| records::change(connection, key, change).map(drop))
            .await
    }

    async fn claim(
        &self,
        id: &SessionId,
        by: Home,
        from: Home,
    ) -> Result<Option<SessionRecord>, StoreError> {
        let key = records::Key::of(id.as_str());
        let change = move |record: &mut SessionRecord| {
            let is_free = record.home == from;
            record.home = by;
            is_free
        };
        self.writer
            .run(move |connection, _| records::change(connection, key, change))
            .await
    }

    async fn touch(&self, ids: &[SessionId]) -> Result<Vec<SessionId>, StoreError> {
        let ids = ids.to_vec();
        self.writer
            .run(move |connection, _| records::touch(connection, ids))
            .await
    }

    async fn remove(&self, id: &SessionId) -> Result<bool, StoreError> {
        let key = records::Key::of(id.as_str());
        let replica = self.replica;
        self.writer
            .run(move |connection, _| {
                if replica.is_some() && is_foreign(records::home(connection, key)?, replica) {
                    return Ok(false);
                }
                records::remove(connection, key)?;
                Ok(true)
            })
            .await
    }
}

#[async_trait]
impl EventStore for DiskStore {
    async fn append(
        &self,
        stream: StreamRef<'_>,
        event: &StoredEvent,
    ) -> Result<AppendOutcome, StoreError> {
        let (stream, event) = (events::StreamKey::of(stream), event.clone());
        let replica = self.replica;
        self.writer
            .run(move |connection, growth| {
                let home = match replica {
                    Some(_) => records::home(connection, stream.session)?,
                    None => None,
                };
                if is_foreign(home, replica) {
                    return Ok(AppendOutcome::Foreign);
                }
                events::append(connection, growth, stream, event)?;
                Ok(AppendOutcome::Kept)
            })
            .await
    }

    async fn read(&self, stream: StreamRef<'_>, max: usize) -> Result<Replay, StoreError> {
        let stream = events::StreamKey::of(stream);
        self.writer
            .run(move |connection, _| events::read(connection, stream, max))
            .await
    }

    async fn forget(&self, session: &SessionId) -> Result<(), StoreError> {
        let key = records::Key::of(session.as_str());
        self.writer
            .run(move |connection, _| events::forget(connection, key))
            .await
    }
}

/// True if `home` is known and is not the replica `own`.
fn is_foreign(home: Option<ReplicaId>, own: Option<ReplicaId>) -> bool {
    home.is_some() && home != own
}

/// Converts an error of SQLite to an error of the store.
fn failed(error: rusqlite::Error) -> StoreError {
    StoreError(error.to_string())
}

/// The current time, in seconds since 1970.
fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs().try_into().unwrap_or(i64::MAX))
}

/// The time `age` ago, in seconds since 1970.
fn before(age: Duration) -> i64 {
    now().saturating_sub(age.as_secs().try_into().unwrap_or(i64::MAX))
}

/// Opens a connection to the file, with the settings that all connections share.
fn connect(file: &Path) -> rusqlite::Result<Connection> {
    let connection = Connection::open(file)?;
    connection.busy_timeout(BUSY)?;
    connection.pragma_update(None, "journal_mode", "wal")?;
    connection.pragma_update(None, "synchronous", "normal")?;
    // Normally the housekeeper runs the checkpoints, which wait for the disk. If the log grows faster than the housekeeper
    // copies it, writes run checkpoints too, so that the log is bounded.
    connection.pragma_update(None, "wal_autocheckpoint", LOG_PAGES_MAX)?;
    connection.set_prepared_statement_cache_capacity(32);
    Ok(connection)
}
