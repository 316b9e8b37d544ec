//! The one path of every call, whatever its transport and whatever runs it (FRM-08, FRM-12).
//!
//! A call goes through, in this order: its namespace is up → the policy allows the tool → its upstream has it → limits
//! counted in tool calls → a place in the namespace's queue → the upstream → the bound on results. The time limit covers
//! the wait in the queue too. Whatever the end, the dropped future of a client that left included, the call is counted
//! and audited once.
//!
//! What is run is an `UpstreamCall`: a request that its upstream has understood. The engine sees only what policy,
//! limits, clock, audit and metrics go by. How a call becomes a frame to a worker or a message to a server is its
//! upstream's. A call that may ask its client (`Talks::Asks`) has a loop around it (`interactive`); all others have
//! none.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use bytes::Bytes;
use memchr::memmem::Finder;
use tokio::time::timeout;
use tooldock_workers::answers::{AnswerAccount, AnswerBudget};
use tooldock_workers::budget::Budget;
use tooldock_workers::error::{CallError, CallErrorCode};
use tooldock_workers::grant::Grant;
use tooldock_workers::names::NamespaceName;
use tooldock_workers::registry::{Namespace, Registry, UpstreamKind};
use tooldock_workers::worker::ToolReply;

use crate::audit::{AuditSender, Transport};
use crate::broadcast::Audience;
use crate::call_error::{CallCause, rest_status};
use crate::caller::Caller;
use crate::catalogue::View;
pub(crate) use crate::interaction::{EventSender, PeerEvent, ask_failed};
use crate::jsonrpc::Response;
use crate::metrics::UpstreamMetrics;
use crate::protocol::Method;
use crate::session::CancelNotice;

mod detached;
mod interactive;
mod missing;
mod passed;
mod peer;
mod record;
mod secrecy;

pub(crate) use detached::{Detached, go_on};
use interactive::InteractiveCall;
pub(crate) use missing::{explained, missing_tool};
pub(crate) use passed::PassedCall;
pub(crate) use peer::Peer;
use record::CallRecord;
pub(crate) use secrecy::CallSecrets;

/// Characters of an unknown tool's name that go into messages and logs.
const UNKNOWN_NAME_MAX: usize = 128;

/// What came of a call.
pub(crate) type CallOutcome = Result<UpstreamReply, CallError>;

/// A call on its way, which owns all it needs. The only box of a call.
pub(crate) type Work = Pin<Box<dyn Future<Output = CallOutcome> + Send>>;

/// A call that can run once. Whoever cancels it with words of their own is heard first ([`CancelNotice`]).
pub(crate) trait UpstreamCall: CancelNotice {
    /// What the engine judges and records the call by.
    fn facts(&self) -> &CallFacts;

    /// Whether there is somebody to run the call, as far as is known without asking: after the policy, before limits
    /// are counted.
    ///
    /// # Errors
    ///
    /// Why the call need not begin.
    fn admit(&self) -> Result<(), CallError> {
        Ok(())
    }

    /// Begins the call, which has its turn now. Dropping the future cancels the call. What the upstream says before its
    /// answer goes to `peer`.
    fn start(self: Arc<Self>, peer: Peer) -> Work;

    /// The call in another namespace whose answer answers this call. The engine runs that other call, and judges and records
    /// it as a call of the other namespace. This call is then not started, and takes no place in a queue and no time limit:
    /// those are the other call's.
    fn delegate(&self) -> Option<Delegate<'_>> {
        None
    }

    /// The reply of a call that was delegated, as this namespace shows it.
    fn relayed(&self, reply: UpstreamReply) -> UpstreamReply {
        reply
    }

    /// The failure of a call that was delegated, as this namespace tells of it.
    fn not_relayed(&self, error: CallError) -> CallOutcome {
        Err(error)
    }

    /// What its client's request named, and the arguments it gave: what the request must name again when it brings answers
    /// to questions of this call.
    fn asked_as(&self) -> (&str, &[u8]) {
        let facts = self.facts();
        (&facts.subject, facts.named_arguments())
    }

    /// Whether arguments were converted to the types of the tool's schema, and so differ from those sent.
    fn has_coerced_arguments(&self) -> bool {
        false
    }

    /// Whether the call failed because the state of its session is lost, so that the session is over.
    fn has_lost_its_session(&self) -> bool {
        false
    }

    /// A failure of this call as its caller may see it; what only the operator may see goes to the log.
    fn shown(&self, _caller: &Caller, error: CallError) -> CallError {
        error
    }
}

/// A call that another one is answered by.
pub(crate) struct Delegate<'a> {
    /// The call in the other namespace.
    pub(crate) call: &'a Arc<dyn UpstreamCall>,
    /// What the audit log of this namespace calls the other one.
    pub(crate) via: &'a Arc<str>,
}

