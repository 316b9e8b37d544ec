//! The one path every transport's list and call take (FRM-08, FRM-12): tools, resources, prompts, completion.
//!
//! A call goes through, in this order: the namespace's upstream is there → a tool exists and the policy allows it →
//! limits counted in tool calls → a place in the namespace's queue → the upstream. The time limit covers the wait in
//! the queue too. Whatever the end, the dropped future of a client that left included, it is counted and audited once.
//!
//! Functions that take a context may say and ask something before they answer; that is `talk`. All others have no
//! channel, no sink and no loop around them.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use tokio::time::timeout;
use tooldock_workers::error::{CallError, CallErrorCode};
use tooldock_workers::names::NamespaceName;
use tooldock_workers::registry::{Namespace, Upstream};
use tooldock_workers::tool::Tool;
use tooldock_workers::worker::{Operation, ToolReply, WorkerCall};

use crate::audit::{AuditSender, Transport};
use crate::backend::Backends;
use crate::caller::Caller;
pub(crate) use crate::interaction::{Event, EventSender, ask_failed};
use crate::metrics::UpstreamMetrics;

mod detached;
mod fault;
mod forward;
mod interactive;
mod notices;
mod record;

pub(crate) use crate::protocol::method::TOOLS_CALL;
pub(crate) use detached::{Detached, go_on};
pub(crate) use forward::{ForwardRequest, ForwardTask, Peer, ResponseOutcome};
use interactive::{CallInbox, InteractiveCall};
pub(crate) use notices::Announce;
use record::{Noted, Record};

/// Characters of an unknown tool's name that go into messages and logs.
const UNKNOWN_NAME_MAX: usize = 128;

/// A limit counted in tool calls (NSR-15).
pub trait ToolCallLimiter: Send + Sync {
    /// Takes one call from the budget.
    ///
    /// # Errors
    ///
    /// How long to wait when there is none left.
    fn check(
        &self,
        principal: &str,
        namespace: &NamespaceName,
        tool: &str,
        client: IpAddr,
    ) -> Result<(), Duration>;
}

/// No limit.
#[derive(Debug, Clone, Copy, Default)]
pub struct Unlimited;

impl ToolCallLimiter for Unlimited {
    fn check(&self, _: &str, _: &NamespaceName, _: &str, _: IpAddr) -> Result<(), Duration> {
        Ok(())
    }
}

/// What all calls share.
pub(crate) struct Engine {
    pub(crate) backends: Arc<dyn Backends>,
    pub(crate) limiter: Arc<dyn ToolCallLimiter>,
    pub(crate) audit: AuditSender,
    pub(crate) metrics: Arc<UpstreamMetrics>,
    /// Where the news of workers go that concern more than one call.
    pub(crate) notices: Arc<dyn Announce>,
}

/// One call, whoever asked for it.
#[derive(Debug, Clone)]
pub(crate) struct CallRequest {
    /// The namespace, out of the snapshot the request began with.
    pub(crate) namespace: Arc<Namespace>,
    /// What to run.
    pub(crate) operation: Operation,
    /// Who asks and what can be asked back, as the worker's `caller` object; only for functions that take a context.
    pub(crate) caller_facts: Option<Bytes>,
    /// How the call came in.
    pub(crate) transport: Transport,
    /// The MCP version in force, as it is spelled on the wire.
    pub(crate) version: Option<&'static str>,
    /// The digest that stands for the session.
    pub(crate) session: Option<Arc<str>>,
}

impl Engine {
    /// The tools of a namespace that may be listed. A namespace that could not be brought up is an error, never an
    /// empty list.
    pub(crate) fn list(
        namespace: &Namespace,
    ) -> Result<impl Iterator<Item = &Arc<Tool>>, CallError> {
        match &namespace.upstream {
            Upstream::Failed(error) => Err(error.clone()),
            // Its server knows them; it is asked, not we.
            Upstream::External(_) => Err(CallError::new(
                CallErrorCode::InternalError,
                "The tools of a server of others are not listed here",
            )),
            Upstream::Worker(_) | Upstream::Empty => Ok(namespace.allowed_tools()),
        }
    }

