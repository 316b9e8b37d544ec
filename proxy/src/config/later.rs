//! Keys whose features are not built yet: spelled, with their defaults, so that a file that names them is no error.
//!
//! `unsupported.rs` refuses any other value, so nothing reads these. Where a key of a section is built, it says so.

use serde::{Deserialize, Serialize};

/// How a key says that its feature is not used.
pub(crate) const OFF: &str = "off";

/// `replicas:` — this gateway among its replicas. The grace time is in force already: it bounds the drain at shutdown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct ReplicasConfig {
    /// This replica's name.
    pub(crate) id: String,
    /// Where the others reach it.
    pub(crate) address: String,
    /// How long a shutdown waits for what is in flight.
    #[serde(with = "humantime_serde")]
    pub(crate) grace: std::time::Duration,
}

impl Default for ReplicasConfig {
    fn default() -> Self {
        Self {
            id: "auto".to_owned(),
            address: OFF.to_owned(),
            grace: std::time::Duration::from_secs(30),
        }
    }
}
