//! One run of a reload, from the scan to the last swap.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use tokio::task::{Id, JoinError, JoinSet};
use tokio::time::{Instant, timeout};

use super::external;
use super::itself::{FILES_CHANGED, FUNCTIONS_CHANGED, Scope};
use super::metrics::ReloadOutcome;
use super::wanted::{
    Identity, UPDATE, Wanted, build_of, call_error, declared_by, noted, relimited,
};
use super::{Answer, ReloadError, ReloadFailure, ReloadReport, Reloader, lock};
use crate::config::NamespacesConfig;
use crate::environment::{EnvironmentError, Packages, Prepared, Toolchain, worker_variables};
use crate::error::{CallError, CallErrorCode};
use crate::external::COLLISION;
use crate::names::NamespaceName;
use crate::registry::{Issue, Namespace, Snapshot, Upstream};
use crate::scan::{NamespaceSource, files_hash, scan, scan_one};
use crate::worker::{Declared, Worker, WorkerSpec, WorkerState};

/// The shortest time after which a worker that answers nothing counts as hung.
const SILENCE_MIN: Duration = Duration::from_secs(30);

/// How long what is ready waits for the rest before it is published without it.
pub(super) const WINDOW: Duration = Duration::from_secs(1);

/// On top of `workers.ready_timeout`, which the worker keeps itself: a backstop, so that no reload waits for ever.
const READY_SLACK: Duration = Duration::from_secs(30);

/// How often a worker that failed to boot is looked at. It retries at its own pace.
const RECOVERY_LOOK: Duration = Duration::from_millis(500);

/// What a changed namespace becomes.
pub(super) type Changes = BTreeMap<NamespaceName, Change>;

pub(super) enum Change {
    Publish(Arc<Namespace>),
    Remove,
}

/// A worker of the new generation that is ready.
struct Booted {
    worker: Arc<Worker>,
    declared: Arc<Declared>,
    issues: Vec<Issue>,
    /// The files are not those that were scanned: some of them may be loaded, or none.
    files_changed: bool,
}

/// What became of bringing one namespace up.
struct BroughtUp {
    wanted: Wanted,
    synced: bool,
    result: Result<Booted, NotUp>,
}

struct NotUp {
    error: CallError,
    /// The worker whose first boot failed, where there is one.
    worker: Option<Arc<Worker>>,
}

impl From<EnvironmentError> for NotUp {
    fn from(error: EnvironmentError) -> Self {
        Self {
            error: error.into(),
            worker: None,
        }
    }
}

pub(super) async fn run(reloader: Arc<Reloader>, scope: Scope) -> Answer {
    let started = Instant::now();
    let noted = match scope {
        Scope::All => std::mem::take(&mut *lock(&reloader.noted)),
        Scope::Only(_) => ReloadOutcome::default(),
    };
    let answer = Run::new(reloader.clone(), scope).go().await;
    let outcome = match &answer {
        Ok(report) if report.failed.is_empty() => ReloadOutcome::Complete,
        Ok(_) => ReloadOutcome::Partial,
        Err(_) => ReloadOutcome::Rejected,
    };
    let outcome = outcome.max(noted);
    reloader.metrics.reloaded(outcome, started.elapsed());
    match &answer {
        Ok(report) => tracing::info!(
            namespaces = report.namespaces.len(),
            restarted = report.workers_restarted.len(),
            synced = report.deps_synced.len(),
            removed = report.removed.len(),
            failed = report.failed.len(),
            seconds = started.elapsed().as_secs_f64(),
            "reloaded"
        ),
        Err(error) => {
            tracing::error!(%error, "the reload failed; the old namespaces are still served")
        }
    }
    answer
}

struct Run {
    reloader: Arc<Reloader>,
    scope: Scope,
    /// What was served when the run began. Only this run changes it, but for workers that recover.
    before: Arc<Snapshot>,
    changes: Changes,
    /// Workers to wait for once their namespaces are published as failed.
    recovering: Vec<(Wanted, Arc<Worker>)>,
    report: ReloadReport,
}

