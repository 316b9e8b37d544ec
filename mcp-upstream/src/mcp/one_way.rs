//! Messages without an answer: notifications, and a client's answers to our requests.
//!
//! Of the notifications only the handshake's confirmation and cancellation are acted on here. Others go to a server that
//! speaks MCP itself, or are accepted and ignored, among them `notifications/roots/list_changed`: a client's roots are
//! asked for each time a function wants them.

use serde_json::value::RawValue;

use crate::interaction::AnswerFate;
use crate::jsonrpc::splice::span;
use crate::jsonrpc::{Key, Members, RequestError, Response};
use crate::mcp::Core;
use crate::session::SessionPatch;
use crate::upstream::CallContext;

/// Acts on a notification.
///
/// A refused one is a refused POST: there is no response to put the error into.
pub(crate) async fn notified(
    core: &Core,
    cx: &CallContext<'_>,
    method: &str,
    members: &Members<'_>,
) -> Result<(), RequestError> {
    if members.by_name().is_err() {
        return Err(RequestError::Shape("params must be an object".into()));
    }
    if cx.upstream.speaks_mcp() {
        // Those acted on here go on to the server in their own words, too.
        members.unambiguous_unanswered()?;
    }
    let session = cx.session();
    match method {
        "initialize" => Err(RequestError::Shape("initialize needs an id".into())),
        // The second spelling is what older clients send (MCP-09).
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
        _ => {
            cx.upstream.notify(cx, method, members.message());
            Ok(())
        }
    }
}

/// Hands an answer to the call that asked. One that came too late is taken all the same: its
/// sender could not know. An answer to a question that was never asked in this session is refused, and so is one that
/// its server could take for something else.
pub(crate) fn answered(
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
