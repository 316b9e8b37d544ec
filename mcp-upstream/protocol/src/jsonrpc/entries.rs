//! Reads the entries of a JSON object with arbitrary keys. The values are not decoded.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserializer, Error, MapAccess, Visitor};
use serde_json::value::RawValue;

struct EntriesVisitor {
    max: usize,
    /// True if a key may be repeated; otherwise an object with a repeated key is refused.
    repeated: bool,
}

impl<'de> Visitor<'de> for EntriesVisitor {
    type Value = Vec<(Cow<'de, str>, &'de RawValue)>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut entries = Vec::new();
        let mut seen = std::collections::HashSet::new();
        while let Some((key, value)) = map.next_entry::<&'de RawValue, &'de RawValue>()? {
            let key = super::string(key).ok_or_else(|| A::Error::custom("bad key"))?;
            if !self.repeated && !seen.insert(key.clone()) {
                return Err(A::Error::custom("a key is there twice"));
            }
            if entries.len() == self.max {
                return Err(A::Error::custom("too many keys"));
            }
            entries.push((key, value));
        }
        Ok(entries)
    }
}

/// The entries of an object, in order. Returns `None` if the value is not an object, or contains a repeated key.
pub fn entries(raw: &RawValue) -> Option<Vec<(Cow<'_, str>, &RawValue)>> {
    few_entries(raw, usize::MAX)
}

/// The entries of an object, in order, including all entries of repeated keys. Returns `None` if the value is not an object.
pub fn all_entries(raw: &RawValue) -> Option<Vec<(Cow<'_, str>, &RawValue)>> {
    let mut deserializer = serde_json::Deserializer::from_str(raw.get());
    let entries = EntriesVisitor {
        max: usize::MAX,
        repeated: true,
    };
    deserializer.deserialize_map(entries).ok()
}

/// The entries of an object from a client, in order. Returns `None` if the object has more than `max` entries or a repeated key.
pub fn few_entries(raw: &RawValue, max: usize) -> Option<Vec<(Cow<'_, str>, &RawValue)>> {
    let mut deserializer = serde_json::Deserializer::from_str(raw.get());
    let entries = EntriesVisitor {
        max,
        repeated: false,
    };
    deserializer.deserialize_map(entries).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(text: &'static str) -> Option<Vec<String>> {
        let raw: &RawValue = serde_json::from_str(text).expect("JSON");
        let entries = entries(raw)?;
        Some(
            entries
                .into_iter()
                .map(|(key, _)| key.into_owned())
                .collect(),
        )
    }

    #[test]
    fn entries_keep_their_order_and_no_key_comes_twice() {
        assert_eq!(
            keys(r#"{"b":1,"a\n":{"x":[2]},"":null}"#),
            Some(vec!["b".into(), "a\n".into(), String::new()])
        );
        for text in [r#"{"a":1,"\u0061":2}"#, "[]", "null", "3", r#""{}""#] {
            assert_eq!(keys(text), None, "{text}");
        }
    }

    #[test]
    fn there_is_an_end_to_the_entries_a_client_may_send() {
        let raw: &RawValue = serde_json::from_str(r#"{"a":1,"b":2}"#).expect("JSON");
        assert_eq!(few_entries(raw, 2).map(|entries| entries.len()), Some(2));
        assert!(few_entries(raw, 1).is_none());
    }
}
