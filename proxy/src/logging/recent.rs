//! Stores the last lines of the log in memory, for display in the web UI.

use std::io::{self, Write};

use tooldock_process::child::output::{RecentLines, Stream, printable_text};

/// Maximum size of a stored line, in bytes; longer lines are cut. The log itself contains the complete line.
const LINE_MAX: usize = 8 * 1024;

/// A writer that stores each log event as one line. Each write must be a complete event.
pub(super) struct RecentWriter<'a>(pub(super) &'a RecentLines);

impl Write for RecentWriter<'_> {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(event);
        let text = text.trim();
        let end = text.floor_char_boundary(LINE_MAX);
        let line = printable_text(&text[..end]);
        let line = match end < text.len() {
            true => line + "…",
            false => line,
        };
        self.0.keep(None, Stream::Stderr, &line);
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_one_bounded_line_that_drives_no_terminal() {
        let lines = RecentLines::default();
        let mut writer = RecentWriter(&lines);
        writer
            .write_all(b" INFO tooldock: a\x1b[31mb\nsecond\n")
            .expect("kept");
        writer
            .write_all("ä".repeat(LINE_MAX).as_bytes())
            .expect("kept");
        let kept: Vec<_> = lines.after(0).into_iter().map(|line| line.text).collect();
        assert_eq!(kept.len(), 2);
        assert!(kept[0].starts_with("INFO tooldock: a"), "{}", kept[0]);
        assert!(!kept[0].contains(['\x1b', '\n']), "{}", kept[0]);
        assert!(kept[0].contains("second"), "{}", kept[0]);
        assert!(kept[1].len() < LINE_MAX + 8 && kept[1].ends_with('…'));
    }
}
