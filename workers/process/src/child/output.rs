//! The output of a child: read without ever making the child wait, split into lines of limited length, and logged at a limited
//! rate.
//!
//! A child that floods its output is not slowed down and does not flood the log: lines beyond the rate are not logged, and their
//! number is logged at most every ten seconds. Secrets that the owner of the child named are hidden. While a server is asked a
//! question that it may not understand, its output is held back. The last line is stored ([`LastLine`]), and a limited number of
//! recent lines, including those beyond the rate ([`RecentLines`]). Output is not interpreted, except that the owner of the child
//! may receive certain lines, which are then not logged ([`Pump::divert`]).

mod address;
mod hold;
mod last_line;
mod lines;
mod rate;
mod recent;
mod refusals;

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use prometheus::IntCounter;
use tokio::io::AsyncRead;
use tokio::time::{Instant, timeout};
use tooldock_base::names::NamespaceName;
use tooldock_base::redactor::Redactor;
use tracing::Level;

use address::WorkerLine;
pub use hold::OutputHold;
use hold::{HeldLines, ReleasedLines};
pub use last_line::LastLine;
use lines::{LineReader, ProcessLine};
use rate::{Admission, Rate, WINDOW};
pub use recent::{RecentLine, RecentLines, RecentOutput, SHOWN_LINES, SHOWN_LINES_MAX};
pub use refusals::RefusalHints;

/// Maximum length of a logged line, in bytes; a longer line is cut, and the cut is marked.
pub const LINE_MAX: usize = 8 * 1024;

/// Settings for the logged output of one child: the rate that its streams share, and the secrets that are hidden.
#[derive(Clone)]
pub struct OutputLimit {
    /// Rate of logged lines. The mutex is held for a few instructions per line, never across an await.
    rate: Arc<Mutex<Rate>>,
    suppressed: IntCounter,
    redactor: Arc<Redactor>,
    last: Option<LastLine>,
    recent: Option<(Arc<RecentLines>, Option<u32>)>,
    hold: Option<OutputHold>,
    hints: Option<Arc<RefusalHints>>,
}

impl fmt::Debug for OutputLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OutputLimit").finish_non_exhaustive()
    }
}

impl OutputLimit {
    /// Creates a limit. `suppressed` counts the lines that were not logged.
    pub fn new(suppressed: IntCounter) -> Self {
        Self {
            rate: Arc::new(Mutex::new(Rate::new(Instant::now()))),
            suppressed,
            redactor: Arc::default(),
            last: None,
            recent: None,
            hold: None,
            hints: None,
        }
    }

    /// Sets the secrets that are hidden in the output.
    pub fn hiding(self, redactor: Redactor) -> Self {
        Self {
            redactor: Arc::new(redactor),
            ..self
        }
    }

    /// Stores the most recent line in `last`, for explanations of the child's end. Must be called after [`OutputLimit::hiding`].
    pub fn remembering(self, last: &LastLine) -> Self {
        last.hiding(&self.redactor);
        Self {
            last: Some(last.clone()),
            ..self
        }
    }

    /// Stores the recent lines for operators, in addition to logging them. `pid` is the process that prints them.
    pub fn keeping(self, lines: Arc<RecentLines>, pid: Option<u32>) -> Self {
        Self {
            recent: Some((lines, pid)),
            ..self
        }
    }

    /// Adds a hold, which may keep lines back for a while before they are logged.
    pub fn held_by(self, hold: &OutputHold) -> Self {
        Self {
            hold: Some(hold.clone()),
            ..self
        }
    }

    /// Sets hints that explain lines about an access that the child's sandbox refused.
    pub fn explaining(self, hints: Option<Arc<RefusalHints>>) -> Self {
        Self { hints, ..self }
    }

    fn admit(&self, now: Instant) -> Admission {
        self.lock().admit(now)
    }

    /// The number of suppressed lines that were not reported yet; `None` if no report is due.
    fn due(&self, now: Instant) -> Option<u64> {
        self.lock().due(now)
    }

    fn has_suppressed(&self) -> bool {
        self.lock().has_suppressed()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Rate> {
        self.rate.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Output stream of a child process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    /// The standard output of the child.
    Stdout,
    /// The standard error of the child.
    Stderr,
}

impl Stream {
    /// The usual name of the stream, `stdout` or `stderr`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
        }
    }
}

