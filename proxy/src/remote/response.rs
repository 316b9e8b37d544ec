//! Reads a response of HTTP/1.1: its head, and its body in pieces.
//!
//! ```text
//!   read_head ──▶ status, headers, Framing ──▶ next ──▶ piece, piece, … None ──▶ into_idle: the connection again
//! ```
//!
//! Pingora's own reader allocates 64 KiB for each body, and builds each head twice. This reader has a buffer of a few KiB,
//! which grows for long bodies, and returns slices of the buffer (RFC 9112 §4, §6, §7).
//!
//! All futures of this module can be dropped while they wait, and created again later: no bytes are lost.

use std::mem::MaybeUninit;
use std::ops::Range;
use std::time::Duration;

use bytes::{Buf as _, Bytes, BytesMut};
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::{StatusCode, Version};
use pingora_core::protocols::Stream;
use smallvec::SmallVec;
use tokio::io::AsyncReadExt as _;

use crate::scratch;

/// Maximum size of a response's head, in bytes.
const HEAD_MAX: usize = 64 * 1024;
/// Maximum number of header lines in a response's head.
const HEADERS_MAX: usize = 128;
/// Maximum length in bytes of the line before a chunk, and of all trailers together.
const LINES_MAX: usize = 16 * 1024;
/// Size of the read buffer in bytes after a read that did not fill it.
const LITTLE: usize = 4 * 1024;
/// Size of the read buffer in bytes after a read that filled the smaller buffer.
const MUCH: usize = 64 * 1024;

/// The reason why a response cannot be read further.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReadError {
    /// The connection ended before the end of the response.
    Closed,
    /// The received bytes are no response of HTTP/1.1. Contains the reason as text.
    Malformed(&'static str),
}

/// Status and headers of a response.
#[derive(Debug)]
pub(crate) struct ResponseHead {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
}

/// The rule by which the end of a body is found, with the state of reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Framing {
    /// The body has a known length. Contains the number of bytes that are still to be read.
    Length(u64),
    /// The body is sent in chunks and ends after the last one. Contains the next element to read.
    Chunks(Chunk),
    /// The body ends where the connection ends.
    Close,
    /// The body has been read completely, or there is none.
    Done,
}

/// The element of a chunked body that is read next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Chunk {
    /// The line that states the size of the next chunk.
    Size,
    /// The data of a chunk. Contains the number of bytes that are still to be read.
    Data(u64),
    /// The line end after a chunk's data.
    End,
    /// A trailer line after the last chunk, or the empty line at the end. Contains the number of bytes of the trailers so far.
    Trailer(usize),
}

/// A connection on which a request was written, and the state of reading the response.
pub(crate) struct Response {
    stream: Stream,
    /// Bytes that were read from the connection and not yet returned.
    buffer: BytesMut,
    framing: Framing,
    /// True if the backend will keep the connection open after the response; false if it will close it.
    persistent: bool,
    /// Time after which the backend closes an idle connection, as announced by a header such as `Keep-Alive: timeout=5`.
    patience: Option<Duration>,
    /// True if the last read filled its buffer. The next read then uses a larger buffer.
    much: bool,
}

impl Response {
    pub(crate) fn new(stream: Stream) -> Self {
        Self {
            stream,
            buffer: BytesMut::new(),
            framing: Framing::Close,
            persistent: false,
            patience: None,
            much: false,
        }
    }

    /// Reads the head of the final response. Responses with an informational status (1xx) before it are skipped.
    pub(crate) async fn read_head(&mut self) -> Result<ResponseHead, ReadError> {
        let mut known = 0;
        loop {
            // Parsing is tried only if a line end has arrived, because a head always ends with one.
            if memchr::memchr(b'\n', &self.buffer[known..]).is_some()
                && let Some(head) = self.take_head()?
            {
                return Ok(head);
            }
            if self.buffer.len() > HEAD_MAX {
                return Err(ReadError::Malformed("its head is too long"));
            }
            known = self.buffer.len();
            if self.read().await? == 0 {
                return Err(ReadError::Closed);
            }
        }
    }

    /// Returns the next piece of the body. `None` at the end of the body.
    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>, ReadError> {
        loop {
            if let Some(piece) = self.take_piece()? {
                return Ok(Some(piece));
            }
            if self.framing == Framing::Done {
                return Ok(None);
            }
            if self.read().await? == 0 {
                if self.framing != Framing::Close {
                    return Err(ReadError::Closed);
                }
                self.framing = Framing::Done;
            }
        }
    }

    /// Returns true if the response's body was read to its end.
    pub(crate) fn is_done(&self) -> bool {
        self.framing == Framing::Done
    }

