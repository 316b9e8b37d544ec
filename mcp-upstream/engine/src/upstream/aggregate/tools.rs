//! `tools/call` of an aggregate, for a member's tool or one of the aggregate's own tools.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::Value;
use serde_json::value::RawValue;
use tooldock_base::error::{CallError, CallErrorCode};
use tooldock_base::heavy_work;
use tooldock_protocol::jsonrpc::spans::{self, MemberEdit};
use tooldock_protocol::jsonrpc::{self, Key, RequestError};
use tooldock_protocol::version::code;

use super::activate::Activation;
use super::call::OwnCall;
use super::catalogue::PublishedEntry;
use super::own::{AggregateReply, CALL, CatalogueView, SEARCH};
use super::request::{AggregateRequest, PublishedName, text_of, with};
use super::snapshot::Snapshot;
use super::state::{ENDED, MemberReadiness};
use super::visible_members::reveals_entry;
use crate::engine::{CallFacts, UpstreamCall, insufficient_scope, shortened};
use crate::upstream::{IncomingRequest, PreparedRequest, ServerCopy};

impl AggregateRequest<'_> {
    /// Finds the active tool with this published name that the caller may use.
    pub(super) fn active_tool(&self, name: &str) -> Result<&PublishedEntry, AggregateReply> {
        let found = self.catalogue.tool(name);
        match found.filter(|entry| self.is_visible(entry)) {
            Some(entry) if self.is_active(entry) => Ok(entry),
            Some(entry) => Err(self.inactive(name, entry)),
            None => Err(self
                .down(name)
                .unwrap_or_else(|| AggregateReply::unknown(self.unknown(name, false)))),
        }
    }

    /// The refusal of a tool whose server is unavailable; `None` if the caller could not use the tool even if the server were
    /// available.
    fn down(&self, name: &str) -> Option<AggregateReply> {
        let listed = self.catalogue.tool(name);
        let entry = listed.or_else(|| self.catalogue.away_tool(name))?;
        if !reveals_entry(self, entry) {
            return None;
        }
        let slot = &self.live.slots[entry.member];
        let reason = match slot.state() {
            MemberReadiness::Gone { why, .. } => {
                format!("offers nothing now: {}", why.description())
            }
            _ => {
                let namespace = slot.namespace(&self.shared.home.registry)?;
                if self.copy(namespace) != ServerCopy::Ended {
                    return None;
                }
                format!("offers nothing in this session any more: {ENDED}")
            }
        };
        let (name, server) = (shortened(name), slot.label());
        let reason = format!(
            "{name} cannot be called: server {server} {reason}. Go on with other tools, or tell the user that server {server} is away"
        );
        let code = CallErrorCode::WorkerUnavailable;
        Some(AggregateReply::failed(reason, code))
    }

    /// Creates a call of one of the aggregate's own tools.
    pub(super) fn own_tool(
        &self,
        name: &str,
        arguments: &Bytes,
        facts: CallFacts,
    ) -> Arc<dyn UpstreamCall> {
        let format = self.cx.result_format();
        let snapshot = Snapshot {
            catalogue: Arc::clone(&self.catalogue),
            toolset: Arc::clone(&self.active.toolset),
            visible: {
                let entries = self.catalogue.entries().iter();
                entries.map(|entry| self.is_visible(entry)).collect()
            },
        };
        let transport = facts.transport;
        let arguments = arguments.clone();
        let principal = self.cx.caller.principal.clone();
        if name == SEARCH {
            let work = async move {
                let search = move || snapshot.look(|shown| search(shown, &arguments));
                let said = heavy_work::run(&principal, search).await?;
                said.as_outcome(transport, &format)
            };
            return OwnCall::new(facts, Box::pin(work));
        }
        let activation = Activation {
            shared: Arc::clone(self.shared),
            live: Arc::clone(&self.live),
            active: self.active.clone(),
            principal,
        };
        let work = async move {
            let said = activation.run(snapshot, arguments).await?;
            said.as_outcome(transport, &format)
        };
        OwnCall::new(facts, Box::pin(work))
    }

    pub(super) async fn tool_call(
        &self,
        request: IncomingRequest<'_>,
    ) -> Result<PreparedRequest, RequestError> {
        let members = request.members;
        let name = text_of(members, Key::Name, "params.name")?;
        let sent = members.get(Key::Arguments);
        jsonrpc::object(sent, "params.arguments")?;
        let arguments = self.cx.own_object(sent);
        let params = members.params().map_or("{}", RawValue::get);
        let said = match self.target(&name, &arguments) {
            CallTarget::Own => {
                let facts = self.facts(request.method, &name, arguments.clone());
                return Ok(PreparedRequest::Call(
                    self.own_tool(&name, &arguments, facts),
                ));
            }
            CallTarget::Member(entry) => {
                let params = with(params, "name", &entry.own);
                return self
                    .to_member(request, entry, PublishedName::plain(&name), params)
                    .await;
            }
            CallTarget::Inner(entry, inner) => {
                self.count_call();
                let named = with(params, "name", &entry.own);
                let changes = [MemberEdit::Set("arguments", inner.arguments.get().into())];
                let params = spans::edit(&named, &changes);
                // Limits that are configured for a tool's name also apply to calls through `toolman_call`.
                let published = PublishedName {
                    name: &inner.tool,
                    by_way_of: Some((CALL, arguments)),
                };
                return self.to_member(request, entry, published, params).await;
            }
            CallTarget::Closed(tool) => {
                let call = self.closed(request.method, &tool, arguments);
                return Ok(PreparedRequest::Call(call));
            }
            CallTarget::Nothing(said) => said,
        };
        let facts = self.facts(request.method, &name, arguments);
        let call = self.answered(facts, &said, code::INVALID_PARAMS);
        Ok(PreparedRequest::Call(call))
    }

    /// Prepares a tool call from a surface other than MCP.
    pub(super) fn call_tool(
        &self,
        tool: &str,
        arguments: Bytes,
    ) -> Result<Arc<dyn UpstreamCall>, CallError> {
        let (entry, name, given) = match self.target(tool, &arguments) {
            CallTarget::Own => {
                let facts = self.facts("tools/call", tool, arguments.clone());
                return Ok(self.own_tool(tool, &arguments, facts));
            }
            CallTarget::Member(entry) => (entry, tool.to_owned(), arguments),
            CallTarget::Inner(entry, inner) => {
                self.count_call();
                (entry, inner.tool, inner.arguments.get().to_owned().into())
            }
            CallTarget::Closed(tool) => return Ok(self.closed("tools/call", &tool, arguments)),
            CallTarget::Nothing(said) => {
                let facts = self.facts("tools/call", tool, arguments);
                return Ok(self.answered(facts, &said, code::INVALID_PARAMS));
            }
        };
        let failed = |error: RequestError| {
            let reason = error.message().into_owned();
            CallError::new(CallErrorCode::WorkerUnavailable, reason)
        };
        let slot = &self.live.slots[entry.member];
        let namespace = self.member_namespace(slot).map_err(failed)?;
        let runner = self.shared.runner(&namespace);
        let upstream = runner.upstream();
        let child = self.child(self.cx.body, namespace, upstream);
        let call = upstream.call_tool(&child, &entry.own, given)?;
        Ok(self.relayed(slot, PublishedName::plain(&name), call))
    }

    /// Finds the target of a call with this name.
    fn target(&self, name: &str, arguments: &Bytes) -> CallTarget<'_> {
        if !self.own_names().contains(&name) {
            return match self.active_tool(name) {
                Ok(entry) => CallTarget::Member(entry),
                Err(_) if self.is_closed(name) => CallTarget::Closed(name.to_owned()),
                Err(said) => CallTarget::Nothing(said),
            };
        }
        // A hidden `toolman_call` is not resolved: the engine refuses hidden tools by the name of the call.
        if name != CALL || !self.cx.view().allows_tool(CALL) {
            return CallTarget::Own;
        }
        let inner = match InnerCall::read(arguments) {
            Ok(inner) => inner,
            Err(wrong) => {
                let instead = self.call_instead();
                return CallTarget::Nothing(AggregateReply::invalid(format!("{wrong}{instead}")));
            }
        };
        match self.active_tool(&inner.tool) {
            // Clients hide tools of MCP Apps from the model. The model must not reach them through `toolman_call`.
            Ok(entry) if entry.is_of_app => {
                CallTarget::Nothing(AggregateReply::unknown(self.unknown(&inner.tool, false)))
            }
            Ok(entry) => CallTarget::Inner(entry, inner),
            Err(_) if self.is_closed(&inner.tool) => CallTarget::Closed(inner.tool),
            Err(unusable) if self.is_known(&inner.tool) => CallTarget::Nothing(unusable),
            Err(unknown) => CallTarget::Nothing(unknown.adding(&self.call_of_nearest(&inner.tool))),
        }
    }

    /// Returns true if a call of this name must be refused with an error about the caller's scopes, because the caller has scopes
    /// and cannot see the tool. The caller must not learn whether the tool exists.
    fn is_closed(&self, name: &str) -> bool {
        let is_scoped = self
            .cx
            .caller
            .grant
            .as_ref()
            .is_some_and(|it| !it.tools.is_admin());
        is_scoped && !self.is_known(name)
    }

    /// Returns true if the catalogue that the caller sees has a tool of that name, or would have it if its server were available.
    fn is_known(&self, name: &str) -> bool {
        let tool = self.catalogue.tool(name);
        tool.is_some_and(|entry| self.is_visible(entry)) || self.down(name).is_some()
    }

    /// Creates a call of a tool that the caller's scopes do not open. The aggregate refuses the call itself, with the name as the
    /// caller wrote it and without a request to a member, so that the response does not depend on the tool's existence.
    fn closed(&self, method: &str, tool: &str, arguments: Bytes) -> Arc<dyn UpstreamCall> {
        let facts = self.facts(method, tool, arguments);
        OwnCall::refused(facts, insufficient_scope(tool))
    }

    fn count_call(&self) {
        let calls = &self.shared.metrics.calls;
        calls.with_label_values(&[self.live.name.as_str()]).inc();
    }
}

