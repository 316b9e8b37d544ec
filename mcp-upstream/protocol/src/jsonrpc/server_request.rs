//! Requests of a server to its client, with their original bytes.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use serde_json::value::RawValue;

use super::splice::{Edit, span, splice};
use super::{Response, RpcError};

/// The id of a request in its original spelling: the raw JSON of a string or a number.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RawId(Box<str>);

impl RawId {
    /// Creates an id; `raw` must be the JSON of a string or a number, as the reader of messages returns it.
    pub fn new(raw: &str) -> Self {
        Self(raw.into())
    }

    /// The raw JSON of the id.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The connection from which a server's request came, which accepts the response.
pub trait Asker: Send + Sync {
    /// Sends the response to a request with this id, if that use of the id is still open.
    fn answer(&self, id: &RawId, number: u64, outcome: Result<&RawValue, RpcError<'_>>) -> bool;

    /// Sends a client's complete response, with any id, as the response to a request.
    fn forward_answer(&self, id: &RawId, number: u64, response: &Response) -> bool;
}

/// A request of the server to its client. It gets exactly one response: an error if it is dropped, and none if the server
/// cancelled it.
pub struct ServerRequest {
    id: RawId,
    /// Counts the uses of the id.
    number: u64,
    method: String,
    params: Option<Bytes>,
    message: Bytes,
    /// The position of the id in the message.
    id_at: Range<usize>,
    asker: Arc<dyn Asker>,
}

impl ServerRequest {
    /// Creates a request; `id` and `params` must be slices of `text`, which holds the same bytes as `message`.
    pub fn new(
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

    /// The server's id of the request. Unique only among that process's messages: another process may use the same id.
    pub fn id(&self) -> &RawId {
        &self.id
    }

    /// The method of the request.
    pub fn method(&self) -> &str {
        &self.method
    }

    /// The span of the request's parameters.
    pub fn params(&self) -> Option<&Bytes> {
        self.params.as_ref()
    }

    /// Size of the memory that the request uses: that of its complete message.
    pub fn bytes(&self) -> usize {
        self.message.len()
    }

    /// The complete message for the client, with another id.
    pub fn with_id(&self, id: u64) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.message.len() + 20);
        let edit = Edit::at(self.id_at.clone(), id.to_string());
        splice(&mut out, &self.message, &mut [edit]);
        out
    }

    /// Answers the request. Returns `false` if the server has ended, or cancelled the request.
    pub fn answer(self, outcome: Result<&RawValue, RpcError<'_>>) -> bool {
        self.asker.answer(&self.id, self.number, outcome)
    }

    /// Answers the request with a client's complete response, with any id. Returns `false` as [`Self::answer`] does.
    pub fn forward(self, response: &Response) -> bool {
        self.asker.forward_answer(&self.id, self.number, response)
    }

    /// Answers the request with an error of the gateway.
    pub fn refuse(self, code: i32, message: &str) {
        self.answer(Err(RpcError { code, message }));
    }
}

impl Drop for ServerRequest {
    fn drop(&mut self) {
        // An answered request is not open any more, so this does nothing then.
        self.asker.answer(
            &self.id,
            self.number,
            Err(RpcError {
                code: crate::version::code::INTERNAL,
                message: "the request has no client that could answer it",
            }),
        );
    }
}

impl fmt::Debug for ServerRequest {
    /// The contents are omitted, since they are the users' data.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerRequest")
            .field("method", &self.method)
            .finish_non_exhaustive()
    }
}
