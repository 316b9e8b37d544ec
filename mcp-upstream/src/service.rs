//! What the edge calls: [`Service::handle`] is the one place where the id of a route becomes a function.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use bytesize::ByteSize;
use http::Method;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::runtime::Handle;
use tokio::time::{Instant, MissedTickBehavior};
use tooldock_workers::answers::AnswerBudget;
use tooldock_workers::external::ProcessHost;
use tooldock_workers::names::NamespaceName;
use tooldock_workers::poll_watch::{PollSubject, WatchedFuture};
use tooldock_workers::registry::{Registry, Snapshot};
use tooldock_workers::route::RouteId;
use tooldock_workers::startup;

use crate::audit::AuditSender;
use crate::broadcast::{Audience, follow};
use crate::caller::{Caller, RelayPeer};
use crate::credentials::Credentials;
use crate::engine::{Engine, Limiter};
use crate::error;
use crate::health::Health;
use crate::jsonrpc::RequestError;
use crate::mcp::head::McpHead;
use crate::mcp::modern::SuspendedCalls;
use crate::mcp::pass_through::PassThrough;
use crate::mcp::{self, Core, WebFacts};
use crate::metrics::UpstreamMetrics;
use crate::metrics::figures::{self, FigureNotes};
use crate::metrics::toolman::ToolmanMetrics;
use crate::pages::Pages;
use crate::profile::RestShape;
use crate::protocol::ProtocolVersion;
use crate::reload::ReloadControl;
use crate::replicas::Replicas;
use crate::reply::Reply;
use crate::rest::openapi::{Addresses, Asked};
use crate::seal::SessionKey;
use crate::session::SessionTable;
use crate::session::config::SessionsConfig;
use crate::session::table::TableLimits;
use crate::stdio::pool::Pools;
use crate::stores::Stores;
use crate::stream::open::OpenStreams;
use crate::stream::{EventLog, Pulse, StreamLimiter, in_memory};
use crate::supervise::supervise;
use crate::surface::relay::{self, Relay};
use crate::surface::stdio::{self, Ended};
use crate::upstream::aggregate::AggregateUpstream;
use crate::upstream::client::connector::Connector;
use crate::upstream::client::pools::PooledConnector;
use crate::upstream::client::{ClientUpstream, ExternalServers};
use crate::upstream::global::GlobalUpstream;
use crate::upstream::http::launch::AllLaunchers;
use crate::upstream::http::port::HttpClient;
use crate::upstream::system::{Management, SystemPort};
use crate::upstream::worker::{WorkerPort, WorkerPorts, WorkerUpstream, Workers};
use crate::upstream::{SessionChanges, Upstream, Upstreams, gauge};
use crate::web::{self, WebRequest};
use crate::{legacy, rest};

mod own_core;

pub use own_core::OwnCore;

/// What the service is made of.
pub struct ServiceParts {
    /// What is served now.
    pub registry: Arc<Registry>,
    /// Who reloads; without one `POST /reload` answers 503.
    pub reloader: Option<Arc<dyn ReloadControl>>,
    /// The keys `sessions:`.
    pub sessions: SessionsConfig,
    /// Sessions one principal may hold.
    pub sessions_per_principal: usize,
    /// What the sessions of one principal may hold together, and its listeners once more.
    pub session_bytes_per_principal: ByteSize,
    /// Seals session ids and what clients of 2026-07-28 carry between their requests.
    pub session_key: SessionKey,
    /// Where sessions are kept so that they outlive this process. Without, they end with it.
    pub stores: Option<Stores>,
    /// The replicas that share the store.
    pub replicas: Arc<Replicas>,
    /// Long streams one principal may hold open.
    pub streams_per_principal: usize,
    /// Limits counted in tool calls.
    pub limiter: Arc<dyn Limiter>,
    /// Where audit records go.
    pub audit: AuditSender,
    /// Whom names stand for, to explain their rights.
    pub credentials: Option<Arc<dyn Credentials>>,
    /// The management tools, where this process has them.
    pub management: Option<Arc<Management>>,
    /// What the web UI is told, where this process serves one.
    pub web: Option<WebFacts>,
    /// Reaches remote servers; without one, calls of such a namespace fail.
    pub http_client: Option<Arc<dyn HttpClient>>,
    /// The single-page app of `/ui/`.
    pub pages: Option<Arc<Pages>>,
    /// The bound on the memory of all answers.
    pub answers: Arc<AnswerBudget>,
    /// Counters.
    pub metrics: Arc<UpstreamMetrics>,
    /// What `/health` and `/ready` answer from.
    pub health: Arc<Health>,
}

