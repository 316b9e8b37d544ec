//! The endpoint of all namespaces: the tools of all namespaces that the caller may use, each under a unique name.
//!
//! ```text
//!   tools/list ──▶ view::GlobalTools ──▶ the definitions, under their published names
//!   tools/call ──▶ view::find ──▶ (namespace, own name) ──▶ that namespace's own Upstream ──▶ its call
//! ```
//!
//! The upstream runs a namespace that is in no snapshot ([`NamespaceName::global`]). A call is made as a call of the namespace
//! that has the tool: policy, limits, time limit, metrics and audit are that namespace's. Only tools are published: a URI or a
//! prompt name does not identify its namespace.

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;
use serde_json::Value;
use serde_json::value::RawValue;
use tooldock_base::config::Limits;
use tooldock_base::error::{CallError, CallErrorCode};
use tooldock_base::gate::Gate;
use tooldock_base::names::NamespaceName;
use tooldock_base::parking::Parking;
use tooldock_base::policy::ToolPolicy;
use tooldock_process::worker::LogLevel;
use tooldock_protocol::format::{self, CacheScope, ResultFormat, ResultWriter};
use tooldock_protocol::jsonrpc::spans::{self, MemberEdit};
use tooldock_protocol::jsonrpc::{self, Key, Message, RequestError};
use tooldock_protocol::version::{Method, ProtocolVersion};
use tooldock_sessions::broadcast::Filter;
use tooldock_sessions::catalogue::{ToolEntry, ToolList};
use tooldock_sessions::session::{CancelNotice, Session, SessionPatch};
use tooldock_workers::registry::{Attachment, Namespace, Registry, SecretsStatus, UpstreamKind};

use super::worker::describe;
use super::{
    CallContext, GrantedSubscription, IncomingRequest, MaybeReady, PreparedRequest, ServerFacts,
    SessionChanges, ToolLists, ToolsWait, Upstream, Upstreams, task_clients,
};
use crate::engine::{CallFacts, Peer, UpstreamCall, Work, unknown_tool};

mod view;

pub use view::{GlobalTools, find, members};

/// Time in milliseconds for which clients of version 2026-07-28 may cache the list. It is short, since a change in any namespace
/// changes the list.
const TTL_MS: u64 = 1_000;
/// The endpoint's instructions for models, sent in its response to `initialize` or `server/discover`.
const INSTRUCTIONS: &str = "The tools of all namespaces. Where several namespaces have a tool of the same name, the later ones show theirs as <namespace>_<tool>.";

/// The upstream of the endpoint of all namespaces, which publishes the tools of every namespace that the caller may use.
pub struct GlobalUpstream {
    registry: Arc<Registry>,
    /// The upstreams that run the namespaces.
    kinds: Upstreams,
    changes: SessionChanges,
}

impl GlobalUpstream {
    /// Creates the upstream for all namespaces of a registry. `kinds`: the upstreams that run the namespaces.
    pub fn new(registry: Arc<Registry>, kinds: Upstreams, changes: SessionChanges) -> Self {
        registry.set_global(Arc::new(namespace()));
        Self {
            registry,
            kinds,
            changes,
        }
    }

    /// Writes the list of tools, which has a single page.
    async fn list(&self, cx: &CallContext<'_>, id: &str) -> Result<Vec<u8>, RequestError> {
        let snapshot = self.registry.snapshot();
        let tools = GlobalTools::of(&self.kinds, &snapshot, cx.caller).await;
        let tools = tools.map_err(RequestError::Upstream)?;
        let format = cx.result_format();
        let mut answer =
            ResultWriter::begin(id, &format, 4096).cached_for(TTL_MS, CacheScope::Private);
        let out = answer.key("tools");
        out.push(b'[');
        for (at, tool) in tools.iter().enumerate() {
            if at > 0 {
                out.push(b',');
            }
            define(out, tool.name, tool.entry, &format);
        }
        out.push(b']');
        Ok(answer.end())
    }

    async fn call(
        &self,
        cx: &CallContext<'_>,
        request: IncomingRequest<'_>,
    ) -> Result<PreparedRequest, RequestError> {
        let members = request.members;
        let name = members.get(Key::Name).and_then(jsonrpc::string);
        let name =
            name.ok_or_else(|| RequestError::InvalidParams("params.name must be a string".into()))?;
        let snapshot = self.registry.snapshot();
        let Some((namespace, own)) = find(&self.kinds, &snapshot, cx.caller, &name).await else {
            let sent = members.get(Key::Arguments);
            jsonrpc::object(sent, "params.arguments")?;
            return Ok(PreparedRequest::Call(unknown(
                cx,
                &name,
                cx.own_object(sent),
            )));
        };
        let upstream = self.kinds.of(&namespace);
        if *own == *name {
            let cx = child(cx, cx.body, namespace, upstream);
            return upstream.prepare(&cx, request).get().await;
        }
        // The request that is sent to the tool's namespace differs from the client's only in the tool's name.
        let params = members.params().map_or("{}", RawValue::get);
        let own = Value::from(&*own).to_string();
        let params = spans::edit(params, &[MemberEdit::Set("name", own.into())]);
        let change = MemberEdit::Set("params", params.into());
        let body = Bytes::from(spans::edit(members.message(), &[change]));
        let Ok(Message::Request {
            id,
            method,
            members,
        }) = jsonrpc::message(jsonrpc::text(&body)?)
        else {
            return Err(RequestError::InvalidParams(
                "the parameters cannot be read, or are nested too deep".into(),
            ));
        };
        let request = IncomingRequest {
            id,
            method: &method,
            members: &members,
        };
        let cx = child(cx, &body, namespace, upstream);
        upstream.prepare(&cx, request).get().await
    }

