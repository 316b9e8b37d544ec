//! Aggregates: several namespaces published as one, whose tools and resources the model activates and deactivates ("Toolman").
//!
//! ```text
//!   tools/list ──▶ Live: offers of all members ──▶ Catalogue ──▶ filter by the client's Toolset ──▶ the list
//!   tools/call ──▶ published name ──▶ (member, own name) ──▶ the member's own Upstream ──▶ MemberCall
//!                                                                                             │ engine: view, limits, audit
//!                                                                                             └▶ engine once more, as a
//!                                                                                                call of the member
//! ```
//!
//! Members are namespaces of any kind. A member's offer consists of its tools, resources, templates and prompts. Offers are read
//! once and stored (`member`); each request uses the current catalogue of all offers (`live`, `catalogue`). `toolsets`
//! finds the active entries of a client, `visible` the entries that the client may learn about. Results, errors, progress,
//! questions and cancellations pass between client and member unchanged, except for names and URIs, also in results where URIs
//! are references (`references`).
//!
//! An aggregate that is a member of another one (`nested`) offers all its entries to the outer one, which alone decides which
//! of them are active. At most `DEPTH_MAX` aggregates are nested.
//!
//! Resource subscriptions are not supported (AGG-32): a URI belongs to its member, and `subscriptions/listen` announces only
//! changed lists.
//!
//! | file | content |
//! |---|---|
//! | `member.rs`, `reading.rs`, `offer.rs`, `nested.rs` | a member and its task; its lists and offer; an aggregate as member |
//! | `live.rs`, `catalogue.rs`, `names.rs` | the aggregate as served; all offers under published names; those names |
//! | `request.rs`, `call.rs` | a request that is passed to a member; the member's call |
//! | `tools.rs`, `resources.rs`, `tasks.rs`, `spread.rs` | requests by method; messages for all members |
//! | `visible_members.rs`, `toolsets.rs` | entries that a client may learn about; the active set, in a session or in a handle |
//! | `own.rs`, `activate.rs`, `hints.rs` | the aggregate's own tools; calls that errors suggest |
//! | `references.rs` | URIs in results |
//!
//! A call of a member passes the engine twice: `Engine::run` runs the member's call in place of the aggregate's
//! (`UpstreamCall::delegate`), so that the member's policy, limits, clock, metrics and audit apply. Of the limits that apply to
//! the aggregate's call, only those of the aggregate's namespace count it (`CountedBy::Namespace`).

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use bytes::Bytes;
use tokio::runtime::Handle;
use tooldock_base::error::{CallError, CallErrorCode};
use tooldock_base::names::NamespaceName;
use tooldock_protocol::format::{self, ResultFormat, ResultWriter};
use tooldock_protocol::jsonrpc::{self, Key, Members, RequestError};
use tooldock_protocol::seal::SessionKey;
use tooldock_protocol::version::ProtocolVersion;
use tooldock_sessions::broadcast::{Audience, Filter};
use tooldock_sessions::caller::Caller;
use tooldock_sessions::catalogue::ToolList;
use tooldock_sessions::session::{PerSession, Session};
use tooldock_workers::registry::{Aggregate, Namespace, Registry, Snapshot, UpstreamKind};

use super::health::MemberHealth;
use super::{
    CallContext, GrantedSubscription, IncomingRequest, MaybeReady, PreparedRequest, ServerFacts,
    ServerOperations, SessionChanges, ToolLists, ToolOrigin, ToolsWait, Upstream, task_clients,
};
use crate::engine::UpstreamCall;
use crate::metrics::toolman::ToolmanMetrics;

mod activate;
mod apps;
mod budget;
mod call;
mod catalogue;
mod hints;
mod live;
mod member;
mod names;
mod nearness;
mod nested;
mod offer;
mod own;
mod pace;
mod reading;
mod references;
mod request;
mod resources;
mod snapshot;
mod spread;
mod state;
mod tasks;
mod tools;
mod toolsets;
mod visible_members;

use catalogue::EntryKind;
use live::RunningAggregate;
use member::{Home, MemberSlot};
use request::{AggregateRequest, one_page};
use toolsets::SessionTurn;

/// Maximum number of nested aggregates. The configuration allows no more. Deeper nesting that arises after the configuration was
/// checked, such as by a member that has become an aggregate, is refused when the member is used.
const DEPTH_MAX: u8 = tooldock_workers::aggregate::DEPTH_MAX as u8;
/// Instructions of an aggregate in its response to `initialize`.
const INSTRUCTIONS: &str = "Tools and resources of several servers. Only active ones can be used: turn on what you need, and off what you do not, with toolman_activate, whose description lists all of them.";

