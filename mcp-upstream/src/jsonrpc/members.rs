//! A message with its index: what its readers ask for, and whether another reader could find something else.

use bytes::Bytes;
use serde_json::value::RawValue;
use tooldock_workers::json;

use super::index::{Ambiguity, Index, MEMBERS_MAX, names};
use super::key::{Key, Level};
use super::{ID_MAX, Request, RequestError};

/// A message and where its known members stand.
#[derive(Debug)]
pub(crate) struct Members<'a> {
    message: &'a str,
    index: Index,
}

impl<'a> Members<'a> {
    /// `index` must be of that message.
    #[inline]
    pub(super) fn new(message: &'a str, index: Index) -> Self {
        Self { message, index }
    }

    /// Of parameters that stand alone, for which the message is they. `None` where they cannot be read.
    pub(crate) fn of_params(params: &'a str) -> Option<Self> {
        let index = Index::of_value(params, Level::Params, 0).ok()?;
        Some(Self::new(params, index))
    }

    /// All of the message.
    pub(crate) fn message(&self) -> &'a str {
        self.message
    }

    /// A member's value.
    pub(crate) fn get(&self, key: Key) -> Option<&'a RawValue> {
        self.raw(key).and_then(json::raw)
    }

    /// A member's value, raw JSON.
    #[inline]
    pub(crate) fn raw(&self, key: Key) -> Option<&'a str> {
        self.message.get(self.index.get(key)?.range())
    }

    /// A member's value if it can name something: the raw JSON of a string or a number.
    pub(crate) fn name(&self, key: Key) -> Option<&'a str> {
        self.raw(key).filter(|raw| names(raw))
    }

    /// The client's progress token, raw JSON; anything but a string or a number is none.
    ///
    /// # Errors
    ///
    /// `InvalidParams` for a token of more than [`ID_MAX`] bytes.
    pub(crate) fn progress_token(&self) -> Result<Option<&'a str>, RequestError> {
        let token = self.name(Key::ProgressToken);
        match token.is_some_and(|raw| raw.len() > ID_MAX) {
            true => Err(RequestError::InvalidParams(
                format!("params._meta.progressToken is longer than {ID_MAX} bytes").into(),
            )),
            false => Ok(token),
        }
    }

    /// The parameters.
    pub(crate) fn params(&self) -> Option<&'a RawValue> {
        self.get(Key::Params)
    }

    /// The parameters must be an object, or left out.
    ///
    /// # Errors
    ///
    /// `InvalidParams`.
    pub(crate) fn by_name(&self) -> Result<(), RequestError> {
        super::object(self.params(), "params")
    }

    /// No known key may be there twice: which of them counts would depend on the reader.
    ///
    /// # Errors
    ///
    /// `InvalidParams`, with the key.
    pub(crate) fn unique(&self) -> Result<(), RequestError> {
        match self.index.twice() {
            Some(key) => {
                let (place, name) = (key.level().place(), key.name());
                let reason = format!("{place}: duplicate field `{name}`");
                Err(RequestError::InvalidParams(reason.into()))
            }
            None => Ok(()),
        }
    }

    /// The parameters must be as whoever reads keys by their exact spelling wants them: [`Self::by_name`] and [`Self::unique`].
    ///
    /// # Errors
    ///
    /// `InvalidParams`.
    pub(crate) fn well_formed(&self) -> Result<(), RequestError> {
        self.by_name()?;
        self.unique()
    }

    /// The same, and no key may differ from a known one only in case: whoever reads keys so would find another message.
    ///
    /// # Errors
    ///
    /// `InvalidParams`; `Shape` for what is wrong with the message itself.
    pub(crate) fn unambiguous(&self) -> Result<(), RequestError> {
        self.by_name()?;
        match self.index.ambiguity() {
            Some(ambiguity) => Err(ambiguity.into()),
            None => self.unique(),
        }
    }

    /// The same for a message that has no answer. Refusing it is refusing its POST, for which all reasons are one.
    ///
    /// # Errors
    ///
    /// Always `Shape`.
    pub(crate) fn unambiguous_unanswered(&self) -> Result<(), RequestError> {
        self.unambiguous().map_err(|error| match error {
            RequestError::InvalidParams(reason) => RequestError::Shape(reason),
            other => other,
        })
    }

    /// The request as bytes of its own, which are those of the message.
    pub(crate) fn to_request(&self, message: Bytes) -> Request {
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
