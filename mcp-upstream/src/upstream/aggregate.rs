//! Many namespaces behind one, whose tools and resources the model turns on and off ("Toolman").
//!
//! ```text
//!   tools/list ──▶ Live: offers of all members ──▶ Catalogue ──▶ what the client's Toolset says ──▶ the list
//!   tools/call ──▶ published name ──▶ (member, own name) ──▶ the member's own Upstream ──▶ MemberCall
//!                                                                                             │ engine: view, limits, audit
//!                                                                                             └▶ engine once more, as a
//!                                                                                                call of the member
//! ```
//!
//! Members are namespaces of any kind but aggregates. What they offer is read once and kept ([`member`]); each request
//! finds the catalogue of the moment ([`catalogue`]). Which of it is active for a client: [`toolsets`]. Results, errors,
//! progress, questions and cancellations pass between client and member as they are; only names and URIs change, also in
//! results where they are references ([`references`]).
//!
//! Resource subscriptions are not there (AGG-32): a URI belongs to its member, and `subscriptions/listen` announces changed
//! lists alone.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use serde_json::Value;
use serde_json::value::RawValue;
use tokio::runtime::Handle;
use tokio::time::timeout;
use tooldock_workers::aggregate::{ActivationScope, Aggregate, AggregateMember};
use tooldock_workers::error::{CallError, CallErrorCode};
use tooldock_workers::names::NamespaceName;
use tooldock_workers::registry::{Namespace, Registry, UpstreamKind};
use tooldock_workers::worker::LogLevel;

use super::{
    CallContext, IncomingRequest, Listening, Prepared, SessionChanges, Soon, ToolsWait, Upstream,
};
use crate::broadcast::{Audience, Filter};
use crate::caller::Caller;
use crate::catalogue::ToolList;
use crate::engine::{CallFacts, Peer, Talks, UpstreamCall, shortened};
use crate::format::{self, CacheScope, ResultFormat, ResultWriter};
use crate::jsonrpc::spans::{self, MemberEdit};
use crate::jsonrpc::{self, Key, Members, Message, RequestError};
use crate::metrics::toolman::ToolmanMetrics;
use crate::protocol::{Method, ProtocolVersion, code};
use crate::seal::SessionKey;
use crate::session::{Session, SessionPatch, Toolset};

mod activate;
mod call;
mod catalogue;
mod member;
mod names;
mod offer;
mod own;
mod pace;
mod references;
mod toolsets;

use activate::Activation;
use call::{MemberCall, OwnCall};
use catalogue::{Catalogue, Entry, Kind};
use member::{Home, Slot, State};
use own::{ACTIVATE, CALL, SEARCH, Said, Shown};
use references::References;
use toolsets::{Active, SharedSets};

/// How long lists may be kept by clients of 2026-07-28: what is active changes with each activation.
const TTL_MS: u64 = 1_000;
/// How long members may take to hear of another log level.
const LEVEL_WAIT: Duration = Duration::from_secs(5);
/// What an aggregate says of itself at the beginning of a conversation.
const INSTRUCTIONS: &str = "Tools and resources of several servers. Only active ones can be used: turn on what you need, and off what you do not, with toolman_activate, whose description lists all of them.";

/// The kinds of upstreams that members may have.
pub(super) struct Kinds {
    /// Servers that speak MCP.
    servers: Arc<dyn Upstream>,
    /// Functions, and all others.
    workers: Arc<dyn Upstream>,
}

impl Kinds {
    /// What runs a namespace; `None` for an aggregate.
    fn of(&self, namespace: &Namespace) -> Option<&dyn Upstream> {
        if is_aggregate(namespace) {
            None
        } else if self.servers.serves(namespace) {
            Some(&*self.servers)
        } else {
            Some(&*self.workers)
        }
    }
}

fn is_aggregate(namespace: &Namespace) -> bool {
    matches!(namespace.upstream, UpstreamKind::Aggregate(_))
}

/// What all aggregates share.
struct Shared {
    home: Home,
    changes: SessionChanges,
    key: SessionKey,
    metrics: ToolmanMetrics,
    /// By namespace. Plain data; nothing awaits under it.
    live: Mutex<HashMap<NamespaceName, Arc<Live>>>,
}

/// The namespaces that are aggregates.
#[derive(Clone)]
pub(crate) struct AggregateUpstream(Arc<Shared>);

/// One aggregate, while its configuration stays as it is.
struct Live {
    name: NamespaceName,
    aggregate: Arc<Aggregate>,
    /// In the order of the file.
    slots: Vec<Arc<Slot>>,
    /// The last catalogue, and the offers that it was made of.
    built: Mutex<Option<Built>>,
    /// Kept through reloads.
    sets: Arc<SharedSets>,
}

type Offers = Vec<(Arc<str>, Option<Arc<offer::Offer>>)>;

