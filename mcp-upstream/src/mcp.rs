//! Answers messages posted to an MCP path: determines era, version and session, prepares the request, and runs its call.
//!
//! ```text
//!   post ─┬─ modern                      2026-07-28: the request contains all that is needed
//!         ├─ pass_through                messages of either era that a remote server gets as they are, by one decision
//!         ├─ initialize, batch, one_way  the handshake; several messages; messages without a response
//!         └─ prepare                     prepares a request: a response, or a call of the upstream (`tooldock_engine::upstream`)
//!              └─ call                   runs the call and writes its response: JSON
//!                   └─ exchange          for messages before the response: a stream of events
//!   get, delete ─ sessions               server notifications outside of responses; resumption; the end of a session
//! ```
//!
//! The steps: parse → era → namespace → version header → session → agreement of version and session → Accept → mode → message. A
//! failed step is answered with a JSON-RPC error, and the later steps do not run.
//!
//! The futures of the branches are boxed: reserving space for all of them in every request would cost more than answering a
//! `ping`.

use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use http::StatusCode;
use tokio::time::Instant;
use tooldock_base::poll_watch;
use tooldock_engine::trace;
use tooldock_engine::upstream::{
    CallContext, Client, IncomingRequest, PreparedRequest, store_away,
};
use tooldock_sessions::caller::Caller;
use tooldock_sessions::profile::AcceptRule;
use tooldock_sessions::session::table::Located;
use tooldock_sessions::session::{Session, SessionState, SessionTransport};
use tooldock_workers::registry::Namespace;

use crate::error::ToReply as _;
use crate::format::ResultWriter;
use crate::jsonrpc::{self, Body, Invalid, Members, Message, RequestError};
use crate::protocol::ProtocolVersion;
use crate::protocol::method::TOOLS_LIST;
use crate::reply::Reply;

pub(crate) mod batch;
pub(crate) mod call;
mod core;
pub(crate) mod driver;
pub(crate) mod exchange;
mod form;
pub(crate) mod head;
pub(crate) mod initialize;
pub(crate) mod modern;
pub(crate) mod one_way;
pub(crate) mod pass_through;
mod sessions;
mod shown_tools;
pub(crate) mod tasks;

pub(crate) use core::Core;
pub use core::{
    CertificateEnds, ConfigurationChange, ConfigurationView, ConfiguredValue, WebFacts,
};
pub(crate) use exchange::events_head;
use head::McpHead;
pub(crate) use sessions::{create_session, delete, forget_session, get, open_stream, stream_place};
pub(crate) use shown_tools::{of_namespace as shown_tools, of_page as shown_page, page_of};
use tasks::RequestOrWait;

/// Wording of the `Accept` requirements in error messages, with the configuration key that relaxes them.
const BOTH_BY_NAME: &str = "application/json and text/event-stream, both by name, unless the operator sets \
    `accept: lenient` for the listener";
const JSON_AT_LEAST: &str =
    "application/json, unless the operator sets `accept: lenient` for the listener";
const EITHER: &str = "application/json or text/event-stream";

/// Answers a POST on an MCP path.
pub(crate) async fn post(core: &Arc<Core>, caller: &Caller, head: &McpHead, body: &Bytes) -> Reply {
    let reply = match posted(core, caller, head, body).await {
        Ok(reply) => reply,
        Err(invalid) => refused(caller, invalid),
    };
    match form::may_change(head.accept, &caller.profile) {
        false => reply,
        true => {
            let answers = core.engine.account_of(caller);
            Box::pin(form::accepted(reply, head.accept, &answers)).await
        }
    }
}

