//! Circuit breaker of a server: decides whether a process of the server may be started.
//!
//! ```text
//!   Closed ── failures within the window ──▶ Open ── its time is over ──▶ HalfOpen
//!     ▲                                        ▲                             │
//!     │                                        └───── the attempt fails ─────┤
//!     └───────────────────────────── the attempt succeeds ──────────────────┘
//! ```
//!
//! While the breaker is open, no process is started; running processes continue to serve. In `HalfOpen` a single start is
//! attempted, and its outcome closes or opens the breaker. If the attempt is abandoned because its callers disconnected,
//! another attempt may run.
//!
//! The breaker is a pure state machine: it reads no clock and starts no process.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

/// Limits and times of a circuit breaker.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BreakerRules {
    /// Number of failures within `window` at which the breaker opens.
    pub(crate) failures: usize,
    /// Period within which failures are counted.
    pub(crate) window: Duration,
    /// Time that the breaker first stays open. Each failed attempt doubles it, up to `open_max`.
    pub(crate) open: Duration,
    /// Maximum time that the breaker stays open.
    pub(crate) open_max: Duration,
}

impl Default for BreakerRules {
    fn default() -> Self {
        Self {
            failures: 5,
            window: Duration::from_secs(60),
            open: Duration::from_secs(5),
            open_max: Duration::from_secs(60),
        }
    }
}

/// The state of a circuit breaker, for metrics and `/ready`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BreakerState {
    /// The breaker is closed: every start of a process is allowed.
    Closed,
    /// The breaker is half open: a single start is allowed, and its outcome closes or opens the breaker.
    HalfOpen,
    /// The breaker is open: no process may be started.
    Open,
}

impl BreakerState {
    /// Returns the state's name as `/ready` shows it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::HalfOpen => "half_open",
            Self::Open => "open",
        }
    }
}

/// The breaker's decision about starting a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StartDecision {
    /// The process may be started.
    Yes,
    /// Another attempt to start a process is running, and its outcome decides. The caller waits for it.
    Wait,
    /// No process may be started before this time.
    Not(Instant),
}

/// The circuit breaker of a server, with its record of failures.
#[derive(Debug, Clone)]
pub(crate) struct Breaker {
    rules: BreakerRules,
    /// Times of the latest failures. At most [`BreakerRules::failures`] of them are kept.
    recent: VecDeque<Instant>,
    state: BreakerPhase,
    /// Number of times in a row that the breaker opened. It is reset once a process has worked for the whole window.
    opened: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BreakerPhase {
    Closed,
    Open { until: Instant },
    HalfOpen,
}

impl Breaker {
    /// Creates a closed breaker without recorded failures.
    pub(crate) fn new(rules: BreakerRules) -> Self {
        Self {
            rules,
            recent: VecDeque::new(),
            state: BreakerPhase::Closed,
            opened: 0,
        }
    }

    /// Decides whether a process may be started at `now`. A caller that then starts one must call [`Breaker::attempted`].
    pub(crate) fn admits(&self, now: Instant) -> StartDecision {
        match self.state {
            BreakerPhase::Closed => StartDecision::Yes,
            BreakerPhase::HalfOpen => StartDecision::Wait,
            BreakerPhase::Open { until } if until <= now => StartDecision::Yes,
            BreakerPhase::Open { until } => StartDecision::Not(until),
        }
    }

    /// Records that a process is being started.
    pub(crate) fn attempted(&mut self, now: Instant) {
        if let BreakerPhase::Open { until } = self.state
            && until <= now
        {
            self.state = BreakerPhase::HalfOpen;
        }
    }

    /// Records that the attempt in `HalfOpen` was abandoned without failure or success.
    pub(crate) fn undecided(&mut self, now: Instant) {
        if self.state == BreakerPhase::HalfOpen {
            self.state = BreakerPhase::Open { until: now };
        }
    }

    /// Records that a process was started successfully.
    pub(crate) fn succeeded(&mut self) {
        // The failures of a closed breaker are kept, so that a server that starts and soon ends again still opens the breaker.
        if self.state != BreakerPhase::Closed {
            self.state = BreakerPhase::Closed;
            self.recent.clear();
        }
    }

    /// Records that a process has worked for longer than the window. The next opening then lasts for the initial time again.
    pub(crate) fn reset_backoff(&mut self) {
        if self.state == BreakerPhase::Closed {
            self.opened = 0;
        }
    }

