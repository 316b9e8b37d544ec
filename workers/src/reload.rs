//! Reload: makes the served namespaces match the files on disk, and changes only namespaces whose files changed (RLD-01…08).
//!
//! ```text
//! reload() ─▶ queue ─▶ run: scan ─▶ compare ─▶ environment ─▶ worker ready ─▶ swap ─▶ drain the replaced workers
//!                            │                 └─ one task per changed namespace, in parallel ─┘
//!                            └─ unchanged: the same `Arc<Namespace>`, the same process
//! ```
//!
//! External servers are namespaces in addition to those of folders, and are compared without starting anything.
//!
//! Runs do not overlap. Requests for a reload that arrive during a run share the next run, since the current one may have read
//! the files before they were changed (Q-30). A run belongs to the control runtime, not to its caller, and is completed even if
//! the caller disconnects.
//!
//! A run publishes ready namespaces when all are ready, or one second after the first: a usual reload replaces the snapshot
//! once, and an installer that hangs delays no other namespace. In each snapshot every namespace is either old or new.

mod aggregate;
mod automatic;
mod external;
mod installs;
mod metrics;
mod names;
mod run;
mod secrets;
mod starter;
mod vault;
mod wanted;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use sha2::{Digest, Sha256};
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tooldock_base::config::{NamespacesConfig, WorkersConfig};
use tooldock_base::data_dir::DataDir;
use tooldock_base::issue::Issue;
use tooldock_base::names::NamespaceName;
use tooldock_base::precedence::Names;
use tooldock_credentials::secrets::{RecordedOwners, SecretSource, Secrets};
use tooldock_process::environment::Environments;
use tooldock_process::worker::{Worker, WorkerHost, WorkerSpec};

use crate::aggregate::AggregatesConfig;
use crate::external::{ExternalServer, ServersFile};
use crate::registry::startup::ExpectedNamespaces;
use crate::registry::{Registry, UpstreamKind};
use crate::servers::{ServersConfig, configured};

pub use aggregate::{AggregateInputs, namespace as aggregate_namespace};
use automatic::{AutomaticReloads, ReloadScope};
use external::{is_same as same_namespace, namespace as of_external};
use installs::Installs;
pub use metrics::{ReloadMetrics, ReloadOutcome};
use wanted::{Identity, build_of, content_hash, gate, nobody, parking};

/// Maximum number of workers that start at the same time. Starting needs processor time: more workers would delay each other.
const BOOTS_MAX: usize = 16;

/// Carries out reloads: updates the registry, and owns every worker.
#[derive(Debug)]
pub struct Reloader {
    data: Arc<DataDir>,
    ready_timeout: Duration,
    /// Limits of all namespaces, replaced by a configuration reload. None of the mutexes in this struct is held across an await.
    namespaces: Mutex<Arc<NamespacesConfig>>,
    servers: Mutex<Arc<ServersConfig>>,
    aggregates: Mutex<Arc<AggregatesConfig>>,
    vault: Mutex<Option<VaultFolder>>,
    /// Last usable content of the file of external servers.
    servers_file: Mutex<Arc<ServersFile>>,
    /// The namespace or server that is served under each name, as the most recent run over all namespaces determined it.
    names: Mutex<Arc<Names>>,
    /// Recorded owners of secrets; `None` until they are read.
    owners: Mutex<Option<RecordedOwners>>,
    secrets: SecretsOf,
    /// The secrets of the most recent successful read; `None` before the first one.
    last_secrets: Mutex<Option<Secrets>>,
    host: Arc<WorkerHost>,
    registry: Arc<Registry>,
    environments: Environments,
    metrics: ReloadMetrics,
    /// Outcome of the parts of the next reload that other modules carry out, such as the reload of the configuration.
    noted: Mutex<ReloadOutcome>,
    control: OnceLock<Handle>,
    queue: Mutex<RunQueue>,
    /// True while a caller waits for the run after the current one.
    queued: watch::Sender<bool>,
    installs: Installs,
    itself: Mutex<AutomaticReloads>,
    fleet: Mutex<Fleet>,
    /// Lock held from reading a snapshot until its successor is published, so that no concurrent change is lost.
    publishing: Mutex<()>,
    next_generation: AtomicU64,
    boots: Semaphore,
    closing: CancellationToken,
}

