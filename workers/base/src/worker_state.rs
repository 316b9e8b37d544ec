//! States of workers, as reported by metrics and `/ready`.

/// State of a worker, for metrics and `/ready`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkerState {
    /// The worker's process is starting.
    Starting,
    /// The worker accepts calls.
    Ready,
    /// A process of the worker accepts calls but runs none of them, since a tool's function blocks its event loop. A worker with
    /// several processes is in this state if at least one of them is.
    Degraded,
    /// The worker's processes were stopped because they had no calls. The next call starts them.
    Idle,
    /// The worker's process failed; another one is started after a delay.
    Backoff {
        /// True if processes failed so often that the delay has reached its maximum.
        crash_loop: bool,
    },
    /// The worker finishes its running calls and then ends.
    Stopping,
    /// The worker's processes have ended, and no others are started.
    Stopped,
    /// The worker cannot start, and no retry would change that.
    Failed,
}

impl WorkerState {
    /// All values of [`WorkerState::as_str`].
    pub const NAMES: [&'static str; 9] = [
        "starting",
        "ready",
        "degraded",
        "idle",
        "backoff",
        "crash_loop",
        "stopping",
        "stopped",
        "failed",
    ];

    /// The state as reported by metrics and `/ready`, where a crash loop is a separate state.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Ready => "ready",
            Self::Degraded => "degraded",
            Self::Idle => "idle",
            Self::Backoff { crash_loop: false } => "backoff",
            Self::Backoff { crash_loop: true } => "crash_loop",
            Self::Stopping => "stopping",
            Self::Stopped => "stopped",
            Self::Failed => "failed",
        }
    }

    /// Returns true if the worker accepts calls or may do so later; false if it is ending, has ended or cannot start.
    pub fn may_accept_calls(self) -> bool {
        match self {
            Self::Starting | Self::Ready | Self::Degraded | Self::Idle | Self::Backoff { .. } => {
                true
            }
            Self::Stopping | Self::Stopped | Self::Failed => false,
        }
    }

    /// Distance of the state from accepting calls. The state of a worker with several processes is the one with the smallest
    /// distance. "Stopped" has the largest, so a worker counts as stopped only when all its processes have stopped.
    pub fn distance(self) -> u8 {
        match self {
            Self::Ready => 0,
            Self::Degraded => 1,
            Self::Starting => 2,
            Self::Idle => 3,
            Self::Backoff { crash_loop: false } => 4,
            Self::Backoff { crash_loop: true } => 5,
            Self::Failed => 6,
            Self::Stopping => 7,
            Self::Stopped => 8,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_state_has_a_name_that_metrics_know() {
        for state in [
            WorkerState::Starting,
            WorkerState::Ready,
            WorkerState::Degraded,
            WorkerState::Idle,
            WorkerState::Backoff { crash_loop: false },
            WorkerState::Backoff { crash_loop: true },
            WorkerState::Stopping,
            WorkerState::Stopped,
            WorkerState::Failed,
        ] {
            assert!(WorkerState::NAMES.contains(&state.as_str()), "{state:?}");
        }
    }
}
