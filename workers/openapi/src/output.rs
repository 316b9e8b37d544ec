//! Output schemas of tools, and results that fit them. APIs often differ in details from their documents, and clients refuse
//! results that do not fit the tool's `outputSchema`. So the schema promises only types, and members of other types are left out
//! of the result.

use serde_json::{Map, Value, json};

/// Maximum depth of the output schema's parts. Deeper parts promise nothing. Results are compared to four times this depth, since
/// a schema may refer to itself.
const DEPTH_MAX: usize = 12;
/// Maximum size of an output schema, in bytes. A larger one is replaced by a schema that promises only an object.
const SCHEMA_MAX: usize = 32 * 1024;
/// Member of the structured content that contains a response whose value is not an object.
const RESULT: &str = "result";

/// The output schema of a tool, and the form of its structured content.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct OutputSchema {
    pub(crate) schema: Value,
    /// True if the structured content is an object whose member `result` is the response's value; false if it is the value
    /// itself.
    is_wrapped: bool,
}

impl OutputSchema {
    /// Creates the output schema for a response. `schema`: the self-contained schema of the response, `definitions`: its `$defs`.
    pub(crate) fn new(schema: &Value, definitions: &Map<String, Value>) -> Self {
        let is_wrapped = !is_object(schema);
        let mut promised = match is_wrapped {
            false => types(schema, DEPTH_MAX),
            true => {
                let value = types(schema, DEPTH_MAX);
                json!({ "type": "object", "properties": { RESULT: value } })
            }
        };
        promised["type"] = json!("object");
        if promised.to_string().contains("#/$defs/") {
            let defs = definitions
                .iter()
                .map(|(name, it)| (name.clone(), types(it, DEPTH_MAX)));
            promised["$defs"] = Value::Object(defs.collect());
        }
        if promised.to_string().len() > SCHEMA_MAX {
            promised = json!({ "type": "object" });
        }
        Self {
            schema: promised,
            is_wrapped,
        }
    }

    /// Returns the structured content for the value of a response: an object that fits the schema, or an empty object if the
    /// value does not fit. `value`: `None` for a response that is not JSON.
    pub(crate) fn content(&self, value: Option<Value>) -> Value {
        let Some(value) = value else {
            return json!({});
        };
        let value = match self.is_wrapped {
            true => Value::Object(Map::from_iter([(RESULT.to_owned(), value)])),
            false => value,
        };
        let definitions = self.schema.get("$defs");
        fitting(value, &self.schema, definitions, DEPTH_MAX * 4)
            .filter(Value::is_object)
            .unwrap_or_else(|| json!({}))
    }
}

/// Returns true for a schema that describes an object, and no value of another type.
fn is_object(schema: &Value) -> bool {
    match schema.get("type") {
        Some(Value::String(name)) => name == "object",
        Some(_) => false,
        None => schema.get("properties").is_some(),
    }
}

/// Reduces a schema to types, properties, items, references, titles and descriptions. Each value with a type may also be `null`.
fn types(schema: &Value, depth: usize) -> Value {
    let (Some(members), Some(depth)) = (schema.as_object(), depth.checked_sub(1)) else {
        return json!({});
    };
    let mut out = Map::new();
    for (key, value) in members {
        let kept = match (key.as_str(), value) {
            ("title" | "description" | "$ref", value) => value.clone(),
            ("type", Value::String(name)) => json!([name, "null"]),
            ("type", Value::Array(names)) => {
                let null = json!("null");
                let mut names = names.clone();
                if !names.contains(&null) {
                    names.push(null);
                }
                names.into()
            }
            ("properties", Value::Object(entries)) => {
                let entries = entries
                    .iter()
                    .map(|(name, it)| (name.clone(), types(it, depth)));
                Value::Object(entries.collect())
            }
            ("items", value @ Value::Object(_)) => types(value, depth),
            _ => continue,
        };
        out.insert(key.clone(), kept);
    }
    Value::Object(out)
}

