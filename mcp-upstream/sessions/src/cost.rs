//! Counts of allocations in tests of this crate. Instructions are counted by the tests of `mcp-upstream`, whose calls pass here.

use tokio::runtime::{Builder, Runtime};

#[path = "../../../tests/support/counted.rs"]
mod counted;

pub(crate) use counted::allocations;

/// A runtime with one thread, like each of the proxy's runtimes by default.
pub(crate) fn runtime() -> Runtime {
    Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime")
}
