//! `/tools`: list, call, schema (EX-20 to EX-22).

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;
use http::StatusCode;
use serde::Serialize;
use serde_json::value::RawValue;
use tooldock_workers::registry::Namespace;
use tooldock_workers::worker::Operation;

use super::{InNamespace, Refused, arguments, json};
use crate::audit::Transport;
use crate::caller::Caller;
use crate::engine::{CallRequest, Engine};
use crate::error;
use crate::jsonrpc::{self, spans};
use crate::mcp::Core;
use crate::mcp::forward::rest as external;
use crate::reply::Reply;

/// The caller as a tool with a context sees it: REST has no way to ask or tell anything before the answer.
const NOBODY_TO_ASK: &[u8] = br#"{"era":"none","capabilities":{},"progress":false}"#;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Tool<'a> {
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    title: Option<&'a str>,
    description: &'a str,
    input_schema: &'a RawValue,
    #[serde(skip_serializing_if = "Option::is_none")]
    output_schema: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    annotations: Option<&'a RawValue>,
    filename: &'a str,
}

/// The tools of the caller's namespace.
pub(crate) async fn list(core: &Core, caller: Caller) -> Reply {
    let scope = match InNamespace::of(core, caller) {
        Ok(scope) => scope,
        Err(Refused(reply)) => return *reply,
    };
    if core.external.serves(&scope.namespace) {
        return list_external(core, &scope).await;
    }
    match Engine::list(&scope.namespace) {
        Ok(tools) => {
            let tools: Vec<_> = tools
                .map(|tool| Tool {
                    name: &tool.name,
                    title: tool.title.as_deref(),
                    description: &tool.description,
                    input_schema: &tool.input_schema,
                    output_schema: tool.output_schema.as_deref(),
                    annotations: tool.annotations.as_deref(),
                    filename: &tool.filename,
                })
                .collect();
            json(&tools)
        }
        Err(failed) => error::rest_call(&failed, &scope.caller),
    }
}

/// The tools of a server as it describes them, in the shape of all others.
async fn list_external(core: &Core, scope: &InNamespace) -> Reply {
    let tools = match external::tools(core, &scope.namespace).await {
        Ok(tools) => tools,
        Err(failed) => return error::rest_call(&failed, &scope.caller),
    };
    let tools: Vec<_> = tools
        .tools()
        .filter(|(name, _)| scope.namespace.policy.allows_tool(name))
        .map(|(name, definition)| {
            let member = |key| spans::member(definition, key);
            let text = |key| member(key).and_then(jsonrpc::string).map(Cow::into_owned);
            External {
                name,
                title: text("title"),
                description: text("description").unwrap_or_default(),
                input_schema: member("inputSchema"),
                output_schema: member("outputSchema"),
                annotations: member("annotations"),
                filename: "",
            }
        })
        .collect();
    json(&tools)
}

/// A tool of a server; what it does not say is left out.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct External<'a> {
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    title: Option<String>,
    description: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    input_schema: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    output_schema: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    annotations: Option<&'a RawValue>,
    filename: &'a str,
}

/// The input schema of one tool.
pub(crate) async fn schema(core: &Core, caller: Caller, name: &str) -> Reply {
    let scope = match InNamespace::of(core, caller) {
        Ok(scope) => scope,
        Err(Refused(reply)) => return *reply,
    };
    if core.external.serves(&scope.namespace) {
        return match external::schema(core, &scope.namespace, name).await {
            Ok(schema) => Reply::json(StatusCode::OK, schema),
            Err(failed) => error::rest_call(&failed, &scope.caller),
        };
    }
    match Engine::tool(&scope.namespace, name) {
        Ok(tool) => Reply::json(StatusCode::OK, tool.input_schema.get().to_owned()),
        Err(failed) => error::rest_call(&failed, &scope.caller),
    }
}

/// The body is the arguments object; the answer is the tool's bare value.
pub(crate) async fn call(core: &Core, caller: Caller, name: &str, body: Bytes) -> Reply {
    let scope = match InNamespace::of(core, caller) {
        Ok(scope) => scope,
        Err(Refused(reply)) => return *reply,
    };
    let arguments = match read(core, &scope, name, body).await {
        Ok(arguments) => arguments,
        Err(Refused(reply)) => return *reply,
    };
    let InNamespace { caller, namespace } = scope;
    if core.external.serves(&namespace) {
        return match external::call(core, &caller, namespace, name, arguments).await {
            Ok(value) => Reply::json(StatusCode::OK, value),
            Err(failed) => error::rest_call(&failed, &caller),
        };
    }
    let operation = Operation::CallTool {
        tool: name.into(),
        arguments,
    };
    let request = CallRequest {
        caller_facts: Engine::talks(&namespace, &operation)
            .then(|| Bytes::from_static(NOBODY_TO_ASK)),
        namespace,
        operation,
        transport: Transport::Rest,
        version: None,
        session: None,
    };
    match core.engine.call(&caller, &request, None).await {
        Ok(reply) => match reply.content {
            // Blocks without a value (an image, say) have no bare form.
            Some(content) if matches!(reply.value.trim_ascii(), b"null" | b"") => {
                let body = [b"{\"content\":", &*content, b"}"].concat();
                Reply::json(StatusCode::OK, body)
            }
            _ => Reply::json(StatusCode::OK, reply.value),
        },
        Err(failed) => error::rest_call(&failed, &caller),
    }
}

/// The arguments of a call.
async fn read(core: &Core, scope: &InNamespace, name: &str, body: Bytes) -> Result<Bytes, Refused> {
    if arguments::is_blank(&body) && needs_arguments(core, &scope.namespace, name).await {
        return Err(arguments::blank());
    }
    arguments::of(body)
}

/// Whether the tool is known to need arguments.
async fn needs_arguments(core: &Core, namespace: &Arc<Namespace>, name: &str) -> bool {
    if !core.external.serves(namespace) {
        let tool = Engine::tool(namespace, name);
        return tool.is_ok_and(|tool| arguments::are_required(&tool.input_schema));
    }
    let schema = external::schema(core, namespace, name).await;
    let schema = schema.ok().and_then(|it| RawValue::from_string(it).ok());
    schema.is_some_and(|schema| arguments::are_required(&schema))
}
