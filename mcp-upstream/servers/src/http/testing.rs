//! Backends whose behaviour a test defines: each request is passed to a function, which makes the response.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use serde_json::{Value, json};
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tooldock_base::names::NamespaceName;
use tooldock_base::runtimes::Runtimes;
use tooldock_process::metrics::WorkerMetrics;
use tooldock_sessions::broadcast::Audience;
use tooldock_sessions::session::config::EventLogConfig;
use tooldock_sessions::stream::{EventLog, KeepAlive, StreamMetrics};
use tooldock_workers::external::ProcessHost;
use tooldock_workers::registry::{Registry, Snapshot, UpstreamKind};
use tooldock_workers::remote::{
    Backend as Url, BackendId, BackendSpec, HeaderRules, RemoteServer, RemoteServerConfig,
    RemoteSpec, TlsSpec, Transport,
};
use tooldock_workers::server_settings::Isolation;

use super::launch::AllLaunchers;
use super::port::{
    Backend, BackendRequest, BackendResponse, BackendState, Backends, BodyError, HttpClient,
    RequestHeaders, ResponseBody, SendError, SendErrorKind,
};
use crate::metrics::StdioMetrics;
use crate::pool::Pools;

pub(super) type Sent = Result<BackendResponse, SendError>;
type Play = dyn Fn(Seen) -> Pin<Box<dyn Future<Output = Sent> + Send>> + Send + Sync;

/// A request as the backend received it.
#[derive(Debug, Clone)]
pub(super) struct Seen {
    pub(super) method: Method,
    pub(super) target: Option<String>,
    pub(super) headers: RequestHeaders,
    pub(super) body: Value,
}

impl Seen {
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// The method of the JSON-RPC message, else the HTTP method.
    pub(super) fn what(&self) -> String {
        let method = self.body["method"].as_str();
        method.map_or_else(|| self.method.to_string(), ToOwned::to_owned)
    }

    /// A response with this result to the message.
    pub(super) fn result(&self, result: Value) -> Value {
        json!({ "jsonrpc": "2.0", "id": self.body["id"], "result": result })
    }
}

/// A backend whose responses a function makes.
pub(super) struct Played {
    id: BackendId,
    play: Box<Play>,
    pub(super) seen: Mutex<Vec<Seen>>,
    /// True if connections are refused.
    pub(super) down: AtomicBool,
    pub(super) ejected: AtomicBool,
}

impl Played {
    pub(super) fn seen(&self) -> Vec<String> {
        let seen = self.seen.lock().expect("not poisoned");
        seen.iter().map(Seen::what).collect()
    }

    pub(super) fn count(&self, what: &str) -> usize {
        self.seen().iter().filter(|it| *it == what).count()
    }

    pub(super) fn last(&self, what: &str) -> Seen {
        let seen = self.seen.lock().expect("not poisoned");
        let mut found = seen.iter().rev();
        found.find(|it| it.what() == what).cloned().expect("seen")
    }
}

#[async_trait]
impl Backend for Arc<Played> {
    fn id(&self) -> &BackendId {
        &self.id
    }

    fn accepts_new(&self) -> bool {
        self.is_healthy()
    }

    fn is_healthy(&self) -> bool {
        !self.ejected.load(Ordering::SeqCst)
    }

    async fn send(&self, request: BackendRequest) -> Sent {
        if self.down.load(Ordering::SeqCst) {
            return Err(SendError {
                kind: SendErrorKind::Connect,
                unsent: true,
                message: "connection refused".into(),
            });
        }
        if !request.mark_sending() {
            return Err(SendError {
                kind: SendErrorKind::GivenUp,
                unsent: true,
                message: "given up".into(),
            });
        }
        let seen = Seen {
            method: request.method,
            target: request.target,
            headers: request.headers,
            body: serde_json::from_slice(&request.body).unwrap_or_default(),
        };
        self.seen.lock().expect("not poisoned").push(seen.clone());
        (self.play)(seen).await
    }
}

/// The pool of the test's backends.
pub(super) struct Pool {
    pub(super) backends: Vec<Arc<Played>>,
    next: AtomicUsize,
}

impl Backends for Pool {
    fn pick(&self, avoid: &[BackendId], _: u64) -> Option<Arc<dyn Backend>> {
        let fits = |it: &&Arc<Played>| it.is_healthy() && !avoid.contains(&it.id);
        let left: Vec<_> = self.backends.iter().filter(fits).collect();
        let next = self.next.fetch_add(1, Ordering::SeqCst);
        let picked = left.get(next.checked_rem(left.len())?)?;
        Some(Arc::new(Arc::clone(picked)))
    }

    fn can_pick(&self, avoid: &[BackendId]) -> bool {
        let mut left = self.backends.iter();
        left.any(|it| it.is_healthy() && !avoid.contains(&it.id))
    }

    fn get(&self, id: &BackendId) -> Option<Arc<dyn Backend>> {
        let found = self.backends.iter().find(|it| it.id == *id)?;
        Some(Arc::new(Arc::clone(found)))
    }

    fn states(&self) -> Vec<BackendState> {
        let all = self.backends.iter();
        all.map(|it| BackendState::idle(it.id.clone(), it.is_healthy()))
            .collect()
    }
}

struct Client(Arc<Pool>);

impl HttpClient for Client {
    fn backends(&self, _: &Arc<RemoteServer>) -> Arc<dyn Backends> {
        Arc::clone(&self.0) as _
    }

    fn current(&self, _: &NamespaceName) -> Option<Arc<dyn Backends>> {
        Some(Arc::clone(&self.0) as _)
    }
}

