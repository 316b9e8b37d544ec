//! The health of a backend, computed from the results of checks and requests. The current time is passed in, so that this module
//! needs neither a clock nor a connection.
//!
//! ```text
//!              failures in a row           eject is over
//!   healthy ───────────────────▶ ejected ───────────────▶ healthy, one failure from being ejected
//!      │  ▲                         │ a request succeeds ─▶ healthy
//!      │  └─ a check passes ─┐
//!      └─ a check fails ─▶ down
//! ```

use std::time::Duration;

use tokio::time::Instant;
use tooldock_workers::remote::PassiveHealth;

/// Time for which a backend that has recovered gets fewer requests than usual.
const SLOW_START: Duration = Duration::from_secs(10);

/// The fraction of its usual requests that a backend gets at first after recovering.
const FIRST_SHARE: f64 = 0.1;

/// Minimum time between two requests to a backend as a trial, while no backend is healthy.
const TRIAL_EVERY: Duration = Duration::from_secs(1);

/// The health of one backend of a remote server.
#[derive(Debug, Default)]
pub(super) struct Health {
    failures: u32,
    /// The time at which the ejection ends, and the cause of the last failure.
    ejected: Option<(Instant, String)>,
    /// The reason why the last check failed; `None` if it passed.
    down: Option<String>,
    /// True if the last check got no answer in time; false if it was answered.
    silent: bool,
    recovered: Option<Instant>,
    tried: Option<Instant>,
    has_answered: bool,
}

/// A result of a request or check at a backend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum HealthEvent {
    /// The backend answered a request.
    Answered,
    /// The backend did not answer a request, or its answer reported an error of the server. Contains the cause as text.
    Failed(String),
    /// The backend passed a health check.
    CheckPassed,
    /// The backend answered a health check, but did not pass it. Contains the reason as text.
    CheckFailed(String),
    /// The backend did not answer a health check in time. Contains the reason as text.
    CheckTimedOut(String),
}

/// The change of a backend's health that an event caused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    None,
    Ejected,
    Down,
    Recovered,
}

impl Health {
    pub(super) fn is_healthy(&self, now: Instant) -> bool {
        self.down.is_none() && !self.is_ejected(now)
    }

    /// The reason why the backend gets no requests; `None` if it is healthy.
    pub(super) fn problem(&self, now: Instant) -> Option<&str> {
        let ejected = self.ejected.as_ref().filter(|(until, _)| now < *until);
        let down = self.down.as_deref();
        down.or_else(|| ejected.map(|(_, problem)| problem.as_str()))
    }

    /// The fraction of its usual requests that a backend gets: 1, or less if it has just recovered.
    pub(super) fn share(&self, now: Instant) -> f64 {
        let ejected = self.ejected.as_ref().map(|(until, _)| *until);
        let Some(since) = self.recovered.max(ejected) else {
            return 1.0;
        };
        let passed = now.saturating_duration_since(since).as_secs_f64();
        (passed / SLOW_START.as_secs_f64()).clamp(FIRST_SHARE, 1.0)
    }

    /// Returns true once the backend has answered a request or passed a check.
    pub(super) fn has_answered(&self) -> bool {
        self.has_answered
    }

    /// Returns true if the backend gets no requests only because its last check got no answer in time.
    pub(super) fn is_silent(&self) -> bool {
        self.silent && self.ejected.is_none()
    }

    /// Returns true if no request was sent as a trial within the last second. Used for backends that are not healthy.
    pub(super) fn is_trial_due(&self, now: Instant) -> bool {
        self.tried
            .is_none_or(|at| now.saturating_duration_since(at) >= TRIAL_EVERY)
    }

    /// Returns true if a request may be sent as a trial to a backend that is not healthy. The time of the trial is then recorded.
    pub(super) fn may_be_tried(&mut self, now: Instant) -> bool {
        let due = self.is_trial_due(now);
        if due {
            self.tried = Some(now);
        }
        due
    }

