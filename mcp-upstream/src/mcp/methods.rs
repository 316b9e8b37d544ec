//! What a request means: an answer that is there, or a call of the upstream.
//!
//! How the answer travels (JSON, a stream, a parked call) is not decided here. `initialize`, `server/discover` and
//! `subscriptions/listen` are not here either: they make the conversation the others are part of.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde_json::value::RawValue;
use tooldock_workers::error::{CallError, CallErrorCode};
use tooldock_workers::registry::{Namespace, Upstream};
use tooldock_workers::worker::{Operation, ToolReply};

use super::{CallContext, ClientEra, forward};
use crate::audit::Transport;
use crate::caller::Caller;
use crate::engine::{CallRequest, EventSender, ForwardRequest, TOOLS_CALL};
use crate::format::{self, CacheScope};
use crate::jsonrpc::{self, Key, Members, RequestError, Response};
use crate::mcp::Core;
use crate::protocol::ProtocolVersion;
use crate::session::{CancelNotice, State};

mod completion;
mod facts;
mod lists;
mod logging;
mod prompts;
mod resources;
mod tools;
mod uri_template;
mod written;

pub(crate) use crate::format::ResultFormat;
pub(crate) use written::WrittenLists;

/// Characters of an unknown prompt's name that go into messages.
const UNKNOWN_NAME_MAX: usize = 128;

/// How long a request waits for a confirmation of the session that it may have overtaken (K-15).
const PATIENCE: Duration = Duration::from_secs(1);

/// A request that was understood.
#[derive(Debug)]
pub(crate) enum Prepared {
    /// The whole JSON-RPC response.
    Response(Vec<u8>),
    /// The upstream has the answer.
    Call(Box<UpstreamCall>),
}

/// A call to be made, and how its outcome becomes a response.
#[derive(Debug)]
pub(crate) struct UpstreamCall {
    /// What the engine is to run.
    pub(crate) request: UpstreamRequest,
    /// What the client's progress notifications are to carry, raw JSON.
    pub(crate) progress_token: Option<String>,
    /// The function may report, log and ask before it answers.
    pub(crate) talks: bool,
}

/// What the engine can run.
#[derive(Debug, Clone)]
pub(crate) enum UpstreamRequest {
    /// A function of a worker.
    Call(CallRequest),
    /// A request that goes up to a server as it is.
    Forward(ForwardRequest),
}

/// What came of a call.
pub(crate) type Outcome = Result<UpstreamReply, CallError>;

/// What a call was answered.
#[derive(Debug, Clone)]
pub(crate) enum UpstreamReply {
    /// A function's value.
    Value(ToolReply),
    /// A server's own response.
    Raw(Response),
}

/// Understands one request. `id` is raw JSON.
///
/// # Errors
///
/// What makes it no request for this namespace: an unknown method, wrong parameters, a namespace that is not up, a
/// session that was not confirmed.
pub(crate) async fn prepare(
    cx: &CallContext<'_>,
    id: &str,
    method: &str,
    members: &Members<'_>,
) -> Result<Prepared, RequestError> {
    if method == "ping" && cx.is_legacy() {
        return ping(cx, id, members).map(Prepared::Response);
    }
    if cx.core.external.serves(&cx.namespace) {
        confirmed(cx).await?;
        return Box::pin(forward::prepare(cx, id, method, members)).await;
    }
    let offered = offered(cx, method)?;
    confirmed(cx).await?;
    members.well_formed()?;
    match offered {
        Method::ToolsList => lists::tools(cx, id, members).map(Prepared::Response),
        Method::ResourcesList => lists::resources(cx, id, members).map(Prepared::Response),
        Method::ResourceTemplatesList => {
            lists::resource_templates(cx, id, members).map(Prepared::Response)
        }
        Method::PromptsList => lists::prompts(cx, id, members).map(Prepared::Response),
        Method::ToolsCall => tools::call(cx, members).map(Prepared::Call),
        Method::ResourcesRead => resources::read(cx, members).map(Prepared::Call),
        Method::PromptsGet => prompts::get(cx, members).map(Prepared::Call),
        Method::Complete => completion::complete(cx, members).map(Prepared::Call),
        Method::Subscribe => {
            let answer = resources::subscribe(cx, id, members).await;
            answer.map(Prepared::Response)
        }
        Method::Unsubscribe => {
            let answer = resources::unsubscribe(cx, id, members).await;
            answer.map(Prepared::Response)
        }
        Method::SetLevel => {
            let answer = logging::set_level(cx, id, members).await;
            answer.map(Prepared::Response)
        }
    }
}

