//! The choice whether a call of a function begins a task, by the tool's declaration and the client's wish.

use tooldock_base::error::{CallError, CallErrorCode};
use tooldock_base::tool::{TaskSupport, Tool};

use crate::engine::CallTask;
use crate::upstream::CallContext;
use crate::upstream::task_clients::{self, TaskWish};
use tooldock_protocol::jsonrpc::{Key, Members, RequestError};

/// Returns the relation of a call to a task.
///
/// # Errors
///
/// When the tool must be a task, and the client does not know tasks; when a client of 2025-11-25 asks for a task, and the tool is
/// none.
pub(super) fn of_call(
    cx: &CallContext<'_>,
    tool: &Tool,
    members: &Members<'_>,
) -> Result<CallTask, RequestError> {
    if tool.task.is_none() && members.raw(Key::Task).is_none() {
        return Ok(CallTask::No);
    }
    let view = cx.view();
    // The engine refuses the call of a hidden tool.
    if !view.opens_tool(&tool.name) || !view.allows_tool(&tool.name) {
        return Ok(CallTask::No);
    }
    chosen(tool, TaskWish::of(cx, members), cx.client.is_modern())
}

fn chosen(tool: &Tool, wish: TaskWish, is_modern: bool) -> Result<CallTask, RequestError> {
    let name = &tool.name;
    match (tool.task, wish) {
        (None, TaskWish::None | TaskWish::Accepted)
        | (Some(TaskSupport::Optional), TaskWish::None) => Ok(CallTask::No),
        (Some(_), TaskWish::Accepted) if tool.ask_first => Ok(CallTask::AsksFirst),
        (Some(_), TaskWish::Accepted | TaskWish::Requested) => Ok(CallTask::Begins),
        (None, TaskWish::Requested) => {
            let reason = format!("tools/call of {name} as a task: leave params.task out");
            Err(RequestError::MethodNotFound(reason))
        }
        (Some(TaskSupport::Required), TaskWish::None) if is_modern => {
            Err(task_clients::undeclared())
        }
        (Some(TaskSupport::Required), TaskWish::None) => {
            let reason =
                format!("tools/call of {name}, which runs as a task only: add params.task");
            Err(RequestError::MethodNotFound(reason))
        }
    }
}

/// Checks that a caller that does not speak MCP can call the tool.
///
/// # Errors
///
/// When every call of the tool is a task.
pub(super) fn check_plain(tool: Option<&Tool>) -> Result<(), CallError> {
    match tool {
        Some(tool) if tool.task == Some(TaskSupport::Required) => {
            let mut error = CallError::new(
                CallErrorCode::MissingCapability,
                format!(
                    "{} runs as a task only: call it by MCP, with a client that knows tasks",
                    tool.name
                ),
            );
            let required = task_clients::required();
            let details = format!(r#"{{"requiredCapabilities":{required}}}"#);
            error.details = serde_json::value::RawValue::from_string(details).ok();
            Err(error)
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tool(more: &str) -> Tool {
        let text = format!(r#"{{"name":"t","inputSchema":{{}}{more}}}"#);
        serde_json::from_str(&text).expect("a tool")
    }

    #[test]
    fn the_tool_and_the_client_choose_together() {
        use CallTask::{AsksFirst, Begins, No};
        use TaskWish::{Accepted, None, Requested};
        const OPTIONAL: &str = r#","task":"optional""#;
        const REQUIRED: &str = r#","task":"required""#;
        const ASKING: &str = r#","task":"required","askFirst":true"#;
        for (declared, wish, expected) in [
            ("", None, Some(No)),
            ("", Accepted, Some(No)),
            ("", Requested, Option::None),
            (OPTIONAL, None, Some(No)),
            (OPTIONAL, Accepted, Some(Begins)),
            (OPTIONAL, Requested, Some(Begins)),
            (REQUIRED, None, Option::None),
            (REQUIRED, Accepted, Some(Begins)),
            (REQUIRED, Requested, Some(Begins)),
            (ASKING, Accepted, Some(AsksFirst)),
            (ASKING, Requested, Some(Begins)),
        ] {
            for is_modern in [false, true] {
                let chosen = chosen(&tool(declared), wish, is_modern).ok();
                assert_eq!(chosen, expected, "{declared} {wish:?}");
            }
        }
    }

    #[test]
    fn a_client_without_tasks_is_told_the_capability_that_it_lacks() {
        let required = tool(r#","task":"required""#);
        let modern = chosen(&required, TaskWish::None, true).expect_err("refused");
        let body: serde_json::Value =
            serde_json::from_slice(&modern.modern_body(None)).expect("JSON");
        assert_eq!(body["error"]["code"], -32021);
        let extensions = &body["error"]["data"]["requiredCapabilities"]["extensions"];
        assert!(extensions[task_clients::EXTENSION].is_object(), "{body}");
        let legacy = chosen(&required, TaskWish::None, false).expect_err("refused");
        let body: serde_json::Value = serde_json::from_slice(&legacy.body(None)).expect("JSON");
        assert_eq!(body["error"]["code"], -32601);
        let plain = check_plain(Some(&required)).expect_err("refused");
        assert_eq!(plain.code, CallErrorCode::MissingCapability);
        check_plain(Some(&tool(r#","task":"optional""#))).expect("an ordinary call");
    }
}
