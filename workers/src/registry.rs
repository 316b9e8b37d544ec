//! Registry of the served namespaces: an immutable snapshot of all namespaces, swapped in one step (RLD-03).
//!
//! A reader takes the snapshot once and answers its complete request from it, so it sees either the old state or the new one,
//! and never a mix. An unchanged namespace is the same `Arc` in both.

mod aggregate;
pub mod startup;

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, SystemTime};

use arc_swap::{ArcSwap, ArcSwapOption, Guard};
use tokio::sync::watch;
use tooldock_base::config::{Limits, ToolLimits};
use tooldock_base::error::CallError;
use tooldock_base::gate::Gate;
use tooldock_base::issue::Issue;
use tooldock_base::names::NamespaceName;
use tooldock_base::parking::Parking;
use tooldock_base::policy::ToolPolicy;
use tooldock_base::prompt::Prompt;
use tooldock_base::resource::{Resource, ResourceTemplate};
use tooldock_base::tool::Tool;
use tooldock_base::worker_state::WorkerState;
use tooldock_credentials::secrets::PersonalSecrets;
use tooldock_process::sandbox::{SandboxHost, SandboxState};
use tooldock_process::worker::{SourceFile, Worker};

use crate::external::ExternalServer;
use crate::pins::{NamespacePins, Pins};
use crate::remote::RemoteServer;

pub use aggregate::{Aggregate, AggregateMember};
use startup::Startup;

/// All namespaces at one moment.
#[derive(Debug, Default)]
pub struct Snapshot {
    /// Counts the swaps; 0 is the empty snapshot before the first scan.
    pub generation: u64,
    /// Namespaces by name, in name order.
    pub namespaces: BTreeMap<NamespaceName, Arc<Namespace>>,
}

/// A namespace as it is served.
#[derive(Debug, Clone)]
pub struct Namespace {
    /// Name of the namespace.
    pub name: NamespaceName,
    /// `description` of the namespace's `tooldock.yaml`.
    pub description: String,
    /// `version` of the namespace's `tooldock.yaml`.
    pub version: String,
    /// Names of the secrets that the namespace declares (never values).
    pub secrets: Vec<String>,
    /// Status of the secrets that the namespace declares.
    pub secrets_status: SecretsStatus,
    /// True if the namespace has a `requirements.txt`.
    pub has_requirements: bool,
    /// Effective limits: defaults, own file up to the ceilings, operator's overrides.
    pub limits: Limits,
    /// Limits of single tools, already merged and clamped.
    pub tool_limits: BTreeMap<String, ToolLimits>,
    /// Allowed tools and principals.
    pub policy: ToolPolicy,
    /// Tools as the worker declared them, sorted by file and name.
    pub tools: Vec<Arc<Tool>>,
    /// Resources, in the worker's order.
    pub resources: Vec<Arc<Resource>>,
    /// Resource templates, in the worker's order.
    pub resource_templates: Vec<Arc<ResourceTemplate>>,
    /// Prompts, in the worker's order.
    pub prompts: Vec<Arc<Prompt>>,
    /// True if arguments of a prompt or template can be completed.
    pub completions: bool,
    /// The namespace's Python files, and the use that the worker made of each.
    pub files: Vec<SourceFile>,
    /// Problems that do not stop the namespace: skipped files, clamped limits, a failed update.
    pub issues: Vec<Issue>,
    /// Upstream that runs the namespace's tools.
    pub upstream: UpstreamKind,
    /// Limit on the calls that run and wait. Kept across reloads while the limits are unchanged.
    pub gate: Arc<Gate>,
    /// Limit on the calls that wait for their clients. Kept across reloads while `max_parked` is unchanged.
    pub parked: Arc<Parking>,
    /// Hash over everything that defines the namespace: a reload does not change a namespace with an equal hash.
    pub content_hash: [u8; 32],
    /// Value that a layer above keeps with the namespace.
    pub attached: Attachment,
    /// The worker that continues to retry while `upstream` is [`UpstreamKind::Failed`]. It belongs to the reloader.
    pub recovering: Weak<Worker>,
}