async fn posted<'a>(
    core: &'a Arc<Core>,
    caller: &'a Caller,
    head: &'a McpHead,
    body: &'a Bytes,
) -> Result<Reply, Invalid<'a>> {
    let content = jsonrpc::body(body)?;
    if let Some(body) = jsonrpc::without_nulls(&content, body) {
        return Ok(posted_again(core, caller, head, body).await);
    }
    let message = match &content {
        Body::One(message) => Some(message),
        Body::Batch(_) => None,
    };
    if let Some(Message::Request { method, .. } | Message::Notification { method, .. }) = message {
        poll_watch::note_method(method);
    }
    let (mut id, mut initialize) = (None, false);
    if let Some(Message::Request {
        id: asked,
        method,
        members,
    }) = message
    {
        trace::note_message(caller, Some(*asked), method, members);
        (id, initialize) = (Some(*asked), *method == "initialize");
    }
    match message {
        Some(message) if is_modern(head, message) => {
            let answer = modern::answer(core, caller, head, body, message);
            return Ok(Box::pin(answer).await);
        }
        None if names(head, modern::VERSION) => return Err(modern::batch_refused().into()),
        _ => {}
    }
    let refused = |failure| Invalid { failure, id };
    let cx = open(core, caller, head, body, initialize)
        .await
        .map_err(refused)?;
    if pass_through::is_remote(&cx.namespace) {
        let passed = pass_through::answer(core, &cx, head.accept, message);
        if let Some(reply) = Box::pin(passed).await.map_err(refused)? {
            return Ok(reply);
        }
    }
    match &content {
        Body::Batch(messages) => Box::pin(batch::answer(core, &cx, messages))
            .await
            .map_err(refused),
        Body::One(Message::Request { id, members, .. }) if initialize => {
            let opened = initialize::answer(core, &cx, head.accept, id, members.params());
            Box::pin(opened).await.map_err(refused)
        }
        Body::One(Message::Request {
            id,
            method,
            members,
        }) => {
            let request = IncomingRequest {
                id,
                method,
                members,
            };
            let prepared = tasks::prepare_with_tasks(core, &cx, request);
            match prepared.await.map_err(refused)? {
                RequestOrWait::Request(PreparedRequest::Response(answer)) => {
                    Ok(Reply::json(StatusCode::OK, answer))
                }
                RequestOrWait::Request(PreparedRequest::Call(call)) => {
                    let called = call::answer(core, &cx, id, call);
                    Box::pin(called).await.map_err(refused)
                }
                RequestOrWait::Wait(wait) => {
                    let waited = exchange::wait(core, &cx, id, wait);
                    Box::pin(waited).await.map_err(refused)
                }
            }
        }
        Body::One(Message::Notification { method, members }) => {
            one_way::notified(core, &cx, method, members).await?;
            Ok(Reply::empty(StatusCode::ACCEPTED))
        }
        Body::One(Message::Response {
            id,
            outcome,
            members,
        }) => {
            one_way::answered(&cx, id, *outcome, members)?;
            Ok(Reply::empty(StatusCode::ACCEPTED))
        }
    }
}

/// Answers a message again after its keys with the value `null` were removed.
fn posted_again<'a>(
    core: &'a Arc<Core>,
    caller: &'a Caller,
    head: &'a McpHead,
    body: Bytes,
) -> Pin<Box<dyn Future<Output = Reply> + Send + 'a>> {
    Box::pin(async move {
        let posted = posted(core, caller, head, &body).await;
        posted.unwrap_or_else(|invalid| refused(caller, invalid))
    })
}

/// Returns true if a message belongs to the modern era.
fn is_modern(head: &McpHead, message: &Message<'_>) -> bool {
    match message {
        Message::Request {
            method, members, ..
        }
        | Message::Notification { method, members } => {
            modern::is_modern(head, Some((method, members)))
        }
        Message::Response { .. } => modern::is_modern(head, None),
    }
}

/// Builds the response to a request that was refused as an invalid message.
pub(crate) fn refused(caller: &Caller, invalid: Invalid<'_>) -> Reply {
    let Invalid { failure, id } = invalid;
    trace::note_refusal(caller, failure.code());
    tracing::debug!(
        request_id = &*caller.request_id,
        code = failure.code(),
        "MCP message refused"
    );
    failure.reply(id)
}

/// Prepares a request: returns a response, or a call of its upstream.
///
/// # Errors
///
/// When the request is not valid for this namespace: an unknown method, wrong parameters, a namespace that is not running, a
/// session that was not confirmed.
pub(crate) async fn prepare(
    core: &Core,
    cx: &CallContext<'_>,
    request: IncomingRequest<'_>,
) -> Result<PreparedRequest, RequestError> {
    if request.method == "ping" && cx.client.is_legacy() {
        return ping(cx, request.id, request.members).map(PreparedRequest::Response);
    }
    confirmed(cx, request.method).await?;
    let prepared = cx.upstream.prepare(cx, request).get().await?;
    match prepared {
        PreparedRequest::Response(list)
            if request.method == TOOLS_LIST && core.engine.hooks.see_lists(&cx.namespace.name) =>
        {
            let shown = shown_tools::of_response(core, cx, request.id, list);
            // The future is boxed, so that requests without hooks do not reserve space for it.
            Box::pin(shown).await.map(PreparedRequest::Response)
        }
        prepared => Ok(prepared),
    }
}

