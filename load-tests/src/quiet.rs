//! Waits for other work on the machine to end, on machines that are shared.

use std::time::{Duration, Instant};

use tokio::time::sleep;

use crate::processes::machine_busy;

/// Cores busy with other work above which a sample is considered disturbed.
pub(crate) const NOISY: f64 = 0.25;
/// Maximum CPU time of a request to nginx on a quiet machine, in microseconds; 7 to 10 are usual. A higher time shows that other
/// programs take caches, clock speed or cores. They do not take them equally from all processes, so ratios are not conclusive.
pub(crate) const QUIET_N_US: f64 = 11.0;
/// Number of consecutive quiet checks after which the machine counts as quiet.
const LOOKS: usize = 3;
const LOOK: Duration = Duration::from_secs(1);

/// The remaining time that a run may wait for a quiet machine, for all waits together.
pub(crate) struct Patience {
    left: Duration,
}

impl Patience {
    pub(crate) fn new(left: Duration) -> Self {
        Self { left }
    }

    /// Returns true if other work spoiled a sample and there is time to repeat it.
    pub(crate) fn repeats(&self, other_cores: f64) -> bool {
        other_cores > NOISY && !self.left.is_zero()
    }

    /// Waits until only this program's idle servers run, or until the patience is used up.
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
        let waited = tokio::time::timeout(Duration::ZERO, patience.wait_for_quiet());
        waited.await.expect("ready at the first poll").unwrap();
    }
}
