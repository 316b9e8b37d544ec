//! `/tools`: list, call, schema (EX-20 to EX-22).

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;
use http::StatusCode;
use serde::Serialize;
use serde_json::value::RawValue;
use tooldock_workers::error::CallError;
use tooldock_workers::registry::Namespace;

use super::{InNamespace, Refused, answer, arguments, json};
use crate::caller::Caller;
use crate::error;
use crate::mcp::Core;
use crate::reply::Reply;
use crate::upstream::catalogue::ToolEntry;
use crate::upstream::{CallContext, Client, Upstream};

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

impl<'a> From<ToolEntry<'a>> for Tool<'a> {
    fn from(tool: ToolEntry<'a>) -> Self {
        Self {
            name: tool.name,
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
    match core
        .upstreams
        .of(namespace)
        .catalogue(namespace)
        .get()
        .await
    {
        Ok(catalogue) => {
            let tools: Vec<_> = catalogue.allowed(namespace).map(Tool::from).collect();
            json(&tools)
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
    match input_schema(core.upstreams.of(namespace), namespace, name).await {
        Ok(schema) => Reply::json(StatusCode::OK, schema),
        Err(failed) => error::rest_call(&failed, &scope.caller),
    }
}

/// The input schema of a tool the policy allows; `{}` of a tool without one.
///
/// # Errors
///
/// There is no such tool, or why the tools are not known.
async fn input_schema(
    upstream: &dyn Upstream,
    namespace: &Arc<Namespace>,
    name: &str,
) -> Result<String, CallError> {
    let catalogue = upstream.catalogue(namespace).get().await?;
    let tool = catalogue.allowed_tool(namespace, name)?;
    let schema = tool.input_schema().map_or("{}", RawValue::get);
    Ok(schema.to_owned())
}

/// The body is the arguments object; the answer is the tool's bare value.
pub(crate) async fn call(core: &Core, caller: Caller, name: &str, body: Bytes) -> Reply {
    let scope = match InNamespace::of(core, caller) {
        Ok(scope) => scope,
        Err(Refused(reply)) => return *reply,
    };
    let InNamespace { caller, namespace } = scope;
    let upstream = core.upstreams.of(&namespace);
    let arguments = match read(upstream, &namespace, name, body).await {
        Ok(arguments) => arguments,
        Err(Refused(reply)) => return *reply,
    };
    let cx = CallContext {
        caller: &caller,
        body: &arguments,
        namespace: Arc::clone(&namespace),
        upstream,
        client: Client::Plain,
        streams: false,
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
    namespace: &Arc<Namespace>,
    name: &str,
    body: Bytes,
) -> Result<Bytes, Refused> {
    if arguments::is_blank(&body) && needs_arguments(upstream, namespace, name).await {
        return Err(arguments::blank());
    }
    arguments::of(body)
}

/// Whether the tool is known to need arguments.
async fn needs_arguments(upstream: &dyn Upstream, namespace: &Arc<Namespace>, name: &str) -> bool {
    let schema = input_schema(upstream, namespace, name).await;
    let schema = schema.ok().and_then(|it| RawValue::from_string(it).ok());
    schema.is_some_and(|schema| arguments::are_required(&schema))
}