#[derive(Clone)]
struct Built {
    offers: Offers,
    catalogue: Arc<Catalogue>,
    version: u64,
    /// As those see the tools that do not speak MCP: those of the start set, and all. Made when somebody asks.
    lists: Arc<[OnceLock<Arc<ToolList>>; 2]>,
}

impl Live {
    /// What members offer now.
    fn catalogue(&self) -> Arc<Catalogue> {
        self.built().catalogue
    }

    fn built(&self) -> Built {
        let offers = self.slots.iter();
        let offers: Offers = offers
            .map(|slot| (Arc::clone(slot.prefix()), slot.offer()))
            .collect();
        let mut built = self.built.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(built) = &*built
            && same_offers(&built.offers, &offers)
        {
            return built.clone();
        }
        let version = built.as_ref().map_or(1, |built| built.version + 1);
        let spec = &self.aggregate.spec;
        let catalogue = Arc::new(Catalogue::new(spec, &offers, &own::names(&spec.options)));
        let next = Built {
            offers,
            catalogue,
            version,
            lists: Arc::default(),
        };
        *built = Some(next.clone());
        next
    }

    /// Waits until each member offers something, does not start, or takes too long.
    async fn settled(&self) {
        join_all(self.slots.iter().map(|slot| slot.settled())).await;
    }

    fn scope(&self) -> ActivationScope {
        let options = &self.aggregate.spec.options;
        options.activation_scope.unwrap_or(ActivationScope::Session)
    }
}

fn same_offers(one: &Offers, other: &Offers) -> bool {
    let same =
        |(one, other): (&Option<Arc<offer::Offer>>, &Option<Arc<offer::Offer>>)| match (one, other)
        {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (None, None) => true,
            _ => false,
        };
    let offers = one.iter().zip(other);
    one.len() == other.len() && offers.map(|(one, other)| (&one.1, &other.1)).all(same)
}

impl AggregateUpstream {
    /// Aggregates over members of these kinds. Their tasks run on `control`.
    pub(crate) fn new(
        registry: Arc<Registry>,
        (servers, workers): (Arc<dyn Upstream>, Arc<dyn Upstream>),
        audience: Arc<Audience>,
        changes: SessionChanges,
        key: SessionKey,
        metrics: ToolmanMetrics,
        control: Handle,
    ) -> Self {
        let home = Home {
            registry,
            kinds: Arc::new(Kinds { servers, workers }),
            audience,
            control,
        };
        let shared = Arc::new(Shared {
            home,
            changes,
            key,
            metrics,
            live: Mutex::default(),
        });
        let following = Self(Arc::clone(&shared));
        let mut published = shared.home.registry.subscribe();
        let followed = Arc::downgrade(&following.0);
        drop(following);
        // Ends with the registry or with the service.
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

impl Shared {
    /// Begins with aggregates that are new, and ends those that are gone.
    fn follow(&self, snapshot: &tooldock_workers::registry::Snapshot) {
        for namespace in snapshot.namespaces.values() {
            self.of(namespace);
        }
        let mut live = self.live.lock().unwrap_or_else(PoisonError::into_inner);
        live.retain(|name, _| {
            let served = snapshot.namespaces.get(name);
            served.is_some_and(|namespace| is_aggregate(namespace))
        });
    }

    /// The aggregate of a namespace; members that did not change go on as they are.
    fn of(&self, namespace: &Namespace) -> Option<Arc<Live>> {
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
        // A request that began before a reload must not bring back what was replaced.
        if let Some(live) = before
            && !self.is_current(&namespace.name, aggregate)
        {
            return Some(Arc::clone(live));
        }
        let members = aggregate.members.iter().zip(&aggregate.spec.members);
        let slots = members.map(|(target, spec)| {
            let known = before.and_then(|before| {
                let mut slots = before.slots.iter();
                slots.find(|slot| slot.is_of(target, spec)).map(Arc::clone)
            });
            known.unwrap_or_else(|| Slot::start(&self.home, &namespace.name, target.clone(), spec))
        });
        let live = Arc::new(Live {
            name: namespace.name.clone(),
            aggregate: Arc::clone(aggregate),
            slots: slots.collect(),
            built: Mutex::default(),
            sets: before.map_or_else(Arc::default, |before| Arc::clone(&before.sets)),
        });
        let before = all.insert(namespace.name.clone(), Arc::clone(&live));
        drop(all);
        // Outside of the lock: it ends the tasks of members that are gone.
        drop(before);
        Some(live)
    }
}

impl Shared {
    fn is_current(&self, name: &NamespaceName, aggregate: &Arc<Aggregate>) -> bool {
        let current = self.home.registry.namespace(name.as_str());
        current.is_some_and(|current| match &current.upstream {
            UpstreamKind::Aggregate(current) => Arc::ptr_eq(current, aggregate),
            _ => false,
        })
    }
}

/// One request of an aggregate, with all that its answer depends on.
struct Asked<'a> {
    shared: &'a Arc<Shared>,
    cx: &'a CallContext<'a>,
    live: Arc<Live>,
    catalogue: Arc<Catalogue>,
    active: Active,
}

impl<'a> Asked<'a> {
    fn new(
        shared: &'a Arc<Shared>,
        cx: &'a CallContext<'a>,
        members: Option<&Members<'_>>,
    ) -> Result<Self, RequestError> {
        let live = shared.of(&cx.namespace).ok_or(RequestError::Internal)?;
        let active = toolsets::active(cx, members, live.scope(), &live.sets, &shared.key)?;
        Ok(Self {
            shared,
            cx,
            catalogue: live.catalogue(),
            live,
            active,
        })
    }

