//! A request that goes up as it is, to an upstream that speaks MCP itself: the same policy, limits, queue, clock, audit
//! and metrics as for a worker's call.
//!
//! What runs it, and in which era, is not known here: a [`ForwardTask`] is started once the request has its turn and gives
//! the whole response.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use memchr::memmem::Finder;
use prometheus::IntCounter;
use tokio::time::timeout;
use tooldock_workers::error::{CallError, CallErrorCode};
use tooldock_workers::registry::{Namespace, Upstream};
use tooldock_workers::worker::LogLevel;

use super::record::{Noted, kept_short};
use super::{
    CallInbox, Engine, Event, EventSender, InteractiveCall, Record, TOOLS_CALL, UNKNOWN_NAME_MAX,
    overloaded, rate_limited, timed_out,
};
use crate::audit::Transport;
use crate::caller::Caller;
use crate::interaction::{Asked, Interaction, refuse};
use crate::jsonrpc::Response;
pub(crate) use crate::jsonrpc::ResponseOutcome;
use crate::session::CancelNotice;

/// One request on its way up.
#[derive(Clone)]
pub(crate) struct ForwardRequest {
    /// The namespace, out of the snapshot the request began with.
    pub(crate) namespace: Arc<Namespace>,
    /// The method, as the client spelled it.
    pub(crate) method: Arc<str>,
    /// The tool, prompt or URI; empty for what has none.
    pub(crate) subject: Arc<str>,
    /// What of the parameters the audit log may tell of.
    pub(crate) arguments: Bytes,
    /// How it came in.
    pub(crate) transport: Transport,
    /// The MCP version in force, as it is spelled on the wire.
    pub(crate) version: Option<&'static str>,
    /// The digest that stands for the session.
    pub(crate) session: Option<Arc<str>>,
    /// Its client may be asked something before the answer.
    pub(crate) asks: bool,
    /// What sends it up.
    pub(crate) run: Arc<dyn ForwardTask>,
}

impl fmt::Debug for ForwardRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ForwardRequest")
            .field("method", &self.method)
            .field("subject", &self.subject)
            .finish_non_exhaustive()
    }
}

/// Sends a request up and waits for its answer. Dropping the future cancels it, in the client's own words where they came
/// first.
#[async_trait]
pub(crate) trait ForwardTask: CancelNotice {
    /// Begins, and ends with the whole response. What the upstream says before it goes to `peer`.
    async fn run(self: Arc<Self>, peer: Peer) -> Result<Response, CallError>;
}

/// What a request that goes up can say to its client before the answer. Never waits. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Peer {
    events: Option<EventSender>,
    sink: Option<Arc<CallInbox>>,
    dropped: IntCounter,
}

impl Peer {
    /// Passes a whole notification on; a log message with a level only to a client that wants messages of it. What
    /// nobody reads in time is dropped and counted.
    pub(crate) fn say(&self, level: Option<LogLevel>, message: Bytes) {
        if let Some(events) = &self.events {
            events.tell(Event::Message { level, message }, &self.dropped);
        }
    }

    /// Asks the client; questions it cannot be asked fail at once.
    pub(crate) fn ask(&self, asked: Asked) -> Vec<Arc<Interaction>> {
        if let Some(sink) = &self.sink {
            return sink.ask(asked);
        }
        refuse(asked, "The caller cannot be asked anything");
        Vec::new()
    }

    /// Whether anybody hears what is said.
    pub(crate) fn is_heard(&self) -> bool {
        self.events.is_some()
    }

    /// Whether anybody can be asked.
    pub(crate) fn asks(&self) -> bool {
        self.sink.is_some() && self.events.is_some()
    }
}

impl Engine {
    /// Runs one request of an upstream that speaks MCP itself to its end. Dropping the future cancels it.
    pub(crate) async fn forward(
        &self,
        caller: &Caller,
        request: &ForwardRequest,
        events: Option<EventSender>,
    ) -> Result<Response, CallError> {
        let method = known_method(&request.method);
        let noted = Noted {
            namespace: &request.namespace.name,
            method,
            subject: kept_short(&request.subject),
            arguments: request.arguments.clone(),
            transport: request.transport,
            version: request.version,
            session: request.session.clone(),
        };
        let record = Record::begin(self, caller, noted);
        let outcome = self.forwarded(caller, request, events).await;
        record.finish(outcome.as_ref().map(status).map_err(|error| error.code));
        outcome
    }

