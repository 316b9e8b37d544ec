//! A run of the reload, from the scan to the last published snapshot.

mod bring_up;
mod compare;
mod publish;
mod scan_delay;
mod server;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::task::{Id, JoinError, JoinSet};
use tokio::time::{Instant, sleep, sleep_until};
use tooldock_base::data_dir::STARTER;
use tooldock_base::error::CallError;
use tooldock_base::issue::Issue;
use tooldock_base::names::NamespaceName;
use tooldock_credentials::secrets::Secrets;
use tooldock_process::environment::{EnvironmentError, Packages, Toolchain};
use tooldock_process::worker::Worker;

use self::bring_up::{ReadyUpstream, StartFailure, StartOutcome, bring_up, recover};
use self::compare::{reason_for, sentence};
use self::scan_delay::ScanDelayLog;
use super::aggregate;
use super::automatic::{FILES_CHANGED, ReloadScope};
use super::external;
use super::metrics::ReloadOutcome;
use super::starter;
use super::vault;
use super::wanted::{DesiredNamespace, UPDATE, build_of};
use super::{AggregateInputs, ReloadError, ReloadFailure, ReloadReport, Reloader, RunEnd, lock};
use crate::registry::{LastReload, Namespace, Registry, Snapshot, UpstreamKind};
use crate::scan::{NamespaceSource, ignored};

/// Time that ready namespaces wait for namespaces that are still starting; then the ready ones are published.
pub(super) const WINDOW: Duration = Duration::from_secs(1);

/// Minimum duration of a run over all namespaces before it may leave its running installers to the next run. A run leaves them
/// only if a caller waits for the next run.
const INSTALLS_WAITED: Duration = Duration::from_secs(5);

/// Maximum time for which installations of packages in the first scan delay the gateway's readiness.
const START_WAITED: Duration = Duration::from_secs(30);

/// The changed namespaces, each with its change (published or removed).
pub(super) type Changes = BTreeMap<NamespaceName, Change>;

pub(super) enum Change {
    Publish(Arc<Namespace>),
    Remove,
}

pub(super) async fn run(reloader: Arc<Reloader>, scope: ReloadScope) -> RunEnd {
    let started = Instant::now();
    let noted = match scope {
        ReloadScope::All => std::mem::take(&mut *lock(&reloader.noted)),
        ReloadScope::Only(_) => ReloadOutcome::default(),
    };
    let is_of_all = scope == ReloadScope::All;
    let answer = match Run::new(reloader.clone(), scope).go().await {
        Ok(Finished { report, is_whole }) => match is_whole {
            true => Ok(Arc::new(report)),
            false => {
                reloader.note(noted);
                return RunEnd::LeftInstalling(report);
            }
        },
        Err(error) => Err(error),
    };
    if answer.is_err() && is_of_all {
        let startup = reloader.registry.startup();
        startup.failed();
        // These namespaces no longer count as starting, since no run continues to start them. The example namespace is excluded:
        // its own task still starts it.
        for name in startup.late().iter().filter(|it| it.as_str() != STARTER) {
            startup.came_up(name);
        }
    }
    let outcome = match &answer {
        Ok(report) if report.failed.is_empty() => ReloadOutcome::Complete,
        Ok(_) => ReloadOutcome::Partial,
        Err(_) => ReloadOutcome::Rejected,
    };
    let outcome = outcome.max(noted);
    reloader.metrics.reloaded(outcome, started.elapsed());
    if is_of_all {
        reloader.registry.keep_reload(LastReload {
            result: outcome.as_str(),
            at: SystemTime::now(),
            took: started.elapsed(),
            problem: answer.as_ref().err().map(ToString::to_string),
        });
    }
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
    RunEnd::Over(answer)
}

/// Result of a run of the reload.
struct Finished {
    report: ReloadReport,
    /// False if installers were left to the next run; true if the run covered all its namespaces.
    is_whole: bool,
}

/// Publishes the issues of entries of the tools directory that are not namespaces, and logs those that are new.
fn note_ignored(registry: &Registry, issues: Vec<(String, Issue)>) {
    let known = registry.ignored();
    for (name, issue) in issues.iter().filter(|it| !known.contains(it)) {
        tracing::warn!(code = issue.code, subject = %issue.subject, "{name} {}", issue.message);
    }
    registry.set_ignored(issues);
}

