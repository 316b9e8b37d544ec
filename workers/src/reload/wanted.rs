//! The wanted state of a namespace: its folder combined with the operator's limits and secrets. No I/O.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::Duration;

use sha2::{Digest as _, Sha256};
use tooldock_base::config::{
    Limits, LimitsPatch, NamespacesConfig, PROCESSES_MAX, Sandbox, ToolLimits,
};
use tooldock_base::error::{CallError, CallErrorCode};
use tooldock_base::gate::Gate;
use tooldock_base::issue::Issue;
use tooldock_base::parking::Parking;
use tooldock_base::policy::ToolPolicy;
use tooldock_base::precedence::COLLISION;
use tooldock_base::secret::Secret;
use tooldock_base::template::Sources;
use tooldock_credentials::secrets::NamespaceSecrets;
use tooldock_process::worker::Declarations;

use crate::manifest::{CLAMPED, MANIFEST_FILE, MISSING_SECRET, Variables, effective_limits};
use crate::registry::{Attachment, Namespace, SecretsStatus, UpstreamKind};
use crate::scan::{NamespaceSource, SourceFailure, ignored};
pub(super) use tooldock_base::issue::UPDATE;

/// Code of the [`Issue`] that a namespace's files declare no tools, resources or prompts.
pub(super) const NO_TOOLS: &str = "no_tools";

/// Maximum number of bytes of a worker's line in addition to the result: names of JSON fields, and escapes in content blocks.
const FRAME_OVERHEAD: u64 = 64 * 1024;

/// Maximum number of calls that one namespace may run, queue or suspend, whatever the configuration sets. A semaphore has a
/// maximum number of permits.
const GATE_MAX: usize = 1 << 20;

/// Maximum time for which a replaced worker may continue its last calls, whatever the limits of the calls are.
const DRAIN_MAX: Duration = Duration::from_secs(600);

/// Wanted state of a namespace, which a reload compares with the served one.
#[derive(Debug)]
pub(super) struct DesiredNamespace {
    pub(super) source: NamespaceSource,
    pub(super) secrets: BTreeMap<String, Secret>,
    /// Names of secrets that have an entry in the store but no value yet.
    placeholders: BTreeSet<String>,
    variables: Variables,
    pub(super) failure: Option<SourceFailure>,
    limits: Limits,
    tool_limits: BTreeMap<String, ToolLimits>,
    policy: ToolPolicy,
    issues: Vec<Issue>,
    content_hash: [u8; 32],
    /// True if the worker waits for a debugger before it loads the files.
    pub(super) waits_for_debugger: bool,
}

/// Identity of a running worker: everything that it was started with, except its environment variables. If the wanted identity
/// differs, another process is needed.
#[derive(Debug, Clone)]
pub(super) struct Identity {
    pub(super) files_hash: [u8; 32],
    /// Id of the toolchain; `None` if the toolchain is unavailable. In that case no running worker is replaced because of it.
    pub(super) toolchain: Option<String>,
    pub(super) sync_concurrency: usize,
    pub(super) processes: usize,
    pub(super) max_frame: u64,
    pub(super) sandbox: Sandbox,
    /// Limits that the manifest requests. They are not compared, because `files_hash` covers them.
    pub(super) own_limits: LimitsPatch,
}

impl Identity {
    pub(super) fn is_served_by(&self, running: &Self) -> bool {
        let toolchain = self.toolchain.is_none() || self.toolchain == running.toolchain;
        toolchain
            && self.files_hash == running.files_hash
            && self.sync_concurrency == running.sync_concurrency
            && self.processes == running.processes
            && self.max_frame == running.max_frame
            && self.sandbox == running.sandbox
    }
}