    /// Records that a start failed, or that a process shared by several clients ended by itself.
    pub(crate) fn failed(&mut self, now: Instant) {
        self.recent.push_back(now);
        while self.recent.len() > self.rules.failures.max(1) {
            self.recent.pop_front();
        }
        let window = self.rules.window;
        self.recent
            .retain(|at| now.saturating_duration_since(*at) <= window);
        let relapsed = self.state == BreakerPhase::HalfOpen;
        let often =
            self.state == BreakerPhase::Closed && self.recent.len() >= self.rules.failures.max(1);
        if relapsed || often {
            let doublings = self.opened.min(16);
            let time = self.rules.open.saturating_mul(1 << doublings);
            self.state = BreakerPhase::Open {
                until: now + time.min(self.rules.open_max),
            };
            self.opened = self.opened.saturating_add(1);
        }
    }

    /// Returns the breaker's state at `now`.
    pub(crate) fn state(&self, now: Instant) -> BreakerState {
        match self.state {
            BreakerPhase::Closed => BreakerState::Closed,
            BreakerPhase::HalfOpen => BreakerState::HalfOpen,
            BreakerPhase::Open { until } if until <= now => BreakerState::HalfOpen,
            BreakerPhase::Open { .. } => BreakerState::Open,
        }
    }

    /// Returns the time that a process must work until earlier openings of the breaker no longer count.
    pub(crate) fn window(&self) -> Duration {
        self.rules.window
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn opened() -> (Breaker, Instant) {
        let mut breaker = Breaker::new(BreakerRules::default());
        let now = Instant::now();
        for _ in 0..5 {
            breaker.failed(now);
        }
        (breaker, now)
    }

    #[test]
    fn opens_at_the_fifth_failure_within_a_minute_and_not_at_five_that_are_further_apart() {
        let mut breaker = Breaker::new(BreakerRules::default());
        let mut now = Instant::now();
        for _ in 0..20 {
            breaker.failed(now);
            assert_eq!(breaker.admits(now), StartDecision::Yes);
            now += seconds(16);
        }
        now += seconds(100);
        for left in (0..5).rev() {
            breaker.failed(now);
            assert_eq!(breaker.admits(now) == StartDecision::Yes, left > 0);
        }
        assert_eq!(breaker.state(now), BreakerState::Open);
        assert_eq!(breaker.admits(now), StartDecision::Not(now + seconds(5)));
    }

    #[test]
    fn after_its_time_one_attempt_decides() {
        let (mut breaker, now) = opened();
        let later = now + seconds(5);
        assert_eq!(breaker.state(later), BreakerState::HalfOpen);
        assert_eq!(breaker.admits(later), StartDecision::Yes);
        breaker.attempted(later);
        assert_eq!(breaker.admits(later), StartDecision::Wait);
        breaker.succeeded();
        assert_eq!(breaker.state(later), BreakerState::Closed);
        // The record is clean: five failures are needed again.
        breaker.failed(later);
        assert_eq!(breaker.state(later), BreakerState::Closed);
    }

    #[test]
    fn every_failed_attempt_doubles_the_time_up_to_a_minute() {
        let (mut breaker, mut now) = opened();
        let mut waits = Vec::new();
        for _ in 0..6 {
            let StartDecision::Not(until) = breaker.admits(now) else {
                panic!("it is open");
            };
            waits.push((until - now).as_secs());
            now = until;
            breaker.attempted(now);
            breaker.failed(now);
        }
        assert_eq!(waits, [5, 10, 20, 40, 60, 60]);
    }

    #[test]
    fn an_undecided_attempt_leaves_the_next_one_the_chance() {
        let (mut breaker, now) = opened();
        let later = now + seconds(5);
        breaker.attempted(later);
        breaker.undecided(later);
        assert_eq!(breaker.admits(later), StartDecision::Yes);
        assert_eq!(breaker.state(later), BreakerState::HalfOpen);
    }

    #[test]
    fn failures_while_it_is_open_do_not_lengthen_it_and_a_long_success_shortens_the_next() {
        let (mut breaker, now) = opened();
        breaker.failed(now + seconds(1));
        assert_eq!(breaker.admits(now), StartDecision::Not(now + seconds(5)));
        let mut now = now + seconds(5);
        breaker.attempted(now);
        breaker.succeeded();
        breaker.reset_backoff();
        now += seconds(600);
        for _ in 0..5 {
            breaker.failed(now);
        }
        assert_eq!(breaker.admits(now), StartDecision::Not(now + seconds(5)));
    }
}