/// A value that a layer above attaches to a namespace, so that it is found without a table and dropped with the namespace. A
/// copy of the namespace, which may be changed before it is served, begins without a value.
#[derive(Default)]
pub struct Attachment(OnceLock<Arc<dyn Any + Send + Sync>>);

/// Upstream that runs a namespace's tools.
#[derive(Debug, Clone)]
pub enum UpstreamKind {
    /// A folder without tool files: nothing to run.
    Empty,
    /// A supervised worker process.
    Worker(Arc<Worker>),
    /// An external MCP server. Its tools are not known to this crate: the namespace's `tools` and similar fields are empty, and
    /// its processes belong to the module for the servers' protocol.
    External(Arc<ExternalServer>),
    /// An external MCP server over HTTP. Its tools are not known to this crate either, and its connections belong to the module
    /// for the servers' protocol.
    Remote(Arc<RemoteServer>),
    /// Several namespaces published as one. Its tools are known only from its members.
    Aggregate(Arc<Aggregate>),
    /// This program: the namespace of the management tools.
    System,
    /// The namespace could not be started; every list and call fails with this error.
    Failed(CallError),
}

/// Status of the secrets that a namespace declares (MGR-03).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SecretsStatus {
    /// The namespace declares no secrets.
    NoSecretsNeeded,
    /// All secrets are set.
    Ok,
    /// At least one secret has no entry.
    Missing,
    /// No secret is missing, at least one is a placeholder.
    Placeholders,
}

impl SecretsStatus {
    /// The status as `/namespaces` shows it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NoSecretsNeeded => "no_secrets_needed",
            Self::Ok => "ok",
            Self::Missing => "missing",
            Self::Placeholders => "placeholders",
        }
    }
}

impl Snapshot {
    /// All namespaces, including those that are only members of an aggregate.
    pub fn all(&self) -> impl Iterator<Item = &Arc<Namespace>> {
        self.namespaces.values().flat_map(|namespace| {
            let members = match &namespace.upstream {
                UpstreamKind::Aggregate(aggregate) => Some(aggregate.own_namespaces()),
                _ => None,
            };
            std::iter::once(namespace).chain(members.into_iter().flatten())
        })
    }

    /// Headers of clients that are passed to some remote server, in lower case.
    fn passed_headers(&self) -> BTreeSet<String> {
        let servers = self
            .namespaces
            .values()
            .filter_map(|it| match &it.upstream {
                UpstreamKind::Remote(server) => Some(server),
                _ => None,
            });
        let names = servers.flat_map(|server| &server.spec.headers.pass);
        names.map(|name| name.to_ascii_lowercase()).collect()
    }

    /// A namespace, or a member of an aggregate, by its name.
    pub fn find(&self, name: &NamespaceName) -> Option<&Arc<Namespace>> {
        if let Some(found) = self.namespaces.get(name) {
            return Some(found);
        }
        let owner = name.owner();
        match &self.namespaces.get(&owner)?.upstream {
            UpstreamKind::Aggregate(aggregate) => aggregate.member(name.as_str()),
            _ => None,
        }
    }
}

impl Attachment {
    /// The value, if it has the type `T`.
    pub fn get<T: Any + Send + Sync>(&self) -> Option<Arc<T>> {
        Arc::clone(self.0.get()?).downcast().ok()
    }

    /// Keeps a value. Later values are ignored.
    pub fn set(&self, value: Arc<impl Any + Send + Sync>) {
        let _ = self.0.set(value);
    }
}

impl Clone for Attachment {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl fmt::Debug for Attachment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Attachment")
            .field(&self.0.get().is_some())
            .finish()
    }
}

impl Namespace {
    /// Returns true if this worker serves the namespace.
    pub(crate) fn is_run_by(&self, worker: &Arc<Worker>) -> bool {
        matches!(&self.upstream, UpstreamKind::Worker(serving) if Arc::ptr_eq(serving, worker))
    }