impl Run {
    fn new(reloader: Arc<Reloader>, mut scope: Scope) -> Self {
        let before = reloader.registry.snapshot();
        if let Scope::Only(names) = &mut scope {
            // What went or became a server of others meanwhile is no folder to look at.
            let is_folder =
                |served: &Arc<Namespace>| !matches!(served.upstream, Upstream::External(_));
            names.retain(|name| before.namespaces.get(name).is_some_and(is_folder));
        }
        Self {
            before,
            scope,
            reloader,
            changes: Changes::new(),
            recovering: Vec::new(),
            report: ReloadReport::default(),
        }
    }

    async fn go(mut self) -> Answer {
        // A worker that recovers while the gateway stops need not be ended for a run that will not come.
        if self.reloader.closing.is_cancelled() {
            return Err(ReloadError::ShuttingDown);
        }
        self.reloader.take_over_recovering(&self.scope);
        let mut sources = self.scan().await?;
        let reloader = Arc::clone(&self.reloader);
        let externals = match &self.scope {
            Scope::All => reloader.externals(&mut sources, &mut self.report).await,
            Scope::Only(_) => {
                self.keep_collisions(&mut sources);
                Vec::new()
            }
        };
        let folders = sources.iter().map(|source| &source.name);
        let servers = externals.iter().map(|external| &external.name);
        let others = self.before.namespaces.keys();
        let others = others.filter(|name| !self.scope.covers(name));
        self.report.namespaces = folders.chain(servers).chain(others).cloned().collect();
        self.report.namespaces.sort();
        for name in self.before.namespaces.keys() {
            if self.report.namespaces.binary_search(name).is_err() {
                self.changes.insert(name.clone(), Change::Remove);
            }
        }

        let config = Arc::clone(&lock(&reloader.namespaces));
        external::settle(
            externals,
            &self.before,
            &config,
            &mut self.changes,
            &mut self.report,
        );

        // Removed folders and the like need not wait for a base environment that is being downloaded.
        let toolchain = if sources.iter().any(|source| source.has_python) {
            let known = Arc::clone(&self.reloader);
            let mut making = std::pin::pin!(known.environments.toolchain());
            let made = tokio::select! {
                made = timeout(WINDOW, &mut making) => made,
                () = self.reloader.closing.cancelled() => return Err(ReloadError::ShuttingDown),
            };
            let made = match made {
                Ok(made) => made,
                Err(_) => {
                    if !self.changes.is_empty() {
                        self.publish();
                    }
                    tokio::select! {
                        made = making => made,
                        () = self.reloader.closing.cancelled() => return Err(ReloadError::ShuttingDown),
                    }
                }
            };
            Some(made)
        } else {
            None
        };

        let mut bringing_up = JoinSet::new();
        let mut names: HashMap<Id, NamespaceName> = HashMap::new();
        for wanted in self.want(sources, toolchain.as_ref()) {
            let name = wanted.source.name.clone();
            match &toolchain {
                Some(Ok(toolchain)) => {
                    let packages = match self.scope {
                        Scope::All => Packages::Install,
                        Scope::Only(_) => Packages::AsTheyAre,
                    };
                    let (reloader, toolchain) = (Arc::clone(&self.reloader), Arc::clone(toolchain));
                    let task = bring_up(reloader, toolchain, wanted, packages);
                    names.insert(bringing_up.spawn(task).id(), name);
                }
                Some(Err(error)) => self.fail(&wanted, "dependency_error", error.clone().into()),
                // Only namespaces with Python come here, and for those there is a toolchain or an error.
                None => {}
            }
        }
        self.collect(bringing_up, names).await?;
        self.publish();
        self.clean_up().await;
        self.report.workers_restarted.sort();
        self.report.deps_synced.sort();
        self.report
            .failed
            .sort_by(|a, b| a.namespace.cmp(&b.namespace));
        Ok(Arc::new(self.report))
    }

    async fn scan(&self) -> Result<Vec<NamespaceSource>, ReloadError> {
        let path = self.reloader.data.tools_dir();
        let failed = |source: std::io::Error| ReloadError::Scan {
            path: path.clone(),
            source: Arc::new(source),
        };
        let (tools, scope) = (path.clone(), self.scope.clone());
        let scan = move || match scope {
            Scope::All => scan(&tools),
            // That a folder is gone, or not all there yet, is for a reload that somebody asks for.
            Scope::Only(names) => names
                .iter()
                .map(|name| match scan_one(&tools, name)? {
                    Some(source) if source.has_python || source.failure.is_some() => Ok(source),
                    _ => Ok(NamespaceSource::unreadable(
                        name.clone(),
                        tools.join(name.as_str()),
                    )),
                })
                .collect(),
        };
        tokio::task::spawn_blocking(scan)
            .await
            .map_err(|_| ReloadError::Interrupted)?
            .map_err(failed)
    }

