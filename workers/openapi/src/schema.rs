//! Self-contained JSON Schemas for a tool's input or output. References are replaced by the schemas that they lead to; a schema
//! that contains itself moves to `$defs`, and so do all referenced schemas if the result would be too large otherwise. Keywords
//! of OpenAPI 3.0 are converted to keywords of JSON Schema 2020-12.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;

use serde_json::{Map, Value, json};

use crate::budget::Budget;
use crate::document::{Document, reference};
use crate::names::TakenNames;

/// Maximum number of schemas in the input or the output of one tool while references are replaced. If there are more, all
/// references lead to `$defs`.
const INLINE_MAX: usize = 400;
/// Maximum number of schemas in the input or the output of one tool while all references lead to `$defs`.
const SCHEMAS_MAX: usize = 4_000;
/// Maximum size of the keys and values that are copied into the input or output schema of one tool, in bytes.
const BYTES_MAX: usize = 512 * 1024;
/// Cost of a schema in the budget of the document, in bytes.
const SCHEMA_COST: usize = 64;
/// Cost of a reference among properties in the document's budget, in bytes: the reference is followed to its end.
const REFERENCE_COST: usize = 1024;
/// Maximum length of a name in `$defs` before its number, in bytes.
const NAME_MAX: usize = 56;
/// Maximum number of schemas that a schema is nested in.
const DEPTH_MAX: usize = 48;

/// Keywords whose value is a schema.
const SINGLE: [&str; 11] = [
    "items",
    "additionalItems",
    "additionalProperties",
    "not",
    "if",
    "then",
    "else",
    "contains",
    "propertyNames",
    "unevaluatedItems",
    "unevaluatedProperties",
];
/// Keywords whose value is a list of schemas.
const LISTS: [&str; 4] = ["allOf", "anyOf", "oneOf", "prefixItems"];
/// Keywords whose value maps names to schemas.
const MAPS: [&str; 3] = ["properties", "patternProperties", "dependentSchemas"];
/// Keywords that are not copied: they mean something only inside the document, or are evaluated during the conversion.
const DROPPED: [&str; 14] = [
    "$schema",
    "$id",
    "$anchor",
    "$dynamicAnchor",
    "$dynamicRef",
    "$comment",
    "$defs",
    "definitions",
    "xml",
    "externalDocs",
    "discriminator",
    "nullable",
    "readOnly",
    "writeOnly",
];

/// Side of a call that a schema describes. Properties that belong only to the other side are left out: `readOnly` ones of
/// requests, `writeOnly` ones of responses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    Request,
    Response,
}

/// Reason why a schema cannot be made self-contained, worded to follow the operation's method and path.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SchemaError {
    #[error("refers to {0:?}, which is not in the document")]
    Missing(String),
    #[error("refers to another document ({0:?})")]
    Foreign(String),
    #[error("has schemas with more than {SCHEMAS_MAX} parts or {} KiB", BYTES_MAX / 1024)]
    TooLarge,
    #[error("is beyond the amount of schemas that are read of one document")]
    Spent,
    #[error("has schemas that are nested too deeply")]
    TooDeep,
}

/// Converter of the schemas of one tool's input, or of its output. The schemas share their `$defs`.
pub(crate) struct SchemaReader<'d> {
    document: &'d Document,
    direction: Direction,
    /// True if references are replaced by schemas; false if they lead to `$defs`.
    inlines: bool,
    /// Budget in bytes for the schemas of the whole document, shared by its tools.
    budget: &'d Budget,
    /// Number of schemas that may still be converted.
    left: usize,
    /// Bytes that may still be copied for this input or output.
    bytes: Budget,
    /// Number of schemas around the schema that is being converted.
    depth: usize,
    /// References around the schema that is being converted, from the outside to the inside.
    open: Vec<String>,
    /// Names in `$defs` by reference.
    names: BTreeMap<String, String>,
    taken: TakenNames,
    /// Definitions that are still to be converted: name, reference and schema.
    pending: Vec<(String, String, &'d Value)>,
    definitions: Map<String, Value>,
    /// Names of properties that were left out of the schemas converted last. A schema removes the names from its `allOf` from its
    /// own `required`.
    left_out: BTreeSet<String>,
    /// True if the schemas of files become strings in base64; false if they stay as in the document.
    files_are_base64: bool,
    /// The first error.
    error: Option<SchemaError>,
}

