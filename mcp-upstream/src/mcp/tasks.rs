//! Tasks of Python tools: calls that continue after the response to their request, and whose outcome is fetched later.
//!
//! ```text
//!   tools/call ──▶ prepare ──▶ Tasks::begin ── record in the store ──▶ the response names the task
//!                                   │
//!                                   └──▶ RunningTask: the call, run by the engine as any other call
//!                                           │ progress, questions ──▶ its state, which tasks/get shows
//!                                           └ outcome ──▶ the store, until the task expires
//! ```
//!
//! The upstream decides whether a call begins a task (`CallFacts::task`), by the tool's declaration and the client's wish. Here, at
//! the surface, the call becomes a task of the namespace to which the client sent the request: for a tool of an aggregate's member,
//! of the aggregate. The engine runs the call with policy, limits, gate, audit and metrics. Its time limit is the namespace's
//! `task_timeout`, so that a tool that never ends is ended.
//!
//! States and records are in `tooldock_sessions::tasks`. A task that runs is answered from this process's memory, any other task
//! from the store. Each task has one runner: if a request finds a running task whose process has ended, the task has failed, and
//! is not run again. A request of 2026-07-28 about a task of another replica is forwarded there. A request in a session cannot be
//! forwarded, since its session is here; it reads the store, and cancels by it: the runner looks at the record every few seconds.
//!
//! | file | holds |
//! |---|---|
//! | `tasks/running.rs` | a running task: its state, its questions, and the loop that runs its call |
//! | `tasks/requests.rs` | `tasks/get`, `tasks/update`, `tasks/cancel`, `tasks/result`, `tasks/list` |
//! | `tasks/wait.rs` | waits for the end of a task, and questions to the waiting clients |
//! | `tasks/outcome.rs` | the outcome of a call as the outcome of a task |
//! | `tasks/written.rs` | tasks as both eras write them |

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tooldock_base::error::{CallError, CallErrorCode};
use tooldock_sessions::replicas::{ReplicaId, ReplicaStatus, Replicas};
use tooldock_sessions::stream::StoreError;
use tooldock_sessions::tasks::{
    InsertedTask, StoredTask, TaskBounds, TaskEnd, TaskEvent, TaskOwner, TaskRecord, TaskStore,
    UpdatedTask,
};
use tooldock_workers::registry::UpstreamKind;

use super::{Core, prepare};
use crate::jsonrpc::{Key, RequestError, spans};
use crate::mcp::driver::CallDriver;
use tooldock_engine::engine::{CallOutcome, CallTask, UpstreamCall};
use tooldock_engine::upstream::{CallContext, IncomingRequest, PreparedRequest, store_away};

mod outcome;
mod requests;
mod running;
#[cfg(test)]
mod tests;
mod wait;
mod written;

use running::{RunningTask, TableEntry};
pub(in crate::mcp) use wait::AwaitingPost;
pub(crate) use wait::TaskWait;

/// Interval after which a client should ask again for the state of a task.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Time for which an outcome is kept at least if the client states no time: an hour after the longest run.
const KEPT_FOR: Duration = Duration::from_secs(3600);
/// Maximum time from the creation of a task to its deletion: a week.
const TTL_MAX: Duration = Duration::from_secs(7 * 24 * 3600);
/// Minimum time from the creation of a task to its deletion.
const TTL_MIN: Duration = Duration::from_secs(1);

/// The tasks of this process, and the store of all tasks.
pub(crate) struct Tasks {
    store: Arc<dyn TaskStore>,
    replicas: Arc<Replicas>,
    bounds: TaskBounds,
    /// Tasks whose calls run in this process, or whose outcome is not stored yet. The lock is never held across an await.
    running: Mutex<HashMap<Arc<str>, Arc<RunningTask>>>,
}

/// A prepared request: as the upstream prepares it, or a wait for a task (`tasks/result`).
pub(crate) enum RequestOrWait {
    /// A response or a call.
    Request(PreparedRequest),
    /// A wait for the end of a task of the gateway.
    Wait(TaskWait),
}

impl From<Vec<u8>> for RequestOrWait {
    fn from(response: Vec<u8>) -> Self {
        Self::Request(PreparedRequest::Response(response))
    }
}

/// A task that was found by its owner.
enum FoundTask {
    /// The task runs in this process.
    Here(Arc<RunningTask>),
    /// The task has ended, or runs in another process. Contains its record as it was stored.
    Stored(Box<StoredTask>),
}

/// A call that becomes a task, with its driver.
pub(super) struct TaskCall {
    pub(super) call: Arc<dyn UpstreamCall>,
    pub(super) driver: CallDriver<CallOutcome>,
    /// Questions of the call that are still open.
    pub(super) questions: Vec<Arc<tooldock_sessions::interaction::Interaction>>,
}

