//! `/api/folders/{ns}/…`: tool files, their history, and requirements (GUI-05).

use std::collections::HashMap;
use std::sync::Arc;
use std::time::SystemTime;

use http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tooldock_base::names::NamespaceName;
use tooldock_engine::upstream::system::CALL_AGAIN;
use tooldock_sessions::caller::Caller;
use tooldock_workers::manage::{
    FileInspection, TOOL_FILE_BYTES_MAX, ToolFileName, ToolFileVersion,
};

use super::answer::{Answer, WebFailure, json_of, with_status};
use super::folders::{exists, files_of, interrupted};
use super::request::{ApiRequest, file, namespace};
use super::tools::{call, management, reload_soon};
use super::{diff, streams, upload};
use crate::mcp::Core;

pub(super) fn rfc3339(at: SystemTime) -> String {
    OffsetDateTime::from(at)
        .format(&Rfc3339)
        .unwrap_or_default()
}

pub(super) async fn list(core: &Arc<Core>, request: &ApiRequest, name: &str) -> Answer {
    let name = namespace(name)?;
    let files = files_of(core, &name).await?;
    let management = management(core)?;
    let (workspace, of) = (Arc::clone(&management.workspace), name.clone());
    let inspected = management.on_control_runtime(async move { workspace.declared(&of).await });
    let inspected: HashMap<_, _> = match inspected.await {
        Some(Ok(inspected)) => inspected
            .into_iter()
            .map(|it| (it.filename.clone(), it))
            .collect(),
        // If the contents cannot be read, the list of names is still returned.
        _ => HashMap::new(),
    };
    let listed = files.files.iter().map(|file| {
        let found = inspected.get(file.name.as_str());
        let tools: Vec<_> = found
            .iter()
            .flat_map(|it| &it.tools)
            .map(|tool| &tool.name)
            .collect();
        let fault = found.and_then(FileInspection::fault);
        json!({
            "filename": file.name.as_str(),
            "size": file.size,
            "modified": rfc3339(file.modified),
            "versions": file.versions,
            "tools": tools,
            "error": fault.map(|fault| json!({"error": fault.error, "details": fault.details})),
        })
    });
    let deleted: Vec<_> = files
        .deleted
        .iter()
        .map(|(file, versions)| json!({"filename": file.as_str(), "versions": versions}))
        .collect();
    let rest = json!({"namespace": name, "deleted": deleted});
    request.page("tools", listed.collect(), rest)
}

pub(super) async fn upload(
    core: &Arc<Core>,
    caller: &Caller,
    request: &ApiRequest,
    name: &str,
) -> Answer {
    let name = namespace(name)?;
    exists(core, &name).await?;
    let upload::Upload { filename, content } = upload::read(request).await?;
    write(core, caller, &name, &file(&filename)?, content).await
}

/// Writes a file through the management tool, which checks the code first.
async fn write(
    core: &Arc<Core>,
    caller: &Caller,
    name: &NamespaceName,
    file: &ToolFileName,
    content: String,
) -> Answer {
    let arguments = json!({"namespace": name, "filename": file.as_str(), "code": content});
    let written = call(core, caller, "write_tool", &arguments).await?;
    if written["written"] != true {
        let text = |member: &str| written[member].as_str().unwrap_or_default();
        let (error, details) = (text("error"), text("details"));
        let details = details.strip_suffix(CALL_AGAIN).unwrap_or(details);
        let place = place(details);
        let message =
            format!("{error}: {details}. Nothing was written: mend the file and send it again.");
        return Err(WebFailure::new(StatusCode::BAD_REQUEST, "invalid_tool", message).with(json!({
            "valid": false, "error": error, "details": details, "line": place.0, "column": place.1,
        })));
    }
    reload_soon(core);
    let previous = &written["previous_version"];
    let status = match previous.is_null() {
        true => StatusCode::CREATED,
        false => StatusCode::OK,
    };
    with_status(
        status,
        &json!({
            "success": true,
            "filename": file.as_str(),
            "tools_found": written["tools_found"],
            "previous_version": previous,
        }),
    )
}

/// Reads line and column from a sentence that contains `line 3` and `column 5`.
fn place(details: &str) -> (Option<u32>, Option<u32>) {
    let number = |word: &str| {
        let (_, rest) = details.split_once(word)?;
        let end = rest
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(rest.len());
        rest[..end].parse().ok()
    };
    (number("line "), number("column "))
}

