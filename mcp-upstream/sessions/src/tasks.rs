//! Tasks: calls of Python tools that outlive the request that began them. Their records and their store.
//!
//! ```text
//!            asked ──▶ InputRequired ─┐
//!   Working ◀── answered ─────────────┤
//!      │                              │
//!      └── Ended ─────────────────────┴──▶ Completed | Failed | Cancelled      (terminal: nothing follows)
//! ```
//!
//! A task belongs to the principal and the namespace that created it, and is unknown to all others. Its id is random, so that it
//! cannot be guessed. The task's call runs in one replica, which [`TaskRecord::runner`] names. A task is never run twice: if the
//! process that runs it ends, the task has failed.
//!
//! | file | holds |
//! |---|---|
//! | `tasks/status.rs` | the states and their transitions |
//! | `tasks/record.rs` | the record of a task, its owner and its outcome |
//! | `tasks/store.rs` | the interface to a store of tasks, and the bounds on the stored tasks |
//! | `tasks/memory.rs` | the store of a process without another store |
//!
//! `stores/disk/tasks.rs` and `stores/redis/tasks.rs` are the other stores; `stores/contract/tasks.rs` tests the facts that hold
//! for all three. The calls themselves are run by `mcp-upstream/mcp/tasks.rs`.

mod memory;
mod record;
mod status;
mod store;

pub use memory::MemoryTasks;
pub(crate) use record::principal_key;
pub use record::{StoredTask, TaskOutcome, TaskOwner, TaskRecord, unix_millis};
pub use status::{TaskEnd, TaskEvent, TaskStatus};
pub(crate) use store::newest_first;
pub use store::{InsertedTask, TaskBounds, TaskStore, UpdatedTask};