struct Run {
    reloader: Arc<Reloader>,
    scope: ReloadScope,
    /// The snapshot that was served when the run began. Only this run changes namespaces, except for workers that recover.
    before: Arc<Snapshot>,
    changes: Changes,
    /// Failed workers whose retries are watched after their namespaces were published as failed.
    recovering: Vec<(DesiredNamespace, Arc<Worker>)>,
    report: ReloadReport,
    secrets: Secrets,
}

impl Run {
    fn new(reloader: Arc<Reloader>, mut scope: ReloadScope) -> Self {
        let before = reloader.registry.snapshot();
        if let ReloadScope::Only(names) = &mut scope {
            // Namespaces that were removed or became external servers since the request have no folder to reload.
            names.retain(|name| reloader.has_folder_of(name));
        }
        Self {
            before,
            scope,
            reloader,
            changes: Changes::new(),
            recovering: Vec::new(),
            report: ReloadReport::default(),
            secrets: Secrets::default(),
        }
    }

    async fn go(mut self) -> Result<Finished, ReloadError> {
        // Checked before recovering workers are ended, because this run would not replace them during shutdown.
        if self.reloader.closing.is_cancelled() {
            return Err(ReloadError::ShuttingDown);
        }
        self.secrets = self.reloader.secrets(&mut self.report).await?;
        self.reloader.take_over_recovering(&self.scope);
        let mut sources = self.scan().await?;
        let reloader = Arc::clone(&self.reloader);
        if self.scope == ReloadScope::All {
            reloader.read_servers_file(&mut self.report).await;
        }
        let mut names = reloader.settle_names(&mut sources);
        let all = self.scope == ReloadScope::All;
        self.secrets = reloader.bind_secrets(&self.secrets, &mut names, all).await;
        for source in &mut sources {
            source.issues.extend(names.issues(&source.name));
        }
        let names = Arc::new(names);
        let (externals, aggregates) = match &self.scope {
            ReloadScope::All => {
                let changes = &mut self.changes;
                self.before = reloader.adopt_names(&names, &self.before, changes);
                let externals = reloader.externals(&names, &self.secrets);
                (externals, reloader.aggregates(&names).await)
            }
            // A reload of some folders changes no servers and aggregates, so it reads none. If the configuration has meanwhile
            // given a folder's name to one of these, the folder is no longer in `sources`, and its namespace is removed below.
            ReloadScope::Only(_) => (Vec::new(), Vec::new()),
        };
        let folders = sources.iter().map(|source| &source.name);
        let servers = externals.iter().map(|external| &external.name);
        let several = aggregates.iter().map(|(name, _)| name);
        let others = self.before.namespaces.keys();
        let others = others.filter(|name| !self.scope.covers(name));
        self.report.namespaces = folders
            .chain(servers)
            .chain(several)
            .chain(others)
            .cloned()
            .collect();
        self.report.namespaces.sort();
        for name in self.before.namespaces.keys() {
            if self.report.namespaces.binary_search(name).is_err() {
                self.changes.insert(name.clone(), Change::Remove);
            }
        }
        if all {
            let there: BTreeSet<_> = self.report.namespaces.iter().cloned().collect();
            let startup = reloader.registry.startup();
            for gone in startup.late().iter().filter(|name| !there.contains(*name)) {
                startup.came_up(gone);
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

        {
            let around = AggregateInputs {
                config: &config,
                secrets: &self.secrets,
                environment: &|name| std::env::var(name).ok(),
            };
            let (changes, report) = (&mut self.changes, &mut self.report);
            aggregate::settle(aggregates, &names, &self.before, &around, changes, report);
        }

        let starter = match &self.scope {
            ReloadScope::All => starter::taken_out(&reloader, &mut sources),
            ReloadScope::Only(_) => None,
        };
        let toolchain = match sources.iter().any(NamespaceSource::needs_python) {
            true => Some(self.toolchain().await?),
            false => None,
        };

        let mut bringing_up = JoinSet::new();
        let mut names: HashMap<Id, NamespaceName> = HashMap::new();
        let wanted = self.want(sources, toolchain.as_ref());
        if self.scope == ReloadScope::All {
            // Installations for namespaces or requirements that no longer exist are ended.
            let names = wanted.iter().map(|it| it.source.name.clone());
            reloader.installs.keep(&names.collect());
        }
        for wanted in wanted {
            let name = wanted.source.name.clone();
            let packages = match self.scope {
                ReloadScope::All => Packages::Install,
                ReloadScope::Only(_) => Packages::AsTheyAre,
            };
            // No toolchain (Python interpreter and installer) is made if no namespace needs Python.
            let toolchain = toolchain.clone().unwrap_or_else(|| {
                Err(EnvironmentError("there is no interpreter of Python".into()))
            });
            let task = bring_up(Arc::clone(&self.reloader), toolchain, wanted, packages);
            names.insert(bringing_up.spawn(task).id(), name);
        }
        let is_whole = self.collect(bringing_up, names).await?;
        self.publish();
        if !is_whole {
            let report = self.report;
            return Ok(Finished { report, is_whole });
        }
        if self.scope == ReloadScope::All {
            self.over(starter);
        }
        self.clean_up().await;
        self.report.workers_restarted.sort();
        self.report.deps_synced.sort();
        self.report
            .failed
            .sort_by(|a, b| a.namespace.cmp(&b.namespace));
        let report = self.report;
        Ok(Finished { report, is_whole })
    }

    /// Announces that a run over all namespaces has published its results. `starter` is the example namespace if it was excluded
    /// from the run; its start begins now.
    fn over(&mut self, starter: Option<NamespaceSource>) {
        let reloader = Arc::clone(&self.reloader);
        let startup = reloader.registry.startup();
        let known = startup.late();
        let is_known = |name: &NamespaceName| known.contains(name) || startup.is_retried(name);
        let is_unserved = |it: &&NamespaceSource| !startup.is_retried(&it.name);
        let late = starter.iter().filter(is_unserved);
        let late = late.map(|it| it.name.clone()).collect();
        if starter.is_none() {
            startup.made_all();
        }
        // If the example namespace was already excluded from an earlier run, its task is running.
        let new = starter.filter(|it| !is_known(&it.name));
        startup.scanned(late);
        reloader.registry.reloaded();
        for wanted in self.want(new.into_iter().collect(), None) {
            reloader.bring_up_starter(wanted);
        }
    }

    /// Prepares the interpreter and the base environment. If that takes long, other changes, such as removed folders, are
    /// published meanwhile.
    async fn toolchain(&mut self) -> Result<Result<Arc<Toolchain>, EnvironmentError>, ReloadError> {
        let reloader = Arc::clone(&self.reloader);
        let mut making = std::pin::pin!(reloader.environments.toolchain());
        let mut publish = std::pin::pin!(sleep(WINDOW));
        let mut waiting = !self.changes.is_empty();
        loop {
            // Handles:
            // - the toolchain, or the reason why there is none;
            // - the end of the time that ready namespaces wait to be published;
            // - the end of the gateway.
            tokio::select! {
                made = &mut making => return Ok(made),
                () = &mut publish, if waiting => {
                    self.publish();
                    waiting = false;
                }
                () = reloader.closing.cancelled() => return Err(ReloadError::ShuttingDown),
            }
        }
    }

    async fn scan(&self) -> Result<Vec<NamespaceSource>, ReloadError> {
        let path = self.reloader.data.tools_dir();
        let failed = |source: std::io::Error| ReloadError::Scan {
            path: path.clone(),
            source: Arc::new(source),
        };
        let (tools, scope) = (path.clone(), self.scope.clone());
        let registry = Arc::clone(&self.reloader.registry);
        let folder = lock(&self.reloader.vault).clone();
        let scan = move || {
            if scope == ReloadScope::All {
                note_ignored(&registry, ignored::entries(&tools));
            }
            let mut sources = vault::scan_for(&tools, scope, folder.as_ref())?;
            if let Some(folder) = &folder {
                vault::mark(&mut sources, folder);
            }
            vault::warn_of_names(&mut sources);
            Ok(sources)
        };
        tokio::task::spawn_blocking(scan)
            .await
            .map_err(|_| ReloadError::Interrupted)?
            .map_err(failed)
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

    fn fail(&mut self, wanted: &DesiredNamespace, code: &'static str, error: CallError) {
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
        // If this run has given the namespace new limits that are not published yet, the version with these limits is used.
        let current = match self.changes.get(name) {
            Some(Change::Publish(relimited)) => Some(relimited),
            _ => self.before.namespaces.get(name),
        };
        let namespace = wanted.failed(current.map(|current| &**current), code, &error);
        self.changes
            .insert(name.clone(), Change::Publish(namespace));
    }

    /// Waits for the namespaces that are starting; while it waits, it publishes those that are ready. Returns false if the run
    /// ends early and leaves its installers to the next run.
    async fn collect(
        &mut self,
        mut bringing_up: JoinSet<StartOutcome>,
        mut names: HashMap<Id, NamespaceName>,
    ) -> Result<bool, ReloadError> {
        let reloader = Arc::clone(&self.reloader);
        let startup = reloader.registry.startup();
        let mut held_up = ScanDelayLog::new(&reloader.registry);
        let mut queued = reloader.queued.subscribe();
        let mut publish_at = (!self.changes.is_empty()).then(|| Instant::now() + WINDOW);
        let mut waited_for_installs = std::pin::pin!(sleep(INSTALLS_WAITED));
        let mut is_late = self.scope != ReloadScope::All;
        let began = startup.began().unwrap_or_else(Instant::now);
        let mut waited_for_start = std::pin::pin!(sleep_until(began + START_WAITED));
        let mut may_wait = startup.is_scanning();
        loop {
            // True if the run waits only for installations of packages.
            let installs = || !names.is_empty() && reloader.installs.are_all(names.values());
            let is_all = self.scope == ReloadScope::All;
            // Handles:
            // - another namespace is ready or has failed; after the last one the loop ends
            // - ready namespaces have waited long enough and are published
            // - the first scan takes long, which is logged
            // - the run takes long: namespaces that are not served yet count as starting in the background
            // - the gateway's start takes long, and only installations remain: the scan counts as over
            // - only installations remain while another run waits: they are left to it
            // - the gateway ends: dropping the set ends the tasks and their installers
            tokio::select! {
                joined = bringing_up.join_next_with_id() => match joined {
                    None => return Ok(true),
                    Some(Ok((id, brought_up))) => {
                        names.remove(&id);
                        self.absorb(brought_up);
                        publish_at.get_or_insert_with(|| Instant::now() + WINDOW);
                    }
                    Some(Err(error)) => {
                        let name = names.remove(&error.id());
                        self.interrupted(&error, name.as_ref());
                    }
                },
                () = tokio::time::sleep_until(publish_at.unwrap_or_else(Instant::now)), if publish_at.is_some() => {
                    self.publish();
                    publish_at = None;
                }
                () = held_up.due() => held_up.tell(names.values()),
                () = &mut waited_for_installs, if !is_late => {
                    is_late = true;
                    startup.expect_late(names.values());
                }
                () = &mut waited_for_start, if may_wait && installs() => {
                    may_wait = false;
                    self.publish();
                    startup.scanned(names.values().cloned().collect());
                }
                () = async { _ = queued.wait_for(|queued| *queued).await }, if is_late && is_all && installs() => {
                    self.leave_installing(bringing_up, names).await;
                    return Ok(false);
                }
                () = self.reloader.closing.cancelled() => return Err(ReloadError::ShuttingDown),
            }
        }
    }

    /// Ends the tasks that wait for installers, without ending the installers.
    async fn leave_installing(
        &mut self,
        mut bringing_up: JoinSet<StartOutcome>,
        mut names: HashMap<Id, NamespaceName>,
    ) {
        let waiting: Vec<_> = names.values().map(NamespaceName::as_str).collect();
        tracing::info!(
            namespaces = waiting.join(", "),
            "another reload begins while packages of these namespaces are being installed"
        );
        // Other namespaces are up to date, so subscribers that wait for a reload need not wait for the installers.
        self.reloader.registry.reloaded();
        bringing_up.abort_all();
        while let Some(joined) = bringing_up.join_next_with_id().await {
            match joined {
                Ok((_, brought_up)) => self.absorb(brought_up),
                Err(error) => {
                    let name = names.remove(&error.id());
                    match (error.is_cancelled(), &name) {
                        // The aborted task may have started a worker, which serves no namespace.
                        (true, Some(name)) => self.reloader.retire_unpublished(name),
                        _ => self.interrupted(&error, name.as_ref()),
                    }
                }
            }
        }
    }

    fn absorb(&mut self, brought_up: StartOutcome) {
        let StartOutcome {
            wanted,
            synced,
            result,
        } = brought_up;
        let name = wanted.source.name.clone();
        if synced {
            self.report.deps_synced.push(name.clone());
        }
        match result {
            Ok(ReadyUpstream {
                upstream,
                declared,
                mut issues,
                files_changed,
            }) => {
                self.report.workers_restarted.push(name.clone());
                issues.extend(declared.issues.iter().cloned());
                issues.extend(vault::about_tools(&declared.tools));
                let current = self.before.namespaces.get(&name).cloned();
                issues.extend(self.about_files(&wanted, current.as_deref(), files_changed));
                self.change(wanted.namespace(current.as_deref(), upstream, &declared, &issues));
            }
            Err(StartFailure { error, worker }) => {
                self.fail(&wanted, error.code.as_str(), error.clone());
                let Some(worker) = worker else { return };
                let Some(Change::Publish(failed)) = self.changes.get_mut(&name) else {
                    return;
                };
                if let UpstreamKind::Worker(serving) = &failed.upstream {
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

    /// Returns the issue about a namespace's files after its worker became ready. If the files changed while it started, one more
    /// reload is requested, which loads them.
    fn about_files(
        &self,
        wanted: &DesiredNamespace,
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
        let (ReloadScope::Only(_), Some(before)) = (&self.scope, before) else {
            return None;
        };
        let code = reason_for(self.running(before).as_ref(), wanted);
        issue(code, format!("{}; it was reloaded", sentence(code)))
    }

    fn interrupted(&mut self, error: &JoinError, name: Option<&NamespaceName>) {
        let Some(name) = name else {
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

    /// Publishes a snapshot with the changes collected so far, and retires the workers that were replaced.
    fn publish(&mut self) {
        let changes = std::mem::take(&mut self.changes);
        if changes.is_empty() && self.before.generation > 0 {
            return;
        }
        let outcomes: Vec<_> = changes.keys().cloned().collect();
        for (name, change) in &changes {
            if matches!(change, Change::Remove) {
                self.report.removed.push(name.clone());
            }
        }
        let reloader = Arc::clone(&self.reloader);
        let replaced = reloader.publish(changes);
        for name in &outcomes {
            reloader.registry.startup().came_up(name);
        }
        for (name, old) in replaced {
            let UpstreamKind::Worker(worker) = &old.upstream else {
                continue;
            };
            let now = reloader.registry.namespace(name.as_str());
            if !now.as_ref().is_some_and(|now| now.is_run_by(worker)) {
                if let Some(UpstreamKind::Worker(successor)) = now.as_ref().map(|it| &it.upstream) {
                    worker.hand_over_to(successor);
                }
                reloader.retire(Arc::clone(worker), DesiredNamespace::drain_of(&old));
            }
            if now.is_none() {
                // Calls that are still running have an open connection, and a new namespace of this name creates a new socket.
                for socket in worker.spec().sockets() {
                    let _ = std::fs::remove_file(socket);
                }
            }
        }
        self.before = reloader.registry.snapshot();
        // Recovery is watched only from here on: before the publication, a worker that recovers immediately could publish its
        // success, and the failure would then overwrite it.
        for (wanted, worker) in self.recovering.drain(..) {
            recover(&reloader, wanted, worker);
        }
    }

    async fn clean_up(&self) {
        let reloader = Arc::clone(&self.reloader);
        // A configured server needs no environment. An existing environment of that name belonged to a removed folder.
        let is_folder = |name: &&NamespaceName| {
            let served = self.before.namespaces.get(*name);
            served.is_none_or(|it| it.has_folder())
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
