//! Tasks in Redis. All keys share a hash tag, since creating a task counts the principal's tasks and all tasks.
//!
//! | key | type | holds |
//! |---|---|---|
//! | `PREFIX task:{tasks}:ID` | hash | `record`: JSON; `outcome`, once the task has ended |
//! | `PREFIX tasks:{tasks}:all` | sorted set | ids of all tasks by the time at which they expire |
//! | `PREFIX tasks:{tasks}:of:DIGEST` | sorted set | the same for one principal |
//! | `PREFIX tasks:{tasks}:bytes:DIGEST` | hash | sizes of the outcomes of one principal's tasks, by id |
//! | `PREFIX tasks:{tasks}:sizes` | hash | sizes of all outcomes, by id |

use std::sync::LazyLock;

use async_trait::async_trait;
use redis::Script;

use super::RedisStore;
use crate::stream::StoreError;
use crate::tasks::{
    InsertedTask, StoredTask, TaskBounds, TaskOutcome, TaskOwner, TaskRecord, TaskStore,
    UpdatedTask, newest_first, principal_key, unix_millis,
};

static INSERT: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("task_insert.lua")));
static UPDATE: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("task_update.lua")));

#[async_trait]
impl TaskStore for RedisStore {
    async fn create(
        &self,
        record: &TaskRecord,
        bounds: TaskBounds,
    ) -> Result<InsertedTask, StoreError> {
        let principal = record.owner.principal_key();
        let mut script = INSERT.key(self.keys.task(&record.id));
        script
            .key(self.keys.tasks_of("all", ""))
            .key(self.keys.tasks_of("of:", &principal))
            .key(self.keys.tasks_of("bytes:", &principal))
            .key(self.keys.tasks_of("sizes", ""))
            .arg(&*record.id)
            .arg(written(record)?)
            .arg(unix_millis())
            .arg(record.expires())
            .arg(bounds.total)
            .arg(bounds.per_principal)
            .arg(bounds.bytes_per_principal)
            .arg(bounds.bytes_total);
        let script = &script;
        // A repeated insert of the same id finds the task, and stores it again.
        let made = self
            .link
            .run(|mut connection| async move { script.invoke_async::<i64>(&mut connection).await });
        Ok(match made.await? {
            0 => InsertedTask::Full,
            1 => InsertedTask::PrincipalFull,
            _ => InsertedTask::Stored,
        })
    }

    async fn find(&self, id: &str) -> Result<Option<StoredTask>, StoreError> {
        let mut load = redis::cmd("HMGET");
        load.arg(self.keys.task(id)).arg("record").arg("outcome");
        let load = &load;
        let loaded = self.link.run(|mut connection| async move {
            load.query_async::<(Option<String>, Option<String>)>(&mut connection)
                .await
        });
        let (Some(record), outcome) = loaded.await? else {
            return Ok(None);
        };
        let record = read(&record)?;
        let outcome = outcome.as_deref().and_then(TaskOutcome::read);
        Ok(is_current(&record).then_some(StoredTask { record, outcome }))
    }

    async fn update(
        &self,
        record: &TaskRecord,
        outcome: Option<&TaskOutcome>,
        bounds: TaskBounds,
    ) -> Result<UpdatedTask, StoreError> {
        let principal = record.owner.principal_key();
        let mut script = UPDATE.key(self.keys.task(&record.id));
        script
            .key(self.keys.tasks_of("bytes:", &principal))
            .key(self.keys.tasks_of("all", ""))
            .key(self.keys.tasks_of("of:", &principal))
            .key(self.keys.tasks_of("sizes", ""))
            .arg(&*record.id)
            .arg(written(record)?)
            .arg(i32::from(record.status.is_terminal()))
            .arg(outcome.map_or_else(String::new, TaskOutcome::written))
            .arg(unix_millis())
            .arg(bounds.small_outcome)
            .arg(bounds.bytes_per_principal)
            .arg(bounds.bytes_total);
        let script = &script;
        // An update that was made without an answer is not repeated: the repetition would find that the task has ended.
        let updated = self.link.run_once(|mut connection| async move {
            script.invoke_async::<i64>(&mut connection).await
        });
        Ok(match updated.await? {
            0 => UpdatedTask::Over,
            1 => UpdatedTask::Stored,
            _ => UpdatedTask::TooLarge,
        })
    }

    async fn list(&self, owner: &TaskOwner) -> Result<Vec<TaskRecord>, StoreError> {
        let key = self.keys.tasks_of("of:", &owner.principal_key());
        let keys = &self.keys;
        let found = self.link.run(|mut connection| {
            let key = key.clone();
            async move {
                let ids: Vec<String> = redis::cmd("ZRANGE")
                    .arg(key)
                    .arg(0)
                    .arg(-1)
                    .query_async(&mut connection)
                    .await?;
                let mut read = redis::pipe();
                for id in &ids {
                    read.hget(keys.task(id), "record");
                }
                match ids.is_empty() {
                    true => Ok(Vec::new()),
                    false => {
                        read.query_async::<Vec<Option<String>>>(&mut connection)
                            .await
                    }
                }
            }
        });
        let mut records = Vec::new();
        for text in found.await?.into_iter().flatten() {
            let record = read(&text)?;
            if record.owner == *owner && is_current(&record) {
                records.push(record);
            }
        }
        newest_first(&mut records);
        Ok(records)
    }

    async fn forget(&self, principal: &str) -> Result<(), StoreError> {
        let principal = principal_key(Some(principal));
        let (own, bytes) = (
            &self.keys.tasks_of("of:", &principal),
            &self.keys.tasks_of("bytes:", &principal),
        );
        let (all, sizes) = (
            &self.keys.tasks_of("all", ""),
            &self.keys.tasks_of("sizes", ""),
        );
        let keys = &self.keys;
        let forgotten = self.link.run(|mut connection| async move {
            let mut read = redis::cmd("ZRANGE");
            read.arg(own).arg(0).arg(-1);
            let ids: Vec<String> = read.query_async(&mut connection).await?;
            if ids.is_empty() {
                return Ok(());
            }
            let tasks: Vec<_> = ids.iter().map(|id| keys.task(id)).collect();
            let mut delete = redis::pipe();
            delete.atomic().del(tasks);
            delete.zrem(own, &ids).zrem(all, &ids);
            delete.hdel(bytes, &ids).hdel(sizes, &ids);
            delete.query_async::<()>(&mut connection).await
        });
        forgotten.await
    }
}

/// Returns true if a task has not expired by the clock of this machine. Redis deletes it by its own.
fn is_current(record: &TaskRecord) -> bool {
    record.expires() > unix_millis()
}

fn written(record: &TaskRecord) -> Result<String, StoreError> {
    serde_json::to_string(record).map_err(|error| StoreError(error.to_string()))
}

/// Parses a record. The error omits the parser's text, which may quote the record.
fn read(text: &str) -> Result<TaskRecord, StoreError> {
    let read = serde_json::from_str(text);
    read.map_err(|_| StoreError("a task in Redis cannot be read".into()))
}
