//! The start of a namespace: its environment, its worker, and the retries of a worker whose first start fails.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;
use tooldock_base::config::DEBUGGER_TIMEOUT;
use tooldock_base::error::{CallError, CallErrorCode};
use tooldock_base::issue::Issue;
use tooldock_base::worker_state::WorkerState;
use tooldock_process::child::variables::worker_variables;
use tooldock_process::environment::{EnvironmentError, NamespaceEnvironment, Packages, Toolchain};
use tooldock_process::worker::{Declarations, FilesHash, Worker, WorkerSpec};

use super::{Change, Changes, server};
use crate::registry::UpstreamKind;
use crate::reload::wanted::DesiredNamespace;
use crate::reload::{Reloader, lock};
use crate::scan::{ServerProgram, files_hash, files_version};

/// Minimum time without an answer after which a worker counts as hung.
const SILENCE_MIN: Duration = Duration::from_secs(30);

/// Time that a run waits for a worker in addition to `workers.ready_timeout`. The worker itself should fail at that timeout; the
/// additional limit ensures that a reload ends even if it does not.
const READY_SLACK: Duration = Duration::from_secs(30);

/// Time that a run waits for a worker that waits for a debugger, so that other namespaces need not wait as well. Within this time
/// a worker reports that its environment has no debugger.
const DEBUGGER_NOTICE: Duration = Duration::from_secs(3);

/// Interval at which a worker that failed to start is checked. The worker itself decides when it retries.
const RECOVERY_LOOK: Duration = Duration::from_millis(500);

/// Worker, or MCP server of a namespace folder, that has started and is ready for calls.
pub(super) struct ReadyUpstream {
    pub(super) upstream: UpstreamKind,
    /// Declarations of a worker; empty for a server, whose lists the MCP layer reads.
    pub(super) declared: Arc<Declarations>,
    pub(super) issues: Vec<Issue>,
    /// True if a source file was written between the scan and the end of the worker's start, even if it has the same content
    /// again: the worker may have loaded either version.
    pub(super) files_changed: bool,
}

/// Result of starting one namespace.
pub(super) struct StartOutcome {
    pub(super) wanted: DesiredNamespace,
    pub(super) synced: bool,
    pub(super) result: Result<ReadyUpstream, StartFailure>,
}

pub(super) struct StartFailure {
    pub(super) error: CallError,
    /// The worker whose first start failed; `None` if no worker was started.
    pub(super) worker: Option<Arc<Worker>>,
}

impl From<EnvironmentError> for StartFailure {
    fn from(error: EnvironmentError) -> Self {
        Self {
            error: error.into(),
            worker: None,
        }
    }
}

/// Starts a namespace: prepares its environment, starts its worker, and waits until the worker is ready. A folder whose files
/// make a server gets no worker: a Python file is imported on trial, and a Node.js program needs no toolchain.
pub(super) async fn bring_up(
    reloader: Arc<Reloader>,
    toolchain: Result<Arc<Toolchain>, EnvironmentError>,
    wanted: DesiredNamespace,
    packages: Packages,
) -> StartOutcome {
    let mut synced = false;
    if wanted.waits_for_debugger && wanted.source.program.is_some() {
        let name = &wanted.source.name;
        tracing::warn!(
            namespace = name.as_str(),
            "TOOLDOCK_DEBUG is for workers: the files of namespace {name} make a server, which is run without a debugger"
        );
    }
    let result = async {
        if let Some(ServerProgram::Node {
            file,
            packages: listed,
        }) = &wanted.source.program
        {
            let (program, installed) =
                server::node(&reloader, &wanted.source, file, listed.as_ref(), packages).await?;
            synced = installed;
            return server::start(&reloader, None, &wanted, program).await;
        }
        let toolchain = toolchain?;
        let prepared = reloader
            .environment(&wanted.source, &toolchain, packages)
            .await?;
        synced = prepared.synced;
        match &wanted.source.program {
            Some(ServerProgram::Python { target, .. }) => {
                let program = server::python(&wanted.source, target, &prepared);
                server::start(&reloader, Some(&toolchain), &wanted, program).await
            }
            _ => boot(&reloader, &toolchain, &wanted, prepared).await,
        }
    };
    let result = result.await;
    StartOutcome {
        wanted,
        synced,
        result,
    }
}

