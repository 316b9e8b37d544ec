//! Canonical form of a definition, whose bytes depend only on the definition's meaning, and the digest of that form.
//!
//! Keys are sorted and spaces are removed. If an object contains a key twice, both values are kept in their order: some clients
//! read the first value and some the last, so both matter.

use std::fmt::{self, Write as _};

use serde::Serialize;
use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use sha2::{Digest as _, Sha256};

/// A JSON value. Objects are sorted by key and may contain a key several times.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Node {
    /// A number, a boolean or null, as JSON text.
    Plain(String),
    /// A decoded JSON string.
    Text(String),
    /// A JSON array.
    List(Vec<Node>),
    /// Keys and values of a JSON object, sorted by key.
    Object(Vec<(String, Node)>),
}

impl Node {
    /// Parses a definition; `None` if it is not valid JSON, or cannot be compared by meaning because a number is out of range or
    /// the nesting is too deep.
    pub(super) fn read(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }

    /// The value of a key of an object; the first one if the key occurs several times.
    pub(super) fn get(&self, key: &str) -> Option<&Self> {
        let Self::Object(members) = self else {
            return None;
        };
        members.iter().find(|(own, _)| own == key).map(|(_, it)| it)
    }

    /// The value as JSON with sorted keys, without spaces.
    pub(super) fn to_json(&self) -> String {
        let mut out = String::new();
        self.write(&mut out);
        out
    }

    fn write(&self, out: &mut String) {
        let text = |out: &mut String, text: &str| {
            // Serialising a text cannot fail.
            out.push_str(&serde_json::to_string(text).unwrap_or_default());
        };
        match self {
            Self::Plain(plain) => out.push_str(plain),
            Self::Text(own) => text(out, own),
            Self::List(items) => {
                out.push('[');
                for (at, item) in items.iter().enumerate() {
                    if at > 0 {
                        out.push(',');
                    }
                    item.write(out);
                }
                out.push(']');
            }
            Self::Object(members) => {
                out.push('{');
                for (at, (key, value)) in members.iter().enumerate() {
                    if at > 0 {
                        out.push(',');
                    }
                    text(out, key);
                    out.push(':');
                    value.write(out);
                }
                out.push('}');
            }
        }
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;

        impl<'de> Visitor<'de> for Reader {
            type Value = Node;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("JSON")
            }

            fn visit_bool<E>(self, value: bool) -> Result<Node, E> {
                Ok(plain(value))
            }

            fn visit_i64<E>(self, value: i64) -> Result<Node, E> {
                Ok(plain(value))
            }

            fn visit_u64<E>(self, value: u64) -> Result<Node, E> {
                Ok(plain(value))
            }

            fn visit_f64<E>(self, value: f64) -> Result<Node, E> {
                Ok(plain(value))
            }

            fn visit_unit<E>(self) -> Result<Node, E> {
                Ok(Node::Plain("null".to_owned()))
            }

            fn visit_str<E>(self, value: &str) -> Result<Node, E> {
                Ok(Node::Text(value.to_owned()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Node, A::Error> {
                let mut items = Vec::new();
                while let Some(item) = seq.next_element()? {
                    items.push(item);
                }
                Ok(Node::List(items))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Node, A::Error> {
                let mut members: Vec<(String, Node)> = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                // The sort is stable, so values with equal keys keep their order.
                members.sort_by(|one, other| one.0.cmp(&other.0));
                Ok(Node::Object(members))
            }
        }

        deserializer.deserialize_any(Reader)
    }
}

fn plain(value: impl Serialize) -> Node {
    Node::Plain(serde_json::to_string(&value).unwrap_or_default())
}

/// Returns the canonical form of a definition. A definition that cannot be parsed is returned unchanged, so that every byte of
/// it matters.
pub(super) fn canonical(text: &str) -> String {
    Node::read(text).map_or_else(|| text.to_owned(), |node| node.to_json())
}

/// Returns the digest of a canonical definition: SHA-256 in hexadecimal.
pub(super) fn digest(canonical: &str) -> String {
    let mut hex = String::with_capacity(64);
    for byte in Sha256::digest(canonical) {
        // Writing to a `String` cannot fail.
        let _ = write!(hex, "{byte:02x}");
    }
    hex
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> String {
        digest(&canonical(text))
    }

    #[test]
    fn a_digest_goes_by_the_meaning_of_a_definition() {
        let one = of(r#"{"name":"a","inputSchema":{"type":"object","required":["x","y"]},"n":1}"#);
        let same = of(
            r#" { "inputSchema": {"required" : ["x","y"], "type":"\u006fbject"}, "n": 1, "name" : "a" } "#,
        );
        assert_eq!(one, same);
        for other in [
            r#"{"name":"b","inputSchema":{"type":"object","required":["x","y"]},"n":1}"#,
            r#"{"name":"a","inputSchema":{"type":"object","required":["y","x"]},"n":1}"#,
            r#"{"name":"a","inputSchema":{"type":"object","required":["x","y"]},"n":"1"}"#,
            r#"{"name":"a","inputSchema":{"type":"object","required":["x","y"]},"n":null}"#,
            r#"{"name":"a","inputSchema":{"type":"object","required":["x","y"]}}"#,
        ] {
            assert_ne!(one, of(other), "{other}");
        }
    }

    #[test]
    fn both_values_of_a_repeated_key_count() {
        let both = |first, second| {
            of(&format!(
                r#"{{"name":"a","description":"{first}","description":"{second}"}}"#
            ))
        };
        assert_ne!(both("x", "y"), both("z", "y"));
        assert_ne!(both("x", "y"), both("x", "z"));
        assert_ne!(both("x", "y"), both("y", "x"));
        assert_ne!(both("x", "x"), of(r#"{"name":"a","description":"x"}"#));
    }

    #[test]
    fn every_byte_of_a_definition_counts_that_cannot_be_read() {
        let number = |about| of(&format!(r#"{{"description":"{about}","n":1e999}}"#));
        assert_ne!(number("x"), number("y"));
        let deep = |about| {
            let (open, close) = ("[".repeat(300), "]".repeat(300));
            of(&format!(r#"{{"description":"{about}","n":{open}{close}}}"#))
        };
        assert_ne!(deep("x"), deep("y"));
        assert_eq!(deep("x"), deep("x"));
    }
}
