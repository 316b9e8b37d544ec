//! The one path every transport's list and call take (FRM-08, FRM-12).
//!
//! A call goes through, in this order: the namespace's upstream is there → the tool exists and the policy allows it →
//! limits counted in calls → a place in the namespace's queue → the upstream. The tool's time limit covers the wait in
//! the queue too. Whatever the end, the dropped future of a client that left included, it is counted and audited once.

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
use tooldock_workers::worker::{ToolCall, ToolReply};

use crate::audit::{AuditSender, Transport};
use crate::backend::Backends;
use crate::caller::Caller;
use crate::metrics::UpstreamMetrics;
use crate::protocol::ProtocolVersion;

mod detached;
mod record;

pub(crate) use detached::Detached;
use record::Record;

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
}

/// One call, whoever asked for it.
#[derive(Debug)]
pub(crate) struct CallRequest {
    /// The namespace, out of the snapshot the request began with.
    pub(crate) namespace: Arc<Namespace>,
    /// The tool's name.
    pub(crate) tool: Arc<str>,
    /// A JSON object, verbatim.
    pub(crate) arguments: Bytes,
    /// How the call came in.
    pub(crate) transport: Transport,
    /// The MCP version in force.
    pub(crate) version: Option<ProtocolVersion>,
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

    /// Runs one call to its end. Dropping the future cancels it.
    pub(crate) async fn call(
        &self,
        caller: &Caller,
        request: CallRequest,
    ) -> Result<ToolReply, CallError> {
        let record = Record::begin(self, caller, &request);
        let name = request.namespace.name.clone();
        let outcome = self.attempt(caller, request).await;
        record.finish(outcome.as_ref().map(|_| ()).map_err(|error| error.code));
        if let Err(error) = &outcome {
            // What the tool itself said may hold what only its caller should see: it is not for the log.
            tracing::debug!(
                request_id = &*caller.request_id,
                namespace = %name,
                code = error.code.as_str(),
                "tool call failed"
            );
        }
        outcome
    }

    async fn attempt(&self, caller: &Caller, request: CallRequest) -> Result<ToolReply, CallError> {
        let namespace = &*request.namespace;
        let tool = Self::tool(namespace, &request.tool)?;
        self.backends.of(namespace)?;
        self.limiter
            .check(
                caller.principal_name(),
                &namespace.name,
                &tool.name,
                caller.client,
            )
            .map_err(rate_limited)?;
        let max_result = namespace.max_result_of(&tool.name);
        let call = ToolCall {
            tool: Arc::clone(&tool.name),
            arguments: request.arguments,
            max_result,
        };
        let entered = AtomicBool::new(false);
        let run = async {
            let _permit = namespace.gate.enter().await.map_err(|_| overloaded())?;
            entered.store(true, Ordering::Relaxed);
            // Asked again: the wait may have outlasted who was there before it.
            let backend = self.backends.of(namespace)?;
            backend.call(call, None).await
        };
        let limit = namespace.timeout_of(&tool.name);
        let reply =
            timeout(limit, run)
                .await
                .map_err(|_| match entered.load(Ordering::Relaxed) {
                    true => timed_out(limit),
                    // It never ran: another try is safe, and the tool is not what is slow.
                    false => overloaded(),
                })??;
        let size = reply.value.len() + reply.content.as_ref().map_or(0, Bytes::len);
        if size as u64 > max_result {
            return Err(CallError::new(
                CallErrorCode::ResultTooLarge,
                format!("The result has {size} bytes; {max_result} are allowed"),
            ));
        }
        Ok(reply)
    }
}

fn rate_limited(wait: Duration) -> CallError {
    let seconds = crate::error::retry_seconds(wait);
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
