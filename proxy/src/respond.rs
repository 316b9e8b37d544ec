//! Writes responses: the service's replies and the edge's refusals. Decides whether the connection is kept afterwards.
//!
//! - A reply of known length is sent in one write, because Pingora keeps the head in its buffer until the last body byte. The
//!   same is done with a streamed body that is short and complete before its head is written.
//! - Any other body is sent in pieces that are flushed one by one. Each write has a time limit, and meanwhile the connection is
//!   watched for the client's disconnection.
//! - For a long stream only the head is written here; the module `stream` writes the rest.

use std::pin::{Pin, pin};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::{FutureExt as _, StreamExt as _};
use http::header::{CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use pingora_core::ErrorType;
use pingora_core::protocols::Stream;
use pingora_core::protocols::http::ServerSession;
use pingora_http::ResponseHeader;
use pingora_proxy::Session;
use tooldock_base::answers::{AnswerAccount, AnswerClaim, COUNTED_FROM, NoAnswerRoom};
use tooldock_base::budget::BudgetNote;
use tooldock_filters::budget::header_fields;
use tooldock_filters::{CorsHeaders, ErrorShape, Rejection};
use tooldock_upstream::reply::{BodyError, BodyStream, Head, Reply};

use crate::body;
use crate::header_edits::Edits;
use crate::request_id::X_REQUEST_ID;
use crate::unread::{self, WriteAborted};

/// Time limit for receiving an unread request body whose connection is to be kept.
const DRAIN: Duration = Duration::from_secs(1);

/// Maximum size in bytes of an unread request body that is received and discarded to keep the connection.
const DRAIN_BYTES: usize = 64 * 1024;

/// Limits in bytes and time for the unread rest of an HTTP/2 request's body, which is discarded after the response.
const STREAM_BYTES: usize = 1024 * 1024;
const STREAM_TIME: Duration = Duration::from_secs(2);

/// Maximum size in bytes of a piece of a response that is written under one time limit.
pub(crate) const WRITE_STEP: usize = 128 * 1024;

/// Maximum total size in bytes of available chunks that are joined into one write.
const TOGETHER: usize = 16 * 1024;

/// Number of headers that are added to each response: request id, length or coding of the body, remaining limits, and those that
/// Pingora adds, date and connection. Used to allocate the header map.
const OWN_HEADERS: usize = 6;
/// Number of headers that are added to a response to a web page of an allowed origin. Used to allocate the header map.
const CORS_HEADERS: usize = 3;

/// The client has disconnected or does not read. Nothing more is written to it, and no error is reported.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ClientGone;

impl From<pingora_core::BError> for ClientGone {
    fn from(error: pingora_core::BError) -> Self {
        tracing::debug!(%error, "client went away while it was answered");
        Self
    }
}

/// Settings that apply to every response to one request.
pub(crate) struct Envelope<'a> {
    pub(crate) request_id: &'a str,
    /// CORS headers for the response; `None` unless the request came from an allowed origin.
    pub(crate) cors: Option<&'a CorsHeaders>,
    /// Time limit for each write of a response.
    pub(crate) write_timeout: Duration,
    /// True if a newline is appended to JSON, for display in a terminal.
    pub(crate) newline: bool,
    /// Changes to the headers that the listener's configuration demands.
    pub(crate) edits: Option<&'a Edits>,
    /// Remaining budgets of the limits that count this request. They are sent in headers of the response.
    pub(crate) budget: Option<&'a BudgetNote>,
    /// Account of the bytes that the client has not received yet; `None` for refusals, which are short.
    pub(crate) answers: Option<&'a AnswerAccount>,
    /// The part of the memory limit for all responses that this response already occupies; `None` if it is not counted yet.
    pub(crate) claim: Option<AnswerClaim>,
}

