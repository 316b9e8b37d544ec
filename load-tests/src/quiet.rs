//! Waiting for other work on the machine to end, for those who share it.

use std::time::{Duration, Instant};

use tokio::time::sleep;

use crate::processes::machine_busy;

/// Cores busy with other work from which on a sample is not worth much.
pub(crate) const NOISY: f64 = 0.25;
/// What a request may cost nginx on a quiet machine, in microseconds of CPU time. That is 7 to 10; where it is more, other
/// work takes the caches, the clock or whole cores, and not from all alike: ratios grow with it and prove nothing.
pub(crate) const QUIET_N_US: f64 = 11.0;
/// A machine is quiet when this many looks in a row say so.
const LOOKS: usize = 3;
const LOOK: Duration = Duration::from_secs(1);

/// How much longer a run may wait, all waits together.
pub(crate) struct Patience {
    left: Duration,
}

impl Patience {
    pub(crate) fn new(left: Duration) -> Self {
        Self { left }
    }

    /// Whether so much other work spoiled a sample and there is time to take it again.
    pub(crate) fn repeats(&self, other_cores: f64) -> bool {
        other_cores > NOISY && !self.left.is_zero()
    }

    /// Waits until nothing but this program's idle servers runs, or as long as there is patience.
    pub(crate) async fn wait_for_quiet(&mut self) -> anyhow::Result<()> {
        let start = Instant::now();
        let mut quiet = 0;
        while quiet < LOOKS && start.elapsed() < self.left {
            let (before, since) = (machine_busy()?, Instant::now());
            sleep(LOOK).await;
            let busy = machine_busy()?.saturating_sub(before) as f64 / 1e9;
            let is_quiet = busy / since.elapsed().as_secs_f64() < NOISY;
            quiet = if is_quiet { quiet + 1 } else { 0 };
        }
        self.left = self.left.saturating_sub(start.elapsed());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_disturbed_sample_is_repeated_and_only_with_patience_left() {
        let patient = Patience::new(Duration::from_secs(1));
        assert!(patient.repeats(0.5) && !patient.repeats(0.1));
        assert!(!Patience::new(Duration::ZERO).repeats(0.5));
    }

    #[tokio::test]
    async fn without_patience_nothing_is_waited_for() {
        let mut patience = Patience::new(Duration::ZERO);
        let start = Instant::now();
        patience.wait_for_quiet().await.unwrap();
        assert!(start.elapsed() < LOOK);
    }
}
