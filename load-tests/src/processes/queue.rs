//! Time for which threads were ready to run and got no core: latency that is due to the machine and not to the process.

use std::fs;
use std::time::{Duration, Instant};

use super::parsed;

/// Measures how long the threads of a process wait for a core.
pub(crate) struct Queued {
    process: u32,
    start: Instant,
    before: Duration,
}

impl Queued {
    pub(crate) fn since_now(process: u32) -> Self {
        Self {
            process,
            start: Instant::now(),
            before: waited(process),
        }
    }

    /// Milliseconds per second that all threads together waited since the start. Threads that have ended meanwhile do
    /// not count.
    pub(crate) fn ms_per_second(&self) -> f64 {
        let waited = waited(self.process).saturating_sub(self.before);
        waited.as_secs_f64() * 1e3 / self.start.elapsed().as_secs_f64().max(1e-9)
    }
}

fn waited(process: u32) -> Duration {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).into_iter();
    let each = tasks.flatten().flatten().filter_map(|task| {
        let schedstat = fs::read_to_string(task.path().join("schedstat")).ok()?;
        wait_time(&schedstat)
    });
    each.sum()
}

/// The second field of `schedstat`, waiting time in nanoseconds.
fn wait_time(schedstat: &str) -> Option<Duration> {
    let field = schedstat.split_ascii_whitespace().nth(1)?;
    parsed(field).map(Duration::from_nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schedstat_has_the_wait_behind_the_run_time() {
        assert_eq!(
            wait_time("148729 104004 1\n"),
            Some(Duration::from_nanos(104_004))
        );
        assert_eq!(wait_time("148729"), None);
    }

    #[test]
    fn a_process_that_is_gone_has_not_waited() {
        let queued = Queued::since_now(u32::MAX);
        assert_eq!(queued.ms_per_second(), 0.0);
        assert!(Queued::since_now(std::process::id()).ms_per_second() >= 0.0);
    }
}
