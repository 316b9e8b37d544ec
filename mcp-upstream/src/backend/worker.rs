//! Python workers as a backend.

use std::sync::Arc;

use async_trait::async_trait;
use tooldock_workers::error::CallError;
use tooldock_workers::worker::{CallSink, ToolReply, Worker, WorkerCall};

use super::Backend;

#[async_trait]
impl Backend for Worker {
    async fn call(
        &self,
        call: WorkerCall,
        sink: Option<Arc<dyn CallSink>>,
    ) -> Result<ToolReply, CallError> {
        Worker::call(self, call, sink).await
    }
}
