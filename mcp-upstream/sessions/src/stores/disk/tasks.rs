//! The table `tasks`: the record of each task as JSON, and its outcome.

use async_trait::async_trait;
use rusqlite::types::Type;
use rusqlite::{Connection, OptionalExtension, Result, Row, params};

use super::DiskStore;
use crate::stream::StoreError;
use crate::tasks::{
    InsertedTask, StoredTask, TaskBounds, TaskOutcome, TaskOwner, TaskRecord, TaskStore,
    UpdatedTask, principal_key, unix_millis,
};

/// SQL schema of the table. Files of earlier versions have no such table, so it is created whenever a file is opened. Times are
/// in milliseconds of Unix time.
pub(super) const SCHEMA: &str = "
    CREATE TABLE IF NOT EXISTS tasks (
        id TEXT PRIMARY KEY,
        principal TEXT NOT NULL,
        namespace TEXT NOT NULL,
        created INTEGER NOT NULL,
        expires INTEGER NOT NULL,
        ended INTEGER NOT NULL,
        bytes INTEGER NOT NULL,
        record TEXT NOT NULL,
        outcome TEXT
    ) WITHOUT ROWID;
    CREATE INDEX IF NOT EXISTS tasks_of_principals ON tasks (principal, expires, bytes);
    CREATE INDEX IF NOT EXISTS tasks_expire ON tasks (expires);
";

#[async_trait]
impl TaskStore for DiskStore {
    async fn create(
        &self,
        record: &TaskRecord,
        bounds: TaskBounds,
    ) -> Result<InsertedTask, StoreError> {
        let record = record.clone();
        self.writer
            .run(move |connection, _| insert(connection, &record, bounds))
            .await
    }

    async fn find(&self, id: &str) -> Result<Option<StoredTask>, StoreError> {
        let id = id.to_owned();
        self.writer
            .run(move |connection, _| load(connection, &id))
            .await
    }

    async fn update(
        &self,
        record: &TaskRecord,
        outcome: Option<&TaskOutcome>,
        bounds: TaskBounds,
    ) -> Result<UpdatedTask, StoreError> {
        let (record, outcome) = (record.clone(), outcome.cloned());
        self.writer
            .run(move |connection, _| update(connection, &record, outcome.as_ref(), bounds))
            .await
    }

    async fn list(&self, owner: &TaskOwner) -> Result<Vec<TaskRecord>, StoreError> {
        let owner = owner.clone();
        self.writer
            .run(move |connection, _| list(connection, &owner))
            .await
    }

    async fn forget(&self, principal: &str) -> Result<(), StoreError> {
        let key = principal_key(Some(principal));
        self.writer
            .run(move |connection, _| {
                let sql = "DELETE FROM tasks WHERE principal = ?1";
                connection.prepare_cached(sql)?.execute([key])?;
                Ok(())
            })
            .await
    }
}

/// Deletes at most `most` expired tasks, and returns the number of deleted tasks.
pub(super) fn drop_expired(connection: &Connection, most: usize) -> Result<usize> {
    let sql = "DELETE FROM tasks WHERE id IN (SELECT id FROM tasks WHERE expires <= ?1 LIMIT ?2)";
    let mut statement = connection.prepare_cached(sql)?;
    statement.execute(params![now(), most])
}

/// Size of all outcomes in the file, in bytes.
pub(super) fn bytes(connection: &Connection) -> Result<u64> {
    let sql = "SELECT coalesce(sum(bytes), 0) FROM tasks";
    connection.query_row(sql, [], |row| row.get(0))
}

fn insert(
    connection: &Connection,
    record: &TaskRecord,
    bounds: TaskBounds,
) -> Result<InsertedTask> {
    let now = now();
    let (total, bytes) = sums(connection, now)?;
    if total >= bounds.total || bytes >= bounds.bytes_total {
        return Ok(InsertedTask::Full);
    }
    let principal = record.owner.principal_key();
    let (own, bytes) = sums_of(connection, &principal, now)?;
    if own >= bounds.per_principal || bytes >= bounds.bytes_per_principal {
        return Ok(InsertedTask::PrincipalFull);
    }
    let sql = "INSERT INTO tasks (id, principal, namespace, created, expires, ended, bytes, record)
        VALUES (?1, ?2, ?3, ?4, ?5, 0, 0, ?6)";
    connection.prepare_cached(sql)?.execute(params![
        record.id,
        principal,
        record.owner.namespace.as_str(),
        date(record.created),
        date(record.expires()),
        written(record)?
    ])?;
    Ok(InsertedTask::Stored)
}

