//! Answers a modern call: with JSON, with a stream if the call sends messages first, or with its questions to the client.
//!
//! ```text
//!             ┌── has its response ──────────────────▶ JSON
//!   call ─────┼── sends questions ──▶ suspended ─────▶ JSON, `input_required`
//!   (or retry)│                                        ▲ a retry takes the call out again
//!             └── sends a message ──▶ stream, call in a task: … then the response, or `input_required`
//! ```
//!
//! Dropping the response cancels the call, unless the call is suspended. There is no event log: a stream of the modern era
//! cannot be resumed.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use serde_json::value::RawValue;
use tooldock_engine::engine::{CallMessages, CallOutcome, CallTask, UpstreamCall, ask_failed};
use tooldock_engine::upstream::{CallContext, RequestMeta};
use tooldock_process::worker::Question;
use tooldock_sessions::caller::Caller;
use tooldock_sessions::interaction::{ResumeRefusal, SuspendRefusal};
use tooldock_sessions::stream::open::OpenKind;
use tooldock_sessions::stream::{Stream, frame};
use tooldock_workers::registry::Namespace;

use super::delivery::{InputRequests, ModernCall, Recipient, Step};
use crate::format::{self, ResultFormat};
use crate::jsonrpc::{self, Key, Members, RequestError};
use crate::mcp::exchange::{Patience, streamed};
use crate::mcp::{Core, call, tasks};
use crate::reply::Reply;
use crate::seal::BoundRequest;

/// A request that begins or continues a call.
struct Exchange {
    core: Arc<Core>,
    caller: Caller,
    namespace: Arc<Namespace>,
    /// The request's id as raw JSON.
    id: String,
    method: String,
    format: ResultFormat,
    client: Recipient,
}

/// The parts of a modern request that its answer depends on.
#[derive(Clone, Copy)]
pub(super) struct ModernRequest<'a> {
    /// The request's id as raw JSON.
    pub(super) id: &'a str,
    pub(super) method: &'a str,
    pub(super) meta: &'a RequestMeta,
}

/// Answers to questions in a request, each with its key and its object as raw JSON.
pub(in crate::mcp) type Inputs<'a> = Vec<(Cow<'a, str>, &'a RawValue)>;

/// Time in which a call asks its first questions, if it asks before its task begins.
const FIRST_QUESTIONS: Duration = Duration::from_secs(2);

/// Maximum number of answers in one request: the maximum number of questions that may be open in a session.
const INPUTS_MAX: usize = 1000;

/// Reads the `inputResponses` of a request; empty if they are absent.
///
/// # Errors
///
/// `InvalidParams` unless `inputResponses` is an object with at most 1000 entries, all of which are objects.
pub(in crate::mcp) fn inputs<'a>(members: &Members<'a>) -> Result<Inputs<'a>, RequestError> {
    let Some(raw) = members.get(Key::InputResponses) else {
        return Ok(Vec::new());
    };
    jsonrpc::few_entries(raw, INPUTS_MAX)
        .filter(|entries| entries.iter().all(|(_, it)| it.get().starts_with('{')))
        .ok_or_else(|| {
            let what =
                format!("params.inputResponses must be an object of objects, at most {INPUTS_MAX}");
            RequestError::InvalidParams(what.into())
        })
}

/// Begins a call and runs it until the request can be answered.
pub(super) async fn begin(
    core: &Arc<Core>,
    cx: &CallContext<'_>,
    request: ModernRequest<'_>,
    call: Arc<dyn UpstreamCall>,
) -> Result<Reply, RequestError> {
    if call.facts().task == CallTask::AsksFirst {
        let call = ModernCall::begin(core, cx, call);
        let exchange = Exchange::new(core, cx, request);
        return Box::pin(exchange.run_until_task(cx, call)).await;
    }
    if call.facts().talks == CallMessages::No {
        let outcome = core.engine.run(cx.caller, &call, None).await;
        let format = cx.result_format();
        let answer = call::response(call.facts(), request.id, cx.caller, &format, outcome)?;
        return Ok(Reply::json(StatusCode::OK, answer));
    }
    let call = ModernCall::begin(core, cx, call);
    Exchange::new(core, cx, request).run(call).await
}

