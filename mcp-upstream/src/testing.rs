//! Helpers that the tests of this crate share: a scripted backend, a service over it.

pub(crate) mod head;
pub(crate) mod remote;
mod response;

use std::sync::Arc;

use bytes::Bytes;
use bytesize::ByteSize;
use http::{Method, StatusCode};
use serde_json::Value;
use serde_json::json;
use tokio::runtime::Handle;
use tooldock_base::answers::AnswerBudget;
use tooldock_base::route::RouteId;
use tooldock_base::runtimes::Runtimes;
use tooldock_engine::connect_links::ConnectLinks;
use tooldock_engine::engine::Limiter;
use tooldock_engine::metrics::UpstreamMetrics;
use tooldock_engine::upstream::worker::WorkerPorts;
use tooldock_engine::upstream::{Upstream, Upstreams};
use tooldock_process::metrics::WorkerMetrics;
use tooldock_servers::http::port::HttpClient;
use tooldock_servers::launch::Launchers;
use tooldock_servers::pool::Pools;
use tooldock_servers::testing::played_server;
use tooldock_sessions::audit::Audit;
use tooldock_sessions::caller::Caller;
use tooldock_sessions::session::config::SessionsConfig;
use tooldock_sessions::testing::shadow::Shadow;
use tooldock_sessions::testing::{broken, caller, namespace};
use tooldock_workers::external::{ProcessHost, StdioSettings};
use tooldock_workers::registry::{Namespace, Registry, Snapshot, UpstreamKind};

use crate::error::body_of;
use crate::health::Health;
use crate::mcp::head::{AcceptFlags, McpHead};
use crate::reload::ReloadControl;
use crate::reply::Reply;
use crate::seal::SessionKey;
use crate::service::{AdmittedRequest, Service, ServiceParts};
use crate::{legacy, mcp};

pub(crate) mod shadow;

pub(crate) use tooldock_engine::testing::{FakeBackend, InMemory, Only, Refuses, Unlimited};

/// A service over fakes, with handles for inspecting it.
pub(crate) struct Harness {
    pub(crate) registry: Arc<Registry>,
    pub(crate) service: Service,
    pub(crate) backend: Arc<FakeBackend>,
    pub(crate) health: Arc<Health>,
    pub(crate) metrics: Arc<UpstreamMetrics>,
    /// The pools of `externals`.
    pub(crate) pools: Option<Arc<Pools>>,
}

/// Options of a test's harness.
pub(crate) struct Wanted {
    pub(crate) namespaces: Vec<Namespace>,
    pub(crate) sessions: SessionsConfig,
    pub(crate) session_bytes_per_principal: ByteSize,
    pub(crate) streams_per_principal: usize,
    pub(crate) limiter: Arc<dyn Limiter>,
    pub(crate) reloader: Option<Arc<dyn ReloadControl>>,
    pub(crate) audit: tooldock_sessions::audit::AuditSender,
    /// Launchers of the servers of namespaces whose tools come from an MCP server.
    pub(crate) externals: Option<Arc<dyn Launchers>>,
    /// HTTP client for remote servers.
    pub(crate) http_client: Option<Arc<dyn HttpClient>>,
    pub(crate) links: Option<Arc<dyn ConnectLinks>>,
    /// True to include the client mode for remote servers.
    pub(crate) connects: bool,
    /// Worker ports in place of the fake backend.
    pub(crate) ports: Option<Arc<dyn WorkerPorts>>,
    /// An upstream that the test defines.
    pub(crate) upstream: Option<Arc<dyn Upstream>>,
}

impl Default for Wanted {
    fn default() -> Self {
        Self {
            namespaces: vec![namespace("shared"), namespace("other"), broken("broken")],
            sessions: SessionsConfig::default(),
            session_bytes_per_principal: ByteSize::mib(64),
            streams_per_principal: 10,
            limiter: Arc::new(Unlimited),
            reloader: None,
            audit: Audit::off(),
            externals: None,
            http_client: None,
            links: None,
            connects: false,
            ports: None,
            upstream: None,
        }
    }
}

