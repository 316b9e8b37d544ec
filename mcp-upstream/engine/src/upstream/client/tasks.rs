//! Tasks: only the principal whose call began a task may name the task in requests, and receives messages about it.
//!
//! A request that names another principal's task, or an unknown task, gets the same error from the gateway and is not sent to the
//! server. Each process has a table of its own tasks (`tooldock_servers::pool::process::tasks`). The table ends with the process,
//! since another process may give the same id to another client's task.
//!
//! `tasks/list` is sent to the server, and other principals' tasks are removed from its result. On a shared process its cursor is
//! sealed, since servers derive cursors from the ids of tasks.

use std::sync::{Arc, Weak};

use bytes::Bytes;
use serde_json::value::RawValue;
use tooldock_base::json;
use tooldock_protocol::jsonrpc::ResponseOutcome;
use tooldock_protocol::jsonrpc::spans::{self, MemberEdit};
use tooldock_protocol::jsonrpc::{
    self, Key, Members, Notification, Request, RequestError, Response, ServerRequest, notification,
};
use tooldock_protocol::seal::SessionKey;
use tooldock_protocol::version::code;
use tooldock_servers::link::Inbound;
use tooldock_servers::pool::ProcessLease;
use tooldock_servers::pool::process::tasks;
pub(super) use tooldock_servers::pool::process::tasks::TaskOwner;
use tooldock_sessions::session::Session;
use tooldock_workers::registry::Namespace;

use super::binding::UpstreamBinding;
use super::call::error_object;
use super::inbound::{InboundHandler, ProcessOwner, filtered_level};
use super::task_names::TaskNames;
use super::{ConnectionLease, ExternalServers};
use crate::upstream::Client;

/// Prefix of the plain text of a sealed cursor, which distinguishes it from other sealed states.
const MARK: &[u8; 8] = b"tasks\0\0\0";
/// Maximum size of a server's cursor that is sealed, in bytes.
const CURSOR_MAX: usize = 64 * 1024;

pub(super) const LIST: &str = "tasks/list";

/// The tasks that a request names, and the checks that they need.
#[derive(Debug, Default)]
pub(super) struct RequestTasks {
    /// The ids of the named tasks, as the server knows them.
    ids: Vec<Arc<str>>,
    /// True if the request is about a single task (such as `tasks/get`); false if it only mentions tasks.
    about_one: bool,
    /// True if the request has a cursor that the gateway did not seal.
    foreign_cursor: bool,
    /// True if the request came through an aggregate and names a task by a name that the aggregate did not publish.
    foreign_name: bool,
}

impl RequestTasks {
    /// Reads the tasks that a request of this method names.
    ///
    /// # Errors
    ///
    /// When a task's name is ambiguous, or a request about a task names none.
    pub(super) fn read(method: &str, members: &Members<'_>) -> Result<Self, RequestError> {
        let about_one = method.starts_with("tasks/") && method != LIST;
        let ids = tasks::named_by(members).map_err(|_| {
            let reason = "a task must be named by one string: params.taskId, or \
                          io.modelcontextprotocol/related-task in params._meta";
            RequestError::InvalidParams(reason.into())
        })?;
        if about_one && ids.is_empty() {
            return Err(RequestError::InvalidParams(
                "params.taskId must be a string".into(),
            ));
        }
        Ok(Self {
            ids: ids.iter().map(|id| Arc::from(&**id)).collect(),
            about_one,
            foreign_cursor: false,
            foreign_name: false,
        })
    }

