//! Requests of 2026-07-28. Each request contains its protocol version, capabilities and log level, since there are no sessions.
//!
//! The steps of a request: Accept → namespace → `_meta` → version → mirrored headers → method. Methods are shared with the
//! legacy era (`methods`); this module contains the differences of the transport. Session ids and event ids in a request are
//! ignored.

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;
use http::StatusCode;
use tooldock_engine::engine::NO_ARGUMENTS;
use tooldock_engine::upstream::{CallContext, Client, IncomingRequest, PreparedRequest, ToolsWait};
use tooldock_sessions::caller::Caller;
use tooldock_sessions::catalogue::View;
use tooldock_sessions::interaction;
use tooldock_sessions::profile::AcceptRule;

use super::head::{Carrier, McpHead};
use super::tasks::{RequestOrWait, prepare_with_tasks};
use super::{BOTH_BY_NAME, EITHER, context, namespace, pass_through};
use crate::error::ToReply as _;
use crate::jsonrpc::{self, Key, Members, Message, RequestError};
use crate::mcp::Core;
use crate::protocol::method::TOOLS_CALL;
use crate::protocol::{self, ProtocolVersion};
use crate::reply::Reply;

mod delivery;
mod exchange;
mod headers;
mod listen;
mod meta;

pub(super) use exchange::{Inputs, inputs, put_request};

/// Protocol version that this module serves.
pub(super) const VERSION: &str = protocol::MODERN;

/// The method that opens a stream of change notifications.
const LISTEN: &str = "subscriptions/listen";

/// Calls that were suspended by a question, and wait for their clients' next requests.
pub(crate) type SuspendedCalls = interaction::SuspendedCalls<delivery::ModernCall>;

