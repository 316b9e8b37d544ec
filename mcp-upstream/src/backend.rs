//! Who runs a namespace's tools, resources and prompts. Timeout, queue, audit and metrics are the engine's, not a backend's.

use std::sync::Arc;

use async_trait::async_trait;
use tooldock_workers::error::{CallError, CallErrorCode};
use tooldock_workers::registry::{Namespace, Registry, Upstream};
use tooldock_workers::worker::{CallSink, ToolReply, WorkerCall};

mod worker;

/// A kind of upstream. Dropping the future cancels the call.
#[async_trait]
pub trait Backend: Send + Sync {
    /// Runs one call. What the upstream sends before its answer goes to the sink.
    ///
    /// # Errors
    ///
    /// The upstream's failure, or its absence, in the workers' words.
    async fn call(
        &self,
        call: WorkerCall,
        sink: Option<Arc<dyn CallSink>>,
    ) -> Result<ToolReply, CallError>;
}

/// Finds the backend of a namespace.
pub trait Backends: Send + Sync {
    /// Who runs this namespace's tools.
    ///
    /// # Errors
    ///
    /// Why nobody does.
    fn of(&self, namespace: &Namespace) -> Result<Arc<dyn Backend>, CallError>;
}

/// The upstreams the registry holds.
#[derive(Debug, Clone)]
pub struct Upstreams(pub Arc<Registry>);

impl Backends for Upstreams {
    /// A call that waited for its turn through two reloads finds its snapshot's worker gone. Nothing was sent yet, so
    /// the one that serves now takes it.
    fn of(&self, namespace: &Namespace) -> Result<Arc<dyn Backend>, CallError> {
        if let Upstream::Worker(worker) = &namespace.upstream
            && worker.is_retired()
            && let Some(current) = self.0.namespace(namespace.name.as_str())
        {
            return serving(&current.upstream);
        }
        serving(&namespace.upstream)
    }
}

fn serving(upstream: &Upstream) -> Result<Arc<dyn Backend>, CallError> {
    match upstream {
        Upstream::Worker(worker) => Ok(Arc::clone(worker) as Arc<dyn Backend>),
        Upstream::Failed(error) => Err(error.clone()),
        Upstream::External(_) => Err(CallError::new(
            CallErrorCode::InternalError,
            "A server of others is not called as a worker is",
        )),
        Upstream::Empty => Err(CallError::new(
            CallErrorCode::ToolNotFound,
            "The namespace has no tools",
        )),
    }
}