/// An admitted request, as far as it is not the caller's.
#[derive(Debug, Clone)]
pub struct AdmittedRequest {
    /// What it is for.
    pub route: RouteId,
    /// Its method, which the route knows.
    pub method: Method,
    /// The headers of MCP, on such a route.
    pub head: McpHead,
    /// The session that the query names, on a route that asks for it.
    pub session: Option<String>,
    /// The tool that the path names.
    pub tool: Option<String>,
    /// What the path has behind the route's own part, decoded.
    pub rest: Option<String>,
    /// The tags of what the client has already (`If-None-Match`), where files are served.
    pub known: Option<String>,
    /// Whether the path names the namespace.
    pub namespace_in_path: bool,
    /// Whether the client asks for the shapes of version 1.
    pub accepts_v1: bool,
    /// The query, outside MCP.
    pub query: Option<String>,
    /// The body, empty on a route that takes none.
    pub body: Bytes,
    /// What the API of the web UI reads of the request, on its route.
    pub web: Option<Box<WebRequest>>,
}

/// What upstreams share with the surfaces.
pub(crate) struct Shared {
    registry: Arc<Registry>,
    changes: SessionChanges,
    /// Who hears of a namespace's changes.
    pub(crate) audience: Arc<Audience>,
    events: Arc<EventLog>,
    key: SessionKey,
}

impl Shared {
    /// Namespaces of functions, and all that no other kind serves.
    pub(crate) fn workers(&self, ports: Arc<dyn WorkerPorts>) -> Arc<dyn Upstream> {
        Arc::new(WorkerUpstream::new(ports, self.changes.clone()))
    }

    /// Namespaces that are several others, which are servers or functions.
    fn aggregates(
        &self,
        registry: Arc<Registry>,
        members: (Arc<dyn Upstream>, Arc<dyn Upstream>),
        metrics: ToolmanMetrics,
        control: Handle,
    ) -> Arc<dyn Upstream> {
        Arc::new(AggregateUpstream::new(
            registry,
            members,
            Arc::clone(&self.audience),
            self.changes.clone(),
            self.key.clone(),
            metrics,
            control,
        ))
    }

    /// Namespaces whose server speaks MCP.
    pub(crate) fn servers(&self, connector: Arc<dyn Connector>) -> Arc<dyn Upstream> {
        let servers = ExternalServers::new(
            connector,
            Arc::clone(&self.registry),
            Arc::clone(&self.audience),
            Arc::clone(&self.events),
            self.key.clone(),
            self.changes.clone(),
        );
        Arc::new(ClientUpstream(servers))
    }
}

/// An answer that is on its way. Its polls are timed.
pub type PendingReply<'a> = WatchedFuture<'a, Answer<'a>>;

/// An answer in the making.
pub type Answer<'a> = Pin<Box<dyn Future<Output = Reply> + Send + 'a>>;

/// An answer that nobody waits for.
fn at_once<'a>(reply: Reply) -> Answer<'a> {
    Box::pin(std::future::ready(reply))
}

/// The service behind the edge. Cheap to clone.
#[derive(Clone)]
pub struct Service {
    core: Arc<Core>,
    readmissions: Arc<AtomicU64>,
    /// Where there are external servers.
    pools: Option<Arc<Pools>>,
}

