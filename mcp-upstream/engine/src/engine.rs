//! Runs every call in one order, for all transports and upstreams (FRM-08, FRM-12).
//!
//! A call passes these steps in this order: its namespace is up → the policy allows the tool → its upstream has the tool →
//! limits counted in tool calls → hooks that see the arguments → a permit of the namespace's queue → the upstream → hooks that
//! see the result → the bound on results. The time limit includes the wait in the queue, and no hook. The call is counted and audited once, however it ends, even when its client disconnects and
//! the future is dropped.
//!
//! The engine runs an `UpstreamCall`, a request that its upstream has parsed. The engine uses only the facts that policy,
//! limits, time limit, audit and metrics need. The upstream turns the call into a frame to a worker or a message to a server. A
//! call that may ask its client questions (`CallMessages::Asks`) runs inside a loop (`interactive`); all other calls run without.
//!
//! The edge owns the limits, which the engine uses through `Limiter` (`proxy/serve/ports.rs`). Only REST answers a call beyond
//! a limit with status 429; MCP answers with an `isError` result, the relay with an error frame (`surface/relay/call.rs`,
//! `Limiter::check_request`). A call without the scope of its tool is refused with `insufficient_scope`. Scopes bound tools, not
//! resources and prompts.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use memchr::memmem::Finder;
use tokio::time::{Instant, timeout_at};
use tooldock_base::answers::{AnswerAccount, AnswerBudget};
use tooldock_base::budget::Budget;
use tooldock_base::error::{CallError, CallErrorCode};
use tooldock_base::gate::Permit;
use tooldock_base::grant::Grant;
use tooldock_base::names::NamespaceName;
use tooldock_base::trace::{RequestTrace, UpstreamSpan};
use tooldock_process::worker::ToolReply;
use tooldock_protocol::jsonrpc::Response;
use tooldock_protocol::version::Method;
use tooldock_sessions::audit::{AuditSender, Transport};
use tooldock_sessions::broadcast::Audience;
use tooldock_sessions::call_error::{CallCause, rest_status};
use tooldock_sessions::caller::Caller;
use tooldock_sessions::catalogue::View;
use tooldock_sessions::interaction::after;
pub use tooldock_sessions::interaction::{EventSender, PeerEvent, ask_failed};
use tooldock_sessions::session::CancelNotice;
use tooldock_workers::registry::{Namespace, Registry, UpstreamKind};

use crate::hooks::{HookPath, Hooks};
use crate::metrics::UpstreamMetrics;
use crate::trace;

mod detached;
mod hooked;
mod interactive;
mod missing;
mod passed;
mod peer;
mod record;
mod secrecy;
pub mod tool_value;

pub use detached::{DetachedFuture, go_on};
use interactive::InteractiveCall;
pub(crate) use missing::{explained, missing_tool};
pub use passed::PassedCall;
pub use peer::Peer;
use record::{CallProgress, CallRecord};
pub use secrecy::CallSecrets;

/// Maximum number of characters of an unknown tool's name in messages and logs.
const UNKNOWN_NAME_MAX: usize = 128;

/// Outcome of a call: the upstream's reply, or the reason why there is none.
pub type CallOutcome = Result<UpstreamReply, CallError>;

/// Future of a started call, which owns all data of the call. A call needs no other boxed future.
pub type Work = Pin<Box<dyn Future<Output = CallOutcome> + Send>>;

/// A call that runs at most once. If its client cancels it, its upstream may have to be informed first ([`CancelNotice`]).
pub trait UpstreamCall: CancelNotice {
    /// Returns the facts by which the engine admits and records the call.
    fn facts(&self) -> &CallFacts;

    /// Checks that the upstream can run the call, without a request to the server or worker. Called after the policy check,
    /// before limits are counted.
    ///
    /// # Errors
    ///
    /// The reason why the upstream cannot run the call.
    fn admit(&self) -> Result<(), CallError> {
        Ok(())
    }