/// Removes the members and items that do not fit the schema. Returns `None` if the value itself does not fit, or is nested more
/// than `depth` levels deep. The parts of the value are moved, not copied.
fn fitting(
    value: Value,
    schema: &Value,
    definitions: Option<&Value>,
    depth: usize,
) -> Option<Value> {
    let depth = depth.checked_sub(1)?;
    if let Some(target) = schema.get("$ref").and_then(Value::as_str) {
        let target = target.strip_prefix("#/$defs/")?;
        return fitting(value, definitions?.get(target)?, definitions, depth);
    }
    let is = |name: &Value| match (name.as_str().unwrap_or_default(), &value) {
        ("null", it) => it.is_null(),
        ("boolean", it) => it.is_boolean(),
        ("string", it) => it.is_string(),
        ("array", it) => it.is_array(),
        ("object", it) => it.is_object(),
        ("number", it) => it.is_number(),
        ("integer", Value::Number(it)) => it.as_f64().is_some_and(|it| it.fract() == 0.0),
        _ => false,
    };
    let fits = match schema.get("type") {
        Some(Value::Array(names)) => names.iter().any(is),
        Some(name) => is(name),
        None => true,
    };
    if !fits {
        return None;
    }
    Some(match value {
        Value::Object(members) => {
            let properties = schema.get("properties");
            let kept = members.into_iter().filter_map(|(name, member)| {
                let kept = match properties.and_then(|it| it.get(&name)) {
                    Some(schema) => fitting(member, schema, definitions, depth)?,
                    None => member,
                };
                Some((name, kept))
            });
            Value::Object(kept.collect())
        }
        Value::Array(items) => match schema.get("items") {
            Some(schema) => {
                let kept = items
                    .into_iter()
                    .filter_map(|it| fitting(it, schema, definitions, depth));
                Value::Array(kept.collect())
            }
            None => Value::Array(items),
        },
        value => value,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pet() -> OutputSchema {
        let schema = json!({
            "type": "object",
            "properties": {
                "id": { "type": "integer", "minimum": 1 },
                "tags": { "type": "array", "items": { "type": "string" } },
            },
            "required": ["id"], "additionalProperties": false,
        });
        OutputSchema::new(&schema, &Map::new())
    }

    #[test]
    fn the_schema_of_a_result_promises_types_alone() {
        let expected = json!({
            "type": "object",
            "properties": {
                "id": { "type": ["integer", "null"] },
                "tags": { "type": ["array", "null"], "items": { "type": ["string", "null"] } },
            },
        });
        assert_eq!(pet().schema, expected);
    }

    #[test]
    fn members_of_other_types_than_documented_are_left_out() {
        let found = pet().content(Some(
            json!({ "id": "7", "tags": ["a", 1, null], "more": true }),
        ));
        assert_eq!(found, json!({ "tags": ["a", null], "more": true }));
        assert_eq!(pet().content(Some(json!([1]))), json!({}));
        assert_eq!(pet().content(None), json!({}));
    }

    #[test]
    fn a_list_is_the_member_result() {
        let list = json!({ "type": "array", "items": { "type": "integer" } });
        let output = OutputSchema::new(&list, &Map::new());
        assert_eq!(
            output.content(Some(json!([1, 2]))),
            json!({ "result": [1, 2] })
        );
        assert_eq!(output.schema["type"], "object");
    }

    #[test]
    fn a_value_of_a_schema_that_contains_itself_is_compared() {
        let properties = json!({ "next": { "$ref": "#/$defs/Node" }, "id": { "type": "integer" } });
        let node = json!({ "type": "object", "properties": properties });
        let output = OutputSchema::new(&node, &Map::from_iter([("Node".to_owned(), node.clone())]));
        let value = json!({ "id": 1, "next": { "id": "x", "next": null } });
        assert_eq!(
            output.content(Some(value)),
            json!({ "id": 1, "next": { "next": null } })
        );
    }
}
