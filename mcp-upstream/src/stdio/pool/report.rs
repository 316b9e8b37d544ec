//! How a pool is, for those who operate the gateway.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tooldock_workers::error::CallError;

use super::Inner;
use super::state::Counts;
use crate::protocol::EraSupport;
use crate::stdio::breaker::BreakerState;

/// How a pool is, for `/ready` and metrics.
#[derive(Debug, Clone)]
pub(crate) struct PoolState {
    /// Its processes.
    pub(crate) processes: Counts,
    /// Requests that wait for one.
    pub(crate) waiting: usize,
    /// Whether it is worth trying.
    pub(crate) breaker: BreakerState,
    /// What its server speaks, if that is known.
    pub(crate) server: Option<EraSupport>,
    /// Why its server does not start, until it does.
    pub(crate) error: Option<CallError>,
    /// Why no process serves, for those who operate the gateway: with what the server said last, without secrets.
    pub(crate) reason: Option<Arc<str>>,
    /// It ended, and is not to be restarted.
    pub(crate) dead: bool,
    /// How the last process had ended that another took the place of, and how long ago that was.
    pub(crate) last_restart: Option<(&'static str, Duration)>,
}

impl PoolState {
    /// One word for it: `ready`, `installing`, `starting`, `idle` or `failed`.
    pub(crate) fn as_str(&self) -> &'static str {
        if self.processes.serving > 0 {
            "ready"
        } else if self.processes.installing > 0 && !self.dead {
            // Even after failures: it takes its time now, and may be what helps.
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

impl Inner {
    /// How the pool is now.
    pub(super) fn state_now(&self) -> PoolState {
        let state = &self.state;
        let counts = state.counts();
        PoolState {
            processes: counts,
            waiting: state.waiting(),
            breaker: state.breaker(Instant::now()),
            server: state.server(),
            error: state.last_error().map(|failure| failure.error.clone()),
            // How a process ended is of no interest while another one serves.
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
