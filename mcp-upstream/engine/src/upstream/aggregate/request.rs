//! A request to an aggregate, with everything that its response depends on: the client's active set, the catalogue, and the
//! members.

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;
use serde_json::Value;
use tooldock_base::error::{CallError, CallErrorCode};
use tooldock_protocol::format::{CacheScope, ResultWriter};
use tooldock_protocol::jsonrpc::spans::{self, MemberEdit};
use tooldock_protocol::jsonrpc::{self, Key, Members, Message, RequestError};
use tooldock_protocol::version::Method;
use tooldock_sessions::caller::Caller;
use tooldock_sessions::catalogue::ToolList;
use tooldock_workers::aggregate::AggregateOptions;
use tooldock_workers::registry::Namespace;

use super::apps;
use super::call::{MemberCall, OwnCall};
use super::catalogue::{Catalogue, EntryKind, PublishedEntry};
use super::live::RunningAggregate;
use super::member::MemberSlot;
use super::own::{self, AggregateReply, CatalogueView};
use super::references::References;
use super::state::MemberReadiness;
use super::toolsets::{self, Active};
use super::visible_members::VisibleMembers;
use super::{AggregatesState, DEPTH_MAX, names};
use crate::engine::{CallFacts, UpstreamCall, UpstreamReply};
use crate::upstream::{CallContext, IncomingRequest, PreparedRequest, ServerCopy, Upstream};

/// Time in milliseconds for which clients of version 2026-07-28 may cache an aggregate's lists. It is short, since each
/// activation changes the lists.
const TTL_MS: u64 = 1_000;

/// A request to an aggregate, with everything that its response depends on.
pub(super) struct AggregateRequest<'a> {
    pub(super) shared: &'a Arc<AggregatesState>,
    pub(super) cx: &'a CallContext<'a>,
    pub(super) live: Arc<RunningAggregate>,
    pub(super) catalogue: Arc<Catalogue>,
    pub(super) active: Active,
    visible: VisibleMembers,
}

impl<'a> AggregateRequest<'a> {
    pub(super) fn new(
        shared: &'a Arc<AggregatesState>,
        cx: &'a CallContext<'a>,
        members: Option<&Members<'_>>,
    ) -> Result<Self, RequestError> {
        if cx.depth >= DEPTH_MAX {
            let reason = format!("more than {DEPTH_MAX} aggregates stand behind each other");
            let error = CallError::new(CallErrorCode::WorkerUnavailable, reason);
            return Err(RequestError::Upstream(error));
        }
        let live = shared.of(&cx.namespace).ok_or_else(|| {
            let reason = "The aggregate is not served any more";
            RequestError::Upstream(CallError::new(CallErrorCode::WorkerUnavailable, reason))
        })?;
        let active = match cx.depth {
            0 => toolsets::active(cx, members, live.scope(), &live.sets, &shared.key)?,
            // A nested aggregate treats all entries as active: the outermost aggregate decides which are.
            _ => Active::all(),
        };
        Ok(Self {
            shared,
            cx,
            catalogue: live.catalogue(),
            visible: VisibleMembers::new(live.slots.len()),
            live,
            active,
        })
    }

    /// Waits until each member has an offer, has failed or has exceeded its time limit, and then updates the catalogue.
    pub(super) async fn settled(mut self) -> Self {
        self.live.settled().await;
        self.catalogue = self.live.catalogue();
        self.visible = VisibleMembers::new(self.live.slots.len());
        self
    }

    /// Returns true if the caller may learn that an entry exists. An entry of a namespace that clients can also call directly is
    /// visible only if the caller could use it there.
    pub(super) fn is_visible(&self, entry: &PublishedEntry) -> bool {
        self.visible.shows(self, entry)
    }

    /// Returns true if an entry can be used, that is, if it is active in the outermost aggregate.
    pub(super) fn is_active(&self, entry: &PublishedEntry) -> bool {
        self.active.is_all || entry.is_active(&self.active.toolset)
    }

