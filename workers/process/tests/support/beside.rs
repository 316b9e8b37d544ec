//! The guard as a separate program, beside the programs of the tests.

use std::path::PathBuf;

pub(crate) fn guard() -> PathBuf {
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
