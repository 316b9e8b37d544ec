//! `/tools`: list of the tools, calls, and schemas (EX-20 to EX-22), in the format that the listener or the request chooses.

use std::sync::Arc;

use bytes::Bytes;
use http::StatusCode;
use serde_json::value::RawValue;
use tooldock_base::error::CallError;
use tooldock_base::heavy_work;
use tooldock_engine::engine::{UpstreamCall, not_shown};
use tooldock_engine::hooks::HookPath;
use tooldock_engine::upstream::global::GlobalTools;
use tooldock_engine::upstream::{CallContext, Upstream};
use tooldock_sessions::caller::Caller;
use tooldock_sessions::catalogue::ToolList;
use tooldock_sessions::profile::RestShape;
use tooldock_workers::hidden::HiddenValues;

use super::shape::{self, ShapedTool};
use super::{EarlyReply, InNamespace, answer, arguments, vault};
use crate::error;
use crate::mcp::{self, Core};
use crate::reply::Reply;

/// Path segment of Tool Vault's generic call (`/tools/call`). A tool with this name is called instead of the generic call.
const VAULT_CALL: &str = "call";

/// Answers with the tools of the caller's namespace, or of all namespaces that the caller may use.
pub(crate) async fn list_as(core: &Core, caller: Caller, shape: RestShape) -> Reply {
    let scope = match InNamespace::of(core, caller) {
        Ok(scope) => scope,
        Err(EarlyReply(reply)) => return *reply,
    };
    if scope.is_global() {
        let snapshot = core.registry.snapshot();
        return match GlobalTools::of(&core.upstreams, &snapshot, &scope.caller).await {
            Ok(tools) => list_of_all(core, &scope, &tools, shape).await,
            Err(failed) => error::rest_call(&failed, &scope.caller),
        };
    }
    let namespace = &scope.namespace;
    match mcp::shown_tools(core, &scope.caller, namespace).await {
        Ok(list) => {
            let tools = scope.view().tools(&list);
            let tools: Vec<_> = tools
                .map(|entry| ShapedTool {
                    name: entry.name(),
                    namespace,
                    entry,
                })
                .collect();
            shape::list(shape, Some(namespace.name.as_str()), &tools)
        }
        Err(failed) => error::rest_call(&failed, &scope.caller),
    }
}

/// Answers with the tools of all namespaces that the caller may use. Hooks see them as one list.
async fn list_of_all(
    core: &Core,
    scope: &InNamespace,
    tools: &GlobalTools,
    shape: RestShape,
) -> Reply {
    let page = || mcp::page_of(tools.iter().map(|tool| (tool.name, tool.entry)));
    let hooked = match mcp::shown_page(core, &scope.caller, &scope.namespace, page).await {
        Ok(hooked) => hooked,
        Err(failed) => return error::rest_call(&failed, &scope.caller),
    };
    let shaped = tools.iter().filter_map(|tool| {
        Some(ShapedTool {
            name: tool.name,
            namespace: tool.namespace,
            entry: match &hooked {
                Some(hooked) => hooked.tool(tool.name)?,
                None => tool.entry,
            },
        })
    });
    shape::list(shape, None, &shaped.collect::<Vec<_>>())
}

/// Answers with the input schema of a tool.
pub(crate) async fn schema(core: &Core, caller: Caller, name: &str) -> Reply {
    let scope = match InNamespace::of(core, caller) {
        Ok(scope) => scope,
        Err(EarlyReply(reply)) => return *reply,
    };
    let (scope, name) = match scope.of_tool(core, name).await {
        Ok(found) => found,
        Err(EarlyReply(reply)) => return *reply,
    };
    let tools = mcp::shown_tools(core, &scope.caller, &scope.namespace).await;
    match tools.and_then(|tools| schema_in(&tools, &scope, &name)) {
        Ok(schema) => Reply::json(StatusCode::OK, schema),
        Err(failed) => error::rest_call(&failed, &scope.caller),
    }
}

/// Returns the input schema of a tool that the caller may see; `{}` if the tool declares none.
///
/// # Errors
///
/// When the tool does not exist, or the list of tools cannot be read.
async fn input_schema(
    upstream: &dyn Upstream,
    scope: &InNamespace,
    name: &str,
) -> Result<String, CallError> {
    let tools = upstream
        .tool_lists()
        .listed(&scope.namespace, &scope.caller);
    let tools = tools.get().await?;
    schema_in(&tools, scope, name)
}

/// Returns the input schema of a tool in a list, as [`input_schema`] does.
fn schema_in(tools: &ToolList, scope: &InNamespace, name: &str) -> Result<String, CallError> {
    let tool = scope.view().tool(tools, name);
    let tool = tool.ok_or_else(|| not_shown(&scope.caller, &scope.namespace, name))?;
    let schema = tool.input_schema().map_or("{}", RawValue::get);
    Ok(schema.to_owned())
}

