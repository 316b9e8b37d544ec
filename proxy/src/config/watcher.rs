//! `watcher:` — reloads when files change, without a request.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tooldock_sessions::session::config::PollAfter;

/// Settings of reloads for changed files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct WatcherConfig {
    /// True when files are watched.
    pub(crate) enabled: bool,
    /// The time without further changes after which a reload begins.
    #[serde(with = "humantime_serde")]
    pub(crate) debounce: Duration,
    /// Interval at which files are polled, for systems that report no changes; `off` where the system reports them.
    pub(crate) poll: PollAfter,
}

impl Default for WatcherConfig {
    fn default() -> Self {
        Self {
            enabled: false,
            debounce: Duration::from_millis(1500),
            poll: PollAfter::Off,
        }
    }
}

impl WatcherConfig {
    /// The polling interval; `None` if files are not polled.
    pub(crate) fn poll_every(&self) -> Option<Duration> {
        match self.poll {
            PollAfter::Off => None,
            PollAfter::After(every) => Some(every),
        }
    }
}
