//! Responses of remote servers to forwarded messages.
//!
//! ```text
//!   one message ──┬── up to 64 KiB ──▶ forwarded in one piece; a fault is answered with a status of the gateway
//!                 └── longer ────────▶ forwarded in pieces; a later fault aborts the response
//!   events ───────────────────────────▶ each forwarded when it is complete; a later fault is the last event
//! ```
//!
//! The backend is read only as fast as the client reads. Dropping the response to the client also cancels the request to the
//! backend. The permit and other resources of the call are released with its response.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::stream;
use http::header::{CACHE_CONTROL, CONTENT_ENCODING, CONTENT_LENGTH, RETRY_AFTER};
use http::{HeaderName, HeaderValue, StatusCode};
use tokio::time::{Instant, timeout_at};
use tooldock_base::error::{CallError, CallErrorCode};
use tooldock_engine::engine::{CallSecrets, timed_out};
use tooldock_servers::http::media::{shown_media_type, without_mark};
use tooldock_servers::http::port::{BackendResponse, BodyError, ResponseBody};
use tooldock_servers::http::redirect_target;
use tooldock_sessions::stream::frame;

use super::events::{self, Splitter};
use super::failure::PassThroughFailure;
use super::headers::{self, BodyKind};
use super::pending::PendingMessage;
use super::tap::{self, LongMessage, MessageKind};
use crate::jsonrpc::received;
use crate::reply::{Head, Reply};

/// Maximum number of bytes of a response that are buffered. A longer response is forwarded in pieces.
const HOLD: usize = 64 * 1024;

/// Creates the reply to a message from the backend's response.
pub(super) async fn of(response: BackendResponse, pending: Box<PendingMessage>) -> Reply {
    let mut message = match begin(response, pending) {
        ResponseStart::Message(message) => message,
        ResponseStart::Reply(reply) => return reply,
    };
    let read = message.read().await;
    message.reply(read)
}

/// Result of reading the head of a server's response.
enum ResponseStart {
    /// The response is a message whose body must be read.
    Message(Incoming),
    /// The reply to the client is complete without reading the response's body.
    Reply(Reply),
}

fn begin(response: BackendResponse, mut pending: Box<PendingMessage>) -> ResponseStart {
    let kind = headers::kind(&response.headers);
    pending.answered_by(response.backend.clone());
    match judged(&response, kind, pending.id().is_some()) {
        Ok(()) => {}
        Err(failure) => return ResponseStart::Reply(pending.fail(&failure)),
    }
    let mut head = Head::new(response.status);
    head.headers = headers::for_client(&response.headers);
    match kind {
        BodyKind::Events => ResponseStart::Reply(events(head, response.body, pending)),
        BodyKind::Json => {
            let announced = response.headers.get(CONTENT_LENGTH);
            let announced = announced.and_then(|value| value.to_str().ok()?.parse().ok());
            ResponseStart::Message(Incoming {
                head,
                body: response.body,
                announced: announced.unwrap_or(0),
                held: Bytes::new(),
                pending,
            })
        }
        // The server accepted a message that needs no answer.
        BodyKind::Other => {
            pending.finish("ok");
            ResponseStart::Reply(Reply::Full {
                head,
                body: Bytes::new(),
            })
        }
    }
}

/// Checks that a response can be forwarded to the client. `asked`: true if the message was a request, which needs an answer;
/// false for a notification or a response.
pub(super) fn judged(
    response: &BackendResponse,
    kind: BodyKind,
    asked: bool,
) -> Result<(), PassThroughFailure> {
    let status = response.status;
    let is_message = matches!(kind, BodyKind::Json | BodyKind::Events);
    let refusal = || PassThroughFailure::Status(status, response.headers.get(RETRY_AFTER).cloned());
    match status {
        _ if status.is_redirection() => Err(PassThroughFailure::Redirect(
            status,
            redirect_target(&response.headers),
        )),
        _ if status.is_success() && is_message && status != StatusCode::NO_CONTENT => Ok(()),
        StatusCode::NO_CONTENT | StatusCode::ACCEPTED if asked => {
            Err(PassThroughFailure::Malformed("it has no body"))
        }
        _ if status.is_success() && asked => Err(PassThroughFailure::MediaType(shown_media_type(
            &response.headers,
        ))),
        _ if status.is_success() => Ok(()),
        // A JSON body with an error status is the server's refusal of this message. It is forwarded to the client.
        _ if !response.is_refusal() && kind == BodyKind::Json => Ok(()),
        _ => Err(refusal()),
    }
}

/// A server's message whose body is being read.
struct Incoming {
    head: Head,
    body: Box<dyn ResponseBody>,
    /// The message's length as the backend announced it, in bytes; 0 if it announced none.
    announced: u64,
    /// The bytes of the message that were read so far.
    held: Bytes,
    pending: Box<PendingMessage>,
}

