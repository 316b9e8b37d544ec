//! An MCP client over raw sockets: a connection per request, with every byte of the response visible.

use std::net::SocketAddr;

use serde_json::{Value, json};

use super::sse::Answering;
use super::{Gateway, TOKEN};

/// A legacy session.
#[derive(Clone)]
pub struct Session {
    address: SocketAddr,
    namespace: String,
    version: String,
    pub id: String,
    pub token: String,
}

impl Session {
    /// Initializes a session whose client has all capabilities.
    pub async fn start(gateway: &Gateway, namespace: &str, version: &str) -> Self {
        let capabilities =
            json!({"elicitation": {}, "sampling": {}, "roots": {"listChanged": true}});
        Self::start_as(gateway, namespace, version, TOKEN, capabilities).await
    }

    pub async fn start_as(
        gateway: &Gateway,
        namespace: &str,
        version: &str,
        token: &str,
        capabilities: Value,
    ) -> Self {
        Self::try_start_as(gateway, namespace, version, token, capabilities)
            .await
            .unwrap_or_else(|refusal| panic!("no session of {namespace}: {refusal}"))
    }

    /// Initializes a session at a server that may not start; the error is status and body of the refusal.
    pub async fn try_start_as(
        gateway: &Gateway,
        namespace: &str,
        version: &str,
        token: &str,
        capabilities: Value,
    ) -> Result<Self, String> {
        let mut session = Self {
            address: gateway.address,
            namespace: namespace.to_owned(),
            version: version.to_owned(),
            id: String::new(),
            token: token.to_owned(),
        };
        let mut answer = session
            .post(
                &json!({"jsonrpc": "2.0", "id": "init", "method": "initialize", "params":
                {"protocolVersion": version, "capabilities": capabilities,
                 "clientInfo": {"name": "raw", "version": "1"}}}),
            )
            .await;
        let status = answer.status;
        let id = answer.header("mcp-session-id").map(str::to_owned);
        let body = match answer.is_events() {
            true => answer.message().await,
            false => answer.json().await,
        };
        session.id = id
            .filter(|_| status == 200)
            .ok_or_else(|| format!("{status} {body}"))?;
        let noted = session
            .post(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}))
            .await;
        assert_eq!(noted.status, 202);
        Ok(session)
    }

    /// The session as its client sees it at another replica.
    pub fn at(&self, gateway: &Gateway) -> Self {
        Self {
            address: gateway.address,
            ..self.clone()
        }
    }

    /// The head of a request, with further lines, each ending in CRLF.
    pub fn head(&self, method: &str, lines: &str) -> String {
        let mut head = format!(
            "{method} /mcp HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {}\r\nX-Namespace: {}\r\n",
            self.token, self.namespace
        );
        if !self.id.is_empty() {
            head += &format!(
                "Mcp-Session-Id: {}\r\nMCP-Protocol-Version: {}\r\n",
                self.id, self.version
            );
        }
        head + lines
    }

    /// The bytes of a POST.
    pub fn post_text(&self, message: &Value) -> String {
        let body = message.to_string();
        let lines = format!(
            "Content-Type: application/json\r\nAccept: application/json, text/event-stream\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        self.head("POST", &lines) + &body
    }

    pub async fn post(&self, message: &Value) -> Answering {
        Answering::open(self.address, &self.post_text(message)).await
    }

    /// Sends a request; the response must be JSON.
    pub async fn request(&self, id: u64, method: &str, params: Value) -> Value {
        let message = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        let mut answer = self.post(&message).await;
        assert!(!answer.is_events(), "{method} is answered as a stream");
        answer.json().await
    }

    /// The status of a `ping`.
    pub async fn ping(&self) -> u16 {
        let message = json!({"jsonrpc": "2.0", "id": 7, "method": "ping"});
        self.post(&message).await.status
    }

    /// A call with a progress token of the request's id.
    pub async fn call(&self, id: u64, tool: &str, arguments: Value) -> Answering {
        self.post(&call(id, tool, arguments)).await
    }

    /// `GET /mcp`, from the beginning or after an event.
    pub async fn get(&self, last_event_id: Option<&str>) -> Answering {
        let resume =
            last_event_id.map_or_else(String::new, |id| format!("Last-Event-ID: {id}\r\n"));
        let lines = format!("Accept: text/event-stream\r\n{resume}\r\n");
        Answering::open(self.address, &self.head("GET", &lines)).await
    }

    /// Sends a `GET` that must open a stream; a priming event is read and skipped.
    pub async fn listen(&self) -> Answering {
        let mut stream = self.get(None).await;
        assert_eq!(stream.status, 200);
        if self.version.as_str() >= "2025-11-25" {
            let priming = stream.next().await.expect("a priming event");
            assert_eq!(priming.data, "");
        }
        stream
    }

    pub async fn delete(&self) -> u16 {
        Answering::open(
            self.address,
            &self.head("DELETE", "Content-Length: 0\r\n\r\n"),
        )
        .await
        .status
    }
}

/// A `tools/call` with a progress token of the request's id.
pub fn call(id: u64, tool: &str, arguments: Value) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params":
        {"name": tool, "arguments": arguments, "_meta": {"progressToken": format!("token-{id}")}}})
}
