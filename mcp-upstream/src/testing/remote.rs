//! A remote server in memory: backends that keep sessions, and answer as a test decides.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use async_trait::async_trait;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use serde_json::{Value, json};
use tooldock_base::config::Limits;
use tooldock_base::names::NamespaceName;
use tooldock_base::policy::ToolPolicy;
use tooldock_servers::http::port::{
    Backend, BackendRequest, BackendResponse, BackendState, Backends, BodyError, HttpClient,
    ResponseBody, SendError, SendErrorKind,
};
use tooldock_workers::registry::{Namespace, UpstreamKind};
use tooldock_workers::remote::{
    Backend as Address, BackendId, BackendSpec, Balance, HeaderRules, Mode, RemoteHealth,
    RemoteRetry, RemoteServer, RemoteSpec, RemoteTimeouts, TlsSpec, Transport,
};
use tooldock_workers::server_settings::Isolation;

/// Number of backends that a server of the tests may have; a pool has the first of them.
const BACKENDS: usize = 8;

fn backend_url(number: usize) -> String {
    format!("http://backend-{number}")
}

/// A namespace behind a remote server.
pub(crate) fn remote(name: &str, change: impl FnOnce(&mut RemoteSpec)) -> Namespace {
    let backend = |number| {
        let backend = Address::parse(&backend_url(number)).expect("a URL");
        BackendSpec {
            id: backend.id(),
            backend,
            weight: 1,
            backup: false,
        }
    };
    let mut spec = RemoteSpec {
        backends: (0..BACKENDS).map(backend).collect(),
        balance: Balance::RoundRobin,
        mode: Mode::PassThrough,
        transport: Transport::Auto,
        isolation: Isolation::Auto,
        stateful: false,
        lists: tooldock_workers::server_settings::ListMode::default(),
        allow_private: false,
        headers: HeaderRules::default(),
        credentials: None,
        personal: Default::default(),
        oauth: None,
        secrets: Vec::new(),
        tls: TlsSpec::default(),
        timeouts: RemoteTimeouts::default(),
        keepalive: 1,
        retry: RemoteRetry::default(),
        health: RemoteHealth::default(),
        api: None,
    };
    change(&mut spec);
    let server = RemoteServer::new(name.parse().expect("a name"), spec);
    let limits = Limits::default();
    Namespace {
        tools: Vec::new(),
        upstream: UpstreamKind::Remote(Arc::new(server)),
        // The backends have tools that they do not list, so the policy must allow all names.
        policy: ToolPolicy::new(&limits).expect("no patterns"),
        limits,
        ..super::namespace(name)
    }
}

type Act = Box<dyn Fn(&BackendRequest) -> Option<Result<BackendResponse, SendError>> + Send + Sync>;

/// A backend of the tests. Requests that a test does not decide are answered by an MCP server that keeps sessions.
pub(crate) struct FakeRemote {
    id: BackendId,
    act: Mutex<Option<Act>>,
    sessions: Mutex<BTreeSet<String>>,
    capabilities: Mutex<Value>,
    opened: AtomicUsize,
    pub(crate) healthy: AtomicBool,
    /// The requests that the backend received.
    seen: Mutex<Vec<BackendRequest>>,
}

/// The backends of all servers.
pub(crate) struct FakePool {
    pub(crate) backends: Vec<Arc<FakeRemote>>,
    next: AtomicUsize,
    /// The hashes for which backends were picked.
    pub(crate) hashes: Mutex<Vec<u64>>,
}

impl FakePool {
    pub(crate) fn new(count: usize) -> Arc<Self> {
        let backend = |number| {
            Arc::new(FakeRemote {
                id: Address::parse(&backend_url(number)).expect("a URL").id(),
                act: Mutex::default(),
                sessions: Mutex::default(),
                capabilities: Mutex::new(json!({})),
                opened: AtomicUsize::new(0),
                healthy: AtomicBool::new(true),
                seen: Mutex::default(),
            })
        };
        Arc::new(Self {
            backends: (0..count).map(backend).collect(),
            next: AtomicUsize::new(0),
            hashes: Mutex::default(),
        })
    }

    /// Number of messages with this method at all backends.
    pub(crate) fn sent(&self, method: &str) -> usize {
        let seen = self.backends.iter().map(|it| it.messages(method).len());
        seen.sum()
    }
}

pub(crate) struct FakeClient(pub(crate) Arc<FakePool>);

