//! A message together with its index, and checks whether another parser could interpret it differently.

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
    /// Combines a message with its index. `index` must have been built from `message`.
    #[inline]
    pub fn new(message: &'a str, index: Index) -> Self {
        Self { message, index }
    }

    /// Builds the index of `params` alone, without a message around them. Returns `None` if they cannot be parsed.
    pub fn of_params(params: &'a str) -> Option<Self> {
        let index = Index::of_value(params, Level::Params, 0).ok()?;
        Some(Self::new(params, index))
    }

    /// The text of the complete message.
    pub fn message(&self) -> &'a str {
        self.message
    }

    /// The value of a member; `None` if the member is missing or its value is not valid JSON.
    #[inline]
    pub fn get(&self, key: Key) -> Option<&'a RawValue> {
        self.raw(key).and_then(json::raw)
    }

    /// The value of a member as raw JSON; `None` if the member is missing.
    #[inline]
    pub fn raw(&self, key: Key) -> Option<&'a str> {
        self.message.get(self.index.get(key)?.range())
    }

    /// The value of a member as raw JSON, if it is a string or a number; else `None`.
    pub fn name(&self, key: Key) -> Option<&'a str> {
        self.raw(key).filter(|raw| names(raw))
    }

    /// The client's progress token as raw JSON; `None` if it is missing, or neither a string nor a number.
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

    /// Checks that `params` is an object or missing.
    ///
    /// # Errors
    ///
    /// `InvalidParams`, if it is another value, such as a list.
    pub fn by_name(&self) -> Result<(), RequestError> {
        super::object(self.params(), "params")
    }

    /// Checks that no known key is repeated. Parsers differ on which of the repeated members counts.
    ///
    /// # Errors
    ///
    /// `InvalidParams`, with the repeated key.
    pub fn unique(&self) -> Result<(), RequestError> {
        match self.index.repeated_key() {
            Some(key) => {
                let (place, name) = (key.level().place(), key.name());
                let reason = format!("{place}: duplicate field `{name}`");
                Err(RequestError::InvalidParams(reason.into()))
            }
            None => Ok(()),
        }
    }

    /// Checks that `params` is an object or missing, and that no known key is repeated. Sufficient for servers that match keys by
    /// their exact spelling.
    ///
    /// # Errors
    ///
    /// `InvalidParams`, if one of the checks fails.
    pub fn well_formed(&self) -> Result<(), RequestError> {
        self.by_name()?;
        self.unique()
    }

    /// Makes the checks of [`Self::well_formed`], and checks that no key differs from a known key only in case. A server that
    /// ignores case would interpret such a message differently.
    ///
    /// # Errors
    ///
    /// `InvalidParams` for faults in the parameters, `Shape` for faults of the message itself.
    pub fn unambiguous(&self) -> Result<(), RequestError> {
        self.by_name()?;
        match self.index.ambiguity() {
            Some(ambiguity) => Err(ambiguity.into()),
            None => self.unique(),
        }
    }

    /// Makes the checks of [`Self::unambiguous`] for a notification or response, to which there is no JSON-RPC answer. If it is
    /// refused, its POST is refused, with the same code for all faults.
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

    /// Creates a request from the message and its index. `message` must contain the same bytes as this message.
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
