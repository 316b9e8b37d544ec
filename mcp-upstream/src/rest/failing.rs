//! Why a namespace is not served, for those who may use it and those who operate the gateway.

use serde::Serialize;
use tooldock_workers::error::CallErrorCode;
use tooldock_workers::registry::{Namespace, UpstreamKind};

use crate::mcp::Core;

/// What is wrong with a namespace as a whole.
#[derive(Debug, Serialize)]
pub(crate) struct Failing {
    /// The stable code.
    pub(crate) code: &'static str,
    /// What is wrong. Without secrets.
    pub(crate) message: String,
}

/// What keeps a namespace from being served: its configuration or its dependencies, or the end of its server.
pub(crate) fn of(core: &Core, namespace: &Namespace) -> Option<Failing> {
    match &namespace.upstream {
        UpstreamKind::Failed(error) => Some(Failing {
            code: error.code.as_str(),
            message: error.message.clone(),
        }),
        UpstreamKind::External(_) | UpstreamKind::Remote(_) => server(core, namespace),
        UpstreamKind::Worker(_)
        | UpstreamKind::Aggregate(_)
        | UpstreamKind::Empty
        | UpstreamKind::System => None,
    }
}

/// The same of an external server that cannot be started, or ends again and again.
pub(crate) fn server(core: &Core, namespace: &Namespace) -> Option<Failing> {
    let health = core.upstreams.of(namespace).health(namespace)?;
    (health.state == "failed").then(|| Failing {
        code: health
            .error
            .unwrap_or(CallErrorCode::WorkerUnavailable.as_str()),
        message: health
            .reason
            .as_deref()
            .unwrap_or("its server ended and is not started now")
            .to_owned(),
    })
}
