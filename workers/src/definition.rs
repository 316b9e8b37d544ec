//! What resources, templates and prompts have in common: how a worker announces them.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::value::RawValue;

/// One entry of a worker's ready line.
#[derive(Debug, Deserialize)]
pub(crate) struct Announced {
    /// The MCP object as lists show it.
    pub(crate) definition: Arc<RawValue>,
    #[serde(default)]
    pub(crate) filename: String,
    #[serde(default)]
    pub(crate) context: bool,
}

impl Announced {
    /// Reads what we need to know of the definition; the rest stays as it is.
    ///
    /// # Errors
    ///
    /// What is wrong with it: it is no object, or a member is missing or of the wrong kind.
    pub(crate) fn key<'a, T: Deserialize<'a>>(&'a self) -> Result<T, String> {
        let text = self.definition.get();
        // serde would read an array as a struct, member by member.
        if !text.trim_ascii_start().starts_with('{') {
            return Err("a definition must be an object".into());
        }
        serde_json::from_str(text).map_err(|error| format!("in a definition: {error}"))
    }
}
