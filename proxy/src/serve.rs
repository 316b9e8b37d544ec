//! Startup: builds the objects of the gateway from the configuration, starts Pingora, and waits for the end of the drain.
//!
//! All steps that can fail for an ordinary reason (an address in use, an invalid certificate, a data directory in use) are done
//! before a thread is started. If one fails, the start ends with an error of one line.

use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, anyhow};
use arc_swap::ArcSwap;
use pingora_core::apps::HttpServerOptions;
use pingora_core::protocols::http::v2::server::default_h2_options;
use pingora_core::server::configuration::ServerConf;
use pingora_core::server::{RunArgs, Server};
use pingora_proxy::HttpProxy;
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tooldock_base::answers::{AnswerBudget, AnswerMetrics};
use tooldock_base::data_dir::{DataDir, Occupancy};
use tooldock_base::listening;
use tooldock_base::precedence::DATA_FILE;
use tooldock_base::runtimes::Runtimes;
use tooldock_base::trace::TraceSink;
use tooldock_credentials::keys::KeyStore;
use tooldock_credentials::secrets::{AuthorizationStore, SecretSource as _, SecretStore, Secrets};
use tooldock_otlp::{LogQueue, MetricsSource};
use tooldock_process::child::output::RecentOutput;
use tooldock_process::child::{self, left_behind};
use tooldock_process::metrics::WorkerMetrics;
use tooldock_process::repositories::{Builder, BuilderHost};
use tooldock_process::sandbox::SandboxHost;
use tooldock_process::worker::WorkerHost;
use tooldock_sessions::audit::Audit;
use tooldock_upstream::health::Health;
use tooldock_upstream::management::Management;
use tooldock_upstream::management::core::CoreLink;
use tooldock_upstream::metrics::UpstreamMetrics;
use tooldock_upstream::metrics::breakdown::Breakdown;
use tooldock_upstream::{OwnCore, Pages, Service, ServiceParts};
use tooldock_workers::external::{ProcessHost, check_servers_file};
use tooldock_workers::manage::Workspace;
use tooldock_workers::pins::{PINS_FILE, Pins};
use tooldock_workers::registry::Registry;
use tooldock_workers::reload::{ReloadMetrics, Reloader, VaultFolder};

use crate::access_log::AccessLog;
use crate::check;
use crate::config::dev_tokens;
use crate::config::{Effective, ListenAddress, ProfileName, Role};
use crate::config_view::ConfigurationInForce;
use crate::connect_pages::{ConnectMetrics, ConnectPages, LinkTable};
use crate::connection::ConnectionLimits;
use crate::control_loop::{AdjacentProcesses, ControlLoop};
use crate::descriptors::Connections;
use crate::dev;
use crate::edge::{Edge, EdgeService, Endpoint, Listening, RuntimeCollector};
use crate::gateway::Gateway;
use crate::hooks;
use crate::issuers::{IssuerMetrics, Issuers};
use crate::logging::LogLimit;
use crate::management;
use crate::metrics::{EdgeMetrics, StateMetrics};
use crate::reconfigure::Reconfigure;
use crate::relay::RelaySocket;
use crate::remote::{RemoteClient, RemoteMetrics, SystemNames};
use crate::replicas::{ClientTls, ForwardMetrics, ReplicaLink, peers, reach};
use crate::request_id::RequestIds;
use crate::rules;
use crate::rules::Rules;
use crate::sandbox;
use crate::service_manager::ServiceManager;
use crate::session_key;
use crate::session_store::{self, OpenStore, ReplicaSocket};
use crate::signals::Signals;
use crate::sockets::{BoundSocket, PassedSockets, Sockets};
use crate::telemetry;
use crate::tls::{ExpectedNames, TlsListener, mutual};
use crate::upgrade::{Offer, Predecessor};
use crate::watcher::{self, WatchTarget};
use crate::web_login::PendingLogins;
use crate::web_session::WebSessions;

mod core_over_http;
mod core_trust;
mod credentials;
mod keys;
mod layout;
pub(crate) mod ports;
mod relay;
mod shared_limits;

pub(crate) use core_over_http::{CoreAddress, CoreOverHttp};
pub(crate) use core_trust::CoreTrust;
use credentials::CredentialLookup;
use layout::Layout;
use ports::{Reload, RuleLimiter};
use shared_limits::ExchangeMetrics;

/// Number of threads of the control runtime: one for the control loop, and one so that a blocking task does not stop the loop.
const CONTROL_THREADS: usize = 2;

