//! Holds back the output of a server while it is asked a question that it may not understand. Servers answer such a question with
//! an error, and some print a page about it although nothing is wrong; that page is replaced by one line. In all other cases, all
//! lines are logged with a short delay.

use std::future::pending;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::sleep;

use super::lines::ProcessLine;

/// Time without output after the server has refused the question; then all its output about the refusal counts as read.
const SETTLE: Duration = Duration::from_millis(50);
/// Maximum number of held lines that are logged separately after the server has refused the question; more are replaced by one
/// line.
const FEW: usize = 3;
/// Maximum number of held lines, and of their bytes. If one is exceeded, all held lines are logged, and no further line is held.
const LINES_MAX: usize = 500;
const BYTES_MAX: usize = 256 * 1024;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HoldPhase {
    Before,
    Held,
    Refused,
    Over,
}

/// Holds back the output of one process; can be used once. Clones refer to the same hold.
#[derive(Debug, Clone)]
pub struct OutputHold(watch::Sender<HoldPhase>);

impl Default for OutputHold {
    fn default() -> Self {
        Self(watch::Sender::new(HoldPhase::Before))
    }
}

impl OutputHold {
    /// Begins holding back output, when the question is asked.
    pub fn begin(&self) {
        self.go_on(HoldPhase::Before, HoldPhase::Held);
    }

    /// Ends holding back output, when the question was answered or its answer is no longer awaited. `refused` is true if the
    /// server does not understand the question.
    pub fn end(&self, refused: bool) {
        let next = if refused {
            HoldPhase::Refused
        } else {
            HoldPhase::Over
        };
        self.go_on(HoldPhase::Held, next);
    }

    fn go_on(&self, from: HoldPhase, to: HoldPhase) {
        self.0.send_if_modified(|phase| {
            let goes_on = *phase == from;
            if goes_on {
                *phase = to;
            }
            goes_on
        });
    }
}

/// The held lines of one stream.
pub(super) struct HeldLines {
    /// Progress of the question during which output is held back; `None` when no further lines are held.
    phase: Option<watch::Receiver<HoldPhase>>,
    lines: Vec<ProcessLine>,
    bytes: usize,
}

/// Lines that are no longer held, and the form in which they are logged.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ReleasedLines {
    /// The lines are logged separately, as without a hold.
    AsUsual(Vec<ProcessLine>),
    /// The lines are replaced by one line, and logged separately only at level debug.
    Summed(Vec<ProcessLine>),
}

impl HeldLines {
    pub(super) fn new(hold: Option<&OutputHold>) -> Self {
        Self {
            phase: hold.map(|hold| hold.0.subscribe()),
            lines: Vec::new(),
            bytes: 0,
        }
    }

    /// Returns true if a line that is read now must be held.
    pub(super) fn holds(&self) -> bool {
        let phase = self.phase.as_ref().map(|phase| *phase.borrow());
        matches!(phase, Some(HoldPhase::Held | HoldPhase::Refused))
    }

    /// Holds a line. If the maximum is exceeded, returns all held lines.
    pub(super) fn hold(&mut self, line: ProcessLine) -> Option<ReleasedLines> {
        self.bytes += line.bytes.len();
        self.lines.push(line);
        let too_many = self.lines.len() > LINES_MAX || self.bytes > BYTES_MAX;
        too_many.then(|| self.release())
    }

    /// Returns all held lines. No further line is held.
    pub(super) fn release(&mut self) -> ReleasedLines {
        self.phase = None;
        ReleasedLines::AsUsual(std::mem::take(&mut self.lines))
    }

    /// Returns all held lines, if there are any. Must be called only when lines need no longer be held.
    pub(super) fn release_if_over(&mut self) -> ReleasedLines {
        match self.lines.is_empty() {
            true => ReleasedLines::AsUsual(Vec::new()),
            false => self.release(),
        }
    }

    /// Waits until the lines need no longer be held, and returns them. Cancel-safe: if the caller reads a line in between and
    /// calls this again, the wait after a refusal starts anew.
    pub(super) async fn released(&mut self) -> ReleasedLines {
        let Some(phase) = &mut self.phase else {
            return pending().await;
        };
        loop {
            let now = *phase.borrow_and_update();
            match now {
                HoldPhase::Before | HoldPhase::Held => {}
                HoldPhase::Over => return self.release(),
                HoldPhase::Refused => {
                    sleep(SETTLE).await;
                    self.phase = None;
                    let lines = std::mem::take(&mut self.lines);
                    return match lines.len() > FEW {
                        true => ReleasedLines::Summed(lines),
                        false => ReleasedLines::AsUsual(lines),
                    };
                }
            }
            if phase.changed().await.is_err() {
                return self.release();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(text: &str) -> ProcessLine {
        ProcessLine {
            bytes: text.into(),
            cut: false,
        }
    }

    fn held(hold: &OutputHold, lines: usize) -> HeldLines {
        let mut held = HeldLines::new(Some(hold));
        for number in 0..lines {
            assert!(held.holds());
            assert_eq!(held.hold(line(&number.to_string())), None);
        }
        held
    }

    #[tokio::test(start_paused = true)]
    async fn many_lines_about_a_refused_question_are_summed_and_few_are_logged_as_they_are() {
        for (count, summed) in [(FEW, false), (FEW + 1, true), (71, true)] {
            let hold = OutputHold::default();
            assert!(!HeldLines::new(Some(&hold)).holds());
            hold.begin();
            let mut held = held(&hold, count);
            hold.end(true);
            // The line was still on its way when the answer was read.
            assert!(held.holds());
            match held.released().await {
                ReleasedLines::Summed(lines) => assert_eq!((lines.len(), true), (count, summed)),
                ReleasedLines::AsUsual(lines) => assert_eq!((lines.len(), false), (count, summed)),
            }
            assert!(!held.holds());
        }
    }

    #[tokio::test]
    async fn lines_of_a_question_that_was_not_refused_are_logged_as_usual() {
        let hold = OutputHold::default();
        hold.begin();
        let mut answered = held(&hold, 70);
        hold.end(false);
        hold.end(true);
        hold.begin();
        assert!(!answered.holds());
        assert!(
            matches!(answered.released().await, ReleasedLines::AsUsual(lines) if lines.len() == 70)
        );
        // A hold of a question that is not asked any more, since its process is gone.
        let hold = OutputHold::default();
        hold.begin();
        let mut gone = held(&hold, 70);
        drop(hold);
        assert!(
            matches!(gone.released().await, ReleasedLines::AsUsual(lines) if lines.len() == 70)
        );
    }

    #[test]
    fn a_flood_is_not_held() {
        let hold = OutputHold::default();
        hold.begin();
        let mut flooded = held(&hold, LINES_MAX);
        let all = flooded.hold(line("x"));
        assert!(matches!(all, Some(ReleasedLines::AsUsual(lines)) if lines.len() == LINES_MAX + 1));
        assert!(!flooded.holds());
    }
}