/// Result of reading a message: all of it, or as much as the buffer takes.
enum Extent {
    Whole,
    Part,
}

impl Incoming {
    /// Reads the message, at most until the buffer is full.
    async fn read(&mut self) -> Result<Extent, PassThroughFailure> {
        let max = self.pending.max();
        if self.announced > max {
            return Err(too_large(max));
        }
        while self.held.len() <= HOLD {
            match next(&mut *self.body, &mut self.pending).await? {
                Some(piece) if self.held.is_empty() => self.held = piece,
                Some(piece) => {
                    let held = std::mem::take(&mut self.held);
                    self.held = joined(held, &piece, self.announced);
                }
                None => return Ok(Extent::Whole),
            }
            if self.held.len() as u64 > max {
                return Err(too_large(max));
            }
            if self.body.is_over() && self.held.len() <= HOLD {
                return Ok(Extent::Whole);
            }
        }
        Ok(Extent::Part)
    }

    /// Builds the reply to the client: in one piece if the message is short, else in pieces.
    fn reply(mut self, read: Result<Extent, PassThroughFailure>) -> Reply {
        match read {
            Ok(Extent::Whole) => {
                let coded = self.body.take_coded();
                whole_message(self.head, self.held, coded, self.pending)
            }
            Ok(Extent::Part) => {
                let flow = MessageFlow {
                    body: self.body,
                    pending: self.pending,
                    held: Some(self.held),
                    long: LongMessage::default(),
                    bytes: 0,
                    over: false,
                };
                flow.reply(self.head)
            }
            Err(failure) => self.pending.fail(&failure),
        }
    }
}

/// Builds the reply with a complete message. `coded`: the compressed message and the name of its coding, if the client accepts
/// it; the compressed form is sent if the message is forwarded unchanged.
fn whole_message(
    mut head: Head,
    mut body: Bytes,
    coded: Option<(HeaderValue, Bytes)>,
    mut pending: Box<PendingMessage>,
) -> Reply {
    let asked = pending.id().is_some();
    if asked && body.trim_ascii().is_empty() {
        return pending.fail(&PassThroughFailure::Malformed("it is empty"));
    }
    let came = body.as_ptr_range();
    let (read, said) = tap::read_plain(without_mark(body), pending.id());
    body = read;
    // The compressed form is used only if `body` is still the received memory: a rewritten message no longer matches it.
    let coded = coded.filter(|_| body.as_ptr_range() == came);
    match said {
        MessageKind::Answer(status) => {
            if status != "ok" {
                body = pending.secrets().hide_in(body);
            } else if let Some((coding, coded)) = coded {
                head.headers.push((CONTENT_ENCODING, coding));
                body = coded;
            }
            pending.answered(status, &body);
        }
        MessageKind::Foreign => return pending.fail(&PassThroughFailure::Foreign(received(&body))),
        MessageKind::Question | MessageKind::Other if asked => {
            return pending.fail(&PassThroughFailure::NoAnswer(received(&body)));
        }
        MessageKind::Question | MessageKind::Other => pending.finish("ok"),
    }
    Reply::Full { head, body }
}

/// A response that is being forwarded to the client in pieces.
trait Flow: Send + Sized + 'static {
    /// Returns the next piece of the response; `None` after the last one.
    fn next(&mut self) -> impl Future<Output = Option<Piece>> + Send;

    /// Builds the reply whose body consists of the pieces.
    fn reply(self, head: Head) -> Reply {
        let pieces = stream::unfold(self, async |mut flow| Some((flow.next().await?, flow)));
        Reply::Body {
            head,
            body: Box::pin(pieces),
        }
    }
}

/// Appends a piece to the buffered bytes of a message. `announced`: the announced length of the complete message in bytes, 0 if
/// unknown.
fn joined(held: Bytes, piece: &[u8], announced: u64) -> Bytes {
    let held_length = held.len();
    let mut held = held.try_into_mut().unwrap_or_else(|shared| {
        let announced = usize::try_from(announced).unwrap_or(HOLD);
        let whole = (held_length + piece.len()).max(announced.min(HOLD));
        let mut copy = BytesMut::with_capacity(whole);
        copy.extend_from_slice(&shared);
        copy
    });
    held.extend_from_slice(piece);
    held.freeze()
}

/// Reads the next piece of a body. Fails at the message's deadline, and when the session ends.
async fn next(
    body: &mut dyn ResponseBody,
    pending: &mut PendingMessage,
) -> Result<Option<Bytes>, PassThroughFailure> {
    let deadline = pending.deadline();
    // `ended`: the session has ended. `piece`: the next piece, the end of the body, or the expiry of the deadline.
    let piece = tokio::select! { biased;
        _ = pending.ended() => return Err(PassThroughFailure::Refused(cancelled())),
        piece = timeout_at(deadline, body.chunk()) => piece,
    };
    match piece {
        Ok(piece) => piece.map_err(PassThroughFailure::Body),
        Err(_) => Err(PassThroughFailure::Refused(pending.timed_out())),
    }
}

