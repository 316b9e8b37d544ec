//! `tooldock toolman`: serves an aggregate on standard input and output, from the `tools.toml` of a project.
//!
//! This command listens on no address and does not start Pingora. A client starts this program for each conversation, and waits
//! for its responses. There is no data directory, and `tools.toml` is the only configuration. Standard output is used for the
//! protocol only; the log is written to standard error.

mod refusal;

use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow};
use tokio::fs::File;
use tokio::runtime::{Handle, Runtime};
use tooldock_base::answers::AnswerBudget;
use tooldock_base::budget::Budget;
use tooldock_base::config::NamespacesConfig;
use tooldock_base::key_maker::KeyMaker;
use tooldock_base::names::NamespaceName;
use tooldock_base::runtimes::Runtimes;
use tooldock_credentials::secrets::Secrets;
use tooldock_otlp::LogQueue;
use tooldock_process::metrics::WorkerMetrics;
use tooldock_sessions::audit::Audit;
use tooldock_sessions::caller::{Caller, Visibility};
use tooldock_sessions::profile::Profile;
use tooldock_sessions::replicas::Replicas;
use tooldock_sessions::session::SessionKey;
use tooldock_sessions::session::config::SessionsConfig;
use tooldock_upstream::engine::{CountedBy, ExhaustedLimit, Limiter};
use tooldock_upstream::health::Health;
use tooldock_upstream::metrics::UpstreamMetrics;
use tooldock_upstream::{ConversationEnd, Service, ServiceParts};
use tooldock_workers::aggregate::{self, ActivationScope, AggregateSpec, ServedOver};
use tooldock_workers::external::ProcessHost;
use tooldock_workers::registry::{Registry, Snapshot};
use tooldock_workers::reload::{AggregateInputs, aggregate_namespace};

use crate::cli::ToolmanArgs;
use crate::config::{LogConfig, LogLevel, OtlpSettings};
use crate::remote::{RemoteClient, RemoteMetrics, SystemNames};
use crate::signals::Signals;
use crate::{logging, refuse, telemetry};

/// Name of the only namespace, which contains the aggregate.
const NAMESPACE: &str = "toolman";
/// Name of the client's principal. It appears in the log, and the client's active entries are stored under it.
const PRINCIPAL: &str = "stdio";
/// Number of threads: one for the client's pipes, and one so that a server with much output does not delay them.
const THREADS: usize = 2;
/// Maximum memory of the client's session and streams, in bytes.
const CLIENT_BYTES: usize = 256 * 1024 * 1024;
/// Time limit for the servers to end. They get two seconds after their input was closed, and two more after SIGTERM.
const SERVERS_END: Duration = Duration::from_secs(5);
/// Lifetime of the session: 100 years, because the session must not expire while the client runs.
const FOR_EVER: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
/// Maximum number of streams of the client: one for its session, and one for each of its subscriptions.
const CLIENT_STREAMS: usize = 1024;

/// Runs `tooldock toolman`: serves one client until it disconnects.
pub(crate) fn run(arguments: &ToolmanArgs) -> ExitCode {
    let level = match std::env::var("LOG_LEVEL").as_deref() {
        Ok("") | Err(_) => LogLevel::default(),
        Ok(name) => match LogLevel::from_name(name) {
            Some(level) => level,
            None => {
                return refuse("LOG_LEVEL must be one of error, warn, info, debug, trace");
            }
        },
    };
    let spec = match aggregate::read(&arguments.config, ServedOver::Stdio) {
        Ok(spec) => spec,
        Err(reason) => {
            // The reason is also sent as a response, because clients show responses to their user, but seldom show the log.
            refusal::answer_one_request(&reason);
            return refuse(reason);
        }
    };
    let otlp = arguments.otlp.as_deref().map(|file| {
        let settings = OtlpSettings::read(file)?;
        let checked = telemetry::check(Some(&settings));
        checked.map_err(|error| format!("{}: {error}", file.display()))?;
        Ok(settings)
    });
    let otlp: Result<_, String> = otlp.transpose();
    let otlp = match otlp {
        Ok(otlp) => otlp,
        Err(reason) => {
            let reason = format!("--otlp {reason}");
            refusal::answer_one_request(&reason);
            return refuse(reason);
        }
    };
    let log = LogConfig {
        level,
        ..LogConfig::default()
    };
    let logs = telemetry::log_queue(otlp.as_ref());
    let started = logging::start(log, logs.as_ref());
    match started.and_then(|()| serve(spec, otlp.as_ref(), logs)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tooldock: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn serve(
    mut spec: AggregateSpec,
    otlp: Option<&OtlpSettings>,
    logs: Option<Arc<LogQueue>>,
) -> anyhow::Result<()> {
    // Defaults for options that the file does not set. They are chosen for a process with a single client, which is notified of
    // each change.
    let options = &mut spec.options;
    options
        .activation_scope
        .get_or_insert(ActivationScope::Process);
    options.activation_schemas.get_or_insert(false);
    let signals = Signals::install().context("signal handlers")?;
    let runtime = runtime()?;
    let (input, output) = (own(std::io::stdin())?, own(std::io::stdout())?);
    let name: NamespaceName = NAMESPACE.parse().expect("a name");
    let exported = prometheus::Registry::new();
    let service = service(&name, spec, &exported, runtime.handle())?;
    let gather = {
        let (exported, service) = (exported.clone(), service.clone());
        Box::new(move || {
            service.show_conditions();
            exported.gather()
        })
    };
    // Dropping the export at the end sends the rest of its queues.
    let telemetry = telemetry::start(otlp, &exported, logs, gather)?;
    let traces = telemetry.as_ref().and_then(|it| it.sink.clone());
    let caller = caller(name);
    let told = |mut stop: tokio::sync::watch::Receiver<bool>| async move {
        let _ = stop.wait_for(|stop| *stop).await;
    };
    runtime.block_on(async {
        let streams = service.clone();
        tokio::spawn(async move { streams.run_streams().await });
        let stop = told(signals.stop_requested());
        let ended = service
            .serve_lines((caller, traces), input, output, stop)
            .await;
        tracing::info!("stopping: {}", why(ended));
        let servers = service.end_servers(SERVERS_END);
        if ended == ConversationEnd::Stopped {
            servers.await;
            return;
        }
        // Waits for one of two events:
        // - all servers have ended
        // - the process is requested to stop: the guards then end the remaining servers
        tokio::select! {
            () = servers => {}
            () = told(signals.stop_requested()) => {}
        }
    });
    // Does not wait for the runtime's threads, because a read of standard input cannot be cancelled.
    runtime.shutdown_background();
    drop(telemetry);
    Ok(())
}

/// Duplicates the file descriptor of standard input or output. It is read or written by threads that may block. A non-blocking
/// mode is not set, because other processes may use the same pipe and would get that mode, too.
fn own(pipe: impl AsFd) -> anyhow::Result<File> {
    let pipe = pipe.as_fd().try_clone_to_owned();
    let pipe = pipe.context("standard input and output")?;
    Ok(File::from_std(pipe.into()))
}

fn why(ended: ConversationEnd) -> &'static str {
    match ended {
        ConversationEnd::InputClosed => "the client has closed standard input",
        ConversationEnd::OutputClosed => "the client reads no more",
        ConversationEnd::Stopped => "told to",
    }
}

fn runtime() -> anyhow::Result<Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(THREADS)
        .thread_name("toolman")
        .enable_all()
        .build()
        .context("the runtime")
}