/// Time after the drain's deadline at which Pingora ends the process. This matters only if the control loop has failed.
const GRACE_BACKSTOP: Duration = Duration::from_secs(30);
/// Name of the Pingora services that listen at `replicas.address`.
const REPLICAS: &str = "replicas";

/// Runs the gateway until it is stopped. With `upgrade` it replaces the gateway that runs on the same data directory. `logs` is
/// the queue of log events for the export.
///
/// # Errors
///
/// When an object cannot be built or an address cannot be bound.
pub(crate) fn run(
    mut effective: Effective,
    upgrade: bool,
    logs: Option<Arc<LogQueue>>,
) -> anyhow::Result<()> {
    let signals = Signals::install().context("signal handlers")?;
    log_panics();
    for warning in &effective.warnings {
        tracing::warn!("{warning}");
    }
    if let Some(problem) = effective.data_file_problem() {
        tracing::error!("{problem}");
    }
    if let Some(missing) = session_store::missing_key(&effective) {
        return Err(anyhow!(missing));
    }
    let connections = Connections::raised(effective.config.admission.limits.connections)?;
    tracing::info!("connections: {connections}");
    let certificates = open_certificates(&effective)?;
    let replica_certificate = open_replica_certificate(&effective)?;
    let predecessor = match upgrade {
        true => Some(Predecessor::connect(&effective)?),
        false => Predecessor::of_stopping_gateway(&effective),
    };
    let (predecessor, handed) = predecessor.unzip();
    let succeeded = predecessor.as_ref().map(|it| it.replica.as_str());
    let mut passed = PassedSockets::of_process(handed);
    let sockets = Sockets::bind(&effective, &mut passed)?;
    let relay_socket = relay::bind(&effective, &mut passed)?;
    passed.close_rest();
    let data = match effective.role {
        Role::All | Role::Core => {
            let shared_as = effective.shared_as();
            let replica = shared_as.map(|name| session_store::beside(name, succeeded));
            let occupancy = Occupancy {
                replica: replica.as_deref(),
                successor: predecessor.is_some(),
            };
            let starter = effective.config.namespaces.starter;
            DataDir::open_with(&effective.data_dir, occupancy, starter)?
        }
        Role::Manager => DataDir::beside(&effective.data_dir)?,
    };
    if effective.generated.bearer {
        effective.keep_bearer(dev_tokens::kept_token(&effective.data_dir)?);
    }
    if effective.dev {
        effective.keep_manager(dev_tokens::kept_manager_token(&effective.data_dir)?);
        effective.secrets.make_dev_key(&effective.data_dir)?;
    }
    let control = control_runtime()?;
    let key_changes = keys::change_socket(&effective.keys_file());
    let keys = Arc::new(KeyStore::open(effective.keys_file(), effective.scopes())?);
    keys.set_makers(effective.config.admission.key_makers());
    let admission = rules::admission(&effective, keys.tables()).map_err(|error| anyhow!(error))?;
    let rules = Arc::new(ArcSwap::from_pointee(rules::rules(&effective, admission)));
    let shown = Arc::new(ConfigurationInForce::new(effective.clone(), keys.tables()));
    let parts = Parts::build(&effective, data, &control, &rules, &keys, &shown, succeeded)?;
    note_addresses(&effective);
    check::log_unknown_namespaces(&effective);
    keys::start(&keys, key_changes, &parts.registry, &control);

    let state = parts.state.clone();
    if effective.data_file_problem().is_some() || check_servers_file(&effective.data_dir).is_err() {
        state.reloaded(false);
    }
    for certificate in certificates.iter().flatten().chain(&replica_certificate) {
        state.certificate(certificate.name(), certificate.not_after());
    }

    let access_log = AccessLog::start(
        &effective.config.observability.access_log,
        &effective.data_dir,
        &parts.exported,
    )?;
    let (access_log, access_log_guard) = access_log.unzip();

    let otlp = effective.config.observability.otlp.settings();
    let telemetry = telemetry::start(otlp, &parts.exported, logs, parts.gather())?;
    let (traces, telemetry) = match telemetry {
        Some(telemetry) => (telemetry.sink, Some(telemetry.guard)),
        None => (None, None),
    };

    let relay_traces = traces.clone();
    let limits = rules::connection_limits(&effective);
    let connection_limits = Arc::new(ArcSwap::from_pointee(limits));
    // If this process replaces another one, it accepts connections only after the other has stopped accepting.
    let (gate, opened) = watch::channel(predecessor.is_none());
    let server = Assembly {
        effective: &effective,
        parts: &parts,
        rules: &rules,
        connection_limits: &connection_limits,
        certificates: &certificates,
        replica_certificate: replica_certificate.as_ref(),
        sockets: &sockets,
        access_log: access_log.as_ref(),
        traces,
        connections,
        gate: &opened,
        handed_over: &signals.handed_over(),
        stops: &signals.stop_requested(),
    }
    .server()?;
    let mut offered = sockets.handles()?;
    offered.extend(relay_socket.as_ref().map(RelaySocket::handle).transpose()?);
    let (offer, successors) = Offer::new(&effective, parts.service.replicas().name(), offered);
    // The services have their own handles of the sockets. The original handles are closed here, so that the services can stop
    // accepting connections.
    drop(sockets);

    let relay = relay_socket
        .map(|socket| {
            let (keys, opened) = (Arc::clone(&keys), opened.clone());
            let control = (&control, relay_traces.clone());
            relay::start(socket, &effective, &parts, keys, control, opened)
        })
        .transpose()?;
    let control_loop = ControlLoop {
        reloader: Arc::clone(&parts.reloader),
        service: parts.service.clone(),
        health: Arc::clone(&parts.health),
        metrics: Arc::clone(&parts.metrics),
        signals: signals.clone(),
        service_manager: ServiceManager::of_environment(),
        grace: effective.config.replicas.grace,
        audit: parts.audit,
        access_log: access_log_guard,
        telemetry,
        relay,
        replicas: parts.replicas.clone(),
        succession: AdjacentProcesses {
            predecessor,
            gate,
            offer,
            successors,
        },
        serves_namespaces: effective.role != Role::Manager,
        announcement: effective.dev.then(|| dev::announce(&effective)),
        reconfigure: Reconfigure {
            current: effective,
            rules,
            connection_limits,
            certificates: certificates.into_iter().flatten().collect(),
            replica_certificate,
            replicas: parts.replicas,
            reloader: parts.reloader,
            sandbox: parts.sandbox,
            secrets: parts.secrets,
            last_secrets: parts.last_secrets,
            keys,
            service: parts.service,
            answers: parts.answers,
            management: parts.management,
            breakdown: parts.breakdown,
            metrics: state,
            shown,
        },
    };
    // The control loop ends the process after the drain, because Pingora would always wait for its complete grace period.
    let ended = control.spawn(control_loop.run());
    thread::Builder::new()
        .name("drained".into())
        .spawn(move || {
            let status = match control.block_on(ended) {
                Ok(()) => 0,
                Err(error) => {
                    tracing::error!(%error, "the control loop failed");
                    1
                }
            };
            std::process::exit(status);
        })
        .context("the thread that waits for the drain")?;
    server.run(RunArgs {
        shutdown_signal: Box::new(signals),
    });
    // This line is reached only if the drain took longer than Pingora's grace period. Otherwise the control loop has ended the
    // process before.
    Err(anyhow!("the drain did not end in time"))
}