impl Envelope<'_> {
    /// Counts the memory of a large response until its client has received it.
    ///
    /// # Errors
    ///
    /// The refusal to send instead, if the memory limit for responses is reached.
    pub(crate) fn counted(&mut self, mut reply: Reply) -> Result<Reply, Rejection> {
        let (Reply::Full { body, .. } | Reply::Opening { body, .. }) = &mut reply else {
            return Ok(reply);
        };
        if body.len() < COUNTED_FROM {
            return Ok(reply);
        }
        let Some(answers) = self.answers else {
            return Ok(reply);
        };
        let claim = answers.claim(body.len());
        let claim = claim.map_err(|NoAnswerRoom| Rejection::answers_full())?;
        self.claim = Some(claim.clone());
        *body = claim.keep(std::mem::take(body));
        Ok(reply)
    }

    /// Creates a response head in Pingora's type. `framing` is the header with the length or coding of the body, if it has one.
    fn head(&self, head: Head, framing: Option<(HeaderName, HeaderValue)>) -> ResponseHeader {
        let cors = self.cors.map_or(0, |_| CORS_HEADERS);
        // Pingora's own map parses the name of each inserted header. To avoid that, the headers are first collected in a plain
        // map.
        let mut headers = HeaderMap::with_capacity(head.headers.len() + cors + OWN_HEADERS);
        for (name, value) in head.headers {
            headers.append(name, value);
        }
        for (name, value) in self.cors.iter().flat_map(|cors| cors.headers()) {
            headers.append(name, value);
        }
        if let Ok(id) = HeaderValue::from_str(self.request_id) {
            headers.insert(X_REQUEST_ID, id);
        }
        if let Some(budget) = self.budget.and_then(BudgetNote::read) {
            headers.extend(header_fields(&budget).map(|(name, value)| (Some(name), value)));
        }
        if let Some((name, value)) = framing {
            headers.insert(name, value);
        }
        if let Some(edits) = self.edits {
            edits.apply(&mut headers);
        }
        let (mut parts, ()) = http::Response::new(()).into_parts();
        parts.status = head.status;
        parts.headers = headers;
        parts.into()
    }
}

/// Writes a response whose body is complete.
///
/// # Errors
///
/// [`ClientGone`] when the client disconnected or does not read; the connection is not used again.
pub(crate) async fn full(
    session: &mut Session,
    head: Head,
    body: Bytes,
    envelope: &Envelope<'_>,
) -> Result<(), ClientGone> {
    let written = write_full(session, head, body, envelope).await;
    if written.is_err() {
        session.set_keepalive(None);
    }
    written
}

async fn write_full(
    session: &mut Session,
    head: Head,
    body: Bytes,
    envelope: &Envelope<'_>,
) -> Result<(), ClientGone> {
    // A response to HEAD may state the length of the response to GET or none. That length is not known here, so none is sent.
    let bodiless =
        session.req_header().method == Method::HEAD || head.status == StatusCode::NO_CONTENT;
    let body = match envelope.newline && !body.is_empty() && is_json(&head) {
        true => with_newline(body),
        false => body,
    };
    let length = (!bodiless).then(|| (CONTENT_LENGTH, body.len().into()));
    let header = envelope.head(head, length);
    let header = Box::new(header);
    if bodiless || body.is_empty() {
        let head = session.write_response_header(header, true);
        return within(envelope, 0, pin!(head)).await;
    }
    let size = body.len();
    if size <= WRITE_STEP * 2 {
        // The future is pinned in place, because passing it to `within` by value would copy it.
        let written = pin!(async {
            session.write_response_header(header, false).await?;
            session.write_response_body(Some(body), true).await
        });
        return within(envelope, size, written).await;
    }
    let head = session.write_response_header(header, false);
    within(envelope, size, pin!(head)).await?;
    write_steps(session, body, true, envelope).await
}

fn is_json(head: &Head) -> bool {
    let mut headers = head.headers.iter();
    headers.any(|(name, value)| name == CONTENT_TYPE && value == "application/json")
}

/// Appends a newline to a body, unless it has one. The body is copied if its memory is shared.
fn with_newline(body: Bytes) -> Bytes {
    if body.ends_with(b"\n") {
        return body;
    }
    joined(body, b"\n")
}

/// Writes a piece of a body in steps. Each step has the full time limit, so that the limit ends responses to clients that do not
/// read, but not to clients that read slowly.
async fn write_steps(
    session: &mut Session,
    mut rest: Bytes,
    last: bool,
    envelope: &Envelope<'_>,
) -> Result<(), ClientGone> {
    while !rest.is_empty() {
        let step = rest.split_to(rest.len().min(WRITE_STEP));
        let (end, left) = (last && rest.is_empty(), step.len() + rest.len());
        let written = session.write_response_body(Some(step), end);
        within(envelope, left, pin!(written)).await?;
    }
    Ok(())
}

