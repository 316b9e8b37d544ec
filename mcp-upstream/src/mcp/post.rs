//! POST on an MCP path: one message, or a batch of them.
//!
//! The order: parse → era → namespace → version header → session → their agreement → Accept → the message. A failure
//! answers at once with a JSON-RPC error; what comes after it does not run.
//!
//! What a message may lead to is boxed where the ways part: with room for all of them in every request, the room would
//! cost more than the answer to a `ping`.

use std::sync::Arc;

use bytes::Bytes;
use http::StatusCode;

use super::head::McpHead;
use super::{batch, exchange, initialize, methods, modern, notification, open, response};
use crate::caller::Caller;
use crate::jsonrpc::{self, Body, Invalid, Message};
use crate::mcp::Core;
use crate::reply::Reply;
use crate::upstream::{IncomingRequest, Prepared};

/// Answers a POST.
pub(super) async fn answer<'a>(
    core: &'a Arc<Core>,
    caller: &'a Caller,
    head: &McpHead,
    body: &'a Bytes,
) -> Result<Reply, Invalid<'a>> {
    let content = jsonrpc::body(body)?;
    let message = match &content {
        Body::One(message) => message,
        Body::Batch(messages) => {
            if head.version.as_deref().map(str::trim) == Some(modern::VERSION) {
                return Err(modern::batch_refused().into());
            }
            let cx = open(core, caller, head, body, false).await?;
            return Ok(Box::pin(batch::answer(core, &cx, messages)).await?);
        }
    };
    if is_modern(head, message) {
        let answer = modern::answer(core, caller, head, body, message);
        return Ok(Box::pin(answer).await);
    }
    match message {
        Message::Request {
            id,
            method,
            members,
        } => {
            let refused = |failure| Invalid {
                failure,
                id: Some(*id),
            };
            let initialize = *method == "initialize";
            let cx = open(core, caller, head, body, initialize)
                .await
                .map_err(refused)?;
            if initialize {
                return Box::pin(initialize::answer(
                    core,
                    &cx,
                    head.accept,
                    id,
                    members.params(),
                ))
                .await
                .map_err(refused);
            }
            let request = IncomingRequest {
                id,
                method,
                members,
            };
            let prepared = methods::prepare(&cx, request).await.map_err(refused)?;
            match prepared {
                Prepared::Response(answer) => Ok(Reply::json(StatusCode::OK, answer)),
                Prepared::Call(call) => Box::pin(exchange::one(core, &cx, id, call))
                    .await
                    .map_err(refused),
            }
        }
        Message::Notification { method, members } => {
            let cx = open(core, caller, head, body, false).await?;
            notification::take(core, &cx, method, members).await?;
            Ok(Reply::empty(StatusCode::ACCEPTED))
        }
        Message::Response {
            id,
            outcome,
            members,
        } => {
            let cx = open(core, caller, head, body, false).await?;
            response::take(&cx, id, *outcome, members)?;
            Ok(Reply::empty(StatusCode::ACCEPTED))
        }
    }
}

/// Whether a message is of the era without sessions.
fn is_modern(head: &McpHead, message: &Message<'_>) -> bool {
    match message {
        Message::Request {
            method, members, ..
        }
        | Message::Notification { method, members } => {
            modern::is_modern(head, Some((method, members)))
        }
        Message::Response { .. } => modern::is_modern(head, None),
    }
}
