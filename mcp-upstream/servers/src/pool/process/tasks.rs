//! Owners of the tasks that run on one process.
//!
//! A server distinguishes the tasks of its clients by the connection, but here several clients share a connection. So each
//! process has a table of tasks. A task belongs to the principal whose call the server answered with it. Other principals cannot
//! use the task, and it exists on that process only. A task whose call was abandoned before its response has no owner.
//!
//! The table is bounded. When it is full, the oldest task of the principal with the most tasks is removed. The end of a removed
//! task cannot be detected, so a process for which a running task was removed never counts as idle again.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;
use smallvec::SmallVec;
use tokio::time::Instant;
use tooldock_protocol::jsonrpc::{self, Key, Members, Notification, spans};

use crate::link::{CallOwner, Inbound};

/// Maximum number of tasks of one process that are recorded; the oldest is forgotten for a new one.
const TASKS_MAX: usize = 2048;
/// Maximum number of recorded tasks of one principal on a process; the oldest is forgotten for a new one.
const OF_ONE_MAX: usize = 256;
/// Maximum size of a task's id, in bytes. The ids of typical servers have 36.
const ID_MAX: usize = 512;
/// Maximum size of a notification that is stored until the owner of its task is known, in bytes.
const EARLY_MAX: usize = 64 * 1024;
/// Time for which a task stays recorded after the server has dropped it.
const GRACE: Duration = Duration::from_secs(60);

/// The record of the tasks of one process.
#[derive(Default)]
pub struct Tasks {
    /// The recorded tasks. No other code is called while the lock is held.
    table: Mutex<TaskTable>,
    /// Number of tasks whose owner is not assigned yet. It can be read without the lock.
    ownerless: AtomicUsize,
}

/// The owner of a task, and the destination of messages about it.
#[derive(Clone)]
pub struct TaskOwner {
    /// The client whose call began the task.
    pub caller: CallOwner,
    /// Handler for those of the server's messages about the task that belong to no call; `None` if they are dropped.
    pub ear: Option<Arc<dyn Inbound>>,
}

#[derive(Default)]
struct TaskTable {
    tasks: HashMap<Arc<str>, TaskEntry>,
    /// Tasks whose owner is not assigned yet, by the call that started them.
    by_call: HashMap<u64, Arc<str>>,
    next: u64,
    /// True once a task that may still run was forgotten, or the id of a task could not be read.
    lost: bool,
}

struct TaskEntry {
    number: u64,
    owner: TaskOwnership,
    over: bool,
    /// True if the client cancelled the task. The server may continue to work on it nevertheless.
    cancelled: bool,
    expires: Option<Instant>,
}

enum TaskOwnership {
    /// No owner is assigned yet: the response to this call has not been processed. `None` instead of a call: the caller has
    /// dropped it, so there will be no owner. The second field is the last notification about the task so far.
    NotYet(Option<u64>, Option<EarlyTaskMessage>),
    By(TaskOwner),
}

/// A notification about a task that has no owner yet. It is stored for the owner.
struct EarlyTaskMessage {
    method: String,
    message: Bytes,
    params: Option<Bytes>,
}

/// The state of a task, as a message of the server reports it.
struct TaskReport<'a> {
    id: Cow<'a, str>,
    over: bool,
    cancelled: bool,
    /// Time for which the server keeps the task, in milliseconds from its start.
    keeps: Option<u64>,
}

/// The ids of the tasks that a message names, decoded.
pub(crate) type TaskIds<'a> = SmallVec<[Cow<'a, str>; 1]>;

/// Error for a message that names tasks in a form which different parsers could read differently.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AmbiguousTask;