/// Runs a write with a time limit. Pingora's own limit covers only bodies. A head, or the flush of a response that fits into
/// Pingora's buffer, would wait forever for a client that does not read. `size` is the response's size in memory, in bytes.
async fn within<F>(
    envelope: &Envelope<'_>,
    size: usize,
    write: Pin<&mut F>,
) -> Result<(), ClientGone>
where
    F: Future<Output = pingora_core::Result<()>>,
{
    let (limit, claim) = (envelope.write_timeout, envelope.claim.as_ref());
    match unread::write(envelope.answers, claim, size, limit, write).await {
        Ok(written) => Ok(written?),
        Err(WriteAborted) => {
            tracing::debug!(
                request_id = envelope.request_id,
                "a client does not read its answer"
            );
            Err(ClientGone)
        }
    }
}

/// Writes and flushes the head of a response of unknown length.
///
/// # Errors
///
/// [`ClientGone`] when the client disconnected or does not read.
pub(crate) async fn stream_head(
    session: &mut Session,
    head: Head,
    envelope: &Envelope<'_>,
) -> Result<(), ClientGone> {
    let mut coding = None;
    if !session.is_http2() {
        // HTTP/1.0 has no chunked coding. The end of the body is marked by closing the connection.
        if session.req_header().version == http::Version::HTTP_10 {
            session.set_keepalive(None);
        } else {
            coding = Some((TRANSFER_ENCODING, HeaderValue::from_static("chunked")));
        }
    }
    let header = envelope.head(head, coding);
    let head = session.write_response_header(Box::new(header), false);
    within(envelope, 0, pin!(head)).await
}

/// Writes a response in pieces, each as soon as it is available.
///
/// Ends when the last piece was written, or when the client disconnects. The connection is read meanwhile, so that a
/// disconnection is detected immediately; the body is then dropped.
///
/// # Errors
///
/// [`ClientGone`] when the client disconnected or does not read; the connection is not used again.
pub(crate) async fn body(
    session: &mut Session,
    head: Head,
    body: BodyStream,
    envelope: &Envelope<'_>,
) -> Result<(), ClientGone> {
    let written = write_body(session, head, body, envelope).await;
    if written.is_err() {
        session.set_keepalive(None);
    }
    written
}

async fn write_body(
    session: &mut Session,
    head: Head,
    mut body: BodyStream,
    envelope: &Envelope<'_>,
) -> Result<(), ClientGone> {
    let mut ready = Ready::of(&mut body);
    if ready.is_all() {
        // The whole body is already available, so it is sent in one write, like a response of known length.
        return write_full(session, head, ready.bytes, envelope).await;
    }
    stream_head(session, head, envelope).await?;
    let mut watched = true;
    loop {
        write_steps(session, std::mem::take(&mut ready.bytes), false, envelope).await?;
        let next = match ready.behind.take() {
            Some(next) => next,
            None => tokio::select! {
                biased;
                next = body.next() => next,
                idle = session.downstream_session.read_body_or_idle(true), if watched => match idle {
                    Ok(_) => continue,
                    Err(error) if sent_ahead(&error) => {
                        session.set_keepalive(None);
                        watched = false;
                        continue;
                    }
                    Err(_) => return Err(ClientGone),
                },
            },
        };
        match next {
            Some(Ok(piece)) => ready = Ready::from(piece, &mut body),
            Some(Err(error)) => {
                tracing::warn!(%error, "an answer ended before it was complete");
                return Err(ClientGone);
            }
            None => break,
        }
    }
    within(envelope, 0, pin!(session.write_response_body(None, true))).await
}

/// The chunks of a body that are available now, joined so that they are sent in one write.
struct Ready {
    bytes: Bytes,
    /// The chunk after `bytes`, if it is available but was not joined. `Some(None)` means that the body ends after `bytes`;
    /// `None` means that the next chunk was not requested or is not available yet.
    behind: Option<Option<Result<Bytes, BodyError>>>,
}

impl Ready {
    fn of(body: &mut BodyStream) -> Self {
        Self::from(Bytes::new(), body)
    }

    /// Joins a chunk with the chunks after it that are available without waiting.
    fn from(piece: Bytes, body: &mut BodyStream) -> Self {
        let mut bytes = piece;
        while bytes.len() < TOGETHER {
            match body.next().now_or_never() {
                Some(Some(Ok(more))) if bytes.is_empty() => bytes = more,
                Some(Some(Ok(more))) if bytes.len() + more.len() <= TOGETHER => {
                    bytes = joined(bytes, &more);
                }
                behind => return Self { bytes, behind },
            }
        }
        Self {
            bytes,
            behind: None,
        }
    }

