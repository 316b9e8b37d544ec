//! `/tools`: list, call, schema (EX-20 to EX-22).

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;
use http::StatusCode;
use serde::Serialize;
use serde_json::value::RawValue;
use tooldock_workers::error::CallError;

use super::{InNamespace, Refused, answer, arguments, json};
use crate::caller::Caller;
use crate::catalogue::ToolEntry;
use crate::engine::unknown_tool;
use crate::error;
use crate::mcp::Core;
use crate::reply::Reply;
use crate::upstream::{CallContext, Client, ToolsWait, Upstream};

/// A tool; what its author did not say is left out.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Tool<'a> {
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    title: Option<Cow<'a, str>>,
    description: Cow<'a, str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    input_schema: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    output_schema: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    annotations: Option<&'a RawValue>,
    filename: &'a str,
}

impl<'a> From<&'a ToolEntry> for Tool<'a> {
    fn from(tool: &'a ToolEntry) -> Self {
        Self {
            name: tool.name(),
            title: tool.title(),
            description: tool.description(),
            input_schema: tool.input_schema(),
            output_schema: tool.output_schema(),
            annotations: tool.annotations(),
            filename: tool.filename(),
        }
    }
}

/// The tools of the caller's namespace.
pub(crate) async fn list(core: &Core, caller: Caller) -> Reply {
    let scope = match InNamespace::of(core, caller) {
        Ok(scope) => scope,
        Err(Refused(reply)) => return *reply,
    };
    let namespace = &scope.namespace;
    let upstream = core.upstreams.of(namespace);
    match upstream.tools(namespace, ToolsWait::Long).get().await {
        Ok(list) => {
            let tools = scope.view().tools(&list);
            json(&tools.map(Tool::from).collect::<Vec<_>>())
        }
        Err(failed) => error::rest_call(&failed, &scope.caller),
    }
}

/// The input schema of one tool.
pub(crate) async fn schema(core: &Core, caller: Caller, name: &str) -> Reply {
    let scope = match InNamespace::of(core, caller) {
        Ok(scope) => scope,
        Err(Refused(reply)) => return *reply,
    };
    let namespace = &scope.namespace;
    match input_schema(core.upstreams.of(namespace), &scope, name).await {
        Ok(schema) => Reply::json(StatusCode::OK, schema),
        Err(failed) => error::rest_call(&failed, &scope.caller),
    }
}

/// The input schema of a tool that the caller may see. A tool that declares no schema has `{}`.
///
/// # Errors
///
/// There is no such tool, or why the tools are not known.
async fn input_schema(
    upstream: &dyn Upstream,
    scope: &InNamespace,
    name: &str,
) -> Result<String, CallError> {
    let tools = upstream.tools(&scope.namespace, ToolsWait::Long);
    let tools = tools.get().await?;
    let tool = scope.view().tool(&tools, name);
    let tool = tool.ok_or_else(|| unknown_tool(name))?;
    let schema = tool.input_schema().map_or("{}", RawValue::get);
    Ok(schema.to_owned())
}

/// The body is the arguments object; the answer is the tool's bare value.
pub(crate) async fn call(core: &Core, caller: Caller, name: &str, body: Bytes) -> Reply {
    let scope = match InNamespace::of(core, caller) {
        Ok(scope) => scope,
        Err(Refused(reply)) => return *reply,
    };
    let upstream = core.upstreams.of(&scope.namespace);
    let arguments = match read(upstream, &scope, name, body).await {
        Ok(arguments) => arguments,
        Err(Refused(reply)) => return *reply,
    };
    let InNamespace { caller, namespace } = scope;
    core.passing.took_client_mode(&caller, &namespace);
    let cx = CallContext {
        caller: &caller,
        body: &arguments,
        namespace: Arc::clone(&namespace),
        upstream,
        client: Client::Plain,
        streams: false,
        depth: 0,
    };
    let answered = async {
        let call = upstream.call_tool(&cx, name, arguments.clone())?;
        let reply = core.engine.run(&caller, &call, None).await?;
        answer::value_of(upstream, &namespace, name, reply).await
    };
    match answered.await {
        Ok(value) => Reply::json(StatusCode::OK, value),
        Err(failed) => error::rest_call(&failed, &caller),
    }
}

/// The arguments of a call.
async fn read(
    upstream: &dyn Upstream,
    scope: &InNamespace,
    name: &str,
    body: Bytes,
) -> Result<Bytes, Refused> {
    if arguments::is_blank(&body) && needs_arguments(upstream, scope, name).await {
        return Err(arguments::blank());
    }
    arguments::of(body)
}

/// Whether the tool is known to need arguments.
async fn needs_arguments(upstream: &dyn Upstream, scope: &InNamespace, name: &str) -> bool {
    let schema = input_schema(upstream, scope, name).await;
    let schema = schema.ok().and_then(|it| RawValue::from_string(it).ok());
    schema.is_some_and(|schema| arguments::are_required(&schema))
}
