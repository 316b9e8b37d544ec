//! State of upstreams, for `/ready`, `/health` and responses to a reload.

use std::sync::Arc;

use serde::Serialize;
use tooldock_protocol::version::EraSupport;
use tooldock_servers::launch::ServerRef;
use tooldock_servers::pool::Pools;
use tooldock_sessions::catalogue::MendReport;
use tooldock_workers::registry::Namespace;

/// A member of an aggregate, for `/ready`.
#[derive(Debug)]
pub struct MemberHealth {
    /// The prefix of the member, or the name of its namespace.
    pub name: Arc<str>,
    /// Namespace of the member, if the namespace is served.
    pub namespace: Option<Arc<Namespace>>,
    /// True if clients can also reach the member directly; false if they reach it only through the aggregate.
    pub is_served: bool,
    /// State of the member's offer, that is, of its tools, resources and prompts.
    pub offer: MemberOffer,
}

/// State of a member's offer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemberOffer {
    /// The offer has not been read yet.
    Awaited,
    /// The offer was not read within its time limit. The reading continues.
    Late,
    /// The member has an offer.
    There,
    /// The member has no offer, for the given reason.
    Gone(&'static str),
}

/// State of a server, for `/ready` and metrics.
#[derive(Debug, Clone, Serialize)]
pub struct ServerHealth {
    /// The state: `ready`, `installing`, `starting`, `idle` or `failed`.
    #[serde(skip)]
    pub state: &'static str,
    /// Stable code of the error that prevents the server's start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<&'static str>,
    /// Reason why the server has no running process: the log message, with the server's last output and without secrets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The eras that the server supports, once known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) era: Option<&'static str>,
    /// State of the circuit breaker, which stops starts after failures: `closed`, `half_open` or `open`. `None` for a remote
    /// server, whose failing backends are excluded one by one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) breaker: Option<&'static str>,
    /// Number of requests that wait for a process.
    pub(crate) waiting: usize,
    /// The most recent restart of a process that had ended unexpectedly.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) last_restart: Option<LastRestart>,
    /// Number of processes by state.
    pub(crate) processes: ProcessCounts,
    /// Faults that the gateway corrected in the server's lists.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) lists: Vec<MendReport>,
}

impl ServerHealth {
    /// State of a server; `None` if it has no pool.
    pub(crate) fn of(pools: &Pools, server: ServerRef<'_>) -> Option<Self> {
        let state = pools.state(server.name())?;
        let counts = state.processes;
        let catalogue = pools.catalogue(server).ok();
        Some(Self {
            state: state.as_str(),
            error: state.error.as_ref().map(|error| error.code.as_str()),
            reason: state.reason.map(|reason| reason.to_string()),
            era: state.server.map(|era| match era {
                EraSupport::Legacy => "legacy",
                EraSupport::Modern | EraSupport::ModernAtLeast => "modern",
                EraSupport::Dual => "dual",
            }),
            breaker: matches!(server, ServerRef::Process(_)).then(|| state.breaker.as_str()),
            waiting: state.waiting,
            last_restart: state.last_restart.map(|(reason, ago)| LastRestart {
                reason,
                seconds_ago: ago.as_secs(),
            }),
            processes: ProcessCounts {
                serving: counts.serving,
                starting: counts.starting,
                installing: counts.installing,
                spare: counts.spare,
                stopping: counts.stopping,
            },
            lists: catalogue.map_or_else(Vec::new, |it| it.lists().reports()),
        })
    }
}

/// The most recent restart of a process that had ended unexpectedly.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct LastRestart {
    /// How the former process had ended: a value of the label `reason` of `tooldock_server_restarts_total`.
    pub(crate) reason: &'static str,
    /// Seconds since the new process was started.
    pub(crate) seconds_ago: u64,
}

/// Number of a server's processes by state.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct ProcessCounts {
    /// Number of processes that accept requests.
    pub(crate) serving: usize,
    /// Number of processes that are starting.
    pub(crate) starting: usize,
    /// Number of processes that wait for the installation of their package.
    pub(crate) installing: usize,
    /// Number of processes that wait to be opened, or to be leased again.
    pub(crate) spare: usize,
    /// Number of processes that are ending.
    pub(crate) stopping: usize,
}
