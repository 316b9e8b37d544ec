//! Stores the last lines that the processes of one server printed, for operators. They are limited in number and size, and shown
//! in the same form as in the log. The log's rate limit does not apply, since the last lines of a flood explain it. A line is
//! stored as it was read, and secrets are searched only when it is shown, so that a flood causes no such search.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::SystemTime;

use tokio::sync::watch;
use tooldock_base::names::NamespaceName;
use tooldock_base::redactor::Redactor;

use super::{Stream, printable};

/// Maximum number of lines that are stored for one server. The oldest lines are removed first.
const LINES_MAX: usize = 500;
/// Maximum number of bytes of the lines that are stored for one server. The oldest lines are removed first.
const BYTES_MAX: usize = 256 * 1024;

/// Number of lines that a request for output returns by default.
pub const SHOWN_LINES: u64 = 50;
/// Maximum number of lines that a request for output can return.
pub const SHOWN_LINES_MAX: u64 = 500;

/// A line that a process of a server printed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecentLine {
    /// Number of the line among all lines of the server, from 1.
    pub number: u64,
    /// Time at which the line was read.
    pub at: SystemTime,
    /// Process id of the process that printed the line; `None` for an installer.
    pub pid: Option<u32>,
    /// Stream to which the line was printed.
    pub stream: Stream,
    /// The line in the form in which it is logged: without secrets, and safe to show on a terminal.
    pub text: Arc<str>,
}

/// The last lines of one server. They are kept when its processes are restarted.
pub struct RecentLines {
    /// The stored lines. The mutex is never held across an await.
    kept: Mutex<RecentBuffer>,
    /// Number of the newest line; 0 if there has been none.
    newest: watch::Sender<u64>,
}

/// A stored line.
#[derive(Clone)]
struct KeptLine {
    number: u64,
    at: SystemTime,
    pid: Option<u32>,
    stream: Stream,
    text: KeptText,
}

#[derive(Clone)]
enum KeptText {
    /// The line as it is shown: without secrets and control characters.
    Shown(Arc<str>),
    /// The line as it was read, which may contain secrets.
    Read {
        bytes: Arc<[u8]>,
        cut: bool,
        redactor: Arc<Redactor>,
    },
}

impl KeptText {
    fn len(&self) -> usize {
        match self {
            Self::Shown(text) => text.len(),
            Self::Read { bytes, .. } => bytes.len(),
        }
    }
}

impl KeptLine {
    fn shown(self) -> RecentLine {
        RecentLine {
            number: self.number,
            at: self.at,
            pid: self.pid,
            stream: self.stream,
            text: match self.text {
                KeptText::Shown(text) => text,
                KeptText::Read {
                    bytes,
                    cut,
                    redactor,
                } => printable(&bytes, cut, &redactor).into(),
            },
        }
    }
}

#[derive(Default)]
struct RecentBuffer {
    lines: VecDeque<KeptLine>,
    bytes: usize,
    last: u64,
}

impl Default for RecentLines {
    fn default() -> Self {
        Self {
            kept: Mutex::default(),
            newest: watch::Sender::new(0),
        }
    }
}

impl RecentLines {
    /// The stored lines with higher numbers than `number`, oldest first. If no line has had this number yet, it comes from an
    /// earlier run of the gateway, and all lines are returned.
    pub fn after(&self, number: u64) -> Vec<RecentLine> {
        let new: Vec<_> = {
            let kept = self.lock();
            let after = if number > kept.last { 0 } else { number };
            let new = kept.lines.iter().filter(|line| line.number > after);
            new.cloned().collect()
        };
        new.into_iter().map(KeptLine::shown).collect()
    }

    /// Channel with the number of the newest line, updated for each line; 0 if there has been none.
    pub fn newest(&self) -> watch::Receiver<u64> {
        self.newest.subscribe()
    }

    /// Stores a line that is safe to show.
    pub fn keep(&self, pid: Option<u32>, stream: Stream, text: &str) {
        self.push(pid, stream, KeptText::Shown(text.into()));
    }

