//! The function by which the edge calls this crate: [`Service::handle`] maps the id of a route to its handler. No other code
//! maps routes.

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
use tooldock_base::answers::AnswerBudget;
use tooldock_base::names::NamespaceName;
use tooldock_base::poll_watch::{PollSubject, WatchedFuture};
use tooldock_base::route::RouteId;
use tooldock_base::trace::TraceSink;
use tooldock_engine::connect_links::ConnectLinks;
use tooldock_engine::engine::{Engine, Limiter};
use tooldock_engine::hooks::Hooks;
use tooldock_engine::metrics::UpstreamMetrics;
use tooldock_engine::metrics::figures::{self, FigureNotes};
use tooldock_engine::metrics::toolman::ToolmanMetrics;
use tooldock_engine::supervise::supervise;
use tooldock_engine::upstream::aggregate::AggregateUpstream;
use tooldock_engine::upstream::client::{ClientUpstream, ExternalServers};
use tooldock_engine::upstream::global::GlobalUpstream;
use tooldock_engine::upstream::system::{Management, SystemPort};
use tooldock_engine::upstream::worker::{WorkerPort, WorkerPorts, WorkerUpstream, Workers};
use tooldock_engine::upstream::{SessionChanges, Upstream, Upstreams, gauge};
use tooldock_servers::http::launch::AllLaunchers;
use tooldock_servers::http::port::HttpClient;
use tooldock_servers::pool::Pools;
use tooldock_sessions::audit::AuditSender;
use tooldock_sessions::broadcast::{Audience, follow};
use tooldock_sessions::caller::{Caller, RelayPeer};
use tooldock_sessions::profile::RestShape;
use tooldock_sessions::replicas::Replicas;
use tooldock_sessions::session::SessionTable;
use tooldock_sessions::session::config::SessionsConfig;
use tooldock_sessions::session::table::TableLimits;
use tooldock_sessions::stores::Stores;
use tooldock_sessions::stream::open::OpenStreams;
use tooldock_sessions::stream::{EventLog, KeepAlive, StoreError, StreamLimiter, in_memory};
use tooldock_sessions::tasks::MemoryTasks;
use tooldock_workers::external::ProcessHost;
use tooldock_workers::registry::{Registry, Snapshot, startup};

use crate::credentials::Credentials;
use crate::error::{self, ToReply as _};
use crate::health::Health;
use crate::jsonrpc::RequestError;
use crate::mcp::head::McpHead;
use crate::mcp::modern::SuspendedCalls;
use crate::mcp::pass_through::UpstreamSessions;
use crate::mcp::tasks::Tasks;
use crate::mcp::{self, Core, WebFacts};
use crate::pages::Pages;
use crate::probe::Probes;
use crate::protocol::ProtocolVersion;
use crate::reload::ReloadControl;
use crate::reply::Reply;
use crate::rest::openapi::{Addresses, DocumentRequest};
use crate::seal::SessionKey;
use crate::surface::relay::{self, Relay};
use crate::surface::stdio::{self, ConversationEnd};
use crate::web::{self, WebRequest};
use crate::{legacy, rest};

mod hook_targets;
mod own_core;
mod pins;

pub use own_core::OwnCore;

/// The objects and settings from which a [`Service`] is built.
pub struct ServiceParts {
    /// The registry of served namespaces.
    pub registry: Arc<Registry>,
    /// Component that reloads namespaces; without it, `POST /reload` is answered with 503.
    pub reloader: Option<Arc<dyn ReloadControl>>,
    /// The configuration section `sessions`.
    pub sessions: SessionsConfig,
    /// Maximum number of sessions of one principal; opening one more evicts the oldest.
    pub sessions_per_principal: usize,
    /// Maximum memory of all sessions of one principal together. The same maximum applies separately to the memory of the
    /// principal's long streams.
    pub session_bytes_per_principal: ByteSize,
    /// Key that seals session ids, and the states that the gateway gives clients of 2026-07-28 for their retried requests.
    pub session_key: SessionKey,
    /// The stores that keep sessions beyond this process; without them, sessions end with the process.
    pub stores: Option<Stores>,
    /// The replicas of the gateway that share the store.
    pub replicas: Arc<Replicas>,
    /// Maximum number of long streams that one principal may have open.
    pub streams_per_principal: usize,
    /// Rate limits on the number of tool calls.
    pub limiter: Arc<dyn Limiter>,
    /// Sender of audit records to the audit log.
    pub audit: AuditSender,
    /// Store of credentials, used to explain a credential's rights.
    pub credentials: Option<Arc<dyn Credentials>>,
    /// The management tools; `None` if this process does not offer them.
    pub management: Option<Arc<Management>>,
    /// Information about the process for the web UI; `None` if this process does not serve the web UI.
    pub web: Option<WebFacts>,
    /// HTTP client for remote servers; without it, calls of their tools fail.
    pub http_client: Option<Arc<dyn HttpClient>>,
    /// Links to pages on which principals give their personal credentials for servers; `None` if there are no such pages.
    pub links: Option<Arc<dyn ConnectLinks>>,
    /// The single-page app served at `/ui/`; `None` if there is none.
    pub pages: Option<Arc<Pages>>,
    /// Limit on the memory of all replies together.
    pub answers: Arc<AnswerBudget>,
    /// The metrics of the service.
    pub metrics: Arc<UpstreamMetrics>,
    /// The state that `/health` and `/ready` report.
    pub health: Arc<Health>,
}

