//! `tools/list` and `tools/call`.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::{AbortHandle, Abortable, Aborted};
use serde::Deserialize;
use serde_json::value::RawValue;
use tooldock_workers::error::{CallError, CallErrorCode};
use tooldock_workers::tool::Tool;
use tooldock_workers::worker::ToolReply;

use super::Conversation;
use crate::audit::Transport;
use crate::content;
use crate::engine::{CallRequest, Detached, Engine};
use crate::envelope;
use crate::error::Failure;
use crate::protocol::ProtocolVersion;
use crate::session::{InFlight, Session};

/// How long a request waits for a confirmation of the session that it may have overtaken (K-15).
const PATIENCE: Duration = Duration::from_secs(1);

#[derive(Deserialize)]
struct ListParams<'a> {
    #[serde(borrow, default)]
    cursor: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct CallParams<'a> {
    #[serde(borrow, default, deserialize_with = "envelope::present")]
    name: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "envelope::present")]
    arguments: Option<&'a RawValue>,
    #[serde(
        borrow,
        default,
        deserialize_with = "envelope::present",
        rename = "_meta"
    )]
    meta: Option<&'a RawValue>,
}

/// The tools of the namespace, all on one page.
pub(super) async fn list(
    conversation: &Conversation<'_>,
    id: &str,
    params: Option<&RawValue>,
) -> Result<Vec<u8>, Failure> {
    confirmed(conversation).await?;
    let params: ListParams<'_> = envelope::fields(params, "params")?;
    if params.cursor.is_some() {
        return Err(Failure::InvalidParams(
            "unknown cursor: the list has one page".into(),
        ));
    }
    let tools = Engine::list(&conversation.namespace).map_err(Failure::Upstream)?;
    let mut out = Vec::with_capacity(256 + 512 * conversation.namespace.tools.len());
    content::begin(&mut out, id);
    out.extend_from_slice(b"{\"tools\":[");
    for (position, tool) in tools.enumerate() {
        if position > 0 {
            out.push(b',');
        }
        describe(&mut out, tool, conversation.version);
    }
    out.extend_from_slice(b"]}}");
    Ok(out)
}

/// One tool as MCP describes it. An output schema describes `structuredContent`, so it goes only where that does; a
/// title is harmless to clients that do not know it.
fn describe(out: &mut Vec<u8>, tool: &Tool, version: ProtocolVersion) {
    let newer = version.has_structured_content();
    let text = |out: &mut Vec<u8>, key: &[u8], text: &str| {
        out.extend_from_slice(key);
        content::escape(out, text.as_bytes());
    };
    let raw = |out: &mut Vec<u8>, key: &[u8], value: Option<&RawValue>| {
        if let Some(value) = value {
            out.extend_from_slice(key);
            out.extend_from_slice(value.get().as_bytes());
        }
    };
    text(out, b"{\"name\":", &tool.name);
    if let Some(title) = tool.title.as_deref() {
        text(out, b",\"title\":", title);
    }
    text(out, b",\"description\":", &tool.description);
    raw(out, b",\"inputSchema\":", Some(&tool.input_schema));
    let output = tool.output_schema.as_deref().filter(|_| newer);
    raw(out, b",\"outputSchema\":", output);
    raw(out, b",\"annotations\":", tool.annotations.as_deref());
    raw(out, b",\"_meta\":", tool.meta.as_deref());
    out.push(b'}');
}

/// Calls a tool. Wrong parameters are a JSON-RPC error; whatever happens to the call itself is a result.
pub(super) async fn call(
    conversation: &Conversation<'_>,
    id: &str,
    params: Option<&RawValue>,
) -> Result<Vec<u8>, Failure> {
    confirmed(conversation).await?;
    let params: CallParams<'_> = envelope::fields(params, "params")?;
    let name = params
        .name
        .and_then(envelope::string)
        .ok_or_else(|| Failure::InvalidParams("params.name must be a string".into()))?;
    envelope::object(params.arguments, "params.arguments")?;
    envelope::object(params.meta, "params._meta")?;
    let request = CallRequest {
        namespace: Arc::clone(&conversation.namespace),
        tool: tool_name(conversation, &name),
        arguments: params.arguments.map_or_else(
            || Bytes::from_static(b"{}"),
            |span| own(conversation.body, span.get().as_bytes()),
        ),
        transport: Transport::Mcp,
        version: Some(conversation.version),
        session: conversation
            .session
            .as_ref()
            .map(|session| Arc::clone(session.tag())),
    };
    let outcome = match &conversation.session {
        Some(session) => call_in_session(conversation, session, id, request).await,
        None => {
            let engine = &conversation.core.engine;
            engine.call(conversation.caller, request).await
        }
    };
    Ok(match outcome {
        Ok(reply) => content::success(id, &reply, conversation.version),
        Err(error) => content::failure(id, &error, conversation.caller, conversation.version),
    })
}

/// The arguments as bytes of their own: a view into the body where they are most of it, else a copy, since a view keeps
/// the whole body alive in queues that count only what they see.
fn own(body: &Bytes, arguments: &[u8]) -> Bytes {
    if arguments.len() * 2 < body.len() {
        Bytes::copy_from_slice(arguments)
    } else {
        body.slice_ref(arguments)
    }
}

/// The declared tool's own name where there is one: a shared string instead of a new one.
fn tool_name(conversation: &Conversation<'_>, name: &str) -> Arc<str> {
    let declared = conversation
        .namespace
        .tools
        .iter()
        .find(|tool| *tool.name == *name);
    declared.map_or_else(|| name.into(), |tool| Arc::clone(&tool.name))
}

/// A call in a session goes on when its POST goes away; `notifications/cancelled`, the end of the session or the tool's
/// time limit end it.
async fn call_in_session(
    conversation: &Conversation<'_>,
    session: &Arc<Session>,
    id: &str,
    request: CallRequest,
) -> Result<ToolReply, CallError> {
    let (handle, registration) = AbortHandle::new_pair();
    let entry = InFlight::enter(session, id, handle);
    let core = Arc::clone(conversation.core);
    let caller = conversation.caller.clone();
    let work = async move {
        let outcome = core.engine.call(&caller, request).await;
        drop(entry);
        outcome
    };
    Detached::new(Abortable::new(work, registration))
        .await
        .unwrap_or_else(|Aborted| {
            Err(CallError::new(
                CallErrorCode::Cancelled,
                "The call was cancelled",
            ))
        })
}

/// Waits for the client's confirmation where the listener and the version ask for it (MCP-08).
async fn confirmed(conversation: &Conversation<'_>) -> Result<(), Failure> {
    let Some(session) = &conversation.session else {
        return Ok(());
    };
    let asked = conversation.caller.profile.require_initialized
        && conversation.version >= ProtocolVersion::V2025_06_18;
    if !asked || session.confirmed_within(PATIENCE).await {
        return Ok(());
    }
    Err(match session.state() {
        crate::session::State::Closed => Failure::SessionNotFound,
        _ => Failure::NotInitialized,
    })
}
