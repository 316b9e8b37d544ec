//! HTTP+SSE, the transport of 2024-11-05, over the same methods as Streamable HTTP.
//!
//! ```text
//!   GET /sse ───────▶ session ──▶ stream: `endpoint`, then every message to the client
//!   POST /messages ─▶ 202         what it asked for is answered on the stream
//! ```
//!
//! The stream is the session: when it ends, so do the session and the calls in it. There is no resumption, and there are
//! no event ids. A client may ask before it initializes (LEG-05); until then the session speaks 2024-11-05.

use std::sync::Arc;

use bytes::Bytes;
use http::StatusCode;
use serde_json::json;

use crate::caller::Caller;
use crate::mcp;
use crate::mcp::head::McpHead;
use crate::protocol::code;
use crate::reply::Reply;
use crate::state::Core;

mod message;
mod open;

/// Opens a session and its stream (LEG-01).
pub(crate) async fn open(core: &Arc<Core>, caller: &Caller) -> Reply {
    if !caller.profile.legacy_sse {
        return switched_off();
    }
    match open::answer(core, caller).await {
        Ok(reply) => reply,
        Err(failure) => mcp::refused(caller, failure.into()),
    }
}

/// Takes one message of a session (LEG-02).
pub(crate) async fn post(
    core: &Arc<Core>,
    caller: &Caller,
    session_id: Option<&str>,
    head: &McpHead,
    body: &Bytes,
) -> Reply {
    if !caller.profile.legacy_sse {
        return switched_off();
    }
    match message::take(core, caller, session_id, head, body).await {
        Ok(reply) => reply,
        Err(invalid) => mcp::refused(caller, invalid),
    }
}

/// The paths are not there where the transport is switched off (LEG-03). Who asks for them speaks MCP and is told so in it.
fn switched_off() -> Reply {
    let error = json!({
        "code": code::NOT_FOUND,
        "message": "No such path",
        "data": { "code": "not_found" },
    });
    let body = json!({ "jsonrpc": "2.0", "id": null, "error": error });
    Reply::json(StatusCode::NOT_FOUND, body.to_string())
}

#[cfg(test)]
mod tests;