/// The upstreams of namespaces that are not aggregates.
pub(super) struct Kinds {
    /// The upstream of servers that speak MCP.
    servers: Arc<dyn Upstream>,
    /// The upstream of folders of functions, and of all other kinds of namespaces.
    workers: Arc<dyn Upstream>,
}

impl Kinds {
    /// The upstream of a namespace that is no aggregate.
    fn of(&self, namespace: &Namespace) -> &dyn Upstream {
        match self.servers.serves(namespace) {
            true => &*self.servers,
            false => &*self.workers,
        }
    }
}

fn is_aggregate(namespace: &Namespace) -> bool {
    matches!(namespace.upstream, UpstreamKind::Aggregate(_))
}

/// State that all aggregates share.
struct AggregatesState {
    home: Home,
    changes: SessionChanges,
    /// Locks that put the changes of each session's active set in order.
    turns: PerSession<SessionTurn>,
    key: SessionKey,
    metrics: ToolmanMetrics,
    /// Running aggregates by namespace. The lock must not be held across an `await`.
    live: Mutex<HashMap<NamespaceName, Arc<RunningAggregate>>>,
    /// True once the gateway shuts down, after which no aggregate is started.
    stopped: AtomicBool,
}

/// The upstream of aggregates.
#[derive(Clone)]
pub struct AggregateUpstream(Arc<AggregatesState>);

/// The upstream of a member, which may be an aggregate itself.
enum Runner<'a> {
    Plain(&'a dyn Upstream),
    Nested(AggregateUpstream),
}

impl Runner<'_> {
    fn upstream(&self) -> &dyn Upstream {
        match self {
            Self::Plain(upstream) => *upstream,
            Self::Nested(aggregates) => aggregates,
        }
    }
}

impl AggregateUpstream {
    /// Creates the upstream of all aggregates. `servers` and `workers` are the upstreams of their members; its background tasks
    /// run on `control`.
    pub fn new(
        registry: Arc<Registry>,
        (servers, workers): (Arc<dyn Upstream>, Arc<dyn Upstream>),
        audience: Arc<Audience>,
        changes: SessionChanges,
        key: SessionKey,
        metrics: ToolmanMetrics,
        control: Handle,
    ) -> Self {
        let shared = Arc::new_cyclic(|aggregates| AggregatesState {
            home: Home {
                registry,
                kinds: Arc::new(Kinds { servers, workers }),
                aggregates: Weak::clone(aggregates),
                audience,
                control,
            },
            changes,
            turns: PerSession::default(),
            key,
            metrics,
            live: Mutex::default(),
            stopped: AtomicBool::new(false),
        });
        let mut published = shared.home.registry.subscribe();
        let followed = Arc::downgrade(&shared);
        // The task that applies changes of the registry ends when the registry or the service is dropped.
        shared.home.control.spawn(async move {
            loop {
                let snapshot = Arc::clone(&published.borrow_and_update());
                let Some(shared) = followed.upgrade() else {
                    return;
                };
                shared.follow(&snapshot);
                drop((shared, snapshot));
                if published.changed().await.is_err() {
                    return;
                }
            }
        });
        Self(shared)
    }
}

impl AggregatesState {
    /// Starts new aggregates, and ends removed ones.
    fn follow(&self, snapshot: &Snapshot) {
        for namespace in snapshot.namespaces.values() {
            self.of(namespace);
        }
        let is_served = |name: &NamespaceName| {
            let served = snapshot.namespaces.get(name);
            served.is_some_and(|namespace| is_aggregate(namespace))
        };
        let gone: Vec<_> = {
            let mut all = self.live.lock().unwrap_or_else(PoisonError::into_inner);
            all.extract_if(|name, _| !is_served(name)).collect()
        };
        // Dropping the removed aggregates ends the tasks of their members. It happens after the lock is released.
        drop(gone);
    }

    /// The aggregate that is served under a name.
    fn served(&self, name: &NamespaceName) -> Option<Arc<RunningAggregate>> {
        let all = self.live.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(name).cloned()
    }