    /// Returns true if the end of the response's body is marked only by the end of the connection.
    pub(crate) fn ends_with_connection(&self) -> bool {
        self.framing == Framing::Close
    }

    /// Returns the connection if another request can be sent on it, with the idle time that the backend announced. `None`
    /// otherwise.
    pub(crate) fn into_idle(self) -> Option<(Stream, Option<Duration>)> {
        // The connection is not reused if there are bytes after the end of the body: they belong to no request.
        let again = self.persistent && self.is_done() && self.buffer.is_empty();
        again.then_some((self.stream, self.patience))
    }

    async fn read(&mut self) -> Result<usize, ReadError> {
        if self.buffer.is_empty() && !self.much {
            // A shared buffer is used for this read: most responses arrive in one read, and no buffer is allocated while waiting.
            let read = scratch::read(&mut self.stream, &mut self.buffer).await;
            let read = read.map_err(|_| ReadError::Closed)?;
            self.much = read >= scratch::MUCH;
            return Ok(read);
        }
        let room = match self.framing {
            Framing::Length(left) if self.buffer.is_empty() => {
                usize::try_from(left).unwrap_or(MUCH).clamp(1, MUCH)
            }
            _ if self.much => MUCH,
            _ => LITTLE,
        };
        self.buffer.reserve(room);
        let read = self.stream.read_buf(&mut self.buffer).await;
        let read = read.map_err(|_| ReadError::Closed)?;
        self.much = read >= room;
        Ok(read)
    }

    /// Removes the head of the final response from the buffer. `None` while it is incomplete.
    fn take_head(&mut self) -> Result<Option<ResponseHead>, ReadError> {
        loop {
            let Some(parsed) = ParsedHead::of(&self.buffer)? else {
                return Ok(None);
            };
            let head = self.buffer.split_to(parsed.length).freeze();
            if parsed.status == StatusCode::SWITCHING_PROTOCOLS {
                return Err(ReadError::Malformed("it switches protocols"));
            }
            if parsed.status.is_informational() {
                continue;
            }
            let headers = parsed.headers(&head)?;
            self.framing = framing(parsed.status, &headers)?;
            let is_delimited = self.framing != Framing::Close;
            self.persistent = is_delimited && is_persistent(parsed.version, &headers);
            self.patience = patience(&headers);
            return Ok(Some(ResponseHead {
                status: parsed.status,
                headers,
            }));
        }
    }

    /// Removes the next bytes of the body from the buffer. `None` if none are available.
    fn take_piece(&mut self) -> Result<Option<Bytes>, ReadError> {
        while !self.buffer.is_empty() {
            match &mut self.framing {
                Framing::Done => return Ok(None),
                Framing::Close => return Ok(Some(self.buffer.split().freeze())),
                Framing::Length(left) => {
                    let piece = take(&mut self.buffer, left);
                    if *left == 0 {
                        self.framing = Framing::Done;
                    }
                    return Ok(Some(piece));
                }
                Framing::Chunks(Chunk::Data(left)) => {
                    let piece = take(&mut self.buffer, left);
                    if *left == 0 {
                        self.framing = Framing::Chunks(Chunk::End);
                    }
                    // Reads the end of this chunk now. It has usually arrived with the data, and perhaps the end of the body,
                    // too.
                    while matches!(self.framing, Framing::Chunks(it) if !matches!(it, Chunk::Data(_)))
                        && self.step()?
                    {}
                    return Ok(Some(piece));
                }
                Framing::Chunks(_) => {
                    if !self.step()? {
                        return Ok(None);
                    }
                }
            }
        }
        Ok(None)
    }

    /// Removes a line between the data of two chunks from the buffer. Returns false while the line is incomplete.
    fn step(&mut self) -> Result<bool, ReadError> {
        const BROKEN: ReadError = ReadError::Malformed("its chunks are broken");
        let Framing::Chunks(chunk) = self.framing else {
            return Ok(false);
        };
        let Some(end) = memchr::memchr(b'\n', &self.buffer) else {
            return match self.buffer.len() > LINES_MAX {
                true => Err(BROKEN),
                false => Ok(false),
            };
        };
        let line = self.buffer[..end]
            .strip_suffix(b"\r")
            .unwrap_or(&self.buffer[..end]);
        let next = match chunk {
            Chunk::End if line.is_empty() => Framing::Chunks(Chunk::Size),
            Chunk::Size => match httparse::parse_chunk_size(&self.buffer[..=end]) {
                Ok(httparse::Status::Complete((length, 0))) if length == end + 1 => {
                    Framing::Chunks(Chunk::Trailer(0))
                }
                Ok(httparse::Status::Complete((length, size))) if length == end + 1 => {
                    Framing::Chunks(Chunk::Data(size))
                }
                _ => return Err(BROKEN),
            },
            Chunk::Trailer(_) if line.is_empty() => Framing::Done,
            Chunk::Trailer(before) if before + end <= LINES_MAX => {
                Framing::Chunks(Chunk::Trailer(before + end))
            }
            Chunk::Trailer(_) | Chunk::End | Chunk::Data(_) => return Err(BROKEN),
        };
        self.buffer.advance(end + 1);
        self.framing = next;
        Ok(true)
    }
}