/// Target of a call of a tool.
enum CallTarget<'a> {
    /// A tool of the aggregate itself.
    Own,
    /// A member's tool.
    Member(&'a PublishedEntry),
    /// A member's tool, through `toolman_call`.
    Inner(&'a PublishedEntry, InnerCall),
    /// A tool that the caller's scopes do not open.
    Closed(String),
    /// A tool that cannot be called, with the error for the caller.
    Nothing(AggregateReply),
}

/// Finds visible entries by the words of a query.
fn search(shown: &CatalogueView<'_>, arguments: &[u8]) -> AggregateReply {
    #[derive(serde::Deserialize)]
    struct Query {
        query: String,
    }
    match serde_json::from_slice::<Query>(arguments) {
        Ok(Query { query }) => AggregateReply::result(Value::from(shown.search(&query))),
        Err(_) => AggregateReply::invalid(format!(
            "query is missing, or is no string: for example call {SEARCH} with {{\"query\": \"words of a name\"}}"
        )),
    }
}

/// The arguments of `toolman_call`.
struct InnerCall {
    tool: String,
    arguments: Box<RawValue>,
}

impl InnerCall {
    /// Reads the arguments of `toolman_call`.
    ///
    /// # Errors
    ///
    /// The fault of the argument that is missing or invalid.
    fn read(arguments: &Bytes) -> Result<Self, &'static str> {
        #[derive(serde::Deserialize)]
        struct CallArguments {
            tool: String,
            #[serde(default)]
            arguments: Option<Box<RawValue>>,
        }
        let sent: CallArguments =
            serde_json::from_slice(arguments).map_err(|_| "tool is missing, or is no string")?;
        let empty = || RawValue::from_string("{}".into()).expect("an empty object is JSON");
        let arguments = sent.arguments.unwrap_or_else(empty);
        if !arguments.get().starts_with('{') {
            return Err("arguments must be an object");
        }
        Ok(Self {
            tool: sent.tool,
            arguments,
        })
    }
}
