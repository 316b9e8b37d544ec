//! The condition of a namespace: a state, and the reason if the namespace cannot be used in whole or in part. `/ready`,
//! `/health`, the metrics, `explain` and the web UI all show this condition.
//!
//! | namespace | `degraded` | `failed` |
//! |---|---|---|
//! | Python tools | the worker is degraded, or a file was not loaded | it could not be started |
//! | a stdio server | | the server does not start, or has ended for good |
//! | a remote server | one of its backends does not answer | no backend answers, or the server cannot be used |
//! | an aggregate | one of its members is down | all members are down |

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::Serialize;
use tooldock_base::error::CallErrorCode;
use tooldock_base::worker_state::WorkerState;
use tooldock_engine::metrics::MemberState;
use tooldock_engine::upstream::health::{MemberOffer, ServerHealth};
use tooldock_servers::http::port::BackendState;
use tooldock_workers::pins::PinState;
use tooldock_workers::registry::{Namespace, UpstreamKind};

use crate::mcp::Core;

/// Maximum depth to which the conditions of nested namespaces are read: the allowed depth of aggregates, and one level for the
/// servers in the innermost aggregate.
const DEPTH_MAX: usize = tooldock_workers::aggregate::DEPTH_MAX + 1;

/// State of a worker that crashes again and again, even if it never answered a call (WRK-16).
pub(crate) const CRASH_LOOP: WorkerState = WorkerState::Backoff { crash_loop: true };

/// The reason shown for an aggregate's member that did not start in time.
const LATE: &str = "it did not answer within its connect_timeout; it is used once it answers";

/// States in which no tool of a namespace can be called.
const DOWN: [&str; 5] = ["failed", "crash_loop", "backoff", "stopped", "stopping"];

