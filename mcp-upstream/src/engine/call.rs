//! What the engine runs: a request that its upstream has understood.
//!
//! The engine sees only what policy, limits, clock, audit and metrics go by. How a call becomes a frame to a worker or a
//! message to a server is its upstream's.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use bytes::Bytes;
use memchr::memmem::Finder;
use tooldock_workers::error::CallError;
use tooldock_workers::registry::Namespace;
use tooldock_workers::worker::ToolReply;

use super::Peer;
use crate::audit::Transport;
use crate::caller::Caller;
use crate::jsonrpc::Response;
use crate::protocol::Method;
use crate::session::CancelNotice;

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

    /// A failure of this call as its caller may see it; what only the operator may see goes to the log.
    fn shown(&self, _caller: &Caller, error: CallError) -> CallError {
        error
    }
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
    pub(super) fn size(&self) -> usize {
        match self {
            Self::Value(reply) => reply.size(),
            Self::Result(result) => result.len(),
            Self::Response(response) => response.payload().len(),
        }
    }

    /// How the call is counted.
    pub(super) fn status(&self) -> &'static str {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jsonrpc::ResponseOutcome;

    #[test]
    fn an_answer_is_counted_by_what_it_says() {
        let said = |outcome| UpstreamReply::Response(Response::from_outcome(outcome));
        let result =
            |text: &'static str| said(ResponseOutcome::Result(Bytes::from_static(text.as_bytes())));
        assert_eq!(
            said(ResponseOutcome::Error(Bytes::from_static(b"{}"))).status(),
            "upstream_error"
        );
        assert_eq!(
            result(r#"{"content":[],"isError":true}"#).status(),
            "tool_error"
        );
        for text in [
            r#"{"content":[{"isError":true}]}"#,
            r#"{"isError":false}"#,
            "{}",
        ] {
            assert_eq!(result(text).status(), "ok", "{text}");
        }
    }
}
