//! `server/discover`: what a client would have learned from `initialize`.

use http::StatusCode;

use super::supported;
use crate::format::{self, CacheScope, ResultWriter};
use crate::jsonrpc::RequestError;
use crate::mcp::{CallContext, capabilities, forward};
use crate::reply::Reply;

/// Answers for the namespace: in the gateway's name, or in that of its server.
pub(super) async fn answer(cx: &CallContext<'_>, id: &str) -> Result<Reply, RequestError> {
    let namespace = &cx.namespace;
    let versions: Vec<&str> = supported(cx.caller).collect();
    if cx.core.external.serves(namespace) {
        let result = forward::discover(cx, &versions).await;
        let result = result.map_err(RequestError::Upstream)?;
        return Ok(Reply::json(StatusCode::OK, format::raw_result(id, &result)));
    }
    let scope = CacheScope::of_lists(cx.caller, namespace);
    let format = cx.result_format();
    let mut answer = ResultWriter::begin(id, &format, 512).cached(scope);
    let out = answer.key("supportedVersions");
    serde_json::to_writer(out, &versions).expect("strings serialize into memory");
    let out = answer.key("capabilities");
    out.extend_from_slice(capabilities::of(namespace).to_string().as_bytes());
    if !namespace.description.is_empty() {
        let out = answer.key("instructions");
        format::escape(out, namespace.description.as_bytes());
    }
    Ok(Reply::json(StatusCode::OK, answer.end()))
}