impl<'d> SchemaReader<'d> {
    /// Converts schemas with `read`, which is called again with references to `$defs` if the result is too large or too deep with
    /// replaced references. Returns the value of `read`, and the `$defs`.
    ///
    /// # Errors
    ///
    /// When a reference leads nowhere, or the schemas are too large.
    pub(crate) fn with<T>(
        document: &'d Document,
        direction: Direction,
        budget: &'d Budget,
        read: impl Fn(&mut Self) -> T,
    ) -> Result<(T, Map<String, Value>), SchemaError> {
        let attempt = |inlines: bool| {
            let mut reader = Self {
                document,
                direction,
                inlines,
                budget,
                bytes: Budget::new(BYTES_MAX),
                left: if inlines { INLINE_MAX } else { SCHEMAS_MAX },
                depth: 0,
                open: Vec::new(),
                names: BTreeMap::new(),
                taken: TakenNames::default(),
                pending: Vec::new(),
                definitions: Map::new(),
                left_out: BTreeSet::new(),
                files_are_base64: false,
                error: None,
            };
            let value = read(&mut reader);
            reader.define();
            match reader.error {
                None => Ok((value, reader.definitions)),
                Some(error) => Err(error),
            }
        };
        match attempt(true) {
            Err(SchemaError::TooLarge | SchemaError::TooDeep) => attempt(false),
            outcome => outcome,
        }
    }

    /// Stores the error unless an earlier error is stored. Returns a placeholder, which is discarded because of the error.
    fn fail(&mut self, error: SchemaError) -> Value {
        self.error.get_or_insert(error);
        json!({})
    }