    /// Starts the call, once it has a permit. Dropping the future cancels the call. Messages that the upstream sends before its
    /// reply go to `peer`.
    fn start(self: Arc<Self>, peer: Peer) -> Work;

    /// Returns the call in another namespace whose reply is the reply of this call, if there is one. The engine then runs that
    /// call, and admits and records it as a call of the other namespace. This call is not started, and has no permit and no
    /// time limit: those of the other call apply.
    fn delegate(&self) -> Option<Delegate<'_>> {
        None
    }

    /// Adapts the reply of a delegated call to the form of replies in this namespace.
    fn relayed(&self, reply: UpstreamReply) -> UpstreamReply {
        reply
    }

    /// Adapts the failure of a delegated call to the form of failures in this namespace.
    fn not_relayed(&self, error: CallError) -> CallOutcome {
        Err(error)
    }

    /// Returns true if hooks see the call and its result; false for calls that the gateway answers itself.
    fn is_seen_by_hooks(&self) -> bool {
        false
    }

    /// Returns the arguments of a tool call converted to the types of its schema, for hooks, which must see the arguments that run.
    /// `None` if arguments are not converted in this namespace.
    fn coerced_arguments(&self) -> Option<BoxFuture<'_, Option<Bytes>>> {
        None
    }

    /// Replaces the arguments of a tool call, before it starts and at most once. `arguments`: a JSON object. Retries repeat the
    /// arguments that the client sent ([`Self::asked_as`]). Replaced arguments are not converted any more.
    ///
    /// # Errors
    ///
    /// When the arguments cannot be sent.
    fn replace_arguments(&self, _arguments: Bytes) -> Result<(), CallError> {
        Err(CallError::new(
            CallErrorCode::InternalError,
            "The arguments of this call cannot be replaced",
        ))
    }

    /// Returns the subject and the arguments as the client sent them. A retry that carries answers to this call's questions must
    /// repeat both.
    fn asked_as(&self) -> (&str, &[u8]) {
        let facts = self.facts();
        (&facts.subject, facts.named_arguments())
    }

    /// Returns true if arguments were converted to the types of the tool's schema, and so differ from those that the client
    /// sent.
    fn has_coerced_arguments(&self) -> bool {
        false
    }

    /// Returns true if the call failed because the state of its session is lost, which ends the session.
    fn has_lost_its_session(&self) -> bool {
        false
    }

    /// Returns this call's failure in the form for its caller. Details for the operator are only logged.
    fn error_for_caller(&self, _caller: &Caller, error: CallError) -> CallError {
        error
    }
}

/// A call in another namespace, which the engine runs in place of the original call.
pub struct Delegate<'a> {
    /// The call in the other namespace, which the engine runs.
    pub(crate) call: &'a Arc<dyn UpstreamCall>,
    /// The name of the other namespace in this namespace's audit log.
    pub(crate) via: &'a Arc<str>,
}

/// Facts of a call that are known before it runs.
#[derive(Debug)]
pub struct CallFacts {
    /// The namespace of the call, from the snapshot with which the request began.
    pub namespace: Arc<Namespace>,
    /// The method of the request.
    pub method: Method,
    /// Name of the tool or prompt, or URI of the resource; empty for methods that name none.
    pub subject: Arc<str>,
    /// The parameters that the audit log may record: the arguments of a tool or prompt; empty for most other methods.
    pub arguments: Bytes,
    /// The transport by which the request arrived.
    pub transport: Transport,
    /// Protocol version of the request, as text; `None` if the request has none.
    pub version: Option<&'static str>,
    /// Digest of the session's id, which logs show instead of the id; `None` without a session.
    pub session: Option<Arc<str>>,
    /// Kinds of messages that the upstream may send before its reply.
    pub talks: CallMessages,
    /// Token for the client's progress notifications, as raw JSON; `None` if the upstream writes the notifications itself.
    pub progress_token: Option<String>,
    /// True if the upstream may send related questions one after another, as separate requests; false if it sends them together.
    pub asks_singly: bool,
    /// Relation of the call to a task of the gateway.
    pub task: CallTask,
}