/// A request that contains the answers for a suspended call.
pub(super) struct Retry<'a> {
    /// Name of the tool or prompt, or URI of the resource, which the retry repeats.
    pub(super) subject: Cow<'a, str>,
    /// Arguments that the retry repeats, as a JSON object.
    pub(super) arguments: &'a [u8],
    pub(super) state: &'a RawValue,
    pub(super) inputs: Inputs<'a>,
}

/// Resumes a suspended call with its client's answers.
pub(super) async fn resume(
    core: &Arc<Core>,
    cx: &CallContext<'_>,
    request: ModernRequest<'_>,
    retry: &Retry<'_>,
) -> Result<Reply, RequestError> {
    let inputs = &retry.inputs;
    let state = jsonrpc::string(retry.state).ok_or_else(|| {
        RequestError::InvalidParams("params.requestState must be a string".into())
    })?;
    let exchange = Exchange::new(core, cx, request);
    let taken = core
        .suspended
        .take(&state, exchange.bound(&retry.subject, retry.arguments));
    let mut driver = taken.await.map_err(|refused| match refused {
        ResumeRefusal::Elsewhere(replica) => RequestError::Elsewhere(replica),
        refused => RequestError::InvalidParams(refused.to_string().into()),
    })?;
    driver.answer(cx, inputs)?;
    if driver.call().facts().task == CallTask::AsksFirst {
        return Box::pin(exchange.run_until_task(cx, driver)).await;
    }
    exchange.run(driver).await
}

impl Exchange {
    fn new(core: &Arc<Core>, cx: &CallContext<'_>, request: ModernRequest<'_>) -> Self {
        Self {
            core: Arc::clone(core),
            caller: cx.caller.clone(),
            namespace: Arc::clone(&cx.namespace),
            id: request.id.to_owned(),
            method: request.method.to_owned(),
            format: cx.result_format(),
            client: Recipient {
                meta: request.meta.clone(),
                streams: cx.streams,
            },
        }
    }

