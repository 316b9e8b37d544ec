//! Splits a server's output into lines.

use std::io;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt as _};

use super::IdScan;

/// Maximum number of bytes of one read from the server.
const READ_CHUNK: usize = 64 * 1024;
/// Minimum free space in the buffer before a read, in bytes. With less, the read would return too little for its system call.
const READ_SPARE: usize = 4 * 1024;
/// Buffer size in bytes above which small lines are copied out of the buffer, so that a small response does not keep megabytes in
/// memory.
const PINNED_MAX: usize = 256 * 1024;

/// The output of a server, as a sequence of lines.
pub struct ServerLines<R> {
    pipe: R,
    buffer: BytesMut,
    /// Number of bytes at the beginning of the buffer that were already searched for a newline.
    scanned: usize,
    fits: LengthCheck,
    endless: u64,
    at_end: bool,
}

/// Function that returns true if a line of this length is accepted.
type LengthCheck = Box<dyn Fn(usize) -> bool + Send>;

/// A line of the server.
#[derive(Debug, PartialEq, Eq)]
pub enum ServerLine {
    /// A complete line. It is not empty, and has no white space or byte order mark around it and no carriage returns in it.
    Whole(Bytes),
    /// A line that was too long and was skipped. `size`: its size in bytes. If it was found, the id is given too: that of
    /// the call that the line answers, or of the request that the line contains.
    TooLong {
        /// The call that the line answers.
        answered: Option<u64>,
        /// The id of the request that the line contains.
        requested: Option<u64>,
        /// Length of the line in bytes, as far as it was read.
        size: u64,
    },
}

/// Reason for the end of the lines.
#[derive(Debug, PartialEq, Eq)]
pub enum LinesEnd {
    /// The server closed its end of the pipe.
    Closed,
    /// A line was longer than `endless` bytes, so reading was ended.
    Endless,
}

impl<R: AsyncRead + Unpin> ServerLines<R> {
    /// Splits the output of `pipe` into lines. Lines for which `fits` returns false are skipped; a line longer than `endless`
    /// bytes ends the stream.
    pub fn new(pipe: R, fits: impl Fn(usize) -> bool + Send + 'static, endless: u64) -> Self {
        Self {
            pipe,
            buffer: BytesMut::new(),
            scanned: 0,
            fits: Box::new(fits),
            endless,
            at_end: false,
        }
    }

    /// Returns the pipe from which the lines are read.
    pub(crate) fn pipe(&self) -> &R {
        &self.pipe
    }

    /// Continues to read from another pipe. Bytes that were already read stay in the buffer.
    pub(crate) fn read_on_from(&mut self, pipe: R) {
        self.pipe = pipe;
    }

    /// Returns the next line that is not empty, if it is in the buffer already.
    pub(crate) fn buffered(&mut self) -> Option<ServerLine> {
        while let Some(offset) = memchr::memchr(b'\n', &self.buffer[self.scanned..]) {
            let line = self.take(self.scanned + offset);
            if line.is_some() {
                return line;
            }
        }
        self.scanned = self.buffer.len();
        None
    }

    /// Reads the next line that is not empty.
    ///
    /// # Errors
    ///
    /// [`LinesEnd`]. Before it is returned, remaining text without a newline was returned as a line.
    pub async fn next(&mut self) -> Result<ServerLine, LinesEnd> {
        loop {
            if let Some(line) = self.buffered() {
                return Ok(line);
            }
            if !(self.fits)(self.scanned) {
                return self.skip().await;
            }
            if !self.at_end && self.fill().await.is_ok() {
                continue;
            }
            self.at_end = true;
            let end = self.buffer.len();
            return self.take(end).ok_or(LinesEnd::Closed);
        }
    }

    /// Reads more bytes into the buffer. A read error counts as the end of the stream.
    async fn fill(&mut self) -> io::Result<()> {
        // More space is not reserved at every read: while a response still uses the buffer's memory, that would allocate a new
        // buffer.
        if self.buffer.capacity() - self.buffer.len() < READ_SPARE {
            self.buffer.reserve(READ_CHUNK);
        }
        match self.pipe.read_buf(&mut self.buffer).await? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }

