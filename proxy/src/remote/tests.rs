//! The client against real sockets on loopback: what every kind of misbehaving backend comes to.

mod faults;
mod oauth;
mod oauth_binding;
mod pools;
mod tls;

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpSocket};
use tokio::runtime::Handle;
use tooldock_base::secret::Secret;
use tooldock_base::yaml;
use tooldock_credentials::secrets::{AuthorizationStore, Secrets};
use tooldock_upstream::http_client::{
    Backend, BackendRequest, BackendResponse, Backends, BodyError, HttpClient as _, SendError,
};
use tooldock_workers::remote::{RemoteServer, RemoteServerConfig};

use super::names::Names;
use super::pool::Pool;
use super::{RemoteClient, RemoteMetrics, SystemNames, lock};

/// How long a test waits for what must happen.
const PATIENCE: Duration = Duration::from_secs(20);

/// The behaviour of a backend for one request.
#[derive(Debug, Clone, Copy)]
enum Answer {
    /// Writes this and waits for the next request.
    Say(&'static str),
    /// Writes this and closes the connection.
    Last(&'static str),
    /// Writes this, again and again.
    Endless(&'static str),
    /// Writes nothing and keeps the connection.
    Silence,
}

const OK: &str = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}";

/// A backend that does as it is told: one answer per request, the last one for all that follow.
struct ScriptedBackend {
    address: SocketAddr,
    connections: Arc<AtomicUsize>,
    requests: Arc<Mutex<Vec<String>>>,
}

impl ScriptedBackend {
    /// Checks are answered beside the script, and neither they nor their connections are counted.
    async fn start(answers: &[Answer]) -> Self {
        Self::begin(Script::new(answers)).await
    }

    /// The script is about checks, too.
    async fn with_checks(answers: &[Answer]) -> Self {
        Self::begin(Script {
            with_checks: true,
            ..Script::new(answers)
        })
        .await
    }

    async fn begin(script: Script) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
        let address = listener.local_addr().expect("an address");
        let started = Self {
            address,
            connections: Arc::clone(&script.connections),
            requests: Arc::clone(&script.requests),
        };
        tokio::spawn(async move {
            while let Ok((connection, _)) = listener.accept().await {
                tokio::spawn(script.clone().serve(connection));
            }
        });
        started
    }

    fn url(&self) -> String {
        format!("http://{}/mcp", self.address)
    }

    fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }

    fn requests(&self) -> Vec<String> {
        lock(&self.requests).clone()
    }
}

#[derive(Clone)]
struct Script {
    answers: Arc<Mutex<VecDeque<Answer>>>,
    requests: Arc<Mutex<Vec<String>>>,
    connections: Arc<AtomicUsize>,
    with_checks: bool,
}

impl Script {
    fn new(answers: &[Answer]) -> Self {
        Self {
            answers: Arc::new(Mutex::new(answers.iter().copied().collect())),
            requests: Arc::default(),
            connections: Arc::default(),
            with_checks: false,
        }
    }

    fn next(&self) -> Answer {
        let mut answers = lock(&self.answers);
        match answers.len() {
            1 => answers[0],
            _ => answers.pop_front().expect("an answer"),
        }
    }

    async fn serve(self, mut connection: impl AsyncRead + AsyncWrite + Unpin) {
        let mut counted = false;
        while let Some(request) = read_request(&mut connection).await {
            if !self.with_checks && request.contains("tooldock-check") {
                let _ = connection.write_all(OK.as_bytes()).await;
                continue;
            }
            if !std::mem::replace(&mut counted, true) {
                self.connections.fetch_add(1, Ordering::SeqCst);
            }
            lock(&self.requests).push(request);
            let written = match self.next() {
                Answer::Say(text) => connection.write_all(text.as_bytes()).await,
                Answer::Last(text) => {
                    let _ = connection.write_all(text.as_bytes()).await;
                    let _ = connection.shutdown().await;
                    return;
                }
                Answer::Endless(text) => loop {
                    if connection.write_all(text.as_bytes()).await.is_err() {
                        return;
                    }
                    tokio::time::sleep(Duration::from_millis(5)).await;
                },
                Answer::Silence => Ok(()),
            };
            let _ = connection.flush().await;
            if written.is_err() {
                return;
            }
        }
    }
}

