//! Refuses tasks in pass-through sessions.
//!
//! A task belongs to the principal whose call started it, and is hidden from all others. Only client mode records the owners
//! of tasks (`upstream::client`), so requests of 2026-07-28 about tasks are handled in client mode. In a pass-through session
//! the owners are unknown. So the server's task capability is removed from its answer to `initialize`, and requests about tasks
//! are refused.

use bytes::Bytes;

use crate::jsonrpc::spans::{self, MemberEdit};
use crate::jsonrpc::splice::{Edit, splice};
use crate::jsonrpc::{Key, Members, RequestError};

/// Refuses a request that is about a task, or would start one.
///
/// # Errors
///
/// `MethodNotFound` or `InvalidParams` for such a request.
pub(super) fn refuse(method: &str, members: &Members<'_>) -> Result<(), RequestError> {
    const WHY: &str = "messages of this namespace are passed on (mode: pass_through), and there are no tasks then";
    if method.starts_with("tasks/") {
        return Err(RequestError::MethodNotFound(format!("{method}: {WHY}")));
    }
    match members.raw(Key::Task) {
        Some(_) => {
            let reason = format!("params.task: {WHY}; leave it out");
            Err(RequestError::InvalidParams(reason.into()))
        }
        None => Ok(()),
    }
}

/// Removes the task capability from a server's answer to `initialize`. Returns `None` if the answer has none.
pub(super) fn not_offered(message: &Bytes) -> Option<Bytes> {
    const TASKS: &str = "tasks";
    let text = std::str::from_utf8(message).ok()?;
    let result = spans::find(text, "result")?;
    let capabilities = spans::find(result, "capabilities")?;
    spans::find(capabilities, TASKS)?;
    let without = spans::edited(capabilities, &[MemberEdit::Remove(TASKS)])?;
    let mut out = Vec::with_capacity(message.len());
    splice(
        &mut out,
        message,
        &mut [Edit::new(text, capabilities, without)],
    );
    Some(out.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_offer_of_tasks_is_taken_out_and_everything_else_keeps_its_bytes() {
        let answer = |capabilities: &str| {
            let result = format!(r#"{{"capabilities":{capabilities},"x":1.50}}"#);
            Bytes::from(format!(r#"{{"id":1,"result":{result} }}"#))
        };
        let offered = answer(r#"{"tools":{},"tasks":{"list":{}},"z":1.0}"#);
        let expected = answer(r#"{"tools":{},"z":1.0}"#);
        assert_eq!(not_offered(&offered), Some(expected));
        assert_eq!(not_offered(&answer(r#"{"tools":{}}"#)), None);
        assert_eq!(not_offered(&Bytes::from_static(b"{}")), None);
    }
}
