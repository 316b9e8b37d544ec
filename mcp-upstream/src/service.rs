//! What the edge calls. `POST /mcp` and `DELETE /mcp` are functions of their own, off the router, because the router
//! costs more than they do; its `/mcp` routes call the same functions.

use std::sync::Arc;

use axum::Router;
use axum::response::Response;
use bytes::Bytes;
use http::Request;
use tokio::time::Instant;
use tooldock_workers::registry::Registry;
use tower::ServiceExt;

use crate::audit::AuditSender;
use crate::backend::{Backends, Upstreams};
use crate::caller::Caller;
use crate::engine::{Engine, ToolCallLimiter};
use crate::health::Health;
use crate::mcp::head::McpHead;
use crate::metrics::UpstreamMetrics;
use crate::protocol::ProtocolVersion;
use crate::reply::Reply;
use crate::rest::reload::ReloadControl;
use crate::session::config::SessionsConfig;
use crate::session::memory::{MemoryStore, StoreLimits};
use crate::state::Core;
use crate::{mcp, rest};

/// What the service is made of.
pub struct ServiceParts {
    /// What is served now.
    pub registry: Arc<Registry>,
    /// Who reloads; without one `POST /reload` answers 503.
    pub reloader: Option<Arc<dyn ReloadControl>>,
    /// The keys `sessions:`.
    pub sessions: SessionsConfig,
    /// Sessions one principal may hold.
    pub sessions_per_principal: usize,
    /// Limits counted in tool calls.
    pub tool_call_limiter: Arc<dyn ToolCallLimiter>,
    /// Where audit records go.
    pub audit: AuditSender,
    /// Counters.
    pub metrics: Arc<UpstreamMetrics>,
    /// What `/health` and `/ready` answer from.
    pub health: Arc<Health>,
}

/// The service behind the edge. Cheap to clone.
#[derive(Clone)]
pub struct Service {
    core: Arc<Core>,
    router: Router,
}

impl Service {
    /// The service over the registry's upstreams.
    pub fn new(parts: ServiceParts) -> Self {
        let backends = Arc::new(Upstreams(Arc::clone(&parts.registry)));
        Self::with_backends(parts, backends)
    }

    /// The service over other backends than the registry's.
    pub fn with_backends(parts: ServiceParts, backends: Arc<dyn Backends>) -> Self {
        let sessions = MemoryStore::new(StoreLimits {
            ttl: parts.sessions.ttl,
            max: parts.sessions.max,
            per_principal: parts.sessions_per_principal,
        });
        let core = Arc::new(Core {
            registry: parts.registry,
            reloader: parts.reloader,
            sessions: Box::new(sessions),
            engine: Engine {
                backends,
                limiter: parts.tool_call_limiter,
                audit: parts.audit,
                metrics: Arc::clone(&parts.metrics),
            },
            metrics: parts.metrics,
            health: parts.health,
        });
        Self {
            router: rest::router(Arc::clone(&core)),
            core,
        }
    }

    /// Answers `POST /mcp[/{namespace}]`.
    ///
    /// Dropping the future cancels a call made without a session; one made in a session goes on.
    pub async fn post(&self, caller: Caller, head: McpHead, body: Bytes) -> Reply {
        mcp::post(&self.core, &caller, &head, &body).await
    }

    /// Answers `DELETE /mcp[/{namespace}]`.
    pub async fn delete(&self, caller: Caller, head: McpHead) -> Reply {
        mcp::delete(&self.core, &caller, &head).await
    }

    /// Answers any other admitted request. Dropping the future cancels a tool call in it.
    pub async fn route(&self, caller: Caller, request: Request<Bytes>) -> Reply {
        let mut request = request.map(axum::body::Body::from);
        request.extensions_mut().insert(caller);
        let response: Response = match self.router.clone().oneshot(request).await {
            Ok(response) => response,
            Err(never) => match never {},
        };
        Reply::from_response(response).await
    }

    /// The router, for tests: a request needs its [`Caller`] as an extension.
    pub fn router(&self) -> Router {
        self.router.clone()
    }

    /// The version of a session as far as this process knows, for a check before the body is read. Does not wait and
    /// does not count as a use; whose session it is, is checked later.
    pub fn session_version(&self, session_header: &str) -> Option<ProtocolVersion> {
        let session = self.core.sessions.peek(session_header)?;
        Some(session.binding().version)
    }

    /// Ends the sessions whose time is up. To be called every second or so.
    pub async fn evict_expired(&self) {
        let expired = self.core.sessions.evict_expired(Instant::now()).await;
        self.core.metrics.sessions_expired.inc_by(expired as u64);
        let alive = mcp::gauge(self.core.sessions.count());
        self.core.metrics.sessions.set(alive);
    }
}