/// Returns the ids of the tasks that raw JSON parameters name, by `taskId` and in their metadata.
///
/// # Errors
///
/// [`AmbiguousTask`] when the parameters name a task in a form that parsers could read differently.
pub fn named(params: &str) -> Result<TaskIds<'_>, AmbiguousTask> {
    let named = TaskIds::new();
    if !spans::may_hold(params.as_bytes(), "taskId") {
        return Ok(named);
    }
    let members = Members::of_params(params).ok_or(AmbiguousTask)?;
    named_by(&members)
}

/// Returns the ids of the tasks that the parameters of a message name.
///
/// # Errors
///
/// [`AmbiguousTask`] when the parameters name a task in a form that parsers could read differently.
pub fn named_by<'a>(members: &Members<'a>) -> Result<TaskIds<'a>, AmbiguousTask> {
    members.unique().map_err(|_| AmbiguousTask)?;
    let mut named = TaskIds::new();
    let mut add = |key| {
        let id = members.get(key).and_then(jsonrpc::string);
        named.push(id.ok_or(AmbiguousTask)?);
        Ok(())
    };
    if members.raw(Key::TaskId).is_some() {
        add(Key::TaskId)?;
    }
    if members.raw(Key::RelatedTask).is_some() {
        add(Key::RelatedTaskId)?;
    }
    Ok(named)
}

impl Tasks {
    /// Records the task with which the server has answered a call. `call`: `None` if the caller has dropped the call.
    pub fn begin(&self, call: Option<u64>, result: &RawValue) {
        let now = Instant::now();
        let mut table = self.lock();
        let said = TaskReport::read(result.get()).filter(|said| said.id.len() <= ID_MAX);
        let Some(said) = said else {
            // The id cannot be read or is too long. No client can name the task, but the server works on it.
            table.lost = true;
            return;
        };
        table.forget_expired(now);
        if let Some(known) = table.tasks.get_mut(&*said.id) {
            // A task that is recorded already keeps its first owner.
            known.note(&said, now);
        } else {
            if table.tasks.len() >= TASKS_MAX {
                table.make_room();
            }
            let mut task = TaskEntry {
                number: table.next,
                owner: TaskOwnership::NotYet(call, None),
                over: false,
                cancelled: false,
                expires: None,
            };
            task.note(&said, now);
            table.next += 1;
            let id: Arc<str> = (&*said.id).into();
            if let Some(call) = call {
                table.by_call.insert(call, Arc::clone(&id));
            }
            table.tasks.insert(id, task);
        }
        self.count(&table);
    }

    /// Returns true if the owner of a task is still to be assigned.
    #[inline]
    pub fn await_owner(&self) -> bool {
        self.ownerless.load(Ordering::Acquire) > 0
    }

    /// Assigns the task that a call has started, if any, to the owner of the call.
    pub fn claim(&self, call: u64, owner: impl FnOnce() -> TaskOwner) {
        let told = {
            let mut table = self.lock();
            let Some(id) = table.by_call.remove(&call) else {
                return;
            };
            self.count(&table);
            let Some(task) = table.tasks.get_mut(&id) else {
                return;
            };
            let TaskOwnership::NotYet(_, early) = &mut task.owner else {
                return;
            };
            let (early, owner) = (early.take(), owner());
            let ear = owner.ear.clone();
            let principal = owner.caller.principal.clone();
            task.owner = TaskOwnership::By(owner);
            table.keep_share(&principal);
            early.zip(ear)
        };
        if let Some((early, ear)) = told {
            ear.notification(Notification {
                method: &early.method,
                params: early.params,
                message: early.message,
            });
        }
    }

    /// Returns true if the principal owns the task, and so may use it.
    pub fn owns(&self, principal: Option<&Arc<str>>, id: &str) -> bool {
        let table = self.lock();
        let task = table.tasks.get(id);
        task.is_some_and(|task| match &task.owner {
            TaskOwnership::By(owner) => {
                owner.caller.principal.as_ref() == principal && !task.is_expired(Instant::now())
            }
            TaskOwnership::NotYet(..) => false,
        })
    }