/// Writes the bound addresses to the data directory. A check of the configuration reads them, so that it does not report these
/// addresses as in use. A failure does not prevent the start.
fn note_addresses(effective: &Effective) {
    let bound = effective.config.bound_addresses(effective.role);
    let addresses: Vec<_> = bound.iter().map(|(_, it)| it.to_string()).collect();
    let is_manager = effective.role == Role::Manager;
    if let Err(error) = listening::note(&effective.data_dir, is_manager, &addresses) {
        tracing::warn!("the addresses of this gateway cannot be noted for checks: {error}");
    }
}

/// The objects of the gateway that do not depend on Pingora.
struct Parts {
    registry: Arc<Registry>,
    sandbox: Arc<SandboxHost>,
    tools_dir: Arc<Path>,
    runtimes: Arc<Runtimes>,
    reloader: Arc<Reloader>,
    service: Service,
    /// The management tools; `None` if this process does not serve them.
    management: Option<Arc<Management>>,
    health: Arc<Health>,
    answers: Arc<AnswerBudget>,
    metrics: Arc<EdgeMetrics>,
    state: StateMetrics,
    exported: prometheus::Registry,
    audit: tooldock_sessions::audit::AuditGuard,
    secrets: Arc<SecretStore>,
    /// The secrets as they were read at the start.
    last_secrets: Secrets,
    issuers: Arc<Issuers>,
    keys: Arc<KeyStore>,
    web_sessions: Arc<WebSessions>,
    begun_logins: Arc<PendingLogins>,
    /// The pages on which principals give their personal credentials; `None` for a process that serves no namespaces.
    connect: Option<Arc<ConnectPages>>,
    breakdown: Arc<Breakdown>,
    /// The connections to other replicas; `None` if there can be no other replicas.
    replicas: Option<Arc<ReplicaLink>>,
    /// The Unix socket for requests from other replicas on this machine.
    replica_socket: Option<ReplicaSocket>,
}