    /// The same with what members offer once all have had their time.
    async fn settled(mut self) -> Self {
        self.live.settled().await;
        self.catalogue = self.live.catalogue();
        self
    }

    /// Whether the caller may know of an entry: of a namespace that clients reach otherwise, only what they could use
    /// there.
    fn is_visible(&self, entry: &Entry) -> bool {
        let slot = &self.live.slots[entry.member];
        if entry.kind == Kind::Tool && !self.cx.view().allows_tool(&entry.published) {
            return false;
        }
        let Some(namespace) = slot.namespace(&self.shared.home.registry) else {
            return false;
        };
        may_reach(self.cx.caller, slot, &namespace)
            && (entry.kind != Kind::Tool || namespace.policy.allows_tool(&entry.own))
    }

    fn options(&self) -> &tooldock_workers::aggregate::AggregateOptions {
        &self.live.aggregate.spec.options
    }

    /// One page with all entries of a kind that are active.
    fn list(&self, id: &str, key: &'static str, kind: Kind) -> Vec<u8> {
        let format = self.cx.result_format();
        let mut answer =
            ResultWriter::begin(id, &format, 4096).cached_for(TTL_MS, CacheScope::Private);
        let definitions = self.definitions(kind, &self.active.toolset);
        let out = answer.key(key);
        out.push(b'[');
        for (at, definition) in definitions.iter().enumerate() {
            if at > 0 {
                out.push(b',');
            }
            out.extend_from_slice(definition.as_bytes());
        }
        out.push(b']');
        answer.end()
    }

    /// The definitions of what is active of a kind, the aggregate's own tools first.
    fn definitions(&self, kind: Kind, toolset: &Toolset) -> Vec<Cow<'_, str>> {
        let visible = |entry: &Entry| self.is_visible(entry);
        let shown = Shown {
            catalogue: &self.catalogue,
            toolset,
            visible: &visible,
        };
        let mut definitions = Vec::new();
        if kind == Kind::Tool {
            let own = own::names(self.options());
            let own = own
                .into_iter()
                .filter(|name| self.cx.view().allows_tool(name));
            definitions.extend(
                own.map(|name| {
                    Cow::Owned(own::definition(name, &shown, self.options()).to_string())
                }),
            );
        }
        let entries = self.catalogue.of(kind);
        let entries = entries.filter(|entry| entry.is_active(toolset) && self.is_visible(entry));
        definitions.extend(entries.map(|entry| Cow::Borrowed(&*entry.definition)));
        definitions
    }

    /// What the engine goes by for a call of the aggregate.
    fn facts(&self, method: &str, subject: &str, arguments: Bytes) -> CallFacts {
        CallFacts {
            namespace: Arc::clone(&self.cx.namespace),
            method: Method::of(method),
            subject: subject.into(),
            arguments,
            transport: self.cx.transport(),
            version: self.cx.wire_version(),
            session: self.cx.session().map(|session| Arc::clone(session.tag())),
            talks: Talks::No,
            progress_token: None,
            asks_singly: false,
        }
    }

    /// A call that is answered with what the aggregate says: as a result where it is one of a tool, else as an error.
    fn answered(&self, facts: CallFacts, said: &Said, code: i32) -> Arc<dyn UpstreamCall> {
        let response = match facts.method.is_tool_call() {
            true => said.result(&self.cx.result_format()),
            false => said.rpc_error(code),
        };
        OwnCall::new(facts, Box::pin(std::future::ready(response)))
    }

    /// A tool by its published name, if it is there for this caller and active.
    fn active_tool(&self, name: &str) -> Result<&Entry, Said> {
        let found = self.catalogue.tool(name);
        match found.filter(|entry| self.is_visible(entry)) {
            Some(entry) if entry.is_active(&self.active.toolset) => Ok(entry),
            Some(_) => Err(Said::error(format!(
                "{name} is not active: call {ACTIVATE} with tools_on: [\"{name}\"] first"
            ))),
            None => Err(Said::error(self.unknown(name, false))),
        }
    }

