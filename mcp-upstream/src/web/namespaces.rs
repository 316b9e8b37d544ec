//! `/api/namespaces`: the served namespaces, the state of each, and its tools.

use std::borrow::Cow;
use std::sync::Arc;

use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tooldock_base::issue::Issue;
use tooldock_engine::metrics::figures::{Figures, Rates};
use tooldock_sessions::caller::Caller;
use tooldock_sessions::catalogue::{ToolEntry, View};
use tooldock_workers::registry::{Namespace, UpstreamKind};

use super::answer::{Answer, WebFailure, json_of};
use super::request::ApiRequest;
use crate::error;
use crate::mcp::Core;
use crate::rest;
use crate::rest::condition::Condition;

pub(super) fn list(core: &Arc<Core>, caller: &Caller, request: &ApiRequest) -> Answer {
    let wanted = request.wanted();
    let snapshot = core.registry.snapshot();
    let figures = core.figures.now(&core.metrics);
    let all = snapshot.namespaces.values();
    let all = all.filter(|it| it.name.as_str().contains(&wanted) && caller.may_use(it));
    let all = all.map(|namespace| namespace_json(core, caller, namespace, &figures));
    request.page("namespaces", all.collect(), json!({}))
}

pub(super) fn one(core: &Arc<Core>, caller: &Caller, name: &str) -> Answer {
    let namespace = found(core, caller, name)?;
    let figures = core.figures.now(&core.metrics);
    json_of(&namespace_json(core, caller, &namespace, &figures))
}

/// Finds a namespace that is served and that the caller may use.
pub(super) fn found(
    core: &Core,
    caller: &Caller,
    name: &str,
) -> Result<Arc<Namespace>, WebFailure> {
    let name = super::request::namespace(name)?;
    let found = core.registry.namespace(name.as_str());
    let found = found.filter(|namespace| caller.may_use(namespace));
    found.ok_or_else(|| {
        let message = format!("No namespace {name} is served; a new one is served after a reload");
        WebFailure::not_found("namespace_not_found", message)
    })
}

/// A namespace as the API shows it in lists.
pub(super) fn namespace_json(
    core: &Core,
    caller: &Caller,
    namespace: &Arc<Namespace>,
    figures: &Figures,
) -> Value {
    let name = &namespace.name;
    let failing = rest::failing::of(core, namespace);
    let condition = Condition::of(core, namespace);
    let members = condition.members.iter();
    let members = members.filter(|it| it.served.as_ref().is_none_or(|it| caller.may_use(it)));
    let members: Vec<_> = members.collect();
    let Rates {
        calls,
        error_rate,
        p95_ms,
    } = figures.of(name);
    let down = members.iter();
    let down = down.filter(|member| matches!(member.state, "failed" | "degraded"));
    let down = down.map(|member| {
        let reason = member.reason.as_deref();
        let reason = reason.unwrap_or("it does not serve all it has");
        json!({"code": MEMBER_DOWN, "subject": member.name, "message": reason, "hint": hint(MEMBER_DOWN)})
    });
    let backends = condition.backends.iter();
    let backends: Vec<_> = backends
        .map(|it| {
            json!({"backend": it.id.to_string(), "healthy": it.healthy, "draining": it.draining, "problem": it.problem})
        })
        .collect();
    let issues: Vec<_> = namespace.issues.iter().map(issue).chain(down).collect();
    json!({
        "name": name,
        "kind": kind(namespace),
        "state": condition.state,
        "members": members,
        "backends": backends,
        "sandbox": core.registry.sandbox_of(namespace),
        "description": namespace.description,
        "endpoint": format!("{}/mcp/{name}", caller.profile.path_prefix),
        "tool_count": rest::tool_count(core, caller, namespace),
        "folder": namespace.has_folder(),
        "has_requirements": namespace.has_requirements,
        "secrets_status": namespace.secrets_status.as_str(),
        "pins": rest::pins::of(core, namespace).filter(|it| !it.is_settled()),
        "calls_per_minute": calls,
        "error_rate": error_rate,
        "p95_ms": p95_ms,
        "in_flight": core.metrics.namespace(name).in_flight.get(),
        "error": failing.map(|it| json!({"code": it.code, "message": it.message, "hint": hint(it.code)})),
        "issues": issues,
    })
}

fn kind(namespace: &Namespace) -> &'static str {
    match &namespace.upstream {
        UpstreamKind::Worker(_) => "python",
        UpstreamKind::External(_) => "stdio",
        UpstreamKind::Remote(_) => "remote",
        UpstreamKind::Aggregate(_) => "aggregate",
        UpstreamKind::Empty | UpstreamKind::System => "empty",
        UpstreamKind::Failed(_) => "failed",
    }
}

