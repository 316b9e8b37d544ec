//! Helpers for tests of this crate that count allocations. Instructions are counted by tests of `mcp-upstream`, whose calls also
//! run the code of this crate.

use tokio::runtime::{Builder, Runtime};

#[path = "../../../tests/support/counted.rs"]
mod counted;

pub(crate) use counted::allocations;

/// Creates a runtime with one thread, as the proxy uses by default.
pub(crate) fn runtime() -> Runtime {
    Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime")
}
