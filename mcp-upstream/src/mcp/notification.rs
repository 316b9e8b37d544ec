//! Messages without an answer: the handshake's confirmation and cancellation. Others go to a server that speaks MCP
//! itself, or are accepted and ignored, among them `notifications/roots/list_changed`: a client's roots are asked for
//! each time a function wants them.

use crate::jsonrpc::{Key, Members, RequestError};
use crate::mcp::Core;
use crate::session::SessionPatch;
use crate::upstream::CallContext;

/// Acts on a notification.
///
/// A refused one is a refused POST: there is no response to put the error into.
pub(crate) async fn take(
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