/// Takes at most `left` bytes out of the buffer, and subtracts their number from `left`.
fn take(buffer: &mut BytesMut, left: &mut u64) -> Bytes {
    let length = usize::try_from(*left).map_or(buffer.len(), |left| left.min(buffer.len()));
    *left -= length as u64;
    buffer.split_to(length).freeze()
}

/// The result of parsing a head. Names and values of the headers are given as positions in the buffer.
struct ParsedHead {
    length: usize,
    status: StatusCode,
    version: Version,
    lines: SmallVec<[(Range<usize>, Range<usize>); 16]>,
}

impl ParsedHead {
    /// Parses the head at the beginning of the buffer. `None` while it is incomplete.
    fn of(buffer: &[u8]) -> Result<Option<Self>, ReadError> {
        const NO_RESPONSE: ReadError =
            ReadError::Malformed("what it answered is no response of HTTP/1.1");
        let mut room = [const { MaybeUninit::uninit() }; HEADERS_MAX];
        let mut response = httparse::Response::new(&mut []);
        let parsed = httparse::ParserConfig::default().parse_response_with_uninit_headers(
            &mut response,
            buffer,
            &mut room,
        );
        let length = match parsed {
            Ok(httparse::Status::Complete(length)) => length,
            Ok(httparse::Status::Partial) => return Ok(None),
            Err(httparse::Error::TooManyHeaders) => {
                return Err(ReadError::Malformed("it has too many headers"));
            }
            Err(_) => return Err(NO_RESPONSE),
        };
        let status = response
            .code
            .and_then(|code| StatusCode::from_u16(code).ok());
        let at = |part: &[u8]| {
            let start = part.as_ptr().addr() - buffer.as_ptr().addr();
            start..start + part.len()
        };
        let lines = response.headers.iter();
        Ok(Some(Self {
            length,
            status: status.ok_or(NO_RESPONSE)?,
            version: match response.version {
                Some(0) => Version::HTTP_10,
                _ => Version::HTTP_11,
            },
            lines: lines
                .map(|line| (at(line.name.as_bytes()), at(line.value)))
                .collect(),
        }))
    }

    fn headers(&self, head: &Bytes) -> Result<HeaderMap, ReadError> {
        const WRONG: ReadError = ReadError::Malformed("one of its headers is none");
        let mut headers = HeaderMap::with_capacity(self.lines.len());
        for (name, value) in &self.lines {
            let name = HeaderName::from_bytes(&head[name.clone()]).map_err(|_| WRONG)?;
            let value =
                HeaderValue::from_maybe_shared(head.slice(value.clone())).map_err(|_| WRONG)?;
            headers.append(name, value);
        }
        Ok(headers)
    }
}

/// Determines how the end of a response's body is found (RFC 9112 §6.3). A response with two different lengths is refused:
/// another program on the path might use the other length, and take the rest of the body for another response.
fn framing(status: StatusCode, headers: &HeaderMap) -> Result<Framing, ReadError> {
    if matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED) {
        return Ok(Framing::Done);
    }
    let codings = headers.get_all(header::TRANSFER_ENCODING);
    if let Some(last) = codings.iter().next_back() {
        let last = last
            .as_bytes()
            .rsplit(|byte| *byte == b',')
            .next()
            .unwrap_or_default();
        return Ok(match last.trim_ascii().eq_ignore_ascii_case(b"chunked") {
            true => Framing::Chunks(Chunk::Size),
            false => Framing::Close,
        });
    }
    let mut length = None;
    for value in headers.get_all(header::CONTENT_LENGTH) {
        for one in value.as_bytes().split(|byte| *byte == b',') {
            let one = number(one.trim_ascii());
            let one = one.ok_or(ReadError::Malformed("its Content-Length is no number"))?;
            if length.is_some_and(|before| before != one) {
                return Err(ReadError::Malformed("it has two lengths"));
            }
            length = Some(one);
        }
    }
    Ok(match length {
        Some(0) => Framing::Done,
        Some(length) => Framing::Length(length),
        None => Framing::Close,
    })
}