/// The namespace of Tool Vault, in whose folder each file contains one function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VaultFolder {
    /// Name of Tool Vault's namespace.
    pub name: NamespaceName,
    /// Folder of the namespace as an absolute path without symlinks; `None` if it is the folder of that name in the data
    /// directory.
    pub dir: Option<PathBuf>,
}

#[derive(Clone)]
struct SecretsOf(Arc<dyn SecretSource>);

impl std::fmt::Debug for SecretsOf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SecretSource")
    }
}

/// Result of a reload, by namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReloadReport {
    /// All known namespaces, including those that cannot be served.
    pub namespaces: Vec<NamespaceName>,
    /// Namespaces with a new worker process, and external servers that are new or changed.
    pub workers_restarted: Vec<NamespaceName>,
    /// Namespaces whose requirements were installed.
    pub deps_synced: Vec<NamespaceName>,
    /// Namespaces that were removed because they no longer exist.
    pub removed: Vec<NamespaceName>,
    /// Namespaces that could not be updated; the previous version of them may still be served.
    pub failed: Vec<ReloadFailure>,
    /// True if another reload was running when this one was requested; the report then covers both.
    pub coalesced: bool,
}

/// A namespace that could not be updated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReloadFailure {
    /// Name of the namespace, or of a file that concerns several namespaces, such as the file of external servers.
    pub namespace: String,
    /// Stable code: `invalid_manifest`, `invalid_config`, `missing_variable`, `dependency_error`,
    /// `worker_unavailable`, `unreadable`, `secrets_unavailable`, `internal_error`.
    pub code: &'static str,
    /// Description of the problem with the namespace.
    pub message: String,
}

/// Reason why a reload was not carried out. The previous namespaces are still served.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ReloadError {
    /// The reloader was not given its runtime yet: the gateway is still starting.
    #[error("the gateway is still starting")]
    NotStarted,
    /// The gateway is shutting down and carries out no further reloads.
    #[error("the gateway is shutting down")]
    ShuttingDown,
    /// The tools directory cannot be read.
    #[error("{}: cannot be read: {source}", path.display())]
    Scan {
        /// Path of the tools directory.
        path: PathBuf,
        /// Error of the operating system for the tools directory.
        source: Arc<io::Error>,
    },
    /// The secrets cannot be read, and were never read since the gateway started, so no namespace can get its secrets.
    #[error("{0}")]
    Secrets(String),
    /// The reload was interrupted by a defect of the gateway; the log has the details.
    #[error("the reload was interrupted")]
    Interrupted,
}

type Answer = Result<Arc<ReloadReport>, ReloadError>;
type Ticket = watch::Sender<Option<Answer>>;

/// Result of a run of the reload.
enum RunEnd {
    Over(Answer),
    /// The run ended early because another one waits: only installers of not yet served namespaces remain, and the next run
    /// takes them over. The report covers the other namespaces.
    LeftInstalling(ReloadReport),
}

/// State of the reload's runs: whether one is running, and the next one.
#[derive(Debug, Default)]
struct RunQueue {
    running: bool,
    /// Scope and callers of the run after the current one; `None` if no caller waits for it.
    next: Option<(ReloadScope, Ticket)>,
}

/// Workers that were started and have not ended yet.
#[derive(Debug, Default)]
struct Fleet {
    members: Vec<FleetMember>,
    /// Workers whose first start failed and that are still retried. Their namespaces are published as failed.
    recovering: BTreeMap<NamespaceName, Arc<Worker>>,
    /// Servers made by the files of namespace folders. The MCP layer runs their processes.
    servers: Vec<FolderServer>,
    closed: bool,
}