    /// The names of the aggregate's own tools. Empty if the request comes from an outer aggregate, which has such tools itself.
    pub(super) fn own_names(&self) -> Vec<&'static str> {
        match self.cx.depth {
            0 => own::names(self.options()),
            _ => Vec::new(),
        }
    }

    pub(super) fn options(&self) -> &AggregateOptions {
        &self.live.aggregate.spec.options
    }

    /// Writes the response to a list request: a single page with all active entries of a kind (tools, resources, templates or
    /// prompts).
    pub(super) fn list(&self, id: &str, key: &'static str, kind: EntryKind) -> Vec<u8> {
        let format = self.cx.result_format();
        let mut answer =
            ResultWriter::begin(id, &format, 4096).cached_for(TTL_MS, CacheScope::Private);
        let definitions = self.definitions(kind);
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

    /// The definitions of active entries of a kind, the aggregate's own tools first.
    fn definitions(&self, kind: EntryKind) -> Vec<Cow<'_, str>> {
        let visible = |entry: &PublishedEntry| self.is_visible(entry);
        let shown = self.view(&visible);
        let mut definitions = Vec::new();
        if kind == EntryKind::Tool {
            let about_handle = self.about_handle();
            let own = self.own_names().into_iter();
            let own = own.filter(|name| self.cx.view().allows_tool(name));
            definitions.extend(own.map(|name| {
                let own = own::definition(name, &shown, self.options(), &about_handle);
                Cow::Owned(own.to_string())
            }));
        }
        let entries = self.catalogue.of(kind);
        let entries = entries.filter(|entry| self.is_active(entry) && self.is_visible(entry));
        // Tools that only pages call are hidden from a client that shows no pages, which would offer them to its model.
        let lists_app_tools =
            self.cx.depth > 0 || apps::shows_pages(&self.cx.client.capabilities());
        let entries = entries
            .filter(|entry| lists_app_tools || !(entry.is_of_app && entry.kind == EntryKind::Tool));
        definitions.extend(entries.map(|entry| Cow::Borrowed(&*entry.definition)));
        definitions
    }

    /// The active tools, for surfaces that do not speak MCP.
    pub(super) fn tool_list(&self) -> Arc<ToolList> {
        let page = self.definitions(EntryKind::Tool).join(",");
        let page = format!(r#"{{"tools":[{page}]}}"#);
        Arc::new(ToolList::listed(self.live.version(), &page.into()))
    }

    /// The catalogue as this client sees it, with `visible` as the filter.
    pub(super) fn view<'s>(
        &'s self,
        visible: &'s (dyn Fn(&PublishedEntry) -> bool + Sync),
    ) -> CatalogueView<'s> {
        CatalogueView {
            catalogue: &self.catalogue,
            toolset: &self.active.toolset,
            visible,
        }
    }

    /// The facts of a call (such as its method and subject) that the engine needs to admit and record it.
    pub(super) fn facts(&self, method: &str, subject: &str, arguments: Bytes) -> CallFacts {
        self.cx.facts(Method::of(method), subject, arguments)
    }

    /// A call that the aggregate answers itself: a tool call with a result, any other request with an error.
    pub(super) fn answered(
        &self,
        facts: CallFacts,
        said: &AggregateReply,
        code: i32,
    ) -> Arc<dyn UpstreamCall> {
        let outcome = match facts.method.is_tool_call() {
            true => said.as_outcome(facts.transport, &self.cx.result_format()),
            false => Ok(UpstreamReply::Response(said.rpc_error(code))),
        };
        OwnCall::new(facts, Box::pin(std::future::ready(outcome)))
    }

    /// Advice about an unknown name: similar names, and unavailable members.
    pub(super) fn unknown(&self, name: &str, resources: bool) -> String {
        let visible = |entry: &PublishedEntry| self.is_visible(entry);
        let mut reason = self.view(&visible).unknown(name, resources);
        for slot in &self.live.slots {
            let label = slot.label();
            let prefix = slot.prefix();
            let safe = names::safe(prefix).unwrap_or_else(|| prefix.to_string());
            let is_own = |prefix: &str| names::own(prefix, name).is_some();
            if prefix.is_empty() || !(is_own(prefix) || is_own(&safe)) {
                continue;
            }
            // A namespace that the caller may not use is not mentioned.
            let namespace = slot.namespace(&self.shared.home.registry);
            if namespace
                .as_ref()
                .is_some_and(|it| !may_reach(self.cx.caller, slot, it))
            {
                continue;
            }
            let ended = namespace.is_some_and(|it| self.copy(it) == ServerCopy::Ended);
            match slot.state() {
                MemberReadiness::Gone { why, .. } => {
                    reason = format!(
                        "{reason}; server {label} offers nothing now: {}",
                        why.description()
                    );
                }
                MemberReadiness::Starting | MemberReadiness::Late => {
                    reason = format!("{reason}; server {label} is still starting");
                }
                MemberReadiness::Ready(_) if ended => {
                    reason = format!(
                        "{reason}; server {label} offers nothing in this session any more: {}",
                        super::state::ENDED
                    );
                }
                MemberReadiness::Ready(_) => {}
            }
        }
        reason
    }

    /// State of the instance of a member's server to which this client's requests are sent.
    pub(super) fn copy(&self, namespace: Arc<Namespace>) -> ServerCopy {
        let runner = self.shared.runner(&namespace);
        let upstream = runner.upstream();
        let child = self.child(self.cx.body, namespace, upstream);
        upstream.server_facts().copy(&child)
    }

    /// Passes a request with these parameters to the entry's member, under the member's own name.
    pub(super) async fn to_member(
        &self,
        request: IncomingRequest<'_>,
        entry: &PublishedEntry,
        published: PublishedName<'_>,
        params: String,
    ) -> Result<PreparedRequest, RequestError> {
        let slot = &self.live.slots[entry.member];
        self.to_slot(request, slot, published, params).await
    }

    /// Passes a request to a member. The name in the request need not be in the catalogue.
    pub(super) async fn to_slot(
        &self,
        request: IncomingRequest<'_>,
        slot: &MemberSlot,
        published: PublishedName<'_>,
        params: String,
    ) -> Result<PreparedRequest, RequestError> {
        let namespace = self.member_namespace(slot)?;
        let runner = self.shared.runner(&namespace);
        let upstream = runner.upstream();
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
            PreparedRequest::Call(call) => {
                PreparedRequest::Call(self.relayed(slot, published, call))
            }
            answered @ PreparedRequest::Response(_) => answered,
        })
    }

    /// The context of a request that the aggregate sends to a member.
    pub(super) fn child<'c>(
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
            depth: self.cx.depth + 1,
        }
    }

    pub(super) fn member_namespace(
        &self,
        slot: &MemberSlot,
    ) -> Result<Arc<Namespace>, RequestError> {
        slot.namespace(&self.shared.home.registry).ok_or_else(|| {
            let reason = format!("server {} is not served any more", slot.label());
            RequestError::Upstream(CallError::new(CallErrorCode::WorkerUnavailable, reason))
        })
    }

    /// Wraps a member's call as a call of the aggregate.
    pub(super) fn relayed(
        &self,
        slot: &MemberSlot,
        published: PublishedName<'_>,
        call: Arc<dyn UpstreamCall>,
    ) -> Arc<dyn UpstreamCall> {
        let own = call.facts();
        let PublishedName { name, by_way_of } = published;
        let mut facts = self.facts(&own.method, name, own.arguments.clone());
        facts.talks = own.talks;
        facts.progress_token.clone_from(&own.progress_token);
        facts.asks_singly = own.asks_singly;
        facts.task = own.task;
        let member = self
            .live
            .slots
            .iter()
            .position(|it| std::ptr::eq(&**it, slot));
        Arc::new(MemberCall {
            facts,
            by_way_of,
            via: Arc::clone(slot.label()),
            references: member.and_then(|at| References::new(&self.catalogue, at, slot.prefix())),
            format: self.cx.result_format(),
            call,
        })
    }
}