/// Relation of a call to a task of the gateway (`mcp-upstream/mcp/tasks.rs`), which outlives the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallTask {
    /// The call is a part of its request. Servers have tasks of their own, whose calls are among these.
    No,
    /// The call begins a task.
    Begins,
    /// The call begins a task after its first questions are answered.
    AsksFirst,
}

/// Kinds of messages that an upstream may send before its reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallMessages {
    /// The call sends no messages, so it needs neither a channel for them nor a loop.
    No,
    /// The call may send progress and log messages, but no questions.
    Tells,
    /// The call may send progress, log messages and questions. Its time limit is suspended while it waits for the client's
    /// answers.
    Asks,
}

/// An upstream's reply to a call.
#[derive(Debug, Clone)]
pub enum UpstreamReply {
    /// The value that a Python function returned.
    Value(ToolReply),
    /// The result object of the method, without the keys that protocol versions add.
    Result(Bytes),
    /// The complete JSON-RPC response of an MCP server.
    Response(Response),
}

/// Arguments of methods that have none, and of calls without arguments: an empty JSON object.
pub const NO_ARGUMENTS: &[u8] = b"{}";

/// Interface to the rate limits, which the edge counts. For HTTP requests the edge itself checks the limits that count requests
/// (NSR-15).
pub trait Limiter: Send + Sync {
    /// Takes one call from the budgets of all limits that count it. Returns the budget with the least left; `None` if no limit
    /// counts the call.
    ///
    /// # Errors
    ///
    /// A limit whose budget does not suffice for the call.
    fn check(
        &self,
        caller: &Caller,
        namespace: &NamespaceName,
        tool: &str,
        counted: CountedBy,
    ) -> Result<Option<Budget>, ExhaustedLimit>;

    /// Takes one request from the budgets of all limits that count requests. Used for requests that did not arrive over HTTP.
    ///
    /// # Errors
    ///
    /// A limit whose budget does not suffice for the request.
    fn check_request(&self, _: &Caller, _: &NamespaceName) -> Result<(), ExhaustedLimit> {
        Ok(())
    }
}

/// Selects the limits that count a call, among all limits that apply to the call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CountedBy {
    /// All limits that apply to the call count it.
    All,
    /// Only the limits of the aggregate's namespace count the call. The other limits count it in the member namespace that runs
    /// it.
    Namespace,
}

/// Error: a limit whose budget does not suffice for a call.
#[derive(Debug)]
pub struct ExhaustedLimit {
    /// Time after which the limit would admit the refused call.
    pub wait: Duration,
    /// The present budget of the limit.
    pub budget: Budget,
}

/// Runs the calls. Contains the state that all calls share.
pub struct Engine {
    /// The limits of the edge that are counted in calls.
    pub limiter: Arc<dyn Limiter>,
    /// The audit log, which gets a line per call.
    pub audit: AuditSender,
    /// The counters of calls.
    pub metrics: Arc<UpstreamMetrics>,
    /// Subscribers of namespaces, which receive the changes of lists and resources that workers announce.
    pub audience: Arc<Audience>,
    /// Bound on the memory that all replies use together.
    pub answers: Arc<AnswerBudget>,
    /// Registry of namespaces, from which the secrets of a namespace are read.
    pub registry: Arc<Registry>,
    /// The hooks that see calls, results and lists.
    pub hooks: Hooks,
}

impl Engine {
    /// Returns the account that counts the bytes of replies to this caller.
    #[inline]
    pub fn account_of(&self, caller: &Caller) -> AnswerAccount {
        AnswerAccount::new(&self.answers, caller.principal.as_ref(), caller.client)
    }