    /// That a server of others has the name of a folder was found out by the reload that looked at both.
    fn keep_collisions(&self, sources: &mut [NamespaceSource]) {
        for source in sources {
            let current = self.before.namespaces.get(&source.name);
            let issues = current.into_iter().flat_map(|current| &current.issues);
            let collisions = issues.filter(|issue| issue.code == COLLISION).cloned();
            source.issues.extend(collisions);
        }
    }

    /// Compares what is on disk with what is served. What needs no process is settled at once; what needs one is
    /// returned.
    fn want(
        &mut self,
        sources: Vec<NamespaceSource>,
        toolchain: Option<&Result<Arc<Toolchain>, EnvironmentError>>,
    ) -> Vec<Wanted> {
        let config = Arc::clone(&lock(&self.reloader.namespaces));
        let id = toolchain
            .and_then(|made| made.as_ref().ok())
            .map(|toolchain| toolchain.id.as_str());
        let mut changed = Vec::new();
        for source in sources {
            let current = self.before.namespaces.get(&source.name).cloned();
            let current = current.as_deref();
            let running = current.and_then(|current| self.running(current));
            let secrets = self.reloader.secrets.0.for_namespace(&source.name);
            // Without a toolchain what runs stays as it is, so it is compared with its own.
            let own = running.as_ref().and_then(|it| it.toolchain.as_deref());
            let environment = |name: &str| std::env::var(name).ok();
            let wanted = Wanted::new(source, &config, secrets, &environment, id.or(own));
            if let Some(failure) = wanted.failure.clone() {
                self.relimit(current, running.as_ref(), &config);
                self.fail(&wanted, failure.code, call_error(&failure));
                continue;
            }
            if !wanted.source.has_python {
                let is_empty =
                    current.is_some_and(|current| matches!(current.upstream, Upstream::Empty));
                if !(is_empty && current.is_some_and(|current| wanted.is_same_as(current))) {
                    self.change(wanted.namespace(
                        current,
                        Upstream::Empty,
                        &Declared::default(),
                        &[],
                    ));
                }
                continue;
            }
            let reason = current.map_or(Some("it is new"), |current| {
                self.reason_to_replace(current, running.as_ref(), &wanted, id)
            });
            match (current, reason) {
                (Some(current), None) => {
                    self.reloader.settle(&current.name, false);
                    if !wanted.is_same_as(current) {
                        self.rewrap(current, &wanted);
                    }
                }
                (_, reason) => {
                    tracing::info!(namespace = %wanted.source.name, reason, "bringing the namespace up");
                    self.relimit(current, running.as_ref(), &config);
                    self.note_reload(current, running.as_ref(), &wanted);
                    changed.push(wanted);
                }
            }
        }
        changed
    }

    /// What the worker of a namespace was started with.
    fn running(&self, current: &Namespace) -> Option<Identity> {
        match &current.upstream {
            Upstream::Worker(worker) => self.reloader.identity_of(worker),
            Upstream::Empty | Upstream::External(_) | Upstream::Failed(_) => None,
        }
    }

    /// Puts the operator's word of today around what serves already. An update may take its time or fail, and its author
    /// decides about that; a tool or principal that the operator took away is gone whatever becomes of it.
    fn relimit(
        &mut self,
        current: Option<&Namespace>,
        running: Option<&Identity>,
        config: &NamespacesConfig,
    ) {
        let (Some(current), Some(running)) = (current, running) else {
            return;
        };
        if let Some(namespace) = relimited(current, running, config) {
            tracing::info!(namespace = %namespace.name, "the namespace has new limits; its processes stay");
            self.changes
                .insert(namespace.name.clone(), Change::Publish(namespace));
        }
    }