impl Parts {
    /// Creates the function that reads all metrics for the metrics listener and the export.
    fn gather(&self) -> MetricsSource {
        let (exported, service) = (self.exported.clone(), self.service.clone());
        let metrics = Arc::clone(&self.metrics);
        Box::new(move || {
            metrics.process.read();
            service.show_conditions();
            exported.gather()
        })
    }

    fn build(
        effective: &Effective,
        data: DataDir,
        control: &Runtime,
        rules: &Arc<ArcSwap<Rules>>,
        keys: &Arc<KeyStore>,
        shown: &Arc<ConfigurationInForce>,
        succeeded: Option<&str>,
    ) -> anyhow::Result<Self> {
        let config = &effective.config;
        let exported = prometheus::Registry::new();
        let metrics = Arc::new(EdgeMetrics::new(&exported)?);
        let state = StateMetrics::start(&exported)?;
        let upstream_metrics = Arc::new(UpstreamMetrics::new(&exported)?);
        let breakdown = Arc::clone(upstream_metrics.breakdown());
        breakdown.configure(config.observability.metrics);
        end_what_was_left_behind(&data);
        let data = Arc::new(data);
        let tools_dir = data.tools_dir().into();
        if effective.dev {
            dev::place_examples(&data)?;
        }
        let (audit_sender, audit) = Audit::start(
            config.observability.audit,
            data.logs_dir(),
            upstream_metrics.audit_dropped(),
        )
        .context("starting the audit log")?;
        let session_key = session_key::load(effective.session_key.as_ref(), &effective.data_dir)?;
        let OpenStore {
            stores,
            replicas,
            socket: replica_socket,
        } = session_store::open(effective, &data, &session_key, succeeded)?;
        let link = replicas
            .are_many()
            .then(|| {
                let metrics = Arc::new(ForwardMetrics::new(&exported)?);
                let address = replica_door(effective, replica_socket.as_ref());
                let (replicas, key) = (Arc::clone(&replicas), session_key.clone());
                let tls = match effective.replica_tls() {
                    Some(_) => ClientTls::read(&config.replicas.tls)?,
                    None => None,
                };
                let link = ReplicaLink::new(replicas, key, address, metrics, tls);
                anyhow::Ok(Arc::new(link))
            })
            .transpose()?;
        let secrets = SecretStore::new(&effective.data_dir, effective.secrets.protection());
        // The start fails if the secrets cannot be read, because namespaces could not work without them.
        let last_secrets = secrets.read()?;
        let secrets = Arc::new(secrets);
        let registry = Arc::new(Registry::default());
        let runtimes = Arc::new(Runtimes::new());
        let worker_metrics = Arc::new(WorkerMetrics::new(&exported)?);
        let guard = std::env::current_exe().context("finding this program's own file")?;
        let support = tooldock_process::child::kernel_support(&guard);
        sandbox::warn_of_missing(effective, support);
        let facts = sandbox::facts(effective, support, data.short_socket_dir());
        let sandbox = Arc::new(SandboxHost::new(facts));
        registry.set_sandbox(Arc::clone(&sandbox));
        if effective.role != Role::Manager {
            let pins = Pins::open(effective.data_dir.join(PINS_FILE));
            registry.set_pins(Arc::clone(&pins));
            control.spawn(pins.run());
        }
        let servers = Arc::new(ProcessHost {
            sandbox: Arc::clone(&sandbox),
            guard: guard.clone(),
            control: control.handle().clone(),
            runtimes: Arc::clone(&runtimes),
            metrics: Arc::clone(&worker_metrics),
            output: RecentOutput::default(),
        });
        let host = Arc::new(WorkerHost {
            sandbox: Arc::clone(&sandbox),
            output: RecentOutput::default(),
            guard,
            config: config.workers.clone(),
            runtimes: Arc::clone(&runtimes),
            metrics: worker_metrics,
        });
        let reloader = Reloader::new(
            Arc::clone(&data),
            config.workers.clone(),
            config.namespaces.clone(),
            Arc::clone(&secrets) as _,
            Arc::clone(&host),
            Arc::clone(&registry),
            ReloadMetrics::new(&exported)?,
        );
        reloader.set_servers(config.upstreams.clone());
        reloader.set_aggregates(config.toolman.clone());
        let mut pages = None;
        if effective.serves_vault() {
            let folder = config.vault.folder(&data.tools_dir())?;
            announce_vault(effective, &folder, &data);
            reloader.set_vault(folder);
            if let Some(ui) = config.vault.ui() {
                let read = Pages::read(ui).map_err(|reason| anyhow!("vault.ui_dir: {reason}"))?;
                pages = Some(Arc::new(read));
            }
        }
        if effective.role != Role::Manager {
            reloader.expect_namespaces();
        }
        reloader.bind_runtime(control.handle().clone());
        let health = Arc::new(Health::new());
        let issuers = Issuers::new(
            Arc::clone(rules),
            IssuerMetrics::new(&exported)?,
            control.handle().clone(),
        );
        control.spawn(Arc::clone(&issuers).run());
        let authorizations =
            AuthorizationStore::new(Arc::clone(&secrets), Arc::clone(registry.personal()));
        authorizations.refresh()?;
        let authorizations = Arc::new(authorizations);
        control.spawn(Arc::clone(&authorizations).follow());
        let kept_authorizations = Arc::clone(&authorizations);
        let remote = RemoteClient::new(
            Arc::new(SystemNames),
            Arc::new(RemoteMetrics::new(&exported)?),
            control.handle().clone(),
            Arc::clone(registry.personal()),
            Some(authorizations),
        );
        let (follower, followed) = (Arc::clone(&remote), Arc::clone(&registry));
        control.spawn(async move { follower.follow(&followed).await });
        let own_core = Arc::new(OwnCore::default());
        let core: Arc<dyn CoreLink> = match effective.role {
            Role::Manager => Arc::new(CoreOverHttp::new(effective)),
            Role::All | Role::Core => Arc::clone(&own_core) as _,
        };
        let management = effective.serves_management().then(|| {
            let workspace = Workspace::new(
                Arc::clone(&data),
                config.workers.clone(),
                host.guard.clone(),
                &host.metrics,
            );
            let builder = Builder::new(
                BuilderHost {
                    program: host.guard.clone(),
                    control: control.handle().clone(),
                    metrics: Arc::clone(&host.metrics),
                    repos: data.repos_dir(),
                },
                config.builder.clone(),
            );
            workspace.set_configured(&config.upstreams, &config.toolman);
            let workspace = Arc::new(workspace);
            control.spawn(management::clear_leftovers(
                Arc::clone(&workspace),
                data.repos_dir(),
            ));
            Arc::new(Management::new(
                workspace,
                management::secrets(effective, &secrets, Arc::clone(keys)),
                builder,
                Arc::clone(&core),
                management::facts(effective),
                config.workers.sync_timeout,
                control.handle().clone(),
            ))
        });
        let answers = AnswerBudget::new(
            rules::answers_total(effective),
            AnswerMetrics::new(&exported)?,
        );
        let reload = Arc::new(Reload {
            reloader: Arc::clone(&reloader),
            replicas: Arc::clone(&replicas),
            pages: pages.clone(),
        });
        let connect = match effective.role {
            Role::Manager => None,
            Role::All | Role::Core => Some(ConnectPages::new(
                LinkTable::new(session_key.clone(), replicas.own().0),
                Arc::clone(&registry),
                (Arc::clone(&secrets), kept_authorizations),
                Arc::clone(&remote),
                Arc::clone(&reload) as _,
                ConnectMetrics::new(&exported)?,
                control.handle().clone(),
            )),
        };
        let service_parts = ServiceParts {
            registry: Arc::clone(&registry),
            reloader: Some(reload),
            sessions: config.sessions.clone(),
            session_key,
            stores,
            replicas: Arc::clone(&replicas),
            sessions_per_principal: config.admission.limits.sessions_per_principal,
            session_bytes_per_principal: config.admission.limits.session_bytes_per_principal,
            streams_per_principal: config.admission.limits.streams_per_principal,
            limiter: Arc::new(RuleLimiter(Arc::clone(rules))),
            audit: audit_sender,
            credentials: Some(Arc::new(CredentialLookup {
                rules: Arc::clone(rules),
                keys: keys.tables(),
            })),
            management: management.clone(),
            web: Some(management::web_facts(
                effective,
                &data,
                Arc::new(state.clone()),
                Arc::clone(shown) as _,
            )),
            links: connect.clone().map(|it| it as _),
            http_client: Some(remote),
            pages,
            answers: Arc::clone(&answers),
            metrics: upstream_metrics,
            health: Arc::clone(&health),
        };
        let service = Service::with_servers(service_parts, servers);
        own_core.bind(&service);
        let data_file = effective.data_file_problem();
        let problems = data_file.map(|it| (DATA_FILE, it.to_owned())).into_iter();
        let hook_problems = hooks::put_into_force(&service, &config.hooks, &last_secrets);
        reloader.set_configuration_problems(problems.chain(hook_problems));
        if replicas.are_many() {
            let metrics = ExchangeMetrics::new(&exported)?;
            let (rules, replicas) = (Arc::clone(rules), Arc::clone(&replicas));
            control.spawn(shared_limits::share(rules, replicas, metrics));
        }
        if let Some(link) = &link {
            control.spawn(reach::follow(Arc::clone(link)));
        }
        let follow = ports::follow_replicas(
            Arc::clone(&replicas),
            Arc::clone(&reloader),
            service.clone(),
        );
        let name = config.replicas.peers.name();
        let name = name.map(|(name, port)| (name.to_owned(), port));
        control.spawn(async move {
            if let Some((name, port)) = name.filter(|_| replicas.are_many()) {
                // The name in `replicas.peers` is resolved before the first heartbeats are read. Otherwise replicas whose
                // addresses are not resolved yet would be logged as errors.
                peers::look_up(&name, port, &replicas).await;
                tokio::spawn(peers::follow(name, port, replicas));
            }
            follow.await;
        });
        if effective.role != Role::Manager {
            let noted = service.clone();
            control.spawn(async move { noted.note_figures().await });
        }
        if let Some(watched) = WatchTarget::of(effective) {
            control.spawn(watcher::run(watched, core));
        }
        Ok(Self {
            registry,
            sandbox,
            tools_dir,
            runtimes,
            reloader,
            service,
            management,
            health,
            answers,
            metrics,
            state,
            exported,
            audit,
            secrets,
            last_secrets,
            issuers,
            keys: Arc::clone(keys),
            web_sessions: Arc::default(),
            begun_logins: Arc::default(),
            connect,
            breakdown,
            replicas: link,
            replica_socket,
        })
    }
}

