//! Extracts the answer from a server's stream of events, for clients that read no streams.

use bytes::Bytes;
use futures_util::StreamExt;

use super::events::{self, Splitter};
use super::tap::{self, Said};
use crate::reply::BodyStream;

/// The answer in events that were received whole.
pub(in crate::mcp) fn answer_of(events: &Bytes) -> Option<Bytes> {
    let mut splitter = Splitter::default();
    splitter.push(events);
    answered(&mut splitter)
}

/// The answer in a stream of events; `None` if the stream ends without an answer.
pub(in crate::mcp) async fn answer_in(mut body: BodyStream) -> Option<Bytes> {
    let mut splitter = Splitter::default();
    while let Some(piece) = body.next().await {
        splitter.push(&piece.ok()?);
        if let Some(answer) = answered(&mut splitter) {
            return Some(answer);
        }
    }
    None
}

fn answered(splitter: &mut Splitter) -> Option<Bytes> {
    while let Some(event) = splitter.next() {
        let Some(data) = events::fields(&event).data else {
            continue;
        };
        if matches!(tap::read(&data, None), Said::Answer(_)) {
            return Some(Bytes::copy_from_slice(&data));
        }
    }
    None
}