/// A request that the edge has admitted. The caller is passed separately.
#[derive(Debug, Clone)]
pub struct AdmittedRequest {
    /// The route of the request.
    pub route: RouteId,
    /// The HTTP method. The route allows it.
    pub method: Method,
    /// The request headers that MCP defines, on routes of MCP.
    pub head: McpHead,
    /// The session id in the query string, on routes that read it.
    pub session: Option<String>,
    /// The tool's name in the path, on routes that have it.
    pub tool: Option<String>,
    /// The decoded path after the route's prefix.
    pub rest: Option<String>,
    /// The value of `If-None-Match`: the tags of the client's cached copies, on routes of files.
    pub known: Option<String>,
    /// True if the namespace was named by the path; false if by a header or by the listener.
    pub namespace_in_path: bool,
    /// True if the client requests responses in the format of version 1.
    pub accepts_v1: bool,
    /// The query string, on routes outside MCP.
    pub query: Option<String>,
    /// The body; empty on routes without a body.
    pub body: Bytes,
    /// The properties of the request that the web UI's API reads; `None` on other routes.
    pub web: Option<Box<WebRequest>>,
}

/// State that is shared by upstreams and surfaces, available while the service is built.
pub(crate) struct ServiceState {
    registry: Arc<Registry>,
    changes: SessionChanges,
    /// The streams and sessions that are notified of changes in namespaces.
    pub(crate) audience: Arc<Audience>,
    events: Arc<EventLog>,
    key: SessionKey,
    links: Option<Arc<dyn ConnectLinks>>,
}

impl ServiceState {
    /// Creates the upstream for namespaces of Python functions. It also serves all namespaces for which there is no other
    /// upstream.
    pub(crate) fn workers(&self, ports: Arc<dyn WorkerPorts>) -> Arc<dyn Upstream> {
        Arc::new(WorkerUpstream::new(ports, self.changes.clone()))
    }

    /// Creates the upstream for aggregates, whose members are MCP servers or Python functions.
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

    /// Creates the upstream for namespaces whose tools come from an MCP server.
    pub(crate) fn servers(&self, pools: Arc<Pools>) -> Arc<dyn Upstream> {
        let servers = ExternalServers::new(
            pools,
            Arc::clone(&self.registry),
            Arc::clone(&self.audience),
            Arc::clone(&self.events),
            self.key.clone(),
            self.changes.clone(),
            self.links.clone(),
        );
        Arc::new(ClientUpstream(servers))
    }
}

/// A future of a reply. The time of each poll is measured, to detect polls that block a thread.
pub type PendingReply<'a> = WatchedFuture<'a, Answer<'a>>;

/// A boxed future of a reply.
pub type Answer<'a> = Pin<Box<dyn Future<Output = Reply> + Send + 'a>>;

/// Returns a future for a reply that is already complete.
fn at_once<'a>(reply: Reply) -> Answer<'a> {
    Box::pin(std::future::ready(reply))
}

/// The service that answers the requests admitted by the edge. Cheap to clone.
#[derive(Clone)]
pub struct Service {
    core: Arc<Core>,
    readmissions: Arc<AtomicU64>,
    /// The connection pools of external servers; `None` if the service was built without external servers.
    pools: Option<Arc<Pools>>,
}