    /// Runs one call to its end. Dropping the future cancels the call. Messages before the reply go to `events`; without
    /// `events`, progress and log messages are dropped and questions fail. When this returns, all events of the call have been
    /// sent to `events`.
    pub async fn run(
        &self,
        caller: &Caller,
        call: &Arc<dyn UpstreamCall>,
        events: Option<EventSender>,
    ) -> CallOutcome {
        let via = call.delegate().map(|delegate| Arc::clone(delegate.via));
        self.run_via(caller, call, events, via, HookPath::Direct)
            .await
    }

    /// Runs one call for a surface that reads the reply and may convert it to an error. The call is recorded when the surface
    /// calls `UnfinishedCall::finish`. `hooks`: [`HookPath::Unhooked`] for a call that a hook makes.
    pub async fn run_unfinished<'a>(
        &'a self,
        caller: &Caller,
        call: &Arc<dyn UpstreamCall>,
        hooks: HookPath<'_>,
    ) -> (CallOutcome, UnfinishedCall<'a>) {
        let via = call.delegate().map(|delegate| Arc::clone(delegate.via));
        let mut record = CallRecord::begin(self, &self.audit, caller, call.facts(), via);
        record.note_delegation(call);
        let settled = self.settled(caller, call, None, (record.progress(), hooks));
        let (outcome, status) = settled.await;
        if call.has_coerced_arguments() {
            record.note_coercion();
        }
        (outcome, UnfinishedCall { record, status })
    }

    /// Runs one call as [`Self::run`] does. `via` is the other namespace of a call through an aggregate: the member for the
    /// aggregate's call, the aggregate for the member's call.
    async fn run_via(
        &self,
        caller: &Caller,
        call: &Arc<dyn UpstreamCall>,
        events: Option<EventSender>,
        via: Option<Arc<str>>,
        hooks: HookPath<'_>,
    ) -> CallOutcome {
        let mut record = CallRecord::begin(self, &self.audit, caller, call.facts(), via);
        record.note_delegation(call);
        let settled = self.settled(caller, call, events, (record.progress(), hooks));
        let (outcome, status) = settled.await;
        if call.has_coerced_arguments() {
            record.note_coercion();
        }
        let cause = match (&outcome, status) {
            (Ok(_), Ok("ok")) => None,
            (Ok(UpstreamReply::Response(response)), Ok(status)) => {
                CallCause::from_answer(status, response.payload())
            }
            (Ok(_), _) => None,
            (Err(error), _) => Some(CallCause::of(error)),
        };
        record.finish(status, cause);
        outcome
    }

    /// Runs a call, and hides secrets in its outcome if it failed. Returns the outcome, and its status for the metrics.
    async fn settled(
        &self,
        caller: &Caller,
        call: &Arc<dyn UpstreamCall>,
        events: Option<EventSender>,
        course: (&CallProgress, HookPath<'_>),
    ) -> (CallOutcome, Result<&'static str, CallErrorCode>) {
        let outcome = self.attempt(caller, call, events, course).await;
        let outcome = outcome.map_err(|error| call.error_for_caller(caller, error));
        let status = outcome.as_ref().map(UpstreamReply::status);
        let status = status.map_err(|error| error.code);
        let outcome = match call.facts().may_tell_of_failure(status) {
            true => {
                let secrets = self.secrets_of(caller, call.facts());
                // The future is boxed: most calls succeed, and would otherwise reserve space for it in vain.
                Box::pin(secrets.hide_in_failure(outcome)).await
            }
            false => outcome,
        };
        (outcome, status)
    }

    fn secrets_of(&self, caller: &Caller, facts: &CallFacts) -> CallSecrets {
        CallSecrets::new(&self.registry, &facts.namespace, caller.principal.as_ref())
    }

    async fn attempt(
        &self,
        caller: &Caller,
        call: &Arc<dyn UpstreamCall>,
        events: Option<EventSender>,
        (progress, path): (&CallProgress, HookPath<'_>),
    ) -> CallOutcome {
        let facts = call.facts();
        let counted = match call.delegate() {
            Some(_) => CountedBy::Namespace,
            None => CountedBy::All,
        };
        self.admit(caller, facts, counted, || call.admit())?;
        progress.reach();
        let hooked = self.hooks_of(caller, call, progress, path);
        if let Some(hooked) = &hooked {
            // The futures of hooks are boxed, so that calls without hooks do not reserve space for them.
            Box::pin(hooked.arguments()).await?;
        }
        let limit = facts.timeout();
        let outcome = match (call.delegate(), facts.talks) {
            (Some(delegate), _) => {
                let via = Some(facts.namespace.name.as_str().into());
                // The future is boxed, because it runs this same function and a future cannot contain itself.
                let through = HookPath::Through {
                    aggregate: &facts.namespace.name,
                    outer: &path,
                };
                let run = Box::pin(self.run_via(caller, delegate.call, events, via, through));
                match run.await {
                    Ok(reply) => Ok(call.relayed(reply)),
                    Err(error) => call.not_relayed(error),
                }
            }
            (None, CallMessages::Asks) => {
                let answers = self.account_of(caller);
                answers.room().await?;
                let asking = InteractiveCall::new(self, facts, caller, limit, events, answers);
                // The future is boxed, so that calls without questions do not reserve space for it.
                Box::pin(asking.run(|peer| Arc::clone(call).start(peer))).await
            }
            (None, CallMessages::Tells | CallMessages::No) => {
                let answers = self.account_of(caller);
                answers.room().await?;
                let secrets = events.is_some().then(|| self.secrets_of(caller, facts));
                let heard = events.zip(secrets);
                self.in_turn(caller, call, limit, heard, answers).await
            }
        };
        let reply = match &hooked {
            Some(hooked) => Box::pin(hooked.outcome(self, outcome)).await?,
            None => outcome?,
        };
        let (size, allowed) = (reply.size(), facts.max_result());
        if size as u64 > allowed {
            return Err(CallError::new(
                CallErrorCode::ResultTooLarge,
                format!("The result has {size} bytes; {allowed} are allowed"),
            ));
        }
        Ok(reply)
    }

    /// Checks that the call is allowed. The policy and the limits that count calls apply only to tools.
    fn admit(
        &self,
        caller: &Caller,
        facts: &CallFacts,
        counted: CountedBy,
        upstream: impl FnOnce() -> Result<(), CallError>,
    ) -> Result<(), CallError> {
        let namespace = &*facts.namespace;
        if let UpstreamKind::Failed(error) = &namespace.upstream {
            return Err(error.clone());
        }
        if !facts.method.is_tool_call() {
            return upstream();
        }
        let tool = &*facts.subject;
        let view = View::of(caller, namespace);
        if !view.opens_tool(tool) {
            return Err(insufficient_scope(tool));
        }
        if !view.allows_tool(tool) {
            return Err(unknown_tool(tool));
        }
        upstream()?;
        match self.limiter.check(caller, &namespace.name, tool, counted) {
            Ok(budget) => {
                caller.note_budget(budget);
                Ok(())
            }
            Err(exhausted) => {
                let refused = rate_limited(&exhausted);
                caller.note_budget(Some(exhausted.budget));
                Err(refused)
            }
        }
    }

    /// Runs a call without questions: waits for a permit of the namespace's gate, then calls the upstream. One time limit covers
    /// both.
    async fn in_turn(
        &self,
        caller: &Caller,
        call: &Arc<dyn UpstreamCall>,
        limit: Duration,
        heard: Option<(EventSender, CallSecrets)>,
        answers: AnswerAccount,
    ) -> CallOutcome {
        let deadline = after(Instant::now(), limit);
        let facts = call.facts();
        let request = caller.trace.as_ref();
        let _permit = turn(facts, &caller.principal, request, deadline).await?;
        let span = facts.upstream_span(request);
        let heard = heard.map(|(events, secrets)| (events, Arc::new(secrets)));
        let peer = Peer::new(heard, None, &self.metrics.events_dropped, answers);
        let work = Arc::clone(call).start(peer.traced(span.as_ref()));
        let outcome = timeout_at(deadline, work).await;
        let outcome = outcome.unwrap_or_else(|_| Err(timed_out(limit)));
        end_span(span, &outcome);
        outcome
    }
}

/// Waits for a permit of the namespace's gate.
///
/// # Errors
///
/// The queue is full, or the deadline has passed. The call has not reached its upstream then: it may be repeated safely, and the
/// tool did not cause the delay.
async fn turn(
    facts: &CallFacts,
    principal: &Option<Arc<str>>,
    request: Option<&Arc<RequestTrace>>,
    deadline: Instant,
) -> Result<Permit, CallError> {
    let _waiting = request.map(|it| it.part(trace::QUEUE));
    let entered = timeout_at(deadline, facts.namespace.gate.enter(principal)).await;
    entered.ok().and_then(Result::ok).ok_or_else(overloaded)
}

/// A call that has ended, but is not recorded yet, because its surface has still to decide if the reply is an error.
pub struct UnfinishedCall<'a> {
    record: CallRecord<&'a AuditSender>,
    status: Result<&'static str, CallErrorCode>,
}

