//! The call of a function: the request's parameters, and the worker that runs it.
//!
//! ```text
//!   tools/call, prompts/get, resources/read, completion/complete, skills/… ──▶ FunctionCall ── queue ──▶ WorkerPort::call
//! ```

use std::borrow::Cow;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::{self, BoxFuture};
use serde::Deserialize;
use serde_json::value::RawValue;
use tooldock_base::error::{CallError, CallErrorCode};
use tooldock_base::gate::Principal;
use tooldock_base::key_maker::KeyMaker;
use tooldock_process::worker::{CallSink, Operation, ToolReply, Worker, WorkerCall};
use tooldock_protocol::jsonrpc::{self, Key, Members, RequestError};
use tooldock_protocol::version::Method;
use tooldock_protocol::version::method::{SKILLS_GET, SKILLS_LIST};
use tooldock_sessions::caller::Caller;
use tooldock_sessions::catalogue::coerce::coerced;
use tooldock_sessions::session::CancelNotice;
use tooldock_workers::registry::{Namespace, Registry, UpstreamKind};

use super::{WorkerUpstream, facts, fault, lists, skills, string_member, task};
use crate::engine::{
    CallFacts, CallMessages, CallTask, Peer, UpstreamCall, UpstreamReply, Work, explained,
};
use crate::upstream::{CallContext, PreparedRequest};

/// Maximum number of characters of an unknown prompt's name in messages.
const UNKNOWN_NAME_MAX: usize = 128;

impl WorkerUpstream {
    /// Prepares `tools/call`. Wrong parameters are answered with a JSON-RPC error. Any later failure of the call, even an unknown
    /// tool, is returned as the result of the call.
    pub(super) fn tool_call(
        &self,
        cx: &CallContext<'_>,
        members: &Members<'_>,
    ) -> Result<PreparedRequest, RequestError> {
        let FunctionParams { name, arguments } = FunctionParams::read(members)?;
        let mut tools = cx.namespace.tools.iter();
        let declared = tools.find(|tool| *tool.name == *name);
        let operation = Operation::CallTool {
            // If the tool is declared, its name is shared instead of copied.
            tool: declared.map_or_else(|| name.into(), |tool| Arc::clone(&tool.name)),
            arguments: cx.own_object(arguments),
        };
        let talks = declared.is_some_and(|tool| tool.context);
        let task = match declared {
            Some(tool) => task::of_call(cx, tool, members)?,
            None => CallTask::No,
        };
        self.function_call(cx, operation, members, (talks, task))
    }

    /// Prepares `prompts/get`. Prompts that the snapshot does not contain are refused before anything runs; the worker checks the
    /// arguments.
    pub(super) fn prompt_get(
        &self,
        cx: &CallContext<'_>,
        members: &Members<'_>,
    ) -> Result<PreparedRequest, RequestError> {
        let FunctionParams { name, arguments } = FunctionParams::read(members)?;
        let Some(prompt) = cx.namespace.prompt(&name) else {
            let name: String = name.chars().take(UNKNOWN_NAME_MAX).collect();
            return Err(RequestError::InvalidParams(
                format!("Unknown prompt: {name}").into(),
            ));
        };
        let operation = Operation::GetPrompt {
            prompt: Arc::clone(&prompt.name),
            arguments: cx.own_object(arguments),
        };
        self.function_call(cx, operation, members, (prompt.context, CallTask::No))
    }

    /// Prepares `resources/read`. Any URI is passed to the worker, which finds the matching template. So a call for an unlisted
    /// URI counts as one with a context if any of the templates takes a context.
    pub(super) fn resource_read(
        &self,
        cx: &CallContext<'_>,
        members: &Members<'_>,
    ) -> Result<PreparedRequest, RequestError> {
        let uri = string_member(members.get(Key::Uri), "params.uri")?;
        let namespace = &cx.namespace;
        let (uri, talks) = match namespace.resource(&uri) {
            Some(resource) => (Arc::clone(&resource.uri), resource.context),
            None => {
                let mut templates = namespace.resource_templates.iter();
                (Arc::from(uri), templates.any(|it| it.context))
            }
        };
        let operation = Operation::ReadResource { uri };
        self.function_call(cx, operation, members, (talks, CallTask::No))
    }