/// The address at which other replicas reach this process; `None` if they cannot.
fn replica_door(effective: &Effective, socket: Option<&ReplicaSocket>) -> Option<ListenAddress> {
    match effective.replica_address() {
        Some((_, address)) => Some(ListenAddress::Tcp(address)),
        None => socket.map(|it| it.address.clone()),
    }
}

/// Logs the addresses and the folder of Tool Vault (RST-25).
fn announce_vault(effective: &Effective, folder: &VaultFolder, data: &DataDir) {
    for (_, listener) in effective.served_listeners() {
        if listener.profile == ProfileName::Vault {
            tracing::info!("MCP endpoint available: {}/mcp", listener.url());
        }
    }
    let own = data.tools_dir().join(folder.name.as_str());
    match &folder.dir {
        Some(dir) => tracing::info!("Tool Vault's tools: {}", dir.display()),
        None if own.is_dir() => {}
        None => tracing::warn!(
            "Tool Vault has no tools: make {}, or set VAULT_TOOLS_DIR",
            own.display()
        ),
    }
}

/// The objects from which Pingora's server is built.
struct Assembly<'a> {
    effective: &'a Effective,
    parts: &'a Parts,
    rules: &'a Arc<ArcSwap<Rules>>,
    connection_limits: &'a Arc<ArcSwap<ConnectionLimits>>,
    certificates: &'a [Option<Arc<TlsListener>>],
    /// The certificate for connections to `replicas.address`; `None` without TLS.
    replica_certificate: Option<&'a Arc<TlsListener>>,
    sockets: &'a Sockets,
    access_log: Option<&'a AccessLog>,
    /// Receiver of finished requests for the trace export; `None` without an export.
    traces: Option<Arc<dyn TraceSink>>,
    connections: Connections,
    /// True when connections may be accepted; false until a replaced process has stopped accepting.
    gate: &'a watch::Receiver<bool>,
    /// True when a successor accepts connections in place of this process.
    handed_over: &'a watch::Receiver<bool>,
    stops: &'a watch::Receiver<bool>,
}