impl Service {
    /// The service over the registry's upstreams, its external servers included: their processes are the service's.
    pub fn with_servers(parts: ServiceParts, host: Arc<ProcessHost>) -> Self {
        let client = parts.http_client.clone();
        let registry = Arc::clone(&parts.registry);
        let metrics = parts.metrics.stdio.clone();
        let toolman = parts.metrics.toolman.clone();
        if let Some(management) = &parts.management {
            registry.set_system(Arc::new(management.namespace()));
        }
        let system = parts.management.clone().map(SystemPort::new).map(Arc::new);
        let ports = Arc::new(Workers {
            registry: Arc::clone(&registry),
            system: system.map(|port| port as Arc<dyn WorkerPort>),
        });
        let mut made = None;
        let mut service = Self::with_upstreams(parts, |shared| {
            let launchers = AllLaunchers::new(&host, client, registry.personal());
            let control = host.control.clone();
            let audience = Arc::clone(&shared.audience);
            let aggregating = control.clone();
            let of_registry = Arc::clone(&registry);
            let pools = Pools::new(launchers, control, registry, audience, metrics);
            made = Some(Arc::clone(&pools));
            let servers = shared.servers(Arc::new(PooledConnector(pools)));
            let workers = shared.workers(ports);
            let members = (Arc::clone(&servers), Arc::clone(&workers));
            let aggregates = shared.aggregates(of_registry, members, toolman, aggregating);
            Upstreams::new(vec![aggregates, servers], workers)
        });
        service.pools = made;
        service
    }

    /// Ends the processes of external servers: those in use get `grace`. For the end of the gateway.
    pub async fn end_servers(&self, grace: Duration) {
        self.core.upstreams.stop();
        if let Some(pools) = &self.pools {
            pools.shutdown(grace).await;
        }
    }

    /// The service over these upstreams.
    pub(crate) fn with_upstreams(
        parts: ServiceParts,
        upstreams: impl FnOnce(&Shared) -> Upstreams,
    ) -> Self {
        let limits = TableLimits {
            ttl: parts.sessions.ttl,
            unused_ttl: parts.sessions.unused_ttl,
            max: parts.sessions.max,
            per_principal: parts.sessions_per_principal,
            bytes: in_memory(parts.sessions.bytes),
            bytes_per_principal: in_memory(parts.session_bytes_per_principal),
        };
        let stream_metrics = Arc::clone(&parts.metrics.streams);
        let pulse = Pulse::measured(parts.sessions.keepalive, Arc::clone(&stream_metrics));
        let log = parts.sessions.event_log.clone();
        let events = EventLog::new(log, Arc::clone(&pulse), stream_metrics);
        let (store, events) = match parts.stores {
            Some(stores) => (Some(stores.sessions), events.with_store(stores.events)),
            None => (None, events),
        };
        let events = Arc::new(events);
        let key = parts.session_key.clone();
        let sessions = SessionTable::new(
            limits,
            key,
            Arc::clone(&events),
            store,
            Arc::clone(&parts.replicas),
        );
        let sessions = Arc::new(sessions);
        let audience = Audience::among(Arc::clone(&events), Arc::clone(&parts.replicas));
        let shared = Shared {
            registry: Arc::clone(&parts.registry),
            changes: SessionChanges::new(Arc::clone(&sessions), Arc::clone(&parts.metrics)),
            audience: Arc::clone(&audience),
            events: Arc::clone(&events),
            key: parts.session_key.clone(),
        };
        let upstreams = upstreams(&shared);
        let global = GlobalUpstream::new(
            Arc::clone(&parts.registry),
            upstreams.clone(),
            shared.changes.clone(),
        );
        let upstreams = upstreams.with(Arc::new(global));
        let passing = PassThrough::new(parts.http_client.clone(), Arc::clone(&parts.metrics));
        let registry = Arc::clone(&parts.registry);
        let core = Arc::new(Core {
            registry: parts.registry,
            reloader: parts.reloader,
            sessions,
            changes: shared.changes,
            engine: Engine {
                limiter: parts.limiter,
                audit: parts.audit,
                metrics: Arc::clone(&parts.metrics),
                audience: Arc::clone(&audience),
                answers: parts.answers,
                registry,
            },
            upstreams,
            http_client: parts.http_client,
            pages: parts.pages,
            metrics: parts.metrics,
            health: parts.health,
            events,
            audience,
            pulse,
            open_streams: OpenStreams::default(),
            stream_limiter: StreamLimiter::new(
                parts.streams_per_principal,
                in_memory(parts.session_bytes_per_principal),
            ),
            poll_after: parts.sessions.poll_after,
            passing,
            suspended: SuspendedCalls::new(parts.session_key, parts.replicas),
            credentials: parts.credentials,
            management: parts.management,
            web: parts.web.map(Arc::new),
            figures: FigureNotes::default(),
        });
        Self {
            core,
            readmissions: Arc::default(),
            pools: None,
        }
    }

