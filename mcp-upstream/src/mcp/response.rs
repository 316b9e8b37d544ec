//! A client's answers to our requests.

use serde_json::value::RawValue;

use super::Conversation;
use crate::error::Failure;
use crate::session::Answered;

/// Hands an answer to the call that asked. One that came too late is taken all the same: its sender could not know.
/// An answer to a question that was never asked in this session is refused.
pub(crate) fn take(
    conversation: &Conversation<'_>,
    id: &str,
    outcome: Result<&RawValue, &RawValue>,
) -> Result<(), Failure> {
    let session = conversation.session().ok_or(Failure::UnknownAnswer)?;
    match session.answer(id, outcome) {
        Answered::Taken | Answered::Over => Ok(()),
        Answered::Unknown => Err(Failure::UnknownAnswer),
    }
}
