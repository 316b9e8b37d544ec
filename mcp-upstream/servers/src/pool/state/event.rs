//! Events and actions of a pool's state machine.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tooldock_base::error::CallError;
use tooldock_protocol::version::{Era, EraSupport};
use tooldock_workers::remote::BackendId;

use crate::key::{ConnectionKey, OpenAs, SlotKey};
use crate::pool::replay_state::ReplayState;

/// Number of a process within its pool.
pub(crate) type ProcessId = u64;
/// Number of a waiting request within its pool.
pub(crate) type WaiterId = u64;

/// An event that the state machine of a pool handles.
#[derive(Debug)]
pub(crate) enum PoolEvent {
    /// The server was added to the registry, and its first process is to be started.
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
    /// The caller of a waiting request has dropped it.
    Abandoned { waiter: WaiterId },
    /// A request no longer uses its process. `reusable`: true if the process has no unfinished work for the request.
    Released { process: ProcessId, reusable: bool },
    /// The installation of the package that a process needs has begun (`now`: true) or ended (`now`: false).
    Installing { process: ProcessId, now: bool },
    /// A spare process has been started.
    Spawned { process: ProcessId },
    /// A process was opened, and accepts requests now.
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
    /// The reason why a process ended by itself is now known. It includes the server's last output.
    Explained { why: ProcessFailure },
    /// A process ended by itself, or stopped reading or responding.
    Lost { process: ProcessId, end: ProcessEnd },
    /// A process and all its descendants have ended.
    Gone { process: ProcessId },
    /// The server's former pool hands over its subscriptions and log levels.
    Inherit { places: Vec<InheritedSlot> },
    /// A session has ended.
    SessionClosed { tag: Arc<str> },
    /// A session's client is connected again.
    SessionReturned { tag: Arc<str> },
    /// The times since which clients are inactive, for the processes that [`super::PoolStateMachine::to_ask`] returned.
    Away { since: Vec<(ProcessId, Instant)> },
    /// A process was opened with personal values that have changed since.
    Outdated { process: ProcessId },
    /// A process's log messages have been withheld from its clients for too long, so it must be replaced.
    Mute { process: ProcessId },
    /// Backends were removed from the server. `replicas`: the removed backends to which all clients shared a connection;
    /// `instead`: another backend, which takes over their subscriptions; `processes`: all processes at removed backends.
    Removed {
        replicas: Vec<BackendId>,
        instead: Option<BackendId>,
        processes: Vec<ProcessId>,
    },
    /// An operator has requested a restart: every process is replaced.
    Restart,
    /// A reload starts the shared process again if it has ended for good or waits after a failure.
    Revive,
    /// The server was removed or replaced in the configuration: its processes are to end.
    Retire,
    /// A timer of the state machine may have become due.
    Tick,
}

/// Reason why a process did not start or has ended, with a text for clients and one for operators.
#[derive(Debug, Clone)]
pub(crate) struct ProcessFailure {
    /// The error for clients. It does not contain the server's standard error.
    pub(crate) error: CallError,
    /// The text for operators. It contains the server's last output, without secrets.
    pub(crate) reason: Arc<str>,
    /// True if the failure does not concern the whole server: another backend, or another client's connection, may work.
    pub(crate) elsewhere: bool,
}

/// A slot with its subscriptions and log level, which a pool hands over to its successor.
#[derive(Debug)]
pub(crate) struct InheritedSlot {
    pub(crate) slot: SlotKey,
    pub(crate) open: Arc<OpenAs>,
    pub(crate) replay_state: Arc<ReplayState>,
    /// True if the state of the slot's session is lost, since it was in a process of the former pool.
    pub(crate) lost: bool,
}

/// Classification of the end of a process that ended by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProcessEnd {
    /// The process exited with code 0.
    Clean,
    /// The process ended with another exit code or by a signal.
    Crash,
    /// The process was running but no longer responded.
    Unresponsive,
}

/// An action that the state machine requests. The driver carries it out, or a waiting request receives it.
#[derive(Debug)]
pub(crate) enum PoolAction {
    /// The request gets the process.
    Grant {
        waiter: WaiterId,
        process: ProcessId,
    },
    /// The request gets no process.
    Refuse {
        waiter: WaiterId,
        refusal: LeaseRefusal,
    },
    /// A process is to be started as a spare, without opening an MCP connection.
    Spare { process: ProcessId },
    /// A process is to be started and opened.
    Start { process: ProcessId, order: Order },
    /// A spare process is to be opened.
    Adopt { process: ProcessId, order: Order },
    /// A process is to be ended.
    Stop {
        process: ProcessId,
        reason: StopReason,
    },
}

/// Instructions for opening a process in a slot.
#[derive(Debug, Clone)]
pub(crate) struct Order {
    pub(crate) slot: SlotKey,
    pub(crate) open: Arc<OpenAs>,
    pub(crate) replay_state: Arc<ReplayState>,
    /// The eras that the server supports; `None` if they must be detected.
    pub(crate) server: Option<EraSupport>,
    /// Reason why the slot's former process ended by itself, as a metrics label; `None` if this process replaces none.
    pub(crate) restart: Option<&'static str>,
}

/// Reason why a request gets no process of its server.
#[derive(Debug, Clone)]
pub(crate) enum LeaseRefusal {
    /// No slot became free in time, or too many requests are waiting.
    Overloaded(PoolLimit),
    /// The server has failed too often recently.
    Unavailable { retry_after: Duration },
    /// The process has ended, and is not restarted.
    Dead,
    /// The session's state was lost with the session's former process.
    StateLost,
    /// The process did not start, or the MCP handshake with it failed.
    Failed(CallError),
    /// The session for which the process was requested has ended.
    SessionClosed,
    /// The server was replaced or removed, or the gateway is stopping.
    Retired,
}

/// Limit because of which a request gets no process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PoolLimit {
    /// The setting `max_processes` of the server.
    Processes,
    /// The setting `max_per_principal` of the server.
    Principal,
    /// The maximum number of requests that wait for processes.
    Waiters,
}

impl PoolLimit {
    /// Returns the configuration key of the limit, or a fixed name for the limit without a key.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Processes => "max_processes",
            Self::Principal => "max_per_principal",
            Self::Waiters => "waiters",
        }
    }
}

/// Reason why a process is ended, for metrics and logs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StopReason {
    Idle,
    Lifetime,
    SessionClosed,
    Retired,
    /// Another process needs the slot, or serves its key already.
    Surplus,
    /// The process's client is inactive, and a request waits for a free slot.
    GaveWay,
    /// The process has served a single request, and is not reused.
    Used,
    /// The process was opened with personal values that have changed since.
    Outdated,
    /// The process's log messages were withheld from its clients for too long.
    Mute,
    /// The process's backend was removed from the configuration.
    Removed,
    /// An operator has requested a restart.
    Restarted,
}

impl StopReason {
    pub(crate) fn as_str(self) -> &'static str {
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
