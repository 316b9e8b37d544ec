//! Pauses before something is tried again.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Pauses between tries; each is twice the one before.
pub(crate) struct Pauses {
    /// The first one.
    pub(crate) first: Duration,
    /// The upper bound of all pauses.
    pub(crate) longest: Duration,
}

impl Pauses {
    /// The pause after this one.
    pub(crate) fn after(&self, pause: Duration) -> Duration {
        (pause * 2).min(self.longest)
    }
}

/// Up to half of a pause more, so that the containers of a host that comes back do not all come at once.
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
