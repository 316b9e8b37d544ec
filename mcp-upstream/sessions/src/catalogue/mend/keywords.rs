//! Corrects the keywords of JSON Schemas, including nested ones.

use std::borrow::Cow;

use serde_json::value::RawValue;
use tooldock_protocol::jsonrpc::spans::{self, MemberEdit};

use super::{put, start};

/// Maximum nesting of schemas that are corrected. Schemas that are nested deeper stay unchanged.
const DEPTH_MAX: usize = 64;
/// Keywords whose value may be any JSON, including `null`.
const ANY_VALUE: [&str; 4] = ["default", "const", "example", "examples"];

/// The form that the value of a keyword must have.
#[derive(Clone, Copy)]
enum Form {
    Text,
    Flag,
    Number,
    /// The value must be a number, or a boolean as in draft 4.
    Limit,
    /// The value must be an integer of at least 0.
    Count,
    /// The value must be a list of names.
    Names,
    /// The value must be a type of JSON Schema, or a list of types.
    Type,
    /// The value must be a list; its elements may be any values.
    Values,
    /// The value must be an object; its members may be any values.
    Members,
    Schema,
    /// The value must be an object whose members are schemas.
    Named,
    /// The value must be a list of schemas, whose order has no meaning.
    Choices,
    /// The value must be a list of schemas, whose order has a meaning.
    Positions,
    /// The value must be a schema, or a list of schemas whose order has a meaning.
    Items,
}

const KEYWORDS: [(&str, Form); 53] = [
    ("type", Form::Type),
    ("description", Form::Text),
    ("title", Form::Text),
    ("properties", Form::Named),
    ("required", Form::Names),
    ("items", Form::Items),
    ("enum", Form::Values),
    ("format", Form::Text),
    ("anyOf", Form::Choices),
    ("oneOf", Form::Choices),
    ("allOf", Form::Choices),
    ("additionalProperties", Form::Schema),
    ("minimum", Form::Number),
    ("maximum", Form::Number),
    ("exclusiveMinimum", Form::Limit),
    ("exclusiveMaximum", Form::Limit),
    ("multipleOf", Form::Number),
    ("minLength", Form::Count),
    ("maxLength", Form::Count),
    ("minItems", Form::Count),
    ("maxItems", Form::Count),
    ("minProperties", Form::Count),
    ("maxProperties", Form::Count),
    ("minContains", Form::Count),
    ("maxContains", Form::Count),
    ("pattern", Form::Text),
    ("$ref", Form::Text),
    ("$schema", Form::Text),
    ("$defs", Form::Named),
    ("definitions", Form::Named),
    ("patternProperties", Form::Named),
    ("dependentSchemas", Form::Named),
    ("dependentRequired", Form::Members),
    ("dependencies", Form::Members),
    ("prefixItems", Form::Positions),
    ("additionalItems", Form::Schema),
    ("not", Form::Schema),
    ("if", Form::Schema),
    ("then", Form::Schema),
    ("else", Form::Schema),
    ("contains", Form::Schema),
    ("propertyNames", Form::Schema),
    ("unevaluatedProperties", Form::Schema),
    ("unevaluatedItems", Form::Schema),
    ("uniqueItems", Form::Flag),
    ("readOnly", Form::Flag),
    ("writeOnly", Form::Flag),
    ("deprecated", Form::Flag),
    ("$id", Form::Text),
    ("$anchor", Form::Text),
    ("$comment", Form::Text),
    ("contentEncoding", Form::Text),
    ("contentMediaType", Form::Text),
];

/// The faults that were found in the keywords of a schema.
#[derive(Default)]
pub(super) struct KeywordFaults {
    has_null: bool,
    /// Keywords whose value had a wrong form.
    misused: Vec<&'static str>,
}

impl KeywordFaults {
    fn misused(&mut self, keyword: &'static str) {
        if !self.misused.contains(&keyword) {
            self.misused.push(keyword);
        }
    }

