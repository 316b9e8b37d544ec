//! The upstream of functions: tools, resources and prompts that Python workers declare. The declarations are part of the
//! snapshot, so lists and unknown names need no worker; other requests become a `FunctionCall`.

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tooldock_base::error::{CallError, CallErrorCode};
use tooldock_process::child::output::RecentLines;
use tooldock_process::worker::Operation;
use tooldock_protocol::format::{self, ResultFormat, ResultWriter};
use tooldock_protocol::jsonrpc::{self, Members, RequestError};
use tooldock_protocol::version::ProtocolVersion;
use tooldock_protocol::version::method::{SKILLS_GET, SKILLS_LIST};
use tooldock_sessions::broadcast::Filter;
use tooldock_sessions::catalogue::ToolList;
use tooldock_sessions::session::Session;
use tooldock_workers::registry::{Namespace, UpstreamKind};

use super::{
    CallContext, GrantedSubscription, IncomingRequest, MaybeReady, PreparedRequest,
    ServerOperations, SessionChanges, ToolLists, ToolsWait, Upstream, task_clients,
};
use crate::engine::UpstreamCall;

mod call;
mod facts;
mod fault;
mod lists;
mod session;
mod skills;
mod task;
pub(super) mod uri_template;

use call::FunctionCall;
pub use call::{WorkerPort, WorkerPorts, Workers, reply_of};
pub use lists::describe;

#[cfg(any(test, feature = "testing"))]
pub(crate) use call::FunctionCall as PreparedCall;

/// The upstream of namespaces of functions, and of namespaces that could not be started.
pub struct WorkerUpstream {
    ports: Arc<dyn WorkerPorts>,
    changes: SessionChanges,
}

impl WorkerUpstream {
    /// Creates the upstream over the ports of workers.
    #[inline]
    pub fn new(ports: Arc<dyn WorkerPorts>, changes: SessionChanges) -> Self {
        Self { ports, changes }
    }

    /// Answers a method from the snapshot of namespaces, without a worker.
    fn answer_from_snapshot(
        cx: &CallContext<'_>,
        answered: SnapshotMethod,
        id: &str,
        members: &Members<'_>,
    ) -> Result<PreparedRequest, RequestError> {
        let answer = match answered {
            SnapshotMethod::Tools => lists::tools(cx, id, members),
            SnapshotMethod::Resources => lists::resources(cx, id, members),
            SnapshotMethod::ResourceTemplates => lists::resource_templates(cx, id, members),
            SnapshotMethod::Prompts => lists::prompts(cx, id, members),
            SnapshotMethod::SkillDirectory => lists::directory(cx, id, members),
        };
        answer.map(PreparedRequest::Response)
    }

    /// Prepares the call of a function in a worker.
    fn prepare_function_call(
        &self,
        cx: &CallContext<'_>,
        called: FunctionMethod,
        members: &Members<'_>,
    ) -> Result<PreparedRequest, RequestError> {
        match called {
            FunctionMethod::Tool => self.tool_call(cx, members),
            FunctionMethod::Resource => self.resource_read(cx, members),
            FunctionMethod::Prompt => self.prompt_get(cx, members),
            FunctionMethod::Completion => self.complete(cx, members),
            FunctionMethod::Skills => self.skills_list(cx, members),
            FunctionMethod::Skill => self.skill_get(cx, members),
        }
    }
}

impl Upstream for WorkerUpstream {
    fn serves(&self, _: &Namespace) -> bool {
        true
    }

    fn tool_lists(&self) -> &dyn ToolLists {
        self
    }

    fn operations(&self) -> &dyn ServerOperations {
        self
    }

    fn offers(&self, cx: &CallContext<'_>, method: &str) -> Result<(), RequestError> {
        offered(cx, method).map(|_| ())
    }