impl HttpClient for FakeClient {
    fn backends(&self, _: &Arc<RemoteServer>) -> Arc<dyn Backends> {
        Arc::new(Handle(Arc::clone(&self.0)))
    }

    fn current(&self, _: &NamespaceName) -> Option<Arc<dyn Backends>> {
        Some(Arc::new(Handle(Arc::clone(&self.0))))
    }
}

struct Handle(Arc<FakePool>);

impl Backends for Handle {
    fn pick(&self, avoid: &[BackendId], hash: u64) -> Option<Arc<dyn Backend>> {
        FakeRemote::lock(&self.0.hashes).push(hash);
        let all = &self.0.backends;
        let first = self.0.next.fetch_add(1, Ordering::Relaxed);
        let mut turns = (0..all.len()).map(|step| &all[(first + step) % all.len()]);
        let fits = |it: &&Arc<FakeRemote>| it.is_healthy() && !avoid.contains(&it.id);
        turns
            .find(fits)
            .map(|it| Arc::clone(it) as Arc<dyn Backend>)
    }

    fn can_pick(&self, avoid: &[BackendId]) -> bool {
        let mut all = self.0.backends.iter();
        all.any(|it| it.is_healthy() && !avoid.contains(&it.id))
    }

    fn get(&self, id: &BackendId) -> Option<Arc<dyn Backend>> {
        let mut all = self.0.backends.iter();
        all.find(|it| it.id == *id)
            .map(|it| Arc::clone(it) as Arc<dyn Backend>)
    }

    fn states(&self) -> Vec<BackendState> {
        let all = self.0.backends.iter();
        all.map(|it| BackendState::idle(it.id.clone(), it.is_healthy()))
            .collect()
    }
}

impl FakeRemote {
    fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
        of.lock().expect("not poisoned")
    }

    /// Sets the function that answers requests from now on; `None` leaves a request to the MCP server.
    pub(crate) fn act(
        &self,
        act: impl Fn(&BackendRequest) -> Option<Result<BackendResponse, SendError>>
        + Send
        + Sync
        + 'static,
    ) {
        *Self::lock(&self.act) = Some(Box::new(act));
    }

    /// Makes the backend unreachable.
    pub(crate) fn dies(&self) {
        self.act(|_| Some(Err(error(SendErrorKind::Connect, true))));
    }

    /// Sets the capabilities for sessions that are opened from now on.
    pub(crate) fn offers(&self, capabilities: Value) {
        *Self::lock(&self.capabilities) = capabilities;
    }

    /// The ids of the sessions that the backend was asked to end.
    pub(crate) fn ended(&self) -> Vec<String> {
        let seen = self.seen().into_iter();
        let ends = seen.filter(|it| it.method == Method::DELETE);
        let id = |it: BackendRequest| it.headers["mcp-session-id"].to_str().map(str::to_owned);
        ends.filter_map(|it| id(it).ok()).collect()
    }

    /// Drops all sessions of the backend.
    pub(crate) fn forgets(&self) {
        Self::lock(&self.sessions).clear();
    }

    /// The requests that the backend received.
    pub(crate) fn seen(&self) -> Vec<BackendRequest> {
        Self::lock(&self.seen).clone()
    }

    /// The received messages with this method.
    pub(crate) fn messages(&self, method: &str) -> Vec<BackendRequest> {
        let mut seen = self.seen();
        seen.retain(|request| {
            let message: Option<Value> = serde_json::from_slice(&request.body).ok();
            message.is_some_and(|message| message["method"] == method)
        });
        seen
    }

    fn answer(&self, request: &BackendRequest) -> BackendResponse {
        let message: Value = serde_json::from_slice(&request.body).unwrap_or_default();
        if message["method"] == "initialize" {
            let number = self.opened.fetch_add(1, Ordering::Relaxed);
            let session = format!("{}/{number}", self.id);
            let session = session.replace(':', "-");
            Self::lock(&self.sessions).insert(session.clone());
            let capabilities = Self::lock(&self.capabilities).clone();
            let result =
                json!({ "protocolVersion": "2025-11-25", "capabilities": capabilities, "x": 1.50 });
            let answer = json!({ "jsonrpc": "2.0", "id": message["id"], "result": result });
            return response(
                200,
                &[JSON, ("mcp-session-id", &session)],
                answer.to_string(),
            );
        }
        let modern = request.headers.get("mcp-protocol-version");
        let modern = modern.is_some_and(|version| version == "2026-07-28");
        let session = request.headers.get("mcp-session-id");
        let session = session.and_then(|id| id.to_str().ok()).unwrap_or_default();
        if !modern && !Self::lock(&self.sessions).contains(session) {
            return response(404, &[], "");
        }
        if request.method == Method::DELETE {
            Self::lock(&self.sessions).remove(session);
            return response(200, &[], "");
        }
        if request.method == Method::GET {
            return response(405, &[("allow", "POST")], "");
        }
        match message.get("id") {
            None => response(202, &[], ""),
            Some(id) => response(
                200,
                &[JSON],
                format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"n":1.50}}}}"#),
            ),
        }
    }
}

