//! Replaces the local references of a schema by their targets, since models and many clients do not resolve references.
//!
//! Some references are kept: those of a recursive type, since replacing them would never end; all references of a schema with
//! named anchors, since a copied anchor's name would not be unique; and references whose replacement would make the document
//! much larger or deeper than the schema.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use super::schema::{DATA, MAPS, unescape};
use super::work_budget::WorkBudget;

/// Maximum number of different references of one schema that are replaced.
const REFERENCES_MAX: usize = 256;
/// Maximum size of the JSON that replaced references may add to one schema, in bytes.
const ADDED_BYTES_MAX: usize = 64 * 1024;
/// References nested deeper than this in a schema are kept instead of being replaced by their targets.
const DEPTH_MAX: usize = 64;

/// Keywords that may stand beside `$ref` and only describe the value. They do not restrict the values that are allowed.
const ANNOTATIONS: [&str; 8] = [
    "title",
    "description",
    "default",
    "examples",
    "deprecated",
    "readOnly",
    "writeOnly",
    "$comment",
];
/// The keywords that contain definitions. `definitions` is the older spelling.
const DEFINITIONS: [&str; 2] = ["$defs", "definitions"];

/// Replaces the references of a schema as far as possible, and removes unused definitions. If the remaining budget does not
/// suffice to examine all references of the schema, none is replaced.
pub(super) fn inlined(schema: Value, effort: &mut WorkBudget) -> Value {
    let mut steps = effort.steps_of_a_schema();
    let Some(targets) = Targets::of(&schema, &mut steps) else {
        effort.give_back(steps);
        return schema;
    };
    effort.give_back(steps);
    let addable = ADDED_BYTES_MAX.min(effort.addable());
    let mut inliner = Inliner {
        targets,
        left: addable,
    };
    let mut inlined = inliner.expand(&schema, 0);
    let added = addable - inliner.left;
    leave_out_unused(&mut inlined);
    effort.add(added);
    inlined
}

/// The local references of a schema with their targets.
struct Targets<'a>(BTreeMap<&'a str, ReferenceTarget<'a>>);

struct ReferenceTarget<'a> {
    schema: &'a Value,
    bytes: usize,
    can_be_inlined: bool,
}

impl<'a> Targets<'a> {
    /// Finds the targets of all local references in a schema. `None` if the schema has anchors, or if `steps` does not suffice.
    fn of(root: &'a Value, steps: &mut u64) -> Option<Self> {
        let mut open: Vec<&str> = references(root, steps)?.into_iter().collect();
        let mut found: BTreeMap<&str, (&Value, BTreeSet<&str>)> = BTreeMap::new();
        while let Some(reference) = open.pop() {
            if found.contains_key(reference) || found.len() == REFERENCES_MAX {
                continue;
            }
            let Some(schema) = resolve(root, reference) else {
                continue;
            };
            let inner = references(schema, steps)?;
            open.extend(&inner);
            found.insert(reference, (schema, inner));
        }
        let mut targets = BTreeMap::new();
        for (&reference, &(schema, _)) in &found {
            // References of a recursive type are always kept, so their size is not needed.
            let leads_to_itself = leads_to_itself(reference, &found, steps)?;
            let target = match leads_to_itself {
                true => ReferenceTarget {
                    schema,
                    bytes: 0,
                    can_be_inlined: false,
                },
                false => ReferenceTarget {
                    schema,
                    bytes: size(schema, steps)?,
                    can_be_inlined: !has_an_id(schema),
                },
            };
            targets.insert(reference, target);
        }
        Some(Self(targets))
    }
}

/// Returns true if the target of a reference contains the same reference, directly or through other references. `None` if
/// `steps` does not suffice.
fn leads_to_itself<'a>(
    reference: &'a str,
    found: &BTreeMap<&'a str, (&'a Value, BTreeSet<&'a str>)>,
    steps: &mut u64,
) -> Option<bool> {
    let mut seen = BTreeSet::new();
    let mut open = vec![reference];
    while let Some(next) = open.pop() {
        for &inner in found.get(next).into_iter().flat_map(|(_, inner)| inner) {
            *steps = steps.checked_sub(1)?;
            if inner == reference {
                return Some(true);
            }
            if seen.insert(inner) {
                open.push(inner);
            }
        }
    }
    Some(false)
}