/// The methods there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Method {
    ToolsList,
    ToolsCall,
    ResourcesList,
    ResourceTemplatesList,
    ResourcesRead,
    Subscribe,
    Unsubscribe,
    PromptsList,
    PromptsGet,
    Complete,
    SetLevel,
}

/// The method of that name, if the era has it and the namespace anything to do it with: what is not declared at the
/// beginning of a conversation is not there.
fn offered(cx: &CallContext<'_>, method: &str) -> Result<Method, RequestError> {
    let namespace = &*cx.namespace;
    let has_resources =
        || !namespace.resources.is_empty() || !namespace.resource_templates.is_empty();
    let has_prompts = || !namespace.prompts.is_empty();
    let legacy = || cx.is_legacy();
    let (found, there) = match method {
        "tools/list" => (Method::ToolsList, true),
        "tools/call" => (Method::ToolsCall, true),
        "resources/list" => (Method::ResourcesList, has_resources()),
        "resources/templates/list" => (Method::ResourceTemplatesList, has_resources()),
        "resources/read" => (Method::ResourcesRead, has_resources()),
        "prompts/list" => (Method::PromptsList, has_prompts()),
        "prompts/get" => (Method::PromptsGet, has_prompts()),
        "completion/complete" => (Method::Complete, namespace.completions),
        "resources/subscribe" if legacy() => (Method::Subscribe, has_resources()),
        "resources/unsubscribe" if legacy() => (Method::Unsubscribe, has_resources()),
        "logging/setLevel" if legacy() => (Method::SetLevel, namespace.has_context()),
        _ => return Err(RequestError::MethodNotFound(method.to_owned())),
    };
    match &namespace.upstream {
        _ if there => Ok(found),
        // What it would have is not known while it is down.
        Upstream::Failed(error) => Err(RequestError::Upstream(error.clone())),
        Upstream::Worker(_) | Upstream::External(_) | Upstream::Empty => {
            Err(RequestError::MethodNotFound(method.to_owned()))
        }
    }
}

fn ping(cx: &CallContext<'_>, id: &str, members: &Members<'_>) -> Result<Vec<u8>, RequestError> {
    members.by_name()?;
    Ok(format::ResultWriter::begin(id, &cx.result_format(), 0).end())
}

/// Waits for the client's confirmation where the listener and the version ask for it (MCP-08).
async fn confirmed(cx: &CallContext<'_>) -> Result<(), RequestError> {
    let Some(session) = cx.session() else {
        return Ok(());
    };
    let since = ProtocolVersion::V2025_06_18;
    let asked = cx.caller.profile.require_initialized
        && cx.version().is_some_and(|version| version >= since);
    if !asked || session.confirmed_within(PATIENCE).await {
        return Ok(());
    }
    Err(match session.state() {
        State::Closed => RequestError::SessionNotFound,
        _ => RequestError::NotInitialized,
    })
}