/// What is known of a call before it runs.
#[derive(Debug)]
pub(crate) struct CallFacts {
    /// The namespace, out of the snapshot the request began with.
    pub(crate) namespace: Arc<Namespace>,
    /// What is asked for.
    pub(crate) method: Method,
    /// The tool, the prompt or the URI; empty for what has none.
    pub(crate) subject: Arc<str>,
    /// What of the parameters the audit log may tell of: the arguments of a tool or prompt, else mostly nothing.
    pub(crate) arguments: Bytes,
    /// How the request came in.
    pub(crate) transport: Transport,
    /// The MCP version in force, as it is spelled on the wire.
    pub(crate) version: Option<&'static str>,
    /// The digest that stands for the session.
    pub(crate) session: Option<Arc<str>>,
    /// What the upstream may do before it answers.
    pub(crate) talks: Talks,
    /// What the client's progress notifications are to carry, raw JSON, where the upstream does not write them whole.
    pub(crate) progress_token: Option<String>,
    /// The upstream may send each of its questions as a request of its own, so that questions that belong together come one
    /// after another.
    pub(crate) asks_singly: bool,
}

/// What an upstream may do before it answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Talks {
    /// Nothing: the call has no channel and no loop around it.
    No,
    /// Report and log.
    Tells,
    /// Report, log and ask; the clock stands while its client is asked.
    Asks,
}

/// What a call was answered.
#[derive(Debug, Clone)]
pub(crate) enum UpstreamReply {
    /// What a function returned.
    Value(ToolReply),
    /// A result object of the method, without what versions add to it.
    Result(Bytes),
    /// A server's whole response.
    Response(Response),
}

/// What stands for arguments where a method has none or they were left out.
pub(crate) const NO_ARGUMENTS: &[u8] = b"{}";

/// Limits that the edge keeps, and asks about itself for requests by HTTP (NSR-15).
pub trait Limiter: Send + Sync {
    /// Takes one call from the budgets of all limits that count it. The tightest of them is what stays; None: nothing
    /// counts the call.
    ///
    /// # Errors
    ///
    /// The limit that has nothing left for the call.
    fn check(
        &self,
        caller: &Caller,
        namespace: &NamespaceName,
        tool: &str,
        counted: CountedBy,
    ) -> Result<Option<Budget>, Exhausted>;

    /// Takes one request from the budgets of all limits that count requests, for a request that did not come by HTTP.
    ///
    /// # Errors
    ///
    /// The limit that has nothing left for the request.
    fn check_request(&self, _: &Caller, _: &NamespaceName) -> Result<(), Exhausted> {
        Ok(())
    }
}

/// By which limits a call is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CountedBy {
    /// By all.
    All,
    /// By those of its namespace alone: a member that the call is passed on to counts the rest.
    Namespace,
}

/// A limit that has nothing left for a call.
#[derive(Debug)]
pub struct Exhausted {
    /// How long until there is something left for the same call.
    pub wait: Duration,
    /// The limit.
    pub budget: Budget,
}

/// What all calls share.
pub(crate) struct Engine {
    pub(crate) limiter: Arc<dyn Limiter>,
    pub(crate) audit: AuditSender,
    pub(crate) metrics: Arc<UpstreamMetrics>,
    /// Who hears what workers say of their namespace's lists and resources.
    pub(crate) audience: Arc<Audience>,
    /// The bound on the memory of all answers.
    pub(crate) answers: Arc<AnswerBudget>,
    /// Knows the secrets of namespaces.
    pub(crate) registry: Arc<Registry>,
}

impl Engine {
    /// Counts the answers to a caller.
    pub(crate) fn account_of(&self, caller: &Caller) -> AnswerAccount {
        AnswerAccount::new(&self.answers, caller.principal.as_ref(), caller.client)
    }

    /// Runs one call to its end. Dropping the future cancels it. What the call says before its answer goes to `events`;
    /// without them its progress and log messages are dropped and its questions fail. All events of the call are in the
    /// channel when this returns.
    pub(crate) async fn run(
        &self,
        caller: &Caller,
        call: &Arc<dyn UpstreamCall>,
        events: Option<EventSender>,
    ) -> CallOutcome {
        let via = call.delegate().map(|delegate| Arc::clone(delegate.via));
        self.run_via(caller, call, events, via).await
    }