impl Service {
    /// Builds the service with all kinds of upstreams. The service owns the processes of external servers.
    pub fn with_servers(parts: ServiceParts, host: Arc<ProcessHost>) -> Self {
        let client = parts.http_client.clone();
        let registry = Arc::clone(&parts.registry);
        let metrics = parts.metrics.stdio.clone();
        let toolman = parts.metrics.toolman.clone();
        if let Some(management) = &parts.management {
            registry.set_system(Arc::new(management.namespace()));
        }
        let pins = registry.pins().cloned();
        if let Some(pins) = &pins {
            pins::report(pins, parts.audit.clone());
        }
        let system = parts.management.clone().map(SystemPort::new).map(Arc::new);
        let ports = Arc::new(Workers {
            registry: Arc::clone(&registry),
            system: system.map(|port| port as Arc<dyn WorkerPort>),
        });
        let mut made = None;
        let mut service = Self::with_upstreams(parts, |shared| {
            let launchers = AllLaunchers::new(&host, client, &registry);
            let control = host.control.clone();
            let audience = Arc::clone(&shared.audience);
            let aggregating = control.clone();
            let of_registry = Arc::clone(&registry);
            let pools = Pools::new(launchers, control, registry, audience, metrics);
            if let Some(pins) = pins {
                let (pools, audience) = (Arc::downgrade(&pools), Arc::clone(&shared.audience));
                host.control.spawn(pins::announce(pins, pools, audience));
            }
            made = Some(Arc::clone(&pools));
            let servers = shared.servers(pools);
            let workers = shared.workers(ports);
            let members = (Arc::clone(&servers), Arc::clone(&workers));
            let aggregates = shared.aggregates(of_registry, members, toolman, aggregating);
            Upstreams::new(vec![aggregates, servers], workers)
        });
        service.pools = made;
        service
    }

    /// Ends the processes of external servers when the gateway stops. Processes that run calls get `grace` to finish them.
    pub async fn end_servers(&self, grace: Duration) {
        self.core.upstreams.stop();
        if let Some(pools) = &self.pools {
            pools.shutdown(grace).await;
        }
        if let Some(pins) = self.core.registry.pins().cloned() {
            let _ = tokio::task::spawn_blocking(move || pins.settle()).await;
        }
    }

    /// Builds the service with these upstreams.
    pub(crate) fn with_upstreams(
        parts: ServiceParts,
        upstreams: impl FnOnce(&ServiceState) -> Upstreams,
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
        let keep_alive = KeepAlive::measured(parts.sessions.keepalive, Arc::clone(&stream_metrics));
        let log = parts.sessions.event_log.clone();
        let events = EventLog::new(log, Arc::clone(&keep_alive), stream_metrics);
        let (store, events, tasks) = match parts.stores {
            Some(stores) => {
                let events = events.with_store(stores.events);
                (Some(stores.sessions), events, stores.tasks)
            }
            None => (None, events, Arc::new(MemoryTasks::default()) as _),
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
        let shared = ServiceState {
            registry: Arc::clone(&parts.registry),
            changes: SessionChanges::new(Arc::clone(&sessions), Arc::clone(&parts.metrics)),
            audience: Arc::clone(&audience),
            events: Arc::clone(&events),
            key: parts.session_key.clone(),
            links: parts.links.clone(),
        };
        let upstreams = upstreams(&shared);
        let global = GlobalUpstream::new(
            Arc::clone(&parts.registry),
            upstreams.clone(),
            shared.changes.clone(),
        );
        let upstreams = upstreams.with(Arc::new(global));
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
                hooks: Hooks::default(),
            },
            upstreams,
            http_client: parts.http_client,
            pages: parts.pages,
            metrics: parts.metrics,
            health: parts.health,
            events,
            audience,
            keep_alive,
            open_streams: OpenStreams::default(),
            stream_limiter: StreamLimiter::new(
                parts.streams_per_principal,
                in_memory(parts.session_bytes_per_principal),
            ),
            poll_after: parts.sessions.poll_after,
            upstream_sessions: UpstreamSessions::default(),
            probes: Probes::new(parts.session_key.clone()),
            tasks: Tasks::new(tasks, Arc::clone(&parts.replicas)),
            suspended: SuspendedCalls::new(parts.session_key, parts.replicas),
            credentials: parts.credentials,
            links: parts.links,
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

    /// Answers an admitted request. A tool call without a session is cancelled when the future, or the streamed body of its
    /// reply, is dropped. A call in a session continues.
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

    /// Calls the handler of the route. Each handler's future is boxed separately: a single future for all routes would be as
    /// large as the largest of them and would be moved with every request.
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
                    let asked = DocumentRequest {
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
            // The edge itself answers requests for OAuth metadata, the metrics and the page.
            RouteId::WellKnown
            | RouteId::Metrics
            | RouteId::WebPage
            | RouteId::WebAsset
            | RouteId::WebLogin
            | RouteId::Connect
            | RouteId::FrontProbe => at_once(rest::not_found()),
        }
    }

