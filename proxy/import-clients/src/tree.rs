//! The tree of a client's file, independent of its format: values with their line numbers.

/// A value of the tree and its line. It cannot be printed, since it may be a secret.
#[derive(Clone)]
pub(crate) struct Node {
    /// Line of the value in the file, from 1.
    pub(crate) line: usize,
    pub(crate) value: Value,
}

/// The content of a [`Node`].
#[derive(Clone)]
pub(crate) enum Value {
    Null,
    Bool(bool),
    /// A number, in the spelling of the file.
    Number(String),
    Text(String),
    List(Vec<Node>),
    Map(Vec<Member>),
}

/// A key of a map with its value. All occurrences of a repeated key are stored.
#[derive(Clone)]
pub(crate) struct Member {
    pub(crate) key: String,
    /// Line of the key in the file, from 1.
    pub(crate) line: usize,
    pub(crate) node: Node,
}

impl Node {
    /// The keys of a map, with their values; empty for any other value.
    pub(crate) fn members(&self) -> &[Member] {
        match &self.value {
            Value::Map(members) => members,
            _ => &[],
        }
    }

    /// The value of a key. If the key is repeated, the last value counts, as in the clients.
    pub(crate) fn get(&self, key: &str) -> Option<&Node> {
        let mut members = self.members().iter().rev();
        members.find(|it| it.key == key).map(|it| &it.node)
    }

    pub(crate) fn is_map(&self) -> bool {
        matches!(self.value, Value::Map(_))
    }

    /// The text of the value; `None` if the value is not a text.
    pub(crate) fn text(&self) -> Option<&str> {
        match &self.value {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    /// A text, number or boolean as text, since some files contain values such as `PORT: 8080` without quotes. `None` for other
    /// values.
    pub(crate) fn scalar(&self) -> Option<String> {
        match &self.value {
            Value::Text(text) | Value::Number(text) => Some(text.clone()),
            Value::Bool(value) => Some(value.to_string()),
            Value::Null | Value::List(_) | Value::Map(_) => None,
        }
    }

    /// The items of a list of texts, numbers and booleans, each as text with its line. A single text counts as a list with one
    /// item.
    pub(crate) fn scalars(&self) -> Option<Vec<(String, usize)>> {
        match &self.value {
            Value::List(all) => {
                let texts = all.iter().map(|it| Some((it.scalar()?, it.line)));
                texts.collect()
            }
            Value::Text(text) => Some(vec![(text.clone(), self.line)]),
            _ => None,
        }
    }
}

/// Table that maps byte offsets in a text to line numbers.
pub(crate) struct Lines(Vec<usize>);

impl Lines {
    pub(crate) fn of(text: &str) -> Self {
        let ends = text.match_indices('\n').map(|(at, _)| at);
        Self(ends.collect())
    }

    /// The number of the line that contains the byte at this offset, from 1.
    pub(crate) fn at(&self, byte: usize) -> usize {
        self.0.partition_point(|end| *end < byte) + 1
    }
}
