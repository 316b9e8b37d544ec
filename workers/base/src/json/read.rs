//! Deserializes structs from the text of a JSON object, with serde. Their fields may be spans of the text.

use serde::de::value::{BorrowedStrDeserializer, MapDeserializer};
use serde::de::{Deserialize, DeserializeSeed, Deserializer, Error as _, MapAccess, Visitor};
use serde::forward_to_deserialize_any;
use serde_json::Error;
use serde_json::value::RawValue;

use super::JsonMembers;
use super::members::plain;

/// The name with which `serde_json` marks a `RawValue`. If a new version changes it, values are parsed by `serde_json` itself.
const RAW: &str = "$serde_json::private::RawValue";

/// Deserializes a text with the same result as `serde_json::from_str`. It is faster for an object whose members are stored as
/// spans (`&RawValue`), because spans are skipped and not parsed.
///
/// # Errors
///
/// The errors of `serde_json::from_str`.
pub fn from_str<'de, T: Deserialize<'de>>(text: &'de str) -> Result<T, Error> {
    match object(text) {
        Some(read) => Ok(read),
        // `serde_json` either creates the error message, or accepts a text that this module does not.
        None => serde_json::from_str(text),
    }
}

/// Deserializes an object that is nested no deeper than [`DEPTH_MAX`](super::DEPTH_MAX). `None` for all other texts, including
/// those that `serde_json` refuses.
pub fn object<'de, T: Deserialize<'de>>(text: &'de str) -> Option<T> {
    let mut members = JsonMembers::of(text).ok()?;
    let read = T::deserialize(Object(&mut members)).ok()?;
    members.is_over().then_some(read)
}

/// Converts a value in a text that was parsed before to a raw value. The value must have no white space around it. It is neither
/// parsed nor checked again.
pub fn raw(span: &str) -> Option<&RawValue> {
    <&RawValue>::deserialize(Value(span)).ok()
}

struct Object<'m, 'de>(&'m mut JsonMembers<'de>);

impl<'de> Deserializer<'de> for Object<'_, 'de> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let members = self.0;
        let value = None;
        visitor.visit_map(MemberAccess { members, value })
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        if name == RAW {
            // A `RawValue` of the complete object is not supported here. `serde_json` then reads the text.
            return Err(Error::custom("not by members"));
        }
        visitor.visit_newtype_struct(self)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct seq tuple
        tuple_struct map struct enum identifier ignored_any
    }
}

struct MemberAccess<'m, 'de> {
    members: &'m mut JsonMembers<'de>,
    value: Option<&'de str>,
}

impl<'de> MapAccess<'de> for MemberAccess<'_, 'de> {
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Error> {
        let next = self.members.next_member();
        let Some(member) = next.map_err(|_| Error::custom("no object"))? else {
            return Ok(None);
        };
        self.value = Some(member.value);
        seed.deserialize(RawKey(member.key)).map(Some)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, Error> {
        let value = self.value.take();
        let value = value.ok_or_else(|| Error::custom("a value before its key"))?;
        seed.deserialize(Value(value))
    }
}

/// Deserializer for a key, from its raw text.
struct RawKey<'de>(&'de str);

impl<'de> Deserializer<'de> for RawKey<'de> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match plain(self.0) {
            Some(name) => visitor.visit_borrowed_str(name),
            None => serde_json::Deserializer::from_str(self.0).deserialize_str(visitor),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        match name {
            RAW => visit_raw(self.0, visitor),
            _ => visitor.visit_newtype_struct(self),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_some(self)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct seq tuple
        tuple_struct map struct enum identifier ignored_any
    }
}

/// Deserializer for a value, from its raw text. The text has already been checked.
struct Value<'de>(&'de str);

/// Implements methods of a deserializer that let `serde_json` parse the value, because it is not stored as a span.
macro_rules! parsed {
    ($($method:ident)*) => {
        $(fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
            serde_json::Deserializer::from_str(self.0).$method(visitor)
        })*
    };
}

impl<'de> Deserializer<'de> for Value<'de> {
    type Error = Error;

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        match name {
            RAW => visit_raw(self.0, visitor),
            _ => visitor.visit_newtype_struct(self),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.0 {
            "null" => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_unit()
    }

    parsed! {
        deserialize_any deserialize_bool deserialize_i8 deserialize_i16 deserialize_i32 deserialize_i64 deserialize_i128
        deserialize_u8 deserialize_u16 deserialize_u32 deserialize_u64 deserialize_u128 deserialize_f32 deserialize_f64
        deserialize_char deserialize_str deserialize_string deserialize_bytes deserialize_byte_buf deserialize_unit
        deserialize_seq deserialize_map deserialize_identifier
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        serde_json::Deserializer::from_str(self.0).deserialize_unit_struct(name, visitor)
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, Error> {
        serde_json::Deserializer::from_str(self.0).deserialize_tuple(len, visitor)
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        len: usize,
        visitor: V,
    ) -> Result<V::Value, Error> {
        serde_json::Deserializer::from_str(self.0).deserialize_tuple_struct(name, len, visitor)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        serde_json::Deserializer::from_str(self.0).deserialize_struct(name, fields, visitor)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        serde_json::Deserializer::from_str(self.0).deserialize_enum(name, variants, visitor)
    }
}

/// Passes a span to a visitor in the form that `RawValue` expects. The span must be valid JSON.
fn visit_raw<'de, V: Visitor<'de>>(span: &'de str, visitor: V) -> Result<V::Value, Error> {
    let entry = (
        BorrowedStrDeserializer::new(RAW),
        BorrowedStrDeserializer::new(span),
    );
    visitor.visit_map(MapDeserializer::new(std::iter::once(entry)))
}
