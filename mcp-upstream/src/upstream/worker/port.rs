//! Who runs the functions of a namespace. Timeout, queue, audit and metrics are the engine's.

use std::sync::Arc;

use tooldock_workers::error::{CallError, CallErrorCode};
use tooldock_workers::registry::{Namespace, Registry, UpstreamKind};
use tooldock_workers::worker::{CallSink, Operation, ToolReply, Worker, WorkerCall};

use crate::engine::{UpstreamReply, Work};

/// A worker, as calls see it.
pub(crate) trait WorkerPort: Send + Sync {
    /// Runs one call. What the function says before its answer goes to the sink. Dropping the future cancels the call.
    fn call(self: Arc<Self>, call: WorkerCall, sink: Option<Arc<dyn CallSink>>) -> Work;
}

/// Finds the worker of a namespace.
pub(crate) trait WorkerPorts: Send + Sync {
    /// Who runs this namespace's functions.
    ///
    /// # Errors
    ///
    /// Why nobody does.
    fn of(&self, namespace: &Namespace) -> Result<Arc<dyn WorkerPort>, CallError>;
}

impl WorkerPort for Worker {
    fn call(self: Arc<Self>, call: WorkerCall, sink: Option<Arc<dyn CallSink>>) -> Work {
        let is_tool = matches!(call.operation, Operation::CallTool { .. });
        Box::pin(async move {
            let reply = Worker::call(&self, call, sink).await;
            reply.map(|reply| reply_of(is_tool, reply))
        })
    }
}

/// What a function gave, as the answer to its call: a tool's value, or the result object of another method.
pub(crate) fn reply_of(is_tool: bool, reply: ToolReply) -> UpstreamReply {
    match is_tool {
        true => UpstreamReply::Value(reply),
        false => UpstreamReply::Result(reply.value),
    }
}

/// The workers of the registry.
#[derive(Debug, Clone)]
pub(crate) struct Workers(pub(crate) Arc<Registry>);

impl WorkerPorts for Workers {
    /// A call that waited for its turn through two reloads finds its snapshot's worker gone. Nothing was sent yet, so
    /// the worker that serves now takes the call.
    fn of(&self, namespace: &Namespace) -> Result<Arc<dyn WorkerPort>, CallError> {
        if let UpstreamKind::Worker(worker) = &namespace.upstream
            && worker.is_retired()
            && let Some(current) = self.0.namespace(namespace.name.as_str())
        {
            return serving(&current.upstream);
        }
        serving(&namespace.upstream)
    }
}

fn serving(upstream: &UpstreamKind) -> Result<Arc<dyn WorkerPort>, CallError> {
    let none = |code, reason| Err(CallError::new(code, reason));
    match upstream {
        UpstreamKind::Worker(worker) => Ok(Arc::clone(worker) as Arc<dyn WorkerPort>),
        UpstreamKind::Failed(error) => Err(error.clone()),
        UpstreamKind::Empty => none(CallErrorCode::ToolNotFound, "The namespace has no tools"),
        // A reload made a server of the namespace while the call waited.
        UpstreamKind::External(_) | UpstreamKind::Remote(_) => none(
            CallErrorCode::WorkerUnavailable,
            "The namespace has no worker any more",
        ),
    }
}
