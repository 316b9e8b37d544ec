//! Handling of exceptions in Python functions: the traceback for the log, and the error that the caller may read.

use serde_json::value::RawValue;
use tooldock_base::error::{CallError, CallErrorCode};
use tooldock_sessions::caller::Caller;
use tooldock_workers::registry::{Namespace, UpstreamKind};

use crate::engine::shortened;

/// Maximum size of a traceback that is logged, in bytes. A longer one is cut at its beginning, since the exception is named at
/// its end.
const TRACEBACK_MAX: usize = 16 * 1024;

/// Logs the traceback of a failed call, if there is one, and returns the error as its caller may see it.
///
/// With `mask_errors`, the text of an exception is only logged, since it may contain paths, addresses and values. A `ToolError`
/// is meant for the caller and is not masked. Callers with the manager token see all errors unmasked.
pub(super) fn error_for_caller(
    error: CallError,
    caller: &Caller,
    namespace: &Namespace,
    subject: &str,
) -> CallError {
    let traceback = error.details.as_deref().and_then(traceback);
    if let Some(traceback) = &traceback {
        report(caller, namespace, subject, traceback);
    }
    let is_masked = namespace.limits.mask_errors && is_of_the_code(error.code) && !caller.manager;
    if !is_masked {
        return error;
    }
    if traceback.is_none() {
        report(caller, namespace, subject, &error.message);
    }
    let message = format!(
        "The function failed. The gateway's log has the reason under request id {}.",
        caller.request_id
    );
    CallError::new(error.code, message).caused_by(error.code.as_str(), error.message)
}

/// Returns true if errors with this code contain messages of the tool's code, its packages or its types. Such messages were
/// written for the code's author.
fn is_of_the_code(code: CallErrorCode) -> bool {
    matches!(
        code,
        CallErrorCode::InternalError | CallErrorCode::OutputType
    )
}

/// Logs an exception, within the log quota of its namespace. The function and the request are named before the text, which may
/// have many lines.
fn report(caller: &Caller, namespace: &Namespace, subject: &str, text: &str) {
    let UpstreamKind::Worker(worker) = &namespace.upstream else {
        return;
    };
    let Some(text) = worker.loggable(end_of(text)) else {
        return;
    };
    let (namespace, request_id) = (&namespace.name, &*caller.request_id);
    // A URI is written by the client. It is escaped and shortened, so that it can neither forge a line of the log nor fill the
    // log.
    let subject = shortened(subject).escape_debug();
    tracing::warn!(
        "{subject} of namespace {namespace}, request {request_id}, raised an exception{text}"
    );
}

/// The text under the key `traceback` of an error's details.
fn traceback(details: &RawValue) -> Option<String> {
    #[derive(serde::Deserialize)]
    struct Details {
        traceback: Option<String>,
    }
    // Shortcut: the key is searched before the details are parsed, since most failures have no traceback and some have large
    // details.
    memchr::memmem::find(details.get().as_bytes(), b"\"traceback\"")?;
    let details: Details = serde_json::from_str(details.get()).ok()?;
    details.traceback
}

fn end_of(text: &str) -> &str {
    let cut = text.len().saturating_sub(TRACEBACK_MAX);
    let begin = (cut..text.len()).find(|at| text.is_char_boundary(*at));
    &text[begin.unwrap_or(0)..]
}

#[cfg(test)]
mod tests {
    use tooldock_sessions::testing::{caller, namespace};

    use super::*;

    fn failed(code: CallErrorCode, details: &str) -> CallError {
        let mut error = CallError::new(code, "KeyError: 'TOKEN'");
        error.details = Some(serde_json::from_str(details).expect("JSON"));
        error
    }

    fn masking() -> Namespace {
        let mut namespace = namespace("calc");
        namespace.limits.mask_errors = true;
        namespace
    }

    #[test]
    fn a_masked_exception_keeps_its_code_and_names_the_request() {
        let caller = caller();
        let error = failed(
            CallErrorCode::InternalError,
            r#"{"traceback":"Traceback …"}"#,
        );
        let masked = error_for_caller(error, &caller, &masking(), "t");
        assert_eq!(masked.code, CallErrorCode::InternalError);
        assert!(!masked.message.contains("TOKEN"), "{}", masked.message);
        assert!(
            masked.message.contains(&*caller.request_id),
            "{}",
            masked.message
        );
        assert!(masked.details.is_none());
    }

    #[test]
    fn a_result_of_a_wrong_type_is_masked_as_exceptions_are() {
        let error = failed(CallErrorCode::OutputType, "{}");
        let masked = error_for_caller(error, &caller(), &masking(), "t");
        assert_eq!(masked.code, CallErrorCode::OutputType);
        assert!(!masked.message.contains("TOKEN"), "{}", masked.message);
    }

    #[test]
    fn what_is_meant_for_callers_is_not_masked() {
        let mut caller = caller();
        for code in [CallErrorCode::ToolError, CallErrorCode::InvalidArguments] {
            let shown = error_for_caller(failed(code, "{}"), &caller, &masking(), "t");
            assert_eq!(shown.message, "KeyError: 'TOKEN'");
        }
        caller.manager = true;
        let error = failed(CallErrorCode::InternalError, "{}");
        assert_eq!(
            error_for_caller(error, &caller, &masking(), "t").message,
            "KeyError: 'TOKEN'"
        );
        caller.manager = false;
        let error = failed(CallErrorCode::InternalError, "{}");
        let open = namespace("calc");
        assert_eq!(
            error_for_caller(error, &caller, &open, "t").message,
            "KeyError: 'TOKEN'"
        );
    }

    #[test]
    fn a_traceback_is_found_and_its_end_is_kept() {
        let found = |text: &str| traceback(serde_json::from_str(text).expect("JSON"));
        assert_eq!(found(r#"{"traceback":"a\nb"}"#).as_deref(), Some("a\nb"));
        for none in [
            r#"{"traceback":null}"#,
            r#"{"traceback":5}"#,
            r#"{"x":"\"traceback\""}"#,
            "{}",
        ] {
            assert_eq!(found(none), None, "{none}");
        }
        let long = format!("{}é{}", "x".repeat(10), "y".repeat(TRACEBACK_MAX - 1));
        assert_eq!(end_of(&long).len(), TRACEBACK_MAX - 1);
        assert_eq!(end_of("short"), "short");
    }
}