/// Number of all tasks, and the size of their outcomes in bytes.
fn sums(connection: &Connection, now: i64) -> Result<(usize, u64)> {
    let sql = "SELECT count(*), coalesce(sum(bytes), 0) FROM tasks WHERE expires > ?1";
    let mut statement = connection.prepare_cached(sql)?;
    statement.query_row([now], |row| Ok((row.get(0)?, row.get(1)?)))
}

/// Number of a principal's tasks, and the size of their outcomes in bytes.
fn sums_of(connection: &Connection, principal: &str, now: i64) -> Result<(usize, u64)> {
    let sql =
        "SELECT count(*), coalesce(sum(bytes), 0) FROM tasks WHERE principal = ?1 AND expires > ?2";
    let mut statement = connection.prepare_cached(sql)?;
    statement.query_row(params![principal, now], |row| {
        Ok((row.get(0)?, row.get(1)?))
    })
}

fn load(connection: &Connection, id: &str) -> Result<Option<StoredTask>> {
    let sql = "SELECT record, outcome FROM tasks WHERE id = ?1 AND expires > ?2";
    let mut statement = connection.prepare_cached(sql)?;
    let found = statement.query_row(params![id, now()], |row| {
        let outcome: Option<String> = row.get(1)?;
        Ok(StoredTask {
            record: read(row)?,
            outcome: outcome.as_deref().and_then(TaskOutcome::read),
        })
    });
    found.optional()
}

fn update(
    connection: &Connection,
    record: &TaskRecord,
    outcome: Option<&TaskOutcome>,
    bounds: TaskBounds,
) -> Result<UpdatedTask> {
    let now = now();
    let sql = "SELECT 1 FROM tasks WHERE id = ?1 AND ended = 0 AND expires > ?2";
    let mut running = connection.prepare_cached(sql)?;
    if !running.exists(params![record.id, now])? {
        return Ok(UpdatedTask::Over);
    }
    if let Some(outcome) = outcome {
        let (_, own) = sums_of(connection, &record.owner.principal_key(), now)?;
        let (_, all) = sums(connection, now)?;
        if !bounds.admit(outcome, own, all) {
            return Ok(UpdatedTask::TooLarge);
        }
    }
    let sql = "UPDATE tasks SET record = ?2, ended = ?3, bytes = ?4, outcome = ?5
        WHERE id = ?1";
    connection.prepare_cached(sql)?.execute(params![
        record.id,
        written(record)?,
        record.status.is_terminal(),
        outcome.map_or(0, TaskOutcome::bytes),
        outcome.map(TaskOutcome::written)
    ])?;
    Ok(UpdatedTask::Stored)
}

fn list(connection: &Connection, owner: &TaskOwner) -> Result<Vec<TaskRecord>> {
    let sql = "SELECT record FROM tasks WHERE principal = ?1 AND namespace = ?2 AND expires > ?3
        ORDER BY created DESC, id DESC";
    let mut statement = connection.prepare_cached(sql)?;
    let key = owner.principal_key();
    let found = statement.query_map(params![key, owner.namespace.as_str(), now()], read)?;
    found.collect()
}

fn now() -> i64 {
    date(unix_millis())
}

/// A time as SQLite stores it.
fn date(millis: u64) -> i64 {
    i64::try_from(millis).unwrap_or(i64::MAX)
}

fn written(record: &TaskRecord) -> Result<String> {
    let written = serde_json::to_string(record);
    written.map_err(|error| rusqlite::Error::ToSqlConversionFailure(error.into()))
}

/// Parses the record in the first column of a row.
fn read(row: &Row<'_>) -> Result<TaskRecord> {
    let text: String = row.get(0)?;
    let read = serde_json::from_str(&text);
    read.map_err(|error| rusqlite::Error::FromSqlConversionFailure(0, Type::Text, error.into()))
}