impl Assembly<'_> {
    fn server(&self) -> anyhow::Result<Server> {
        let config = &self.effective.config;
        let threads = config.threads.count();
        let layout = Layout::new(threads, config.work_stealing);
        let mut server = Server::new_with_opt_and_conf(
            None,
            ServerConf {
                // Each service gets a separate number of threads later. Pingora would divide the number that is set here among
                // the services.
                threads,
                work_stealing: config.work_stealing,
                listener_tasks_per_fd: layout.threads,
                grace_period_seconds: Some((config.replicas.grace + GRACE_BACKSTOP).as_secs()),
                graceful_shutdown_timeout_seconds: Some(1),
                ..ServerConf::default()
            },
        );
        server.bootstrap();
        let cap = self.connections.clients;
        let conf = Arc::clone(&server.configuration);
        let traffic = self.endpoints(layout, |profile| profile != ProfileName::Metrics)?;
        let traffic = self.services("edge", layout, cap, &conf, traffic)?;
        let door = self.door(layout)?;
        let door = self.services(REPLICAS, layout, cap, &conf, door)?;
        let announced = traffic.len() + door.len();
        let announced = RuntimeCollector::new(announced, Arc::clone(&self.parts.runtimes));
        let announced = Arc::new(announced);
        for service in traffic {
            server.add_service(service.announced_to(Arc::clone(&announced)));
        }
        // The drain does not stop the metrics listener, because `/ready` is answered also during the drain. It is stopped only
        // when a successor takes over.
        let lifetime = self.handed_over;
        // The drain does not stop the listener for replicas, because other replicas send requests until they are informed of
        // the drain.
        for service in door {
            let service = service.announced_to(Arc::clone(&announced));
            server.add_service(service.until(lifetime.clone()));
        }
        // Metrics have a separate limit of connections, so that clients cannot use up the connections for monitoring.
        let cap = self.connections.management;
        let one = Layout::ONE;
        let metrics = self.endpoints(one, |profile| profile == ProfileName::Metrics)?;
        for service in self.services("metrics", one, cap, &conf, metrics)? {
            server.add_service(service.until(lifetime.clone()));
        }
        Ok(server)
    }

    /// Creates the Pingora services for the given sockets, one service for each list of sockets.
    fn services(
        &self,
        name: &'static str,
        layout: Layout,
        max_connections: usize,
        conf: &Arc<ServerConf>,
        endpoints: Vec<Vec<Endpoint>>,
    ) -> anyhow::Result<Vec<EdgeService>> {
        let request_ids = Arc::new(RequestIds::new()?);
        let edge = Edge {
            proxy: Arc::new(self.proxy(conf, &request_ids)?),
            limits: Arc::clone(self.connection_limits),
            rules: Arc::clone(self.rules),
            metrics: Arc::clone(&self.parts.metrics),
            request_ids,
            access_log: self.access_log.cloned(),
            handshake_warnings: (name == REPLICAS).then(LogLimit::default),
        };
        let listening = Listening::new(edge, max_connections, self.handed_over.clone());
        let service = |own| {
            let (listening, gate) = (Arc::clone(&listening), self.gate.clone());
            EdgeService::new(name, listening, own, layout.threads, gate)
        };
        Ok(endpoints.into_iter().map(service).collect())
    }

    /// The sockets of the listeners whose profile `belongs` accepts. The result has one list for each service of the layout.
    fn endpoints(
        &self,
        layout: Layout,
        belongs: impl Fn(ProfileName) -> bool,
    ) -> anyhow::Result<Vec<Vec<Endpoint>>> {
        let mut endpoints: Vec<_> = (0..layout.services).map(|_| Vec::new()).collect();
        for ((_, listener), certificate) in self.effective.served_listeners().zip(self.certificates)
        {
            if !belongs(listener.profile) {
                continue;
            }
            for own in &mut endpoints {
                own.push(Endpoint {
                    socket: self.sockets.handle(&listener.address)?,
                    address: Arc::new(listener.address.clone().into()),
                    proxy_protocol: listener.proxy_protocol,
                    tls: certificate.clone(),
                });
            }
            tracing::info!(listener = listener.name, "listening on {}", listener.url());
            if let Some(url) = listener.mcp_url() {
                tracing::info!(listener = listener.name, "MCP at {url}");
            }
        }
        Ok(endpoints)
    }

    /// The sockets for other replicas, one list for each service of the layout. Empty if other replicas cannot reach this
    /// process.
    fn door(&self, layout: Layout) -> anyhow::Result<Vec<Vec<Endpoint>>> {
        let own = self.parts.replica_socket.as_ref();
        let Some(address) = replica_door(self.effective, own) else {
            return Ok(Vec::new());
        };
        tracing::info!("listening on {address} for the replicas of this gateway");
        let endpoint = |_| {
            let socket = match own {
                Some(own) => BoundSocket::Unix(own.socket.try_clone()?),
                None => self.sockets.handle(&address)?,
            };
            Ok(vec![Endpoint {
                socket,
                address: Arc::new(address.clone().into()),
                proxy_protocol: false,
                tls: self.replica_certificate.cloned(),
            }])
        };
        (0..layout.services).map(endpoint).collect()
    }

    fn proxy(
        &self,
        conf: &Arc<ServerConf>,
        request_ids: &Arc<RequestIds>,
    ) -> anyhow::Result<HttpProxy<Gateway>> {
        let gateway = Gateway {
            rules: Arc::clone(self.rules),
            registry: Arc::clone(&self.parts.registry),
            tools_dir: Arc::clone(&self.parts.tools_dir),
            service: self.parts.service.clone(),
            answers: Arc::clone(&self.parts.answers),
            metrics: Arc::clone(&self.parts.metrics),
            exported: self.parts.exported.clone(),
            request_ids: Arc::clone(request_ids),
            issuers: Arc::clone(&self.parts.issuers),
            keys: Arc::clone(&self.parts.keys),
            web_sessions: Arc::clone(&self.parts.web_sessions),
            begun_logins: Arc::clone(&self.parts.begun_logins),
            connect: self.parts.connect.clone(),
            access_log: self.access_log.cloned(),
            traces: self.traces.clone(),
            replicas: self.parts.replicas.clone(),
            stops: self.stops.clone(),
        };
        let mut proxy = pingora_proxy::http_proxy(conf, gateway);
        let mut options = HttpServerOptions::default();
        // Disabled, because Pingora detects HTTP/2 on plain connections by waiting for 24 bytes without any time limit.
        options.h2c = false;
        options.h2_idle_timeout = Some(self.effective.config.admission.timeouts.keepalive);
        proxy.server_options = Some(options);
        let mut h2 = default_h2_options();
        h2.max_header_list_size(
            u32::try_from(self.effective.config.admission.limits.header_bytes.as_u64())
                .unwrap_or(u32::MAX),
        );
        proxy.h2_options = Some(h2);
        Ok(proxy)
    }
}