/// Returns the approximate size of a schema as JSON, in bytes. `None` if `steps` does not suffice for all parts of the schema.
fn size(schema: &Value, steps: &mut u64) -> Option<usize> {
    *steps = steps.checked_sub(1)?;
    match schema {
        Value::String(text) => Some(text.len() + 2),
        Value::Array(items) => items
            .iter()
            .try_fold(2, |sum, item| Some(sum + 1 + size(item, steps)?)),
        Value::Object(members) => members.iter().try_fold(2, |sum, (key, value)| {
            Some(sum + key.len() + 4 + size(value, steps)?)
        }),
        Value::Null | Value::Bool(_) => Some(5),
        Value::Number(_) => Some(8),
    }
}

struct Inliner<'a> {
    targets: Targets<'a>,
    left: usize,
}

impl Inliner<'_> {
    /// Returns a schema with its references replaced. A reference whose target contains itself is never replaced, so the
    /// recursion ends.
    fn expand(&mut self, schema: &Value, depth: usize) -> Value {
        match schema {
            Value::Array(schemas) => {
                let schemas = schemas.iter().map(|it| self.expand(it, depth + 1));
                Value::Array(schemas.collect())
            }
            Value::Object(keywords) if depth == 0 || !keywords.contains_key("$id") => {
                let target = self.target_of(keywords, depth);
                let mut out = Map::new();
                for (keyword, value) in keywords {
                    let value = match value {
                        _ if keyword == "$ref" && target.is_some() => continue,
                        // Top-level definitions are unchanged, since references that were kept point to them.
                        _ if depth == 0 && DEFINITIONS.contains(&keyword.as_str()) => value.clone(),
                        _ if DATA.contains(&keyword.as_str()) => value.clone(),
                        Value::Object(named) if MAPS.contains(&keyword.as_str()) => {
                            let named = named.iter().map(|(name, schema)| {
                                (name.clone(), self.expand(schema, depth + 2))
                            });
                            Value::Object(named.collect())
                        }
                        _ => self.expand(value, depth + 1),
                    };
                    out.insert(keyword.clone(), value);
                }
                match target {
                    Some(target) => merged(target, out),
                    None => Value::Object(out),
                }
            }
            other => other.clone(),
        }
    }

    /// Returns the expanded target of the `$ref` among these keywords; `None` if the reference must be kept.
    fn target_of(&mut self, keywords: &Map<String, Value>, depth: usize) -> Option<Value> {
        let reference = keywords.get("$ref")?.as_str()?;
        let target = self.targets.0.get(reference)?;
        if !target.can_be_inlined || depth > DEPTH_MAX {
            return None;
        }
        self.left = self.left.checked_sub(target.bytes)?;
        let schema = target.schema;
        // Definitions stay unexpanded only at depth 0, the root of the document. A target is a part of the document, so
        // its depth is at least 1.
        Some(self.expand(schema, depth.max(1)))
    }
}

/// Merges the target of a reference with the keywords that stand beside the reference.
fn merged(target: Value, mut beside: Map<String, Value>) -> Value {
    if beside.is_empty() {
        return target;
    }
    let stands_beside = |keyword: &String| {
        let keyword = keyword.as_str();
        ANNOTATIONS.contains(&keyword)
            || (DEFINITIONS.contains(&keyword) && target.get(keyword).is_none())
    };
    let say_nothing_of_values = beside.keys().all(stands_beside);
    match (target, say_nothing_of_values) {
        (Value::Object(mut target), true) => {
            target.extend(beside);
            Value::Object(target)
        }
        (target, _) => {
            match beside.get_mut("allOf") {
                Some(Value::Array(all)) => all.push(target),
                _ => {
                    beside.insert("allOf".to_owned(), Value::Array(vec![target]));
                }
            }
            Value::Object(beside)
        }
    }
}

/// Removes the definitions that no remaining reference uses, directly or through other definitions.
fn leave_out_unused(schema: &mut Value) {
    let Value::Object(keywords) = schema else {
        return;
    };
    let kept: Vec<_> = DEFINITIONS
        .into_iter()
        .filter_map(|keyword| Some((keyword, keywords.remove(keyword)?)))
        .collect();
    let rest = Value::Object(std::mem::take(keywords));
    let mut used: BTreeSet<(&str, String)> = BTreeSet::new();
    let mut open: Vec<&Value> = vec![&rest];
    // The number of steps is not limited here: each part of the schema is visited once, and all parts were counted before.
    let mut steps = u64::MAX;
    while let Some(schema) = open.pop() {
        for reference in references(schema, &mut steps).into_iter().flatten() {
            for (keyword, definitions) in &kept {
                let Some(name) = definition_named(reference, keyword) else {
                    continue;
                };
                if let Some(definition) = definitions.get(&name)
                    && used.insert((keyword, name))
                {
                    open.push(definition);
                }
            }
        }
    }
    let kept = kept.iter().filter_map(|(keyword, definitions)| {
        let definitions = definitions.as_object()?.iter();
        let used: Map<_, _> = definitions
            .filter(|(name, _)| used.contains(&(*keyword, (*name).clone())))
            .map(|(name, definition)| (name.clone(), definition.clone()))
            .collect();
        (!used.is_empty()).then(|| ((*keyword).to_owned(), Value::Object(used)))
    });
    let kept: Vec<_> = kept.collect();
    *schema = rest;
    if let Value::Object(keywords) = schema {
        keywords.extend(kept);
    }
}

