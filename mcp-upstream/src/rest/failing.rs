//! Reasons why a namespace is not served, for callers who may use it and for operators.

use serde::Serialize;
use tooldock_workers::registry::{Namespace, UpstreamKind};

use super::condition::Condition;
use crate::mcp::Core;

/// Reason why a whole namespace is unavailable.
#[derive(Debug, Serialize)]
pub(crate) struct Failing {
    /// The stable error code.
    pub(crate) code: &'static str,
    /// The reason as text, without secrets.
    pub(crate) message: String,
}

/// The reason why a namespace does not serve: its configuration or its dependencies, or the end of its server or of all its
/// members. `None` if it serves.
pub(crate) fn of(core: &Core, namespace: &Namespace) -> Option<Failing> {
    match &namespace.upstream {
        UpstreamKind::Failed(error) => Some(Failing {
            code: error.code.as_str(),
            message: error.message.clone(),
        }),
        UpstreamKind::External(_) | UpstreamKind::Remote(_) => server(core, namespace),
        UpstreamKind::Aggregate(_) => whole(core, namespace),
        UpstreamKind::Worker(_) | UpstreamKind::Empty | UpstreamKind::System => None,
    }
}

/// The reason why an external server does not serve: it cannot be started, keeps ending, or has no backend that answers.
pub(crate) fn server(core: &Core, namespace: &Namespace) -> Option<Failing> {
    let is_server = matches!(
        namespace.upstream,
        UpstreamKind::External(_) | UpstreamKind::Remote(_)
    );
    is_server.then(|| whole(core, namespace))?
}

fn whole(core: &Core, namespace: &Namespace) -> Option<Failing> {
    let (code, message) = Condition::of(core, namespace).failing?;
    Some(Failing { code, message })
}
