//! Lists of tools as hooks let clients see them. Lists that an upstream reads from its server pass the hooks in the engine; the
//! lists here are those that the gateway writes itself.

use std::sync::Arc;

use tooldock_base::error::CallError;
use tooldock_sessions::caller::Caller;
use tooldock_sessions::catalogue::{ToolEntry, ToolList, View};
use tooldock_workers::registry::Namespace;

use super::Core;
use crate::format::{self, ResultFormat};
use crate::jsonrpc::RequestError;
use crate::jsonrpc::spans::{self, MemberEdit};
use crate::protocol::ProtocolVersion;
use tooldock_engine::hooks::HookNote;
use tooldock_engine::upstream::CallContext;
use tooldock_engine::upstream::worker::describe;

/// Shows the response to `tools/list` to the hooks of its namespace. `id`: the id in the response, as raw JSON.
///
/// # Errors
///
/// The refusal or the failure of a hook.
pub(super) async fn of_response(
    core: &Core,
    cx: &CallContext<'_>,
    id: &str,
    response: Vec<u8>,
) -> Result<Vec<u8>, RequestError> {
    let mut before = Vec::new();
    format::begin(&mut before, id);
    let result = response
        .strip_prefix(&*before)
        .and_then(|rest| rest.strip_suffix(b"}"))
        .and_then(|result| std::str::from_utf8(result).ok());
    // A response that is not a result is an error, which hooks do not see.
    let Some(result) = result else {
        return Ok(response);
    };
    let name = &cx.namespace.name;
    let note = HookNote::default();
    let shown = core.engine.hook_list(cx.caller, name, result, &note).await;
    Ok(match shown.map_err(RequestError::Upstream)? {
        Some(shown) => format::raw_result(id, shown.as_bytes()),
        None => response,
    })
}

/// Returns the tools of a namespace that lists show to a caller, as the hooks have changed them. The view of the caller is to be
/// applied to the result.
///
/// # Errors
///
/// When the tools are not known, or a hook refuses the list or fails.
pub(crate) async fn of_namespace(
    core: &Core,
    caller: &Caller,
    namespace: &Arc<Namespace>,
) -> Result<Arc<ToolList>, CallError> {
    let upstream = core.upstreams.of(namespace);
    let list = upstream
        .tool_lists()
        .listed(namespace, caller)
        .get()
        .await?;
    let view = View::of(caller, namespace);
    let page = || page_of(view.tools(&list).map(|entry| (entry.name(), entry)));
    let hooked = of_page(core, caller, namespace, page).await?;
    Ok(hooked.map_or(list, Arc::new))
}

/// Shows a page of tools to the hooks of a namespace. Returns the tools as the hooks have changed them; `None` if no hook has
/// changed them.
///
/// # Errors
///
/// The refusal or the failure of a hook.
pub(crate) async fn of_page(
    core: &Core,
    caller: &Caller,
    namespace: &Namespace,
    page: impl FnOnce() -> String,
) -> Result<Option<ToolList>, CallError> {
    if !core.engine.hooks.see_lists(&namespace.name) {
        return Ok(None);
    }
    let (page, note) = (page(), HookNote::default());
    let shown = core.engine.hook_list(caller, &namespace.name, &page, &note);
    let shown = shown.await?;
    Ok(shown.map(|shown| ToolList::listed(0, &shown.into())))
}

/// Writes tools under these names as the result of `tools/list`.
pub(crate) fn page_of<'a>(tools: impl Iterator<Item = (&'a str, &'a ToolEntry)>) -> String {
    let format = ResultFormat::Legacy(ProtocolVersion::V2025_11_25);
    let mut out = b"{\"tools\":[".to_vec();
    for (at, (name, entry)) in tools.enumerate() {
        if at > 0 {
            out.push(b',');
        }
        match entry.declaration() {
            Some(tool) => describe(&mut out, name, tool, &format),
            None => out.extend_from_slice(&renamed(entry, name)),
        }
    }
    out.extend_from_slice(b"]}");
    String::from_utf8_lossy(&out).into_owned()
}

/// The definition of a server's tool under another name.
fn renamed(entry: &ToolEntry, name: &str) -> Vec<u8> {
    if entry.name() == name {
        return entry.definition().to_vec();
    }
    let definition = String::from_utf8_lossy(entry.definition());
    let name = serde_json::Value::from(name).to_string();
    spans::edit(&definition, &[MemberEdit::Set("name", name.into())]).into()
}
