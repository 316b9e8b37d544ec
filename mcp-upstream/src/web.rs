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
mod request;
mod secrets;
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

/// Every path and the methods it knows; `*` stands for one segment.
const PATHS: &[(&str, &str)] = &[
    ("me", "GET"),
    ("dashboard", "GET"),
    ("events", "GET"),
    ("reload", "POST"),
    ("namespaces", "GET"),
    ("namespaces/*", "GET"),
    ("namespaces/*/tools", "GET"),
    ("namespaces/*/tool", "GET"),
    ("folders", "GET, POST"),
    ("folders/*", "DELETE"),
    ("folders/*/validate", "POST"),
    ("folders/*/requirements", "GET, POST"),
    ("folders/*/requirements/install", "POST"),
    ("folders/*/tools", "GET, POST"),
    ("folders/*/tools/*", "GET, DELETE"),
    ("folders/*/tools/*/history", "GET"),
    ("folders/*/tools/*/history/*", "GET"),
    ("folders/*/tools/*/diff", "GET"),
    ("folders/*/tools/*/rollback", "POST"),
    ("servers", "GET, POST"),
    ("servers/*", "PUT, DELETE"),
    ("registry", "GET"),
    ("secrets", "GET, PUT"),
    ("secrets/*/*", "DELETE"),
    ("activity", "GET"),
    ("activity/events", "GET"),
    ("activity/*", "GET"),
    ("sessions", "GET"),
    ("sessions/*", "DELETE"),
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
        ("GET", ["registry"]) => servers::search(core, caller, request).await,
        ("GET", ["secrets"]) => secrets::list(core, request).await,
        ("PUT", ["secrets"]) => secrets::set(core, caller, request).await,
        ("DELETE", ["secrets", scope, key]) => secrets::remove(core, caller, scope, key).await,
        ("GET", ["activity"]) => activity::list(core, request).await,
        ("GET", ["activity", "events"]) => activity::events(core, caller, request),
        ("GET", ["activity", id]) => activity::one(core, id).await,
        ("GET", ["sessions"]) => sessions::list(core, request),
        ("DELETE", ["sessions", id]) => sessions::end(core, caller, id).await,
        _ => Err(nothing(method, &segments)),
    }
}

/// 405 where another method would be known, else 404.
fn nothing(method: &str, segments: &[&str]) -> Failure {
    let fits = |pattern: &str| {
        let mut parts = pattern.split('/');
        let all = segments.iter().all(|segment| {
            parts
                .next()
                .is_some_and(|part| part == "*" || part == *segment)
        });
        all && parts.next().is_none()
    };
    match PATHS.iter().find(|(pattern, _)| fits(pattern)) {
        Some((pattern, allow)) => Failure::method(
            format!("/api/{pattern} does not know the method {method}; it knows {allow}."),
            allow,
        ),
        None => Failure::not_found("not_found", "The API has nothing at this path."),
    }
}