/// Ends processes that a killed gateway left behind. Runs in a thread, because it first waits some time: the guards of a gateway
/// that has just died end their children themselves.
fn end_what_was_left_behind(data: &DataDir) {
    let Some(before) = data.predecessor() else {
        return;
    };
    let work = move || {
        let ended = left_behind::end_left_behind(before, left_behind::PATIENCE);
        if ended > 0 {
            tracing::warn!(
                ended,
                "an earlier gateway was killed together with its guards and left {ended} processes; they have been ended"
            );
        }
    };
    let spawned = thread::Builder::new()
        .name("left-behind".into())
        .spawn(work);
    if let Err(error) = spawned {
        tracing::warn!(%error, "cannot look for processes that an earlier gateway may have left");
    }
}

fn open_certificates(effective: &Effective) -> anyhow::Result<Vec<Option<Arc<TlsListener>>>> {
    effective
        .served_listeners()
        .map(|(index, listener)| {
            listener
                .tls
                .as_ref()
                .map(|tls| {
                    let expected = ExpectedNames {
                        hosts: &effective.config.admission.hosts,
                        loopback: listener.address.is_loopback(),
                    };
                    TlsListener::open(&listener.name, tls, expected)
                        .map_err(|error| anyhow!("listeners[{index}].tls: {error}"))
                })
                .transpose()
        })
        .collect()
}

fn open_replica_certificate(effective: &Effective) -> anyhow::Result<Option<Arc<TlsListener>>> {
    let opened = effective
        .replica_tls()
        .map(|tls| TlsListener::open("replicas.address", &tls, ExpectedNames::ANY));
    let opened = opened.transpose();
    let opened = opened.map_err(|error| anyhow!("replicas.tls: {error}"))?;
    if let Some(certificate) = effective.replica_certificate()
        && let Err(error) = mutual::check(&certificate)
    {
        tracing::error!(
            "replicas.tls: {error}; requests are forwarded neither to them nor from them"
        );
    }
    Ok(opened)
}

/// Logs panics. A panic ends only the request in which it happens.
fn log_panics() {
    let default = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        default(panic);
        tracing::error!(%panic, "a task panicked");
    }));
}

fn control_runtime() -> anyhow::Result<Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(CONTROL_THREADS)
        .thread_name("control")
        .on_thread_start(child::give_way)
        .enable_all()
        .build()
        .context("the control runtime")
}
