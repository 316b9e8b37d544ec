//! References in members' results: URIs that the protocol defines as references to resources, and URIs of MCP Apps' pages in
//! `_meta`. They are published under the aggregate's names, so that a client can read the resources. URIs that the member does
//! not offer are unchanged.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use serde_json::value::RawValue;
use tooldock_protocol::jsonrpc;
use tooldock_protocol::jsonrpc::spans::{self, MemberEdit};

use super::apps;
use super::budget::Budget;
use super::catalogue::Catalogue;
use crate::engine::UpstreamReply;

/// Rewrites the URIs of one member to published URIs.
pub(super) struct References {
    catalogue: Arc<Catalogue>,
    member: usize,
    prefix: Arc<str>,
    /// Remaining work for comparing URIs. It is limited, since one result may contain very many URIs.
    budget: Mutex<Budget>,
}

impl References {
    /// Creates the rewriter for a member with this prefix; `None` if URIs are published unchanged.
    pub(super) fn new(
        catalogue: &Arc<Catalogue>,
        member: usize,
        prefix: &Arc<str>,
    ) -> Option<Self> {
        (!prefix.is_empty()).then(|| Self {
            catalogue: Arc::clone(catalogue),
            member,
            prefix: Arc::clone(prefix),
            budget: Mutex::default(),
        })
    }

    /// Rewrites the URIs in a reply to a request of this method.
    pub(super) fn publish(&self, method: &str, reply: UpstreamReply) -> UpstreamReply {
        match reply {
            UpstreamReply::Response(response) if !response.is_error() => {
                match self.result(method, response.payload()) {
                    Some(result) => UpstreamReply::Response(response.with_payload(result.into())),
                    None => UpstreamReply::Response(response),
                }
            }
            UpstreamReply::Result(result) => match self.result(method, &result) {
                Some(changed) => UpstreamReply::Result(changed.into()),
                None => UpstreamReply::Result(result),
            },
            UpstreamReply::Value(mut value) => {
                if let Some(content) = &value.content
                    && let Some(changed) = self.blocks(content)
                {
                    value.content = Some(Bytes::from(changed));
                }
                UpstreamReply::Value(value)
            }
            reply @ UpstreamReply::Response(_) => reply,
        }
    }

    /// The result object with published URIs; `None` if no URI in it changes.
    fn result(&self, method: &str, result: &[u8]) -> Option<String> {
        if !(spans::may_hold(result, "uri") || spans::may_hold(result, "resourceUri")) {
            return None;
        }
        let object = spans::raw(result)?;
        let (key, list) = match method {
            "tools/call" | "tasks/result" => ("content", self.blocks_of(object, "content")),
            "resources/read" => ("contents", self.contents(object)),
            "prompts/get" => ("messages", self.messages(object)),
            _ => return None,
        };
        let list = list.map(|list| MemberEdit::Set(key, list.into()));
        edited(object, list, self.page_edit(object))
    }

    fn blocks_of(&self, object: &RawValue, key: &str) -> Option<String> {
        self.blocks(spans::member(object, key)?.get().as_bytes())
    }

    /// A list of content blocks with published URIs.
    fn blocks(&self, list: &[u8]) -> Option<String> {
        each(list, |block| self.block(block))
    }

    /// A content block with published URIs: a link to a resource, or an embedded resource.
    fn block(&self, block: &RawValue) -> Option<String> {
        let kind = spans::member(block, "type").and_then(jsonrpc::string)?;
        match &*kind {
            "resource_link" => self.with_uri(block),
            "resource" => {
                let resource = self.with_uri(spans::member(block, "resource")?);
                let resource = resource.map(|it| MemberEdit::Set("resource", it.into()));
                edited(block, resource, self.page_edit(block))
            }
            _ => None,
        }
    }

    fn contents(&self, object: &RawValue) -> Option<String> {
        let list = spans::member(object, "contents")?;
        each(list.get().as_bytes(), |content| self.with_uri(content))
    }

    fn messages(&self, object: &RawValue) -> Option<String> {
        let list = spans::member(object, "messages")?;
        each(list.get().as_bytes(), |message| {
            let content = self.block(spans::member(message, "content")?)?;
            let change = MemberEdit::Set("content", content.into());
            Some(spans::edit(message.get(), &[change]))
        })
    }

    /// Returns an object with the published forms of its `uri` and of the page in its `_meta`; `None` if neither changes.
    fn with_uri(&self, object: &RawValue) -> Option<String> {
        let own = spans::member(object, "uri").and_then(jsonrpc::string);
        let published = own.and_then(|own| self.published(&own));
        let published = published.map(|published| {
            let published = serde_json::Value::from(published).to_string();
            MemberEdit::Set("uri", published.into())
        });
        edited(object, published, self.page_edit(object))
    }

    /// Returns the edit of an object's `_meta` that replaces the URI of its page by the published URI; `None` if no URI changes.
    fn page_edit(&self, object: &RawValue) -> Option<MemberEdit<'static>> {
        apps::meta_edit(object, |own| self.published(own))
    }

    /// Returns the published URI of a member's resource; `None` if the member does not offer the resource.
    fn published(&self, own: &str) -> Option<String> {
        let mut budget = self.budget.lock().unwrap_or_else(PoisonError::into_inner);
        let (member, prefix) = (self.member, &self.prefix);
        self.catalogue
            .published_uri(member, prefix, own, &mut budget)
    }
}

/// Returns an object with one or two edits; `None` if both are `None`.
fn edited(
    object: &RawValue,
    one: Option<MemberEdit<'_>>,
    other: Option<MemberEdit<'_>>,
) -> Option<String> {
    let edits: Vec<_> = one.into_iter().chain(other).collect();
    (!edits.is_empty()).then(|| spans::edit(object.get(), &edits))
}

/// Rewrites items of a list; `None` if no item changes.
fn each(list: &[u8], change: impl Fn(&RawValue) -> Option<String>) -> Option<String> {
    let items: Vec<&RawValue> = serde_json::from_slice(list).ok()?;
    let changed: Vec<_> = items.iter().map(|item| change(item)).collect();
    if changed.iter().all(Option::is_none) {
        return None;
    }
    let items = items.iter().zip(&changed);
    let items = items.map(|(item, changed)| changed.as_deref().unwrap_or(item.get()));
    Some(format!("[{}]", items.collect::<Vec<_>>().join(",")))
}
