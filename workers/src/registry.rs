//! Registry of the served namespaces: an immutable snapshot of all namespaces, replaced in one step (RLD-03).
//!
//! A reader takes the snapshot once and uses it for its complete request, so it sees either the old state or the new one, and
//! never a mix. A namespace that did not change is the same `Arc` in both snapshots.

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

/// All served namespaces at one moment.
#[derive(Debug, Default)]
pub struct Snapshot {
    /// Number of snapshots published before this one; 0 for the empty snapshot before the first scan.
    pub generation: u64,
    /// The served namespaces, sorted by name.
    pub namespaces: BTreeMap<NamespaceName, Arc<Namespace>>,
}

/// A served namespace.
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
    /// Limits in force: the defaults, the namespace's own file up to the ceilings, and the operator's overrides.
    pub limits: Limits,
    /// Limits in force of single tools, by the tool's name.
    pub tool_limits: BTreeMap<String, ToolLimits>,
    /// Rules about the allowed tools and principals.
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
    /// The namespace's Python files, each with the use that the worker made of it: loaded in one of several ways, or skipped.
    pub files: Vec<SourceFile>,
    /// Problems that do not prevent the namespace from being served: skipped files, lowered limits, a failed update.
    pub issues: Vec<Issue>,
    /// Upstream that runs the namespace's tools.
    pub upstream: UpstreamKind,
    /// Limit on the calls that run or are queued. The same gate is used after a reload if the limits are unchanged.
    pub gate: Arc<Gate>,
    /// Limit on the calls that wait for an answer of their client. The same limit is used after a reload if `max_parked` is
    /// unchanged.
    pub parked: Arc<Parking>,
    /// Hash over everything that defines the namespace. A reload does not replace a namespace with an equal hash.
    pub content_hash: [u8; 32],
    /// Value that another crate stores together with the namespace.
    pub attached: Attachment,
    /// The worker that is still being restarted while `upstream` is [`UpstreamKind::Failed`]. The reloader owns the worker.
    pub recovering: Weak<Worker>,
}

/// A value that another crate attaches to a namespace. So that crate needs no table of namespaces, and the value is dropped
/// with the namespace. A copy of the namespace begins without a value, because it may be changed before it is served.
#[derive(Default)]
pub struct Attachment(OnceLock<Arc<dyn Any + Send + Sync>>);

/// Upstream that runs a namespace's tools.
#[derive(Debug, Clone)]
pub enum UpstreamKind {
    /// The namespace is a folder without tool files, so there is nothing to run.
    Empty,
    /// A supervised Python worker runs the tools.
    Worker(Arc<Worker>),
    /// An external MCP server runs the tools as a child process. The namespace's `tools` and similar fields are empty, because
    /// the MCP layer (`mcp-upstream`) requests them from the server; it also owns the server's processes.
    External(Arc<ExternalServer>),
    /// An external MCP server runs the tools and is called over HTTP. The namespace's `tools` and similar fields are empty,
    /// because the MCP layer (`mcp-upstream`) requests them from the server; it also owns the connections.
    Remote(Arc<RemoteServer>),
    /// Several namespaces, the members, are published as one. The members provide the tools.
    Aggregate(Arc<Aggregate>),
    /// The gateway itself runs the tools: this is the namespace of the management tools.
    System,
    /// The namespace could not be started; every list and every call fails with this error.
    Failed(CallError),
}

/// Status of the secrets that a namespace declares (MGR-03).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SecretsStatus {
    /// The namespace declares no secrets.
    NoSecretsNeeded,
    /// All declared secrets have a value.
    Ok,
    /// At least one declared secret has no entry in the store.
    Missing,
    /// All declared secrets have an entry, but at least one is a placeholder without a value.
    Placeholders,
}

impl SecretsStatus {
    /// The status as text in `/namespaces`.
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
    /// All namespaces, including servers that belong only to an aggregate.
    pub fn all(&self) -> impl Iterator<Item = &Arc<Namespace>> {
        self.namespaces.values().flat_map(|namespace| {
            let members = match &namespace.upstream {
                UpstreamKind::Aggregate(aggregate) => Some(aggregate.own_namespaces()),
                _ => None,
            };
            std::iter::once(namespace).chain(members.into_iter().flatten())
        })
    }

    /// Names, in lower case, of the client headers that are forwarded to at least one remote server.
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

    /// Finds a namespace, or a server that belongs only to an aggregate, by its name.
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
    /// The attached value; `None` if there is none, or it is not of type `T`.
    pub fn get<T: Any + Send + Sync>(&self) -> Option<Arc<T>> {
        Arc::clone(self.0.get()?).downcast().ok()
    }

    /// Attaches a value. Only the first call has an effect.
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
    /// Returns true if this worker runs the namespace's tools.
    pub(crate) fn is_run_by(&self, worker: &Arc<Worker>) -> bool {
        matches!(&self.upstream, UpstreamKind::Worker(serving) if Arc::ptr_eq(serving, worker))
    }

