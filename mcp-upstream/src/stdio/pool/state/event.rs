//! Events and actions of a pool's state machine.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tooldock_base::error::CallError;
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
    /// The server was added to the registry.
    Wanted {
        key: ConnectionKey,
        open: Arc<OpenAs>,
    },
    /// A request needs a process for this key.
    Lease {
        waiter: WaiterId,
        key: ConnectionKey,
        open: Arc<OpenAs>,
    },
    /// A waiting request was dropped by its caller.
    Abandoned { waiter: WaiterId },
    /// A request ended its use of a process. `reusable`: the process has no open work for the request.
    Released { process: ProcessId, reusable: bool },
    /// The package that a process runs from is being installed, or no longer is.
    Installing { process: ProcessId, now: bool },
    /// A spare process runs.
    Spawned { process: ProcessId },
    /// A process was opened, and accepts requests.
    Started {
        process: ProcessId,
        server: EraSupport,
        opened: Era,
    },
    /// A process could not be started or opened.
    StartFailed {
        process: ProcessId,
        failure: ProcessFailure,
    },
    /// Reason why a process ended by itself, with the server's last output.
    Explained { why: ProcessFailure },
    /// A process ended by itself, or stopped reading or responding.
    Lost { process: ProcessId, end: ProcessEnd },
    /// The last descendant of a process has ended.
    Gone { process: ProcessId },
    /// Lasting requests that the server's former pool hands to this one.
    Inherit { places: Vec<InheritedSlot> },
    /// A session has ended.
    SessionClosed { tag: Arc<str> },
    /// A session's client listens again.
    SessionReturned { tag: Arc<str> },
    /// Times since which clients are inactive, for the processes that [`super::PoolStateMachine::to_ask`] returned.
    Away { since: Vec<(ProcessId, Instant)> },
    /// A process was opened with credentials that its principal no longer has.
    Outdated { process: ProcessId },
    /// Log messages of a process have been withheld for too long.
    Mute { process: ProcessId },
    /// Backends were removed from the server. `replicas`: removed backends with a slot for connections that all clients share;
    /// `instead`: another backend, which gets their lasting requests; `processes`: all processes at removed backends.
    Removed {
        replicas: Vec<BackendId>,
        instead: Option<BackendId>,
        processes: Vec<ProcessId>,
    },
    /// An operator asked for a restart: every process is replaced.
    Restart,
    /// A reload restarts the shared process if it has permanently ended.
    Revive,
    /// The server is no longer served.
    Retire,
    /// A timer of the state machine may be due.
    Tick,
}

/// Reason why there is no process, for clients and for operators.
#[derive(Debug, Clone)]
pub(in crate::stdio) struct ProcessFailure {
    /// The error for clients, without the server's standard error.
    pub(in crate::stdio) error: CallError,
    /// The log message for operators, with the server's last output and without secrets.
    pub(in crate::stdio) reason: Arc<str>,
    /// True if another backend or client may succeed: the failure does not concern the whole server.
    pub(in crate::stdio) elsewhere: bool,
}

/// A slot with lasting requests that a pool hands to its successor.
#[derive(Debug)]
pub(in crate::stdio) struct InheritedSlot {
    pub(in crate::stdio) slot: SlotKey,
    pub(in crate::stdio) open: Arc<OpenAs>,
    pub(in crate::stdio) replay_state: Arc<ReplayState>,
    /// True if the state of the slot's process is lost with the former pool.
    pub(in crate::stdio) lost: bool,
}

/// How a process ended by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::stdio) enum ProcessEnd {
    /// The process exited with code 0.
    Clean,
    /// The process ended in any other way.
    Crash,
    /// The process stopped responding.
    Unresponsive,
}

/// An action that the state machine asks of the driver, or of a waiter's request.
#[derive(Debug)]
pub(in crate::stdio) enum PoolAction {
    /// Grant the process to the request.
    Grant {
        waiter: WaiterId,
        process: ProcessId,
    },
    /// Refuse a process to the request.
    Refuse {
        waiter: WaiterId,
        refusal: LeaseRefusal,
    },
    /// Start a process without opening it, as a spare.
    Spare { process: ProcessId },
    /// Start a process and open it.
    Start { process: ProcessId, order: Order },
    /// Open a spare process.
    Adopt { process: ProcessId, order: Order },
    /// End a process.
    Stop {
        process: ProcessId,
        reason: StopReason,
    },
}

/// Order to open a process in a slot.
#[derive(Debug, Clone)]
pub(in crate::stdio) struct Order {
    pub(in crate::stdio) slot: SlotKey,
    pub(in crate::stdio) open: Arc<OpenAs>,
    pub(in crate::stdio) replay_state: Arc<ReplayState>,
    /// The server's eras, if known.
    pub(in crate::stdio) server: Option<EraSupport>,
    /// How the slot's former process ended by itself, if this process replaces it.
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
    /// The process did not start, or the MCP handshake with it failed.
    Failed(CallError),
    /// The session that the process was for has ended.
    SessionClosed,
    /// The server was replaced or removed, or the gateway ends.
    Retired,
}

/// Limit that keeps a request from a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::stdio) enum PoolLimit {
    /// `max_processes` of the server.
    Processes,
    /// `max_per_principal` of the server.
    Principal,
    /// Number of requests that may wait for processes.
    Waiters,
}

impl PoolLimit {
    /// Configuration key of the limit, or a fixed name for a limit without a key.
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
    /// Another process needs the slot, or does the work.
    Surplus,
    /// The client is inactive, and a request waits for a slot.
    GaveWay,
    /// The process served a single request, and is not reused.
    Used,
    /// The process was opened with credentials that its principal no longer has.
    Outdated,
    /// The process withheld log messages for too long.
    Mute,
    /// The process's backend is not configured any more.
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
