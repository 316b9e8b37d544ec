//! Reads a complete request body, with a time limit, a limit for its size, and a limit for the bytes of all bodies in memory.

use std::pin::pin;
use std::time::Duration;

use bytes::{Buf as _, Bytes, BytesMut};
use http::header::{CONTENT_LENGTH, EXPECT};
use pingora_core::protocols::Stream;
use pingora_core::protocols::http::ServerSession;
use prometheus::IntGauge;
use tokio::io::AsyncReadExt;

use crate::timeout::fast_timeout;

/// Bounds, in time and bytes, of the unread body that is discarded after a response that closes the connection.
///
/// Closing with unread bytes in the socket resets it, and the reset can overtake our answer: most clients write their
/// whole body before they read. A client that asked with `Expect: 100-continue` has sent nothing, so nothing is awaited.
const LINGER: Duration = Duration::from_secs(5);
const LINGER_BYTES: usize = 256 * 1024 * 1024;

/// The reason why a body could not be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BodyError {
    /// The body has more bytes than the limit.
    TooLarge,
    /// The body did not arrive in time.
    TimedOut,
    /// The body's framing is broken, or the client disconnected during the body.
    Broken,
    /// The limit for the bytes of all bodies in memory is reached.
    NoRoom,
}

/// Limits on the size of a body and the time of its arrival.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BodyLimits {
    /// The limit for one body.
    pub(crate) bytes: usize,
    /// The limit for all bodies in memory.
    pub(crate) total: usize,
    /// Time limit for a complete body.
    pub(crate) deadline: Duration,
}

/// A request body that was read, and its count in the bytes of all bodies in memory.
#[derive(Debug)]
pub(crate) struct Body {
    /// The complete body.
    pub(crate) bytes: Bytes,
    /// Counts the bytes for as long as they are in memory; `None` for a body that arrived in one chunk.
    pub(crate) held: Option<HeldBytes>,
}

impl Body {
    /// The body of a request without one.
    pub(crate) const EMPTY: Self = Self {
        bytes: Bytes::new(),
        held: None,
    };
}

/// Bytes counted among those of all bodies in memory, until this guard is dropped.
#[derive(Debug)]
pub(crate) struct HeldBytes {
    all: IntGauge,
    bytes: i64,
}

impl HeldBytes {
    /// Counts `bytes` more. The sum never exceeds `total`: of two bodies that arrive concurrently, both may be refused.
    fn grow(&mut self, bytes: usize, total: usize) -> Result<(), BodyError> {
        let more = i64::try_from(bytes).map_err(|_| BodyError::NoRoom)?;
        self.all.add(more);
        self.bytes += more;
        if usize::try_from(self.all.get()).is_ok_and(|all| all > total) {
            return Err(BodyError::NoRoom);
        }
        Ok(())
    }
}

impl Drop for HeldBytes {
    fn drop(&mut self) {
        self.all.sub(self.bytes);
    }
}

/// Returns true if the client waits for `100 Continue` before it sends its body.
pub(crate) fn awaits_continue(session: &mut ServerSession, limits: BodyLimits) -> bool {
    expects_continue(session)
        && !session.is_body_empty()
        && announced(session).is_none_or(|length| length <= limits.bytes as u64)
}

/// Reads the complete body. `held` counts the bytes of all bodies in memory.
///
/// A body that arrives in one chunk, the usual case, is returned without a copy and without being counted: it is no larger than
/// the buffer that a connection has in any case.
pub(crate) async fn read(
    session: &mut ServerSession,
    limits: BodyLimits,
    held: &IntGauge,
) -> Result<Body, BodyError> {
    let announced = announced(session);
    if announced.is_some_and(|length| length > limits.bytes as u64) {
        return Err(BodyError::TooLarge);
    }
    if announced == Some(0) || session.is_body_empty() {
        return Ok(Body::EMPTY);
    }
    // The complete body has one deadline. Pingora's own limit, per read, would only end the request earlier, with another
    // error.
    session.set_read_timeout(None);
    // Pinned here, since otherwise the future would be moved into the time limit.
    let whole = pin!(read_chunks(session, limits, held, announced));
    let whole = fast_timeout(limits.deadline, whole).await;
    whole.unwrap_or(Err(BodyError::TimedOut))
}

