//! A complete response with its result or error, from a server or from a client.

use std::fmt;
use std::ops::Range;

use bytes::{BufMut, Bytes};

/// The result or the error of a call, as unchanged raw JSON.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ResponseOutcome {
    /// The server's result, as raw JSON.
    Result(Bytes),
    /// The server's error object, as raw JSON.
    Error(Bytes),
}

/// A complete response, which is forwarded with all its members. It comes from a server, or from a client that answers a
/// server's request.
#[derive(Clone)]
pub struct Response {
    message: Bytes,
    id: Range<usize>,
    part: Range<usize>,
    is_error: bool,
    /// Raw JSON that replaces the result or error when the response is written; `None` if it stays unchanged.
    replacement: Option<Bytes>,
}

impl Response {
    /// Creates a response from its text. `id` and `part` are the positions of the id and of the result (or error) in it.
    pub fn new(message: Bytes, id: Range<usize>, part: Range<usize>, is_error: bool) -> Self {
        Self {
            message,
            id,
            part,
            is_error,
            replacement: None,
        }
    }

    /// Creates a response of the gateway itself with this result or error.
    pub fn from_outcome(reply: ResponseOutcome) -> Self {
        const OWN: [&[u8]; 2] = [
            br#"{"jsonrpc":"2.0","id":0,"result":0}"#,
            br#"{"jsonrpc":"2.0","id":0,"error":0}"#,
        ];
        let (is_error, replacement) = match reply {
            ResponseOutcome::Result(result) => (false, result),
            ResponseOutcome::Error(error) => (true, error),
        };
        let message = OWN[usize::from(is_error)];
        let end = message.len() - 1;
        Self {
            message: Bytes::from_static(message),
            id: 22..23,
            part: end - 1..end,
            is_error,
            replacement: Some(replacement),
        }
    }

    /// The response's id as a number: that of the gateway's request on the connection by which the response arrived.
    pub fn call_id(&self) -> Option<u64> {
        std::str::from_utf8(&self.message[self.id.clone()])
            .ok()?
            .parse()
            .ok()
    }

    /// The result or error, as raw JSON.
    pub fn payload(&self) -> &[u8] {
        match &self.replacement {
            Some(replacement) => replacement,
            None => &self.message[self.part.clone()],
        }
    }

    /// Returns true if the response contains an error; false if it contains a result.
    pub fn is_error(&self) -> bool {
        self.is_error
    }

    /// The result or error, without the other members of the response.
    pub fn outcome(&self) -> ResponseOutcome {
        let part = match &self.replacement {
            Some(replacement) => replacement.clone(),
            None => self.message.slice(self.part.clone()),
        };
        if self.is_error {
            ResponseOutcome::Error(part)
        } else {
            ResponseOutcome::Result(part)
        }
    }

    /// Replaces the result or error by other raw JSON.
    pub fn with_payload(mut self, part: Bytes) -> Self {
        self.replacement = Some(part);
        self
    }

    /// The text of the response with another id (raw JSON), including unknown members.
    pub fn with_id(&self, id: &str) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.len() + id.len());
        self.write_with_id(&mut out, id);
        out
    }

    /// The approximate length of the response, in bytes.
    #[expect(clippy::len_without_is_empty, reason = "a message is never empty")]
    pub fn len(&self) -> usize {
        self.message.len() + self.replacement.as_ref().map_or(0, Bytes::len)
    }

    /// Appends the response to `out` with another id (raw JSON).
    pub fn write_with_id(&self, out: &mut impl BufMut, id: &str) {
        let id = (&self.id, id.as_bytes());
        let part = (&self.part, self.payload());
        // The id may come before or after the result.
        let edits = if self.id.start < self.part.start {
            [id, part]
        } else {
            [part, id]
        };
        let mut at = 0;
        for (span, with) in edits {
            out.put_slice(&self.message[at..span.start]);
            out.put_slice(with);
            at = span.end;
        }
        out.put_slice(&self.message[at..]);
    }
}

impl fmt::Debug for Response {
    /// Leaves out the response's contents, which are the users' data.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Response")
            .field("is_error", &self.is_error)
            .finish_non_exhaustive()
    }
}

/// An error with which the gateway itself answers a server's request.
#[derive(Debug, Clone, Copy)]
pub struct RpcError<'a> {
    /// The JSON-RPC error code.
    pub code: i32,
    /// The error message for the server.
    pub message: &'a str,
}