impl Wanted {
    pub(crate) fn build(self) -> Harness {
        let registry = Arc::new(Registry::default());
        registry.swap(snapshot(1, self.namespaces));
        let metrics = UpstreamMetrics::new(&prometheus::Registry::new()).expect("a fresh registry");
        let metrics = Arc::new(metrics);
        let backend = Arc::new(FakeBackend::default());
        let health = Arc::new(Health::new());
        let shadow = shadow::of_this_test();
        let parts = ServiceParts {
            stores: shadow.as_ref().map(Shadow::stores),
            registry: Arc::clone(&registry),
            reloader: self.reloader,
            sessions: self.sessions,
            sessions_per_principal: 100,
            session_bytes_per_principal: self.session_bytes_per_principal,
            replicas: tooldock_sessions::replicas::Replicas::alone(),
            session_key: SessionKey::from_text("a key for tests"),
            streams_per_principal: self.streams_per_principal,
            limiter: self.limiter,
            audit: self.audit,
            credentials: None,
            management: None,
            web: None,
            links: self.links,
            http_client: self.http_client,
            pages: None,
            answers: AnswerBudget::unbounded(),
            metrics: Arc::clone(&metrics),
            health: Arc::clone(&health),
        };
        let mut pools = None;
        let service = if self.connects {
            Service::with_servers(parts, process_host())
        } else {
            let fake = || Arc::new(Only(Arc::clone(&backend))) as Arc<dyn WorkerPorts>;
            let ports = self.ports.unwrap_or_else(fake);
            Service::with_upstreams(parts, |shared| {
                pools = self.externals.map(|launchers| {
                    let audience = Arc::clone(&shared.audience);
                    let stdio = metrics.stdio.clone();
                    let of_registry = Arc::clone(&registry);
                    Pools::new(launchers, Handle::current(), of_registry, audience, stdio)
                });
                let servers = pools.clone().map(|pools| shared.servers(pools));
                let kinds = self.upstream.into_iter().chain(servers).collect();
                Upstreams::new(kinds, shared.workers(ports))
            })
        };
        service.core().sessions.set_forgetful(shadow.is_some());
        Harness {
            registry,
            service,
            backend,
            health,
            metrics,
            pools,
        }
    }
}

/// The upstream of a namespace whose server the test plays.
pub(crate) fn external_upstream(settings: StdioSettings) -> UpstreamKind {
    let settings = StdioSettings {
        warm: 0,
        ..settings
    };
    UpstreamKind::External(played_server("shared", settings))
}

/// A process host that starts no process.
fn process_host() -> Arc<ProcessHost> {
    let metrics = WorkerMetrics::new(&prometheus::Registry::new());
    Arc::new(ProcessHost {
        sandbox: Default::default(),
        guard: "/nonexistent".into(),
        control: Handle::current(),
        runtimes: Arc::new(Runtimes::new()),
        metrics: Arc::new(metrics.expect("a fresh registry")),
        output: Default::default(),
    })
}

fn snapshot(generation: u64, namespaces: Vec<Namespace>) -> Snapshot {
    let named = |namespace: Namespace| (namespace.name.clone(), Arc::new(namespace));
    Snapshot {
        generation,
        namespaces: namespaces.into_iter().map(named).collect(),
    }
}

/// The harness with the usual options.
pub(crate) fn harness() -> Harness {
    Wanted::default().build()
}

/// The headers that a correct client sends.
pub(crate) fn head(session: Option<&str>, version: Option<&str>) -> McpHead {
    McpHead {
        session: session.map(str::to_owned),
        version: version.map(str::to_owned),
        accept: AcceptFlags {
            json_named: true,
            sse_named: true,
            json_acceptable: true,
            sse_acceptable: true,
        },
        ..McpHead::default()
    }
}

