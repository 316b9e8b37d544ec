//! Rules of a pool: the server's settings, and the delays after failures.

use std::time::Duration;

use tooldock_workers::external::{Restart, StdioSettings};
use tooldock_workers::server_settings::Isolation;

use crate::breaker::BreakerRules;

/// Maximum time that a request waits for a free slot, or for the end of a delay after a failure; then it is refused.
pub(super) const SLOT_WAIT: Duration = Duration::from_secs(5);
/// Maximum number of requests that wait for processes of one server; further ones are refused.
pub(super) const WAITERS_MAX: usize = 1000;
/// Maximum number of slots in a pool. If there are more, the slots of sessions whose process has ended are removed.
pub(super) const SLOTS_MAX: usize = 100_000;
/// Minimum time that a process which is being ended gets to finish its calls. It is longer if a call of its namespace may take
/// longer.
pub(super) const DRAIN: Duration = Duration::from_secs(60);
/// Time without activity of a session's client after which its process may be ended for a waiting request.
pub(super) const AWAY: Duration = Duration::from_secs(60);
/// Maximum time that a process for a single request is kept after the request, for another request that needs an equal process.
const RETURNED_IDLE: Duration = Duration::from_secs(60);
/// Delay after the first failure. It is doubled with each further failure, up to `DELAY_MAX`.
const DELAY: Duration = Duration::from_millis(500);
/// Maximum delay after failures.
const DELAY_MAX: Duration = Duration::from_secs(60);
/// Maximum delay of a request after failures, for a server whose backends have health checks. It is short, so that a recovered
/// backend is used soon.
pub(super) const SPREAD_DELAY_MAX: Duration = Duration::from_secs(1);
/// Time after the server became unavailable for which stored responses are used: one hour.
pub(super) const LAST_GOOD: Duration = Duration::from_secs(3600);

/// Time limits after which a process is treated as hung.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HangThresholds {
    /// Time without a response to a request after which the process is suspected to hang and is pinged.
    pub(crate) suspect_after: Duration,
    /// Time that a suspected process gets to send any response. It is long, since a server that runs calls in the thread that
    /// also sends responses does not hang. It is longer still if calls of its namespace may take longer.
    pub(crate) alive_within: Duration,
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
    /// Extends the limits to the longest call timeout. A server that runs calls in the thread that also sends responses can be
    /// silent for as long as a call takes.
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
    /// True if the state of a session is lost with its process. The process is then not replaced, and the session fails.
    pub(super) keeps_state: bool,
    /// True if requests that may share a connection are spread over several backends; health checks decide which are used.
    pub(super) spreads: bool,
    /// Time that a process of several clients gets to finish its calls when it is ended.
    pub(super) drain: Duration,
    /// Time that a process of a single client gets to finish its calls when it is ended. It includes the wait for the client's
    /// answers.
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
    /// Returns true if a process that served one request may serve another. False if sessions are isolated, since the process may
    /// then have data that other clients must not see.
    pub(super) fn reuses(&self) -> bool {
        matches!(self.isolation, Isolation::Auto | Isolation::Shared)
    }

    /// Returns true if most processes belong to a single session or principal.
    pub(super) fn is_private(&self) -> bool {
        matches!(self.isolation, Isolation::Session | Isolation::Principal)
    }

    /// Extends the times for finishing calls to the longest call timeout and the longest wait for a client's answer.
    pub(super) fn with_calls_of(self, timeout: Duration, ask_timeout: Duration) -> Self {
        let drain = timeout.max(DRAIN);
        Self {
            drain,
            drain_private: drain + ask_timeout,
            ..self
        }
    }

    /// Returns the time that a process for a single request is kept after the request.
    pub(super) fn returned_idle(&self) -> Duration {
        self.idle_stop.min(RETURNED_IDLE)
    }

    /// Returns true if a process that ended by itself is replaced without waiting for a request. `clean`: true if it exited with
    /// code 0.
    pub(super) fn restarts(&self, clean: bool) -> bool {
        match self.restart {
            Restart::Never => false,
            Restart::OnFailure => !clean,
            Restart::Always => true,
        }
    }

    /// Returns the delay after this number of failures in a row. `had_worked`: true if the process had worked before it ended;
    /// the first such end causes no delay, since the next process most likely works too. `jitter` is a random number in
    /// `0.0..1.0` and shortens the delay by up to half.
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