    async fn forwarded(
        &self,
        caller: &Caller,
        request: &ForwardRequest,
        events: Option<EventSender>,
    ) -> Result<Response, CallError> {
        let namespace = &*request.namespace;
        let (limit, max_result) = self.admit_forwarded(caller, request)?;
        let run = Arc::clone(&request.run);
        let peer = |events, sink| Peer {
            events,
            sink,
            dropped: self.metrics.events_dropped.clone(),
        };
        let answer = if request.asks {
            let heard = events.clone();
            let talk = InteractiveCall::new(self, &request.namespace, caller, limit, events);
            // Boxed, so that the usual call does not carry the room for it.
            Box::pin(talk.run(|_, sink| Ok(run.run(peer(heard, Some(sink)))))).await?
        } else {
            let entered = AtomicBool::new(false);
            let work = async {
                let _permit = namespace.gate.enter().await.map_err(|_| overloaded())?;
                entered.store(true, Ordering::Relaxed);
                run.run(peer(events, None)).await
            };
            let outcome = timeout(limit, work).await;
            outcome.map_err(|_| match entered.load(Ordering::Relaxed) {
                true => timed_out(limit),
                false => overloaded(),
            })??
        };
        let size = answer.payload().len();
        if size as u64 > max_result {
            return Err(CallError::new(
                CallErrorCode::ResultTooLarge,
                format!("The result has {size} bytes; {max_result} are allowed"),
            ));
        }
        Ok(answer)
    }

    /// Whether the request may go up, and within which limits. Which tools there are the upstream knows; which may be
    /// called, the policy does.
    fn admit_forwarded(
        &self,
        caller: &Caller,
        request: &ForwardRequest,
    ) -> Result<(Duration, u64), CallError> {
        let namespace = &*request.namespace;
        if let Upstream::Failed(error) = &namespace.upstream {
            return Err(error.clone());
        }
        if &*request.method != TOOLS_CALL {
            return Ok((
                namespace.limits.timeout,
                namespace.limits.max_result.as_u64(),
            ));
        }
        let tool = &*request.subject;
        if !namespace.policy.allows_tool(tool) {
            let name: String = tool.chars().take(UNKNOWN_NAME_MAX).collect();
            return Err(CallError::new(
                CallErrorCode::ToolNotFound,
                format!("Unknown tool: {name}"),
            ));
        }
        self.limiter
            .check(
                caller.principal_name(),
                &namespace.name,
                tool,
                caller.client,
            )
            .map_err(rate_limited)?;
        Ok((namespace.timeout_of(tool), namespace.max_result_of(tool)))
    }
}

/// How a request that was answered is counted.
fn status(answer: &Response) -> &'static str {
    if answer.is_error() {
        "upstream_error"
    } else if is_error(answer.payload()) {
        "tool_error"
    } else {
        "ok"
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

/// The method as a label: what a client can spell must not make metrics.
fn known_method(method: &str) -> &'static str {
    const KNOWN: [&str; 16] = [
        TOOLS_CALL,
        "tools/list",
        "resources/list",
        "resources/templates/list",
        "resources/read",
        "resources/subscribe",
        "resources/unsubscribe",
        "prompts/list",
        "prompts/get",
        "completion/complete",
        "logging/setLevel",
        "tasks/get",
        "tasks/list",
        "tasks/result",
        "tasks/cancel",
        "tasks/update",
    ];
    let known = KNOWN.into_iter().find(|known| *known == method);
    known.unwrap_or("other")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_counted_by_what_it_says() {
        let result = |text: &'static str| {
            Response::from_outcome(ResponseOutcome::Result(Bytes::from_static(text.as_bytes())))
        };
        assert_eq!(
            status(&Response::from_outcome(ResponseOutcome::Error(
                Bytes::from_static(b"{}")
            ))),
            "upstream_error"
        );
        assert_eq!(
            status(&result(r#"{"content":[],"isError":true}"#)),
            "tool_error"
        );
        for text in [
            r#"{"content":[{"isError":true}]}"#,
            r#"{"isError":false}"#,
            "{}",
        ] {
            assert_eq!(status(&result(text)), "ok", "{text}");
        }
    }

    #[test]
    fn only_known_methods_become_labels() {
        assert_eq!(known_method("tasks/get"), "tasks/get");
        assert_eq!(known_method("x/anything"), "other");
    }
}
