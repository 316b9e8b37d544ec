//! Reading a request body: bounded in bytes and time, in one piece.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::{CONTENT_LENGTH, EXPECT};
use pingora_core::protocols::http::ServerSession;

use crate::timeout::fast_timeout;

/// How long and how much of an unread body is thrown away after an answer that closes the connection.
///
/// Closing with unread bytes in the socket resets it, and the reset can overtake our answer: most clients write their
/// whole body before they read. A client that asked with `Expect: 100-continue` has sent nothing, so nothing is awaited.
const LINGER: Duration = Duration::from_secs(2);
const LINGER_BYTES: usize = 16 * 1024 * 1024;

/// Why a body could not be had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BodyError {
    /// More bytes than the limit.
    TooLarge,
    /// It did not arrive in time.
    TimedOut,
    /// Its framing is broken, or the client went away in the middle.
    Broken,
}

/// Reads the whole body.
///
/// A body that arrives in one chunk, which is nearly every one, is handed on without a copy.
pub(crate) async fn read(
    session: &mut ServerSession,
    limit: usize,
    deadline: Duration,
) -> Result<Bytes, BodyError> {
    let announced = announced(session);
    if announced.is_some_and(|length| length > limit as u64) {
        return Err(BodyError::TooLarge);
    }
    if announced == Some(0) || session.is_body_empty() {
        return Ok(Bytes::new());
    }
    if expects_continue(session) && session.write_continue_response().await.is_err() {
        return Err(BodyError::Broken);
    }
    // The whole body has one deadline; Pingora's own, per read, would only come before it under another name.
    session.set_read_timeout(None);
    fast_timeout(deadline, read_chunks(session, limit, announced))
        .await
        .unwrap_or(Err(BodyError::TimedOut))
}

async fn read_chunks(
    session: &mut ServerSession,
    limit: usize,
    announced: Option<u64>,
) -> Result<Bytes, BodyError> {
    let mut first = Bytes::new();
    let mut rest: Option<BytesMut> = None;
    loop {
        let chunk = match session.read_request_body().await {
            Ok(Some(chunk)) => chunk,
            Ok(None) => break,
            Err(_) => return Err(BodyError::Broken),
        };
        let held = rest.as_ref().map_or(first.len(), BytesMut::len);
        if held + chunk.len() > limit {
            return Err(BodyError::TooLarge);
        }
        match &mut rest {
            Some(buffer) => buffer.extend_from_slice(&chunk),
            None if first.is_empty() => first = chunk,
            None => {
                // The announced length was checked against the limit, so a client cannot make this reserve more.
                let expected = announced.map_or(held * 2, |length| length as usize);
                let mut buffer =
                    BytesMut::with_capacity(expected.max(held + chunk.len()).min(limit));
                buffer.extend_from_slice(&first);
                buffer.extend_from_slice(&chunk);
                rest = Some(buffer);
            }
        }
        if session.is_body_done() {
            break;
        }
    }
    Ok(rest.map_or(first, BytesMut::freeze))
}

/// Throws away what the client still sends, for a bounded time, so that our answer reaches it.
pub(crate) async fn linger(session: &mut ServerSession) {
    if expects_continue(session) {
        return;
    }
    let discard = async {
        let mut discarded = 0;
        while let Ok(Some(chunk)) = session.read_request_body().await {
            discarded += chunk.len();
            if discarded > LINGER_BYTES {
                break;
            }
        }
    };
    let _ = fast_timeout(LINGER, discard).await;
}

/// The announced length, if there is one.
pub(crate) fn announced(session: &ServerSession) -> Option<u64> {
    session
        .req_header()
        .headers
        .get(CONTENT_LENGTH)?
        .to_str()
        .ok()?
        .parse()
        .ok()
}

fn expects_continue(session: &ServerSession) -> bool {
    let header = session.req_header();
    header.version == http::Version::HTTP_11
        && header
            .headers
            .get(EXPECT)
            .is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"100-continue"))
}
