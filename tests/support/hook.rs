//! A stub of a hook's HTTP service: it notes each request, and answers by a script.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};

use super::backend::{answered, header, read};

/// Function that makes the answer to a request.
type Script = Box<dyn Fn(&Value) -> HookReply + Send>;

/// The answer of a stub.
pub enum HookReply {
    /// HTTP 200 with this body.
    Json(Value),
    /// HTTP with this status and body.
    Raw(u16, String),
    /// No answer until the client closes the connection.
    Hang,
}

/// A running stub. Dropping it stops the server.
pub struct HookStub {
    pub address: SocketAddr,
    state: Arc<Mutex<State>>,
    task: JoinHandle<()>,
}

struct State {
    script: Script,
    /// Heads and bodies of all requests, in the order of arrival.
    requests: Vec<(String, Value)>,
    /// Number of connections that their client closed before the answer.
    given_up: usize,
}

impl HookStub {
    /// Starts a stub whose answers `script` makes.
    pub async fn start(script: impl Fn(&Value) -> HookReply + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound");
        let state = Arc::new(Mutex::new(State {
            script: Box::new(script),
            requests: Vec::new(),
            given_up: 0,
        }));
        let served = Arc::clone(&state);
        let task = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                connections.spawn(serve(stream, Arc::clone(&served)));
            }
        });
        Self {
            address,
            state,
            task,
        }
    }

    /// Starts a stub that passes everything.
    pub async fn passing() -> Self {
        Self::start(|_| HookReply::Json(json!({}))).await
    }

    pub fn url(&self) -> String {
        format!("http://{}/hook", self.address)
    }

    /// Answers by another script from now on.
    pub fn answer(&self, script: impl Fn(&Value) -> HookReply + Send + 'static) {
        self.state().script = Box::new(script);
    }

    /// Bodies of all requests for an event.
    pub fn requests(&self, on: &str) -> Vec<Value> {
        let state = self.state();
        let bodies = state.requests.iter().map(|(_, body)| body.clone());
        bodies.filter(|body| body["on"] == on).collect()
    }

    /// Heads of all requests.
    pub fn heads(&self) -> Vec<String> {
        let state = self.state();
        state
            .requests
            .iter()
            .map(|(head, _)| head.clone())
            .collect()
    }

    /// Number of requests that the gateway gave up before they were answered.
    pub fn given_up(&self) -> usize {
        self.state().given_up
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("fine")
    }
}

impl Drop for HookStub {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(mut stream: TcpStream, state: Arc<Mutex<State>>) {
    while let Some((head, body)) = read(&mut stream).await {
        assert_eq!(
            header(&head, "content-type").as_deref(),
            Some("application/json")
        );
        let body: Value = serde_json::from_str(&body).expect("a request of JSON");
        let reply = {
            let mut state = state.lock().expect("fine");
            let reply = (state.script)(&body);
            state.requests.push((head, body));
            reply
        };
        let (status, text) = match reply {
            HookReply::Json(answer) => (200, answer.to_string()),
            HookReply::Raw(status, text) => (status, text),
            HookReply::Hang => {
                let mut rest = [0];
                let _ = stream.read(&mut rest).await;
                state.lock().expect("fine").given_up += 1;
                return;
            }
        };
        let answer = answered(status, "Content-Type: application/json\r\n", &text);
        if stream.write_all(answer.as_bytes()).await.is_err() {
            return;
        }
    }
}
