//! Reads a tool's arguments from the command line: `key=value`, `key=@file`, `key=-`, or one JSON object. The tool's input
//! schema determines the JSON type of each value.

use std::fs;
use std::io::Read as _;

use serde_json::{Map, Value};

use crate::nearest::proposal;

/// Maximum number of schemas that are read for one value. The bound is needed because schemas may refer to each other in a loop.
const SCHEMAS_MAX: usize = 256;

/// Arguments as they were passed on the command line, not yet converted to the tool's types.
#[derive(Debug, Default)]
pub(super) struct GivenArguments {
    /// Names and texts of arguments that are not yet converted to their JSON types.
    words: Vec<(String, String)>,
    object: Map<String, Value>,
    /// True if `--json` was passed without a JSON object. It then means that the result is printed as JSON.
    pub(super) json_is_wanted: bool,
}

impl GivenArguments {
    /// Reads the arguments from the command line, from files and from standard input. `json` is the value of `--json`; it is
    /// empty if the option stands alone.
    ///
    /// # Errors
    ///
    /// A sentence that names the wrong argument.
    pub(super) fn read(words: &[String], json: Option<&str>) -> Result<Self, String> {
        let mut given = Self::default();
        let mut words: Vec<_> = words.iter().map(String::as_str).collect();
        match json {
            None => {}
            Some("") => given.json_is_wanted = true,
            Some("-") => given.object = object(&standard_input("--json -")?)?,
            Some(text) if text.trim_start().starts_with('{') => given.object = object(text)?,
            Some(text) => match text.strip_prefix('@') {
                Some(file) => given.object = object(&read_file("--json", file)?)?,
                // The text is not a JSON object, so it is not the value of `--json` but the next argument, as in `--json
                // key=value`.
                None => {
                    given.json_is_wanted = true;
                    words.push(text);
                }
            },
        }
        for word in words {
            let Some((key, value)) = word.split_once('=').filter(|(key, _)| !key.is_empty()) else {
                return Err(format!(
                    "{word:?} is no argument: write key=value, or give all arguments as --json '{{…}}'"
                ));
            };
            let is_given = given.words.iter().any(|(other, _)| other == key);
            if is_given || given.object.contains_key(key) {
                return Err(format!("the argument {key} is given twice"));
            }
            let value = match value.split_at_checked(1) {
                Some(("@", text)) if text.starts_with('@') => text.to_owned(),
                Some(("@", file)) => read_file(key, file)?,
                Some(("-", "")) => standard_input(key)?,
                _ => value.to_owned(),
            };
            given.words.push((key.to_owned(), value));
        }
        Ok(given)
    }

    /// Converts the arguments to the types in the tool's input schema.
    ///
    /// # Errors
    ///
    /// A sentence that names the argument, its expected type and its value.
    pub(super) fn typed(self, schema: &Value) -> Result<Map<String, Value>, String> {
        let mut arguments = self.object;
        for (key, text) in self.words {
            let value = match schema["properties"].get(&key) {
                Some(property) => typed(&text, property, schema)
                    .map_err(|error| format!("the argument {key} {error}"))?,
                None if schema["additionalProperties"] == false => {
                    let names = schema["properties"].as_object().into_iter().flatten();
                    let names = names.map(|(name, _)| name.as_str());
                    return Err(format!(
                        "the tool has no argument {key}{}",
                        proposal(&key, names)
                    ));
                }
                None => Value::String(text),
            };
            arguments.insert(key, value);
        }
        Ok(arguments)
    }
}

fn object(text: &str) -> Result<Map<String, Value>, String> {
    serde_json::from_str(text)
        .map_err(|error| format!("--json: the arguments are no JSON object: {error}"))
}

fn read_file(key: &str, file: &str) -> Result<String, String> {
    fs::read_to_string(file).map_err(|error| format!("{key}: the file {file}: {error}"))
}

fn standard_input(key: &str) -> Result<String, String> {
    let mut text = String::new();
    let read = std::io::stdin().read_to_string(&mut text);
    read.map_err(|error| format!("{key}: standard input: {error}"))?;
    Ok(text)
}

/// Converts a text to a JSON value that fits the schema `property`. References in the schema are resolved from `root`.
///
/// # Errors
///
/// The second half of a sentence, with the expected type and the text.
pub(super) fn typed(text: &str, property: &Value, root: &Value) -> Result<Value, String> {
    let mut types = Vec::new();
    let mut left = SCHEMAS_MAX;
    collect(property, root, &mut types, &mut left);
    let takes = |name: &str| types.contains(&name);
    let parsed: Option<Value> = serde_json::from_str(text.trim()).ok();
    if let Some(value) = parsed.filter(|value| is_of(value, &types)) {
        return Ok(value);
    }
    if types.is_empty() || takes("string") {
        return Ok(Value::String(text.to_owned()));
    }
    let shown: String = text.chars().take(60).collect();
    let hint = match takes("array") || takes("object") {
        true => ", written as JSON",
        false => "",
    };
    Err(format!(
        "must be of type {}{hint}, and is {shown:?}",
        types.join(" or ")
    ))
}

/// Returns true if the value has one of the JSON types in `types`. A string is not parsed further: `"1"` is a string, not a
/// number.
fn is_of(value: &Value, types: &[&str]) -> bool {
    let takes = |name: &str| types.contains(&name);
    match value {
        Value::Null => takes("null"),
        Value::Bool(_) => takes("boolean"),
        Value::Number(number) => {
            let is_whole = number.is_i64()
                || number.is_u64()
                || number.as_f64().is_some_and(|it| it.fract() == 0.0);
            takes("number") || (takes("integer") && is_whole)
        }
        Value::Array(_) => takes("array"),
        Value::Object(_) => takes("object"),
        Value::String(_) => false,
    }
}

