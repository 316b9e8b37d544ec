//! Counts the lost records of a log, and logs when losses begin and end.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use prometheus::IntCounter;

/// Time without a loss after which a log counts as working again. A shorter time would cause a hundred log entries a second
/// while a nearly full disk accepts some lines and refuses others.
const CALM: Duration = Duration::from_secs(1);

/// The losses of one log. Clones share their counts.
#[derive(Debug, Clone)]
pub struct Losses(Arc<LossState>);

#[derive(Debug)]
struct LossState {
    /// Name of the log in messages, such as `audit log`.
    log: &'static str,
    counter: IntCounter,
    calm: Duration,
    /// The current period of losses, from the first lost record to the first line that is written after a time without losses;
    /// `None` outside such a period.
    episode: Mutex<Option<Episode>>,
}

#[derive(Debug)]
struct Episode {
    lost: u64,
    last: Instant,
    /// True if a line was written since the last loss.
    works: bool,
}

impl Losses {
    /// Creates the losses of the log with this name. `counter` counts lost records.
    pub fn new(log: &'static str, counter: IntCounter) -> Self {
        Self::with_calm(log, counter, CALM)
    }

    fn with_calm(log: &'static str, counter: IntCounter, calm: Duration) -> Self {
        Self(Arc::new(LossState {
            log,
            counter,
            calm,
            episode: Mutex::default(),
        }))
    }

    /// The name of the log, as messages show it.
    pub(super) fn log(&self) -> &'static str {
        self.0.log
    }

    /// Counts lost records. The first loss of a period is logged to the process's log.
    pub fn lost(&self, records: u64, cause: impl fmt::Display) {
        self.0.counter.inc_by(records);
        let now = Instant::now();
        let mut episode = self.episode();
        if let Some(episode) = &mut *episode {
            episode.lost += records;
            episode.last = now;
            episode.works = false;
            return;
        }
        *episode = Some(Episode {
            lost: records,
            last: now,
            works: false,
        });
        drop(episode);
        tracing::error!(
            "the {} loses records: {cause}. Requests are still answered; lost records are counted.",
            self.0.log
        );
    }

    /// Records that all pending lines were written.
    pub fn written(&self) {
        if let Some(episode) = &mut *self.episode() {
            episode.works = true;
        }
        self.settle();
    }

    /// Logs the end of a period of losses, if it is over.
    pub(super) fn settle(&self) {
        let mut episode = self.episode();
        let over = episode.take_if(|it| it.works && it.last.elapsed() >= self.0.calm);
        drop(episode);
        if let Some(Episode { lost, .. }) = over {
            tracing::warn!(
                lost,
                "the {} is written again; {lost} records were lost",
                self.0.log
            );
        }
    }

    /// Returns true during a period of losses.
    pub(super) fn are_open(&self) -> bool {
        self.episode().is_some()
    }

    /// Logs the losses that were not logged yet. Called when the log's writer ends.
    pub(super) fn end(&self) {
        let over = self.episode().take();
        if let Some(Episode { lost, .. }) = over {
            tracing::error!(
                lost,
                "the {} is closed; {lost} records were lost",
                self.0.log
            );
        }
    }

    /// Locks the period's data. The lock is never held while writing or awaiting.
    fn episode(&self) -> MutexGuard<'_, Option<Episode>> {
        self.0
            .episode
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
impl Losses {
    /// Creates losses for tests: a period of losses ends with the first written line.
    pub(crate) fn for_tests() -> Self {
        let counter = IntCounter::new("lost", "records lost").expect("a valid name");
        Self::with_calm("test log", counter, Duration::ZERO)
    }

    /// The number of lost records so far.
    pub(crate) fn counted(&self) -> u64 {
        self.0.counter.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losing_begins_with_the_first_record_and_ends_with_a_line_that_is_written() {
        let losses = Losses::for_tests();
        losses.written();
        assert!(!losses.are_open());
        losses.lost(2, "the disk is full");
        losses.settle();
        losses.lost(3, "the disk is full");
        assert!(losses.are_open());
        losses.written();
        assert!(!losses.are_open());
        assert_eq!(losses.counted(), 5);
    }

    #[test]
    fn a_line_between_two_losses_does_not_end_them() {
        let counter = IntCounter::new("lost", "records lost").expect("a valid name");
        let losses = Losses::with_calm("test log", counter, Duration::from_secs(3600));
        losses.lost(1, "the disk is full");
        losses.written();
        assert!(losses.are_open());
        losses.end();
        assert!(!losses.are_open());
    }
}
