//! The entries of a JSON object whose keys are not known beforehand, as spans.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserializer, Error, MapAccess, Visitor};
use serde_json::value::RawValue;

struct Entries;

impl<'de> Visitor<'de> for Entries {
    type Value = Vec<(Cow<'de, str>, &'de RawValue)>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut entries = Vec::new();
        let mut seen = std::collections::HashSet::new();
        while let Some((key, value)) = map.next_entry::<&'de RawValue, &'de RawValue>()? {
            let key = crate::envelope::string(key).ok_or_else(|| A::Error::custom("bad key"))?;
            if !seen.insert(key.clone()) {
                return Err(A::Error::custom("a key is there twice"));
            }
            entries.push((key, value));
        }
        Ok(entries)
    }
}

/// The entries in their order. `None` for anything but an object whose keys are unique.
pub(crate) fn entries(raw: &RawValue) -> Option<Vec<(Cow<'_, str>, &RawValue)>> {
    let mut deserializer = serde_json::Deserializer::from_str(raw.get());
    deserializer.deserialize_map(Entries).ok()
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
}
