//! `admission.failures:` — delays for clients that send many wrong credentials.

use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use tooldock_base::failures::FailureLimits;
use tooldock_base::off_or;

/// `off`, or the number of wrong credentials that are answered without a delay, and the delays after that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailuresConfig {
    /// Wrong credentials are answered without a delay.
    Off,
    /// Wrong credentials are delayed if a client or user name sends more of them than the limits allow.
    Slowed(FailureConfig),
}

/// The number of wrong credentials that are answered without a delay, and the delays of all later ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FailureConfig {
    /// The number of wrong credentials per client address or user name that are answered without a delay.
    pub free: u32,
    /// The count of wrong credentials is reset if none arrives for this time.
    #[serde(with = "humantime_serde")]
    pub window: Duration,
    /// Maximum delay after a wrong credential.
    #[serde(with = "humantime_serde")]
    pub max_delay: Duration,
}

impl FailuresConfig {
    /// The limits on wrong credentials; `None` if they are not delayed.
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
