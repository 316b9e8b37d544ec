//! `/health` and `/ready`, which need no credentials: an anonymous caller gets the status, without details of the namespaces.
//!
//! A caller with a token gets details of the namespaces that the token opens. The manager, and all callers on a listener with
//! `open_probes`, get all details, except when a web page of an unknown host name or origin could read the response. Details are
//! the names of namespaces and files, and error codes. Texts from tool code or an installer are only in the log and in the
//! response to `/reload`, except for the reason why an external server does not start.

use std::collections::BTreeMap;
use std::sync::Arc;

use http::StatusCode;
use serde::Serialize;
use serde_json::json;
use tooldock_base::error::CallErrorCode;
use tooldock_base::names::NamespaceName;
use tooldock_base::worker_state::WorkerState;
use tooldock_engine::upstream::health::ServerHealth;
use tooldock_process::sandbox::SandboxState;
use tooldock_servers::http::port::BackendState;
use tooldock_sessions::caller::{Caller, Visibility};
use tooldock_workers::pins::PinCounts;
use tooldock_workers::registry::{Namespace, Snapshot, UpstreamKind};

use super::condition::{CRASH_LOOP, Condition, MemberCondition};
use super::pins;
use crate::mcp::Core;
use crate::reply::Reply;

/// Codes of issues whose texts the gateway itself wrote, so that they can be shown: a clamped limit, a wrong key of an external
/// server, the reason why a namespace was reloaded automatically, ignored files.
const OWN_TEXT: [&str; 14] = [
    "secret_of_another",
    "name_collision",
    "limit_clamped",
    "missing_variable",
    "invalid_config",
    "files_changed",
    "functions_changed",
    "missing_secret",
    "empty_namespace",
    "no_tools",
    "dependencies_not_read",
    "server_file",
    "unknown_key",
    "folder_too_large",
];

#[derive(Serialize)]
struct Failing<'a> {
    name: &'a str,
    code: &'static str,
}

#[derive(Serialize)]
struct Detail<'a> {
    name: &'a str,
    state: &'static str,
    /// Code of the error that makes the namespace unavailable; `None` if it is available.
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<&'static str>,
    /// The health of the namespace's external server; `None` for other namespaces.
    #[serde(skip_serializing_if = "Option::is_none")]
    server: Option<ServerHealth>,
    /// The backends of the namespace's remote server; empty for other namespaces.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    backends: Vec<BackendDetail>,
    /// The members of the aggregate; empty for other namespaces.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    members: Vec<MemberCondition>,
    /// Number of worker processes in each state; `None` for a namespace with a single process.
    #[serde(skip_serializing_if = "Option::is_none")]
    processes: Option<BTreeMap<&'static str, usize>>,
    /// The sandbox of the namespace's processes; `None` if it has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    sandbox: Option<SandboxState>,
    /// Counts of the server's pinned definitions that wait for an operator's decision.
    #[serde(skip_serializing_if = "Option::is_none")]
    pins: Option<PinCounts>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    issues: Vec<Issue<'a>>,
}

/// A backend of a remote server, as `/ready` shows it.
#[derive(Serialize)]
struct BackendDetail {
    backend: String,
    healthy: bool,
    draining: bool,
    backup: bool,
    in_flight: usize,
    /// The reason why the backend is not healthy; `None` if it is healthy.
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<String>,
}

#[derive(Serialize)]
struct Issue<'a> {
    code: &'static str,
    subject: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<&'a str>,
}

/// Amount of detail that a caller gets from `/health` and `/ready`.
#[derive(Clone, Copy)]
enum HealthDetail<'a> {
    /// Only the status of the process is shown.
    Status,
    /// The details of the namespaces that this caller may use are shown.
    Own(&'a Caller),
    /// The details of all namespaces are shown.
    All,
}

impl<'a> HealthDetail<'a> {
    fn to(caller: &'a Caller) -> Self {
        if caller.status_only {
            Self::Status
        } else if caller.manager || caller.profile.open_probes {
            Self::All
        } else if caller.principal.is_some() {
            Self::Own(caller)
        } else {
            Self::Status
        }
    }