/// A REST request as the edge passes it on. Parses only as much of the path as the tests need; the edge has the table of
/// routes.
pub(crate) fn asked(path: &str, body: &[u8]) -> AdmittedRequest {
    let (path, query) = match path.split_once('?') {
        Some((path, query)) => (path, Some(query.to_owned())),
        None => (path, None),
    };
    let below_namespaces = path.strip_prefix("/namespaces/");
    let below = below_namespaces.and_then(|path| path.split_once('/'));
    let segments = below.map_or(&path[1..], |(_, below)| below);
    let segments: Vec<_> = segments.split('/').collect();
    let (route, tool) = match segments[..] {
        ["tools"] => (RouteId::Tools, None),
        ["tools", tool] => (RouteId::Tool, Some(tool)),
        ["tools", tool, "schema"] => (RouteId::ToolSchema, Some(tool)),
        ["openapi.json"] => (RouteId::OpenApi, None),
        ["namespaces"] => (RouteId::Namespaces, None),
        ["reload"] => (RouteId::Reload, None),
        ["health"] => (RouteId::Health, None),
        ["ready"] => (RouteId::Ready, None),
        [".well-known", ..] => (RouteId::WellKnown, None),
        _ => panic!("{path} is no path of REST"),
    };
    AdmittedRequest {
        route,
        method: Method::GET,
        head: McpHead::default(),
        session: None,
        tool: tool.map(str::to_owned),
        namespace_in_path: below.is_some(),
        accepts_v1: false,
        rest: None,
        known: None,
        query,
        body: Bytes::copy_from_slice(body),
        web: None,
    }
}

/// The status and the body of a reply, as JSON (`Null` if empty).
pub(crate) fn parts(reply: &Reply) -> (StatusCode, Value) {
    let body = body_of(reply);
    let value = if body.is_empty() {
        Value::Null
    } else {
        serde_json::from_slice(&body).expect("JSON")
    };
    (reply.head().status, value)
}

/// Reports that the reply was written to the client.
pub(crate) fn delivered(reply: Reply) {
    if let Reply::Opening { session, .. } = reply {
        session.delivered();
    }
}

impl Harness {
    /// Replaces the served namespaces.
    pub(crate) fn publish(&self, namespaces: Vec<Namespace>) {
        self.registry.swap(snapshot(2, namespaces));
    }

    /// Posts a message as the usual caller.
    pub(crate) async fn post(&self, head: McpHead, body: &str) -> (StatusCode, Value) {
        self.post_as(caller(), head, body).await
    }

    pub(crate) async fn post_as(
        &self,
        caller: Caller,
        head: McpHead,
        body: &str,
    ) -> (StatusCode, Value) {
        let body = Bytes::copy_from_slice(body.as_bytes());
        let reply = self.service.post(caller, head, body).await;
        let answer = parts(&reply);
        delivered(reply);
        answer
    }

    /// Initializes a session and returns its id. With `confirm`, sends `notifications/initialized`, too.
    pub(crate) async fn open(&self, version: &str, confirm: bool) -> String {
        let body = json!({
            "jsonrpc": "2.0", "id": "init-1", "method": "initialize",
            "params": { "protocolVersion": version, "capabilities": {}, "clientInfo": { "name": "t", "version": "1" } },
        });
        let reply = self
            .service
            .post(caller(), head(None, None), body.to_string().into())
            .await;
        let (name, id) = reply
            .head()
            .headers
            .last()
            .expect("a session header")
            .clone();
        assert_eq!(name, "mcp-session-id");
        let id = id.to_str().expect("visible ASCII").to_owned();
        delivered(reply);
        if confirm {
            let body = r#"{"jsonrpc":"2.0","method":"notifications/initialized","params":{}}"#;
            let answer = self.post(head(Some(&id), None), body).await;
            assert_eq!(answer, (StatusCode::ACCEPTED, Value::Null));
        }
        id
    }
}

/// The functions of MCP's paths, without the table of routes.
impl Service {
    pub(crate) async fn get(&self, caller: Caller, head: McpHead) -> Reply {
        mcp::get(self.core(), &caller, &head).await
    }

    pub(crate) async fn post(&self, caller: Caller, head: McpHead, body: Bytes) -> Reply {
        mcp::post(self.core(), &caller, &head, &body).await
    }

    pub(crate) async fn delete(&self, caller: Caller, head: McpHead) -> Reply {
        mcp::delete(self.core(), &caller, &head).await
    }

    pub(crate) async fn open_sse(&self, caller: Caller) -> Reply {
        legacy::open(self.core(), &caller).await
    }

    pub(crate) async fn post_message(
        &self,
        caller: Caller,
        session: Option<String>,
        head: McpHead,
        body: Bytes,
    ) -> Reply {
        legacy::post(self.core(), &caller, session.as_deref(), &head, &body).await
    }
}
