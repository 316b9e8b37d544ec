//! Converts arguments that were sent as JSON in strings, where a tool's `inputSchema` allows no string (`coerce_arguments`).
//!
//! Some models write `"5"` for a number, `"[1, 2]"` for an array and `"{\"a\": 1}"` for an object. Such a string is replaced by
//! the value that it contains, if the schema allows the type of that value but not a string. All other values stay unchanged: the
//! server decides about a string that is not JSON, or that contains a type which the schema does not allow.
//!
//! If the types that a schema allows cannot be determined, it counts as allowing strings. Examples: a schema without `type`, a
//! `$ref` to another document, an `anyOf` with such an alternative.

use std::collections::HashMap;

use bytes::Bytes;
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use tooldock_protocol::jsonrpc;
use tooldock_protocol::jsonrpc::spans::{self, MemberEdit};

/// Maximum size of a schema, in bytes. With a larger schema, arguments are not converted.
const SCHEMA_MAX: usize = 64 * 1024;
/// Maximum size of arguments, in bytes. Larger ones are not converted.
const ARGUMENTS_MAX: usize = 256 * 1024;
/// Maximum nesting of arguments that are converted. Also the maximum number of references and alternatives that are followed
/// within each other in a schema.
const DEPTH_MAX: usize = 16;
/// Maximum number of steps of a conversion; if it takes more, the arguments are not changed. The limit is needed because schemas
/// that refer to each other can take any number of steps, and this code runs on an I/O thread. The largest arguments take about
/// half of it with a typical schema.
const STEPS_MAX: usize = 200_000;
/// Number of `enum` values that count as one step.
const VALUES_PER_STEP: usize = 8;
/// Number of bytes of strings that count as one step.
const BYTES_PER_STEP: usize = 256;

/// A set of types of JSON values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Types(u8);

impl Types {
    const NONE: Self = Self(0);
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

    fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    fn holds(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// Converts strings in the arguments to the types that the schema allows. Returns `None` if nothing changes.
pub fn coerced(schema: &RawValue, arguments: &[u8]) -> Option<Bytes> {
    if schema.get().len() > SCHEMA_MAX || arguments.len() > ARGUMENTS_MAX {
        return None;
    }
    let arguments = std::str::from_utf8(arguments).ok()?;
    // Fast path: arguments without strings, objects and lists cannot change, so the schema need not be parsed.
    let may_spell = spans::members(arguments)?
        .iter()
        .any(|(_, value)| value.starts_with(['"', '{', '[']));
    if !may_spell {
        return None;
    }
    let root: Value = serde_json::from_str(schema.get()).ok()?;
    let mut coercion = Coercion::of(&root);
    let coerced = coercion.value(&root, arguments, DEPTH_MAX);
    coercion.left?;
    coerced.map(Bytes::from)
}

/// Part of a schema to search for, in the schema itself and in its alternatives.
#[derive(Clone, Copy)]
enum SchemaPart<'k> {
    /// The schema of the member with this name.
    Property(&'k str),
    /// The schema of an array's items.
    Items,
}

impl SchemaPart<'_> {
    fn of(self, keywords: &Map<String, Value>) -> Option<&Value> {
        match self {
            Self::Items => keywords.get("items"),
            Self::Property(key) => {
                let known = keywords.get("properties").and_then(|it| it.get(key));
                known.or_else(|| keywords.get("additionalProperties"))
            }
        }
    }

    /// Number of bytes that a look-up of this part compares.
    fn bytes(self) -> usize {
        match self {
            Self::Items => 0,
            Self::Property(key) => key.len(),
        }
    }
}

/// A conversion of arguments by a schema. There is one count of steps for all values, references and alternatives together, since
/// their numbers multiply.
struct Coercion<'a> {
    root: &'a Value,
    /// Number of steps that remain; `None` once the maximum is exceeded. Then no argument is converted.
    left: Option<usize>,
    /// Cache of the types that a schema allows, by the address of the schema. Useful for lists, all of whose items have the same
    /// schema.
    allowed: HashMap<*const Value, Types>,
}

impl<'a> Coercion<'a> {
    fn of(root: &'a Value) -> Self {
        Self {
            root,
            left: Some(STEPS_MAX),
            allowed: HashMap::new(),
        }
    }

    fn spend(&mut self, steps: usize) -> Option<()> {
        self.left = self.left.and_then(|left| left.checked_sub(steps));
        self.left.map(|_| ())
    }

    /// Converts a raw JSON value to a type that the schema allows. Returns `None` if the value stays unchanged.
    fn value(&mut self, schema: &'a Value, raw: &str, depth: usize) -> Option<String> {
        let depth = depth.checked_sub(1)?;
        let raw = raw.trim();
        let first = *raw.as_bytes().first()?;
        if !may_change(first) {
            return None;
        }
        self.spend(1 + raw.len() / BYTES_PER_STEP)?;
        match first {
            b'"' => self.string(schema, raw, depth),
            b'{' => self.object(schema, raw, depth),
            _ => self.array(schema, raw, depth),
        }
    }

