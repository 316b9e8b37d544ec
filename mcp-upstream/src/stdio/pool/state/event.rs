//! What happens to a pool, and what it decides.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tooldock_workers::error::CallError;
use tooldock_workers::remote::BackendId;

use crate::protocol::{Era, EraSupport};
use crate::stdio::pool::key::{ConnectionKey, OpenAs, SlotKey};
use crate::stdio::pool::replay_state::ReplayState;

/// Numbers a process within its pool.
pub(in crate::stdio) type ProcessId = u64;
/// Numbers a waiting request within its pool.
pub(in crate::stdio) type WaiterId = u64;

/// What happened.
#[derive(Debug)]
pub(in crate::stdio) enum Event {
    /// The server came into the registry.
    Wanted {
        key: ConnectionKey,
        open: Arc<OpenAs>,
    },
    /// A request wants a process.
    Lease {
        waiter: WaiterId,
        key: ConnectionKey,
        open: Arc<OpenAs>,
    },
    /// Whoever made the request left.
    Abandoned { waiter: WaiterId },
    /// A request is done with its process. `reusable`: the process owes it nothing more.
    Released { process: ProcessId, reusable: bool },
    /// The package a process is to run from is being installed, or is not any more.
    Installing { process: ProcessId, now: bool },
    /// A spare process runs.
    Spawned { process: ProcessId },
    /// A process takes requests.
    Started {
        process: ProcessId,
        server: EraSupport,
        opened: Era,
    },
    /// A process did not come so far.
    StartFailed {
        process: ProcessId,
        failure: Failure,
    },
    /// What there is to say of a process that ended unasked.
    Explained { why: Failure },
    /// A process ended, or stopped to listen or to speak, unasked.
    Lost { process: ProcessId, end: End },
    /// Nothing of a process is left.
    Gone { process: ProcessId },
    /// What lasted in a place of the pool before this one.
    Inherit { places: Vec<Place> },
    /// A session is over.
    SessionClosed { tag: Arc<str> },
    /// A session listens again.
    SessionReturned { tag: Arc<str> },
    /// Whose clients are away, and since when: of those that [`super::State::to_ask`] named.
    Away { since: Vec<(ProcessId, Instant)> },
    /// A process was opened with credentials that its principal does not have any more.
    Outdated { process: ProcessId },
    /// Log messages of a process have been withheld for too long.
    Mute { process: ProcessId },
    /// Backends are not the server's any more: those with places for what everybody shares, another one for what lasts in
    /// these, and all processes that lead to them.
    Removed {
        replicas: Vec<BackendId>,
        instead: Option<BackendId>,
        processes: Vec<ProcessId>,
    },
    /// An operator wants new processes, at once.
    Restart,
    /// A reload: the process that all share starts where it ended for good.
    Revive,
    /// Nobody wants the server any more.
    Retire,
    /// Time has passed.
    Tick,
}

/// Why there is no process: for those who asked for it, and for those who operate the gateway.
#[derive(Debug, Clone)]
pub(in crate::stdio) struct Failure {
    /// What clients are told. Nothing in it is the server's own standard error.
    pub(in crate::stdio) error: CallError,
    /// The sentence of the log, with what the server said last. Without secrets.
    pub(in crate::stdio) reason: Arc<str>,
    /// Another backend, or another client, may fare better: it says nothing about the server as a whole.
    pub(in crate::stdio) elsewhere: bool,
}

/// A place in which something lasts, for the pool that takes another's place.
#[derive(Debug)]
pub(in crate::stdio) struct Place {
    pub(in crate::stdio) slot: SlotKey,
    pub(in crate::stdio) open: Arc<OpenAs>,
    pub(in crate::stdio) replay_state: Arc<ReplayState>,
    /// What its process knew is lost with the pool that had it.
    pub(in crate::stdio) lost: bool,
}

/// How a process ended unasked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::stdio) enum End {
    /// With exit code 0.
    Clean,
    /// Any other way.
    Crash,
    /// It answered nothing any more.
    Unresponsive,
}

/// What to do now.
#[derive(Debug)]
pub(in crate::stdio) enum Action {
    /// Give the process to the request.
    Grant {
        waiter: WaiterId,
        process: ProcessId,
    },
    /// Tell the request that it gets none.
    Refuse { waiter: WaiterId, refusal: Refusal },
    /// Start a process that waits to be adopted.
    Spare { process: ProcessId },
    /// Start a process and open it.
    Start { process: ProcessId, order: Order },
    /// Open a spare.
    Adopt { process: ProcessId, order: Order },
    /// End a process.
    Stop {
        process: ProcessId,
        reason: StopReason,
    },
}

/// How a process is to be opened.
#[derive(Debug, Clone)]
pub(in crate::stdio) struct Order {
    pub(in crate::stdio) slot: SlotKey,
    pub(in crate::stdio) open: Arc<OpenAs>,
    pub(in crate::stdio) replay_state: Arc<ReplayState>,
    /// What the server speaks, where that is known.
    pub(in crate::stdio) server: Option<EraSupport>,
    /// Why the process before it ended unasked, if this one takes its place.
    pub(in crate::stdio) restart: Option<&'static str>,
}

/// Why a request gets no process.
#[derive(Debug, Clone)]
pub(in crate::stdio) enum Refusal {
    /// No place came free in time, or too many wait.
    Overloaded(Full),
    /// The server failed too often lately.
    Unavailable { retry_after: Duration },
    /// It ended, and is not to be restarted.
    Dead,
    /// What it knew is lost with the one before.
    StateLost,
    /// It did not start.
    Failed(CallError),
    /// The session it was for is over.
    SessionClosed,
    /// The server was replaced or the gateway ends.
    Retired,
}

/// What there is no more of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::stdio) enum Full {
    /// The server has as many processes as it may.
    Processes,
    /// The principal has.
    Principal,
    /// So many requests wait for processes.
    Waiters,
}

impl Full {
    /// The key that sets it, or a word for what none does.
    pub(in crate::stdio) fn as_str(self) -> &'static str {
        match self {
            Self::Processes => "max_processes",
            Self::Principal => "max_per_principal",
            Self::Waiters => "waiters",
        }
    }
}

/// Why a process is ended, for metrics and logs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::stdio) enum StopReason {
    Idle,
    Lifetime,
    SessionClosed,
    Retired,
    /// Another one needs its place, or does its work.
    Surplus,
    /// Its client is away, and somebody else waits for a place.
    GaveWay,
    /// It was one request's alone.
    Used,
    /// It was opened with credentials that its principal does not have any more.
    Outdated,
    /// The process withheld log messages for too long.
    Mute,
    /// Its backend is not configured any more.
    Removed,
    /// An operator asked for a restart.
    Restarted,
}

impl StopReason {
    pub(in crate::stdio) fn as_str(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Lifetime => "lifetime",
            Self::SessionClosed => "session_closed",
            Self::Retired => "retired",
            Self::Surplus => "surplus",
            Self::GaveWay => "gave_way",
            Self::Used => "used",
            Self::Outdated => "outdated",
            Self::Mute => "mute",
            Self::Removed => "removed",
            Self::Restarted => "restarted",
        }
    }
}

impl End {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Clean => "exit",
            Self::Crash => "crash",
            Self::Unresponsive => "unresponsive",
        }
    }
}
