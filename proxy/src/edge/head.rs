//! Buffers the head of an HTTP/1 request before Pingora reads any of it.
//!
//! Pingora accepts heads of up to a megabyte, parses them from the start again with every received segment, and accepts a bare
//! line feed as the end of a line. This module scans a head once, as it arrives: a head above the limit, or with a line that does
//! not end in CR LF, is refused. Pingora gets a complete head with the bytes received after it, as if all had arrived together.

use bytes::BytesMut;
use http::request::Parts;
use http::{Method, Uri};
use memchr::memchr_iter;
use tokio::io::AsyncRead;
use tooldock_filters::{Reason, Rejection};

use crate::scratch;

const TRANSFER_ENCODING: &[u8] = b"transfer-encoding:";

/// The complete head of a request.
#[derive(Debug)]
pub(crate) struct Head {
    /// The bytes of the head, followed by further bytes that were received with it.
    pub(crate) bytes: BytesMut,
    /// Index of the end of the head in `bytes`.
    pub(crate) end: usize,
    /// True if the head contains `Transfer-Encoding`, so that the body may be chunked.
    pub(crate) coded: bool,
}

/// The outcome of reading a head.
#[derive(Debug)]
pub(crate) enum HeadOutcome {
    /// The head is complete.
    Whole(Head),
    /// The client has disconnected, or the connection failed.
    Closed,
    /// The head is refused.
    Refused(HeadRefusal),
}

/// The reason why a head is refused, and the bytes received so far.
#[derive(Debug)]
pub(crate) struct HeadRefusal {
    fault: Fault,
    /// The bytes received so far.
    bytes: BytesMut,
    limit: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// The head exceeds the size limit.
    TooLarge,
    /// A line does not end in CR LF.
    LineFeed,
    /// The received bytes are not the beginning of an HTTP/1 request.
    NotHttp,
    /// The body after the head is not framed as its `Transfer-Encoding` demands.
    Chunks,
    /// The request is not encrypted, at an address that requires TLS.
    Plain,
}

impl HeadRefusal {
    /// Creates the refusal of a request whose body is not framed correctly, as far as it was received.
    pub(crate) fn of_body(bytes: BytesMut) -> Self {
        Self {
            fault: Fault::Chunks,
            bytes,
            limit: 0,
        }
    }

    /// Creates the refusal of a request without TLS, at an address that requires TLS.
    pub(crate) fn of_plain(bytes: BytesMut) -> Self {
        Self {
            fault: Fault::Plain,
            bytes,
            limit: 0,
        }
    }

    /// Returns the error response for the client.
    pub(crate) fn rejection(&self) -> Rejection {
        match self.fault {
            Fault::TooLarge => Rejection::new(
                Reason::HeadersTooLarge,
                format!(
                    "The request head is larger than the {} bytes this server accepts.",
                    self.limit
                ),
            ),
            Fault::LineFeed => Rejection::new(
                Reason::BadRequest,
                "A line of the request head ends in a bare line feed: end every line in CR LF.",
            ),
            Fault::Chunks => Rejection::new(
                Reason::BadRequest,
                "The chunked body is not framed as HTTP: end every line of its framing in CR LF.",
            ),
            Fault::Plain => Rejection::new(
                Reason::BadRequest,
                "This is plain HTTP, and this address speaks HTTPS: begin the URL with https://.",
            ),
            Fault::NotHttp => Rejection::new(
                Reason::BadRequest,
                "This is no request of HTTP/1.1. If it is TLS or HTTP/2: this address speaks plain HTTP/1.1.",
            ),
        }
    }

    /// Returns the method and target of the request, for the log; `-` and `*` if they cannot be parsed.
    pub(crate) fn parts(&self) -> Parts {
        let mut lines = self.bytes[..].split(|byte| matches!(byte, b'\r' | b'\n'));
        let line = lines.find(|line| !line.is_empty());
        let mut words = line.unwrap_or_default().split(|byte| *byte == b' ');
        let method = words.next().and_then(|word| Method::from_bytes(word).ok());
        let target = words.next().and_then(|word| Uri::try_from(word).ok());
        let (mut parts, ()) = http::Request::new(()).into_parts();
        if let Some(method) = method.or_else(|| Method::from_bytes(b"-").ok()) {
            parts.method = method;
        }
        parts.uri = target.unwrap_or_else(|| Uri::from_static("*"));
        parts
    }
}

