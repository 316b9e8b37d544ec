//! HTTP+SSE, the transport of 2024-11-05, with the methods of Streamable HTTP.
//!
//! ```text
//!   GET /sse ───────▶ session ──▶ stream: `endpoint`, then every message to the client
//!   POST /messages ─▶ 202         the response is sent on the stream
//! ```
//!
//! A session lasts as long as its stream: the end of the stream ends the session and its calls. The stream cannot be resumed,
//! and its events have no ids. A client may send requests before it initializes (LEG-05); until then the session has protocol
//! version 2024-11-05.

use std::sync::Arc;

use bytes::Bytes;
use tooldock_sessions::caller::Caller;

use crate::mcp::head::McpHead;
use crate::mcp::{self, Core};
use crate::reply::Reply;

mod message;
mod open;

/// Answers GET: opens a session and its stream (LEG-01).
pub(crate) async fn open(core: &Arc<Core>, caller: &Caller) -> Reply {
    match open::answer(core, caller).await {
        Ok(reply) => reply,
        Err(failure) => mcp::refused(caller, failure.into()),
    }
}

/// Answers POST: handles one message of a session (LEG-02).
pub(crate) async fn post(
    core: &Arc<Core>,
    caller: &Caller,
    session_id: Option<&str>,
    head: &McpHead,
    body: &Bytes,
) -> Reply {
    match message::take(core, caller, session_id, head, body).await {
        Ok(reply) => reply,
        Err(invalid) => mcp::refused(caller, invalid),
    }
}

#[cfg(test)]
mod tests;