fn ping(cx: &CallContext<'_>, id: &str, members: &Members<'_>) -> Result<Vec<u8>, RequestError> {
    members.by_name()?;
    Ok(ResultWriter::begin(id, &cx.result_format(), 0).end())
}

/// Waits for `notifications/initialized` if the listener and the version require it (MCP-08). A request may arrive before
/// that notification (K-15), since two POSTs have no order.
async fn confirmed(cx: &CallContext<'_>, method: &str) -> Result<(), RequestError> {
    let Some(session) = cx.session() else {
        return Ok(());
    };
    let since = ProtocolVersion::V2025_06_18;
    let asked = cx.caller.profile.require_initialized
        && cx.version().is_some_and(|version| version >= since);
    if !asked || session.state() == SessionState::Ready {
        return Ok(());
    }
    // A method that the upstream never offers is refused at once, without a wait for the confirmation.
    cx.upstream.offers(cx, method)?;
    if session
        .confirmed_within(cx.caller.profile.initialized_wait)
        .await
    {
        return Ok(());
    }
    Err(match session.state() {
        SessionState::Closed => RequestError::SessionNotFound,
        _ => RequestError::NotInitialized,
    })
}

/// Finds the session and the protocol version of a legacy message. The headers of an `initialize` are ignored, unless they name
/// a live session of the same client.
async fn open<'a>(
    core: &'a Arc<Core>,
    caller: &'a Caller,
    head: &McpHead,
    body: &'a Bytes,
    initialize: bool,
) -> Result<CallContext<'a>, RequestError> {
    let namespace = namespace(core, caller)?;
    let (session, version) = match initialize {
        false => spoken_in(core, caller, head, &namespace).await?,
        // A second `initialize` in a live session is refused later. The id of a session that has ended is ignored.
        true => match Box::pin(spoken_in_again(core, caller, head, &namespace)).await? {
            Some((session, version)) => (Some(session), version),
            None => (None, caller.profile.unnamed),
        },
    };
    if !initialize {
        if session.is_none() && caller.profile.session_required(version) {
            return Err(RequestError::SessionRequired);
        }
        acceptable(caller, head.accept, version)?;
    }
    let client = match session {
        Some(session) => Client::Session(session),
        None => Client::Legacy(version),
    };
    let streams = head.accept.streams();
    Ok(context(core, caller, body, namespace, client, streams))
}

/// Finds the session that a message names, if any, and the protocol version of the message.
async fn spoken_in(
    core: &Core,
    caller: &Caller,
    head: &McpHead,
    namespace: &Arc<Namespace>,
) -> Result<(Option<Arc<Session>>, ProtocolVersion), RequestError> {
    let header = header_version(caller, head)?;
    let session = session(core, caller, head, namespace).await?;
    let version = agree(caller, header, session.as_ref())?;
    if let Some(session) = &session {
        sessions::not_lost(core, namespace, session).await?;
    }
    Ok((session, version))
}

/// Finds the live session that the headers of an `initialize` name, and its version. Returns `None` if the id is unknown,
/// expired or belongs to another client: a client that still sends its id from before a restart then gets a new session.
async fn spoken_in_again(
    core: &Core,
    caller: &Caller,
    head: &McpHead,
    namespace: &Arc<Namespace>,
) -> Result<Option<(Arc<Session>, ProtocolVersion)>, RequestError> {
    if head.session.is_none() {
        return Ok(None);
    }
    let found = match session(core, caller, head, namespace).await {
        Ok(Some(session)) => sessions::not_lost(core, namespace, &session)
            .await
            .map(|()| session),
        Ok(None) => return Ok(None),
        Err(failure) => Err(failure),
    };
    let session = match found {
        Ok(session) => session,
        Err(RequestError::SessionNotFound) => return Ok(None),
        Err(failure) => return Err(failure),
    };
    // A version header of 2026-07-28 is ignored here: `initialize` belongs to the legacy era.
    let header = match caller.profile.modern && names(head, modern::VERSION) {
        true => None,
        false => header_version(caller, head)?,
    };
    let version = agree(caller, header, Some(&session))?;
    Ok(Some((session, version)))
}