    fn bound<'a>(&'a self, subject: &'a str, arguments: &'a [u8]) -> BoundRequest<'a> {
        BoundRequest {
            principal: self.caller.principal.as_deref(),
            namespace: &self.namespace.name,
            method: &self.method,
            subject,
            arguments,
        }
    }

    /// Runs the call until the response to this request is complete, or begins as a stream.
    async fn run(self, mut driver: ModernCall) -> Result<Reply, RequestError> {
        match driver.step(&self.client).await {
            Step::Said(first) => Ok(self.into_stream(first, driver)),
            Step::Asked(asked) => {
                let answer = self.suspend(driver, &asked)?;
                Ok(Reply::json(StatusCode::OK, answer))
            }
            Step::Over(outcome) => {
                let answer = self.response(&**driver.call(), outcome)?;
                Ok(Reply::json(StatusCode::OK, answer))
            }
        }
    }

    /// Runs a call that begins a task after its first questions. The task begins when they are answered, with the first report of
    /// progress, or after a short time without questions.
    async fn run_until_task(
        self,
        cx: &CallContext<'_>,
        mut driver: ModernCall,
    ) -> Result<Reply, RequestError> {
        if !driver.has_answers() {
            let patience = tokio::time::timeout(FIRST_QUESTIONS, driver.step(&self.client));
            match patience.await {
                Ok(Step::Asked(asked)) => {
                    let answer = self.suspend(driver, &asked)?;
                    return Ok(Reply::json(StatusCode::OK, answer));
                }
                Ok(Step::Over(outcome)) => {
                    let answer = self.response(&**driver.call(), outcome)?;
                    return Ok(Reply::json(StatusCode::OK, answer));
                }
                Ok(Step::Said(_)) | Err(_) => {}
            }
        }
        let answer = tasks::begun(&self.core, cx, &self.id, driver.into_task()).await?;
        Ok(Reply::json(StatusCode::OK, answer))
    }

    fn into_stream(self, first: Vec<u8>, driver: ModernCall) -> Reply {
        let stream = Stream::detached(&self.core.keep_alive);
        let events = stream.read();
        let (namespace, principal) = (&self.namespace.name, self.caller.principal.as_ref());
        let open = &self.core.open_streams;
        let listed = open.enter(OpenKind::Answer, namespace, principal, &stream);
        tokio::spawn(self.deliver(first, driver, stream));
        streamed(events, None, listed)
    }

    /// Runs the call to its end and writes its messages to the stream. If the reader disconnects, this stops and cancels the
    /// call.
    async fn deliver(self, first: Vec<u8>, mut driver: ModernCall, stream: Arc<Stream>) {
        let _finishing = stream.finish_on_drop();
        let push = |message: &[u8]| stream.push(frame::message(None, message));
        if !push(&first) {
            return;
        }
        let mut patience = Patience::default();
        let last = loop {
            // step: a message, a question, or the end of the call.
            // reader_gone: the client closed the stream, which cancels the call.
            let step = tokio::select! {
                biased;
                () = stream.reader_gone() => return,
                step = driver.step(&self.client) => step,
            };
            break match step {
                Step::Said(message) => {
                    if !push(&message) {
                        return;
                    }
                    patience.wait_for(&stream).await;
                    continue;
                }
                Step::Asked(asked) => self.suspend(driver, &asked),
                Step::Over(outcome) => self.response(&**driver.call(), outcome),
            };
        };
        push(&last.unwrap_or_else(|failure| failure.modern_body(Some(&self.id))));
    }

    fn response(
        &self,
        call: &dyn UpstreamCall,
        outcome: CallOutcome,
    ) -> Result<Vec<u8>, RequestError> {
        call::response(call.facts(), &self.id, &self.caller, &self.format, outcome)
    }

    /// Suspends the call, and writes the response that sends its questions to the client.
    fn suspend(&self, driver: ModernCall, asked: &InputRequests) -> Result<Vec<u8>, RequestError> {
        let mut out = Vec::with_capacity(512);
        format::begin(&mut out, &self.id);
        out.extend_from_slice(b"{\"resultType\":\"input_required\",\"inputRequests\":{");
        let questions = asked.questions.iter().filter_map(|it| it.question());
        for (position, question) in questions.enumerate() {
            if position > 0 {
                out.push(b',');
            }
            put_request(&mut out, question);
        }
        let call = Arc::clone(driver.call());
        let (subject, arguments) = call.asked_as();
        let bound = self.bound(subject, arguments);
        let max = call.facts().namespace.limits.max_parked;
        let suspended = &self.core.suspended;
        let state = match suspended.suspend(driver, bound, asked.deadline, max) {
            Ok(state) => state,
            Err(refused @ SuspendRefusal::Full(_)) => {
                return self.response(&*call, Err(ask_failed(refused.to_string())));
            }
            Err(refused @ SuspendRefusal::NoRandomness) => {
                tracing::error!(error = %refused, "a call could not be suspended");
                return Err(RequestError::Internal);
            }
        };
        out.extend_from_slice(b"},\"requestState\":");
        format::escape(&mut out, state.as_bytes());
        if let ResultFormat::Modern(format) = &self.format {
            out.extend_from_slice(b",\"_meta\":{");
            format.meta(&mut out);
            out.push(b'}');
        }
        out.extend_from_slice(b"}}");
        Ok(out)
    }
}

/// Writes a question as an entry of `inputRequests`.
pub(in crate::mcp) fn put_request(out: &mut Vec<u8>, question: &Question) {
    format::escape(out, question.key.as_bytes());
    out.extend_from_slice(b":{\"method\":\"");
    out.extend_from_slice(question.method.as_str().as_bytes());
    out.extend_from_slice(b"\",\"params\":");
    match question.params.trim_ascii() {
        [] => out.extend_from_slice(b"{}"),
        params => out.extend_from_slice(params),
    }
    out.push(b'}');
}