    fn unknown(&self, name: &str, resources: bool) -> String {
        let visible = |entry: &Entry| self.is_visible(entry);
        let shown = Shown {
            catalogue: &self.catalogue,
            toolset: &self.active.toolset,
            visible: &visible,
        };
        let mut reason = shown.unknown(name, resources);
        for slot in &self.live.slots {
            let label = slot.label();
            if names::own(slot.prefix(), name).is_none() || slot.prefix().is_empty() {
                continue;
            }
            // Nothing is told of a namespace that is closed to the caller.
            let namespace = slot.namespace(&self.shared.home.registry);
            if namespace.is_some_and(|it| !may_reach(self.cx.caller, slot, &it)) {
                continue;
            }
            match slot.state() {
                State::Gone(why) => {
                    reason = format!("{reason}; server {label} offers nothing now: {why}");
                }
                State::Starting | State::Late => {
                    reason = format!("{reason}; server {label} is still starting");
                }
                State::Ready(_) => {}
            }
        }
        reason
    }

    /// `tools/call` of anything but a member's tool.
    fn own_tool(&self, name: &str, arguments: &Bytes, facts: CallFacts) -> Arc<dyn UpstreamCall> {
        let format = self.cx.result_format();
        if name == SEARCH {
            #[derive(serde::Deserialize)]
            struct Query {
                query: String,
            }
            let said = match serde_json::from_slice::<Query>(arguments) {
                Ok(Query { query }) => {
                    let visible = |entry: &Entry| self.is_visible(entry);
                    let shown = Shown {
                        catalogue: &self.catalogue,
                        toolset: &self.active.toolset,
                        visible: &visible,
                    };
                    Said {
                        outcome: Ok(Value::from(shown.search(&query))),
                        further: Vec::new(),
                        handle: None,
                    }
                }
                Err(_) => Said::error("query is missing, or is no string"),
            };
            return self.answered(facts, &said, code::INVALID_PARAMS);
        }
        let (shared, live) = (Arc::clone(self.shared), Arc::clone(&self.live));
        let catalogue = Arc::clone(&self.catalogue);
        let visible: Vec<bool> = {
            let entries = catalogue.entries().iter();
            entries.map(|entry| self.is_visible(entry)).collect()
        };
        let active = self.active.clone();
        let principal = self.cx.caller.principal.clone();
        let arguments = arguments.clone();
        OwnCall::new(
            facts,
            Box::pin(async move {
                let toolset = Arc::clone(&active.toolset);
                let visible = |entry: &Entry| visible.get(entry.at).copied().unwrap_or(false);
                let shown = Shown {
                    catalogue: &catalogue,
                    toolset: &toolset,
                    visible: &visible,
                };
                let activation = Activation {
                    shared,
                    live,
                    active,
                    principal,
                };
                activation.run(&shown, &arguments).await.result(&format)
            }),
        )
    }

    /// A request that goes to a member, its parameters with these changes.
    async fn to_member(
        &self,
        request: IncomingRequest<'_>,
        entry: &Entry,
        published: &str,
        params: String,
    ) -> Result<Prepared, RequestError> {
        let slot = &self.live.slots[entry.member];
        let namespace = self.member_namespace(slot)?;
        let kinds = &self.shared.home.kinds;
        let upstream = kinds.of(&namespace).ok_or(RequestError::Internal)?;
        let message = request.members.message();
        let change = MemberEdit::Set("params", params.into());
        let body = Bytes::from(spans::edit(message, &[change]));
        let text = jsonrpc::text(&body)?;
        let Ok(Message::Request {
            id,
            method,
            members,
        }) = jsonrpc::message(text)
        else {
            return Err(RequestError::InvalidParams(
                "the parameters cannot be read, or are nested too deep".into(),
            ));
        };
        let cx = self.child(&body, namespace, upstream);
        let request = IncomingRequest {
            id,
            method: &method,
            members: &members,
        };
        let prepared = upstream.prepare(&cx, request).get().await?;
        Ok(match prepared {
            Prepared::Call(call) => Prepared::Call(self.relayed(entry, published, call)),
            answered @ Prepared::Response(_) => answered,
        })
    }

