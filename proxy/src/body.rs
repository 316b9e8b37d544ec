//! Reading of a complete request body, with limits on its time, its size, and the bytes of all bodies in memory.

use std::pin::pin;
use std::time::Duration;

use bytes::{Buf as _, Bytes, BytesMut};
use http::header::{CONTENT_LENGTH, EXPECT};
use pingora_core::protocols::Stream;
use pingora_core::protocols::http::ServerSession;
use prometheus::IntGauge;
use tokio::io::AsyncReadExt;

use crate::timeout::fast_timeout;

/// Limits, in time and bytes, for discarding an unread body after a response that closes the connection.
///
/// If a connection is closed while the socket contains unread bytes, the kernel resets it, and the client may lose the response:
/// most clients send their whole body before they read. A client that sent `Expect: 100-continue` has sent no body yet, so
/// nothing is discarded.
const LINGER: Duration = Duration::from_secs(5);
const LINGER_BYTES: usize = 256 * 1024 * 1024;

/// The reason why a body could not be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BodyError {
    /// The body has more bytes than the limit.
    TooLarge,
    /// The complete body did not arrive within its time limit.
    TimedOut,
    /// The body's framing is broken, or the client disconnected during the body.
    Broken,
    /// The body would exceed the limit for all bodies in memory.
    NoRoom,
}

/// Limits on the size of a body and the time of its arrival.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BodyLimits {
    /// Maximum size of one body, in bytes.
    pub(crate) bytes: usize,
    /// Maximum size of all bodies in memory together, in bytes.
    pub(crate) total: usize,
    /// Time limit for reading a complete body.
    pub(crate) deadline: Duration,
}

/// A complete request body, with the guard that counts its bytes among those of all bodies in memory.
#[derive(Debug)]
pub(crate) struct Body {
    /// The complete body.
    pub(crate) bytes: Bytes,
    /// Guard that counts the body's bytes while they are in memory; `None` for a body that arrived in one chunk, which is not
    /// counted.
    pub(crate) held: Option<HeldBytes>,
}

impl Body {
    /// The empty body.
    pub(crate) const EMPTY: Self = Self {
        bytes: Bytes::new(),
        held: None,
    };
}

/// Guard of bytes that count towards the limit for all bodies in memory. Dropping it subtracts them.
#[derive(Debug)]
pub(crate) struct HeldBytes {
    all: IntGauge,
    bytes: i64,
}

impl HeldBytes {
    /// Counts `bytes` more; an error if the sum exceeds `total`. If two bodies arrive concurrently, both may be refused.
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

/// Returns true if the client waits for `100 Continue` before it sends its body, and the announced body is not too large.
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
    // A single deadline for the complete body replaces Pingora's time limit per read, which could end the request earlier with a
    // different error.
    session.set_read_timeout(None);
    // The future is pinned here, as `fast_timeout` would otherwise move it.
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
                // The announced length was checked against the limit, so that a client cannot make the gateway reserve more.
                // Reserved memory occupies no physical memory until it is written.
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

/// Removes the byte order mark that some clients write before their JSON (RFC 8259 §8.1).
fn without_mark(mut body: Bytes) -> Bytes {
    if body.starts_with(b"\xef\xbb\xbf") {
        body.advance(3);
    }
    body
}

/// Reads and discards the rest of a body, for at most `deadline`. Returns true if the rest ended in time and had at most `limit`
/// bytes.
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

/// Discards the bytes that the client still sends, within [`LINGER`] and [`LINGER_BYTES`], so that the client receives the
/// response.
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

/// Returns the request's `Content-Length`; `None` if it is missing or not a number.
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
