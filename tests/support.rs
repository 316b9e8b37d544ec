//! The harness: a real gateway on loopback, real workers, real sockets.
//!
//! ```ignore
//! let gateway = Gateway::with_tools([("calc", "math_tools.py", MATH_TOOLS)]).start().await;
//! let answer = gateway.rest("calc").post("/tools/add").json(&json!({"a": 2, "b": 3})).send().await;
//! ```
//!
//! Rules for tests here: drive the binary from outside, wait for facts with [`eventually`] and never for time, and
//! leave nothing behind ([`Gateway`] ends its process when it is dropped).

pub mod api;
pub mod backend;
pub mod compiled;
pub mod dice;
pub mod everything;
pub mod gateway;
pub mod hook;
pub mod link;
pub mod manager;
pub mod network;
pub mod nginx;
pub mod oidc;
pub mod otlp;
pub mod pages;
pub mod ports;
pub mod programs;
pub mod raw;
pub mod redis;
pub mod registry;
pub mod session;
pub mod sse;
pub mod tools;

use std::fmt::Write;
use std::future::Future;
use std::time::{Duration, Instant};

pub use gateway::{Gateway, TOKEN};

/// Maximum time for a condition to become true. Generous, since machines are slow; a test that passes does not wait for it.
pub const DEADLINE: Duration = Duration::from_secs(30);

/// Maximum time for a gateway to be ready. The first one on a machine makes the workers' base environment, which installs
/// packages, and the others wait for it.
pub const READY_DEADLINE: Duration = Duration::from_secs(300);

/// Waits until `check` returns a value, asking again every few milliseconds.
///
/// # Panics
///
/// When there is no value within [`DEADLINE`].
pub async fn eventually<T, F: Future<Output = Option<T>>>(
    what: &str,
    check: impl FnMut() -> F,
) -> T {
    eventually_within(DEADLINE, what, check).await
}

/// As [`eventually`], with another time limit.
///
/// # Panics
///
/// When the value does not come in time.
pub async fn eventually_within<T, F: Future<Output = Option<T>>>(
    limit: Duration,
    what: &str,
    mut check: impl FnMut() -> F,
) -> T {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(value) = check().await {
            return value;
        }
        assert!(Instant::now() < deadline, "not within {limit:?}: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// The SHA-256 of a text, in hex, as the configuration has it for a token.
pub fn sha256(text: &str) -> String {
    use sha2::Digest;
    sha2::Sha256::digest(text.as_bytes())
        .iter()
        .fold(String::new(), |mut hex, byte| {
            let _ = write!(hex, "{byte:02x}");
            hex
        })
}
