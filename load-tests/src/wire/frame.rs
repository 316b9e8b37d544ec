//! Finds the end of an answer: HTTP/1.1 with `Content-Length` or chunks, and lines.

use anyhow::{Context, bail};

const HEAD_MAX: usize = 32 * 1024;
const BODY_MAX: usize = 4 * 1024 * 1024;
/// Maximum length of a chunk's size line, in bytes; extensions are not expected.
const CHUNK_HEAD_MAX: usize = 10;

/// The extent of an answer at the start of a buffer, with the properties in its head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) status: u16,
    pub(super) body_at: usize,
    pub(super) end: usize,
    pub(super) closes: bool,
    /// True if the body is still split into chunks.
    pub(super) chunked: bool,
}

/// Finds the response at the start of a buffer, once it is complete.
pub(super) type FindFrame = fn(&[u8]) -> anyhow::Result<Option<Frame>>;

pub(super) fn http_frame(bytes: &[u8]) -> anyhow::Result<Option<Frame>> {
    let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") else {
        if bytes.len() > HEAD_MAX {
            bail!("an answer's head of more than {HEAD_MAX} bytes");
        }
        return Ok(None);
    };
    let head = &bytes[..end];
    let status = head
        .strip_prefix(b"HTTP/1.1 ")
        .and_then(|rest| std::str::from_utf8(rest.get(..3)?).ok()?.parse().ok())
        .context("not an HTTP/1.1 answer")?;
    let mut announced = None;
    let mut closes = false;
    let mut chunked = false;
    for (name, value) in headers(head) {
        if name.eq_ignore_ascii_case("content-length") {
            announced = Some(value.parse::<usize>().context("content-length")?);
        } else if name.eq_ignore_ascii_case("connection") {
            closes = value.eq_ignore_ascii_case("close");
        } else if name.eq_ignore_ascii_case("transfer-encoding") {
            chunked = value.eq_ignore_ascii_case("chunked");
        }
    }
    let body_at = end + 4;
    if chunked {
        let length = chunks(&bytes[body_at..])?;
        return Ok(length.map(|length| Frame {
            status,
            body_at,
            end: body_at + length,
            closes,
            chunked,
        }));
    }
    let size = match announced {
        Some(size) if size > BODY_MAX => bail!("an answer of {size} bytes"),
        Some(size) => size,
        // Answers with 202 and 204 have no body, and need no length.
        None if matches!(status, 202 | 204) => 0,
        None => bail!("an answer without content-length"),
    };
    let end = body_at + size;
    Ok((bytes.len() >= end).then_some(Frame {
        status,
        body_at,
        end,
        closes,
        chunked,
    }))
}

pub(super) fn headers(head: &[u8]) -> impl Iterator<Item = (&str, &str)> {
    head.split(|byte| *byte == b'\n')
        .skip(1)
        .filter_map(|line| {
            let (name, value) = std::str::from_utf8(line).ok()?.split_once(':')?;
            Some((name, value.trim()))
        })
}

pub(super) fn line_frame(bytes: &[u8]) -> anyhow::Result<Option<Frame>> {
    let Some(end) = bytes.iter().position(|byte| *byte == b'\n') else {
        if bytes.len() > BODY_MAX {
            bail!("a line of more than {BODY_MAX} bytes");
        }
        return Ok(None);
    };
    Ok(Some(Frame {
        status: 200,
        body_at: 0,
        end: end + 1,
        closes: false,
        chunked: false,
    }))
}

/// The length of a chunked body including its last chunk; `None` while it is incomplete. Trailers are not expected.
fn chunks(bytes: &[u8]) -> anyhow::Result<Option<usize>> {
    let mut at = 0;
    loop {
        let Some((size, data_at)) = chunk(&bytes[at..])? else {
            return Ok(None);
        };
        let end = at + data_at + size;
        if end > BODY_MAX {
            bail!("an answer of more than {BODY_MAX} bytes");
        }
        match bytes.get(end..end + 2) {
            None => return Ok(None),
            Some(b"\r\n") if size == 0 => return Ok(Some(end + 2)),
            Some(b"\r\n") => at = end + 2,
            Some(_) => bail!("a chunk that is longer than it says"),
        }
    }
}

