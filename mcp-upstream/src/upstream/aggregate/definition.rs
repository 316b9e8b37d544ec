//! Definitions as strict clients take them.
//!
//! Many clients check a whole list against the schema of MCP and refuse all of it for one entry, so one careless server
//! would hide all others. What can be mended without changing what the entry means is mended: a missing `inputSchema` is
//! one that takes any object, a member of a wrong type is left out. An entry whose arguments nobody could know is left out
//! itself.

use serde_json::value::RawValue;

use crate::jsonrpc::spans::{self, MemberEdit};

/// A tool without parameters, or one that does not say which it has.
const ANY_OBJECT: &str = r#"{"type":"object"}"#;

/// What kind of value JSON holds, by its first byte.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Shape {
    Text,
    Object,
    List,
}

impl Shape {
    fn fits(self, raw: &str) -> bool {
        let first = match self {
            Self::Text => '"',
            Self::Object => '{',
            Self::List => '[',
        };
        raw.starts_with(first)
    }
}

/// Members that may be absent, and what they hold else.
const OPTIONAL: [(&str, Shape); 8] = [
    ("title", Shape::Text),
    ("description", Shape::Text),
    ("mimeType", Shape::Text),
    ("annotations", Shape::Object),
    ("execution", Shape::Object),
    ("_meta", Shape::Object),
    ("icons", Shape::List),
    ("arguments", Shape::List),
];

/// A definition that was changed, and what was wrong with it.
type Mended = (Box<RawValue>, String);

/// The definition of an entry of that list as strict clients take it; `None` where it is that already.
///
/// # Errors
///
/// Why no client could use it.
pub(super) fn mended(
    method: &str,
    own: &str,
    definition: &RawValue,
) -> Result<Option<Mended>, String> {
    let Some(members) = spans::members(definition.get()) else {
        return Err("its definition is no object, or has a key twice".into());
    };
    let member = |name: &str| {
        let found = members.iter().find(|(key, _)| *key == name);
        found.map(|(_, value)| value.trim())
    };
    let mut changes: Vec<MemberEdit<'_>> = Vec::new();
    let mut wrong: Vec<String> = Vec::new();
    for (key, shape) in OPTIONAL {
        if member(key).is_some_and(|value| !shape.fits(value)) {
            wrong.push(format!("its {key} is of a wrong type"));
            changes.push(MemberEdit::Remove(key));
        }
    }
    match method {
        "tools/list" => {
            match schema(member("inputSchema")) {
                Ok(None) => {}
                Ok(Some((schema, reason))) => {
                    wrong.push(format!("its inputSchema {reason}"));
                    changes.push(MemberEdit::Set("inputSchema", schema.into()));
                }
                Err(reason) => return Err(format!("its inputSchema {reason}")),
            }
            let output = member("outputSchema").map(|it| schema(Some(it)));
            if let Some(Err(_) | Ok(Some(_))) = output {
                wrong.push("its outputSchema is none of an object".into());
                changes.push(MemberEdit::Remove("outputSchema"));
            }
        }
        "resources/list" | "resources/templates/list"
            if member("name").is_none_or(|name| !Shape::Text.fits(name)) =>
        {
            wrong.push("it has no name".into());
            let name = serde_json::Value::from(own).to_string();
            changes.push(MemberEdit::Set("name", name.into()));
        }
        _ => {}
    }
    if changes.is_empty() {
        return Ok(None);
    }
    let mended = spans::edit(definition.get(), &changes);
    let mended = RawValue::from_string(mended).map_err(|_| "its definition cannot be read")?;
    Ok(Some((mended, wrong.join("; "))))
}

