//! Writes the relay's frames for the client. The `code` of errors, and the texts about keys and scopes, are a fixed interface on
//! which clients depend (requirements REL-02 to REL-07).

use bytes::Bytes;
use serde_json::value::RawValue;
use tooldock_base::error::{CallError, CallErrorCode};
use tooldock_engine::engine::{CallOutcome, UpstreamReply};
use tooldock_sessions::call_error::retry_seconds;
use tooldock_sessions::catalogue::ToolEntry;

use crate::format::{self, ResultFormat};
use crate::jsonrpc::{self, ResponseOutcome, spans};
use crate::protocol::ProtocolVersion;
use crate::tool_result;

/// Error code of a request that was not passed to the tool, or that failed outside of the tool.
pub(super) const DISPATCH: i32 = -32000;
/// Error code: the key is not valid.
const INVALID_KEY: i32 = -32001;
/// Error code: the scopes of the key do not permit the tool.
const NOT_ALLOWED: i32 = -32002;

/// The message for every invalid key. It does not show why the key is invalid.
pub(super) const INVALID_KEY_TEXT: &str = "invalid or expired API key";
const NOT_ALLOWED_TEXT: &str = "tool not allowed for this token scope";

/// Format of a result that consists of content blocks only. It is the oldest format.
const BLOCKS: ResultFormat = ResultFormat::Legacy(ProtocolVersion::V2025_03_26);

/// Writes the answer to a frame with an invalid key.
pub(super) fn invalid_key(id: &str) -> Vec<u8> {
    error(Some(id), INVALID_KEY, INVALID_KEY_TEXT, None)
}

/// Writes the last frame for a client whose connection is ended to make room for another client. `stranger`: true if the client
/// has shown no valid key; false if the connection was idle.
pub(super) fn eviction_frame(stranger: bool) -> Vec<u8> {
    let text = match stranger {
        true => "too many connections, and this one has shown no valid API key: connect again",
        false => "too many connections, and this one was idle: connect again",
    };
    error(None, DISPATCH, text, None)
}

/// Writes the frame with the tools that a key may use.
pub(super) fn tools<'a>(id: &str, tools: impl Iterator<Item = &'a ToolEntry>) -> Vec<u8> {
    let mut out = Vec::with_capacity(1024);
    format::begin(&mut out, id);
    out.extend_from_slice(b"{\"tools\":[");
    for (place, tool) in tools.enumerate() {
        if place > 0 {
            out.push(b',');
        }
        out.extend_from_slice(b"{\"name\":");
        format::escape(&mut out, tool.name().as_bytes());
        out.extend_from_slice(b",\"description\":");
        format::escape(&mut out, tool.description().as_bytes());
        out.extend_from_slice(b",\"inputSchema\":");
        let schema = tool
            .input_schema()
            .map_or("{\"type\":\"object\"}", RawValue::get);
        out.extend_from_slice(schema.as_bytes());
        out.push(b'}');
    }
    out.extend_from_slice(b"]}}");
    out
}

/// Writes an error frame. `failed`: the failure whose stable code and time to wait are added as `data`.
pub(super) fn error(
    id: Option<&str>,
    code: i32,
    message: &str,
    failed: Option<&CallError>,
) -> Vec<u8> {
    let mut out = Vec::with_capacity(128 + message.len());
    out.extend_from_slice(b"{\"jsonrpc\":\"2.0\",\"id\":");
    out.extend_from_slice(id.unwrap_or("null").as_bytes());
    out.extend_from_slice(format!(",\"error\":{{\"code\":{code},\"message\":").as_bytes());
    format::escape(&mut out, message.as_bytes());
    if let Some(failed) = failed {
        let code = failed.code.as_str();
        out.extend_from_slice(format!(",\"data\":{{\"code\":\"{code}\"").as_bytes());
        if let Some(after) = failed.retry_after {
            let seconds = retry_seconds(after);
            out.extend_from_slice(format!(",\"retry_after\":{seconds}").as_bytes());
        }
        out.push(b'}');
    }
    out.extend_from_slice(b"}}");
    out
}

/// Writes the error frame for a call that was not passed to its tool or failed outside of it.
pub(super) fn not_dispatched(id: &str, failed: &CallError) -> Vec<u8> {
    error(Some(id), DISPATCH, &failed.message, Some(failed))
}

