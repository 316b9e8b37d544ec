//! Client that makes one call after another, and classifies the end of each call.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use reqwest::Response;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::NAMESPACES;
use crate::support::dice::Dice;
use crate::support::{DEADLINE, TOKEN};

const VERSION: &str = "2025-11-25";

/// End of a call, as its client learned it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The call has a result.
    Done,
    /// The call failed with an error that has a type.
    Failed,
    /// The connection broke while the gateway had no descriptors.
    Broken,
}

/// Client with a session in each namespace that it has called.
pub struct ChaosClient {
    number: usize,
    calls: usize,
    address: SocketAddr,
    http: reqwest::Client,
    dice: Dice,
    marks: PathBuf,
    sessions: BTreeMap<&'static str, String>,
    /// Counter that is odd while the gateway may have no descriptors, and even otherwise.
    starved: Arc<AtomicUsize>,
    /// Answer or connection error of the last call that failed.
    pub last_failure: String,
}

/// Failure of a request: its outcome, and the answer or connection error that the client got.
struct NoResult {
    outcome: Outcome,
    told: String,
}

impl ChaosClient {
    pub fn new(
        address: SocketAddr,
        number: usize,
        dice: Dice,
        marks: &Path,
        starved: Arc<AtomicUsize>,
    ) -> Self {
        let http = reqwest::Client::builder().pool_max_idle_per_host(0).build();
        Self {
            number,
            calls: 0,
            address,
            http: http.expect("a client"),
            dice,
            marks: marks.to_owned(),
            sessions: BTreeMap::new(),
            starved,
            last_failure: String::new(),
        }
    }

    /// Makes a call in a random namespace. Returns the call's mark and its outcome.
    pub async fn call(&mut self) -> (String, Outcome) {
        let namespace = NAMESPACES[self.dice.roll(NAMESPACES.len())];
        let called = self.call_of(namespace).await;
        if called.1 != Outcome::Done {
            // Pause after a failure, so that refused clients do not flood the gateway.
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        called
    }

    /// Makes a call in a namespace, and opens a session there first if the client has none.
    pub async fn call_of(&mut self, namespace: &'static str) -> (String, Outcome) {
        self.calls += 1;
        let mark = format!("{}-{}", self.number, self.calls);
        let outcome = match self.try_call(namespace, &mark).await {
            Ok(()) => Outcome::Done,
            Err(NoResult { outcome, told }) => {
                self.last_failure = told;
                outcome
            }
        };
        (mark, outcome)
    }

    async fn try_call(&mut self, namespace: &'static str, mark: &str) -> Result<(), NoResult> {
        if !self.sessions.contains_key(namespace) {
            let session = self.open(namespace).await?;
            self.sessions.insert(namespace, session);
        }
        let message = json!({"jsonrpc": "2.0", "id": mark, "method": "tools/call", "params":
            {"name": "mark", "arguments": {"file": self.marks, "mark": mark}}});
        let session = self.sessions.get(namespace).cloned();
        let response = self.post(namespace, session.as_deref(), &message).await?;
        if response.status() == 404 {
            self.sessions.remove(namespace);
        }
        let answer = self.answer(response).await?;
        assert_eq!(answer["id"], mark, "{answer}");
        let result = &answer["result"];
        match result["isError"].as_bool() {
            None | Some(false) => {
                assert!(
                    result.to_string().contains(mark),
                    "another call's: {answer}"
                );
                Ok(())
            }
            Some(true) => {
                let text = result["content"][0]["text"].as_str();
                assert!(text.is_some_and(|it| !it.is_empty()), "{answer}");
                Err(NoResult {
                    outcome: Outcome::Failed,
                    told: answer.to_string(),
                })
            }
        }
    }

    async fn open(&self, namespace: &'static str) -> Result<String, NoResult> {
        let message = json!({"jsonrpc": "2.0", "id": "init", "method": "initialize", "params":
            {"protocolVersion": VERSION, "capabilities": {}, "clientInfo": {"name": "chaos", "version": "1"}}});
        let response = self.post(namespace, None, &message).await?;
        let id = response.headers().get("mcp-session-id").cloned();
        self.answer(response).await?;
        let id = id.expect("a session that was opened has an id");
        let id = id.to_str().expect("ASCII").to_owned();
        let message = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
        let response = self.post(namespace, Some(&id), &message).await?;
        if response.status() != 202 {
            self.answer(response).await?;
        }
        Ok(id)
    }

    /// Sends a message. A broken connection fails the test, except while the gateway may have no descriptors.
    async fn post(
        &self,
        namespace: &str,
        session: Option<&str>,
        message: &Value,
    ) -> Result<Response, NoResult> {
        let before = self.starved.load(Ordering::SeqCst);
        let mut request = self
            .http
            .post(format!("http://{}/mcp", self.address))
            .bearer_auth(TOKEN)
            .header("X-Namespace", namespace)
            .header("MCP-Protocol-Version", VERSION)
            .header("Accept", "application/json, text/event-stream")
            .json(message);
        if let Some(session) = session {
            request = request.header("Mcp-Session-Id", session);
        }
        let sent = timeout(DEADLINE, request.send()).await;
        let sent = sent.unwrap_or_else(|_| panic!("no answer within {DEADLINE:?}: {message}"));
        sent.map_err(|error| self.broken(before, &error))
    }

    fn broken(&self, before: usize, error: &reqwest::Error) -> NoResult {
        let after = self.starved.load(Ordering::SeqCst);
        assert!(
            before % 2 == 1 || before != after,
            "a broken connection that no fault explains: {error:?}"
        );
        NoResult {
            outcome: Outcome::Broken,
            told: error.to_string(),
        }
    }

    /// Returns the message in a response. An error without a numeric code, or without a code in its data, fails the test.
    async fn answer(&self, response: Response) -> Result<Value, NoResult> {
        let before = self.starved.load(Ordering::SeqCst);
        let status = response.status();
        let text = timeout(DEADLINE, response.text()).await;
        let text = text.expect("a body ends");
        let text = text.map_err(|error| self.broken(before, &error))?;
        let last = text.lines().rev().find_map(|line| {
            let data = line.strip_prefix("data: ")?;
            (!data.is_empty()).then_some(data)
        });
        let message: Value = serde_json::from_str(last.unwrap_or(&text)).unwrap_or_default();
        let error = &message["error"];
        if status == 200 && error.is_null() {
            assert!(message["result"].is_object(), "{status} {text}");
            return Ok(message);
        }
        let is_typed = error["code"].is_i64() && error["data"]["code"].is_string();
        assert!(is_typed, "a failure without a type: {status} {text}");
        Err(NoResult {
            outcome: Outcome::Failed,
            told: text,
        })
    }
}