    /// The context of a request to a member.
    fn child<'c>(
        &'c self,
        body: &'c Bytes,
        namespace: Arc<Namespace>,
        upstream: &'c dyn Upstream,
    ) -> CallContext<'c> {
        CallContext {
            caller: self.cx.caller,
            body,
            namespace,
            upstream,
            client: self.cx.client.clone(),
            streams: self.cx.streams,
        }
    }

    fn member_namespace(&self, slot: &Slot) -> Result<Arc<Namespace>, RequestError> {
        slot.namespace(&self.shared.home.registry).ok_or_else(|| {
            let reason = format!("server {} is not served any more", slot.label());
            RequestError::Upstream(CallError::new(CallErrorCode::WorkerUnavailable, reason))
        })
    }

    /// A member's call as one of the aggregate.
    fn relayed(
        &self,
        entry: &Entry,
        published: &str,
        call: Arc<dyn UpstreamCall>,
    ) -> Arc<dyn UpstreamCall> {
        let slot = &self.live.slots[entry.member];
        let own = call.facts();
        let mut facts = self.facts(&own.method, published, own.arguments.clone());
        facts.talks = own.talks;
        facts.progress_token.clone_from(&own.progress_token);
        facts.asks_singly = own.asks_singly;
        Arc::new(MemberCall {
            facts,
            via: Arc::clone(slot.label()),
            references: References::new(&self.catalogue, entry.member, slot.prefix()),
            call,
        })
    }

    async fn tool_call(&self, request: IncomingRequest<'_>) -> Result<Prepared, RequestError> {
        let members = request.members;
        let name = text_of(members, Key::Name, "params.name")?;
        let sent = members.get(Key::Arguments);
        jsonrpc::object(sent, "params.arguments")?;
        let arguments = self.cx.own_object(sent);
        let params = members.params().map_or("{}", RawValue::get);
        let own = own::names(self.options());
        if !own.contains(&&*name) {
            let facts = self.facts(request.method, &name, arguments);
            return match self.active_tool(&name) {
                Ok(entry) => {
                    let params = with(params, "name", &entry.own);
                    self.to_member(request, entry, &name, params).await
                }
                Err(said) => Ok(Prepared::Call(self.answered(
                    facts,
                    &said,
                    code::INVALID_PARAMS,
                ))),
            };
        }
        let facts = self.facts(request.method, &name, arguments.clone());
        if name != CALL {
            return Ok(Prepared::Call(self.own_tool(&name, &arguments, facts)));
        }
        let inner = Inner::read(&arguments);
        let found = inner.and_then(|inner| Ok((self.active_tool(&inner.tool)?, inner)));
        match found {
            Ok((entry, inner)) => {
                self.count_call();
                let named = with(params, "name", &entry.own);
                let changes = [MemberEdit::Set("arguments", inner.arguments.get().into())];
                let params = spans::edit(&named, &changes);
                self.to_member(request, entry, &name, params).await
            }
            Err(said) => Ok(Prepared::Call(self.answered(
                facts,
                &said,
                code::INVALID_PARAMS,
            ))),
        }
    }

    fn count_call(&self) {
        let calls = &self.shared.metrics.calls;
        calls.with_label_values(&[self.live.name.as_str()]).inc();
    }

    async fn resource_read(&self, request: IncomingRequest<'_>) -> Result<Prepared, RequestError> {
        let uri = text_of(request.members, Key::Uri, "params.uri")?;
        let params = request.members.params().map_or("{}", RawValue::get);
        match self.resource(&uri) {
            Ok((entry, own)) => {
                let params = with(params, "uri", &own);
                self.to_member(request, entry, &uri, params).await
            }
            Err((said, code)) => {
                let facts = self.facts(request.method, &uri, Bytes::new());
                Ok(Prepared::Call(self.answered(facts, &said, code)))
            }
        }
    }

    /// An active resource, or template, by a published URI, and the member's own URI.
    fn resource(&self, uri: &str) -> Result<(&Entry, String), (Said, i32)> {
        let listed = self.catalogue.resource(uri);
        let listed = listed.filter(|entry| entry.kind == Kind::Resource && self.is_visible(entry));
        let prefix_of = |member: usize| self.live.slots[member].prefix().len();
        let toolset = &self.active.toolset;
        let of_template = || {
            let found = self.catalogue.template(uri, prefix_of, toolset);
            found.filter(|entry| self.is_visible(entry))
        };
        let active_first = listed
            .filter(|entry| entry.is_active(toolset))
            .or_else(|| of_template().filter(|entry| entry.is_active(toolset)))
            .or(listed)
            .or_else(of_template);
        let Some(entry) = active_first else {
            let code = match self.cx.client.is_modern() {
                true => code::INVALID_PARAMS,
                false => code::RESOURCE_NOT_FOUND,
            };
            return Err((Said::error(self.unknown(uri, true)), code));
        };
        if !entry.is_active(toolset) {
            let name = &entry.published;
            let reason = format!(
                "{uri} is not active: call {ACTIVATE} with resources_on: [\"{name}\"] first"
            );
            return Err((Said::error(reason), code::INVALID_PARAMS));
        }
        let own = match entry.kind {
            Kind::Resource => entry.own.to_string(),
            _ => {
                let prefix = self.live.slots[entry.member].prefix();
                names::own(prefix, uri).unwrap_or(uri).to_owned()
            }
        };
        Ok((entry, own))
    }

    async fn prompt_get(&self, request: IncomingRequest<'_>) -> Result<Prepared, RequestError> {
        let name = text_of(request.members, Key::Name, "params.name")?;
        let params = request.members.params().map_or("{}", RawValue::get);
        match self
            .catalogue
            .prompt(&name)
            .filter(|it| self.is_visible(it))
        {
            Some(entry) => {
                let params = with(params, "name", &entry.own);
                self.to_member(request, entry, &name, params).await
            }
            None => {
                let near = self.catalogue.of(Kind::Prompt);
                let near = near.filter(|it| self.is_visible(it));
                let near = near.filter(|it| own::likeness(&it.published, &name) >= own::ALIKE);
                let near: Vec<_> = near.map(|it| &*it.published).take(3).collect();
                let near = match near.is_empty() {
                    true => "prompts/list shows all there are".to_owned(),
                    false => format!("did you mean {}?", near.join(", ")),
                };
                let said = Said::error(format!("unknown prompt {}: {near}", shortened(&name)));
                let facts = self.facts(request.method, &name, Bytes::new());
                Ok(Prepared::Call(self.answered(
                    facts,
                    &said,
                    code::INVALID_PARAMS,
                )))
            }
        }
    }

    /// `completion/complete`: goes to the member of the prompt or template that it is about.
    async fn complete(&self, request: IncomingRequest<'_>) -> Result<Prepared, RequestError> {
        let invalid = |reason: &'static str| RequestError::InvalidParams(reason.into());
        let reference = request.members.get(Key::Ref);
        let reference = reference.ok_or_else(|| invalid("params.ref must be an object"))?;
        let text = |key| spans::member(reference, key).and_then(jsonrpc::string);
        let (entry, key, published) = match text("type").as_deref() {
            Some("ref/prompt") => {
                let name =
                    text("name").ok_or_else(|| invalid("params.ref.name must be a string"))?;
                (self.catalogue.prompt(&name), "name", name)
            }
            Some("ref/resource") => {
                let uri = text("uri").ok_or_else(|| invalid("params.ref.uri must be a string"))?;
                (self.catalogue.resource(&uri), "uri", uri)
            }
            _ => {
                return Err(invalid(
                    "params.ref.type must be ref/prompt or ref/resource",
                ));
            }
        };
        let active = &self.active.toolset;
        let entry = entry.filter(|it| self.is_visible(it) && it.is_active(active));
        let entry = entry.ok_or_else(|| {
            let reason = format!("unknown or inactive reference {published}");
            RequestError::InvalidParams(reason.into())
        })?;
        let params = request.members.params().map_or("{}", RawValue::get);
        let reference = with(reference.get(), key, &entry.own);
        let params = spans::edit(params, &[MemberEdit::Set("ref", reference.into())]);
        self.to_member(request, entry, &published, params).await
    }

    /// `logging/setLevel`: the session remembers the level; members that log are asked for as much.
    async fn set_level(&self, request: IncomingRequest<'_>) -> Result<Prepared, RequestError> {
        let level = text_of(request.members, Key::LogLevel, "params.level")?;
        let level: LogLevel = level.parse().map_err(|_| {
            let levels = LogLevel::ALL.map(LogLevel::as_str).join(", ");
            RequestError::InvalidParams(format!("params.level must be one of {levels}").into())
        })?;
        if let Some(session) = self.cx.session() {
            let wanted = SessionPatch::LogLevel(level);
            self.shared.changes.commit(session, wanted).await?;
        }
        let ready = self.live.slots.iter().filter(|slot| slot.offer().is_some());
        let told = ready.map(async |slot| {
            let namespace = self.member_namespace(slot)?;
            if !may_reach(self.cx.caller, slot, &namespace) {
                return Ok(());
            }
            let upstream = self.shared.home.kinds.of(&namespace);
            let upstream = upstream.ok_or(RequestError::Internal)?;
            let cx = self.child(self.cx.body, namespace, upstream);
            if let Prepared::Call(call) = upstream.prepare(&cx, request).get().await? {
                let _ = call.start(Peer::nobody()).await;
            }
            Ok::<_, RequestError>(())
        });
        // A member that has no log says so; that is no failure.
        let _ = timeout(LEVEL_WAIT, join_all(told)).await;
        let format = self.cx.result_format();
        Ok(Prepared::Response(
            ResultWriter::begin(request.id, &format, 0).end(),
        ))
    }
}

