//! State of upstreams, for `/ready`, `/health` and responses to a reload.

use std::sync::Arc;

use serde::Serialize;
use tooldock_workers::registry::Namespace;

use crate::catalogue::MendReport;

/// A member of an aggregate.
#[derive(Debug)]
pub(crate) struct MemberHealth {
    /// The prefix of the member, or the name of its namespace.
    pub(crate) name: Arc<str>,
    /// Namespace of the member, if that is served.
    pub(crate) namespace: Option<Arc<Namespace>>,
    /// True if clients can reach it otherwise.
    pub(crate) is_served: bool,
    /// State of its offer.
    pub(crate) offer: MemberOffer,
}

/// State of a member's offer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MemberOffer {
    /// The offer has not been read yet.
    Awaited,
    /// The offer was not read within its time limit, and may still be.
    Late,
    /// The member has an offer.
    There,
    /// The member has no offer, for this reason.
    Gone(&'static str),
}

/// State of a server, for `/ready`.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct ServerHealth {
    /// `ready`, `installing`, `starting`, `idle` or `failed`.
    #[serde(skip)]
    pub(crate) state: &'static str,
    /// The code of the error that keeps it from starting.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<&'static str>,
    /// Reason why no process serves: the log message, with the server's last output and without secrets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<String>,
    /// The eras that it speaks, once known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) era: Option<&'static str>,
    /// `closed`, `half_open` or `open`. `None` for a remote server, whose backends are left out one by one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) breaker: Option<&'static str>,
    /// Requests that wait for a process.
    pub(crate) waiting: usize,
    /// The last process that replaced one that had ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) last_restart: Option<LastRestart>,
    /// Numbers of the processes.
    pub(crate) processes: ProcessCounts,
    /// The faults that were mended in the server's lists.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) lists: Vec<MendReport>,
}

/// The last process that replaced one that had ended unasked.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct LastRestart {
    /// How the former process had ended: a label value of `tooldock_server_restarts_total`.
    pub(crate) reason: &'static str,
    /// Seconds since the replacement.
    pub(crate) seconds_ago: u64,
}

/// Numbers of a server's processes.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct ProcessCounts {
    /// Processes that take requests.
    pub(crate) serving: usize,
    /// Processes that are starting.
    pub(crate) starting: usize,
    /// Processes that wait for the installation of their package.
    pub(crate) installing: usize,
    /// Processes kept for the next request.
    pub(crate) spare: usize,
    /// Processes that are ending.
    pub(crate) stopping: usize,
}
