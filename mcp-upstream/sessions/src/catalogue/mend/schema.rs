//! Corrects the JSON Schemas of tools for strict clients.

use std::borrow::Cow;

use serde_json::value::RawValue;
use tooldock_protocol::jsonrpc::spans::{self, MemberEdit};
use tooldock_protocol::version::Era;

use super::keywords::{self, KeywordFaults};
use super::single_keys;

/// The schema for a tool without parameters, or with unknown parameters: any object is allowed.
const ANY_OBJECT: &str = r#"{"type":"object"}"#;
/// The types of JSON Schema other than `object`.
const OTHER_TYPES: [&str; 6] = ["string", "number", "integer", "boolean", "array", "null"];

/// A corrected schema, and descriptions of its faults, which reports write after the schema's name.
pub(super) type MendedSchema = (String, Vec<Cow<'static, str>>);

/// Corrects the schema of a tool's arguments. Arguments are an object in every revision. Returns `None` if nothing is wrong.
///
/// # Errors
///
/// The reason why the schema allows no arguments at all, so that the tool cannot be called.
pub(super) fn arguments(schema: Option<&str>) -> Result<Option<MendedSchema>, &'static str> {
    let any = |reason: &'static str| Ok(Some((ANY_OBJECT.to_owned(), vec![reason.into()])));
    match schema {
        None => any("is missing"),
        Some("null") => any("is null"),
        Some("true") => any("is true"),
        Some("false") => Err("allows nothing"),
        Some(schema) if schema.starts_with('{') => of_object(schema),
        Some(text) if text.starts_with('"') => match object_in_text(text) {
            None => any("is no object"),
            Some(schema) => {
                let (schema, mut wrong) = of_object(&schema)?.unwrap_or((schema, vec![]));
                wrong.insert(0, "is JSON in a text".into());
                Ok(Some((schema, wrong)))
            }
        },
        Some(_) => any("is no object"),
    }
}

/// Parses a JSON string that contains a JSON object, and returns that object on a single line; `None` for any other value.
fn object_in_text(text: &str) -> Option<String> {
    let text: String = serde_json::from_str(text).ok()?;
    let object: &RawValue = serde_json::from_str(&text).ok()?;
    // In valid JSON, line breaks are always white space, so they can be replaced by spaces.
    let line = object.get().replace(['\n', '\r'], " ");
    line.starts_with('{').then_some(line)
}

/// Corrects the schema of a tool's structured results. Up to 2025-11-25, results must be objects. Returns `None` if nothing is
/// wrong.
///
/// # Errors
///
/// The reason why the schema must be removed.
pub(super) fn output(schema: &str, era: Era) -> Result<Option<MendedSchema>, &'static str> {
    match schema {
        "null" => return Err("is null"),
        "true" | "false" if era == Era::Modern => return Ok(None),
        _ if !schema.starts_with('{') => return Err("is no object"),
        _ => {}
    }
    if era == Era::Modern {
        let mut faults = KeywordFaults::default();
        let mended = keywords::mended(schema, 0, &mut faults);
        return Ok(mended.map(|schema| (schema, faults.said().collect())));
    }
    match spans::members(schema).is_some_and(|members| members.is_empty()) {
        true => Err("says nothing"),
        false => of_object(schema),
    }
}

/// Corrects a schema that must describe an object.
fn of_object(schema: &str) -> Result<Option<MendedSchema>, &'static str> {
    let (mut text, twice) = single_keys(schema).ok_or("is no object")?;
    let mut wrong = Vec::new();
    if twice {
        wrong.push("has a key twice".into());
    }
    if let Some(root) = root(&text, &mut wrong)? {
        text = root.into();
    }
    let mut faults = KeywordFaults::default();
    if let Some(mended) = keywords::mended(&text, 0, &mut faults) {
        wrong.extend(faults.said());
        text = mended.into();
    }
    Ok(match wrong.is_empty() {
        true => None,
        false => Some((text.into_owned(), wrong)),
    })
}