    /// Replaces published names of tasks in the request by the server's own names.
    pub(super) fn with_own_names(&mut self, names: &TaskNames, request: Request) -> Request {
        let mut changes = Vec::new();
        self.ids.clear();
        for key in [Key::TaskId, Key::RelatedTaskId] {
            let Some(published) = request.raw(key).and_then(json::raw) else {
                continue;
            };
            let own = jsonrpc::string(published).and_then(|published| names.own(&published));
            let Some(own) = own else {
                self.foreign_name = true;
                return request;
            };
            changes.push((key, serde_json::Value::from(&*own).to_string()));
            self.ids.push(own.into());
        }
        if changes.is_empty() {
            return request;
        }
        let changes: Vec<_> = changes
            .iter()
            .map(|(key, own)| (*key, Some(&**own)))
            .collect();
        match request.edited(&changes) {
            Ok(changed) => changed,
            Err(_) => {
                self.foreign_name = true;
                request
            }
        }
    }

    /// Replaces the sealed cursor in a request for a further page of tasks by the server's own cursor. Other requests are not
    /// changed.
    pub(super) fn with_own_cursor(
        &mut self,
        key: &SessionKey,
        method: &str,
        request: Request,
    ) -> Request {
        if method != LIST {
            return request;
        }
        let Some(cursor) = request.raw(Key::Cursor) else {
            return request;
        };
        let cursor = json::raw(cursor).and_then(jsonrpc::string);
        let opened = cursor.and_then(|cursor| opened(key, &cursor));
        let replaced =
            opened.and_then(|cursor| request.edited(&[(Key::Cursor, Some(&cursor))]).ok());
        self.foreign_cursor = replaced.is_none();
        replaced.unwrap_or(request)
    }

    /// The tasks that the request names.
    pub(super) fn ids(&self) -> &[Arc<str>] {
        &self.ids
    }

    /// The error response if the request must not be sent to this process; `None` if it may.
    pub(super) fn refused(
        &self,
        leased: &ConnectionLease,
        principal: Option<&Arc<str>>,
    ) -> Option<Response> {
        if self.foreign_name {
            return Some(refusal("Task not found"));
        }
        let known = leased.process.tasks();
        // A client that can be asked may run tasks itself, and its messages to its own process may name them. Such names are not
        // checked.
        let checked = self.about_one || leased.is_common();
        if checked && !self.ids.iter().all(|id| known.owns(principal, id)) {
            return Some(refusal("Task not found"));
        }
        (self.foreign_cursor && leased.is_common()).then(|| refusal("Invalid cursor"))
    }

    /// Updates the process's table of tasks after a response: `answer` is the response to the request's `method`.
    pub(super) fn answered(&self, method: &str, process: &ProcessLease, answer: &Response) {
        match (method, &*self.ids) {
            _ if answer.is_error() => {}
            ("tasks/result", [id]) => process.tasks().is_over(id),
            ("tasks/get" | "tasks/cancel", [_]) => process.tasks().observe(answer.payload()),
            _ => {}
        }
    }
}

fn refusal(reason: &str) -> Response {
    let error = error_object(code::INVALID_PARAMS, reason);
    Response::from_outcome(ResponseOutcome::Error(error))
}

/// Removes the tasks of other principals from a response to `tasks/list`.
pub(super) fn own_list(
    key: &SessionKey,
    leased: &ConnectionLease,
    principal: Option<&Arc<str>>,
    answer: Response,
) -> Response {
    if answer.is_error() {
        return answer;
    }
    let is_own = |id: &str| leased.process.tasks().owns(principal, id);
    match listed(answer.payload(), is_own, leased.is_common().then_some(key)) {
        Ok(None) => answer,
        Ok(Some(list)) => answer.with_payload(list.into()),
        Err(reason) => {
            let error = error_object(code::INTERNAL, reason);
            Response::from_outcome(ResponseOutcome::Error(error))
        }
    }
}