/// Record of a server made by the files of a namespace folder. Without effect once nothing else uses the server.
#[derive(Debug)]
struct FolderServer {
    server: Weak<ExternalServer>,
    identity: Identity,
    /// Issues found when the server was started.
    issues: Vec<Issue>,
}

#[derive(Debug)]
struct FleetMember {
    worker: Arc<Worker>,
    identity: Identity,
}

impl Reloader {
    /// Creates a reloader that publishes into `registry`. It cannot reload before [`Reloader::bind_runtime`] is called.
    pub fn new(
        data: Arc<DataDir>,
        config: WorkersConfig,
        namespaces: NamespacesConfig,
        secrets: Arc<dyn SecretSource>,
        host: Arc<WorkerHost>,
        registry: Arc<Registry>,
        metrics: ReloadMetrics,
    ) -> Arc<Self> {
        // The current time is used, so that the number is above every generation of an earlier gateway on this data directory.
        let generation = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(1, |since| u64::try_from(since.as_micros()).unwrap_or(1));
        Arc::new(Self {
            ready_timeout: config.ready_timeout,
            environments: Environments::new(
                Arc::clone(&data),
                config,
                host.guard.clone(),
                host.metrics.processes().clone(),
            ),
            data,
            namespaces: Mutex::new(Arc::new(namespaces)),
            servers: Mutex::default(),
            aggregates: Mutex::default(),
            vault: Mutex::new(None),
            servers_file: Mutex::default(),
            names: Mutex::default(),
            owners: Mutex::default(),
            secrets: SecretsOf(secrets),
            last_secrets: Mutex::default(),
            host,
            registry,
            metrics,
            noted: Mutex::default(),
            control: OnceLock::new(),
            queue: Mutex::default(),
            queued: watch::Sender::new(false),
            installs: Installs::default(),
            itself: Mutex::default(),
            fleet: Mutex::default(),
            publishing: Mutex::default(),
            next_generation: AtomicU64::new(generation),
            boots: Semaphore::new(BOOTS_MAX),
            closing: CancellationToken::new(),
        })
    }

    /// Registers the namespaces that the first scan will find as starting, so that requests for them wait. Must be called
    /// before the first request, after all parts of the configuration are set.
    pub fn expect_namespaces(&self) {
        let (servers, aggregates) = (lock(&self.servers).clone(), lock(&self.aggregates).clone());
        // If the file cannot be used, the first scan reports that.
        let file = ServersFile::read(self.data.root()).unwrap_or_default();
        let elsewhere = lock(&self.vault).clone().filter(|it| it.dir.is_some());
        let claims = configured(&servers, &aggregates).into_iter();
        let claims = claims.chain(file.claims()).filter(|claim| claim.enabled);
        let claims = claims.map(|claim| claim.name);
        self.registry.startup().begin(ExpectedNamespaces {
            names: claims.chain(elsewhere.map(|it| it.name)).collect(),
            tools_dir: Some(self.data.tools_dir()),
        });
    }

    /// Sets the runtime that workers and their processes belong to. Only the first call has an effect.
    pub fn bind_runtime(&self, control: Handle) {
        let _ = self.control.set(control);
    }

    /// Sets the limits of all namespaces for later reloads.
    pub fn set_namespaces(&self, namespaces: NamespacesConfig) {
        *lock(&self.namespaces) = Arc::new(namespaces);
    }

    /// Sets the configured servers for later reloads; initially there are none.
    pub fn set_servers(&self, servers: ServersConfig) {
        *lock(&self.servers) = Arc::new(servers);
    }

    /// Sets the configured aggregates for later reloads; initially there are none.
    pub fn set_aggregates(&self, aggregates: AggregatesConfig) {
        *lock(&self.aggregates) = Arc::new(aggregates);
    }

