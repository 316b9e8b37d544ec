//! An OpenAPI document as a JSON value, in the form of version 3.

use std::fmt;

use serde::de::{
    DeserializeSeed, Deserializer, EnumAccess, Error, MapAccess, SeqAccess, VariantAccess, Visitor,
};
use serde_json::{Map, Value};
use tooldock_base::yaml::{self, Allowance, Bounds};

use crate::budget::Spent;
use crate::swagger;

/// Maximum length of a server's URL in a document, in characters.
const URL_MAX: usize = 2_000;
/// Maximum number of a server's variables that are replaced.
const VARIABLES_MAX: usize = 100;
/// Maximum size of a document, in bytes.
pub const DOCUMENT_MAX: usize = 16 * 1024 * 1024;
/// Bounds of a document's values.
const BOUNDS: Bounds = Bounds {
    values: 2_000_000,
    texts: 64 * 1024 * 1024,
    depth: 128,
};
/// Maximum length of a reference after its `#`, in bytes. Longer references lead nowhere.
const REFERENCE_MAX: usize = 500;
/// Maximum number of values in a chain of references, including the value at its end. Longer chains lead nowhere.
const CHAIN_MAX: usize = 8;

/// Reason why a document cannot be used, worded to follow "the document".
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DocumentError {
    /// The document is larger than [`DOCUMENT_MAX`].
    #[error("has more than {} MiB, which is the most that is read", DOCUMENT_MAX / (1024 * 1024))]
    TooLarge,
    /// The text can be parsed neither as JSON nor as YAML.
    #[error("is neither JSON nor YAML: {0}")]
    Unreadable(String),
    /// The text has so many brackets for its size that the YAML parser could take longer than about a second.
    #[error("has too many brackets to be read as YAML in time: use JSON")]
    Brackets,
    /// The text has neither a member `openapi` nor a member `swagger` with a version.
    #[error("is no OpenAPI document: it has neither openapi nor swagger")]
    NotOpenApi,
    /// The version of the document is not supported.
    #[error("has version {0:?}; 2.0, 3.0 and 3.1 can be read")]
    Version(String),
    /// The document has no operation, or none that is selected.
    #[error("has no operation that include and exclude select")]
    NoneSelected,
    /// None of the selected operations can be a tool. Contains a sentence about one of them.
    #[error("has no operation that can be served; for instance, {0}")]
    Empty(String),
}

/// A parsed OpenAPI document. Documents of version 2.0 are converted to version 3.0.
#[derive(Debug, Clone, PartialEq)]
pub struct Document {
    root: Value,
}

impl Document {
    /// Parses a document in JSON or YAML.
    ///
    /// # Errors
    ///
    /// When the text is not a supported document.
    pub fn parse(text: &[u8]) -> Result<Self, DocumentError> {
        if text.len() > DOCUMENT_MAX {
            return Err(DocumentError::TooLarge);
        }
        let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
        let unreadable = |error: &dyn std::fmt::Display| {
            let words: String = error.to_string().chars().take(200).collect();
            DocumentError::Unreadable(words)
        };
        let first = text.iter().find(|byte| !byte.is_ascii_whitespace());
        let root: Value = match first {
            Some(b'{' | b'[')
                if serde_json::from_slice::<&serde_json::value::RawValue>(text).is_ok() =>
            {
                let mut json = serde_json::Deserializer::from_slice(text);
                let left = BOUNDS.left();
                let root = ValueSeed(left.allowance()).deserialize(&mut json);
                root.map_err(|error| unreadable(&error))?
            }
            _ if !yaml::readable_in_time(text) => return Err(DocumentError::Brackets),
            _ => {
                let left = BOUNDS.left();
                let yaml = yaml::Deserializer::from_slice(text);
                let root = ValueSeed(left.allowance()).deserialize(yaml);
                root.map_err(|error| unreadable(&error))?
            }
        };
        let version = |key: &str| match root.get(key)? {
            Value::String(text) => Some(text.clone()),
            Value::Number(number) => Some(number.to_string()),
            _ => None,
        };
        match (version("openapi"), version("swagger")) {
            (Some(version), _) if version.starts_with("3.0") || version.starts_with("3.1") => {
                Ok(Self { root })
            }
            (None, Some(version)) if version == "2.0" => match swagger::converted(root) {
                Ok(root) => Ok(Self { root }),
                Err(Spent) => Err(unreadable(&"its values are too many or too large")),
            },
            (Some(version), _) | (None, Some(version)) => {
                Err(DocumentError::Version(version.chars().take(20).collect()))
            }
            (None, None) => Err(DocumentError::NotOpenApi),
        }
    }

