//! Limits the rate of logged lines by a token bucket, and counts the lines that are not logged. The current time is a parameter.

use std::time::Duration;

use tokio::time::Instant;

/// Maximum number of lines that are logged in a burst.
pub(super) const BURST: u32 = 200;
/// Average number of lines per second that may be logged.
const PER_SECOND: f64 = 50.0;
/// Minimum time between two reports of the number of suppressed lines.
pub(super) const WINDOW: Duration = Duration::from_secs(10);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Admission {
    Log,
    Suppress,
}

#[derive(Debug)]
pub(super) struct Rate {
    tokens: f64,
    refilled: Instant,
    /// Number of suppressed lines that were not reported yet, and the time of the first of them.
    suppressed: u64,
    since: Instant,
}

impl Rate {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            tokens: f64::from(BURST),
            refilled: now,
            suppressed: 0,
            since: now,
        }
    }

    pub(super) fn admit(&mut self, now: Instant) -> Admission {
        let passed = now.saturating_duration_since(self.refilled).as_secs_f64();
        self.tokens = (self.tokens + passed * PER_SECOND).min(f64::from(BURST));
        self.refilled = now;
        if self.tokens >= 1.0 {
            self.tokens -= 1.0;
            return Admission::Log;
        }
        if self.suppressed == 0 {
            self.since = now;
        }
        self.suppressed += 1;
        Admission::Suppress
    }

    /// The number of lines that were suppressed since the last report; `None` if there are none or the window is not over yet.
    pub(super) fn due(&mut self, now: Instant) -> Option<u64> {
        let due = self.has_suppressed() && now.saturating_duration_since(self.since) >= WINDOW;
        due.then(|| std::mem::take(&mut self.suppressed))
    }

    /// The number of suppressed lines that were not reported yet, for the end of the stream; `None` if there are none.
    pub(super) fn rest(&mut self) -> Option<u64> {
        Some(std::mem::take(&mut self.suppressed)).filter(|count| *count > 0)
    }

    pub(super) fn has_suppressed(&self) -> bool {
        self.suppressed > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lets_a_burst_through_then_a_steady_rate_and_reports_the_rest_once_per_window() {
        let start = Instant::now();
        let mut rate = Rate::new(start);
        let logged = |rate: &mut Rate, now, lines| {
            (0..lines)
                .filter(|_| rate.admit(now) == Admission::Log)
                .count()
        };
        assert_eq!(logged(&mut rate, start, 1000), 200);
        assert_eq!(rate.due(start), None);
        let later = start + Duration::from_secs(2);
        assert_eq!(logged(&mut rate, later, 1000), 100);
        assert_eq!(rate.due(start + WINDOW), Some(800 + 900));
        assert_eq!(rate.due(start + WINDOW), None);
        assert!(!rate.has_suppressed());
    }
}
