//! `subscriptions/listen`: a stream of the changes to which a client has subscribed.
//!
//! The first message of the stream lists the granted subscriptions, and each message contains the request's id. If the gateway
//! ends the stream, its last message is the response to the request. The stream cannot be resumed: a client that lost it
//! subscribes again.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;
use tooldock_engine::upstream::CallContext;
use tooldock_sessions::broadcast::Filter;
use tooldock_sessions::session::subscriptions::URIS_MAX;
use tooldock_sessions::stream::open::OpenKind;
use tooldock_sessions::stream::{Stream, frame};

use crate::jsonrpc::{self, RequestError};
use crate::mcp::exchange::events_head;
use crate::mcp::{Core, stream_place};
use crate::reply::{Reply, ReplyGuards};

#[derive(Deserialize)]
struct ListenParams<'a> {
    #[serde(borrow, default, deserialize_with = "jsonrpc::present")]
    notifications: Option<&'a RawValue>,
}

/// Maximum number of kinds of changes that a request may name, including unknown kinds.
const KINDS_MAX: usize = 100;

/// Opens the stream of change notifications.
pub(super) async fn open(
    core: &Arc<Core>,
    cx: &CallContext<'_>,
    id: &str,
    params: Option<&RawValue>,
) -> Result<Reply, RequestError> {
    let params: ListenParams<'_> = jsonrpc::fields(params, "params")?;
    let filter = requested(params.notifications)?;
    let place = stream_place(core, cx.caller, filter.bytes())?;
    let mut guards: ReplyGuards = vec![Box::new(place)];
    let listening = cx.upstream.listen(cx, filter).get().await?;
    let filter = listening.granted;
    guards.extend(listening.guard);
    let stream = Stream::detached(&core.keep_alive);
    // The acknowledgement is added before the stream is registered for changes, so that it is the first message.
    stream.push(frame::message(None, &acknowledged(id, &filter)));
    let namespace = &cx.namespace.name;
    let listening = core.audience.listen(namespace, filter, id, &stream);
    guards.push(Box::new(listening));
    let principal = cx.caller.principal.as_ref();
    let listed = core
        .open_streams
        .enter(OpenKind::Listen, namespace, principal, &stream);
    guards.push(Box::new(listed));
    Ok(Reply::Events {
        head: events_head(),
        events: stream.read(),
        guards,
    })
}

/// Reads the changes that the client subscribes to. Unknown and unsupported kinds are ignored.
fn requested(raw: Option<&RawValue>) -> Result<Filter, RequestError> {
    let invalid = |reason: &'static str| RequestError::InvalidParams(reason.into());
    let entries = raw
        .and_then(|raw| jsonrpc::few_entries(raw, KINDS_MAX))
        .ok_or_else(|| invalid("params.notifications must be an object"))?;
    let mut filter = Filter::default();
    for (key, value) in entries {
        let wanted = || match value.get() {
            "true" => Ok(true),
            "false" => Ok(false),
            _ => Err(invalid(
                "params.notifications: every kind must be true or false",
            )),
        };
        match &*key {
            "toolsListChanged" => filter.tools = wanted()?,
            "promptsListChanged" => filter.prompts = wanted()?,
            "resourcesListChanged" => filter.resources = wanted()?,
            "resourceSubscriptions" => {
                filter.updates = jsonrpc::few(value.get(), URIS_MAX).map_err(|_| {
                    invalid("params.notifications.resourceSubscriptions must be a list of strings")
                })?;
            }
            _ => {}
        }
    }
    filter
        .check()
        .map_err(|_| invalid("params.notifications.resourceSubscriptions is too long"))?;
    Ok(filter)
}

/// Builds the acknowledgement, which is the stream's first message. `id` is the request's id as raw JSON.
fn acknowledged(id: &str, filter: &Filter) -> Vec<u8> {
    let mut notifications = json!({});
    for (key, granted) in [
        ("toolsListChanged", filter.tools),
        ("promptsListChanged", filter.prompts),
        ("resourcesListChanged", filter.resources),
    ] {
        if granted {
            notifications[key] = true.into();
        }
    }
    if !filter.updates.is_empty() {
        notifications["resourceSubscriptions"] = filter.updates.as_slice().into();
    }
    format!(
        r#"{{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{{"_meta":{{"io.modelcontextprotocol/subscriptionId":{id}}},"notifications":{notifications}}}}}"#
    )
    .into_bytes()
}
