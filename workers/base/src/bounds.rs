//! Lower and upper bounds of configured numbers, sizes and times, and the error text for a value outside of its bounds.

use std::ops::RangeInclusive;
use std::time::Duration;

use bytesize::ByteSize;
use humantime_serde::re::humantime::format_duration;

/// Bounds of any configured time. A longer time is treated as a mistake, and much longer ones would overflow the clock.
pub const TIMES: RangeInclusive<Duration> =
    Duration::from_millis(1)..=Duration::from_secs(365 * 24 * 3600 + 6 * 3600);

/// A type of values that can have bounds.
pub trait BoundedValue: Copy + PartialOrd {
    /// The value as it is written in a configuration file.
    fn spelled(self) -> String;
}

impl BoundedValue for u32 {
    fn spelled(self) -> String {
        self.to_string()
    }
}

impl BoundedValue for usize {
    fn spelled(self) -> String {
        self.to_string()
    }
}

impl BoundedValue for ByteSize {
    fn spelled(self) -> String {
        self.to_string()
    }
}

impl BoundedValue for Duration {
    fn spelled(self) -> String {
        format_duration(self).to_string()
    }
}

/// Checks that a value is within its bounds.
///
/// # Errors
///
/// A text that names the value and its bounds. The caller puts the key before it.
pub fn within<T: BoundedValue>(value: T, bounds: &RangeInclusive<T>) -> Result<(), String> {
    if bounds.contains(&value) {
        return Ok(());
    }
    let (least, most) = (bounds.start().spelled(), bounds.end().spelled());
    Err(format!(
        "{} is not between {least} and {most}",
        value.spelled()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_and_its_bounds_are_spelled_as_in_the_file() {
        assert_eq!(within(5_usize, &(1..=5)), Ok(()));
        let refused = |refused: Result<(), String>| refused.expect_err("out of bounds");
        assert_eq!(refused(within(0_u32, &(1..=5))), "0 is not between 1 and 5");
        assert_eq!(
            refused(within(Duration::ZERO, &TIMES)),
            "0s is not between 1ms and 1year"
        );
        let sizes = ByteSize::b(1)..=ByteSize::gib(1);
        assert_eq!(
            refused(within(ByteSize::gib(2), &sizes)),
            "2.0 GiB is not between 1 B and 1.0 GiB"
        );
    }
}