impl UnfinishedCall<'_> {
    /// Records the call. `answered` is the surface's response: a value or an error.
    pub fn finish<T>(mut self, answered: &Result<T, CallError>) {
        let Err(error) = answered else {
            return self.record.finish(self.status, None);
        };
        self.record.sent(rest_status(error.code));
        let mut cause = CallCause::of(error);
        let status = match self.status {
            // The reply reports success, but the surface could not convert it.
            Ok("ok") => Err(error.code),
            Ok(said) => {
                cause.of_tool = true;
                // The audit log records the status that MCP would give; REST has a different code for a server's error.
                if error.cause.is_none() {
                    cause.code = said.into();
                }
                Ok(said)
            }
            Err(code) => Err(code),
        };
        self.record.finish(status, Some(cause));
    }
}

/// Ends the span of an upstream's call.
fn end_span(span: Option<UpstreamSpan>, outcome: &CallOutcome) {
    if let Some(span) = span {
        let status = outcome.as_ref().map(UpstreamReply::status);
        span.ended(trace::error_of(status.map_err(|error| error.code)));
    }
}

impl CallFacts {
    /// Begins the trace span of the upstream's call, if the request is traced.
    fn upstream_span(&self, trace: Option<&Arc<RequestTrace>>) -> Option<UpstreamSpan> {
        trace.map(|it| it.upstream(self.namespace.name.as_str(), self.method.label()))
    }