/// The schema of a tool's arguments as clients take it, with what was wrong; `None` where it is that already.
fn schema(schema: Option<&str>) -> Result<Option<(String, &'static str)>, &'static str> {
    let Some(schema) = schema.filter(|it| *it != "null") else {
        return Ok(Some((ANY_OBJECT.into(), "is missing")));
    };
    if !Shape::Object.fits(schema) {
        return Err("is no object");
    }
    let Some(members) = spans::members(schema) else {
        return Err("has a key twice");
    };
    let member = |name: &str| {
        let found = members.iter().find(|(key, _)| *key == name);
        found.map(|(_, value)| value.trim())
    };
    let mut changes = Vec::new();
    let mut wrong = None;
    match member("type") {
        Some(r#""object""#) => {}
        None => {
            wrong = Some("has no type");
            changes.push(MemberEdit::Set("type", r#""object""#.into()));
        }
        Some(_) => return Err("is not of type object"),
    }
    if let Some(properties) = member("properties") {
        match of_objects(properties) {
            Ok(None) => {}
            Ok(Some(properties)) => {
                wrong = Some("has properties that are true or false");
                changes.push(MemberEdit::Set("properties", properties.into()));
            }
            Err(()) => return Err("has properties that are no schemas"),
        }
    }
    if let Some(required) = member("required")
        && serde_json::from_str::<Vec<String>>(required).is_err()
    {
        wrong = Some("requires what is no list of names");
        changes.push(MemberEdit::Remove("required"));
    }
    Ok(wrong.map(|reason| (spans::edit(schema, &changes), reason)))
}

/// The properties with objects for the schemas `true` and `false`, which mean the same; `None` where there are none.
fn of_objects(properties: &str) -> Result<Option<String>, ()> {
    let members = spans::members(properties).ok_or(())?;
    let mut changes = Vec::new();
    for (key, value) in &members {
        let value = value.trim();
        match value {
            "true" => changes.push(MemberEdit::Set(key, "{}".into())),
            "false" => changes.push(MemberEdit::Set(key, r#"{"not":{}}"#.into())),
            _ if Shape::Object.fits(value) => {}
            _ => return Err(()),
        }
    }
    Ok((!changes.is_empty()).then(|| spans::edit(properties, &changes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tool(definition: &str) -> Result<Option<String>, String> {
        let raw = RawValue::from_string(definition.to_owned()).unwrap();
        let mended = mended("tools/list", "t", &raw)?;
        Ok(mended.map(|(definition, _)| definition.get().to_owned()))
    }

    #[test]
    fn what_is_right_keeps_its_bytes() {
        for right in [
            r#"{"name":"t","inputSchema":{"type":"object"}}"#,
            r#"{"name":"t", "title":"T","inputSchema":{ "properties":{"a":{}},"type":"object","required":["a"]},"outputSchema":{"type":"object"},"x":1}"#,
        ] {
            assert_eq!(tool(right), Ok(None), "{right}");
        }
    }

    #[test]
    fn what_clients_would_refuse_is_mended_where_that_changes_no_meaning() {
        for (wrong, right) in [
            (
                r#"{"name":"t"}"#,
                r#"{"name":"t","inputSchema":{"type":"object"}}"#,
            ),
            (
                r#"{"name":"t","inputSchema":null}"#,
                r#"{"name":"t","inputSchema":{"type":"object"}}"#,
            ),
            (
                r#"{"name":"t","inputSchema":{}}"#,
                r#"{"name":"t","inputSchema":{"type":"object"}}"#,
            ),
            (
                r#"{"name":"t","description":7,"inputSchema":{"type":"object","properties":{"a":true,"b":false,"c":{"n":1.50}},"required":"a"}}"#,
                r#"{"name":"t","inputSchema":{"type":"object","properties":{"a":{},"b":{"not":{}},"c":{"n":1.50}}}}"#,
            ),
            (
                r#"{"name":"t","inputSchema":{"type":"object"},"outputSchema":{"type":"array"}}"#,
                r#"{"name":"t","inputSchema":{"type":"object"}}"#,
            ),
        ] {
            assert_eq!(tool(wrong), Ok(Some(right.to_owned())), "{wrong}");
        }
        let resource = RawValue::from_string(r#"{"uri":"a://b"}"#.into()).unwrap();
        let (mended, wrong) = mended("resources/list", "a://b", &resource)
            .unwrap()
            .unwrap();
        assert_eq!(mended.get(), r#"{"uri":"a://b","name":"a://b"}"#);
        assert_eq!(wrong, "it has no name");
    }

    #[test]
    fn what_nobody_could_call_is_left_out() {
        for wrong in [
            r#"{"name":"t","inputSchema":"object"}"#,
            r#"{"name":"t","inputSchema":[]}"#,
            r#"{"name":"t","inputSchema":{"type":"string"}}"#,
            r#"{"name":"t","inputSchema":{"type":"object","properties":[]}}"#,
            r#"{"name":"t","inputSchema":{"type":"object","properties":{"a":7}}}"#,
            r#"{"name":"t","inputSchema":{},"inputSchema":{}}"#,
        ] {
            assert!(tool(wrong).is_err(), "{wrong}");
        }
    }
}
