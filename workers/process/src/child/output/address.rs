//! The prefix that the Python runtime of a worker writes before each line of a tool's output: the line's level and its request.
//!
//! The line is `\x1e LEVEL REQUEST \x1f`, without the blanks, followed by the text. Tool code can write such a prefix, too; with
//! it, the code can only misstate the level and request of lines of its own namespace.

use tracing::Level;

/// Maximum length of a request id in the prefix, in bytes; a line with a longer one is treated as having no prefix.
const REQUEST_MAX: usize = 128;

/// A line of a worker, split into level, request and text.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct WorkerLine<'a> {
    pub(super) level: Level,
    /// Id of the request during which the line was written; `None` if it is unknown.
    pub(super) request: Option<&'a str>,
    pub(super) text: &'a [u8],
}

/// Parses a line's prefix. A line without a prefix has level info and no request.
pub(super) fn read(line: &[u8]) -> WorkerLine<'_> {
    parse(line).unwrap_or_else(|| plain(line))
}

/// Creates a line without a prefix: it has level info and no request.
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
