//! Descriptions of MCP endpoints in the format of ToolDock v1: `/mcp/namespaces`, `/mcp/info` and `/mcp/{namespace}/info`
//! (EX-29).

use std::sync::Arc;

use serde_json::{Map, Value, json};
use tooldock_engine::upstream::global;
use tooldock_sessions::caller::Caller;
use tooldock_workers::registry::Namespace;

use super::{EarlyReply, InNamespace, json as reply, tool_count};
use crate::error;
use crate::mcp::{self, Core};
use crate::protocol::ProtocolVersion;
use crate::reply::Reply;

/// Answers with the names of the namespaces, and the number of each namespace's tools if it is known.
pub(crate) fn namespaces(core: &Core, caller: &Caller) -> Reply {
    let namespaces = open_to(core, caller);
    let names: Vec<_> = namespaces.iter().map(|it| it.name.as_str()).collect();
    let breakdown: Map<String, Value> = namespaces
        .iter()
        .map(|it| (it.name.to_string(), tool_count(core, caller, it).into()))
        .collect();
    reply(&json!({ "namespaces": names, "breakdown": breakdown, "total": names.len() }))
}

/// Answers with the description of a namespace's endpoint, or of the endpoint of all namespaces.
pub(crate) async fn endpoint(core: &Core, caller: Caller) -> Reply {
    if caller.namespace.is_none() {
        let mut info = about(core, &caller);
        // `/mcp` is reported as an endpoint only if requests to it need not name a namespace.
        if caller.profile.unnamed_namespace {
            info["endpoint"] = path(&caller, "").into();
        }
        return reply(&info);
    }
    let scope = match InNamespace::of(core, caller) {
        Ok(scope) => scope,
        Err(EarlyReply(refused)) => return *refused,
    };
    let (caller, namespace) = (&scope.caller, &scope.namespace);
    let tools = match mcp::shown_tools(core, caller, namespace).await {
        Ok(tools) => tools,
        Err(failed) => return error::rest_call(&failed, caller),
    };
    let tools: Vec<_> = scope
        .view()
        .tools(&tools)
        .map(|tool| json!({ "name": tool.name(), "description": tool.description() }))
        .collect();
    let mut info = about(core, caller);
    info["namespace"] = namespace.name.as_str().into();
    info["description"] = namespace.description.as_str().into();
    info["endpoint"] = path(caller, namespace.name.as_str()).into();
    info["tools"] = tools.into();
    reply(&info)
}

fn about(core: &Core, caller: &Caller) -> Value {
    let profile = &caller.profile;
    let versions: Vec<_> = profile.versions.iter().map(|it| it.as_str()).collect();
    let namespaces = open_to(core, caller);
    let names: Vec<_> = namespaces.iter().map(|it| it.name.as_str()).collect();
    let endpoints: Map<String, Value> = names
        .iter()
        .map(|name| ((*name).to_owned(), path(caller, name).into()))
        .collect();
    json!({
        "server": "tooldock",
        "version": env!("CARGO_PKG_VERSION"),
        "protocol": "MCP",
        "protocolVersion": ProtocolVersion::as_str(profile.default_version()),
        "supportedProtocolVersions": versions,
        "transport": "streamable-http",
        "namespaces": names,
        "namespace_endpoints": endpoints,
    })
}

/// Returns the path of an endpoint as the client has to write it, with the listener's prefix.
fn path(caller: &Caller, namespace: &str) -> String {
    let slash = if namespace.is_empty() { "" } else { "/" };
    format!("{}/mcp{slash}{namespace}", caller.profile.path_prefix)
}

/// Returns the namespaces that the caller may use, in the order of ToolDock v1.
fn open_to(core: &Core, caller: &Caller) -> Vec<Arc<Namespace>> {
    let snapshot = core.registry.snapshot();
    let mut open = global::members(&snapshot, caller);
    let aggregates = snapshot.namespaces.values();
    let aggregates = aggregates.filter(|it| caller.may_use(it));
    let others: Vec<_> = aggregates
        .filter(|it| !open.iter().any(|known| Arc::ptr_eq(known, it)))
        .map(Arc::clone)
        .collect();
    open.extend(others);
    open
}
