//! State of a pool as operators see it.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tooldock_base::error::CallError;
use tooldock_protocol::version::EraSupport;

use super::PoolData;
use super::state::PoolCounts;
use crate::breaker::BreakerState;

/// State of a pool, as `/ready` and metrics report it.
#[derive(Debug, Clone)]
pub struct PoolState {
    /// Numbers of processes by state.
    pub processes: PoolCounts,
    /// Number of requests that wait for a process of the server.
    pub waiting: usize,
    /// State of the server's circuit breaker.
    pub breaker: BreakerState,
    /// Eras that the server supports, if known.
    pub server: Option<EraSupport>,
    /// Error that prevents the server from starting; `None` if the last start succeeded.
    pub error: Option<CallError>,
    /// Reason why no process accepts requests, for operators: it contains the server's last output, without secrets.
    pub reason: Option<Arc<str>>,
    /// True if the server has ended and is not restarted.
    pub(crate) dead: bool,
    /// Reason for the end of the last process that was replaced, and the time since then.
    pub last_restart: Option<(&'static str, Duration)>,
}

impl PoolState {
    /// Returns the state's name as `/ready` shows it: `ready`, `installing`, `starting`, `idle` or `failed`.
    pub fn as_str(&self) -> &'static str {
        if self.processes.serving > 0 {
            "ready"
        } else if self.processes.installing > 0 && !self.dead {
            // A running installation is shown even after failures, since it may resolve them.
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
    /// Returns the pool's current state.
    pub(super) fn state_now(&self) -> PoolState {
        let state = &self.state;
        let counts = state.counts();
        PoolState {
            processes: counts,
            waiting: state.waiting(),
            breaker: state.breaker(Instant::now()),
            server: state.server(),
            error: state.last_error().map(|failure| failure.error.clone()),
            // If another process accepts requests, the end of a process is not reported.
            reason: state
                .failure_reason()
                .filter(|_| counts.serving == 0)
                .map(|failure| Arc::clone(&failure.reason)),
            dead: state.is_dead(),
            last_restart: state
                .last_restart()
                .map(|last| (last.reason, last.at.elapsed())),
        }
    }
}
