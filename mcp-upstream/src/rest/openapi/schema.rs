//! Moves a tool's schema into an OpenAPI document.
//!
//! A local reference (`#/$defs/Item`) is resolved from the root of its document, so the references of a schema that is moved
//! into a larger document must be rewritten. Definitions that cannot be inlined are moved to `components/schemas`, under names
//! that are unique among all tools. Any other local reference is changed to point into the schema's new position. A subschema
//! with an `$id` is a document with its own root and is not changed, nor are `default`, `const`, `enum` and `examples`, which
//! are data.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::UsedNames;
use super::inline::inlined;
use super::work_budget::WorkBudget;

/// A schema that was moved into a document. Its references are valid there.
#[derive(Debug)]
pub(super) struct HoistedSchema {
    /// The schema, to be put at its new position in the document.
    pub(super) schema: Value,
    /// Definitions that the schema uses, to be added to `components/schemas` under these names.
    pub(super) definitions: Vec<(String, Value)>,
}

/// Schema keywords whose value is a map from names to schemas.
pub(super) const MAPS: [&str; 6] = [
    "properties",
    "patternProperties",
    "$defs",
    "definitions",
    "dependentSchemas",
    "dependencies",
];
/// Schema keywords whose value is data, not a schema.
pub(super) const DATA: [&str; 4] = ["default", "const", "enum", "examples"];

/// Returns the schema of an arbitrary object. It stands for a schema that the document cannot contain.
fn any_object() -> HoistedSchema {
    HoistedSchema {
        schema: json!({ "type": "object" }),
        definitions: Vec::new(),
    }
}

/// Moves a schema into a document. `pointer`: its new position (`#/…`); `prefix`: the beginning of its definitions' names. The
/// schema is replaced by that of an arbitrary object if it is not a JSON object, is nested deeper than the parser accepts, or has
/// too many references for the budget.
pub(super) fn hoist(
    raw: &str,
    pointer: &str,
    prefix: &str,
    effort: &mut WorkBudget,
) -> HoistedSchema {
    let Ok(Value::Object(mut schema)) = serde_json::from_str(raw) else {
        return any_object();
    };
    if schema.contains_key("$id") {
        return HoistedSchema {
            schema: Value::Object(schema),
            definitions: Vec::new(),
        };
    }
    // The document as a whole declares the dialect. A nested `$schema` would only be allowed in a schema with an `$id`.
    schema.remove("$schema");
    let Value::Object(mut schema) = inlined(Value::Object(schema), effort) else {
        return any_object();
    };
    let taken = match schema.remove("$defs") {
        Some(Value::Object(definitions)) => definitions,
        _ => Map::new(),
    };
    let moves = Moves {
        pointer,
        names: names(&taken, prefix),
    };
    let mut schema = Value::Object(schema);
    let mut moved = moves.rewrite(&mut schema, effort);
    let mut definitions = Vec::new();
    for (name, mut definition) in taken {
        moved = moved && moves.rewrite(&mut definition, effort);
        let name = moves.names.get(&name);
        definitions.extend(name.map(|name| (name.clone(), definition)));
    }
    match moved {
        true => HoistedSchema {
            schema,
            definitions,
        },
        // Not all references could be rewritten, and an old reference would point to a wrong position in the document.
        false => any_object(),
    }
}

/// The new targets of local references.
struct Moves<'a> {
    pointer: &'a str,
    /// Names of the schema's definitions, each with its new name in `components/schemas`.
    names: BTreeMap<String, String>,
}

/// Returns a new name for each definition. Names of components may contain only letters, digits, `.`, `-` and `_`.
fn names(definitions: &Map<String, Value>, prefix: &str) -> BTreeMap<String, String> {
    let mut taken = UsedNames::default();
    definitions
        .keys()
        .map(|name| {
            let plain = super::identifier(&format!("{prefix}_{name}"));
            (name.clone(), taken.unique(plain))
        })
        .collect()
}

impl Moves<'_> {
    /// Rewrites the references of a schema. Returns false if the document would grow beyond its budget. The recursion is bounded:
    /// the parser refuses nesting beyond 128 levels.
    fn rewrite(&self, schema: &mut Value, effort: &mut WorkBudget) -> bool {
        match schema {
            Value::Array(schemas) => schemas
                .iter_mut()
                .all(|schema| self.rewrite(schema, effort)),
            Value::Object(keywords) if !keywords.contains_key("$id") => {
                keywords
                    .iter_mut()
                    .all(|(keyword, value)| match (keyword.as_str(), value) {
                        ("$ref" | "$dynamicRef", Value::String(reference)) => {
                            let Some(moved) = self.moved(reference) else {
                                return true;
                            };
                            let added = moved.len().saturating_sub(reference.len());
                            *reference = moved;
                            effort.add(added)
                        }
                        (keyword, Value::Object(named)) if MAPS.contains(&keyword) => named
                            .values_mut()
                            .all(|schema| self.rewrite(schema, effort)),
                        (keyword, _) if DATA.contains(&keyword) => true,
                        (_, value) => self.rewrite(value, effort),
                    })
            }
            _ => true,
        }
    }

    /// Returns the new target of a local reference; `None` for a reference to another document or to an anchor, which is kept.
    fn moved(&self, reference: &str) -> Option<String> {
        let local = reference.strip_prefix('#')?;
        if let Some(path) = local.strip_prefix("/$defs/") {
            let (name, rest) = match path.find('/') {
                Some(at) => path.split_at(at),
                None => (path, ""),
            };
            if let Some(component) = self.names.get(&unescape(name)) {
                return Some(format!("#/components/schemas/{component}{rest}"));
            }
        }
        (local.is_empty() || local.starts_with('/')).then(|| format!("{}{local}", self.pointer))
    }
}