/// Prepares a request as [`prepare`] does. A request about a task of the gateway is answered, or becomes a wait, and a call that
/// begins a task is started.
///
/// # Errors
///
/// The errors of [`prepare`]; when the caller has no such task; when there are too many tasks, or the store cannot be reached.
pub(crate) async fn prepare_with_tasks(
    core: &Arc<Core>,
    cx: &CallContext<'_>,
    request: IncomingRequest<'_>,
) -> Result<RequestOrWait, RequestError> {
    if request.method.starts_with("tasks/") && has_own_tasks(cx) {
        let answered = Box::pin(requests::answer(core, cx, request)).await?;
        if let Some(answer) = answered {
            return Ok(answer);
        }
    }
    let prepared = prepare(core, cx, request).await?;
    match &prepared {
        PreparedRequest::Call(call) if call.facts().task == CallTask::Begins => {
            let call = running::started(core, cx.caller, call);
            let ttl = wanted_ttl(&request);
            let began = Box::pin(begin(core, cx, call, ttl)).await?;
            Ok(written::created(cx, request.id, &began).into())
        }
        _ => Ok(RequestOrWait::Request(prepared)),
    }
}

/// Begins a task, and writes the response that names it.
///
/// # Errors
///
/// When there are too many tasks, or the store cannot be reached.
pub(super) async fn begun(
    core: &Arc<Core>,
    cx: &CallContext<'_>,
    id: &str,
    call: TaskCall,
) -> Result<Vec<u8>, RequestError> {
    let began = begin(core, cx, call, None).await?;
    Ok(written::created(cx, id, &began))
}

/// Returns true if tools of the namespace may run as tasks of the gateway. Servers have tasks of their own.
fn has_own_tasks(cx: &CallContext<'_>) -> bool {
    let joins_namespaces = cx.namespace.name.is_global()
        || matches!(cx.namespace.upstream, UpstreamKind::Aggregate(_));
    joins_namespaces || !cx.upstream.server_facts().gets_client_messages()
}

/// The lifetime that a client of 2025-11-25 wants for its task, in milliseconds. The inner `None` means as long as possible.
fn wanted_ttl(request: &IncomingRequest<'_>) -> Option<Option<u64>> {
    let task = request.members.get(Key::Task)?;
    let ttl = spans::find(task.get(), "ttl")?;
    match ttl {
        "null" => Some(None),
        // Fractions of milliseconds are dropped; a text that is no number counts as absent.
        number => number.parse::<f64>().ok().map(|ttl| Some(ttl as u64)),
    }
}

/// The lifetime of a task, in milliseconds.
fn ttl(wanted: Option<Option<u64>>, task_timeout: Duration) -> u64 {
    let ttl = match wanted {
        Some(Some(millis)) => Duration::from_millis(millis),
        Some(None) => TTL_MAX,
        None => task_timeout.saturating_add(KEPT_FOR),
    };
    let ttl = ttl.clamp(TTL_MIN, TTL_MAX);
    u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX)
}

fn owner(cx: &CallContext<'_>) -> TaskOwner {
    TaskOwner {
        principal: cx.caller.principal.clone(),
        namespace: cx.namespace.name.clone(),
    }
}

/// Records a task, and runs its call apart from the request.
async fn begin(
    core: &Arc<Core>,
    cx: &CallContext<'_>,
    call: TaskCall,
    wanted: Option<Option<u64>>,
) -> Result<StoredTask, RequestError> {
    let facts = call.call.facts();
    let ttl = ttl(wanted, facts.timeout());
    let tool = Arc::clone(&facts.subject);
    let record = TaskRecord::new(owner(cx), tool, core.tasks.replicas.own(), ttl);
    let record = record.map_err(|error| {
        tracing::error!(%error, "a task gets no id");
        RequestError::Internal
    })?;
    let task = RunningTask::new(record.clone(), cx.client.capabilities());
    // The task is in the table before it is in the store: a task of this process that is stored but not in the table has failed.
    let entry = TableEntry::enter(core, task);
    let admitted = core.tasks.store.create(&record, core.tasks.bounds).await;
    let refused = match admitted {
        Ok(InsertedTask::Stored) => None,
        Ok(InsertedTask::PrincipalFull) => Some(too_many("this principal has too many tasks")),
        Ok(InsertedTask::Full) => Some(too_many("the gateway has too many tasks")),
        Err(error) => Some(store_away(&error)),
    };
    if let Some(refused) = refused {
        return Err(refused);
    }
    tokio::spawn(running::run(entry, call, cx.caller.clone()));
    Ok(StoredTask {
        record,
        outcome: None,
    })
}

fn too_many(reason: &str) -> RequestError {
    let message = format!("{reason}: wait until some of them have expired");
    RequestError::Upstream(CallError::new(CallErrorCode::Overloaded, message))
}

