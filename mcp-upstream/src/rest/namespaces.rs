//! `/namespaces`: what the caller may use (EX-23).

use std::sync::Arc;

use serde::Serialize;
use tooldock_workers::registry;

use super::failing::{self, Failing};
use super::json;
use crate::caller::Caller;
use crate::mcp::Core;
use crate::reply::Reply;

#[derive(Serialize)]
struct Namespace<'a> {
    name: &'a str,
    tool_count: usize,
    has_requirements: bool,
    secrets_status: &'static str,
    description: &'a str,
    /// Why it is not served.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<Failing>,
}

/// The namespaces open to the caller.
pub(crate) fn list(core: &Core, caller: &Caller) -> Reply {
    let snapshot = core.registry.snapshot();
    let visible: Vec<_> = snapshot
        .namespaces
        .values()
        .filter(|namespace| caller.may_use(namespace))
        .map(|namespace| Namespace {
            name: namespace.name.as_str(),
            tool_count: tool_count(core, namespace),
            has_requirements: namespace.has_requirements,
            secrets_status: namespace.secrets_status.as_str(),
            description: &namespace.description,
            error: failing::of(core, namespace),
        })
        .collect();
    json(&visible)
}

/// How many tools may be listed. Of a server that was not asked yet none are known.
fn tool_count(core: &Core, namespace: &Arc<registry::Namespace>) -> usize {
    let known = core.upstreams.of(namespace).catalogue_known(namespace);
    known.map_or(0, |catalogue| catalogue.allowed(namespace).count())
}