/// The list with only the principal's tasks, and with its cursor sealed by `key`. `None` if the list needs no change.
fn listed(
    result: &[u8],
    is_own: impl Fn(&str) -> bool,
    key: Option<&SessionKey>,
) -> Result<Option<String>, &'static str> {
    const UNREADABLE: &str = "The server's list of tasks cannot be read";
    let result = spans::raw(result).ok_or(UNREADABLE)?;
    let members = spans::members(result.get()).ok_or(UNREADABLE)?;
    let member = |name: &str| {
        let found = members.iter().find(|(key, _)| key == name);
        found.map(|(_, value)| *value)
    };
    let mut changes = Vec::new();
    if let Some(all) = member("tasks") {
        let all: Vec<&RawValue> = serde_json::from_str(all).map_err(|_| UNREADABLE)?;
        let own = all.iter().filter(|task| {
            let named = tasks::named(task.get()).unwrap_or_default();
            !named.is_empty() && named.iter().all(|id| is_own(id))
        });
        let own: Vec<&str> = own.map(|task| task.get()).collect();
        if own.len() < all.len() {
            changes.push(MemberEdit::Set(
                "tasks",
                format!("[{}]", own.join(",")).into(),
            ));
        }
    }
    if let (Some(key), Some(cursor)) = (key, member("nextCursor"))
        && cursor != "null"
    {
        let sealed = sealed(key, cursor).ok_or("The server's cursor cannot be kept")?;
        changes.push(MemberEdit::Set(
            "nextCursor",
            format!("\"{sealed}\"").into(),
        ));
    }
    let changed = !changes.is_empty();
    Ok(changed.then(|| spans::edit(result.get(), &changes)))
}

/// Seals a cursor, which is raw JSON; `None` if it is too long.
fn sealed(key: &SessionKey, cursor: &str) -> Option<String> {
    if cursor.len() > CURSOR_MAX {
        return None;
    }
    let plain = [MARK, cursor.as_bytes()].concat();
    key.seal_state(&plain).ok()
}

fn opened(key: &SessionKey, sealed: &str) -> Option<String> {
    let plain = key.open_state(sealed)?;
    let cursor = plain.strip_prefix(MARK)?;
    String::from_utf8(cursor.to_vec()).ok()
}

/// Creates the handler for messages about the task that a request began, if they arrive after the call. The handler sends them to
/// the session's own stream. `None` for clients without a session, which poll the task, and for a process with a single user,
/// which has another handler.
pub(super) fn message_handler(
    external: &Arc<ExternalServers>,
    namespace: &Namespace,
    client: &Client,
    leased: &ConnectionLease,
) -> Option<Arc<dyn Inbound>> {
    let Client::Session(session) = client else {
        return None;
    };
    if !leased.is_common() {
        return None;
    }
    let handler = UpstreamBinding::of(external, &namespace.name, session).task_handler(|| {
        external.new_handler(namespace, ProcessOwner::Session(Arc::downgrade(session)))
    });
    Some(Arc::new(TaskMessageHandler {
        session: Arc::downgrade(session),
        handler,
    }))
}

/// Handler that passes messages about a session's tasks on a shared process to the session.
struct TaskMessageHandler {
    session: Weak<Session>,
    handler: Arc<InboundHandler>,
}

impl Inbound for TaskMessageHandler {
    fn notification(&self, notification: Notification<'_>) {
        let Some(session) = self.session.upgrade() else {
            return;
        };
        let wanted = filtered_level(&notification).is_none_or(|it| it >= session.log_level());
        if wanted {
            self.handler
                .put(Bytes::copy_from_slice(&notification.message));
        }
    }

    fn request(&self, request: ServerRequest) {
        request.refuse(
            code::METHOD_NOT_FOUND,
            "No client of this process can be asked this question",
        );
    }
}

