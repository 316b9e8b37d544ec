//! Reasons why a namespace is unavailable, for callers who may use it and for operators.

use serde::Serialize;
use tooldock_workers::registry::{Namespace, UpstreamKind};

use super::condition::Condition;
use crate::mcp::Core;

/// Reason why a whole namespace is unavailable.
#[derive(Debug, Serialize)]
pub(crate) struct Failing {
    /// The stable error code of the reason.
    pub(crate) code: &'static str,
    /// The reason as text, without secrets.
    pub(crate) message: String,
}

/// Returns the reason why a namespace is unavailable: its configuration or dependencies, or the end of its server or of all its
/// members. `None` if the namespace is available, at least in part.
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

/// Returns the reason why an external server is unavailable: it cannot be started, it keeps ending, or none of its backends
/// answers. `None` for other namespaces, and for a server that can be used.
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