#[async_trait]
impl Backend for FakeRemote {
    fn id(&self) -> &BackendId {
        &self.id
    }

    fn accepts_new(&self) -> bool {
        self.is_healthy()
    }

    fn is_healthy(&self) -> bool {
        self.healthy.load(Ordering::Relaxed)
    }

    async fn send(&self, request: BackendRequest) -> Result<BackendResponse, SendError> {
        // Yields, as a socket would.
        tokio::task::yield_now().await;
        if !request.mark_sending() {
            return Err(error(SendErrorKind::GivenUp, true));
        }
        let decided = Self::lock(&self.act).as_ref().and_then(|act| act(&request));
        let unsent = matches!(&decided, Some(Err(error)) if error.unsent);
        if !unsent {
            Self::lock(&self.seen).push(request.clone());
        }
        decided.unwrap_or_else(|| Ok(self.answer(&request)))
    }
}

pub(crate) const JSON: (&str, &str) = ("content-type", "application/json");
pub(crate) const EVENTS: (&str, &str) = ("content-type", "text/event-stream");

pub(crate) fn error(kind: SendErrorKind, unsent: bool) -> SendError {
    SendError {
        kind,
        unsent,
        message: "no connection".into(),
    }
}

/// A response with its whole body.
pub(crate) fn response(
    status: u16,
    headers: &[(&str, &str)],
    body: impl Into<Bytes>,
) -> BackendResponse {
    let body: Bytes = body.into();
    let pieces = (!body.is_empty()).then_some(Ok(body));
    in_pieces(status, headers, pieces.into_iter().collect(), Then::Ends)
}

/// Behaviour of a body after its pieces.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Then {
    Ends,
    /// The body ends with its connection, without an announced length.
    Closes,
    Waits,
}

/// A response whose body comes in pieces.
pub(crate) fn in_pieces(
    status: u16,
    headers: &[(&str, &str)],
    pieces: Vec<Result<Bytes, BodyError>>,
    then: Then,
) -> BackendResponse {
    let mut map = HeaderMap::new();
    for (name, value) in headers {
        let name: HeaderName = name.parse().expect("a name");
        map.insert(name, HeaderValue::from_str(value).expect("a value"));
    }
    BackendResponse {
        backend: BackendId::new("backend-0:80"),
        status: StatusCode::from_u16(status).expect("a status"),
        headers: map,
        body: Box::new(Pieces(pieces.into_iter(), then)),
    }
}

/// A response whose body arrived in this coding, which the client accepts.
pub(crate) fn coded(
    headers: &[(&str, &str)],
    body: impl Into<Bytes>,
    coding: &'static str,
    received: impl Into<Bytes>,
) -> BackendResponse {
    let mut response = response(200, headers, Bytes::new());
    let received = (HeaderValue::from_static(coding), received.into());
    response.body = Box::new(Coded(Some(body.into()), Some(received)));
    response
}

struct Coded(Option<Bytes>, Option<(HeaderValue, Bytes)>);

#[async_trait]
impl ResponseBody for Coded {
    async fn chunk(&mut self) -> Result<Option<Bytes>, BodyError> {
        Ok(self.0.take())
    }

    fn take_coded(&mut self) -> Option<(HeaderValue, Bytes)> {
        self.1.take()
    }
}

struct Pieces(std::vec::IntoIter<Result<Bytes, BodyError>>, Then);

#[async_trait]
impl ResponseBody for Pieces {
    async fn chunk(&mut self) -> Result<Option<Bytes>, BodyError> {
        match self.0.next() {
            Some(piece) => piece.map(Some),
            None if self.1 == Then::Waits => std::future::pending().await,
            None => Ok(None),
        }
    }

    fn may_be_cut(&self) -> bool {
        self.1 == Then::Closes
    }
}