    /// The running aggregate of a namespace, started or updated if needed; unchanged members continue.
    fn of(&self, namespace: &Namespace) -> Option<Arc<RunningAggregate>> {
        let UpstreamKind::Aggregate(aggregate) = &namespace.upstream else {
            return None;
        };
        let mut all = self.live.lock().unwrap_or_else(PoisonError::into_inner);
        let before = all.get(&namespace.name);
        if let Some(live) = before
            && Arc::ptr_eq(&live.aggregate, aggregate)
        {
            return Some(Arc::clone(live));
        }
        // `stopped` is read under the lock that the shutdown holds while it removes all aggregates, so that none is added
        // afterwards.
        if self.stopped.load(Ordering::Relaxed) {
            return None;
        }
        // A request that began before a reload must not restart a replaced or removed aggregate.
        if !self.is_current(&namespace.name, aggregate) {
            return before.map(Arc::clone);
        }
        let members = aggregate.members.iter().zip(&aggregate.spec.members);
        let slots = members.map(|(target, spec)| {
            let known = before.and_then(|before| {
                let mut slots = before.slots.iter();
                slots.find(|slot| slot.is_of(target, spec)).map(Arc::clone)
            });
            known.unwrap_or_else(|| {
                MemberSlot::start(&self.home, &namespace.name, target.clone(), spec)
            })
        });
        let live = RunningAggregate::new(
            namespace.name.clone(),
            Arc::clone(aggregate),
            slots.collect(),
            before.map(|before| &**before),
        );
        let live = Arc::new(live);
        let before = all.insert(namespace.name.clone(), Arc::clone(&live));
        drop(all);
        // Dropping the former aggregate ends the tasks of removed members. It happens after the lock is released.
        drop(before);
        Some(live)
    }

    fn is_current(&self, name: &NamespaceName, aggregate: &Arc<Aggregate>) -> bool {
        let current = self.home.registry.namespace(name.as_str());
        current.is_some_and(|current| match &current.upstream {
            UpstreamKind::Aggregate(current) => Arc::ptr_eq(current, aggregate),
            _ => false,
        })
    }

    /// The namespaces of an aggregate's members, as they are served now.
    fn members(&self, namespace: &Namespace) -> Vec<Arc<Namespace>> {
        let Some(live) = self.of(namespace) else {
            return Vec::new();
        };
        let members = live.slots.iter();
        let members = members.filter_map(|slot| slot.namespace(&self.home.registry));
        // Skips a member whose namespace has become this same aggregate: an aggregate does not contain itself.
        members
            .filter(|member| member.name != namespace.name)
            .collect()
    }

    /// The upstream of a member's namespace.
    fn runner(self: &Arc<Self>, namespace: &Namespace) -> Runner<'_> {
        match is_aggregate(namespace) {
            true => Runner::Nested(AggregateUpstream(Arc::clone(self))),
            false => Runner::Plain(self.home.kinds.of(namespace)),
        }
    }
}

impl Upstream for AggregateUpstream {
    fn serves(&self, namespace: &Namespace) -> bool {
        is_aggregate(namespace)
    }

    fn tool_lists(&self) -> &dyn ToolLists {
        self
    }

    fn server_facts(&self) -> &dyn ServerFacts {
        self
    }

    fn operations(&self) -> &dyn ServerOperations {
        self
    }

