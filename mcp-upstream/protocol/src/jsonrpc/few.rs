//! Reads at most a certain number of elements of an array. A body such as `[0,0,…]` may contain millions of elements.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error, SeqAccess, Visitor};

/// Reads the elements of an array, at most `max` and one more. If there is one more, the caller knows that the array is too long;
/// further elements are not read.
///
/// # Errors
///
/// The error of `serde_json` if the text is not an array of such elements.
pub fn few<'de, T: Deserialize<'de>>(
    text: &'de str,
    max: usize,
) -> Result<Vec<T>, serde_json::Error> {
    let mut elements = Vec::new();
    let mut reader = serde_json::Deserializer::from_str(text);
    let read = reader.deserialize_seq(First {
        elements: &mut elements,
        max,
    });
    if elements.len() > max {
        return Ok(elements);
    }
    read.and_then(|()| reader.end()).map(|()| elements)
}

struct First<'e, T> {
    elements: &'e mut Vec<T>,
    max: usize,
}

impl<'de, T: Deserialize<'de>> Visitor<'de> for First<'_, T> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        while let Some(element) = items.next_element()? {
            self.elements.push(element);
            if self.elements.len() > self.max {
                // This error only makes the parser stop; the elements read so far are returned.
                return Err(A::Error::custom("enough"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::value::RawValue;

    use super::*;
    use crate::jsonrpc::MESSAGES_MAX;

    fn messages(text: &str) -> Result<Vec<&RawValue>, serde_json::Error> {
        few(text, MESSAGES_MAX)
    }

    fn of(messages: usize, end: &str) -> String {
        format!("[{}{end}", vec!["0"; messages].join(","))
    }

    #[test]
    fn an_array_is_read_up_to_the_first_element_that_is_too_many() {
        let read = |text: &str| messages(text).map(|messages| messages.len()).ok();
        assert_eq!(read(&of(0, "]")), Some(0));
        assert_eq!(read(&of(MESSAGES_MAX, "] ")), Some(MESSAGES_MAX));
        assert_eq!(read(&of(MESSAGES_MAX, "")), None);
        assert_eq!(read(&of(MESSAGES_MAX, "]]")), None);
        assert_eq!(read("[1,]"), None);
        // The text after the excess element is not read.
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
