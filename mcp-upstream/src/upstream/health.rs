//! How what runs a namespace is: for `/ready`, `/health` and the answers to a reload.

use std::sync::Arc;

use serde::Serialize;
use tooldock_workers::registry::Namespace;

use crate::catalogue::MendReport;

/// A member of an aggregate.
#[derive(Debug)]
pub(crate) struct MemberHealth {
    /// Its prefix, or the namespace that it is.
    pub(crate) name: Arc<str>,
    /// Its namespace, where that is served.
    pub(crate) namespace: Option<Arc<Namespace>>,
    /// Whether clients can reach it otherwise.
    pub(crate) is_served: bool,
    /// Whether it offers anything.
    pub(crate) offer: MemberOffer,
}

/// Whether a member of an aggregate offers anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MemberOffer {
    /// It has not said yet what it offers.
    Awaited,
    /// It did not say so within its time, and may still.
    Late,
    /// It does.
    There,
    /// It does not, for this reason.
    Gone(&'static str),
}

/// How a server is, for `/ready`.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct ServerHealth {
    /// `ready`, `installing`, `starting`, `idle` or `failed`.
    #[serde(skip)]
    pub(crate) state: &'static str,
    /// Why it does not start: the code.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<&'static str>,
    /// Why nothing serves: the sentence of the log, with what the server said last, without secrets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<String>,
    /// What it speaks, once that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) era: Option<&'static str>,
    /// `closed`, `half_open` or `open`.
    pub(crate) breaker: &'static str,
    /// Requests that wait for a process.
    pub(crate) waiting: usize,
    /// The last process that took the place of one that had ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) last_restart: Option<LastRestart>,
    /// Its processes.
    pub(crate) processes: ProcessCounts,
    /// The faults that were mended in the server's lists.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) lists: Vec<MendReport>,
}

/// The last process that took the place of one that had ended unasked.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct LastRestart {
    /// How that one had ended: a word of `tooldock_server_restarts_total`.
    pub(crate) reason: &'static str,
    /// How long ago that was.
    pub(crate) seconds_ago: u64,
}

/// How many processes a server has.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct ProcessCounts {
    /// Taking requests.
    pub(crate) serving: usize,
    /// On their way there.
    pub(crate) starting: usize,
    /// Waiting for the installation of their package.
    pub(crate) installing: usize,
    /// Kept for who comes next.
    pub(crate) spare: usize,
    /// On their way out.
    pub(crate) stopping: usize,
}
