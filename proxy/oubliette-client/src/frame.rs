//! Frames of the relay: one JSON-RPC message per line.

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::options::ApiKey;

/// A tool, in the form in which the host describes it.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct ToolDescription {
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) description: String,
    #[serde(rename = "inputSchema")]
    pub(crate) schema: Option<Box<RawValue>>,
}

/// The outcome of a request to the host.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// The result, as raw JSON.
    Result(Box<RawValue>),
    /// An error response of the host.
    Error {
        /// The error's code.
        code: i64,
        /// The error's message.
        message: String,
    },
}

/// A frame that the host sent.
#[derive(Debug)]
pub(crate) enum Incoming {
    /// The response to a request of this program, with the request's id.
    Answer(u64, Outcome),
    /// A progress notification of a call, which is forwarded to the MCP client unchanged.
    Progress,
    /// The list of tools of the caller that started this container.
    CallerTools {
        caller: String,
        tools: Vec<ToolDescription>,
    },
    /// A frame of any other kind; it is ignored.
    Other,
}

/// The result of a tool call: content blocks, and a flag that is set if the tool failed.
#[derive(Debug, Deserialize)]
pub(crate) struct CallResult {
    pub(crate) content: Box<RawValue>,
    #[serde(default, rename = "isError")]
    pub(crate) is_error: bool,
}

#[derive(Deserialize)]
struct Frame {
    id: Option<u64>,
    method: Option<String>,
    params: Option<Box<RawValue>>,
    result: Option<Box<RawValue>>,
    error: Option<RelayError>,
}

#[derive(Deserialize)]
struct RelayError {
    code: i64,
    message: String,
}

#[derive(Deserialize)]
struct CallerConfig {
    caller_id: String,
    tools: Vec<ToolDescription>,
}

#[derive(Deserialize)]
struct ToolsResult {
    tools: Vec<ToolDescription>,
}

impl Incoming {
    /// Parses a line that the host sent. A line that cannot be parsed becomes [`Incoming::Other`], and completes no request.
    pub(crate) fn of(line: &str) -> Self {
        let Ok(frame) = serde_json::from_str::<Frame>(line) else {
            return Self::Other;
        };
        match (frame.id, frame.method.as_deref()) {
            (Some(id), None) => match (frame.result, frame.error) {
                (Some(result), _) => Self::Answer(id, Outcome::Result(result)),
                (None, Some(RelayError { code, message })) => {
                    Self::Answer(id, Outcome::Error { code, message })
                }
                (None, None) => Self::Other,
            },
            (None, Some("notifications/progress")) => Self::Progress,
            (None, Some("caller_tools_config")) => {
                let params = frame.params.as_deref().map_or("", RawValue::get);
                match serde_json::from_str::<CallerConfig>(params) {
                    Ok(config) => Self::CallerTools {
                        caller: config.caller_id,
                        tools: config.tools,
                    },
                    Err(_) => Self::Other,
                }
            }
            _ => Self::Other,
        }
    }
}

/// Parses the list of tools in a result of the host.
pub(crate) fn tools(result: &RawValue) -> Option<Vec<ToolDescription>> {
    let result: ToolsResult = serde_json::from_str(result.get()).ok()?;
    Some(result.tools)
}

/// Creates the frame that requests the tools which this API key opens.
pub(crate) fn ask_for_tools(id: u64, key: &ApiKey) -> String {
    request(id, "oubliette_tools", &json!({"api_key": key.expose()}))
}

/// A tool call that is to be sent to the host.
#[derive(Debug)]
pub(crate) struct Call<'a> {
    /// The id of the caller (the program that started this container) that provides the tool; `None` for a tool of the host.
    pub(crate) caller: Option<&'a str>,
    /// The tool's name at its owner, without the prefix that the MCP client sees.
    pub(crate) tool: &'a str,
    /// The arguments of the call: a JSON object, unparsed.
    pub(crate) arguments: Option<&'a RawValue>,
    /// The token under which the MCP client receives progress of the call.
    pub(crate) progress_token: Option<&'a RawValue>,
}