    /// Returns true if the body ends after `bytes`.
    fn is_all(&self) -> bool {
        matches!(self.behind, Some(None))
    }
}

/// Appends `more` to `bytes`. `bytes` are copied if their memory is shared.
fn joined(bytes: Bytes, more: &[u8]) -> Bytes {
    let mut joined = bytes.try_into_mut().unwrap_or_else(|shared| {
        let mut copy = BytesMut::with_capacity(shared.len() + more.len());
        copy.extend_from_slice(&shared);
        copy
    });
    joined.extend_from_slice(more);
    joined.freeze()
}

/// Returns true if the error means that the client has sent bytes of its next request early. Watching the connection has consumed
/// one of these bytes, so the connection cannot be used for that request. The client has not disconnected.
pub(crate) fn sent_ahead(error: &pingora_core::Error) -> bool {
    *error.etype() == ErrorType::ConnectError
}

/// Writes a response to a request whose body is not read. The connection is kept if the rest of the request is small enough to
/// be discarded.
pub(crate) async fn unread(
    session: &mut Session,
    head: Head,
    body: Bytes,
    envelope: &Envelope<'_>,
) -> Result<(), ClientGone> {
    let rest = leave_body(session);
    full(session, head, body, envelope).await?;
    rest.discard(session).await;
    Ok(())
}

/// Writes a refusal. The connection is kept if the request's body is small enough to be discarded, unless the refusal demands
/// that it is closed.
pub(crate) async fn rejection(
    session: &mut Session,
    rejection: &Rejection,
    envelope: &Envelope<'_>,
) -> Result<(), ClientGone> {
    if rejection.close {
        session.set_keepalive(None);
    }
    let rest = match rejection.close {
        true => BodyRest::of_closed(session),
        false => leave_body(session),
    };
    full(session, refusal(rejection), rejection.body(), envelope).await?;
    rest.discard(session).await;
    Ok(())
}

/// Creates the response head of a refusal.
fn refusal(rejection: &Rejection) -> Head {
    let mut head =
        Head::json(rejection.status()).with(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    head.headers.extend(rejection.headers.iter().cloned());
    head
}

/// Writes the refusal of a request whose head was not passed to Pingora, and closes the connection.
pub(crate) async fn refuse_before_request(
    stream: Stream,
    rejection: &Rejection,
    request_id: &str,
    edits: Option<&Edits>,
) {
    let envelope = Envelope {
        request_id,
        cors: None,
        // No time limit is needed here: the connection (`connection/wire.rs`) limits each write that Pingora makes.
        write_timeout: Duration::MAX,
        // The client's header `Accept`, which decides about the newline, was not read.
        newline: false,
        edits,
        budget: None,
        answers: None,
        claim: None,
    };
    let body = rejection.body();
    let length = (CONTENT_LENGTH, body.len().into());
    let head = envelope.head(refusal(rejection), Some(length));
    let mut session = ServerSession::new_http1(stream);
    if let Err(error) = session.write_error_response(head, body).await {
        tracing::debug!(%error, "a client did not take its refusal");
        return;
    }
    if let ServerSession::H1(session) = session {
        body::linger_on(session.into_inner()).await;
    }
}

/// Writes the response for a request that failed inside the gateway. The log contains the cause, together with the request's id.
pub(crate) async fn internal_error(
    session: &mut Session,
    shape: ErrorShape,
    envelope: &Envelope<'_>,
) -> Result<(), ClientGone> {
    session.set_keepalive(None);
    let rest = match session.is_http2() {
        true => leave_body(session),
        false => BodyRest::LeftAlone,
    };
    let body = shape.body(
        "internal_error",
        -32603,
        "The gateway failed to answer. The request id names the line in its log.",
    );
    full(
        session,
        Head::json(StatusCode::INTERNAL_SERVER_ERROR),
        body,
        envelope,
    )
    .await?;
    rest.discard(session).await;
    Ok(())
}

/// The way in which the unread rest of a request's body is discarded after the response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BodyRest {
    /// Nothing is discarded here: the body was read completely, or Pingora reads the rest before the connection's next request.
    LeftAlone,
    /// The rest of an HTTP/2 request is discarded. Otherwise the stream would be reset, and clients treat a reset as a broken
    /// response, even with `NO_ERROR`.
    OfStream,
    /// The rest is discarded before the connection is closed. Otherwise the kernel would reset the connection because of the
    /// unread bytes, possibly before the client has received the response.
    OfConnection,
}