async fn read_chunks(
    session: &mut ServerSession,
    limits: BodyLimits,
    all: &IntGauge,
    announced: Option<u64>,
) -> Result<Body, BodyError> {
    let mut first = Bytes::new();
    let mut rest: Option<BytesMut> = None;
    let mut held: Option<HeldBytes> = None;
    loop {
        let chunk = match session.read_request_body().await {
            Ok(Some(chunk)) => chunk,
            Ok(None) => break,
            Err(_) => return Err(BodyError::Broken),
        };
        let before = rest.as_ref().map_or(first.len(), BytesMut::len);
        if before + chunk.len() > limits.bytes {
            return Err(BodyError::TooLarge);
        }
        let done = session.is_body_done();
        if !(done && before == 0) {
            let held = held.get_or_insert_with(|| HeldBytes {
                all: all.clone(),
                bytes: 0,
            });
            held.grow(chunk.len(), limits.total)?;
        }
        match &mut rest {
            Some(buffer) => buffer.extend_from_slice(&chunk),
            None if first.is_empty() => first = chunk,
            None => {
                // The announced length was checked against the limit, so a client cannot make this reserve more. Reserved
                // memory costs nothing before it is written.
                let expected = announced.map_or(before * 2, |length| length as usize);
                let mut buffer =
                    BytesMut::with_capacity(expected.max(before + chunk.len()).min(limits.bytes));
                buffer.extend_from_slice(&first);
                buffer.extend_from_slice(&chunk);
                rest = Some(buffer);
            }
        }
        if done {
            break;
        }
    }
    Ok(Body {
        bytes: without_mark(rest.map_or(first, BytesMut::freeze)),
        held,
    })
}

/// A body without the byte order mark that some clients write before their JSON (RFC 8259 §8.1).
fn without_mark(mut body: Bytes) -> Bytes {
    if body.starts_with(b"\xef\xbb\xbf") {
        body.advance(3);
    }
    body
}

/// Reads and discards the rest of an unread body, for at most `deadline`. Returns true if the rest had at most `limit` bytes.
pub(crate) async fn read_past(
    session: &mut ServerSession,
    limit: usize,
    deadline: Duration,
) -> bool {
    let discard = async {
        let mut discarded = 0;
        loop {
            match session.read_request_body().await {
                Ok(Some(chunk)) => discarded += chunk.len(),
                Ok(None) => return true,
                Err(_) => return false,
            }
            if discarded > limit {
                return false;
            }
        }
    };
    fast_timeout(deadline, discard).await.unwrap_or(false)
}

/// Discards the bytes that the client still sends, within [`LINGER`] and [`LINGER_BYTES`], so that the response reaches it.
pub(crate) async fn linger(session: &mut ServerSession) {
    if !expects_continue(session) {
        read_past(session, LINGER_BYTES, LINGER).await;
    }
}

/// Discards unread bytes as [`linger`] does, on a connection from which no request was read. Closes the sending half first.
pub(crate) async fn linger_on(mut stream: Stream) {
    stream.shutdown().await;
    let discard = async {
        let mut bytes = [0; 1024];
        let mut discarded = 0;
        while let Ok(read @ 1..) = stream.read(&mut bytes).await {
            discarded += read;
            if discarded > LINGER_BYTES {
                break;
            }
        }
    };
    let _ = fast_timeout(LINGER, discard).await;
}

/// The request's `Content-Length`; `None` if it is missing or not a number.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_is_never_more_than_the_total_and_given_back() {
        let all = IntGauge::new("held", "bytes").expect("a gauge");
        let held = || HeldBytes {
            all: all.clone(),
            bytes: 0,
        };
        let (mut one, mut other) = (held(), held());
        assert_eq!(one.grow(60, 100), Ok(()));
        assert_eq!(other.grow(41, 100), Err(BodyError::NoRoom));
        drop(other);
        assert_eq!(one.grow(40, 100), Ok(()));
        assert_eq!(all.get(), 100);
        drop(one);
        assert_eq!(all.get(), 0);
    }
}