impl CallContext<'_> {
    /// Whether the methods that went with 2026-07-28 are there.
    fn is_legacy(&self) -> bool {
        matches!(self.era, ClientEra::Legacy { .. })
    }

    /// The call of an operation. `members` are the request's; `talks` says whether the function takes a context, and
    /// then it may know who its client is.
    fn upstream_call(
        &self,
        operation: Operation,
        members: &Members<'_>,
        talks: bool,
    ) -> Result<Box<UpstreamCall>, RequestError> {
        jsonrpc::object(members.get(Key::Meta), "params._meta")?;
        // Progress comes only from functions that talk.
        let progress_token = match talks {
            true => members.progress_token()?.map(str::to_owned),
            false => None,
        };
        let session = self.session();
        Ok(Box::new(UpstreamCall {
            request: UpstreamRequest::Call(CallRequest {
                caller_facts: talks.then(|| facts::of(self, progress_token.is_some())),
                namespace: Arc::clone(&self.namespace),
                operation,
                transport: Transport::Mcp,
                version: Some(self.result_format().version()),
                session: session.map(|session| Arc::clone(session.tag())),
            }),
            progress_token,
            talks,
        }))
    }

    /// A span as bytes of its own: a view into the body where it is most of it, else a copy, since a view keeps the
    /// whole body alive in queues that count only what they see.
    pub(super) fn own(&self, span: &[u8]) -> Bytes {
        if span.len() * 2 < self.body.len() {
            Bytes::copy_from_slice(span)
        } else {
            self.body.slice_ref(span)
        }
    }

    /// A span that may be absent, as an object.
    fn own_object(&self, span: Option<&RawValue>) -> Bytes {
        span.map_or_else(
            || Bytes::from_static(b"{}"),
            |span| self.own(span.get().as_bytes()),
        )
    }
}

/// What stands for arguments where a method has none or they were left out.
pub(crate) const NO_ARGUMENTS: &[u8] = b"{}";

impl UpstreamRequest {
    /// Runs it to its end. Dropping the future cancels it. What is said before the answer goes to `events`.
    pub(crate) async fn run(
        &self,
        core: &Core,
        caller: &Caller,
        events: Option<EventSender>,
    ) -> Outcome {
        match self {
            Self::Call(request) => {
                let reply = core.engine.call(caller, request, events).await;
                reply.map(UpstreamReply::Value)
            }
            Self::Forward(request) => {
                let reply = core.engine.forward(caller, request, events).await;
                reply.map(UpstreamReply::Raw)
            }
        }
    }

    /// Who is to hear how its client cancels it.
    pub(crate) fn cancel_notice(&self) -> Option<Arc<dyn CancelNotice>> {
        match self {
            Self::Call(_) => None,
            Self::Forward(request) => Some(Arc::clone(&request.run) as _),
        }
    }

    /// The namespace whose upstream is called.
    pub(crate) fn namespace(&self) -> &Arc<Namespace> {
        match self {
            Self::Call(request) => &request.namespace,
            Self::Forward(request) => &request.namespace,
        }
    }

    /// The tool, prompt or URI, or the name of a method that has none of these.
    pub(crate) fn subject(&self) -> &str {
        match self {
            Self::Call(request) => request.operation.subject(),
            Self::Forward(request) => &request.subject,
        }
    }

    /// The arguments of what is named, a JSON object; [`NO_ARGUMENTS`] where there are none.
    pub(crate) fn arguments(&self) -> &[u8] {
        match self {
            Self::Call(request) => match &request.operation {
                Operation::CallTool { arguments, .. } | Operation::GetPrompt { arguments, .. } => {
                    arguments
                }
                Operation::ReadResource { .. } | Operation::Complete { .. } => NO_ARGUMENTS,
            },
            Self::Forward(request) if request.arguments.is_empty() => NO_ARGUMENTS,
            Self::Forward(request) => &request.arguments,
        }
    }
}