    /// Sets the parts of the configuration that are not in force, which `/ready` reports: each with the file or key, and the
    /// reason. They replace those of the previous call.
    pub fn set_configuration_problems<'a>(
        &self,
        problems: impl IntoIterator<Item = (&'a str, String)>,
    ) {
        let issues = problems.into_iter().map(|(subject, message)| Issue {
            code: "invalid_config",
            subject: subject.to_owned(),
            message,
        });
        self.registry.set_configuration_problems(issues.collect());
    }

    /// The registry that this reloader publishes into.
    pub fn registry(&self) -> &Arc<Registry> {
        &self.registry
    }

    /// Sets the namespace of Tool Vault for later reloads; initially there is none.
    pub fn set_vault(&self, vault: VaultFolder) {
        *lock(&self.vault) = Some(vault);
    }

    /// Records the outcome of the reload of the configuration, which is a part of the next reload. The metrics count a reload by
    /// its worst part.
    pub fn note(&self, outcome: ReloadOutcome) {
        let mut noted = lock(&self.noted);
        *noted = outcome.max(*noted);
    }

    /// Makes the served namespaces match the files on disk. May be called from any runtime; dropping the future does not stop
    /// the reload.
    ///
    /// # Errors
    ///
    /// When the reload could not begin. A namespace that fails is not an error but listed in the report.
    pub async fn reload(self: &Arc<Self>) -> Result<Arc<ReloadReport>, ReloadError> {
        self.request(ReloadScope::All).await
    }

    /// Makes one served namespace match its files on disk, without changing other namespaces.
    async fn reload_only(self: &Arc<Self>, name: &NamespaceName) -> Answer {
        let only = BTreeSet::from([name.clone()]);
        self.request(ReloadScope::Only(only)).await
    }

    async fn request(self: &Arc<Self>, scope: ReloadScope) -> Answer {
        let control = self.control.get().ok_or(ReloadError::NotStarted)?;
        if self.closing.is_cancelled() {
            return Err(ReloadError::ShuttingDown);
        }
        let mut answer = {
            let mut queue = lock(&self.queue);
            if queue.running {
                let (waiting, ticket) = queue
                    .next
                    .get_or_insert_with(|| (scope.clone(), watch::Sender::new(None)));
                waiting.extend(scope);
                self.queued.send_replace(true);
                ticket.subscribe()
            } else {
                queue.running = true;
                let ticket = watch::Sender::new(None);
                let answer = ticket.subscribe();
                control.spawn(Arc::clone(self).run_queue(scope, ticket));
                answer
            }
        };
        // Handles:
        // - the end of the run;
        // - the end of the gateway: the run's work on files may continue for a moment, but the caller does not wait for it.
        tokio::select! {
            biased;
            answer = answer.wait_for(Option::is_some) => match answer {
                Ok(answer) => answer.clone().unwrap_or(Err(ReloadError::Interrupted)),
                // The sender was dropped, because the runtime was shut down during the run.
                Err(_) => Err(ReloadError::Interrupted),
            },
            () = self.closing.cancelled() => Err(ReloadError::ShuttingDown),
        }
    }

    /// Runs reloads one after the other, until no further one is requested.
    async fn run_queue(self: Arc<Self>, mut scope: ReloadScope, ticket: Ticket) {
        let mut before: Option<Answer> = None;
        let mut tickets = vec![ticket];
        loop {
            // Run in a separate task, so that a panic ends only this run and not the queue.
            let ended = tokio::spawn(run::run(Arc::clone(&self), scope)).await;
            let ended = ended.unwrap_or(RunEnd::Over(Err(ReloadError::Interrupted)));
            let next = {
                let mut queue = lock(&self.queue);
                let next = queue.next.take();
                queue.running = next.is_some();
                self.queued.send_replace(false);
                next
            };
            let (own, is_over) = match ended {
                RunEnd::Over(own) => (own, true),
                // A run that leaves its installers to the next run covered all namespaces, so the next run must cover them, too.
                RunEnd::LeftInstalling(report) => (Ok(Arc::new(report)), next.is_none()),
            };
            let answer = match (&before, own) {
                (Some(before), Ok(own)) => Ok(Arc::new(coalesced(before.as_deref().ok(), &own))),
                (_, own) => own,
            };
            // The callers are answered only after the next run was taken from the queue: a caller that now requests another
            // reload must not get the result of this run again.
            if is_over {
                for ticket in tickets.drain(..) {
                    ticket.send_replace(Some(answer.clone()));
                }
            }
            before = Some(answer);
            let Some((wanted, ticket)) = next else {
                return;
            };
            tickets.push(ticket);
            scope = match is_over {
                true => wanted,
                // A run that leaves its installers covered all namespaces, so the next run must cover them, too.
                false => ReloadScope::All,
            };
        }
    }