    /// Returns the document that contains the schemas.
    pub(crate) fn document(&self) -> &'d Document {
        self.document
    }

    /// Sets how schemas of files are converted. `yes`: true for strings in base64, false to keep the document's form.
    pub(crate) fn files_are_base64(&mut self, yes: bool) {
        self.files_are_base64 = yes;
    }

    /// Takes bytes from both budgets. Returns false if one of them is spent, or if the conversion has failed before.
    pub(crate) fn charge(&mut self, bytes: usize) -> bool {
        if self.bytes.charge(bytes).is_err() {
            self.fail(SchemaError::TooLarge);
        } else if self.budget.charge(bytes).is_err() {
            self.fail(SchemaError::Spent);
        }
        self.error.is_none()
    }

    /// Copies a value that is no schema, such as the permitted values of `enum`.
    fn copied(&mut self, value: &Value) -> Value {
        if self.bytes.charge_value(value).is_err() {
            return self.fail(SchemaError::TooLarge);
        }
        match self.budget.copied(value) {
            Ok(copy) => copy,
            Err(_) => self.fail(SchemaError::Spent),
        }
    }

    /// Converts a schema. Replaces a `$ref` of the schema itself even if other references lead to `$defs`, so that the caller
    /// sees the keywords.
    pub(crate) fn opened(&mut self, schema: &Value) -> Value {
        match reference(schema) {
            Some(target) if !self.open.iter().any(|it| it == target) => {
                self.inserted(target, schema)
            }
            _ => self.converted(schema),
        }
    }

    /// Converts a schema and all schemas in it.
    pub(crate) fn converted(&mut self, schema: &Value) -> Value {
        if self.error.is_some() {
            return json!({});
        }
        if self.left == 0 {
            return self.fail(SchemaError::TooLarge);
        }
        self.left -= 1;
        if self.budget.charge(SCHEMA_COST).is_err() {
            return self.fail(SchemaError::Spent);
        }
        if self.depth >= DEPTH_MAX {
            return self.fail(SchemaError::TooDeep);
        }
        self.depth += 1;
        let converted = match schema {
            Value::Object(members) => match reference(schema) {
                Some(target) if self.inlines && !self.open.iter().any(|it| it == target) => {
                    self.inserted(target, schema)
                }
                Some(target) => self.referred(target, schema),
                None => self.members(members),
            },
            Value::Bool(_) => schema.clone(),
            _ => json!({}),
        };
        self.depth -= 1;
        converted
    }

    /// Returns the converted schema that the reference `target` leads to. `schema`: the schema that contains the reference.
    fn inserted(&mut self, target: &str, schema: &Value) -> Value {
        let Some(found) = self.find(target) else {
            return json!({});
        };
        self.open.push(target.to_owned());
        let mut inserted = self.converted(found);
        self.open.pop();
        self.add_siblings(&mut inserted, schema);
        inserted
    }

    /// Returns a reference to a schema in `$defs`, which the schema is added to. `schema`: the schema that contains the
    /// reference.
    fn referred(&mut self, target: &str, schema: &Value) -> Value {
        let Some(found) = self.find(target) else {
            return json!({});
        };
        let name = match self.names.get(target) {
            Some(name) => name.clone(),
            None => {
                let name = self.new_name(target);
                self.names.insert(target.to_owned(), name.clone());
                self.pending.push((name.clone(), target.to_owned(), found));
                name
            }
        };
        let mut referring = json!({ "$ref": format!("#/$defs/{name}") });
        self.add_siblings(&mut referring, schema);
        referring
    }

    /// Converts the pending definitions, in a loop: a recursion from reference to definition could exhaust the stack.
    fn define(&mut self) {
        while let Some((name, target, found)) = self.pending.pop() {
            self.open = vec![target];
            let definition = self.converted(found);
            self.definitions.insert(name, definition);
        }
    }

    /// Returns the schema in the document that a reference leads to. Fails if there is none.
    fn find(&mut self, target: &str) -> Option<&'d Value> {
        if !self.charge(target.len()) {
            return None;
        }
        let document = self.document;
        let found = document.at(target);
        if found.is_none() {
            let short: String = target.chars().take(80).collect();
            self.fail(match target.starts_with('#') {
                true => SchemaError::Missing(short),
                false => SchemaError::Foreign(short),
            });
        }
        found
    }

    /// Returns a new name in `$defs`, from the last segment of a reference.
    fn new_name(&mut self, target: &str) -> String {
        let last = target.rsplit('/').next().unwrap_or_default();
        let fits = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
        let base: String = last.chars().map(fits).take(NAME_MAX).collect();
        self.taken.unique(&base)
    }

    /// Converts the keywords of a schema without `$ref`.
    fn members(&mut self, members: &Map<String, Value>) -> Value {
        let mut out = Map::new();
        let around = mem::take(&mut self.left_out);
        let mut left_out = BTreeSet::new();
        for (key, value) in members {
            let key = key.as_str();
            let converted = match value {
                _ if key.starts_with("x-") || DROPPED.contains(&key) => continue,
                _ if !self.charge(key.len()) => break,
                Value::Array(items) if key == "items" && items.is_empty() => continue,
                Value::Array(items) if key == "items" => {
                    let items = items.iter().map(|it| self.converted(it)).collect();
                    out.insert("prefixItems".into(), Value::Array(items));
                    continue;
                }
                value if SINGLE.contains(&key) && is_schema(value) => self.converted(value),
                Value::Array(items) if LISTS.contains(&key) && !items.is_empty() => {
                    self.left_out.clear();
                    let items = items.iter().map(|it| self.converted(it)).collect();
                    // The parts describe the same object, so that this schema may not require their removed properties either.
                    if key == "allOf" {
                        left_out.append(&mut self.left_out);
                    }
                    Value::Array(items)
                }
                Value::Object(entries) if MAPS.contains(&key) => {
                    let mut kept = Map::new();
                    for (name, schema) in entries {
                        let cost = match reference(schema) {
                            Some(_) => REFERENCE_COST,
                            None => SCHEMA_COST,
                        };
                        if self.budget.charge(cost).is_err() {
                            self.fail(SchemaError::Spent);
                        }
                        if self.error.is_some() || !self.charge(name.len()) {
                            break;
                        }
                        match key == "properties" && self.is_of_the_other_side(schema) {
                            true => drop(left_out.insert(name.clone())),
                            false => drop(kept.insert(name.clone(), self.converted(schema))),
                        }
                    }
                    Value::Object(kept)
                }
                Value::Bool(_) if key == "required" => continue,
                value if key == "example" => {
                    let value = self.copied(value);
                    out.entry("examples").or_insert_with(|| json!([value]));
                    continue;
                }
                value if key == "type" => match types(value) {
                    Some(types) => types,
                    None => continue,
                },
                value if is_of_keyword(key, value) => self.copied(value),
                _ => continue,
            };
            out.insert(key.to_owned(), converted);
        }
        bounds(&mut out);
        if members.get("type").is_some_and(|it| it == "file") {
            out.insert("format".into(), "binary".into());
        }
        if let Some(Value::Array(required)) = out.get_mut("required") {
            let mut seen = BTreeSet::new();
            required.retain(|it| it.as_str().is_some_and(|it| seen.insert(it.to_owned())));
        }
        drop_required(&mut out, &left_out);
        self.left_out = around;
        self.left_out.append(&mut left_out);
        if self.files_are_base64 && is_file(&Value::Object(out.clone())) {
            return file_schema(&Value::Object(out));
        }
        match members.get("nullable") {
            Some(Value::Bool(true)) => nullable(out),
            _ => Value::Object(out),
        }
    }

    /// Adds title, description and default value that stand beside a reference: they describe this use of the schema.
    fn add_siblings(&mut self, schema: &mut Value, referring: &Value) {
        let Value::Object(members) = schema else {
            return;
        };
        for key in ["title", "description", "default"] {
            if let Some(value) = referring.get(key).filter(|it| is_of_keyword(key, it)) {
                members.insert(key.to_owned(), self.copied(value));
            }
        }
    }

    /// Returns true for a property that is `readOnly` in a request, or `writeOnly` in a response.
    fn is_of_the_other_side(&self, schema: &Value) -> bool {
        let key = match self.direction {
            Direction::Request => "readOnly",
            Direction::Response => "writeOnly",
        };
        let says = |it: &Value| it.get(key) == Some(&Value::Bool(true));
        says(schema) || self.document.resolve(schema).is_some_and(says)
    }
}

