//! A whole request of a client: its own bytes, and where the names stand that must be unique on a connection.

use std::fmt;
use std::ops::Range;

use bytes::{Bytes, BytesMut};
use serde_json::value::RawValue;

use super::splice::{self, Edit, Names, span, splice};

/// A whole request of a client on its way up: its own bytes, and where the names stand that are unique on a link.
#[derive(Clone)]
pub(crate) struct Request {
    message: Bytes,
    id: Range<usize>,
    token: Option<Range<usize>>,
    params: Option<Range<usize>>,
}

impl Request {
    /// `message` are the bytes of `text`; `id` and `params` must be parts of it, as the reader of messages gives them.
    ///
    /// # Errors
    ///
    /// A name that is there twice: which one counts would depend on the reader.
    #[cfg(test)]
    pub(crate) fn new(
        message: Bytes,
        text: &str,
        id: &str,
        params: Option<&RawValue>,
    ) -> Result<Self, serde_json::Error> {
        let token = Names::of(params)?.own_progress;
        Ok(Self::with_token(message, text, id, params, token))
    }

    /// The same where its progress token has been found, or that it has none.
    pub(crate) fn with_token(
        message: Bytes,
        text: &str,
        id: &str,
        params: Option<&RawValue>,
        token: Option<&str>,
    ) -> Self {
        Self {
            message,
            id: span(text, id),
            token: token.map(|token| span(text, token)),
            params: params.map(|params| span(text, params.get())),
        }
    }

    /// The same with other parameters: raw JSON that was read before.
    ///
    /// # Errors
    ///
    /// As for [`Self::new`].
    pub(crate) fn with_params(&self, params: &str) -> Result<Self, serde_json::Error> {
        let token = match splice::may_have(params) {
            true => Names::of(Some(serde_json::from_str(params)?))?.own_progress,
            false => None,
        };
        let message = &self.message;
        // Without parameters it is an object that has members all the same.
        let end = message.iter().rposition(|byte| *byte == b'}').unwrap_or(0);
        let (before, at) = match &self.params {
            Some(at) => ("", at.clone()),
            None => (",\"params\":", end..end),
        };
        let start = at.start + before.len();
        let moved = match self.id.start < at.start {
            true => self.id.clone(),
            false => {
                let moved = |id: usize| id + before.len() + params.len() - at.len();
                moved(self.id.start)..moved(self.id.end)
            }
        };
        let mut out = Vec::with_capacity(message.len() - at.len() + before.len() + params.len());
        out.extend_from_slice(&message[..at.start]);
        out.extend_from_slice(before.as_bytes());
        out.extend_from_slice(params.as_bytes());
        out.extend_from_slice(&message[at.end..]);
        Ok(Self {
            message: out.into(),
            id: moved,
            token: token.map(|token| {
                let token = span(params, token);
                start + token.start..start + token.end
            }),
            params: Some(start..start + params.len()),
        })
    }

    /// The span of its parameters.
    pub(crate) fn params(&self) -> Option<&[u8]> {
        self.params.clone().map(|at| &self.message[at])
    }

    /// Its progress token, raw JSON.
    pub(crate) fn token(&self) -> Option<&str> {
        let token = &self.message[self.token.clone()?];
        std::str::from_utf8(token).ok()
    }

    /// How long it is.
    pub(crate) fn len(&self) -> usize {
        self.message.len()
    }

    /// Appends it under another id, which is its progress token, too, if it has one.
    pub(crate) fn write_as(&self, out: &mut BytesMut, id: &str) {
        out.reserve(self.message.len() + 2 * id.len());
        let of_id = Edit::at(self.id.clone(), id);
        match &self.token {
            None => splice(out, &self.message, &mut [of_id]),
            Some(token) => {
                let of_token = Edit::at(token.clone(), id);
                splice(out, &self.message, &mut [of_id, of_token]);
            }
        }
    }
}

impl fmt::Debug for Request {
    /// Without its contents: they are the users'.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request").finish_non_exhaustive()
    }
}
