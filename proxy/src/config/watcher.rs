//! The key `watcher:` of the configuration: automatic reloads when files change.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tooldock_sessions::session::config::PollAfter;

/// Settings of automatic reloads when files change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct WatcherConfig {
    /// True if files are watched; false if namespaces are only reloaded on request.
    pub(crate) enabled: bool,
    /// Time without changes of files after which a reload begins.
    #[serde(with = "humantime_serde")]
    pub(crate) debounce: Duration,
    /// Interval at which files are checked for changes, for file systems that report none; `off` if they report them.
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
    /// Default of `debounce` with `--dev`. It is short, since an author waits for the reload, and editors write a file within a
    /// few milliseconds.
    pub(crate) const DEV_DEBOUNCE: Duration = Duration::from_millis(200);

    /// Returns the interval at which files are checked for changes; `None` if the system reports them.
    pub(crate) fn poll_every(&self) -> Option<Duration> {
        match self.poll {
            PollAfter::Off => None,
            PollAfter::After(every) => Some(every),
        }
    }
}