    /// Returns the time limit of the call, including its wait for a permit.
    pub fn timeout(&self) -> Duration {
        match self.method.is_tool_call() {
            true if self.task != CallTask::No => self.namespace.limits.task_timeout,
            true => self.namespace.timeout_of(&self.subject),
            false => self.namespace.limits.timeout,
        }
    }

    /// Returns the maximum size of the reply, in bytes.
    pub(crate) fn max_result(&self) -> u64 {
        match self.method.is_tool_call() {
            true => self.namespace.max_result_of(&self.subject),
            false => self.namespace.limits.max_result.as_u64(),
        }
    }

    /// Returns true if the outcome may contain the text of an error: the call failed, or the reply is the state of a task.
    fn may_tell_of_failure(&self, status: Result<&str, CallErrorCode>) -> bool {
        status != Ok("ok") || self.method.starts_with("tasks/")
    }

    /// Returns the arguments of the tool or prompt as a JSON object; [`NO_ARGUMENTS`] if there are none.
    pub(crate) fn named_arguments(&self) -> &[u8] {
        match self.arguments.is_empty() {
            true => NO_ARGUMENTS,
            false => &self.arguments,
        }
    }
}

impl UpstreamReply {
    /// The size of the reply, in bytes.
    fn size(&self) -> usize {
        match self {
            Self::Value(reply) => reply.size(),
            Self::Result(result) => result.len(),
            Self::Response(response) => response.payload().len(),
        }
    }