/// The condition of a namespace: its state, and the reasons why it cannot be used.
#[derive(Debug)]
pub(crate) struct Condition {
    /// The namespace's state: `ready`, `idle`, `starting`, `installing`, `degraded`, `failed`, `empty`, or the state of its
    /// worker.
    pub(crate) state: &'static str,
    /// The reason why no tool of the namespace can be called: an error code and a sentence. `None` if tools can be called.
    pub(crate) failing: Option<(&'static str, String)>,
    /// The health of the namespace's MCP server; `None` for other namespaces.
    pub(crate) server: Option<ServerHealth>,
    /// The backends of a remote server with their last known state. No request is sent to find it.
    pub(crate) backends: Vec<BackendState>,
    /// The members of an aggregate, in the order of its configuration file.
    pub(crate) members: Vec<MemberCondition>,
    /// The Python files of the namespace that were not loaded, each with the code of the reason.
    unloaded: Vec<(String, &'static str)>,
}

/// The condition of a member of an aggregate.
#[derive(Debug, Serialize)]
pub(crate) struct MemberCondition {
    /// The member's prefix in the aggregate, or the name of its namespace.
    pub(crate) name: Arc<str>,
    /// The member's state: `ready`, `starting`, `installing`, `degraded` or `failed`.
    pub(crate) state: &'static str,
    /// The reason why the member cannot be used; `None` if it can.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<String>,
    /// The member's namespace, if clients can also reach it directly; `None` otherwise.
    #[serde(skip)]
    pub(crate) served: Option<Arc<Namespace>>,
}

impl Condition {
    /// Returns the current condition of a namespace.
    pub(crate) fn of(core: &Core, namespace: &Namespace) -> Self {
        Self::at(core, namespace, DEPTH_MAX)
    }

    fn at(core: &Core, namespace: &Namespace, depth: usize) -> Self {
        let mut condition = Self {
            state: "empty",
            failing: None,
            server: None,
            backends: Vec::new(),
            members: Vec::new(),
            unloaded: Vec::new(),
        };
        match &namespace.upstream {
            UpstreamKind::Empty | UpstreamKind::System => {}
            UpstreamKind::Failed(error) => {
                condition.state = match namespace.worker_state() {
                    Some(CRASH_LOOP) => CRASH_LOOP.as_str(),
                    _ if core.registry.startup().is_retried(&namespace.name) => "starting",
                    _ => "failed",
                };
                condition.failing = Some((error.code.as_str(), error.message.clone()));
            }
            UpstreamKind::Worker(worker) => condition.of_worker(worker.state(), namespace),
            UpstreamKind::External(_) | UpstreamKind::Remote(_) => {
                condition.of_server(core, namespace);
            }
            UpstreamKind::Aggregate(_) => condition.of_members(core, namespace, depth),
        }
        condition
    }

    fn of_worker(&mut self, worker: WorkerState, namespace: &Namespace) {
        let issues = namespace.issues.iter();
        let unloaded = issues.filter(|issue| issue.is_about_unloaded_file());
        self.unloaded = unloaded
            .map(|issue| (issue.subject.clone(), issue.code))
            .collect();
        self.state = match worker {
            WorkerState::Ready if !self.unloaded.is_empty() => "degraded",
            state => state.as_str(),
        };
    }

    fn of_server(&mut self, core: &Core, namespace: &Namespace) {
        self.server = core.upstreams.of(namespace).operations().health(namespace);
        self.state = self.server.as_ref().map_or("idle", |server| server.state);
        if let (UpstreamKind::Remote(server), Some(client)) =
            (&namespace.upstream, &core.http_client)
        {
            self.backends = client.backends(server).states();
        }
        let mut used = self.backends.iter().filter(|it| !it.draining).peekable();
        let has_backends = used.peek().is_some();
        let down: Vec<_> = used.filter(|it| !it.healthy).collect();
        let left = self.backends.iter().any(|it| !it.draining && it.healthy);
        if has_backends && !left {
            self.state = "failed";
        } else if !down.is_empty() && !DOWN.contains(&self.state) {
            self.state = "degraded";
        }
        if self.state == "failed" {
            let unavailable = CallErrorCode::WorkerUnavailable.as_str();
            let server = self.server.as_ref();
            let reason = server.and_then(|server| server.reason.clone());
            let reason = reason.or_else(|| {
                let down = down.iter().filter(|_| !left);
                let down = down.map(|it| match &it.problem {
                    // Some reasons already begin with the backend's name.
                    Some(problem) if problem.starts_with(&it.id.to_string()) => problem.clone(),
                    Some(problem) => format!("{}: {problem}", it.id),
                    None => it.id.to_string(),
                });
                let down: Vec<_> = down.collect();
                (!down.is_empty()).then(|| format!("no backend answers ({})", down.join("; ")))
            });
            self.failing = Some((
                server.and_then(|it| it.error).unwrap_or(unavailable),
                reason.unwrap_or_else(|| "its server ended and is not started now".to_owned()),
            ));
        }
    }

    fn of_members(&mut self, core: &Core, namespace: &Namespace, depth: usize) {
        let members = core.upstreams.of(namespace).operations().members(namespace);
        let members = members.into_iter().map(|member| {
            // The depth of nested aggregates is checked when their files are read. A reload since then may have made it larger.
            let own = member.namespace.as_ref().filter(|_| depth > 0);
            let own = own.map(|own| Self::at(core, own, depth - 1));
            let reason = own
                .as_ref()
                .and_then(|it| Some(it.failing.as_ref()?.1.clone()));
            let state = own.map_or("ready", |it| it.state);
            let (state, reason) = match member.offer {
                MemberOffer::Gone(told) => ("failed", Some(reason.unwrap_or(told.to_owned()))),
                _ if DOWN.contains(&state) => ("failed", reason),
                MemberOffer::Awaited | MemberOffer::Late if state == "installing" => (state, None),
                MemberOffer::Awaited => ("starting", None),
                MemberOffer::Late => ("failed", Some(LATE.to_owned())),
                MemberOffer::There if state == "degraded" => (state, reason),
                MemberOffer::There => ("ready", None),
            };
            MemberCondition {
                name: member.name,
                state,
                reason,
                served: member.namespace.filter(|_| member.is_served),
            }
        });
        self.members = members.collect();
        let is_any = |wanted: &[&str]| self.members.iter().any(|it| wanted.contains(&it.state));
        let all_failed = self.members.iter().all(|it| it.state == "failed");
        self.state = if all_failed && !self.members.is_empty() {
            // The message names no members, since a client of the aggregate may not be allowed to see all of them.
            let message = "none of its members serves".to_owned();
            self.failing = Some((CallErrorCode::WorkerUnavailable.as_str(), message));
            "failed"
        } else if is_any(&["failed", "degraded"]) {
            "degraded"
        } else if !self.members.is_empty() && !is_any(&["ready"]) {
            "starting"
        } else {
            "ready"
        };
    }

    /// Returns the reason why the namespace cannot be used, in whole or in part, in one line; `None` if there is none.
    pub(crate) fn problem(&self) -> Option<String> {
        if let Some((_, reason)) = &self.failing
            && self.members.is_empty()
        {
            return Some(reason.clone());
        }
        let members = self.members.iter();
        let members = members.filter(|it| matches!(it.state, "failed" | "degraded"));
        let members = members.map(|it| match &it.reason {
            Some(reason) => format!("member {} is {}: {reason}", it.name, it.state),
            None => format!("member {} is {}", it.name, it.state),
        });
        let backends = self.backends.iter();
        let backends = backends.filter(|it| !it.draining && !it.healthy);
        let backends = backends.map(|it| match &it.problem {
            Some(problem) => format!("backend {} does not answer: {problem}", it.id),
            None => format!("backend {} does not answer", it.id),
        });
        let unloaded = self.unloaded.iter();
        let unloaded = unloaded.map(|(file, code)| format!("{file} was not loaded ({code})"));
        let all: Vec<_> = members.chain(backends).chain(unloaded).collect();
        (!all.is_empty()).then(|| all.join("; "))
    }
}

/// Updates the gauges: namespaces by state, members of aggregates by state, pinned definitions, and the number of tools.
pub(crate) fn show(core: &Core) {
    let awaited = core.registry.awaited();
    let snapshot = core.registry.snapshot();
    let (mut states, mut members) = (BTreeMap::new(), BTreeSet::new());
    let mut pinned = BTreeMap::new();
    let mut tools = 0;
    for namespace in snapshot.namespaces.values() {
        let known = core
            .upstreams
            .of(namespace)
            .tool_lists()
            .tools_known(namespace);
        tools += known.map_or(0, |list| list.entries().len());
        if let Some(pins) = super::pins::of(core, namespace) {
            for state in PinState::ALL {
                let count = pins.states.get(&state).copied().unwrap_or_default();
                let count = i64::try_from(count).unwrap_or(i64::MAX);
                pinned.insert((namespace.name.clone(), state.as_str()), count);
            }
        }
        let condition = Condition::of(core, namespace);
        *states.entry(condition.state).or_insert(0) += 1;
        members.extend(condition.members.into_iter().map(|member| MemberState {
            namespace: namespace.name.clone(),
            member: member.name,
            state: member.state,
        }));
    }
    let awaited = awaited.iter();
    let awaited = awaited.filter(|&it| !snapshot.namespaces.contains_key(it));
    *states.entry("starting").or_insert(0) += i64::try_from(awaited.count()).unwrap_or(i64::MAX);
    core.metrics.show_conditions(&states, members);
    let problem = core.registry.pins().and_then(|it| it.problem());
    core.metrics.show_pins(pinned, problem.is_some());
    core.metrics
        .tools
        .set(i64::try_from(tools).unwrap_or(i64::MAX));
}
