//! `/namespaces`: lists the namespaces that the caller may use (EX-23).

use serde::Serialize;
use tooldock_sessions::caller::Caller;

use super::failing::{self, Failing};
use super::json;
use crate::mcp::Core;
use crate::reply::Reply;

#[derive(Serialize)]
struct Namespace<'a> {
    name: &'a str,
    tool_count: usize,
    has_requirements: bool,
    secrets_status: &'static str,
    description: &'a str,
    /// The reason why the namespace is unavailable; `None` if it is available.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<Failing>,
}

/// Answers with the list of the namespaces that the caller may use.
pub(crate) fn list(core: &Core, caller: &Caller) -> Reply {
    let snapshot = core.registry.snapshot();
    let visible: Vec<_> = snapshot
        .namespaces
        .values()
        .filter(|namespace| caller.may_use(namespace))
        .map(|namespace| Namespace {
            name: namespace.name.as_str(),
            tool_count: super::tool_count(core, caller, namespace),
            has_requirements: namespace.has_requirements,
            secrets_status: namespace.secrets_status.as_str(),
            description: &namespace.description,
            error: failing::of(core, namespace),
        })
        .collect();
    json(&visible)
}