fn caller(namespace: NamespaceName) -> Caller {
    Caller {
        namespace: Some(namespace.clone()),
        principal: Some(PRINCIPAL.into()),
        client: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        request_id: NAMESPACE.into(),
        profile: Arc::new(Profile::stdio(namespace)),
        manager: false,
        headers: None,
        visibility: Visibility::All,
        grant: None,
        maker: KeyMaker::default(),
        note: None,
        key_limits: None,
        budget: None,
        relay: None,
        toolset: None,
        status_only: false,
        trace: None,
    }
}

/// Creates a service whose only namespace is the aggregate.
fn service(
    name: &NamespaceName,
    spec: AggregateSpec,
    exported: &prometheus::Registry,
    control: &Handle,
) -> anyhow::Result<Service> {
    let registry = Arc::new(Registry::default());
    let runtimes = Arc::new(Runtimes::new());
    runtimes.provide(vec![control.clone()]);
    let host = ProcessHost {
        sandbox: Default::default(),
        guard: std::env::current_exe().context("finding this program's own file")?,
        control: control.clone(),
        runtimes,
        metrics: Arc::new(WorkerMetrics::new(exported)?),
        output: Default::default(),
    };
    let remote = RemoteClient::new(
        Arc::new(SystemNames),
        Arc::new(RemoteMetrics::new(exported)?),
        control.clone(),
        Arc::clone(registry.personal()),
        None,
    );
    let (follower, followed) = (Arc::clone(&remote), Arc::clone(&registry));
    control.spawn(async move { follower.follow(&followed).await });
    let mut key = [0; 32];
    getrandom::fill(&mut key).map_err(|error| anyhow!("no random numbers: {error}"))?;
    let health = Arc::new(Health::new());
    health.set_ready();
    let parts = ServiceParts {
        registry: Arc::clone(&registry),
        reloader: None,
        // The session must not expire: it ends when the client closes the pipes.
        sessions: SessionsConfig {
            ttl: FOR_EVER,
            unused_ttl: FOR_EVER,
            ..SessionsConfig::default()
        },
        session_key: SessionKey::from_bytes(key),
        stores: None,
        replicas: Replicas::alone(),
        sessions_per_principal: 1,
        session_bytes_per_principal: bytesize::ByteSize::b(CLIENT_BYTES as u64),
        streams_per_principal: CLIENT_STREAMS,
        limiter: Arc::new(NoLimits),
        audit: Audit::off(),
        credentials: None,
        management: None,
        web: None,
        links: None,
        http_client: Some(remote),
        pages: None,
        answers: AnswerBudget::unbounded(),
        metrics: Arc::new(UpstreamMetrics::new(exported)?),
        health,
    };
    let _within = control.enter();
    let service = Service::with_servers(parts, Arc::new(host));
    let around = AggregateInputs {
        config: &NamespacesConfig::default(),
        secrets: &Secrets::default(),
        environment: &|name| std::env::var(name).ok(),
    };
    let namespace = aggregate_namespace(name, Ok(spec), None, &around);
    registry.swap(Snapshot {
        generation: 1,
        namespaces: [(name.clone(), Arc::new(namespace))].into(),
    });
    Ok(service)
}

/// Limiter without limits. Calls need no limits here: the user who starts this program calls their own tools.
struct NoLimits;

impl Limiter for NoLimits {
    fn check(
        &self,
        _: &Caller,
        _: &NamespaceName,
        _: &str,
        _: CountedBy,
    ) -> Result<Option<Budget>, ExhaustedLimit> {
        Ok(None)
    }
}