impl BodyRest {
    /// Selects how the unread body is discarded for a request whose connection is closed after the response.
    fn of_closed(session: &Session) -> Self {
        match session.is_http2() {
            true => Self::OfStream,
            false => Self::OfConnection,
        }
    }

    /// Discards the rest of the request's body, up to limits of size and time. Must be called after the response was written.
    pub(crate) async fn discard(self, session: &mut Session) {
        let session = &mut session.downstream_session;
        match self {
            Self::LeftAlone => {}
            Self::OfStream => {
                body::read_past(session, STREAM_BYTES, STREAM_TIME).await;
            }
            Self::OfConnection => body::linger(session).await,
        }
    }
}

/// Prepares a response to a request whose body was not read. The connection is kept if the rest of the request is small enough to
/// be discarded. Must be called before the response's head is written; call [`BodyRest::discard`] after the response.
pub(crate) fn leave_body(session: &mut Session) -> BodyRest {
    if session.is_http2() {
        return match session.is_body_done() {
            true => BodyRest::LeftAlone,
            false => BodyRest::OfStream,
        };
    }
    if can_read_past(session) {
        session.set_close_on_response_before_downstream_finish(false);
        session.set_total_drain_timeout(Some(DRAIN));
        return BodyRest::LeftAlone;
    }
    session.set_keepalive(None);
    BodyRest::OfConnection
}

/// Reads and discards the body of a request that is answered with a long stream: after that, only the stream's bytes may be on
/// the connection. Returns false if the body is too large or does not arrive in time; the connection is then closed.
pub(crate) async fn read_past(session: &mut Session) -> bool {
    let past = body::read_past(&mut session.downstream_session, DRAIN_BYTES, DRAIN).await;
    if !past {
        session.set_keepalive(None);
    }
    past
}

/// Returns true if reading the unread rest of the request is cheaper than a new connection, because the rest is small.
fn can_read_past(session: &mut Session) -> bool {
    if session.is_body_done() {
        return true;
    }
    !session
        .req_header()
        .headers
        .contains_key(http::header::EXPECT)
        && body::announced(&session.downstream_session)
            .is_some_and(|length| length <= DRAIN_BYTES as u64)
}

#[cfg(test)]
mod tests {
    use futures_util::stream;

    use super::*;

    type Piece = Result<Bytes, BodyError>;

    fn pieces(pieces: Vec<Piece>) -> BodyStream {
        Box::pin(stream::iter(pieces))
    }

    fn text(text: &'static str) -> Piece {
        Ok(Bytes::from_static(text.as_bytes()))
    }

    #[test]
    fn a_short_body_that_is_over_is_there_as_a_whole() {
        let ready = Ready::of(&mut pieces(vec![text("one "), text("two "), text("three")]));
        assert_eq!(ready.bytes, "one two three");
        assert!(ready.is_all());
        assert!(Ready::of(&mut pieces(vec![])).is_all());
    }

    #[test]
    fn what_is_not_there_yet_is_not_waited_for() {
        let waits = stream::iter([text("one "), text("two")]).chain(stream::pending());
        let ready = Ready::of(&mut (Box::pin(waits) as BodyStream));
        assert_eq!(ready.bytes, "one two");
        assert!(ready.behind.is_none());
    }

    #[test]
    fn what_came_before_an_error_leaves_first() {
        let ready = Ready::of(&mut pieces(vec![text("one"), Err("cut".into())]));
        assert_eq!(ready.bytes, "one");
        assert!(!ready.is_all() && matches!(ready.behind, Some(Some(Err(_)))));
    }

    #[test]
    fn a_long_piece_is_not_copied_behind_another() {
        let long = Bytes::from(vec![b'x'; TOGETHER]);
        let mut body = pieces(vec![text("one"), Ok(long.clone()), text("two")]);
        let ready = Ready::of(&mut body);
        assert_eq!(ready.bytes, "one");
        let Some(Some(Ok(next))) = ready.behind else {
            panic!("the long piece comes next");
        };
        assert_eq!(next.as_ptr(), long.as_ptr());
        let ready = Ready::from(next, &mut body);
        assert_eq!(ready.bytes.as_ptr(), long.as_ptr());
        assert!(ready.behind.is_none());
    }
}
