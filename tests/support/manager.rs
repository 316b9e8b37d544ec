//! A client of the management tools.

use std::collections::HashMap;
use std::net::SocketAddr;

use jsonschema::Validator;
use serde_json::{Value, json};

use super::gateway::{Builder, TOKEN};
use super::ports::free_address;

/// A session at a manager listener.
pub struct Manager {
    pub address: SocketAddr,
    client: reqwest::Client,
    session: String,
    token: String,
    /// The output schema of each tool that the listener publishes.
    output_schemas: HashMap<String, Validator>,
}

/// Answer of a tool.
#[derive(Debug)]
pub struct Answer {
    pub result: Value,
    /// `notifications/progress` before the result.
    pub progress: Vec<Value>,
}

impl Answer {
    /// The value of a call that did not fail, which is in the text, too.
    pub fn value(&self) -> Value {
        assert_eq!(self.result["isError"], false, "{}", self.result);
        let structured = &self.result["structuredContent"];
        let text: Value = serde_json::from_str(self.text()).expect("JSON");
        match text.is_array() {
            true => assert_eq!(structured["result"], text),
            false => assert_eq!(*structured, text),
        }
        text
    }

    pub fn text(&self) -> &str {
        self.result["content"][0]["text"].as_str().expect("text")
    }

    /// The error of a call that failed.
    pub fn error(&self) -> &str {
        assert_eq!(self.result["isError"], true, "{}", self.result);
        self.text()
    }
}

/// Adds a manager listener to a gateway that is about to start.
pub fn with_manager(builder: Builder) -> (Builder, SocketAddr) {
    let (core, manager, metrics) = (free_address(), free_address(), free_address());
    let builder = builder
        .listening(core, metrics)
        .config(json!({"listeners": [
            {"name": "core", "address": core.to_string(), "profile": "core"},
            {"name": "manager", "address": manager.to_string(), "profile": "manager"},
            {"name": "metrics", "address": metrics.to_string(), "profile": "metrics"},
        ]}));
    (builder, manager)
}

impl Manager {
    /// Opens a session.
    pub async fn open(address: SocketAddr) -> Self {
        Self::open_as(address, TOKEN).await
    }

    /// Opens a session with another token.
    pub async fn open_as(address: SocketAddr, token: &str) -> Self {
        let mut manager = Self {
            address,
            client: reqwest::Client::new(),
            session: String::new(),
            token: token.to_owned(),
            output_schemas: HashMap::new(),
        };
        let message = json!({"jsonrpc": "2.0", "id": "init-1", "method": "initialize", "params": {
            "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}});
        let answer = manager.post(&message).await;
        assert_eq!(answer.status(), 200);
        let session = answer.headers()["mcp-session-id"].to_str().expect("text");
        manager.session = session.to_owned();
        let answer: Value = answer.json().await.expect("JSON");
        assert_eq!(answer["result"]["serverInfo"]["name"], "tooldock/_system");
        let ready = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
        assert_eq!(manager.post(&ready).await.status(), 202);
        let (listed, _) = manager.request("tools/list", json!({})).await;
        let tools = listed["result"]["tools"].as_array().expect("a list");
        manager.output_schemas = tools.iter().map(output_schema).collect();
        manager
    }

    /// Sends one message.
    pub async fn post(&self, message: &Value) -> reqwest::Response {
        let mut request = self
            .client
            .post(format!("http://{}/mcp", self.address))
            .bearer_auth(&self.token)
            .header("Accept", "application/json, text/event-stream");
        if !self.session.is_empty() {
            request = request
                .header("Mcp-Session-Id", &self.session)
                .header("MCP-Protocol-Version", "2025-11-25");
        }
        request.json(message).send().await.expect("answered")
    }

    /// Sends bytes that may not be a valid message.
    pub async fn post_bytes(&self, body: Vec<u8>) -> reqwest::Response {
        self.client
            .post(format!("http://{}/mcp", self.address))
            .bearer_auth(&self.token)
            .header("Accept", "application/json, text/event-stream")
            .header("Content-Type", "application/json")
            .header("Mcp-Session-Id", &self.session)
            .header("MCP-Protocol-Version", "2025-11-25")
            .body(body)
            .send()
            .await
            .expect("answered")
    }

    /// The response to a request, with the notifications before it.
    pub async fn request(&self, method: &str, params: Value) -> (Value, Vec<Value>) {
        let message = json!({"jsonrpc": "2.0", "id": 7, "method": method, "params": params});
        let answer = self.post(&message).await;
        assert_eq!(answer.status(), 200);
        let text = answer.text().await.expect("text");
        if text.starts_with('{') {
            return (serde_json::from_str(&text).expect("JSON"), Vec::new());
        }
        let data = text.lines().filter_map(|line| line.strip_prefix("data:"));
        let mut messages: Vec<Value> = data
            .filter_map(|data| serde_json::from_str(data.trim()).ok())
            .collect();
        let last = messages.pop().expect("an answer");
        (last, messages)
    }

    /// Calls a tool. The result of a success must fit the schema that the tool publishes, as official clients require.
    pub async fn call(&self, tool: &str, arguments: Value) -> Answer {
        let params = json!({"name": tool, "arguments": arguments, "_meta": {"progressToken": "p"}});
        let (answer, progress) = self.request("tools/call", params).await;
        assert!(answer["error"].is_null(), "{tool}: {answer}");
        let result = &answer["result"];
        if let Some(schema) = self.output_schemas.get(tool)
            && result["isError"] == false
            && let Err(error) = schema.validate(&result["structuredContent"])
        {
            panic!("{tool}: {} at {}: {result}", error, error.instance_path());
        }
        Answer {
            result: answer["result"].clone(),
            progress,
        }
    }
}

/// A tool's name and the validator of its output schema.
fn output_schema(tool: &Value) -> (String, Validator) {
    let name = tool["name"].as_str().expect("a name").to_owned();
    let schema = jsonschema::validator_for(&tool["outputSchema"]).expect("a schema");
    (name, schema)
}
