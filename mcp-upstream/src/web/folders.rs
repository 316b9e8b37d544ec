//! `/api/folders`: the folders of namespaces, which contain tool files (GUI-04).

use std::sync::Arc;

use http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};
use tooldock_base::names::NamespaceName;
use tooldock_sessions::caller::Caller;

use super::answer::{Answer, WebFailure, json_of, with_status};
use super::request::{ApiRequest, namespace};
use super::tools::{call, management, reload_soon};
use crate::mcp::Core;

/// Maximum number of folders that are not served yet and whose files are read for one list.
const LOOKS_MAX: usize = 50;

pub(super) async fn list(core: &Arc<Core>, caller: &Caller, request: &ApiRequest) -> Answer {
    let workspace = Arc::clone(&management(core)?.workspace);
    let wanted = request.wanted();
    let folders = workspace.namespaces().await?;
    let snapshot = core.registry.snapshot();
    let mut all = Vec::new();
    let mut looks = 0;
    for folder in folders {
        if !folder.name.as_str().contains(&wanted) {
            continue;
        }
        let served = snapshot.namespaces.get(folder.name.as_str());
        let tools: Vec<String> = match served {
            Some(namespace) => namespace
                .tools
                .iter()
                .map(|tool| tool.name.to_string())
                .collect(),
            None if looks < LOOKS_MAX => {
                looks += 1;
                declared(core, &folder.name).await.unwrap_or_default()
            }
            None => Vec::new(),
        };
        all.push(entry(caller, &folder.name, &tools));
    }
    request.page("folders", all, json!({}))
}

/// The tools that the files of a folder declare.
async fn declared(core: &Arc<Core>, name: &NamespaceName) -> Result<Vec<String>, WebFailure> {
    let management = management(core)?;
    let (workspace, name) = (Arc::clone(&management.workspace), name.clone());
    let files = management.on_control_runtime(async move { workspace.declared(&name).await });
    let files = files.await.ok_or_else(interrupted)??;
    let tools = files.into_iter().flat_map(|file| file.tools);
    Ok(tools.map(|tool| tool.name).collect())
}

pub(super) fn interrupted() -> WebFailure {
    WebFailure::refused("The look into the files was interrupted; try again")
}

fn entry(caller: &Caller, name: &NamespaceName, tools: &[String]) -> Value {
    json!({
        "name": name,
        "endpoint": format!("{}/mcp/{name}", caller.profile.path_prefix),
        "tool_count": tools.len(),
        "tools": tools,
    })
}

#[derive(Deserialize)]
struct New {
    name: String,
}

pub(super) async fn create(core: &Arc<Core>, caller: &Caller, request: &ApiRequest) -> Answer {
    let New { name } = request.json()?;
    let name = namespace(&name)?;
    if management(core)?.workspace.exists(&name).await.is_ok()
        || core.registry.namespace(name.as_str()).is_some()
    {
        return Err(WebFailure::exists(format!(
            "There is a namespace {name} already; choose another name"
        )));
    }
    call(core, caller, "create_namespace", &json!({ "name": name })).await?;
    reload_soon(core);
    with_status(StatusCode::CREATED, &entry(caller, &name, &[]))
}

pub(super) async fn delete(
    core: &Arc<Core>,
    caller: &Caller,
    request: &ApiRequest,
    name: &str,
) -> Answer {
    let name = namespace(name)?;
    let files = files_of(core, &name).await?;
    let count = files.files.len();
    let forced = matches!(request.parameter("force"), Some("true" | "1"));
    if count > 0 && !forced {
        return Err(WebFailure::new(
            StatusCode::BAD_REQUEST,
            "not_empty",
            format!("{name} has {count} tool files; delete them first, or send ?force=true"),
        )
        .with(json!({ "files": count })));
    }
    call(core, caller, "delete_namespace", &json!({ "name": name })).await?;
    reload_soon(core);
    json_of(&json!({
        "success": true,
        "message": format!("The namespace {name} was deleted with {count} tool files"),
        "deleted_tools": count,
    }))
}

/// The files of a folder. The error is 404 if the folder does not exist.
pub(super) async fn files_of(
    core: &Core,
    name: &NamespaceName,
) -> Result<tooldock_workers::manage::ToolFiles, WebFailure> {
    exists(core, name).await?;
    Ok(management(core)?.workspace.files(name).await?)
}

/// Returns a failure with status 404 if the namespace has no folder.
pub(super) async fn exists(core: &Core, name: &NamespaceName) -> Result<(), WebFailure> {
    let found = management(core)?.workspace.exists(name).await;
    found.map_err(|error| {
        WebFailure::not_found(
            "namespace_not_found",
            super::answer::capitalised(error.to_string()),
        )
    })
}
