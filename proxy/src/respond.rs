//! Writing answers: the service's replies and the edge's refusals, and when the connection lives on afterwards.
//!
//! A reply of known length leaves in one write: Pingora keeps the head in its buffer until the last body byte. Streams
//! leave frame by frame, each flushed, with a time limit per write and an eye on the client.

use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use http::header::{CACHE_CONTROL, CONTENT_LENGTH, TRANSFER_ENCODING};
use http::{HeaderName, HeaderValue, Method, StatusCode};
use pingora_http::ResponseHeader;
use pingora_proxy::Session;
use pingora_timeout::fast_timeout::fast_timeout;
use tokio::sync::watch;
use tooldock_filters::{CorsHeaders, ErrorShape, Rejection};
use tooldock_upstream::reply::{Head, Reply};

use crate::body;

/// The header every answer carries, so that a client can name its request to the operator (OBS-07).
pub(crate) const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// How long an unread request body may take to arrive when the connection is to be kept.
const DRAIN: Duration = Duration::from_secs(1);

/// The largest announced body worth reading just to keep a refused connection.
const DRAIN_BYTES: u64 = 64 * 1024;

/// How much of a large answer is written under one time limit, in bytes.
const WRITE_STEP: usize = 128 * 1024;

/// The client is not there any more. Nothing can be done about it and nobody needs to be told.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ClientGone;

impl From<pingora_core::BError> for ClientGone {
    fn from(error: pingora_core::BError) -> Self {
        tracing::debug!(%error, "client went away while it was answered");
        Self
    }
}

/// What is the same for every answer to one request.
pub(crate) struct Envelope<'a> {
    pub(crate) request_id: &'a str,
    /// CORS headers, where the request came from an allowed origin.
    pub(crate) cors: Option<&'a CorsHeaders>,
    /// Time limit of each write of a stream.
    pub(crate) write_timeout: Duration,
}

impl Envelope<'_> {
    fn head(&self, head: Head) -> Result<ResponseHeader, ClientGone> {
        let mut header = ResponseHeader::build_no_case(head.status, Some(head.headers.len() + 8))?;
        for (name, value) in head.headers {
            header.append_header(name, value)?;
        }
        for (name, value) in self.cors.iter().flat_map(|cors| cors.headers()) {
            header.append_header(name, value)?;
        }
        if let Ok(id) = HeaderValue::from_str(self.request_id) {
            header.insert_header(X_REQUEST_ID, id)?;
        }
        Ok(header)
    }
}

/// Writes a reply of the service.
///
/// # Errors
///
/// [`ClientGone`] when the client left or read too slowly; the connection is not used again.
pub(crate) async fn reply(
    session: &mut Session,
    reply: Reply,
    envelope: &Envelope<'_>,
    draining: watch::Receiver<bool>,
) -> Result<(), ClientGone> {
    let written = match reply {
        Reply::Full { head, body } => full(session, head, body, envelope).await,
        Reply::Body { head, body } => stream(session, head, body, envelope, None).await,
        Reply::Events {
            head,
            events,
            guards,
        } => {
            let frames = futures_util::stream::unfold(events, |mut events| async move {
                let event = events.next().await?;
                Some((Ok::<_, std::convert::Infallible>(event), events))
            });
            // A stream's end is the end of its connection: nothing may follow it (DESIGN §4, *Hand-over*).
            session.set_keepalive(None);
            let result = stream(session, head, frames, envelope, Some(draining)).await;
            drop(guards);
            result
        }
    };
    if written.is_err() {
        session.set_keepalive(None);
    }
    written
}

async fn full(
    session: &mut Session,
    head: Head,
    body: Bytes,
    envelope: &Envelope<'_>,
) -> Result<(), ClientGone> {
    let bodiless =
        session.req_header().method == Method::HEAD || head.status == StatusCode::NO_CONTENT;
    let mut header = envelope.head(head)?;
    // A HEAD is told the length of what GET answers, which is not known here, or nothing.
    let known =
        session.req_header().method != Method::HEAD && header.status != StatusCode::NO_CONTENT;
    if known && !header.headers.contains_key(CONTENT_LENGTH) {
        header.insert_header(CONTENT_LENGTH, body.len())?;
    }
    let header = Box::new(header);
    if bodiless || body.is_empty() {
        return within(envelope, session.write_response_header(header, true)).await;
    }
    if body.len() <= WRITE_STEP * 2 {
        return within(envelope, async {
            session.write_response_header(header, false).await?;
            session.write_response_body(Some(body), true).await
        })
        .await;
    }
    // In steps, so that the limit is on a client that stops reading and not on one that reads slowly.
    within(envelope, session.write_response_header(header, false)).await?;
    let mut rest = body;
    while !rest.is_empty() {
        let step = rest.split_to(rest.len().min(WRITE_STEP));
        let last = rest.is_empty();
        within(envelope, session.write_response_body(Some(step), last)).await?;
    }
    Ok(())
}

