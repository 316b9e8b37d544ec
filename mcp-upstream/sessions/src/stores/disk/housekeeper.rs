//! The housekeeper thread of the SQLite file: it copies the write-ahead log into the file, and deletes expired rows.

use std::path::Path;
use std::sync::mpsc::{self, RecvTimeoutError, SyncSender};
use std::thread;
use std::time::Duration;

use rusqlite::{Connection, Result, TransactionBehavior, params};

use super::{Bounds, before, connect, failed, tasks};
use crate::stream::StoreError;

/// Interval between two checkpoints.
const CHECKPOINT: Duration = Duration::from_secs(5);

/// Size of the write-ahead log, in pages of 4 KiB, above which a checkpoint empties it: 16 MiB.
const LOG_PAGES: u32 = 4096;

/// Number of checkpoints between two searches for expired rows.
const PURGE: u32 = 6;

/// Maximum number of rows that one transaction deletes. It is small because the writer waits meanwhile.
const STEP: usize = 500;

/// Time for which the ids of a stream's unanswered requests are kept: longer than a call may take.
const OWED_FOR: Duration = Duration::from_secs(2 * 60 * 60);

/// Handle of the housekeeper thread. Dropping it ends the thread.
pub(super) struct Housekeeper {
    _running: SyncSender<()>,
}

impl Housekeeper {
    /// Starts the housekeeper thread.
    pub(super) fn start(file: &Path, bounds: Bounds) -> Result<Self, StoreError> {
        let mut connection = connect(file).map_err(failed)?;
        let (running, ended) = mpsc::sync_channel(0);
        let mut turns = 0_u32;
        let run = move || {
            while let Err(RecvTimeoutError::Timeout) = ended.recv_timeout(CHECKPOINT) {
                turns = turns.wrapping_add(1);
                let kept = match turns % PURGE {
                    0 => purge(&mut connection, &bounds),
                    _ => Ok(()),
                };
                if let Err(error) = kept.and_then(|()| checkpoint(&connection, LOG_PAGES)) {
                    tracing::error!(%error, "the session store is not cleaned up");
                }
            }
        };
        let thread = thread::Builder::new().name("session-store-gc".into());
        let started = thread.spawn(run);
        started.map_err(|error| StoreError(format!("no thread: {error}")))?;
        Ok(Self { _running: running })
    }
}

/// Copies the write-ahead log into the file while other connections write. A log of more than `pages` pages is then emptied,
/// while writers wait. Without this the log would keep growing under steady writes, since SQLite then never reuses it.
pub(super) fn checkpoint(connection: &Connection, pages: u32) -> Result<()> {
    let logged = |row: &rusqlite::Row<'_>| row.get::<_, i64>(1);
    let logged = connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], logged)?;
    if logged > i64::from(pages) {
        connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))?;
    }
    Ok(())
}

/// Deletes expired rows, and the oldest rows beyond the bounds.
pub(super) fn purge(connection: &mut Connection, bounds: &Bounds) -> Result<()> {
    while in_steps(connection, |step| {
        drop_events(step, before(bounds.events_for))
    })? {}
    let (records_for, records) = (before(bounds.records_for), bounds.records);
    while in_steps(connection, |step| drop_sessions(step, records_for, records))? {}
    while in_steps(connection, |step| drop_streams(step, before(OWED_FOR)))? {}
    while in_steps(connection, |step| tasks::drop_expired(step, STEP))? {}
    // Outcomes of tasks have bounds of their own, and displace no events.
    let allowed = bounds.bytes.saturating_add(tasks::bytes(connection)?);
    while used_bytes(connection)? > allowed
        && in_steps(connection, |step| drop_events(step, i64::MAX))?
    {}
    Ok(())
}

/// Deletes some rows in a transaction. Returns true if there may be more.
fn in_steps(
    connection: &mut Connection,
    step: impl FnOnce(&Connection) -> Result<usize>,
) -> Result<bool> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let dropped = step(&transaction)?;
    transaction.commit()?;
    Ok(dropped == STEP)
}

/// Deletes the oldest messages that were stored before `until`, in seconds since 1970, at most `STEP` of them.
fn drop_events(connection: &Connection, until: i64) -> Result<usize> {
    let sql = "SELECT id, session, stream, sequence, at FROM events ORDER BY id LIMIT ?1";
    let mut statement = connection.prepare_cached(sql)?;
    let mut rows = statement.query([STEP])?;
    let noted = "UPDATE streams SET dropped = max(dropped, ?3) WHERE session = ?1 AND number = ?2";
    let mut note = connection.prepare_cached(noted)?;
    let (mut newest, mut dropped) = (None, 0);
    while let Some(row) = rows.next()? {
        if row.get::<_, i64>(4)? >= until {
            break;
        }
        let session: Vec<u8> = row.get(1)?;
        note.execute(params![
            session,
            row.get::<_, u32>(2)?,
            row.get::<_, u64>(3)?
        ])?;
        newest = Some(row.get::<_, i64>(0)?);
        dropped += 1;
    }
    drop(rows);
    if let Some(newest) = newest {
        connection.execute("DELETE FROM events WHERE id <= ?1", [newest])?;
    }
    Ok(dropped)
}

/// Deletes sessions whose last use was before `until`, in seconds since 1970, and the least recently used sessions beyond `max`.
fn drop_sessions(connection: &Connection, until: i64, max: usize) -> Result<usize> {
    let count: usize =
        connection.query_row("SELECT count(*) FROM sessions", [], |row| row.get(0))?;
    let surplus = count.saturating_sub(max).min(STEP);
    let sql = "SELECT key, used FROM sessions ORDER BY used LIMIT ?1";
    let mut statement = connection.prepare_cached(sql)?;
    let mut rows = statement.query([STEP])?;
    let mut dropped = 0;
    while let Some(row) = rows.next()? {
        if row.get::<_, i64>(1)? >= until && dropped >= surplus {
            break;
        }
        let key: Vec<u8> = row.get(0)?;
        for sql in [
            "DELETE FROM events WHERE session = ?1",
            "DELETE FROM streams WHERE session = ?1",
            "DELETE FROM sessions WHERE key = ?1",
        ] {
            connection.prepare_cached(sql)?.execute([&key])?;
        }
        dropped += 1;
    }
    Ok(dropped)
}

/// Deletes the stored openings of streams that were opened before `until`, in seconds since 1970, if they have unanswered
/// requests, whose calls have long ended by then, or if their session no longer exists.
fn drop_streams(connection: &Connection, until: i64) -> Result<usize> {
    let sql = "DELETE FROM streams WHERE (session, number) IN (
        SELECT session, number FROM streams WHERE at < ?1 AND
            (owes <> '[]' OR NOT EXISTS (SELECT 1 FROM sessions WHERE key = session))
        ORDER BY at LIMIT ?2)";
    connection
        .prepare_cached(sql)?
        .execute(params![until, STEP])
}

/// Number of bytes of the file that are in use, without free pages.
fn used_bytes(connection: &Connection) -> Result<u64> {
    let pragma = |name: &str| connection.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
    let pages = pragma("page_count")?.saturating_sub(pragma("freelist_count")?);
    Ok(pages
        .saturating_mul(pragma("page_size")?)
        .try_into()
        .unwrap_or(0))
}
