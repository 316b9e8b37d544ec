//! Files of a namespace, as its worker reports them.

/// A Python file of a namespace, as reported by the worker that loaded it.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct SourceFile {
    /// Name of the file in the namespace's folder.
    pub file: String,
    /// The use that the worker made of the file. Values: `decorators`, `register_tools`, `function` (a way in which the file
    /// declares tools), or `skipped`.
    #[serde(alias = "takenFor")]
    pub taken_for: String,
    /// Number of tools in the file.
    pub tools: usize,
    /// Reason why the file was skipped; `None` if it was loaded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}
