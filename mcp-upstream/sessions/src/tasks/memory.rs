//! The store of tasks of a process without another store. Its tasks end with the process.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;

use super::store::newest_first;
use super::{
    InsertedTask, StoredTask, TaskBounds, TaskOutcome, TaskOwner, TaskRecord, TaskStore,
    UpdatedTask, unix_millis,
};
use crate::stream::StoreError;

/// Tasks in the memory of this process.
#[derive(Debug, Default)]
pub struct MemoryTasks(Mutex<HashMap<Arc<str>, StoredTask>>);

impl MemoryTasks {
    /// The tasks that have not expired. The lock is never held across an await.
    fn current(&self) -> MutexGuard<'_, HashMap<Arc<str>, StoredTask>> {
        let mut tasks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = unix_millis();
        tasks.retain(|_, task| task.record.expires() > now);
        tasks
    }
}

fn tasks_of<'a>(
    tasks: &'a HashMap<Arc<str>, StoredTask>,
    principal: &Option<Arc<str>>,
) -> impl Iterator<Item = &'a StoredTask> {
    let all = tasks.values();
    all.filter(move |task| task.record.owner.principal == *principal)
}

fn bytes<'a>(tasks: impl Iterator<Item = &'a StoredTask>) -> u64 {
    let outcomes = tasks.filter_map(|task| task.outcome.as_ref());
    outcomes.map(|outcome| outcome.bytes() as u64).sum()
}

#[async_trait]
impl TaskStore for MemoryTasks {
    async fn create(
        &self,
        record: &TaskRecord,
        bounds: TaskBounds,
    ) -> Result<InsertedTask, StoreError> {
        let mut tasks = self.current();
        if tasks.len() >= bounds.total || bytes(tasks.values()) >= bounds.bytes_total {
            return Ok(InsertedTask::Full);
        }
        let principal = &record.owner.principal;
        let own = || tasks_of(&tasks, principal);
        if own().count() >= bounds.per_principal || bytes(own()) >= bounds.bytes_per_principal {
            return Ok(InsertedTask::PrincipalFull);
        }
        let task = StoredTask {
            record: record.clone(),
            outcome: None,
        };
        tasks.insert(Arc::clone(&record.id), task);
        Ok(InsertedTask::Stored)
    }

    async fn find(&self, id: &str) -> Result<Option<StoredTask>, StoreError> {
        Ok(self.current().get(id).cloned())
    }

    async fn update(
        &self,
        record: &TaskRecord,
        outcome: Option<&TaskOutcome>,
        bounds: TaskBounds,
    ) -> Result<UpdatedTask, StoreError> {
        let mut tasks = self.current();
        let stored = tasks.get(&record.id);
        if stored.is_none_or(|task| task.record.status.is_terminal()) {
            return Ok(UpdatedTask::Over);
        }
        if let Some(outcome) = outcome {
            let own = bytes(tasks_of(&tasks, &record.owner.principal));
            if !bounds.admit(outcome, own, bytes(tasks.values())) {
                return Ok(UpdatedTask::TooLarge);
            }
        }
        let task = StoredTask {
            record: record.clone(),
            outcome: outcome.cloned(),
        };
        tasks.insert(Arc::clone(&record.id), task);
        Ok(UpdatedTask::Stored)
    }

    async fn list(&self, owner: &TaskOwner) -> Result<Vec<TaskRecord>, StoreError> {
        let tasks = self.current();
        let own = tasks.values().filter(|task| task.record.owner == *owner);
        let mut records: Vec<_> = own.map(|task| task.record.clone()).collect();
        drop(tasks);
        newest_first(&mut records);
        Ok(records)
    }

    async fn forget(&self, principal: &str) -> Result<(), StoreError> {
        let mut tasks = self.current();
        tasks.retain(|_, task| task.record.owner.principal.as_deref() != Some(principal));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stores::contract::tasks::{MadeTasks, tasks_hold_for};

    tasks_hold_for!(memory);

    async fn memory() -> MadeTasks {
        MadeTasks {
            store: Arc::new(MemoryTasks::default()),
            guard: Box::new(()),
        }
    }
}
