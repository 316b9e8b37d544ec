//! A scripted worker backend.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tooldock_base::error::{CallError, CallErrorCode};
use tooldock_process::worker::{CallSink, Operation, ToolReply, WorkerCall};

use super::script;
use crate::engine::Work;
use crate::upstream::worker::{WorkerPort, reply_of};

/// Worker port that runs tools by their names: `echo` returns its arguments, `value` the argument of that name, `image` a
/// content block, `hang` waits until `release` has a permit, `talk` follows the [`script`] in its arguments, the name of an
/// error code fails with that code, any other name says hello. The prompt `talk` and the resource `test://talk` follow a
/// script, too: a single question `k`. Other prompts and resources return a result that names them; unknown ones fail.
pub struct FakeBackend {
    /// Number of calls that began.
    pub started: AtomicUsize,
    /// Number of calls that were dropped before their end.
    pub dropped: AtomicUsize,
    /// Number of calls that ended.
    pub finished: AtomicUsize,
    /// Permits of calls of `hang`.
    pub release: Semaphore,
    /// Number of calls that could send messages before their answer.
    pub sinks: AtomicUsize,
    /// The facts about callers that functions got, in order.
    pub callers: Mutex<Vec<Value>>,
}

impl Default for FakeBackend {
    fn default() -> Self {
        Self {
            started: AtomicUsize::new(0),
            dropped: AtomicUsize::new(0),
            finished: AtomicUsize::new(0),
            release: Semaphore::new(0),
            sinks: AtomicUsize::new(0),
            callers: Mutex::default(),
        }
    }
}

struct CountDrop<'a>(&'a FakeBackend, bool);

impl Drop for CountDrop<'_> {
    fn drop(&mut self) {
        let counter = if self.1 {
            &self.0.finished
        } else {
            &self.0.dropped
        };
        counter.fetch_add(1, Ordering::SeqCst);
    }
}

impl FakeBackend {
    /// Returns the numbers of calls that began, were dropped, and ended.
    pub fn counts(&self) -> (usize, usize, usize) {
        let of = |counter: &AtomicUsize| counter.load(Ordering::SeqCst);
        (of(&self.started), of(&self.dropped), of(&self.finished))
    }
}

impl WorkerPort for FakeBackend {
    fn call(self: Arc<Self>, call: WorkerCall, sink: Option<Arc<dyn CallSink>>) -> Work {
        let is_tool = matches!(call.operation, Operation::CallTool { .. });
        Box::pin(async move {
            let reply = self.run(call, sink).await;
            reply.map(|reply| reply_of(is_tool, reply))
        })
    }
}

impl FakeBackend {
    /// Runs a call as a worker would.
    pub async fn run(
        &self,
        call: WorkerCall,
        sink: Option<Arc<dyn CallSink>>,
    ) -> Result<ToolReply, CallError> {
        self.started.fetch_add(1, Ordering::SeqCst);
        self.sinks
            .fetch_add(usize::from(sink.is_some()), Ordering::SeqCst);
        let mut end = CountDrop(self, false);
        let caller = call.caller.as_ref().map_or(Value::Null, |caller| {
            serde_json::from_slice(caller).expect("a caller is JSON")
        });
        if !caller.is_null() {
            let mut callers = self.callers.lock().expect("not poisoned");
            callers.push(caller.clone());
        }
        let result = match call.operation {
            Operation::CallTool { tool, arguments } if *tool == *"talk" => {
                let answers = script::run(&arguments, &caller, sink.as_ref(), &self.release).await;
                Ok(plain(answers.to_string()))
            }
            Operation::CallTool { tool, arguments } => self.tool(&tool, arguments).await,
            Operation::ReadResource { uri } => {
                let text = match &*uri {
                    "test://talk" => self.ask(&caller, sink.as_ref()).await,
                    "test://static" | "test://item/7" => "text".into(),
                    _ => return Err(CallError::new(CallErrorCode::ResourceNotFound, "no such")),
                };
                let contents = json!({ "contents": [{ "uri": *uri, "text": text }] }).to_string();
                // In the form of workers' results that may be cached.
                let kept = &*uri == "test://item/7";
                Ok(plain(if kept {
                    contents.replacen('{', "{\"ttlMs\":1500,", 1)
                } else {
                    contents
                }))
            }
            Operation::GetPrompt { prompt, arguments } => {
                let text = match &*prompt {
                    "talk" => self.ask(&caller, sink.as_ref()).await,
                    "strict" => {
                        return Err(CallError::new(CallErrorCode::InvalidArguments, "who?"));
                    }
                    _ => String::from_utf8_lossy(&arguments).into_owned(),
                };
                let content = json!({ "type": "text", "text": text });
                let messages = json!({ "messages": [{ "role": "user", "content": content }] });
                Ok(plain(messages.to_string()))
            }
            Operation::Complete { .. } => Ok(plain(r#"{"completion":{"values":["paris"]}}"#)),
            Operation::ListSkills { .. } => Ok(plain(r#"{"skills":[]}"#)),
        };
        end.1 = true;
        result
    }
}

fn plain(value: impl Into<Bytes>) -> ToolReply {
    ToolReply {
        value: value.into(),
        content: None,
        meta: None,
    }
}

impl FakeBackend {
    /// Asks one question and returns the answers as text.
    async fn ask(&self, caller: &Value, sink: Option<&Arc<dyn CallSink>>) -> String {
        const SCRIPT: &[u8] = br#"{"steps":[{"ask":[{"key":"k","method":"elicitation/create"}]}]}"#;
        let answers = script::run(SCRIPT, caller, sink, &self.release).await;
        answers.to_string()
    }

    async fn tool(&self, name: &str, arguments: Bytes) -> Result<ToolReply, CallError> {
        let code = CallErrorCode::from_worker(name);
        match name {
            "echo" => Ok(plain(arguments)),
            "value" => {
                let fields: BTreeMap<String, Box<serde_json::value::RawValue>> =
                    serde_json::from_slice(&arguments).expect("an object");
                Ok(plain(fields["value"].get().to_owned()))
            }
            "image" => Ok(ToolReply {
                value: Bytes::from_static(b"null"),
                content: Some(Bytes::from_static(
                    br#"[{"type":"image","data":"AA==","mimeType":"image/png"}]"#,
                )),
                meta: Some(Bytes::from_static(br#"{"x/y":1.50}"#)),
            }),
            "hang" => {
                self.release.acquire().await.expect("never closed").forget();
                Ok(plain("\"done\""))
            }
            "missing_capability" => {
                let mut error = CallError::new(code, "the client cannot sample");
                let details = r#"{"requiredCapabilities":{"sampling":{}}}"#;
                error.details = Some(serde_json::from_str(details).expect("JSON"));
                Err(error)
            }
            "internal_error" | "worker_unavailable" | "overloaded" => {
                let code = match name {
                    "worker_unavailable" => CallErrorCode::WorkerUnavailable,
                    "overloaded" => CallErrorCode::Overloaded,
                    _ => CallErrorCode::InternalError,
                };
                let mut error = CallError::new(code, "it went wrong");
                error.details =
                    Some(serde_json::from_str(r#"{"traceback":"Traceback …"}"#).expect("JSON"));
                Err(error)
            }
            _ if code != CallErrorCode::InternalError => Err(CallError::new(code, "it went wrong")),
            _ => Ok(plain("\"Hello, Ada!\"")),
        }
    }
}
