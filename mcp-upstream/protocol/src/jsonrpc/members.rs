//! A message with its index: its known members, and whether another reader could read the message differently.

use bytes::Bytes;
use serde_json::value::RawValue;
use tooldock_base::json;

use super::index::{Ambiguity, Index, MEMBERS_MAX, names};
use super::key::{Key, Level};
use super::{ID_MAX, Request, RequestError};

/// A message and the positions of its known members.
#[derive(Debug)]
pub struct Members<'a> {
    message: &'a str,
    index: Index,
}

impl<'a> Members<'a> {
    /// Combines a message with its index; `index` must be made from `message`.
    #[inline]
    pub fn new(message: &'a str, index: Index) -> Self {
        Self { message, index }
    }

    /// Indexes parameters without an enclosing message; they take the role of the message. `None` if they cannot be parsed.
    pub fn of_params(params: &'a str) -> Option<Self> {
        let index = Index::of_value(params, Level::Params, 0).ok()?;
        Some(Self::new(params, index))
    }

    /// The text of the complete message.
    pub fn message(&self) -> &'a str {
        self.message
    }

    /// A member's value; `None` without the member, or if the value cannot be read.
    #[inline]
    pub fn get(&self, key: Key) -> Option<&'a RawValue> {
        self.raw(key).and_then(json::raw)
    }

    /// A member's value as raw JSON; `None` without the member.
    #[inline]
    pub fn raw(&self, key: Key) -> Option<&'a str> {
        self.message.get(self.index.get(key)?.range())
    }

    /// A member's value if it can name something: the raw JSON of a string or a number.
    pub fn name(&self, key: Key) -> Option<&'a str> {
        self.raw(key).filter(|raw| names(raw))
    }

    /// The client's progress token, raw JSON; `None` unless it is a string or a number.
    ///
    /// # Errors
    ///
    /// `InvalidParams`, if the token has more than [`ID_MAX`] bytes.
    pub fn progress_token(&self) -> Result<Option<&'a str>, RequestError> {
        let token = self.name(Key::ProgressToken);
        match token.is_some_and(|raw| raw.len() > ID_MAX) {
            true => Err(RequestError::InvalidParams(
                format!("params._meta.progressToken is longer than {ID_MAX} bytes").into(),
            )),
            false => Ok(token),
        }
    }

    /// The `params` of the message.
    pub fn params(&self) -> Option<&'a RawValue> {
        self.get(Key::Params)
    }

    /// Checks that the parameters are an object or absent.
    ///
    /// # Errors
    ///
    /// `InvalidParams` otherwise.
    pub fn by_name(&self) -> Result<(), RequestError> {
        super::object(self.params(), "params")
    }

    /// Checks that no known key is repeated: readers would differ on the value that counts.
    ///
    /// # Errors
    ///
    /// `InvalidParams`, with the repeated key.
    pub fn unique(&self) -> Result<(), RequestError> {
        match self.index.twice() {
            Some(key) => {
                let (place, name) = (key.level().place(), key.name());
                let reason = format!("{place}: duplicate field `{name}`");
                Err(RequestError::InvalidParams(reason.into()))
            }
            None => Ok(()),
        }
    }

    /// Checks that the parameters are valid for readers that match keys by exact spelling: [`Self::by_name`] and
    /// [`Self::unique`].
    ///
    /// # Errors
    ///
    /// `InvalidParams` otherwise.
    pub fn well_formed(&self) -> Result<(), RequestError> {
        self.by_name()?;
        self.unique()
    }

    /// Checks [`Self::well_formed`], and that no key differs from a known one only in case: readers that ignore case would read
    /// another message.
    ///
    /// # Errors
    ///
    /// `InvalidParams`; `Shape` for faults of the message itself.
    pub fn unambiguous(&self) -> Result<(), RequestError> {
        self.by_name()?;
        match self.index.ambiguity() {
            Some(ambiguity) => Err(ambiguity.into()),
            None => self.unique(),
        }
    }

    /// Checks [`Self::unambiguous`] for a message that has no answer. Refusing it refuses its POST, with a single code for all
    /// reasons.
    ///
    /// # Errors
    ///
    /// `Shape` for all faults.
    pub fn unambiguous_unanswered(&self) -> Result<(), RequestError> {
        self.unambiguous().map_err(|error| match error {
            RequestError::InvalidParams(reason) => RequestError::Shape(reason),
            other => other,
        })
    }

    /// The request with `message` as its bytes, which must be the bytes of this message.
    pub fn to_request(&self, message: Bytes) -> Request {
        Request::new(message, self.index.clone())
    }
}

impl From<&Ambiguity> for RequestError {
    fn from(ambiguity: &Ambiguity) -> Self {
        let (level, reason) = match ambiguity {
            Ambiguity::Alike { text, known } => {
                let differs = format!("{text:?} differs from {} only in case", known.name());
                match known.level() {
                    Level::Message => (Level::Message, differs),
                    level => (level, format!("{}: {differs}", level.place())),
                }
            }
            Ambiguity::TooMany(level) => {
                let place = level.place();
                (
                    *level,
                    format!("{place} has more than {MEMBERS_MAX} members"),
                )
            }
        };
        match level {
            Level::Message => Self::Shape(reason.into()),
            _ => Self::InvalidParams(reason.into()),
        }
    }
}
