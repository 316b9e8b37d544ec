//! What the tests of real processes run, and how long they wait for it.

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

/// Nothing takes a tenth of this on an idle machine.
pub(crate) const DEADLINE: Duration = Duration::from_secs(30);

/// The guard as a program of its own.
pub(crate) fn guard() -> PathBuf {
    env!("CARGO_BIN_EXE_tooldock-test-guard").into()
}

/// The real interpreter: what is on `PATH` may be a shim that wants an environment.
pub(crate) fn python() -> PathBuf {
    static PYTHON: OnceLock<PathBuf> = OnceLock::new();
    let found = PYTHON.get_or_init(|| {
        let output = Command::new("python3")
            .args(["-c", "import sys; print(sys.executable, end='')"])
            .output()
            .expect("python3 is on PATH");
        String::from_utf8(output.stdout).unwrap().into()
    });
    found.clone()
}

pub(crate) async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(DEADLINE, future)
        .await
        .expect("in time")
}