/// Parses a number in decimal digits. `None` if the text contains anything else, such as a sign.
fn number(text: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(text).ok()?;
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| digits)
}

/// Returns true if the backend keeps the connection open after the response (RFC 9112 §9.3).
fn is_persistent(version: Version, headers: &HeaderMap) -> bool {
    let says = |what: &[u8]| {
        let options = headers.get_all(header::CONNECTION).into_iter();
        let mut options = options.flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
        options.any(|option| option.trim_ascii().eq_ignore_ascii_case(what))
    };
    let both = headers.contains_key(header::TRANSFER_ENCODING)
        && headers.contains_key(header::CONTENT_LENGTH);
    match version {
        Version::HTTP_10 => {
            says(b"keep-alive")
                && !says(b"close")
                && !headers.contains_key(header::TRANSFER_ENCODING)
        }
        // After a response with both `Transfer-Encoding` and `Content-Length`, the connection is not kept: a proxy in between
        // may have used the header that the gateway ignores, and then the two disagree about the end of the body.
        _ => !both && !says(b"close"),
    }
}

fn patience(headers: &HeaderMap) -> Option<Duration> {
    let value = headers.get("keep-alive")?.to_str().ok()?;
    let mut parts = value.split(',').filter_map(|part| part.split_once('='));
    let (_, seconds) = parts.find(|(key, _)| key.trim().eq_ignore_ascii_case("timeout"))?;
    seconds.trim().parse().ok().map(Duration::from_secs)
}

#[cfg(test)]
mod tests {
    use pingora_core::protocols::l4::stream::Stream as L4;
    use tokio::io::AsyncWriteExt as _;
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    /// A response that is read from pieces, each as a read of its own, and whether its connection may be used again.
    async fn read(pieces: &[&[u8]]) -> Result<(u16, Vec<u8>, bool), ReadError> {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let (ours, theirs) = tokio::join!(TcpStream::connect(address), listener.accept());
        let (ours, mut theirs) = (ours.expect("a connection"), theirs.expect("a connection").0);
        let pieces: Vec<Vec<u8>> = pieces.iter().map(|piece| piece.to_vec()).collect();
        let writing = tokio::spawn(async move {
            for piece in pieces {
                // A reader that has found a fault reads no more.
                if theirs.write_all(&piece).await.is_err() {
                    return;
                }
                tokio::task::yield_now().await;
            }
        });
        let mut response = Response::new(Box::new(L4::from(ours)));
        let head = response.read_head().await?;
        let mut body = Vec::new();
        while let Some(piece) = response.next().await? {
            assert!(!piece.is_empty());
            body.extend_from_slice(&piece);
        }
        writing.await.expect("no panic");
        Ok((head.status.as_u16(), body, response.into_idle().is_some()))
    }

    const MALFORMED: &str = "malformed";
    const CLOSED: &str = "closed";