    /// Refuses later reloads and stops the current one, including its installers. Workers continue to serve. May be called again.
    pub fn close(&self) {
        self.closing.cancel();
    }

    /// Closes the reloader and ends all workers concurrently. Each may finish its calls for up to `grace`.
    pub async fn shutdown(&self, grace: Duration) {
        self.close();
        let members = {
            let mut fleet = lock(&self.fleet);
            fleet.closed = true;
            fleet.recovering.clear();
            std::mem::take(&mut fleet.members)
        };
        let mut retiring = JoinSet::new();
        for member in members {
            retiring.spawn(async move { member.worker.retire(grace).await });
        }
        while retiring.join_next().await.is_some() {}
    }

    /// Starts a worker and stores it in the fleet. Returns `None` if the gateway is shutting down.
    fn start(self: &Arc<Self>, spec: WorkerSpec, identity: Identity) -> Option<Arc<Worker>> {
        let mut fleet = lock(&self.fleet);
        if fleet.closed {
            return None;
        }
        let worker = Worker::start(spec, Arc::clone(&self.host));
        self.watch(worker.spec().namespace.clone(), worker.refusals());
        fleet.members.push(FleetMember {
            worker: Arc::clone(&worker),
            identity,
        });
        Some(worker)
    }

    /// Ends a worker in the background, after its calls have finished or `drain` is over, and removes it from the fleet.
    fn retire(self: &Arc<Self>, worker: Arc<Worker>, drain: Duration) {
        let reloader = Arc::clone(self);
        tokio::spawn(async move {
            worker.retire(drain).await;
            lock(&reloader.fleet)
                .members
                .retain(|member| !Arc::ptr_eq(&member.worker, &worker));
            let name = worker.spec().namespace.clone();
            // The environment of a deleted namespace can only be removed now, because the worker used it until now.
            if reloader.registry.namespace(name.as_str()).is_none() {
                let cleaned = tokio::task::spawn_blocking(move || {
                    let keep = reloader.builds_in_use();
                    reloader.environments.collect_builds_of(&name, &keep);
                });
                let _ = cleaned.await;
            }
        });
    }

    /// The identity (files, settings) that a worker was started with.
    fn identity_of(&self, worker: &Arc<Worker>) -> Option<Identity> {
        lock(&self.fleet)
            .members
            .iter()
            .find(|member| Arc::ptr_eq(&member.worker, worker))
            .map(|member| member.identity.clone())
    }

    /// Returns the identity (files, settings) with which a folder's server was started, and the issues found then.
    fn folder_server(&self, server: &Arc<ExternalServer>) -> Option<(Identity, Vec<Issue>)> {
        let fleet = lock(&self.fleet);
        let mut servers = fleet.servers.iter();
        let found = servers.find(|it| std::ptr::eq(it.server.as_ptr(), Arc::as_ptr(server)))?;
        Some((found.identity.clone(), found.issues.clone()))
    }