type Piece = Result<Bytes, crate::reply::BodyError>;

/// A message longer than the buffer, which is being forwarded in pieces.
struct MessageFlow {
    body: Box<dyn ResponseBody>,
    pending: Box<PendingMessage>,
    held: Option<Bytes>,
    long: LongMessage,
    bytes: u64,
    over: bool,
}

impl Flow for MessageFlow {
    async fn next(&mut self) -> Option<Piece> {
        if self.over {
            return None;
        }
        let piece = match self.held.take() {
            Some(held) => Ok(Some(held)),
            None => next(&mut *self.body, &mut self.pending).await,
        };
        let failure = match piece {
            Ok(Some(piece)) => {
                self.bytes += piece.len() as u64;
                if self.bytes <= self.pending.max() {
                    self.long.push(&piece);
                    return Some(Ok(piece));
                }
                too_large(self.pending.max())
            }
            Ok(None) if !self.long.is_whole() => PassThroughFailure::Body(BodyError::Cut),
            Ok(None) => {
                self.over = true;
                let status = match self.long.end() {
                    MessageKind::Answer(status) => status,
                    MessageKind::Question | MessageKind::Other | MessageKind::Foreign => "ok",
                };
                self.pending.finish(status);
                return None;
            }
            Err(failure) => failure,
        };
        self.over = true;
        self.pending.failed(&failure, None);
        Some(Err(broken_off(&failure)))
    }
}

/// Builds the reply that forwards the server's stream of events.
fn events(mut head: Head, body: Box<dyn ResponseBody>, pending: Box<PendingMessage>) -> Reply {
    unbuffered(&mut head);
    let flow = EventFlow {
        body,
        pending,
        splitter: Splitter::default(),
        long: None,
        bytes: 0,
        resumable: false,
        answered: false,
        over: false,
    };
    flow.reply(head)
}

/// Hides secrets in an event, unless the event contains the answer to a successful call or a request to the client.
pub(super) fn without_secrets(event: Bytes, said: MessageKind, secrets: &CallSecrets) -> Bytes {
    match said {
        MessageKind::Answer("ok") | MessageKind::Question => event,
        MessageKind::Answer(_) | MessageKind::Other | MessageKind::Foreign => {
            events::with_data(event, |data| secrets.hide_in(data))
        }
    }
}

/// Adds headers by which proxies in front of the gateway forward each event at once.
pub(super) fn unbuffered(head: &mut Head) {
    if !head.headers.iter().any(|(name, _)| *name == CACHE_CONTROL) {
        let value = HeaderValue::from_static("no-cache, no-transform");
        head.headers.push((CACHE_CONTROL, value));
    }
    let name = HeaderName::from_static("x-accel-buffering");
    head.headers.push((name, HeaderValue::from_static("no")));
}

/// A server's stream of events that is being forwarded to the client.
struct EventFlow {
    body: Box<dyn ResponseBody>,
    pending: Box<PendingMessage>,
    splitter: Splitter,
    /// Reader of the current event; `Some` if the event is so long that its beginning was already forwarded.
    long: Option<LongMessage>,
    /// Size of the current event so far, in bytes.
    bytes: u64,
    /// True if an event had an id, so that the client can resume the stream. If the stream then ends early, it is aborted instead
    /// of being completed with an error event.
    resumable: bool,
    /// True once the answer to the client's request was forwarded.
    answered: bool,
    over: bool,
}

impl Flow for EventFlow {
    async fn next(&mut self) -> Option<Piece> {
        loop {
            if self.over {
                return None;
            }
            if let Some(event) = self.splitter.next() {
                self.bytes += event.len() as u64;
                let bytes = std::mem::take(&mut self.bytes);
                if bytes > self.pending.max() {
                    return self.give_up(too_large(self.pending.max()));
                }
                return Some(Ok(self.heard(event)));
            }
            if self.splitter.pending() > HOLD {
                let part = self.splitter.take();
                self.bytes += part.len() as u64;
                if self.bytes > self.pending.max() {
                    return self.give_up(too_large(self.pending.max()));
                }
                self.long.get_or_insert_default().push(&part);
                return Some(Ok(part));
            }
            match next(&mut *self.body, &mut self.pending).await {
                Ok(Some(piece)) => self.splitter.push(&piece),
                // The connection may have been cut within the event, so this is a failure.
                Ok(None) if self.is_within_event() && self.body.may_be_cut() => {
                    return self.give_up(PassThroughFailure::Body(BodyError::Cut));
                }
                // An incomplete event at the end is dropped. A stream that the client can resume may end before the answer.
                Ok(None) if self.answered || self.resumable => {
                    self.over = true;
                    self.pending.finish("ok");
                }
                Ok(None) => {
                    return self
                        .give_up(PassThroughFailure::Malformed("it ended without an answer"));
                }
                Err(failure) => return self.give_up(failure),
            }
        }
    }
}

