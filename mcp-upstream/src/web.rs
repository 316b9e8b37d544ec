//! `/api/*`: what the page of the web UI does, and programs like it.
//!
//! Nothing is changed in a second way here. What a management tool does is done by a call of that tool, through the engine:
//! with its limits, its audit line under the caller's own name, and its counts. The rest reads what is there.
//!
//! Who may come here has been decided at the edge: principals who may use the management tools, and no other page's browser.

use std::sync::Arc;

use bytes::Bytes;
use http::Method;

use crate::caller::Caller;
use crate::mcp::Core;
use crate::reply::Reply;

mod activity;
mod answer;
mod diff;
mod folders;
mod namespaces;
mod overview;
mod registry;
mod request;
mod secrets;
mod server_process;
mod servers;
mod sessions;
mod sources;
mod streams;
mod tools;
mod trail;
mod upload;

use answer::{Answer, Failure};
use request::Request;

/// What the handlers read of a request, beside its method, query and body.
#[derive(Debug, Clone)]
pub struct WebRequest {
    /// The whole path, not decoded. Every segment can be.
    pub path: String,
    /// `Content-Type`.
    pub content_type: String,
    /// Whether `Accept` names a stream of events.
    pub wants_events: bool,
    /// Whether the connection is TLS.
    pub is_tls: bool,
    /// Whether whoever is connected is on this machine.
    pub is_local: bool,
}

/// What the scopes of a caller's credential have to open before a path answers. Credentials without scopes open everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Needs {
    /// Nothing: only what the caller may see is shown.
    Nothing,
    /// The management tool that does the same.
    Tool(&'static str),
    /// Every tool: it is about other callers, or no tool does the same.
    Everything,
}

use Needs::{Everything, Nothing, Tool};

/// Every path with its methods; `*` stands for one segment.
const PATHS: &[(&str, &str, Needs)] = &[
    ("me", "GET", Nothing),
    ("dashboard", "GET", Nothing),
    ("events", "GET", Nothing),
    ("reload", "POST", Tool("reload_core")),
    ("namespaces", "GET", Nothing),
    ("namespaces/*", "GET", Nothing),
    ("namespaces/*/tools", "GET", Nothing),
    ("namespaces/*/tool", "GET", Nothing),
    ("folders", "GET", Tool("list_namespaces")),
    ("folders", "POST", Tool("create_namespace")),
    ("folders/*", "DELETE", Tool("delete_namespace")),
    ("folders/*/validate", "POST", Tool("write_tool")),
    ("folders/*/requirements", "GET", Tool("list_requirements")),
    ("folders/*/requirements", "POST", Tool("add_requirement")),
    (
        "folders/*/requirements/install",
        "POST",
        Tool("install_requirements"),
    ),
    ("folders/*/tools", "GET", Tool("list_tools")),
    ("folders/*/tools", "POST", Tool("write_tool")),
    ("folders/*/tools/*", "GET", Tool("get_tool_source")),
    ("folders/*/tools/*", "DELETE", Tool("delete_tool")),
    ("folders/*/tools/*/history", "GET", Tool("get_tool_source")),
    (
        "folders/*/tools/*/history/*",
        "GET",
        Tool("get_tool_source"),
    ),
    ("folders/*/tools/*/diff", "GET", Tool("get_tool_source")),
    ("folders/*/tools/*/rollback", "POST", Tool("write_tool")),
    ("servers", "GET", Tool("server_config")),
    ("servers", "POST", Tool("install_from_registry")),
    ("servers/*", "PUT", Tool("install_from_registry")),
    ("servers/*", "DELETE", Tool("delete_namespace")),
    ("servers/*/stderr", "GET", Everything),
    ("servers/*/stderr/events", "GET", Everything),
    ("servers/*/restart", "POST", Everything),
    ("registry", "GET", Tool("search_registry")),
    ("secrets", "GET", Tool("list_secrets")),
    ("secrets", "PUT", Everything),
    ("secrets/*/*", "DELETE", Tool("remove_secret")),
    ("activity", "GET", Everything),
    ("activity/events", "GET", Everything),
    ("activity/*", "GET", Everything),
    ("sessions", "GET", Everything),
    ("sessions/*", "DELETE", Everything),
    ("streams", "GET", Everything),
    ("streams/*", "DELETE", Everything),
];

/// Answers a request below `/api/`.
pub(crate) async fn handle(
    core: &Arc<Core>,
    caller: Caller,
    method: Method,
    query: Option<String>,
    body: Bytes,
    web: WebRequest,
) -> Reply {
    let request = Request::new(&caller, method, query, body, web);
    let answered = match request {
        Ok(request) => route(core, &caller, &request).await,
        Err(failure) => Err(failure),
    };
    answer::sealed(answered)
}