    /// Prepares `completion/complete`. Only the shape of the parameters is checked here; the worker computes the completions.
    pub(super) fn complete(
        &self,
        cx: &CallContext<'_>,
        members: &Members<'_>,
    ) -> Result<PreparedRequest, RequestError> {
        let fields: CompletionParams<'_> = jsonrpc::fields(members.params(), "params")?;
        if fields.reference.is_none() {
            return Err(RequestError::InvalidParams("params.ref is missing".into()));
        }
        jsonrpc::object(fields.reference, "params.ref")?;
        jsonrpc::object(fields.context, "params.context")?;
        let argument: CompletionArgument<'_> = jsonrpc::fields(fields.argument, "params.argument")?;
        string_member(argument.name, "params.argument.name")?;
        string_member(argument.value, "params.argument.value")?;
        let operation = Operation::Complete {
            params: cx.own_object(members.params()),
        };
        self.function_call(cx, operation, members, (false, CallTask::No))
    }

    /// Prepares `skills/list`. All skills are on one page.
    pub(super) fn skills_list(
        &self,
        cx: &CallContext<'_>,
        members: &Members<'_>,
    ) -> Result<PreparedRequest, RequestError> {
        lists::one_page(members)?;
        let operation = Operation::ListSkills { uri: None };
        self.function_call(cx, operation, members, (false, CallTask::No))
    }

    /// Prepares `skills/get`. The worker refuses a URI of no skill.
    pub(super) fn skill_get(
        &self,
        cx: &CallContext<'_>,
        members: &Members<'_>,
    ) -> Result<PreparedRequest, RequestError> {
        let uri = string_member(members.get(Key::Uri), "params.uri")?;
        let uri = Some(uri.into());
        let operation = Operation::ListSkills { uri };
        self.function_call(cx, operation, members, (false, CallTask::No))
    }

    /// Builds the call of an operation of MCP. `members`: the request's members. `talks`: true if the function takes a context,
    /// and so may report progress, log, and ask the client. `task`: the call's relation to a task.
    fn function_call(
        &self,
        cx: &CallContext<'_>,
        operation: Operation,
        members: &Members<'_>,
        (talks, task): (bool, CallTask),
    ) -> Result<PreparedRequest, RequestError> {
        jsonrpc::object(members.get(Key::Meta), "params._meta")?;
        // Only functions with a context report progress.
        let progress_token = match talks {
            true => members.progress_token()?.map(str::to_owned),
            false => None,
        };
        let caller_facts = talks.then(|| match task {
            CallTask::No => facts::of(cx, progress_token.is_some()),
            CallTask::Begins | CallTask::AsksFirst => facts::of_task(cx),
        });
        let call = FunctionCall::new(&self.ports, cx, operation, caller_facts);
        let mut call = call.with_progress(progress_token);
        call.facts.task = task;
        Ok(PreparedRequest::Call(Arc::new(call)))
    }
}

/// The `params` of `tools/call` or `prompts/get`.
struct FunctionParams<'a> {
    name: Cow<'a, str>,
    /// The arguments: a JSON object if present.
    arguments: Option<&'a RawValue>,
}

impl<'a> FunctionParams<'a> {
    fn read(members: &Members<'a>) -> Result<Self, RequestError> {
        let name = string_member(members.get(Key::Name), "params.name")?;
        let arguments = members.get(Key::Arguments);
        jsonrpc::object(arguments, "params.arguments")?;
        Ok(Self { name, arguments })
    }
}

/// The `params` of `completion/complete`.
#[derive(Deserialize)]
struct CompletionParams<'a> {
    #[serde(borrow, default, deserialize_with = "jsonrpc::present", rename = "ref")]
    reference: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "jsonrpc::present")]
    argument: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "jsonrpc::present")]
    context: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct CompletionArgument<'a> {
    #[serde(borrow, default, deserialize_with = "jsonrpc::present")]
    name: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "jsonrpc::present")]
    value: Option<&'a RawValue>,
}

/// A call of a function in a worker. Its facts contain its subject and arguments.
pub(crate) struct FunctionCall {
    facts: CallFacts,
    kind: OperationKind,
    /// Description of the client and its capabilities, as the `caller` object of the worker protocol. Present only for functions
    /// that take a context.
    caller_facts: Option<Bytes>,
    /// The credential that counts as the maker of API keys that the call creates.
    maker: KeyMaker,
    /// The arguments converted to the types of the tool's schema, if any arguments were sent as JSON in strings.
    coerced: Option<Bytes>,
    /// The arguments as a hook has changed them, if it has.
    replaced: OnceLock<Bytes>,
    request_id: Arc<str>,
    principal: Principal,
    ports: Arc<dyn WorkerPorts>,
}

/// Kind of an [`Operation`], without its subject and arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OperationKind {
    Tool,
    Resource,
    Prompt,
    Completion,
    Skills,
    Skill,
}