/// Returns the name of the definition to which a reference points.
fn definition_named(reference: &str, keyword: &str) -> Option<String> {
    let path = reference.strip_prefix("#/")?.strip_prefix(keyword)?;
    let path = path.strip_prefix('/')?;
    Some(unescape(path.split('/').next().unwrap_or(path)))
}

/// Returns all local references in a schema. `None` if the schema has anchors or refers to one, or if `steps` does not suffice.
fn references<'a>(schema: &'a Value, steps: &mut u64) -> Option<BTreeSet<&'a str>> {
    let mut all = BTreeSet::new();
    collect(schema, &mut all, steps).then_some(all)
}

/// Collects the local references of a schema. Returns false if they cannot be replaced, or if `steps` does not suffice. The
/// recursion is bounded: the parser refuses nesting beyond 128 levels, and [`DEPTH_MAX`] limits replaced references.
fn collect<'a>(schema: &'a Value, all: &mut BTreeSet<&'a str>, steps: &mut u64) -> bool {
    let Some(left) = steps.checked_sub(1) else {
        return false;
    };
    *steps = left;
    match schema {
        Value::Array(schemas) => schemas.iter().all(|schema| collect(schema, all, steps)),
        Value::Object(keywords) if !keywords.contains_key("$id") => {
            keywords
                .iter()
                .all(|(keyword, value)| match (keyword.as_str(), value) {
                    ("$anchor" | "$dynamicAnchor" | "$recursiveAnchor", _) => false,
                    ("$ref" | "$dynamicRef", Value::String(reference)) => {
                        let local = reference.strip_prefix('#');
                        if local.is_some() {
                            all.insert(reference);
                        }
                        local.is_none_or(|local| local.is_empty() || local.starts_with('/'))
                    }
                    (keyword, _) if DATA.contains(&keyword) => true,
                    (keyword, Value::Object(named)) if MAPS.contains(&keyword) => {
                        named.values().all(|schema| collect(schema, all, steps))
                    }
                    (_, value) => collect(value, all, steps),
                })
        }
        _ => true,
    }
}

/// Returns true if a subschema has an `$id`. Such a subschema is a document with a unique name and must not be copied.
fn has_an_id(schema: &Value) -> bool {
    match schema {
        Value::Array(schemas) => schemas.iter().any(has_an_id),
        Value::Object(keywords) => {
            keywords.contains_key("$id")
                || keywords
                    .iter()
                    .any(|(keyword, value)| !DATA.contains(&keyword.as_str()) && has_an_id(value))
        }
        _ => false,
    }
}

