//! Converts arguments sent as JSON in strings, where a tool's `inputSchema` allows no string (`coerce_arguments`).
//!
//! Some models write `"5"` for a number, `"[1, 2]"` for an array and `"{\"a\": 1}"` for an object. Such a string
//! becomes the value that it spells if the schema allows the value's type but not a string. All other values keep their
//! bytes: the server judges a string that is not JSON, or JSON of a type that the schema does not allow.
//!
//! A schema whose type is unclear counts as allowing strings: no `type`, a `$ref` to another document, an `anyOf` with
//! such a branch.

use bytes::Bytes;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::jsonrpc;
use crate::jsonrpc::spans::{self, MemberEdit};

/// Bounds in bytes. With a larger schema or larger arguments nothing is converted.
const SCHEMA_MAX: usize = 64 * 1024;
const ARGUMENTS_MAX: usize = 256 * 1024;
/// The deepest nesting of arguments, and the longest chain of references and alternatives in a schema, that is
/// followed.
const DEPTH_MAX: usize = 16;

/// Types of JSON values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Types(u8);

impl Types {
    const NULL: Self = Self(1);
    const BOOLEAN: Self = Self(2);
    const INTEGER: Self = Self(4);
    const NUMBER: Self = Self(4 | 8);
    const STRING: Self = Self(16);
    const ARRAY: Self = Self(32);
    const OBJECT: Self = Self(64);
    const ALL: Self = Self(127);

    fn named(name: &str) -> Self {
        match name {
            "null" => Self::NULL,
            "boolean" => Self::BOOLEAN,
            "integer" => Self::INTEGER,
            "number" => Self::NUMBER,
            "string" => Self::STRING,
            "array" => Self::ARRAY,
            "object" => Self::OBJECT,
            _ => Self::ALL,
        }
    }

    fn of(value: &Value) -> Self {
        match value {
            Value::Null => Self::NULL,
            Value::Bool(_) => Self::BOOLEAN,
            Value::Number(number) if number.is_i64() || number.is_u64() => Self::INTEGER,
            Value::Number(number) if number.as_f64().is_some_and(|it| it.fract() == 0.0) => {
                Self::INTEGER
            }
            Value::Number(_) => Self(8),
            Value::String(_) => Self::STRING,
            Value::Array(_) => Self::ARRAY,
            Value::Object(_) => Self::OBJECT,
        }
    }

    /// The types that a schema allows.
    fn allowed_by(schema: &Value, root: &Value, depth: usize) -> Self {
        let Value::Object(keywords) = schema else {
            return Self::ALL;
        };
        if depth == 0 {
            return Self::ALL;
        }
        let below = |schema: &Value| Self::allowed_by(schema, root, depth - 1);
        let any = |types: Vec<Self>| Self(types.into_iter().fold(0, |all, it| all | it.0));
        let mut allowed = match keywords.get("type") {
            Some(Value::String(name)) => Self::named(name),
            Some(Value::Array(names)) => any(names
                .iter()
                .map(|name| name.as_str().map_or(Self::ALL, Self::named))
                .collect()),
            _ => Self::ALL,
        };
        let mut narrow = |types: Self| allowed.0 &= types.0;
        for arms in ["anyOf", "oneOf"] {
            if let Some(Value::Array(arms)) = keywords.get(arms) {
                narrow(any(arms.iter().map(below).collect()));
            }
        }
        if let Some(Value::Array(parts)) = keywords.get("allOf") {
            parts.iter().map(below).for_each(&mut narrow);
        }
        if let Some(Value::Array(values)) = keywords.get("enum") {
            narrow(any(values.iter().map(Self::of).collect()));
        }
        if let Some(value) = keywords.get("const") {
            narrow(Self::of(value));
        }
        if let Some(target) = target(keywords, root) {
            narrow(below(target));
        }
        allowed
    }

    fn holds(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// The arguments with strings converted to the types of the schema; `None` if no string is to be converted.
pub(crate) fn coerced(schema: &RawValue, arguments: &[u8]) -> Option<Bytes> {
    if schema.get().len() > SCHEMA_MAX || arguments.len() > ARGUMENTS_MAX {
        return None;
    }
    let arguments = std::str::from_utf8(arguments).ok()?;
    // Most arguments hold no string, object or list, and need no look at the schema.
    let may_spell = spans::members(arguments)?
        .iter()
        .any(|(_, value)| value.starts_with(['"', '{', '[']));
    if !may_spell {
        return None;
    }
    let root: Value = serde_json::from_str(schema.get()).ok()?;
    value(&root, &root, arguments, DEPTH_MAX).map(Bytes::from)
}

/// A raw JSON value, converted to the types of the schema; `None` if nothing is to be converted.
fn value(schema: &Value, root: &Value, raw: &str, depth: usize) -> Option<String> {
    let depth = depth.checked_sub(1)?;
    let raw = raw.trim();
    match raw.as_bytes().first()? {
        b'"' => {
            let allowed = Types::allowed_by(schema, root, DEPTH_MAX);
            if allowed.holds(Types::STRING) {
                return None;
            }
            let text = jsonrpc::string(serde_json::from_str(raw).ok()?)?;
            let text = text.trim();
            let spelled: Value = serde_json::from_str(text).ok()?;
            if !allowed.holds(Types::of(&spelled)) {
                return None;
            }
            Some(value(schema, root, text, depth).unwrap_or_else(|| text.to_owned()))
        }
        b'{' => {
            let members = spans::members(raw)?;
            let changed = members.iter().filter_map(|(key, member)| {
                let schema = find(schema, root, &|it| property(it, key), DEPTH_MAX)?;
                Some((key, value(schema, root, member, depth)?))
            });
            let changed: Vec<_> = changed.collect();
            let edits: Vec<_> = changed
                .iter()
                .map(|(key, new)| MemberEdit::Set(key, new.as_str().into()))
                .collect();
            match edits.is_empty() {
                true => None,
                false => spans::edited(raw, &edits),
            }
        }
        b'[' => {
            let schema = find(schema, root, &|it| it.get("items"), DEPTH_MAX)?;
            let items: Vec<&RawValue> = serde_json::from_str(raw).ok()?;
            let new: Vec<_> = items
                .iter()
                .map(|item| value(schema, root, item.get(), depth))
                .collect();
            if new.iter().all(Option::is_none) {
                return None;
            }
            let items = items.iter().zip(&new);
            let items: Vec<&str> = items
                .map(|(item, new)| new.as_deref().unwrap_or(item.get()))
                .collect();
            Some(format!("[{}]", items.join(",")))
        }
        _ => None,
    }
}

fn property<'a>(schema: &'a Value, key: &str) -> Option<&'a Value> {
    let known = schema.get("properties").and_then(|it| it.get(key));
    known.or_else(|| schema.get("additionalProperties"))
}