    /// Takes the line that ends before `end`, with its newline, out of the buffer.
    fn take(&mut self, end: usize) -> Option<ServerLine> {
        self.scanned = 0;
        let large = self.buffer.capacity() > PINNED_MAX;
        let whole = self.buffer.split_to(self.buffer.len().min(end + 1));
        if !(self.fits)(end) {
            let mut scan = IdScan::default();
            scan.feed(&whole);
            return Some(ServerLine::TooLong {
                answered: scan.answered(),
                requested: scan.requested(),
                size: end as u64,
            });
        }
        let begun = without_mark(whole.trim_ascii_start());
        let begin = whole.len() - begun.len();
        let text = begun.trim_ascii_end();
        if text.is_empty() {
            return None;
        }
        if memchr::memchr(b'\r', text).is_some() {
            let mut text = text.to_vec();
            tooldock_protocol::jsonrpc::splice::on_one_line(&mut text);
            return Some(ServerLine::Whole(text.into()));
        }
        if large && text.len() < PINNED_MAX / 4 {
            return Some(ServerLine::Whole(Bytes::copy_from_slice(text)));
        }
        let span = begin..begin + text.len();
        Some(ServerLine::Whole(whole.freeze().slice(span)))
    }

    /// Skips to the end of a line that is too long. Only the id of the line's call or request is kept.
    async fn skip(&mut self) -> Result<ServerLine, LinesEnd> {
        let mut scan = IdScan::default();
        let mut size = 0_u64;
        loop {
            let newline = memchr::memchr(b'\n', &self.buffer[self.scanned..]);
            let end = newline.map_or(self.buffer.len(), |offset| self.scanned + offset);
            scan.feed(&self.buffer[..end]);
            size += end as u64;
            self.scanned = 0;
            if newline.is_some() {
                let _ = self.buffer.split_to(end + 1);
                break;
            }
            // A new buffer is used, so that the memory of the long line is freed.
            self.buffer = BytesMut::with_capacity(READ_CHUNK);
            if size > self.endless {
                return Err(LinesEnd::Endless);
            }
            if self.fill().await.is_err() {
                self.at_end = true;
                break;
            }
        }
        Ok(ServerLine::TooLong {
            answered: scan.answered(),
            requested: scan.requested(),
            size,
        })
    }
}

/// Removes a byte order mark, and white space after it, from the beginning of a line.
fn without_mark(line: &[u8]) -> &[u8] {
    match line {
        [0xEF, 0xBB, 0xBF, rest @ ..] => rest.trim_ascii_start(),
        _ => line,
    }
}

#[cfg(test)]
mod tests {
    use prepared::Pieces;
    use proptest::prelude::*;
    use tokio::runtime::Builder;

    use super::*;

    /// A reader that returns prepared pieces.
    mod prepared {
        use std::collections::VecDeque;
        use std::pin::Pin;
        use std::task::{Context, Poll};

        use tokio::io::{AsyncRead, ReadBuf};

        pub(super) struct Pieces(pub(super) VecDeque<Vec<u8>>);

        impl AsyncRead for Pieces {
            fn poll_read(
                mut self: Pin<&mut Self>,
                _: &mut Context<'_>,
                buffer: &mut ReadBuf<'_>,
            ) -> Poll<std::io::Result<()>> {
                if let Some(mut piece) = self.0.pop_front() {
                    let rest = piece.split_off(piece.len().min(buffer.remaining()));
                    buffer.put_slice(&piece);
                    if !rest.is_empty() {
                        self.0.push_front(rest);
                    }
                }
                Poll::Ready(Ok(()))
            }
        }
    }

    fn read(bytes: &[u8], piece: usize, line_max: usize) -> (Vec<ServerLine>, LinesEnd) {
        let pieces = Pieces(bytes.chunks(piece).map(<[u8]>::to_vec).collect());
        let mut lines = ServerLines::new(pieces, move |size| size <= line_max, 1_000_000);
        let runtime = Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(async {
            let mut all = Vec::new();
            loop {
                match lines.next().await {
                    Ok(line) => all.push(line),
                    Err(end) => return (all, end),
                }
            }
        })
    }