/// Decodes a token of a JSON pointer in a URI fragment.
pub(super) fn unescape(token: &str) -> String {
    let mut bytes = Vec::with_capacity(token.len());
    let mut rest = token.as_bytes();
    while let [first, tail @ ..] = rest {
        let decoded = match (first, tail) {
            (b'%', [high, low, ..]) => char::from(*high)
                .to_digit(16)
                .zip(char::from(*low).to_digit(16))
                .and_then(|(high, low)| u8::try_from(high * 16 + low).ok()),
            _ => None,
        };
        bytes.push(decoded.unwrap_or(*first));
        rest = if decoded.is_some() { &tail[2..] } else { tail };
    }
    String::from_utf8_lossy(&bytes)
        .replace("~1", "/")
        .replace("~0", "~")
}

#[cfg(test)]
mod tests {
    use super::*;

    const POINTER: &str = "#/paths/~1tools~1x/post/requestBody/content/application~1json/schema";

    fn moved(schema: &Value) -> HoistedSchema {
        hoist(
            &schema.to_string(),
            POINTER,
            "x_input",
            &mut WorkBudget::default(),
        )
    }

    #[test]
    fn definitions_become_components_and_references_follow() {
        let hoisted = moved(&json!({
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "type": "object",
            "properties": {
                "a": { "$ref": "#/$defs/Page[Item]" },
                "b": { "$ref": "#/$defs/Item/properties/n" },
                "$ref": { "$ref": "#/$defs/Item" },
            },
            "$defs": {
                "Item": { "type": "object", "properties": { "n": {}, "self": { "$ref": "#/$defs/Item" } } },
                "Page[Item]": { "type": "array", "items": { "$ref": "#/$defs/Item" } },
            },
        }));
        assert_eq!(
            hoisted.schema,
            json!({
                "type": "object",
                "properties": {
                    "a": { "type": "array", "items": { "$ref": "#/components/schemas/x_input_Item" } },
                    "b": {},
                    "$ref": { "$ref": "#/components/schemas/x_input_Item" },
                },
            })
        );
        let definitions: BTreeMap<_, _> = hoisted.definitions.into_iter().collect();
        assert_eq!(
            definitions["x_input_Item"]["properties"]["self"]["$ref"],
            "#/components/schemas/x_input_Item"
        );
        assert_eq!(definitions.len(), 1);
    }

    #[test]
    fn references_to_the_schema_itself_point_to_where_it_stands() {
        let hoisted = moved(&json!({
            "properties": { "child": { "$ref": "#" }, "same": { "$ref": "#/properties/child" } },
            "definitions": { "Old": { "items": { "$ref": "#/definitions/Old" } } },
            "allOf": [{ "$ref": "#/definitions/Old" }],
        }));
        let properties = &hoisted.schema["properties"];
        assert_eq!(properties["child"]["$ref"], POINTER);
        assert_eq!(
            properties["same"]["$ref"],
            format!("{POINTER}/properties/child")
        );
        assert_eq!(
            hoisted.schema["allOf"][0]["$ref"],
            format!("{POINTER}/definitions/Old")
        );
    }

    #[test]
    fn data_and_documents_of_their_own_stay_as_they_are() {
        let schema = json!({
            "properties": {
                "a": { "default": { "$ref": "#/$defs/X" }, "enum": [{ "$ref": "#" }] },
                "b": { "$id": "urn:x", "$ref": "#/$defs/X" },
                "c": { "$ref": "https://example.org/s#/$defs/X" },
            },
        });
        assert_eq!(moved(&schema).schema, schema);
        assert_eq!(moved(&json!([1])).schema, json!({ "type": "object" }));
    }

    #[test]
    fn escaped_names_are_found() {
        assert_eq!(unescape("a~1b%20c~0%zz%"), "a/b c~%zz%");
    }

    #[test]
    fn references_that_would_make_the_document_too_long_leave_any_object() {
        let all: Vec<_> = vec![json!({ "$ref": "#" }); 10_000];
        let schema = json!({ "type": "object", "allOf": all }).to_string();
        let mut effort = WorkBudget::default();
        let pointer = format!("#/paths/~1tools~1{}", "x".repeat(1000));
        let mut kept = 0;
        for _ in 0..10 {
            let hoisted = hoist(&schema, &pointer, "x_input", &mut effort);
            match hoisted.schema.get("allOf") {
                Some(_) => kept += 1,
                None => assert_eq!(hoisted.schema, json!({ "type": "object" })),
            }
        }
        assert_eq!(kept, 1);
    }

    #[test]
    fn definitions_that_would_have_one_name_are_numbered() {
        let definitions: Map<_, _> = (0..20_000)
            .map(|at| {
                (
                    format!("a{}", char::from_u32(0x4e00 + at).expect("a letter")),
                    json!({}),
                )
            })
            .collect();
        let names = names(&definitions, "x_input");
        let distinct: std::collections::BTreeSet<_> = names.values().collect();
        assert_eq!(distinct.len(), 20_000);
    }
}