    /// Returns the URL of the first server in the document's `servers`; `None` if there is none. The URL may be relative.
    /// Variables are replaced by their default values. A URL is cut after 2,000 characters.
    pub fn server_url(&self) -> Option<String> {
        let cut = |text: &str| text.chars().take(URL_MAX).collect::<String>();
        let server = self.root.get("servers")?.get(0)?;
        let mut url = cut(server.get("url")?.as_str()?);
        let variables = server.get("variables").and_then(Value::as_object);
        for (name, variable) in variables.into_iter().flatten().take(VARIABLES_MAX) {
            if let Some(default) = variable.get("default").and_then(Value::as_str) {
                // Cut after each variable: a default may contain the variables that follow.
                url = cut(&url.replace(&format!("{{{name}}}"), &cut(default)));
            }
        }
        Some(url)
    }

    /// Returns a member of the document's root.
    pub(crate) fn member(&self, key: &str) -> Option<&Value> {
        self.root.get(key)
    }

    /// Returns the value that a `$ref` leads to, through further references if there are any, or `value` itself if it has no
    /// `$ref`. `None` if a reference leads nowhere, to another document, or in a circle.
    pub(crate) fn resolve<'d>(&'d self, value: &'d Value) -> Option<&'d Value> {
        let mut value = value;
        for _ in 0..CHAIN_MAX {
            let Some(reference) = reference(value) else {
                return Some(value);
            };
            value = self.at(reference)?;
        }
        None
    }

    /// Returns the value at a reference such as `#/components/schemas/Pet`, which may be a reference itself.
    pub(crate) fn at(&self, reference: &str) -> Option<&Value> {
        let pointer = reference.strip_prefix('#')?;
        if pointer.len() > REFERENCE_MAX {
            return None;
        }
        if pointer.contains('%') {
            let decoded = percent_encoding::percent_decode_str(pointer)
                .decode_utf8()
                .ok()?;
            return self.root.pointer(&decoded);
        }
        self.root.pointer(pointer)
    }
}

/// Returns the `$ref` of a value; `None` if the value has none.
pub(crate) fn reference(value: &Value) -> Option<&str> {
    value.get("$ref")?.as_str()
}

/// Deserializer of a JSON or YAML value within the bounds of a document. Keys that are numbers, such as the status codes of
/// responses, become strings.
#[derive(Clone, Copy)]
struct ValueSeed<'a>(Allowance<'a>);

impl ValueSeed<'_> {
    fn inside<E: Error>(self) -> Result<Self, E> {
        self.0.inside().map(Self)
    }
}