/// Calls a tool. The body is the object of its arguments; the response contains the tool's value in the format `shape`.
pub(crate) async fn call(
    core: &Core,
    caller: Caller,
    name: &str,
    body: Bytes,
    shape: RestShape,
) -> Reply {
    let scope = match InNamespace::of(core, caller) {
        Ok(scope) => scope,
        Err(EarlyReply(reply)) => return *reply,
    };
    // If the caller can see a tool with this name, it is called instead of Tool Vault's generic call (K-22).
    if name == VAULT_CALL && !is_there(core, &scope, name).await {
        return vault::call(core, scope.caller, body).await;
    }
    let (scope, own) = match scope.of_tool(core, name).await {
        Ok(found) => found,
        Err(EarlyReply(reply)) => return *reply,
    };
    let upstream = core.upstreams.of(&scope.namespace);
    let arguments = match read(upstream, &scope, &own, body).await {
        Ok(arguments) => arguments,
        Err(EarlyReply(reply)) => return *reply,
    };
    run(core, scope, &own, name, arguments, shape).await
}

/// Calls a tool. `own`: the tool's name in the namespace of `scope`; `name`: its name in the client's request.
async fn run(
    core: &Core,
    scope: InNamespace,
    own: &str,
    name: &str,
    arguments: Bytes,
    shape: RestShape,
) -> Reply {
    let InNamespace { caller, namespace } = scope;
    let upstream = core.upstreams.of(&namespace);
    mcp::pass_through::count_client_mode(core, &caller, &namespace);
    let cx = CallContext::plain(&caller, &arguments, &namespace, upstream);
    let answered = async {
        let call = upstream.call_tool(&cx, own, arguments.clone())?;
        value_of_call(core, &cx, own, &call, HookPath::Direct).await
    };
    let mut answered = answered.await;
    if caller.manager {
        answered = without_secrets(&core.registry.hidden_values(&namespace), answered);
    }
    match answered {
        Ok(value) => Reply::json(StatusCode::OK, shape::value(shape, name, value)),
        Err(failed) => error::rest_call(&failed, &caller),
    }
}

/// Runs a call and records it. Returns the tool's value. `hooks`: [`HookPath::Unhooked`] for a call that a hook makes.
///
/// # Errors
///
/// The failure of the call, or of the tool.
pub(crate) async fn value_of_call(
    core: &Core,
    cx: &CallContext<'_>,
    tool: &str,
    call: &Arc<dyn UpstreamCall>,
    hooks: HookPath<'_>,
) -> Result<Bytes, CallError> {
    let run = core.engine.run_unfinished(cx.caller, call, hooks);
    let (outcome, unfinished) = run.await;
    let answered = match outcome {
        Ok(reply) => answer::value_of(cx.upstream, &cx.namespace, tool, reply).await,
        Err(error) => Err(error),
    };
    unfinished.finish(&answered);
    answered
}

/// Hides the namespace's secrets in a tool's answer. This applies to callers with management rights: the management tool
/// `test_tool` shows the answer in a chat.
fn without_secrets(
    hidden: &HiddenValues,
    answered: Result<Bytes, CallError>,
) -> Result<Bytes, CallError> {
    match answered {
        Ok(value) => Ok(match hidden.hide_in_json(&value) {
            Some(without) => without.into(),
            None => value,
        }),
        Err(mut failed) => {
            failed.message = hidden.hide(&failed.message);
            let details = failed.details.as_deref().map(RawValue::get);
            if let Some(without) = details.and_then(|it| hidden.hide_in_json(it.as_bytes())) {
                failed.details = serde_json::from_slice(&without).ok();
            }
            Err(failed)
        }
    }
}

/// Calls the tool that a request's body names, and answers in the format of Tool Vault.
pub(super) async fn run_named(
    core: &Core,
    scope: InNamespace,
    name: &str,
    arguments: Bytes,
) -> Reply {
    let (scope, own) = match scope.of_tool(core, name).await {
        Ok(found) => found,
        Err(EarlyReply(reply)) => return *reply,
    };
    run(core, scope, &own, name, arguments, RestShape::Vault).await
}

/// Returns true if the caller may see a tool with this name.
async fn is_there(core: &Core, scope: &InNamespace, name: &str) -> bool {
    if scope.is_global() {
        let snapshot = core.registry.snapshot();
        let kinds = &core.upstreams;
        let found = tooldock_engine::upstream::global::find(kinds, &snapshot, &scope.caller, name);
        return found.await.is_some();
    }
    let upstream = core.upstreams.of(&scope.namespace);
    let tools = upstream
        .tool_lists()
        .listed(&scope.namespace, &scope.caller)
        .get();
    // If the list of tools cannot be read, the tool may exist, so it is treated as existing.
    tools
        .await
        .map_or(true, |tools| scope.view().tool(&tools, name).is_some())
}

/// Reads the arguments of a call from the body. A blank body is refused if the tool needs arguments.
async fn read(
    upstream: &dyn Upstream,
    scope: &InNamespace,
    name: &str,
    body: Bytes,
) -> Result<Bytes, EarlyReply> {
    if arguments::is_blank(&body) && needs_arguments(upstream, scope, name).await {
        return Err(arguments::blank());
    }
    arguments::of(body)
}

/// Returns true if the tool's schema is known and requires arguments.
async fn needs_arguments(upstream: &dyn Upstream, scope: &InNamespace, name: &str) -> bool {
    let schema = input_schema(upstream, scope, name).await;
    let schema = schema.ok().and_then(|it| RawValue::from_string(it).ok());
    let Some(schema) = schema else {
        return false;
    };
    let are_required = move || arguments::are_required(&schema, || true);
    heavy_work::run(&scope.caller.principal, are_required)
        .await
        .unwrap_or(false)
}