/// A gateway's pools over one remote server, `ns`.
pub(super) struct Scene {
    pub(super) pools: Arc<Pools>,
    pub(super) server: Arc<RemoteServer>,
    pub(super) backends: Vec<Arc<Played>>,
    _registry: Arc<Registry>,
}

impl Scene {
    /// A scene with this number of backends, all of which behave the same.
    pub(super) fn new<F>(
        count: usize,
        play: impl Fn(Seen) -> F + Clone + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Sent> + Send + 'static,
    {
        Self::with(count, Transport::Auto, play)
    }

    pub(super) fn with<F>(
        count: usize,
        transport: Transport,
        play: impl Fn(Seen) -> F + Clone + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Sent> + Send + 'static,
    {
        Self::keeping(count, transport, false, play)
    }

    pub(super) fn keeping<F>(
        count: usize,
        transport: Transport,
        stateful: bool,
        play: impl Fn(Seen) -> F + Clone + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Sent> + Send + 'static,
    {
        let urls = (0..count).map(|number| format!("http://127.0.0.1:{}/mcp", 9000 + number));
        let specs: Vec<_> = urls
            .map(|url| {
                let backend = Url::parse(&url).expect("a URL");
                BackendSpec {
                    id: backend.id(),
                    backend,
                    weight: 1,
                    backup: false,
                }
            })
            .collect();
        let backends: Vec<_> = specs
            .iter()
            .map(|spec| {
                let play = play.clone();
                Arc::new(Played {
                    id: spec.id.clone(),
                    play: Box::new(move |seen| Box::pin(play(seen))),
                    seen: Mutex::default(),
                    down: AtomicBool::new(false),
                    ejected: AtomicBool::new(false),
                })
            })
            .collect();
        let server = Arc::new(RemoteServer::new(
            "ns".parse().expect("a name"),
            RemoteSpec {
                stateful,
                ..spec(specs, transport)
            },
        ));
        let pool = Arc::new(Pool {
            backends: backends.clone(),
            next: AtomicUsize::new(0),
        });
        let exported = prometheus::Registry::new();
        let host = Arc::new(ProcessHost {
            sandbox: Default::default(),
            guard: "/nonexistent".into(),
            control: Handle::current(),
            runtimes: Arc::new(Runtimes::new()),
            metrics: Arc::new(WorkerMetrics::new(&exported).expect("fresh")),
            output: Default::default(),
        });
        let log = EventLog::new(
            EventLogConfig::default(),
            KeepAlive::new(Duration::from_secs(15)),
            StreamMetrics::unregistered(),
        );
        let registry = Arc::new(Registry::default());
        let mut namespace = tooldock_sessions::testing::namespace("ns");
        namespace.upstream = UpstreamKind::Remote(Arc::clone(&server));
        let mut snapshot = Snapshot::default();
        snapshot
            .namespaces
            .insert(namespace.name.clone(), Arc::new(namespace));
        registry.swap(snapshot);
        let pools = Pools::new(
            AllLaunchers::new(&host, Some(Arc::new(Client(pool))), &registry),
            Handle::current(),
            Arc::clone(&registry),
            Audience::new(Arc::new(log)),
            StdioMetrics::unregistered(),
        );
        Self {
            pools,
            server,
            backends,
            _registry: registry,
        }
    }
}

fn spec(backends: Vec<BackendSpec>, transport: Transport) -> RemoteSpec {
    let config = RemoteServerConfig::default();
    RemoteSpec {
        backends,
        balance: config.balance,
        mode: config.mode,
        transport,
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
        timeouts: config.timeouts,
        keepalive: config.keepalive,
        retry: config.retry,
        health: config.health,
        api: None,
    }
}

/// A body in pieces that the test sends; it waits after the last one.
pub(super) struct Pieces(mpsc::Receiver<Result<Bytes, BodyError>>);

#[async_trait]
impl ResponseBody for Pieces {
    async fn chunk(&mut self) -> Result<Option<Bytes>, BodyError> {
        self.0.recv().await.transpose()
    }
}

pub(super) type Pour = mpsc::Sender<Result<Bytes, BodyError>>;

/// A response with this status and these headers, with the sender of its body's pieces.
pub(super) fn open(status: u16, headers: &[(&'static str, &str)]) -> (BackendResponse, Pour) {
    let (pour, pieces) = mpsc::channel(16);
    let mut map = HeaderMap::new();
    for (name, value) in headers {
        map.insert(
            HeaderName::from_static(name),
            HeaderValue::from_str(value).expect("a value"),
        );
    }
    let response = BackendResponse {
        backend: BackendId::new("127.0.0.1:9000"),
        status: StatusCode::from_u16(status).expect("a status"),
        headers: map,
        body: Box::new(Pieces(pieces)),
    };
    (response, pour)
}

/// A whole response.
pub(super) fn whole(status: u16, headers: &[(&'static str, &str)], body: &str) -> BackendResponse {
    let (response, pour) = open(status, headers);
    let _ = pour.try_send(Ok(Bytes::copy_from_slice(body.as_bytes())));
    response
}

pub(super) fn text(status: u16, body: &str) -> BackendResponse {
    whole(status, &[("content-type", "text/plain")], body)
}

pub(super) fn json(message: &Value) -> BackendResponse {
    whole(
        200,
        &[("content-type", "application/json; charset=utf-8")],
        &message.to_string(),
    )
}

/// A stream of events, which ends when the sender is dropped.
pub(super) fn events() -> (BackendResponse, Pour) {
    open(
        200,
        &[(header::CONTENT_TYPE.as_str(), "text/event-stream")]
            .map(|(_, value)| ("content-type", value)),
    )
}

pub(super) fn event(message: &Value) -> Result<Bytes, BodyError> {
    Ok(format!("event: message\ndata: {message}\n\n").into())
}
