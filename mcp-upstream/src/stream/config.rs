//! The keys `sessions.event_log:` of the configuration file.

use std::time::Duration;

use bytesize::ByteSize;
use serde::{Deserialize, Serialize};

/// `sessions.event_log:`: bounds of the events that streams keep for resumption.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EventLogConfig {
    /// The most events of one stream.
    pub events: usize,
    /// The most bytes of one stream.
    pub bytes: ByteSize,
    /// The age after which events are dropped.
    #[serde(with = "humantime_serde")]
    pub age: Duration,
    /// The most bytes of all streams that keep their events together; streams that keep none (`/sse`, listen, answers without a
    /// session) may hold as much once more.
    pub total: ByteSize,
}

impl Default for EventLogConfig {
    fn default() -> Self {
        Self {
            events: 256,
            bytes: ByteSize::mib(1),
            age: Duration::from_secs(5 * 60),
            total: ByteSize::mib(256),
        }
    }
}
