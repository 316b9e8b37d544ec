//! Checks the arguments of a REST call against the tool's `inputSchema` before the call is sent to the server.
//!
//! Arguments that cannot be checked are sent unchanged, and the server decides about them. That is the case if the schema is not
//! a valid JSON Schema of a known dialect, consists of several documents (a `$ref` to another document is never fetched, and an
//! `$id` within the schema begins another document), is too large, or if the check would be too much work (`effort`). `format` is
//! not checked, as in 2020-12, since servers accept different formats of addresses.
//!
//! No value is converted here: a string is not accepted for a number, even if a lenient server would accept it.

mod effort;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzzing;
mod problems;

use std::borrow::Cow;

use jsonschema::{PatternOptions, Validator};
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use tooldock_base::error::CallError;

use problems::{MESSAGE_MAX, Problem, problems, refused, short};
use tooldock_protocol::jsonrpc::spans;

/// Maximum size of a schema, in bytes. Arguments are not checked against larger ones.
const SCHEMA_MAX: usize = 64 * 1024;
/// Maximum number of patterns in a schema. Arguments are not checked against schemas with more.
const PATTERNS_MAX: usize = 64;
/// Maximum memory of a compiled pattern, in bytes. A schema with a larger one is not used.
const PATTERN_MAX: usize = 2 * 1024 * 1024;
/// Typical memory of a compiled pattern, in bytes. Used to estimate the memory of a compiled schema.
const PATTERN_WEIGHT: usize = 64 * 1024;
/// Maximum size of arguments and of structured results that are checked, in bytes. Parsed values take many times as much memory.
pub(super) const ARGUMENTS_MAX: usize = 256 * 1024;
/// Maximum number of steps ([`effort`]) of a check that reports all problems; a longer check reports only the first. The number
/// of problems can reach the number of steps, and each takes some hundred bytes of memory.
const LISTED_STEPS_MAX: u64 = 20_000;
/// Maximum number of steps of a check that may run on an I/O thread.
const LIGHT_STEPS_MAX: u64 = 4_000;
/// Maximum size of the arguments of a check that may run on an I/O thread, in bytes.
const LIGHT_BYTES_MAX: usize = 16 * 1024;

/// A compiled schema that arguments can be checked against.
#[derive(Debug)]
pub struct InputSchema {
    schema: Value,
    validator: Validator,
    weight: usize,
}

/// The reason why values cannot be checked against a schema.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UnusableSchema {
    #[error("it is larger than {SCHEMA_MAX} bytes, or has more than {PATTERNS_MAX} patterns")]
    TooLarge,
    #[error("it is made of more than one document")]
    SeveralDocuments,
    #[error("it is no JSON Schema: {0}")]
    Invalid(String),
}

impl InputSchema {
    /// Compiles a schema in the dialect that its `$schema` names, by default 2020-12.
    ///
    /// # Errors
    ///
    /// [`UnusableSchema`] when values cannot be checked against the schema.
    pub(super) fn compile(schema: &RawValue) -> Result<Self, UnusableSchema> {
        if schema.get().len() > SCHEMA_MAX {
            return Err(UnusableSchema::TooLarge);
        }
        let invalid = |reason: String| UnusableSchema::Invalid(short(&reason, MESSAGE_MAX));
        let text = schema.get();
        let schema: Value = serde_json::from_str(text).map_err(|it| invalid(it.to_string()))?;
        let dialect = schema.get("$schema").and_then(Value::as_str);
        let id_key = match dialect.is_some_and(|dialect| dialect.contains("draft-04")) {
            true => "id",
            false => "$id",
        };
        let mut patterns = 0;
        if let Value::Object(members) = &schema {
            patterns += patterns_of(members);
            // The outermost schema may have an id without being a second document. So only its subschemas are searched.
            if (members.values()).any(|part| has_documents(part, id_key, &mut patterns)) {
                return Err(UnusableSchema::SeveralDocuments);
            }
        }
        if patterns > PATTERNS_MAX {
            return Err(UnusableSchema::TooLarge);
        }
        // The regex engine does not backtrack. Patterns that require backtracking (look-ahead, back references) are not
        // supported.
        let pattern_options = PatternOptions::regex()
            .size_limit(PATTERN_MAX)
            .dfa_size_limit(PATTERN_MAX);
        let validator = jsonschema::options()
            .offline()
            .should_validate_formats(false)
            .without_content_encoding_support("base64")
            .without_content_media_type_support("application/json")
            .with_pattern_options(pattern_options)
            .build(&schema)
            .map_err(|error| invalid(error.to_string()))?;
        Ok(Self {
            schema,
            validator,
            weight: text.len() + patterns * PATTERN_WEIGHT,
        })
    }