impl DesiredNamespace {
    pub(super) fn new(
        source: NamespaceSource,
        config: &NamespacesConfig,
        secrets: NamespaceSecrets,
        environment: &dyn Fn(&str) -> Option<String>,
        toolchain: Option<&str>,
    ) -> Self {
        let mut variables = source.manifest.variables(&Sources {
            secrets: &secrets.values,
            environment,
            allowed: Some(&config.env_allowed),
        });
        let manifest = &source.manifest;
        let missing = manifest.missing_secrets(&source.name, &secrets, &variables);
        let NamespaceSecrets {
            values: secrets,
            placeholders,
        } = secrets;
        let (limits, tool_limits, clamped) = source.manifest.effective_limits(&source.name, config);
        let mut failure = source.failure.clone();
        let policy = ToolPolicy::new(&limits).unwrap_or_else(|error| {
            failure.get_or_insert(SourceFailure {
                code: "invalid_manifest",
                message: error.to_string(),
            });
            nobody()
        });
        let mut issues = source.issues.clone();
        issues.extend(clamped);
        issues.append(&mut variables.issues);
        issues.extend(missing);
        let toolchain = toolchain.filter(|_| source.needs_python());
        let content_hash = content_hash(&source.files_hash, &limits, &tool_limits, toolchain);
        let waits_for_debugger = config.debugged.as_ref() == Some(&source.name);
        Self {
            source,
            secrets,
            placeholders,
            variables,
            failure,
            limits,
            tool_limits,
            policy,
            issues,
            content_hash,
            waits_for_debugger,
        }
    }

    pub(super) fn identity(&self, toolchain: Option<&str>) -> Identity {
        Identity {
            files_hash: self.source.files_hash,
            toolchain: toolchain
                .filter(|_| self.source.needs_python())
                .map(str::to_owned),
            sync_concurrency: self.limits.sync_concurrency.max(1),
            processes: self.limits.processes.clamp(1, PROCESSES_MAX),
            max_frame: self.max_frame(),
            sandbox: self.limits.sandbox.clone(),
            own_limits: self.source.manifest.limits.clone(),
        }
    }

    /// Returns true if `current` already has the wanted state, so that nothing must be published.
    pub(super) fn is_same_as(&self, current: &Namespace) -> bool {
        // If the files are changed back after a failed update, the content equals the served content, but the namespace must be
        // published again, so that the issue of the failed update disappears. Issues about name collisions, missing secrets and
        // files that are not read as tools are compared as well, because the content hash does not cover their causes.
        let told = [
            COLLISION,
            MISSING_SECRET,
            ignored::EMPTY,
            ignored::NOT_READ,
            ignored::SERVER,
        ];
        let beside = |issues: &[Issue]| -> Vec<Issue> {
            let issues = issues.iter().filter(|it| told.contains(&it.code));
            issues.cloned().collect()
        };
        let env = format!("{MANIFEST_FILE}: env.");
        let without_value = |issues: &[Issue]| -> Vec<Issue> {
            let about_env = issues.iter().filter(|it| it.subject.starts_with(&env));
            about_env.cloned().collect()
        };
        current.content_hash == self.content_hash
            && current.secrets_status == self.secrets_status()
            && !current.issues.iter().any(|issue| issue.subject == UPDATE)
            && beside(&current.issues) == beside(&self.issues)
            && without_value(&current.issues) == without_value(&self.issues)
    }

    /// Returns the namespace to publish. If the limits are the same, it shares the gate of `current`, so that running calls
    /// remain counted.
    pub(super) fn namespace(
        &self,
        current: Option<&Namespace>,
        upstream: UpstreamKind,
        declared: &Declarations,
        issues: &[Issue],
    ) -> Arc<Namespace> {
        let manifest = &self.source.manifest;
        let mut issues = self.with(issues);
        if matches!(upstream, UpstreamKind::Worker(_)) && issues.is_empty() {
            issues.extend(nothing_declared(declared));
        }
        Arc::new(Namespace {
            name: self.source.name.clone(),
            description: manifest.description.clone(),
            version: manifest.version.clone(),
            secrets: manifest.secrets.clone(),
            secrets_status: self.secrets_status(),
            has_requirements: self.source.requirements.is_some(),
            limits: self.limits.clone(),
            tool_limits: self.tool_limits.clone(),
            policy: self.policy.clone(),
            tools: declared.tools.clone(),
            resources: declared.resources.clone(),
            resource_templates: declared.resource_templates.clone(),
            prompts: declared.prompts.clone(),
            completions: declared.completions,
            files: declared.files.clone(),
            issues,
            upstream,
            gate: gate(
                current,
                self.limits.max_concurrency.local(),
                self.limits.queue,
            ),
            parked: parking(current, &self.limits),
            content_hash: self.content_hash,
            attached: Attachment::default(),
            recovering: Weak::new(),
        })
    }