    fn whole(text: &str) -> ServerLine {
        ServerLine::Whole(Bytes::copy_from_slice(text.as_bytes()))
    }

    #[test]
    fn empty_lines_and_carriage_returns_are_white_space_and_the_last_newline_may_be_missing() {
        let bytes = b"a\r\n\n \r\n{\r\"b\":1}\n  c \nlast";
        for piece in 1..bytes.len() {
            let (lines, end) = read(bytes, piece, 100);
            assert_eq!(
                lines,
                [whole("a"), whole("{ \"b\":1}"), whole("c"), whole("last")]
            );
            assert_eq!(end, LinesEnd::Closed);
        }
    }

    #[test]
    fn a_byte_order_mark_before_a_line_is_passed_over() {
        let bytes =
            "\u{feff}a\n\u{feff}\n \u{feff} b\u{feff}c \r\nd\n\u{feff}{\r\"e\":1}\n\u{feff}";
        for piece in 1..bytes.len() {
            let (lines, end) = read(bytes.as_bytes(), piece, 100);
            let expected = ["a", "b\u{feff}c", "d", "{ \"e\":1}"].map(whole);
            assert_eq!(lines, expected);
            assert_eq!(end, LinesEnd::Closed);
        }
    }

    #[test]
    fn a_line_that_is_too_long_behind_a_byte_order_mark_says_which_call_it_answered() {
        let long = format!("\u{feff}{{\"id\":7,\"result\":\"{}\"}}", "x".repeat(5_000));
        let skipped = ServerLine::TooLong {
            answered: Some(7),
            requested: None,
            size: long.len() as u64,
        };
        for piece in [1, 7, 100_000] {
            let (lines, _) = read(format!("{long}\n").as_bytes(), piece, 1000);
            assert_eq!(lines.len(), 1);
            assert_eq!(lines[0], skipped);
        }
    }

    #[test]
    fn a_line_that_is_too_long_is_skipped_and_says_which_call_it_answered() {
        let long = format!(r#"{{"result":"{}","id":70000}}"#, "x".repeat(5_000));
        let bytes = format!("a\n{long}\nb\n{long}");
        let skipped = ServerLine::TooLong {
            answered: Some(70000),
            requested: None,
            size: long.len() as u64,
        };
        for piece in [1, 7, 4999, 100_000] {
            let (lines, end) = read(bytes.as_bytes(), piece, 1000);
            assert_eq!(lines.len(), 4);
            assert_eq!((&lines[0], &lines[2]), (&whole("a"), &whole("b")));
            assert_eq!((&lines[1], &lines[3]), (&skipped, &skipped));
            assert_eq!(end, LinesEnd::Closed);
        }
    }

    #[test]
    fn a_request_that_is_too_long_is_skipped_and_says_its_id() {
        let long = format!(
            r#"{{"params":"{}","id":7,"method":"x"}}"#,
            "x".repeat(5_000)
        );
        let (lines, _) = read(format!("{long}\n").as_bytes(), 100, 1000);
        let skipped = ServerLine::TooLong {
            answered: None,
            requested: Some(7),
            size: long.len() as u64,
        };
        assert_eq!(lines, [skipped]);
    }

    #[test]
    fn an_endless_line_ends_the_reading() {
        let (lines, end) = read(&vec![b'x'; 1_200_000], 64 * 1024, 1000);
        assert_eq!((lines, end), (vec![], LinesEnd::Endless));
    }

    proptest! {
        #[test]
        fn lines_come_out_whole_however_the_bytes_arrive(
            texts in proptest::collection::vec("[a-z]{1,40}", 0..20),
            piece in 1_usize..90,
        ) {
            let mut bytes = texts.join("\n").into_bytes();
            bytes.push(b'\n');
            let (lines, _) = read(&bytes, piece, 1000);
            let expected: Vec<ServerLine> = texts.iter().map(|text| whole(text)).collect();
            prop_assert_eq!(lines, expected);
        }
    }
}