    /// Runs one call for a surface that reads its reply and may make an error of it. The call is recorded when the surface
    /// has done so.
    pub(crate) async fn run_unfinished<'a>(
        &'a self,
        caller: &Caller,
        call: &Arc<dyn UpstreamCall>,
    ) -> (CallOutcome, UnfinishedCall<'a>) {
        let via = call.delegate().map(|delegate| Arc::clone(delegate.via));
        let mut record = CallRecord::begin(self, &self.audit, caller, call.facts(), via);
        let (outcome, status) = self.settled(caller, call, None, record.reached()).await;
        if call.has_coerced_arguments() {
            record.note_coercion();
        }
        (outcome, UnfinishedCall { record, status })
    }

    /// Runs one call as [`Self::run`] does. `via` is the namespace at the other end, where the call goes through an
    /// aggregate.
    async fn run_via(
        &self,
        caller: &Caller,
        call: &Arc<dyn UpstreamCall>,
        events: Option<EventSender>,
        via: Option<Arc<str>>,
    ) -> CallOutcome {
        let mut record = CallRecord::begin(self, &self.audit, caller, call.facts(), via);
        let (outcome, status) = self.settled(caller, call, events, record.reached()).await;
        if call.has_coerced_arguments() {
            record.note_coercion();
        }
        let cause = match (&outcome, status) {
            (Ok(_), Ok("ok")) => None,
            (Ok(UpstreamReply::Response(response)), Ok(status)) => {
                CallCause::said(status, response.payload())
            }
            (Ok(_), _) => None,
            (Err(error), _) => Some(CallCause::of(error)),
        };
        record.finish(status, cause);
        outcome
    }

    /// Runs a call: its outcome, without secrets where it is a failure, and how it is counted. `reached` is set once the
    /// call is let through to its upstream.
    async fn settled(
        &self,
        caller: &Caller,
        call: &Arc<dyn UpstreamCall>,
        events: Option<EventSender>,
        reached: &AtomicBool,
    ) -> (CallOutcome, Result<&'static str, CallErrorCode>) {
        let outcome = self.attempt(caller, call, events, reached).await;
        let outcome = outcome.map_err(|error| call.shown(caller, error));
        let status = outcome.as_ref().map(UpstreamReply::status);
        let status = status.map_err(|error| error.code);
        let outcome = match call.facts().may_tell_of_failure(status) {
            true => {
                let secrets = self.secrets_of(caller, call.facts());
                // Boxed: most calls succeed, and would carry the room for it.
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
        reached: &AtomicBool,
    ) -> CallOutcome {
        let facts = call.facts();
        let counted = match call.delegate() {
            Some(_) => CountedBy::Namespace,
            None => CountedBy::All,
        };
        self.admit(caller, facts, counted, || call.admit())?;
        reached.store(true, Ordering::Relaxed);
        let limit = facts.timeout();
        let reply = match (call.delegate(), facts.talks) {
            (Some(delegate), _) => {
                let via = Some(facts.namespace.name.as_str().into());
                // Boxed: a future cannot hold one of its own kind.
                let run = Box::pin(self.run_via(caller, delegate.call, events, via));
                match run.await {
                    Ok(reply) => call.relayed(reply),
                    Err(error) => call.not_relayed(error)?,
                }
            }
            (None, Talks::Asks) => {
                let answers = self.account_of(caller);
                answers.room().await?;
                let asking = InteractiveCall::new(self, facts, caller, limit, events, answers);
                // Boxed, so that the usual call does not carry the room for it.
                Box::pin(asking.run(|peer| Arc::clone(call).start(peer))).await?
            }
            (None, Talks::Tells | Talks::No) => {
                let answers = self.account_of(caller);
                answers.room().await?;
                let secrets = events.is_some().then(|| self.secrets_of(caller, facts));
                let heard = events.zip(secrets);
                self.in_turn(caller, call, limit, heard, answers).await?
            }
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

    /// Whether the call may be made. Policy and limits counted in calls are for tools alone.
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

    /// A call that cannot ask anything before its answer: a place in the queue, the upstream, one clock over both.
    async fn in_turn(
        &self,
        caller: &Caller,
        call: &Arc<dyn UpstreamCall>,
        limit: Duration,
        heard: Option<(EventSender, CallSecrets)>,
        answers: AnswerAccount,
    ) -> CallOutcome {
        let entered = AtomicBool::new(false);
        let run = async {
            let gate = &call.facts().namespace.gate;
            let _permit = gate
                .enter(&caller.principal)
                .await
                .map_err(|_| overloaded())?;
            entered.store(true, Ordering::Relaxed);
            let heard = heard.map(|(events, secrets)| (events, Arc::new(secrets)));
            let peer = Peer::new(heard, None, &self.metrics.events_dropped, answers);
            Arc::clone(call).start(peer).await
        };
        timeout(limit, run)
            .await
            .map_err(|_| match entered.load(Ordering::Relaxed) {
                true => timed_out(limit),
                // It never ran: another try is safe, and the tool is not what is slow.
                false => overloaded(),
            })?
    }
}

/// A call that has ended, and whose answer is not yet known to be an error or none.
pub(crate) struct UnfinishedCall<'a> {
    record: CallRecord<&'a AuditSender>,
    status: Result<&'static str, CallErrorCode>,
}

impl UnfinishedCall<'_> {
    /// Records the call, whose answer is this value or error.
    pub(crate) fn finish<T>(mut self, answered: &Result<T, CallError>) {
        let Err(error) = answered else {
            return self.record.finish(self.status, None);
        };
        self.record.sent(rest_status(error.code));
        let mut cause = CallCause::of(error);
        let status = match self.status {
            // A reply that makes no sense to the surface.
            Ok("ok") => Err(error.code),
            Ok(said) => {
                cause.of_tool = true;
                // As MCP names it; REST's code is its reading of the server's words.
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

impl CallFacts {
    /// How long the call may take, its wait in the queue included.
    pub(crate) fn timeout(&self) -> Duration {
        match self.method.is_tool_call() {
            true => self.namespace.timeout_of(&self.subject),
            false => self.namespace.limits.timeout,
        }
    }

    /// The most bytes that may be answered.
    pub(crate) fn max_result(&self) -> u64 {
        match self.method.is_tool_call() {
            true => self.namespace.max_result_of(&self.subject),
            false => self.namespace.limits.max_result.as_u64(),
        }
    }

    /// True for outcomes that may contain the text of an error: failed calls, and states of tasks.
    fn may_tell_of_failure(&self, status: Result<&str, CallErrorCode>) -> bool {
        status != Ok("ok") || self.method.starts_with("tasks/")
    }

    /// The arguments of what is named, a JSON object; [`NO_ARGUMENTS`] where there are none.
    pub(crate) fn named_arguments(&self) -> &[u8] {
        match self.arguments.is_empty() {
            true => NO_ARGUMENTS,
            false => &self.arguments,
        }
    }
}

impl UpstreamReply {
    /// Bytes of what was answered.
    fn size(&self) -> usize {
        match self {
            Self::Value(reply) => reply.size(),
            Self::Result(result) => result.len(),
            Self::Response(response) => response.payload().len(),
        }
    }

    /// How the call is counted.
    pub(crate) fn status(&self) -> &'static str {
        match self {
            Self::Value(_) | Self::Result(_) => "ok",
            Self::Response(response) if response.is_error() => "upstream_error",
            Self::Response(response) if is_error(response.payload()) => "tool_error",
            Self::Response(_) => "ok",
        }
    }
}

/// Whether a result says `isError`. The text is looked for first: few results have it.
fn is_error(result: &[u8]) -> bool {
    #[derive(serde::Deserialize)]
    struct Said {
        #[serde(default, rename = "isError")]
        is_error: bool,
    }
    static WORD: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("\"isError\""));
    WORD.find(result).is_some()
        && serde_json::from_slice::<Said>(result).is_ok_and(|said| said.is_error)
}

/// A tool that is not there, or not for this namespace's callers.
pub(crate) fn unknown_tool(name: &str) -> CallError {
    let name = shortened(name);
    CallError::new(CallErrorCode::ToolNotFound, format!("Unknown tool: {name}"))
}

/// A tool that the scopes of the caller's credential do not open, whether or not there is such a tool.
pub(crate) fn insufficient_scope(name: &str) -> CallError {
    let name = shortened(name);
    CallError::new(
        CallErrorCode::InsufficientScope,
        format!("The scopes of this credential do not allow the tool {name}"),
    )
}

/// A tool of a namespace that this caller is not shown: refused where the caller's scopes do not open it, else unknown.
pub(crate) fn not_shown(caller: &Caller, namespace: &Namespace, name: &str) -> CallError {
    let opens = |grant: &Arc<Grant>| namespace.policy.check_scope(&grant.tools, name).is_ok();
    match caller.grant.as_ref().is_none_or(opens) {
        true => missing_tool(caller, namespace, name),
        false => insufficient_scope(name),
    }
}

/// A client's own spelling of a name, short enough for messages and logs.
pub(crate) fn shortened(name: &str) -> &str {
    let end = name.char_indices().nth(UNKNOWN_NAME_MAX);
    &name[..end.map_or(name.len(), |(at, _)| at)]
}

/// The error of a call or a request over a rate limit: `-32029`, with the
/// seconds to wait.
pub(crate) fn rate_limited(exhausted: &Exhausted) -> CallError {
    let seconds = crate::call_error::retry_seconds(exhausted.wait);
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

/// A call that took too long.
pub(crate) fn timed_out(limit: Duration) -> CallError {
    CallError::new(
        CallErrorCode::ExecutionTimeout,
        format!("The call took longer than {} s", limit.as_secs_f64()),
    )
}

#[cfg(test)]
mod tests;
