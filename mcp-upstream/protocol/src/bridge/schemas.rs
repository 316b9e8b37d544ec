//! Adapts the tool schemas of a modern server for legacy clients.
//!
//! 2026-07-28 allows any JSON Schema for `inputSchema` and `outputSchema`, and any JSON value as `structuredContent`. Up to
//! 2025-11-25, a schema must describe an object, and `structuredContent` must be an object. Official clients of those revisions
//! refuse a whole list because of one tool that violates this. So an output schema of another type is wrapped in an object, as
//! its member `result`, and so are the tool's results. An output schema that may or may not describe an object is omitted.

use std::borrow::Cow;

use crate::jsonrpc::spans::{self, MemberEdit};

/// Name of the member that contains a wrapped schema, or a wrapped result.
const WRAPPER: &str = "result";

/// Edit of a `tools/list` result that adapts the schemas of all tools in it; `None` if no schema changes.
pub(crate) fn of_list(result: &str) -> Option<MemberEdit<'static>> {
    let tools = spans::find(result, "tools")?;
    let all: Vec<&serde_json::value::RawValue> = serde_json::from_str(tools).ok()?;
    let adapted: Vec<_> = all.iter().map(|tool| adapted(tool.get())).collect();
    let is_same = |tool: &Cow<'_, str>| matches!(tool, Cow::Borrowed(_));
    if adapted.iter().all(is_same) {
        return None;
    }
    let tools = format!("[{}]", adapted.join(","));
    Some(MemberEdit::Set("tools", tools.into()))
}

/// Edit of a `tools/call` result that wraps its `structuredContent`; `None` if that is an object or missing.
pub(crate) fn of_call(result: &str) -> Option<MemberEdit<'static>> {
    let structured = spans::find(result, "structuredContent")?;
    if structured.starts_with('{') {
        return None;
    }
    let wrapped = format!(r#"{{"{WRAPPER}":{structured}}}"#);
    Some(MemberEdit::Set("structuredContent", wrapped.into()))
}

/// Adapts the schemas in a tool's definition for legacy clients.
fn adapted(tool: &str) -> Cow<'_, str> {
    let mut changes = Vec::new();
    let input = spans::find(tool, "inputSchema").unwrap_or("{}");
    if let Cow::Owned(input) = input_schema(input) {
        changes.push(MemberEdit::Set("inputSchema", input.into()));
    }
    if let Some(output) = spans::find(tool, "outputSchema") {
        match output_schema(output) {
            Some(Cow::Borrowed(_)) => {}
            Some(Cow::Owned(output)) => {
                changes.push(MemberEdit::Set("outputSchema", output.into()))
            }
            None => changes.push(MemberEdit::Remove("outputSchema")),
        }
    }
    if changes.is_empty() {
        return tool.into();
    }
    spans::edit(tool, &changes).into()
}