    /// Returns true if MCP servers run the namespace's tools, directly or as members of an aggregate. Such a namespace has no
    /// worker and an empty `tools`.
    pub fn is_server(&self) -> bool {
        matches!(
            self.upstream,
            UpstreamKind::External(_) | UpstreamKind::Remote(_) | UpstreamKind::Aggregate(_)
        )
    }

    /// Returns true if the namespace is a folder of the tools directory, whichever process serves it.
    pub fn has_folder(&self) -> bool {
        match &self.upstream {
            UpstreamKind::External(server) => server.folder.is_some(),
            UpstreamKind::Remote(_) | UpstreamKind::Aggregate(_) => false,
            UpstreamKind::Empty
            | UpstreamKind::Worker(_)
            | UpstreamKind::System
            | UpstreamKind::Failed(_) => true,
        }
    }

    /// State of the worker that runs the namespace's tools or is still being restarted; `None` if there is no worker.
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

    /// The resource with exactly this URI. Resources that only match a template are not found.
    pub fn resource(&self, uri: &str) -> Option<&Arc<Resource>> {
        self.resources.iter().find(|resource| &*resource.uri == uri)
    }

    /// The prompt with this name.
    pub fn prompt(&self, name: &str) -> Option<&Arc<Prompt>> {
        self.prompts.iter().find(|prompt| &*prompt.name == name)
    }

    /// Returns true if a function of the namespace takes a context, through which it may report progress, log, and ask the
    /// client.
    pub fn has_context(&self) -> bool {
        self.tools.iter().any(|tool| tool.context)
            || self.resources.iter().any(|resource| resource.context)
            || self.resource_templates.iter().any(|it| it.context)
            || self.prompts.iter().any(|prompt| prompt.context)
    }

    /// Returns true if some tools of the namespace run as tasks.
    pub fn has_tasks(&self) -> bool {
        self.tools.iter().any(|tool| tool.task.is_some())
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
    /// Result as counted by the metric `tooldock_reloads_total`: `complete`, `partial` or `rejected`.
    pub result: &'static str,
    /// Time at which the reload ended.
    pub at: SystemTime,
    /// Duration of the reload.
    pub took: Duration,
    /// Reason why nothing was reloaded; `None` if the reload was carried out.
    pub problem: Option<String>,
}

/// Registry of the served namespaces: owner of the current snapshot, and of problems that concern all namespaces.
#[derive(Debug, Default)]
pub struct Registry {
    current: ArcSwap<Snapshot>,
    /// The current snapshot, for tasks that wait for the next one. Requests read `current` instead, which needs no lock.
    published: watch::Sender<Arc<Snapshot>>,
    /// Names, in lower case, of the client headers that are forwarded to at least one remote server. Computed once per snapshot
    /// instead of per request, because CORS preflight requests without a credential need them.
    passed_headers: ArcSwap<BTreeSet<String>>,
    /// Reason why the secrets cannot be read; `None` if they can be read.
    secrets_problem: ArcSwapOption<Issue>,
    /// Parts of the configuration that are not in force, each with the reason.
    configuration_problems: ArcSwap<Vec<Issue>>,
    /// Reason why the file of external servers cannot be used; `None` if it can be used.
    servers_problem: ArcSwapOption<Issue>,
    /// Result of the last reload of all namespaces; `None` before the first one has ended.
    last_reload: ArcSwapOption<LastReload>,
    /// Issues of names that are configured or have a folder, but under which no namespace is served.
    unserved: ArcSwap<Vec<(NamespaceName, Issue)>>,
    /// Issues of entries of the tools directory that are not namespaces, by the entries' names.
    ignored: ArcSwap<Vec<(String, Issue)>>,
    /// The namespace of the management tools, if this process serves them. It is in no snapshot, so no list contains it and no
    /// client can address it by name.
    system: OnceLock<Arc<Namespace>>,
    /// The namespace for requests that concern all namespaces. It is in no snapshot.
    global: OnceLock<Arc<Namespace>>,
    /// Personal values of principals. They are not part of a snapshot, since a new value changes no namespace.
    personal: Arc<PersonalSecrets>,
    /// The sandboxes of processes, to report their state to operators.
    sandbox: OnceLock<Arc<SandboxHost>>,
    /// The pinned definitions of servers, if this process serves any servers.
    pins: OnceLock<Arc<Pins>>,
    /// State of the gateway's start, with the namespaces that are still starting.
    startup: Startup,
    /// Number of reloads of all namespaces, including those that changed nothing.
    reloads: watch::Sender<u64>,
}

impl Registry {
    /// State of the gateway's start, with the namespaces that are still starting.
    pub fn startup(&self) -> &Startup {
        &self.startup
    }

    /// Sets the creator of sandboxes. Only the first call has an effect.
    pub fn set_sandbox(&self, sandbox: Arc<SandboxHost>) {
        let _ = self.sandbox.set(sandbox);
    }

    /// State of the sandbox of a namespace's processes, as far as it can be enforced; `None` for a namespace that has no
    /// processes.
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