/// Builds the context of a message. Only this function looks up the namespace's upstream.
pub(crate) fn context<'a>(
    core: &'a Core,
    caller: &'a Caller,
    body: &'a Bytes,
    namespace: Arc<Namespace>,
    client: Client,
    streams: bool,
) -> CallContext<'a> {
    CallContext {
        caller,
        body,
        upstream: core.upstreams.of(&namespace),
        depth: 0,
        namespace,
        client,
        streams,
    }
}

/// Finds the namespace of a request in the current snapshot.
pub(crate) fn namespace(core: &Core, caller: &Caller) -> Result<Arc<Namespace>, RequestError> {
    let name = caller
        .namespace
        .as_ref()
        .ok_or(RequestError::NamespaceRequired)?;
    core.registry
        .admitted(name)
        .ok_or_else(|| RequestError::NamespaceNotFound(name.to_string()))
}

/// Returns true if the version header contains this version.
fn names(head: &McpHead, version: &str) -> bool {
    head.version.as_deref().map(str::trim) == Some(version)
}

fn header_version(
    caller: &Caller,
    head: &McpHead,
) -> Result<Option<ProtocolVersion>, RequestError> {
    let Some(text) = &head.version else {
        return Ok(None);
    };
    match text.trim().parse() {
        Ok(version) if caller.profile.supports(version) => Ok(Some(version)),
        _ => Err(unsupported_version(caller)),
    }
}

/// Creates the error for a version header with a version that the listener does not serve.
pub(crate) fn unsupported_version(caller: &Caller) -> RequestError {
    let supported: Vec<_> = caller.profile.versions.iter().map(|v| v.as_str()).collect();
    RequestError::UnsupportedVersion(supported.join(", "))
}

/// Finds the session whose id the request contains, if any.
async fn session(
    core: &Core,
    caller: &Caller,
    head: &McpHead,
    namespace: &Namespace,
) -> Result<Option<Arc<Session>>, RequestError> {
    match &head.session {
        Some(id) => find_session(core, caller, id, namespace, SessionTransport::Streamable)
            .await
            .map(Some),
        None => Ok(None),
    }
}

/// Finds a session by its id. Sessions of other namespaces, principals or transports are treated as unknown (Q-07).
pub(crate) async fn find_session(
    core: &Core,
    caller: &Caller,
    id: &str,
    namespace: &Namespace,
    transport: SessionTransport,
) -> Result<Arc<Session>, RequestError> {
    let now = Instant::now();
    let located = core.sessions.locate(id, now).await;
    let session = match located.map_err(|error| store_away(&error))? {
        Located::Absent => return Err(RequestError::SessionNotFound),
        Located::Live(session) => session,
        Located::Adopted(adopted) => sessions::register_adopted(core, adopted),
        Located::Elsewhere(replica) => return Err(RequestError::Elsewhere(replica.0)),
    };
    let theirs = session.belongs_to(&namespace.name, caller.principal.as_deref())
        && session.binding().transport == transport;
    if !theirs || session.state() == SessionState::Closed {
        return Err(RequestError::SessionNotFound);
    }
    // The time of use is updated only after the checks, so that another client cannot extend the life of a session.
    session.touch(now);
    Ok(session)
}

/// Determines the protocol version of a message. In a session it is the session's, and a version header must equal it. Without
/// a session it is that of the header, or without a header the listener's default, which is the oldest version on most
/// listeners (MCP-10 to MCP-12, MCP-44).
fn agree(
    caller: &Caller,
    header: Option<ProtocolVersion>,
    session: Option<&Arc<Session>>,
) -> Result<ProtocolVersion, RequestError> {
    match (session.map(|session| session.version()), header) {
        (Some(own), Some(header)) if own != header => Err(RequestError::VersionMismatch {
            session: own.as_str(),
        }),
        (Some(own), _) => Ok(own),
        (None, header) => Ok(header.unwrap_or(caller.profile.unnamed)),
    }
}

fn acceptable(
    caller: &Caller,
    accept: head::AcceptFlags,
    version: ProtocolVersion,
) -> Result<(), RequestError> {
    if accept.satisfy(&caller.profile, version) {
        return Ok(());
    }
    let since = ProtocolVersion::V2025_06_18;
    Err(RequestError::NotAcceptable(match caller.profile.accept {
        AcceptRule::Strict if version >= since => BOTH_BY_NAME,
        AcceptRule::Strict => JSON_AT_LEAST,
        AcceptRule::Lenient => EITHER,
    }))
}

#[cfg(test)]
pub(crate) mod tests;
