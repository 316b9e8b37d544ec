//! A server that is a real process, started by the real guard.

use std::path::PathBuf;
use std::time::Duration;

/// Script of a server that speaks either era and misbehaves on request; its first lines say how.
pub const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/pool/tests/server.py");

/// Returns the path of the guard that the workspace's tests start.
pub fn guard() -> PathBuf {
    let test = std::env::current_exe().expect("it runs");
    let target = test.ancestors().nth(2).expect("target/debug/deps/test");
    let guard = target.join("tooldock-test-guard");
    assert!(
        guard.exists(),
        "run `cargo build -p tooldock-process --bins`, which builds {}",
        guard.display()
    );
    guard
}

/// Waits for a future, and panics when it takes too long.
pub async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(30), future)
        .await
        .expect("in time")
}
