//! One prompt as a worker declared it. Nothing here reads its arguments.

use std::borrow::Cow;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::definition::Announced;

/// A prompt of a namespace.
#[derive(Debug, Clone, Deserialize)]
#[serde(try_from = "Announced")]
pub struct Prompt {
    /// What clients get it by.
    pub name: Arc<str>,
    /// The MCP object exactly as `prompts/list` shows it.
    pub definition: Arc<RawValue>,
    /// The file it was found in, relative to its namespace folder.
    pub filename: String,
    /// Whether its function takes a context, and so may report, log and ask.
    pub context: bool,
}

impl TryFrom<Announced> for Prompt {
    type Error = String;

    fn try_from(announced: Announced) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct Key<'a> {
            #[serde(borrow)]
            name: Cow<'a, str>,
        }
        let name = Arc::from(announced.key::<Key<'_>>()?.name);
        Ok(Self {
            name,
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
    fn a_prompt_is_known_by_the_name_in_its_definition() {
        let line = r#"{"definition": {"name":"greet", "arguments":[]}, "filename": "p.py"}"#;
        let prompt: Prompt = serde_json::from_str(line).unwrap();
        assert_eq!(&*prompt.name, "greet");
        assert_eq!(
            prompt.definition.get(),
            r#"{"name":"greet", "arguments":[]}"#
        );
        assert!(serde_json::from_str::<Prompt>(r#"{"definition": {"title":"x"}}"#).is_err());
    }
}