    fn string(&mut self, schema: &'a Value, raw: &str, depth: usize) -> Option<String> {
        let allowed = self.types(schema)?;
        if allowed.holds(Types::STRING) {
            return None;
        }
        let text = jsonrpc::string(serde_json::from_str(raw).ok()?)?;
        let text = text.trim();
        let spelled: Value = serde_json::from_str(text).ok()?;
        if !allowed.holds(Types::of(&spelled)) {
            return None;
        }
        let inner = self.value(schema, text, depth);
        Some(inner.unwrap_or_else(|| text.to_owned()))
    }

    fn object(&mut self, schema: &'a Value, raw: &str, depth: usize) -> Option<String> {
        let members = spans::members(raw)?;
        let mut edits = Vec::new();
        for (key, member) in &members {
            if !member.bytes().next().is_some_and(may_change) {
                continue;
            }
            let Some(schema) = self.find(schema, SchemaPart::Property(key), DEPTH_MAX) else {
                continue;
            };
            if let Some(new) = self.value(schema, member, depth) {
                edits.push(MemberEdit::Set(key, new.into()));
            }
        }
        match edits.is_empty() {
            true => None,
            false => spans::edited(raw, &edits),
        }
    }

    fn array(&mut self, schema: &'a Value, raw: &str, depth: usize) -> Option<String> {
        let schema = self.find(schema, SchemaPart::Items, DEPTH_MAX)?;
        let items: Vec<&RawValue> = serde_json::from_str(raw).ok()?;
        let new: Vec<_> = items
            .iter()
            .map(|item| self.value(schema, item.get(), depth))
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

    /// Determines the types that a schema allows. Returns `None` if that takes too many steps.
    fn types(&mut self, schema: &'a Value) -> Option<Types> {
        if let Some(known) = self.allowed.get(&std::ptr::from_ref(schema)) {
            return Some(*known);
        }
        let allowed = self.allowed_by(schema, DEPTH_MAX)?;
        self.allowed.insert(schema, allowed);
        Some(allowed)
    }

    fn allowed_by(&mut self, schema: &'a Value, depth: usize) -> Option<Types> {
        self.spend(1)?;
        let Value::Object(keywords) = schema else {
            return Some(Types::ALL);
        };
        if depth == 0 {
            return Some(Types::ALL);
        }
        let mut allowed = match keywords.get("type") {
            Some(Value::String(name)) => Types::named(name),
            Some(Value::Array(names)) => {
                let named = |name: &Value| name.as_str().map_or(Types::ALL, Types::named);
                self.any(names, named)?
            }
            _ => Types::ALL,
        };
        for arms in ["anyOf", "oneOf"] {
            if let Some(Value::Array(arms)) = keywords.get(arms) {
                let mut any = Types::NONE;
                for arm in arms {
                    any = any.or(self.allowed_by(arm, depth - 1)?);
                }
                allowed = allowed.and(any);
            }
        }
        if let Some(Value::Array(parts)) = keywords.get("allOf") {
            for part in parts {
                allowed = allowed.and(self.allowed_by(part, depth - 1)?);
            }
        }
        if let Some(Value::Array(values)) = keywords.get("enum") {
            allowed = allowed.and(self.any(values, Types::of)?);
        }
        if let Some(value) = keywords.get("const") {
            allowed = allowed.and(Types::of(value));
        }
        if let Some(target) = self.target(keywords) {
            allowed = allowed.and(self.allowed_by(target, depth - 1)?);
        }
        // If following the reference has exceeded the steps, the types are incomplete, and `None` is returned.
        self.left.map(|_| allowed)
    }

    /// The union of the types of several values; `None` if there are no steps left.
    fn any(&mut self, all: &[Value], types: impl Fn(&Value) -> Types) -> Option<Types> {
        self.spend(all.len() / VALUES_PER_STEP)?;
        Some(all.iter().map(types).fold(Types::NONE, Types::or))
    }

    /// Finds part of a schema: in the schema itself, in the target of its reference, or in its alternatives.
    fn find(&mut self, schema: &'a Value, part: SchemaPart<'_>, depth: usize) -> Option<&'a Value> {
        let depth = depth.checked_sub(1)?;
        self.spend(1 + part.bytes() / BYTES_PER_STEP)?;
        let Value::Object(keywords) = schema else {
            return None;
        };
        if let Some(found) = part.of(keywords) {
            return Some(found);
        }
        if let Some(target) = self.target(keywords) {
            return self.find(target, part, depth);
        }
        let arms = ["allOf", "anyOf", "oneOf"].into_iter();
        let mut arms = arms
            .filter_map(|key| keywords.get(key)?.as_array())
            .flatten();
        arms.find_map(|arm| self.find(arm, part, depth))
    }

