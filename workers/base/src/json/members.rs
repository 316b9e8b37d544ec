//! The members of one object, in their order.

use super::scan::Unread;
use super::walk::Walk;

/// A member of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct JsonMember<'a> {
    /// The member's raw key, quotes included.
    pub(super) key: &'a str,
    /// The member's raw value, without white space around it.
    pub(super) value: &'a str,
}

/// The text of a raw string that has no escapes.
pub(super) fn plain(raw: &str) -> Option<&str> {
    let inner = raw.strip_prefix('"')?.strip_suffix('"')?;
    // A plain search, since keys are short.
    (!inner.bytes().any(|byte| byte == b'\\')).then_some(inner)
}

/// Reads one object and nothing else. Keys may be repeated.
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
    /// Starts at the text, unless it cannot be an object.
    ///
    /// # Errors
    ///
    /// The text does not begin with a brace.
    pub(super) fn of(text: &'a str) -> Result<Self, Unread> {
        let mut walk = Walk::new(text);
        let next = KeyPosition::First;
        let is_object = walk.step_in()?;
        is_object.then_some(Self { text, walk, next }).ok_or(Unread)
    }

    /// The next member, read to its end. Only white space may follow the last member, so after `None` the complete text has
    /// been read.
    ///
    /// # Errors
    ///
    /// The text is not JSON, is nested too deep, or continues after the object. Earlier members must then not be used.
    pub(super) fn next_member(&mut self) -> Result<Option<JsonMember<'a>>, Unread> {
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
            key: self.text.get(key).ok_or(Unread)?,
            value: self.text.get(value).ok_or(Unread)?,
        }))
    }

    /// Returns true if the complete text has been read, and is an object.
    pub(super) fn is_over(&self) -> bool {
        self.next == KeyPosition::Nothing
    }
}
