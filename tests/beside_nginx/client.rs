//! A client of MCP, which counts how its requests end.

use reqwest::{Client, RequestBuilder, Response, Version};
use serde_json::{Value, json};

use super::AT_ONCE;
use crate::support::DEADLINE;

/// Requests with a wrong token over each version of HTTP: together as many as the gateway answers undelayed.
const REFUSED: usize = 15;
/// Requests with a wrong token after these.
const FURTHER: usize = 10;
/// Calls after the end of a server.
const AFTER: usize = 10;

fn post(client: &Client, url: &str, token: &str, agent: &str, message: &Value) -> RequestBuilder {
    client
        .post(url)
        .header("Accept", "application/json, text/event-stream")
        .header("User-Agent", agent)
        .bearer_auth(token)
        .json(message)
        .timeout(DEADLINE)
}

/// A client of MCP with a session.
pub struct Session {
    client: Client,
    url: String,
    token: &'static str,
    id: String,
}

impl Session {
    pub async fn open(client: &Client, url: String, token: &'static str) -> Self {
        let mut session = Self {
            client: client.clone(),
            url,
            token,
            id: String::new(),
        };
        session.begin().await;
        session
    }

    /// Opens a session in the place of the one before.
    async fn begin(&mut self) {
        let message = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
            "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}}});
        let opening = post(&self.client, &self.url, self.token, "open/1.0", &message);
        let opened = opening.send().await.expect("an answer");
        assert_eq!(opened.status(), 200, "{}", self.url);
        let id = opened.headers()["mcp-session-id"].to_str().expect("text");
        self.id = id.to_owned();
        let message = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
        let noted = self.send("open/1.0", &message).await.expect("an answer");
        assert_eq!(noted.status(), 202, "{}", self.url);
    }

    async fn send(&self, agent: &str, message: &Value) -> reqwest::Result<Response> {
        post(&self.client, &self.url, self.token, agent, message)
            .header("Mcp-Session-Id", &self.id)
            .header("MCP-Protocol-Version", "2025-11-25")
            .send()
            .await
    }

    /// Calls a tool: the status, and the server that answered.
    pub async fn call(&self, agent: &str, tool: &str) -> (u16, String) {
        let message = json!({"jsonrpc": "2.0", "id": 7, "method": "tools/call",
            "params": {"name": tool, "arguments": {}}});
        let Ok(answer) = self.send(agent, &message).await else {
            return (0, String::new());
        };
        let status = answer.status().as_u16();
        let said = answer.text().await.unwrap_or_default();
        let said: Value = serde_json::from_str(&said).unwrap_or_default();
        let server = said["result"]["who"].as_str().unwrap_or_default();
        (status, server.to_owned())
    }

    /// Calls that are all with the server before it answers one.
    pub async fn call_at_once(&self) -> String {
        let calls = (0..AT_ONCE).map(|_| self.call("meet/1.0", "meet"));
        let ended = futures_util::future::join_all(calls).await;
        let by_server = |it: &&(u16, String)| **it == (200, "A".to_owned());
        let answered = ended.iter().filter(by_server).count();
        format!("{answered} answered")
    }

    /// Calls after the end of the server that the session was opened at.
    pub async fn call_after_its_server(&mut self) -> String {
        let (mut answered, mut opened) = (0, 0);
        for _ in 0..AFTER {
            let mut ended = self.call("after/1.0", "look").await;
            // The word for a client to open another session.
            if ended.0 == 404 {
                self.begin().await;
                opened += 1;
                ended = self.call("after/1.0", "look").await;
            }
            answered += usize::from(ended == (200, "B".to_owned()));
        }
        let plural = if opened == 1 { "" } else { "s" };
        format!("{answered} answered by B, {opened} new session{plural}")
    }
}

/// A request with a wrong token.
fn wrong(client: &Client, url: &str) -> RequestBuilder {
    let message = json!({"jsonrpc": "2.0", "id": 1, "method": "ping"});
    post(client, url, "of-nobody", "wrong/1.0", &message)
}

/// Sends requests with a wrong token: some on a connection that is open already, some on new connections.
pub async fn refused(client: impl Fn() -> Client, url: &str, version: Version) -> String {
    let kept = client();
    let mut whole = 0;
    for turn in 0..REFUSED {
        let new = (turn % 3 == 0).then(&client);
        let client = new.as_ref().unwrap_or(&kept);
        let Ok(answer) = wrong(client, url).send().await else {
            continue;
        };
        let is_refusal = answer.status() == 401 && answer.version() == version;
        let body = answer.text().await;
        whole += usize::from(is_refusal && body.is_ok_and(|text| !text.is_empty()));
    }
    format!("{whole} whole answers with 401")
}

/// Sends more requests with a wrong token and tells the status of most answers.
pub async fn refused_further(client: &Client, url: &str) -> String {
    let mut delayed = 0;
    for _ in 0..FURTHER {
        let answer = wrong(client, url).send().await.expect("an answer");
        let status = answer.status().as_u16();
        assert!(matches!(status, 401 | 429), "{status}");
        delayed += usize::from(status == 429);
    }
    match delayed {
        0 => "401 for all".to_owned(),
        _ if delayed > FURTHER / 2 => "429 for most".to_owned(),
        _ => format!("429 for {delayed}"),
    }
}
