//! Tools for tool files: `list_tools`, `get_tool_source`, `write_tool` (and its other name `generate_tool`), `delete_tool`.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tooldock_base::effect::Effect;
use tooldock_base::error::CallError;
use tooldock_base::names::NamespaceName;
use tooldock_workers::manage::{TOOL_FILE_BYTES_MAX, ToolFileName};

use super::super::Management;
use super::super::core::{CoreNamespace, CoreRequest};
use super::super::parameters::{File, FileVersion, InNamespace, Namespace};
use super::super::tool::{Hints, ManagementTool, Progress, refused};

/// Advice at the end of an error for a model that sent wrong code. The web API leaves it out: its users upload files.
pub const CALL_AGAIN: &str = ". Mend the code and call write_tool again";

/// Parameters that name a file of a namespace.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct FileOf {
    namespace: Namespace,
    /// As list_tools shows it, such as issues.py.
    filename: File,
}

/// Parameters that name a file of a namespace, in its current or an earlier version.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct VersionOf {
    namespace: Namespace,
    /// Such as issues.py or _helpers.py; of an earlier version .history/issues.py.3.
    filename: FileVersion,
}

/// The tool `get_tool_source`, which reads a tool file.
pub(in super::super) struct GetToolSource;

#[derive(Debug, Serialize, JsonSchema)]
pub(in super::super) struct ToolFileSource {
    filename: String,
    /// The code of the file.
    source: String,
}

impl ManagementTool for GetToolSource {
    const NAME: &'static str = "get_tool_source";
    const DESCRIPTION: &'static str = "Read the code of a tool file, a helper module (_name.py), or an earlier version (the path in \
        previous_version). After calling: to change a tool, edit the code and give all of it to write_tool; \
        to go back, give the earlier code to write_tool under the file's own name.";
    const HINTS: Hints = Hints::READS;
    const EFFECTS: &'static [Effect] = &[Effect::ReadsCode];
    type Parameters = VersionOf;
    type Outcome = ToolFileSource;

    async fn run(
        management: Arc<Management>,
        VersionOf {
            namespace: Namespace(namespace),
            filename: FileVersion(filename),
        }: VersionOf,
        _: Progress,
    ) -> Result<ToolFileSource, CallError> {
        let source = management
            .workspace
            .tool_source(&namespace, &filename)
            .await?;
        Ok(ToolFileSource {
            filename: filename.to_string(),
            source,
        })
    }
}

/// The tool `delete_tool`, which removes a tool file.
pub(in super::super) struct DeleteTool;

#[derive(Debug, Serialize, JsonSchema)]
pub(in super::super) struct DeletedTool {
    deleted: bool,
    filename: String,
    /// The path of the copy that is kept of the removed code, relative to the namespace's folder.
    #[serde(skip_serializing_if = "Option::is_none")]
    previous_version: Option<String>,
}

impl ManagementTool for DeleteTool {
    const NAME: &'static str = "delete_tool";
    const DESCRIPTION: &'static str = "Remove a tool file with all its tools; previous_version in the result says where its code is kept. \
        Ask the user first. After calling: reload_core.";
    const HINTS: Hints = Hints::REPLACES.not_idempotent();
    const EFFECTS: &'static [Effect] = &[Effect::DeletesTools];
    type Parameters = FileOf;
    type Outcome = DeletedTool;

    async fn run(
        management: Arc<Management>,
        FileOf {
            namespace: Namespace(namespace),
            filename: File(filename),
        }: FileOf,
        _: Progress,
    ) -> Result<DeletedTool, CallError> {
        let changed = management
            .workspace
            .delete_tool_file(&namespace, &filename)
            .await?;
        Ok(DeletedTool {
            deleted: true,
            filename: filename.to_string(),
            previous_version: changed.previous,
        })
    }
}

/// The tool `list_tools`: the tools that the files of a namespace declare.
pub(in super::super) struct ListTools;

#[derive(Debug, Serialize, JsonSchema)]
pub(in super::super) struct DeclaredTool {
    name: String,
    description: String,
    /// The file that declares the tool.
    filename: String,
}

impl ManagementTool for ListTools {
    const NAME: &'static str = "list_tools";
    const DESCRIPTION: &'static str = "List the tools that the files of a namespace declare now; the core serves changes after reload_core. \
        Files with invalid Python or more than 1 MiB, and tools that cannot be served, are left out. After \
        calling: get_tool_source or test_tool.";
    const HINTS: Hints = Hints::READS;
    const EFFECTS: &'static [Effect] = &[Effect::ReadsState];
    type Parameters = InNamespace;
    type Outcome = Vec<DeclaredTool>;

    async fn run(
        management: Arc<Management>,
        InNamespace {
            namespace: Namespace(namespace),
        }: InNamespace,
        _: Progress,
    ) -> Result<Vec<DeclaredTool>, CallError> {
        let inspected = match management.workspace.declared(&namespace).await {
            Ok(inspected) => inspected,
            Err(_) if is_without_files(&management, &namespace).await => {
                return Err(refused(format!(
                    "{namespace} is a server that others wrote: it has no tool files here, and lists its tools to its own \
                     clients. list_namespaces says how many they are, test_tool runs one"
                )));
            }
            Err(error) => return Err(error.into()),
        };
        let tools = inspected.into_iter().flat_map(|file| {
            let filename = file.filename;
            let servable = file.tools.into_iter().filter(|tool| tool.problem.is_none());
            servable.map(move |tool| DeclaredTool {
                name: tool.name,
                description: tool.description,
                filename: filename.clone(),
            })
        });
        Ok(tools.collect())
    }
}