    /// Applies an event to the health. Returns how the health changed.
    pub(super) fn on(&mut self, event: HealthEvent, now: Instant, rules: &PassiveHealth) -> Change {
        let before = self.is_healthy(now);
        self.has_answered |= matches!(event, HealthEvent::Answered | HealthEvent::CheckPassed);
        match event {
            HealthEvent::Answered => {
                self.failures = 0;
                if self.is_ejected(now) {
                    self.ejected = None;
                }
            }
            HealthEvent::Failed(problem) => {
                self.failures = self.failures.saturating_add(1).min(rules.failures);
                if self.failures >= rules.failures && !self.is_ejected(now) {
                    self.ejected = Some((now + rules.eject, problem));
                    // After the ejection, one more failure ejects the backend again.
                    self.failures = rules.failures - 1;
                    return Change::Ejected;
                }
            }
            HealthEvent::CheckPassed => (self.down, self.silent) = (None, false),
            HealthEvent::CheckFailed(problem) => (self.down, self.silent) = (Some(problem), false),
            HealthEvent::CheckTimedOut(problem) => (self.down, self.silent) = (Some(problem), true),
        }
        match (before, self.is_healthy(now)) {
            (false, true) => {
                self.recovered = Some(now);
                Change::Recovered
            }
            (true, false) => Change::Down,
            _ => Change::None,
        }
    }

    fn is_ejected(&self, now: Instant) -> bool {
        self.ejected.as_ref().is_some_and(|(until, _)| now < *until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: PassiveHealth = PassiveHealth {
        failures: 3,
        eject: Duration::from_secs(10),
    };

    fn failed() -> HealthEvent {
        HealthEvent::Failed("refused".into())
    }

    fn at(start: Instant, seconds: u64) -> Instant {
        start + Duration::from_secs(seconds)
    }

    #[test]
    fn failures_in_a_row_eject_and_an_answer_between_them_does_not() {
        let now = Instant::now();
        let mut health = Health::default();
        for event in [
            failed(),
            failed(),
            HealthEvent::Answered,
            failed(),
            failed(),
        ] {
            assert_eq!(health.on(event, now, &RULES), Change::None);
        }
        assert!(health.is_healthy(now));
        assert_eq!(health.on(failed(), now, &RULES), Change::Ejected);
        assert!(!health.is_healthy(now));
        assert_eq!(health.problem(now), Some("refused"));
    }

    #[test]
    fn after_its_time_a_backend_is_back_with_a_small_share_and_one_failure_ejects_it_again() {
        let now = Instant::now();
        let mut health = Health::default();
        for _ in 0..3 {
            health.on(failed(), now, &RULES);
        }
        let (back, later) = (at(now, 10), at(now, 15));
        assert!(!health.is_healthy(at(now, 9)) && health.is_healthy(back));
        assert!((health.share(back) - FIRST_SHARE).abs() < 0.01);
        assert!((health.share(later) - 0.5).abs() < 0.01);
        assert!((health.share(at(now, 20)) - 1.0).abs() < 0.01);
        assert_eq!(health.on(failed(), later, &RULES), Change::Ejected);
        assert!(!health.is_healthy(at(now, 24)) && health.is_healthy(at(now, 25)));
    }

    #[test]
    fn a_request_that_is_answered_brings_a_backend_back_at_once() {
        let now = Instant::now();
        let mut health = Health::default();
        for _ in 0..3 {
            health.on(failed(), now, &RULES);
        }
        assert_eq!(
            health.on(HealthEvent::Answered, at(now, 1), &RULES),
            Change::Recovered
        );
        assert!(health.is_healthy(at(now, 1)));
        assert!((health.share(at(now, 1)) - FIRST_SHARE).abs() < 0.01);
    }

    #[test]
    fn what_a_check_says_holds_until_the_next_check() {
        let now = Instant::now();
        let mut health = Health::default();
        let refused = || HealthEvent::CheckFailed("404".into());
        assert_eq!(health.on(refused(), now, &RULES), Change::Down);
        assert_eq!(health.on(HealthEvent::Answered, now, &RULES), Change::None);
        assert_eq!(health.on(refused(), now, &RULES), Change::None);
        assert!(!health.is_healthy(at(now, 100)));
        assert_eq!(health.problem(now), Some("404"));
        assert_eq!(
            health.on(HealthEvent::CheckPassed, now, &RULES),
            Change::Recovered
        );
        assert!(health.is_healthy(now));
    }

    #[test]
    fn a_check_that_passes_does_not_end_an_ejection() {
        let now = Instant::now();
        let mut health = Health::default();
        for _ in 0..3 {
            health.on(failed(), now, &RULES);
        }
        assert_eq!(
            health.on(HealthEvent::CheckPassed, now, &RULES),
            Change::None
        );
        assert!(!health.is_healthy(now));
    }

    #[test]
    fn a_backend_that_is_not_healthy_is_tried_once_a_second() {
        let now = Instant::now();
        let mut health = Health::default();
        assert!(health.may_be_tried(now));
        assert!(!health.may_be_tried(now + Duration::from_millis(999)));
        assert!(health.may_be_tried(at(now, 1)));
    }
}
