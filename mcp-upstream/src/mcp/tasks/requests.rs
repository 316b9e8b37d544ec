//! Requests about tasks of the gateway.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use tooldock_sessions::replicas::ReplicaId;
use tooldock_sessions::tasks::{StoredTask, TaskEnd, TaskEvent, TaskRecord, UpdatedTask};

use super::running::{TaskView, requests_reason};
use super::{FoundTask, RequestOrWait, TaskWait, Tasks, owner, written};
use crate::jsonrpc::{self, Key, RequestError};
use crate::mcp::Core;
use crate::mcp::modern::inputs;
use tooldock_engine::upstream::task_clients::{self, knows_tasks};
use tooldock_engine::upstream::{CallContext, Client, IncomingRequest, store_away};

/// A method about tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TaskMethod {
    Get,
    Update,
    Cancel,
    /// Only in 2025-11-25.
    Result,
    /// Only in 2025-11-25.
    List,
}

impl TaskMethod {
    /// The method with this name, if the client's version has it.
    fn of(cx: &CallContext<'_>, name: &str) -> Option<Self> {
        let legacy = knows_tasks(cx.version());
        match name {
            "tasks/get" => Some(Self::Get),
            "tasks/cancel" => Some(Self::Cancel),
            "tasks/update" if cx.client.is_modern() => Some(Self::Update),
            "tasks/result" if legacy => Some(Self::Result),
            "tasks/list" if legacy && task_clients::lists(cx) => Some(Self::List),
            _ => None,
        }
        .filter(|_| legacy || cx.client.is_modern())
    }
}

/// Answers a request about tasks. Returns `None` if the namespace's upstream must answer it.
pub(super) async fn answer(
    core: &Arc<Core>,
    cx: &CallContext<'_>,
    request: IncomingRequest<'_>,
) -> Result<Option<RequestOrWait>, RequestError> {
    // An aggregate passes requests about the tasks of its members that are servers.
    let facts = cx.upstream.server_facts();
    let of_upstream = facts.gets_client_messages();
    let id = request.members.get(Key::TaskId).and_then(jsonrpc::string);
    let is_of_member = || of_upstream && id.as_ref().is_some_and(|id| facts.has_task(cx, id));
    let Some(method) = TaskMethod::of(cx, request.method) else {
        return match cx.client.is_modern() && !is_of_member() {
            true => Err(RequestError::MethodNotFound(request.method.to_owned())),
            false => Ok(None),
        };
    };
    if method == TaskMethod::List {
        return match of_upstream {
            true => Ok(None),
            false => list(core, cx, request).await.map(|it| Some(it.into())),
        };
    }
    request.members.well_formed()?;
    if let Client::Modern(meta) = &cx.client
        && !task_clients::declares(&meta.capabilities)
    {
        return match is_of_member() {
            true => Ok(None),
            false => Err(task_clients::undeclared()),
        };
    }
    let found = match &id {
        Some(id) => core.tasks.find(cx, id).await?,
        None => None,
    };
    match (found, id) {
        (Some(found), _) if method == TaskMethod::Result => {
            let (core, owner) = (Arc::clone(core), owner(cx));
            let wait = TaskWait { core, owner, found };
            Ok(Some(RequestOrWait::Wait(wait)))
        }
        (Some(found), _) => {
            let answer = about(&core.tasks, cx, request, (method, found)).await?;
            Ok(Some(answer.into()))
        }
        (None, _) if of_upstream => Ok(None),
        (None, Some(_)) => Err(unknown()),
        (None, None) => Err(RequestError::InvalidParams(
            "params.taskId must be a string".into(),
        )),
    }
}

pub(super) fn unknown() -> RequestError {
    RequestError::InvalidParams(Cow::Borrowed("Task not found"))
}

