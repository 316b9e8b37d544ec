//! Estimates the work of checking a value against a schema before the check runs.
//!
//! A schema of a few hundred bytes can require any amount of work: if each of several subschemas refers twice to the next, the
//! work doubles with each level. So the steps of a check are first counted up to a limit, without checking anything. Collecting
//! all errors of nested alternatives costs more with each level of nesting, and the estimate includes that.

use serde_json::{Map, Value};

/// Maximum number of steps of a check; longer checks are not made. A list of a thousand objects with ten members each takes about
/// half of it. In the worst known case, that many steps take a tenth of a second.
pub(super) const STEPS_MAX: u64 = 200_000;
/// Maximum depth of nested subschemas in a check, since the recursion uses the thread's stack.
const NESTING_MAX: u64 = 512;
/// Number of steps that matching one pattern counts as.
const PATTERN_STEPS: u64 = 20;
/// Number of look-ups of member names that count as one step.
const NAMES_PER_STEP: usize = 8;
/// Number of bytes of strings that count as one step.
const BYTES_PER_STEP: usize = 256;

/// Estimated number of steps for checking the value against the schema; `None` if it is above `max`. A check never finds more
/// errors than its estimated number of steps.
pub(super) fn steps(schema: &Value, value: &Value, max: u64) -> Option<u64> {
    let mut walk = Walk {
        root: schema,
        left: max,
    };
    walk.visit(schema, value, 0)?;
    Some(max - walk.left)
}

/// Counts the steps of a check. The methods return `None` when the maximum is exceeded.
struct Walk<'a> {
    root: &'a Value,
    left: u64,
}

impl<'a> Walk<'a> {
    fn spend(&mut self, steps: u64) -> Option<()> {
        self.left = self.left.checked_sub(steps)?;
        Some(())
    }

    fn visit(&mut self, schema: &'a Value, value: &Value, nesting: u64) -> Option<()> {
        self.spend(1 + nesting)?;
        let Value::Object(keywords) = schema else {
            return Some(());
        };
        if nesting > NESTING_MAX {
            return None;
        }
        // For `unevaluated…` keywords, the validator evaluates all other keywords a second time.
        let asks_again = keywords.keys().any(|key| key.starts_with("unevaluated"));
        for _ in 0..=u8::from(asks_again) {
            for (keyword, part) in keywords {
                self.keyword(keyword, part, keywords, value, nesting + 1)?;
            }
        }
        Some(())
    }

    fn keyword(
        &mut self,
        keyword: &str,
        part: &'a Value,
        beside: &Map<String, Value>,
        value: &Value,
        nesting: u64,
    ) -> Option<()> {
        match (keyword, part, value) {
            ("$ref" | "$dynamicRef" | "$recursiveRef", Value::String(reference), _) => {
                self.referred(reference, value, nesting)
            }
            ("allOf" | "anyOf" | "oneOf", Value::Array(parts), _) => parts
                .iter()
                .try_for_each(|it| self.visit(it, value, nesting)),
            ("not" | "if" | "then" | "else", _, _) => self.visit(part, value, nesting),
            // Each missing name is reported as a separate error.
            ("required", Value::Array(names), Value::Object(_)) => self.spend(names.len() as u64),
            (
                "dependentSchemas" | "dependentRequired" | "dependencies",
                Value::Object(parts),
                Value::Object(_),
            ) => parts.values().try_for_each(|it| match it {
                Value::Array(names) => self.spend(names.len() as u64),
                it => self.visit(it, value, nesting),
            }),
            ("properties", Value::Object(parts), Value::Object(members)) => {
                self.spend((parts.len() / NAMES_PER_STEP) as u64)?;
                for (name, it) in parts {
                    if let Some(member) = members.get(name) {
                        self.visit(it, member, nesting)?;
                    }
                }
                Some(())
            }
            ("patternProperties", Value::Object(parts), Value::Object(members)) => {
                for it in parts.values() {
                    for member in members.values() {
                        self.spend(PATTERN_STEPS)?;
                        self.visit(it, member, nesting)?;
                    }
                }
                Some(())
            }
            ("additionalProperties", _, Value::Object(members)) => {
                let named = beside.get("properties").and_then(Value::as_object);
                let is_named = |name| named.is_some_and(|named| named.contains_key(name));
                let mut others = members.iter().filter(|(name, _)| !is_named(*name));
                others.try_for_each(|(_, member)| self.visit(part, member, nesting))
            }
            ("unevaluatedProperties", _, Value::Object(members)) => members
                .values()
                .try_for_each(|it| self.visit(part, it, nesting)),
            ("propertyNames", _, Value::Object(members)) => members.keys().try_for_each(|name| {
                self.text(name)?;
                self.visit(part, &Value::String(name.clone()), nesting)
            }),
            ("items" | "prefixItems", Value::Array(parts), Value::Array(items)) => {
                let mut pairs = parts.iter().zip(items);
                pairs.try_for_each(|(it, item)| self.visit(it, item, nesting))
            }
            (
                "items" | "additionalItems" | "contains" | "unevaluatedItems",
                _,
                Value::Array(items),
            ) => items
                .iter()
                .try_for_each(|item| self.visit(part, item, nesting)),
            ("enum", Value::Array(values), _) => {
                self.spend(values.len() as u64)?;
                self.whole(value)
            }
            ("const", _, _) => self.whole(value),
            ("uniqueItems", _, Value::Array(_)) => self.whole(value),
            ("pattern", _, Value::String(text)) => {
                self.spend(PATTERN_STEPS)?;
                self.text(text)
            }
            ("minLength" | "maxLength", _, Value::String(text)) => self.text(text),
            _ => Some(()),
        }
    }

