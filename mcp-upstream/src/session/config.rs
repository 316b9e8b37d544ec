//! The keys `sessions:` of the configuration file. `Default` is the reference for their defaults.

use std::time::Duration;

use bytesize::ByteSize;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::profile::INITIALIZED_WAIT;
pub use crate::stream::config::EventLogConfig;

/// The least [`SessionsConfig::bytes`], and the least of one principal: one session at its own bounds fits in.
pub const BYTES_MIN: usize = 1024 * 1024;

/// `sessions:` — how long sessions live and what their streams keep.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SessionsConfig {
    /// How long a session lives after its last use.
    #[serde(with = "humantime_serde")]
    pub ttl: Duration,
    /// How long a session lives whose client sends nothing after `initialize`, not even a confirmation.
    #[serde(with = "humantime_serde")]
    pub unused_ttl: Duration,
    /// How long a request waits for its session's `notifications/initialized`.
    #[serde(with = "humantime_serde")]
    pub initialized_wait: Duration,
    /// Sessions of all principals together.
    pub max: usize,
    /// What the sessions of all principals hold together, without what their streams keep for resumption.
    pub bytes: ByteSize,
    /// How often an idle stream carries a comment.
    #[serde(with = "humantime_serde")]
    pub keepalive: Duration,
    /// When a long POST stream is closed for the client to resume.
    pub poll_after: PollAfter,
    /// What a stream keeps for resumption.
    pub event_log: EventLogConfig,
    /// The store of sessions beside the memory of the process.
    pub store: StoreConfig,
}

/// `sessions.store:` — the store of sessions beside the memory of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum StoreConfig {
    /// `memory`: nowhere, sessions end with the process.
    #[default]
    Memory,
    /// `disk`: in a file of the data directory.
    Disk,
    /// `redis://…`, in any of its spellings. The URL may hold a password and is not kept here.
    Redis,
}

/// `sessions.poll_after:` — `off` or a duration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PollAfter {
    /// Streams stay open.
    #[default]
    Off,
    /// Streams are closed after so long.
    After(Duration),
}

impl Default for SessionsConfig {
    fn default() -> Self {
        Self {
            ttl: Duration::from_secs(24 * 60 * 60),
            unused_ttl: Duration::from_secs(2 * 60),
            initialized_wait: INITIALIZED_WAIT,
            max: 200_000,
            bytes: ByteSize::mib(512),
            keepalive: Duration::from_secs(15),
            poll_after: PollAfter::Off,
            event_log: EventLogConfig::default(),
            store: StoreConfig::Memory,
        }
    }
}

impl Serialize for PollAfter {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Off => serializer.serialize_str("off"),
            Self::After(after) => humantime_serde::serialize(after, serializer),
        }
    }
}

impl<'de> Deserialize<'de> for PollAfter {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        if text == "off" {
            return Ok(Self::Off);
        }
        let text = serde::de::value::StringDeserializer::<D::Error>::new(text);
        humantime_serde::deserialize(text).map(Self::After)
    }
}

impl Serialize for StoreConfig {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(match self {
            Self::Memory => "memory",
            Self::Disk => "disk",
            Self::Redis => "redis",
        })
    }
}

impl<'de> Deserialize<'de> for StoreConfig {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        match text.as_str() {
            "memory" => Ok(Self::Memory),
            "disk" => Ok(Self::Disk),
            url if url.starts_with("redis") && url.contains("://") => Ok(Self::Redis),
            _ => Err(D::Error::custom("expected `memory` or `disk`")),
        }
    }
}

#[cfg(test)]
mod tests {
    use tooldock_workers::yaml;

    use super::*;

    #[test]
    fn reads_the_documented_spelling_and_refuses_unknown_keys() {
        let documented = "
            ttl: 24h
            unused_ttl: 2m
            initialized_wait: 1s
            max: 200000
            bytes: 512MiB
            keepalive: 15s
            poll_after: off
            event_log: { events: 256, bytes: 1MiB, age: 5m, total: 256MiB }
            store: memory";
        let read: SessionsConfig = yaml::from_str(documented).expect("the documented keys");
        assert_eq!(read, SessionsConfig::default());
        let read: SessionsConfig = yaml::from_str("poll_after: 25s").expect("a duration");
        assert_eq!(read.poll_after, PollAfter::After(Duration::from_secs(25)));
        let read: SessionsConfig = yaml::from_str("store: disk").expect("a store");
        assert_eq!(read.store, StoreConfig::Disk);
        for unknown in ["tll: 1h", "store: floppy", "store: http://redis"] {
            assert!(
                yaml::from_str::<SessionsConfig>(unknown).is_err(),
                "{unknown}"
            );
        }
    }

    #[test]
    fn what_is_written_is_read_back() {
        let config = SessionsConfig {
            poll_after: PollAfter::After(Duration::from_millis(250)),
            store: StoreConfig::Disk,
            ..SessionsConfig::default()
        };
        let text = yaml::to_string(&config).expect("plain data");
        assert_eq!(
            yaml::from_str::<SessionsConfig>(&text).expect("as written"),
            config
        );
    }
}
