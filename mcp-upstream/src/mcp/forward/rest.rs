//! Tools of external servers as REST shows and calls them.

mod failure;

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use bytes::Bytes;
use serde_json::value::RawValue;
use tooldock_workers::error::{CallError, CallErrorCode};
use tooldock_workers::registry::Namespace;

use super::call::ExternalCall;
use super::catalogue::Catalogue;
use super::isolation::Client;
use crate::audit::Transport;
use crate::caller::Caller;
use crate::engine::{ForwardRequest, ForwardTask, Peer, ResponseOutcome, TOOLS_CALL};
use crate::jsonrpc::{Request, Response, spans};
use crate::mcp::Core;
use crate::protocol::CacheScope;
use crate::session::CancelNotice;

/// Calls a tool whose schema the arguments fit and gives what REST answers: the structured content, else a lone text,
/// else the content blocks.
///
/// # Errors
///
/// What went wrong, be it here, in the server or in the tool.
pub(crate) async fn call(
    core: &Core,
    caller: &Caller,
    namespace: Arc<Namespace>,
    tool: &str,
    arguments: Bytes,
) -> Result<Bytes, CallError> {
    let name = serde_json::Value::from(tool).to_string();
    let given = String::from_utf8_lossy(&arguments);
    let params = format!(r#"{{"name":{name},"arguments":{given}}}"#);
    let request = Request::own(TOOLS_CALL, &params).map_err(|_| {
        let reason = "The arguments are no JSON, or nested too deep";
        CallError::new(CallErrorCode::InvalidArguments, reason)
    })?;
    let run = ExternalCall {
        external: Arc::clone(&core.external),
        namespace: Arc::clone(&namespace),
        client: Client::Rest,
        principal: caller.principal.clone(),
        scope: CacheScope::Private,
        method: TOOLS_CALL.into(),
        subject: tool.into(),
        request,
        tasks: super::tasks::Named::default(),
        sent: Mutex::default(),
    };
    let request = ForwardRequest {
        namespace: Arc::clone(&namespace),
        method: TOOLS_CALL.into(),
        subject: tool.into(),
        arguments: arguments.clone(),
        transport: Transport::Rest,
        version: None,
        session: None,
        asks: false,
        run: Arc::new(CheckedCall {
            call: Arc::new(run),
            arguments,
        }),
    };
    let failed = match core.engine.forward(caller, &request, None).await?.outcome() {
        ResponseOutcome::Result(result) => match value(&result)? {
            Ok(value) => return Ok(value),
            Err(failed) => failed,
        },
        ResponseOutcome::Error(error) => failure::Failed::with(&error),
    };
    let blame = failed.blame(tool);
    // Servers say the same of a tool that is not there and of wrong arguments: the list tells them apart.
    let is_known = blame == failure::Blame::Server
        || (core.external.tools_soon(&namespace).await)
            .map_or(true, |tools| tools.definition(tool).is_some());
    Err(failed.error(blame, is_known))
}

/// A call that goes up if its arguments fit the tool's schema. They are checked when the call has its turn, so that
/// refused calls count for limits and audit as they do with a worker.
struct CheckedCall {
    call: Arc<ExternalCall>,
    arguments: Bytes,
}

impl CancelNotice for CheckedCall {
    fn cancelled(&self, message: &str) {
        self.call.cancelled(message);
    }
}

#[async_trait]
impl ForwardTask for CheckedCall {
    async fn run(self: Arc<Self>, peer: Peer) -> Result<Response, CallError> {
        let call = &self.call;
        // A server that does not list its tools says itself what is wrong with a call.
        let tools = call.external.tools_soon(&call.namespace).await;
        let schema = tools.ok().and_then(|it| it.input_schema(&call.subject));
        if let Some(schema) = schema {
            schema.check(&self.arguments)?;
        }
        Arc::clone(call).run(peer).await
    }
}

/// The tools of a namespace's server, those that the policy denies among them.
///
/// # Errors
///
/// Why they are not known.
pub(crate) async fn tools(
    core: &Core,
    namespace: &Arc<Namespace>,
) -> Result<Arc<Catalogue>, CallError> {
    core.external.tools(namespace).await
}

/// The input schema of a tool the policy allows.
///
/// # Errors
///
/// Why it is not known.
pub(crate) async fn schema(
    core: &Core,
    namespace: &Arc<Namespace>,
    tool: &str,
) -> Result<String, CallError> {
    let tools = core.external.tools(namespace).await?;
    let allowed = namespace.policy.allows_tool(tool);
    let definition = tools.definition(tool).filter(|_| allowed);
    let definition = definition.ok_or_else(|| {
        let name: String = tool.chars().take(128).collect();
        CallError::new(CallErrorCode::ToolNotFound, format!("Unknown tool: {name}"))
    })?;
    let schema = spans::member(definition, "inputSchema");
    Ok(schema.map_or_else(|| "{}".to_owned(), |schema| schema.get().to_owned()))
}

/// What a result comes to: a value, or a failure in the tool's words.
///
/// # Errors
///
/// It is no result.
fn value(result: &Bytes) -> Result<Result<Bytes, failure::Failed>, CallError> {
    let odd = || {
        CallError::new(
            CallErrorCode::InternalError,
            "The server's answer is no result",
        )
    };
    let object = spans::raw(result).ok_or_else(odd)?;
    let content = spans::member(object, "content");
    let blocks: Vec<&RawValue> = content
        .and_then(|content| serde_json::from_str(content.get()).ok())
        .unwrap_or_default();
    if spans::member(object, "isError").is_some_and(|it| it.get() == "true") {
        return Ok(Err(failure::Failed::saying(object, &blocks)));
    }
    if let Some(value) = spans::member(object, "structuredContent") {
        return Ok(Ok(result.slice_ref(value.get().as_bytes())));
    }
    if let [block] = blocks[..]
        && let Some(text) = text(block)
    {
        return Ok(Ok(result.slice_ref(text.get().as_bytes())));
    }
    let content = content.map_or("[]", RawValue::get);
    Ok(Ok(format!(r#"{{"content":{content}}}"#).into()))
}

/// The text of a block of that kind, raw.
fn text(block: &RawValue) -> Option<&RawValue> {
    let kind = spans::member(block, "type")?;
    (kind.get() == "\"text\"").then(|| spans::member(block, "text"))?
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bare(text: &'static str) -> String {
        let value = value(&Bytes::from_static(text.as_bytes()));
        let value = value.expect("a result").expect("a value");
        String::from_utf8(value.to_vec()).expect("UTF-8")
    }

    #[test]
    fn a_result_is_its_structure_else_its_text_else_its_blocks() {
        for (result, expected) in [
            (
                r#"{"content":[],"structuredContent":{"n":1.50}}"#,
                r#"{"n":1.50}"#,
            ),
            (
                r#"{"content":[{"type":"text","text":"h\u00e9"}]}"#,
                r#""h\u00e9""#,
            ),
            (
                r#"{"content":[{"type":"image","data":""}]}"#,
                r#"{"content":[{"type":"image","data":""}]}"#,
            ),
            ("{}", r#"{"content":[]}"#),
        ] {
            assert_eq!(bare(result), expected);
        }
    }
}