/// Adapts an input schema: adds `"type":"object"`. That does not change the meaning, since arguments are always an object.
fn input_schema(schema: &str) -> Cow<'_, str> {
    match Type::of(schema) {
        Type::Object => with_object_properties(schema),
        Type::Other | Type::Either if schema.starts_with('{') => {
            let object = spans::edit(schema, &[MemberEdit::Set("type", r#""object""#.into())]);
            with_object_properties(&object).into_owned().into()
        }
        Type::Other | Type::Either => Cow::Owned(r#"{"type":"object"}"#.to_owned()),
    }
}

/// Adapts an output schema for legacy clients. Returns `None` if the schema must be omitted.
fn output_schema(schema: &str) -> Option<Cow<'_, str>> {
    /// Keywords whose meaning depends on the position of a schema within the document. Wrapping would change it, so a schema
    /// with such a keyword is omitted.
    const NAMES_PLACES: [&str; 5] = ["$ref", "$dynamicRef", "$recursiveRef", "$id", "$anchor"];
    match Type::of(schema) {
        Type::Object => Some(with_object_properties(schema)),
        Type::Either => None,
        Type::Other => {
            let moves = |name: &&str| spans::may_hold(schema.as_bytes(), name);
            if NAMES_PLACES.iter().any(moves) {
                return None;
            }
            Some(Cow::Owned(format!(
                r#"{{"type":"object","properties":{{"{WRAPPER}":{schema}}},"required":["{WRAPPER}"]}}"#
            )))
        }
    }
}

/// The types of values that the `type` of a schema allows.
#[derive(Debug, PartialEq, Eq)]
enum Type {
    /// The schema allows only objects.
    Object,
    /// The schema does not allow objects.
    Other,
    /// The schema allows objects and other values, or it has no `type`.
    Either,
}

impl Type {
    fn of(schema: &str) -> Self {
        let named = spans::find(schema, "type");
        match named.and_then(|named| serde_json::from_str(named).ok()) {
            Some(Names::One(name)) if name == "object" => Self::Object,
            Some(Names::One(_)) => Self::Other,
            Some(Names::Several(names)) if names.iter().all(|name| name != "object") => Self::Other,
            Some(Names::Several(_)) | None => Self::Either,
        }
    }
}

#[derive(serde::Deserialize)]
#[serde(untagged)]
enum Names {
    One(String),
    Several(Vec<String>),
}

/// Replaces boolean schemas (`true`, `false`) of properties by equivalent objects, since legacy clients accept only objects.
fn with_object_properties(schema: &str) -> Cow<'_, str> {
    let properties = spans::find(schema, "properties").unwrap_or("{}");
    let changes: Vec<_> = spans::members(properties)
        .into_iter()
        .flatten()
        .filter_map(|(name, value)| match value {
            "true" => Some((name, "{}")),
            "false" => Some((name, r#"{"not":{}}"#)),
            _ => None,
        })
        .collect();
    if changes.is_empty() {
        return schema.into();
    }
    let changes: Vec<_> = changes
        .iter()
        .map(|(name, value)| MemberEdit::Set(name, (*value).into()))
        .collect();
    let properties = spans::edit(properties, &changes);
    spans::edit(schema, &[MemberEdit::Set("properties", properties.into())]).into()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn parsed(text: &str) -> Value {
        serde_json::from_str(text).expect("JSON")
    }

    /// The only tool of a list, as a legacy client sees it.
    fn listed(tool: &Value) -> Value {
        let list = json!({ "tools": [tool], "nextCursor": "c" }).to_string();
        let Some(change) = of_list(&list) else {
            return tool.clone();
        };
        let list = parsed(&spans::edit(&list, &[change]));
        assert_eq!(list["nextCursor"], "c");
        list["tools"][0].clone()
    }

    fn with_output(schema: &Value) -> Value {
        let tool =
            json!({ "name": "t", "inputSchema": { "type": "object" }, "outputSchema": schema });
        listed(&tool)
    }

    #[test]
    fn an_output_schema_of_no_object_is_wrapped_as_its_results_are() {
        for schema in [
            json!({ "type": "array", "items": { "type": "string" } }),
            json!({ "type": ["string", "null"] }),
        ] {
            assert_eq!(
                with_output(&schema)["outputSchema"],
                json!({ "type": "object", "properties": { "result": schema }, "required": ["result"] })
            );
        }
        let changed =
            |result: &str| of_call(result).map(|change| parsed(&spans::edit(result, &[change])));
        for value in [json!([1, 2]), json!("x"), json!(null), json!(5)] {
            let result = json!({ "content": [], "structuredContent": value }).to_string();
            let result = changed(&result).expect("a change");
            assert_eq!(result["structuredContent"], json!({ "result": value }));
        }
        assert!(changed(r#"{"content":[],"structuredContent":{"a":1}}"#).is_none());
        assert!(changed(r#"{"content":[]}"#).is_none());
    }

    #[test]
    fn an_output_schema_that_may_or_may_not_be_of_an_object_is_left_out() {
        for schema in [
            json!(true),
            json!({}),
            json!({ "anyOf": [{ "type": "object" }, { "type": "array" }] }),
            json!({ "type": ["object", "null"] }),
            json!({ "type": 5 }),
            json!({ "type": "array", "items": { "$ref": "#/$defs/a" }, "$defs": { "a": {} } }),
        ] {
            let tool = with_output(&schema);
            assert!(tool.get("outputSchema").is_none(), "{schema}");
            assert_eq!(tool["name"], "t");
        }
    }

    #[test]
    fn an_input_schema_says_that_arguments_are_an_object() {
        for (schema, expected) in [
            (
                json!({ "anyOf": [{}] }),
                json!({ "anyOf": [{}], "type": "object" }),
            ),
            (
                json!({ "type": ["object", "null"] }),
                json!({ "type": "object" }),
            ),
            (json!(true), json!({ "type": "object" })),
            (
                json!({ "properties": { "a": true, "b": false, "c": {} } }),
                json!({ "properties": { "a": {}, "b": { "not": {} }, "c": {} }, "type": "object" }),
            ),
        ] {
            let tool = listed(&json!({ "name": "t", "inputSchema": schema }));
            assert_eq!(tool["inputSchema"], expected, "{schema}");
        }
        assert_eq!(
            listed(&json!({ "name": "t" }))["inputSchema"],
            json!({ "type": "object" })
        );
    }

    #[test]
    fn a_list_that_legacy_clients_take_keeps_its_bytes() {
        let list = r#"{"tools":[{"name":"t", "inputSchema":{"type":"object","properties":{"a":{"type":"number","maximum":1.50}}},
            "outputSchema":{"type":"object","properties":{"a":{}}}}]}"#;
        assert!(of_list(list).is_none());
    }
}