    /// Descriptions of the faults. Reports write them after the schema's name.
    pub(super) fn said(&self) -> impl Iterator<Item = Cow<'static, str>> {
        let null = self.has_null.then_some(Cow::Borrowed("holds null"));
        let misused = (!self.misused.is_empty())
            .then(|| format!("has unusable values of {}", self.misused.join(", ")).into());
        null.into_iter().chain(misused)
    }
}

/// Result of correcting the value of a keyword.
enum MendedValue {
    Fits,
    /// The value itself is valid, but a schema inside it was corrected. Contains the new value.
    Inside(String),
    Replaced(String),
    Unfit,
}

/// Corrects the keywords of a schema, including nested schemas. Returns `None` if nothing is wrong. If the schema of a property
/// is `null`, it becomes an empty schema, which allows everything.
pub(super) fn mended(schema: &str, depth: usize, faults: &mut KeywordFaults) -> Option<String> {
    if depth > DEPTH_MAX {
        return None;
    }
    let members = spans::members(schema)?;
    let mut changes = Vec::new();
    for (key, value) in &members {
        let key: &str = key;
        if *value == "null" {
            if !ANY_VALUE.contains(&key) {
                faults.has_null = true;
                changes.push(MemberEdit::Remove(key));
            }
            continue;
        }
        let Some((keyword, form)) = KEYWORDS.iter().find(|(known, _)| *known == key) else {
            continue;
        };
        let new = match form.mended(value, keyword, depth, faults) {
            MendedValue::Fits => continue,
            MendedValue::Inside(new) => Some(new),
            MendedValue::Replaced(new) => {
                faults.misused(keyword);
                Some(new)
            }
            MendedValue::Unfit => {
                faults.misused(keyword);
                None
            }
        };
        changes.push(match new {
            Some(new) => MemberEdit::Set(key, new.into()),
            None => MemberEdit::Remove(key),
        });
    }
    (!changes.is_empty()).then(|| spans::edit(schema, &changes))
}

impl Form {
    fn mended(
        self,
        value: &str,
        keyword: &'static str,
        depth: usize,
        faults: &mut KeywordFaults,
    ) -> MendedValue {
        let first = value.as_bytes().first().copied().unwrap_or_default();
        let inside = |new: Option<String>| match new {
            Some(new) => MendedValue::Inside(new),
            None => MendedValue::Fits,
        };
        let is_flag = matches!(value, "true" | "false");
        match (self, first) {
            (Self::Text, b'"') | (Self::Values, b'[') | (Self::Members, b'{') => MendedValue::Fits,
            (Self::Flag | Self::Limit | Self::Schema | Self::Items, _) if is_flag => {
                MendedValue::Fits
            }
            (Self::Number | Self::Limit, _) => number(value, |_| true),
            (Self::Count, _) => number(value, |it| it >= 0.0 && it.fract() == 0.0),
            (Self::Type, _) => types(value),
            (Self::Names, _) => names(value),
            (Self::Values, b'{') => listed_values(value),
            (Self::Values, _) => MendedValue::Replaced(format!("[{value}]")),
            // PHP writes an empty object as an empty list.
            (Self::Named | Self::Members, b'[') if spans::items(value).next().is_none() => {
                MendedValue::Replaced("{}".into())
            }
            (Self::Named, b'{') => inside(named(value, keyword, depth, faults)),
            (Self::Schema | Self::Items, b'{') => inside(mended(value, depth + 1, faults)),
            (Self::Items, b'[') if spans::items(value).next().is_none() => MendedValue::Unfit,
            (Self::Items | Self::Positions, b'[') => {
                inside(listed(value, keyword, true, depth, faults))
            }
            (Self::Choices, b'[') => match listed(value, keyword, false, depth, faults) {
                Some(new) if new == "[]" => MendedValue::Unfit,
                new => inside(new),
            },
            (Self::Choices | Self::Positions, b'{') => {
                let list = match listed_values(value) {
                    MendedValue::Replaced(list) if has_positions(value) => list,
                    _ => format!("[{value}]"),
                };
                let in_place = matches!(self, Self::Positions);
                match listed(&list, keyword, in_place, depth, faults).unwrap_or(list) {
                    new if new == "[]" => MendedValue::Unfit,
                    new => MendedValue::Replaced(new),
                }
            }
            _ => MendedValue::Unfit,
        }
    }
}