/// What `toolman_call` is to call.
struct Inner {
    tool: String,
    arguments: Box<RawValue>,
}

impl Inner {
    fn read(arguments: &Bytes) -> Result<Self, Said> {
        #[derive(serde::Deserialize)]
        struct Sent {
            tool: String,
            #[serde(default)]
            arguments: Option<Box<RawValue>>,
        }
        let sent: Sent = serde_json::from_slice(arguments)
            .map_err(|_| Said::error("tool is missing, or is no string"))?;
        let empty = || RawValue::from_string("{}".into()).expect("an empty object is JSON");
        let arguments = sent.arguments.unwrap_or_else(empty);
        if !arguments.get().starts_with('{') {
            return Err(Said::error("arguments must be an object"));
        }
        Ok(Self {
            tool: sent.tool,
            arguments,
        })
    }
}

/// The object with a text in the place of one of its members.
fn with(object: &str, key: &'static str, text: &str) -> String {
    let text = Value::from(text).to_string();
    spans::edit(object, &[MemberEdit::Set(key, text.into())])
}

fn text_of<'a>(
    members: &Members<'a>,
    key: Key,
    what: &'static str,
) -> Result<Cow<'a, str>, RequestError> {
    let text = members.get(key).and_then(jsonrpc::string);
    text.ok_or_else(|| RequestError::InvalidParams(format!("{what} must be a string").into()))
}

