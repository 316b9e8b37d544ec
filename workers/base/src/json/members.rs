//! Reads the members of one JSON object in their order.

use super::scan::InvalidJson;
use super::walk::Walk;

/// A member of a JSON object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct JsonMember<'a> {
    /// The member's key as it is written in the text, including the quotes.
    pub(super) key: &'a str,
    /// The member's value as it is written in the text, without white space around it.
    pub(super) value: &'a str,
}

/// The content of a JSON string that is written without escapes. `None` if it contains an escape.
pub(super) fn plain(raw: &str) -> Option<&str> {
    let inner = raw.strip_prefix('"')?.strip_suffix('"')?;
    // A byte-by-byte search is sufficient, because keys are short.
    (!inner.bytes().any(|byte| byte == b'\\')).then_some(inner)
}

/// Reader of a text that must contain exactly one JSON object. Keys may be repeated.
#[derive(Debug)]
pub(super) struct JsonMembers<'a> {
    text: &'a str,
    walk: Walk<'a>,
    next: KeyPosition,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum KeyPosition {
    First,
    Other,
    Nothing,
}

impl<'a> JsonMembers<'a> {
    /// Creates a reader of the text.
    ///
    /// # Errors
    ///
    /// The text does not begin with a brace.
    pub(super) fn of(text: &'a str) -> Result<Self, InvalidJson> {
        let mut walk = Walk::new(text);
        let next = KeyPosition::First;
        let is_object = walk.step_in()?;
        is_object
            .then_some(Self { text, walk, next })
            .ok_or(InvalidJson)
    }

    /// Reads the next member completely. `None` if the object has ended and only white space follows; the complete text has then
    /// been read.
    ///
    /// # Errors
    ///
    /// The text is not JSON, is nested too deep, or continues after the object. Earlier members must then not be used.
    pub(super) fn next_member(&mut self) -> Result<Option<JsonMember<'a>>, InvalidJson> {
        let key = match self.next {
            KeyPosition::First => self.walk.first_key()?,
            KeyPosition::Other => self.walk.next_key()?,
            KeyPosition::Nothing => return Ok(None),
        };
        let Some(key) = key else {
            self.walk.over()?;
            self.next = KeyPosition::Nothing;
            return Ok(None);
        };
        self.next = KeyPosition::Other;
        let value = self.walk.value()?;
        Ok(Some(JsonMember {
            key: self.text.get(key).ok_or(InvalidJson)?,
            value: self.text.get(value).ok_or(InvalidJson)?,
        }))
    }

    /// Returns true if the complete text has been read.
    pub(super) fn is_over(&self) -> bool {
        self.next == KeyPosition::Nothing
    }
}
