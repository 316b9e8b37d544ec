//! `tasks/get`, `tasks/result` and `tasks/cancel`, which are passed to the member that runs the task. Members store the owners
//! of their tasks: a task belongs to the principal whose call began it. Members seal the ids of their tasks
//! (`client/task_names.rs`), so that an id reveals nothing and only its member can open it. There is no `tasks/list`, since
//! each member's list has its own cursors.

use std::sync::Arc;

use serde_json::value::RawValue;
use tooldock_protocol::jsonrpc::{self, RequestError, spans};

use super::member::MemberSlot;
use super::request::{AggregateRequest, PublishedName, may_reach};
use crate::upstream::{IncomingRequest, PreparedRequest};

impl AggregateRequest<'_> {
    /// Passes a request about a task to the member that runs the task.
    pub(super) async fn task(
        &self,
        request: IncomingRequest<'_>,
    ) -> Result<PreparedRequest, RequestError> {
        let params = request.members.params().map_or("{}", RawValue::get);
        let task = spans::raw(params.as_bytes()).and_then(|it| spans::member(it, "taskId"));
        let task = task
            .and_then(jsonrpc::string)
            .ok_or_else(|| RequestError::InvalidParams("params.taskId must be a string".into()))?;
        match self.member_of_task(&task) {
            Some(slot) => {
                self.to_slot(request, slot, PublishedName::plain(""), params.to_owned())
                    .await
            }
            None => Err(RequestError::InvalidParams("Task not found".into())),
        }
    }

    /// The member that runs a task of this caller.
    pub(super) fn member_of_task(&self, task: &str) -> Option<&Arc<MemberSlot>> {
        let mut slots = self.live.slots.iter();
        slots.find(|slot| {
            let namespace = slot.namespace(&self.shared.home.registry);
            namespace.is_some_and(|namespace| {
                if !may_reach(self.cx.caller, slot, &namespace) {
                    return false;
                }
                let runner = self.shared.runner(&namespace);
                let upstream = runner.upstream();
                let child = self.child(self.cx.body, Arc::clone(&namespace), upstream);
                upstream.server_facts().has_task(&child, task)
            })
        })
    }
}