/// A cursor is none of ours: there is never a second page.
fn one_page(members: &Members<'_>) -> Result<(), RequestError> {
    match members.raw(Key::Cursor) {
        Some(cursor) if cursor != "null" => Err(RequestError::InvalidParams(
            "params.cursor is none of this server".into(),
        )),
        _ => Ok(()),
    }
}

impl Upstream for AggregateUpstream {
    fn serves(&self, namespace: &Namespace) -> bool {
        is_aggregate(namespace)
    }

    fn speaks_mcp(&self) -> bool {
        true
    }

    fn prepare<'a>(
        &'a self,
        cx: &'a CallContext<'a>,
        request: IncomingRequest<'a>,
    ) -> Soon<'a, Result<Prepared, RequestError>> {
        Soon::Later(Box::pin(async move {
            let (members, method) = (request.members, request.method);
            members.unambiguous()?;
            members.progress_token()?;
            let asked = Asked::new(&self.0, cx, Some(members))?;
            let listed = match method {
                "tools/list" => Some(("tools", Kind::Tool)),
                "resources/list" => Some(("resources", Kind::Resource)),
                "resources/templates/list" => Some(("resourceTemplates", Kind::Template)),
                "prompts/list" => Some(("prompts", Kind::Prompt)),
                _ => None,
            };
            if let Some((key, kind)) = listed {
                one_page(members)?;
                let asked = asked.settled().await;
                return Ok(Prepared::Response(asked.list(request.id, key, kind)));
            }
            let asked = match is_known(&asked, method, members) {
                true => asked,
                // It may be of a member that is still starting.
                false => asked.settled().await,
            };
            match method {
                "tools/call" => asked.tool_call(request).await,
                "resources/read" => asked.resource_read(request).await,
                "prompts/get" => asked.prompt_get(request).await,
                "completion/complete" => asked.complete(request).await,
                "logging/setLevel" if cx.client.is_legacy() => asked.set_level(request).await,
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
        let failed = |error: RequestError| {
            let reason = error.message().into_owned();
            CallError::new(CallErrorCode::InternalError, reason)
        };
        let asked = Asked::new(&self.0, cx, None).map_err(failed)?;
        let facts = |arguments| asked.facts("tools/call", tool, arguments);
        let own = own::names(asked.options());
        let (name, arguments) = match own.contains(&tool) {
            false => (tool.to_owned(), arguments),
            true if tool == CALL => match Inner::read(&arguments) {
                Ok(inner) => {
                    asked.count_call();
                    (inner.tool, inner.arguments.get().to_owned().into())
                }
                Err(said) => return Ok(asked.answered(facts(arguments), &said, 0)),
            },
            true => return Ok(asked.own_tool(tool, &arguments, facts(arguments.clone()))),
        };
        let entry = match asked.active_tool(&name) {
            Ok(entry) => entry,
            Err(said) => return Ok(asked.answered(facts(arguments), &said, 0)),
        };
        let slot = &asked.live.slots[entry.member];
        let namespace = asked.member_namespace(slot).map_err(failed)?;
        let kinds = &self.0.home.kinds;
        let upstream = kinds.of(&namespace);
        let upstream = upstream.ok_or_else(|| failed(RequestError::Internal))?;
        let child = asked.child(cx.body, namespace, upstream);
        let call = upstream.call_tool(&child, &entry.own, arguments)?;
        Ok(asked.relayed(entry, tool, call))
    }

    fn initialize<'a>(
        &'a self,
        cx: &'a CallContext<'a>,
        id: &'a str,
        _session: &'a Arc<Session>,
        version: ProtocolVersion,
    ) -> Soon<'a, Result<Vec<u8>, CallError>> {
        let format = ResultFormat::Legacy(version);
        let mut answer = ResultWriter::begin(id, &format, 512);
        let out = answer.key("protocolVersion");
        format::escape(out, version.as_str().as_bytes());
        describe(&mut answer);
        format::server_info(answer.key("serverInfo"), &cx.namespace.name);
        Soon::Now(Ok(answer.end()))
    }

    fn discover<'a>(
        &'a self,
        cx: &'a CallContext<'a>,
        id: &'a str,
        versions: &'a [&'a str],
    ) -> Soon<'a, Result<Vec<u8>, CallError>> {
        let format = cx.result_format();
        let mut answer = ResultWriter::begin(id, &format, 512).cached(cx.view().cache_scope());
        let out = answer.key("supportedVersions");
        serde_json::to_writer(out, versions).expect("strings serialize into memory");
        describe(&mut answer);
        Soon::Now(Ok(answer.end()))
    }

    fn listen<'a>(
        &'a self,
        _: &'a CallContext<'a>,
        wanted: Filter,
    ) -> Soon<'a, Result<Listening, RequestError>> {
        let granted = Filter {
            updates: Vec::new(),
            ..wanted
        };
        Soon::Now(Ok(Listening {
            granted,
            guard: None,
        }))
    }

    fn notify(&self, cx: &CallContext<'_>, method: &str, message: &str) {
        let Some(live) = self.0.of(&cx.namespace) else {
            return;
        };
        for slot in &live.slots {
            let home = &self.0.home;
            let Some(namespace) = slot.namespace(&home.registry) else {
                continue;
            };
            if !may_reach(cx.caller, slot, &namespace) {
                continue;
            }
            let Some(upstream) = home.kinds.of(&namespace) else {
                continue;
            };
            let child = CallContext {
                caller: cx.caller,
                body: cx.body,
                namespace: Arc::clone(&namespace),
                upstream,
                client: cx.client.clone(),
                streams: cx.streams,
            };
            upstream.notify(&child, method, message);
        }
    }

    fn stream_opened(&self, namespace: &Namespace, session: &Arc<Session>) {
        let Some(live) = self.0.of(namespace) else {
            return;
        };
        for slot in &live.slots {
            let home = &self.0.home;
            if let Some(member) = slot.namespace(&home.registry)
                && let Some(upstream) = home.kinds.of(&member)
            {
                upstream.stream_opened(&member, session);
            }
        }
    }

    /// For lists (`Long`) what is active at the start; for a call (`Short`) all there is.
    fn tools<'a>(
        &'a self,
        namespace: &'a Arc<Namespace>,
        wait: ToolsWait,
    ) -> Soon<'a, Result<Arc<ToolList>, CallError>> {
        let Some(live) = self.0.of(namespace) else {
            let reason = "The aggregate is not served any more";
            return Soon::Now(Err(CallError::new(
                CallErrorCode::WorkerUnavailable,
                reason,
            )));
        };
        Soon::Later(Box::pin(async move {
            if wait == ToolsWait::Long {
                live.settled().await;
            }
            Ok(tool_list(&live, wait == ToolsWait::Long))
        }))
    }

    fn tools_known(&self, namespace: &Namespace) -> Option<Arc<ToolList>> {
        Some(tool_list(&*self.0.of(namespace)?, true))
    }

    fn settled<'a>(&'a self, namespace: &'a Namespace) -> Soon<'a, ()> {
        match self.0.of(namespace) {
            Some(live) => Soon::Later(Box::pin(async move { live.settled().await })),
            None => Soon::Now(()),
        }
    }
}

