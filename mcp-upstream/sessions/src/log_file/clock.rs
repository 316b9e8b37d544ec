//! Formats the time of a log record, and gives the day for the name of a log file.
//!
//! Consecutive records are mostly of the same second, so the calendar is computed once a second.

use std::io::Write;
use std::time::{SystemTime, UNIX_EPOCH};

use time::{Date, OffsetDateTime};

/// Formatter of times. Keeps the calendar fields of the second that it formatted most recently.
#[derive(Debug, Default)]
pub struct Clock(Option<Second>);

#[derive(Debug)]
struct Second {
    since_epoch: i64,
    day: Date,
    /// Date and time of the second, such as `2026-02-13T10:00:00`.
    text: Vec<u8>,
}

impl Clock {
    /// Appends a moment in RFC 3339 with milliseconds, UTC.
    pub fn rfc3339(&mut self, at: SystemTime, line: &mut Vec<u8>) {
        let (second, millisecond) = self.second(at);
        line.extend_from_slice(&second.text);
        let digit = |value: u32| b'0' + (value % 10) as u8;
        line.extend_from_slice(&[
            b'.',
            digit(millisecond / 100),
            digit(millisecond / 10),
            digit(millisecond),
            b'Z',
        ]);
    }

    /// Appends a moment in the common log format, UTC: `13/Feb/2026:10:00:00 +0000`.
    pub fn common_log(&mut self, at: SystemTime, line: &mut Vec<u8>) {
        let (second, _) = self.second(at);
        let month: &str = &second.day.month().to_string()[..3];
        let (year, day) = (second.day.year(), second.day.day());
        line.extend_from_slice(format!("{day:02}/{month}/{year:04}:").as_bytes());
        line.extend_from_slice(&second.text[second.text.len() - "10:00:00".len()..]);
        line.extend_from_slice(b" +0000");
    }

    /// The UTC day of a moment.
    pub(crate) fn day(&mut self, at: SystemTime) -> Date {
        self.second(at).0.day
    }

    /// The second of a moment, and the milliseconds in it.
    fn second(&mut self, at: SystemTime) -> (&Second, u32) {
        let (since_epoch, milliseconds) = match at.duration_since(UNIX_EPOCH) {
            Ok(after) => (after.as_secs().cast_signed(), after.subsec_millis()),
            Err(_) => {
                let at = OffsetDateTime::from(at);
                (at.unix_timestamp(), at.millisecond().into())
            }
        };
        let second = match self.0.take() {
            Some(second) if second.since_epoch == since_epoch => second,
            _ => Second::new(since_epoch, at.into()),
        };
        (self.0.insert(second), milliseconds)
    }
}

impl Second {
    fn new(since_epoch: i64, at: OffsetDateTime) -> Self {
        let day = at.date();
        let (hour, minute, second) = at.to_hms();
        let mut text = Vec::with_capacity(24);
        write!(text, "{day}T{hour:02}:{minute:02}:{second:02}")
            .expect("memory takes what is written");
        Self {
            since_epoch,
            day,
            text,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn moments_of_one_second_and_of_others_are_told_apart() {
        let mut clock = Clock::default();
        let mut at = |milliseconds| {
            let at = UNIX_EPOCH + Duration::from_millis(milliseconds);
            let mut text = Vec::new();
            clock.rfc3339(at, &mut text);
            let text = String::from_utf8(text).expect("ASCII");
            assert_eq!(clock.day(at).to_string(), text[..10]);
            text
        };
        assert_eq!(at(1_770_976_800_123), "2026-02-13T10:00:00.123Z");
        assert_eq!(at(1_770_976_800_007), "2026-02-13T10:00:00.007Z");
        assert_eq!(at(1_770_976_801_000), "2026-02-13T10:00:01.000Z");
        assert_eq!(at(1_770_976_800_999), "2026-02-13T10:00:00.999Z");
        assert_eq!(at(1_771_027_199_999), "2026-02-13T23:59:59.999Z");
        assert_eq!(at(1_771_027_200_000), "2026-02-14T00:00:00.000Z");
    }

    #[test]
    fn web_servers_have_a_spelling_of_their_own() {
        let mut text = Vec::new();
        let at = UNIX_EPOCH + Duration::from_millis(1_770_105_661_500);
        Clock::default().common_log(at, &mut text);
        assert_eq!(text, b"03/Feb/2026:08:01:01 +0000");
    }

    #[test]
    fn a_clock_before_1970_is_written_as_it_is() {
        let before = UNIX_EPOCH - Duration::from_millis(1);
        let mut text = Vec::new();
        Clock::default().rfc3339(before, &mut text);
        assert_eq!(text, b"1969-12-31T23:59:59.999Z");
    }
}