fn resolve<'a>(root: &'a Value, reference: &str) -> Option<&'a Value> {
    let mut at = root;
    for token in reference.strip_prefix('#')?.split('/').skip(1) {
        let key = unescape(token);
        at = match at {
            Value::Object(members) => members.get(&key)?,
            Value::Array(items) => items.get(key.parse::<usize>().ok()?)?,
            _ => return None,
        };
    }
    Some(at)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn references_are_replaced_by_what_they_refer_to() {
        for (keyword, at) in [("$defs", "#/$defs"), ("definitions", "#/definitions")] {
            let schema = json!({
                "type": "object",
                "properties": {
                    "item": { "$ref": format!("{at}/Item"), "description": "the first" },
                    "items": { "type": "array", "items": { "$ref": format!("{at}/Item") } },
                    "same": { "$ref": "#/properties/item" },
                    "both": { "$ref": format!("{at}/Unit"), "minLength": 2 },
                },
                keyword: {
                    "Item": { "type": "object", "description": "an item", "properties": { "unit": { "$ref": format!("{at}/Unit") } } },
                    "Unit": { "type": "string" },
                },
            });
            let item = |description: &str| json!({ "type": "object", "description": description, "properties": { "unit": { "type": "string" } } });
            assert_eq!(
                inlined(schema, &mut WorkBudget::default()),
                json!({
                    "type": "object",
                    "properties": {
                        "item": item("the first"),
                        "items": { "type": "array", "items": item("an item") },
                        "same": item("the first"),
                        "both": { "minLength": 2, "allOf": [{ "type": "string" }] },
                    },
                })
            );
        }
    }

    #[test]
    fn a_schema_that_is_a_reference_becomes_what_it_refers_to() {
        let schema = json!({ "$ref": "#/$defs/A", "$defs": { "A": { "type": "object", "required": ["x"] } } });
        assert_eq!(
            inlined(schema, &mut WorkBudget::default()),
            json!({ "type": "object", "required": ["x"] })
        );
    }

    #[test]
    fn a_type_that_contains_itself_keeps_its_references_and_definitions() {
        let schema = json!({
            "properties": { "list": { "$ref": "#/$defs/List" }, "child": { "$ref": "#" } },
            "$defs": {
                "List": { "properties": { "first": { "$ref": "#/$defs/Node" } } },
                "Node": { "properties": { "next": { "$ref": "#/$defs/Other" } } },
                "Other": { "anyOf": [{ "$ref": "#/$defs/Node" }, { "type": "null" }] },
                "Unused": { "$ref": "#/$defs/Node" },
            },
        });
        assert_eq!(
            inlined(schema.clone(), &mut WorkBudget::default()),
            json!({
                "properties": {
                    "list": { "properties": { "first": { "$ref": "#/$defs/Node" } } },
                    "child": { "$ref": "#" },
                },
                "$defs": { "Node": schema["$defs"]["Node"], "Other": schema["$defs"]["Other"] },
            })
        );
    }

    #[test]
    fn data_documents_of_their_own_and_anchors_stay_as_they_are() {
        for schema in [
            json!({ "default": { "$ref": "#/$defs/A" }, "properties": { "x": { "$ref": "https://example.org/a" } } }),
            json!({ "properties": { "x": { "$id": "urn:x", "$ref": "#/$defs/A" } } }),
            json!({ "properties": { "x": { "$ref": "#a" } }, "$defs": { "A": { "$anchor": "a" } } }),
            json!({ "properties": { "x": { "$ref": "#/$defs/A" } }, "$defs": { "A": { "$id": "urn:a" } } }),
            json!({ "properties": { "x": { "$ref": "#/$defs/Missing" } } }),
        ] {
            assert_eq!(inlined(schema.clone(), &mut WorkBudget::default()), schema);
        }
    }

    /// Each definition refers to the next one twice: written out there would be 2^40 of them.
    #[test]
    fn what_would_grow_without_measure_keeps_references() {
        let definitions: Map<_, _> = (0..40)
            .map(|at| {
                let next = json!({ "$ref": format!("#/$defs/D{}", at + 1) });
                let definition = json!({ "properties": { "a": next, "b": next } });
                (format!("D{at}"), definition)
            })
            .collect();
        let schema =
            json!({ "properties": { "x": { "$ref": "#/$defs/D0" } }, "$defs": definitions });
        let inlined = inlined(schema, &mut WorkBudget::default()).to_string();
        assert!(inlined.len() < 4 * ADDED_BYTES_MAX, "{}", inlined.len());
        assert!(inlined.contains("#/$defs/D"));
    }

    /// A tool's author decides how often a schema refers to a large part of itself.
    #[test]
    fn a_schema_of_too_many_references_keeps_them() {
        let part = json!({ "$ref": "#/$defs/Large" });
        let uses: Map<_, _> = (0..5000)
            .map(|at| (format!("p{at}"), part.clone()))
            .collect();
        let large: Map<_, _> = (0..400)
            .map(|at| {
                (
                    format!("q{at}"),
                    json!({ "$ref": format!("#/$defs/Large/properties/q{}", at + 1) }),
                )
            })
            .collect();
        let schema = json!({ "properties": uses, "$defs": { "Large": { "properties": large } } });
        let mut effort = WorkBudget::default();
        for _ in 0..100 {
            let text = inlined(schema.clone(), &mut effort).to_string();
            assert!(text.len() < 2 * schema.to_string().len());
        }
        assert_eq!(effort.steps_of_a_schema(), 0, "the work has an end");
        assert_eq!(inlined(schema.clone(), &mut effort), schema);
    }
}