/// Corrects the top-level members of a schema that clients check. Returns `None` if nothing is wrong. Adds descriptions of the
/// faults to `wrong`.
fn root(schema: &str, wrong: &mut Vec<Cow<'static, str>>) -> Result<Option<String>, &'static str> {
    let members = spans::members(schema).ok_or("cannot be read")?;
    let member = |name: &str| {
        let found = members.iter().find(|(key, _)| key == name);
        found.map(|(_, value)| *value)
    };
    let mut changes = Vec::new();
    let mut object = |reason: &'static str| {
        wrong.push(reason.into());
        changes.push(MemberEdit::Set("type", r#""object""#.into()));
    };
    match member("type").map(Type::of) {
        Some(Type::Object) => {}
        None => object("has no type"),
        Some(Type::Among) => object("is of more types than object"),
        Some(Type::Unknown) => object("is of an unknown type"),
        Some(Type::Other) => return Err("is not of type object"),
    }
    if let Some(properties) = member("properties").filter(|it| *it != "null") {
        match properties_of(properties) {
            Properties::Fit => {}
            Properties::Changed(properties) => {
                wrong.push("has properties that are no schemas".into());
                changes.push(MemberEdit::Set("properties", properties.into()));
            }
            Properties::Unfit => {
                wrong.push("has properties that are no object".into());
                changes.push(MemberEdit::Remove("properties"));
            }
        }
    }
    Ok((!changes.is_empty()).then(|| spans::edit(schema, &changes)))
}

/// The types of values that the `type` of a schema allows.
enum Type {
    Object,
    /// The schema allows `object` and other types, or spells `object` differently.
    Among,
    /// The schema allows only types other than `object`.
    Other,
    /// The `type` is not a type of JSON Schema.
    Unknown,
}

impl Type {
    fn of(raw: &str) -> Self {
        if raw == r#""object""# {
            return Self::Object;
        }
        if let Ok(name) = serde_json::from_str::<Cow<'_, str>>(raw) {
            return match &*name.to_ascii_lowercase() {
                "object" => Self::Among,
                other if OTHER_TYPES.contains(&other) => Self::Other,
                _ => Self::Unknown,
            };
        }
        match serde_json::from_str::<Vec<Cow<'_, str>>>(raw) {
            Ok(names) if names.iter().any(|name| name == "object") => Self::Among,
            Ok(names) if !names.is_empty() => Self::Other,
            _ => Self::Unknown,
        }
    }
}

enum Properties {
    Fit,
    Changed(String),
    Unfit,
}

