//! One resource or resource template as a worker declared it. Nothing here reads its content or matches templates: the
//! worker does.

use std::borrow::Cow;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::definition::Announced;

/// A resource of a namespace.
#[derive(Debug, Clone, Deserialize)]
#[serde(try_from = "Announced")]
pub struct Resource {
    /// What clients read it by.
    pub uri: Arc<str>,
    /// The MCP object exactly as `resources/list` shows it.
    pub definition: Arc<RawValue>,
    /// The file it was found in, relative to its namespace folder.
    pub filename: String,
    /// Whether its function takes a context, and so may report, log and ask.
    pub context: bool,
}

/// A family of resources.
#[derive(Debug, Clone, Deserialize)]
#[serde(try_from = "Announced")]
pub struct ResourceTemplate {
    /// The pattern of their URIs (RFC 6570).
    pub uri_template: Arc<str>,
    /// The MCP object exactly as `resources/templates/list` shows it.
    pub definition: Arc<RawValue>,
    /// The file it was found in, relative to its namespace folder.
    pub filename: String,
    /// Whether its function takes a context, and so may report, log and ask.
    pub context: bool,
}

impl TryFrom<Announced> for Resource {
    type Error = String;

    fn try_from(announced: Announced) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct Key<'a> {
            #[serde(borrow)]
            uri: Cow<'a, str>,
        }
        let uri = Arc::from(announced.key::<Key<'_>>()?.uri);
        Ok(Self {
            uri,
            definition: announced.definition,
            filename: announced.filename,
            context: announced.context,
        })
    }
}

impl TryFrom<Announced> for ResourceTemplate {
    type Error = String;

    fn try_from(announced: Announced) -> Result<Self, String> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Key<'a> {
            #[serde(borrow)]
            uri_template: Cow<'a, str>,
        }
        let uri_template = Arc::from(announced.key::<Key<'_>>()?.uri_template);
        Ok(Self {
            uri_template,
            definition: announced.definition,
            filename: announced.filename,
            context: announced.context,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_definition_stays_as_it_is_and_gives_the_key() {
        let line = r#"{"definition": {"uri":"a:\/\/b",  "name":"n"}, "filename": "x.py", "context": true, "new": 1}"#;
        let resource: Resource = serde_json::from_str(line).unwrap();
        assert_eq!(&*resource.uri, "a://b");
        assert_eq!(
            resource.definition.get(),
            r#"{"uri":"a:\/\/b",  "name":"n"}"#
        );
        assert!(resource.context && resource.filename == "x.py");

        let line = r#"{"definition": {"uriTemplate":"a://{b}"}}"#;
        let template: ResourceTemplate = serde_json::from_str(line).unwrap();
        assert_eq!(&*template.uri_template, "a://{b}");
        assert!(!template.context);
    }

    #[test]
    fn a_definition_without_its_key_is_refused() {
        for line in [
            "{}",
            r#"{"definition": {}}"#,
            r#"{"definition": {"uri": 1}}"#,
            r#"{"definition": ["a://b"]}"#,
            r#"{"definition": null}"#,
        ] {
            assert!(serde_json::from_str::<Resource>(line).is_err(), "{line}");
            assert!(
                serde_json::from_str::<ResourceTemplate>(line).is_err(),
                "{line}"
            );
        }
    }
}