    /// Answers `logging/setLevel`: the level is stored in the session, and applied to the log messages of functions.
    async fn set_level(
        &self,
        cx: &CallContext<'_>,
        request: IncomingRequest<'_>,
    ) -> Result<Vec<u8>, RequestError> {
        let level = request.members.get(Key::LogLevel).and_then(jsonrpc::string);
        let level: Option<LogLevel> = level.and_then(|level| level.parse().ok());
        let level = level.ok_or_else(|| {
            let levels = LogLevel::ALL.map(LogLevel::as_str).join(", ");
            RequestError::InvalidParams(format!("params.level must be one of {levels}").into())
        })?;
        if let Some(session) = cx.session() {
            let wanted = SessionPatch::LogLevel(level);
            self.changes.commit(session, wanted).await?;
        }
        Ok(ResultWriter::begin(request.id, &cx.result_format(), 0).end())
    }
}

/// The namespace of the endpoint. It has no limits of its own: those of the tools' namespaces apply.
fn namespace() -> Namespace {
    let limits = Limits::default();
    Namespace {
        name: NamespaceName::global(),
        description: INSTRUCTIONS.to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        secrets: Vec::new(),
        secrets_status: SecretsStatus::NoSecretsNeeded,
        has_requirements: false,
        policy: ToolPolicy::new(&limits).expect("the default lists have valid patterns"),
        tool_limits: std::collections::BTreeMap::new(),
        gate: Arc::new(Gate::new(limits.max_concurrency.local(), limits.queue)),
        parked: Arc::new(Parking::new(limits.max_parked)),
        limits,
        tools: Vec::new(),
        resources: Vec::new(),
        resource_templates: Vec::new(),
        prompts: Vec::new(),
        completions: false,
        files: Vec::new(),
        issues: Vec::new(),
        upstream: UpstreamKind::Empty,
        content_hash: [0; 32],
        attached: Attachment::default(),
        recovering: std::sync::Weak::new(),
    }
}

/// The context of a request to the namespace that has the tool.
fn child<'c>(
    cx: &'c CallContext<'_>,
    body: &'c Bytes,
    namespace: Arc<Namespace>,
    upstream: &'c dyn Upstream,
) -> CallContext<'c> {
    CallContext {
        caller: cx.caller,
        body,
        namespace,
        upstream,
        client: cx.client.clone(),
        streams: cx.streams,
        depth: cx.depth,
    }
}

/// Writes the definition of a tool under its published name.
fn define(out: &mut Vec<u8>, name: &str, entry: &ToolEntry, format: &ResultFormat) {
    match (entry.declaration(), entry.definition()) {
        (Some(tool), _) => describe(out, name, tool, format),
        (None, definition) => {
            let name = Value::from(name).to_string();
            let definition = std::str::from_utf8(definition).unwrap_or("{}");
            let named = spans::edit(definition, &[MemberEdit::Set("name", name.into())]);
            out.extend_from_slice(named.as_bytes());
        }
    }
}

/// A call of a tool that exists in no namespace. It is recorded like any other call, and fails.
fn unknown(cx: &CallContext<'_>, name: &str, arguments: Bytes) -> Arc<dyn UpstreamCall> {
    let facts = cx.facts(Method::of("tools/call"), name, arguments);
    Arc::new(UnknownCall(facts))
}

struct UnknownCall(CallFacts);

impl CancelNotice for UnknownCall {
    fn cancelled(&self, _: &str) {}
}

impl UpstreamCall for UnknownCall {
    fn facts(&self) -> &CallFacts {
        &self.0
    }

    fn admit(&self) -> Result<(), CallError> {
        Err(unknown_tool(&self.0.subject))
    }

    fn start(self: Arc<Self>, _: Peer) -> Work {
        Box::pin(async move { Err(unknown_tool(&self.0.subject)) })
    }
}

/// Refuses a request with a cursor: the list has a single page.
fn one_page(request: IncomingRequest<'_>) -> Result<(), RequestError> {
    match request.members.raw(Key::Cursor) {
        Some(cursor) if cursor != "null" => Err(RequestError::InvalidParams(
            "unknown cursor: the list has one page".into(),
        )),
        _ => Ok(()),
    }
}