    /// The schema that a `$ref` within the same document refers to; `None` if there is none.
    fn target(&mut self, keywords: &Map<String, Value>) -> Option<&'a Value> {
        let reference = keywords.get("$ref")?.as_str()?;
        let levels = memchr::memchr_iter(b'/', reference.as_bytes()).count();
        self.spend(levels + reference.len() / BYTES_PER_STEP)?;
        self.root.pointer(reference.strip_prefix('#')?)
    }
}

/// Returns true if a value with this first byte may have to be converted, or may contain such a value.
fn may_change(first: u8) -> bool {
    matches!(first, b'"' | b'{' | b'[')
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

    /// The steps that were taken, `None` for too many, and the arguments as they become.
    fn steps(schema: &Value, arguments: &str) -> (Option<usize>, Option<String>) {
        let mut coercion = Coercion::of(schema);
        let read = coercion.value(schema, arguments, DEPTH_MAX);
        (coercion.left.map(|left| STEPS_MAX - left), read)
    }

    fn coerced_by(schema: &Value, arguments: &str) -> Option<Bytes> {
        let schema = serde_json::value::to_raw_value(schema).expect("JSON");
        coerced(&schema, arguments.as_bytes())
    }

    #[test]
    fn arguments_stay_where_the_schema_asks_for_too_many_steps() {
        let again = serde_json::json!({ "$ref": "#/$defs/a" });
        let schema = serde_json::json!({
            "properties": { "x": { "$ref": "#/$defs/a" }, "y": { "type": "integer" } },
            "$defs": { "a": { "anyOf": vec![again; 16] } },
        });
        for arguments in [
            r#"{"x":"5"}"#,
            r#"{"x":["5"]}"#,
            r#"{"x":{"y":"5"}}"#,
            // No half of them either.
            r#"{"y":"5","x":"5"}"#,
        ] {
            assert_eq!(steps(&schema, arguments).0, None, "{arguments}");
            assert_eq!(coerced_by(&schema, arguments), None, "{arguments}");
        }
        assert!(coerced_by(&schema, r#"{"y":"5"}"#).is_some());
        // Each level multiplies the work, and at its end there is a type.
        let mut chain =
            serde_json::json!({ "properties": { "x": { "$ref": "#/$defs/a0" } }, "$defs": {} });
        for n in 0..6 {
            let next = serde_json::json!({ "$ref": format!("#/$defs/a{}", n + 1) });
            chain["$defs"][format!("a{n}")] = serde_json::json!({ "oneOf": vec![next; 16] });
        }
        chain["$defs"]["a6"] = serde_json::json!({ "type": "integer" });
        assert_eq!(coerced_by(&chain, r#"{"x":"5"}"#), None);
        chain["$defs"]["a2"] = serde_json::json!({ "type": "integer" });
        assert!(coerced_by(&chain, r#"{"x":"5"}"#).is_some());
    }

    #[test]
    fn items_of_an_array_share_the_work_on_their_schema() {
        let values: Vec<u32> = (0..8_000).collect();
        let schema = serde_json::json!({ "properties": { "x": { "items": { "enum": values } } } });
        let arguments = format!(r#"{{"x":[{}]}}"#, vec![r#""7""#; 10_000].join(","));
        let (taken, read) = steps(&schema, &arguments);
        let expected = format!(r#"{{"x":[{}]}}"#, vec!["7"; 10_000].join(","));
        assert_eq!(read, Some(expected));
        // A step for each item, and those of the enum once.
        let taken = taken.expect("within the bound");
        assert!((10_000..12_000).contains(&taken), "{taken}");
    }

    #[test]
    fn large_arguments_are_read_against_a_usual_schema() {
        let schema = serde_json::json!({
            "properties": { "rows": { "items": { "$ref": "#/$defs/row" } } },
            "$defs": { "row": { "properties": { "a": { "type": "integer" }, "b": { "type": "boolean" } } } },
        });
        let row = r#"{"a":"1","b":"true"}"#;
        let arguments = format!(
            r#"{{"rows":[{}]}}"#,
            vec![row; ARGUMENTS_MAX / 24].join(",")
        );
        let read = coerced_by(&schema, &arguments).expect("within the bound");
        assert!(read.ends_with(br#"{"a":1,"b":true}]}"#));
    }

    #[test]
    fn long_keys_and_references_cost_steps() {
        let arms = vec![serde_json::json!({ "type": "object" }); 1_000];
        let schema = serde_json::json!({ "properties": { "x": { "anyOf": arms } } });
        let key = "k".repeat(ARGUMENTS_MAX - 100);
        let arguments = format!(r#"{{"x":{{"{key}":"5"}}}}"#);
        assert_eq!(steps(&schema, &arguments).0, None);
        let (taken, _) = steps(&schema, r#"{"x":{"k":"5"}}"#);
        assert!(taken.expect("few steps") < 2_000);
        let far = serde_json::json!({ "$ref": format!("#{}", "/a".repeat(20_000)) });
        let schema = serde_json::json!({ "properties": { "x": { "anyOf": vec![far; 12] } } });
        assert_eq!(steps(&schema, r#"{"x":"5"}"#).0, None);
    }
}
