//! Requests that a server sends to its client, such as questions to the user. Their original bytes are kept.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use serde_json::value::RawValue;

use super::splice::{Edit, span, splice};
use super::{Response, RpcError};

/// The id of a request exactly as it was written: the raw JSON of a string or a number.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RawId(Box<str>);

impl RawId {
    /// Creates an id. `raw` must be the JSON of a string or a number, as the message parser returns it.
    pub fn new(raw: &str) -> Self {
        Self(raw.into())
    }

    /// The raw JSON of the id.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The connection on which a server's request arrived. The response is sent on it.
pub trait Asker: Send + Sync {
    /// Sends the response to the request with this id. Servers may reuse ids, so `number` tells which use of the id is meant.
    /// Returns false if that request is no longer open.
    fn answer(&self, id: &RawId, number: u64, outcome: Result<&RawValue, RpcError<'_>>) -> bool;

    /// Sends a client's complete response as the response to the request with this id. The id in `response` is replaced. Returns
    /// false if the request is no longer open.
    fn forward_answer(&self, id: &RawId, number: u64, response: &Response) -> bool;
}

/// A request of a server to its client. It is answered exactly once: if the value is dropped without an answer, the server gets
/// an error. A request that the server has cancelled gets no response.
pub struct ServerRequest {
    id: RawId,
    /// Distinguishes this request from earlier requests of the server with the same id.
    number: u64,
    method: String,
    params: Option<Bytes>,
    message: Bytes,
    /// Position of the id in the message.
    id_at: Range<usize>,
    asker: Arc<dyn Asker>,
}

impl ServerRequest {
    /// Creates a request. `text` contains the same bytes as `message`, and `id` and `params` must be slices of it.
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

    /// The id that the server gave the request. Another process of the same server may use the same id.
    pub fn id(&self) -> &RawId {
        &self.id
    }

    /// The method of the request.
    pub fn method(&self) -> &str {
        &self.method
    }

    /// The request's parameters as raw JSON; `None` if it has none.
    pub fn params(&self) -> Option<&Bytes> {
        self.params.as_ref()
    }

    /// Memory that the request occupies, in bytes: the length of its complete message.
    pub fn bytes(&self) -> usize {
        self.message.len()
    }

    /// The complete message with another id, as the client receives it.
    pub fn with_id(&self, id: u64) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.message.len() + 20);
        let edit = Edit::at(self.id_at.clone(), id.to_string());
        splice(&mut out, &self.message, &mut [edit]);
        out
    }

    /// Answers the request. Returns false if the server's process has ended, or if the server has cancelled the request.
    pub fn answer(self, outcome: Result<&RawValue, RpcError<'_>>) -> bool {
        self.asker.answer(&self.id, self.number, outcome)
    }

    /// Answers the request with a client's complete response, whose id is replaced. Returns false if the server's process has
    /// ended, or if the server has cancelled the request.
    pub fn forward(self, response: &Response) -> bool {
        self.asker.forward_answer(&self.id, self.number, response)
    }

    /// Answers the request with an error of the gateway itself.
    pub fn refuse(self, code: i32, message: &str) {
        self.answer(Err(RpcError { code, message }));
    }
}

impl Drop for ServerRequest {
    fn drop(&mut self) {
        // If the request has been answered already, it is no longer open, and this call does nothing.
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
    /// Leaves out the request's contents, which are the users' data.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerRequest")
            .field("method", &self.method)
            .finish_non_exhaustive()
    }
}
