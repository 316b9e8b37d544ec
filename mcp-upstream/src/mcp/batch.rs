//! JSON-RPC batches, which only 2025-03-26 has (K-11). Their requests run at the same time; answers come in any order.

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use http::StatusCode;
use serde_json::value::RawValue;

use super::{Conversation, notification, request};
use crate::envelope::{self, Message};
use crate::error::Failure;
use crate::reply::Reply;

/// The most messages of one batch.
const MAX_MESSAGES: usize = 50;

/// Answers a batch: an array of responses, or 202 when nothing in it wants one.
pub(super) async fn answer(
    conversation: &Conversation<'_>,
    messages: &[&RawValue],
) -> Result<Reply, Failure> {
    let version = conversation.version;
    if !conversation.caller.profile.batch_accepted(version) {
        let reason = format!("batches are not accepted in {version}: send one message per POST");
        return Err(Failure::Shape(reason.into()));
    }
    if messages.is_empty() {
        return Err(Failure::Shape("a batch needs at least one message".into()));
    }
    if messages.len() > MAX_MESSAGES {
        let reason = format!("a batch has at most {MAX_MESSAGES} messages");
        return Err(Failure::Shape(reason.into()));
    }
    let parsed: Vec<_> = messages
        .iter()
        .map(|raw| envelope::message(raw.get()))
        .collect();
    let opens_session = |message: &Message<'_>| matches!(message, Message::Request { method, .. } | Message::Notification { method, .. } if method == "initialize");
    if parsed.iter().flatten().any(opens_session) {
        return Err(Failure::Shape(
            "initialize must not be part of a batch".into(),
        ));
    }
    let mut answers: FuturesUnordered<_> = parsed
        .into_iter()
        .map(|message| async move {
            match message {
                Ok(Message::Request { id, method, params }) => {
                    let answer = request::answer(conversation, id, &method, params).await;
                    Some(answer.unwrap_or_else(|failure| failure.body(Some(id))))
                }
                Ok(Message::Notification { method, params }) => {
                    // A notification has no answer, wrong or not.
                    let _ = notification::take(conversation, &method, params);
                    None
                }
                Ok(Message::Response) => None,
                Err(invalid) => Some(invalid.failure.body(invalid.id)),
            }
        })
        .collect();
    let mut body = vec![b'['];
    while let Some(answer) = answers.next().await {
        if let Some(answer) = answer {
            if body.len() > 1 {
                body.push(b',');
            }
            body.extend_from_slice(&answer);
        }
    }
    if body.len() == 1 {
        return Ok(Reply::empty(StatusCode::ACCEPTED));
    }
    body.push(b']');
    Ok(Reply::json(StatusCode::OK, body))
}
