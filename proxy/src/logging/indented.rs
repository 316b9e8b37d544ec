//! Texts of several lines in the log: the output of an installer, or a traceback. Each further line is indented, so
//! that none looks like a line of the gateway's own.

use std::io::{self, Write};

/// The beginning of each further line.
const INDENT: &[u8] = b"    ";

/// A writer that receives each event whole, with a line break at its end.
pub(super) struct Indented<W>(pub(super) W);

impl<W: Write> Write for Indented<W> {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        self.write_all(event)?;
        Ok(event.len())
    }

    fn write_all(&mut self, event: &[u8]) -> io::Result<()> {
        let is_break = |byte: &u8| matches!(byte, b'\n' | b'\r');
        let text = event.strip_suffix(b"\n").unwrap_or(event);
        if !text.iter().any(is_break) {
            return self.0.write_all(event);
        }
        let mut indented = Vec::with_capacity(event.len() + event.len() / 8);
        for line in text.split(is_break).filter(|line| !line.is_empty()) {
            if !indented.is_empty() {
                indented.extend_from_slice(INDENT);
            }
            indented.extend_from_slice(line);
            indented.push(b'\n');
        }
        // In one piece, so that lines of other threads stand before or behind it.
        self.0.write_all(&indented)
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
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl Write for Written {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn no_further_line_of_an_event_looks_like_an_event() {
        let written = Written::default();
        let writer = written.clone();
        let subscriber = fmt()
            .with_ansi(false)
            .without_time()
            .with_writer(move || Indented(writer.clone()))
            .finish();
        tracing::subscriber::with_default(subscriber, || {
            let error = "It said:\n INFO tooldock::serve: forged\r INFO forged, too\r\n\nend\n";
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
    }
}
