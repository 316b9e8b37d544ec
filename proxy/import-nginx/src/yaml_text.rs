//! Writes YAML with comments, which the YAML library cannot write. Scalars are formatted by the library.

use std::fmt::Write;

use tooldock_base::yaml::{self, Value};

use crate::tree::Directive;

/// A YAML value whose entries may have comments.
#[derive(Clone)]
pub(crate) enum Node {
    Scalar(Value),
    Map(Map),
    List(Vec<Item>),
}

/// A YAML map; its keys keep the order in which they were added.
#[derive(Clone, Default)]
pub(crate) struct Map(Vec<YamlEntry>);

#[derive(Clone)]
struct YamlEntry {
    comment: String,
    key: String,
    node: Node,
}

/// An entry of a YAML list.
#[derive(Clone)]
pub(crate) struct Item {
    pub(crate) comment: String,
    pub(crate) node: Node,
}

impl Item {
    pub(crate) fn new(comment: impl Into<String>, node: impl Into<Node>) -> Self {
        Self {
            comment: comment.into(),
            node: node.into(),
        }
    }
}

impl<const N: usize> From<[(&str, Node); N]> for Map {
    fn from(entries: [(&str, Node); N]) -> Self {
        let mut map = Self::default();
        for (key, node) in entries {
            map.add(key, node);
        }
        map
    }
}

impl Map {
    /// Adds a key without a comment. A key whose value is an empty map is not added.
    pub(crate) fn add(&mut self, key: &str, node: impl Into<Node>) {
        self.add_with(key, node, "");
    }

    /// Adds a key with a comment above it. A key whose value is an empty map is not added.
    pub(crate) fn add_with(
        &mut self,
        key: &str,
        node: impl Into<Node>,
        comment: impl Into<String>,
    ) {
        let node = node.into();
        if matches!(&node, Node::Map(map) if map.is_empty()) {
            return;
        }
        self.0.push(YamlEntry {
            comment: comment.into(),
            key: key.to_owned(),
            node,
        });
    }

    /// Adds a key with the position of the nginx directive from which it comes as its comment.
    pub(crate) fn add_at(&mut self, key: &str, node: impl Into<Node>, at: &Directive) {
        self.add_with(key, node, at.place.to_string());
    }

    /// Adds a list without a comment, unless it is empty.
    pub(crate) fn add_list(&mut self, key: &str, items: Vec<Item>) {
        if !items.is_empty() {
            self.add(key, Node::List(items));
        }
    }

    /// Returns true if the map has this key.
    pub(crate) fn has(&self, key: &str) -> bool {
        self.0.iter().any(|entry| entry.key == key)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the YAML text, with comments.
    pub(crate) fn to_yaml(&self) -> String {
        let mut text = String::new();
        self.write(&mut text, 0, false);
        text
    }

    /// Returns the YAML value, without comments.
    pub(crate) fn value(&self) -> Value {
        yaml::from_str(&self.to_yaml()).unwrap_or_default()
    }

    /// Writes the keys. The first key of a list entry has the dash before it, below its comment.
    fn write(&self, text: &mut String, indent: usize, is_item: bool) {
        for (index, entry) in self.0.iter().enumerate() {
            comment(text, indent, &entry.comment);
            if is_item && index == 0 {
                pad(text, indent - 2);
                text.push_str("- ");
            } else {
                pad(text, indent);
            }
            text.push_str(&scalar(&Value::from(entry.key.as_str())));
            text.push(':');
            entry.node.write_after(text, indent);
        }
    }
}

impl Node {
    /// Creates a YAML list of scalars without comments.
    pub(crate) fn list<T: Into<Value>>(values: impl IntoIterator<Item = T>) -> Self {
        let items = values
            .into_iter()
            .map(|value| Item::new("", Self::Scalar(value.into())));
        Self::List(items.collect())
    }

    /// Writes the value of a key: after it on the same line, or indented on the next lines.
    fn write_after(&self, text: &mut String, indent: usize) {
        match self {
            Self::Scalar(value) => {
                // Writing to a string cannot fail.
                let _ = writeln!(text, " {}", scalar(value));
            }
            Self::List(items) if items.is_empty() => text.push_str(" []\n"),
            Self::Map(map) => {
                text.push('\n');
                map.write(text, indent + 2, false);
            }
            Self::List(items) => {
                text.push('\n');
                for item in items {
                    item.write(text, indent + 2);
                }
            }
        }
    }
}

impl Item {
    fn write(&self, text: &mut String, indent: usize) {
        comment(text, indent, &self.comment);
        match &self.node {
            Node::Scalar(value) => {
                pad(text, indent);
                let _ = writeln!(text, "- {}", scalar(value));
            }
            Node::Map(map) => map.write(text, indent + 2, true),
            // Lists of lists are not written, as no key of the gateway's configuration has one.
            Node::List(_) => {}
        }
    }
}

impl From<Map> for Node {
    fn from(map: Map) -> Self {
        Self::Map(map)
    }
}

macro_rules! scalars {
    ($($kind:ty),+) => {$(
        impl From<$kind> for Node {
            fn from(value: $kind) -> Self {
                Self::Scalar(value.into())
            }
        }
    )+};
}

scalars!(&str, String, bool, u32, u64, usize);

fn pad(text: &mut String, indent: usize) {
    text.extend(std::iter::repeat_n(' ', indent));
}

/// Writes a comment, with `#` before each of its lines.
fn comment(text: &mut String, indent: usize, comment: &str) {
    for line in comment.lines() {
        pad(text, indent);
        text.push_str("# ");
        text.push_str(&line.replace(char::is_control, " "));
        text.push('\n');
    }
}

/// Formats a YAML scalar on one line, in quotes if it needs them.
fn scalar(value: &Value) -> String {
    if let Value::String(text) = value
        && text.contains(|c: char| c.is_control() || c == '\u{2028}' || c == '\u{2029}')
    {
        // The text is written as a JSON string, which is also a valid YAML string on one line.
        return serde_json::to_string(text).unwrap_or_default();
    }
    let text = yaml::to_string(value).unwrap_or_default();
    text.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_as_it_was_meant() {
        let mut inner = Map::default();
        inner.add_with("name", "on", "first\nsecond");
        inner.add("rate", 5_u32);
        let mut map = Map::default();
        map.add_with(
            "list",
            Node::List(vec![Item::new("an item", inner), Item::new("", "*")]),
            "the list",
        );
        map.add("empty", Node::List(Vec::new()));
        map.add("left out", Map::default());
        map.add("odd: key", "a\nb: #c");
        let text = map.to_yaml();
        let expected: Value = yaml::from_str(
            r#"{ list: [{ name: "on", rate: 5 }, "*"], empty: [], "odd: key": "a\nb: #c" }"#,
        )
        .expect("yaml");
        assert_eq!(
            yaml::from_str::<Value>(&text).expect("yaml"),
            expected,
            "{text}"
        );
        assert!(text.contains("# the list\nlist:\n  # an item\n    # first\n    # second\n  - name: on\n    rate: 5\n"), "{text}");
        assert_eq!(map.value(), expected);
    }

    #[test]
    fn every_scalar_stays_the_text_that_it_was() {
        for text in [
            "", " ", "1.2", "null", "true", "off", "a: b", "- x", "#x", "'\"", "é", "a\tb", "%x",
            "@x", "`", "0x1", "~", "\u{2028}",
        ] {
            let mut map = Map::default();
            map.add("key", text);
            let read: Value = yaml::from_str(&map.to_yaml()).expect(text);
            assert_eq!(read["key"], Value::from(text), "{}", map.to_yaml());
        }
    }
}
