//! The messages of a batch as spans, and never many more of them than one batch may have: a body of zeros has a million.

use std::fmt;

use serde::de::{Deserializer, Error, SeqAccess, Visitor};
use serde_json::value::RawValue;

/// The most messages of one batch.
pub(crate) const MESSAGES_MAX: usize = 50;

/// The messages of a batch, unread. Of a batch that is too long only the first [`MESSAGES_MAX`] and one more, which says so;
/// what comes behind them is not looked at.
///
/// # Errors
///
/// Those of `serde_json` for an array of anything.
pub(super) fn messages(text: &str) -> Result<Vec<&RawValue>, serde_json::Error> {
    let mut messages = Vec::new();
    let mut reader = serde_json::Deserializer::from_str(text);
    let read = reader.deserialize_seq(First(&mut messages));
    if messages.len() > MESSAGES_MAX {
        return Ok(messages);
    }
    read.and_then(|()| reader.end()).map(|()| messages)
}

struct First<'m, 'de>(&'m mut Vec<&'de RawValue>);

impl<'de> Visitor<'de> for First<'_, 'de> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array of messages")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        while let Some(message) = items.next_element()? {
            self.0.push(message);
            if self.0.len() > MESSAGES_MAX {
                // Only this ends the reading; the caller goes by the number.
                return Err(A::Error::custom("enough"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(messages: usize, end: &str) -> String {
        format!("[{}{end}", vec!["0"; messages].join(","))
    }

    #[test]
    fn a_batch_is_read_up_to_the_first_message_that_is_too_many() {
        let read = |text: &str| messages(text).map(|messages| messages.len()).ok();
        assert_eq!(read(&of(0, "]")), Some(0));
        assert_eq!(read(&of(MESSAGES_MAX, "] ")), Some(MESSAGES_MAX));
        assert_eq!(read(&of(MESSAGES_MAX, "")), None);
        assert_eq!(read(&of(MESSAGES_MAX, "]]")), None);
        assert_eq!(read("[1,]"), None);
        // What follows the one too many does not matter any more.
        for end in ["]", "", ",x"] {
            assert_eq!(read(&of(MESSAGES_MAX + 1, end)), Some(MESSAGES_MAX + 1));
            assert_eq!(read(&of(1_000_000, end)), Some(MESSAGES_MAX + 1));
        }
    }

    #[test]
    fn a_batch_of_zeros_costs_no_more_than_the_messages_of_one_batch() {
        let text = of(2_000_000, "]");
        let cost = allocation_counter::measure(|| {
            assert!(messages(&text).is_ok());
        });
        assert!(cost.bytes_max <= 4096, "{} bytes", cost.bytes_max);
    }
}
