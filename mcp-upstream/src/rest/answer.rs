//! REST answers to tool calls: the value that the tool returned, or a failure with its HTTP status.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::value::RawValue;
use tooldock_base::error::{CallError, CallErrorCode};
use tooldock_engine::engine::UpstreamReply;
use tooldock_engine::upstream::{ToolsWait, Upstream};
use tooldock_process::worker::ToolReply;
use tooldock_workers::registry::Namespace;

use crate::jsonrpc::{ResponseOutcome, few_entries, spans};

mod failure;

/// Returns the value that REST sends for the reply of an upstream. For a Python function this is its return value. For an MCP
/// server it is the structured content, else a single text, else the content blocks, else the complete result.
///
/// # Errors
///
/// The failure of the server or of the tool.
pub(super) async fn value_of(
    upstream: &dyn Upstream,
    namespace: &Arc<Namespace>,
    tool: &str,
    reply: UpstreamReply,
) -> Result<Bytes, CallError> {
    let failed = match reply {
        UpstreamReply::Value(reply) => return Ok(bare(reply)),
        UpstreamReply::Result(result) => value(&result)?,
        UpstreamReply::Response(response) => match response.outcome() {
            ResponseOutcome::Result(result) => value(&result)?,
            ResponseOutcome::Error(error) => Err(failure::ServerFailure::with(&error)),
        },
    };
    let failed = match failed {
        Ok(value) => return Ok(value),
        Err(failed) => failed,
    };
    let blame = failed.blame(tool);
    // Servers send the same error for an unknown tool and for wrong arguments. The list of tools shows which of the two it is.
    let is_known = matches!(blame, failure::Blame::Server | failure::Blame::Caller)
        || (upstream
            .tool_lists()
            .tools(namespace, None, ToolsWait::Short)
            .get()
            .await)
            .map_or(true, |tools| tools.tool(tool).is_some());
    Err(failed.error(blame, is_known))
}

/// Returns the return value of a function. For a function that returns only content (an image, for example), the value is an
/// object with the content blocks.
fn bare(reply: ToolReply) -> Bytes {
    match reply.content {
        Some(content) if matches!(reply.value.trim_ascii(), b"null" | b"") => {
            [b"{\"content\":", &*content, b"}"].concat().into()
        }
        _ => reply.value,
    }
}

/// Reads the result of a tool. The inner error is a failure that the tool reports (`isError`).
///
/// # Errors
///
/// If the message is not the result of a tool (`CallToolResult`).
fn value(result: &Bytes) -> Result<Result<Bytes, failure::ServerFailure>, CallError> {
    let odd = |what: &str| {
        let message = format!("The server's answer is no result of a tool: {what}");
        CallError::new(CallErrorCode::UpstreamError, message)
    };
    let object = spans::raw(result).filter(|it| it.get().starts_with('{'));
    let object = object.ok_or_else(|| odd("it is no object"))?;
    let content = spans::member(object, "content");
    let blocks: Option<Vec<&RawValue>> = match content {
        Some(content) => serde_json::from_str(content.get()).ok(),
        None => Some(Vec::new()),
    };
    let blocks = blocks.ok_or_else(|| odd("its content is no list"))?;
    match spans::member(object, "isError").map(RawValue::get) {
        None | Some("false" | "null") => {}
        Some("true") => {
            return Ok(Err(failure::ServerFailure::from_error_result(
                object, &blocks,
            )));
        }
        Some(_) => return Err(odd("its isError is neither true nor false")),
    }
    if let Some(value) = spans::member(object, "structuredContent") {
        return Ok(Ok(result.slice_ref(value.get().as_bytes())));
    }
    if let [block] = blocks[..]
        && let Some(text) = text(block)
    {
        return Ok(Ok(result.slice_ref(text.get().as_bytes())));
    }
    match content.map(RawValue::get) {
        Some(content) => Ok(Ok(format!(r#"{{"content":{content}}}"#).into())),
        None if says_something(object) => Ok(Ok(result.slice_ref(object.get().as_bytes()))),
        None => Err(odd("it has no content")),
    }
}

/// Returns true if a result without content has keys that the server defined itself; the result is then sent as the value. False
/// for a result that is a question to the client (`input_required`).
fn says_something(object: &RawValue) -> bool {
    let asks = spans::member(object, "resultType").map(RawValue::get);
    const ABOUT_ITSELF: [&str; 3] = ["_meta", "resultType", "isError"];
    // An object with more entries than `ABOUT_ITSELF` has at least one other key, so its keys need not be compared.
    let few = few_entries(object, ABOUT_ITSELF.len());
    asks != Some("\"input_required\"")
        && few.is_none_or(|all| all.iter().any(|(name, _)| !ABOUT_ITSELF.contains(&&**name)))
}

/// Returns the text of a content block as raw JSON; `None` for blocks that are not text.
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
    fn a_result_is_its_structure_else_its_text_else_its_blocks_else_itself() {
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
            (r#"{"content":[],"isError":false}"#, r#"{"content":[]}"#),
            (r#"{"structuredContent":{}}"#, "{}"),
            (r#"{"who":"b"}"#, r#"{"who":"b"}"#),
            (
                r#"{"a":1,"b":2,"c":3,"d":4}"#,
                r#"{"a":1,"b":2,"c":3,"d":4}"#,
            ),
        ] {
            assert_eq!(bare(result), expected);
        }
    }

    #[test]
    fn what_is_no_result_of_a_tool_is_no_success() {
        for result in [
            "{}",
            "null",
            "[]",
            r#""x""#,
            "7",
            r#"{"_meta":{}}"#,
            r#"{"content":{}}"#,
            r#"{"content":[],"isError":"yes"}"#,
            r#"{"resultType":"input_required","inputRequests":{}}"#,
        ] {
            let value = value(&Bytes::from_static(result.as_bytes()));
            let error = value.expect_err(result);
            assert_eq!(error.code, CallErrorCode::UpstreamError, "{result}");
        }
    }
}