    /// Sets the pinned definitions of servers. Only the first call has an effect.
    pub fn set_pins(&self, pins: Arc<Pins>) {
        let _ = self.pins.set(pins);
    }

    /// The pinned definitions of servers; `None` if this process serves no servers.
    pub fn pins(&self) -> Option<&Arc<Pins>> {
        self.pins.get()
    }

    /// The pins of a server's namespace; `None` if this process records no pins.
    pub fn pins_of(&self, name: &NamespaceName) -> Option<Arc<NamespacePins>> {
        Some(self.pins.get()?.of(name))
    }

    /// The personal values of principals, as the last reload read them.
    pub fn personal(&self) -> &Arc<PersonalSecrets> {
        &self.personal
    }

    /// The current snapshot, for use within one request. Cheap; must not be held across an await, where [`Registry::snapshot`] is
    /// used instead.
    pub fn load(&self) -> Guard<Arc<Snapshot>> {
        self.current.load()
    }

    /// The current snapshot, which may be held across an await.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.current.load_full()
    }

    /// Returns true if the header is forwarded from clients to at least one remote server. `name` is in lower case.
    pub fn passes_header(&self, name: &str) -> bool {
        self.passed_headers.load().contains(name)
    }

    /// Finds a namespace of the current snapshot.
    pub fn namespace(&self, name: &str) -> Option<Arc<Namespace>> {
        self.current.load().namespaces.get(name).cloned()
    }

    /// Finds a namespace of the current snapshot, or a server that belongs only to an aggregate.
    pub fn find(&self, name: &NamespaceName) -> Option<Arc<Namespace>> {
        self.current.load().find(name).cloned()
    }

    /// Finds the namespace for the name under which a request was admitted: a namespace of the current snapshot, that of the
    /// management tools, or the one for all namespaces.
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

    /// Sets the namespace of the management tools. Only the first call has an effect.
    pub fn set_system(&self, system: Arc<Namespace>) {
        let _ = self.system.set(system);
    }

    /// Sets the namespace for requests that concern all namespaces. Only the first call has an effect.
    pub fn set_global(&self, global: Arc<Namespace>) {
        let _ = self.global.set(global);
    }

    /// Publishes the next snapshot, notifies the subscribers, and returns the previous one.
    pub fn swap(&self, next: Snapshot) -> Arc<Snapshot> {
        let next = Arc::new(next);
        let passed_headers = Arc::new(next.passed_headers());
        if let Some(pins) = self.pins.get() {
            // The modes are set before the snapshot is published, so that no list is judged with the previous mode.
            let servers = next.all().filter(|it| {
                matches!(
                    it.upstream,
                    UpstreamKind::External(_) | UpstreamKind::Remote(_)
                )
            });
            servers.for_each(|it| pins.of(&it.name).set_mode(it.limits.pins));
        }
        let mut before = None;
        // Done under the channel's lock: if two calls are concurrent, the subscribers finally have the snapshot that is current.
        self.published.send_modify(|published| {
            before = Some(self.current.swap(Arc::clone(&next)));
            self.passed_headers.store(passed_headers);
            *published = next;
        });
        before.expect("the closure runs exactly once")
    }

    /// The problem that concerns all namespaces: secrets that cannot be read, or a part of the configuration that is not in
    /// force. Several problems are merged into one with the code of the first.
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

    /// Sets the reason why the secrets cannot be read; `None` if they can be read.
    pub fn set_secrets_problem(&self, problem: Option<Issue>) {
        self.secrets_problem.store(problem.map(Arc::new));
    }

    /// Sets the parts of the configuration that are not in force, each with the reason; empty if all of it is in force.
    pub fn set_configuration_problems(&self, problems: Vec<Issue>) {
        self.configuration_problems.store(Arc::new(problems));
    }

    /// Sets the reason why the file of external servers cannot be used; `None` if it can be used.
    pub fn set_servers_problem(&self, problem: Option<Issue>) {
        self.servers_problem.store(problem.map(Arc::new));
    }

    /// The issues of names that are configured or have a folder, but under which no namespace is served.
    pub fn unserved(&self) -> Arc<Vec<(NamespaceName, Issue)>> {
        self.unserved.load_full()
    }

    pub(crate) fn set_unserved(&self, issues: Vec<(NamespaceName, Issue)>) {
        self.unserved.store(Arc::new(issues));
    }

    /// The issues of entries of the tools directory that are not namespaces, by the entries' names.
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

    /// Stores the result of a reload of all namespaces.
    pub fn keep_reload(&self, reload: LastReload) {
        self.last_reload.store(Some(Arc::new(reload)));
    }

    /// Notifies the subscribers that all namespaces were reloaded.
    pub fn reloaded(&self) {
        self.reloads.send_modify(|reloads| *reloads += 1);
    }

    /// Subscribes to later snapshots. The receiver always returns the newest one and may skip some; it finds the changes by
    /// comparing the snapshot with the last one that it received.
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
