//! Prefix that the worker's runtime puts before each line of Python code: the line's level and its request.
//!
//! The prefix is `\x1e LEVEL REQUEST \x1f`, without the blanks, before the text. Tool code can write such a prefix itself; it can
//! then only misstate the level and request of its own namespace's lines.

use tracing::Level;

/// Maximum length of a request id that is accepted, in bytes.
const REQUEST_MAX: usize = 128;

/// A line of a worker, taken apart.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct WorkerLine<'a> {
    pub(super) level: Level,
    /// The request during which the line was written, if that is known.
    pub(super) request: Option<&'a str>,
    pub(super) text: &'a [u8],
}

/// Parses a line's prefix. A line without one has no request, and the level of any output.
pub(super) fn read(line: &[u8]) -> WorkerLine<'_> {
    parse(line).unwrap_or_else(|| plain(line))
}

/// A line without a prefix: of level info and of no request.
pub(super) fn plain(line: &[u8]) -> WorkerLine<'_> {
    WorkerLine {
        level: Level::INFO,
        request: None,
        text: line,
    }
}

fn parse(line: &[u8]) -> Option<WorkerLine<'_>> {
    let [0x1e, letter, rest @ ..] = line else {
        return None;
    };
    let level = match letter {
        b'd' => Level::DEBUG,
        b'i' => Level::INFO,
        b'w' => Level::WARN,
        b'e' => Level::ERROR,
        _ => return None,
    };
    let end = rest
        .iter()
        .take(REQUEST_MAX + 1)
        .position(|byte| *byte == 0x1f)?;
    let request = std::str::from_utf8(&rest[..end]).ok()?;
    let believable = request.bytes().all(|byte| byte.is_ascii_graphic());
    Some(WorkerLine {
        level,
        request: (believable && !request.is_empty()).then_some(request),
        text: &rest[end + 1..],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_taken_off_and_other_lines_stay_whole() {
        for (line, level, request, text) in [
            (
                "\x1ewreq-1\x1fcareful",
                Level::WARN,
                Some("req-1"),
                "careful",
            ),
            ("\x1ee\x1f", Level::ERROR, None, ""),
            ("\x1ed\x1fa\x1fb", Level::DEBUG, None, "a\x1fb"),
            ("\x1eino t\x1fx", Level::INFO, None, "x"),
            ("\x1exreq\x1fx", Level::INFO, None, "\x1exreq\x1fx"),
            ("\x1eireq", Level::INFO, None, "\x1eireq"),
            ("plain", Level::INFO, None, "plain"),
            ("", Level::INFO, None, ""),
        ] {
            let text = text.as_bytes();
            let expected = WorkerLine {
                level,
                request,
                text,
            };
            assert_eq!(read(line.as_bytes()), expected, "{line:?}");
        }
        let long = format!("\x1ei{}\x1fx", "r".repeat(REQUEST_MAX + 1));
        assert_eq!(read(long.as_bytes()).text, long.as_bytes());
    }
}