    /// Says of a namespace that reloads itself what it does, until the outcome is known.
    fn note_reload(
        &mut self,
        current: Option<&Namespace>,
        running: Option<&Identity>,
        wanted: &Wanted,
    ) {
        let (Scope::Only(_), Some(current)) = (&self.scope, current) else {
            return;
        };
        let name = &wanted.source.name;
        let code = reason_for(running, wanted);
        tracing::warn!(namespace = %name, code, "the namespace reloads itself");
        // With its new limits, where those are not published yet.
        let current = match self.changes.get(name) {
            Some(Change::Publish(relimited)) => relimited,
            _ => current,
        };
        if let Upstream::Worker(worker) = &current.upstream {
            let message = format!("{}; it is being reloaded", sentence(code));
            let noted = noted(current, worker, code, message);
            self.changes.insert(name.clone(), Change::Publish(noted));
        }
    }

    /// What is different about the process that would be started from the one that serves.
    fn reason_to_replace(
        &self,
        current: &Namespace,
        running: Option<&Identity>,
        wanted: &Wanted,
        toolchain: Option<&str>,
    ) -> Option<&'static str> {
        let Upstream::Worker(worker) = &current.upstream else {
            return Some("nothing serves it");
        };
        let Some(running) = running else {
            return Some("its worker is ending");
        };
        let spec = worker.spec();
        let (variables, _) = worker_variables(
            build_of(&spec.python),
            wanted.defaults(),
            wanted.secrets.clone(),
        );
        if !wanted.identity(toolchain).is_served_by(running) {
            Some("its files, its runtime or a limit of the process changed")
        } else if variables != spec.environment {
            Some("its variables or secrets changed")
        } else if !spec.python.is_file() || !spec.venv.join("bin/python").is_file() {
            // The process lives on, but its next start would fail.
            Some("its environment is gone")
        } else if worker.is_outdated() {
            Some("a process of the namespace could not be started again unchanged")
        } else {
            None
        }
    }

    /// New limits around the same process.
    fn rewrap(&mut self, current: &Namespace, wanted: &Wanted) {
        let Upstream::Worker(worker) = &current.upstream else {
            return;
        };
        let declared = worker.declared();
        let declared = declared.as_deref();
        let (_, skipped) = worker_variables(
            build_of(&worker.spec().python),
            wanted.defaults(),
            wanted.secrets.clone(),
        );
        let issues: Vec<_> = declared
            .iter()
            .flat_map(|declared| &declared.issues)
            .chain(&skipped)
            .cloned()
            .collect();
        self.change(wanted.namespace(
            Some(current),
            Upstream::Worker(Arc::clone(worker)),
            &declared_by(current),
            &issues,
        ));
    }

    fn change(&mut self, namespace: Arc<Namespace>) {
        for issue in &namespace.issues {
            tracing::warn!(
                namespace = %namespace.name,
                code = issue.code,
                subject = %issue.subject,
                "{}",
                issue.message
            );
        }
        self.changes
            .insert(namespace.name.clone(), Change::Publish(namespace));
    }

    fn fail(&mut self, wanted: &Wanted, code: &'static str, error: CallError) {
        let name = &wanted.source.name;
        tracing::warn!(
            namespace = %name,
            code,
            "namespace {name} cannot be brought up to date: {}",
            error.message
        );
        self.report.failed.push(ReloadFailure {
            namespace: name.to_string(),
            code,
            message: error.message.clone(),
        });
        // With its new limits, where those are not published yet.
        let current = match self.changes.get(name) {
            Some(Change::Publish(relimited)) => Some(relimited),
            _ => self.before.namespaces.get(name),
        };
        let namespace = wanted.failed(current.map(|current| &**current), code, &error);
        self.changes
            .insert(name.clone(), Change::Publish(namespace));
    }

    /// Takes in what is brought up, and publishes now and then.
    async fn collect(
        &mut self,
        mut bringing_up: JoinSet<BroughtUp>,
        names: HashMap<Id, NamespaceName>,
    ) -> Result<(), ReloadError> {
        let mut publish_at = (!self.changes.is_empty()).then(|| Instant::now() + WINDOW);
        loop {
            // - one more is up, or is not; the last one ends the loop
            // - what is ready has waited long enough
            // - the gateway stops: the tasks end with the set, and their installers with them
            tokio::select! {
                joined = bringing_up.join_next() => match joined {
                    None => return Ok(()),
                    Some(Ok(brought_up)) => {
                        self.absorb(brought_up);
                        publish_at.get_or_insert_with(|| Instant::now() + WINDOW);
                    }
                    Some(Err(error)) => self.interrupted(&error, &names),
                },
                () = tokio::time::sleep_until(publish_at.unwrap_or_else(Instant::now)), if publish_at.is_some() => {
                    self.publish();
                    publish_at = None;
                }
                () = self.reloader.closing.cancelled() => return Err(ReloadError::ShuttingDown),
            }
        }
    }

    fn absorb(&mut self, brought_up: BroughtUp) {
        let BroughtUp {
            wanted,
            synced,
            result,
        } = brought_up;
        let name = wanted.source.name.clone();
        if synced {
            self.report.deps_synced.push(name.clone());
        }
        match result {
            Ok(Booted {
                worker,
                declared,
                mut issues,
                files_changed,
            }) => {
                self.report.workers_restarted.push(name.clone());
                issues.extend(declared.issues.iter().cloned());
                let current = self.before.namespaces.get(&name).cloned();
                issues.extend(self.about_files(&wanted, current.as_deref(), files_changed));
                self.change(wanted.namespace(
                    current.as_deref(),
                    Upstream::Worker(worker),
                    &declared,
                    &issues,
                ));
            }
            Err(NotUp { error, worker }) => {
                self.fail(&wanted, error.code.as_str(), error.clone());
                let Some(worker) = worker else { return };
                let Some(Change::Publish(failed)) = self.changes.get_mut(&name) else {
                    return;
                };
                if let Upstream::Worker(serving) = &failed.upstream {
                    let build = build_of(&serving.spec().python);
                    self.reloader.environments.point_back(&name, build);
                    self.reloader.retire(worker, Duration::ZERO);
                } else {
                    if let Some(failed) = Arc::get_mut(failed) {
                        failed.recovering = Arc::downgrade(&worker);
                    }
                    self.recovering.push((wanted, worker));
                }
            }
        }
    }

    /// What there is to say of a worker's files once the worker is up. Files that changed while it started are loaded by one
    /// more reload.
    fn about_files(
        &self,
        wanted: &Wanted,
        before: Option<&Namespace>,
        changed: bool,
    ) -> Option<Issue> {
        let name = &wanted.source.name;
        let issue = |code, message| {
            Some(Issue {
                code,
                subject: UPDATE.into(),
                message,
            })
        };
        if self.reloader.settle(name, changed) {
            tracing::warn!(namespace = %name, "the files of the namespace changed while it started; it is reloaded once more");
            let (reloader, name) = (Arc::clone(&self.reloader), name.clone());
            tokio::spawn(async move { reloader.reload_only(&name).await });
            return issue(
                FILES_CHANGED,
                "the files of the namespace changed while it started; it is reloaded once more"
                    .to_owned(),
            );
        }
        if changed {
            return issue(
                FILES_CHANGED,
                "the files of the namespace change whenever it starts; the loaded version may be older than the files".to_owned(),
            );
        }
        let (Scope::Only(_), Some(before)) = (&self.scope, before) else {
            return None;
        };
        let code = reason_for(self.running(before).as_ref(), wanted);
        issue(code, format!("{}; it was reloaded", sentence(code)))
    }

    fn interrupted(&mut self, error: &JoinError, names: &HashMap<Id, NamespaceName>) {
        let Some(name) = names.get(&error.id()) else {
            return;
        };
        self.reloader.retire_unpublished(name);
        tracing::error!(namespace = %name, %error, "bringing namespace {name} up was interrupted; its old version is still served");
        self.report.failed.push(ReloadFailure {
            namespace: name.to_string(),
            code: "internal_error",
            message: "bringing the namespace up was interrupted".into(),
        });
    }

    /// Swaps in what changed so far, and lets go of what that replaced.
    fn publish(&mut self) {
        let changes = std::mem::take(&mut self.changes);
        if changes.is_empty() && self.before.generation > 0 {
            return;
        }
        for (name, change) in &changes {
            if matches!(change, Change::Remove) {
                self.report.removed.push(name.clone());
            }
        }
        let reloader = Arc::clone(&self.reloader);
        for (name, old) in reloader.publish(changes) {
            let Upstream::Worker(worker) = &old.upstream else {
                continue;
            };
            let now = reloader.registry.namespace(name.as_str());
            let still_serves = now.as_ref().is_some_and(
                |now| matches!(&now.upstream, Upstream::Worker(serving) if Arc::ptr_eq(serving, worker)),
            );
            if !still_serves {
                reloader.retire(Arc::clone(worker), Wanted::drain_of(&old));
            }
            if now.is_none() {
                // Calls in flight have their connection; a new namespace of this name makes a new socket.
                for socket in worker.spec().sockets() {
                    let _ = std::fs::remove_file(socket);
                }
            }
        }
        self.before = reloader.registry.snapshot();
        // Not sooner: a worker that recovers at once must not be overwritten by the failure it recovered from.
        for (wanted, worker) in self.recovering.drain(..) {
            recover(&reloader, wanted, worker);
        }
    }

    async fn clean_up(&self) {
        let reloader = Arc::clone(&self.reloader);
        // An external server has no environment; one that is left there was a folder's of the same name.
        let is_folder = |name: &&NamespaceName| {
            let served = self.before.namespaces.get(*name);
            !served.is_some_and(|it| matches!(it.upstream, Upstream::External(_)))
        };
        let names = self.report.namespaces.iter().filter(is_folder);
        let namespaces = names.cloned().collect();
        let keep = reloader.builds_in_use();
        let cleaned = tokio::task::spawn_blocking(move || {
            reloader.environments.collect_garbage(&keep, &namespaces)
        });
        if cleaned.await.is_err() {
            tracing::warn!("removing unused environments was interrupted");
        }
    }
}