pub(super) async fn validate(core: &Arc<Core>, request: &ApiRequest, name: &str) -> Answer {
    let name = namespace(name)?;
    exists(core, &name).await?;
    let upload::Upload { filename, content } = request.json()?;
    let invalid = |error: &str, details: &str| {
        let (line, column) = place(details);
        json_of(
            &json!({"valid": false, "error": error, "details": details, "line": line, "column": column}),
        )
    };
    let file: ToolFileName = match filename.parse() {
        Ok(file) => file,
        Err(error) => return invalid("Invalid filename", &format!("{error}")),
    };
    if content.len() > TOOL_FILE_BYTES_MAX {
        let details = format!(
            "the code has {} bytes; {TOOL_FILE_BYTES_MAX} are allowed",
            content.len()
        );
        return invalid("Code is too large", &details);
    }
    let management = management(core)?;
    let workspace = Arc::clone(&management.workspace);
    let inspected = management.on_control_runtime(async move {
        let files = [(file.to_string(), content)];
        workspace.inspect(&files).await
    });
    let inspected = inspected.await.ok_or_else(interrupted)??;
    let Some(inspected) = inspected.into_iter().next() else {
        return Err(interrupted());
    };
    if let Some(fault) = inspected.fault() {
        return invalid(fault.error, &fault.details);
    }
    let tools: Vec<_> = inspected
        .tools
        .iter()
        .map(|tool| json!({"name": tool.name, "description": tool.description}))
        .collect();
    json_of(&json!({"valid": true, "tools": tools}))
}

/// The contents of a file, in its current or an earlier version.
async fn source(
    core: &Arc<Core>,
    name: &NamespaceName,
    file: &ToolFileName,
    version: Option<u64>,
) -> Result<Option<String>, WebFailure> {
    exists(core, name).await?;
    Ok(management(core)?
        .workspace
        .source_of(
            name,
            &ToolFileVersion {
                file: file.clone(),
                version,
            },
        )
        .await?)
}

fn no_file(name: &NamespaceName, file: &ToolFileName) -> WebFailure {
    let message = format!("The namespace {name} has no file {file}");
    WebFailure::not_found("file_not_found", message)
}

fn no_version(file: &ToolFileName, version: u64) -> WebFailure {
    let message =
        format!("There is no version {version} of {file}; its history names those there are");
    WebFailure::not_found("version_not_found", message)
}

pub(super) async fn read(core: &Arc<Core>, name: &str, filename: &str) -> Answer {
    let (name, file) = (namespace(name)?, file(filename)?);
    let content = source(core, &name, &file, None).await?;
    let content = content.ok_or_else(|| no_file(&name, &file))?;
    json_of(
        &json!({"namespace": name, "filename": file.as_str(), "size": content.len(), "content": content}),
    )
}

pub(super) async fn delete(
    core: &Arc<Core>,
    caller: &Caller,
    name: &str,
    filename: &str,
) -> Answer {
    let (name, file) = (namespace(name)?, file(filename)?);
    let content = source(core, &name, &file, None).await;
    if matches!(content, Ok(None)) {
        return Err(no_file(&name, &file));
    }
    exists(core, &name).await?;
    let arguments = json!({"namespace": name, "filename": file.as_str()});
    let deleted = call(core, caller, "delete_tool", &arguments).await?;
    reload_soon(core);
    json_of(&json!({
        "success": true,
        "filename": file.as_str(),
        "previous_version": deleted["previous_version"],
    }))
}

pub(super) async fn history(core: &Arc<Core>, name: &str, filename: &str) -> Answer {
    let (name, file) = (namespace(name)?, file(filename)?);
    exists(core, &name).await?;
    let kept = management(core)?.workspace.versions(&name, &file).await?;
    let versions: Vec<_> = kept
        .iter()
        .map(|it| json!({"version": it.number, "size": it.size, "modified": rfc3339(it.kept)}))
        .collect();
    if versions.is_empty() && source(core, &name, &file, None).await?.is_none() {
        return Err(no_file(&name, &file));
    }
    json_of(&json!({"filename": file.as_str(), "total": versions.len(), "versions": versions}))
}

fn number(text: &str) -> Result<u64, WebFailure> {
    text.parse().map_err(|_| {
        WebFailure::invalid(
            "version",
            "version must be a number from the file's history",
        )
    })
}

pub(super) async fn version(core: &Arc<Core>, name: &str, filename: &str, version: &str) -> Answer {
    let (name, file, version) = (namespace(name)?, file(filename)?, number(version)?);
    let content = source(core, &name, &file, Some(version)).await?;
    let content = content.ok_or_else(|| no_version(&file, version))?;
    json_of(&json!({"filename": file.as_str(), "version": version, "content": content}))
}