    /// Returns the issues of the scan and of the worker. If both skipped the same file, only the scan's issue is returned. The
    /// scan's issues about dependencies and server files do not suppress issues of the worker.
    fn with(&self, issues: &[Issue]) -> Vec<Issue> {
        let refusals = |known: &&Issue| ![ignored::NOT_READ, ignored::SERVER].contains(&known.code);
        let new = issues.iter().filter(|issue| {
            let mut known = self.issues.iter().filter(refusals);
            !known.any(|known| known.subject == issue.subject)
        });
        self.issues.iter().chain(new).cloned().collect()
    }

    /// Returns the namespace to publish if it cannot be updated. If it is served, it stays in force with an issue that tells why
    /// it is outdated; otherwise every call fails with the error.
    ///
    /// An outdated namespace keeps its old hash, so the next reload tries the update again.
    pub(super) fn failed(
        &self,
        current: Option<&Namespace>,
        code: &'static str,
        error: &CallError,
    ) -> Arc<Namespace> {
        match current {
            // A lost worker has no process with the listed tools, so the namespace must not be published with them.
            Some(current) if stays_in_force(&current.upstream) => {
                let message = format!("the last change is not served: {}", error.message);
                noted(current, code, message)
            }
            _ => {
                let failed = UpstreamKind::Failed(error.clone());
                self.namespace(current, failed, &Declarations::default(), &[])
            }
        }
    }

    /// Environment variables of the manifest. A secret with the same name takes precedence.
    pub(super) fn defaults(&self) -> &BTreeMap<String, Secret> {
        &self.variables.values
    }

    /// Values that are masked in the output of the namespace's processes.
    pub(super) fn hidden(&self) -> Vec<Secret> {
        let secrets = self.secrets.values();
        secrets.chain(&self.variables.hidden).cloned().collect()
    }

    /// Time that the running calls of a namespace get after it was replaced or removed, according to its limits. The limit for a
    /// client's answer is added, because a call that asked its client can continue only in the process that began it.
    pub(super) fn drain_of(namespace: &Namespace) -> Duration {
        let asking = match namespace.has_context() {
            true => namespace.limits.ask_timeout,
            false => Duration::ZERO,
        };
        let call = drain(&namespace.limits, &namespace.tool_limits, asking);
        match namespace.has_tasks() {
            true => call.max(namespace.limits.task_timeout.saturating_add(asking)),
            false => call,
        }
    }

    /// Time that the last calls of a replaced process of this namespace get. It includes the time for a client's answer, because
    /// it is not known yet if the process will ask clients. The drain ends earlier when no calls remain.
    pub(super) fn drain(&self) -> Duration {
        let asking = self.limits.ask_timeout;
        drain(&self.limits, &self.tool_limits, asking)
            .max(self.limits.task_timeout.saturating_add(asking))
    }

    /// Longest time limit of a call, for which a tool may block its process without being considered hung.
    pub(super) fn longest_call(&self) -> Duration {
        drain(&self.limits, &self.tool_limits, Duration::ZERO)
    }

    fn max_frame(&self) -> u64 {
        let largest = self
            .tool_limits
            .values()
            .filter_map(|limits| limits.max_result)
            .chain([self.limits.max_result])
            .max()
            .unwrap_or_default();
        largest.as_u64().saturating_add(FRAME_OVERHEAD)
    }

    fn has_value(&self, name: &str) -> bool {
        self.secrets.contains_key(name) || self.variables.values.contains_key(name)
    }

    fn secrets_status(&self) -> SecretsStatus {
        let declared = &self.source.manifest.secrets;
        let mut without = declared
            .iter()
            .filter(|name| !self.has_value(name))
            .peekable();
        if declared.is_empty() {
            SecretsStatus::NoSecretsNeeded
        } else if without.peek().is_none() {
            SecretsStatus::Ok
        } else if without.all(|name| self.placeholders.contains(name)) {
            SecretsStatus::Placeholders
        } else {
            SecretsStatus::Missing
        }
    }
}

/// Returns true if the upstream of a folder can still serve after an update of the folder failed.
fn stays_in_force(upstream: &UpstreamKind) -> bool {
    match upstream {
        UpstreamKind::Worker(worker) => !worker.is_lost(),
        UpstreamKind::External(server) => server.folder.is_some(),
        _ => false,
    }
}

