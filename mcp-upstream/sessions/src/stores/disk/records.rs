//! The table `sessions`: the record of each session as JSON, under a digest of its id.

use rusqlite::types::{ToSql, ToSqlOutput, Type};
use rusqlite::{Connection, OptionalExtension, Result, params};
use sha2::{Digest, Sha256};

use super::now;
use crate::replicas::ReplicaId;
use crate::session::{SessionId, SessionRecord};

/// SQL schema of the table.
pub(super) const SCHEMA: &str = "
    CREATE TABLE sessions (
        key BLOB PRIMARY KEY,
        record TEXT NOT NULL,
        used INTEGER NOT NULL
    ) WITHOUT ROWID;
    CREATE INDEX sessions_used ON sessions (used);
";

/// Digest of a session's id. It is shorter than the id, and unlike the id it is no credential.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Key([u8; 16]);

impl Key {
    /// Key of the session with that id.
    pub(super) fn of(id: &str) -> Self {
        let mut key = [0; 16];
        key.copy_from_slice(&Sha256::digest(id.as_bytes())[..16]);
        Self(key)
    }
}

impl ToSql for Key {
    fn to_sql(&self) -> Result<ToSqlOutput<'_>> {
        self.0.to_sql()
    }
}

/// Stores a record, unless the stored record's home is another replica. Returns true if the record was stored.
pub(super) fn insert(connection: &Connection, record: &SessionRecord) -> Result<bool> {
    let sql = "INSERT INTO sessions (key, record, used) VALUES (?1, ?2, ?3)
        ON CONFLICT (key) DO UPDATE SET record = excluded.record, used = excluded.used
        WHERE json_extract(record, '$.home.replica') = ?4";
    let key = Key::of(record.id.as_str());
    let mut statement = connection.prepare_cached(sql)?;
    let stored = statement.execute(params![key, written(record)?, now(), record.home.replica.0])?;
    Ok(stored > 0)
}

/// Loads the record of a session.
pub(super) fn load(connection: &Connection, key: Key) -> Result<Option<SessionRecord>> {
    let mut statement = connection.prepare_cached("SELECT record FROM sessions WHERE key = ?1")?;
    let text: Option<String> = statement.query_row([key], |row| row.get(0)).optional()?;
    text.as_deref().map(read).transpose()
}

/// Returns the replica that has a session, according to the session's record.
pub(super) fn home(connection: &Connection, key: Key) -> Result<Option<ReplicaId>> {
    let sql = "SELECT json_extract(record, '$.home.replica') FROM sessions WHERE key = ?1";
    let mut statement = connection.prepare_cached(sql)?;
    let home = statement.query_row([key], |row| row.get(0).map(ReplicaId));
    home.optional()
}

/// Applies `change` to the record of a session, and stores the result if `change` returns true. Returns the stored record;
/// `None` if nothing was stored.
pub(super) fn change(
    connection: &Connection,
    key: Key,
    change: impl FnOnce(&mut SessionRecord) -> bool,
) -> Result<Option<SessionRecord>> {
    let Some(mut record) = load(connection, key)? else {
        return Ok(None);
    };
    if !change(&mut record) {
        return Ok(None);
    }
    let sql = "UPDATE sessions SET record = ?2, used = ?3 WHERE key = ?1";
    let mut statement = connection.prepare_cached(sql)?;
    statement.execute(params![key, written(&record)?, now()])?;
    Ok(Some(record))
}

/// Renews the time of the last use of sessions. Returns the sessions that have no record.
pub(super) fn touch(connection: &Connection, mut ids: Vec<SessionId>) -> Result<Vec<SessionId>> {
    let sql = "UPDATE sessions SET used = ?2 WHERE key = ?1";
    let mut statement = connection.prepare_cached(sql)?;
    let used = now();
    let mut failure = None;
    ids.retain(
        |id| match statement.execute(params![Key::of(id.as_str()), used]) {
            Ok(changed) => changed == 0,
            Err(error) => {
                failure = Some(error);
                false
            }
        },
    );
    failure.map_or(Ok(ids), Err)
}

/// Deletes the record of a session.
pub(super) fn remove(connection: &Connection, key: Key) -> Result<()> {
    let mut statement = connection.prepare_cached("DELETE FROM sessions WHERE key = ?1")?;
    statement.execute([key]).map(drop)
}

fn written(record: &SessionRecord) -> Result<String> {
    let written = serde_json::to_string(record);
    written.map_err(|error| rusqlite::Error::ToSqlConversionFailure(error.into()))
}

/// Parses the record in a row.
fn read(text: &str) -> Result<SessionRecord> {
    let read = serde_json::from_str(text);
    read.map_err(|error| rusqlite::Error::FromSqlConversionFailure(0, Type::Text, error.into()))
}