impl Reloader {
    /// Ends the workers that failed to boot and still try: every namespace without a working one is tried afresh.
    fn take_over_recovering(self: &Arc<Self>, scope: &Scope) {
        let taken: Vec<_> = {
            let mut fleet = lock(&self.fleet);
            let recovering = std::mem::take(&mut fleet.recovering);
            let (taken, left) = recovering
                .into_iter()
                .partition(|(name, _)| scope.covers(name));
            fleet.recovering = left;
            let taken: BTreeMap<_, _> = taken;
            taken.into_values().collect()
        };
        for worker in taken {
            self.retire(worker, Duration::ZERO);
        }
    }

    /// Ends what was started for a namespace and does not serve it.
    fn retire_unpublished(self: &Arc<Self>, name: &NamespaceName) {
        let serving = self.registry.namespace(name.as_str());
        let serves = |worker: &Arc<Worker>| {
            serving.as_ref().is_some_and(|namespace| {
                matches!(&namespace.upstream, Upstream::Worker(serving) if Arc::ptr_eq(serving, worker))
            })
        };
        let workers: Vec<_> = lock(&self.fleet)
            .members
            .iter()
            .map(|member| Arc::clone(&member.worker))
            .filter(|worker| worker.spec().namespace == *name && !serves(worker))
            .collect();
        for worker in workers {
            self.retire(worker, Duration::ZERO);
        }
    }

