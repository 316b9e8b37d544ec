//! The value of `max_concurrency`: a number of calls, or `auto`, which depends on the kind of upstream.

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

use serde::de::{self, Deserialize, Deserializer, Visitor};
use serde::{Serialize, Serializer};

use crate::bounds::BoundedValue;

/// Text of [`Concurrency::Auto`] in configuration files.
const AUTO: &str = "auto";

/// Maximum number of concurrent calls of a namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Concurrency {
    /// The number depends on the kind of upstream: 8 calls for processes on this machine, 512 for remote servers.
    #[default]
    Auto,
    /// A fixed number of concurrent calls.
    Calls(usize),
}

impl Concurrency {
    /// Number of concurrent calls for `auto`, if they run in processes on this machine.
    const LOCAL: usize = 8;
    /// Number of concurrent calls for `auto`, if they are sent to a remote server.
    const REMOTE: usize = 512;

    /// Number of concurrent calls for a namespace whose calls run in processes on this machine.
    pub fn local(self) -> usize {
        match self {
            Self::Auto => Self::LOCAL,
            Self::Calls(calls) => calls,
        }
    }

    /// Number of concurrent calls for a namespace on a remote server.
    pub fn remote(self) -> usize {
        match self {
            Self::Auto => Self::REMOTE,
            Self::Calls(calls) => calls,
        }
    }
}

/// Orders the values by their number of calls. `auto` counts as its number for this machine, because ceilings and other limits on
/// the value are meant for calls that run on this machine.
impl Ord for Concurrency {
    fn cmp(&self, other: &Self) -> Ordering {
        let key = |it: &Self| (it.local(), *it != Self::Auto);
        key(self).cmp(&key(other))
    }
}

impl PartialOrd for Concurrency {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for Concurrency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str(AUTO),
            Self::Calls(calls) => calls.fmt(f),
        }
    }
}

impl BoundedValue for Concurrency {
    fn spelled(self) -> String {
        self.to_string()
    }
}

/// The error for a text that is neither a number of calls nor `auto`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected a whole number or {AUTO}")]
pub struct InvalidConcurrency;

impl FromStr for Concurrency {
    type Err = InvalidConcurrency;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            AUTO => Ok(Self::Auto),
            text => text
                .parse()
                .map(Self::Calls)
                .map_err(|_| InvalidConcurrency),
        }
    }
}

impl Serialize for Concurrency {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Auto => serializer.serialize_str(AUTO),
            Self::Calls(calls) => calls.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Concurrency {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NumberOrAuto;

        impl Visitor<'_> for NumberOrAuto {
            type Value = Concurrency;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a whole number or auto")
            }

            fn visit_u64<E: de::Error>(self, calls: u64) -> Result<Self::Value, E> {
                Ok(Concurrency::Calls(
                    usize::try_from(calls).unwrap_or(usize::MAX),
                ))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
                match text {
                    AUTO => Ok(Concurrency::Auto),
                    _ => Err(E::invalid_value(de::Unexpected::Str(text), &self)),
                }
            }
        }

        deserializer.deserialize_any(NumberOrAuto)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::yaml;

    #[test]
    fn auto_follows_the_place_of_the_calls_and_a_number_does_not() {
        let read = |text: &str| yaml::from_slice::<Concurrency>(text.as_bytes()).expect(text);
        assert_eq!((read("auto").local(), read("auto").remote()), (8, 512));
        assert_eq!((read("30").local(), read("30").remote()), (30, 30));
        for wrong in ["-1", "1.5", "many", "[8]", "true"] {
            let refused = yaml::from_slice::<Concurrency>(wrong.as_bytes());
            let message = refused.expect_err(wrong).to_string();
            assert!(message.contains("a whole number or auto"), "{message}");
        }
    }

    #[test]
    fn a_narrower_file_lowers_auto_and_never_raises_it() {
        let calls = Concurrency::Calls;
        assert_eq!(Concurrency::Auto.min(calls(4)), calls(4));
        assert_eq!(Concurrency::Auto.min(calls(64)), Concurrency::Auto);
        assert_eq!(calls(100).min(Concurrency::Auto), Concurrency::Auto);
    }
}