/// Corrects an object whose members are schemas. A value that is not a schema becomes a schema that allows everything.
fn named(
    schemas: &str,
    keyword: &'static str,
    depth: usize,
    faults: &mut KeywordFaults,
) -> Option<String> {
    let members = spans::members(schemas)?;
    let mut changes = Vec::new();
    for (key, value) in &members {
        let new = match *value {
            "true" | "false" => None,
            "null" => {
                faults.has_null = true;
                Some("{}".to_owned())
            }
            value if value.starts_with('{') => mended(value, depth + 1, faults),
            _ => {
                faults.misused(keyword);
                Some("{}".to_owned())
            }
        };
        changes.extend(new.map(|it| MemberEdit::Set(key, it.into())));
    }
    (!changes.is_empty()).then(|| spans::edit(schemas, &changes))
}

/// Corrects a list of schemas. The name of a type becomes a schema of that type. Any other value that is not a schema is removed;
/// if the order of the list has a meaning, it becomes a schema that allows everything instead.
fn listed(
    schemas: &str,
    keyword: &'static str,
    in_place: bool,
    depth: usize,
    faults: &mut KeywordFaults,
) -> Option<String> {
    let mut kept: Option<String> = None;
    for (at, schema) in spans::items(schemas).enumerate() {
        let new: Option<Cow<'_, str>> = match schema {
            "true" | "false" => Some(schema.into()),
            "null" => {
                faults.has_null = true;
                in_place.then_some("{}".into())
            }
            schema if schema.starts_with('{') => Some(match mended(schema, depth + 1, faults) {
                Some(new) => new.into(),
                None => schema.into(),
            }),
            _ => {
                faults.misused(keyword);
                match text(schema).and_then(|name| type_name(&name)) {
                    Some(name) => Some(format!(r#"{{"type":"{name}"}}"#).into()),
                    None => in_place.then_some("{}".into()),
                }
            }
        };
        let stays = new.as_deref() == Some(schema);
        if stays && kept.is_none() {
            continue;
        }
        let before = spans::items(schemas).take(at).map(Cow::Borrowed);
        let kept = kept.get_or_insert_with(|| start(before));
        if let Some(new) = new {
            put(kept, &new);
        }
    }
    kept.map(|kept| kept + "]")
}

/// Corrects `type`. If a name is unknown, the whole keyword is removed. Removing only that name would make the schema refuse
/// values that the server accepts.
fn types(value: &str) -> MendedValue {
    if let Some(name) = text(value) {
        return match type_name(&name) {
            Some(known) if known == name => MendedValue::Fits,
            Some(known) => MendedValue::Replaced(format!(r#""{known}""#)),
            None => MendedValue::Unfit,
        };
    }
    if !value.starts_with('[') {
        return MendedValue::Unfit;
    }
    let mut fits = true;
    let mut kept: Vec<&'static str> = Vec::new();
    for item in spans::items(value) {
        let name = match item {
            "null" => Some(Cow::Borrowed("NULL")),
            item => text(item),
        };
        let Some((name, known)) = name.and_then(|it| type_name(&it).map(|known| (it, known)))
        else {
            return MendedValue::Unfit;
        };
        fits &= name == known && !kept.contains(&known);
        if !kept.contains(&known) {
            kept.push(known);
        }
    }
    match kept.is_empty() {
        true => MendedValue::Unfit,
        false if fits => MendedValue::Fits,
        false => MendedValue::Replaced(format!(r#"["{}"]"#, kept.join(r#"",""#))),
    }
}

/// The JSON Schema type for a type's name, which may be that of a programming language or database; `None` if it is unknown.
fn type_name(name: &str) -> Option<&'static str> {
    Some(match &*name.trim().to_ascii_lowercase() {
        "string" | "str" | "text" | "char" | "varchar" => "string",
        "integer" | "int" | "int32" | "int64" | "uint" | "uint32" | "uint64" | "long" | "short" => {
            "integer"
        }
        "number" | "num" | "float" | "float32" | "float64" | "double" | "decimal" | "numeric" => {
            "number"
        }
        "boolean" | "bool" => "boolean",
        "object" | "dict" | "dictionary" | "map" | "hash" | "struct" => "object",
        "array" | "list" | "tuple" | "vector" => "array",
        "null" | "none" | "nil" | "nonetype" => "null",
        _ => return None,
    })
}

/// Corrects `required`. A boolean, as in draft 3, lists no names, so it is removed.
fn names(value: &str) -> MendedValue {
    let is_name = |it: &&str| it.starts_with('"');
    let list = |names: &mut dyn Iterator<Item = &str>| {
        let list = start(names.map(Cow::Borrowed)) + "]";
        match list == "[]" {
            true => MendedValue::Unfit,
            false => MendedValue::Replaced(list),
        }
    };
    if let Some(name) = text(value) {
        return match &*name.trim().to_ascii_lowercase() {
            "" | "true" | "false" | "yes" | "no" => MendedValue::Unfit,
            _ => MendedValue::Replaced(format!("[{value}]")),
        };
    }
    if value.starts_with('[') {
        return match spans::items(value).all(|it| is_name(&it)) {
            true => MendedValue::Fits,
            false => list(&mut spans::items(value).filter(is_name)),
        };
    }
    let members = spans::members(value).unwrap_or_default();
    list(&mut members.iter().map(|(_, value)| *value).filter(is_name))
}

/// Converts an object to a list of its values. PHP writes a list as an object if an element was removed from it.
fn listed_values(object: &str) -> MendedValue {
    match spans::members(object) {
        Some(members) if !members.is_empty() => {
            let values = members.iter().map(|(_, value)| Cow::Borrowed(*value));
            MendedValue::Replaced(start(values) + "]")
        }
        _ => MendedValue::Unfit,
    }
}

/// Returns true if all keys of an object are numbers, so that it can be converted to a list.
fn has_positions(object: &str) -> bool {
    let members = spans::members(object).unwrap_or_default();
    let is_position = |key: &str| key.parse::<u64>().is_ok();
    !members.is_empty() && members.iter().all(|(key, _)| is_position(key))
}

/// Corrects a number. A string that contains a number becomes that number.
fn number(value: &str, fits: fn(f64) -> bool) -> MendedValue {
    let is_fit = |it: &str| {
        let is_number = it.starts_with(|it: char| it == '-' || it.is_ascii_digit());
        is_number && it.parse().is_ok_and(fits)
    };
    if is_fit(value) {
        return MendedValue::Fits;
    }
    let written = text(value).unwrap_or_default();
    let written = written.trim();
    let is_json = serde_json::from_str::<&RawValue>(written).is_ok();
    match is_json && is_fit(written) {
        true => MendedValue::Replaced(written.to_owned()),
        false => MendedValue::Unfit,
    }
}

fn text(value: &str) -> Option<Cow<'_, str>> {
    let is_text = value.starts_with('"');
    is_text.then(|| serde_json::from_str(value).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(schema: &str) -> Option<String> {
        mended(schema, 0, &mut KeywordFaults::default())
    }

    /// Mends a schema at the root, and at each place where a schema may stand.
    fn mends_everywhere(wrong: &str, right: &str) {
        assert_eq!(of(wrong).as_deref(), Some(right), "{wrong}");
        assert_eq!(of(right), None, "{right}");
        for (before, after) in [
            (r#"{"properties":{"a":"#, "}}"),
            (r#"{"patternProperties":{"a":"#, "}}"),
            (r#"{"$defs":{"type":"#, "}}"),
            (r#"{"definitions":{"required":"#, "}}"),
            (r#"{"dependentSchemas":{"a":"#, "}}"),
            (r#"{"items":"#, "}"),
            (r#"{"items":[{},"#, "]}"),
            (r#"{"prefixItems":[true,"#, "]}"),
            (r#"{"additionalProperties":"#, "}"),
            (r#"{"anyOf":["#, ",{}]}"),
            (r#"{"properties":{"a":{"items":{"oneOf":[{"not":"#, "}]}}}}"),
        ] {
            let around = |schema: &str| format!("{before}{schema}{after}");
            assert_eq!(of(&around(wrong)), Some(around(right)), "{before}");
        }
    }

    #[test]
    fn right_keywords_keep_their_bytes() {
        for right in [
            r#"{"type":["string","null"],"enum":["a",null],"default":null,"const":{"items":[]},"examples":"x"}"#,
            r#"{ "items":[{"type":"string"},true],"additionalItems":false,"uniqueItems":true, "x-y":[],"nullable":"yes"}"#,
            r#"{"minimum":-1.50,"maximum":1e999,"exclusiveMinimum":true,"exclusiveMaximum":3,"minLength":0,"maxLength":5.0}"#,
            r#"{"properties":{"type":{"type":"string"},"required":{},"items":true,"enum":{"enum":[]}},"required":[]}"#,
            r##"{"$schema":"https://json-schema.org/draft/2020-12/schema","$ref":"#/$defs/a","$defs":{},"dependencies":{"a":["b"]}}"##,
        ] {
            assert_eq!(of(right), None, "{right}");
        }
    }

    #[test]
    fn collections_of_schemas_have_their_form() {
        for key in [
            "properties",
            "patternProperties",
            "$defs",
            "definitions",
            "dependentSchemas",
        ] {
            let with = |value: &str| format!(r#"{{"{key}":{value},"x":1}}"#);
            mends_everywhere(&with("[]"), &with("{}"));
            mends_everywhere(&with("[ ]"), &with("{}"));
            mends_everywhere(&with(r#"["a"]"#), r#"{"x":1}"#);
            mends_everywhere(&with("7"), r#"{"x":1}"#);
            mends_everywhere(
                &with(r#"{"a":[],"b":"c","d":false}"#),
                &with(r#"{"a":{},"b":{},"d":false}"#),
            );
        }
        for wrong in [
            r#"{"items":[]}"#,
            r#"{"items":"string"}"#,
            r#"{"additionalProperties":[]}"#,
            r#"{"additionalProperties":"false"}"#,
            r#"{"not":[],"if":1,"contains":""}"#,
            r#"{"anyOf":"string","allOf":true,"oneOf":[7]}"#,
        ] {
            mends_everywhere(wrong, "{}");
        }
        for (wrong, right) in [
            (
                r#"{"anyOf":{"type":"str"}}"#,
                r#"{"anyOf":[{"type":"string"}]}"#,
            ),
            (
                r#"{"oneOf":{"0":{"type":"int"},"2":true}}"#,
                r#"{"oneOf":[{"type":"integer"},true]}"#,
            ),
            (
                r#"{"anyOf":["string","int",{"a":1.50},null,"?",7]}"#,
                r#"{"anyOf":[{"type":"string"},{"type":"integer"},{"a":1.50}]}"#,
            ),
            (
                r#"{"prefixItems":["?",null,"bool"]}"#,
                r#"{"prefixItems":[{},{},{"type":"boolean"}]}"#,
            ),
        ] {
            mends_everywhere(wrong, right);
        }
    }

    #[test]
    fn required_and_enum_are_lists() {
        for (wrong, right) in [
            (r#"{"required":true}"#, "{}"),
            (r#"{"required":false}"#, "{}"),
            (r#"{"required":"true"}"#, "{}"),
            (r#"{"required":{}}"#, "{}"),
            (r#"{"required":[7]}"#, "{}"),
            (r#"{"required":"a"}"#, r#"{"required":["a"]}"#),
            (
                r#"{"required":{"0":"a","2":"b","3":4}}"#,
                r#"{"required":["a","b"]}"#,
            ),
            (r#"{"required":["a",null,1]}"#, r#"{"required":["a"]}"#),
            (r#"{"enum":{"0":"x","1":2.50}}"#, r#"{"enum":["x",2.50]}"#),
            (r#"{"enum":{}}"#, "{}"),
            (r#"{"enum":"x"}"#, r#"{"enum":["x"]}"#),
            (r#"{"enum":7}"#, r#"{"enum":[7]}"#),
        ] {
            mends_everywhere(wrong, right);
        }
    }

    #[test]
    fn types_are_those_of_json_schema() {
        for (wrong, right) in [
            ("str", "string"),
            ("STRING", "string"),
            ("int", "integer"),
            ("Integer", "integer"),
            ("bool", "boolean"),
            ("float", "number"),
            ("double", "number"),
            ("dict", "object"),
            ("list", "array"),
            ("None", "null"),
        ] {
            let with = |name: &str| format!(r#"{{"type":"{name}"}}"#);
            mends_everywhere(&with(wrong), &with(right));
        }
        for wrong in [
            r#""""#,
            r#""any""#,
            r#""strnig""#,
            "[]",
            "{}",
            "7",
            "true",
            r#"["string","any"]"#,
            r#"["string",{"type":"null"}]"#,
        ] {
            mends_everywhere(&format!(r#"{{"type":{wrong}}}"#), "{}");
        }
        for (wrong, right) in [
            (r#"["str",null]"#, r#"["string","null"]"#),
            (r#"["string","str","string"]"#, r#"["string"]"#),
        ] {
            let with = |types: &str| format!(r#"{{"type":{types}}}"#);
            mends_everywhere(&with(wrong), &with(right));
        }
    }

    #[test]
    fn numbers_texts_and_flags_have_their_form() {
        for key in ["minLength", "maxLength", "minItems", "maxItems"] {
            let with = |value: &str| format!(r#"{{"{key}":{value}}}"#);
            mends_everywhere(&with(r#""5""#), &with("5"));
            for wrong in [r#""five""#, r#""""#, "-1", "1.5", r#""-1""#, "true", "[]"] {
                mends_everywhere(&with(wrong), "{}");
            }
        }
        for key in ["minimum", "maximum", "exclusiveMinimum", "multipleOf"] {
            let with = |value: &str| format!(r#"{{"{key}":{value}}}"#);
            mends_everywhere(&with(r#"" -1.50""#), &with("-1.50"));
            for wrong in [r#""+1""#, r#""inf""#, r#""true""#, "{}"] {
                mends_everywhere(&with(wrong), "{}");
            }
        }
        for wrong in [
            r#"{"$schema":7}"#,
            r#"{"$schema":["a"],"$ref":{},"description":["a"]}"#,
            r#"{"title":false,"format":1,"pattern":{},"uniqueItems":"true"}"#,
        ] {
            mends_everywhere(wrong, "{}");
        }
    }

    #[test]
    fn a_fault_is_told_once() {
        let mut faults = KeywordFaults::default();
        let schema = r#"{"type":"str","items":{"type":"str","enum":"x","title":null}}"#;
        assert!(mended(schema, 0, &mut faults).is_some());
        let said: Vec<_> = faults.said().collect();
        assert_eq!(said, ["holds null", "has unusable values of type, enum"]);
    }

    #[test]
    fn schemas_below_the_deepest_are_not_searched() {
        let deep = |depth: usize| {
            let open = r#"{"items":"#.repeat(depth);
            format!(r#"{open}{{"type":"str"}}{}"#, "}".repeat(depth))
        };
        assert!(of(&deep(DEPTH_MAX)).is_some());
        assert_eq!(of(&deep(DEPTH_MAX + 1)), None);
    }
}