    /// Approximate memory of the compiled schema, in bytes.
    pub(super) fn weight(&self) -> usize {
        self.weight
    }

    /// Checks arguments against the schema.
    ///
    /// # Errors
    ///
    /// `invalid_arguments`, with the path and the violated rule of each problem. It contains no values, since these may be
    /// secret.
    pub fn check(&self, arguments: &[u8]) -> Result<(), CallError> {
        if arguments.len() > ARGUMENTS_MAX {
            return Ok(());
        }
        let within = self.check_within(arguments, effort::STEPS_MAX);
        within.unwrap_or(Ok(()))
    }

    /// Checks arguments, if the check is small enough for an I/O thread. Returns `None` if it is not.
    pub fn check_lightly(&self, arguments: &[u8]) -> Option<Result<(), CallError>> {
        if arguments.len() > LIGHT_BYTES_MAX {
            return None;
        }
        self.check_within(arguments, LIGHT_STEPS_MAX)
    }

    /// Checks arguments, if that takes at most `steps_max` steps. Returns `None` if it takes more.
    fn check_within(&self, arguments: &[u8], steps_max: u64) -> Option<Result<(), CallError>> {
        // Arguments that cannot be parsed, for example because of a number out of range, are not checked: the server decides.
        let Ok(arguments) = serde_json::from_slice::<Value>(arguments) else {
            return Some(Ok(()));
        };
        let steps = effort::steps(&self.schema, &arguments, steps_max)?;
        Some(self.judge(&arguments, steps))
    }

    /// Checks a structured result. Returns the path and the violated rule of the first problem; `None` if there is no problem, or
    /// if the check would be too much work. If `light` is set, only a check that is small enough for an I/O thread runs.
    ///
    /// # Errors
    ///
    /// `light` is set, and the check is too large for that.
    pub(super) fn fault_of_result(&self, result: &[u8], light: bool) -> Result<Option<String>, ()> {
        let (bytes_max, steps_max) = match light {
            true => (LIGHT_BYTES_MAX, LIGHT_STEPS_MAX),
            false => (ARGUMENTS_MAX, effort::STEPS_MAX),
        };
        let too_much = if light { Err(()) } else { Ok(None) };
        if result.len() > bytes_max {
            return too_much;
        }
        let Ok(result) = serde_json::from_slice::<Value>(result) else {
            return Ok(None);
        };
        if effort::steps(&self.schema, &result, steps_max).is_none() {
            return too_much;
        }
        Ok(self.validator.validate(&result).err().map(problems::fault))
    }

    fn judge(&self, arguments: &Value, steps: u64) -> Result<(), CallError> {
        let Err(first) = self.validator.validate(arguments) else {
            return Ok(());
        };
        let problems: Vec<Problem> = match steps <= LISTED_STEPS_MAX {
            true => (self.validator.iter_errors(arguments))
                .flat_map(problems)
                .collect(),
            false => problems(first),
        };
        match problems.is_empty() {
            true => Ok(()),
            false => Err(refused(problems)),
        }
    }
}

/// Keywords, besides `required`, by which a schema can refuse an empty object. Most schemas contain none of them.
const REFUSE_NOTHING: [&str; 11] = [
    "allOf",
    "anyOf",
    "oneOf",
    "not",
    "if",
    "$ref",
    "$dynamicRef",
    "$recursiveRef",
    "minProperties",
    "enum",
    "const",
];