/// One write under the time limit. Pingora's own covers bodies only: a head, and the flush of an answer that fits its
/// buffer, would wait for ever for a client that does not read.
async fn within(
    envelope: &Envelope<'_>,
    write: impl Future<Output = pingora_core::Result<()>>,
) -> Result<(), ClientGone> {
    match fast_timeout(envelope.write_timeout, write).await {
        Ok(written) => Ok(written?),
        Err(_) => {
            tracing::debug!(
                request_id = envelope.request_id,
                "a client does not read its answer"
            );
            Err(ClientGone)
        }
    }
}

/// Writes a stream to its end.
///
/// Three things end it: the service has no more frames; the gateway drains (long streams only, with a clean end); the
/// client left, which is seen at once because its connection is read meanwhile.
async fn stream<E: std::fmt::Display>(
    session: &mut Session,
    head: Head,
    frames: impl futures_util::Stream<Item = Result<Bytes, E>>,
    envelope: &Envelope<'_>,
    mut draining: Option<watch::Receiver<bool>>,
) -> Result<(), ClientGone> {
    let mut header = envelope.head(head)?;
    if !session.is_http2() && !header.headers.contains_key(CONTENT_LENGTH) {
        header.insert_header(TRANSFER_ENCODING, "chunked")?;
    }
    within(
        envelope,
        session.write_response_header(Box::new(header), false),
    )
    .await?;
    let mut frames = std::pin::pin!(frames);
    loop {
        let drained = async {
            match &mut draining {
                // A closed channel means the gateway is ending, too.
                Some(draining) => {
                    let _ = draining.wait_for(|draining| *draining).await;
                }
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            frame = frames.next() => match frame {
                Some(Ok(frame)) if frame.is_empty() => {}
                Some(Ok(frame)) => {
                    within(envelope, session.write_response_body(Some(frame), false)).await?;
                }
                Some(Err(error)) => {
                    tracing::warn!(%error, "a reply broke off");
                    return Err(ClientGone);
                }
                None => break,
            },
            () = drained => break,
            idle = session.downstream_session.read_body_or_idle(true) => {
                if idle.is_err() {
                    return Err(ClientGone);
                }
            }
        }
    }
    within(envelope, session.write_response_body(None, true)).await
}

/// Writes a refusal, and keeps the connection where that is safe: the request's body is small enough to be read past.
pub(crate) async fn rejection(
    session: &mut Session,
    rejection: &Rejection,
    shape: ErrorShape,
    envelope: &Envelope<'_>,
) -> Result<(), ClientGone> {
    let close = rejection.close || !can_read_past(session);
    if close {
        session.set_keepalive(None);
    } else {
        session.set_close_on_response_before_downstream_finish(false);
        session.set_total_drain_timeout(Some(DRAIN));
    }
    let mut head =
        Head::json(rejection.status()).with(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    head.headers.extend(rejection.headers.iter().cloned());
    full(session, head, rejection.body(shape), envelope).await?;
    if close {
        body::linger(&mut session.downstream_session).await;
    }
    Ok(())
}

/// Answers a request that failed inside the gateway. What failed is in the log under the request's id.
pub(crate) async fn internal_error(
    session: &mut Session,
    envelope: &Envelope<'_>,
) -> Result<(), ClientGone> {
    session.set_keepalive(None);
    let shape = ErrorShape::of_path(session.req_header().uri.path());
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
    .await
}

/// Whether the rest of the request is so small that reading it is cheaper than a new connection.
fn can_read_past(session: &mut Session) -> bool {
    if session.is_body_done() {
        return true;
    }
    !session
        .req_header()
        .headers
        .contains_key(http::header::EXPECT)
        && body::announced(&session.downstream_session).is_some_and(|length| length <= DRAIN_BYTES)
}
