//! Requests of a server to its client. They keep the bytes they came in.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use serde_json::value::RawValue;

use super::splice::{Edit, span, splice};
use super::{Response, RpcError};

/// The id of a request as it was spelled: the raw JSON of a string or a number.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct RawId(Box<str>);

impl RawId {
    /// `raw` must be the JSON of a string or a number, as the reader of messages gives it.
    pub(crate) fn new(raw: &str) -> Self {
        Self(raw.into())
    }

    /// The JSON.
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

/// Who asked, as who answers sees it: the connection a request came over.
pub(crate) trait Asker: Send + Sync {
    /// Takes the answer to a request of this id, if that use of the id is still open.
    fn answer(&self, id: &RawId, number: u64, outcome: Result<&RawValue, RpcError<'_>>) -> bool;

    /// The same with a whole response of a client, whatever id that has.
    fn forward_answer(&self, id: &RawId, number: u64, response: &Response) -> bool;
}

/// A request of the server to its client. Answered exactly once: one that is dropped unanswered is answered with an
/// error, and one that the server took back is answered no more.
pub(crate) struct ServerRequest {
    id: RawId,
    /// Which use of the id it is.
    number: u64,
    method: String,
    params: Option<Bytes>,
    message: Bytes,
    /// Where the id stands.
    id_at: Range<usize>,
    asker: Arc<dyn Asker>,
}

impl ServerRequest {
    /// `id` and `params` must be parts of `text`, whose bytes `message` are.
    pub(crate) fn new(
        message: &Bytes,
        text: &str,
        (id, number): (&str, u64),
        method: &str,
        params: Option<&RawValue>,
        asker: Arc<dyn Asker>,
    ) -> Self {
        Self {
            id: RawId::new(id),
            number,
            method: method.to_owned(),
            params: params.map(|params| message.slice(span(text, params.get()))),
            message: message.clone(),
            id_at: span(text, id),
            asker,
        }
    }

    /// The server's id of it. Only its own messages know it: another process may use the same.
    pub(crate) fn id(&self) -> &RawId {
        &self.id
    }

    /// What it asks for.
    pub(crate) fn method(&self) -> &str {
        &self.method
    }

    /// The span of its parameters.
    pub(crate) fn params(&self) -> Option<&Bytes> {
        self.params.as_ref()
    }

    /// The bytes it keeps: those of its message, whatever else stands in there.
    pub(crate) fn bytes(&self) -> usize {
        self.message.len()
    }

    /// The whole of it as its client gets it: under another id.
    pub(crate) fn with_id(&self, id: u64) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.message.len() + 20);
        let edit = Edit::at(self.id_at.clone(), id.to_string());
        splice(&mut out, &self.message, &mut [edit]);
        out
    }

    /// Answers it. `false`: the server is gone, or took it back.
    pub(crate) fn answer(self, outcome: Result<&RawValue, RpcError<'_>>) -> bool {
        self.asker.answer(&self.id, self.number, outcome)
    }

    /// Answers it with a whole response of a client, whatever id that has. `false`: as for [`Self::answer`].
    pub(crate) fn forward(self, response: &Response) -> bool {
        self.asker.forward_answer(&self.id, self.number, response)
    }

    /// Answers it with an error of ours.
    pub(crate) fn refuse(self, code: i32, message: &str) {
        self.answer(Err(RpcError { code, message }));
    }
}

impl Drop for ServerRequest {
    fn drop(&mut self) {
        // Answered ones are not open any more, so this does nothing for them.
        self.asker.answer(
            &self.id,
            self.number,
            Err(RpcError {
                code: crate::protocol::code::INTERNAL,
                message: "the request has no client that could answer it",
            }),
        );
    }
}

impl fmt::Debug for ServerRequest {
    /// Without its contents: they are the users'.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerRequest")
            .field("method", &self.method)
            .finish_non_exhaustive()
    }
}
