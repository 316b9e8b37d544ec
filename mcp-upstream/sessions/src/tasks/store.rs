//! Interface to a store of tasks.

use async_trait::async_trait;

use super::{StoredTask, TaskOutcome, TaskOwner, TaskRecord};
use crate::stream::StoreError;

/// Bounds on the tasks of a store, checked when a task is created and when its outcome is stored.
#[derive(Debug, Clone, Copy)]
pub struct TaskBounds {
    /// Maximum number of tasks of one principal, in all namespaces.
    pub per_principal: usize,
    /// Maximum number of all tasks.
    pub total: usize,
    /// Maximum size of the outcomes of one principal's tasks, in bytes. A principal that has reached it creates no further task.
    pub bytes_per_principal: u64,
    /// Maximum size of all outcomes, in bytes. While it is reached, no further task is created.
    pub bytes_total: u64,
    /// Size of an outcome, in bytes, up to which it is stored in any case, so that each task can fail.
    pub small_outcome: u64,
}

impl TaskBounds {
    /// Returns true if an outcome may be stored. `own` and `all`: the sizes of the outcomes that the principal's tasks and all
    /// tasks have already. `task_update.lua` decides as this does.
    pub(crate) fn admit(&self, outcome: &TaskOutcome, own: u64, all: u64) -> bool {
        let bytes = outcome.bytes() as u64;
        bytes <= self.small_outcome
            || (own.saturating_add(bytes) <= self.bytes_per_principal
                && all.saturating_add(bytes) <= self.bytes_total)
    }
}

impl Default for TaskBounds {
    fn default() -> Self {
        Self {
            per_principal: 1000,
            total: 10_000,
            bytes_per_principal: 64 * 1024 * 1024,
            bytes_total: 256 * 1024 * 1024,
            small_outcome: 1024,
        }
    }
}

/// Answer to the creation of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InsertedTask {
    /// The task is stored.
    Stored,
    /// The principal has too many tasks, or their outcomes are too large.
    PrincipalFull,
    /// The store has too many tasks, or their outcomes are too large.
    Full,
}

/// Answer to the update of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UpdatedTask {
    /// The record is stored, with the outcome.
    Stored,
    /// The stored task has ended already or is gone. Nothing is changed.
    Over,
    /// The outcome does not fit into the bounds. Nothing is changed.
    TooLarge,
}

/// Stores tasks until they expire. An expired task counts as deleted. Each operation is atomic.
#[async_trait]
pub trait TaskStore: Send + Sync {
    /// Stores a new task, within the bounds.
    ///
    /// # Errors
    ///
    /// [`StoreError`], if the store cannot be written.
    async fn create(
        &self,
        record: &TaskRecord,
        bounds: TaskBounds,
    ) -> Result<InsertedTask, StoreError>;

    /// Loads a task with its outcome.
    ///
    /// # Errors
    ///
    /// [`StoreError`], if the store cannot be read.
    async fn find(&self, id: &str) -> Result<Option<StoredTask>, StoreError>;

    /// Replaces the record of a task, and stores its outcome if it has ended, within the bounds on outcomes.
    ///
    /// # Errors
    ///
    /// [`StoreError`], if the store cannot be written.
    async fn update(
        &self,
        record: &TaskRecord,
        outcome: Option<&TaskOutcome>,
        bounds: TaskBounds,
    ) -> Result<UpdatedTask, StoreError>;

    /// Returns the records of an owner's tasks, the newest first.
    ///
    /// # Errors
    ///
    /// [`StoreError`], if the store cannot be read.
    async fn list(&self, owner: &TaskOwner) -> Result<Vec<TaskRecord>, StoreError>;

    /// Deletes the tasks of a principal, in all namespaces.
    ///
    /// # Errors
    ///
    /// [`StoreError`], if the store cannot be written.
    async fn forget(&self, principal: &str) -> Result<(), StoreError>;
}

/// Sorts records by the time of their creation, the newest first.
pub(crate) fn newest_first(records: &mut [TaskRecord]) {
    records.sort_by(|one, other| (other.created, &other.id).cmp(&(one.created, &one.id)));
}
