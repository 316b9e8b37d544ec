//! The outcome of a call as the outcome of its task.
//!
//! A failure of the tool is a result with `isError`, so the task is completed. A failure of the gateway or the worker gives no
//! result, so the task has failed.

use serde_json::json;
use tooldock_base::error::{CallError, CallErrorCode};
use tooldock_sessions::caller::Caller;
use tooldock_sessions::tasks::{TaskEnd, TaskOutcome};

use super::running::TaskClient;
use crate::format::ResultFormat;
use crate::jsonrpc::{RequestError, spans};
use crate::mcp::call;
use crate::protocol::{ProtocolVersion, code};
use tooldock_engine::engine::{CallOutcome, UpstreamCall};

/// Converts the outcome of a call: the end of the task, its outcome, and a text about it.
pub(super) fn of(
    call: &dyn UpstreamCall,
    caller: &Caller,
    client: &TaskClient,
    outcome: CallOutcome,
) -> (TaskEnd, TaskOutcome, Option<String>) {
    let outcome = match outcome {
        Err(error) if is_unasked(&error, client) => return unasked(),
        Err(error) if has_no_result(error.code) => return refused(&refusal(error)),
        outcome => outcome,
    };
    let format = ResultFormat::Legacy(ProtocolVersion::V2025_11_25);
    match call::response(call.facts(), "0", caller, &format, outcome) {
        Ok(response) => {
            let text = String::from_utf8_lossy(&response);
            match (spans::find(&text, "result"), spans::find(&text, "error")) {
                (Some(result), _) => (TaskEnd::Completed, TaskOutcome::Result(result.into()), None),
                (None, Some(error)) => (TaskEnd::Failed, TaskOutcome::Error(error.into()), None),
                (None, None) => refused(&RequestError::Internal),
            }
        }
        Err(failure) => refused(&failure),
    }
}

/// Returns true if the call failed because it asked a client that cannot be asked during a task.
fn is_unasked(error: &CallError, client: &TaskClient) -> bool {
    error.code == CallErrorCode::MissingCapability && matches!(client, TaskClient::Legacy)
}

fn unasked() -> (TaskEnd, TaskOutcome, Option<String>) {
    let message = "A client of 2025-11-25 cannot be asked during a task".to_owned();
    let error = json!({
        "code": code::MISSING_CAPABILITY,
        "message": message,
        "data": { "code": CallErrorCode::MissingCapability.as_str() },
    });
    let outcome = TaskOutcome::Error(error.to_string().into());
    (TaskEnd::Failed, outcome, Some(message))
}

/// Returns true if a call with this error has no result: the tool did not run to its end.
fn has_no_result(code: CallErrorCode) -> bool {
    match code {
        CallErrorCode::ExecutionTimeout
        | CallErrorCode::WorkerUnavailable
        | CallErrorCode::Starting
        | CallErrorCode::Overloaded
        | CallErrorCode::ResultTooLarge
        | CallErrorCode::Cancelled
        | CallErrorCode::MissingCapability => true,
        CallErrorCode::ToolNotFound
        | CallErrorCode::InsufficientScope
        | CallErrorCode::ResourceNotFound
        | CallErrorCode::PromptNotFound
        | CallErrorCode::InvalidArguments
        | CallErrorCode::DependencyError
        | CallErrorCode::InternalError
        | CallErrorCode::OutputType
        | CallErrorCode::ToolError
        | CallErrorCode::RateLimited
        | CallErrorCode::MissingCredential
        | CallErrorCode::UpstreamError
        | CallErrorCode::AskFailed
        | CallErrorCode::HookRefused
        | CallErrorCode::HookFailed => false,
    }
}

fn refusal(error: CallError) -> RequestError {
    RequestError::missing_capability(&error).unwrap_or(RequestError::Upstream(error))
}

fn refused(failure: &RequestError) -> (TaskEnd, TaskOutcome, Option<String>) {
    let body = failure.body(None);
    let text = String::from_utf8_lossy(&body);
    let error = spans::find(&text, "error").unwrap_or("{}");
    let message = failure.message().into_owned();
    (
        TaskEnd::Failed,
        TaskOutcome::Error(error.into()),
        Some(message),
    )
}

/// The outcome of a task whose own outcome does not fit into the store.
pub(super) fn too_large() -> (TaskOutcome, Option<String>) {
    let message = "the stored results of this principal's tasks, or of all tasks, have reached their bound: begin the call again \
                   when some of them have expired";
    let error = CallError::new(CallErrorCode::ResultTooLarge, message);
    let (_, outcome, message) = refused(&RequestError::Upstream(error));
    (outcome, message)
}

/// The outcome of a task that the gateway itself ends, with a text about it.
pub(super) fn failed(code: CallErrorCode, message: String) -> (TaskOutcome, String) {
    let error = CallError::new(code, message.clone());
    let (_, outcome, _) = refused(&RequestError::Upstream(error));
    (outcome, message)
}

/// The outcome of a task whose process has ended.
pub(super) fn process_ended() -> (TaskOutcome, String) {
    let message = "the process that ran it ended".to_owned();
    failed(CallErrorCode::WorkerUnavailable, message)
}
