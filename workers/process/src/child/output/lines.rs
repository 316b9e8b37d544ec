//! Splits a byte stream into lines of limited length.

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncReadExt};

use super::LINE_MAX;

/// A line of output, without its newline.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ProcessLine {
    pub(super) bytes: BytesMut,
    /// True if the line was too long; its end was dropped.
    pub(super) cut: bool,
}

pub(super) struct LineReader<R> {
    reader: R,
    buffer: BytesMut,
    /// Number of bytes at the beginning of the buffer that contain no newline.
    scanned: usize,
    /// True while the end of a line that was too long is read and dropped.
    skipping: bool,
    /// Prefix of lines that may be `long_max` bytes long; other lines may have [`LINE_MAX`] bytes.
    prefix: &'static [u8],
    long_max: usize,
}

impl<R: AsyncRead + Unpin> LineReader<R> {
    pub(super) fn new(reader: R, prefix: &'static [u8], long_max: usize) -> Self {
        Self {
            reader,
            buffer: BytesMut::with_capacity(LINE_MAX),
            scanned: 0,
            skipping: false,
            prefix,
            long_max,
        }
    }

    /// Returns the next line; `None` at the end of the stream or after an error. Cancel-safe.
    pub(super) async fn next(&mut self) -> Option<ProcessLine> {
        loop {
            if let Some(line) = self.take_line() {
                return Some(line);
            }
            let read = self.reader.read_buf(&mut self.buffer).await;
            if !matches!(read, Ok(count) if count > 0) {
                let rest = std::mem::take(&mut self.buffer);
                self.scanned = 0;
                let worth = !rest.is_empty() && !self.skipping;
                return worth.then_some(ProcessLine {
                    bytes: rest,
                    cut: false,
                });
            }
        }
    }

    fn take_line(&mut self) -> Option<ProcessLine> {
        loop {
            let newline = memchr::memchr(b'\n', &self.buffer[self.scanned..]);
            let Some(end) = newline.map(|offset| self.scanned + offset) else {
                self.scanned = self.buffer.len();
                if self.skipping {
                    self.buffer.clear();
                    self.scanned = 0;
                } else if self.buffer.len() > self.limit() {
                    return Some(self.cut());
                }
                return None;
            };
            if !self.skipping && end > self.limit() {
                return Some(self.cut());
            }
            let mut bytes = self.buffer.split_to(end + 1);
            self.scanned = 0;
            if std::mem::take(&mut self.skipping) {
                continue;
            }
            bytes.truncate(end);
            return Some(ProcessLine { bytes, cut: false });
        }
    }

    /// Returns the beginning of a line that is too long. The end of the line is dropped when it is read.
    fn cut(&mut self) -> ProcessLine {
        let bytes = self.buffer.split_to(LINE_MAX.min(self.buffer.len()));
        self.scanned = 0;
        self.skipping = true;
        ProcessLine { bytes, cut: true }
    }

    fn limit(&self) -> usize {
        if !self.prefix.is_empty() && self.buffer.starts_with(self.prefix) {
            self.long_max
        } else {
            LINE_MAX
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn all(input: &[u8], prefix: &'static [u8], long_max: usize) -> Vec<(usize, bool)> {
        let mut lines = LineReader::new(input, prefix, long_max);
        let mut seen = Vec::new();
        while let Some(line) = lines.next().await {
            seen.push((line.bytes.len(), line.cut));
        }
        seen
    }

    #[tokio::test]
    async fn the_rest_of_a_long_line_is_dropped_and_the_next_line_is_whole() {
        let input = format!("{}\nnext\n\nlast", "x".repeat(5 * LINE_MAX));
        assert_eq!(
            all(input.as_bytes(), b"", 0).await,
            [(LINE_MAX, true), (4, false), (0, false), (4, false)]
        );
    }

    #[tokio::test]
    async fn a_line_with_the_prefix_has_its_own_limit() {
        let input = format!(
            "!{}\n!{}\nok\n",
            "a".repeat(2 * LINE_MAX),
            "b".repeat(9 * LINE_MAX)
        );
        assert_eq!(
            all(input.as_bytes(), b"!", 4 * LINE_MAX).await,
            [(2 * LINE_MAX + 1, false), (LINE_MAX, true), (2, false)]
        );
    }
}
