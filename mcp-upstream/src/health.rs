//! State of the process that `/health` and `/ready` report.

use std::sync::atomic::{AtomicBool, Ordering};

use tokio::time::Instant;

/// State of the process, which the binary updates as it starts and stops.
#[derive(Debug)]
pub struct Health {
    started: Instant,
    scanned: AtomicBool,
    draining: AtomicBool,
}

impl Default for Health {
    fn default() -> Self {
        Self::new()
    }
}

impl Health {
    /// Creates the state of a process that has just started and has not scanned its namespaces yet.
    pub fn new() -> Self {
        Self {
            started: Instant::now(),
            scanned: AtomicBool::new(false),
            draining: AtomicBool::new(false),
        }
    }

    /// Records that the first scan of the namespaces is done.
    pub fn set_ready(&self) {
        self.scanned.store(true, Ordering::Release);
    }

    /// Records that the process is stopping and accepts no new traffic.
    pub fn set_draining(&self) {
        self.draining.store(true, Ordering::Release);
    }

    /// Returns true if the process accepts new traffic.
    pub fn is_ready(&self) -> bool {
        self.scanned.load(Ordering::Acquire) && !self.is_draining()
    }

    /// Returns true if the process is stopping.
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }

    /// Seconds since the process started.
    pub fn uptime_seconds(&self) -> u64 {
        self.started.elapsed().as_secs()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_ready_between_the_first_scan_and_the_drain() {
        let health = Health::new();
        assert!(!health.is_ready());
        health.set_ready();
        assert!(health.is_ready());
        health.set_draining();
        assert!(!health.is_ready() && health.is_draining());
    }
}