    /// Updates a task from a result that reports the task's state.
    #[inline]
    pub fn observe(&self, result: &[u8]) {
        let said = std::str::from_utf8(result).ok().and_then(TaskReport::read);
        if let Some(said) = said
            && let Some(task) = self.lock().tasks.get_mut(&*said.id)
        {
            task.note(&said, Instant::now());
        }
    }

    /// Records that a task has ended, because the server returned the task's result.
    #[inline]
    pub fn is_over(&self, id: &str) {
        if let Some(task) = self.lock().tasks.get_mut(id) {
            task.over = true;
        }
    }

    /// Returns true if all tasks are known to have ended.
    pub(super) fn are_over(&self) -> bool {
        let table = self.lock();
        !table.lost && table.tasks.values().all(|task| task.over)
    }

    /// Returns true if all tasks that may still run belong to this caller.
    pub(super) fn are_of(&self, caller: &CallOwner) -> bool {
        let table = self.lock();
        let is_of = |task: &TaskEntry| match &task.owner {
            TaskOwnership::By(owner) => owner.caller == *caller,
            TaskOwnership::NotYet(..) => false,
        };
        !table.lost && table.tasks.values().all(|task| task.over || is_of(task))
    }

    /// Returns true if there is a running task that was neither cancelled nor has expired.
    pub(super) fn are_running(&self) -> bool {
        let now = Instant::now();
        let runs = |task: &TaskEntry| !task.over && !task.cancelled && !task.is_expired(now);
        self.lock().tasks.values().any(runs)
    }

    /// Passes a server's message about a task to the task's owner. Returns false if the message is not about a task.
    pub fn tell(&self, notification: &Notification<'_>) -> bool {
        let params = notification.params.as_deref().unwrap_or_default();
        let params = std::str::from_utf8(params).unwrap_or_default();
        let of_tasks = notification.method.starts_with("notifications/tasks");
        let named = match named(params) {
            Ok(named) if named.is_empty() => return of_tasks,
            Ok(named) if named.iter().all(|id| *id == named[0]) => named,
            // The message names several tasks, or names a task in a form that parsers read differently. It is dropped.
            _ => return true,
        };
        let said = of_tasks.then(|| TaskReport::read(params)).flatten();
        let ear = {
            let mut table = self.lock();
            let Some(task) = table.tasks.get_mut(&*named[0]) else {
                return true;
            };
            if let Some(said) = said {
                task.note(&said, Instant::now());
            }
            match &mut task.owner {
                TaskOwnership::By(owner) => owner.ear.clone(),
                TaskOwnership::NotYet(Some(_), early) => {
                    if notification.message.len() <= EARLY_MAX {
                        *early = Some(EarlyTaskMessage::of(notification));
                    }
                    None
                }
                TaskOwnership::NotYet(None, _) => None,
            }
        };
        if let Some(ear) = ear {
            ear.notification(notification.clone());
        }
        true
    }

    fn count(&self, table: &TaskTable) {
        let ownerless = table.by_call.len();
        self.ownerless.store(ownerless, Ordering::Release);
    }

    fn lock(&self) -> MutexGuard<'_, TaskTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TaskTable {
    fn forget_expired(&mut self, now: Instant) {
        let (lost, by_call) = (&mut self.lost, &mut self.by_call);
        self.tasks.retain(|_, task| {
            let stays = !task.is_expired(now);
            if !stays {
                *lost |= !task.over;
                task.leave(by_call);
            }
            stays
        });
    }

    /// Forgets the oldest task of the principal with the most tasks.
    fn make_room(&mut self) {
        let mut held: HashMap<Option<&Option<Arc<str>>>, usize> = HashMap::new();
        for task in self.tasks.values() {
            *held.entry(task.principal()).or_insert(0) += 1;
        }
        let most = held.into_iter().max_by_key(|(_, count)| *count);
        let most = most.and_then(|(principal, _)| principal.cloned());
        self.forget_oldest_of(&most);
    }

