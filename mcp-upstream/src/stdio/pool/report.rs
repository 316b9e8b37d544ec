//! State of a pool for operators.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tooldock_base::error::CallError;

use super::PoolData;
use super::state::PoolCounts;
use crate::protocol::EraSupport;
use crate::stdio::breaker::BreakerState;

/// State of a pool, for `/ready` and metrics.
#[derive(Debug, Clone)]
pub(crate) struct PoolState {
    /// Number of processes by state.
    pub(crate) processes: PoolCounts,
    /// Number of requests that wait for a process.
    pub(crate) waiting: usize,
    /// State of the circuit breaker.
    pub(crate) breaker: BreakerState,
    /// Eras that the server supports, if known.
    pub(crate) server: Option<EraSupport>,
    /// Error that prevents the server from starting; `None` once it starts.
    pub(crate) error: Option<CallError>,
    /// Reason why no process serves, for operators: with the server's last output, without secrets.
    pub(crate) reason: Option<Arc<str>>,
    /// True if the server ended and is not restarted.
    pub(crate) dead: bool,
    /// How the last replaced process ended, and how long ago.
    pub(crate) last_restart: Option<(&'static str, Duration)>,
}

impl PoolState {
    /// The state as `/ready` shows it: `ready`, `installing`, `starting`, `idle` or `failed`.
    pub(crate) fn as_str(&self) -> &'static str {
        if self.processes.serving > 0 {
            "ready"
        } else if self.processes.installing > 0 && !self.dead {
            // Shown even after failures: the installation is in progress, and may resolve them.
            "installing"
        } else if self.dead || self.error.is_some() || self.breaker == BreakerState::Open {
            "failed"
        } else if self.processes.starting > 0 {
            "starting"
        } else {
            "idle"
        }
    }
}

impl PoolData {
    /// The pool's current state.
    pub(super) fn state_now(&self) -> PoolState {
        let state = &self.state;
        let counts = state.counts();
        PoolState {
            processes: counts,
            waiting: state.waiting(),
            breaker: state.breaker(Instant::now()),
            server: state.server(),
            error: state.last_error().map(|failure| failure.error.clone()),
            // The end of a process is of no interest while another one serves.
            reason: state
                .why()
                .filter(|_| counts.serving == 0)
                .map(|failure| Arc::clone(&failure.reason)),
            dead: state.is_dead(),
            last_restart: state
                .last_restart()
                .map(|last| (last.reason, last.at.elapsed())),
        }
    }
}