/// Answers a request about a task of the caller.
async fn about(
    tasks: &Tasks,
    cx: &CallContext<'_>,
    request: IncomingRequest<'_>,
    (method, found): (TaskMethod, FoundTask),
) -> Result<Vec<u8>, RequestError> {
    if let FoundTask::Stored(stored) = &found
        && let Some(elsewhere) = tasks.forwarded(cx, &stored.record)
    {
        return Err(elsewhere);
    }
    let id = request.id;
    match method {
        TaskMethod::Get => Ok(written::state(cx, id, &found.view())),
        TaskMethod::Cancel => {
            let ended = found.cancel(tasks).await?;
            if !ended && !cx.client.is_modern() {
                let reason = "the task has ended and cannot be cancelled";
                return Err(RequestError::InvalidParams(reason.into()));
            }
            Ok(written::acknowledged(cx, id, &found.again(tasks).await?))
        }
        TaskMethod::Update => {
            let inputs = inputs(request.members)?;
            match &found {
                FoundTask::Here(task) => task
                    .answer(&inputs)
                    .map_err(|error| RequestError::InvalidParams(error.to_string().into()))?,
                FoundTask::Stored(stored) if stored.record.status.is_terminal() => {}
                FoundTask::Stored(stored) => {
                    return Err(RequestError::Elsewhere(stored.record.runner.0));
                }
            }
            Ok(written::acknowledged(cx, id, &found.view()))
        }
        TaskMethod::Result | TaskMethod::List => {
            Err(RequestError::MethodNotFound(request.method.to_owned()))
        }
    }
}

impl FoundTask {
    pub(super) fn view(&self) -> TaskView {
        match self {
            Self::Here(task) => task.view(),
            Self::Stored(stored) => StoredTask::clone(stored).into(),
        }
    }

    /// The task after a change.
    async fn again(&self, tasks: &Tasks) -> Result<TaskView, RequestError> {
        match self {
            Self::Here(task) => Ok(task.view()),
            Self::Stored(stored) => {
                let found = tasks.store.find(&stored.record.id).await;
                let found = found.map_err(|error| store_away(&error))?;
                Ok(found.ok_or_else(unknown)?.into())
            }
        }
    }

    /// Cancels the task. Returns false if it has ended already.
    async fn cancel(&self, tasks: &Tasks) -> Result<bool, RequestError> {
        match self {
            Self::Here(task) => Ok(task.cancel(requests_reason())),
            Self::Stored(stored) => {
                let mut record = stored.record.clone();
                if !record.apply(TaskEvent::Ended(TaskEnd::Cancelled)) {
                    return Ok(false);
                }
                record.message = Some(requests_reason().to_owned());
                // The task's runner reads the record, and then ends the call.
                let updated = tasks.store.update(&record, None, tasks.bounds).await;
                let updated = updated.map_err(|error| store_away(&error))?;
                Ok(updated == UpdatedTask::Stored)
            }
        }
    }
}

/// Answers `tasks/list`: all tasks of the caller in this namespace, on one page.
async fn list(
    core: &Arc<Core>,
    cx: &CallContext<'_>,
    request: IncomingRequest<'_>,
) -> Result<Vec<u8>, RequestError> {
    if request
        .members
        .raw(Key::Cursor)
        .is_some_and(|cursor| cursor != "null")
    {
        return Err(RequestError::InvalidParams(
            "unknown cursor: the list has one page".into(),
        ));
    }
    let tasks = &core.tasks;
    let stored = tasks.store.list(&owner(cx)).await;
    let stored = stored.map_err(|error| store_away(&error))?;
    let mut shown: Vec<TaskRecord> = Vec::with_capacity(stored.len());
    // Each runner is asked for once, since the answer may take seconds.
    let mut dead: HashMap<ReplicaId, bool> = HashMap::new();
    for record in stored {
        if !cx.view().opens_tool(&record.tool) {
            continue;
        }
        let here = tasks.running().get(&record.id).map(Arc::clone);
        if let Some(task) = here {
            shown.push(task.view().record);
            continue;
        }
        let is_dead = match dead.get(&record.runner) {
            _ if record.status.is_terminal() => false,
            Some(known) => *known,
            None => {
                let found = tasks.is_dead(record.runner).await;
                dead.insert(record.runner, found);
                found
            }
        };
        if !is_dead {
            shown.push(record);
            continue;
        }
        let stored = StoredTask {
            record,
            outcome: None,
        };
        shown.extend(tasks.fail_dead(stored).await?.map(|it| it.record));
    }
    Ok(written::list(cx, request.id, &shown))
}