    /// Counts the steps of comparing a complete value with another, as for `enum`.
    fn whole(&mut self, value: &Value) -> Option<()> {
        self.spend(1)?;
        match value {
            Value::Array(items) => items.iter().try_for_each(|item| self.whole(item)),
            Value::Object(members) => members.iter().try_for_each(|(name, member)| {
                self.text(name)?;
                self.whole(member)
            }),
            Value::String(text) => self.text(text),
            _ => Some(()),
        }
    }

    fn text(&mut self, text: &str) -> Option<()> {
        self.spend((text.len() / BYTES_PER_STEP) as u64)
    }

    /// Counts the steps of the subschema that a reference leads to. References to other documents do not occur in compiled
    /// schemas.
    fn referred(&mut self, reference: &str, value: &Value, nesting: u64) -> Option<()> {
        let fragment = reference.strip_prefix('#')?;
        if fragment.is_empty() || fragment.starts_with('/') {
            let target = self.root.pointer(&percent_decoded(fragment)?)?;
            return self.visit(target, value, nesting);
        }
        let mut named = Vec::new();
        self.anchored(self.root, fragment, &mut named)?;
        named
            .into_iter()
            .try_for_each(|it| self.visit(it, value, nesting))
    }

    /// Finds all subschemas with this anchor. Which of them applies depends on the path to the reference, so all are counted.
    fn anchored(&mut self, part: &'a Value, name: &str, found: &mut Vec<&'a Value>) -> Option<()> {
        self.spend(1)?;
        match part {
            Value::Array(parts) => parts
                .iter()
                .try_for_each(|it| self.anchored(it, name, found)),
            Value::Object(members) => {
                let mut anchors = ["$anchor", "$dynamicAnchor"].into_iter();
                if anchors.any(|key| members.get(key).and_then(Value::as_str) == Some(name)) {
                    found.push(part);
                }
                let mut parts = members.values();
                parts.try_for_each(|it| self.anchored(it, name, found))
            }
            _ => Some(()),
        }
    }
}

