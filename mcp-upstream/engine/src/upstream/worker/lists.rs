//! The lists of a namespace of functions. Each list is one page, joined from the definitions as the worker declared them.

use std::sync::Arc;

use serde_json::json;
use serde_json::value::RawValue;
use tooldock_base::tool::Tool;
use tooldock_protocol::format::{self, ResultFormat, ResultWriter};
use tooldock_protocol::jsonrpc::{Key, Members, RequestError};
use tooldock_sessions::catalogue::{ToolEntry, ToolList};
use tooldock_workers::registry::Namespace;

use super::skills::{self, DirectoryEntry};
use crate::upstream::CallContext;

/// Answers `tools/list` with the tools that the client may see. For a namespace that could not be started, the response is an
/// error, never an empty list.
pub(super) fn tools(
    cx: &CallContext<'_>,
    id: &str,
    members: &Members<'_>,
) -> Result<Vec<u8>, RequestError> {
    one_page(members)?;
    let namespace = &cx.namespace;
    super::is_up(namespace).map_err(RequestError::Upstream)?;
    let (declared, format, view) = (declared(namespace), cx.result_format(), cx.view());
    if let Some(result) = declared.written(&format, view) {
        return Ok(format::raw_result(id, &result));
    }
    let mut answer = begin(cx, id, &format, namespace.tools.len());
    let tools = view.tools(&declared).filter_map(ToolEntry::declaration);
    join(answer.key("tools"), tools, |out, tool| {
        describe(out, &tool.name, tool, &format);
    });
    let response = answer.end();
    let mut before = Vec::new();
    format::begin(&mut before, id);
    let result = &response[before.len()..response.len() - 1];
    declared.keep_written(&format, view, result);
    Ok(response)
}

/// The tools that the namespace's files declare.
pub(super) fn declared(namespace: &Namespace) -> Arc<ToolList> {
    if let Some(declared) = namespace.attached.get() {
        return declared;
    }
    let declared = Arc::new(ToolList::declared(&namespace.tools));
    namespace.attached.set(Arc::clone(&declared));
    declared
}

/// Answers `resources/list`.
pub(super) fn resources(
    cx: &CallContext<'_>,
    id: &str,
    members: &Members<'_>,
) -> Result<Vec<u8>, RequestError> {
    let resources = &cx.namespace.resources;
    let definitions = resources.iter().map(|it| &it.definition);
    definitions_list(cx, id, members, "resources", definitions)
}

/// Answers `resources/templates/list`.
pub(super) fn resource_templates(
    cx: &CallContext<'_>,
    id: &str,
    members: &Members<'_>,
) -> Result<Vec<u8>, RequestError> {
    let templates = &cx.namespace.resource_templates;
    let definitions = templates.iter().map(|it| &it.definition);
    definitions_list(cx, id, members, "resourceTemplates", definitions)
}

/// Answers `prompts/list`.
pub(super) fn prompts(
    cx: &CallContext<'_>,
    id: &str,
    members: &Members<'_>,
) -> Result<Vec<u8>, RequestError> {
    let prompts = &cx.namespace.prompts;
    let definitions = prompts.iter().map(|it| &it.definition);
    definitions_list(cx, id, members, "prompts", definitions)
}

/// Answers `resources/directory/read` of the skills extension: the files and folders directly in a folder of a skill.
pub(super) fn directory(
    cx: &CallContext<'_>,
    id: &str,
    members: &Members<'_>,
) -> Result<Vec<u8>, RequestError> {
    one_page(members)?;
    let uri = super::string_member(members.get(Key::Uri), "params.uri")?;
    let entries = skills::directory(&cx.namespace.resources, &uri);
    if entries.is_empty() {
        return Err(RequestError::InvalidParams(
            "params.uri names no folder of a skill".into(),
        ));
    }
    let format = cx.result_format();
    let mut answer = begin(cx, id, &format, entries.len());
    join(
        answer.key("resources"),
        entries.iter(),
        |out, entry| match entry {
            DirectoryEntry::File(file) => {
                out.extend_from_slice(file.definition.get().as_bytes());
            }
            DirectoryEntry::Folder { uri, name } => {
                let folder = json!({ "uri": uri, "name": name, "mimeType": skills::FOLDER_TYPE });
                out.extend_from_slice(folder.to_string().as_bytes());
            }
        },
    );
    Ok(answer.end())
}

fn definitions_list<'a>(
    cx: &CallContext<'_>,
    id: &str,
    members: &Members<'_>,
    key: &'static str,
    definitions: impl ExactSizeIterator<Item = &'a Arc<RawValue>>,
) -> Result<Vec<u8>, RequestError> {
    one_page(members)?;
    let format = cx.result_format();
    let mut answer = begin(cx, id, &format, definitions.len());
    join(answer.key(key), definitions, |out, definition| {
        out.extend_from_slice(definition.get().as_bytes());
    });
    Ok(answer.end())
}

fn begin<'d>(
    cx: &CallContext<'_>,
    id: &str,
    format: &'d ResultFormat,
    entries: usize,
) -> ResultWriter<'d> {
    ResultWriter::begin(id, format, 256 + 512 * entries).cached(cx.view().cache_scope())
}

/// Refuses a request with a cursor: each list has a single page.
pub(super) fn one_page(members: &Members<'_>) -> Result<(), RequestError> {
    match members.raw(Key::Cursor) {
        Some(cursor) if cursor != "null" => Err(RequestError::InvalidParams(
            "unknown cursor: the list has one page".into(),
        )),
        _ => Ok(()),
    }
}

fn join<T>(out: &mut Vec<u8>, items: impl Iterator<Item = T>, write: impl Fn(&mut Vec<u8>, T)) {
    out.push(b'[');
    for (position, item) in items.enumerate() {
        if position > 0 {
            out.push(b',');
        }
        write(out, item);
    }
    out.push(b']');
}

/// Writes a tool's definition with this name. An output schema describes `structuredContent`, so it is written only for clients
/// whose protocol version has it, and a tool's support of tasks only for 2025-11-25. Titles and icons are written for all, since
/// other clients ignore them.
pub fn describe(out: &mut Vec<u8>, name: &str, tool: &Tool, format: &ResultFormat) {
    let text = |out: &mut Vec<u8>, key: &[u8], text: &str| {
        out.extend_from_slice(key);
        format::escape(out, text.as_bytes());
    };
    let raw = |out: &mut Vec<u8>, key: &[u8], value: Option<&RawValue>| {
        if let Some(value) = value {
            out.extend_from_slice(key);
            out.extend_from_slice(value.get().as_bytes());
        }
    };
    text(out, b"{\"name\":", name);
    if let Some(title) = tool.title.as_deref() {
        text(out, b",\"title\":", title);
    }
    text(out, b",\"description\":", &tool.description);
    raw(out, b",\"inputSchema\":", Some(&tool.input_schema));
    let output = tool.output_schema.as_deref();
    let output = output.filter(|_| format.has_structured_content());
    raw(out, b",\"outputSchema\":", output);
    raw(out, b",\"annotations\":", tool.annotations.as_deref());
    raw(out, b",\"icons\":", tool.icons.as_deref());
    if let Some(task) = tool.task.filter(|_| format.has_tasks()) {
        text(out, b",\"execution\":{\"taskSupport\":", task.as_str());
        out.push(b'}');
    }
    raw(out, b",\"_meta\":", tool.meta.as_deref());
    out.push(b'}');
}