    /// Answers an admitted request. Dropping the future, or the streamed body it answered with, cancels a tool call that
    /// has no session; a call made in a session goes on.
    pub fn handle(&self, caller: Caller, request: AdmittedRequest) -> PendingReply<'_> {
        let subject = PollSubject {
            route: request.route.label(),
            namespace: caller.namespace.clone(),
        };
        let polls = &self.core.metrics.polls;
        polls.over(subject, || self.answer(caller, request))
    }

    fn answer(&self, caller: Caller, request: AdmittedRequest) -> Answer<'_> {
        let registry = &self.core.registry;
        if !registry.startup().is_running() || !is_about_all(&caller, &request) {
            return self.answer_now(caller, request);
        }
        Box::pin(async move {
            if registry.wait_for_scan().await {
                return self.answer_now(caller, request).await;
            }
            let failed = startup::starting(&NamespaceName::global());
            match request.route {
                RouteId::Mcp | RouteId::Sse | RouteId::Messages => {
                    RequestError::Upstream(failed).reply(None)
                }
                _ => error::rest_starting(&failed),
            }
        })
    }

    /// Each function is boxed on its own: one future with room for all of them would be moved about with every request.
    fn answer_now(&self, caller: Caller, request: AdmittedRequest) -> Answer<'_> {
        let core = &self.core;
        let AdmittedRequest {
            head, body, query, ..
        } = request;
        let tool = request.tool.unwrap_or_default();
        let shape = match request.accepts_v1 {
            true => RestShape::V1,
            false => caller.profile.rest_shape,
        };
        match request.route {
            RouteId::Mcp => match request.method {
                Method::GET => Box::pin(async move { mcp::get(core, &caller, &head).await }),
                Method::DELETE => Box::pin(async move { mcp::delete(core, &caller, &head).await }),
                _ => Box::pin(async move { mcp::post(core, &caller, &head, &body).await }),
            },
            RouteId::Sse => Box::pin(async move { legacy::open(core, &caller).await }),
            RouteId::Messages => Box::pin(async move {
                let session = request.session.as_deref();
                legacy::post(core, &caller, session, &head, &body).await
            }),
            RouteId::Tool => {
                Box::pin(async move { rest::tools::call(core, caller, &tool, body, shape).await })
            }
            RouteId::Tools => Box::pin(rest::tools::list_as(core, caller, shape)),
            RouteId::ToolIndex if request.method == Method::POST => {
                Box::pin(async move { rest::tools::call(core, caller, "list", body, shape).await })
            }
            RouteId::ToolIndex => Box::pin(rest::vault::index(core, caller)),
            RouteId::VaultCall => Box::pin(rest::vault::call(core, caller, body)),
            RouteId::McpNamespaces => at_once(rest::info::namespaces(core, &caller)),
            RouteId::McpInfo => Box::pin(rest::info::endpoint(core, caller)),
            RouteId::ToolSchema => {
                Box::pin(async move { rest::tools::schema(core, caller, &tool).await })
            }
            RouteId::OpenApi => {
                let addresses = match request.namespace_in_path {
                    true => Addresses::Path,
                    false => Addresses::Header,
                };
                Box::pin(async move {
                    let asked = Asked {
                        query: query.as_deref(),
                        addresses,
                        shape,
                    };
                    rest::openapi::document(core, &caller, asked).await
                })
            }
            RouteId::Namespaces => at_once(rest::namespaces::list(core, &caller)),
            RouteId::Reload => Box::pin(rest::reload::reload(core)),
            RouteId::Explain => Box::pin(rest::explain::explain(core, body)),
            RouteId::Output => Box::pin(rest::output::output(core, body)),
            RouteId::Health => at_once(rest::public::health(core, &caller)),
            RouteId::Ready => at_once(rest::public::ready(core, &caller)),
            RouteId::Api => match request.web {
                Some(web) => {
                    let method = request.method;
                    Box::pin(
                        async move { web::handle(core, caller, method, query, body, *web).await },
                    )
                }
                None => at_once(rest::not_found()),
            },
            RouteId::Ui => at_once(match &core.pages {
                Some(pages) => pages.get(
                    request.rest.as_deref(),
                    &caller.profile.path_prefix,
                    request.known.as_deref(),
                ),
                None => rest::not_found(),
            }),
            // There is no OAuth yet, and the edge writes the counters and the page.
            RouteId::WellKnown | RouteId::Metrics | RouteId::WebPage | RouteId::WebAsset => {
                at_once(rest::not_found())
            }
        }
    }

    /// Serves one client over a pair of pipes, one message a line, until the client closes them or `stop` is there. The
    /// client's session has ended then; the upstreams go on.
    pub async fn serve_lines(
        &self,
        caller: Caller,
        input: impl AsyncRead + Send + Unpin + 'static,
        output: impl AsyncWrite + Send + Unpin + 'static,
        stop: impl Future<Output = ()>,
    ) -> Ended {
        stdio::serve(Arc::clone(&self.core), caller, input, output, stop).await
    }

    /// Serves one client of the relay until it has closed the connection. From `stop` on no further frame is read, and
    /// calls that run are answered; `gone` is there when the client has closed its reading end, too.
    pub async fn serve_relay(
        &self,
        relay: Arc<Relay>,
        client: (relay::Guest, RelayPeer),
        socket: (
            impl AsyncRead + Send + Unpin + 'static,
            impl AsyncWrite + Send + Unpin + 'static,
        ),
        gone: impl Future<Output = ()>,
        stop: impl Future<Output = ()>,
    ) {
        relay::serve(Arc::clone(&self.core), relay, client, socket, gone, stop).await;
    }

    /// Brings the metrics up to date that tell of states: to be called before the metrics are read.
    pub fn show_conditions(&self) {
        rest::condition::show(&self.core);
    }

    /// Notes the counters of calls every few seconds, for the figures of the web UI. Never ends.
    pub async fn note_figures(&self) {
        let mut tick = tokio::time::interval(figures::EVERY);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            self.core.figures.note(&self.core.metrics);
        }
    }

    /// What the handlers work on, for tests of one of them.
    #[cfg(test)]
    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.core
    }

    /// The protocol version of a principal's session, if this process knows the session. For checks before the body is
    /// read: does not wait, and does not count as a use of the session. Whether the session belongs to the namespace is
    /// checked later.
    pub fn session_version(
        &self,
        session_header: &str,
        principal: Option<&str>,
    ) -> Option<ProtocolVersion> {
        let session = self.core.sessions.live(session_header)?;
        (session.binding().principal.as_deref() == principal).then(|| session.version())
    }

    /// The namespace a session talks to, for `POST /messages` without `X-Namespace`. As little a use of the session as
    /// [`Service::session_version`].
    pub fn session_namespace(&self, session_id: &str) -> Option<NamespaceName> {
        let sessions = &self.core.sessions;
        match sessions.live(session_id) {
            Some(session) => Some(session.binding().namespace.clone()),
            None => sessions.sealed_namespace(session_id),
        }
    }

    /// Ends the sessions and the suspended calls of principals that are lost, and with them the memory and the processes
    /// that they have for themselves: no request of theirs will be admitted any more.
    pub async fn end_principals(&self, is_lost: impl Fn(&str) -> bool) {
        self.core.suspended.end_of(&is_lost);
        for session in self.core.sessions.all() {
            let principal = session.binding().principal.as_deref();
            if principal.is_some_and(&is_lost) {
                // A store that cannot be asked has said so in the log, and forgets by time.
                let _ = crate::mcp::forget_session(&self.core, &session).await;
            }
        }
    }

    /// The answer to a request that was forwarded to a replica which ended before it answered.
    pub fn replica_lost(&self) -> Reply {
        RequestError::ReplicaLost.reply(None)
    }

    /// Tells the clients of this replica of a change that was announced at another one.
    pub fn hear(&self, news: &str) {
        self.core.audience.hear(news);
    }

    /// The replicas that share the store.
    pub fn replicas(&self) -> &Arc<Replicas> {
        self.core.sessions.replicas()
    }

    /// Ends every stream so that its client comes back elsewhere. For the drain; streams opened afterwards end at once.
    pub fn end_streams(&self) {
        self.core.pulse.end_all();
    }

    /// Ends the long streams there are, so that their clients come back and are admitted again: for when the rules of
    /// admission have changed. The rules are to be in force before. Clients that resume lose nothing.
    pub fn readmit_streams(&self) {
        // Counted before the streams are ended: whoever opens one beside this is either ended here or sees the count.
        self.readmissions.fetch_add(1, Ordering::SeqCst);
        self.core.pulse.end_present();
    }

    /// How often streams had to be admitted again. A stream whose request was admitted at another count than there is
    /// when it has been opened was admitted by rules that are no longer in force.
    pub fn readmissions(&self) -> u64 {
        self.readmissions.load(Ordering::SeqCst)
    }

    /// What streams need between requests: their keepalives, notice of what the registry now serves, and another
    /// admission when somebody may have lost a namespace by it. Runs until it is dropped.
    ///
    /// One of the three that panics is begun again, and disturbs neither of the others.
    pub async fn run_streams(&self) {
        let news = || {
            let (audience, registry) = (&self.core.audience, &self.core.registry);
            follow(Arc::clone(audience), Arc::clone(registry))
        };
        let mut readmitting = false;
        let readmission = || {
            // What was published while nobody followed is not known: as if somebody had lost a namespace.
            if std::mem::replace(&mut readmitting, true) {
                self.readmit_streams();
            }
            self.readmit_by_registry()
        };
        tokio::join!(
            supervise("the keepalives of streams", || self.core.pulse.run()),
            supervise("the notices of changed namespaces", news),
            supervise("the readmission of streams", readmission)
        );
    }

    /// Readmits the streams of all namespaces when one of them goes or changes who may use it: rare enough that the
    /// others may come back, too.
    async fn readmit_by_registry(&self) {
        let mut published = self.core.registry.subscribe();
        let mut seen = self.core.registry.snapshot();
        while published.changed().await.is_ok() {
            let next = Arc::clone(&published.borrow_and_update());
            if admits_others(&seen, &next) {
                self.readmit_streams();
            }
            seen = next;
        }
    }

    /// Ends the sessions whose time is up and forgets events as old as that. To be called every second or so.
    pub async fn evict_expired(&self) {
        let now = Instant::now();
        self.core.events.sweep(now);
        let expired = self.core.sessions.evict_expired(now).await;
        self.core.metrics.sessions_expired.inc_by(expired as u64);
        let alive = gauge(self.core.sessions.count());
        self.core.metrics.sessions.set(alive);
        let unrecorded = gauge(self.core.sessions.unrecorded());
        self.core.metrics.sessions_unrecorded.set(unrecorded);
        let replicas = self.core.sessions.replicas().state();
        let up = replicas.map_or(0, |it| it.others.len() + 1);
        self.core.metrics.replicas_up.set(gauge(up));
        let bytes = gauge(self.core.sessions.bytes());
        self.core.metrics.session_bytes.set(bytes);
    }
}

/// Whether a request is about all namespaces at once.
fn is_about_all(caller: &Caller, request: &AdmittedRequest) -> bool {
    let all = caller.namespace.as_ref().is_some_and(|it| it.is_global());
    all || matches!(
        request.route,
        RouteId::Namespaces | RouteId::McpNamespaces | RouteId::McpInfo
    )
}

/// Whether a namespace that was there is gone, or is open to others than before.
fn admits_others(before: &Snapshot, after: &Snapshot) -> bool {
    before.namespaces.iter().any(|(name, old)| {
        let new = after.namespaces.get(name);
        new.is_none_or(|new| !new.limits.same_principals(&old.limits))
    })
}

#[cfg(test)]
mod tests;
