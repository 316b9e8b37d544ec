//! Builds an example of a tool's arguments from values in the schema. No value is invented.

use std::collections::HashSet;

use serde_json::{Map, Value};

/// Returns an example object built from the examples, constants, choices and defaults in the schema. `None` if the schema
/// contains none of these, or if a required argument has none.
pub(super) fn of(schema: &Value) -> Option<Value> {
    if let Some(example) = first_of_keywords(schema, &["examples", "example"]) {
        return Some(example);
    }
    let properties = schema.get("properties")?.as_object()?;
    let required: HashSet<&str> = match schema.get("required").and_then(Value::as_array) {
        Some(required) => required.iter().filter_map(Value::as_str).collect(),
        None => HashSet::new(),
    };
    let mut example = Map::new();
    for (name, property) in properties {
        let is_required = required.contains(name.as_str());
        let value = match is_required {
            true => Some(first_of_keywords(
                property,
                &["examples", "example", "const", "enum", "default"],
            )?),
            false => first_of_keywords(property, &["examples", "example", "default"]),
        };
        example.extend(value.map(|value| (name.clone(), value)));
    }
    let is_whole = required.iter().all(|name| example.contains_key(*name));
    (is_whole && !example.is_empty()).then_some(Value::Object(example))
}

/// Returns the value of the first of these keywords that the schema contains; if it is a list of values, its first item.
fn first_of_keywords(schema: &Value, keywords: &[&str]) -> Option<Value> {
    let mut all = keywords.iter();
    all.find_map(|keyword| {
        let value = schema.get(keyword)?;
        match (*keyword, value) {
            ("examples" | "enum", Value::Array(values)) => values.first().cloned(),
            ("examples" | "enum", _) => None,
            _ => Some(value.clone()),
        }
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_example_is_what_the_schema_gives_and_whole() {
        let property = json!({ "type": "string", "default": "open" });
        for (schema, example) in [
            (json!({ "examples": [{ "a": 1 }] }), Some(json!({ "a": 1 }))),
            (
                json!({ "properties": { "a": { "enum": ["x", "y"] }, "b": property }, "required": ["a"] }),
                Some(json!({ "a": "x", "b": "open" })),
            ),
            (
                json!({ "properties": { "a": { "type": "string" }, "b": property }, "required": ["a"] }),
                None,
            ),
            (
                json!({ "properties": { "a": { "type": "string" }, "b": property } }),
                Some(json!({ "b": "open" })),
            ),
            (json!({ "properties": { "a": {} } }), None),
            (json!({ "properties": {}, "required": ["a"] }), None),
            (json!({}), None),
        ] {
            assert_eq!(of(&schema), example, "{schema}");
        }
    }
}