    /// Serves one client over a pair of pipes, one message per line, until the client closes them or `stop` resolves. The
    /// client's session has ended when this returns; the upstreams continue to run. `traces`: receiver of finished requests for
    /// the export of traces.
    pub async fn serve_lines(
        &self,
        (caller, traces): (Caller, Option<Arc<dyn TraceSink>>),
        input: impl AsyncRead + Send + Unpin + 'static,
        output: impl AsyncWrite + Send + Unpin + 'static,
        stop: impl Future<Output = ()>,
    ) -> ConversationEnd {
        stdio::serve(
            Arc::clone(&self.core),
            (caller, traces),
            input,
            output,
            stop,
        )
        .await
    }

    /// Serves one client of the relay until it closes the connection. Once `stop` resolves, no further frame is read, and running
    /// calls are still answered. `gone` resolves when the client has also closed its reading end.
    pub async fn serve_relay(
        &self,
        relay: Arc<Relay>,
        client: (relay::RelayRegistration, RelayPeer),
        socket: (
            impl AsyncRead + Send + Unpin + 'static,
            impl AsyncWrite + Send + Unpin + 'static,
        ),
        gone: impl Future<Output = ()>,
        stop: impl Future<Output = ()>,
    ) {
        relay::serve(Arc::clone(&self.core), relay, client, socket, gone, stop).await;
    }

    /// Updates the gauges of namespaces, members and tools. Must be called before the metrics are exported.
    pub fn show_conditions(&self) {
        rest::condition::show(&self.core);
    }