/// Returns true for a schema whose values are the bytes of a file.
pub(crate) fn is_file(schema: &Value) -> bool {
    let says = |key: &str, value: &str| schema.get(key).is_some_and(|it| it == value);
    says("format", "binary")
        || says("type", "file")
        || schema.get("contentMediaType").is_some()
        || says("contentEncoding", "base64")
}

/// Returns the schema of an argument that is a file in base64.
fn file_schema(schema: &Value) -> Value {
    let text = schema
        .get("description")
        .and_then(Value::as_str)
        .unwrap_or("The file.");
    json!({
        "type": "string",
        "contentEncoding": "base64",
        "description": format!("{} Its content, as base64.", text.trim()),
    })
}

/// Removes names from `required` of a schema, and of all parts of its `allOf`.
fn drop_required(schema: &mut Map<String, Value>, names: &BTreeSet<String>) {
    if let Some(Value::Array(required)) = schema.get_mut("required") {
        required.retain(|it| it.as_str().is_some_and(|it| !names.contains(it)));
        if required.is_empty() {
            schema.remove("required");
        }
    }
    let parts = schema.get_mut("allOf").and_then(Value::as_array_mut);
    let parts = parts.into_iter().flatten();
    parts
        .filter_map(Value::as_object_mut)
        .for_each(|it| drop_required(it, names));
}

/// Names of the types of JSON Schema.
const TYPES: [&str; 7] = [
    "null", "boolean", "object", "array", "number", "integer", "string",
];

/// Returns the value of `type` without unknown names; `None` if no name is known. The type `file` of version 2.0 becomes
/// `string`.
fn types(value: &Value) -> Option<Value> {
    let known = |it: &Value| match it.as_str()? {
        "file" => Some("string"),
        name => TYPES.into_iter().find(|it| *it == name),
    };
    let Value::Array(names) = value else {
        return known(value).map(Value::from);
    };
    let names: BTreeSet<_> = names.iter().filter_map(known).collect();
    (!names.is_empty()).then(|| names.into_iter().collect())
}

fn is_schema(value: &Value) -> bool {
    value.is_object() || value.is_boolean()
}