/// Corrects `properties`: each schema in it must be an object. `true` and `false` become equivalent objects; any other value
/// becomes an empty schema.
fn properties_of(properties: &str) -> Properties {
    // PHP writes an empty object as an empty list.
    if properties.starts_with('[') {
        return match serde_json::from_str::<[(); 0]>(properties) {
            Ok(_) => Properties::Changed("{}".into()),
            Err(_) => Properties::Unfit,
        };
    }
    let Some((text, mut changed)) = single_keys(properties) else {
        return Properties::Unfit;
    };
    let members = spans::members(&text).unwrap_or_default();
    let mut changes = Vec::new();
    for (key, value) in &members {
        if value.starts_with('{') || *value == "null" {
            continue;
        }
        let same = match *value {
            "false" => r#"{"not":{}}"#,
            _ => "{}",
        };
        changes.push(MemberEdit::Set(key, same.into()));
        changed = true;
    }
    match changed {
        true => Properties::Changed(spans::edit(&text, &changes)),
        false => Properties::Fit,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mended(schema: &str) -> Option<String> {
        let mended = arguments(Some(schema)).unwrap_or_else(|_| panic!("{schema}"));
        mended.map(|(schema, _)| schema)
    }

    #[test]
    fn a_schema_of_arguments_says_that_they_are_an_object() {
        for (schema, expected) in [
            (
                r#"{"anyOf":[{"type":"object","required":["a"]},{"type":"object"}]}"#,
                r#"{"anyOf":[{"type":"object","required":["a"]},{"type":"object"}],"type":"object"}"#,
            ),
            (
                r##"{"$ref":"#/$defs/Args","$defs":{"Args":{"type":"object"}}}"##,
                r##"{"$ref":"#/$defs/Args","$defs":{"Args":{"type":"object"}},"type":"object"}"##,
            ),
            (
                r#"{"allOf":[{"if":{},"then":{}}],"type":null}"#,
                r#"{"allOf":[{"if":{},"then":{}}],"type":"object"}"#,
            ),
            (r#"{"type":["object","null"]}"#, r#"{"type":"object"}"#),
            (r#"{"type":"OBJECT"}"#, r#"{"type":"object"}"#),
            (r#"{"type":"dict"}"#, r#"{"type":"object"}"#),
            ("{}", r#"{"type":"object"}"#),
            ("null", r#"{"type":"object"}"#),
            ("true", r#"{"type":"object"}"#),
            ("[]", r#"{"type":"object"}"#),
            (r#""object""#, r#"{"type":"object"}"#),
            (
                r#"{"type":"object","type":"object","a":1}"#,
                r#"{"type":"object","a":1}"#,
            ),
        ] {
            assert_eq!(mended(schema).as_deref(), Some(expected), "{schema}");
        }
        let missing = arguments(None).expect("mended").expect("changed");
        assert_eq!(
            missing,
            (r#"{"type":"object"}"#.to_owned(), vec!["is missing".into()])
        );
    }

    #[test]
    fn properties_and_required_are_of_the_types_that_clients_check() {
        for (schema, expected) in [
            (
                r#"{"type":"object","properties":null,"required":null}"#,
                r#"{"type":"object"}"#,
            ),
            (
                r#"{"type":"object","properties":[],"required":"a"}"#,
                r#"{"type":"object","properties":{},"required":["a"]}"#,
            ),
            (
                r#"{"type":"object","properties":["a"],"required":["a",null]}"#,
                r#"{"type":"object","required":["a"]}"#,
            ),
            (
                r#"{"type":"object","properties":{"a":true,"b":false,"c":{"n":1.50},"d":null,"e":"string"}}"#,
                r#"{"type":"object","properties":{"a":{},"b":{"not":{}},"c":{"n":1.50},"d":{},"e":{}}}"#,
            ),
        ] {
            assert_eq!(mended(schema).as_deref(), Some(expected), "{schema}");
        }
    }

    #[test]
    fn keywords_that_are_null_are_left_out_at_any_depth() {
        assert_eq!(
            mended(
                r#"{"type":"object","title":null,"$defs":{"A":{"description":null,"enum":[null]}},"properties":{"a":{"anyOf":[{"format":null,"type":"null"},null],"default":null},"default":{"items":{"minLength":null}}},"additionalProperties":null}"#
            )
            .as_deref(),
            Some(
                r#"{"type":"object","$defs":{"A":{"enum":[null]}},"properties":{"a":{"anyOf":[{"type":"null"}],"default":null},"default":{"items":{}}}}"#
            )
        );
        let deep = format!(
            "{}null{}",
            r#"{"type":"object","items":"#.repeat(100),
            "}".repeat(100)
        );
        let _ = mended(&deep);
    }

    #[test]
    fn an_output_schema_is_one_of_an_object_or_left_out() {
        let legacy = |schema| output(schema, Era::Legacy).map(|it| it.map(|(schema, _)| schema));
        assert_eq!(legacy(r#"{"type":"object"}"#), Ok(None));
        assert_eq!(
            legacy(r#"{"anyOf":[{"type":"object"}]}"#),
            Ok(Some(
                r#"{"anyOf":[{"type":"object"}],"type":"object"}"#.to_owned()
            ))
        );
        for wrong in ["null", "true", "[]", "{}", r#"{"type":"array"}"#, "7"] {
            assert!(legacy(wrong).is_err(), "{wrong}");
        }
        let modern = |schema| output(schema, Era::Modern).map(|it| it.map(|(schema, _)| schema));
        for right in ["true", "{}", r#"{"type":"array"}"#, r#"{"anyOf":[]}"#] {
            assert_eq!(modern(right), Ok(None), "{right}");
        }
        assert_eq!(
            modern(r#"{"type":"array","items":null}"#),
            Ok(Some(r#"{"type":"array"}"#.to_owned()))
        );
        assert!(modern("null").is_err());
    }
}