/// Searches a schema, the target of its `$ref` and its alternatives for the first part that `part` finds.
fn find<'a>(
    schema: &'a Value,
    root: &'a Value,
    part: &dyn Fn(&'a Value) -> Option<&'a Value>,
    depth: usize,
) -> Option<&'a Value> {
    let depth = depth.checked_sub(1)?;
    let Value::Object(keywords) = schema else {
        return None;
    };
    if let Some(found) = part(schema) {
        return Some(found);
    }
    if let Some(target) = target(keywords, root) {
        return find(target, root, part, depth);
    }
    let arms = ["allOf", "anyOf", "oneOf"].into_iter();
    let mut arms = arms
        .filter_map(|key| keywords.get(key)?.as_array())
        .flatten();
    arms.find_map(|arm| find(arm, root, part, depth))
}

/// The schema that a `$ref` within the document leads to.
fn target<'a>(keywords: &serde_json::Map<String, Value>, root: &'a Value) -> Option<&'a Value> {
    let reference = keywords.get("$ref")?.as_str()?;
    root.pointer(reference.strip_prefix('#')?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schema() -> Box<RawValue> {
        let schema = serde_json::json!({
            "type": "object",
            "properties": {
                "n": { "type": "number" },
                "i": { "type": "integer" },
                "b": { "type": "boolean" },
                "a": { "type": "array", "items": { "type": "integer" } },
                "o": { "type": "object", "properties": { "deep": { "type": "boolean" } } },
                "maybe": { "anyOf": [{ "type": "integer" }, { "type": "null" }] },
                "either": { "type": ["string", "integer"] },
                "text": { "type": "string" },
                "free": {},
                "far": { "$ref": "#/$defs/far" },
                "choice": { "enum": [1, 2] },
                "lost": { "$ref": "https://else.where/schema" },
            },
            "$defs": { "far": { "type": "object", "properties": { "i": { "type": "integer" } } } },
        });
        serde_json::value::to_raw_value(&schema).expect("JSON")
    }

    fn read(arguments: &str) -> Option<String> {
        let read = coerced(&schema(), arguments.as_bytes())?;
        Some(String::from_utf8(read.to_vec()).expect("UTF-8"))
    }

    #[test]
    fn a_string_that_spells_what_the_schema_wants_becomes_that() {
        for (given, wanted) in [
            (r#"{"n":"1.50"}"#, r#"{"n":1.50}"#),
            (
                r#"{"n":"12345678901234567890"}"#,
                r#"{"n":12345678901234567890}"#,
            ),
            (r#"{"i":" 5 "}"#, r#"{"i":5}"#),
            (r#"{"b":"true"}"#, r#"{"b":true}"#),
            (r#"{"a":"[1, 2]"}"#, r#"{"a":[1, 2]}"#),
            (r#"{"a":["1",2]}"#, r#"{"a":[1,2]}"#),
            (r#"{"o":"{\"x\":1}"}"#, r#"{"o":{"x":1}}"#),
            (r#"{"o":"{\"deep\":\"false\"}"}"#, r#"{"o":{"deep":false}}"#),
            (r#"{"maybe":"7"}"#, r#"{"maybe":7}"#),
            (r#"{"maybe":"null"}"#, r#"{"maybe":null}"#),
            (r#"{"far":"{\"i\":\"3\"}"}"#, r#"{"far":{"i":3}}"#),
            (r#"{"choice":"2"}"#, r#"{"choice":2}"#),
        ] {
            assert_eq!(read(given).as_deref(), Some(wanted), "{given}");
        }
        let beside = read(r#"{ "text":"5", "i":"5", "x":1e400 }"#).expect("one of them");
        assert_eq!(beside.replace(' ', ""), r#"{"text":"5","i":5,"x":1e400}"#);
    }

    #[test]
    fn everything_else_stays() {
        for given in [
            r#"{"text":"5"}"#,
            r#"{"either":"5"}"#,
            r#"{"free":"5"}"#,
            r#"{"lost":"5"}"#,
            r#"{"unknown":"5"}"#,
            r#"{"i":"five"}"#,
            r#"{"i":"5.5"}"#,
            r#"{"i":"[5]"}"#,
            r#"{"i":""}"#,
            r#"{"b":"True"}"#,
            r#"{"o":"[]"}"#,
            r#"{"n":5,"a":[1]}"#,
            r#"{"i":"5","i":"6"}"#,
            "[]",
            "",
        ] {
            assert_eq!(read(given), None, "{given}");
        }
    }
}
