//! Indents texts of several lines in the log, such as an installer's output or a traceback: each line after the first is
//! indented, so that it cannot be mistaken for a log line of the gateway.

use std::io::{self, Write};

/// Indentation of the second and each later line of an event.
const INDENT: &str = "    ";

/// A writer that indents the second and each later line of an event. Each write must be a complete event that ends with a line
/// break.
pub(super) struct IndentingWriter<W>(pub(super) W);

/// Returns true for a character after which a terminal or a log viewer may begin a new line.
fn is_break(character: char) -> bool {
    matches!(
        character,
        '\n' | '\r' | '\x0b' | '\x0c' | '\x1c'..='\x1e' | '\u{85}' | '\u{2028}' | '\u{2029}'
    )
}

impl<W: Write> Write for IndentingWriter<W> {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        self.write_all(event)?;
        Ok(event.len())
    }

    fn write_all(&mut self, event: &[u8]) -> io::Result<()> {
        let text = String::from_utf8_lossy(event);
        let text = text.strip_suffix('\n').unwrap_or(&text);
        if !text.contains(is_break) {
            return self.0.write_all(event);
        }
        let mut indented = String::with_capacity(event.len() + event.len() / 8);
        for line in text.split(is_break).filter(|line| !line.is_empty()) {
            if !indented.is_empty() {
                indented.push_str(INDENT);
            }
            indented.push_str(line);
            indented.push('\n');
        }
        // The event is written in one call, so that lines of other threads cannot come between its lines.
        self.0.write_all(indented.as_bytes())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use tracing_subscriber::fmt;

    use super::*;

    /// A log writer that keeps its text in memory, for tests.
    #[derive(Clone, Default)]
    struct LogCapture(Arc<Mutex<Vec<u8>>>);

    impl Write for LogCapture {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn no_further_line_of_an_event_looks_like_an_event() {
        let written = LogCapture::default();
        let writer = written.clone();
        let subscriber = fmt()
            .with_ansi(false)
            .without_time()
            .with_writer(move || IndentingWriter(writer.clone()))
            .finish();
        tracing::subscriber::with_default(subscriber, || {
            let error = "It said:\n INFO tooldock::serve: forged\r INFO forged, too\r\n\nend\n\
                         \u{b} INFO b\u{c} INFO c\u{1e} INFO 1e\u{85} INFO 85\u{2028} INFO 2028\u{2029} INFO 2029";
            tracing::warn!(error = %error, "one\ntwo");
            tracing::warn!("alone");
        });
        let written = written.0.lock().unwrap();
        let text = String::from_utf8_lossy(&written);
        let own = text.lines().filter(|line| !line.starts_with("    "));
        let own: Vec<_> = own.collect();
        assert!(
            matches!(own[..], [first, last] if first.ends_with("one") && last.ends_with("alone")),
            "{text}"
        );
        assert!(text.contains("\n     INFO forged, too\n"), "{text}");
        assert!(text.contains("\n     INFO 2029\n"), "{text}");
        let strange = text.chars().find(|it| *it != '\n' && is_break(*it));
        assert_eq!(strange, None, "{text:?}");
    }
}
