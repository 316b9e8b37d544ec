//! `/api/*`: the API of the web UI, and of other programs.
//!
//! No change is implemented a second time. Operations that a management tool has are calls of that tool, through the engine: with
//! its limits, its audit line under the caller's name, and its counts. The other paths read the current state.
//!
//! A listener of the profile `core` answers a few of these paths below `/operator/`, for the commands of the command line
//! (`COMMAND_PATHS`): with the same handlers and the same table of rights.
//!
//! The edge controls access: only principals who may use the management tools, and no browser requests from other pages.
//!
//! `PATHS` is the only table of paths. A row contains the effects of its path (`PathEffects`), from which `check` and
//! `rights.rs` derive the scope that the path needs: none, that of the management tool with the same effects, or `admin`.
//! `rights.rs` tests every path and tool with every scope, and writes the table in `docs/security.md`. `tools.rs` calls
//! management tools, `activity.rs` reads audit files, `server_process.rs` has a server's standard error and restart, and
//! figures come from `mcp-upstream/engine/metrics/figures.rs`.

use std::sync::Arc;

use bytes::Bytes;
use http::Method;
use tooldock_base::effect::{Effect, Missing, uncovered};
use tooldock_base::names::NamespaceName;
use tooldock_engine::upstream::system::Management;
use tooldock_sessions::caller::Caller;
use tooldock_workers::registry::startup;

use crate::mcp::Core;
use crate::reply::Reply;

mod activity;
mod answer;
mod configuration;
mod diff;
mod doctor;
mod export;
mod folders;
mod gateway_log;
mod keys;
mod namespaces;
mod overview;
mod pins;
mod request;
mod search;
mod secrets;
mod server_process;
mod servers;
mod sessions;
mod sources;
mod status;
mod streams;
mod tools;
mod trail;
mod upload;

use answer::{Answer, WebFailure};
use request::ApiRequest;

/// The properties of a request that the handlers read besides its method, query and body.
#[derive(Debug, Clone)]
pub struct WebRequest {
    /// The complete path of the request, not decoded. The edge has checked that every segment can be decoded.
    pub path: String,
    /// The value of `Content-Type`; empty if absent.
    pub content_type: String,
    /// True if the request's `Accept` header names a stream of events.
    pub wants_events: bool,
    /// True if the connection uses TLS.
    pub is_tls: bool,
    /// True if the client's connection comes from this machine.
    pub is_local: bool,
}

