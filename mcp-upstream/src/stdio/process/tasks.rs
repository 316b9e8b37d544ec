//! Whose the tasks of one process are.
//!
//! A server tells the tasks of its clients apart by the connection, and several clients have one here. So each process
//! has a table: a task belongs to the principal whose call the server answered with it, on that process alone, and
//! nobody else can name it. A task whose call was given up before its answer came belongs to nobody.
//!
//! The table is bounded. Where it is full, the principal that holds most loses its oldest task. What is forgotten is not
//! known to be over, so a process that forgot a running task is never taken for one without work again.

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

use crate::jsonrpc::{self, Key, Members, Notification, spans};
use crate::stdio::link::{CallOwner, Inbound};

/// Tasks of one process.
const TASKS_MAX: usize = 2048;
/// Tasks of one principal on it.
const OF_ONE_MAX: usize = 256;
/// Bytes of a task's id. The servers' are 36.
const ID_MAX: usize = 512;
/// Bytes of a notification that waits for the owner of its task to be known.
const EARLY_MAX: usize = 64 * 1024;
/// How long a task is known beyond the time its server keeps it.
const GRACE: Duration = Duration::from_secs(60);

/// The tasks of one process.
#[derive(Default)]
pub(crate) struct Tasks {
    /// Plain data; nothing is called under it.
    table: Mutex<Table>,
    /// How many of them have no owner yet, for a look without the lock.
    ownerless: AtomicUsize,
}

/// Whose a task is.
#[derive(Clone)]
pub(crate) struct Owner {
    pub(crate) caller: CallOwner,
    /// Hears what the server says of the task outside of calls.
    pub(crate) ear: Option<Arc<dyn Inbound>>,
}

#[derive(Default)]
struct Table {
    tasks: HashMap<Arc<str>, Task>,
    /// Tasks whose owner is not known yet, by the call that began them.
    by_call: HashMap<u64, Arc<str>>,
    next: u64,
    /// A task that may still run was forgotten, or could not be read.
    lost: bool,
}

struct Task {
    number: u64,
    owner: Owned,
    over: bool,
    /// Whether the client cancelled the task. The server may go on with it, as with a cancelled call.
    cancelled: bool,
    expires: Option<Instant>,
}

enum Owned {
    /// The answer is on the way to this call, or there was nobody any more whom it could reach. With the last that was
    /// said of the task meanwhile.
    NotYet(Option<u64>, Option<Early>),
    By(Owner),
}

/// A notification of a task whose owner is not known yet.
struct Early {
    method: String,
    message: Bytes,
    params: Option<Bytes>,
}

/// What a message says of a task.
struct Said<'a> {
    id: Cow<'a, str>,
    over: bool,
    cancelled: bool,
    /// How long the server keeps the task, in milliseconds from its beginning.
    keeps: Option<u64>,
}

/// The tasks that a message names, decoded.
pub(crate) type TaskIds<'a> = SmallVec<[Cow<'a, str>; 1]>;

/// A message names tasks in a way that readers could read differently.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Unclear;

/// The tasks that parameters, raw JSON, name: by `taskId`, and in their metadata.
///
/// # Errors
///
/// [`Unclear`].
pub(crate) fn named(params: &str) -> Result<TaskIds<'_>, Unclear> {
    let named = TaskIds::new();
    if !spans::may_hold(params.as_bytes(), "taskId") {
        return Ok(named);
    }
    let members = Members::of_params(params).ok_or(Unclear)?;
    named_by(&members)
}

