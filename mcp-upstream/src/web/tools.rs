//! Calls management tools, and reloads after a change.

use std::sync::Arc;

use bytes::Bytes;
use http::header::RETRY_AFTER;
use http::{HeaderValue, StatusCode};
use serde_json::Value;
use tooldock_base::names::NamespaceName;
use tooldock_engine::upstream::system::Management;
use tooldock_sessions::caller::Caller;
use tooldock_sessions::profile::RestShape;

use super::answer::{Answer, WebFailure};
use crate::mcp::Core;
use crate::reply::Reply;
use crate::rest;

/// Calls a management tool on behalf of this caller and returns the tool's value.
pub(super) async fn call(
    core: &Core,
    caller: &Caller,
    tool: &str,
    arguments: &Value,
) -> Result<Value, WebFailure> {
    let caller = Caller {
        namespace: Some(NamespaceName::system()),
        ..caller.clone()
    };
    let arguments = Bytes::from(arguments.to_string());
    let reply = rest::tools::call(core, caller, tool, arguments, RestShape::V2).await;
    let Reply::Full { head, body } = reply else {
        return Err(WebFailure::without_management());
    };
    if head.status != StatusCode::OK {
        let mut headers = head.headers.into_iter();
        let retry: Option<HeaderValue> = headers
            .find(|(name, _)| *name == RETRY_AFTER)
            .map(|(_, value)| value);
        return Err(WebFailure::of_tool(head.status, &body, retry));
    }
    Ok(serde_json::from_slice(&body).unwrap_or_default())
}

/// The management tools of this process; a failure with status 503 if it has none.
pub(super) fn management(core: &Core) -> Result<&Arc<Management>, WebFailure> {
    core.management
        .as_ref()
        .ok_or_else(WebFailure::without_management)
}

/// Reloads the namespaces, and responds with the report of the reload.
pub(super) async fn reload(core: &Core) -> Answer {
    Ok(rest::reload::reload(core).await)
}

/// Reloads the namespaces in the background after a change. The overview shows the result; `POST /api/reload` returns it.
pub(super) fn reload_soon(core: &Arc<Core>) {
    let core = Arc::clone(core);
    tokio::spawn(async move { rest::reload::reload(&core).await });
}