    /// Returns true if external MCP servers serve the namespace, also through an aggregate: it has no folder, no worker, and no
    /// tools of its own.
    pub fn is_server(&self) -> bool {
        matches!(
            self.upstream,
            UpstreamKind::External(_) | UpstreamKind::Remote(_) | UpstreamKind::Aggregate(_)
        )
    }

    /// State of the namespace's worker, which serves or still retries.
    pub fn worker_state(&self) -> Option<WorkerState> {
        match &self.upstream {
            UpstreamKind::Worker(worker) => Some(worker.state()),
            UpstreamKind::Failed(_) => self.recovering.upgrade().map(|worker| worker.state()),
            UpstreamKind::Empty
            | UpstreamKind::External(_)
            | UpstreamKind::Remote(_)
            | UpstreamKind::Aggregate(_)
            | UpstreamKind::System => None,
        }
    }

    /// The resource of exactly that URI. Resources that a template matches are not included.
    pub fn resource(&self, uri: &str) -> Option<&Arc<Resource>> {
        self.resources.iter().find(|resource| &*resource.uri == uri)
    }

    /// The prompt of that name.
    pub fn prompt(&self, name: &str) -> Option<&Arc<Prompt>> {
        self.prompts.iter().find(|prompt| &*prompt.name == name)
    }

    /// Returns true if a function of the namespace takes a context, and so may report progress, log and ask.
    pub fn has_context(&self) -> bool {
        self.tools.iter().any(|tool| tool.context)
            || self.resources.iter().any(|resource| resource.context)
            || self.resource_templates.iter().any(|it| it.context)
            || self.prompts.iter().any(|prompt| prompt.context)
    }

    /// The time limit of one call of a tool.
    pub fn timeout_of(&self, tool: &str) -> Duration {
        self.tool_limits
            .get(tool)
            .and_then(|limits| limits.timeout)
            .unwrap_or(self.limits.timeout)
    }

    /// The size limit of one result of a tool, in bytes of JSON.
    pub fn max_result_of(&self, tool: &str) -> u64 {
        self.tool_limits
            .get(tool)
            .and_then(|limits| limits.max_result)
            .unwrap_or(self.limits.max_result)
            .as_u64()
    }
}

/// Result of the last reload of all namespaces.
#[derive(Debug, Clone, PartialEq)]
pub struct LastReload {
    /// `complete`, `partial` or `rejected`, as the metric `tooldock_reloads_total` counts it.
    pub result: &'static str,
    /// Time at which the reload ended.
    pub at: SystemTime,
    /// Duration of the reload.
    pub took: Duration,
    /// Reason why nothing was reloaded.
    pub problem: Option<String>,
}

/// Holder of the current snapshot.
#[derive(Debug, Default)]
pub struct Registry {
    current: ArcSwap<Snapshot>,
    /// The current snapshot for tasks that wait for the next one. Requests read `current`, which needs no lock.
    published: watch::Sender<Arc<Snapshot>>,
    /// Headers of clients that are forwarded to some remote server of the snapshot, in lower case. Collected once per snapshot:
    /// preflights need them without a credential.
    passed_headers: ArcSwap<BTreeSet<String>>,
    /// Reason why the secrets cannot be read.
    secrets_problem: ArcSwapOption<Issue>,
    /// Parts of the configuration that are not in force, each with the reason.
    configuration_problems: ArcSwap<Vec<Issue>>,
    /// Reason why the file of external servers cannot be used.
    servers_problem: ArcSwapOption<Issue>,
    /// The last reload of all namespaces, from its end on.
    last_reload: ArcSwapOption<LastReload>,
    /// Issues of names under which nothing is served.
    unserved: ArcSwap<Vec<(NamespaceName, Issue)>>,
    /// Issues of entries of the tools directory that are not namespaces, by their names.
    ignored: ArcSwap<Vec<(String, Issue)>>,
    /// The namespace of the management tools, if this process serves them. It is in no snapshot: no list contains it, and no
    /// name from a client refers to it.
    system: OnceLock<Arc<Namespace>>,
    /// The namespace for requests to all namespaces. It is in no snapshot either.
    global: OnceLock<Arc<Namespace>>,
    /// Personal values of principals. They are in no snapshot, since a new value changes no namespace.
    personal: Arc<PersonalSecrets>,
    /// The sandboxes of processes, as operators are shown them.
    sandbox: OnceLock<Arc<SandboxHost>>,
    /// The pinned definitions of servers, if this process serves them.
    pins: OnceLock<Arc<Pins>>,
    /// Namespaces that are in no snapshot yet.
    startup: Startup,
    /// Counts the reloads of all namespaces, including those that changed nothing.
    reloads: watch::Sender<u64>,
}