/// The same in the parameters of a message.
///
/// # Errors
///
/// [`Unclear`].
pub(crate) fn named_by<'a>(members: &Members<'a>) -> Result<TaskIds<'a>, Unclear> {
    members.unique().map_err(|_| Unclear)?;
    let mut named = TaskIds::new();
    let mut add = |key| {
        let id = members.get(key).and_then(jsonrpc::string);
        named.push(id.ok_or(Unclear)?);
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
    /// The server answered a call with this result, which is a task's. Without a call nobody gets the answer.
    pub(crate) fn begin(&self, call: Option<u64>, result: &RawValue) {
        let now = Instant::now();
        let mut table = self.lock();
        let said = Said::read(result.get()).filter(|said| said.id.len() <= ID_MAX);
        let Some(said) = said else {
            // Nobody can name the task, and it runs.
            table.lost = true;
            return;
        };
        table.forget_expired(now);
        if let Some(known) = table.tasks.get_mut(&*said.id) {
            // Who had it first keeps it.
            known.note(&said, now);
        } else {
            if table.tasks.len() >= TASKS_MAX {
                table.make_room();
            }
            let mut task = Task {
                number: table.next,
                owner: Owned::NotYet(call, None),
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

    /// Whether a task waits for its owner.
    pub(crate) fn await_owner(&self) -> bool {
        self.ownerless.load(Ordering::Acquire) > 0
    }

    /// Gives the task of a call to whoever called, if the call began one.
    pub(crate) fn claim(&self, call: u64, owner: impl FnOnce() -> Owner) {
        let told = {
            let mut table = self.lock();
            let Some(id) = table.by_call.remove(&call) else {
                return;
            };
            self.count(&table);
            let Some(task) = table.tasks.get_mut(&id) else {
                return;
            };
            let Owned::NotYet(_, early) = &mut task.owner else {
                return;
            };
            let (early, owner) = (early.take(), owner());
            let ear = owner.ear.clone();
            let principal = owner.caller.principal.clone();
            task.owner = Owned::By(owner);
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

    /// Whether that principal may name the task.
    pub(crate) fn owns(&self, principal: Option<&Arc<str>>, id: &str) -> bool {
        let table = self.lock();
        let task = table.tasks.get(id);
        task.is_some_and(|task| match &task.owner {
            Owned::By(owner) => {
                owner.caller.principal.as_ref() == principal && !task.is_expired(Instant::now())
            }
            Owned::NotYet(..) => false,
        })
    }

    /// A result says how a task is.
    pub(crate) fn observe(&self, result: &[u8]) {
        let said = std::str::from_utf8(result).ok().and_then(Said::read);
        if let Some(said) = said
            && let Some(task) = self.lock().tasks.get_mut(&*said.id)
        {
            task.note(&said, Instant::now());
        }
    }

    /// The server gave a task's own result away.
    pub(crate) fn is_over(&self, id: &str) {
        if let Some(task) = self.lock().tasks.get_mut(id) {
            task.over = true;
        }
    }

    /// Whether all tasks there were are known to be over.
    pub(super) fn are_over(&self) -> bool {
        let table = self.lock();
        !table.lost && table.tasks.values().all(|task| task.over)
    }

    /// Whether all tasks that may still run belong to this caller.
    pub(super) fn are_of(&self, caller: &CallOwner) -> bool {
        let table = self.lock();
        let is_of = |task: &Task| match &task.owner {
            Owned::By(owner) => owner.caller == *caller,
            Owned::NotYet(..) => false,
        };
        !table.lost && table.tasks.values().all(|task| task.over || is_of(task))
    }

    /// Whether a task runs that was not cancelled and has not expired.
    pub(super) fn are_running(&self) -> bool {
        let now = Instant::now();
        let runs = |task: &Task| !task.over && !task.cancelled && !task.is_expired(now);
        self.lock().tasks.values().any(runs)
    }

    /// Passes what the server says of a task on to the task's owner. `false`: it is about no task.
    pub(crate) fn tell(&self, notification: &Notification<'_>) -> bool {
        let params = notification.params.as_deref().unwrap_or_default();
        let params = std::str::from_utf8(params).unwrap_or_default();
        let of_tasks = notification.method.starts_with("notifications/tasks");
        let named = match named(params) {
            Ok(named) if named.is_empty() => return of_tasks,
            Ok(named) if named.iter().all(|id| *id == named[0]) => named,
            // About the tasks of several, or of nobody can say whom.
            _ => return true,
        };
        let said = of_tasks.then(|| Said::read(params)).flatten();
        let ear = {
            let mut table = self.lock();
            let Some(task) = table.tasks.get_mut(&*named[0]) else {
                return true;
            };
            if let Some(said) = said {
                task.note(&said, Instant::now());
            }
            match &mut task.owner {
                Owned::By(owner) => owner.ear.clone(),
                Owned::NotYet(Some(_), early) => {
                    if notification.message.len() <= EARLY_MAX {
                        *early = Some(Early::of(notification));
                    }
                    None
                }
                Owned::NotYet(None, _) => None,
            }
        };
        if let Some(ear) = ear {
            ear.notification(notification.clone());
        }
        true
    }

    fn count(&self, table: &Table) {
        let ownerless = table.by_call.len();
        self.ownerless.store(ownerless, Ordering::Release);
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
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

    /// Forgets the oldest task of whoever holds most.
    fn make_room(&mut self) {
        let mut held: HashMap<Option<&Option<Arc<str>>>, usize> = HashMap::new();
        for task in self.tasks.values() {
            *held.entry(task.principal()).or_insert(0) += 1;
        }
        let most = held.into_iter().max_by_key(|(_, count)| *count);
        let most = most.and_then(|(principal, _)| principal.cloned());
        self.forget_oldest_of(&most);
    }

    /// Forgets the oldest tasks of a principal that holds more than it may.
    fn keep_share(&mut self, principal: &Option<Arc<str>>) {
        let all = self.tasks.values();
        let held = all
            .filter(|task| task.principal() == Some(principal))
            .count();
        if held > OF_ONE_MAX {
            self.forget_oldest_of(&Some(principal.clone()));
        }
    }

    /// `None`: of those without an owner.
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

impl Task {
    fn leave(&self, by_call: &mut HashMap<u64, Arc<str>>) {
        if let Owned::NotYet(Some(call), _) = &self.owner {
            by_call.remove(call);
        }
    }

    fn principal(&self) -> Option<&Option<Arc<str>>> {
        match &self.owner {
            Owned::By(owner) => Some(&owner.caller.principal),
            Owned::NotYet(..) => None,
        }
    }

    fn note(&mut self, said: &Said<'_>, now: Instant) {
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

impl Early {
    /// Copies: a view would keep all alive that was read with it.
    fn of(notification: &Notification<'_>) -> Self {
        let params = notification.params.as_deref();
        Self {
            method: notification.method.to_owned(),
            message: Bytes::copy_from_slice(&notification.message),
            params: params.map(Bytes::copy_from_slice),
        }
    }
}

impl<'a> Said<'a> {
    /// Reads a task's state: the object itself, or its member `task`. `None`: it names no task, or two.
    fn read(object: &'a str) -> Option<Self> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct State<'a> {
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
        let mut state: State<'a> = serde_json::from_str(object).ok()?;
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
