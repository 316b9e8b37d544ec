//! A tool as a worker declared it.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::value::RawValue;

/// A tool of a namespace. Schemas and annotations are kept as the raw JSON that the worker sent, and not parsed.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Tool {
    /// Function name, by which clients call the tool.
    pub name: Arc<str>,
    /// Human title, if the author gave one or the worker derived one.
    #[serde(default)]
    pub title: Option<String>,
    /// Description of the tool: the function's docstring.
    #[serde(default)]
    pub description: String,
    /// JSON Schema of the arguments; always an object schema.
    pub input_schema: Arc<RawValue>,
    /// JSON Schema of `structuredContent`, if it can be derived from the return type.
    #[serde(default)]
    pub output_schema: Option<Arc<RawValue>>,
    /// MCP tool annotations (`readOnlyHint`, …), verbatim.
    #[serde(default)]
    pub annotations: Option<Arc<RawValue>>,
    /// MCP `icons`, a JSON array, verbatim.
    #[serde(default)]
    pub icons: Option<Arc<RawValue>>,
    /// MCP `_meta` of the tool, verbatim.
    #[serde(default, rename = "_meta")]
    pub meta: Option<Arc<RawValue>>,
    /// The file that declares the tool, relative to its namespace folder.
    #[serde(default)]
    pub filename: String,
    /// True if the tool's function takes a context, and so may report progress, log and ask.
    #[serde(default)]
    pub context: bool,
}
