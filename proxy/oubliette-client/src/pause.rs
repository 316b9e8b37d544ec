//! Pauses between attempts to connect or to fetch the tools.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Pauses between attempts. Each is twice as long as the one before, up to a maximum.
pub(crate) struct Pauses {
    /// The pause after the first attempt.
    pub(crate) first: Duration,
    /// The maximum length of a pause.
    pub(crate) longest: Duration,
}

impl Pauses {
    /// Returns the pause that follows this one.
    pub(crate) fn after(&self, pause: Duration) -> Duration {
        (pause * 2).min(self.longest)
    }
}

/// Adds a varying share of up to half of a pause, so that the containers of a restarted host do not all reconnect at once.
pub(crate) fn spread(pause: Duration) -> Duration {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let nanos = now.unwrap_or_default().subsec_nanos() ^ std::process::id().rotate_left(16);
    pause + pause * (nanos % 512) / 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_the_longest_and_are_spread_by_half_at_most() {
        let second = Duration::from_secs(1);
        let pauses = Pauses {
            first: second,
            longest: 3 * second,
        };
        assert_eq!(pauses.after(pauses.first), 2 * second);
        assert_eq!(pauses.after(2 * second), 3 * second);
        assert_eq!(pauses.after(3 * second), 3 * second);
        let spread = spread(second);
        assert!(spread >= second && spread <= second * 3 / 2);
    }
}
