//! What a request means: an answer that is there, or a call of the upstream.
//!
//! How the answer travels (JSON, a stream, a suspended call) is not decided here. `initialize`, `server/discover` and
//! `subscriptions/listen` are not here either: they make the conversation the others are part of.

use std::time::Duration;

use crate::format::ResultWriter;
use crate::jsonrpc::{Members, RequestError};
use crate::protocol::ProtocolVersion;
use crate::session::SessionState;
use crate::upstream::{CallContext, IncomingRequest, Prepared};

/// How long a request waits for a confirmation of the session that it may have overtaken (K-15).
const PATIENCE: Duration = Duration::from_secs(1);

/// Understands one request.
///
/// # Errors
///
/// What makes it no request for this namespace: an unknown method, wrong parameters, a namespace that is not up, a
/// session that was not confirmed.
pub(crate) async fn prepare(
    cx: &CallContext<'_>,
    request: IncomingRequest<'_>,
) -> Result<Prepared, RequestError> {
    if request.method == "ping" && cx.client.is_legacy() {
        return ping(cx, request.id, request.members).map(Prepared::Response);
    }
    confirmed(cx, request.method).await?;
    cx.upstream.prepare(cx, request).get().await
}

fn ping(cx: &CallContext<'_>, id: &str, members: &Members<'_>) -> Result<Vec<u8>, RequestError> {
    members.by_name()?;
    Ok(ResultWriter::begin(id, &cx.result_format(), 0).end())
}

/// Waits for the client's confirmation where the listener and the version ask for it (MCP-08).
async fn confirmed(cx: &CallContext<'_>, method: &str) -> Result<(), RequestError> {
    let Some(session) = cx.session() else {
        return Ok(());
    };
    let since = ProtocolVersion::V2025_06_18;
    let asked = cx.caller.profile.require_initialized
        && cx.version().is_some_and(|version| version >= since);
    if !asked || session.state() == SessionState::Ready {
        return Ok(());
    }
    // What is never there needs no confirmation.
    cx.upstream.offers(cx, method)?;
    if session.confirmed_within(PATIENCE).await {
        return Ok(());
    }
    Err(match session.state() {
        SessionState::Closed => RequestError::SessionNotFound,
        _ => RequestError::NotInitialized,
    })
}
