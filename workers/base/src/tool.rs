//! A tool as declared by a worker.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::value::RawValue;

/// A tool of a namespace. Schemas and annotations are stored as the raw JSON that the worker sent, without parsing.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Tool {
    /// Name of the tool, by which clients call it: the name of its function.
    pub name: Arc<str>,
    /// Title of the tool for people, if the author gave one or the worker derived one.
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
    /// True if the tool's function has a context parameter, with which it may report progress, log, and send questions to the
    /// client.
    #[serde(default)]
    pub context: bool,
    /// The calls that run as tasks; `None` if every call is a part of its request.
    #[serde(default)]
    pub task: Option<TaskSupport>,
    /// True if the first questions of the function come before its task.
    #[serde(default)]
    pub ask_first: bool,
}

/// The kinds of calls of a tool that can run as a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TaskSupport {
    /// A call is a task if its client knows tasks.
    Optional,
    /// Every call is a task. Clients that do not know tasks cannot call the tool.
    Required,
}

impl TaskSupport {
    /// The value of MCP's `execution.taskSupport`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Optional => "optional",
            Self::Required => "required",
        }
    }
}