/// Selects lines that are meant for the gateway itself and are not logged.
pub struct Divert<F> {
    /// Prefix of the lines for which `take` is called.
    pub prefix: &'static [u8],
    /// Maximum length of a line with the prefix, in bytes; a longer one is cut and logged.
    pub line_max: usize,
    /// Handles a line; returns true if the line is not to be logged. Must not block.
    pub take: F,
}

/// Reads one output stream of a child to its end.
pub struct Pump<R> {
    /// Namespace of the child whose output is read.
    pub namespace: NamespaceName,
    /// Kind of the stream that is read.
    pub stream: Stream,
    /// The stream that is read.
    pub reader: R,
    /// Settings that the streams of one child share.
    pub limit: OutputLimit,
    /// True if lines may begin with their level and request, because the child is the gateway's own Python runtime.
    pub addressed: bool,
}

impl<R: AsyncRead + Unpin> Pump<R> {
    /// Logs every line of the stream, until the stream ends.
    pub async fn log(self) {
        self.divert(Divert {
            prefix: b"",
            line_max: LINE_MAX,
            take: |_: &[u8]| false,
        })
        .await;
    }

    /// Logs every line that `divert` does not take, until the stream ends.
    pub async fn divert<F: FnMut(&[u8]) -> bool>(self, mut divert: Divert<F>) {
        let mut lines = LineReader::new(self.reader, divert.prefix, divert.line_max);
        let log = Log {
            namespace: &self.namespace,
            stream: self.stream,
            addressed: self.addressed,
            limit: &self.limit,
        };
        let mut held = HeldLines::new(self.limit.hold.as_ref());
        loop {
            let next = async {
                if self.limit.has_suppressed() {
                    // The wait has a time limit, so that the suppressed lines of a flood are reported even if no further line
                    // follows.
                    timeout(WINDOW, lines.next()).await
                } else {
                    Ok(lines.next().await)
                }
            };
            let read = tokio::select! {
                biased;
                read = next => read,
                released = held.released() => {
                    log.released(&released);
                    continue;
                }
            };
            if let Some(count) = self.limit.due(Instant::now()) {
                report_suppressed(&self.namespace, count);
            }
            match read {
                Err(_elapsed) => {}
                Ok(None) => {
                    log.released(&held.release());
                    if let Some(count) = self.limit.lock().rest() {
                        report_suppressed(&self.namespace, count);
                    }
                    break;
                }
                Ok(Some(line)) => {
                    let offered = !line.cut && line.bytes.starts_with(divert.prefix);
                    if offered && (divert.take)(&line.bytes) {
                        continue;
                    }
                    if let Some(last) = &self.limit.last {
                        last.keep(line.clone());
                    }
                    log.keep(&line);
                    match self.limit.admit(Instant::now()) {
                        Admission::Log if held.holds() => {
                            if let Some(released) = held.hold(line) {
                                log.released(&released);
                            }
                        }
                        Admission::Log => {
                            // Lines that were held back are logged before this line, to keep the order.
                            log.released(&held.release_if_over());
                            log.line(&line, false);
                        }
                        Admission::Suppress => self.limit.suppressed.inc(),
                    }
                }
            }
        }
    }
}

/// Writes the lines of one stream to the log.
struct Log<'a> {
    namespace: &'a NamespaceName,
    stream: Stream,
    /// True if lines may begin with their level and request, because the child is the gateway's own Python runtime.
    addressed: bool,
    limit: &'a OutputLimit,
}

