//! The tables `news` and `reloads`: messages between replicas. A store without replicas writes to neither.

use rusqlite::{Connection, Result, Transaction, TransactionBehavior, params};

use super::now;
use crate::replicas::ReplicaId;

/// SQL schema of the tables. Files of earlier gateway versions lack these tables; those versions can read files that have them.
const SCHEMA: &str = "
    CREATE TABLE IF NOT EXISTS news (
        number INTEGER PRIMARY KEY AUTOINCREMENT,
        teller INTEGER NOT NULL,
        news TEXT NOT NULL,
        at INTEGER NOT NULL
    );
    CREATE TABLE IF NOT EXISTS reloads (
        asked INTEGER PRIMARY KEY
    );
";

/// Maximum number of news items that are kept for replicas that have not read them. Older ones are deleted.
const KEPT: i64 = 1024;

/// Number of seconds for which a news item is kept, except the newest item.
const KEPT_FOR: i64 = 60;

/// State of the tables for a replica: the news items that it has not read yet, and the number of reloads.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct UnreadNews {
    /// Number of the newest news item.
    pub(super) newest: u64,
    /// News items of other replicas.
    pub(super) news: Vec<String>,
    /// Number of reloads requested so far.
    pub(super) reloads: u64,
}

/// Creates the tables if they are missing.
pub(super) fn make_tables(connection: &Connection) -> Result<()> {
    connection.execute_batch(SCHEMA)
}

/// Reads the number of the newest news item, the number of reloads, and the news items of other replicas with numbers above
/// `seen`. If `seen` is `None`, no items are read.
pub(super) fn read(
    connection: &Connection,
    own: ReplicaId,
    seen: Option<u64>,
) -> Result<UnreadNews> {
    let mut unheard = UnreadNews {
        newest: newest(connection)?,
        news: Vec::new(),
        reloads: reloads(connection)?,
    };
    if let Some(seen) = seen.filter(|seen| *seen < unheard.newest) {
        let sql = "SELECT news FROM news WHERE number > ?1 AND number <= ?2 AND teller <> ?3 ORDER BY number";
        let mut statement = connection.prepare_cached(sql)?;
        let read = statement.query_map(params![seen, unheard.newest, own.0], |row| row.get(0))?;
        unheard.news = read.collect::<Result<_>>()?;
    }
    Ok(unheard)
}

/// Stores news for the other replicas, and deletes old items. The newest item is always kept, so that the numbers continue.
pub(super) fn tell(connection: &mut Connection, own: ReplicaId, news: &[String]) -> Result<()> {
    let transaction = begun(connection)?;
    for said in news {
        let sql = "INSERT INTO news (teller, news, at) VALUES (?1, ?2, ?3)";
        transaction
            .prepare_cached(sql)?
            .execute(params![own.0, said, now()])?;
    }
    let newest: i64 = transaction.last_insert_rowid();
    let sql = "DELETE FROM news WHERE number <= ?1 OR (at < ?2 AND number < ?3)";
    transaction.prepare_cached(sql)?.execute(params![
        newest.saturating_sub(KEPT),
        now().saturating_sub(KEPT_FOR),
        newest
    ])?;
    transaction.commit()
}

/// Requests a reload. Returns the number of reloads requested so far.
pub(super) fn ask_reload(connection: &mut Connection) -> Result<u64> {
    let transaction = begun(connection)?;
    let asked = reloads(&transaction)?.saturating_add(1);
    transaction.execute("DELETE FROM reloads", [])?;
    transaction.execute("INSERT INTO reloads (asked) VALUES (?1)", [asked])?;
    transaction.commit()?;
    Ok(asked)
}

fn begun(connection: &mut Connection) -> Result<Transaction<'_>> {
    connection.transaction_with_behavior(TransactionBehavior::Immediate)
}

fn newest(connection: &Connection) -> Result<u64> {
    let sql = "SELECT coalesce(max(number), 0) FROM news";
    let mut statement = connection.prepare_cached(sql)?;
    statement.query_row([], |row| row.get(0))
}

fn reloads(connection: &Connection) -> Result<u64> {
    let sql = "SELECT coalesce(max(asked), 0) FROM reloads";
    let mut statement = connection.prepare_cached(sql)?;
    statement.query_row([], |row| row.get(0))
}
