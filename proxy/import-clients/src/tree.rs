//! The tree of a client's file, independent of its format: values with their line numbers.

/// A value and its line. Not printable: it may be a secret.
#[derive(Clone)]
pub(crate) struct Node {
    /// Line of the value, from 1.
    pub(crate) line: usize,
    pub(crate) value: Value,
}

/// The content of a [`Node`].
#[derive(Clone)]
pub(crate) enum Value {
    Null,
    Bool(bool),
    /// A number, as it is written.
    Number(String),
    Text(String),
    List(Vec<Node>),
    Map(Vec<Member>),
}

/// A key of a map with its value. All occurrences of a repeated key are stored.
#[derive(Clone)]
pub(crate) struct Member {
    pub(crate) key: String,
    /// Line of the key, from 1.
    pub(crate) line: usize,
    pub(crate) node: Node,
}

impl Node {
    /// The members of a map; none for another value.
    pub(crate) fn members(&self) -> &[Member] {
        match &self.value {
            Value::Map(members) => members,
            _ => &[],
        }
    }

    /// The value of a key. Of a repeated key the last one counts, as in the clients.
    pub(crate) fn get(&self, key: &str) -> Option<&Node> {
        let mut members = self.members().iter().rev();
        members.find(|it| it.key == key).map(|it| &it.node)
    }

    pub(crate) fn is_map(&self) -> bool {
        matches!(self.value, Value::Map(_))
    }

    /// The text, if the value is one.
    pub(crate) fn text(&self) -> Option<&str> {
        match &self.value {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    /// A single value as text: people write `PORT: 8080` without quotes.
    pub(crate) fn scalar(&self) -> Option<String> {
        match &self.value {
            Value::Text(text) | Value::Number(text) => Some(text.clone()),
            Value::Bool(value) => Some(value.to_string()),
            Value::Null | Value::List(_) | Value::Map(_) => None,
        }
    }

    /// The texts of a list of single values, each with its line; a single text is a list of one.
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

/// Lines of a text, by the byte.
pub(crate) struct Lines(Vec<usize>);

impl Lines {
    pub(crate) fn of(text: &str) -> Self {
        let ends = text.match_indices('\n').map(|(at, _)| at);
        Self(ends.collect())
    }

    /// The line of a byte, from 1.
    pub(crate) fn at(&self, byte: usize) -> usize {
        self.0.partition_point(|end| *end < byte) + 1
    }
}