impl Log<'_> {
    fn read<'a>(&self, line: &'a ProcessLine) -> WorkerLine<'a> {
        if self.addressed {
            address::read(&line.bytes)
        } else {
            address::plain(&line.bytes)
        }
    }

    /// Stores a line for operators, if recent lines are kept.
    fn keep(&self, line: &ProcessLine) {
        let Some((recent, pid)) = &self.limit.recent else {
            return;
        };
        let text = self.read(line).text;
        if !text.is_empty() {
            recent.keep_read(*pid, self.stream, (text, line.cut), &self.limit.redactor);
        }
    }

    /// Logs a line with its own level, or at level debug if `quietly` is true.
    fn line(&self, line: &ProcessLine, quietly: bool) {
        let found = self.read(line);
        if found.text.is_empty() {
            return;
        }
        let text = printable(found.text, line.cut, &self.limit.redactor);
        if let Some(hints) = &self.limit.hints {
            hints.look_at(&text);
        }
        // A macro, because the level of a `tracing` event must be a constant.
        macro_rules! log {
            ($level:ident) => {
                tracing::$level!(
                    target: "worker_output",
                    namespace = self.namespace.as_str(),
                    stream = self.stream.as_str(),
                    request_id = found.request,
                    "{text}"
                )
            };
        }
        match found.level {
            _ if quietly => log!(debug),
            Level::ERROR => log!(error),
            Level::WARN => log!(warn),
            Level::INFO => log!(info),
            _ => log!(debug),
        }
    }

    /// Logs lines that were held back: as usual, or at level debug with a summary.
    fn released(&self, released: &ReleasedLines) {
        let (lines, summed) = match released {
            ReleasedLines::AsUsual(lines) => (lines, false),
            ReleasedLines::Summed(lines) => (lines, true),
        };
        if summed {
            let count = lines.len();
            tracing::info!(
                target: "worker_output",
                namespace = self.namespace.as_str(),
                stream = self.stream.as_str(),
                "{count} lines of the server are left out: it was asked for a protocol version that it does not know. The \
                 log level debug shows them"
            );
        }
        for line in lines {
            self.line(line, summed);
        }
    }
}

fn report_suppressed(namespace: &NamespaceName, count: u64) {
    tracing::warn!(
        target: "worker_output",
        namespace = namespace.as_str(),
        suppressed = count,
        "{count} lines of output were not logged, the worker prints too fast"
    );
}

/// Separator before each line of a logged text. It makes clear that the line continues the text and is not a log line of its own.
const CONTINUED: &str = "\n    | ";

/// Prepares a text of several lines for the log: hides secrets, marks each line as part of the text, and drops lines that the
/// rate limit does not allow, which are counted. Returns `None` if no line is allowed. All lines are stored for operators.
pub(crate) fn loggable(
    namespace: &NamespaceName,
    text: &str,
    limit: &OutputLimit,
) -> Option<String> {
    let now = Instant::now();
    if let Some(count) = limit.due(now) {
        report_suppressed(namespace, count);
    }
    let shown = limit.redactor.hide(text.as_bytes().to_vec(), false);
    let mut out = String::with_capacity(shown.len() + shown.len() / 8);
    for line in String::from_utf8_lossy(&shown).lines() {
        if let Some((recent, pid)) = &limit.recent {
            recent.keep(*pid, Stream::Stderr, &printable_text(line));
        }
        if limit.admit(now) == Admission::Suppress {
            limit.suppressed.inc();
            continue;
        }
        if let Some(hints) = &limit.hints {
            hints.look_at(line);
        }
        out.push_str(CONTINUED);
        push_printable(&mut out, line);
    }
    (!out.is_empty()).then_some(out)
}

/// Makes a line safe to show on a terminal: escapes control characters, and characters that end a line or change the direction
/// of text.
pub fn printable_text(line: &str) -> String {
    let mut text = String::with_capacity(line.len());
    push_printable(&mut text, line);
    text
}

fn push_printable(out: &mut String, line: &str) {
    for character in line.chars() {
        match character {
            '\t' => out.push('\t'),
            control if control.is_control() || is_layout(control) => {
                out.extend(control.escape_default());
            }
            plain => out.push(plain),
        }
    }
}

/// Returns true for characters that end a line or change the direction of text, since they could make a line look like another.
fn is_layout(character: char) -> bool {
    matches!(
        character,
        '\u{2028}' | '\u{2029}' | '\u{200e}' | '\u{200f}' | '\u{061c}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
    )
}