impl Tasks {
    pub(crate) fn new(store: Arc<dyn TaskStore>, replicas: Arc<Replicas>) -> Self {
        Self {
            store,
            replicas,
            bounds: TaskBounds::default(),
            running: Mutex::default(),
        }
    }

    /// Number of tasks that run in this process, or whose outcome is not stored yet.
    pub(crate) fn count(&self) -> usize {
        self.running().len()
    }

    /// Cancels the running tasks of principals that were removed. `is_lost`: returns true for the name of a removed principal.
    pub(crate) fn end_of(&self, is_lost: impl Fn(&str) -> bool) {
        let all: Vec<_> = self.running().values().map(Arc::clone).collect();
        for task in all {
            if task.owner().principal.as_deref().is_some_and(&is_lost) {
                task.cancel("the principal was removed");
            }
        }
    }

    /// Deletes the stored tasks of a principal that was removed, so that a later principal of the same name does not have them.
    ///
    /// # Errors
    ///
    /// [`StoreError`], if the store cannot be written.
    pub(crate) async fn forget(&self, principal: &str) -> Result<(), StoreError> {
        self.store.forget(principal).await
    }

    /// Finds a task of the caller, if its scopes open the task's tool.
    async fn find(
        &self,
        cx: &CallContext<'_>,
        id: &str,
    ) -> Result<Option<FoundTask>, RequestError> {
        let found = self.find_of(&owner(cx), id).await?;
        Ok(found.filter(|it| cx.view().opens_tool(&it.view().record.tool)))
    }

    /// Finds a task of this owner. A running task whose process has ended is recorded as failed.
    async fn find_of(
        &self,
        owner: &TaskOwner,
        id: &str,
    ) -> Result<Option<FoundTask>, RequestError> {
        let is_own = |record: &TaskRecord| record.owner == *owner;
        // The table is searched before the store: a task leaves the table only after its end was stored.
        let here = self.running().get(id).map(Arc::clone);
        if let Some(task) = here {
            return Ok(is_own(&task.view().record).then_some(FoundTask::Here(task)));
        }
        let stored = self
            .store
            .find(id)
            .await
            .map_err(|error| store_away(&error))?;
        let Some(stored) = stored.filter(|it| is_own(&it.record)) else {
            return Ok(None);
        };
        let stored = self.without_dead_runner(stored).await?;
        Ok(stored.map(|it| FoundTask::Stored(Box::new(it))))
    }

    /// Records the failure of a task whose process has ended. Other tasks are returned unchanged.
    async fn without_dead_runner(
        &self,
        stored: StoredTask,
    ) -> Result<Option<StoredTask>, RequestError> {
        let runs = !stored.record.status.is_terminal();
        match runs && self.is_dead(stored.record.runner).await {
            true => self.fail_dead(stored).await,
            false => Ok(Some(stored)),
        }
    }

    /// Records the failure of a task whose process has ended. Returns the task as it is stored then; `None` if it has expired.
    async fn fail_dead(&self, mut stored: StoredTask) -> Result<Option<StoredTask>, RequestError> {
        let (failure, message) = outcome::process_ended();
        stored.record.message = Some(message);
        stored.record.apply(TaskEvent::Ended(TaskEnd::Failed));
        let updated = self
            .store
            .update(&stored.record, Some(&failure), self.bounds)
            .await;
        if updated.map_err(|error| store_away(&error))? == UpdatedTask::Stored {
            stored.outcome = Some(failure);
            return Ok(Some(stored));
        }
        // The task has ended or expired meanwhile.
        let again = self.store.find(&stored.record.id).await;
        again.map_err(|error| store_away(&error))
    }

    /// Returns true if the process that ran a task has ended. `runner`: the runner of a running task that is not in this process's
    /// table. While the state of a replica is unclear, waits some seconds for it.
    async fn is_dead(&self, runner: ReplicaId) -> bool {
        if runner == self.replicas.own() {
            return true;
        }
        match self.replicas.settled_status(runner).await {
            ReplicaStatus::Gone => true,
            ReplicaStatus::Own
            | ReplicaStatus::Up(_)
            | ReplicaStatus::Leaving
            | ReplicaStatus::Unclear => false,
        }
    }

    /// Returns the error that forwards a request about a running task to the task's replica; `None` if the request cannot be
    /// forwarded there.
    fn forwarded(&self, cx: &CallContext<'_>, record: &TaskRecord) -> Option<RequestError> {
        let is_up = match self.replicas.standing(record.runner) {
            ReplicaStatus::Up(other) => self.replicas.obstacle(&other).is_none(),
            _ => false,
        };
        let runs = !record.status.is_terminal();
        (runs && is_up && cx.client.is_modern()).then_some(RequestError::Elsewhere(record.runner.0))
    }

    fn running(&self) -> MutexGuard<'_, HashMap<Arc<str>, Arc<RunningTask>>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
