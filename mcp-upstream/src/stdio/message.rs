//! What goes over a link, in values: requests of clients, replies, notifications, requests of the server. All of them
//! keep the bytes they came in, whole and in parts.

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use bytes::{BufMut, Bytes, BytesMut};
use serde_json::value::RawValue;

use super::splice::{self, Edit, Names, span, splice};

/// The id of a request as it was spelled: the raw JSON of a string or a number.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct RawId(Box<str>);

impl RawId {
    /// `raw` must be the JSON of a string or a number, as the envelope reader gives it.
    pub(crate) fn new(raw: &str) -> Self {
        Self(raw.into())
    }

    /// The JSON.
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

/// What a call ended with: the span of `result` or of `error`, untouched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RawReply {
    /// The server's result.
    Result(Bytes),
    /// The server's error object.
    Error(Bytes),
}

/// A whole request of a client on its way up: its own bytes, and where the names stand that are unique on a link.
#[derive(Clone)]
pub(crate) struct ClientRequest {
    message: Bytes,
    id: Range<usize>,
    token: Option<Range<usize>>,
    params: Option<Range<usize>>,
}

impl ClientRequest {
    /// `message` are the bytes of `text`; `id` and `params` must be parts of it, as the envelope reader gives them.
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
        Ok(Self::named(message, text, id, params, token))
    }

    /// The same where its progress token has been found, or that it has none.
    pub(crate) fn named(
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
    pub(crate) fn put_under(&self, out: &mut BytesMut, id: &str) {
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

impl fmt::Debug for ClientRequest {
    /// Without its contents: they are the users'.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientRequest").finish_non_exhaustive()
    }
}

/// A whole response, for whoever passes it on with all its members: a server's, or a client's to a request of a server.
#[derive(Clone)]
pub(crate) struct Answer {
    message: Bytes,
    id: Range<usize>,
    part: Range<usize>,
    is_error: bool,
    /// What takes the place of the result or error.
    instead: Option<Bytes>,
}

impl Answer {
    /// `id` and `part` are where the id and the result (or error) stand in the message.
    pub(crate) fn new(
        message: Bytes,
        id: Range<usize>,
        part: Range<usize>,
        is_error: bool,
    ) -> Self {
        Self {
            message,
            id,
            part,
            is_error,
            instead: None,
        }
    }

    /// A response of ours.
    pub(crate) fn of(reply: RawReply) -> Self {
        const OWN: [&[u8]; 2] = [
            br#"{"jsonrpc":"2.0","id":0,"result":0}"#,
            br#"{"jsonrpc":"2.0","id":0,"error":0}"#,
        ];
        let (is_error, instead) = match reply {
            RawReply::Result(result) => (false, result),
            RawReply::Error(error) => (true, error),
        };
        let message = OWN[usize::from(is_error)];
        let end = message.len() - 1;
        Self {
            message: Bytes::from_static(message),
            id: 22..23,
            part: end - 1..end,
            is_error,
            instead: Some(instead),
        }
    }

    /// The id of the call it answers, on the link it came over.
    pub(crate) fn call(&self) -> Option<u64> {
        std::str::from_utf8(&self.message[self.id.clone()])
            .ok()?
            .parse()
            .ok()
    }

    /// Its result or error.
    pub(crate) fn part(&self) -> &[u8] {
        match &self.instead {
            Some(instead) => instead,
            None => &self.message[self.part.clone()],
        }
    }

    /// Whether it is an error.
    pub(crate) fn is_error(&self) -> bool {
        self.is_error
    }

    /// Only its result or error.
    pub(crate) fn reply(&self) -> RawReply {
        let part = match &self.instead {
            Some(instead) => instead.clone(),
            None => self.message.slice(self.part.clone()),
        };
        if self.is_error {
            RawReply::Error(part)
        } else {
            RawReply::Result(part)
        }
    }

    /// With another result or error in it.
    pub(crate) fn with(mut self, part: Bytes) -> Self {
        self.instead = Some(part);
        self
    }

    /// The response behind another id, unknown members included. `id` is raw JSON.
    pub(crate) fn behind(&self, id: &str) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.len() + id.len());
        self.put_behind(&mut out, id);
        out
    }

    /// About how long it is.
    pub(crate) fn len(&self) -> usize {
        self.message.len() + self.instead.as_ref().map_or(0, Bytes::len)
    }

    /// Appends it behind another id.
    pub(crate) fn put_behind(&self, out: &mut impl BufMut, id: &str) {
        let id = (&self.id, id.as_bytes());
        let part = (&self.part, self.part());
        // Either may come first.
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

impl fmt::Debug for Answer {
    /// Without its contents: they are the users'.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Answer")
            .field("is_error", &self.is_error)
            .finish_non_exhaustive()
    }
}