/// Converts a line to text that contains no secrets, and that cannot look like another log line or control a terminal.
fn printable(line: &[u8], cut: bool, redactor: &Redactor) -> String {
    let shown = &line[..line.len().min(LINE_MAX)];
    let cut = cut || shown.len() < line.len();
    let shown = redactor.hide(shown.to_vec(), cut);
    let mut text = String::with_capacity(shown.len());
    push_printable(&mut text, &String::from_utf8_lossy(&shown));
    if cut {
        text.push_str(" … [cut]");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    #[test]
    fn a_printed_line_cannot_forge_another_one_and_a_long_one_says_that_it_was_cut() {
        let none = Redactor::default();
        assert_eq!(
            printable(b"a\tb\x1b[31m\rc", false, &none),
            "a\tb\\u{1b}[31m\\rc"
        );
        assert_eq!(printable(b"abc", true, &none), "abc … [cut]");
        let turned = "a\u{202e}b\u{2066}c\u{2028}d\u{85}e\u{e9}";
        let shown = printable(turned.as_bytes(), false, &none);
        assert_eq!(shown, "a\\u{202e}b\\u{2066}c\\u{2028}d\\u{85}e\u{e9}");
        assert_eq!(printable(&[0xff], false, &none), "\u{fffd}");
    }

    #[test]
    fn a_text_of_several_lines_is_marked_line_by_line_and_holds_no_secret() {
        let suppressed = IntCounter::new("c", "c").expect("valid");
        let redactor = Redactor::new(&[tooldock_base::secret::Secret::new("hunter2")]);
        let limit = OutputLimit::new(suppressed.clone()).hiding(redactor);
        let namespace = "n".parse().expect("valid");
        assert_eq!(
            loggable(
                &namespace,
                "Traceback:\n  x = 'hunter2'\r\nE\x1b[31m",
                &limit
            )
            .as_deref(),
            Some("\n    | Traceback:\n    |   x = '[redacted]'\n    | E\\u{1b}[31m")
        );
        // A caller that makes a function fail over and over fills no disk.
        let flood = "line\n".repeat(10 * rate::BURST as usize);
        let logged = loggable(&namespace, &flood, &limit).expect("the first lines");
        assert!(logged.lines().count() <= rate::BURST as usize + 1);
        assert!(suppressed.get() >= 9 * u64::from(rate::BURST));
    }

    #[tokio::test]
    async fn only_lines_with_the_prefix_are_offered_and_may_be_long() {
        let long = format!("{{\"op\":\"{}\"}}", "x".repeat(3 * LINE_MAX));
        let flood = "y".repeat(3 * LINE_MAX);
        let input = format!("hello\n{flood}\n{long}\n");
        let taken = RefCell::new(Vec::new());
        Pump {
            namespace: "n".parse().expect("valid"),
            stream: Stream::Stdout,
            reader: input.as_bytes(),
            limit: OutputLimit::new(IntCounter::new("c", "c").expect("valid")),
            addressed: false,
        }
        .divert(Divert {
            prefix: b"{\"op\"",
            line_max: 8 * LINE_MAX,
            take: |line: &[u8]| {
                taken.borrow_mut().push(line.len());
                true
            },
        })
        .await;
        assert_eq!(*taken.borrow(), [long.len()]);
    }

    #[tokio::test]
    async fn a_flood_is_read_to_its_end_and_counted_beyond_the_burst() {
        let suppressed = IntCounter::new("c", "c").expect("valid");
        let flood = "line\n".repeat(5000);
        Pump {
            namespace: "n".parse().expect("valid"),
            stream: Stream::Stderr,
            reader: flood.as_bytes(),
            limit: OutputLimit::new(suppressed.clone()),
            addressed: false,
        }
        .log()
        .await;
        let logged = 5000 - suppressed.get();
        assert!((u64::from(rate::BURST)..1000).contains(&logged), "{logged}");
    }

    #[tokio::test]
    async fn the_last_lines_of_a_flood_are_kept_without_secrets_whatever_the_log_admits() {
        let recent = Arc::new(RecentLines::default());
        let redactor = Redactor::new(&[tooldock_base::secret::Secret::new("hunter2")]);
        let flood = format!("{}the reason: hunter2\x1b[31m\n", "line\n".repeat(5000));
        Pump {
            namespace: "n".parse().expect("valid"),
            stream: Stream::Stdout,
            reader: flood.as_bytes(),
            limit: OutputLimit::new(IntCounter::new("c", "c").expect("valid"))
                .hiding(redactor)
                .keeping(Arc::clone(&recent), None),
            addressed: false,
        }
        .log()
        .await;
        let kept = recent.after(0);
        let last = kept.last().expect("kept lines");
        assert_eq!(
            (last.number, &*last.text),
            (5001, "the reason: [redacted]\\u{1b}[31m")
        );
        assert_eq!(kept.len(), 500);
        // The last line of a traceback that follows is kept, too.
        let limit = OutputLimit::new(IntCounter::new("c", "c").expect("valid"));
        let limit = limit.keeping(Arc::clone(&recent), None);
        let text = format!("{}KeyError", "  frame\n".repeat(3 * rate::BURST as usize));
        loggable(&"n".parse().expect("valid"), &text, &limit);
        let kept = recent.after(0);
        assert_eq!(kept.last().map(|line| &*line.text), Some("KeyError"));
    }
}