    /// Forgets the oldest task of a principal that has more than [`OF_ONE_MAX`] tasks.
    fn keep_share(&mut self, principal: &Option<Arc<str>>) {
        let all = self.tasks.values();
        let held = all
            .filter(|task| task.principal() == Some(principal))
            .count();
        if held > OF_ONE_MAX {
            self.forget_oldest_of(&Some(principal.clone()));
        }
    }

    /// Forgets the oldest task of a principal. `None`: the oldest task without an owner.
    fn forget_oldest_of(&mut self, principal: &Option<Option<Arc<str>>>) {
        let all = self.tasks.iter();
        let of_it = all.filter(|(_, task)| task.principal() == principal.as_ref());
        let oldest = of_it.min_by_key(|(_, task)| task.number);
        let oldest = oldest.map(|(id, _)| Arc::clone(id));
        if let Some(task) = oldest.and_then(|id| self.tasks.remove(&id)) {
            self.lost |= !task.over;
            task.leave(&mut self.by_call);
        }
    }
}

impl TaskEntry {
    fn leave(&self, by_call: &mut HashMap<u64, Arc<str>>) {
        if let TaskOwnership::NotYet(Some(call), _) = &self.owner {
            by_call.remove(call);
        }
    }

    fn principal(&self) -> Option<&Option<Arc<str>>> {
        match &self.owner {
            TaskOwnership::By(owner) => Some(&owner.caller.principal),
            TaskOwnership::NotYet(..) => None,
        }
    }

    fn note(&mut self, said: &TaskReport<'_>, now: Instant) {
        self.over = said.over;
        self.cancelled = said.cancelled;
        if let Some(keeps) = said.keeps {
            let keeps = Duration::from_millis(keeps).saturating_add(GRACE);
            self.expires = now.checked_add(keeps);
        }
    }

    fn is_expired(&self, now: Instant) -> bool {
        self.expires.is_some_and(|expires| expires <= now)
    }
}

impl EarlyTaskMessage {
    /// Copies a notification. A view of its bytes would keep the complete read buffer in memory.
    fn of(notification: &Notification<'_>) -> Self {
        let params = notification.params.as_deref();
        Self {
            method: notification.method.to_owned(),
            message: Bytes::copy_from_slice(&notification.message),
            params: params.map(Bytes::copy_from_slice),
        }
    }
}

impl<'a> TaskReport<'a> {
    /// Reads a task's state from an object or from its member `task`. Returns `None` if the object names no task, or two.
    fn read(object: &'a str) -> Option<Self> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct TaskFields<'a> {
            #[serde(borrow, default)]
            task: Option<&'a RawValue>,
            #[serde(borrow, default)]
            task_id: Option<&'a RawValue>,
            #[serde(borrow, default)]
            status: Option<&'a RawValue>,
            #[serde(borrow, default)]
            ttl: Option<&'a RawValue>,
            #[serde(borrow, default)]
            ttl_ms: Option<&'a RawValue>,
        }
        let mut state: TaskFields<'a> = serde_json::from_str(object).ok()?;
        let inner = state.task.filter(|task| task.get().starts_with('{'));
        if let Some(inner) = inner {
            if state.task_id.is_some() {
                return None;
            }
            state = serde_json::from_str(inner.get()).ok()?;
        }
        let status = state.status.and_then(jsonrpc::string);
        let keeps = state.ttl_ms.or(state.ttl);
        Some(Self {
            id: state.task_id.and_then(jsonrpc::string)?,
            cancelled: status.as_deref() == Some("cancelled"),
            over: status.is_some_and(|it| matches!(&*it, "completed" | "failed")),
            keeps: keeps.and_then(|keeps| keeps.get().parse().ok()),
        })
    }
}

impl fmt::Debug for Tasks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tasks")
            .field("known", &self.lock().tasks.len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
