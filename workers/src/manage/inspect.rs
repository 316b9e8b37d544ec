//! Declarations in tool files, read from their syntax trees by Python's own parser. The parser runs in a child process with
//! limits on memory and time. No code of a tool file is run.

use serde::Deserialize;
use serde_json::json;

use super::{NotDone, Workspace};

/// Python program that reads `{"files": [[name, source], …]}`, and writes one line of JSON per file: a [`FileInspection`].
pub(crate) const INSPECT_SCRIPT: &str = include_str!("inspect.py");

/// Result of parsing a tool file.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct FileInspection {
    /// Name of the parsed file.
    pub filename: String,
    /// The reason why the file is not valid Python; `None` if it is valid.
    pub error: Option<String>,
    /// The functions with a tool decorator, in the order of the file.
    pub tools: Vec<FoundTool>,
}

/// A function with a tool decorator.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct FoundTool {
    /// Name by which clients call the tool.
    pub name: String,
    /// The function's docstring, or the description in the decorator.
    pub description: String,
    /// Number of the line in which the function begins.
    pub line: u32,
    /// The function's parameters without type hints.
    pub untyped: Vec<String>,
    /// True if the function has a docstring.
    pub documented: bool,
    /// The reason why the gateway would not serve the tool, if the file's text shows one.
    pub problem: Option<String>,
}

/// A problem in the code of a tool file: a short, stable reason, and the remedy. The remedy does not mention how the corrected
/// code is sent, because that differs: people upload a file, models call a tool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// The reason, as a constant text by which callers can recognize it.
    pub error: &'static str,
    /// The position of the problem in the file, and the remedy.
    pub details: String,
}

/// The reason why a helper module serves no tools.
const IN_HELPER: &str = "a file whose name begins with '_' is imported by other files and serves no tools; put the tool into a file \
     whose name begins with a letter";

impl FileInspection {
    fn is_helper(&self) -> bool {
        self.filename.starts_with('_')
    }

    /// The tools that the gateway would serve, as far as the file's text shows.
    pub fn servable(&self) -> impl Iterator<Item = &FoundTool> {
        let is_helper = self.is_helper();
        let tools = self.tools.iter();
        tools.filter(move |tool| !is_helper && tool.problem.is_none())
    }

    /// The reasons why the gateway would not serve some of the file's tools, as one line for each of these tools.
    pub fn issues(&self) -> Vec<String> {
        let told = |tool: &FoundTool| {
            let problem = match self.is_helper() {
                true => IN_HELPER,
                false => tool.problem.as_deref()?,
            };
            let (line, name) = (tool.line, &tool.name);
            Some(format!("line {line}: {name} will not be served: {problem}"))
        };
        self.tools.iter().filter_map(told).collect()
    }

    /// Returns the first problem because of which the file may not be written (MGR-09). A file without tools is such a
    /// problem, except for a helper module.
    pub fn fault(&self) -> Option<Fault> {
        let fault = |error, details| Some(Fault { error, details });
        if let Some(reason) = &self.error {
            return fault("Invalid Python syntax", reason.clone());
        }
        if self.is_helper() {
            return None;
        }
        if self.tools.is_empty() {
            return fault(
                "No @tool decorator found",
                "Put `from fastmcp.tools import tool` at the top and `@tool` before at least one function".to_owned(),
            );
        }
        for tool in &self.tools {
            if !tool.untyped.is_empty() {
                return fault(
                    "Missing type hints",
                    format!(
                        "line {}: {} has parameters without a type hint: {}. Write them as `name: str`",
                        tool.line,
                        tool.name,
                        tool.untyped.join(", ")
                    ),
                );
            }
        }
        let bare = self.tools.iter().find(|tool| !tool.documented)?;
        fault(
            "Missing docstring",
            format!(
                "line {}: {} has no docstring. Put one below its `def`: it tells a model what the tool does",
                bare.line, bare.name
            ),
        )
    }
}

impl Workspace {
    /// Inspects files, each given as a name and its source. The results are in the order of the files.
    ///
    /// # Errors
    ///
    /// When Python cannot be run.
    pub async fn inspect(
        &self,
        files: &[(String, String)],
    ) -> Result<Vec<FileInspection>, NotDone> {
        if files.is_empty() {
            return Ok(Vec::new());
        }
        let input = json!({ "files": files }).to_string().into_bytes();
        let output = self.environments.run_script(INSPECT_SCRIPT, input).await;
        let output = output.map_err(|error| NotDone(error.to_string()))?;
        serde_json::from_slice(&output)
            .map_err(|error| NotDone(format!("Python's answer is not understood: {error}")))
    }
}