impl EventFlow {
    fn is_within_event(&self) -> bool {
        self.long.is_some() || self.splitter.pending() > 0
    }

    /// Classifies an event for the records, and returns the event to forward. Secrets are hidden in it, unless it contains a
    /// successful answer or a request to the client. An event whose beginning was already forwarded is not changed.
    fn heard(&mut self, event: Bytes) -> Bytes {
        let is_whole = self.long.is_none();
        let (event, said) = self.hear(event);
        match is_whole {
            true => without_secrets(event, said, self.pending.secrets()),
            false => event,
        }
    }

    fn hear(&mut self, mut event: Bytes) -> (Bytes, MessageKind) {
        let fields = events::fields(&event);
        if let Some(id) = fields.id {
            self.resumable = true;
            self.pending.may_be_resumed(id);
        }
        let mut said = match self.long.take() {
            Some(mut long) => {
                long.push(&event);
                long.end()
            }
            None => match &fields.data {
                Some(data) => tap::read(data, self.pending.id()),
                None => MessageKind::Other,
            },
        };
        if fields.data.is_some() && said.may_be_odd() {
            event = events::with_data(event.clone(), |data| {
                let (data, plain) = tap::read_plain(data, self.pending.id());
                said = plain;
                data
            });
        }
        match said {
            MessageKind::Answer(status) => {
                self.answered = true;
                self.pending.finish(status);
            }
            MessageKind::Question => self.pending.asked(),
            // An unexpected message in a stream is forwarded, since clients ignore it.
            MessageKind::Other | MessageKind::Foreign => {}
        }
        (event, said)
    }

    /// Ends the stream after a failure. A stream that the client can resume is aborted, so that the client does so; any other
    /// stream ends with an event that reports the failure.
    fn give_up(&mut self, failure: PassThroughFailure) -> Option<Piece> {
        self.over = true;
        if self.answered {
            return None;
        }
        let message = self.pending.message(&failure);
        self.pending.failed(&failure, None);
        if self.resumable || self.long.is_some() {
            return Some(Err(broken_off(&failure)));
        }
        Some(Ok(frame::message(None, &message)))
    }
}

fn broken_off(failure: &PassThroughFailure) -> crate::reply::BodyError {
    format!("the server's answer broke off: {}", failure.code().as_str()).into()
}

fn too_large(max: u64) -> PassThroughFailure {
    PassThroughFailure::Refused(CallError::new(
        CallErrorCode::ResultTooLarge,
        format!("The result has more than the {max} bytes that are allowed"),
    ))
}

fn cancelled() -> CallError {
    CallError::new(CallErrorCode::Cancelled, "The session has ended")
}

/// Reads a complete response of at most `max` bytes, which must be inspected before it is forwarded. A stream of events is
/// read up to the event with the answer. Returns the bytes that were read, and the JSON-RPC message in them.
pub(super) async fn whole(
    response: &mut BackendResponse,
    deadline: Instant,
    limit: Duration,
    max: usize,
) -> Result<(Bytes, Bytes), PassThroughFailure> {
    let streams = headers::kind(&response.headers) == BodyKind::Events;
    let mut read = BytesMut::new();
    let mut splitter = Splitter::default();
    let mut passed = BytesMut::new();
    loop {
        let piece = timeout_at(deadline, response.body.chunk()).await;
        let piece = piece.map_err(|_| PassThroughFailure::Refused(timed_out(limit)))?;
        let Some(piece) = piece.map_err(PassThroughFailure::Body)? else {
            let read = read.freeze();
            return match streams {
                true => Err(PassThroughFailure::Body(BodyError::Cut)),
                false => {
                    let read = without_mark(read);
                    Ok((read.clone(), read))
                }
            };
        };
        if read.len() + passed.len() + splitter.pending() + piece.len() > max {
            return Err(too_large(max as u64));
        }
        if !streams {
            read.extend_from_slice(&piece);
            continue;
        }
        splitter.push(&piece);
        while let Some(event) = splitter.next() {
            passed.extend_from_slice(&event);
            let Some(data) = events::data_of(&event) else {
                continue;
            };
            let (message, said) = tap::read_plain(data, None);
            if matches!(said, MessageKind::Answer(_)) {
                return Ok((passed.freeze(), message));
            }
        }
    }
}