    fn prepare<'a>(
        &'a self,
        cx: &'a CallContext<'a>,
        request: IncomingRequest<'a>,
    ) -> MaybeReady<'a, Result<PreparedRequest, RequestError>> {
        MaybeReady::Later(Box::pin(async move {
            let (members, method) = (request.members, request.method);
            members.unambiguous()?;
            members.progress_token()?;
            let asked = AggregateRequest::new(&self.0, cx, Some(members))?;
            let listed = match method {
                "tools/list" => Some(("tools", EntryKind::Tool)),
                "resources/list" => Some(("resources", EntryKind::Resource)),
                "resources/templates/list" => Some(("resourceTemplates", EntryKind::Template)),
                "prompts/list" => Some(("prompts", EntryKind::Prompt)),
                _ => None,
            };
            if let Some((key, kind)) = listed {
                one_page(members)?;
                let asked = asked.settled().await;
                return Ok(PreparedRequest::Response(asked.list(request.id, key, kind)));
            }
            let asked = match is_known(&asked, method, members) {
                true => asked,
                // The name may belong to a member that is still starting, so the request waits for the members' start.
                false => asked.settled().await,
            };
            match method {
                "tools/call" => asked.tool_call(request).await,
                "resources/read" => asked.resource_read(request).await,
                "prompts/get" => asked.prompt_get(request).await,
                "completion/complete" => asked.complete(request).await,
                "logging/setLevel" if cx.client.is_legacy() => asked.set_level(request).await,
                "tasks/get" | "tasks/result" | "tasks/cancel" => asked.task(request).await,
                _ => Err(RequestError::MethodNotFound(method.to_owned())),
            }
        }))
    }

    fn call_tool(
        &self,
        cx: &CallContext<'_>,
        tool: &str,
        arguments: Bytes,
    ) -> Result<Arc<dyn UpstreamCall>, CallError> {
        let asked = AggregateRequest::new(&self.0, cx, None).map_err(as_call_error)?;
        asked.call_tool(tool, arguments)
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
        describe(&mut answer, TaskCapability::Modern);
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
        describe(&mut answer, TaskCapability::of(version));
        format::server_info(answer.key("serverInfo"), &cx.namespace.name);
        MaybeReady::Now(Ok(answer.end()))
    }

    fn listen<'a>(
        &'a self,
        cx: &'a CallContext<'a>,
        wanted: Filter,
    ) -> MaybeReady<'a, Result<GrantedSubscription, RequestError>> {
        // Refuses a request with an invalid toolset handle.
        if let Err(refused) = AggregateRequest::new(&self.0, cx, None) {
            return MaybeReady::Now(Err(refused));
        }
        let granted = Filter {
            updates: Vec::new(),
            ..wanted
        };
        MaybeReady::Now(Ok(GrantedSubscription {
            granted,
            guard: None,
        }))
    }

    fn notify(&self, cx: &CallContext<'_>, method: &str, message: &str) {
        if let Ok(asked) = AggregateRequest::new(&self.0, cx, None) {
            asked.notify(method, message);
        }
    }

    fn stream_opened(&self, namespace: &Namespace, session: &Arc<Session>) {
        for member in self.0.members(namespace) {
            let runner = self.0.runner(&member);
            runner.upstream().stream_opened(&member, session);
        }
    }
}

impl ToolLists for AggregateUpstream {
    /// All tools of the members, active or not.
    fn tools<'a>(
        &'a self,
        namespace: &'a Arc<Namespace>,
        _: Option<&'a Arc<str>>,
        wait: ToolsWait,
    ) -> MaybeReady<'a, Result<Arc<ToolList>, CallError>> {
        let Some(live) = self.0.of(namespace) else {
            let reason = "The aggregate is not served any more";
            return MaybeReady::Now(Err(CallError::new(
                CallErrorCode::WorkerUnavailable,
                reason,
            )));
        };
        MaybeReady::Later(Box::pin(async move {
            if wait == ToolsWait::Long {
                live.settled().await;
            }
            Ok(live.tool_list())
        }))
    }

    fn tools_known(&self, namespace: &Namespace) -> Option<Arc<ToolList>> {
        Some(self.0.of(namespace)?.tool_list())
    }

    /// The tools that are active for a client without a session, and that the caller may use at the tools' members. The active
    /// set is that of the handle in the client's URL, if there is one.
    fn listed<'a>(
        &'a self,
        namespace: &'a Arc<Namespace>,
        caller: &'a Caller,
    ) -> MaybeReady<'a, Result<Arc<ToolList>, CallError>> {
        MaybeReady::Later(Box::pin(async move {
            let body = Bytes::new();
            let cx = CallContext::plain(caller, &body, namespace, self);
            let asked = AggregateRequest::new(&self.0, &cx, None).map_err(as_call_error)?;
            Ok(asked.settled().await.tool_list())
        }))
    }

    fn listed_now(&self, namespace: &Arc<Namespace>, caller: &Caller) -> Option<Arc<ToolList>> {
        let body = Bytes::new();
        let cx = CallContext::plain(caller, &body, namespace, self);
        let asked = AggregateRequest::new(&self.0, &cx, None).ok()?;
        Some(asked.tool_list())
    }

    fn origin(&self, namespace: &Namespace, tool: &str) -> Option<ToolOrigin> {
        let live = self.0.of(namespace)?;
        let catalogue = live.catalogue();
        let entry = catalogue.tool(tool)?;
        let slot = &live.slots[entry.member];
        Some(ToolOrigin {
            namespace: slot.namespace(&self.0.home.registry)?,
            tool: (*entry.own).into(),
            is_served: slot.is_served(),
        })
    }
}

impl ServerFacts for AggregateUpstream {
    fn gets_client_messages(&self) -> bool {
        true
    }