async fn route(core: &Arc<Core>, caller: &Caller, request: &Request) -> Answer {
    let segments: Vec<&str> = request.segments.iter().map(String::as_str).collect();
    let method = request.method.as_str();
    check(caller, needs(method, &segments)?)?;
    match (method, segments.as_slice()) {
        ("GET", ["me"]) => overview::me(core, caller, request),
        ("GET", ["dashboard"]) => overview::dashboard(core, caller),
        ("GET", ["events"]) => overview::events(core, caller),
        ("POST", ["reload"]) => tools::reload(core).await,
        ("GET", ["namespaces"]) => namespaces::list(core, caller, request),
        ("GET", ["namespaces", name]) => namespaces::one(core, caller, name),
        ("GET", ["namespaces", name, "tools"]) => {
            namespaces::tools(core, caller, request, name).await
        }
        ("GET", ["namespaces", name, "tool"]) => {
            namespaces::tool(core, caller, request, name).await
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
        ("GET", ["registry"]) => servers::search(core, caller, request).await,
        ("GET", ["secrets"]) => secrets::list(core, request).await,
        ("PUT", ["secrets"]) => secrets::set(core, caller, request).await,
        ("DELETE", ["secrets", scope, key]) => secrets::remove(core, caller, scope, key).await,
        ("GET", ["activity"]) => activity::list(core, request).await,
        ("GET", ["activity", "events"]) => activity::events(core, caller, request),
        ("GET", ["activity", id]) => activity::one(core, id).await,
        ("GET", ["sessions"]) => sessions::list(core, request),
        ("DELETE", ["sessions", id]) => sessions::end(core, caller, id).await,
        ("GET", ["streams"]) => sessions::streams(core, request),
        ("DELETE", ["streams", id]) => sessions::end_stream(core, caller, id),
        // Every row of the table has its arm: a test asks for each.
        _ => Err(Failure::not_found("not_found", NO_PATH)),
    }
}

const NO_PATH: &str = "The API has nothing at this path.";

/// What a request needs. 405 where another method would be known, else 404.
fn needs(method: &str, segments: &[&str]) -> Result<Needs, Failure> {
    let fits = |pattern: &str| {
        let mut parts = pattern.split('/');
        let all = segments.iter().all(|segment| {
            parts
                .next()
                .is_some_and(|part| part == "*" || part == *segment)
        });
        all && parts.next().is_none()
    };
    let Some((pattern, ..)) = PATHS.iter().find(|(pattern, ..)| fits(pattern)) else {
        return Err(Failure::not_found("not_found", NO_PATH));
    };
    let rows = PATHS.iter().filter(|(other, ..)| other == pattern);
    if let Some((_, _, needs)) = rows.clone().find(|(_, known, _)| *known == method) {
        return Ok(*needs);
    }
    let known: Vec<_> = rows.map(|(_, known, _)| *known).collect();
    let allow = known.join(", ");
    let message = format!("/api/{pattern} does not know the method {method}; it knows {allow}.");
    Err(Failure::method(message, &allow))
}

/// Refuses a caller whose credential does not open what the path does.
fn check(caller: &Caller, needs: Needs) -> Result<(), Failure> {
    let Some(grant) = &caller.grant else {
        return Ok(());
    };
    let opens = match needs {
        Nothing => true,
        Tool(name) => grant.tools.allows(name),
        Everything => grant.tools.is_admin(),
    };
    match (opens, needs) {
        (true, _) => Ok(()),
        (false, Tool(name)) => Err(Failure::out_of_scope(format!(
            "The credential's scopes do not open {name}, the management tool that does the same"
        ))),
        (false, _) => Err(Failure::out_of_scope(
            "The credential's scopes do not open this: it needs the scope admin".to_owned(),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{caller, caller_with_scopes};
    use crate::upstream::system::Management;

    #[test]
    fn a_path_needs_what_the_tool_needs_that_does_the_same() {
        let reader = caller_with_scopes(&["read"]);
        let admin = caller_with_scopes(&["admin"]);
        let tools = Management::tool_names();
        for (pattern, method, needs) in PATHS {
            let opens = |caller: &Caller| check(caller, *needs).is_ok();
            assert_eq!(opens(&reader), *needs == Nothing, "{method} {pattern}");
            assert!(opens(&admin) && opens(&caller()), "{method} {pattern}");
            if let Tool(name) = needs {
                assert!(tools.iter().any(|it| it == name), "{name} is no tool");
            }
        }
    }

    #[test]
    fn the_most_particular_pattern_counts_and_unknown_methods_name_those_there_are() {
        let found =
            |method: &str, path: &str| needs(method, &path.split('/').collect::<Vec<_>>()).ok();
        assert_eq!(found("GET", "activity/events"), Some(Everything));
        assert_eq!(found("DELETE", "folders/a"), Some(Tool("delete_namespace")));
        assert_eq!(found("GET", "folders/a/b"), None);
        assert_eq!(found("PATCH", "folders"), None);
    }
}
