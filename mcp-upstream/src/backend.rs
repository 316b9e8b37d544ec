//! Who runs a namespace's tools. Timeout, queue, audit and metrics are the engine's, not a backend's.

use std::sync::Arc;

use async_trait::async_trait;
use tooldock_workers::error::{CallError, CallErrorCode};
use tooldock_workers::registry::{Namespace, Upstream};
use tooldock_workers::worker::{CallSink, ToolCall, ToolReply};

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
        call: ToolCall,
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
    fn of<'a>(&'a self, namespace: &'a Namespace) -> Result<&'a dyn Backend, CallError>;
}

/// The upstreams the registry holds.
#[derive(Debug, Clone, Copy)]
pub struct Upstreams;

impl Backends for Upstreams {
    fn of<'a>(&'a self, namespace: &'a Namespace) -> Result<&'a dyn Backend, CallError> {
        match &namespace.upstream {
            Upstream::Worker(worker) => Ok(&**worker),
            Upstream::Failed(error) => Err(error.clone()),
            Upstream::Empty => Err(CallError::new(
                CallErrorCode::ToolNotFound,
                "The namespace has no tools",
            )),
        }
    }
}