/// Returns true if a message belongs to the modern era. `asks` is the method and the JSON members of a request or notification.
/// `initialize` belongs to the legacy era, regardless of the headers (K-14).
pub(super) fn is_modern(head: &McpHead, asks: Option<(&str, &Members<'_>)>) -> bool {
    let method = asks.map(|(method, _)| method);
    if head.session.is_none() {
        let version = head.version.as_deref();
        // A client that sends an unknown version older than 2026-07-28 belongs to the legacy era, whose code answers with the
        // error.
        let unknown = version
            .map(str::trim)
            .is_some_and(|text| text >= VERSION && text.parse::<ProtocolVersion>().is_err());
        let mirrored = head.mirrored.as_deref();
        let mirrors = mirrored.is_some_and(|headers| headers.method.is_some());
        if (unknown || mirrors) && method != Some("initialize") {
            return true;
        }
    }
    asks.is_some_and(|(_, members)| members.raw(Key::ProtocolVersion).is_some())
}

/// Answers a modern message.
///
/// Dropping the future, or the body of its response, cancels the call. A suspended call is not cancelled.
pub(super) async fn answer(
    core: &Arc<Core>,
    caller: &Caller,
    head: &McpHead,
    body: &Bytes,
    message: &Message<'_>,
) -> Reply {
    let (outcome, id) = match message {
        Message::Request {
            id,
            method,
            members,
        } => {
            let outcome = request(core, caller, head, body, message, (id, method, members)).await;
            (outcome, Some(*id))
        }
        Message::Notification { members, .. } => {
            // Notifications are accepted and ignored, since the modern transport defines none: a client cancels a request by
            // closing its response.
            let taken = served(caller, head, members).and_then(|()| namespace(core, caller));
            (taken.map(|_| Reply::empty(StatusCode::ACCEPTED)), None)
        }
        Message::Response { .. } => {
            let reason = "the server sends no requests in 2026-07-28, so it takes no responses";
            (Err(RequestError::Shape(reason.into())), None)
        }
    };
    outcome.unwrap_or_else(|failure| {
        tracing::debug!(
            request_id = &*caller.request_id,
            code = failure.code(),
            "modern MCP message refused"
        );
        failure.modern_reply(id)
    })
}

/// Returns the version in a request's header if the gateway does not support it: neither 2026-07-28 nor a legacy version.
fn unknown(head: &McpHead) -> Option<&str> {
    let version = head.version.as_deref().map(str::trim)?;
    (version != VERSION && version.parse::<ProtocolVersion>().is_err()).then_some(version)
}

/// Creates the error for several messages in one body.
pub(super) fn batch_refused() -> RequestError {
    RequestError::Shape("2026-07-28 has no batches: send one message per POST".into())
}

/// A modern request: its id as raw JSON, its method, and its JSON members.
/// Id, method and members of a request.
type Request<'a> = (&'a str, &'a str, &'a Members<'a>);

async fn request(
    core: &Arc<Core>,
    caller: &Caller,
    head: &McpHead,
    body: &Bytes,
    message: &Message<'_>,
    (id, method, members): Request<'_>,
) -> Result<Reply, RequestError> {
    served(caller, head, members)?;
    acceptable(caller, head)?;
    if method == LISTEN && !head.accept.sse_acceptable {
        return Err(RequestError::NotAcceptable("text/event-stream"));
    }
    let namespace = namespace(core, caller)?;
    if head.version.is_none() && head.carrier == Carrier::Http {
        return Err(RequestError::HeaderMismatch(
            "MCP-Protocol-Version is missing".into(),
        ));
    }
    if members.raw(Key::ProtocolVersion).is_none()
        && let Some(version) = unknown(head)
    {
        return Err(unsupported(caller, version));
    }
    members.well_formed().map_err(missing_meta)?;
    let read = meta::read(body, members).map_err(RequestError::MissingMeta)?;
    let mut meta = read.meta;
    if let Some(fault) = headers::version_fault(head, &read.version) {
        return Err(RequestError::HeaderMismatch(fault));
    }
    if read.version != VERSION {
        return Err(unsupported(caller, &read.version));
    }
    if pass_through::is_remote(&namespace) {
        if let Some(fault) = headers::fault(head, None, method, members) {
            return Err(RequestError::HeaderMismatch(fault));
        }
        let client = Client::Modern(meta.clone());
        let namespace = Arc::clone(&namespace);
        let cx = context(core, caller, body, namespace, client, head.accept.streams());
        let passed = pass_through::answer(core, &cx, head.accept, Some(message));
        if let Some(reply) = Box::pin(passed).await? {
            return Ok(reply);
        }
    }
    let upstream = core.upstreams.of(&namespace);
    let name = members.get(Key::Name).and_then(jsonrpc::string);
    let name = name.filter(|_| method == TOOLS_CALL);
    let tools = match name {
        Some(_) => match upstream
            .tool_lists()
            .tools(&namespace, caller.principal.as_ref(), ToolsWait::Short)
            .get()
            .await
        {
            Ok(tools) => Some(tools),
            // The list of tools is not available, so headers that mirror parameters cannot be compared with the body. Such a
            // request is refused, since an intermediary may have acted on the headers. Other requests need no list here.
            Err(error) if mirrors_parameters(head) => return Err(RequestError::Upstream(error)),
            Err(_) => None,
        },
        None => None,
    };
    let view = View::of(caller, &namespace);
    let called = (tools.as_deref().zip(name)).and_then(|(tools, name)| view.tool(tools, &name));
    if let Some(fault) = headers::fault(head, called, method, members) {
        return Err(RequestError::HeaderMismatch(fault));
    }
    let retry = match subject(method, members) {
        Some(subject) => {
            // A state that the gateway has not sealed belongs to the server, or to the bridge between the eras.
            let ours = !upstream.server_facts().gets_client_messages()
                || core.suspended.seals(members.get(Key::RequestState));
            let inputs = if ours {
                exchange::inputs(members)?
            } else {
                Vec::new()
            };
            match members.get(Key::RequestState) {
                Some(state) if ours => Some(exchange::Retry {
                    subject,
                    arguments: members
                        .get(Key::Arguments)
                        .filter(|_| method != "resources/read")
                        .map_or(NO_ARGUMENTS, |raw| raw.get().as_bytes()),
                    state,
                    inputs,
                }),
                Some(_) => None,
                None => {
                    let inputs = members.get(Key::InputResponses);
                    meta.inputs = inputs.map(|raw| meta::span(body, raw));
                    None
                }
            }
        }
        None => None,
    };
    let client = Client::Modern(meta.clone());
    let cx = context(core, caller, body, namespace, client, head.accept.streams());
    let request = exchange::ModernRequest {
        id,
        method,
        meta: &meta,
    };
    if let Some(retry) = retry {
        return exchange::resume(core, &cx, request, &retry).await;
    }
    match method {
        "server/discover" => discover(&cx, id).await,
        LISTEN => listen::open(core, &cx, id, members.params()).await,
        _ => {
            let incoming = IncomingRequest {
                id,
                method,
                members,
            };
            match prepare_with_tasks(core, &cx, incoming).await? {
                RequestOrWait::Request(PreparedRequest::Response(answer)) => {
                    Ok(Reply::json(StatusCode::OK, answer))
                }
                RequestOrWait::Request(PreparedRequest::Call(call)) => {
                    exchange::begin(core, &cx, request, call).await
                }
                // This version has no method that waits for a task.
                RequestOrWait::Wait(_) => Err(RequestError::MethodNotFound(method.to_owned())),
            }
        }
    }
}

/// Answers `server/discover` with the facts about the server that legacy clients get from `initialize`.
async fn discover(cx: &CallContext<'_>, id: &str) -> Result<Reply, RequestError> {
    let versions: Vec<&str> = supported(cx.caller).collect();
    let answered = cx.upstream.discover(cx, id, &versions).get().await;
    let answer = answered.map_err(RequestError::Upstream)?;
    Ok(Reply::json(StatusCode::OK, answer))
}

/// Returns true if the request has headers that mirror parameters.
fn mirrors_parameters(head: &McpHead) -> bool {
    let mirrored = head.mirrored.as_deref();
    mirrored.is_some_and(|headers| !headers.params.is_empty())
}

/// Checks that the listener serves 2026-07-28.
fn served(caller: &Caller, head: &McpHead, members: &Members<'_>) -> Result<(), RequestError> {
    if caller.profile.modern {
        return Ok(());
    }
    let asked = meta::version_named(members);
    let asked = asked.or_else(|| head.version.as_deref().map(Cow::Borrowed));
    Err(unsupported(caller, asked.as_deref().unwrap_or(VERSION)))
}

fn unsupported(caller: &Caller, requested: &str) -> RequestError {
    RequestError::UnsupportedModernVersion {
        requested: requested.to_owned(),
        supported: supported(caller).collect(),
    }
}

/// The versions of both eras that the listener serves, newest first.
fn supported(caller: &Caller) -> impl Iterator<Item = &'static str> {
    let mut legacy = caller.profile.versions.clone();
    legacy.sort_unstable_by(|one, other| other.cmp(one));
    caller
        .profile
        .modern
        .then_some(VERSION)
        .into_iter()
        .chain(legacy.into_iter().map(ProtocolVersion::as_str))
}

/// Returns the name of the tool or prompt, or the URI of the resource, for the methods whose calls may ask questions.
fn subject<'a>(method: &str, members: &Members<'a>) -> Option<Cow<'a, str>> {
    match method {
        "tools/call" | "prompts/get" => members.get(Key::Name),
        "resources/read" => members.get(Key::Uri),
        _ => None,
    }
    .and_then(jsonrpc::string)
}

fn acceptable(caller: &Caller, head: &McpHead) -> Result<(), RequestError> {
    let accept = head.accept;
    let (satisfied, wanted) = match caller.profile.accept {
        AcceptRule::Strict => (accept.names_both(), BOTH_BY_NAME),
        AcceptRule::Lenient => (accept.takes_either(), EITHER),
    };
    match satisfied {
        true => Ok(()),
        false => Err(RequestError::NotAcceptable(wanted)),
    }
}

/// Replaces the error for invalid params by that for missing `_meta`: params that are no object contain no `_meta`.
fn missing_meta(failure: RequestError) -> RequestError {
    match failure {
        RequestError::InvalidParams(reason) => RequestError::MissingMeta(reason),
        other => other,
    }
}

#[cfg(test)]
mod tests;
