//! URIs in what members answer, where the protocol defines them as references to resources: as the aggregate publishes
//! them, so that a client can read what it is pointed to. URIs that the member does not offer stay as they are.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use serde_json::value::RawValue;

use super::budget::Budget;
use super::catalogue::Catalogue;
use crate::engine::UpstreamReply;
use crate::jsonrpc;
use crate::jsonrpc::spans::{self, MemberEdit};

/// Publishes the URIs of one member.
pub(super) struct References {
    catalogue: Arc<Catalogue>,
    member: usize,
    prefix: Arc<str>,
    /// What comparing URIs may still cost: a result may hold very many.
    budget: Mutex<Budget>,
}

impl References {
    /// Of a member with that prefix; `None` where URIs are published as they are.
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

    /// A reply to a request of that method.
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

    /// A result object; `None` where nothing in it changes.
    fn result(&self, method: &str, result: &[u8]) -> Option<String> {
        if !spans::may_hold(result, "uri") {
            return None;
        }
        let object = spans::raw(result)?;
        let (key, list) = match method {
            "tools/call" | "tasks/result" => ("content", self.blocks_of(object, "content")),
            "resources/read" => ("contents", self.contents(object)),
            "prompts/get" => ("messages", self.messages(object)),
            _ => return None,
        };
        Some(spans::edit(
            object.get(),
            &[MemberEdit::Set(key, list?.into())],
        ))
    }

    fn blocks_of(&self, object: &RawValue, key: &str) -> Option<String> {
        self.blocks(spans::member(object, key)?.get().as_bytes())
    }

    /// A list of content blocks.
    fn blocks(&self, list: &[u8]) -> Option<String> {
        each(list, |block| self.block(block))
    }

    /// A content block: a link to a resource, or one that holds it.
    fn block(&self, block: &RawValue) -> Option<String> {
        let kind = spans::member(block, "type").and_then(jsonrpc::string)?;
        match &*kind {
            "resource_link" => self.with_uri(block),
            "resource" => {
                let resource = self.with_uri(spans::member(block, "resource")?)?;
                let change = MemberEdit::Set("resource", resource.into());
                Some(spans::edit(block.get(), &[change]))
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

    fn with_uri(&self, object: &RawValue) -> Option<String> {
        let own = spans::member(object, "uri").and_then(jsonrpc::string)?;
        let published = {
            let mut budget = self.budget.lock().unwrap_or_else(PoisonError::into_inner);
            let (member, prefix) = (self.member, &self.prefix);
            self.catalogue
                .published_uri(member, prefix, &own, &mut budget)?
        };
        let published = serde_json::Value::from(published).to_string();
        let change = MemberEdit::Set("uri", published.into());
        Some(spans::edit(object.get(), &[change]))
    }
}

/// A list with some of its items changed; `None` where none is.
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