    async fn told(text: &str) -> Result<(u16, String, bool), &'static str> {
        let whole = read(&[text.as_bytes()]).await;
        // Bytes that come one by one say the same.
        let bytes: Vec<&[u8]> = text.as_bytes().chunks(1).collect();
        let single = read(&bytes).await;
        assert_eq!(whole, single, "{text:?}");
        match whole {
            Ok((status, body, again)) => {
                Ok((status, String::from_utf8(body).expect("text"), again))
            }
            Err(ReadError::Closed) => Err(CLOSED),
            Err(ReadError::Malformed(_)) => Err(MALFORMED),
        }
    }

    #[tokio::test]
    async fn a_body_ends_where_its_framing_says() {
        for (head, body, expected, again) in [
            ("content-length: 3\r\n", "abc", "abc", true),
            (
                "Content-Length: 3\r\nContent-Length: 3\r\n",
                "abc",
                "abc",
                true,
            ),
            ("content-length: 3, 3\r\n", "abc", "abc", true),
            ("content-length: 0\r\n", "", "", true),
            (
                "content-length: 3\r\nconnection: x, Close\r\n",
                "abc",
                "abc",
                false,
            ),
            (
                "transfer-encoding: chunked\r\n",
                "3\r\nabc\r\n2;x=\"y\"\r\nde\r\n0\r\n\r\n",
                "abcde",
                true,
            ),
            (
                "transfer-encoding: Chunked\r\n",
                "3\r\nabc\r\n0\r\nx-sum: 1\r\n\r\n",
                "abc",
                true,
            ),
            (
                "transfer-encoding: gzip, chunked\r\n",
                "1\r\na\r\n0\r\n\r\n",
                "a",
                true,
            ),
            // Chunks count, and the rule of proxies on the way is unknown.
            (
                "transfer-encoding: chunked\r\ncontent-length: 9\r\n",
                "1\r\na\r\n0\r\n\r\n",
                "a",
                false,
            ),
            ("", "abc", "abc", false),
            ("transfer-encoding: gzip\r\n", "abc", "abc", false),
        ] {
            let text = format!("HTTP/1.1 200 OK\r\n{head}\r\n{body}");
            assert_eq!(
                told(&text).await,
                Ok((200, expected.to_owned(), again)),
                "{text}"
            );
        }
        let text = "HTTP/1.0 200 OK\r\ncontent-length: 1\r\n\r\na";
        assert_eq!(told(text).await, Ok((200, "a".to_owned(), false)));
        let text = "HTTP/1.0 200 OK\r\nconnection: keep-alive\r\ncontent-length: 1\r\n\r\na";
        assert_eq!(told(text).await, Ok((200, "a".to_owned(), true)));
        let text = "HTTP/1.1 204 No Content\r\n\r\n";
        assert_eq!(told(text).await, Ok((204, String::new(), true)));
    }

    #[tokio::test]
    async fn heads_that_only_inform_are_passed_over() {
        let text = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\na";
        assert_eq!(told(text).await, Ok((200, "a".to_owned(), true)));
        assert_eq!(told("HTTP/1.1 101 Upgrade\r\n\r\n").await, Err(MALFORMED));
    }

    #[tokio::test]
    async fn what_is_cut_or_broken_is_no_response() {
        for (text, error) in [
            ("", CLOSED),
            ("HTTP/1.1 200 OK\r\ncontent-le", CLOSED),
            ("HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nab", CLOSED),
            (
                "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nab",
                CLOSED,
            ),
            (
                "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n",
                CLOSED,
            ),
            (
                "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabcd\r\n",
                MALFORMED,
            ),
            (
                "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nx\r\n",
                MALFORMED,
            ),
            (
                "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n-1\r\n",
                MALFORMED,
            ),
            (
                "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n11111111111111111\r\n",
                MALFORMED,
            ),
            (
                "HTTP/1.1 200 OK\r\ncontent-length: 3\r\ncontent-length: 4\r\n\r\nabc",
                MALFORMED,
            ),
            (
                "HTTP/1.1 200 OK\r\ncontent-length: +3\r\n\r\nabc",
                MALFORMED,
            ),
            ("HTTP/1.1 200 OK\r\ncontent-length:\r\n\r\nabc", MALFORMED),
            ("SSH-2.0-OpenSSH_9.9\r\n\r\n", MALFORMED),
        ] {
            let told = told(text).await.map(|(status, ..)| status);
            assert_eq!(told, Err(error), "{text}");
        }
    }

    #[tokio::test]
    async fn what_nobody_asked_for_ends_the_connection() {
        let text = "HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\naHTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\nb";
        let read = read(&[text.as_bytes()]).await;
        assert_eq!(read, Ok((200, b"a".to_vec(), false)));
    }

    #[tokio::test]
    async fn a_head_and_the_lines_between_chunks_have_bounds() {
        let long = format!("HTTP/1.1 200 OK\r\nx: {}", "x".repeat(HEAD_MAX + LITTLE));
        let error = read(&[long.as_bytes()]).await;
        assert_eq!(error, Err(ReadError::Malformed("its head is too long")));
        let many = format!(
            "HTTP/1.1 200 OK\r\n{}\r\n",
            "x: y\r\n".repeat(HEADERS_MAX + 1)
        );
        let error = read(&[many.as_bytes()]).await;
        assert_eq!(error, Err(ReadError::Malformed("it has too many headers")));
        let chunked = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
        for lines in [
            format!("1;{}", "x".repeat(2 * LINES_MAX)),
            format!("0\r\n{}", "x: y\r\n".repeat(LINES_MAX)),
        ] {
            let text = format!("{chunked}{lines}");
            let error = read(&[text.as_bytes()]).await;
            assert_eq!(error, Err(ReadError::Malformed("its chunks are broken")));
        }
    }

    #[tokio::test]
    async fn a_long_body_comes_in_large_pieces() {
        let body = "x".repeat(1024 * 1024);
        let text = format!(
            "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        let (status, read, again) = read(&[text.as_bytes()]).await.expect("a response");
        assert_eq!((status, read.len(), again), (200, body.len(), true));
    }
}