/// Returns the issue for a namespace whose files declare nothing, which explains its empty lists; `None` if they declare
/// anything.
fn nothing_declared(declared: &Declarations) -> Option<Issue> {
    let is_empty = declared.tools.is_empty()
        && declared.resources.is_empty()
        && declared.resource_templates.is_empty()
        && declared.prompts.is_empty();
    is_empty.then(|| Issue {
        code: NO_TOOLS,
        subject: ".".to_owned(),
        message: "no file of the namespace declares anything: put `from fastmcp.tools import tool` into a file and @tool on the \
                  functions that clients should call"
            .to_owned(),
    })
}

/// Returns a served namespace with the limits of the current configuration; `None` if the limits are unchanged.
pub(super) fn relimited(
    current: &Namespace,
    running: &Identity,
    config: &NamespacesConfig,
) -> Option<Arc<Namespace>> {
    let (limits, tool_limits, clamped) = effective_limits(
        &running.own_limits,
        Some(MANIFEST_FILE),
        &current.name,
        config,
    );
    if limits == current.limits && tool_limits == current.tool_limits {
        return None;
    }
    let mut issues = current.issues.clone();
    issues.retain(|issue| issue.code != CLAMPED);
    issues.extend(clamped);
    Some(Arc::new(Namespace {
        // An invalid pattern excludes all callers, because it might have been meant to exclude some. Only the
        // operator's pattern can be invalid here: those of the namespace's own file were valid when it was started.
        policy: ToolPolicy::new(&limits).unwrap_or_else(|_| nobody()),
        issues,
        gate: gate(Some(current), limits.max_concurrency.local(), limits.queue),
        parked: parking(Some(current), &limits),
        content_hash: content_hash(
            &running.files_hash,
            &limits,
            &tool_limits,
            running.toolchain.as_deref(),
        ),
        limits,
        tool_limits,
        attached: Attachment::default(),
        recovering: Weak::new(),
        ..current.clone()
    }))
}

/// Returns a served namespace with an additional issue about its update.
pub(super) fn noted(current: &Namespace, code: &'static str, message: String) -> Arc<Namespace> {
    let mut issues = current.issues.clone();
    issues.retain(|issue| issue.subject != UPDATE);
    issues.push(Issue {
        code,
        subject: UPDATE.into(),
        message,
    });
    Arc::new(Namespace {
        issues,
        attached: Attachment::default(),
        recovering: Weak::new(),
        ..current.clone()
    })
}

/// The declarations with which the namespace `current` is served, without their issues. A later process may have replaced the
/// process that declared them.
pub(super) fn declared_by(current: &Namespace) -> Declarations {
    Declarations {
        tools: current.tools.clone(),
        resources: current.resources.clone(),
        resource_templates: current.resource_templates.clone(),
        prompts: current.prompts.clone(),
        completions: current.completions,
        issues: Vec::new(),
        files: current.files.clone(),
    }
}

/// Returns the gate for these limits. A current gate with the same limits is reused, with the calls that it counts.
pub(crate) fn gate(current: Option<&Namespace>, max_concurrency: usize, queue: usize) -> Arc<Gate> {
    let max_concurrency = max_concurrency.clamp(1, GATE_MAX);
    let queue = queue.min(GATE_MAX);
    match current {
        Some(current) if current.gate.has_limits(max_concurrency, queue) => {
            Arc::clone(&current.gate)
        }
        _ => Arc::new(Gate::new(max_concurrency, queue)),
    }
}

/// Returns the limit on calls that wait for their clients. A current one with the same maximum is reused, with the calls that it
/// counts.
pub(crate) fn parking(current: Option<&Namespace>, limits: &Limits) -> Arc<Parking> {
    let max = limits.max_parked.min(GATE_MAX);
    match current {
        Some(current) if current.parked.has_limit(max) => Arc::clone(&current.parked),
        _ => Arc::new(Parking::new(max)),
    }
}

/// Longest possible duration of the last call of a process. `asking` is the time limit for a client's answer to a question.
fn drain(
    limits: &Limits,
    tool_limits: &BTreeMap<String, ToolLimits>,
    asking: Duration,
) -> Duration {
    tool_limits
        .values()
        .filter_map(|limits| limits.timeout)
        .chain([limits.timeout])
        .max()
        .unwrap_or_default()
        .saturating_add(asking)
        .min(DRAIN_MAX)
}