/// Reads until a head of at most `limit` bytes is complete. `begun` is called when the first bytes were received and more are
/// needed.
pub(crate) async fn gather<C: AsyncRead + Unpin>(
    connection: &mut C,
    limit: usize,
    begun: impl FnOnce(),
) -> HeadOutcome {
    // The buffer allocates no memory until bytes arrive.
    let mut bytes = BytesMut::new();
    let mut scan = Scan::default();
    let mut begun = Some(begun);
    loop {
        let Ok(1..) = scratch::read(connection, &mut bytes).await else {
            if !bytes.is_empty() {
                tracing::debug!("a client left in the middle of a request head");
            }
            return HeadOutcome::Closed;
        };
        let fault = match scan.scan_received(&bytes) {
            Ok(Some(end)) => {
                let coded = scan.coded;
                return HeadOutcome::Whole(Head { bytes, end, coded });
            }
            Ok(None) if bytes.len() <= limit => {
                if let Some(begun) = begun.take() {
                    begun();
                }
                continue;
            }
            Ok(None) => Fault::TooLarge,
            Err(fault) => fault,
        };
        return HeadOutcome::Refused(HeadRefusal {
            fault,
            bytes,
            limit,
        });
    }
}

/// State of scanning a head that is not complete.
#[derive(Debug, Default)]
struct Scan {
    /// Number of bytes that were scanned.
    seen: usize,
    /// Index of the beginning of the current line.
    line: usize,
    /// True if the request line has been read; empty lines before it are skipped.
    begun: bool,
    coded: bool,
}

impl Scan {
    /// Scans the bytes received since the last call. Returns the end of the head if it is complete.
    fn scan_received(&mut self, bytes: &[u8]) -> Result<Option<usize>, Fault> {
        if self.seen == 0
            && let Some(first) = bytes.first()
            && !may_begin(*first)
        {
            return Err(Fault::NotHttp);
        }
        for found in memchr_iter(b'\n', &bytes[self.seen..]) {
            let feed = self.seen + found;
            let line = match bytes[self.line..feed].split_last() {
                Some((b'\r', line)) => line,
                _ => return Err(Fault::LineFeed),
            };
            self.line = feed + 1;
            if line.is_empty() {
                // Empty lines before a request are skipped (RFC 9112 §2.2).
                if self.begun {
                    return Ok(Some(feed + 1));
                }
            } else if !self.begun {
                if !names_a_version(line) {
                    return Err(Fault::NotHttp);
                }
                self.begun = true;
            } else if is_transfer_encoding(line) {
                self.coded = true;
            }
        }
        self.seen = bytes.len();
        Ok(None)
    }
}

