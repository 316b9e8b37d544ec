//! JSON-RPC batches, which exist only in version 2025-03-26 (K-11). The requests of a batch run concurrently, and responses may
//! be in any order.

use std::sync::Arc;

use futures_util::future::join_all;
use http::StatusCode;
use serde_json::value::RawValue;
use tooldock_engine::upstream::{CallContext, IncomingRequest};

use super::exchange::{Exchange, ExchangeDelivery};
use super::one_way;
use super::tasks::prepare_with_tasks;
use crate::jsonrpc::{self, MESSAGES_MAX, Message, RequestError};
use crate::mcp::Core;
use crate::reply::Reply;

/// Answers a batch: with an array of responses; with a stream of responses, if one of its calls sends a message before its
/// response; or with status 202, if no message in it needs a response.
pub(super) async fn answer(
    core: &Arc<Core>,
    cx: &CallContext<'_>,
    messages: &[&RawValue],
) -> Result<Reply, RequestError> {
    let Some(exchange) = begin(core, cx, messages).await? else {
        return Ok(Reply::empty(StatusCode::ACCEPTED));
    };
    let answers = match exchange.run().await? {
        ExchangeDelivery::Answers(answers) => answers,
        ExchangeDelivery::Events(reply) => return Ok(reply),
    };
    let mut body =
        Vec::with_capacity(answers.iter().map(|answer| answer.len() + 1).sum::<usize>() + 2);
    for answer in &answers {
        body.push(if body.is_empty() { b'[' } else { b',' });
        body.extend_from_slice(answer);
    }
    body.push(b']');
    Ok(Reply::json(StatusCode::OK, body))
}

/// Handles the notifications and responses of a batch, and prepares its requests. Returns `None` if it has no requests.
pub(crate) async fn begin(
    core: &Arc<Core>,
    cx: &CallContext<'_>,
    messages: &[&RawValue],
) -> Result<Option<Exchange>, RequestError> {
    let accepted = |version| cx.caller.profile.batch_accepted(version);
    if !cx.version().is_some_and(accepted) {
        let version = cx.version().map_or("this version", |v| v.as_str());
        let reason = format!("batches are not accepted in {version}: send one message per POST");
        return Err(RequestError::Shape(reason.into()));
    }
    if messages.is_empty() {
        return Err(RequestError::Shape(
            "a batch needs at least one message".into(),
        ));
    }
    if messages.len() > MESSAGES_MAX {
        let reason = format!("a batch has at most {MESSAGES_MAX} messages");
        return Err(RequestError::Shape(reason.into()));
    }
    let parsed: Vec<_> = messages
        .iter()
        .map(|raw| jsonrpc::message(raw.get()))
        .collect();
    let opens_session = |message: &Message<'_>| matches!(message, Message::Request { method, .. } | Message::Notification { method, .. } if method == "initialize");
    if parsed
        .iter()
        .any(|message| message.as_ref().is_ok_and(opens_session))
    {
        return Err(RequestError::Shape(
            "initialize must not be part of a batch".into(),
        ));
    }
    let mut exchange = Exchange::new(core, cx);
    let mut requests = Vec::new();
    let mut silent = true;
    for message in parsed {
        match message {
            Ok(Message::Request {
                id,
                method,
                members,
            }) => requests.push((id, method, members)),
            // Notifications and responses get no response, whether they are valid or not.
            Ok(Message::Notification { method, members }) => {
                let _ = one_way::notified(core, cx, &method, &members).await;
            }
            Ok(Message::Response {
                id,
                outcome,
                members,
            }) => {
                let _ = one_way::answered(cx, id, outcome, &members);
            }
            Err(invalid) => {
                silent = false;
                exchange.answer(invalid.failure.body(invalid.id));
            }
        }
    }
    let prepared = requests.iter().map(|(id, method, members)| async move {
        let request = IncomingRequest {
            id,
            method,
            members,
        };
        (*id, prepare_with_tasks(core, cx, request).await)
    });
    for (id, prepared) in join_all(prepared).await {
        silent = false;
        exchange.request(cx, id, prepared);
    }
    Ok((!silent).then_some(exchange))
}