/// The size of the chunk at the start, and the position of its data.
fn chunk(bytes: &[u8]) -> anyhow::Result<Option<(usize, usize)>> {
    let Some(end) = bytes.windows(2).position(|window| window == b"\r\n") else {
        if bytes.len() > CHUNK_HEAD_MAX {
            bail!("a chunk without a size");
        }
        return Ok(None);
    };
    let size = std::str::from_utf8(&bytes[..end]).context("a chunk's size")?;
    let size = usize::from_str_radix(size, 16).context("a chunk's size")?;
    if size > BODY_MAX {
        bail!("a chunk of {size} bytes");
    }
    Ok(Some((size, end + 2)))
}

/// Joins the chunks of a complete body at its start; returns the length of the data.
pub(super) fn join_chunks(body: &mut [u8]) -> usize {
    let (mut at, mut length) = (0, 0);
    while let Ok(Some((size @ 1.., data_at))) = chunk(&body[at..]) {
        let data = at + data_at;
        body.copy_within(data..data + size, length);
        length += size;
        at = data + size + 2;
    }
    length
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: &[u8] =
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\nMcp-Session-Id: abc\r\n\r\nhelloHTTP";

    #[test]
    fn an_answer_is_complete_with_its_last_byte_and_leaves_the_rest() {
        let end = WHOLE.len() - 4;
        for cut in 0..end {
            assert_eq!(http_frame(&WHOLE[..cut]).unwrap(), None, "{cut}");
        }
        let frame = http_frame(WHOLE).unwrap().unwrap();
        assert_eq!((frame.status, frame.end, frame.closes), (200, end, false));
        assert_eq!(&WHOLE[frame.body_at..frame.end], b"hello");
    }

    #[test]
    fn a_closing_answer_says_so() {
        let bytes = b"HTTP/1.1 401 Unauthorized\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
        let frame = http_frame(bytes).unwrap().unwrap();
        assert!(frame.closes && frame.status == 401);
    }

    #[test]
    fn answers_this_client_cannot_frame_are_errors() {
        for bytes in [
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nmany\r\n",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nfffffff\r\n",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\nab\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: many\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: 99999999999\r\n\r\n",
            "SSH-2.0-x\r\n\r\n",
            "HTTP/1.1 \r\n\r\n",
        ] {
            assert!(http_frame(bytes.as_bytes()).is_err(), "{bytes}");
        }
        assert!(http_frame(&vec![b'a'; HEAD_MAX + 1]).is_err());
        let accepted = http_frame(b"HTTP/1.1 202 Accepted\r\n\r\n")
            .unwrap()
            .unwrap();
        assert_eq!(accepted.body_at, accepted.end);
    }

    #[test]
    fn a_line_is_an_answer() {
        assert_eq!(line_frame(b"{\"id\":1}").unwrap(), None);
        assert_eq!(line_frame(b"{\"id\":1}\n{").unwrap().unwrap().end, 9);
    }

    #[test]
    fn chunks_are_complete_with_the_last_one_and_joined() {
        let whole = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\nA\r\n, chunks\r\n\r\n0\r\n\r\nHTTP";
        let end = whole.len() - 4;
        for cut in 0..end {
            assert_eq!(http_frame(&whole[..cut]).unwrap(), None, "{cut}");
        }
        let frame = http_frame(whole).unwrap().unwrap();
        assert_eq!((frame.end, frame.chunked), (end, true));
        let mut body = whole[frame.body_at..frame.end].to_vec();
        let length = join_chunks(&mut body);
        assert_eq!(&body[..length], b"hello, chunks\r\n");
    }
}
