//! `watcher:` — reloads without being asked.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tooldock_upstream::session::config::PollAfter;

/// Settings of reloads for changed files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct WatcherConfig {
    /// True when files are watched at all.
    pub(crate) enabled: bool,
    /// The time without changes before a reload.
    #[serde(with = "humantime_serde")]
    pub(crate) debounce: Duration,
    /// The interval of looking at files where the system does not report changes; `off` where it does.
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
    /// How often files are looked at, if they are.
    pub(crate) fn poll_every(&self) -> Option<Duration> {
        match self.poll {
            PollAfter::Off => None,
            PollAfter::After(every) => Some(every),
        }
    }
}
