//! `/namespaces`: what the caller may use (EX-23).

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use serde::Serialize;

use super::json;
use crate::caller::Caller;
use crate::reply::Reply;
use crate::state::Core;

#[derive(Serialize)]
struct Namespace<'a> {
    name: &'a str,
    tool_count: usize,
    has_requirements: bool,
    secrets_status: &'static str,
    description: &'a str,
}

pub(super) async fn list(
    State(core): State<Arc<Core>>,
    Extension(caller): Extension<Caller>,
) -> Reply {
    let snapshot = core.registry.snapshot();
    let visible: Vec<_> = snapshot
        .namespaces
        .values()
        .filter(|namespace| caller.may_use(namespace))
        .map(|namespace| Namespace {
            name: namespace.name.as_str(),
            tool_count: namespace.allowed_tools().count(),
            has_requirements: namespace.has_requirements,
            secrets_status: namespace.secrets_status.as_str(),
            description: &namespace.description,
        })
        .collect();
    json(&visible)
}