    fn prepare<'a>(
        &'a self,
        cx: &'a CallContext<'a>,
        request: IncomingRequest<'a>,
    ) -> MaybeReady<'a, Result<PreparedRequest, RequestError>> {
        let IncomingRequest {
            id,
            method,
            members,
        } = request;
        let offered = offered(cx, method).and_then(|found| members.well_formed().map(|()| found));
        match offered {
            Err(refused) => MaybeReady::Now(Err(refused)),
            Ok(Method::Kept(kept)) => MaybeReady::Later(Box::pin(async move {
                let answer = match kept {
                    SessionMethod::Subscribe => self.subscribe(cx, id, members).await,
                    SessionMethod::Unsubscribe => self.unsubscribe(cx, id, members).await,
                    SessionMethod::SetLevel => self.set_level(cx, id, members).await,
                };
                answer.map(PreparedRequest::Response)
            })),
            Ok(Method::Answered(answered)) => {
                MaybeReady::Now(Self::answer_from_snapshot(cx, answered, id, members))
            }
            Ok(Method::Called(called)) => {
                MaybeReady::Now(self.prepare_function_call(cx, called, members))
            }
        }
    }

    fn call_tool(
        &self,
        cx: &CallContext<'_>,
        tool: &str,
        arguments: Bytes,
    ) -> Result<Arc<dyn UpstreamCall>, CallError> {
        let declared = cx.namespace.tools.iter().find(|it| *it.name == *tool);
        task::check_plain(declared.map(|it| &**it))?;
        let talks = declared.is_some_and(|tool| tool.context);
        let operation = Operation::CallTool {
            tool: tool.into(),
            arguments,
        };
        let caller_facts = talks.then(|| facts::of(cx, false));
        let call = FunctionCall::new(&self.ports, cx, operation, caller_facts);
        Ok(Arc::new(call))
    }

    fn discover<'a>(
        &'a self,
        cx: &'a CallContext<'a>,
        id: &'a str,
        versions: &'a [&'a str],
    ) -> MaybeReady<'a, Result<Vec<u8>, CallError>> {
        let namespace = &cx.namespace;
        let format = cx.result_format();
        let mut answer = ResultWriter::begin(id, &format, 512).cached(cx.view().cache_scope());
        let out = answer.key("supportedVersions");
        serde_json::to_writer(out, versions).expect("strings serialize into memory");
        let out = answer.key("capabilities");
        out.extend_from_slice(capabilities(cx, None).to_string().as_bytes());
        instructions(&mut answer, namespace);
        MaybeReady::Now(Ok(answer.end()))
    }

    fn initialize<'a>(
        &'a self,
        cx: &'a CallContext<'a>,
        id: &'a str,
        _session: &'a Arc<Session>,
        version: ProtocolVersion,
    ) -> MaybeReady<'a, Result<Vec<u8>, CallError>> {
        let namespace = &cx.namespace;
        let format = ResultFormat::Legacy(version);
        let mut answer = ResultWriter::begin(id, &format, 256 + namespace.description.len());
        let out = answer.key("protocolVersion");
        format::escape(out, version.as_str().as_bytes());
        let out = answer.key("capabilities");
        out.extend_from_slice(capabilities(cx, Some(version)).to_string().as_bytes());
        format::server_info(answer.key("serverInfo"), &namespace.name);
        instructions(&mut answer, namespace);
        MaybeReady::Now(Ok(answer.end()))
    }

    fn listen<'a>(
        &'a self,
        cx: &'a CallContext<'a>,
        wanted: Filter,
    ) -> MaybeReady<'a, Result<GrantedSubscription, RequestError>> {
        let namespace = &cx.namespace;
        let resources = has_resources(namespace);
        let granted = Filter {
            tools: wanted.tools,
            prompts: wanted.prompts && !namespace.prompts.is_empty(),
            resources: wanted.resources && resources,
            updates: match resources {
                true => wanted.updates,
                false => Vec::new(),
            },
        };
        MaybeReady::Now(Ok(GrantedSubscription {
            granted,
            guard: None,
        }))
    }
}

impl ToolLists for WorkerUpstream {
    fn tools<'a>(
        &'a self,
        namespace: &'a Arc<Namespace>,
        _: Option<&'a Arc<str>>,
        _: ToolsWait,
    ) -> MaybeReady<'a, Result<Arc<ToolList>, CallError>> {
        MaybeReady::Now(is_up(namespace).map(|()| lists::declared(namespace)))
    }

    fn tools_known(&self, namespace: &Namespace) -> Option<Arc<ToolList>> {
        Some(lists::declared(namespace))
    }
}

impl ServerOperations for WorkerUpstream {
    fn output(&self, namespace: &Namespace) -> Option<Arc<RecentLines>> {
        match &namespace.upstream {
            UpstreamKind::Worker(worker) => Some(worker.recent_output()),
            _ => None,
        }
    }
}

/// The capabilities of a namespace for a client. `version` is the version of a legacy client.
fn capabilities(cx: &CallContext<'_>, version: Option<ProtocolVersion>) -> Value {
    let mut declared = entries(&cx.namespace);
    if cx.namespace.has_tasks() {
        task_clients::offer(&mut declared, cx, version);
    }
    declared
}

/// The capabilities that clients of all versions know. Tools are always declared, since the next reload may add some; resources
/// and prompts only if the namespace has any.
fn entries(namespace: &Namespace) -> Value {
    let mut declared = json!({ "tools": { "listChanged": true } });
    if !namespace.resources.is_empty() || !namespace.resource_templates.is_empty() {
        declared["resources"] = json!({ "subscribe": true, "listChanged": true });
    }
    if !namespace.prompts.is_empty() {
        declared["prompts"] = json!({ "listChanged": true });
    }
    if namespace.completions {
        declared["completions"] = json!({});
    }
    if namespace.has_context() {
        declared["logging"] = json!({});
    }
    if skills::are_in(namespace) {
        declared["extensions"] = json!({ skills::EXTENSION: { "directoryRead": true } });
    }
    declared
}

/// Writes the description of a namespace as instructions for the model.
fn instructions(answer: &mut ResultWriter<'_>, namespace: &Namespace) {
    if !namespace.description.is_empty() {
        let out = answer.key("instructions");
        format::escape(out, namespace.description.as_bytes());
    }
}