/// Writes the frame with the outcome of a call.
pub(super) fn outcome(id: &str, outcome: CallOutcome) -> Vec<u8> {
    match outcome {
        Ok(UpstreamReply::Value(reply)) => tool_result::success(id, &reply, &BLOCKS),
        Ok(UpstreamReply::Result(result)) => server_result(id, &result),
        Ok(UpstreamReply::Response(response)) => match response.outcome() {
            ResponseOutcome::Result(result) => server_result(id, &result),
            ResponseOutcome::Error(failed) => server_error(id, &failed),
        },
        Err(failed) => failure(id, &failed),
    }
}

/// Writes the frame for a complete MCP response, of a request that needed no call.
pub(super) fn response(id: &str, response: &[u8]) -> Vec<u8> {
    let object = spans::raw(response);
    let member = |name| object.and_then(|it| spans::member(it, name));
    match (member("result"), member("error")) {
        (Some(result), _) => server_result(id, &spans::owned(result)),
        (None, Some(failed)) => server_error(id, &spans::owned(failed)),
        (None, None) => server_error(id, &Bytes::new()),
    }
}

/// Writes the frame for a failed call. A failure of the tool itself is sent as a result with the tool's message, for the model;
/// all other failures are sent as errors.
fn failure(id: &str, failed: &CallError) -> Vec<u8> {
    match failed.code {
        CallErrorCode::InsufficientScope => error(Some(id), NOT_ALLOWED, NOT_ALLOWED_TEXT, None),
        CallErrorCode::ToolError
        | CallErrorCode::InvalidArguments
        | CallErrorCode::InternalError
        | CallErrorCode::OutputType
        | CallErrorCode::ExecutionTimeout
        | CallErrorCode::ResultTooLarge
        | CallErrorCode::MissingCapability
        | CallErrorCode::AskFailed
        | CallErrorCode::HookRefused
        | CallErrorCode::HookFailed
        | CallErrorCode::MissingCredential => {
            let mut out = Vec::with_capacity(96 + failed.message.len());
            format::begin(&mut out, id);
            out.extend_from_slice(b"{\"content\":[{\"type\":\"text\",\"text\":");
            format::escape(&mut out, failed.message.as_bytes());
            out.extend_from_slice(b"}],\"isError\":true}}");
            out
        }
        CallErrorCode::ToolNotFound
        | CallErrorCode::ResourceNotFound
        | CallErrorCode::PromptNotFound
        | CallErrorCode::DependencyError
        | CallErrorCode::WorkerUnavailable
        | CallErrorCode::Starting
        | CallErrorCode::Overloaded
        | CallErrorCode::RateLimited
        | CallErrorCode::Cancelled
        | CallErrorCode::UpstreamError => not_dispatched(id, failed),
    }
}

/// Writes the frame for a server's result, with its content and `isError`.
fn server_result(id: &str, result: &Bytes) -> Vec<u8> {
    let object = spans::raw(result);
    let member = |name| object.and_then(|it| spans::member(it, name));
    let Some(content) = member("content") else {
        let reason = "The server's answer has no content that the relay could pass on";
        return not_dispatched(id, &CallError::new(CallErrorCode::UpstreamError, reason));
    };
    let failed = member("isError").is_some_and(|it| it.get() == "true");
    let mut out = Vec::with_capacity(64 + content.get().len());
    format::begin(&mut out, id);
    out.extend_from_slice(b"{\"content\":");
    out.extend_from_slice(content.get().as_bytes());
    out.extend_from_slice(format!(",\"isError\":{failed}}}}}").as_bytes());
    out
}