    /// One tool that may be listed and called.
    pub(crate) fn tool<'a>(
        namespace: &'a Namespace,
        name: &str,
    ) -> Result<&'a Arc<Tool>, CallError> {
        if let Upstream::Failed(error) = &namespace.upstream {
            return Err(error.clone());
        }
        // By name first: matching every tool against the policy's globs would cost by the number of tools.
        namespace
            .tools
            .iter()
            .find(|tool| *tool.name == *name)
            .filter(|tool| namespace.policy.allows_tool(&tool.name))
            .ok_or_else(|| {
                let name: String = name.chars().take(UNKNOWN_NAME_MAX).collect();
                CallError::new(CallErrorCode::ToolNotFound, format!("Unknown tool: {name}"))
            })
    }

    /// Whether the function that would run takes a context, and so may report, log and ask. Of a URI that no resource
    /// has, the worker finds the template; here it is enough that one of them might.
    pub(crate) fn talks(namespace: &Namespace, operation: &Operation) -> bool {
        match operation {
            Operation::CallTool { tool, .. } => {
                let mut tools = namespace.tools.iter();
                tools.any(|known| known.context && known.name == *tool)
            }
            Operation::ReadResource { uri } => match namespace.resource(uri) {
                Some(resource) => resource.context,
                None => namespace.resource_templates.iter().any(|it| it.context),
            },
            Operation::GetPrompt { prompt, .. } => {
                namespace.prompt(prompt).is_some_and(|it| it.context)
            }
            Operation::Complete { .. } => false,
        }
    }

    /// Runs one call to its end. Dropping the future cancels it. What it says before its answer goes to `events`;
    /// without them its progress and log messages are dropped and its questions fail. All events of the call are in the
    /// channel when this returns.
    pub(crate) async fn call(
        &self,
        caller: &Caller,
        request: &CallRequest,
        events: Option<EventSender>,
    ) -> Result<ToolReply, CallError> {
        let record = Record::begin(self, caller, Noted::of(request));
        let outcome = self.attempt(caller, request, events).await;
        let outcome = outcome.map_err(|error| {
            let subject = record.subject();
            fault::reported(error, caller, &request.namespace, subject)
        });
        record.finish(outcome.as_ref().map(|_| "ok").map_err(|error| error.code));
        outcome
    }

    async fn attempt(
        &self,
        caller: &Caller,
        request: &CallRequest,
        events: Option<EventSender>,
    ) -> Result<ToolReply, CallError> {
        let namespace = &*request.namespace;
        let limits = self.admit(caller, namespace, &request.operation)?;
        let call = WorkerCall {
            operation: request.operation.clone(),
            caller: request.caller_facts.clone(),
            request: Arc::clone(&caller.request_id),
            max_result: limits.max_result,
        };
        let reply = if limits.talks {
            let namespace = &request.namespace;
            let talk = InteractiveCall::new(self, namespace, caller, limits.timeout, events);
            // Boxed, so that the usual call does not carry the room for it.
            Box::pin(talk.run(|talk, sink| {
                // Asked again: the wait may have outlasted who was there before it.
                let backend = talk.backend()?;
                Ok(Box::pin(
                    async move { backend.call(call, Some(sink)).await },
                ))
            }))
            .await?
        } else {
            self.run(namespace, call, limits.timeout).await?
        };
        let size = reply.value.len() + reply.content.as_ref().map_or(0, Bytes::len);
        if size as u64 > limits.max_result {
            return Err(CallError::new(
                CallErrorCode::ResultTooLarge,
                format!(
                    "The result has {size} bytes; {} are allowed",
                    limits.max_result
                ),
            ));
        }
        Ok(reply)
    }

    /// Whether the call may be made, and within which limits. Policy and limits counted in calls are for tools alone.
    fn admit(
        &self,
        caller: &Caller,
        namespace: &Namespace,
        operation: &Operation,
    ) -> Result<CallLimits, CallError> {
        let Operation::CallTool { tool, .. } = operation else {
            self.backends.of(namespace)?;
            return Ok(CallLimits {
                timeout: namespace.limits.timeout,
                max_result: namespace.limits.max_result.as_u64(),
                talks: Self::talks(namespace, operation),
            });
        };
        let tool = Self::tool(namespace, tool)?;
        self.backends.of(namespace)?;
        self.limiter
            .check(
                caller.principal_name(),
                &namespace.name,
                &tool.name,
                caller.client,
            )
            .map_err(rate_limited)?;
        Ok(CallLimits {
            timeout: namespace.timeout_of(&tool.name),
            max_result: namespace.max_result_of(&tool.name),
            talks: tool.context,
        })
    }

    /// A call that cannot say anything before its answer: a place in the queue, the upstream, one clock over both.
    async fn run(
        &self,
        namespace: &Namespace,
        call: WorkerCall,
        limit: Duration,
    ) -> Result<ToolReply, CallError> {
        let entered = AtomicBool::new(false);
        let run = async {
            let _permit = namespace.gate.enter().await.map_err(|_| overloaded())?;
            entered.store(true, Ordering::Relaxed);
            // Asked again: the wait may have outlasted who was there before it.
            let backend = self.backends.of(namespace)?;
            backend.call(call, None).await
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

/// What bounds one call.
struct CallLimits {
    timeout: Duration,
    max_result: u64,
    /// The function takes a context.
    talks: bool,
}

/// The MCP method that runs an operation.
pub(crate) fn method_of(operation: &Operation) -> &'static str {
    match operation {
        Operation::CallTool { .. } => TOOLS_CALL,
        Operation::ReadResource { .. } => "resources/read",
        Operation::GetPrompt { .. } => "prompts/get",
        Operation::Complete { .. } => "completion/complete",
    }
}

fn rate_limited(wait: Duration) -> CallError {
    let seconds = crate::call_error::retry_seconds(wait);
    CallError::new(
        CallErrorCode::RateLimited,
        format!("Too many calls; try again in {seconds} s"),
    )
    .retry_after(wait)
}

fn overloaded() -> CallError {
    CallError::new(
        CallErrorCode::Overloaded,
        "The namespace's queue is full; try again shortly",
    )
    .retry_after(Duration::from_secs(1))
}

fn timed_out(limit: Duration) -> CallError {
    CallError::new(
        CallErrorCode::ExecutionTimeout,
        format!("The call took longer than {} s", limit.as_secs_f64()),
    )
}

#[cfg(test)]
mod tests;