    /// Stores a line as it was read, which may contain secrets. `redactor` hides them when the line is shown.
    pub(super) fn keep_read(
        &self,
        pid: Option<u32>,
        stream: Stream,
        (bytes, cut): (&[u8], bool),
        redactor: &Arc<Redactor>,
    ) {
        let (bytes, redactor) = (bytes.into(), Arc::clone(redactor));
        let text = KeptText::Read {
            bytes,
            cut,
            redactor,
        };
        self.push(pid, stream, text);
    }

    fn push(&self, pid: Option<u32>, stream: Stream, text: KeptText) {
        let number = {
            let mut kept = self.lock();
            kept.last += 1;
            kept.bytes += text.len();
            let line = KeptLine {
                number: kept.last,
                at: SystemTime::now(),
                pid,
                stream,
                text,
            };
            kept.lines.push_back(line);
            while kept.lines.len() > LINES_MAX || kept.bytes > BYTES_MAX {
                let Some(oldest) = kept.lines.pop_front() else {
                    break;
                };
                kept.bytes -= oldest.text.len();
            }
            kept.last
        };
        // The maximum is used, since two streams may store lines concurrently and arrive here in another order.
        self.newest
            .send_modify(|newest| *newest = number.max(*newest));
    }

    fn lock(&self) -> MutexGuard<'_, RecentBuffer> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for RecentLines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecentLines").finish_non_exhaustive()
    }
}

/// The last lines of all servers. Clones refer to the same lines.
#[derive(Debug, Clone, Default)]
pub struct RecentOutput {
    /// The lines by server. A server's lines exist as long as its pool or a reader refers to them.
    servers: Arc<Mutex<HashMap<NamespaceName, Weak<RecentLines>>>>,
}

impl RecentOutput {
    /// The lines of one server, created if they do not exist. They are dropped with the last reference.
    pub fn of(&self, server: &NamespaceName) -> Arc<RecentLines> {
        let mut servers = self.servers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(lines) = servers.get(server).and_then(Weak::upgrade) {
            return lines;
        }
        servers.retain(|_, lines| lines.strong_count() > 0);
        let lines = Arc::new(RecentLines::default());
        servers.insert(server.clone(), Arc::downgrade(&lines));
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(lines: &[RecentLine]) -> Vec<u64> {
        lines.iter().map(|line| line.number).collect()
    }

    #[test]
    fn the_oldest_lines_go_by_number_and_by_size() {
        let recent = RecentLines::default();
        for _ in 0..LINES_MAX + 3 {
            recent.keep(Some(7), Stream::Stderr, "x");
        }
        let kept = recent.after(0);
        assert_eq!((kept.len(), kept[0].number), (LINES_MAX, 4));
        for _ in 0..3 {
            recent.keep(None, Stream::Stdout, &"y".repeat(BYTES_MAX / 2));
        }
        let kept = recent.after(0);
        assert_eq!(kept.len(), 2);
        assert_eq!(*recent.newest().borrow(), kept[1].number);
    }

    #[test]
    fn a_reader_goes_on_behind_the_line_it_has_seen() {
        let recent = RecentLines::default();
        for text in ["a", "b", "c"] {
            recent.keep(None, Stream::Stderr, text);
        }
        assert_eq!(numbers(&recent.after(1)), [2, 3]);
        assert_eq!(numbers(&recent.after(3)), [0_u64; 0]);
        // A number from an earlier count.
        assert_eq!(numbers(&recent.after(99)), [1, 2, 3]);
    }

    #[test]
    fn the_lines_of_a_server_outlive_its_processes_but_not_their_last_holder() {
        let (output, name) = (RecentOutput::default(), "a".parse().expect("valid"));
        let held = output.of(&name);
        output.of(&name).keep(None, Stream::Stderr, "x");
        assert_eq!(held.after(0).len(), 1);
        drop(held);
        assert_eq!(output.of(&name).after(0).len(), 0);
    }
}