/// Whether what a request names is in the catalogue of the moment.
fn is_known(asked: &Asked<'_>, method: &str, members: &Members<'_>) -> bool {
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

/// What an aggregate has, whatever its members have now: one that is late may bring anything.
fn describe(answer: &mut ResultWriter<'_>) {
    let out = answer.key("capabilities");
    out.extend_from_slice(
        br#"{"tools":{"listChanged":true},"resources":{"listChanged":true},"prompts":{"listChanged":true},"completions":{},"logging":{}}"#,
    );
    let out = answer.key("instructions");
    format::escape(out, INSTRUCTIONS.as_bytes());
}

/// Whether what a caller says to the aggregate may go to a member: to a namespace of its own only where the caller may use
/// that namespace by itself.
fn may_reach(caller: &Caller, slot: &Slot, namespace: &Namespace) -> bool {
    !slot.is_served() || caller.may_use(namespace)
}

/// Whether everybody who may use the aggregate may know of an entry. What a namespace of its own offers is shown by lists
/// that know their caller.
fn is_for_all(live: &Live, entry: &Entry) -> bool {
    match &live.aggregate.members[entry.member] {
        AggregateMember::Own(namespace) => {
            entry.kind != Kind::Tool || namespace.policy.allows_tool(&entry.own)
        }
        AggregateMember::Served(_) => false,
    }
}

/// The tools for those that do not speak MCP, and for looking at calls: the start set, or all.
fn tool_list(live: &Live, of_start: bool) -> Arc<ToolList> {
    let built = live.built();
    let list =
        built.lists[usize::from(of_start)].get_or_init(|| written_list(live, &built, of_start));
    Arc::clone(list)
}

fn written_list(live: &Live, built: &Built, of_start: bool) -> Arc<ToolList> {
    let (catalogue, version) = (&built.catalogue, built.version);
    let start = Toolset::default();
    let for_all = |entry: &Entry| is_for_all(live, entry);
    let shown = Shown {
        catalogue,
        toolset: &start,
        visible: &for_all,
    };
    let options = &live.aggregate.spec.options;
    let own = own::names(options).into_iter();
    let own = own.map(|name| own::definition(name, &shown, options).to_string());
    let mut page: Vec<String> = own.collect();
    let tools = catalogue.of(Kind::Tool);
    let tools = tools.filter(|entry| !of_start || entry.start && is_for_all(live, entry));
    page.extend(tools.map(|entry| entry.definition.clone()));
    let page = format!(r#"{{"tools":[{}]}}"#, page.join(","));
    Arc::new(ToolList::listed(version, &page.into()))
}