pub(super) async fn diff(
    core: &Arc<Core>,
    request: &ApiRequest,
    name: &str,
    filename: &str,
) -> Answer {
    const CURRENT: &str = "current";
    let (name, file) = (namespace(name)?, file(filename)?);
    let side = async |parameter: &str| {
        let said = request.parameter(parameter).unwrap_or(CURRENT);
        let text = match said {
            // The current contents of a deleted file are empty.
            CURRENT => source(core, &name, &file, None).await?.unwrap_or_default(),
            said => {
                let version = number(said)?;
                let found = source(core, &name, &file, Some(version)).await?;
                found.ok_or_else(|| no_version(&file, version))?
            }
        };
        Ok::<_, WebFailure>((said.to_owned(), text))
    };
    let (from, old) = side("from").await?;
    let (to, new) = side("to").await?;
    let titles = (format!("{file} ({from})"), format!("{file} ({to})"));
    let compared =
        tokio::task::spawn_blocking(move || diff::unified(&old, &new, (&titles.0, &titles.1)));
    let text = compared.await.map_err(|_| interrupted())?;
    json_of(&json!({"filename": file.as_str(), "from": from, "to": to, "diff": text}))
}

#[derive(Deserialize)]
struct Rollback {
    version: u64,
}

pub(super) async fn rollback(
    core: &Arc<Core>,
    caller: &Caller,
    request: &ApiRequest,
    name: &str,
    filename: &str,
) -> Answer {
    let (name, file) = (namespace(name)?, file(filename)?);
    let Rollback { version } = request.json()?;
    let content = source(core, &name, &file, Some(version)).await?;
    let content = content.ok_or_else(|| no_version(&file, version))?;
    write(core, caller, &name, &file, content).await
}

pub(super) async fn requirements(core: &Arc<Core>, caller: &Caller, name: &str) -> Answer {
    let name = namespace(name)?;
    exists(core, &name).await?;
    json_of(
        &call(
            core,
            caller,
            "list_requirements",
            &json!({ "namespace": name }),
        )
        .await?,
    )
}

#[derive(Deserialize)]
struct Requirement {
    package: String,
}

pub(super) async fn add_requirement(
    core: &Arc<Core>,
    caller: &Caller,
    request: &ApiRequest,
    name: &str,
) -> Answer {
    let name = namespace(name)?;
    exists(core, &name).await?;
    let Requirement { package } = request.json()?;
    let arguments = json!({"namespace": name, "package": package});
    installed(core, caller, request, &name, "add_requirement", arguments).await
}

pub(super) async fn install(
    core: &Arc<Core>,
    caller: &Caller,
    request: &ApiRequest,
    name: &str,
) -> Answer {
    let name = namespace(name)?;
    exists(core, &name).await?;
    let arguments = json!({ "namespace": name });
    installed(
        core,
        caller,
        request,
        &name,
        "install_requirements",
        arguments,
    )
    .await
}

/// Runs an installer. Responds with its result, or with a stream that ends with the result.
async fn installed(
    core: &Arc<Core>,
    caller: &Caller,
    request: &ApiRequest,
    name: &NamespaceName,
    tool: &'static str,
    arguments: Value,
) -> Answer {
    if !request.wants_events {
        let outcome = call(core, caller, tool, &arguments).await?;
        reload_soon(core);
        return json_of(&outcome);
    }
    let lines = management(core)?.workspace.installer_output(name);
    let (core, caller) = (Arc::clone(core), caller.clone());
    streams::open(&core.clone(), &caller.clone(), move |stream| async move {
        let begun = json!({"progress": 0, "total": 1, "message": "installing packages"});
        stream.event("progress", &begun);
        let mut newest = lines.newest();
        let mut told = *newest.borrow_and_update();
        let mut tell = || {
            for line in lines.after(told) {
                told = line.number;
                stream.event("output", &json!({ "line": &*line.text }));
            }
        };
        let outcome = {
            let mut running = std::pin::pin!(call(&core, &caller, tool, &arguments));
            // `changed`: the installer printed lines, which are sent at once. `running`: the management tool has ended, and the
            // installer with it.
            loop {
                tokio::select! {
                    Ok(()) = newest.changed() => tell(),
                    outcome = &mut running => break outcome,
                }
            }
        };
        tell();
        match outcome {
            Ok(outcome) => {
                reload_soon(&core);
                stream.event("done", &outcome)
            }
            Err(failure) => stream.event("failed", &failure.body()),
        };
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_read_from_the_sentence_that_names_it() {
        assert_eq!(
            place("line 3, column 5: invalid syntax"),
            (Some(3), Some(5))
        );
        assert_eq!(place("line 12: add has no docstring"), (Some(12), None));
        assert_eq!(place("Put `@tool` before"), (None, None));
    }
}
