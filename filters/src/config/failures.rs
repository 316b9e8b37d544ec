//! `admission.failures:` — delays for wrong credentials.

use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use tooldock_base::failures::FailureLimits;
use tooldock_base::off_or;

/// `off`, or the limits of wrong credentials.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailuresConfig {
    /// Wrong credentials are answered without a delay.
    Off,
    /// Wrong credentials beyond the limits are delayed.
    Slowed(FailureConfig),
}

/// The number of wrong credentials that are not delayed, and the delays of further ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FailureConfig {
    /// The number of wrong credentials of one address or user name that are not delayed.
    pub free: u32,
    /// The time without a wrong credential after which the count is reset.
    #[serde(with = "humantime_serde")]
    pub window: Duration,
    /// The longest delay after a wrong credential.
    #[serde(with = "humantime_serde")]
    pub max_delay: Duration,
}

impl FailuresConfig {
    /// The limits and delays; `None` if wrong credentials are not delayed.
    pub fn limits(&self) -> Option<FailureLimits> {
        match self {
            Self::Off => None,
            Self::Slowed(FailureConfig {
                free,
                window,
                max_delay,
            }) => Some(FailureLimits {
                free: (*free).max(1),
                window: *window,
                max_delay: *max_delay,
            }),
        }
    }
}

impl Default for FailureConfig {
    fn default() -> Self {
        Self {
            free: 30,
            window: Duration::from_secs(60),
            max_delay: Duration::from_secs(60),
        }
    }
}

impl Default for FailuresConfig {
    fn default() -> Self {
        Self::Slowed(FailureConfig::default())
    }
}

impl Serialize for FailuresConfig {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let slowed = match self {
            Self::Off => None,
            Self::Slowed(slowed) => Some(slowed),
        };
        off_or::serialize(slowed, serializer)
    }
}

impl<'de> Deserialize<'de> for FailuresConfig {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let slowed = off_or::deserialize(deserializer, "`off` or {free, window, max_delay}")?;
        Ok(slowed.map_or(Self::Off, Self::Slowed))
    }
}