    /// Swaps in a snapshot with these changes. Gives back what they replaced.
    fn publish(&self, changes: Changes) -> Vec<(NamespaceName, Arc<Namespace>)> {
        let _publishing = lock(&self.publishing);
        let before = self.registry.snapshot();
        let mut namespaces = before.namespaces.clone();
        let mut replaced = Vec::new();
        for (name, change) in changes {
            let old = match change {
                Change::Publish(namespace) => namespaces.insert(name.clone(), namespace),
                Change::Remove => namespaces.remove(&name),
            };
            replaced.extend(old.map(|old| (name, old)));
        }
        let next = Snapshot {
            generation: before.generation + 1,
            namespaces,
        };
        self.metrics.published(&next);
        let servers = self.host.metrics.servers();
        servers.serve(external::served(&next.namespaces));
        self.registry.swap(next);
        replaced
    }
}

/// Environment, worker, ready line.
async fn bring_up(
    reloader: Arc<Reloader>,
    toolchain: Arc<Toolchain>,
    wanted: Wanted,
    packages: Packages,
) -> BroughtUp {
    let mut synced = false;
    let result = async {
        let prepared = reloader
            .environments
            .prepare(&wanted.source, &toolchain, packages)
            .await?;
        synced = prepared.synced;
        boot(&reloader, &toolchain, &wanted, prepared).await
    };
    let result = result.await;
    BroughtUp {
        wanted,
        synced,
        result,
    }
}