impl FunctionCall {
    /// Creates a call. If `caller_facts` is present, the function takes a context, and so may report progress, log, and ask the
    /// client.
    pub(crate) fn new(
        ports: &Arc<dyn WorkerPorts>,
        cx: &CallContext<'_>,
        operation: Operation,
        caller_facts: Option<Bytes>,
    ) -> Self {
        let (kind, subject, arguments) = match operation {
            Operation::CallTool { tool, arguments } => (OperationKind::Tool, tool, arguments),
            Operation::ReadResource { uri } => (OperationKind::Resource, uri, Bytes::new()),
            Operation::GetPrompt { prompt, arguments } => {
                (OperationKind::Prompt, prompt, arguments)
            }
            Operation::Complete { params } => (OperationKind::Completion, Arc::default(), params),
            Operation::ListSkills { uri: None } => {
                (OperationKind::Skills, Arc::default(), Bytes::new())
            }
            Operation::ListSkills { uri: Some(uri) } => (OperationKind::Skill, uri, Bytes::new()),
        };
        let coerced = match kind {
            OperationKind::Tool => coerced_arguments(&cx.namespace, &subject, &arguments),
            _ => None,
        };
        let talks = match caller_facts {
            Some(_) => CallMessages::Asks,
            None => CallMessages::No,
        };
        Self {
            facts: CallFacts {
                talks,
                ..cx.facts(Method::Known(kind.method()), subject, arguments)
            },
            kind,
            caller_facts,
            maker: cx.caller.maker.clone(),
            coerced,
            replaced: OnceLock::new(),
            request_id: Arc::clone(&cx.caller.request_id),
            principal: cx.caller.principal.clone(),
            ports: Arc::clone(ports),
        }
    }

    /// Sets the token for the client's progress notifications.
    pub(super) fn with_progress(mut self, token: Option<String>) -> Self {
        self.facts.progress_token = token;
        self
    }

    fn operation(&self) -> Operation {
        let subject = Arc::clone(&self.facts.subject);
        let replaced = self.replaced.get().or(self.coerced.as_ref());
        let arguments = replaced.unwrap_or(&self.facts.arguments).clone();
        match self.kind {
            OperationKind::Tool => Operation::CallTool {
                tool: subject,
                arguments,
            },
            OperationKind::Resource => Operation::ReadResource { uri: subject },
            OperationKind::Prompt => Operation::GetPrompt {
                prompt: subject,
                arguments,
            },
            OperationKind::Completion => Operation::Complete { params: arguments },
            OperationKind::Skills => Operation::ListSkills { uri: None },
            OperationKind::Skill => Operation::ListSkills { uri: Some(subject) },
        }
    }
}

/// Converts arguments that were sent as JSON in strings to the types of the tool's schema, if the namespace says so. Returns
/// `None` if they stay unchanged.
fn coerced_arguments(namespace: &Namespace, tool: &str, arguments: &Bytes) -> Option<Bytes> {
    if !namespace.limits.coerce_arguments {
        return None;
    }
    let tool = namespace.tools.iter().find(|it| *it.name == *tool)?;
    coerced(&tool.input_schema, arguments)
}

impl OperationKind {
    /// The MCP method of this kind of operation.
    fn method(self) -> &'static str {
        match self {
            Self::Tool => "tools/call",
            Self::Resource => "resources/read",
            Self::Prompt => "prompts/get",
            Self::Completion => "completion/complete",
            Self::Skills => SKILLS_LIST,
            Self::Skill => SKILLS_GET,
        }
    }
}

/// Cancels without a message: the worker is informed when the call's future is dropped.
impl CancelNotice for FunctionCall {}

impl UpstreamCall for FunctionCall {
    fn facts(&self) -> &CallFacts {
        &self.facts
    }

    fn admit(&self) -> Result<(), CallError> {
        let namespace = &self.facts.namespace;
        if self.kind == OperationKind::Tool {
            let mut tools = namespace.tools.iter();
            let there = tools.any(|tool| tool.name == self.facts.subject);
            if !there {
                return Err(crate::engine::unknown_tool(&self.facts.subject));
            }
        }
        self.ports.of(namespace).map(|_| ())
    }

    fn has_coerced_arguments(&self) -> bool {
        self.coerced.is_some()
    }

    fn is_seen_by_hooks(&self) -> bool {
        self.kind == OperationKind::Tool
    }

