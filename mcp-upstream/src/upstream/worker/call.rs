//! One function that a worker is to run.

use std::sync::Arc;

use bytes::Bytes;
use tooldock_workers::error::CallError;
use tooldock_workers::worker::{Operation, WorkerCall};

use super::{WorkerPorts, fault};
use crate::caller::Caller;
use crate::engine::{CallFacts, Peer, Talks, UpstreamCall, Work};
use crate::protocol::Method;
use crate::session::CancelNotice;
use crate::upstream::CallContext;

/// A call of a function. Its subject and arguments stand in its facts.
pub(crate) struct FunctionCall {
    facts: CallFacts,
    kind: Kind,
    /// Who asks and what can be asked back, as the worker's `caller` object; only for functions that take a context.
    caller_facts: Option<Bytes>,
    request_id: Arc<str>,
    ports: Arc<dyn WorkerPorts>,
}

/// What of an [`Operation`] is not a subject and arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Tool,
    Resource,
    Prompt,
    Completion,
}

impl FunctionCall {
    /// A function with `caller_facts` takes a context, and so may report, log and ask.
    pub(crate) fn new(
        ports: &Arc<dyn WorkerPorts>,
        cx: &CallContext<'_>,
        operation: Operation,
        caller_facts: Option<Bytes>,
    ) -> Self {
        let (kind, subject, arguments) = match operation {
            Operation::CallTool { tool, arguments } => (Kind::Tool, tool, arguments),
            Operation::ReadResource { uri } => (Kind::Resource, uri, Bytes::new()),
            Operation::GetPrompt { prompt, arguments } => (Kind::Prompt, prompt, arguments),
            Operation::Complete { params } => (Kind::Completion, Arc::default(), params),
        };
        let talks = match caller_facts {
            Some(_) => Talks::Asks,
            None => Talks::No,
        };
        Self {
            facts: CallFacts {
                namespace: Arc::clone(&cx.namespace),
                method: Method::Known(kind.method()),
                subject,
                arguments,
                transport: cx.transport(),
                version: cx.wire_version(),
                session: cx.session().map(|session| Arc::clone(session.tag())),
                talks,
                progress_token: None,
                asks_singly: false,
            },
            kind,
            caller_facts,
            request_id: Arc::clone(&cx.caller.request_id),
            ports: Arc::clone(ports),
        }
    }

    /// The same, with what the client's progress notifications are to carry.
    pub(super) fn with_progress(mut self, token: Option<String>) -> Self {
        self.facts.progress_token = token;
        self
    }

    fn operation(&self) -> Operation {
        let subject = Arc::clone(&self.facts.subject);
        let arguments = self.facts.arguments.clone();
        match self.kind {
            Kind::Tool => Operation::CallTool {
                tool: subject,
                arguments,
            },
            Kind::Resource => Operation::ReadResource { uri: subject },
            Kind::Prompt => Operation::GetPrompt {
                prompt: subject,
                arguments,
            },
            Kind::Completion => Operation::Complete { params: arguments },
        }
    }
}

impl Kind {
    /// The MCP method that runs the function.
    fn method(self) -> &'static str {
        match self {
            Self::Tool => "tools/call",
            Self::Resource => "resources/read",
            Self::Prompt => "prompts/get",
            Self::Completion => "completion/complete",
        }
    }
}

/// A worker hears of a cancelled call by the end of its future.
impl CancelNotice for FunctionCall {}

impl UpstreamCall for FunctionCall {
    fn facts(&self) -> &CallFacts {
        &self.facts
    }

    fn admit(&self) -> Result<(), CallError> {
        let namespace = &self.facts.namespace;
        if self.kind == Kind::Tool {
            let mut tools = namespace.tools.iter();
            let there = tools.any(|tool| tool.name == self.facts.subject);
            if !there {
                return Err(crate::engine::unknown_tool(&self.facts.subject));
            }
        }
        self.ports.of(namespace).map(|_| ())
    }

    fn start(self: Arc<Self>, peer: Peer) -> Work {
        // Asked again: the wait may have outlasted the worker that was there before.
        let port = match self.ports.of(&self.facts.namespace) {
            Ok(port) => port,
            Err(error) => return Box::pin(std::future::ready(Err(error))),
        };
        let call = WorkerCall {
            operation: self.operation(),
            caller: self.caller_facts.clone(),
            request: Arc::clone(&self.request_id),
            max_result: self.facts.max_result(),
        };
        port.call(call, peer.into_sink())
    }

    fn shown(&self, caller: &Caller, error: CallError) -> CallError {
        fault::shown(error, caller, &self.facts.namespace, &self.facts.subject)
    }
}