impl Call<'_> {
    /// Creates the frame that sends the call to the host.
    pub(crate) fn frame(&self, id: u64, key: Option<&ApiKey>) -> String {
        let method = match self.caller {
            None => "oubliette_call_tool",
            Some(_) => "caller_tool",
        };
        let mut members = Vec::new();
        if let Some(key) = key {
            members.push(format!("\"api_key\":{}", Value::from(key.expose())));
        }
        if let Some(caller) = self.caller {
            members.push(format!("\"caller_id\":{}", Value::from(caller)));
        }
        members.push(format!("\"tool\":{}", Value::from(self.tool)));
        let arguments = self.arguments.map_or("{}", RawValue::get);
        members.push(format!("\"arguments\":{}", on_one_line(arguments)));
        if let Some(token) = self.progress_token {
            members.push(format!("\"_meta\":{{\"progressToken\":{token}}}"));
        }
        format!(
            "{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"{method}\",\"params\":{{{}}}}}\n",
            members.join(",")
        )
    }
}

/// Creates the frame that cancels a call.
pub(crate) fn cancelled(id: u64) -> String {
    let params = json!({"requestId": id});
    format!("{{\"jsonrpc\":\"2.0\",\"method\":\"notifications/cancelled\",\"params\":{params}}}\n")
}

fn request(id: u64, method: &str, params: &Value) -> String {
    format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"{method}\",\"params\":{params}}}\n")
}

/// Replaces line ends by blanks, since a frame is one line. JSON read from a single line contains none, other values may.
fn on_one_line(raw: &str) -> String {
    raw.replace(['\n', '\r'], " ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::key;

    fn sent(frame: &str) -> Value {
        assert!(frame.ends_with('\n') && frame.trim_end().lines().count() == 1);
        serde_json::from_str(frame).expect("JSON")
    }

    #[test]
    fn frames_are_those_of_the_relay() {
        assert_eq!(
            sent(&ask_for_tools(1, &key("oub_x"))),
            json!({"jsonrpc": "2.0", "id": 1, "method": "oubliette_tools", "params": {"api_key": "oub_x"}})
        );
        let raw = |text: &str| serde_json::from_str::<Box<RawValue>>(text).expect("JSON");
        let (arguments, token) = (raw("{\"n\":1.50}"), raw("\"t\""));
        let call = Call {
            caller: None,
            tool: "project_create",
            arguments: Some(&arguments),
            progress_token: Some(&token),
        };
        let frame = call.frame(2, Some(&key("oub_x")));
        assert!(frame.contains("1.50"));
        assert_eq!(
            sent(&frame),
            json!({"jsonrpc": "2.0", "id": 2, "method": "oubliette_call_tool", "params": {
                "api_key": "oub_x", "tool": "project_create", "arguments": {"n": 1.5},
                "_meta": {"progressToken": "t"},
            }})
        );
        let call = Call {
            caller: Some("boss"),
            tool: "ask",
            arguments: None,
            progress_token: None,
        };
        assert_eq!(
            sent(&call.frame(3, None)),
            json!({"jsonrpc": "2.0", "id": 3, "method": "caller_tool", "params": {
                "caller_id": "boss", "tool": "ask", "arguments": {},
            }})
        );
    }

    #[test]
    fn answers_progress_and_the_callers_tools_are_told_apart() {
        let of = Incoming::of;
        assert!(matches!(
            of(r#"{"jsonrpc":"2.0","id":1,"result":{}}"#),
            Incoming::Answer(1, Outcome::Result(_))
        ));
        assert!(matches!(
            of(r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32001,"message":"m"}}"#),
            Incoming::Answer(1, Outcome::Error { code: -32001, .. })
        ));
        assert!(matches!(
            of(r#"{"method":"notifications/progress","params":{}}"#),
            Incoming::Progress
        ));
        let config = of(
            r#"{"jsonrpc":"2.0","method":"caller_tools_config","params":{"caller_id":"boss","tools":[{"name":"ask"}],"x":1}}"#,
        );
        let Incoming::CallerTools { caller, tools } = config else {
            panic!("{config:?}");
        };
        assert_eq!((&*caller, &*tools[0].name), ("boss", "ask"));
        for other in [
            "x",
            "[]",
            "{}",
            r#"{"id":"a","result":1}"#,
            r#"{"method":"caller_tools_config"}"#,
        ] {
            assert!(matches!(of(other), Incoming::Other), "{other}");
        }
    }
}
