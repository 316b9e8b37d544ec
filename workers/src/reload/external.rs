//! External servers in a reload: each configured server becomes a namespace in addition to those of folders.
//!
//! Nothing is started here. An unchanged server is the same `Arc` in the next snapshot. The owner of the processes ends the
//! processes of every `Arc` that is no longer in a snapshot.

use std::sync::{Arc, Weak};

use tooldock_base::config::NamespacesConfig;
use tooldock_base::issue::Issue;
use tooldock_base::names::NamespaceName;
use tooldock_base::policy::ToolPolicy;
use tooldock_base::precedence::{EXTERNAL_FILE, Names};
use tooldock_credentials::secrets::Secrets;

use super::run::{Change, Changes};
use super::wanted::{UPDATE, content_hash, gate, nobody, parking};
use super::{ReloadFailure, ReloadReport, Reloader, lock};
use crate::external::ServersFile;
use crate::manifest::effective_limits;
use crate::registry::{Attachment, Namespace, Snapshot, UpstreamKind};
use crate::servers::{External, Server, resolve};

/// Code of a failure that concerns the whole file of external servers or one entry of it.
const INVALID: &str = "invalid_config";

impl Reloader {
    /// Reads `external/config.yaml`. If the file cannot be used, its last usable content stays in force.
    pub(super) async fn read_servers_file(&self, report: &mut ReloadReport) {
        let root = self.data.root().to_owned();
        let read = tokio::task::spawn_blocking(move || ServersFile::read(&root)).await;
        match read.unwrap_or_else(|_| Err("reading it was interrupted".into())) {
            Ok(file) => {
                *lock(&self.servers_file) = Arc::new(file);
                self.registry.set_servers_problem(None);
            }
            Err(message) => {
                let left = match lock(&self.servers_file).claims().next() {
                    Some(_) => "the servers it named before stay as they are",
                    None => "no server of it is served",
                };
                tracing::error!(
                    file = EXTERNAL_FILE,
                    "the file cannot be used: {message}; {left}"
                );
                self.registry.set_servers_problem(Some(Issue {
                    code: INVALID,
                    subject: EXTERNAL_FILE.into(),
                    message: format!("{message}; {left}. Repair or remove the file and reload"),
                }));
                report.failed.push(ReloadFailure {
                    namespace: EXTERNAL_FILE.into(),
                    code: INVALID,
                    message,
                });
            }
        }
        let file = Arc::clone(&lock(&self.servers_file));
        for remark in &file.remarks {
            tracing::warn!(file = EXTERNAL_FILE, "{remark}");
        }
        for name in &file.invalid_names {
            let message = "not a namespace name; its server is left out".to_owned();
            tracing::warn!(file = EXTERNAL_FILE, server = name, message);
            report.failed.push(ReloadFailure {
                namespace: name.clone(),
                code: INVALID,
                message,
            });
        }
    }

    /// The servers that are to be served, sorted by name.
    pub(super) fn externals(&self, names: &Names, secrets: &Secrets) -> Vec<External> {
        let file = Arc::clone(&lock(&self.servers_file));
        let configured = Arc::clone(&lock(&self.servers));
        let environment = |name: &str| std::env::var(name).ok();
        let allowed = Arc::clone(&lock(&self.namespaces));
        let allowed = &allowed.env_allowed;
        resolve(&configured, &file, names, secrets, &environment, allowed)
    }
}

/// Compares the configured servers with the served ones. All differences are applied directly, since no process has to be ready.
pub(super) fn settle(
    externals: Vec<External>,
    before: &Snapshot,
    config: &NamespacesConfig,
    changes: &mut Changes,
    report: &mut ReloadReport,
) {
    for external in externals {
        let current = before.namespaces.get(&external.name).map(|it| &**it);
        let name = external.name.clone();
        if let Err(failure) = &external.server {
            let message = failure.error.message.clone();
            tracing::warn!(
                namespace = %name,
                code = failure.code,
                "the external server of namespace {name} cannot be brought up to date: {message}"
            );
            report.failed.push(ReloadFailure {
                namespace: name.to_string(),
                code: failure.code,
                message,
            });
        }
        let next = namespace(external, current, config);
        if next.is_server() && !current.is_some_and(|it| is_served_by(it, &next.upstream)) {
            tracing::info!(namespace = %name, "the external server of namespace {name} is new or has changed");
            report.workers_restarted.push(name.clone());
        }
        if current.is_some_and(|current| is_same(current, &next)) {
            continue;
        }
        for issue in &next.issues {
            tracing::warn!(namespace = %name, code = issue.code, subject = %issue.subject, "{}", issue.message);
        }
        changes.insert(name, Change::Publish(Arc::new(next)));
    }
}