    fn coerced_arguments(&self) -> Option<BoxFuture<'_, Option<Bytes>>> {
        let coerces = self.facts.namespace.limits.coerce_arguments;
        coerces.then(|| future::ready(self.coerced.clone()).boxed())
    }

    fn replace_arguments(&self, arguments: Bytes) -> Result<(), CallError> {
        let _ = self.replaced.set(arguments);
        Ok(())
    }

    fn start(self: Arc<Self>, peer: Peer) -> Work {
        // The worker is looked up again, since it may have been replaced while the call waited in the queue.
        let port = match self.ports.of(&self.facts.namespace) {
            Ok(port) => port,
            Err(error) => return Box::pin(std::future::ready(Err(error))),
        };
        let call = WorkerCall {
            operation: self.operation(),
            caller: self.caller_facts.clone(),
            maker: self.maker.clone(),
            request: Arc::clone(&self.request_id),
            max_result: self.facts.max_result(),
            time_limit: Some(self.facts.timeout()),
            answers: peer.answers().cloned(),
            trace: peer.trace().map(Arc::clone),
        };
        let work = port.call(call, peer.into_sink());
        match self.kind {
            OperationKind::Skills | OperationKind::Skill => Box::pin(async move {
                let reply = work.await?;
                let is_single = self.kind == OperationKind::Skill;
                skills::result_of(&self.principal, is_single, reply).await
            }),
            OperationKind::Tool
            | OperationKind::Resource
            | OperationKind::Prompt
            | OperationKind::Completion => work,
        }
    }

    fn error_for_caller(&self, caller: &Caller, error: CallError) -> CallError {
        let (namespace, subject) = (&self.facts.namespace, &self.facts.subject);
        let error = match self.kind {
            OperationKind::Tool => explained(error, caller, namespace, subject),
            _ => error,
        };
        fault::error_for_caller(error, caller, namespace, subject)
    }
}

/// The port to a worker, for calls.
pub trait WorkerPort: Send + Sync {
    /// Runs a call. Messages of the function before its result go to the sink. Dropping the future cancels the call.
    fn call(self: Arc<Self>, call: WorkerCall, sink: Option<Arc<dyn CallSink>>) -> Work;
}

/// Finds the worker of a namespace.
pub trait WorkerPorts: Send + Sync {
    /// The worker that runs this namespace's functions.
    ///
    /// # Errors
    ///
    /// The reason why the namespace has no worker.
    fn of(&self, namespace: &Namespace) -> Result<Arc<dyn WorkerPort>, CallError>;
}

impl WorkerPort for Worker {
    fn call(self: Arc<Self>, call: WorkerCall, sink: Option<Arc<dyn CallSink>>) -> Work {
        let is_tool = matches!(call.operation, Operation::CallTool { .. });
        Box::pin(async move {
            let reply = Worker::call(&self, call, sink).await;
            reply.map(|reply| reply_of(is_tool, reply))
        })
    }
}

/// Converts a function's reply to the reply of an upstream: a tool's value, or the result object of another method.
pub fn reply_of(is_tool: bool, reply: ToolReply) -> UpstreamReply {
    match is_tool {
        true => UpstreamReply::Value(reply),
        false => UpstreamReply::Result(reply.value),
    }
}

/// The workers of the registry, and the port of the management tools.
pub struct Workers {
    /// The registry, whose namespaces have the workers.
    pub registry: Arc<Registry>,
    /// The port of the management tools, if this process has them.
    pub system: Option<Arc<dyn WorkerPort>>,
}

impl WorkerPorts for Workers {
    /// If a call waited in the queue during two reloads, the worker of its snapshot has ended. Since nothing was sent to that
    /// worker, the current worker runs the call.
    fn of(&self, namespace: &Namespace) -> Result<Arc<dyn WorkerPort>, CallError> {
        if let UpstreamKind::Worker(worker) = &namespace.upstream
            && worker.is_retired()
            && let Some(current) = self.registry.namespace(namespace.name.as_str())
        {
            return self.serving(&current.upstream);
        }
        self.serving(&namespace.upstream)
    }
}

impl Workers {
    fn serving(&self, upstream: &UpstreamKind) -> Result<Arc<dyn WorkerPort>, CallError> {
        let none = |code, reason| Err(CallError::new(code, reason));
        match upstream {
            UpstreamKind::Worker(worker) => Ok(Arc::clone(worker) as Arc<dyn WorkerPort>),
            UpstreamKind::Failed(error) => Err(error.clone()),
            UpstreamKind::Empty => none(CallErrorCode::ToolNotFound, "The namespace has no tools"),
            UpstreamKind::System => self.system.clone().ok_or_else(|| {
                CallError::new(
                    CallErrorCode::WorkerUnavailable,
                    "This process has no management tools",
                )
            }),
            // The namespace contained functions when the call was queued; a reload has replaced them by a server.
            UpstreamKind::External(_) | UpstreamKind::Remote(_) | UpstreamKind::Aggregate(_) => {
                none(
                    CallErrorCode::WorkerUnavailable,
                    "The namespace has no worker any more",
                )
            }
        }
    }
}