    fn has_task(&self, cx: &CallContext<'_>, task: &str) -> bool {
        AggregateRequest::new(&self.0, cx, None)
            .is_ok_and(|asked| asked.member_of_task(task).is_some())
    }

    fn has_lost_session(&self, namespace: &Namespace, session: &Session) -> bool {
        let lost = |member: &Namespace| {
            let runner = self.0.runner(member);
            let facts = runner.upstream().server_facts();
            facts.has_lost_session(member, session)
        };
        self.0.members(namespace).iter().any(|member| lost(member))
    }
}

impl ServerOperations for AggregateUpstream {
    fn members(&self, namespace: &Namespace) -> Vec<MemberHealth> {
        let Some(live) = self.0.of(namespace) else {
            return Vec::new();
        };
        let members = live.slots.iter().map(|slot| MemberHealth {
            name: Arc::clone(slot.label()),
            namespace: slot.namespace(&self.0.home.registry),
            is_served: slot.is_served(),
            offer: slot.state().health(),
        });
        members.collect()
    }

    fn stop(&self) {
        let all = {
            let mut all = self.0.live.lock().unwrap_or_else(PoisonError::into_inner);
            self.0.stopped.store(true, Ordering::Relaxed);
            std::mem::take(&mut *all)
        };
        // Dropping the aggregates ends the tasks of their members. It happens after the lock is released.
        drop(all);
    }

    fn settled<'a>(&'a self, namespace: &'a Namespace) -> MaybeReady<'a, ()> {
        match self.0.of(namespace) {
            Some(live) => MaybeReady::Later(Box::pin(async move { live.settled().await })),
            None => MaybeReady::Now(()),
        }
    }
}

/// Converts a refusal to the error of surfaces other than MCP. An invalid handle is reported as the caller's fault, every other
/// refusal as a state of the server.
fn as_call_error(refused: RequestError) -> CallError {
    let reason = refused.message().into_owned();
    match refused {
        RequestError::Upstream(error) => error,
        RequestError::InvalidParams(_) => CallError::new(CallErrorCode::InvalidArguments, reason),
        _ => CallError::new(CallErrorCode::WorkerUnavailable, reason),
    }
}

/// Returns true if the tool, prompt or resource that a request names is in the current catalogue.
fn is_known(asked: &AggregateRequest<'_>, method: &str, members: &Members<'_>) -> bool {
    let text = |key| members.get(key).and_then(jsonrpc::string);
    match method {
        "tools/call" => text(Key::Name).is_some_and(|name| asked.catalogue.tool(&name).is_some()),
        "prompts/get" => {
            text(Key::Name).is_some_and(|name| asked.catalogue.prompt(&name).is_some())
        }
        "resources/read" => text(Key::Uri).is_some_and(|uri| asked.resource(&uri).is_ok()),
        "completion/complete" => false,
        _ => true,
    }
}

/// Capability of tasks, in the form of a client's version.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TaskCapability {
    /// The version has no tasks.
    None,
    /// The version has the capability `tasks`.
    Legacy,
    /// The version has the extension.
    Modern,
}

impl TaskCapability {
    fn of(version: ProtocolVersion) -> Self {
        match version.has_tasks() {
            true => Self::Legacy,
            false => Self::None,
        }
    }
}

/// Writes the capabilities of an aggregate, regardless of its current members: a member added later may offer entries of any
/// kind.
fn describe(answer: &mut ResultWriter<'_>, tasks: TaskCapability) {
    let out = answer.key("capabilities");
    out.extend_from_slice(
        br#"{"tools":{"listChanged":true},"resources":{"listChanged":true},"prompts":{"listChanged":true},"completions":{},"logging":{}"#,
    );
    if tasks == TaskCapability::Legacy {
        // There is no `tasks/list`, since each member has its own list.
        out.extend_from_slice(br#","tasks":{"cancel":{},"requests":{"tools":{"call":{}}}}"#);
    }
    out.extend_from_slice(br#","extensions":{"#);
    out.extend_from_slice(apps::DECLARATION);
    if tasks == TaskCapability::Modern {
        out.extend_from_slice(format!(r#","{}":{{}}"#, task_clients::EXTENSION).as_bytes());
    }
    out.extend_from_slice(b"}}");
    let out = answer.key("instructions");
    format::escape(out, INSTRUCTIONS.as_bytes());
}

#[cfg(test)]
mod tests;
