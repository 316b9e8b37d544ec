//! Programs of the tests with real processes, and their deadline.

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

/// On an idle machine every step needs less than a tenth of this.
pub(crate) const DEADLINE: Duration = Duration::from_secs(30);

/// The real interpreter: `PATH` may have a shim that needs an environment.
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
