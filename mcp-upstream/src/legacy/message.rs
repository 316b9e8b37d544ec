//! `POST /messages`: one message of a session, answered on the session's stream.

use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use http::StatusCode;
use tooldock_engine::upstream::{Client, IncomingRequest};
use tooldock_sessions::caller::Caller;
use tooldock_sessions::session::{Session, SessionTransport};

use crate::jsonrpc::{self, Body, Invalid, Message, RequestError};
use crate::mcp::exchange::Exchange;
use crate::mcp::head::McpHead;
use crate::mcp::{self, Core, batch, initialize, one_way};
use crate::protocol::ProtocolVersion;
use crate::reply::Reply;

/// Handles a message. A malformed message, or one without a session, is refused in the HTTP response. Every other response,
/// including errors, is sent on the stream.
pub(super) async fn take<'a>(
    core: &'a Arc<Core>,
    caller: &'a Caller,
    session_id: Option<&'a str>,
    head: &'a McpHead,
    body: &'a Bytes,
) -> Result<Reply, Invalid<'a>> {
    let message = jsonrpc::body(body)?;
    if let Some(body) = jsonrpc::without_nulls(&message, body) {
        return Ok(taken_again(core, caller, session_id, head, body).await);
    }
    let namespace = mcp::namespace(core, caller)?;
    let id = session_id.ok_or(RequestError::Shape(
        "session_id is missing: open GET /sse and post to the address it names".into(),
    ))?;
    let transport = SessionTransport::Sse;
    let session = mcp::find_session(core, caller, id, &namespace, transport).await?;
    // If the reader was too slow, the stream and its session have ended, even if the client has not noticed it yet.
    let stream = session.streams().general();
    if stream.is_none_or(|stream| stream.is_over()) {
        return Err(RequestError::SessionNotFound.into());
    }
    agree(caller, head, &session)?;
    mcp::pass_through::count_client_mode(core, caller, &namespace);
    let client = Client::Session(Arc::clone(&session));
    let cx = mcp::context(core, caller, body, namespace, client, true);
    match &message {
        Body::Batch(messages) => {
            if let Some(exchange) = batch::begin(core, &cx, messages).await? {
                exchange.settle(session).await;
            }
        }
        Body::One(Message::Request {
            id,
            method,
            members,
        }) => {
            let prepared = if *method == "initialize" {
                let params = members.params();
                let answer = initialize::over_sse(core, &cx, &session, id, params).await;
                answer.map(Into::into)
            } else {
                let request = IncomingRequest {
                    id,
                    method,
                    members,
                };
                mcp::tasks::prepare_with_tasks(core, &cx, request).await
            };
            let mut exchange = Exchange::new(core, &cx);
            exchange.request(&cx, id, prepared);
            // Responses that are ready are sent on the stream before this POST is answered: a client that waits for one
            // response before its next request gets the responses in that order.
            exchange.settle(session).await;
        }
        Body::One(Message::Notification { method, members }) => {
            one_way::notified(core, &cx, method, members).await?;
        }
        Body::One(Message::Response {
            id,
            outcome,
            members,
        }) => {
            one_way::answered(&cx, id, *outcome, members)?;
        }
    }
    Ok(Reply::empty(StatusCode::ACCEPTED))
}

/// Handles a message again after its keys with the value `null` were removed.
fn taken_again<'a>(
    core: &'a Arc<Core>,
    caller: &'a Caller,
    session_id: Option<&'a str>,
    head: &'a McpHead,
    body: Bytes,
) -> Pin<Box<dyn Future<Output = Reply> + Send + 'a>> {
    Box::pin(async move {
        let taken = take(core, caller, session_id, head, &body).await;
        taken.unwrap_or_else(|invalid| mcp::refused(caller, invalid))
    })
}

/// Refuses a version header that contradicts the session's negotiated version. The HTTP+SSE transport does not require the
/// header.
fn agree(caller: &Caller, head: &McpHead, session: &Session) -> Result<(), RequestError> {
    let Some(sent) = &head.version else {
        return Ok(());
    };
    let sent = sent.trim().parse().ok();
    let served = |version: &ProtocolVersion| {
        *version == ProtocolVersion::V2024_11_05 || caller.profile.supports(*version)
    };
    let Some(sent) = sent.filter(served) else {
        return Err(mcp::unsupported_version(caller));
    };
    if session.is_negotiated() && session.version() != sent {
        return Err(RequestError::VersionMismatch {
            session: session.version().as_str(),
        });
    }
    Ok(())
}
