//! Requests that an aggregate passes to a member: `resources/read`, `prompts/get` and `completion/complete`.

use bytes::Bytes;
use serde_json::value::RawValue;
use tooldock_protocol::jsonrpc::spans::{self, MemberEdit};
use tooldock_protocol::jsonrpc::{self, Key, RequestError};
use tooldock_protocol::version::code;

use super::catalogue::{EntryKind, PublishedEntry};
use super::names;
use super::nearness::nearest;
use super::own::AggregateReply;
use super::request::{AggregateRequest, PublishedName, text_of, with};
use crate::engine::shortened;
use crate::upstream::{IncomingRequest, PreparedRequest};

impl AggregateRequest<'_> {
    pub(super) async fn resource_read(
        &self,
        request: IncomingRequest<'_>,
    ) -> Result<PreparedRequest, RequestError> {
        let uri = text_of(request.members, Key::Uri, "params.uri")?;
        let params = request.members.params().map_or("{}", RawValue::get);
        match self.resource(&uri) {
            Ok((entry, own)) => {
                let params = with(params, "uri", &own);
                self.to_member(request, entry, PublishedName::plain(&uri), params)
                    .await
            }
            Err((said, code)) => {
                let facts = self.facts(request.method, &uri, Bytes::new());
                Ok(PreparedRequest::Call(self.answered(facts, &said, code)))
            }
        }
    }

    /// The active resource or template for a published URI, with the URI at the member.
    pub(super) fn resource(
        &self,
        uri: &str,
    ) -> Result<(&PublishedEntry, String), (AggregateReply, i32)> {
        let listed = self.catalogue.resource(uri);
        let listed =
            listed.filter(|entry| entry.kind == EntryKind::Resource && self.is_visible(entry));
        let of_template = || {
            let prefix_of = |member: usize| self.live.slots[member].prefix().len();
            let fits = |entry: &PublishedEntry| self.is_visible(entry);
            let is_active = |entry: &PublishedEntry| self.is_active(entry);
            self.catalogue.template(uri, prefix_of, fits, is_active)
        };
        let active_first = listed
            .filter(|entry| self.is_active(entry))
            .or_else(|| of_template().filter(|entry| self.is_active(entry)))
            .or(listed)
            .or_else(of_template);
        if active_first.is_none()
            && let Some(entry) = self.catalogue.tool_of_page(uri, |it| self.is_visible(it))
        {
            // The page is not listed, but a visible tool names it: servers need not list their pages.
            let prefix = self.live.slots[entry.member].prefix();
            let own = names::own_uri(prefix, uri).map_or_else(|| uri.to_owned(), Into::into);
            return Ok((entry, own));
        }
        let Some(entry) = active_first else {
            let code = match self.cx.client.is_modern() {
                true => code::INVALID_PARAMS,
                false => code::RESOURCE_NOT_FOUND,
            };
            return Err((AggregateReply::unknown(self.unknown(uri, true)), code));
        };
        if !self.is_active(entry) {
            return Err((self.inactive(uri, entry), code::INVALID_PARAMS));
        }
        let own = match entry.kind {
            EntryKind::Resource => entry.own.to_string(),
            _ => {
                let prefix = self.live.slots[entry.member].prefix();
                names::own_uri(prefix, uri).map_or_else(|| uri.to_owned(), Into::into)
            }
        };
        Ok((entry, own))
    }

    pub(super) async fn prompt_get(
        &self,
        request: IncomingRequest<'_>,
    ) -> Result<PreparedRequest, RequestError> {
        let name = text_of(request.members, Key::Name, "params.name")?;
        let params = request.members.params().map_or("{}", RawValue::get);
        match self
            .catalogue
            .prompt(&name)
            .filter(|it| self.is_visible(it))
        {
            Some(entry) => {
                let params = with(params, "name", &entry.own);
                self.to_member(request, entry, PublishedName::plain(&name), params)
                    .await
            }
            None => {
                let near = self.catalogue.of(EntryKind::Prompt);
                let near = near.filter(|it| self.is_visible(it));
                let near = nearest(&name, near);
                let near = match near.is_empty() {
                    true => "prompts/list shows all there are".to_owned(),
                    false => format!("did you mean {}?", near.join(", ")),
                };
                let said =
                    AggregateReply::unknown(format!("unknown prompt {}: {near}", shortened(&name)));
                let facts = self.facts(request.method, &name, Bytes::new());
                Ok(PreparedRequest::Call(self.answered(
                    facts,
                    &said,
                    code::INVALID_PARAMS,
                )))
            }
        }
    }

    /// Passes a `completion/complete` request to the member that has the prompt or template.
    pub(super) async fn complete(
        &self,
        request: IncomingRequest<'_>,
    ) -> Result<PreparedRequest, RequestError> {
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
        let entry = entry.filter(|it| self.is_visible(it));
        let Some(entry) = entry.filter(|it| self.is_active(it)) else {
            let said = match entry.filter(|it| it.is_resource()) {
                Some(entry) => self.inactive(&published, entry),
                None => AggregateReply::unknown(format!(
                    "{} is unknown: prompts/list and resources/templates/list show what can be completed",
                    shortened(&published)
                )),
            };
            let facts = self.facts(request.method, &published, Bytes::new());
            return Ok(PreparedRequest::Call(self.answered(
                facts,
                &said,
                code::INVALID_PARAMS,
            )));
        };
        let params = request.members.params().map_or("{}", RawValue::get);
        let reference = with(reference.get(), key, &entry.own);
        let params = spans::edit(params, &[MemberEdit::Set("ref", reference.into())]);
        self.to_member(request, entry, PublishedName::plain(&published), params)
            .await
    }
}
