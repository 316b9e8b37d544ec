//! The outcome of a call as the outcome of its task.
//!
//! A failure of the tool is a result with `isError`, so the task is completed. A failure of the gateway or the worker gives no
//! result, so the task has failed.

use tooldock_base::error::{CallError, CallErrorCode};
use tooldock_sessions::caller::Caller;
use tooldock_sessions::tasks::{TaskEnd, TaskOutcome};

use crate::format::ResultFormat;
use crate::jsonrpc::{RequestError, spans};
use crate::mcp::call;
use crate::protocol::ProtocolVersion;
use tooldock_engine::engine::{CallOutcome, UpstreamCall};

/// Converts the outcome of a call: the end of the task, its outcome, and a text about it.
pub(super) fn of(
    call: &dyn UpstreamCall,
    caller: &Caller,
    outcome: CallOutcome,
) -> (TaskEnd, TaskOutcome, Option<String>) {
    let outcome = match outcome {
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

/// The outcome of a task whose runner panicked.
pub(super) fn not_run_to_its_end() -> (TaskOutcome, String) {
    let message = "the gateway could not run it to its end; the log says why".to_owned();
    failed(CallErrorCode::InternalError, message)
}