    /// Returns the status by which the call is counted: `ok`, `tool_error` or `upstream_error`.
    #[inline]
    pub fn status(&self) -> &'static str {
        match self {
            Self::Value(_) | Self::Result(_) => "ok",
            Self::Response(response) if response.is_error() => "upstream_error",
            Self::Response(response) if is_error(response.payload()) => "tool_error",
            Self::Response(_) => "ok",
        }
    }
}

/// Returns true if a result has `isError: true`. The text is searched for the key before it is parsed, since few results have
/// it.
fn is_error(result: &[u8]) -> bool {
    #[derive(serde::Deserialize)]
    struct ErrorFlag {
        #[serde(default, rename = "isError")]
        is_error: bool,
    }
    static WORD: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("\"isError\""));
    WORD.find(result).is_some()
        && serde_json::from_slice::<ErrorFlag>(result).is_ok_and(|said| said.is_error)
}

/// Creates the error for a tool that does not exist, or that is hidden from all callers of this namespace.
#[inline]
pub fn unknown_tool(name: &str) -> CallError {
    let name = shortened(name);
    CallError::new(CallErrorCode::ToolNotFound, format!("Unknown tool: {name}"))
}

/// Adds a reason to the error for an unknown name, if its definition is hidden until an operator approves it.
pub(crate) fn held_back(mut error: CallError, held: Option<&str>) -> CallError {
    if let Some(held) = held {
        error.message = format!("{}; {held}", error.message);
    }
    error
}

/// Creates the error for a tool that the scopes of the caller's credential do not include, whether or not the tool exists.
#[inline]
pub fn insufficient_scope(name: &str) -> CallError {
    let name = shortened(name);
    CallError::new(
        CallErrorCode::InsufficientScope,
        format!("The scopes of this credential do not allow the tool {name}"),
    )
}

/// Creates the error for a tool that is hidden from this caller: `insufficient_scope` if the caller's scopes do not include the
/// tool, else the error for an unknown tool.
#[inline]
pub fn not_shown(caller: &Caller, namespace: &Namespace, name: &str) -> CallError {
    let opens = |grant: &Arc<Grant>| namespace.policy.check_scope(&grant.tools, name).is_ok();
    match caller.grant.as_ref().is_none_or(opens) {
        true => missing_tool(caller, namespace, name),
        false => insufficient_scope(name),
    }
}

/// Shortens a name that a client wrote to the maximum length in messages and logs.
#[inline]
pub fn shortened(name: &str) -> &str {
    let end = name.char_indices().nth(UNKNOWN_NAME_MAX);
    &name[..end.map_or(name.len(), |(at, _)| at)]
}

/// Creates the error for a call or a request beyond a rate limit: code `-32029`, with the number of seconds to wait.
pub fn rate_limited(exhausted: &ExhaustedLimit) -> CallError {
    let seconds = tooldock_sessions::call_error::retry_seconds(exhausted.wait);
    let Budget { limit, quota, .. } = &exhausted.budget;
    let window = exhausted.budget.window();
    CallError::new(
        CallErrorCode::RateLimited,
        format!(
            "Too many calls: {quota} in {window} s are allowed per {limit}; try again in {seconds} s"
        ),
    )
    .retry_after(exhausted.wait)
}

fn overloaded() -> CallError {
    CallError::new(
        CallErrorCode::Overloaded,
        "The namespace's queue is full; try again shortly",
    )
    .retry_after(Duration::from_secs(1))
}

/// Creates the error for a call that exceeded its time limit.
#[inline]
pub fn timed_out(limit: Duration) -> CallError {
    CallError::new(
        CallErrorCode::ExecutionTimeout,
        format!("The call took longer than {} s", limit.as_secs_f64()),
    )
}

#[cfg(test)]
mod tests;