impl<'de> DeserializeSeed<'de> for ValueSeed<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, input: D) -> Result<Value, D::Error> {
        self.0.value()?;
        input.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for ValueSeed<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, input: D) -> Result<Value, D::Error> {
        input.deserialize_any(self)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i128<E>(self, value: i128) -> Result<Value, E> {
        Ok((value as f64).into())
    }

    fn visit_u128<E>(self, value: u128) -> Result<Value, E> {
        Ok((value as f64).into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Value, E> {
        self.0.text(value)?;
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let seed = self.inside()?;
        let mut out = Vec::new();
        while let Some(item) = items.next_element_seed(seed)? {
            out.push(item);
        }
        Ok(Value::Array(out))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let seed = self.inside()?;
        let mut members = Map::new();
        while let Some(key) = entries.next_key_seed(seed)? {
            let value = entries.next_value_seed(seed)?;
            let key = match key {
                Value::String(key) => key,
                key @ (Value::Number(_) | Value::Bool(_)) => key.to_string(),
                _ => continue,
            };
            members.insert(key, value);
        }
        Ok(Value::Object(members))
    }

    /// Reads a value with a tag of YAML, and drops the tag.
    fn visit_enum<A: EnumAccess<'de>>(self, tagged: A) -> Result<Value, A::Error> {
        let seed = self.inside()?;
        let (_, value) = tagged.variant_seed(seed)?;
        value.newtype_variant_seed(seed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn yaml_and_json_lead_to_the_same_document() {
        let yaml = "openapi: 3.0.3\npaths:\n  /a:\n    get:\n      responses:\n        200: { description: Fine }\n";
        let json = r#"{"openapi":"3.0.3","paths":{"/a":{"get":{"responses":{"200":{"description":"Fine"}}}}}}"#;
        assert_eq!(
            Document::parse(yaml.as_bytes()),
            Document::parse(json.as_bytes())
        );
        assert!(Document::parse(json.as_bytes()).is_ok());
    }

    #[test]
    fn a_text_that_is_no_document_is_refused_in_one_sentence() {
        for (text, said) in [
            ("{", "is neither JSON nor YAML"),
            ("[]", "is no OpenAPI document"),
            ("a: 1", "is no OpenAPI document"),
            (
                "openapi: 4.0.0",
                "has version \"4.0.0\"; 2.0, 3.0 and 3.1 can be read",
            ),
            ("swagger: '1.2'", "has version \"1.2\""),
        ] {
            let error = Document::parse(text.as_bytes())
                .expect_err(text)
                .to_string();
            assert!(error.starts_with(said), "{text}: {error}");
            assert!(!error.contains('\n'), "{text}: {error}");
        }
    }

    #[test]
    fn a_document_of_50_mb_is_refused_before_it_is_parsed() {
        let large = vec![b'['; 50_000_000];
        assert_eq!(Document::parse(&large), Err(DocumentError::TooLarge));
    }

    #[test]
    fn aliases_that_expand_without_end_are_refused() {
        let mut text = "openapi: 3.0.0\na0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
        for level in 1..9 {
            let before = format!("*a{}, ", level - 1).repeat(10);
            text += &format!("a{level}: &a{level} [{before}]\n");
        }
        let error = Document::parse(text.as_bytes()).expect_err("too many values");
        assert!(matches!(error, DocumentError::Unreadable(_)), "{error}");
    }

    #[test]
    fn too_many_values_and_texts_of_aliases_are_refused() {
        let values = format!(
            "{{\"openapi\":\"3.0.0\",\"a\":[1{}]}}",
            ",1".repeat(BOUNDS.values)
        );
        let aliases = format!(
            "b: &b {}\nc:\n{}",
            "x".repeat(1_000_000),
            "- *b\n".repeat(100)
        );
        for text in [values, format!("openapi: 3.0.0\n{aliases}")] {
            let error = Document::parse(text.as_bytes()).expect_err("too large");
            assert!(error.to_string().contains("with each alias"), "{error}");
        }
    }

    #[test]
    fn references_in_a_circle_lead_nowhere() {
        let text = r##"{"openapi":"3.1.0","a":{"$ref":"#/b"},"b":{"$ref":"#/a"},"c":{"$ref":"#/paths/~1a~1{id}"},
            "paths":{"/a/{id}":{"x":1}}}"##;
        let document = Document::parse(text.as_bytes()).expect("a document");
        assert_eq!(document.resolve(document.member("a").unwrap()), None);
        let found = document.resolve(document.member("c").unwrap());
        assert_eq!(found, Some(&serde_json::json!({ "x": 1 })));
    }

    #[test]
    fn variables_of_the_server_url_have_their_defaults() {
        let text = r#"{"openapi":"3.0.0","servers":[{"url":"https://{host}/v1","variables":{"host":{"default":"a.example"}}}]}"#;
        let document = Document::parse(text.as_bytes()).expect("a document");
        assert_eq!(
            document.server_url().as_deref(),
            Some("https://a.example/v1")
        );
    }
}
