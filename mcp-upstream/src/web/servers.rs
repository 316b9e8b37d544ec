//! `/api/servers`: external servers, which are configured in `$DATA/external/config.yaml` or in the gateway's configuration
//! (GUI-06).

use std::collections::BTreeMap;
use std::sync::Arc;

use http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};
use tooldock_base::names::NamespaceName;
use tooldock_engine::upstream::system::with_package;
use tooldock_sessions::caller::Caller;
use tooldock_workers::manage::{ManagedServer, ServerRefused};
use tooldock_workers::registry::{Namespace, UpstreamKind};

use super::answer::{Answer, WebFailure, capitalised, json_of, with_status};
use super::namespaces::hint;
use super::request::ApiRequest;
use super::tools::{call, management, reload_soon};
use super::trail;
use crate::mcp::Core;
use crate::rest;
use crate::rest::condition::Condition;

pub(super) async fn list(core: &Arc<Core>, caller: &Caller, request: &ApiRequest) -> Answer {
    let wanted = request.wanted();
    let managed = management(core)?.workspace.servers().await?;
    let mut managed: BTreeMap<_, _> = managed
        .into_iter()
        .map(|it| (it.name.clone(), it))
        .collect();
    let snapshot = core.registry.snapshot();
    let mut all = BTreeMap::new();
    for namespace in snapshot.namespaces.values() {
        let entry = managed.remove(&namespace.name);
        if entry.is_some() || !namespace.has_folder() {
            let shown = server_json(
                core,
                caller,
                &namespace.name,
                Some(namespace),
                entry.as_ref(),
            );
            all.insert(namespace.name.clone(), shown);
        }
    }
    for (name, entry) in managed {
        all.insert(
            name.clone(),
            server_json(core, caller, &name, None, Some(&entry)),
        );
    }
    let all = all
        .into_iter()
        .filter(|(name, _)| name.as_str().contains(&wanted));
    request.page("servers", all.map(|(_, shown)| shown).collect(), json!({}))
}

/// A server as the API shows it, with its state if it is served, and its entry if it is in the file.
fn server_json(
    core: &Core,
    caller: &Caller,
    name: &NamespaceName,
    served: Option<&Arc<Namespace>>,
    entry: Option<&ManagedServer>,
) -> Value {
    let failing = served.and_then(|it| rest::failing::of(core, it));
    let enabled = entry.is_none_or(|it| it.enabled);
    let status = match served {
        _ if !enabled => "disabled",
        _ if failing.is_some() => "failed",
        Some(namespace) => match Condition::of(core, namespace).state {
            "ready" => "running",
            other => other,
        },
        None => "pending",
    };
    let kind = match served.map(|it| &it.upstream) {
        Some(UpstreamKind::Remote(_)) => "remote",
        Some(UpstreamKind::Aggregate(_)) => "aggregate",
        _ => "stdio",
    };
    json!({
        "server_id": name,
        "namespace": name,
        "endpoint": format!("{}/mcp/{name}", caller.profile.path_prefix),
        "enabled": enabled,
        "status": status,
        "managed": entry.is_some(),
        "kind": kind,
        "tool_count": served.map_or(0, |it| rest::tool_count(core, caller, it)),
        "config": entry.map(|it| it.config.clone()),
        "error": failing.map(|it| json!({"code": it.code, "message": it.message, "hint": hint(it.code)})),
    })
}

pub(super) fn server_id(text: &str) -> Result<NamespaceName, WebFailure> {
    text.parse()
        .map_err(|error| WebFailure::invalid("server_id", format!("{error}")))
}

fn refused(error: ServerRefused) -> WebFailure {
    let message = capitalised(error.to_string());
    match error {
        ServerRefused::Exists(_) | ServerRefused::Folder(_) | ServerRefused::Taken(_) => {
            WebFailure::exists(message)
        }
        ServerRefused::Unknown(_) => WebFailure::not_found("server_not_found", message),
        ServerRefused::Invalid { key, message } => {
            WebFailure::invalid(&format!("config.{key}"), format!("config.{key}: {message}"))
        }
        ServerRefused::NotDone(_) => WebFailure::refused(message),
    }
}

/// A server as the API shows it after a change.
pub(super) async fn one(
    core: &Arc<Core>,
    caller: &Caller,
    name: &NamespaceName,
) -> Result<Value, WebFailure> {
    let managed = management(core)?.workspace.servers().await?;
    let entry = managed.iter().find(|it| it.name == *name);
    let served = core.registry.namespace(name.as_str());
    Ok(server_json(core, caller, name, served.as_ref(), entry))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct New {
    server_id: String,
    config: Value,
}

pub(super) async fn add(core: &Arc<Core>, caller: &Caller, request: &ApiRequest) -> Answer {
    let New {
        server_id: id,
        config,
    } = request.json()?;
    let name = server_id(&id)?;
    if !config.is_object() {
        return Err(WebFailure::invalid(
            "config",
            "config must be an object of keys",
        ));
    }
    let management = management(core)?;
    let workspace = &management.workspace;
    if core.registry.namespace(name.as_str()).is_some() {
        return Err(WebFailure::exists(format!(
            "There is a namespace {name} already; choose another name"
        )));
    }
    let added = match with_package(management, config).await {
        Ok(config) => workspace.add_server(&name, config).await.map_err(refused),
        Err(message) => Err(WebFailure::invalid("config.name", message)),
    };
    trail::note(core, caller, "add_server", &added);
    added?;
    reload_soon(core);
    with_status(StatusCode::CREATED, &one(core, caller, &name).await?)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Change {
    enabled: bool,
}

/// Converts "not found" to status 400 if a server with that name is served but configured in the gateway's configuration instead
/// of the file.
fn elsewhere(core: &Core, name: &NamespaceName, failure: WebFailure) -> WebFailure {
    let served = core.registry.namespace(name.as_str());
    match failure.code() == "server_not_found" && served.is_some_and(|it| !it.has_folder()) {
        true => WebFailure::refused(format!(
            "The server {name} stands in the gateway's own configuration, and is changed there"
        )),
        false => failure,
    }
}

pub(super) async fn change(
    core: &Arc<Core>,
    caller: &Caller,
    request: &ApiRequest,
    id: &str,
) -> Answer {
    let name = server_id(id)?;
    let Change { enabled } = request.json()?;
    let workspace = &management(core)?.workspace;
    let changed = workspace.enable_server(&name, enabled).await;
    let changed = changed.map_err(|error| elsewhere(core, &name, refused(error)));
    trail::note(core, caller, "enable_server", &changed);
    changed?;
    reload_soon(core);
    json_of(&one(core, caller, &name).await?)
}

pub(super) async fn remove(core: &Arc<Core>, caller: &Caller, id: &str) -> Answer {
    let name = server_id(id)?;
    let removed = management(core)?.workspace.remove_server(&name).await;
    let removed = removed.map_err(|error| elsewhere(core, &name, refused(error)));
    trail::note(core, caller, "remove_server", &removed);
    removed?;
    reload_soon(core);
    json_of(&json!({"success": true, "server_id": name}))
}

pub(super) async fn search(core: &Arc<Core>, caller: &Caller, request: &ApiRequest) -> Answer {
    let query = request
        .parameter("q")
        .ok_or_else(|| WebFailure::invalid("q", "Name a word of the server's name: ?q=github"))?;
    let found = call(core, caller, "search_registry", &json!({ "query": query })).await?;
    let servers = found.as_array().cloned().unwrap_or_default();
    json_of(&json!({"total": servers.len(), "servers": servers}))
}
