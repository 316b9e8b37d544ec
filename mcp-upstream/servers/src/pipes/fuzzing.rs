//! Fuzzing of the lines that stdio servers write. Compiled only for `make fuzz` and for tests.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_util::FutureExt as _;
use tokio::io::{AsyncRead, ReadBuf};
use tooldock_protocol::jsonrpc::plain::call_number;

use super::read::{LinesEnd, ServerLine, ServerLines};

/// Maximum length of a line in bytes, small enough that inputs have shorter and longer lines.
const LINE_MAX: usize = 48;

/// Output of a server that arrives in pieces of a fixed length.
struct Pieces<'a> {
    rest: &'a [u8],
    piece: usize,
}

impl AsyncRead for Pieces<'_> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let length = self.piece.min(self.rest.len()).min(into.remaining());
        let (read, rest) = self.rest.split_at(length);
        into.put_slice(read);
        self.rest = rest;
        Poll::Ready(Ok(()))
    }
}

/// Splits a server's output into lines, at once and in pieces, and compares the lines. The first byte is the length of a piece.
pub fn server_lines(input: &[u8]) {
    let Some((&piece, output)) = input.split_first() else {
        return;
    };
    let whole = lines(output, usize::MAX);
    assert_eq!(whole, lines(output, usize::from(piece).max(1)));
    let mut whole = whole.iter();
    // The last line needs no newline: the end of the stream ends it.
    for line in output.split(|byte| *byte == b'\n') {
        if line.len() > LINE_MAX {
            is_read(line, whole.next().expect("a long line is reported"));
            continue;
        }
        let text = line.trim_ascii_start();
        let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
        let text = text.trim_ascii();
        if !text.is_empty() {
            let expected = text.iter().map(|byte| match byte {
                b'\r' => b' ',
                other => *other,
            });
            let expected: Vec<u8> = expected.collect();
            assert_eq!(whole.next(), Some(&ServerLine::Whole(expected.into())));
        }
    }
    assert_eq!(whole.next(), None);
}

/// Checks the ids of a long line that is valid JSON without repeated keys.
fn is_read(line: &[u8], found: &ServerLine) {
    let ServerLine::TooLong {
        answered,
        requested,
        size,
    } = found
    else {
        panic!("a long line is whole");
    };
    assert_eq!(*size, line.len() as u64);
    let Ok(text) = std::str::from_utf8(line) else {
        return;
    };
    let members = tooldock_protocol::jsonrpc::spans::members(text).filter(|_| {
        serde_json::from_str::<&serde_json::value::RawValue>(text).is_ok() && !text.contains('\\')
    });
    let Some(members) = members else {
        return;
    };
    let member = |name: &str| {
        let found = members.iter().find(|(key, _)| key == name);
        found.map(|(_, value)| *value)
    };
    // The scan of a long line does not keep longer ids.
    if member("id").is_some_and(|id| id.len() > 20) {
        return;
    }
    let id = member("id").and_then(call_number);
    let is_request = member("method").is_some_and(|it| it != "null");
    let expected = match is_request {
        true => (None, id),
        false => (id, None),
    };
    assert_eq!((*answered, *requested), expected);
}

fn lines(output: &[u8], piece: usize) -> Vec<ServerLine> {
    let pipe = Pieces {
        rest: output,
        piece,
    };
    let mut lines = ServerLines::new(pipe, |length| length <= LINE_MAX, u64::MAX);
    let mut found = Vec::new();
    loop {
        match lines.next().now_or_never().expect("the output is there") {
            Ok(line) => found.push(line),
            Err(end) => {
                assert_eq!(end, LinesEnd::Closed);
                return found;
            }
        }
    }
}
