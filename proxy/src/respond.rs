//! Writes responses: the service's replies and the edge's refusals. Decides whether the connection is kept afterwards.
//!
//! A reply of known length is sent in one write: Pingora keeps the head in its buffer until the last body byte. So is a
//! streamed body that is short and complete before its head is written. Any other body is sent chunk by chunk, each flushed,
//! with a time limit per step, while the connection is watched for the client's disconnection. Long streams get their head here
//! and are written elsewhere (see `stream`).

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
use crate::unread::{self, NotTaken};

/// Time limit for the arrival of an unread request body when the connection is to be kept.
const DRAIN: Duration = Duration::from_secs(1);

/// Maximum size, in bytes, of an unread request body that is discarded to keep the connection.
const DRAIN_BYTES: usize = 64 * 1024;

/// Limits, in bytes and time, for the unread rest of an HTTP/2 request's body that is discarded after the response.
const STREAM_BYTES: usize = 1024 * 1024;
const STREAM_TIME: Duration = Duration::from_secs(2);

/// Maximum size of a piece of an answer or event that is written under one time limit, in bytes.
pub(crate) const WRITE_STEP: usize = 128 * 1024;

/// Total size up to which available chunks are sent in one write, in bytes.
const TOGETHER: usize = 16 * 1024;

/// Number of headers that are added to an answer: request id, length or coding of the body, remaining limits, and
/// Pingora's date and connection.
const OWN_HEADERS: usize = 6;
/// Number of headers that are added to an answer to a web page of an allowed origin.
const CORS_HEADERS: usize = 3;

/// The error for a client that has disconnected. Nothing more is written to it, and nothing is reported.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ClientGone;

impl From<pingora_core::BError> for ClientGone {
    fn from(error: pingora_core::BError) -> Self {
        tracing::debug!(%error, "client went away while it was answered");
        Self
    }
}

/// Settings that all answers to one request share.
pub(crate) struct Envelope<'a> {
    pub(crate) request_id: &'a str,
    /// CORS headers; `None` unless the request came from an allowed origin.
    pub(crate) cors: Option<&'a CorsHeaders>,
    /// Time limit of each write of a stream.
    pub(crate) write_timeout: Duration,
    /// True when JSON ends with a newline, for display in a terminal.
    pub(crate) newline: bool,
    /// The listener's changes to the headers.
    pub(crate) edits: Option<&'a Edits>,
    /// Remaining budgets of the limits that count the request, for headers of the answer.
    pub(crate) budget: Option<&'a BudgetNote>,
    /// Counter of the bytes that the client has not received yet; `None` for refusals, which are short.
    pub(crate) answers: Option<&'a AnswerAccount>,
    /// Claim on the answers' total that already counts this answer.
    pub(crate) claim: Option<AnswerClaim>,
}