/// Creates the namespace of one server.
pub(crate) fn namespace(
    external: External,
    current: Option<&Namespace>,
    config: &NamespacesConfig,
) -> Namespace {
    let (limits, tool_limits, mut issues) = effective_limits(
        &external.limits,
        external.place.file(),
        &external.name,
        config,
    );
    issues.extend(external.issues);
    let serving = current.filter(|it| !it.has_folder());
    let serving = serving.map(|it| &it.upstream);
    let wanted = external.server.map(|server| match server {
        Server::Stdio(server) => Server::Stdio(Arc::new(server.in_sandbox(&limits.sandbox))),
        Server::Remote(_) => server,
    });
    let upstream = match (wanted, serving) {
        (Ok(wanted), serving) => wanted.upstream(serving),
        (Err(failure), Some(serving)) if failure.keeps_old => {
            issues.push(Issue {
                code: failure.code,
                subject: UPDATE.into(),
                message: format!("the last change is not served: {}", failure.error.message),
            });
            serving.clone()
        }
        (Err(failure), _) => {
            issues.push(Issue {
                code: failure.code,
                subject: failure.reason.key,
                message: failure.reason.message,
            });
            UpstreamKind::Failed(failure.error)
        }
    };
    let content = match &upstream {
        UpstreamKind::External(server) => server.content_hash,
        UpstreamKind::Remote(server) => server.content_hash,
        UpstreamKind::Worker(_)
        | UpstreamKind::Aggregate(_)
        | UpstreamKind::Empty
        | UpstreamKind::System
        | UpstreamKind::Failed(_) => [0; 32],
    };
    let at_once = match upstream {
        UpstreamKind::Remote(_) => limits.max_concurrency.remote(),
        _ => limits.max_concurrency.local(),
    };
    Namespace {
        description: String::new(),
        version: String::new(),
        secrets: external.variables,
        secrets_status: external.secrets_status,
        has_requirements: false,
        // An invalid pattern excludes all callers, because it might have been meant to exclude some. This cannot normally happen:
        // the patterns were checked when the configuration was read.
        policy: ToolPolicy::new(&limits).unwrap_or_else(|_| nobody()),
        tools: Vec::new(),
        resources: Vec::new(),
        resource_templates: Vec::new(),
        prompts: Vec::new(),
        completions: false,
        files: Vec::new(),
        issues,
        upstream,
        gate: gate(current, at_once, limits.queue),
        parked: parking(current, &limits),
        content_hash: content_hash(&content, &limits, &tool_limits, None),
        attached: Attachment::default(),
        recovering: Weak::new(),
        name: external.name,
        limits,
        tool_limits,
    }
}

/// Returns true if `upstream` is the same server that serves the namespace now.
fn is_served_by(current: &Namespace, upstream: &UpstreamKind) -> bool {
    match (&current.upstream, upstream) {
        (UpstreamKind::External(serving), UpstreamKind::External(server)) => {
            Arc::ptr_eq(serving, server)
        }
        (UpstreamKind::Remote(serving), UpstreamKind::Remote(server)) => {
            Arc::ptr_eq(serving, server)
        }
        (UpstreamKind::Aggregate(serving), UpstreamKind::Aggregate(next)) => {
            Arc::ptr_eq(serving, next)
        }
        _ => false,
    }
}

/// Returns true if publishing `next` in place of `current` would change nothing.
pub(crate) fn is_same(current: &Namespace, next: &Namespace) -> bool {
    let same_upstream = match (&current.upstream, &next.upstream) {
        (UpstreamKind::Failed(old), UpstreamKind::Failed(new)) => old.message == new.message,
        (_, next) => is_served_by(current, next),
    };
    same_upstream
        && current.content_hash == next.content_hash
        && current.issues == next.issues
        && current.secrets == next.secrets
        && current.secrets_status == next.secrets_status
}

/// The namespaces of a snapshot that external servers serve, including members of aggregates.
pub(super) fn served(snapshot: &Snapshot) -> impl Iterator<Item = &NamespaceName> {
    let all = snapshot.all().filter(|namespace| namespace.is_server());
    all.map(|namespace| &namespace.name)
}
