//! The MCP messages that an API answers, and the responses.

use std::borrow::Cow;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use tooldock_protocol::version::ProtocolVersion;

/// Event of a stream that reports changed tools to the session.
pub(super) const TOOLS_CHANGED: &str =
    "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/tools/list_changed\"}\n\n";

/// An MCP request that an API answers.
#[derive(Deserialize)]
pub(super) struct ApiMessage<'a> {
    /// The request's id as raw JSON.
    #[serde(borrow)]
    pub(super) id: &'a RawValue,
    #[serde(borrow)]
    pub(super) method: Cow<'a, str>,
    #[serde(borrow, default)]
    params: Option<&'a RawValue>,
}

/// Parameters of a tool call.
#[derive(Default, Deserialize)]
#[serde(default)]
struct CallParams {
    name: String,
    arguments: Option<Map<String, Value>>,
}

impl<'a> ApiMessage<'a> {
    /// Reads a message; `None` for messages that are not answered: notifications, responses, and malformed messages.
    pub(super) fn of(message: &'a Bytes) -> Option<Self> {
        serde_json::from_slice(message).ok()
    }

    /// Returns the cursor of the page that a list request wants; `None` for the first page, and for malformed parameters.
    pub(super) fn cursor(&self) -> Option<String> {
        #[derive(Deserialize)]
        struct ListParams {
            cursor: Option<String>,
        }
        let params: ListParams = serde_json::from_str(self.params?.get()).ok()?;
        params.cursor
    }

    /// Returns the tool's name and the arguments of a call; both are empty if the parameters are malformed.
    pub(super) fn call(&self) -> (String, Map<String, Value>) {
        let params = self
            .params
            .and_then(|it| serde_json::from_str(it.get()).ok());
        let params: CallParams = params.unwrap_or_default();
        (params.name, params.arguments.unwrap_or_default())
    }
}

/// Builds a JSON-RPC response. `id`: the request's id as raw JSON; `result`: the result as raw JSON.
pub(super) fn result(id: &str, result: &str) -> String {
    format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":{result}}}")
}

/// Builds a JSON-RPC response with an error. `id`: the request's id as raw JSON.
pub(super) fn error(id: &str, code: i32, message: &str) -> String {
    let error = json!({ "code": code, "message": message });
    format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"error\":{error}}}")
}

/// Builds the result of `initialize`. `title`: the title of the API's document.
pub(super) fn initialized(title: Option<&str>) -> String {
    let mut info = json!({ "name": "openapi", "version": env!("CARGO_PKG_VERSION") });
    if let Some(title) = title {
        info["title"] = title.chars().take(200).collect::<String>().into();
    }
    let result = json!({
        "protocolVersion": ProtocolVersion::V2025_11_25.as_str(),
        "capabilities": { "tools": { "listChanged": true } },
        "serverInfo": info,
    });
    result.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_requests_are_answered() {
        let params = r#"{"name":"a","arguments":{"b":1}}"#;
        let call = format!(r#"{{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{params}}}"#);
        let call = Bytes::from(call);
        let message = ApiMessage::of(&call).expect("a request");
        assert_eq!((message.id.get(), &*message.method), ("7", "tools/call"));
        assert_eq!(
            message.call(),
            ("a".to_owned(), Map::from_iter([("b".to_owned(), json!(1))]))
        );
        for other in [
            r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#,
            r#"{"jsonrpc":"2.0","id":1,"result":{}}"#,
        ] {
            assert!(ApiMessage::of(&Bytes::from(other)).is_none(), "{other}");
        }
    }
}