/// A request, all in lower case: names of headers are written in either case.
async fn read_request(connection: &mut (impl AsyncRead + Unpin)) -> Option<String> {
    let mut text = Vec::new();
    loop {
        let mut piece = [0; 4096];
        let read = connection.read(&mut piece).await.ok()?;
        if read == 0 {
            return None;
        }
        text.extend_from_slice(&piece[..read]);
        let request = String::from_utf8_lossy(&text).to_lowercase();
        let Some((head, body)) = request.split_once("\r\n\r\n") else {
            continue;
        };
        let length = head
            .lines()
            .find_map(|line| line.strip_prefix("content-length: "));
        let length: usize = length.map_or(0, |it| it.parse().expect("a length"));
        if body.len() >= length {
            return Some(request);
        }
    }
}

/// A server of these backends, with further keys.
fn server(urls: &[String], keys: &str) -> Arc<RemoteServer> {
    let text = format!("{{ backends: [{}], {keys} }}", urls.join(", "));
    let config: RemoteServerConfig = yaml::from_str(&text).expect(&text);
    let name = "ns".parse().expect("a name");
    let secrets = Secrets::global([("TOKEN", Secret::new("hunter2"))]);
    let server = RemoteServer::resolve(&name, &config, &secrets, &|_| None);
    Arc::new(server.expect(&text))
}

fn client_with(names: impl Names + 'static) -> Arc<RemoteClient> {
    client_with_authorizations(names, None)
}

fn client_with_authorizations(
    names: impl Names + 'static,
    authorizations: Option<Arc<AuthorizationStore>>,
) -> Arc<RemoteClient> {
    let metrics = RemoteMetrics::new(&prometheus::Registry::new()).expect("fresh");
    RemoteClient::new(
        Arc::new(names),
        Arc::new(metrics),
        Handle::current(),
        Arc::default(),
        authorizations,
    )
}

/// The pool of a server that is served, after its first checks: what follows is the test's own doing.
async fn checked(client: &Arc<RemoteClient>, server: &Arc<RemoteServer>) -> Arc<Pool> {
    let pool = client.serve(server);
    let is_over = || pool.checked.load(Ordering::SeqCst);
    eventually("the first checks", is_over).await;
    pool
}

/// The only backend of a server, and the pool that it needs. Nothing checks it.
fn only(server: &Arc<RemoteServer>) -> (Arc<dyn Backend>, Arc<dyn Backends>) {
    let pool = client_with(SystemNames).backends(server);
    (pool.pick(&[], 0).expect("a backend"), pool)
}

fn request() -> BackendRequest {
    let headers = [
        ("accept", "application/json"),
        ("authorization", "Bearer the-clients-own"),
        ("mcp-session-id", "s1"),
    ];
    let header = |(name, value)| {
        (
            HeaderName::from_static(name),
            HeaderValue::from_static(value),
        )
    };
    let headers = HeaderMap::from_iter(headers.map(header));
    BackendRequest::new(Method::POST, headers, Bytes::from_static(b"{\"a\":1}"))
}

async fn send(backend: &Arc<dyn Backend>) -> Result<BackendResponse, SendError> {
    within(backend.send(request())).await
}

async fn within<T>(future: impl Future<Output = T>) -> T {
    let done = tokio::time::timeout(PATIENCE, future).await;
    done.expect("this takes too long")
}

async fn read(mut response: BackendResponse) -> Result<String, BodyError> {
    let mut text = Vec::new();
    while let Some(piece) = within(response.body.chunk()).await? {
        text.extend_from_slice(&piece);
    }
    Ok(String::from_utf8(text).expect("text"))
}

async fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let waiting = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let done = tokio::time::timeout(PATIENCE, waiting).await;
    done.unwrap_or_else(|_| panic!("this did not happen: {what}"));
}