/// Writes the frame for an error of a server.
fn server_error(id: &str, failed: &Bytes) -> Vec<u8> {
    let message = spans::raw(failed)
        .and_then(|it| spans::member(it, "message"))
        .and_then(jsonrpc::string);
    let message = message.map_or_else(
        || "The server answered with an error".to_owned(),
        |message| message.into_owned(),
    );
    not_dispatched(id, &CallError::new(CallErrorCode::UpstreamError, message))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::{Value, json};
    use tooldock_process::worker::ToolReply;
    use tooldock_sessions::catalogue::ToolList;

    use super::*;

    fn said(frame: &[u8]) -> Value {
        serde_json::from_slice(frame).expect("JSON")
    }

    fn failed(code: CallErrorCode) -> Value {
        said(&outcome("1", Err(CallError::new(code, "words"))))
    }

    fn server(result: &'static str) -> Value {
        let result = UpstreamReply::Result(Bytes::from_static(result.as_bytes()));
        said(&outcome("1", Ok(result)))
    }

    #[test]
    fn keys_and_scopes_have_their_codes_and_texts() {
        assert_eq!(
            said(&invalid_key("\"a\"")),
            json!({"jsonrpc": "2.0", "id": "a", "error": {"code": -32001, "message": "invalid or expired API key"}})
        );
        assert_eq!(
            failed(CallErrorCode::InsufficientScope),
            json!({"jsonrpc": "2.0", "id": 1, "error": {"code": -32002, "message": "tool not allowed for this token scope"}})
        );
    }

    #[test]
    fn tools_have_a_name_a_description_and_a_schema() {
        let list = ToolList::of_page(
            r#"{"tools":[{"name":"a","title":"A","description":"d","inputSchema":{"n":1.50},"x":1},{"name":"b"}]}"#,
        );
        let view = tooldock_sessions::testing::caller();
        let namespace = tooldock_sessions::testing::namespace("shared");
        let view = tooldock_sessions::catalogue::View::of(&view, &namespace);
        let frame = tools("7", view.tools(&list));
        assert!(String::from_utf8_lossy(&frame).contains("1.50"));
        assert_eq!(
            said(&frame)["result"],
            json!({"tools": [
                {"name": "a", "description": "d", "inputSchema": {"n": 1.5}},
                {"name": "b", "description": "", "inputSchema": {"type": "object"}},
            ]})
        );
    }

    #[test]
    fn a_value_is_one_text_and_nothing_beside_it() {
        let value = |text: &'static str| {
            let reply = ToolReply {
                value: Bytes::from_static(text.as_bytes()),
                content: None,
                meta: None,
            };
            said(&outcome("1", Ok(UpstreamReply::Value(reply))))["result"].clone()
        };
        assert_eq!(
            value(r#"{"id": "proj_1"}"#),
            json!({"content": [{"type": "text", "text": "{\"id\": \"proj_1\"}"}], "isError": false})
        );
        assert_eq!(value("\"plain\"")["content"][0]["text"], "plain");
    }

    #[test]
    fn a_failure_of_the_tool_is_a_result_in_its_own_words() {
        for code in [
            CallErrorCode::ToolError,
            CallErrorCode::InvalidArguments,
            CallErrorCode::InternalError,
            CallErrorCode::ExecutionTimeout,
        ] {
            assert_eq!(
                failed(code)["result"],
                json!({"content": [{"type": "text", "text": "words"}], "isError": true})
            );
        }
    }

    #[test]
    fn a_call_that_could_not_be_made_is_an_error_with_its_stable_code() {
        for code in [
            CallErrorCode::WorkerUnavailable,
            CallErrorCode::ToolNotFound,
            CallErrorCode::Overloaded,
        ] {
            let error = &failed(code)["error"];
            assert_eq!(error["code"], -32000);
            assert_eq!(error["message"], "words");
            assert_eq!(error["data"]["code"], code.as_str());
        }
        let limited = CallError::new(CallErrorCode::RateLimited, "words");
        let limited = limited.retry_after(Duration::from_millis(1500));
        let frame = said(&outcome("1", Err(limited)));
        assert_eq!(frame["error"]["data"]["retry_after"], 2);
    }

    #[test]
    fn a_servers_content_is_passed_on_and_its_error_is_a_dispatch_failure() {
        assert_eq!(
            server(
                r#"{"content":[{"type":"image","data":""}],"isError":true,"structuredContent":{}}"#
            )["result"],
            json!({"content": [{"type": "image", "data": ""}], "isError": true})
        );
        assert_eq!(
            server(r#"{"resultType":"input_required"}"#)["error"]["code"],
            -32000
        );
        let refused = server_error(
            "1",
            &Bytes::from_static(br#"{"code":-32602,"message":"no"}"#),
        );
        assert_eq!(said(&refused)["error"]["message"], "no");
    }
}