/// Converts the failure of a folder to the error that calls of its namespace get.
pub(super) fn call_error(failure: &SourceFailure) -> CallError {
    let code = match failure.code {
        "dependency_error" => CallErrorCode::DependencyError,
        _ => CallErrorCode::InternalError,
    };
    CallError::new(code, failure.message.clone())
}

/// The folder of the environment whose interpreter is `<build>/bin/python`.
pub(super) fn build_of(python: &Path) -> &Path {
    python.parent().and_then(Path::parent).unwrap_or(python)
}

/// A policy that allows no tool and no principal, for a namespace whose own policy is invalid.
pub(crate) fn nobody() -> ToolPolicy {
    let none = Limits {
        tools_allow: Vec::new(),
        tools_deny: Vec::new(),
        principals: Vec::new(),
        ..Limits::default()
    };
    ToolPolicy::new(&none).expect("empty lists hold no invalid pattern")
}

/// Hash over everything that defines the namespace except secrets. Those are compared directly and never hashed.
pub(crate) fn content_hash(
    files_hash: &[u8; 32],
    limits: &Limits,
    tool_limits: &BTreeMap<String, ToolLimits>,
    toolchain: Option<&str>,
) -> [u8; 32] {
    let mut hash = Sha256::new();
    hash.update(files_hash);
    // The `Debug` form contains every field, so that limits added later are included automatically.
    for part in [
        format!("{limits:?}"),
        format!("{tool_limits:?}"),
        toolchain.unwrap_or_default().to_owned(),
    ] {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hash.finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::Manifest;

    fn source(manifest: &str) -> NamespaceSource {
        NamespaceSource {
            name: "ns".parse().unwrap(),
            dir: "/t/ns".into(),
            has_python: true,
            manifest: Manifest::parse(manifest.as_bytes()).unwrap(),
            program: None,
            requirements: None,
            issues: Vec::new(),
            failure: None,
            files_hash: [1; 32],
            packages_hash: [1; 32],
            files_version: [1; 32],
        }
    }

    fn wanted(manifest: &str, secrets: &[&str]) -> DesiredNamespace {
        let (placeholders, values): (Vec<_>, Vec<_>) =
            secrets.iter().partition(|name| name.starts_with('?'));
        let value = |name: &&str| ((*name).to_owned(), Secret::new("v"));
        let placeholder = |name: &&str| name.trim_start_matches('?').to_owned();
        let secrets = NamespaceSecrets {
            values: values.iter().map(value).collect(),
            placeholders: placeholders.iter().map(placeholder).collect(),
        };
        DesiredNamespace::new(
            source(manifest),
            &NamespacesConfig::default(),
            secrets,
            &|_| None,
            Some("t"),
        )
    }

    #[test]
    fn a_new_limit_is_a_change_that_needs_no_new_process() {
        let (old, new) = (wanted("timeout: 5s", &[]), wanted("timeout: 6s", &[]));
        let served = old.namespace(None, UpstreamKind::Empty, &Declarations::default(), &[]);
        assert!(old.is_same_as(&served));
        assert!(!new.is_same_as(&served));
        assert!(
            new.identity(Some("t"))
                .is_served_by(&old.identity(Some("t")))
        );
    }

    #[test]
    fn more_processes_threads_or_larger_results_need_a_new_process() {
        let old = wanted("", &[]).identity(Some("t"));
        assert!(
            !wanted("sync_concurrency: 4", &[])
                .identity(Some("t"))
                .is_served_by(&old)
        );
        assert!(
            !wanted("processes: 2", &[])
                .identity(Some("t"))
                .is_served_by(&old)
        );
        assert!(
            !wanted("tools: {t: {max_result: 20MiB}}", &[])
                .identity(Some("t"))
                .is_served_by(&old)
        );
        assert!(!wanted("", &[]).identity(Some("u")).is_served_by(&old));
        assert!(
            wanted("", &[]).identity(None).is_served_by(&old),
            "no toolchain: what runs may go on"
        );
    }

    #[test]
    fn the_gate_is_kept_while_its_limits_are() {
        let first =
            wanted("", &[]).namespace(None, UpstreamKind::Empty, &Declarations::default(), &[]);
        let same = wanted("timeout: 5s", &[]).namespace(
            Some(&first),
            UpstreamKind::Empty,
            &Declarations::default(),
            &[],
        );
        assert!(Arc::ptr_eq(&first.gate, &same.gate));
        let other = wanted("max_concurrency: 1", &[]).namespace(
            Some(&first),
            UpstreamKind::Empty,
            &Declarations::default(),
            &[],
        );
        assert!(!Arc::ptr_eq(&first.gate, &other.gate));
    }

    #[test]
    fn secrets_are_missing_asked_for_or_there() {
        assert_eq!(
            wanted("", &[]).secrets_status(),
            SecretsStatus::NoSecretsNeeded
        );
        assert_eq!(
            wanted("secrets: [A, B]", &["A"]).secrets_status(),
            SecretsStatus::Missing
        );
        assert_eq!(
            wanted("secrets: [A, B]", &["A", "B"]).secrets_status(),
            SecretsStatus::Ok
        );
        assert_eq!(
            wanted("secrets: [A, B]", &["A", "?B"]).secrets_status(),
            SecretsStatus::Placeholders
        );
        assert_eq!(
            wanted("secrets: [A, B]", &["?A"]).secrets_status(),
            SecretsStatus::Missing
        );
    }

    #[test]
    fn a_secret_without_a_value_is_an_issue_by_its_name_that_goes_once_it_has_one() {
        let told = |wanted: &DesiredNamespace| -> Vec<_> {
            let issues = wanted.issues.iter();
            issues.map(|it| (it.code, it.subject.clone())).collect()
        };
        let missing = wanted("secrets: [A, B, C]", &["A", "?B"]);
        let subject = |name: &str| format!("tooldock.yaml: secrets.{name}");
        assert_eq!(
            told(&missing),
            [
                (MISSING_SECRET, subject("B")),
                (MISSING_SECRET, subject("C"))
            ]
        );
        let message = |at: usize| &missing.issues[at].message;
        assert!(message(0).contains("is prepared and has no value"));
        assert!(message(1).ends_with("tooldock secrets set --key C --scope ns"));
        let served = missing.namespace(None, UpstreamKind::Empty, &Declarations::default(), &[]);
        assert!(missing.is_same_as(&served));
        let other = wanted("secrets: [A, B, C]", &["A", "?C"]);
        assert!(!other.is_same_as(&served), "of the same status");
        assert_eq!(told(&wanted("secrets: [A]", &["A"])), []);
        assert_eq!(told(&wanted("secrets: [A]\nenv: {A: x}", &[])), []);
    }

    #[test]
    fn an_error_of_a_file_is_told_beside_its_dependencies_that_are_not_read() {
        let issue = |code| Issue {
            code,
            subject: "a.py".into(),
            message: String::new(),
        };
        let mut source = source("");
        source.issues = vec![issue(ignored::NOT_READ)];
        let none = |_: &str| None;
        let config = NamespacesConfig::default();
        let wanted =
            DesiredNamespace::new(source, &config, NamespaceSecrets::default(), &none, None);
        let failed = [issue("import_error")];
        assert_eq!(wanted.with(&failed).len(), 2);
        let served = wanted.namespace(None, UpstreamKind::Empty, &Declarations::default(), &failed);
        assert!(wanted.is_same_as(&served));
    }

    #[test]
    fn a_namespace_whose_files_declare_nothing_says_so() {
        assert_eq!(
            nothing_declared(&Declarations::default()).unwrap().code,
            NO_TOOLS
        );
        let prompt = r#"{"definition":{"name":"p"}}"#;
        let declared = Declarations {
            prompts: vec![serde_json::from_str(prompt).unwrap()],
            ..Declarations::default()
        };
        assert_eq!(nothing_declared(&declared), None);
    }

    #[test]
    fn an_invalid_pattern_fails_the_namespace_and_lets_nobody_in() {
        let wanted = wanted("principals: ['[']", &[]);
        assert_eq!(wanted.failure.as_ref().unwrap().code, "invalid_manifest");
        assert!(!wanted.policy.allows_principal("anyone"));
    }

    #[test]
    fn a_failure_where_nothing_serves_is_the_answer_to_everything() {
        let error = CallError::new(CallErrorCode::DependencyError, "no such package");
        let failed = wanted("", &[]).failed(None, "dependency_error", &error);
        assert!(
            matches!(&failed.upstream, UpstreamKind::Failed(error) if error.message == "no such package")
        );
    }

    #[test]
    fn the_longest_time_limit_bounds_the_drain() {
        let namespace = wanted("tools: {slow: {timeout: 5m}}", &[]).namespace(
            None,
            UpstreamKind::Empty,
            &Declarations::default(),
            &[],
        );
        assert_eq!(
            DesiredNamespace::drain_of(&namespace),
            Duration::from_secs(300)
        );
        let wanted = wanted("ask_timeout: 1m\ntools: {slow: {timeout: 5m}}", &[]);
        assert_eq!(wanted.longest_call(), Duration::from_secs(300));
        // A process that is replaced may run tasks.
        let task = wanted.limits.task_timeout;
        assert_eq!(wanted.drain(), task + Duration::from_secs(60));
    }

    #[test]
    fn a_namespace_with_tasks_drains_as_long_as_a_task_may_run() {
        let with_task = |task: &str| {
            let tool = format!(r#"{{"name":"t","inputSchema":{{}}{task}}}"#);
            let declared = Declarations {
                tools: vec![serde_json::from_str(&tool).unwrap()],
                ..Declarations::default()
            };
            let wanted = wanted("task_timeout: 2h", &[]);
            let namespace = wanted.namespace(None, UpstreamKind::Empty, &declared, &[]);
            DesiredNamespace::drain_of(&namespace)
        };
        assert_eq!(with_task(""), Duration::from_secs(30));
        let hours = Duration::from_secs(2 * 3600);
        assert_eq!(with_task(r#","task":"optional""#), hours);
    }

    #[test]
    fn a_namespace_that_may_ask_drains_as_long_as_a_client_may_take() {
        let asking = |context: bool| {
            let tool = format!(r#"{{"name":"t","inputSchema":{{}},"context":{context}}}"#);
            let declared = Declarations {
                tools: vec![serde_json::from_str(&tool).unwrap()],
                ..Declarations::default()
            };
            wanted("ask_timeout: 1m", &[]).namespace(None, UpstreamKind::Empty, &declared, &[])
        };
        assert_eq!(
            DesiredNamespace::drain_of(&asking(false)),
            Duration::from_secs(30)
        );
        assert_eq!(
            DesiredNamespace::drain_of(&asking(true)),
            Duration::from_secs(90)
        );
    }

    #[test]
    fn the_parking_is_kept_while_its_limit_is() {
        let none = Declarations::default();
        let first = wanted("", &[]).namespace(None, UpstreamKind::Empty, &none, &[]);
        let place = first.parked.enter("ada").unwrap();
        let again = |manifest: &str| {
            wanted(manifest, &[]).namespace(Some(&first), UpstreamKind::Empty, &none, &[])
        };
        assert_eq!(again("max_concurrency: 1").parked.parked(), 1);
        assert_eq!(again("max_parked: 2").parked.parked(), 0);
        drop(place);
    }

    #[test]
    fn what_the_worker_declared_is_published_and_survives_new_limits() {
        let declared = Declarations {
            resources: vec![
                serde_json::from_str(r#"{"definition":{"uri":"a://b"},"context":true}"#).unwrap(),
            ],
            resource_templates: vec![
                serde_json::from_str(r#"{"definition":{"uriTemplate":"a://{b}"}}"#).unwrap(),
            ],
            prompts: vec![serde_json::from_str(r#"{"definition":{"name":"p"}}"#).unwrap()],
            completions: true,
            ..Declarations::default()
        };
        let served = wanted("", &[]).namespace(None, UpstreamKind::Empty, &declared, &[]);
        let (kept, new) = (declared_by(&served), wanted("timeout: 5s", &[]));
        let served = new.namespace(Some(&served), UpstreamKind::Empty, &kept, &[]);
        assert!(served.resource("a://b").is_some() && served.resource("a://c").is_none());
        assert!(served.prompt("p").is_some() && served.prompt("q").is_none());
        assert_eq!(served.resource_templates.len(), 1);
        assert!(served.completions && served.has_context());
    }
}