/// A notification of the server. Where it belongs to a call, the call's own progress token and subscription id are in
/// it again.
#[derive(Debug, Clone)]
pub(crate) struct Notification<'a> {
    /// Which one.
    pub(crate) method: &'a str,
    /// The span of its parameters.
    pub(crate) params: Option<Bytes>,
    /// All of it, on one line, unknown members included.
    pub(crate) message: Bytes,
}

/// Who asked, as who answers sees it: the connection a request came over.
pub(crate) trait Asker: Send + Sync {
    /// Takes the answer to a request of this id, if that use of the id is still open.
    fn answer(&self, id: &RawId, number: u64, outcome: Result<&RawValue, RpcError<'_>>) -> bool;

    /// The same with a whole response of a client, whatever id that has.
    fn forward_answer(&self, id: &RawId, number: u64, response: &Answer) -> bool;
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

    /// The whole of it as a question that outlives it.
    pub(crate) fn verbatim(&self) -> Arc<Verbatim> {
        Arc::new(Verbatim {
            message: self.message.clone(),
            id: self.id_at.clone(),
            response: OnceLock::new(),
        })
    }

    /// Answers it. `false`: the server is gone, or took it back.
    pub(crate) fn answer(self, outcome: Result<&RawValue, RpcError<'_>>) -> bool {
        self.asker.answer(&self.id, self.number, outcome)
    }

    /// Answers it with a whole response of a client, whatever id that has. `false`: as for [`Self::answer`].
    pub(crate) fn forward(self, response: &Answer) -> bool {
        self.asker.forward_answer(&self.id, self.number, response)
    }

    /// Answers it with an error of ours.
    pub(crate) fn refuse(self, code: i32, message: &str) {
        self.answer(Err(RpcError { code, message }));
    }
}

/// A request of a server as its client gets it, all of it, and as it answers: for a client of the server's own era.
pub(crate) struct Verbatim {
    message: Bytes,
    id: Range<usize>,
    response: OnceLock<Answer>,
}

impl Verbatim {
    /// The request under another id.
    pub(crate) fn behind(&self, id: u64) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.message.len() + 20);
        let id = id.to_string();
        splice(
            &mut out,
            &self.message,
            &mut [Edit::at(self.id.clone(), id)],
        );
        out
    }

    /// The client's own response; the first one counts.
    pub(crate) fn respond(&self, response: Answer) {
        let _ = self.response.set(response);
    }

    /// The response, if there is one.
    pub(crate) fn response(&self) -> Option<&Answer> {
        self.response.get()
    }
}

impl fmt::Debug for Verbatim {
    /// Without its contents: they are the users'.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Verbatim").finish_non_exhaustive()
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

/// An error of ours that answers a server's request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RpcError<'a> {
    /// A code of JSON-RPC.
    pub(crate) code: i32,
    /// What the server may read.
    pub(crate) message: &'a str,
}

/// What a server sent that was ignored. Counted; never an error of anybody else's call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Oddity {
    /// A line that is no JSON: a banner, a log line.
    NotJson,
    /// JSON that is no message.
    NotAMessage,
    /// An array of messages. They are of one revision, and only its clients begin with them.
    Batch,
    /// A line beyond the limit; it was skipped.
    TooLong,
    /// A response to an id, or a notification with a token, that was never given out.
    Unknown,
    /// The same for one whose call is over: answered twice, cancelled, or out of time.
    Late,
    /// More open requests than a server may have.
    TooManyRequests,
}

impl Oddity {
    /// All of them.
    pub(crate) const ALL: [Self; 7] = [
        Self::NotJson,
        Self::NotAMessage,
        Self::Batch,
        Self::TooLong,
        Self::Unknown,
        Self::Late,
        Self::TooManyRequests,
    ];

    /// As metrics name it.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::NotJson => "not_json",
            Self::NotAMessage => "not_a_message",
            Self::Batch => "batch",
            Self::TooLong => "too_long",
            Self::Unknown => "unknown",
            Self::Late => "late",
            Self::TooManyRequests => "too_many_requests",
        }
    }
}
