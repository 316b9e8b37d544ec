//! A client's answers to our requests.

use serde_json::value::RawValue;

use crate::interaction::AnswerFate;
use crate::jsonrpc::splice::span;
use crate::jsonrpc::{Members, RequestError, Response};
use crate::upstream::CallContext;

/// Hands an answer to the call that asked. One that came too late is taken all the same: its
/// sender could not know. An answer to a question that was never asked in this session is refused, and so is one that
/// its server could take for something else.
pub(crate) fn take(
    cx: &CallContext<'_>,
    id: &str,
    outcome: Result<&RawValue, &RawValue>,
    members: &Members<'_>,
) -> Result<(), RequestError> {
    if cx.upstream.speaks_mcp() {
        // The whole of it may go to the server.
        members.unambiguous_unanswered()?;
    }
    let message = members.message();
    let session = cx.session().ok_or(RequestError::UnknownAnswer)?;
    let (Ok(part) | Err(part)) = outcome;
    let answer = Response::new(
        cx.own(message.as_bytes()),
        span(message, id),
        span(message, part.get()),
        outcome.is_err(),
    );
    match session.answer(id, answer) {
        AnswerFate::Taken | AnswerFate::Over => Ok(()),
        AnswerFate::Unknown => Err(RequestError::UnknownAnswer),
    }
}
