//! Writes a tool's value as the result of `tools/call`, with content blocks and `structuredContent`. The value is copied as
//! bytes, never decoded.

use tooldock_base::error::{CallError, CallErrorCode};
use tooldock_engine::engine::tool_value;
use tooldock_process::worker::ToolReply;
use tooldock_sessions::call_error;
use tooldock_sessions::caller::Caller;

use crate::format::{ResultFormat, ResultWriter, escape};

/// Writes the response to a call that succeeded. `id` is raw JSON.
///
/// Structured content is left out in versions of the protocol that do not have it.
pub(crate) fn success(id: &str, reply: &ToolReply, format: &ResultFormat) -> Vec<u8> {
    let value = tool_value::value(reply).len();
    let blocks = reply.content.as_ref().map_or(0, |content| content.len());
    let mut answer = ResultWriter::begin(id, format, 2 * value + value / 8 + blocks + 160);
    tool_value::write_content(answer.key("content"), reply);
    if format.has_structured_content() && tool_value::has_structure(reply) {
        tool_value::write_structure(answer.key("structuredContent"), reply);
    }
    answer.key("isError").extend_from_slice(b"false");
    match &reply.meta {
        None => answer.end(),
        Some(meta) => answer.end_with_own_meta(meta),
    }
}

/// The `_meta` key with a failed call's stable error code (EX-04b). The code cannot be part of `structuredContent`, since clients
/// validate that against the tool's `outputSchema`, which describes successful results.
const ERROR_KEY: &str = "tooldock/error";

/// Writes the response to a failed call. It is a result with an error text, so that a model can read it (EX-04b).
pub(crate) fn failure(
    id: &str,
    failed: &CallError,
    caller: &Caller,
    format: &ResultFormat,
) -> Vec<u8> {
    let code = failed.code.as_str();
    let mut answer = ResultWriter::begin(id, format, 512);
    let out = answer.key("content");
    out.extend_from_slice(b"[{\"type\":\"text\",\"text\":");
    match failed.code {
        // The tool's author wrote this text for the model, so it is sent unchanged.
        CallErrorCode::ToolError => escape(out, failed.message.as_bytes()),
        _ => escape(out, format!("{code}: {}", failed.message).as_bytes()),
    }
    out.extend_from_slice(b"}]");
    answer.key("isError").extend_from_slice(b"true");
    answer.end_with_meta(ERROR_KEY, |out| {
        out.extend_from_slice(b"{\"code\":\"");
        out.extend_from_slice(code.as_bytes());
        out.extend_from_slice(b"\",\"message\":");
        escape(out, failed.message.as_bytes());
        // The details are copied as raw JSON, so that numbers keep their spelling.
        out.extend_from_slice(b",\"details\":");
        out.extend_from_slice(call_error::details(failed, caller).get().as_bytes());
        out.push(b'}');
    })
}

#[cfg(test)]
mod tests {
    use tooldock_sessions::testing::caller;

    use super::*;
    use crate::format::ModernFormat;
    use crate::protocol::ProtocolVersion;
    use bytes::Bytes;
    use serde_json::{Value, json};

    const NEW: ResultFormat = ResultFormat::Legacy(ProtocolVersion::V2025_11_25);

    fn reply(value: &'static str, content: Option<&'static str>) -> ToolReply {
        ToolReply {
            value: Bytes::from_static(value.as_bytes()),
            content: content.map(|text| Bytes::from_static(text.as_bytes())),
            meta: None,
        }
    }

    fn result(value: &'static str, content: Option<&'static str>, format: &ResultFormat) -> Value {
        let bytes = success("7", &reply(value, content), format);
        let response: Value = serde_json::from_slice(&bytes).expect("JSON");
        assert_eq!(
            (&response["jsonrpc"], &response["id"]),
            (&json!("2.0"), &json!(7))
        );
        response["result"].clone()
    }

    #[test]
    fn a_string_is_its_own_text_and_a_wrapped_value() {
        let text = r#""Hello, \"Ada\" 🦀\n""#;
        let bytes = success("7", &reply(text, None), &NEW);
        let token = memchr::memmem::find_iter(&bytes, text.as_bytes()).count();
        assert_eq!(token, 2);
        let result = result(text, None, &NEW);
        assert_eq!(
            result["content"],
            json!([{"type": "text", "text": "Hello, \"Ada\" 🦀\n"}])
        );
        assert_eq!(result["structuredContent"]["result"], "Hello, \"Ada\" 🦀\n");
        assert_eq!(result["isError"], false);
    }