/// The name under which a client called a member's entry.
pub(super) struct PublishedName<'a> {
    /// The published name of the tool or prompt, or the published URI.
    pub(super) name: &'a str,
    /// The aggregate's tool through which the client called the entry (`toolman_call`), and the arguments of that tool; `None` if
    /// the client called the entry directly.
    pub(super) by_way_of: Option<(&'static str, Bytes)>,
}

impl<'a> PublishedName<'a> {
    /// A published name that the client called directly, not through `toolman_call`.
    pub(super) fn plain(name: &'a str) -> Self {
        Self {
            name,
            by_way_of: None,
        }
    }
}

/// Sets the value of `key` in a JSON object to a string.
pub(super) fn with(object: &str, key: &'static str, text: &str) -> String {
    let text = Value::from(text).to_string();
    spans::edit(object, &[MemberEdit::Set(key, text.into())])
}

pub(super) fn text_of<'a>(
    members: &Members<'a>,
    key: Key,
    what: &'static str,
) -> Result<Cow<'a, str>, RequestError> {
    let text = members.get(key).and_then(jsonrpc::string);
    text.ok_or_else(|| RequestError::InvalidParams(format!("{what} must be a string").into()))
}

/// Refuses a request with a cursor: an aggregate's lists have a single page.
pub(super) fn one_page(members: &Members<'_>) -> Result<(), RequestError> {
    match members.raw(Key::Cursor) {
        Some(cursor) if cursor != "null" => Err(RequestError::InvalidParams(
            "params.cursor is none of this server".into(),
        )),
        _ => Ok(()),
    }
}

/// Returns true if a caller's request to the aggregate may be passed to a member. If clients can also call the member's
/// namespace directly, the caller needs access to that namespace.
pub(super) fn may_reach(caller: &Caller, slot: &MemberSlot, namespace: &Namespace) -> bool {
    !slot.is_served() || caller.is_let_into(namespace)
}
