//! Messages that get no response: notifications, and a client's responses to the gateway's requests.
//!
//! Only two notifications are handled: the confirmation of the handshake, and cancellations. Other notifications are forwarded
//! if the namespace is an MCP server, else accepted and ignored. This includes `notifications/roots/list_changed`, because the
//! client's roots are requested each time a function needs them. A request's method without an id is refused.

use serde_json::value::RawValue;
use tooldock_engine::upstream::CallContext;
use tooldock_sessions::interaction::AnswerOutcome;
use tooldock_sessions::session::SessionPatch;

use crate::jsonrpc::splice::span;
use crate::jsonrpc::{Key, Members, RequestError, Response};
use crate::mcp::Core;
use crate::protocol::{Method, is_misspelt_call};

/// Handles a notification.
///
/// An error refuses the POST, because a notification has no response that could contain the error.
pub(crate) async fn notified(
    core: &Core,
    cx: &CallContext<'_>,
    method: &str,
    members: &Members<'_>,
) -> Result<(), RequestError> {
    if members.by_name().is_err() {
        return Err(RequestError::Shape("params must be an object".into()));
    }
    if cx.upstream.server_facts().gets_client_messages() {
        // A handled notification may also be forwarded to the server unchanged, so it must not be ambiguous.
        members.unambiguous_unanswered()?;
    }
    let session = cx.session();
    match method {
        "initialize" => Err(RequestError::Shape("initialize needs an id".into())),
        // Older clients send the second method name (MCP-09).
        "notifications/initialized" | "initialized" => {
            if let Some(session) = session {
                core.changes.commit(session, SessionPatch::Confirm).await?;
            }
            Ok(())
        }
        "notifications/cancelled" => {
            members
                .unique()
                .map_err(|_| RequestError::Shape("params has a key twice".into()))?;
            if let (Some(session), Some(id)) = (session, members.raw(Key::RequestId)) {
                session.in_flight().cancel(id, members.message());
            }
            Ok(())
        }
        // A server that ignores the missing id would run a call that no policy, limit, hook or audit log has seen.
        _ if matches!(Method::of(method), Method::Known(_)) || is_misspelt_call(method) => {
            Err(RequestError::Shape(format!("{method} needs an id").into()))
        }
        _ => {
            cx.upstream.notify(cx, method, members.message());
            Ok(())
        }
    }
}

/// Delivers a response to the call that asked the question. A response that arrives too late is accepted, since its client could
/// not have known. A response is refused if the session never asked its question, or if a server could parse it as another
/// message.
pub(crate) fn answered(
    cx: &CallContext<'_>,
    id: &str,
    outcome: Result<&RawValue, &RawValue>,
    members: &Members<'_>,
) -> Result<(), RequestError> {
    if cx.upstream.server_facts().gets_client_messages() {
        // The complete message may be forwarded to the server, so it must not be ambiguous.
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
        AnswerOutcome::Taken | AnswerOutcome::Over => Ok(()),
        AnswerOutcome::Unknown => Err(RequestError::UnknownAnswer),
    }
}