/// Adds the JSON types that a schema allows to `types`. `left` is the number of schemas that may still be read.
fn collect<'a>(schema: &'a Value, root: &'a Value, types: &mut Vec<&'a str>, left: &mut usize) {
    let Some(fewer) = left.checked_sub(1) else {
        return;
    };
    *left = fewer;
    match &schema["type"] {
        Value::String(name) => types.push(name),
        Value::Array(names) => types.extend(names.iter().filter_map(Value::as_str)),
        _ => {}
    }
    if let Some(pointer) = schema["$ref"].as_str().and_then(|it| it.strip_prefix('#'))
        && let Some(referred) = root.pointer(pointer)
    {
        collect(referred, root, types, left);
    }
    for key in ["anyOf", "oneOf", "allOf"] {
        for one in schema[key].as_array().into_iter().flatten() {
            collect(one, root, types, left);
        }
    }
    if types.is_empty() {
        let constants = schema["enum"].as_array().into_iter().flatten();
        for value in constants.chain(schema.get("const")) {
            types.push(match value {
                Value::Null => "null",
                Value::Bool(_) => "boolean",
                Value::Number(_) => "number",
                Value::String(_) => "string",
                Value::Array(_) => "array",
                Value::Object(_) => "object",
            });
        }
    }
    types.sort_unstable();
    types.dedup();
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn given(words: &[&str]) -> Result<GivenArguments, String> {
        let words: Vec<_> = words.iter().map(|&it| it.to_owned()).collect();
        GivenArguments::read(&words, None)
    }

    fn schema() -> Value {
        json!({"type": "object", "additionalProperties": false, "$defs": {"Level": {"enum": [1, 2]}},
            "properties": {"name": {"type": "string"}, "count": {"type": "integer"}, "share": {"type": "number"},
                "deep": {"type": "boolean"}, "tags": {"type": "array"}, "more": {"anyOf": [{"type": "object"}, {"type": "null"}]},
                "id": {"type": ["integer", "string"]}, "level": {"$ref": "#/$defs/Level"}, "any": {}}})
    }

    #[test]
    fn schemas_that_refer_to_themselves_come_to_an_end() {
        let itself = vec![json!({"$ref": "#/properties/x"}); 40];
        let schema = json!({"properties": {"x": {"anyOf": itself}}});
        assert!(given(&["x=5"]).unwrap().typed(&schema).is_ok());
    }

    #[test]
    fn words_become_values_of_the_types_in_the_schema() {
        let words = [
            "name=5",
            "count=5",
            "share=1e3",
            "deep=true",
            "tags=[1, \"a\"]",
            "more={\"a\": null}",
            "id=7",
            "level=2",
            "any=a=b",
        ];
        let typed = given(&words).unwrap().typed(&schema()).unwrap();
        assert_eq!(
            Value::Object(typed),
            json!({"name": "5", "count": 5, "share": 1e3, "deep": true, "tags": [1, "a"], "more": {"a": null}, "id": 7,
                "level": 2, "any": "a=b"})
        );
        let typed = given(&["id=x", "more=null", "name="])
            .unwrap()
            .typed(&schema());
        let expected = json!({"id": "x", "more": null, "name": ""});
        assert_eq!(Value::Object(typed.unwrap()), expected);
    }

    #[test]
    fn a_value_of_another_type_is_refused_with_the_argument_and_the_type() {
        for (word, says) in [
            (
                "count=five",
                "the argument count must be of type integer, and is \"five\"",
            ),
            (
                "count=1.5",
                "the argument count must be of type integer, and is \"1.5\"",
            ),
            ("deep=yes", "the argument deep must be of type boolean"),
            (
                "tags=a",
                "the argument tags must be of type array, written as JSON, and is \"a\"",
            ),
            (
                "more=[]",
                "the argument more must be of type null or object",
            ),
            (
                "conut=1",
                "the tool has no argument conut; did you mean count?",
            ),
        ] {
            let error = given(&[word]).unwrap().typed(&schema()).unwrap_err();
            assert!(error.starts_with(says), "{error}");
        }
        for (words, says) in [
            (&["count"][..], "is no argument"),
            (&["=1"], "is no argument"),
            (&["a=1", "a=2"], "given twice"),
        ] {
            let error = given(words).unwrap_err();
            assert!(error.contains(says), "{error}");
        }
    }

    #[test]
    fn values_come_from_files_and_objects() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("text");
        fs::write(&file, "two\nlines\n").unwrap();
        let word = format!("name=@{}", file.display());
        let typed = given(&[&word]).unwrap().typed(&schema()).unwrap();
        assert_eq!(typed["name"], "two\nlines\n");
        let typed = given(&["name=@@at"]).unwrap().typed(&schema()).unwrap();
        assert_eq!(typed["name"], "@at");
        assert!(given(&["name=@/no/such"]).unwrap_err().contains("/no/such"));

        let both = GivenArguments::read(&["count=1".to_owned()], Some(r#"{"any": [2]}"#)).unwrap();
        assert!(!both.json_is_wanted);
        let typed = both.typed(&schema()).unwrap();
        assert_eq!(Value::Object(typed), json!({"any": [2], "count": 1}));
        let output = GivenArguments::read(&[], Some("count=1")).unwrap();
        assert!(output.json_is_wanted && output.words.len() == 1);
        assert!(GivenArguments::read(&[], Some("")).unwrap().json_is_wanted);
        assert!(GivenArguments::read(&[], Some("{")).is_err());
    }
}
