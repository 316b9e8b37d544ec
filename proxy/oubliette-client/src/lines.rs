//! Reading of lines with a maximum length. The bytes of a longer line are discarded.

use std::io::{self, BufRead};

/// A line of input, without its line end.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum InputLine {
    /// A complete line of text that is not empty.
    Whole(String),
    /// A line with more bytes than the maximum; its text was discarded.
    TooLong,
    /// A line that is not valid UTF-8.
    NotText,
}

/// Reads the next line that is not empty; `None` at the end of the input. Text after the last newline counts as a line.
///
/// # Errors
///
/// Errors of the operating system.
pub(crate) fn next(reader: &mut impl BufRead, max: usize) -> io::Result<Option<InputLine>> {
    loop {
        let mut line = Vec::new();
        let mut too_long = false;
        let mut complete = false;
        while !complete {
            let available = match reader.fill_buf() {
                Ok(available) => available,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            if available.is_empty() {
                break;
            }
            let end = available.iter().position(|byte| *byte == b'\n');
            let part = &available[..end.unwrap_or(available.len())];
            too_long |= line.len() + part.len() > max;
            if too_long {
                line = Vec::new();
            } else {
                line.extend_from_slice(part);
            }
            complete = end.is_some();
            let used = part.len() + usize::from(complete);
            reader.consume(used);
        }
        if too_long {
            return Ok(Some(InputLine::TooLong));
        }
        let text = match std::str::from_utf8(&line) {
            Ok(text) => text.trim(),
            Err(_) => return Ok(Some(InputLine::NotText)),
        };
        if !text.is_empty() {
            return Ok(Some(InputLine::Whole(text.to_owned())));
        }
        if !complete {
            return Ok(None);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::BufReader;

    use super::*;

    #[test]
    fn lines_come_whole_and_long_ones_are_skipped() {
        let text = b"{}\r\n\n  \nlonger than ten\nten bytes!\n\xff\nlast";
        for buffer in [1, 3, 64] {
            let mut reader = BufReader::with_capacity(buffer, &text[..]);
            let mut lines = Vec::new();
            while let Some(line) = next(&mut reader, 10).expect("memory") {
                lines.push(line);
            }
            let whole = |text: &str| InputLine::Whole(text.to_owned());
            assert_eq!(
                lines,
                [
                    whole("{}"),
                    InputLine::TooLong,
                    whole("ten bytes!"),
                    InputLine::NotText,
                    whole("last")
                ]
            );
        }
    }
}
