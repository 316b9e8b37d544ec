//! Hints for callers of aggregates: how to activate an inactive entry, and a complete call of `toolman_call` to paste.
//!
//! An activation is valid for the caller's session, or for requests with the handle of its response. Callers without a session
//! get instructions for the handle; callers that cannot send a handle get no hints about activation.

use tooldock_sessions::audit::Transport;

use super::catalogue::{EntryKind, PublishedEntry};
use super::own::{ACTIVATE, AggregateReply, activation_of, call_of};
use super::request::AggregateRequest;
use super::toolsets::{HANDLE_KEY, ToolsetStorage};
use crate::engine::shortened;

impl AggregateRequest<'_> {
    /// The error for an entry that is not active. `name` is the name that the caller wrote.
    pub(super) fn inactive(&self, name: &str, entry: &PublishedEntry) -> AggregateReply {
        let name = shortened(name);
        let way = match self.way_to_activate(entry) {
            Ok(way) => format!("first {way}"),
            Err(closed) => closed.to_owned(),
        };
        AggregateReply::unknown(format!("{name} is not active: {way}"))
    }

    /// Text for a complete call that activates an entry for the caller's next requests.
    ///
    /// # Errors
    ///
    /// The reason why the caller cannot turn entries on.
    fn way_to_activate(&self, entry: &PublishedEntry) -> Result<String, &'static str> {
        if !self.cx.view().allows_tool(ACTIVATE) {
            return Err("toolman_activate is not open to you");
        }
        let call = activation_of(&entry.published, entry.is_resource());
        match &self.active.keep {
            ToolsetStorage::Nowhere => Err(NOWHERE),
            ToolsetStorage::Handle => Ok(format!(
                "{call}, then repeat the request with the toolset of its answer: {}",
                self.place_of_handle()
            )),
            ToolsetStorage::Session(_) | ToolsetStorage::Principal(_) | ToolsetStorage::Process => {
                Ok(call)
            }
        }
    }

    /// A sentence for the description of `toolman_activate`: where the caller puts the handle of a response. Empty for callers
    /// without handles.
    pub(super) fn about_handle(&self) -> String {
        match &self.active.keep {
            ToolsetStorage::Handle => format!(
                " An activation counts for requests that bring the toolset of its answer: {}.",
                self.place_of_handle()
            ),
            _ => String::new(),
        }
    }

    /// Text that explains where a request contains the toolset handle.
    fn place_of_handle(&self) -> String {
        match self.cx.transport() {
            Transport::Rest if self.cx.caller.manager => {
                "the parameter toolset of test_tool, or ?toolset=HANDLE in the address".to_owned()
            }
            Transport::Rest => "?toolset=HANDLE in the address".to_owned(),
            _ => format!("?toolset=HANDLE in the address, or params._meta[\"{HANDLE_KEY}\"]"),
        }
    }

    /// Text for a complete call of `toolman_call`, for the end of an error about its arguments; empty if no tool is active.
    pub(super) fn call_instead(&self) -> String {
        let mut tools = self.catalogue.of(EntryKind::Tool);
        let active = tools.find(|it| !it.is_of_app && self.is_active(it) && self.is_visible(it));
        let call = active.map(|it| call_of(&it.published));
        call.map_or_else(String::new, |call| format!(": for example {call}"))
    }

    /// Text for a complete call of the tool whose name is nearest to an unknown one, for the end of the error. The caller's
    /// arguments are not repeated: they may contain secrets.
    pub(super) fn call_of_nearest(&self, name: &str) -> String {
        let visible = |entry: &PublishedEntry| self.is_visible(entry);
        let shown = self.view(&visible);
        let near = shown.nearest_names(name, false);
        let Some(entry) = near.first().and_then(|near| self.catalogue.tool(near)) else {
            return self.call_instead();
        };
        let call = match self.is_active(entry) {
            true => Ok(call_of(&entry.published)),
            false => self.way_to_activate(entry),
        };
        call.map_or_else(|_| String::new(), |call| format!(" Perhaps: {call}"))
    }
}

/// Message for callers on the relay's socket, which cannot send a handle: the reason why they always have the tools that are
/// active at the start.
pub(super) const NOWHERE: &str = "calls by the relay's socket have the tools of active_toolsets, unless the aggregate's file says activation_scope = \"principal\" or \"process\"";