impl UpstreamCall {
    /// The response to the request of this raw id. What happened to a tool is a result whatever it was, but for a
    /// missing capability in the era that has an error for it; everything else fails with an error object.
    ///
    /// # Errors
    ///
    /// Failures that are error objects: [`ResultFormat::error`] writes them.
    pub(crate) fn response(
        &self,
        id: &str,
        caller: &Caller,
        format: &ResultFormat,
        outcome: Outcome,
    ) -> Result<Vec<u8>, RequestError> {
        let modern = matches!(format, ResultFormat::Modern(_));
        let missing =
            |error: &CallError| RequestError::missing_capability(error).filter(|_| modern);
        let outcome = match outcome {
            // The status of one is nobody's but the modern era's.
            Ok(UpstreamReply::Raw(answer)) if answer.is_error() && modern => {
                return Err(RequestError::forwarded(answer));
            }
            Ok(UpstreamReply::Raw(answer)) => return Ok(answer.with_id(id)),
            Ok(UpstreamReply::Value(reply)) => Ok(reply),
            Err(error) => Err(error),
        };
        let operation = match &self.request {
            UpstreamRequest::Call(request) => Some(&request.operation),
            UpstreamRequest::Forward(_) => None,
        };
        let scope = match operation {
            // What a function returned may be meant for its caller alone.
            Some(Operation::ReadResource { .. }) => Some(CacheScope::Private),
            _ if self.is_tool_call() => {
                return match outcome {
                    Ok(reply) => Ok(format::success(id, &reply, format)),
                    Err(error) => match missing(&error) {
                        Some(failure) => Err(failure),
                        None => Ok(format::failure(id, &error, caller, format)),
                    },
                };
            }
            _ => None,
        };
        let reply = outcome.map_err(|error| match missing(&error) {
            Some(failure) => failure,
            None => RequestError::of_call(error, self.request.subject()),
        })?;
        let result = reply.value.trim_ascii();
        if !(result.starts_with(b"{") && result.ends_with(b"}")) {
            return Err(RequestError::Upstream(CallError::new(
                CallErrorCode::InternalError,
                "The worker's answer is no result of this method",
            )));
        }
        let mut answer = format::ResultWriter::begin(id, format, result.len());
        let mut skipped = 0;
        if let Some(scope) = scope {
            // A resource is what a function returns now: unless its author says so, nobody may go on showing it.
            let (ttl_ms, length) = own_ttl(result).unwrap_or((0, 0));
            skipped = length;
            answer = answer.cached_for(ttl_ms, scope);
        }
        answer.members_after(skipped, result);
        Ok(answer.end())
    }

    /// What happens to a tool is a result, whoever runs it.
    fn is_tool_call(&self) -> bool {
        match &self.request {
            UpstreamRequest::Call(request) => {
                matches!(request.operation, Operation::CallTool { .. })
            }
            UpstreamRequest::Forward(request) => &*request.method == TOOLS_CALL,
        }
    }
}

/// For how many milliseconds a worker says that its result may be kept, and the bytes that takes at the beginning of the
/// object.
fn own_ttl(result: &[u8]) -> Option<(u64, usize)> {
    let name = b"\"ttlMs\":";
    let rest = result.strip_prefix(b"{")?.strip_prefix(name)?;
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let ttl_ms = std::str::from_utf8(&rest[..digits]).ok()?.parse().ok()?;
    rest[digits..]
        .starts_with(b",")
        .then_some((ttl_ms, name.len() + digits + 1))
}

/// What names a function and may give it arguments: a tool's call, a prompt.
struct Named<'a> {
    name: Cow<'a, str>,
    /// An object, where it is there.
    arguments: Option<&'a RawValue>,
}

impl<'a> Named<'a> {
    fn read(members: &Members<'a>) -> Result<Self, RequestError> {
        let name = string_member(members.get(Key::Name), "params.name")?;
        let arguments = members.get(Key::Arguments);
        jsonrpc::object(arguments, "params.arguments")?;
        Ok(Self { name, arguments })
    }
}

/// The string a member of `params` must be.
fn string_member<'a>(
    raw: Option<&'a RawValue>,
    what: &'static str,
) -> Result<Cow<'a, str>, RequestError> {
    raw.and_then(jsonrpc::string)
        .ok_or_else(|| RequestError::InvalidParams(format!("{what} must be a string").into()))
}

#[cfg(test)]
mod tests;
