//! Check of tool names where some tools are closed to the caller: only names that the server lists are sent to the server.
//!
//! A policy and a credential's scopes apply to the name as the client writes it. A server may accept other spellings for the
//! same tool: `Delete_All`, `delete_all` with a trailing blank or NUL, full-width letters. So if some tools are closed, a name
//! must equal, byte for byte, a name that the server lists. If no tool is closed, names are sent unchanged, and a server may
//! have tools that it does not list.
//!
//! The list that all clients share is checked first; it is read if no current list is known. A process of the client's own may
//! list more tools, so its list is requested, once for such a call.

use std::sync::{Arc, OnceLock};

use async_trait::async_trait;
use http::HeaderMap;
use serde_json::value::RawValue;
use tooldock_base::config::PinMode;
use tooldock_base::error::{CallError, CallErrorCode};
use tooldock_protocol::jsonrpc::{Key, Request, ResponseOutcome};
use tooldock_protocol::version::ServerInfo;
use tooldock_servers::pool::ProcessLease;
use tooldock_sessions::catalogue::{PageSource, listed_by};
use tooldock_workers::pins::PinKind;

use super::call::{MissingResponse, RequestFate, ServerCall, unreadable};
use super::lease::ConnectionTarget;
use super::{ConnectionLease, ListOwner};
use crate::engine::{held_back, shortened, unknown_tool};

/// Result of looking up a tool in the shared list.
pub(super) enum SharedList {
    /// No tool is closed to the caller, or the tool is listed.
    Open,
    /// The shared list was read and does not contain the tool.
    Unlisted,
    /// The shared list could not be read, for this reason.
    Unread(CallError),
}

/// A connection that lists tools on behalf of a client, with the client's headers.
struct ForClient<'a> {
    process: &'a ProcessLease,
    headers: Option<&'a Arc<HeaderMap>>,
    /// Stage that the request for the list reached, if the connection did not respond. It shows whether the session still exists.
    fate: OnceLock<RequestFate>,
}

#[async_trait]
impl PageSource for ForClient<'_> {
    fn server(&self) -> ServerInfo {
        self.process.opened().clone()
    }

    async fn page(
        &self,
        method: &'static str,
        params: &RawValue,
    ) -> Result<ResponseOutcome, CallError> {
        let request = Request::own(method, params.get()).map_err(unreadable)?;
        let mut call = self.process.forward(&request, None, self.headers, None)?;
        let answer = call.answer().await;
        if answer.is_err() {
            let _ = self.fate.set(RequestFate::of(&call));
        }
        Ok(answer?.outcome())
    }
}

impl ServerCall {
    /// Looks the tool up in the list that all clients share.
    pub(super) async fn shared_list(&self) -> SharedList {
        let facts = &self.facts;
        let namespace = &facts.namespace;
        // A call without a tool name is sent to the server, which refuses it.
        let names_a_tool = facts.method.is_tool_call() && self.request.raw(Key::Name).is_some();
        if !names_a_tool || self.access.view(namespace).allows_every_tool() {
            return SharedList::Open;
        }
        let whose = ListOwner {
            namespace,
            principal: self.requester.principal.as_ref(),
        };
        let catalogue = match self.external.catalogue(namespace, whose.principal) {
            Ok(catalogue) => catalogue,
            Err(error) => return SharedList::Unread(error),
        };
        let list = match catalogue.current() {
            Some(list) => list,
            // Boxed to keep the future of other calls small, since few calls read the list.
            None => match Box::pin(self.external.tools(whose, &catalogue)).await {
                Ok(list) => list,
                Err(error) => return SharedList::Unread(error),
            },
        };
        match list.tool(&facts.subject) {
            Some(_) => SharedList::Open,
            None => SharedList::Unlisted,
        }
    }

    /// Returns true if the call may use the connection without a request for its list, as far as the shared list shows.
    ///
    /// # Errors
    ///
    /// When the tool is not listed and the shared list applies to the connection, or when the list is unknown.
    pub(super) fn judge(
        &self,
        shared: SharedList,
        target: &ConnectionTarget,
    ) -> Result<bool, CallError> {
        // If the client's own headers are sent to the server, the server may list other tools for this client.
        let is_for_all = target.is_common() && !self.requester.identifies_client();
        match shared {
            SharedList::Open => Ok(true),
            SharedList::Unlisted if is_for_all => Err(self.unlisted()),
            SharedList::Unread(error) if is_for_all => Err(error),
            SharedList::Unlisted | SharedList::Unread(_) => Ok(false),
        }
    }

    /// The error for a tool that is not listed. If the tool is hidden until an operator approves it, the error says so.
    fn unlisted(&self) -> CallError {
        let facts = &self.facts;
        let pins = self.external.registry.pins_of(&facts.namespace.name);
        let held = pins.and_then(|it| it.held_back(PinKind::Tool, &facts.subject));
        held_back(unknown_tool(&facts.subject), held)
    }

    /// Refuses a prompt that is hidden until an operator approves it.
    pub(super) fn check_prompt(&self) -> Result<(), CallError> {
        let facts = &self.facts;
        if facts.namespace.limits.pins != PinMode::Enforce || &*facts.method != "prompts/get" {
            return Ok(());
        }
        let pins = self.external.registry.pins_of(&facts.namespace.name);
        let Some(held) = pins.and_then(|it| it.held_back(PinKind::Prompt, &facts.subject)) else {
            return Ok(());
        };
        let unknown = format!("Unknown prompt: {}", shortened(&facts.subject));
        let error = CallError::new(CallErrorCode::InvalidArguments, unknown);
        Err(held_back(error, Some(held)))
    }

    /// Looks up a tool that is not in the shared list at the client's own process.
    ///
    /// # Errors
    ///
    /// When the process does not list the tool, or the request for its list fails.
    pub(super) async fn is_listed_at(
        &self,
        leased: &ConnectionLease,
    ) -> Result<(), MissingResponse> {
        let source = ForClient {
            process: &leased.process,
            headers: self.requester.headers(),
            fate: OnceLock::new(),
        };
        let namespace = &self.facts.namespace;
        let principal = self.requester.principal.as_ref();
        let catalogue = self.external.catalogue(namespace, principal)?;
        let listed = listed_by(&namespace.name, &source, catalogue.lists()).await;
        let listed = listed.map_err(|error| MissingResponse {
            error,
            fate: match source.fate.get() {
                Some(RequestFate::SessionGone | RequestFate::SessionRefused) => {
                    RequestFate::SessionGone
                }
                // The request for the list failed, so the call itself has not been sent.
                _ => RequestFate::Unsent,
            },
        })?;
        match listed.tool(&self.facts.subject) {
            Some(_) => Ok(()),
            None => Err(self.unlisted().into()),
        }
    }
}
