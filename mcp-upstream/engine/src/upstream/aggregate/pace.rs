//! Pauses between readings of a member.

use std::time::Duration;

/// Delay of a reading after a list has changed, so that several changes in a row are read once.
const PAUSE: Duration = Duration::from_millis(100);
/// Maximum pause between two readings of a member whose lists change all the time.
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// Time without a change after a reading, after which the pause is reset to its shortest length.
const QUIET: Duration = Duration::from_secs(10);
/// Maximum number of retries for lists that could not be read, while the former lists are published in their place. The number
/// is bounded, since these requests prevent the server from being stopped as unused.
const AGAIN_MAX: u32 = 6;

/// Pause before the next reading of a member that announced a changed list.
#[derive(Debug, Default)]
pub(super) struct Pace(Duration);

impl Pace {
    /// The delay after a change that occurred `quiet` after the last reading: each change soon after a reading doubles the
    /// delay, so that a member that answers each reading with a change is not read continuously.
    pub(super) fn after(&mut self, quiet: Duration) -> Duration {
        let before = match quiet < QUIET {
            true => self.0,
            false => Duration::ZERO,
        };
        self.0 = (before * 2).clamp(PAUSE, PAUSE_MAX);
        self.0
    }
}

/// Pause before a member is read again after a failure.
pub(super) fn retry_after(failures: u32) -> Duration {
    Duration::from_secs(1 << failures.min(6))
}

/// Pause before lists that could not be read are requested again, while the member has an offer; `None` after [`AGAIN_MAX`]
/// attempts.
pub(super) fn again_after(failures: u32) -> Option<Duration> {
    (1..=AGAIN_MAX)
        .contains(&failures)
        .then(|| retry_after(failures))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_that_never_stops_changing_is_read_less_and_less() {
        let mut pace = Pace::default();
        let soon = Duration::from_millis(5);
        assert_eq!(pace.after(soon), PAUSE);
        assert_eq!(pace.after(soon), 2 * PAUSE);
        for _ in 0..20 {
            pace.after(soon);
        }
        assert_eq!(pace.after(soon), PAUSE_MAX);
        // After a quiet time, the pause starts anew.
        assert_eq!(pace.after(QUIET), PAUSE);
    }

    #[test]
    fn what_offers_something_is_not_asked_for_the_rest_for_ever() {
        assert_eq!(again_after(0), None);
        assert_eq!(again_after(1), Some(Duration::from_secs(2)));
        assert_eq!(again_after(AGAIN_MAX), Some(Duration::from_secs(64)));
        assert_eq!(again_after(AGAIN_MAX + 1), None);
        assert_eq!(retry_after(100), Duration::from_secs(64));
    }
}