async fn boot(
    reloader: &Arc<Reloader>,
    toolchain: &Toolchain,
    wanted: &Wanted,
    prepared: Prepared,
) -> Result<Booted, NotUp> {
    let stopping = || NotUp {
        error: CallError::new(
            CallErrorCode::WorkerUnavailable,
            "the gateway is shutting down",
        ),
        worker: None,
    };
    let name = &wanted.source.name;
    let socket = reloader.data.socket_for(name).map_err(|error| NotUp {
        error: CallError::new(CallErrorCode::InternalError, error.to_string()),
        worker: None,
    })?;
    let identity = wanted.identity(Some(&toolchain.id));
    let (environment, issues) =
        worker_variables(&prepared.build, wanted.defaults(), wanted.secrets.clone());
    let spec = WorkerSpec {
        namespace: name.clone(),
        generation: reloader.generation(),
        python: prepared.python,
        venv: prepared.venv,
        tools_dir: wanted.source.dir.clone(),
        files_hash: Some(wanted.source.files_hash),
        socket,
        environment,
        hidden: wanted.hidden(),
        sync_concurrency: identity.sync_concurrency,
        processes: identity.processes,
        max_frame: identity.max_frame,
        drain: wanted.drain(),
        // A tool that blocks the loop for as long as its time limit allows is rude, not hung.
        silence: wanted.longest_call().max(SILENCE_MIN),
    };
    let _turn = reloader.boots.acquire().await.map_err(|_| stopping())?;
    let worker = reloader.start(spec, identity).ok_or_else(stopping)?;
    let limit = worker.spec().boot_limit(reloader.ready_timeout) + READY_SLACK;
    let first_boot = timeout(limit, worker.ready()).await.unwrap_or_else(|_| {
        let message = format!("the worker of namespace {name} was not ready after {limit:?}");
        Err(CallError::new(CallErrorCode::WorkerUnavailable, message))
    });
    let dir = wanted.source.dir.clone();
    let now = tokio::task::spawn_blocking(move || files_hash(&dir)).await;
    match first_boot {
        Ok(declared) => Ok(Booted {
            worker,
            declared,
            issues,
            files_changed: !matches!(now, Ok(Some(now)) if now == wanted.source.files_hash),
        }),
        Err(error) => Err(NotUp {
            error,
            worker: Some(worker),
        }),
    }
}

/// Why a namespace reloads itself. `running` is what the worker that serves was started with.
fn reason_for(running: Option<&Identity>, wanted: &Wanted) -> &'static str {
    let same_files = running.is_some_and(|it| it.files_hash == wanted.source.files_hash);
    match same_files {
        true => FUNCTIONS_CHANGED,
        false => FILES_CHANGED,
    }
}

fn sentence(code: &str) -> &'static str {
    match code {
        FUNCTIONS_CHANGED => {
            "a process of the namespace was started again and declared other functions than those listed"
        }
        _ => {
            "a process of the namespace had to be started again, and its files were no longer those that had been loaded"
        }
    }
}

/// Lets a worker whose first boot failed go on trying, and publishes its namespace once it made it (WRK-16). A later
/// reload takes over by removing it from `recovering`.
fn recover(reloader: &Arc<Reloader>, wanted: Wanted, worker: Arc<Worker>) {
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
    wanted: &Wanted,
    worker: Arc<Worker>,
    declared: &Declared,
) {
    let name = &wanted.source.name;
    // Taken out first: if a reload was faster, the worker is its to retire.
    let mine = lock(&reloader.fleet).recovering.remove(name);
    if !mine.is_some_and(|mine| Arc::ptr_eq(&mine, &worker)) {
        return;
    }
    let current = reloader.registry.namespace(name.as_str());
    let upstream = Upstream::Worker(worker);
    let namespace = wanted.namespace(current.as_deref(), upstream, declared, &declared.issues);
    tracing::info!(namespace = %name, "the worker recovered; its namespace is served");
    reloader.publish(Changes::from([(name.clone(), Change::Publish(namespace))]));
}
