//! Rules of a pool: the server's settings, and the delays between attempts.

use std::time::Duration;

use tooldock_workers::external::{Restart, StdioSettings};
use tooldock_workers::server_settings::Isolation;

use crate::stdio::breaker::BreakerRules;

/// Time limit of a request's wait for a slot for its process, or for the delay after a failure.
pub(super) const SLOT_WAIT: Duration = Duration::from_secs(5);
/// Maximum number of requests that wait for processes of a server.
pub(super) const WAITERS_MAX: usize = 1000;
/// Maximum number of slots without a process: slots of sessions whose clients know that their process ended.
pub(super) const SLOTS_MAX: usize = 100_000;
/// Minimum time that an ending process has for its calls; more if a call of its namespace may take longer.
pub(super) const DRAIN: Duration = Duration::from_secs(60);
/// Time that a session's client must be inactive before its process may be ended for a waiting request.
pub(super) const AWAY: Duration = Duration::from_secs(60);
/// Maximum time that a process for a single request is kept after its return, for another request that needs an equal one.
const RETURNED_IDLE: Duration = Duration::from_secs(60);
/// First delay after a failure; doubled with each further failure, up to `DELAY_MAX`.
const DELAY: Duration = Duration::from_millis(500);
/// Longest delay after failures.
const DELAY_MAX: Duration = Duration::from_secs(60);
/// Maximum delay for servers whose backends have health checks: a recovered server is used immediately.
pub(super) const SPREAD_DELAY_MAX: Duration = Duration::from_secs(1);
/// Time for which last good responses are used while the server is unavailable: one hour.
pub(super) const LAST_GOOD: Duration = Duration::from_secs(3600);

/// Thresholds for treating a process as hung.
#[derive(Debug, Clone, Copy)]
pub(in crate::stdio) struct HangThresholds {
    /// Time without a response to a request after which the process is suspected: it is pinged.
    pub(in crate::stdio) suspect_after: Duration,
    /// Time that a suspected process has to respond to anything; longer if calls of its namespace may take longer. Long, because
    /// a server that does its work in the thread that responds is not hung.
    pub(in crate::stdio) alive_within: Duration,
}

impl Default for HangThresholds {
    fn default() -> Self {
        Self {
            suspect_after: Duration::from_secs(5),
            alive_within: Duration::from_secs(15),
        }
    }
}

impl HangThresholds {
    /// Adjusts the thresholds to the longest call timeout: a server that computes in the thread that responds is busy for as
    /// long as a call takes, and responds to nothing else.
    pub(super) fn with_calls_of(self, timeout: Duration) -> Self {
        Self {
            alive_within: self.alive_within.max(timeout),
            ..self
        }
    }
}

/// Rules of a pool: the server's settings and values derived from them.
#[derive(Debug, Clone)]
pub(super) struct PoolRules {
    pub(super) restart: Restart,
    pub(super) isolation: Isolation,
    pub(super) idle_stop: Duration,
    pub(super) max_lifetime: Duration,
    pub(super) max_processes: usize,
    pub(super) max_per_principal: usize,
    pub(super) warm: usize,
    pub(super) breaker: BreakerRules,
    /// True if the state of a session's process is lost with the process, which is then not replaced.
    pub(super) keeps_state: bool,
    /// True if connections that all clients share are spread over several backends, whose health checks select them.
    pub(super) spreads: bool,
    /// Time that an ending process of several clients has for its calls.
    pub(super) drain: Duration,
    /// Time that an ending process of a single client has for its calls, which may wait for the client's answers.
    pub(super) drain_private: Duration,
}

impl From<&StdioSettings> for PoolRules {
    fn from(settings: &StdioSettings) -> Self {
        Self {
            restart: settings.restart,
            isolation: settings.isolation,
            idle_stop: settings.idle_stop,
            max_lifetime: settings.max_lifetime,
            max_processes: settings.max_processes,
            max_per_principal: settings.max_per_principal,
            warm: settings.warm,
            breaker: BreakerRules::default(),
            keeps_state: false,
            spreads: false,
            drain: DRAIN,
            drain_private: DRAIN,
        }
    }
}

impl PoolRules {
    /// Returns true if a process that served a single request may serve another. If sessions are isolated, the process may have
    /// data that other clients must not see.
    pub(super) fn reuses(&self) -> bool {
        matches!(self.isolation, Isolation::Auto | Isolation::Shared)
    }

    /// Returns true if most processes will belong to a single session or principal.
    pub(super) fn is_private(&self) -> bool {
        matches!(self.isolation, Isolation::Session | Isolation::Principal)
    }

    /// Adjusts the drain times to the longest call timeout and the longest wait for clients.
    pub(super) fn with_calls_of(self, timeout: Duration, ask_timeout: Duration) -> Self {
        let drain = timeout.max(DRAIN);
        Self {
            drain,
            drain_private: drain + ask_timeout,
            ..self
        }
    }

    /// Time that a process for a single request is kept after its return.
    pub(super) fn returned_idle(&self) -> Duration {
        self.idle_stop.min(RETURNED_IDLE)
    }

    /// Returns true if a process that ended by itself is replaced before a request needs it.
    pub(super) fn restarts(&self, clean: bool) -> bool {
        match self.restart {
            Restart::Never => false,
            Restart::OnFailure => !clean,
            Restart::Always => true,
        }
    }

    /// Delay after `failures` failures in a row. The first end of a process that had worked costs no delay: the next process most
    /// likely works too. `jitter` is a random number in `0.0..1.0` and shortens the delay by up to half.
    pub(super) fn delay(failures: u32, had_worked: bool, jitter: f64) -> Duration {
        let steps = failures.saturating_sub(if had_worked { 1 } else { 0 });
        if steps == 0 {
            return Duration::ZERO;
        }
        let full = DELAY
            .saturating_mul(1 << (steps - 1).min(16))
            .min(DELAY_MAX);
        full.mul_f64(1.0 - jitter.clamp(0.0, 1.0) / 2.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_a_minute_and_begin_with_none_for_what_had_worked() {
        let delays = |had_worked| {
            let delays = (1..=9).map(|failures| PoolRules::delay(failures, had_worked, 0.0));
            delays.map(|it| it.as_secs_f64()).collect::<Vec<_>>()
        };
        assert_eq!(
            delays(false),
            [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]
        );
        assert_eq!(delays(true)[..4], [0.0, 0.5, 1.0, 2.0]);
        assert_eq!(PoolRules::delay(1, false, 1.0), Duration::from_millis(250));
    }

    #[test]
    fn a_process_is_not_hung_for_as_long_as_a_call_may_take() {
        let patience = |seconds| {
            let timeout = Duration::from_secs(seconds);
            HangThresholds::default()
                .with_calls_of(timeout)
                .alive_within
        };
        assert_eq!(patience(1), Duration::from_secs(15));
        assert_eq!(patience(120), Duration::from_secs(120));
    }

    #[test]
    fn what_ended_is_replaced_as_the_policy_says() {
        let rules = |restart| PoolRules {
            restart,
            ..PoolRules::from(&StdioSettings::default())
        };
        let replaced = |restart| [true, false].map(|clean| rules(restart).restarts(clean));
        assert_eq!(replaced(Restart::Never), [false, false]);
        assert_eq!(replaced(Restart::OnFailure), [false, true]);
        assert_eq!(replaced(Restart::Always), [true, true]);
    }
}
