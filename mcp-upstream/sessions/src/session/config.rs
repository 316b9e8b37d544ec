//! The keys `sessions:` of the configuration file. `Default` is the reference for their defaults.

use std::fmt;
use std::time::Duration;

use bytesize::ByteSize;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use tooldock_base::mask;
use zeroize::Zeroizing;

use crate::profile::INITIALIZED_WAIT;
pub use crate::stream::config::EventLogConfig;

/// Minimum of [`SessionsConfig::bytes`] and of the bound for one principal, in bytes: a bound must leave room for at least one
/// session of maximum size.
pub const BYTES_MIN: usize = 1024 * 1024;

/// `sessions:`: lifetimes of sessions, and bounds on the events of their streams.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SessionsConfig {
    /// Lifetime of a session after its last use.
    #[serde(with = "humantime_serde")]
    pub ttl: Duration,
    /// Lifetime of a session whose client sends nothing after `initialize`, not even a confirmation.
    #[serde(with = "humantime_serde")]
    pub unused_ttl: Duration,
    /// Maximum time that a request waits for its session's `notifications/initialized`.
    #[serde(with = "humantime_serde")]
    pub initialized_wait: Duration,
    /// Maximum number of sessions of all principals together.
    pub max: usize,
    /// Maximum memory of the sessions of all principals together, in bytes. Events that streams store for resumption are not
    /// included.
    pub bytes: ByteSize,
    /// Interval of the keep-alive comments on an idle stream.
    #[serde(with = "humantime_serde")]
    pub keepalive: Duration,
    /// Time after which a long POST stream is closed, so that the client resumes it; or `off`.
    pub poll_after: PollAfter,
    /// The bounds of the events that streams keep for resumption.
    pub event_log: EventLogConfig,
    /// Store that keeps sessions in addition to the memory of the process.
    pub store: StoreConfig,
    /// Prefix of the keys in Redis. Gateways with different prefixes can use the same Redis without sharing sessions.
    pub store_prefix: String,
}

/// `sessions.store:`: the store that keeps sessions in addition to the memory of the process.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum StoreConfig {
    /// `memory`: no store. Sessions end with the process.
    #[default]
    Memory,
    /// `disk`: a file in the data directory.
    Disk,
    /// `redis://…`, in any of its spellings: a Redis or Valkey server that replicas share.
    Redis(StoreUrl),
}

/// URL of a store, which may contain a password: `Debug` prints only the scheme, and a printed configuration masks the password.
#[derive(Clone, PartialEq, Eq)]
pub struct StoreUrl(Zeroizing<String>);

impl StoreUrl {
    /// The URL with its password.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// The URL for an error message, with its password masked.
    pub fn masked(&self) -> String {
        masked_url(&self.0)
    }
}

/// Returns the text of a store's URL for an error message, with its password masked and control characters escaped.
fn masked_url(text: &str) -> String {
    mask::address(text).escape_debug().to_string()
}

impl fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            self.0
                .split_once("://")
                .map_or("[redacted]", |(scheme, _)| scheme),
        )
    }
}

/// `sessions.poll_after:`: `off` or a duration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PollAfter {
    /// Streams are not closed for polling.
    #[default]
    Off,
    /// A POST stream that is open for this time is closed, and its client resumes it.
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
            store_prefix: "tooldock:".to_owned(),
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
            Self::Redis(_) => "redis://[redacted]",
        })
    }
}

impl<'de> Deserialize<'de> for StoreConfig {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        match text.as_str() {
            "memory" => Ok(Self::Memory),
            "disk" => Ok(Self::Disk),
            url if url.starts_with("redis") && url.contains("://") => {
                Ok(Self::Redis(StoreUrl(Zeroizing::new(url.to_owned()))))
            }
            _ => Err(D::Error::custom(format!(
                "expected `memory`, `disk`, or a Redis URL such as `redis://HOST:6379`: {}",
                masked_url(&text)
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use tooldock_base::yaml;

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
            store: memory
            store_prefix: 'tooldock:'";
        let read: SessionsConfig = yaml::from_str(documented).expect("the documented keys");
        assert_eq!(read, SessionsConfig::default());
        let read: SessionsConfig = yaml::from_str("poll_after: 25s").expect("a duration");
        assert_eq!(read.poll_after, PollAfter::After(Duration::from_secs(25)));
        let read: SessionsConfig = yaml::from_str("store: disk").expect("a store");
        assert_eq!(read.store, StoreConfig::Disk);
        let read: SessionsConfig =
            yaml::from_str("store: 'redis://:hush@host:6379/1'").expect("a store");
        assert!(!format!("{read:?}").contains("hush"), "{read:?}");
        assert!(!yaml::to_string(&read).expect("plain data").contains("hush"));
        let StoreConfig::Redis(url) = read.store else {
            panic!("{read:?}");
        };
        assert_eq!(url.expose(), "redis://:hush@host:6379/1");
        assert!(yaml::from_str::<SessionsConfig>("tll: 1h").is_err());
        for (unknown, shown) in [
            ("floppy", "floppy"),
            ("http://cache", "http://cache"),
            ("http://:hush@cache", "http://***MASKED***@cache"),
            ("redis:hush", "redis:***MASKED***"),
        ] {
            let read = yaml::from_str::<SessionsConfig>(&format!("store: '{unknown}'"));
            let error = read.expect_err(unknown).to_string();
            assert!(
                error.contains(&format!(": {shown}")) && !error.contains("hush"),
                "{error}"
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