    /// Returns the identity (files, settings) with which the worker or server of a folder was started; `None` for other
    /// namespaces.
    fn identity_of_upstream(&self, upstream: &UpstreamKind) -> Option<Identity> {
        match upstream {
            UpstreamKind::Worker(worker) => self.identity_of(worker),
            UpstreamKind::External(server) => self.folder_server(server).map(|(it, _)| it),
            UpstreamKind::Empty
            | UpstreamKind::Remote(_)
            | UpstreamKind::Aggregate(_)
            | UpstreamKind::System
            | UpstreamKind::Failed(_) => None,
        }
    }

    /// Returns a digest of the names of all served namespaces, and of the files of those that are folders. Gateways that serve
    /// the same namespaces from the same files have equal digests.
    pub fn sources(&self) -> [u8; 32] {
        let mut digest = Sha256::new();
        for (name, namespace) in &self.registry.snapshot().namespaces {
            digest.update(name.as_str());
            digest.update([0]);
            if let Some(identity) = self.identity_of_upstream(&namespace.upstream) {
                digest.update(identity.files_hash);
            }
        }
        digest.finalize().into()
    }

    /// Paths of the environments that workers and servers of folders still run in.
    fn builds_in_use(&self) -> BTreeSet<PathBuf> {
        let fleet = lock(&self.fleet);
        let workers = fleet.members.iter();
        let workers = workers.map(|member| build_of(&member.worker.spec().python).to_owned());
        let servers = fleet.servers.iter().filter_map(|it| it.server.upgrade());
        let servers = servers
            .flat_map(|it| it.folder.clone())
            .flat_map(|it| it.own);
        workers.chain(servers.map(|it| it.path)).collect()
    }

    fn generation(&self) -> u64 {
        self.next_generation.fetch_add(1, Ordering::Relaxed)
    }
}

/// Combines the reports of two runs, for callers that requested a reload while the first one was active.
fn coalesced(before: Option<&ReloadReport>, own: &ReloadReport) -> ReloadReport {
    let none = ReloadReport::default();
    let before = before.unwrap_or(&none);
    let union = |a: &[NamespaceName], b: &[NamespaceName]| -> Vec<_> {
        a.iter()
            .chain(b)
            .cloned()
            .collect::<BTreeSet<_>>()
            .into_iter()
            .collect()
    };
    let is_there = |name: &NamespaceName| own.namespaces.contains(name);
    ReloadReport {
        namespaces: own.namespaces.clone(),
        workers_restarted: union(&before.workers_restarted, &own.workers_restarted),
        deps_synced: union(&before.deps_synced, &own.deps_synced),
        // A namespace that exists after the second run was added again, so it does not count as removed.
        removed: union(&before.removed, &own.removed)
            .into_iter()
            .filter(|name| !is_there(name))
            .collect(),
        // Failures of the first run are omitted, since the second run tried these namespaces again.
        failed: own.failed.clone(),
        coalesced: true,
    }
}

/// Locks a mutex even if it is poisoned. The data are consistent, because every critical section is a few assignments.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> Vec<NamespaceName> {
        names.iter().map(|name| name.parse().unwrap()).collect()
    }

    #[test]
    fn a_coalesced_report_is_the_union_of_both_runs() {
        let before = ReloadReport {
            namespaces: names(&["a", "b"]),
            workers_restarted: names(&["b"]),
            deps_synced: names(&["b"]),
            removed: names(&["c", "d"]),
            failed: vec![ReloadFailure {
                namespace: "a".into(),
                code: "dependency_error",
                message: "offline".into(),
            }],
            coalesced: false,
        };
        let own = ReloadReport {
            namespaces: names(&["a", "c"]),
            workers_restarted: names(&["a"]),
            removed: names(&["b"]),
            ..ReloadReport::default()
        };
        let both = coalesced(Some(&before), &own);
        assert_eq!(both.namespaces, names(&["a", "c"]));
        assert_eq!(both.workers_restarted, names(&["a", "b"]));
        assert_eq!(both.deps_synced, names(&["b"]));
        assert_eq!(both.removed, names(&["b", "d"]));
        assert!(both.failed.is_empty() && both.coalesced);
    }
}
