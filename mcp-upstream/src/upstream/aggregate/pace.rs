//! How often a member is read.

use std::time::Duration;

/// How often lists that could not be read are asked for while something else stands for them: not for ever, since a
/// server that is asked is never stopped for nobody's use.
const AGAIN_MAX: u32 = 6;

/// How long a member is left alone before it is asked again after it could not be.
pub(super) fn retry_after(failures: u32) -> Duration {
    Duration::from_secs(1 << failures.min(6))
}

/// The same where it offers something meanwhile; `None` once that has been tried often enough.
pub(super) fn again_after(failures: u32) -> Option<Duration> {
    (1..=AGAIN_MAX)
        .contains(&failures)
        .then(|| retry_after(failures))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_offers_something_is_not_asked_for_the_rest_for_ever() {
        assert_eq!(again_after(0), None);
        assert_eq!(again_after(1), Some(Duration::from_secs(2)));
        assert_eq!(again_after(AGAIN_MAX), Some(Duration::from_secs(64)));
        assert_eq!(again_after(AGAIN_MAX + 1), None);
        assert_eq!(retry_after(100), Duration::from_secs(64));
    }
}
