//! Reads and writes configuration keys whose value is either `off` or a setting.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{self, Deserialize, Deserializer, IntoDeserializer, MapAccess, Visitor};
use serde::{Serialize, Serializer};

/// The configuration value that stands for "no setting".
const OFF: &str = "off";

/// Reads `off` as `None`, and other values as the setting. `expected` lists the allowed values in errors.
///
/// # Errors
///
/// The errors of the setting's own type, with the position inside the setting. An untagged enum would lose the position.
pub fn deserialize<'de, D, T>(deserializer: D, expected: &str) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    let setting = PhantomData;
    deserializer.deserialize_any(OffOr { expected, setting })
}

/// Writes a setting in the form that [`deserialize`] reads: `None` as `off`.
///
/// # Errors
///
/// The errors of the serializer.
pub fn serialize<S: Serializer, T: Serialize>(
    value: Option<&T>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    match value {
        None => serializer.serialize_str(OFF),
        Some(setting) => setting.serialize(serializer),
    }
}

/// Durations that may be `off`, which is `None`; for `#[serde(with = "off_or::duration")]`.
pub mod duration {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    use super::OFF;

    /// A duration that is written as `10m`.
    #[derive(Deserialize)]
    #[serde(transparent)]
    struct DurationText(#[serde(with = "humantime_serde")] Duration);

    /// Writes a duration in the form that [`deserialize`] reads.
    ///
    /// # Errors
    ///
    /// The errors of the serializer.
    pub fn serialize<S: Serializer>(
        value: &Option<Duration>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match value {
            None => serializer.serialize_str(OFF),
            Some(value) => humantime_serde::serialize(value, serializer),
        }
    }

    /// Reads `off`, or a duration such as `10m`.
    ///
    /// # Errors
    ///
    /// When the value is neither.
    pub fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Duration>, D::Error> {
        let expected = "`off` or a duration such as `10m`";
        let duration: Option<DurationText> = super::deserialize(deserializer, expected)?;
        Ok(duration.map(|DurationText(duration)| duration))
    }
}

struct OffOr<'a, T> {
    expected: &'a str,
    setting: PhantomData<T>,
}

impl<'de, T: Deserialize<'de>> Visitor<'de> for OffOr<'_, T> {
    type Value = Option<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expected)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
        if text == OFF {
            return Ok(None);
        }
        let setting = T::deserialize(text.into_deserializer());
        setting
            .map(Some)
            .map_err(|_: E| E::invalid_value(de::Unexpected::Str(text), &self))
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<Self::Value, E> {
        // Programs for YAML 1.1 convert `off` to `false`, so `false` is accepted, too.
        match value {
            false => Ok(None),
            true => Err(E::invalid_value(de::Unexpected::Bool(true), &self)),
        }
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<Self::Value, E> {
        let setting = T::deserialize(number.into_deserializer());
        let invalid = |_: E| E::invalid_value(de::Unexpected::Unsigned(number), &self);
        setting.map(Some).map_err(invalid)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
        T::deserialize(MapAccessDeserializer::new(map)).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::yaml;

    #[derive(serde::Deserialize, Debug, PartialEq)]
    struct Keys {
        #[serde(with = "super::duration")]
        idle: Option<Duration>,
    }

    fn read(value: &str) -> Result<Option<Duration>, String> {
        yaml::from_str::<Keys>(&format!("idle: {value}"))
            .map(|keys| keys.idle)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn durations_are_off_or_text_with_a_unit() {
        assert_eq!(read("off"), Ok(None));
        assert_eq!(read("10m"), Ok(Some(Duration::from_secs(600))));
        for wrong in ["10", "true", "soon", "{}"] {
            let error = read(wrong).unwrap_err();
            assert!(error.contains("duration"), "{wrong}: {error}");
        }
    }

    #[test]
    fn false_is_off_since_programs_for_yaml_1_1_convert_it() {
        assert_eq!(read("false"), Ok(None));
    }
}