/// Returns true if a value has the JSON type that the keyword requires; false for keywords that require a schema. Clients refuse
/// a tool whose schema is invalid. Unknown keywords may have any value.
fn is_of_keyword(key: &str, value: &Value) -> bool {
    match key {
        "title" | "description" | "format" | "pattern" | "contentEncoding" | "contentMediaType"
        | "$ref" => value.is_string(),
        "minLength" | "maxLength" | "minItems" | "maxItems" | "minProperties" | "maxProperties"
        | "minContains" | "maxContains" => value.is_u64(),
        "minimum" | "maximum" => value.is_number(),
        "exclusiveMinimum" | "exclusiveMaximum" => value.is_number() || value.is_boolean(),
        "multipleOf" => value.as_f64().is_some_and(|it| it > 0.0),
        "uniqueItems" | "deprecated" => value.is_boolean(),
        "required" | "enum" | "examples" => value.is_array(),
        "dependentRequired" => value.is_object(),
        key => !SINGLE.contains(&key) && !LISTS.contains(&key) && !MAPS.contains(&key),
    }
}

/// Converts exclusive bounds: flags beside the bound in OpenAPI 3.0, numbers in JSON Schema.
fn bounds(schema: &mut Map<String, Value>) {
    for (bound, exclusive) in [
        ("minimum", "exclusiveMinimum"),
        ("maximum", "exclusiveMaximum"),
    ] {
        match schema.get(exclusive) {
            Some(Value::Bool(true)) => {
                let value = schema.remove(bound);
                match value {
                    Some(value) => drop(schema.insert(exclusive.to_owned(), value)),
                    None => drop(schema.remove(exclusive)),
                }
            }
            Some(Value::Bool(false)) => drop(schema.remove(exclusive)),
            _ => {}
        }
    }
}

/// Extends a schema so that it also permits `null`.
pub(crate) fn nullable(mut schema: Map<String, Value>) -> Value {
    if let Some(Value::Array(values)) = schema.get_mut("enum")
        && !values.contains(&Value::Null)
    {
        values.push(Value::Null);
    }
    let is_combined = schema
        .keys()
        .any(|key| LISTS.contains(&key.as_str()) || key == "$ref");
    match schema.get_mut("type") {
        Some(Value::String(name)) => {
            let types = json!([name.clone(), "null"]);
            schema.insert("type".into(), types);
        }
        Some(Value::Array(types)) if !types.iter().any(|it| it == "null") => {
            types.push(json!("null"));
        }
        Some(_) => {}
        _ if is_combined => return json!({ "anyOf": [schema, { "type": "null" }] }),
        _ => {}
    }
    Value::Object(schema)
}

/// Replaces `allOf` by the properties of its parts if all parts are plain objects, so that the properties become arguments.
/// Returns other schemas unchanged.
pub(crate) fn merged(schema: Value) -> Value {
    let Value::Object(mut members) = schema else {
        return schema;
    };
    let Some(Value::Array(parts)) = members.get("allOf") else {
        return Value::Object(members);
    };
    let parts: Vec<_> = parts.iter().cloned().map(merged).collect();
    let known = [
        "type",
        "properties",
        "required",
        "description",
        "title",
        "examples",
    ];
    let is_plain = |it: &Value| {
        it.as_object()
            .is_some_and(|it| it.keys().all(|key| known.contains(&key.as_str())))
    };
    let is_object = |it: &Value| it.get("type").is_none_or(|it| it == "object");
    let all_objects =
        members.get("type").is_none_or(|it| it == "object") && parts.iter().all(is_object);
    let says_object = |it: &Value| it.get("properties").or(it.get("type")).is_some();
    let is_any = members.contains_key("properties") || parts.iter().any(says_object);
    if !all_objects || !is_any || !parts.iter().all(is_plain) {
        return Value::Object(members);
    }
    members.remove("allOf");
    let mut properties = Map::new();
    let mut required = Vec::new();
    for part in parts.iter().chain([&Value::Object(members.clone())]) {
        let own = part.get("properties").and_then(Value::as_object);
        properties.extend(own.cloned().unwrap_or_default());
        let own = part.get("required").and_then(Value::as_array);
        required.extend(own.cloned().unwrap_or_default());
    }
    required.sort_by(|one, other| one.as_str().cmp(&other.as_str()));
    required.dedup();
    members.insert("type".into(), json!("object"));
    members.insert("properties".into(), properties.into());
    if !required.is_empty() {
        members.insert("required".into(), required.into());
    }
    Value::Object(members)
}

#[cfg(test)]
mod tests;