impl Registry {
    /// The namespaces that are starting.
    pub fn startup(&self) -> &Startup {
        &self.startup
    }

    /// Sets what makes the sandboxes of processes. Counts once.
    pub fn set_sandbox(&self, sandbox: Arc<SandboxHost>) {
        let _ = self.sandbox.set(sandbox);
    }

    /// The sandbox of a namespace's processes, as far as it holds; `None` for namespaces without processes of their own.
    pub fn sandbox_of(&self, namespace: &Namespace) -> Option<SandboxState> {
        match namespace.upstream {
            UpstreamKind::Worker(_) | UpstreamKind::External(_) => {
                self.sandbox.get()?.state(&namespace.limits.sandbox)
            }
            UpstreamKind::Remote(_)
            | UpstreamKind::Aggregate(_)
            | UpstreamKind::Empty
            | UpstreamKind::System
            | UpstreamKind::Failed(_) => None,
        }
    }

    /// Sets the pinned definitions of servers. Counts once.
    pub fn set_pins(&self, pins: Arc<Pins>) {
        let _ = self.pins.set(pins);
    }

    /// The pinned definitions of servers; `None` if this process serves none.
    pub fn pins(&self) -> Option<&Arc<Pins>> {
        self.pins.get()
    }

    /// The pins of a server's namespace; `None` if this process keeps no pins.
    pub fn pins_of(&self, name: &NamespaceName) -> Option<Arc<NamespacePins>> {
        Some(self.pins.get()?.of(name))
    }

    /// The personal values of principals, as the last reload read them.
    pub fn personal(&self) -> &Arc<PersonalSecrets> {
        &self.personal
    }

    /// The current snapshot, for reading within one request. Cheap; do not hold it across an await, use
    /// [`Registry::snapshot`] there.
    pub fn load(&self) -> Guard<Arc<Snapshot>> {
        self.current.load()
    }