/// Returns true if a tool with this schema cannot be called without arguments. Compiling the schema is much work, so it happens
/// only if `may_compile` returns true. If the schema is not compiled or is unusable, only its `required` is considered.
pub fn are_required(schema: &RawValue, may_compile: impl FnOnce() -> bool) -> bool {
    let Some(members) = spans::members(schema.get()) else {
        return false;
    };
    let required = members.iter().find(|(key, _)| key == "required");
    let required = required.and_then(|(_, it)| serde_json::from_str::<Vec<&RawValue>>(it).ok());
    if required.is_some_and(|required| !required.is_empty()) {
        return true;
    }
    let may_refuse = |(key, _): &(Cow<'_, str>, _)| REFUSE_NOTHING.contains(&&**key);
    members.iter().any(may_refuse)
        && may_compile()
        && InputSchema::compile(schema).is_ok_and(|schema| schema.check(b"{}").is_err())
}

/// Returns true if a subschema is, or contains, a separate document (it has an id). Also counts the patterns in it. The recursion
/// is bounded, since the parser refuses nesting deeper than 128.
fn has_documents(part: &Value, id_key: &str, patterns: &mut usize) -> bool {
    match part {
        Value::Array(parts) => parts.iter().any(|it| has_documents(it, id_key, patterns)),
        Value::Object(members) => {
            *patterns += patterns_of(members);
            members.get(id_key).is_some_and(Value::is_string)
                || (members.values()).any(|it| has_documents(it, id_key, patterns))
        }
        _ => false,
    }
}

fn patterns_of(members: &Map<String, Value>) -> usize {
    let named = members.get("patternProperties").and_then(Value::as_object);
    let own = members.get("pattern").is_some_and(Value::is_string);
    named.map_or(0, Map::len) + usize::from(own)
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use serde_json::value::to_raw_value;
    use tooldock_base::error::CallErrorCode;

    use super::problems::PROBLEMS_MAX;
    use super::*;

    fn compiled(schema: &Value) -> Result<InputSchema, UnusableSchema> {
        InputSchema::compile(&to_raw_value(schema).expect("JSON"))
    }

    /// The problems of arguments: message and details.
    fn wrong(schema: &Value, arguments: &Value) -> Option<(String, Value)> {
        let schema = compiled(schema).expect("usable");
        let error = schema.check(arguments.to_string().as_bytes()).err()?;
        assert_eq!(error.code, CallErrorCode::InvalidArguments);
        let details = error.details.expect("details");
        let details: Value = serde_json::from_str(details.get()).expect("JSON");
        Some((error.message, details["errors"].clone()))
    }

    #[test]
    fn each_problem_has_its_place_and_rule_and_no_value() {
        let schema = json!({
            "$schema": "http://json-schema.org/draft-07/schema#",
            "type": "object",
            "properties": {
                "count": { "type": "integer", "minimum": 1 },
                "kind": { "enum": ["a", "b"] },
                "either": { "anyOf": [{ "type": "string", "maxLength": 2 }, { "type": "null" }] },
                "list": { "type": "array", "items": { "type": "object", "properties": { "n": { "type": "number" } } } },
                "code": { "type": "string", "pattern": "^[a-z]+$", "format": "email" },
            },
            "required": ["count", "token"],
            "additionalProperties": false,
        });
        let arguments = json!({
            "count": "hunter2", "kind": "hunter2", "either": "hunter2", "list": [{}, { "n": "hunter2" }],
            "code": "HUNTER2", "extra": "hunter2",
        });
        let (message, errors) = wrong(&schema, &arguments).expect("wrong");
        let mut found: Vec<_> = (errors.as_array().expect("a list").iter())
            .map(|it| format!("{} {} {}", it["loc"], it["type"], it["msg"]))
            .collect();
        found.sort();
        assert_eq!(
            found,
            [
                r#"["code"] "pattern" "value does not match \"^[a-z]+$\"""#,
                r#"["count"] "type" "value is not of type \"integer\"""#,
                r#"["either"] "anyOf" "value is longer than 2 characters; or value is not of type \"null\"""#,
                r#"["extra"] "additionalProperties" "there is no such argument""#,
                r#"["kind"] "enum" "value is not one of \"a\" or \"b\"""#,
                r#"["list",1,"n"] "type" "value is not of type \"number\"""#,
                r#"["token"] "required" "the argument is missing""#,
            ]
        );
        assert!(message.ends_with("; and 4 more"), "{message}");
        for text in [message, errors.to_string()] {
            assert!(!text.to_lowercase().contains("hunter2"), "{text}");
        }
    }

    #[test]
    fn what_fits_passes_and_formats_are_the_servers_to_judge() {
        let schema = json!({
            "properties": { "mail": { "type": "string", "format": "email" }, "n": { "$ref": "#/$defs/n" } },
            "$defs": { "n": { "type": "number" } },
        });
        assert_eq!(
            wrong(
                &schema,
                &json!({ "mail": "no address", "n": 1.5, "other": 1 })
            ),
            None
        );
        let (message, _) = wrong(&schema, &json!({ "n": "1" })).expect("text is no number");
        assert_eq!(message, "n: value is not of type \"number\"");
        let huge = compiled(&schema).expect("usable").check(br#"{"n":1e999}"#);
        assert!(huge.is_ok(), "{huge:?}");
    }

    #[test]
    fn the_dialect_is_what_the_schema_says() {
        let tuple = |dialect: Value| json!({ "$schema": dialect, "properties": { "t": { "items": [{ "type": "string" }] } } });
        let arguments = json!({ "t": [1] });
        let draft7 = tuple("http://json-schema.org/draft-07/schema#".into());
        assert!(wrong(&draft7, &arguments).is_some());
        // A list under `items` is no schema of 2020-12, the dialect of those that name none.
        let mut unnamed = draft7;
        unnamed
            .as_object_mut()
            .expect("an object")
            .remove("$schema");
        assert!(matches!(
            compiled(&unnamed),
            Err(UnusableSchema::Invalid(_))
        ));
        let unknown = tuple("https://example.org/my-dialect".into());
        assert!(matches!(
            compiled(&unknown),
            Err(UnusableSchema::Invalid(_))
        ));
    }

    #[test]
    fn nothing_is_fetched_and_nothing_too_large_is_compiled() {
        for reference in [
            "https://example.org/a",
            "file:///etc/passwd",
            "other.json",
            "#/nowhere",
        ] {
            let schema = json!({ "properties": { "a": { "$ref": reference } } });
            assert!(
                matches!(compiled(&schema), Err(UnusableSchema::Invalid(_))),
                "{reference}"
            );
        }
        let inner =
            json!({ "properties": { "a": { "$id": "https://example.org/a", "type": "string" } } });
        assert!(matches!(
            compiled(&inner),
            Err(UnusableSchema::SeveralDocuments)
        ));
        let alone = json!({
            "$id": "https://example.org/a",
            "properties": { "id": { "type": "string" }, "$id": { "examples": [{ "id": "x" }] } },
        });
        assert!(compiled(&alone).is_ok());
        let large = json!({ "description": "x".repeat(SCHEMA_MAX) });
        assert!(matches!(compiled(&large), Err(UnusableSchema::TooLarge)));
        let patterns = json!({ "allOf": vec![json!({ "pattern": "a" }); PATTERNS_MAX + 1] });
        assert!(matches!(compiled(&patterns), Err(UnusableSchema::TooLarge)));
        for odd in [json!([]), json!({ "type": 5 }), json!({ "pattern": "(" })] {
            assert!(
                matches!(compiled(&odd), Err(UnusableSchema::Invalid(_))),
                "{odd}"
            );
        }
    }

    #[test]
    fn a_pattern_that_would_have_to_go_back_makes_the_schema_unusable() {
        for pattern in [r"^(a|a)*\1$", "^a(?!x)"] {
            let schema = json!({ "properties": { "a": { "pattern": pattern } } });
            assert!(matches!(compiled(&schema), Err(UnusableSchema::Invalid(_))));
        }
    }

    #[test]
    fn of_much_that_is_wrong_the_first_problem_is_told_and_of_too_much_none() {
        let names: Vec<String> = (0..50).map(|n| format!("a{n}")).collect();
        let schema = json!({ "properties": { "rows": { "items": { "required": names } } } });
        let rows = |count: usize| json!({ "rows": vec![json!({}); count] });
        let (_, errors) = wrong(&schema, &rows(2000)).expect("wrong");
        assert_eq!(errors.as_array().expect("a list").len(), 1);
        assert_eq!(wrong(&schema, &rows(20_000)), None);
        assert_eq!(wrong(&schema, &rows(ARGUMENTS_MAX)), None);
    }

    #[test]
    fn problems_are_bounded() {
        let schema = json!({ "properties": { "l": { "items": { "type": "string" } } }, "additionalProperties": false });
        let long = "x".repeat(10_000);
        let (message, errors) =
            wrong(&schema, &json!({ "l": vec![1; 1000], (long): 1 })).expect("wrong");
        assert_eq!(errors.as_array().expect("a list").len(), PROBLEMS_MAX);
        assert!(message.ends_with("; and 998 more"), "{message}");
        assert!(errors.to_string().len() < 20_000);
    }
    #[test]
    fn arguments_are_required_where_nothing_at_all_does_not_fit() {
        let needs_a = json!({ "required": ["a"] });
        for (schema, required) in [
            (json!({}), false),
            (json!(true), false),
            (
                json!({ "type": "object", "properties": { "a": { "required": ["b"] } } }),
                false,
            ),
            (needs_a.clone(), true),
            (json!({ "required": [] }), false),
            (json!({ "allOf": [needs_a] }), true),
            (json!({ "anyOf": [needs_a, { "required": ["b"] }] }), true),
            (json!({ "anyOf": [needs_a, {}] }), false),
            (json!({ "oneOf": [needs_a, { "required": ["b"] }] }), true),
            (json!({ "not": { "maxProperties": 0 } }), true),
            (
                json!({ "$ref": "#/$defs/A", "$defs": { "A": needs_a } }),
                true,
            ),
            (json!({ "minProperties": 1 }), true),
            (
                json!({ "if": { "properties": { "a": { "const": 1 } } }, "then": needs_a }),
                true,
            ),
            // Schemas that cannot be used for checks.
            (json!({ "$ref": "https://example.com/other.json" }), false),
            (json!({ "allOf": 5 }), false),
        ] {
            let text = schema.to_string();
            let raw: &RawValue = serde_json::from_str(&text).expect("JSON");
            assert_eq!(are_required(raw, || true), required, "{text}");
        }
    }
}
