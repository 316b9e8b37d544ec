//! A client's answers to our requests.

use serde_json::value::RawValue;

use super::{Conversation, forward};
use crate::jsonrpc::splice::span;
use crate::jsonrpc::{RequestError, Response};
use crate::session::Answered;

/// Hands an answer to the call that asked; `message` is all of it. One that came too late is taken all the same: its
/// sender could not know. An answer to a question that was never asked in this session is refused, and so is one that
/// its server could take for something else.
pub(crate) fn take(
    conversation: &Conversation<'_>,
    message: &str,
    id: &str,
    outcome: Result<&RawValue, &RawValue>,
) -> Result<(), RequestError> {
    if conversation.core.external.serves(&conversation.namespace) {
        // The whole of it may go to the server.
        forward::spelling::check_unanswered(message)?;
    }
    let session = conversation.session().ok_or(RequestError::UnknownAnswer)?;
    let (Ok(part) | Err(part)) = outcome;
    let answer = Response::new(
        conversation.own(message.as_bytes()),
        span(message, id),
        span(message, part.get()),
        outcome.is_err(),
    );
    match session.answer(id, answer) {
        Answered::Taken | Answered::Over => Ok(()),
        Answered::Unknown => Err(RequestError::UnknownAnswer),
    }
}
