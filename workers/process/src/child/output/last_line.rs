//! Stores the last line of a child's output, for explanations of the child's end.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tooldock_base::redactor::Redactor;

use super::lines::ProcessLine;
use super::printable;

/// The last informative line of a child's output. Clones refer to the same line.
#[derive(Clone, Default)]
pub struct LastLine {
    /// The stored line, and the secrets to hide in it. The mutex is never held across an await.
    kept: Arc<Mutex<LastLineState>>,
}

#[derive(Default)]
struct LastLineState {
    line: Option<ProcessLine>,
    redactor: Arc<Redactor>,
}

impl LastLine {
    /// The last line in the form in which it is logged: without secrets, and safe to show.
    pub fn line(&self) -> Option<String> {
        let kept = self.lock();
        let line = kept.line.as_ref()?;
        Some(
            printable(&line.bytes, line.cut, &kept.redactor)
                .trim()
                .to_owned(),
        )
    }

    pub(super) fn hiding(&self, redactor: &Arc<Redactor>) {
        self.lock().redactor = Arc::clone(redactor);
    }

    pub(super) fn keep(&self, line: ProcessLine) {
        let mut kept = self.lock();
        let before = kept.line.as_ref().map(|it| &*it.bytes);
        if says_more(&line.bytes, before) {
            kept.line = Some(line);
        }
    }

    fn lock(&self) -> MutexGuard<'_, LastLineState> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns true if a line explains the child's end better than the line `before` it. The last lines of Node and npm contain no
/// information: a version, a hint, the path of a log. An error of npm is explained by the line after its error code.
fn says_more(line: &[u8], before: Option<&[u8]>) -> bool {
    let npm = |line: &[u8]| {
        let rest = line.strip_prefix(b"npm error ");
        rest.or(line.strip_prefix(b"npm ERR! "))
            .map(|it| it.starts_with(b"code "))
    };
    if line.trim_ascii().is_empty() {
        return false;
    }
    let Some(before) = before else {
        return true;
    };
    let nothing = [&b"Node.js v"[..], b"npm notice", b"npm warn", b"npm WARN"];
    if nothing.iter().any(|it| line.starts_with(it)) {
        return false;
    }
    match (npm(before), npm(line)) {
        (Some(only_code), Some(_)) => only_code,
        _ => true,
    }
}

impl fmt::Debug for LastLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LastLine").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use tooldock_base::secret::Secret;

    use super::*;

    fn last(lines: &str) -> Option<String> {
        let last = LastLine::default();
        last.hiding(&Arc::new(Redactor::new(&[Secret::new("hunter2-hunter2")])));
        for line in lines.lines() {
            last.keep(ProcessLine {
                bytes: line.into(),
                cut: false,
            });
        }
        last.line()
    }

    #[test]
    fn the_line_that_explains_the_end_is_kept_without_secrets() {
        for (lines, expected) in [
            ("", None),
            ("first\nsecond\n\n", Some("second")),
            (
                "npm error code E404\nnpm error 404 Not Found - GET x\nnpm error 404\nnpm error A complete log of this",
                Some("npm error 404 Not Found - GET x"),
            ),
            (
                "Error: no token\n\nNode.js v22.1.0\nnpm notice New version",
                Some("Error: no token"),
            ),
            (
                "bad token: hunter2-hunter2\u{1b}",
                Some("bad token: [redacted]\\u{1b}"),
            ),
        ] {
            assert_eq!(last(lines).as_deref(), expected, "{lines}");
        }
    }
}