impl Envelope<'_> {
    /// Counts a large response until its client has received it.
    ///
    /// # Errors
    ///
    /// The refusal that replaces a response for which there is no memory left.
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

    /// Creates the head for Pingora. `framing` is the length or coding of the body, if it has one.
    fn head(&self, head: Head, framing: Option<(HeaderName, HeaderValue)>) -> ResponseHeader {
        let cors = self.cors.map_or(0, |_| CORS_HEADERS);
        // Inserted into a map first, because Pingora parses the name of each header that is added to its own map.
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
    // The response to HEAD may only contain the length of the response to GET, which is not known here, or none.
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
        // Pinned here, since otherwise the future would be moved into the time limit.
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

/// Appends a newline to a body. The body is copied if it has other holders.
fn with_newline(body: Bytes) -> Bytes {
    if body.ends_with(b"\n") {
        return body;
    }
    joined(body, b"\n")
}

/// Writes a chunk of a body in steps, so that the time limit applies to clients that stop reading, and not to those that read
/// slowly.
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

/// Runs a write under the time limit. Pingora's own limit covers bodies only: a head, and the flush of a response that fits its
/// buffer, would wait for ever for a client that does not read. `size` is the size of the response in memory, in bytes.
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
        Err(NotTaken) => {
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
        // HTTP/1.0 has no chunks, so the end of the connection ends the body.
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

/// Writes a response chunk by chunk, each as soon as it is available.
///
/// Two events end it: the last chunk was written; or the client has disconnected, which is detected immediately because its
/// connection is read meanwhile, and drops the body.
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
        // The complete body is available, so it is sent in one write, like any response of known length.
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

/// Available chunks of a body, joined so that they are sent in one write.
struct Ready {
    bytes: Bytes,
    /// The chunk after these bytes, which does not fit in the same write: `Some(None)` is the end of the body.
    behind: Option<Option<Result<Bytes, BodyError>>>,
}

impl Ready {
    fn of(body: &mut BodyStream) -> Self {
        Self::from(Bytes::new(), body)
    }

    /// Joins a chunk with the available chunks after it.
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

    /// Returns true if the body ends with these bytes.
    fn is_all(&self) -> bool {
        matches!(self.behind, Some(None))
    }
}

/// Appends `more` to `bytes`, which are copied if they have other holders.
fn joined(bytes: Bytes, more: &[u8]) -> Bytes {
    let mut joined = bytes.try_into_mut().unwrap_or_else(|shared| {
        let mut copy = BytesMut::with_capacity(shared.len() + more.len());
        copy.extend_from_slice(&shared);
        copy
    });
    joined.extend_from_slice(more);
    joined.freeze()
}

/// Returns true if the check of an idle connection found bytes of a next request. The check consumes one byte of it, so the
/// connection cannot be used for a next request; the client has not disconnected.
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

/// Writes a refusal. Keeps the connection if the request's body is small enough to be discarded.
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

/// The head of a refusal.
fn refusal(rejection: &Rejection) -> Head {
    let mut head =
        Head::json(rejection.status()).with(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    head.headers.extend(rejection.headers.iter().cloned());
    head
}

/// Writes the refusal of a request head that was not passed to Pingora, and closes the connection.
pub(crate) async fn without_a_request(
    stream: Stream,
    rejection: &Rejection,
    request_id: &str,
    edits: Option<&Edits>,
) {
    let envelope = Envelope {
        request_id,
        cors: None,
        // A time limit is not needed: Pingora writes this response, and the connection (`connection/wire.rs`) limits each of
        // its writes.
        write_timeout: Duration::MAX,
        // The client's Accept was not read.
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

/// Answers a request that failed inside the gateway. The log has the cause under the request's id.
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

/// The unread rest of a request body, and how it is discarded after the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BodyRest {
    /// Nothing is discarded: the body was read completely, or Pingora reads the remainder before the connection's next request.
    LeftAlone,
    /// The rest of an HTTP/2 request. A stream that ends before its request is complete is reset, and clients take the reset
    /// for a broken response, even with `NO_ERROR`.
    OfStream,
    /// The rest of a request whose connection ends with the response. Unread bytes must not reset the connection before the
    /// client has the response.
    OfConnection,
}

impl BodyRest {
    /// Chooses how the rest of a request is discarded if its connection is closed after the response.
    fn of_closed(session: &Session) -> Self {
        match session.is_http2() {
            true => Self::OfStream,
            false => Self::OfConnection,
        }
    }

    /// Discards the rest of the request, within the limits of size and time. Must be called after the response was written.
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

/// Prepares a response to a request with an unread body: the connection is kept if the rest of the request is small enough to
/// be discarded. Must be called before the response's head is written; [`BodyRest::discard`] is called after the response.
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

/// Reads and discards the body of a request that is answered with a long stream, since the stream's connection must transport
/// no other bytes. Returns false if the body is too large or does not arrive; the connection then ends.
pub(crate) async fn read_past(session: &mut Session) -> bool {
    let past = body::read_past(&mut session.downstream_session, DRAIN_BYTES, DRAIN).await;
    if !past {
        session.set_keepalive(None);
    }
    past
}

/// Returns true if the unread rest of the request is so small that reading it is cheaper than a new connection.
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