/// Returns true if a client may send a process a notification that names these tasks.
pub(super) fn may_name(
    leased: &ConnectionLease,
    principal: Option<&Arc<str>>,
    notification: &[u8],
) -> bool {
    let known = leased.process.tasks();
    let named = || {
        let members = notification::members(notification)?;
        let named = tasks::named_by(&members).ok()?;
        Some(named.iter().all(|id| known.owns(principal, id)))
    };
    !leased.is_common() || named().unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> SessionKey {
        SessionKey::from_text("a key")
    }

    fn of_ada(id: &str) -> bool {
        id.starts_with("ada-")
    }

    #[test]
    fn a_list_of_tasks_shows_only_its_readers_own() {
        let mixed = br#"{"x":1.50,"tasks":[{"taskId":"ada-1","n":1.50},{"taskId":"bob-1"},{},{"taskId":"ada-2","taskId":"bob-2"}],"_meta":{}}"#;
        let list = listed(mixed, of_ada, None).expect("readable");
        let own = r#"{"x":1.50,"tasks":[{"taskId":"ada-1","n":1.50}],"_meta":{}}"#;
        assert_eq!(list.as_deref(), Some(own));
        assert_eq!(listed(own.as_bytes(), of_ada, None), Ok(None));
        for unreadable in [
            r#"{"tasks":{"taskId":"ada-1"}}"#,
            r#"{"tasks":[],"tasks":[{"taskId":"bob-1"}]}"#,
            "[]",
        ] {
            listed(unreadable.as_bytes(), of_ada, None).expect_err(unreadable);
        }
    }

    #[test]
    fn a_cursor_of_a_shared_list_says_nothing_and_comes_back_as_it_was() {
        let key = key();
        let page = br#"{"tasks":[],"nextCursor":"after b\u006fb-1"}"#;
        let list = listed(page, of_ada, Some(&key))
            .expect("readable")
            .expect("changed");
        assert!(!list.contains("bob") && !list.contains("\\u006f"), "{list}");
        let read: serde_json::Value = serde_json::from_str(&list).expect("JSON");
        let cursor = read["nextCursor"].as_str().expect("a cursor");
        assert_eq!(
            opened(&key, cursor).as_deref(),
            Some(r#""after b\u006fb-1""#)
        );
        assert_eq!(opened(&key, "after bob-1"), None);
        let other = key.seal_state(b"parked").expect("randomness");
        assert_eq!(opened(&key, &other), None);
    }

    #[test]
    fn a_request_about_a_task_names_one_in_one_way() {
        let read = |method: &str, params: &str| {
            let members = Members::of_params(params).expect("an object");
            RequestTasks::read(method, &members).map(|named| named.ids)
        };
        for (method, params, ids) in [
            ("tasks/get", r#"{"taskId":"\u0061"}"#, &["a"][..]),
            (
                "tools/call",
                r#"{"name":"x","_meta":{"io.modelcontextprotocol/related-task":{"taskId":"a"}}}"#,
                &["a"],
            ),
            (
                "tasks/result",
                r#"{"taskId":"a","_meta":{"io.modelcontextprotocol\/related-task":{"taskId":"b"}}}"#,
                &["a", "b"],
            ),
            ("tasks/list", r#"{"cursor":"x"}"#, &[]),
            (
                "tools/call",
                r#"{"name":"x","arguments":{"taskId":"b"}}"#,
                &[],
            ),
        ] {
            let named = read(method, params).unwrap_or_else(|_| panic!("{params}"));
            assert_eq!(
                named.iter().map(|id| &**id).collect::<Vec<_>>(),
                ids,
                "{params}"
            );
        }
        for (method, params) in [
            ("tasks/get", r#"{"taskId":"a","taskId":"b"}"#),
            ("tasks/get", r#"{"taskId":["a"]}"#),
            ("tasks/get", "{}"),
            ("tasks/anything", r#"{"id":"a"}"#),
            ("x/own", r#"{"taskId":1}"#),
            (
                "x/own",
                r#"{"_meta":{"io.modelcontextprotocol/related-task":{"taskId":"a","taskId":"b"}}}"#,
            ),
            (
                "x/own",
                r#"{"_meta":{"io.modelcontextprotocol/related-task":"taskId"}}"#,
            ),
        ] {
            read(method, params).expect_err(params);
        }
    }
}
