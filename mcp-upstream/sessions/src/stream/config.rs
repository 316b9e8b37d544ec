//! The keys `sessions.event_log:` of the configuration file.

use std::time::Duration;

use bytesize::ByteSize;
use serde::{Deserialize, Serialize};

/// `sessions.event_log:`: bounds of the events that streams keep for resumption.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EventLogConfig {
    /// Maximum number of events that one stream keeps.
    pub events: usize,
    /// Maximum memory of the events that one stream keeps, in bytes.
    pub bytes: ByteSize,
    /// Age after which kept events are dropped.
    #[serde(with = "humantime_serde")]
    pub age: Duration,
    /// Maximum memory of all streams that keep their events, in bytes. Streams that keep none (`/sse`, listen, responses
    /// without a session) have a separate maximum of the same size.
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
