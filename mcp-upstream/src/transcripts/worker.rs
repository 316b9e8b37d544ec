//! A Python worker at its interface to the engine. Its calls and answers are recorded.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use tooldock_base::error::CallError;
use tooldock_engine::engine::Work;
use tooldock_engine::upstream::worker::{WorkerPort, WorkerPorts, reply_of};
use tooldock_process::worker::{CallSink, Operation, ToolReply, WorkerCall};
use tooldock_workers::registry::Namespace;

use crate::testing::FakeBackend;

/// The scripted worker that other tests use, too, with a record of its calls.
#[derive(Default)]
pub(super) struct Worker {
    backend: FakeBackend,
    passed: Mutex<Vec<(&'static str, String)>>,
}

/// The worker ports that the engine gets in a scene.
pub(super) struct Workers(pub(super) Arc<Worker>);

impl WorkerPorts for Workers {
    fn of(&self, _: &Namespace) -> Result<Arc<dyn WorkerPort>, CallError> {
        Ok(Arc::clone(&self.0) as Arc<dyn WorkerPort>)
    }
}

impl Worker {
    /// Returns the calls and answers that were recorded since the last call of this function.
    pub(super) fn passed(&self) -> Vec<(&'static str, String)> {
        std::mem::take(&mut *self.passed.lock().expect("not poisoned"))
    }

    /// Returns the numbers of calls that were started, that were dropped, and that have finished.
    pub(super) fn counts(&self) -> (usize, usize, usize) {
        self.backend.counts()
    }

    fn note(&self, way: &'static str, text: String) {
        let mut passed = self.passed.lock().expect("not poisoned");
        passed.push((way, text));
    }
}

/// Guard that records that a call was dropped before its end.
struct Dropped<'a>(&'a Worker, bool);

impl Drop for Dropped<'_> {
    fn drop(&mut self) {
        if self.1 {
            self.0.note("up", "given up".to_owned());
        }
    }
}

fn text(bytes: &Bytes) -> &str {
    std::str::from_utf8(bytes).expect("UTF-8")
}

impl WorkerPort for Worker {
    fn call(self: Arc<Self>, call: WorkerCall, sink: Option<Arc<dyn CallSink>>) -> Work {
        let is_tool = matches!(call.operation, Operation::CallTool { .. });
        Box::pin(async move {
            let reply = self.run(call, sink).await;
            reply.map(|reply| reply_of(is_tool, reply))
        })
    }
}

impl Worker {
    async fn run(
        &self,
        call: WorkerCall,
        sink: Option<Arc<dyn CallSink>>,
    ) -> Result<ToolReply, CallError> {
        let caller = call.caller.as_ref().map_or("nobody", text);
        let says = if sink.is_some() { "yes" } else { "no" };
        let what = match &call.operation {
            Operation::CallTool { tool, arguments } => format!("tool {tool} {}", text(arguments)),
            Operation::ReadResource { uri } => format!("resource {uri}"),
            Operation::GetPrompt { prompt, arguments } => {
                format!("prompt {prompt} {}", text(arguments))
            }
            Operation::Complete { params } => format!("complete {}", text(params)),
            Operation::ListSkills { uri } => format!("skills {uri:?}"),
        };
        self.note("up", format!("{what}, caller {caller}, speaks: {says}"));
        let mut end = Dropped(self, true);
        let answer = self.backend.run(call, sink).await;
        end.1 = false;
        self.note(
            "down",
            match &answer {
                Ok(ToolReply {
                    value,
                    content,
                    meta,
                }) => {
                    let content = content.as_ref().map_or("none", text);
                    let meta = meta.as_ref().map(|meta| format!(", meta {}", text(meta)));
                    let meta = meta.unwrap_or_default();
                    format!("value {}, content {content}{meta}", text(value))
                }
                Err(error) => format!("error {}: {}", error.code.as_str(), error.message),
            },
        );
        answer
    }
}