/// A method, by the component of the gateway that answers it.
#[derive(Debug, Clone, Copy)]
enum Method {
    /// The method is answered from the snapshot.
    Answered(SnapshotMethod),
    /// The method changes the client's session.
    Kept(SessionMethod),
    /// The method runs a function.
    Called(FunctionMethod),
}

#[derive(Debug, Clone, Copy)]
enum SnapshotMethod {
    Tools,
    Resources,
    ResourceTemplates,
    Prompts,
    SkillDirectory,
}

#[derive(Debug, Clone, Copy)]
enum SessionMethod {
    Subscribe,
    Unsubscribe,
    SetLevel,
}

#[derive(Debug, Clone, Copy)]
enum FunctionMethod {
    Tool,
    Resource,
    Prompt,
    Completion,
    Skills,
    Skill,
}

/// Finds the method with this name, if it exists in the client's era and the namespace has its capability. Other methods are
/// unknown.
fn offered(cx: &CallContext<'_>, method: &str) -> Result<Method, RequestError> {
    let namespace = &*cx.namespace;
    let has_resources = || has_resources(namespace);
    let has_prompts = || !namespace.prompts.is_empty();
    let legacy = || cx.client.is_legacy();
    let (found, there) = match method {
        "tools/list" => (Method::Answered(SnapshotMethod::Tools), true),
        "tools/call" => (Method::Called(FunctionMethod::Tool), true),
        "resources/list" => (Method::Answered(SnapshotMethod::Resources), has_resources()),
        "resources/templates/list" => (
            Method::Answered(SnapshotMethod::ResourceTemplates),
            has_resources(),
        ),
        "resources/read" => (Method::Called(FunctionMethod::Resource), has_resources()),
        "prompts/list" => (Method::Answered(SnapshotMethod::Prompts), has_prompts()),
        "prompts/get" => (Method::Called(FunctionMethod::Prompt), has_prompts()),
        "completion/complete" => (
            Method::Called(FunctionMethod::Completion),
            namespace.completions,
        ),
        "resources/directory/read" => (
            Method::Answered(SnapshotMethod::SkillDirectory),
            skills::are_in(namespace),
        ),
        SKILLS_LIST => (
            Method::Called(FunctionMethod::Skills),
            skills::are_in(namespace),
        ),
        SKILLS_GET => (
            Method::Called(FunctionMethod::Skill),
            skills::are_in(namespace),
        ),
        "resources/subscribe" if legacy() => {
            (Method::Kept(SessionMethod::Subscribe), has_resources())
        }
        "resources/unsubscribe" if legacy() => {
            (Method::Kept(SessionMethod::Unsubscribe), has_resources())
        }
        "logging/setLevel" if legacy() => (
            Method::Kept(SessionMethod::SetLevel),
            namespace.has_context(),
        ),
        _ => return Err(RequestError::MethodNotFound(method.to_owned())),
    };
    if there {
        return Ok(found);
    }
    // If the namespace failed to start, its capabilities are not known, so the error reports the failed start.
    is_up(namespace).map_err(RequestError::Upstream)?;
    Err(RequestError::MethodNotFound(method.to_owned()))
}

/// Returns an error if the namespace could not be started. Its lists are then errors, and never empty lists, which clients would
/// take for the truth.
fn is_up(namespace: &Namespace) -> Result<(), CallError> {
    match &namespace.upstream {
        UpstreamKind::Failed(error) => Err(error.clone()),
        UpstreamKind::Remote(_) => Err(CallError::new(
            CallErrorCode::WorkerUnavailable,
            "Remote servers are not reached by this gateway",
        )),
        UpstreamKind::Worker(_)
        | UpstreamKind::External(_)
        | UpstreamKind::Aggregate(_)
        | UpstreamKind::Empty
        | UpstreamKind::System => Ok(()),
    }
}

fn has_resources(namespace: &Namespace) -> bool {
    !namespace.resources.is_empty() || !namespace.resource_templates.is_empty()
}

/// Reads a key of `params` whose value must be a string. `what` is the key's name for the error.
fn string_member<'a>(
    raw: Option<&'a RawValue>,
    what: &'static str,
) -> Result<Cow<'a, str>, RequestError> {
    raw.and_then(jsonrpc::string)
        .ok_or_else(|| RequestError::InvalidParams(format!("{what} must be a string").into()))
}

#[cfg(test)]
mod tests {
    use tooldock_sessions::testing::{full, namespace};

    use super::*;

    #[test]
    fn capabilities_are_what_there_is() {
        let mut plain = namespace("shared");
        plain.tools.retain(|tool| !tool.context);
        let declared = entries(&plain);
        assert_eq!(declared, json!({ "tools": { "listChanged": true } }));
        assert_eq!(
            entries(&full("shared")),
            json!({
                "tools": { "listChanged": true },
                "resources": { "subscribe": true, "listChanged": true },
                "prompts": { "listChanged": true },
                "completions": {},
                "logging": {},
            })
        );
    }
}
