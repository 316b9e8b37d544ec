//! The key `threads:` of the configuration.

use std::fmt;
use std::num::NonZeroUsize;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// Maximum value of `threads`. A larger number is probably a mistake, as it exceeds the number of CPU cores of any machine in
/// use.
const THREADS_MAX: u64 = 256;

/// The number of threads that serve requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Threads {
    /// As many threads as the machine has CPU cores.
    Auto,
    /// A fixed number of threads.
    Fixed(NonZeroUsize),
}

impl Threads {
    /// Returns the number of threads on this machine.
    pub(crate) fn count(self) -> usize {
        match self {
            Self::Auto => std::thread::available_parallelism().map_or(1, NonZeroUsize::get),
            Self::Fixed(count) => count.get(),
        }
    }
}

impl Serialize for Threads {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Auto => serializer.serialize_str("auto"),
            Self::Fixed(count) => count.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Threads {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;

        impl de::Visitor<'_> for Visitor {
            type Value = Threads;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "auto or a number from 1 to {THREADS_MAX}")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Threads, E> {
                match text {
                    "auto" => Ok(Threads::Auto),
                    _ => Err(E::invalid_value(de::Unexpected::Str(text), &self)),
                }
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> Result<Threads, E> {
                usize::try_from(number)
                    .ok()
                    .filter(|_| number <= THREADS_MAX)
                    .and_then(NonZeroUsize::new)
                    .map(Threads::Fixed)
                    .ok_or_else(|| E::invalid_value(de::Unexpected::Unsigned(number), &self))
            }
        }

        deserializer.deserialize_any(Visitor)
    }
}

#[cfg(test)]
mod tests {
    use tooldock_base::yaml;

    use super::*;

    #[test]
    fn threads_are_auto_or_1_to_256() {
        let parse = |text| yaml::from_str::<Threads>(text);
        assert_eq!(parse("auto").expect("valid"), Threads::Auto);
        assert_eq!(parse("256").expect("valid").count(), 256);
        for wrong in ["0", "257", "-1", "many", "1.5", "[]"] {
            let error = parse(wrong).expect_err(wrong).to_string();
            assert!(error.contains("auto or a number from 1 to 256"), "{error}");
        }
    }
}
