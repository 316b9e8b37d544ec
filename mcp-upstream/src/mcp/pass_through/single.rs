//! Extracts the answer from a server's stream of events, for clients that cannot read streams.

use bytes::Bytes;
use futures_util::StreamExt;
use tooldock_base::answers::{AnswerAccount, NoAnswerRoom};
use tooldock_servers::http::CountedBody;

use super::events::{self, Splitter};
use super::tap::{self, MessageKind};
use crate::reply::BodyStream;

/// Returns the answer in a complete stream of events. The memory that the reading needs is reserved from `answers`.
///
/// # Errors
///
/// [`NoAnswerRoom`].
pub(in crate::mcp) fn answer_of(
    events: &Bytes,
    answers: &AnswerAccount,
) -> Result<Option<Bytes>, NoAnswerRoom> {
    CountedBody::new(Some(answers)).has(events.len())?;
    let mut splitter = Splitter::default();
    splitter.push(events);
    Ok(answered(&mut splitter))
}

/// Returns the answer in a stream of events that is being received; `None` if the stream ends or breaks off before the answer.
/// The memory of an incomplete event is reserved from `answers`.
///
/// # Errors
///
/// [`NoAnswerRoom`]; the rest of the stream is not read then.
pub(in crate::mcp) async fn answer_in(
    mut body: BodyStream,
    answers: &AnswerAccount,
) -> Result<Option<Bytes>, NoAnswerRoom> {
    let mut splitter = Splitter::default();
    let mut counted = CountedBody::new(Some(answers));
    while let Some(piece) = body.next().await {
        let Ok(piece) = piece else {
            return Ok(None);
        };
        let held = splitter.pending() + piece.len();
        counted.has(held)?;
        splitter.push(&piece);
        if let Some(answer) = answered(&mut splitter) {
            return Ok(Some(answer));
        }
        if splitter.pending() < held {
            // The remaining bytes move to a new buffer, so that the memory of earlier events is freed.
            let rest = splitter.take();
            splitter = Splitter::default();
            splitter.push(&rest);
            drop(rest);
            counted = CountedBody::new(Some(answers));
            counted.has(splitter.pending())?;
        }
    }
    Ok(None)
}

fn answered(splitter: &mut Splitter) -> Option<Bytes> {
    while let Some(event) = splitter.next() {
        let message = events::data_of(&event);
        let is_answer = |it: &Bytes| matches!(tap::read(it, None), MessageKind::Answer(_));
        if let Some(message) = message.filter(is_answer) {
            return Some(message);
        }
    }
    None
}
