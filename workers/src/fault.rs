//! Places where a test can end the process, to see what a crash leaves behind. In the product they are nothing.

/// A moment at which a process may die. A test's child process names the moment by its number in `TOOLDOCK_TEST_DIES_AT`.
#[cfg(not(test))]
#[inline]
pub(crate) fn point() {}

#[cfg(test)]
pub(crate) use dying::{DIES_AT, point};

#[cfg(test)]
mod dying {
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// The variable that says at which point the process dies, counted from 1.
    pub(crate) const DIES_AT: &str = "TOOLDOCK_TEST_DIES_AT";

    pub(crate) fn point() {
        static PASSED: AtomicUsize = AtomicUsize::new(0);
        let Ok(at) = std::env::var(DIES_AT) else {
            return;
        };
        let passed = PASSED.fetch_add(1, Ordering::Relaxed) + 1;
        if at == passed.to_string() {
            let own = rustix::process::getpid();
            let _ = rustix::process::kill_process(own, rustix::process::Signal::KILL);
        }
    }
}