    /// Returns true if the caller may be told that a configured namespace is not served. Its token must give access to that name.
    fn has_unserved(self, name: &NamespaceName) -> bool {
        let Self::Own(caller) = self else {
            return matches!(self, Self::All);
        };
        let served = caller.profile.namespace.as_ref();
        let opened = match &caller.visibility {
            Visibility::All => true,
            Visibility::Only(opens) => opens(name),
        };
        opened && served.is_none_or(|served| served == name)
    }

    /// Returns true if the caller may see the condition of an aggregate's member: it must be allowed to use the member.
    fn has_member(self, member: &MemberCondition) -> bool {
        match (self, &member.served) {
            (Self::Own(caller), Some(served)) => caller.may_use(served),
            _ => true,
        }
    }

    /// Returns the namespaces to report; `None` if even their number must not be shown.
    fn of(self, snapshot: &Snapshot) -> Option<Vec<&Arc<Namespace>>> {
        let all = snapshot.namespaces.values();
        match self {
            Self::Status => None,
            Self::Own(caller) => Some(all.filter(|it| caller.may_use(it)).collect()),
            Self::All => Some(all.collect()),
        }
    }
}

/// Answers `/health`: the process is up (EX-131). The state of its namespaces does not matter, and a draining process is up, too.
pub(crate) fn health(core: &Core, caller: &Caller) -> Reply {
    let snapshot = core.registry.snapshot();
    let healthy = caller.profile.rest_shape.healthy();
    let Some(namespaces) = HealthDetail::to(caller).of(&snapshot) else {
        return super::json(&json!({ "status": healthy }));
    };
    super::json(&json!({
        "status": healthy,
        "version": env!("CARGO_PKG_VERSION"),
        "namespaces": namespaces.len(),
        "tools": tools(core, caller, &namespaces),
        "uptime_seconds": core.health.uptime_seconds(),
        "failing": failing(core, &namespaces),
    }))
}

/// Answers `/ready`: the process is ready once the first scan is done, unless it is draining. A failed namespace does not make
/// the process unready.
pub(crate) fn ready(core: &Core, caller: &Caller) -> Reply {
    let told = HealthDetail::to(caller);
    // The starting namespaces are read before the snapshot, so that a namespace published in between is not missed. They are
    // not read for anonymous callers, since reading them accesses the disk.
    let coming = match told {
        HealthDetail::Status => Vec::new(),
        HealthDetail::Own(_) | HealthDetail::All => core.registry.awaited(),
    };
    let snapshot = core.registry.snapshot();
    let (status, word) = if core.health.is_ready() && core.registry.startup().is_scanned() {
        (StatusCode::OK, "ready")
    } else if core.health.is_draining() {
        (StatusCode::SERVICE_UNAVAILABLE, "draining")
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "starting")
    };
    let body = match told.of(&snapshot) {
        None => json!({ "status": word }),
        Some(namespaces) => {
            let coming = coming.iter();
            let coming = coming
                .filter(|&name| !snapshot.namespaces.contains_key(name) && told.has_unserved(name));
            let served = namespaces.iter().map(|it| detail(core, it, told));
            let namespaces: Vec<_> = served.chain(coming.map(starting)).collect();
            let mut body = json!({ "status": word, "namespaces": namespaces });
            let unrecorded = core.sessions.unrecorded();
            if let Some(replication) = core.sessions.replicas().state() {
                body["replicas"] = json!(replication);
            }
            if let Some(problem) = core.registry.pins().and_then(|it| it.problem()) {
                let message = matches!(told, HealthDetail::All).then_some(problem);
                body["pins"] = json!({ "state": "failed", "message": message });
            }
            if unrecorded > 0 {
                body["session_store"] = json!({ "state": "failed", "unrecorded": unrecorded });
            }
            let unserved = core.registry.unserved();
            let unserved = unserved.iter();
            let unserved = unserved.filter(|(name, _)| told.has_unserved(name));
            let unserved = unserved.map(|(name, issue)| {
                json!({
                    "namespace": name,
                    "code": issue.code,
                    "subject": issue.subject,
                    "message": issue.message,
                })
            });
            let all = matches!(told, HealthDetail::All);
            let ignored = core.registry.ignored();
            let ignored = ignored.iter().filter(|_| all).map(|(name, issue)| {
                json!({
                    "namespace": name,
                    "code": issue.code,
                    "subject": issue.subject,
                    "message": issue.message,
                })
            });
            let unserved: Vec<_> = unserved.chain(ignored).collect();
            if !unserved.is_empty() {
                body["unserved"] = unserved.into();
            }
            if let Some(problem) = core.registry.problem() {
                body["problem"] = json!(Issue {
                    code: problem.code,
                    subject: &problem.subject,
                    message: all.then_some(&*problem.message),
                });
            }
            body
        }
    };
    Reply::json(status, body.to_string())
}

