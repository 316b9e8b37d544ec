//! Points in the code at which a test can kill the process, to test the state that a crash leaves. Outside of tests they do
//! nothing.

/// A point at which a test may kill the process. A test selects the point by its number in `TOOLDOCK_TEST_DIES_AT`.
#[cfg(not(any(test, feature = "testing")))]
#[inline]
pub fn point() {}

#[cfg(any(test, feature = "testing"))]
pub use dying::{FOLDER, dying_everywhere, point};

#[cfg(any(test, feature = "testing"))]
mod dying {
    use std::os::unix::process::ExitStatusExt as _;
    use std::path::Path;
    use std::process::Command;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tempfile::TempDir;

    /// Environment variable with the number of the point at which the process is killed, counted from 1.
    const DIES_AT: &str = "TOOLDOCK_TEST_DIES_AT";
    /// Environment variable with the folder in which the tested process works.
    pub const FOLDER: &str = "TOOLDOCK_TEST_FOLDER";

    /// Kills the process if this point has the number that the test has selected.
    pub fn point() {
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

    /// Runs an ignored test in separate processes, each in a folder that `prepare` has created. The first process is killed at
    /// the first point, the next at the second, and so on, until a process passes all points. `judge` gets each folder with the
    /// number of the point; the number is 0 for the process that was not killed. Returns the number of killed processes.
    pub fn dying_everywhere(
        test: &str,
        variables: &[(&str, &str)],
        mut prepare: impl FnMut() -> TempDir,
        mut judge: impl FnMut(usize, &Path),
    ) -> usize {
        for at in 1.. {
            let folder = prepare();
            let output = Command::new(std::env::current_exe().expect("it runs"))
                .args(["--ignored", "--exact", test])
                .envs(variables.iter().copied())
                .env(FOLDER, folder.path())
                .env(DIES_AT, at.to_string())
                .output()
                .expect("the test runs");
            if output.status.success() {
                let ran = String::from_utf8_lossy(&output.stdout).contains("1 passed");
                assert!(ran, "there is no test {test}");
                judge(0, folder.path());
                return at - 1;
            }
            let told = String::from_utf8_lossy(&output.stdout);
            assert_eq!(output.status.signal(), Some(9), "{test} {at}: {told}");
            judge(at, folder.path());
        }
        unreachable!("a process has an end")
    }
}
