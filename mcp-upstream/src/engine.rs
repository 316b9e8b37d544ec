//! The one path of every call, whatever its transport and whatever runs it (FRM-08, FRM-12).
//!
//! A call goes through, in this order: its namespace is up → the policy allows the tool → its upstream has it → limits
//! counted in tool calls → a place in the namespace's queue → the upstream → the bound on results. The time limit covers
//! the wait in the queue too. Whatever the end, the dropped future of a client that left included, the call is counted
//! and audited once.
//!
//! What runs a call is its `UpstreamCall`'s. A call that may ask its client (`Talks::Asks`) has a loop around it
//! (`interactive`); all others have none.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::timeout;
use tooldock_workers::error::{CallError, CallErrorCode};
use tooldock_workers::names::NamespaceName;
use tooldock_workers::registry::UpstreamKind;

use crate::audit::AuditSender;
use crate::caller::Caller;
pub(crate) use crate::interaction::{EventSender, PeerEvent, ask_failed};
use crate::metrics::UpstreamMetrics;

mod call;
mod detached;
mod interactive;
mod notices;
mod peer;
mod record;

pub(crate) use call::{
    CallFacts, CallOutcome, NO_ARGUMENTS, Talks, UpstreamCall, UpstreamReply, Work,
};
pub(crate) use detached::{Detached, go_on};
use interactive::InteractiveCall;
pub(crate) use notices::Announce;
pub(crate) use peer::Peer;
use record::CallRecord;

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
    pub(crate) limiter: Arc<dyn ToolCallLimiter>,
    pub(crate) audit: AuditSender,
    pub(crate) metrics: Arc<UpstreamMetrics>,
    /// Where the news of workers go that concern more than one call.
    pub(crate) notices: Arc<dyn Announce>,
}

impl Engine {
    /// Runs one call to its end. Dropping the future cancels it. What the call says before its answer goes to `events`;
    /// without them its progress and log messages are dropped and its questions fail. All events of the call are in the
    /// channel when this returns.
    pub(crate) async fn run(
        &self,
        caller: &Caller,
        call: &Arc<dyn UpstreamCall>,
        events: Option<EventSender>,
    ) -> CallOutcome {
        let record = CallRecord::begin(self, caller, call.facts());
        let outcome = self.attempt(caller, call, events).await;
        let outcome = outcome.map_err(|error| call.shown(caller, error));
        let status = outcome.as_ref().map(UpstreamReply::status);
        record.finish(status.map_err(|error| error.code));
        outcome
    }

    async fn attempt(
        &self,
        caller: &Caller,
        call: &Arc<dyn UpstreamCall>,
        events: Option<EventSender>,
    ) -> CallOutcome {
        let facts = call.facts();
        self.admit(caller, &**call)?;
        let limit = facts.timeout();
        let reply = match facts.talks {
            Talks::Asks => {
                let asking = InteractiveCall::new(self, &facts.namespace, caller, limit, events);
                // Boxed, so that the usual call does not carry the room for it.
                Box::pin(asking.run(|peer| Arc::clone(call).start(peer))).await?
            }
            Talks::Tells | Talks::No => self.in_turn(call, limit, events).await?,
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
    fn admit(&self, caller: &Caller, call: &dyn UpstreamCall) -> Result<(), CallError> {
        let facts = call.facts();
        let namespace = &*facts.namespace;
        if let UpstreamKind::Failed(error) = &namespace.upstream {
            return Err(error.clone());
        }
        if !facts.method.is_tool_call() {
            return call.admit();
        }
        let tool = &*facts.subject;
        if !namespace.policy.allows_tool(tool) {
            return Err(unknown_tool(tool));
        }
        call.admit()?;
        let principal = caller.principal_name();
        self.limiter
            .check(principal, &namespace.name, tool, caller.client)
            .map_err(rate_limited)
    }

    /// A call that cannot ask anything before its answer: a place in the queue, the upstream, one clock over both.
    async fn in_turn(
        &self,
        call: &Arc<dyn UpstreamCall>,
        limit: Duration,
        events: Option<EventSender>,
    ) -> CallOutcome {
        let entered = AtomicBool::new(false);
        let run = async {
            let gate = &call.facts().namespace.gate;
            let _permit = gate.enter().await.map_err(|_| overloaded())?;
            entered.store(true, Ordering::Relaxed);
            let peer = Peer::new(events, None, &self.metrics.events_dropped);
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

/// A tool that is not there, or not for this namespace's callers.
pub(crate) fn unknown_tool(name: &str) -> CallError {
    let name = shortened(name);
    CallError::new(CallErrorCode::ToolNotFound, format!("Unknown tool: {name}"))
}

/// A client's own spelling of a name, short enough for messages and logs.
pub(crate) fn shortened(name: &str) -> &str {
    let end = name.char_indices().nth(UNKNOWN_NAME_MAX);
    &name[..end.map_or(name.len(), |(at, _)| at)]
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