fn tools(core: &Core, caller: &Caller, namespaces: &[&Arc<Namespace>]) -> usize {
    let counts = namespaces.iter();
    counts.map(|it| super::tool_count(core, caller, it)).sum()
}

fn failing<'a>(core: &Core, namespaces: &[&'a Arc<Namespace>]) -> Vec<Failing<'a>> {
    let failing = namespaces.iter().filter_map(|namespace| {
        Some(Failing {
            name: namespace.name.as_str(),
            code: failure_of(core, namespace)?,
        })
    });
    failing.collect()
}

/// Returns the code of the error that makes a namespace unavailable.
fn failure_of(core: &Core, namespace: &Namespace) -> Option<&'static str> {
    if namespace.worker_state() == Some(CRASH_LOOP) {
        return Some(CRASH_LOOP.as_str());
    }
    match &namespace.upstream {
        UpstreamKind::Failed(_) if core.registry.startup().is_retried(&namespace.name) => None,
        UpstreamKind::Failed(error) => Some(error.code.as_str()),
        UpstreamKind::Worker(worker) => match worker.state() {
            WorkerState::Ready
            | WorkerState::Degraded
            | WorkerState::Starting
            | WorkerState::Idle => None,
            _ => Some(CallErrorCode::WorkerUnavailable.as_str()),
        },
        UpstreamKind::External(_) | UpstreamKind::Remote(_) | UpstreamKind::Aggregate(_) => {
            let failing = Condition::of(core, namespace).failing;
            failing.map(|(code, _)| code)
        }
        UpstreamKind::Empty | UpstreamKind::System => None,
    }
}

/// Returns the number of a namespace's worker processes in each state; `None` if it has a single process.
fn processes(namespace: &Namespace) -> Option<BTreeMap<&'static str, usize>> {
    let UpstreamKind::Worker(worker) = &namespace.upstream else {
        return None;
    };
    let mut states = BTreeMap::new();
    for state in worker.states() {
        *states.entry(state.as_str()).or_insert(0) += 1;
    }
    (worker.spec().processes > 1).then_some(states)
}

impl From<BackendState> for BackendDetail {
    fn from(state: BackendState) -> Self {
        Self {
            backend: state.id.to_string(),
            healthy: state.healthy,
            draining: state.draining,
            backup: state.backup,
            in_flight: state.in_flight,
            problem: state.problem,
        }
    }
}

fn detail<'a>(core: &Core, namespace: &'a Namespace, told: HealthDetail<'_>) -> Detail<'a> {
    let condition = Condition::of(core, namespace);
    let backends = condition.backends.into_iter();
    let members = condition.members.into_iter();
    Detail {
        name: namespace.name.as_str(),
        state: condition.state,
        code: condition.failing.map(|(code, _)| code),
        server: condition.server,
        backends: backends.map(BackendDetail::from).collect(),
        members: members.filter(|it| told.has_member(it)).collect(),
        processes: processes(namespace),
        sandbox: core.registry.sandbox_of(namespace),
        pins: pins::of(core, namespace).filter(|it| !it.is_settled()),
        issues: namespace
            .issues
            .iter()
            .map(|issue| Issue {
                code: issue.code,
                subject: &issue.subject,
                message: OWN_TEXT.contains(&issue.code).then_some(&*issue.message),
            })
            .collect(),
    }
}

/// Returns the entry of a namespace that is still starting.
fn starting(name: &NamespaceName) -> Detail<'_> {
    Detail {
        name: name.as_str(),
        state: "starting",
        code: None,
        server: None,
        backends: Vec::new(),
        members: Vec::new(),
        processes: None,
        sandbox: None,
        pins: None,
        issues: Vec::new(),
    }
}
