//! A client of 2026-07-28 over raw sockets.

use serde_json::{Value, json};

use crate::support::sse::Answering;
use crate::support::{Gateway, TOKEN};

const VERSION: &str = "2026-07-28";

/// The sender of requests, with the capabilities by which it can be asked.
#[derive(Clone)]
pub(super) struct Modern<'a> {
    pub(super) gateway: &'a Gateway,
    namespace: &'a str,
    token: String,
    capabilities: Value,
}

impl<'a> Modern<'a> {
    /// A client that can be asked nothing.
    pub(super) fn new(gateway: &'a Gateway, namespace: &'a str) -> Self {
        Self {
            gateway,
            namespace,
            token: TOKEN.to_owned(),
            capabilities: json!({}),
        }
    }

    /// This client, able to answer all questions.
    pub(super) fn asked(mut self) -> Self {
        self.capabilities = json!({"elicitation": {}, "sampling": {}, "roots": {}});
        self
    }

    /// This client with another token.
    pub(super) fn with_token(mut self, token: &str) -> Self {
        token.clone_into(&mut self.token);
        self
    }

    /// A request with the metadata every one has.
    pub(super) fn message(&self, id: Value, method: &str, params: Value) -> Value {
        let mut params = params;
        let mut meta = json!({
            "io.modelcontextprotocol/protocolVersion": VERSION,
            "io.modelcontextprotocol/clientInfo": {"name": "raw", "version": "1"},
            "io.modelcontextprotocol/clientCapabilities": self.capabilities,
        });
        if let Some(given) = params["_meta"].as_object() {
            for (key, value) in given {
                meta[key] = value.clone();
            }
        }
        params["_meta"] = meta;
        json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
    }

    /// Sends a message whose body is spelled as `body` is.
    pub(super) async fn send_text(&self, message: &Value, body: &str) -> Answering {
        let params = &message["params"];
        let name = ["name", "uri", "taskId"];
        let name = name.iter().find_map(|key| params[*key].as_str());
        let name = name.map_or_else(String::new, |name| format!("Mcp-Name: {name}\r\n"));
        let request = format!(
            "POST /mcp HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {}\r\nX-Namespace: {}\r\n\
             Accept: application/json, text/event-stream\r\nContent-Type: application/json\r\n\
             MCP-Protocol-Version: {VERSION}\r\nMcp-Method: {}\r\n{name}Content-Length: {}\r\n\r\n{body}",
            self.token,
            self.namespace,
            message["method"].as_str().expect("a method"),
            body.len()
        );
        Answering::open(self.gateway.address, &request).await
    }

    pub(super) async fn send(&self, message: &Value) -> Answering {
        self.send_text(message, &message.to_string()).await
    }

    /// Status and last message of the answer.
    pub(super) async fn ask(&self, message: &Value) -> (u16, Value) {
        let answer = self.send(message).await;
        (answer.status, super::last(answer).await)
    }

    /// A request to its end.
    pub(super) async fn request(&self, method: &str, params: Value) -> Value {
        self.ask(&self.message(json!(1), method, params)).await.1
    }

    pub(super) fn call_message(&self, id: Value, tool: &str, arguments: Value) -> Value {
        let params = json!({"name": tool, "arguments": arguments});
        self.message(id, "tools/call", params)
    }

    /// A call to its end: the result.
    pub(super) async fn call(&self, tool: &str, arguments: Value) -> Value {
        let call = self.call_message(json!(1), tool, arguments);
        let (status, answer) = self.ask(&call).await;
        assert_eq!(status, 200, "{answer}");
        answer["result"].clone()
    }

    /// The call again, with answers to its questions.
    pub(super) fn again(call: &Value, asked: &Value, responses: Value) -> Value {
        let mut again = call.clone();
        again["id"] = json!("again");
        again["params"]["requestState"] = asked["requestState"].clone();
        again["params"]["inputResponses"] = responses;
        again
    }
}