async fn boot(
    reloader: &Arc<Reloader>,
    toolchain: &Toolchain,
    wanted: &DesiredNamespace,
    prepared: NamespaceEnvironment,
) -> Result<ReadyUpstream, StartFailure> {
    let stopping = || StartFailure {
        error: CallError::new(
            CallErrorCode::WorkerUnavailable,
            "the gateway is shutting down",
        ),
        worker: None,
    };
    let name = &wanted.source.name;
    let socket = reloader
        .data
        .socket_for(name)
        .map_err(|error| StartFailure {
            error: CallError::new(CallErrorCode::InternalError, error.to_string()),
            worker: None,
        })?;
    let identity = wanted.identity(Some(&toolchain.id));
    let (environment, issues) = worker_variables(
        Some(&prepared.build),
        wanted.defaults(),
        wanted.secrets.clone(),
    );
    let spec = WorkerSpec {
        namespace: name.clone(),
        generation: reloader.generation(),
        python: prepared.python,
        venv: prepared.venv,
        tools_dir: wanted.source.dir.clone(),
        vault_style: wanted.source.manifest.vault_style,
        files_hash: Some(FilesHash {
            value: wanted.source.files_hash,
            now: files_hash,
        }),
        socket,
        environment,
        hidden: wanted.hidden(),
        sync_concurrency: identity.sync_concurrency,
        processes: identity.processes,
        max_frame: identity.max_frame,
        drain: wanted.drain(),
        // A tool may block the event loop until its time limit, so a process that is silent for less time does not count as hung.
        silence: match wanted.waits_for_debugger {
            true => DEBUGGER_TIMEOUT,
            false => wanted.longest_call().max(SILENCE_MIN),
        },
        sandbox: identity.sandbox.clone(),
        waits_for_debugger: wanted.waits_for_debugger,
    };
    let _turn = reloader.boots.acquire().await.map_err(|_| stopping())?;
    let worker = reloader.start(spec, identity).ok_or_else(stopping)?;
    let limit = match wanted.waits_for_debugger {
        true => DEBUGGER_NOTICE,
        false => worker.spec().boot_limit(reloader.ready_timeout) + READY_SLACK,
    };
    let first_boot = timeout(limit, worker.ready()).await.unwrap_or_else(|_| {
        let message = match wanted.waits_for_debugger {
            true => format!(
                "the worker of namespace {name} waits for a debugger: its log says where to attach"
            ),
            false => format!("the worker of namespace {name} was not ready after {limit:?}"),
        };
        Err(CallError::new(CallErrorCode::WorkerUnavailable, message))
    });
    let dir = wanted.source.dir.clone();
    let now = tokio::task::spawn_blocking(move || files_version(&dir)).await;
    match first_boot {
        Ok(declared) => Ok(ReadyUpstream {
            upstream: UpstreamKind::Worker(worker),
            declared,
            issues,
            files_changed: !matches!(now, Ok(Some(now)) if now == wanted.source.files_version),
        }),
        Err(error) => Err(StartFailure {
            error,
            worker: Some(worker),
        }),
    }
}

/// Watches the retries of a worker whose first start failed, and publishes its namespace once it is ready (WRK-16). A later
/// reload takes over by removing the worker from `recovering`.
pub(super) fn recover(reloader: &Arc<Reloader>, wanted: DesiredNamespace, worker: Arc<Worker>) {
    let name = wanted.source.name.clone();
    lock(&reloader.fleet)
        .recovering
        .insert(name.clone(), Arc::clone(&worker));
    let reloader = Arc::clone(reloader);
    let is_mine = move |reloader: &Reloader| {
        let fleet = lock(&reloader.fleet);
        fleet
            .recovering
            .get(&name)
            .is_some_and(|recovering| Arc::ptr_eq(recovering, &worker))
            .then(|| Arc::clone(&worker))
    };
    tokio::spawn(async move {
        while let Some(worker) = is_mine(&reloader) {
            match (worker.declared(), worker.state()) {
                (_, WorkerState::Failed | WorkerState::Stopped | WorkerState::Stopping) => return,
                (Some(declared), _) => {
                    return publish_recovered(&reloader, &wanted, worker, &declared);
                }
                (None, _) => tokio::time::sleep(RECOVERY_LOOK).await,
            }
        }
    });
}

fn publish_recovered(
    reloader: &Arc<Reloader>,
    wanted: &DesiredNamespace,
    worker: Arc<Worker>,
    declared: &Declarations,
) {
    let name = &wanted.source.name;
    // The worker is first removed from the list of recovering workers. If the list does not contain it, a reload has removed it
    // and retires it.
    let mine = lock(&reloader.fleet).recovering.remove(name);
    if !mine.is_some_and(|mine| Arc::ptr_eq(&mine, &worker)) {
        return;
    }
    let current = reloader.registry.namespace(name.as_str());
    let upstream = UpstreamKind::Worker(worker);
    let namespace = wanted.namespace(current.as_deref(), upstream, declared, &declared.issues);
    tracing::info!(namespace = %name, "the worker recovered; its namespace is served");
    reloader.publish(Changes::from([(name.clone(), Change::Publish(namespace))]));
}