    /// Reads the counters of calls every few seconds, for the figures in the web UI. Never returns.
    pub async fn note_figures(&self) {
        let mut tick = tokio::time::interval(figures::EVERY);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            self.core.figures.note(&self.core.metrics);
        }
    }

    /// Returns the state of the handlers, for tests of a single handler.
    #[cfg(test)]
    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.core
    }

    /// Returns the protocol version of a principal's session; `None` if this process does not have the session. The edge uses it
    /// for checks before it reads the body, so it does not wait and does not count as a use of the session. The session's
    /// namespace is checked later.
    pub fn session_version(
        &self,
        session_header: &str,
        principal: Option<&str>,
    ) -> Option<ProtocolVersion> {
        let session = self.core.sessions.live(session_header)?;
        (session.binding().principal.as_deref() == principal).then(|| session.version())
    }

    /// Returns the namespace of a session, for `POST /messages` without `X-Namespace`. It does not count as a use of the session.
    pub fn session_namespace(&self, session_id: &str) -> Option<NamespaceName> {
        let sessions = &self.core.sessions;
        match sessions.live(session_id) {
            Some(session) => Some(session.binding().namespace.clone()),
            None => sessions.sealed_namespace(session_id),
        }
    }

    /// Ends the sessions, the suspended calls and the running tasks of removed principals, which frees their memory and processes.
    /// The edge must no longer admit requests of these principals. `is_lost`: returns true for the name of a removed principal.
    pub async fn end_principals(&self, is_lost: impl Fn(&str) -> bool) {
        self.core.suspended.end_of(&is_lost);
        self.core.tasks.end_of(&is_lost);
        for session in self.core.sessions.all() {
            let principal = session.binding().principal.as_deref();
            if principal.is_some_and(&is_lost) {
                // A failure of the store was logged before. The record that stays there expires.
                let _ = crate::mcp::forget_session(&self.core, &session).await;
            }
        }
    }

    /// Deletes the stored tasks of a removed principal, in all replicas: a later principal of the same name does not have them.
    ///
    /// # Errors
    ///
    /// [`StoreError`], if the store cannot be written.
    pub async fn forget_tasks(&self, principal: &str) -> Result<(), StoreError> {
        self.core.tasks.forget(principal).await
    }

    /// Notifies the clients of this replica of a change that another replica announced.
    pub fn announce_from_replica(&self, news: &str) {
        self.core.audience.announce_from_replica(news);
    }

    /// Returns the nonces by which `tooldock doctor` detects proxies in front of the gateway that modify requests.
    pub fn probes(&self) -> &Probes {
        &self.core.probes
    }

    /// Returns the replicas of the gateway that share the store.
    pub fn replicas(&self) -> &Arc<Replicas> {
        self.core.sessions.replicas()
    }

    /// Ends every stream, so that its client reconnects to another process. Used when the process is drained: streams that are
    /// opened later end at once.
    pub fn end_streams(&self) {
        self.core.keep_alive.end_all();
    }

    /// Ends all current long streams after the admission rules have changed. Their clients reconnect and are admitted by the new
    /// rules. Clients that resume their streams lose no events.
    pub fn readmit_streams(&self) {
        // The counter is increased before the streams are ended. A stream that is opened at the same time is then either ended
        // here, or the edge sees that the counter has changed.
        self.readmissions.fetch_add(1, Ordering::SeqCst);
        self.core.keep_alive.end_present();
    }

    /// Returns the number of times that all streams were ended for a new admission. If the number changes between the admission
    /// of a request and the opening of its stream, the stream was admitted by outdated rules.
    pub fn readmissions(&self) -> u64 {
        self.readmissions.load(Ordering::SeqCst)
    }

    /// Runs the background tasks for streams: their keepalives, notices of changes in the registry, and a new admission of all
    /// streams when a caller may have lost a namespace. Runs until it is dropped.
    ///
    /// A task that panics is started again; the other tasks continue.
    pub async fn run_streams(&self) {
        let news = || {
            let (audience, registry) = (&self.core.audience, &self.core.registry);
            follow(Arc::clone(audience), Arc::clone(registry))
        };
        let mut readmitting = false;
        let readmission = || {
            // The task was restarted, and changes published in between were missed. All streams are admitted again, since a
            // caller may have lost a namespace.
            if std::mem::replace(&mut readmitting, true) {
                self.readmit_streams();
            }
            self.readmit_by_registry()
        };
        tokio::join!(
            supervise("the keepalives of streams", || self.core.keep_alive.run()),
            supervise("the notices of changed namespaces", news),
            supervise("the readmission of streams", readmission)
        );
    }

    /// Ends all streams for a new admission when a namespace is removed or changes its allowed principals. This happens so rarely
    /// that all clients may have to reconnect.
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

    /// Ends expired sessions, drops expired events, and updates the gauges of sessions. Must be called about once a second.
    pub async fn evict_expired(&self) {
        let now = Instant::now();
        self.core.events.sweep(now);
        let expired = self.core.sessions.evict_expired(now).await;
        self.core.metrics.sessions_expired.inc_by(expired as u64);
        let alive = gauge(self.core.sessions.count());
        self.core.metrics.sessions.set(alive);
        let unrecorded = gauge(self.core.sessions.unrecorded());
        self.core.metrics.sessions_unrecorded.set(unrecorded);
        let running = gauge(self.core.tasks.count());
        self.core.metrics.tasks_running.set(running);
        let replicas = self.core.sessions.replicas().state();
        let up = replicas.map_or(0, |it| it.others.len() + 1);
        self.core.metrics.replicas_up.set(gauge(up));
        let unreachable = gauge(self.core.sessions.replicas().unreachable());
        self.core.metrics.replicas_unreachable.set(unreachable);
        let bytes = gauge(self.core.sessions.bytes());
        self.core.metrics.session_bytes.set(bytes);
    }
}

/// Returns true if a request concerns all namespaces.
fn is_about_all(caller: &Caller, request: &AdmittedRequest) -> bool {
    let all = caller.namespace.as_ref().is_some_and(|it| it.is_global());
    all || matches!(
        request.route,
        RouteId::Namespaces | RouteId::McpNamespaces | RouteId::McpInfo
    )
}

/// Returns true if, between the two snapshots, a namespace was removed or its set of allowed principals changed.
fn admits_others(before: &Snapshot, after: &Snapshot) -> bool {
    before.namespaces.iter().any(|(name, old)| {
        let new = after.namespaces.get(name);
        new.is_none_or(|new| !new.limits.same_principals(&old.limits))
    })
}

#[cfg(test)]
mod tests;