/// Returns true if a request may begin with this byte: with a method, or with an empty line before it.
fn may_begin(byte: u8) -> bool {
    byte.is_ascii_alphanumeric()
        || matches!(byte, b'\r' | b'\n')
        || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// Returns true if a request line ends in a version, such as ` HTTP/1.1`.
fn names_a_version(line: &[u8]) -> bool {
    line.len() > 9 && line[line.len() - 9..].starts_with(b" HTTP/")
}

fn is_transfer_encoding(line: &[u8]) -> bool {
    matches!(line.first(), Some(b't' | b'T'))
        && line
            .get(..TRANSFER_ENCODING.len())
            .is_some_and(|name| name.eq_ignore_ascii_case(TRANSFER_ENCODING))
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncWriteExt, duplex};

    use super::*;

    const HEAD: &str = "POST /mcp HTTP/1.1\r\nHost: x\r\nTransfer-encoding : x\r\n\r\n";

    fn looked_at(bytes: &str) -> Result<Option<usize>, Fault> {
        let mut scan = Scan::default();
        let at_once = scan.scan_received(bytes.as_bytes());
        let mut pieces = Scan::default();
        let mut one_by_one = Ok(None);
        for end in 1..=bytes.len() {
            one_by_one = pieces.scan_received(&bytes.as_bytes()[..end]);
            if one_by_one != Ok(None) {
                break;
            }
        }
        assert_eq!(at_once, one_by_one, "{bytes:?}");
        at_once
    }

    #[test]
    fn a_head_ends_with_its_empty_line_wherever_it_was_cut() {
        assert_eq!(looked_at(HEAD), Ok(Some(HEAD.len())));
        assert_eq!(
            looked_at(&format!("{HEAD}body\n\r\n\r\n")),
            Ok(Some(HEAD.len()))
        );
        assert_eq!(
            looked_at(&format!("\r\n\r\n{HEAD}")),
            Ok(Some(HEAD.len() + 4))
        );
        for end in 0..HEAD.len() {
            assert_eq!(looked_at(&HEAD[..end]), Ok(None), "{end}");
        }
    }

    #[test]
    fn a_line_that_does_not_end_in_cr_lf_is_refused_at_once() {
        for bytes in [
            "\nGET / HTTP/1.1\r\n",
            "GET / HTTP/1.1\n",
            "GET / HTTP/1.1\r\nHost: x\n",
            "GET / HTTP/1.1\r\nHost: x\r\n\n",
            "GET / HTTP/1.1\r\nHost: x\n\r\n",
            "GET / HTTP/1.1\r\nHost: x\r\nA: b\nC: d\r\n\r\n",
        ] {
            assert_eq!(looked_at(bytes), Err(Fault::LineFeed), "{bytes:?}");
        }
    }

    #[test]
    fn what_is_no_http_1_is_refused_before_it_is_complete() {
        for bytes in [
            "\u{16}\u{3}\u{1}",
            "{\"jsonrpc\"",
            "GET /\r\n",
            "SSH-2.0-x\r\n",
        ] {
            assert_eq!(looked_at(bytes), Err(Fault::NotHttp), "{bytes:?}");
        }
    }

    #[test]
    fn a_coded_body_is_known_by_its_field_and_by_nothing_like_it() {
        let coded = |field: &str| {
            let mut scan = Scan::default();
            let head = format!("POST / HTTP/1.1\r\nHost: x\r\n{field}\r\n\r\n");
            assert!(
                scan.scan_received(head.as_bytes())
                    .expect("well formed")
                    .is_some()
            );
            scan.coded
        };
        assert!(coded("transfer-encoding: chunked"));
        assert!(coded("TRANSFER-ENCODING:chunked"));
        assert!(!coded("X-Transfer-Encoding: chunked"));
        assert!(!coded("transfer-encodings: chunked"));
        assert!(!coded("t:"));
    }

    #[test]
    fn no_byte_is_looked_at_twice() {
        let mut scan = Scan::default();
        let head = format!("GET / HTTP/1.1\r\nA: {}", "x".repeat(1000));
        for end in 1..head.len() {
            assert_eq!(scan.scan_received(&head.as_bytes()[..end]), Ok(None));
            assert_eq!(scan.seen, end);
        }
    }

    #[tokio::test]
    async fn an_unfinished_head_is_given_up_when_it_reaches_the_limit() {
        let (mut client, mut server) = duplex(100);
        let sending = async {
            let _ = client.write_all(b"GET /mcp?x HTTP/1.1\r\n").await;
            // Until the server has had enough.
            while client.write_all(b"A: b\r\n").await.is_ok() {}
        };
        let gathering = async move {
            let gathered = gather(&mut server, 2000, || {}).await;
            drop(server);
            gathered
        };
        let ((), gathered) = tokio::join!(sending, gathering);
        let HeadOutcome::Refused(refusal) = gathered else {
            panic!("{gathered:?}");
        };
        assert_eq!(refusal.fault, Fault::TooLarge);
        assert!(refusal.bytes.len() <= 2000 + 100, "{}", refusal.bytes.len());
        assert_eq!(refusal.rejection().code(), "headers_too_large");
        let parts = refusal.parts();
        assert_eq!((parts.method, parts.uri.path()), (Method::GET, "/mcp"));
    }

    #[test]
    fn what_is_no_request_has_no_method_and_no_target() {
        for bytes in ["", "\u{16}\u{3}", "\r\n\u{0} \u{0}"] {
            let refusal = HeadRefusal {
                fault: Fault::NotHttp,
                bytes: bytes.into(),
                limit: 0,
            };
            let parts = refusal.parts();
            assert_eq!((parts.method.as_str(), parts.uri.path()), ("-", "*"));
        }
    }

    #[tokio::test]
    async fn only_a_head_that_has_to_be_waited_for_is_announced() {
        let gathered = async |pieces: &[&str]| {
            let (mut client, mut server) = duplex(15);
            let mut begun = false;
            let sending = async {
                for piece in pieces {
                    client.write_all(piece.as_bytes()).await.expect("sent");
                }
                drop(client);
            };
            let ((), gathered) = tokio::join!(sending, gather(&mut server, 1000, || begun = true));
            (matches!(gathered, HeadOutcome::Whole(_)), begun)
        };
        assert_eq!(gathered(&["A / HTTP/1.1\r\n", "\r\n"]).await, (true, true));
        assert_eq!(gathered(&["A HTTP/1.1\r\n\r\n"]).await, (true, false));
        assert_eq!(gathered(&["A / HTTP"]).await, (false, true));
        assert_eq!(gathered(&[]).await, (false, false));
    }
}