    #[test]
    fn objects_are_structured_content_as_they_are_and_other_values_are_wrapped() {
        for (value, structured) in [
            (
                r#"{"city":"Berlin","temperature":3.5}"#,
                json!({"city":"Berlin","temperature":3.5}),
            ),
            ("[1,2]", json!({"result":[1,2]})),
            ("5.0", json!({"result":5.0})),
            ("null", json!({"result":null})),
            ("", json!({"result":null})),
        ] {
            let result = result(value, None, &NEW);
            assert_eq!(result["structuredContent"], structured, "{value}");
            let text = result["content"][0]["text"].as_str().expect("text");
            assert_eq!(text, if value.is_empty() { "null" } else { value });
        }
    }

    #[test]
    fn numbers_keep_their_spelling() {
        let bytes = success(
            "1e3",
            &reply(r#"{"n":9007199254740993,"m":1e400}"#, None),
            &NEW,
        );
        let text = String::from_utf8(bytes).expect("UTF-8");
        assert!(text.contains(r#""id":1e3,"#), "{text}");
        assert!(
            text.contains(r#""structuredContent":{"n":9007199254740993,"m":1e400}"#),
            "{text}"
        );
    }

    #[test]
    fn content_blocks_are_passed_on_and_null_is_then_no_structure() {
        let blocks = r#"[{"type":"image","data":"AA==","mimeType":"image/png"}]"#;
        let image = result("null", Some(blocks), &NEW);
        assert_eq!(image["content"][0]["type"], "image");
        assert!(image.get("structuredContent").is_none());
        let both = result(r#"{"a":1}"#, Some(blocks), &NEW);
        assert_eq!(both["structuredContent"], json!({"a":1}));
    }

    #[test]
    fn the_oldest_version_has_no_structured_content() {
        let oldest = ResultFormat::Legacy(ProtocolVersion::V2025_03_26);
        assert!(
            result("5", None, &oldest)
                .get("structuredContent")
                .is_none()
        );
        let failed = CallError::new(CallErrorCode::Overloaded, "full");
        let bytes = failure("1", &failed, &caller(), &oldest);
        let response: Value = serde_json::from_slice(&bytes).expect("JSON");
        assert!(response["result"].get("structuredContent").is_none());
        assert_eq!(response["result"]["content"][0]["text"], "overloaded: full");
        assert_eq!(response["result"]["isError"], true);
    }

    #[test]
    fn a_failure_is_not_structured_content_and_keeps_its_code_in_meta() {
        let failed = CallError::new(CallErrorCode::InvalidArguments, "a: \"x\" is no number");
        let modern = ResultFormat::Modern(ModernFormat::new("shared".parse().expect("a name")));
        for format in [NEW, modern] {
            let bytes = failure("1", &failed, &caller(), &format);
            let response: Value = serde_json::from_slice(&bytes).expect("JSON");
            let result = &response["result"];
            assert!(result.get("structuredContent").is_none(), "{result}");
            assert_eq!(
                result["content"][0]["text"],
                "invalid_arguments: a: \"x\" is no number"
            );
            let error = &result["_meta"][ERROR_KEY];
            assert_eq!(error["code"], "invalid_arguments");
            assert_eq!(error["message"], failed.message);
            assert_eq!(error["details"]["request_id"], "r-1");
            let names_server = result["_meta"]["io.modelcontextprotocol/serverInfo"].is_object();
            assert_eq!(names_server, matches!(format, ResultFormat::Modern(_)));
        }
    }

    #[test]
    fn the_text_of_a_tool_error_stands_alone() {
        let failed = CallError::new(CallErrorCode::ToolError, "Ask for a city in Europe.");
        let bytes = failure("1", &failed, &caller(), &NEW);
        let response: Value = serde_json::from_slice(&bytes).expect("JSON");
        let result = &response["result"];
        assert_eq!(result["content"][0]["text"], failed.message);
        assert_eq!(result["_meta"][ERROR_KEY]["code"], "tool_error");
        assert_eq!(result["isError"], true);
    }

    #[test]
    fn tracebacks_are_for_holders_of_the_manager_token() {
        let details = r#"{"traceback":"Traceback …","n":9007199254740993}"#;
        let mut failed = CallError::new(CallErrorCode::InternalError, "KeyError: \"x\"");
        failed.details = Some(serde_json::from_str(details).expect("JSON"));
        let mut caller = caller();
        let text = |caller: &Caller| {
            String::from_utf8(failure("1", &failed, caller, &NEW)).expect("UTF-8")
        };
        let hidden = text(&caller);
        assert!(!hidden.contains("Traceback"), "{hidden}");
        assert!(hidden.contains("9007199254740993") && hidden.contains("\"request_id\":\"r-1\""));
        caller.manager = true;
        assert!(text(&caller).contains("Traceback"));
        let response: Value = serde_json::from_str(&hidden).expect("JSON");
        let error = &response["result"]["_meta"][ERROR_KEY];
        assert_eq!(error["code"], "internal_error");
        assert_eq!(error["message"], "KeyError: \"x\"");
    }
}
