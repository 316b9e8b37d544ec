//! Names of tasks for clients that reach a server through an aggregate.
//!
//! A server's own name for a task may reveal the server, and names of two servers may be equal. So an aggregate publishes
//! sealed names: bound to the principal, the aggregate and the member, of a length that reveals little, and equal for the same
//! task, since clients compare names. A name without a valid seal belongs to no task. Nothing is stored: a name is valid for as
//! long as its server's process knows the task.

use bytes::Bytes;
use serde_json::Value;
use serde_json::value::RawValue;
use tooldock_base::names::NamespaceName;
use tooldock_protocol::jsonrpc;
use tooldock_protocol::jsonrpc::spans::{self, MemberEdit};
use tooldock_protocol::seal::{SessionKey, TaskSeal};
use tooldock_sessions::session::Session;

use crate::upstream::CallContext;

/// The key in metadata that names the task to which a message belongs.
const RELATED: &str = "io.modelcontextprotocol/related-task";
const TASK_ID: &str = "taskId";

/// Translation between own and published names of one member's tasks, for one principal at one aggregate.
#[derive(Clone)]
pub(crate) struct TaskNames(TaskSeal);

impl TaskNames {
    /// The translation of task names for a request; `None` for a request that was sent to the server's own namespace.
    pub(super) fn of(key: &SessionKey, cx: &CallContext<'_>) -> Option<Self> {
        let home = cx.caller.namespace.as_ref().filter(|_| cx.depth > 0)?;
        let principal = cx.caller.principal.as_deref();
        Some(Self(key.task_seal(home, &cx.namespace.name, principal)))
    }

    /// The translation of task names for a member's messages to a session that belong to no call.
    pub(super) fn of_session(
        key: &SessionKey,
        member: &NamespaceName,
        session: &Session,
    ) -> Option<Self> {
        let binding = session.binding();
        let home = &binding.namespace;
        let behind = home != member && !home.is_global();
        behind.then(|| Self(key.task_seal(home, member, binding.principal.as_deref())))
    }

    /// The server's own name for a published one; `None` if the published name belongs to no task of this principal at this
    /// member.
    pub(super) fn own(&self, published: &str) -> Option<String> {
        self.0.open(published)
    }

    /// Replaces the names of tasks in a result or in parameters by published ones. Returns `None` if the object names no task.
    pub(super) fn published(&self, object: &[u8]) -> Option<String> {
        if !spans::may_hold(object, TASK_ID) {
            return None;
        }
        let object = spans::raw(object)?;
        let mut changes = Vec::new();
        if let Some(name) = self.name_of(object) {
            changes.push(MemberEdit::Set(TASK_ID, name.into()));
        }
        if let Some(task) = spans::member(object, "task").and_then(|task| self.named(task)) {
            changes.push(MemberEdit::Set("task", task.into()));
        }
        if let Some(meta) = spans::member(object, "_meta")
            && let Some(related) = spans::member(meta, RELATED).and_then(|it| self.named(it))
        {
            let meta = spans::edit(meta.get(), &[MemberEdit::Set(RELATED, related.into())]);
            changes.push(MemberEdit::Set("_meta", meta.into()));
        }
        (!changes.is_empty()).then(|| spans::edit(object.get(), &changes))
    }

    /// Replaces the names of tasks in a complete message of the server by published ones.
    pub(super) fn in_message(&self, message: Bytes) -> Bytes {
        if !spans::may_hold(&message, TASK_ID) {
            return message;
        }
        let changed = spans::raw(&message).and_then(|whole| {
            let params = spans::member(whole, "params")?;
            let params = self.published(params.get().as_bytes())?;
            let change = MemberEdit::Set("params", params.into());
            Some(spans::edit(whole.get(), &[change]))
        });
        changed.map_or(message, Bytes::from)
    }

    /// Replaces the `taskId` of an object by the published name.
    fn named(&self, object: &RawValue) -> Option<String> {
        let name = self.name_of(object)?;
        let change = MemberEdit::Set(TASK_ID, name.into());
        Some(spans::edit(object.get(), &[change]))
    }

    /// The published name of the task that an object names, as raw JSON.
    fn name_of(&self, object: &RawValue) -> Option<String> {
        let own = spans::member(object, TASK_ID).and_then(jsonrpc::string)?;
        Some(Value::from(self.0.seal(&own)).to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(member: &str, principal: Option<&str>) -> TaskNames {
        let name = |text: &str| text.parse().expect("a name");
        let key = SessionKey::from_text("a key");
        TaskNames(key.task_seal(&name("all"), &name(member), principal))
    }

    #[test]
    fn a_published_name_says_nothing_and_is_of_use_to_its_principal_and_member_alone() {
        let ada = names("one", Some("ada"));
        let result = br#"{"task":{"taskId":"one-7","n":1.50},"_meta":{"io.modelcontextprotocol/related-task":{"taskId":"one-7"}}}"#;
        let published = ada.published(result).expect("it names a task");
        assert!(
            !published.contains("one-7") && published.contains("1.50"),
            "{published}"
        );
        let read: Value = serde_json::from_str(&published).expect("JSON");
        let name = read["task"]["taskId"].as_str().expect("a name");
        assert_eq!(
            read["_meta"][RELATED]["taskId"], name,
            "one name for one task"
        );
        assert_eq!(ada.own(name).as_deref(), Some("one-7"));
        for other in [
            names("two", Some("ada")),
            names("one", Some("bob")),
            names("one", None),
        ] {
            assert_eq!(other.own(name), None);
        }
        for forged in ["one-7", "", &name[1..], &format!("{name}A")] {
            assert_eq!(ada.own(forged), None, "{forged}");
        }
    }

    #[test]
    fn names_of_one_length_are_published_for_names_of_any_usual_length() {
        let names = names("one", None);
        let (short, long) = (names.0.seal("7"), names.0.seal(&"x".repeat(60)));
        assert_eq!(short.len(), long.len());
        assert_eq!(names.own(&long), Some("x".repeat(60)));
        let endless = "x".repeat(70_000);
        assert_eq!(names.own(&names.0.seal(&endless)), Some(endless));
    }

    #[test]
    fn messages_that_name_no_task_keep_their_bytes() {
        let names = names("one", None);
        let message = Bytes::from_static(
            br#"{"method":"notifications/message","params":{ "data":"taskId"}}"#,
        );
        assert_eq!(names.in_message(message.clone()), message);
        let status = Bytes::from_static(
            br#"{"method":"notifications/tasks/status","params":{"taskId":"one-7","status":"working"}}"#,
        );
        let told = names.in_message(status);
        let told = String::from_utf8(told.to_vec()).expect("UTF-8");
        assert!(
            !told.contains("one-7") && told.contains("working"),
            "{told}"
        );
    }
}