/// Writes the capabilities. Tasks are declared to modern clients only: a client of 2025-11-25 would begin tasks of servers, too,
/// which it cannot name here.
fn describe_self(answer: &mut ResultWriter<'_>, with_tasks: bool) {
    let out = answer.key("capabilities");
    out.extend_from_slice(br#"{"tools":{"listChanged":true},"logging":{}"#);
    if with_tasks {
        let extensions = format!(r#","extensions":{{"{}":{{}}}}"#, task_clients::EXTENSION);
        out.extend_from_slice(extensions.as_bytes());
    }
    out.push(b'}');
    let out = answer.key("instructions");
    format::escape(out, INSTRUCTIONS.as_bytes());
}

impl Upstream for GlobalUpstream {
    fn serves(&self, namespace: &Namespace) -> bool {
        namespace.name.is_global()
    }

    fn tool_lists(&self) -> &dyn ToolLists {
        self
    }

    fn server_facts(&self) -> &dyn ServerFacts {
        self
    }

    fn prepare<'a>(
        &'a self,
        cx: &'a CallContext<'a>,
        request: IncomingRequest<'a>,
    ) -> MaybeReady<'a, Result<PreparedRequest, RequestError>> {
        MaybeReady::Later(Box::pin(async move {
            request.members.unambiguous()?;
            request.members.progress_token()?;
            match request.method {
                "tools/list" => {
                    one_page(request)?;
                    Ok(PreparedRequest::Response(self.list(cx, request.id).await?))
                }
                "tools/call" => self.call(cx, request).await,
                "logging/setLevel" if cx.client.is_legacy() => {
                    let answer = self.set_level(cx, request).await?;
                    Ok(PreparedRequest::Response(answer))
                }
                other => Err(RequestError::MethodNotFound(other.to_owned())),
            }
        }))
    }

    /// Returns a call that fails, since REST does not use it: a REST call finds the namespace of the tool first ([`find`]) and
    /// calls the tool there.
    fn call_tool(
        &self,
        cx: &CallContext<'_>,
        tool: &str,
        arguments: Bytes,
    ) -> Result<Arc<dyn UpstreamCall>, CallError> {
        Ok(unknown(cx, tool, arguments))
    }

    fn discover<'a>(
        &'a self,
        cx: &'a CallContext<'a>,
        id: &'a str,
        versions: &'a [&'a str],
    ) -> MaybeReady<'a, Result<Vec<u8>, CallError>> {
        let format = cx.result_format();
        let mut answer = ResultWriter::begin(id, &format, 512).cached(cx.view().cache_scope());
        let out = answer.key("supportedVersions");
        serde_json::to_writer(out, versions).expect("strings serialize into memory");
        describe_self(&mut answer, true);
        MaybeReady::Now(Ok(answer.end()))
    }

    fn initialize<'a>(
        &'a self,
        cx: &'a CallContext<'a>,
        id: &'a str,
        _session: &'a Arc<Session>,
        version: ProtocolVersion,
    ) -> MaybeReady<'a, Result<Vec<u8>, CallError>> {
        let format = ResultFormat::Legacy(version);
        let mut answer = ResultWriter::begin(id, &format, 512);
        let out = answer.key("protocolVersion");
        format::escape(out, version.as_str().as_bytes());
        describe_self(&mut answer, false);
        format::server_info(answer.key("serverInfo"), &cx.namespace.name);
        MaybeReady::Now(Ok(answer.end()))
    }

    fn listen<'a>(
        &'a self,
        _: &'a CallContext<'a>,
        wanted: Filter,
    ) -> MaybeReady<'a, Result<GrantedSubscription, RequestError>> {
        let granted = Filter {
            tools: wanted.tools,
            ..Filter::default()
        };
        MaybeReady::Now(Ok(GrantedSubscription {
            granted,
            guard: None,
        }))
    }
}

impl ToolLists for GlobalUpstream {
    /// Returns an empty list. The endpoint has no tools of its own; the tools of the namespaces are read for each caller.
    fn tools<'a>(
        &'a self,
        _: &'a Arc<Namespace>,
        _: Option<&'a Arc<str>>,
        _: ToolsWait,
    ) -> MaybeReady<'a, Result<Arc<ToolList>, CallError>> {
        let reason = "Tools of all namespaces at once are looked up in the namespaces";
        MaybeReady::Now(Err(CallError::new(CallErrorCode::InternalError, reason)))
    }

    fn tools_known(&self, _: &Namespace) -> Option<Arc<ToolList>> {
        None
    }
}

impl ServerFacts for GlobalUpstream {
    /// Returns true, since some of the namespaces may have servers that speak MCP.
    fn gets_client_messages(&self) -> bool {
        true
    }
}

/// The published name of a tool if an earlier namespace has a tool with the same own name: the namespace, `_` and the own name.
fn prefixed<'a>(namespace: &NamespaceName, own: &str) -> Cow<'a, str> {
    format!("{namespace}_{own}").into()
}