fn issue(issue: &Issue) -> Value {
    json!({"code": issue.code, "subject": issue.subject, "message": issue.message, "hint": hint(issue.code)})
}

/// Code of the issue that a member of an aggregate is not serving.
const MEMBER_DOWN: &str = "member_down";

/// Advice on a failure or an issue with this code.
pub(super) fn hint(code: &str) -> &'static str {
    match code {
        "syntax_error" => {
            "Open the file in Sources, mend the line that the message names, and save it."
        }
        "import_error" => {
            "Open the file in Sources. If a package is missing, add it under Requirements; else mend the import."
        }
        "dependency_error" => {
            "Look at Requirements: add the package that is missing, or correct the one that could not be installed, and install again."
        }
        "duplicate_tool" => "Two files declare the same tool: rename one of them or delete it.",
        "missing_variable" | "missing_secret" => {
            "Set the secret that the message names, under Secrets."
        }
        "limit_clamped" => {
            "The operator's configuration allows no more; ask the operator, or lower the limit."
        }
        "invalid_config" => {
            "Mend the key that the message names, in the configuration or under Servers."
        }
        "worker_unavailable" | "crash_loop" => {
            "The process ended. The message and the gateway's log say why; after mending it, reload."
        }
        "files_changed" | "functions_changed" => {
            "Nothing is to be done: the namespace has reloaded itself."
        }
        MEMBER_DOWN => {
            "The member is started again after growing delays, and by a reload. The gateway's log says why it ended."
        }
        "secrets_unavailable" => "Give the gateway the key of the secrets store (SECRETS_KEY).",
        _ => "Mend what the message says, and reload. The gateway's log says more.",
    }
}

pub(super) async fn tools(
    core: &Arc<Core>,
    caller: &Caller,
    request: &ApiRequest,
    name: &str,
) -> Answer {
    let namespace = found(core, caller, name)?;
    let wanted = request.wanted();
    let list = core
        .upstreams
        .of(&namespace)
        .tool_lists()
        .listed(&namespace, caller);
    let list = match list.get().await {
        Ok(list) => list,
        Err(failed) => return Ok(error::rest_call(&failed, caller)),
    };
    let tools = View::of(caller, &namespace);
    let tools = tools.tools(&list).filter(|tool| {
        wanted.is_empty()
            || tool.name().to_lowercase().contains(&wanted)
            || tool.description().to_lowercase().contains(&wanted)
    });
    let tools = tools.map(|tool| json!(ToolDescription::without_schemas(tool)));
    request.page(
        "tools",
        tools.collect(),
        json!({ "namespace": namespace.name }),
    )
}

pub(super) async fn tool(
    core: &Arc<Core>,
    caller: &Caller,
    request: &ApiRequest,
    name: &str,
) -> Answer {
    let namespace = found(core, caller, name)?;
    let wanted = request
        .parameter("name")
        .ok_or_else(|| WebFailure::invalid("name", "Name the tool: ?name=<tool>"))?;
    let list = core
        .upstreams
        .of(&namespace)
        .tool_lists()
        .listed(&namespace, caller);
    let list = match list.get().await {
        Ok(list) => list,
        Err(failed) => return Ok(error::rest_call(&failed, caller)),
    };
    match View::of(caller, &namespace).tool(&list, wanted) {
        Some(tool) => json_of(&ToolDescription::of(tool)),
        None => Err(WebFailure::not_found(
            "tool_not_found",
            format!("The namespace {} has no tool of that name", namespace.name),
        )),
    }
}

/// A tool as the API shows it; absent values have no key. Schemas are written as they were declared, so that forms show the
/// arguments in the order that the author chose.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ToolDescription<'a> {
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    title: Option<Cow<'a, str>>,
    description: Cow<'a, str>,
    filename: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    annotations: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    input_schema: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    output_schema: Option<&'a RawValue>,
    #[serde(rename = "_meta", skip_serializing_if = "Option::is_none")]
    meta: Option<&'a RawValue>,
}

impl<'a> ToolDescription<'a> {
    fn of(tool: &'a ToolEntry) -> Self {
        Self {
            name: tool.name(),
            title: tool.title(),
            description: tool.description(),
            filename: tool.filename(),
            annotations: tool.annotations(),
            input_schema: tool.input_schema(),
            output_schema: tool.output_schema(),
            meta: tool.meta(),
        }
    }

    fn without_schemas(tool: &'a ToolEntry) -> Self {
        Self {
            input_schema: None,
            output_schema: None,
            meta: None,
            ..Self::of(tool)
        }
    }
}