/// The effects of a path. If a caller's credential has scopes, they must cover all effects of the path; a credential without
/// scopes covers all effects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PathEffects {
    /// The path does the work of this management tool. The caller's scopes must open the tool's name and cover its effects.
    Same(&'static str),
    /// The path does work that no management tool does in this form. It has these effects.
    All(&'static [Effect]),
}

use PathEffects::{All, Same};

/// The effects of a path that only reads the caller's own view of the state.
const VIEW: PathEffects = All(&[Effect::ReadsState]);
const CHANGES_SERVER: PathEffects = All(&[Effect::RunsCode]);
const READS_ACTIVITY: PathEffects = All(&[Effect::ReadsActivity]);
const READS_CONFIGURATION: PathEffects = All(&[Effect::ReadsConfiguration]);
const READS_KEYS: PathEffects = All(&[Effect::ReadsRights, Effect::HandlesKeys]);
const ENDS_WORK: PathEffects = All(&[Effect::EndsOthersWork]);
const APPROVES_PINS: PathEffects = All(&[Effect::ApprovesPins]);

/// Every path with its method and effects; `*` is a placeholder for one segment.
const PATHS: &[(&str, &str, PathEffects)] = &[
    ("me", "GET", VIEW),
    ("status", "GET", VIEW),
    ("dashboard", "GET", VIEW),
    ("events", "GET", VIEW),
    ("reload", "POST", Same("reload_core")),
    ("doctor", "POST", All(&[Effect::ReadsConfiguration])),
    ("namespaces", "GET", VIEW),
    ("namespaces/*", "GET", VIEW),
    ("namespaces/*/tools", "GET", VIEW),
    ("namespaces/*/tool", "GET", VIEW),
    ("namespaces/*/output", "GET", READS_ACTIVITY),
    ("namespaces/*/output/events", "GET", READS_ACTIVITY),
    ("folders", "GET", Same("list_namespaces")),
    ("folders", "POST", Same("create_namespace")),
    ("folders/*", "DELETE", Same("delete_namespace")),
    ("folders/*/validate", "POST", Same("write_tool")),
    ("folders/*/requirements", "GET", Same("list_requirements")),
    ("folders/*/requirements", "POST", Same("add_requirement")),
    (
        "folders/*/requirements/install",
        "POST",
        Same("install_requirements"),
    ),
    ("folders/*/tools", "GET", Same("list_tools")),
    ("folders/*/tools", "POST", Same("write_tool")),
    ("folders/*/tools/*", "GET", Same("get_tool_source")),
    ("folders/*/tools/*", "DELETE", Same("delete_tool")),
    ("folders/*/tools/*/history", "GET", Same("get_tool_source")),
    (
        "folders/*/tools/*/history/*",
        "GET",
        Same("get_tool_source"),
    ),
    ("folders/*/tools/*/diff", "GET", Same("get_tool_source")),
    ("folders/*/tools/*/rollback", "POST", Same("write_tool")),
    ("servers", "GET", READS_CONFIGURATION),
    ("servers", "POST", CHANGES_SERVER),
    ("servers/*", "PUT", CHANGES_SERVER),
    ("servers/*", "DELETE", Same("delete_namespace")),
    ("servers/*/stderr", "GET", READS_ACTIVITY),
    ("servers/*/stderr/events", "GET", READS_ACTIVITY),
    ("servers/*/restart", "POST", ENDS_WORK),
    ("pins", "GET", READS_CONFIGURATION),
    ("pins/*/approve", "POST", APPROVES_PINS),
    ("pins/*/forget", "POST", APPROVES_PINS),
    ("registry", "GET", Same("search_registry")),
    ("secrets", "GET", Same("list_secrets")),
    ("secrets", "PUT", All(&[Effect::SetsSecrets])),
    ("secrets/*/*", "DELETE", Same("remove_secret")),
    ("keys", "GET", Same("token_list")),
    ("keys", "POST", Same("token_create")),
    ("keys/*", "GET", READS_KEYS),
    ("keys/*", "DELETE", Same("token_revoke")),
    ("keys/*/namespaces/*", "GET", READS_KEYS),
    ("search", "GET", VIEW),
    ("configuration", "GET", READS_CONFIGURATION),
    ("configuration/changes", "GET", READS_CONFIGURATION),
    ("log", "GET", READS_ACTIVITY),
    ("log/events", "GET", READS_ACTIVITY),
    ("activity", "GET", READS_ACTIVITY),
    ("activity/events", "GET", READS_ACTIVITY),
    ("activity/export", "GET", READS_ACTIVITY),
    ("activity/*", "GET", READS_ACTIVITY),
    ("sessions", "GET", READS_ACTIVITY),
    ("sessions/*", "DELETE", ENDS_WORK),
    ("streams", "GET", READS_ACTIVITY),
    ("streams/*", "DELETE", ENDS_WORK),
];

/// Paths that a listener of the profile `core` answers below `/operator/`, each with its method.
const COMMAND_PATHS: &[(&str, &str)] = &[
    ("status", "GET"),
    ("reload", "POST"),
    ("doctor", "POST"),
    ("namespaces/*/output", "GET"),
    ("namespaces/*/output/events", "GET"),
    ("activity", "GET"),
    ("activity/events", "GET"),
    ("sessions", "GET"),
    ("sessions/*", "DELETE"),
    ("pins", "GET"),
    ("pins/*/approve", "POST"),
    ("pins/*/forget", "POST"),
];

/// Answers a request below `/api/` or `/operator/`.
pub(crate) async fn handle(
    core: &Arc<Core>,
    caller: Caller,
    method: Method,
    query: Option<String>,
    body: Bytes,
    web: WebRequest,
) -> Reply {
    let request = ApiRequest::new(&caller, method, query, body, web);
    let answered = match request {
        Ok(request) => route(core, &caller, &request).await,
        Err(failure) => Err(failure),
    };
    answer::sealed(answered)
}

/// While the gateway starts, delays requests about namespaces until these are started, as for REST.
async fn await_start(core: &Core, segments: &[&str]) -> Result<(), WebFailure> {
    let registry = &core.registry;
    if !registry.startup().is_running() {
        return Ok(());
    }
    let starting = match segments {
        ["namespaces"] if !registry.wait_for_scan().await => {
            Some(startup::starting(&NamespaceName::global()))
        }
        ["namespaces", name, ..] => match name.parse() {
            Ok(name) => registry.starting(&name).await,
            // A malformed name is refused later, by the handler of the path.
            Err(_) => None,
        },
        _ => None,
    };
    starting.map_or(Ok(()), |failed| Err(WebFailure::starting(&failed)))
}

async fn route(core: &Arc<Core>, caller: &Caller, request: &ApiRequest) -> Answer {
    let segments: Vec<&str> = request.segments.iter().map(String::as_str).collect();
    let method = request.method.as_str();
    let does = done_by(method, &segments)?;
    if request.is_of_command && !is_for_commands(method, &segments) {
        return Err(WebFailure::not_found("not_found", NO_PATH));
    }
    check(caller, does)?;
    await_start(core, &segments).await?;
    match (method, segments.as_slice()) {
        ("GET", ["me"]) => overview::me(core, caller, request),
        ("GET", ["status"]) => status::status(core, caller),
        ("GET", ["dashboard"]) => overview::dashboard(core, caller),
        ("GET", ["events"]) => overview::events(core, caller),
        ("POST", ["reload"]) => tools::reload(core).await,
        ("POST", ["doctor"]) => doctor::nonces(core, request),
        ("GET", ["namespaces"]) => namespaces::list(core, caller, request),
        ("GET", ["namespaces", name]) => namespaces::one(core, caller, name),
        ("GET", ["namespaces", name, "tools"]) => {
            namespaces::tools(core, caller, request, name).await
        }
        ("GET", ["namespaces", name, "tool"]) => {
            namespaces::tool(core, caller, request, name).await
        }
        ("GET", ["namespaces", name, "output"]) => {
            server_process::output_of(core, caller, request, name)
        }
        ("GET", ["namespaces", name, "output", "events"]) => {
            server_process::output_events(core, caller, request, name)
        }
        ("GET", ["folders"]) => folders::list(core, caller, request).await,
        ("POST", ["folders"]) => folders::create(core, caller, request).await,
        ("DELETE", ["folders", name]) => folders::delete(core, caller, request, name).await,
        ("POST", ["folders", name, "validate"]) => sources::validate(core, request, name).await,
        ("GET", ["folders", name, "requirements"]) => {
            sources::requirements(core, caller, name).await
        }
        ("POST", ["folders", name, "requirements"]) => {
            sources::add_requirement(core, caller, request, name).await
        }
        ("POST", ["folders", name, "requirements", "install"]) => {
            sources::install(core, caller, request, name).await
        }
        ("GET", ["folders", name, "tools"]) => sources::list(core, request, name).await,
        ("POST", ["folders", name, "tools"]) => sources::upload(core, caller, request, name).await,
        ("GET", ["folders", name, "tools", file]) => sources::read(core, name, file).await,
        ("DELETE", ["folders", name, "tools", file]) => {
            sources::delete(core, caller, name, file).await
        }
        ("GET", ["folders", name, "tools", file, "history"]) => {
            sources::history(core, name, file).await
        }
        ("GET", ["folders", name, "tools", file, "history", version]) => {
            sources::version(core, name, file, version).await
        }
        ("GET", ["folders", name, "tools", file, "diff"]) => {
            sources::diff(core, request, name, file).await
        }
        ("POST", ["folders", name, "tools", file, "rollback"]) => {
            sources::rollback(core, caller, request, name, file).await
        }
        ("GET", ["servers"]) => servers::list(core, caller, request).await,
        ("POST", ["servers"]) => servers::add(core, caller, request).await,
        ("PUT", ["servers", name]) => servers::change(core, caller, request, name).await,
        ("DELETE", ["servers", name]) => servers::remove(core, caller, name).await,
        ("GET", ["servers", name, "stderr"]) => server_process::stderr(core, request, name).await,
        ("GET", ["servers", name, "stderr", "events"]) => {
            server_process::events(core, caller, request, name).await
        }
        ("POST", ["servers", name, "restart"]) => server_process::restart(core, caller, name).await,
        ("GET", ["pins"]) => pins::list(core, caller, request),
        ("POST", ["pins", name, "approve"]) => pins::approve(core, caller, request, name).await,
        ("POST", ["pins", name, "forget"]) => pins::forget(core, caller, request, name).await,
        ("GET", ["registry"]) => servers::search(core, caller, request).await,
        ("GET", ["secrets"]) => secrets::list(core, request).await,
        ("PUT", ["secrets"]) => secrets::set(core, caller, request).await,
        ("DELETE", ["secrets", scope, key]) => secrets::remove(core, caller, scope, key).await,
        ("GET", ["keys"]) => keys::list(core, request).await,
        ("POST", ["keys"]) => keys::create(core, caller, request).await,
        ("GET", ["keys", id]) => keys::one(core, id).await,
        ("DELETE", ["keys", id]) => keys::revoke(core, caller, id).await,
        ("GET", ["keys", id, "namespaces", name]) => keys::rules(core, caller, id, name).await,
        ("GET", ["search"]) => search::search(core, caller, request).await,
        ("GET", ["configuration"]) => configuration::in_force(core, request).await,
        ("GET", ["configuration", "changes"]) => configuration::changes(core, request).await,
        ("GET", ["log"]) => gateway_log::lines(core, request),
        ("GET", ["log", "events"]) => gateway_log::events(core, caller, request),
        ("GET", ["activity", "export"]) => export::export(core, request).await,
        ("GET", ["activity"]) => activity::list(core, request).await,
        ("GET", ["activity", "events"]) => activity::events(core, caller, request),
        ("GET", ["activity", id]) => activity::one(core, id).await,
        ("GET", ["sessions"]) => sessions::list(core, request),
        ("DELETE", ["sessions", id]) => sessions::end(core, caller, id).await,
        ("GET", ["streams"]) => sessions::streams(core, request),
        ("DELETE", ["streams", id]) => sessions::end_stream(core, caller, id),
        // Unreachable for the paths of the table: a test requests each of them.
        _ => Err(WebFailure::not_found("not_found", NO_PATH)),
    }
}

const NO_PATH: &str = "The API has nothing at this path.";

/// The effects of a request. The error is 405 if the path exists with another method, and 404 if there is no such path.
fn done_by(method: &str, segments: &[&str]) -> Result<PathEffects, WebFailure> {
    let Some((pattern, ..)) = PATHS.iter().find(|(pattern, ..)| fits(pattern, segments)) else {
        return Err(WebFailure::not_found("not_found", NO_PATH));
    };
    let rows = PATHS.iter().filter(|(other, ..)| other == pattern);
    if let Some((_, _, does)) = rows.clone().find(|(_, known, _)| *known == method) {
        return Ok(*does);
    }
    let known: Vec<_> = rows.map(|(_, known, _)| *known).collect();
    let allow = known.join(", ");
    let message = format!("/api/{pattern} does not know the method {method}; it knows {allow}.");
    Err(WebFailure::method(message, &allow))
}

/// Returns true if a path has the form of a pattern.
fn fits(pattern: &str, segments: &[&str]) -> bool {
    let mut parts = pattern.split('/');
    let all = segments.iter().all(|segment| {
        parts
            .next()
            .is_some_and(|part| part == "*" || part == *segment)
    });
    all && parts.next().is_none()
}

/// Returns true if a listener of the profile `core` answers the path.
fn is_for_commands(method: &str, segments: &[&str]) -> bool {
    let mut paths = COMMAND_PATHS.iter();
    paths.any(|(pattern, known)| *known == method && fits(pattern, segments))
}

/// Refuses a caller whose credential does not cover the effects of a path.
fn check(caller: &Caller, does: PathEffects) -> Result<(), WebFailure> {
    let Some(grant) = &caller.grant else {
        return Ok(());
    };
    let scope = &grant.tools;
    let lacks = match does {
        Same(tool) => match Management::EFFECTS.check(scope, tool) {
            Ok(()) => return Ok(()),
            Err(Missing::Name) => {
                return Err(WebFailure::out_of_scope(format!(
                    "The credential's scopes do not open {tool}, the management tool that does the same"
                )));
            }
            Err(Missing::Effect(effect)) => Some(effect),
        },
        All(effects) => uncovered(effects, scope),
    };
    match lacks {
        None => Ok(()),
        Some(effect) => Err(WebFailure::out_of_scope(format!(
            "The credential's scopes do not open this, which {}: it needs {}",
            effect.words(),
            effect.needed()
        ))),
    }
}

#[cfg(test)]
mod rights;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_particular_pattern_counts_and_unknown_methods_name_those_there_are() {
        let found =
            |method: &str, path: &str| done_by(method, &path.split('/').collect::<Vec<_>>()).ok();
        assert_eq!(found("GET", "activity/events"), Some(READS_ACTIVITY));
        assert_eq!(found("DELETE", "folders/a"), Some(Same("delete_namespace")));
        assert_eq!(found("GET", "folders/a/b"), None);
        assert_eq!(found("PATCH", "folders"), None);
    }

    #[test]
    fn commands_reach_rows_of_the_table_and_neither_code_nor_secrets() {
        for (pattern, method) in COMMAND_PATHS {
            let mut rows = PATHS.iter();
            assert!(
                rows.any(|(other, known, _)| (other, known) == (pattern, method)),
                "{method} {pattern}"
            );
        }
        let opens = |method: &str, path: &str| {
            is_for_commands(method, &path.split('/').collect::<Vec<_>>())
        };
        assert!(opens("DELETE", "sessions/a") && opens("GET", "activity/events"));
        for (method, path) in [
            ("PUT", "secrets"),
            ("POST", "folders"),
            ("GET", "activity/2026-11-23-0"),
            ("POST", "servers/a/restart"),
        ] {
            assert!(!opens(method, path), "{method} {path}");
        }
    }
}
