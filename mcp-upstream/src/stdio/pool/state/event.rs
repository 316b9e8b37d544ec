//! Events and actions of a pool's state machine.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tooldock_workers::error::CallError;
use tooldock_workers::remote::BackendId;

use crate::protocol::{Era, EraSupport};
use crate::stdio::pool::key::{ConnectionKey, OpenAs, SlotKey};
use crate::stdio::pool::replay_state::ReplayState;

/// Number of a process within its pool.
pub(in crate::stdio) type ProcessId = u64;
/// Number of a waiting request within its pool.
pub(in crate::stdio) type WaiterId = u64;

/// An event of a pool.
#[derive(Debug)]
pub(in crate::stdio) enum PoolEvent {
    /// The server came into the registry.
    Wanted {
        key: ConnectionKey,
        open: Arc<OpenAs>,
    },
    /// A request needs a process.
    Lease {
        waiter: WaiterId,
        key: ConnectionKey,
        open: Arc<OpenAs>,
    },
    /// A waiting request was dropped by its caller.
    Abandoned { waiter: WaiterId },
    /// A request is done with its process. `reusable`: the process has nothing left to do for it.
    Released { process: ProcessId, reusable: bool },
    /// The package that a process runs from is being installed, or no longer is.
    Installing { process: ProcessId, now: bool },
    /// A spare process runs.
    Spawned { process: ProcessId },
    /// A process takes requests.
    Started {
        process: ProcessId,
        server: EraSupport,
        opened: Era,
    },
    /// A process did not get as far as taking requests.
    StartFailed {
        process: ProcessId,
        failure: ProcessFailure,
    },
    /// The description of the unasked end of a process.
    Explained { why: ProcessFailure },
    /// A process ended, or stopped reading or responding, unasked.
    Lost { process: ProcessId, end: ProcessEnd },
    /// A process is gone entirely.
    Gone { process: ProcessId },
    /// Lasting requests of the former pool.
    Inherit { places: Vec<InheritedSlot> },
    /// A session is over.
    SessionClosed { tag: Arc<str> },
    /// A session listens again.
    SessionReturned { tag: Arc<str> },
    /// The processes whose clients are away, and since when, among those that [`super::PoolStateMachine::to_ask`] named.
    Away { since: Vec<(ProcessId, Instant)> },
    /// A process was opened with credentials that its principal no longer has.
    Outdated { process: ProcessId },
    /// Log messages of a process have been withheld for too long.
    Mute { process: ProcessId },
    /// Backends were removed from the server: those with slots for connections that all clients share, another backend for the
    /// lasting requests there, and all processes that lead to removed backends.
    Removed {
        replicas: Vec<BackendId>,
        instead: Option<BackendId>,
        processes: Vec<ProcessId>,
    },
    /// An operator asked for new processes at once.
    Restart,
    /// A reload: the shared process starts again if it ended for good.
    Revive,
    /// The server is no longer served.
    Retire,
    /// A timer may be due.
    Tick,
}

/// Reason why there is no process, for clients and for operators.
#[derive(Debug, Clone)]
pub(in crate::stdio) struct ProcessFailure {
    /// The error for clients, without the server's standard error.
    pub(in crate::stdio) error: CallError,
    /// The log message for operators, with the server's last output and without secrets.
    pub(in crate::stdio) reason: Arc<str>,
    /// True if another backend or client may succeed: the failure says nothing about the server as a whole.
    pub(in crate::stdio) elsewhere: bool,
}

/// A slot with lasting requests, for the pool that replaces another.
#[derive(Debug)]
pub(in crate::stdio) struct InheritedSlot {
    pub(in crate::stdio) slot: SlotKey,
    pub(in crate::stdio) open: Arc<OpenAs>,
    pub(in crate::stdio) replay_state: Arc<ReplayState>,
    /// True if its process's state is lost with its pool.
    pub(in crate::stdio) lost: bool,
}

/// How a process ended unasked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::stdio) enum ProcessEnd {
    /// With exit code 0.
    Clean,
    /// In any other way.
    Crash,
    /// It stopped responding.
    Unresponsive,
}

/// An action for the driver or a waiter.
#[derive(Debug)]
pub(in crate::stdio) enum PoolAction {
    /// Give the process to the request.
    Grant {
        waiter: WaiterId,
        process: ProcessId,
    },
    /// Tell the request that it gets no process.
    Refuse {
        waiter: WaiterId,
        refusal: LeaseRefusal,
    },
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

/// Order to open a process.
#[derive(Debug, Clone)]
pub(in crate::stdio) struct Order {
    pub(in crate::stdio) slot: SlotKey,
    pub(in crate::stdio) open: Arc<OpenAs>,
    pub(in crate::stdio) replay_state: Arc<ReplayState>,
    /// The server's eras, if known.
    pub(in crate::stdio) server: Option<EraSupport>,
    /// Reason why the former process ended unasked, if this one replaces it.
    pub(in crate::stdio) restart: Option<&'static str>,
}

/// Reason why a request gets no process.
#[derive(Debug, Clone)]
pub(in crate::stdio) enum LeaseRefusal {
    /// No slot became free in time, or too many requests wait.
    Overloaded(PoolLimit),
    /// The server failed too often recently.
    Unavailable { retry_after: Duration },
    /// The process ended, and is not restarted.
    Dead,
    /// The session's state is lost with the former process.
    StateLost,
    /// The process did not start.
    Failed(CallError),
    /// The session that it was for is over.
    SessionClosed,
    /// The server was replaced or the gateway ends.
    Retired,
}

/// The limit that was reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::stdio) enum PoolLimit {
    /// The server has as many processes as it may.
    Processes,
    /// The principal has as many processes as it may.
    Principal,
    /// As many requests wait for processes as may.
    Waiters,
}

impl PoolLimit {
    /// The configuration key of the limit, or a word for a limit without a key.
    pub(in crate::stdio) fn as_str(self) -> &'static str {
        match self {
            Self::Processes => "max_processes",
            Self::Principal => "max_per_principal",
            Self::Waiters => "waiters",
        }
    }
}

/// Reason why a process is ended, for metrics and logs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::stdio) enum StopReason {
    Idle,
    Lifetime,
    SessionClosed,
    Retired,
    /// Another process needs its slot, or does its work.
    Surplus,
    /// Its client is away, and a request waits for a slot.
    GaveWay,
    /// It served a single request.
    Used,
    /// It was opened with credentials that its principal no longer has.
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

impl ProcessEnd {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Clean => "exit",
            Self::Crash => "crash",
            Self::Unresponsive => "unresponsive",
        }
    }
}