/// Returns true if the core serves the namespace although it has no folder of tool files.
async fn is_without_files(management: &Management, namespace: &NamespaceName) -> bool {
    if management.workspace.exists(namespace).await.is_ok() {
        return false;
    }
    let served = management.ask_core::<Vec<CoreNamespace>>(CoreRequest::Namespaces);
    let served = served.await.unwrap_or_default();
    served.iter().any(|it| it.name == namespace.as_str())
}

/// The tool `write_tool`, which writes a tool file.
pub(in super::super) struct WriteTool;

/// The tool `generate_tool`: [`WriteTool`] under its other name (BLD-05).
pub(in super::super) struct GenerateTool;

/// Parameters of `write_tool`: the code for a file. The file name is checked by the tool and not while the parameters are read,
/// so that the response can explain a fault.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct Code {
    namespace: Namespace,
    /// Such as issues.py, or _helpers.py for a helper module.
    filename: String,
    /// The whole code of the file, at most 1 MiB.
    code: String,
}

#[derive(Debug, Default, Serialize, JsonSchema)]
pub(in super::super) struct WriteReport {
    /// True if the file was written; false if nothing was changed.
    written: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    filename: Option<String>,
    /// The tools that the code declares, without those in `issues`.
    #[serde(skip_serializing_if = "Option::is_none")]
    tools_found: Option<Vec<String>>,
    /// Functions with `@tool` that the core will not serve, with the reasons. The file was written nevertheless.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    issues: Vec<String>,
    /// True if the file already contained exactly this code, so that nothing was written and no earlier version was kept.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    unchanged: bool,
    /// The path of the copy of the replaced code, relative to the namespace's folder. Absent for a new file.
    #[serde(skip_serializing_if = "Option::is_none")]
    previous_version: Option<String>,
    /// The reason why the file was not written; absent if it was.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    /// The position of the fault in the code, and its remedy.
    #[serde(skip_serializing_if = "Option::is_none")]
    details: Option<String>,
}

impl WriteReport {
    fn refused(error: impl Into<String>, details: impl Into<String>) -> Self {
        Self {
            error: Some(error.into()),
            details: Some(details.into()),
            ..Self::default()
        }
    }
}

impl ManagementTool for WriteTool {
    const NAME: &'static str = "write_tool";
    const DESCRIPTION: &'static str = "Write a Python file with tools into a namespace, in place of a file of that name. The code is \
        checked, not run: valid syntax, at least one function with @tool (from fastmcp.tools import tool), \
        type hints on all parameters, a docstring on each tool. If written is false, mend what details says \
        and call again; functions in issues are not served until mended. Code that files share goes into a \
        helper module, filename _name.py, without @tool, imported as `from _name import …`. Secrets are read \
        as environment variables, never written into the code. get_tool_source reads the code before \
        (previous_version). After calling: add_requirement(namespace, package) for each package that the \
        code imports, then reload_core, then test_tool.";
    const HINTS: Hints = Hints::REPLACES;
    const EFFECTS: &'static [Effect] = &[Effect::RunsCode];
    type Parameters = Code;
    type Outcome = WriteReport;

    async fn run(
        management: Arc<Management>,
        code: Code,
        _: Progress,
    ) -> Result<WriteReport, CallError> {
        write(&management, code).await
    }
}

impl ManagementTool for GenerateTool {
    const NAME: &'static str = "generate_tool";
    const DESCRIPTION: &'static str = "The same as write_tool, for code made from a repository. After calling: add_requirement, \
        reload_core, test_tool.";
    const HINTS: Hints = Hints::REPLACES;
    const EFFECTS: &'static [Effect] = &[Effect::RunsCode];
    type Parameters = Code;
    type Outcome = WriteReport;

    async fn run(
        management: Arc<Management>,
        code: Code,
        _: Progress,
    ) -> Result<WriteReport, CallError> {
        write(&management, code).await
    }
}

async fn write(management: &Management, code: Code) -> Result<WriteReport, CallError> {
    let Code {
        namespace: Namespace(namespace),
        filename,
        code,
    } = code;
    let filename: ToolFileName = match filename.parse() {
        Ok(filename) => filename,
        Err(error) => return Ok(WriteReport::refused("Invalid filename", format!("{error}"))),
    };
    if code.len() > TOOL_FILE_BYTES_MAX {
        let details = format!(
            "the code has {} bytes; {TOOL_FILE_BYTES_MAX} are allowed. Split it into several files",
            code.len()
        );
        return Ok(WriteReport::refused("Code is too large", details));
    }
    management.workspace.exists(&namespace).await?;
    let file = (filename.to_string(), code);
    let inspected = management
        .workspace
        .inspect(std::slice::from_ref(&file))
        .await?;
    let Some(inspected) = inspected.into_iter().next() else {
        return Err(refused("Python did not answer about the code. Try again"));
    };
    if let Some(fault) = inspected.fault() {
        let details = format!("{}{CALL_AGAIN}", fault.details);
        return Ok(WriteReport::refused(fault.error, details));
    }
    let workspace = &management.workspace;
    let changed = workspace
        .write_tool_file(&namespace, &filename, file.1)
        .await?;
    let found = inspected.servable().map(|tool| tool.name.clone());
    Ok(WriteReport {
        written: true,
        filename: Some(filename.to_string()),
        tools_found: Some(found.collect()),
        issues: inspected.issues(),
        unchanged: changed.unchanged,
        previous_version: changed.previous,
        ..WriteReport::default()
    })
}
