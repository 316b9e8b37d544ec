//! What a pool goes by: the server's settings, and the delays between attempts.

use std::time::Duration;

use tooldock_workers::external::{Isolation, Restart, StdioSettings};

use crate::stdio::breaker::BreakerRules;

/// How long a request waits for a place for its process, or out the delay after a failure.
pub(super) const SLOT_WAIT: Duration = Duration::from_secs(5);
/// Requests that may wait for processes of one server.
pub(super) const WAITERS_MAX: usize = 1000;
/// Places without a process that a pool remembers: those of sessions that were told of their process's end.
pub(super) const SLOTS_MAX: usize = 100_000;
/// How long a process that is to end may finish what it does, where no call of its namespace may take longer.
pub(super) const DRAIN: Duration = Duration::from_secs(60);
/// How long the client of a session's process must have been away until that process gives way to somebody who waits.
pub(super) const AWAY: Duration = Duration::from_secs(60);
/// How long a process that was leased and given back waits for the next who needs one like it.
const RETURNED_IDLE: Duration = Duration::from_secs(60);
/// The first delay after failures, which doubles …
const DELAY: Duration = Duration::from_millis(500);
/// … up to this.
const DELAY_MAX: Duration = Duration::from_secs(60);
/// The longest delay for servers whose backends have health checks: a server that is back is used at once.
pub(super) const SPREAD_DELAY_MAX: Duration = Duration::from_secs(1);
/// How long what a server last said answers for it while it is away.
pub(super) const LAST_GOOD: Duration = Duration::from_secs(3600);

/// When a process is taken for hung.
#[derive(Debug, Clone, Copy)]
pub(in crate::stdio) struct Patience {
    /// A request that was left unanswered for so long makes its process suspect: it is asked whether it lives.
    pub(in crate::stdio) suspect_after: Duration,
    /// How long it may then take to answer anything at all, or longer, where calls of its namespace may take longer. Long: a
    /// server that does its work in the thread that answers is not hung for that.
    pub(in crate::stdio) alive_within: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            suspect_after: Duration::from_secs(5),
            alive_within: Duration::from_secs(15),
        }
    }
}

impl Patience {
    /// The same, where calls may take so long: a server that does its work in the thread that answers is busy for as long
    /// as one of them takes, and answers nothing else.
    pub(super) fn with_calls_of(self, timeout: Duration) -> Self {
        Self {
            alive_within: self.alive_within.max(timeout),
            ..self
        }
    }
}

/// What a pool goes by.
#[derive(Debug, Clone)]
pub(super) struct Rules {
    pub(super) restart: Restart,
    pub(super) isolation: Isolation,
    pub(super) idle_stop: Duration,
    pub(super) max_lifetime: Duration,
    pub(super) max_processes: usize,
    pub(super) max_per_principal: usize,
    pub(super) warm: usize,
    pub(super) breaker: BreakerRules,
    /// What a session's process knew is lost with it, so that no other takes its place.
    pub(super) keeps_state: bool,
    /// What everybody shares is spread over several backends. Which of these are worth trying their own health says.
    pub(super) spreads: bool,
    /// How long a process of several clients that is to end may finish what it does …
    pub(super) drain: Duration,
    /// … and one of a single client, which may be asked something meanwhile.
    pub(super) drain_private: Duration,
}

impl From<&StdioSettings> for Rules {
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

impl Rules {
    /// Whether a process that one request had for itself may serve another one after it. Where sessions are kept apart
    /// it may hold what another must not see.
    pub(super) fn reuses(&self) -> bool {
        matches!(self.isolation, Isolation::Auto | Isolation::Shared)
    }

    /// Whether most of the processes will be somebody's own.
    pub(super) fn is_private(&self) -> bool {
        matches!(self.isolation, Isolation::Session | Isolation::Principal)
    }

    /// The same rules, where calls may take so long and wait so long for their clients.
    pub(super) fn with_calls_of(self, timeout: Duration, ask_timeout: Duration) -> Self {
        let drain = timeout.max(DRAIN);
        Self {
            drain,
            drain_private: drain + ask_timeout,
            ..self
        }
    }

    /// How long a process that was given back is kept.
    pub(super) fn returned_idle(&self) -> Duration {
        self.idle_stop.min(RETURNED_IDLE)
    }

    /// Whether a process that ended unasked is to be replaced before somebody needs it.
    pub(super) fn restarts(&self, clean: bool) -> bool {
        match self.restart {
            Restart::Never => false,
            Restart::OnFailure => !clean,
            Restart::Always => true,
        }
    }

    /// How long to wait after so many failures in a row. The first end of a process that had worked costs nothing: the
    /// next one most likely works too. `jitter` is a random number in `0.0..1.0` and takes up to half.
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
            let delays = (1..=9).map(|failures| Rules::delay(failures, had_worked, 0.0));
            delays.map(|it| it.as_secs_f64()).collect::<Vec<_>>()
        };
        assert_eq!(
            delays(false),
            [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]
        );
        assert_eq!(delays(true)[..4], [0.0, 0.5, 1.0, 2.0]);
        assert_eq!(Rules::delay(1, false, 1.0), Duration::from_millis(250));
    }

    #[test]
    fn a_process_is_not_hung_for_as_long_as_a_call_may_take() {
        let patience = |seconds| {
            let timeout = Duration::from_secs(seconds);
            Patience::default().with_calls_of(timeout).alive_within
        };
        assert_eq!(patience(1), Duration::from_secs(15));
        assert_eq!(patience(120), Duration::from_secs(120));
    }

    #[test]
    fn what_ended_is_replaced_as_the_policy_says() {
        let rules = |restart| Rules {
            restart,
            ..Rules::from(&StdioSettings::default())
        };
        let replaced = |restart| [true, false].map(|clean| rules(restart).restarts(clean));
        assert_eq!(replaced(Restart::Never), [false, false]);
        assert_eq!(replaced(Restart::OnFailure), [false, true]);
        assert_eq!(replaced(Restart::Always), [true, true]);
    }
}