    /// The current snapshot, for keeping across an await.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.current.load_full()
    }

    /// Returns true if some remote server gets this header of its clients. The name is in lower case.
    pub fn passes_header(&self, name: &str) -> bool {
        self.passed_headers.load().contains(name)
    }

    /// A namespace of the current snapshot.
    pub fn namespace(&self, name: &str) -> Option<Arc<Namespace>> {
        self.current.load().namespaces.get(name).cloned()
    }

    /// A namespace of the current snapshot, or a member of an aggregate there.
    pub fn find(&self, name: &NamespaceName) -> Option<Arc<Namespace>> {
        self.current.load().find(name).cloned()
    }

    /// The namespace for the name under which a request was admitted: of the current snapshot, of the management tools, or for
    /// all namespaces.
    pub fn admitted(&self, name: &NamespaceName) -> Option<Arc<Namespace>> {
        let served = self.namespace(name.as_str());
        served.or_else(|| {
            if name.is_system() {
                self.system.get().cloned()
            } else if name.is_global() {
                self.global.get().cloned()
            } else {
                None
            }
        })
    }

    /// Sets the namespace of the management tools. Later calls change nothing.
    pub fn set_system(&self, system: Arc<Namespace>) {
        let _ = self.system.set(system);
    }

    /// Sets the namespace for requests to all namespaces. Later calls have no effect.
    pub fn set_global(&self, global: Arc<Namespace>) {
        let _ = self.global.set(global);
    }

    /// Publishes the next snapshot, notifies the subscribers, and returns the previous one.
    pub fn swap(&self, next: Snapshot) -> Arc<Snapshot> {
        let next = Arc::new(next);
        let passed_headers = Arc::new(next.passed_headers());
        if let Some(pins) = self.pins.get() {
            // Before the snapshot is published, so that no list is judged by the mode before.
            let servers = next.all().filter(|it| {
                matches!(
                    it.upstream,
                    UpstreamKind::External(_) | UpstreamKind::Remote(_)
                )
            });
            servers.for_each(|it| pins.of(&it.name).set_mode(it.limits.pins));
        }
        let mut before = None;
        // Done under the channel's lock, so that after two concurrent swaps subscribers have the current snapshot.
        self.published.send_modify(|published| {
            before = Some(self.current.swap(Arc::clone(&next)));
            self.passed_headers.store(passed_headers);
            *published = next;
        });
        before.expect("the closure runs exactly once")
    }

    /// The problem that concerns all namespaces: secrets that cannot be read, a part of the configuration that is not in force.
    /// Several problems are merged, with the code of the first.
    pub fn problem(&self) -> Option<Arc<Issue>> {
        let one = |problem: &ArcSwapOption<Issue>| problem.load().as_deref().cloned();
        let configuration = self.configuration_problems.load();
        let problems = one(&self.secrets_problem)
            .into_iter()
            .chain(configuration.iter().cloned())
            .chain(one(&self.servers_problem));
        let merged = problems.reduce(|first, next| Issue {
            message: format!("{}. {}: {}", first.message, next.subject, next.message),
            ..first
        });
        merged.map(Arc::new)
    }

    /// Sets the reason why the secrets cannot be read; `None` when they can be read.
    pub fn set_secrets_problem(&self, problem: Option<Issue>) {
        self.secrets_problem.store(problem.map(Arc::new));
    }

    /// Sets the parts of the configuration that are not in force, each with the reason; empty when all of it is.
    pub fn set_configuration_problems(&self, problems: Vec<Issue>) {
        self.configuration_problems.store(Arc::new(problems));
    }

    /// Sets the reason why the file of external servers cannot be used; `None` when it can.
    pub fn set_servers_problem(&self, problem: Option<Issue>) {
        self.servers_problem.store(problem.map(Arc::new));
    }

    /// The issues of names that are claimed while nothing is served under them.
    pub fn unserved(&self) -> Arc<Vec<(NamespaceName, Issue)>> {
        self.unserved.load_full()
    }

    pub(crate) fn set_unserved(&self, issues: Vec<(NamespaceName, Issue)>) {
        self.unserved.store(Arc::new(issues));
    }

    /// The issues of entries of the tools directory that are not namespaces, by their names.
    pub fn ignored(&self) -> Arc<Vec<(String, Issue)>> {
        self.ignored.load_full()
    }

    pub(crate) fn set_ignored(&self, issues: Vec<(String, Issue)>) {
        self.ignored.store(Arc::new(issues));
    }

    /// Subscribes to later reloads of all namespaces, including those that change nothing.
    pub fn reloads(&self) -> watch::Receiver<u64> {
        self.reloads.subscribe()
    }

    /// The last reload of all namespaces; `None` before the first has ended.
    pub fn last_reload(&self) -> Option<Arc<LastReload>> {
        self.last_reload.load_full()
    }

    /// Keeps the outcome of a reload of all namespaces.
    pub fn keep_reload(&self, reload: LastReload) {
        self.last_reload.store(Some(Arc::new(reload)));
    }

    /// Notifies the subscribers that all namespaces were reloaded.
    pub fn reloaded(&self) {
        self.reloads.send_modify(|reloads| *reloads += 1);
    }

    /// Subscribes to later swaps: the receiver always has the newest snapshot, and may skip some. Readers find the changes by
    /// comparing a snapshot with the last one that they saw.
    pub fn subscribe(&self) -> watch::Receiver<Arc<Snapshot>> {
        self.published.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_with_a_namespace_is_one_value_which_a_copy_does_not_have() {
        let attached = Attachment::default();
        assert!(attached.get::<String>().is_none());
        attached.set(Arc::new("first".to_owned()));
        attached.set(Arc::new("second".to_owned()));
        assert_eq!(*attached.get::<String>().unwrap(), "first");
        assert!(attached.get::<u8>().is_none());
        assert!(attached.clone().get::<String>().is_none());
    }

    #[test]
    fn a_problem_of_the_configuration_and_one_of_the_secrets_are_told_and_end_each_by_itself() {
        let registry = Registry::default();
        let issue = |code, subject: &str| Issue {
            code,
            subject: subject.to_owned(),
            message: format!("{subject} is damaged"),
        };
        registry.set_configuration_problems(vec![issue("invalid_config", "config")]);
        registry.set_secrets_problem(Some(issue("secrets_unavailable", "secrets")));
        let both = registry.problem().unwrap();
        assert_eq!(both.code, "secrets_unavailable");
        assert_eq!(
            both.message,
            "secrets is damaged. config: config is damaged"
        );
        registry.set_secrets_problem(None);
        assert_eq!(registry.problem().unwrap().code, "invalid_config");
        registry.set_configuration_problems(Vec::new());
        assert_eq!(registry.problem(), None);
    }

    fn served_by(name: NamespaceName, server: RemoteServer) -> Namespace {
        let limits = Limits::default();
        Namespace {
            name,
            description: String::new(),
            version: String::new(),
            secrets: Vec::new(),
            secrets_status: SecretsStatus::Ok,
            has_requirements: false,
            tool_limits: BTreeMap::new(),
            policy: ToolPolicy::new(&limits).unwrap(),
            limits,
            tools: Vec::new(),
            resources: Vec::new(),
            resource_templates: Vec::new(),
            prompts: Vec::new(),
            completions: false,
            files: Vec::new(),
            issues: Vec::new(),
            upstream: UpstreamKind::Remote(Arc::new(server)),
            gate: Arc::new(Gate::new(1, 1)),
            parked: Arc::new(Parking::new(1)),
            content_hash: [0; 32],
            attached: Attachment::default(),
            recovering: Weak::new(),
        }
    }

    #[test]
    fn the_headers_that_servers_are_sent_are_those_of_the_newest_snapshot() {
        let registry = Registry::default();
        let snapshot = |pass: &[&str]| {
            let namespaces = pass.iter().zip(["one", "two"]).map(|(headers, name)| {
                let name: NamespaceName = name.parse().unwrap();
                let config =
                    format!("{{ backends: ['https://a'], headers: {{ pass: [{headers}] }} }}");
                let config = tooldock_base::yaml::from_str(&config).unwrap();
                let secrets = tooldock_credentials::secrets::Secrets::default();
                let server = RemoteServer::resolve(&name, &config, &secrets, &|_| None).unwrap();
                (name.clone(), Arc::new(served_by(name, server)))
            });
            Snapshot {
                generation: 1,
                namespaces: namespaces.collect(),
            }
        };
        assert!(!registry.passes_header("x-api-key"));
        registry.swap(snapshot(&["X-Api-Key", "x-tenant, x-team"]));
        for name in ["x-api-key", "x-tenant", "x-team"] {
            assert!(registry.passes_header(name), "{name}");
        }
        assert!(!registry.passes_header("x-other"));
        registry.swap(snapshot(&["x-tenant"]));
        assert!(registry.passes_header("x-tenant") && !registry.passes_header("x-api-key"));
    }

    #[tokio::test]
    async fn a_subscriber_sees_the_newest_snapshot_and_every_later_one() {
        let registry = Registry::default();
        let mut seen = registry.subscribe();
        assert_eq!(seen.borrow_and_update().generation, 0);
        let snapshot = |generation| Snapshot {
            generation,
            ..Snapshot::default()
        };
        registry.swap(snapshot(1));
        assert_eq!(registry.swap(snapshot(2)).generation, 1);
        seen.changed().await.unwrap();
        assert_eq!(seen.borrow_and_update().generation, 2);
        assert!(Arc::ptr_eq(&seen.borrow(), &registry.snapshot()));
        assert!(!seen.has_changed().unwrap());
        registry.swap(snapshot(3));
        seen.changed().await.unwrap();
        assert_eq!(seen.borrow().generation, 3);
    }
}