/// Percent-decodes a URI fragment; `None` if it is malformed.
fn percent_decoded(fragment: &str) -> Option<String> {
    let mut parts = fragment.split('%');
    let mut bytes = parts.next()?.as_bytes().to_vec();
    for part in parts {
        let (code, rest) = part.split_at_checked(2)?;
        bytes.push(u8::from_str_radix(code, 16).ok()?);
        bytes.extend_from_slice(rest.as_bytes());
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn is_bearable(schema: &Value, value: &Value) -> bool {
        steps(schema, value, STEPS_MAX).is_some()
    }

    fn nested(levels: usize) -> Value {
        (0..levels).fold(json!(1), |inner, _| json!({ "a": inner }))
    }

    #[test]
    fn usual_schemas_and_values_are_bearable() {
        let filter = json!({
            "$defs": {
                "filter": {
                    "anyOf": [
                        { "type": "object", "properties": { "and": { "type": "array", "items": { "$ref": "#/$defs/filter" } } } },
                        { "type": "object", "properties": { "field": { "type": "string", "pattern": "^[a-z]+$" } } },
                    ],
                },
            },
            "properties": { "filter": { "$ref": "#/$defs/filter" }, "rows": { "items": { "properties": { "n": {} } } } },
            "additionalProperties": false,
        });
        let leaf = json!({ "field": "name" });
        let value = json!({ "filter": { "and": [{ "and": [leaf, leaf, leaf] }, leaf] } });
        assert!(is_bearable(&filter, &value));
        let rows = json!({ "rows": vec![json!({ "n": 1, "m": "text" }); 10_000] });
        assert!(is_bearable(&filter, &rows));
        let many = json!({ "rows": vec![json!({ "n": 1 }); 100_000] });
        assert!(!is_bearable(&filter, &many));
    }

    #[test]
    fn work_that_doubles_with_each_level_is_not() {
        let mut chain = json!({ "$ref": "#/$defs/a0", "$defs": {} });
        for n in 0..40 {
            let next = json!({ "$ref": format!("#/$defs/a{}", n + 1) });
            chain["$defs"][format!("a{n}")] = json!({ "anyOf": [next, next] });
        }
        chain["$defs"]["a40"] = json!({ "type": "string" });
        assert!(!is_bearable(&chain, &json!(1)));
        let in_members = json!({ "allOf": [
            { "properties": { "a": { "$ref": "#" } } }, { "properties": { "a": { "$ref": "#" } } },
        ] });
        assert!(is_bearable(&in_members, &nested(5)));
        assert!(!is_bearable(&in_members, &nested(40)));
        let asked_again = json!({ "anyOf": [{ "properties": { "a": { "$ref": "#" } } }], "unevaluatedProperties": false });
        assert!(!is_bearable(&asked_again, &nested(40)));
    }

    #[test]
    fn there_are_no_more_errors_than_steps() {
        let names: Vec<String> = (0..50).map(|n| format!("a{n}")).collect();
        let items = vec![json!({}); 200];
        for rule in [
            json!({ "required": names }),
            json!({ "dependentRequired": { "x": names } }),
            json!({ "additionalProperties": false }),
            json!({ "propertyNames": { "pattern": "^b", "maxLength": 0 } }),
        ] {
            let rows = json!({ "rows": { "items": rule } });
            let schema = json!({ "properties": rows });
            let value = json!({ "rows": vec![json!({ "x": 1 }); items.len()] });
            let validator = jsonschema::validator_for(&schema).expect("a schema");
            let errors = validator.iter_errors(&value).count() as u64;
            assert!(errors > 0, "{schema}");
            assert!(
                steps(&schema, &value, STEPS_MAX).expect("bearable") >= errors,
                "{schema}"
            );
        }
    }

    #[test]
    fn a_reference_that_leads_back_or_nowhere_is_not() {
        for schema in [
            json!({ "$ref": "#" }),
            json!({ "allOf": [{ "$ref": "#" }] }),
            json!({ "$dynamicAnchor": "n", "not": { "$dynamicRef": "#n" } }),
            json!({ "$ref": "https://example.org" }),
            json!({ "$ref": "#/nowhere" }),
        ] {
            assert!(!is_bearable(&schema, &json!({})), "{schema}");
        }
        let escaped = json!({ "$ref": "#/$defs/a%20b~1c", "$defs": { "a b/c": { "$anchor": "x" } }, "not": { "$ref": "#x" } });
        assert!(is_bearable(&escaped, &json!({})));
        assert_eq!(percent_decoded("/a%2"), None);
    }
}
