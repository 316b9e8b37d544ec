//! States of workers, as metrics and `/ready` show them.

/// State of a worker, for metrics and `/ready`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkerState {
    /// The worker's process boots.
    Starting,
    /// The worker accepts calls.
    Ready,
    /// The worker's process accepts calls and runs none of them, since a function blocks the event loop; with several
    /// processes, one is in this state.
    Degraded,
    /// The worker's process failed; the next one starts after a delay.
    Backoff {
        /// True if processes failed so often that they are retried at the longest delay.
        crash_loop: bool,
    },
    /// The worker drains and ends.
    Stopping,
    /// The worker's processes have permanently ended.
    Stopped,
    /// The worker cannot start, and no retry would change that.
    Failed,
}

impl WorkerState {
    /// All values of [`WorkerState::as_str`].
    pub const NAMES: [&'static str; 8] = [
        "starting",
        "ready",
        "degraded",
        "backoff",
        "crash_loop",
        "stopping",
        "stopped",
        "failed",
    ];

    /// The state as metrics and `/ready` show it. A crash loop is a separate state there.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Ready => "ready",
            Self::Degraded => "degraded",
            Self::Backoff { crash_loop: false } => "backoff",
            Self::Backoff { crash_loop: true } => "crash_loop",
            Self::Stopping => "stopping",
            Self::Stopped => "stopped",
            Self::Failed => "failed",
        }
    }

    /// Returns true if a process that accepts calls may follow.
    pub fn may_come(self) -> bool {
        match self {
            Self::Starting | Self::Ready | Self::Degraded | Self::Backoff { .. } => true,
            Self::Stopping | Self::Stopped | Self::Failed => false,
        }
    }

    /// Distance of the state from accepting calls. The state of several processes is the nearest one, so "stopped" has the
    /// largest distance: a worker has stopped when all its processes have.
    pub fn distance(self) -> u8 {
        match self {
            Self::Ready => 0,
            Self::Degraded => 1,
            Self::Starting => 2,
            Self::Backoff { crash_loop: false } => 3,
            Self::Backoff { crash_loop: true } => 4,
            Self::Failed => 5,
            Self::Stopping => 6,
            Self::Stopped => 7,
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
