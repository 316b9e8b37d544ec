//! One POST or DELETE on an MCP path.
//!
//! The order of a POST: parse → namespace → version header → session → their agreement → Accept → the message. A
//! failure answers at once with a JSON-RPC error; what comes after it does not run.

use std::sync::Arc;

use bytes::Bytes;
use http::StatusCode;
use tokio::time::Instant;
use tooldock_workers::registry::Namespace;

use crate::caller::Caller;
use crate::envelope::{self, Invalid, Message};
use crate::error::Failure;
use crate::protocol::ProtocolVersion;
use crate::reply::Reply;
use crate::session::Session;
use crate::state::Core;

mod batch;
pub(crate) mod head;
mod initialize;
mod notification;
mod request;
mod tools;

use head::McpHead;

/// What a message is spoken in: who, to which namespace, in which version and session.
struct Conversation<'a> {
    core: &'a Arc<Core>,
    caller: &'a Caller,
    body: &'a Bytes,
    namespace: Arc<Namespace>,
    version: ProtocolVersion,
    session: Option<Arc<Session>>,
}

/// Answers a POST.
pub(crate) async fn post(core: &Arc<Core>, caller: &Caller, head: &McpHead, body: &Bytes) -> Reply {
    match answer(core, caller, head, body).await {
        Ok(reply) => reply,
        Err(Invalid { failure, id }) => {
            tracing::debug!(
                request_id = &*caller.request_id,
                code = failure.code(),
                "MCP message refused"
            );
            failure.reply(id)
        }
    }
}

/// Ends a session (MCP-03).
pub(crate) async fn delete(core: &Arc<Core>, caller: &Caller, head: &McpHead) -> Reply {
    match end_session(core, caller, head).await {
        Ok(()) => Reply::empty(StatusCode::NO_CONTENT),
        Err(failure) => failure.reply(None),
    }
}

async fn answer<'a>(
    core: &'a Arc<Core>,
    caller: &'a Caller,
    head: &McpHead,
    body: &'a Bytes,
) -> Result<Reply, Invalid<'a>> {
    let text = envelope::text(body)?;
    if envelope::is_batch(text) {
        let messages = envelope::batch(text)?;
        let conversation = Conversation::open(core, caller, head, body, false).await?;
        return Ok(batch::answer(&conversation, &messages).await?);
    }
    match envelope::message(text)? {
        Message::Request { id, method, params } => {
            let refused = |failure| Invalid {
                failure,
                id: Some(id),
            };
            let initialize = method == "initialize";
            let conversation = Conversation::open(core, caller, head, body, initialize)
                .await
                .map_err(refused)?;
            if initialize {
                return initialize::answer(&conversation, head.accept, id, params)
                    .await
                    .map_err(refused);
            }
            let answer = request::answer(&conversation, id, &method, params)
                .await
                .map_err(refused)?;
            Ok(Reply::json(StatusCode::OK, answer))
        }
        Message::Notification { method, params } => {
            let conversation = Conversation::open(core, caller, head, body, false).await?;
            notification::take(&conversation, &method, params)?;
            Ok(Reply::empty(StatusCode::ACCEPTED))
        }
        Message::Response => {
            // Nothing of ours waits for an answer, so it is taken and dropped.
            Conversation::open(core, caller, head, body, false).await?;
            Ok(Reply::empty(StatusCode::ACCEPTED))
        }
    }
}

async fn end_session(core: &Arc<Core>, caller: &Caller, head: &McpHead) -> Result<(), Failure> {
    let namespace = namespace(core, caller)?;
    let header = header_version(caller, head)?;
    let session = session(core, caller, head, &namespace).await?;
    let session = session.ok_or(Failure::SessionRequired)?;
    agree(header, Some(&session))?;
    let ended = core.sessions.remove(session.id().as_str()).await;
    if !ended.map_err(|error| store_failure(&error))? {
        return Err(Failure::SessionNotFound);
    }
    core.metrics.sessions_deleted.inc();
    core.metrics.sessions.set(gauge(core.sessions.count()));
    Ok(())
}

impl<'a> Conversation<'a> {
    /// Settles version and session. For `initialize`, which has neither yet, the version is completed from its body.
    async fn open(
        core: &'a Arc<Core>,
        caller: &'a Caller,
        head: &McpHead,
        body: &'a Bytes,
        initialize: bool,
    ) -> Result<Self, Failure> {
        let namespace = namespace(core, caller)?;
        let header = header_version(caller, head)?;
        let session = session(core, caller, head, &namespace).await?;
        let version = agree(header, session.as_ref())?;
        if !initialize {
            if session.is_none() && caller.profile.session_required(version) {
                return Err(Failure::SessionRequired);
            }
            acceptable(caller, head.accept, version)?;
        }
        Ok(Self {
            core,
            caller,
            body,
            namespace,
            version,
            session,
        })
    }
}

fn namespace(core: &Core, caller: &Caller) -> Result<Arc<Namespace>, Failure> {
    let name = caller
        .namespace
        .as_ref()
        .ok_or(Failure::NamespaceRequired)?;
    core.registry
        .namespace(name.as_str())
        .ok_or_else(|| Failure::NamespaceNotFound(name.to_string()))
}

fn header_version(caller: &Caller, head: &McpHead) -> Result<Option<ProtocolVersion>, Failure> {
    let Some(text) = &head.version else {
        return Ok(None);
    };
    match text.trim().parse() {
        Ok(version) if caller.profile.supports(version) => Ok(Some(version)),
        _ => {
            let supported: Vec<_> = caller.profile.versions.iter().map(|v| v.as_str()).collect();
            Err(Failure::UnsupportedVersion(supported.join(", ")))
        }
    }
}

/// The session the request names, if it names one. Another namespace's or principal's does not exist here.
async fn session(
    core: &Core,
    caller: &Caller,
    head: &McpHead,
    namespace: &Namespace,
) -> Result<Option<Arc<Session>>, Failure> {
    let Some(id) = &head.session else {
        return Ok(None);
    };
    let now = Instant::now();
    let found = core.sessions.get(id, now).await;
    let session = found
        .map_err(|error| store_failure(&error))?
        .filter(|session| session.belongs_to(&namespace.name, caller.principal.as_deref()))
        .ok_or(Failure::SessionNotFound)?;
    // Only now: a stranger must not keep a session alive.
    session.touch(now);
    Ok(Some(session))
}

/// The version in force: the session's, which the header must repeat if it is there; else the header's; else the
/// oldest (MCP-10 to MCP-12).
fn agree(
    header: Option<ProtocolVersion>,
    session: Option<&Arc<Session>>,
) -> Result<ProtocolVersion, Failure> {
    match (session.map(|session| session.binding().version), header) {
        (Some(own), Some(header)) if own != header => Err(Failure::VersionMismatch {
            session: own.as_str(),
        }),
        (Some(own), _) => Ok(own),
        (None, header) => Ok(header.unwrap_or(ProtocolVersion::FALLBACK)),
    }
}

fn acceptable(
    caller: &Caller,
    accept: head::AcceptFlags,
    version: ProtocolVersion,
) -> Result<(), Failure> {
    if accept.satisfy(&caller.profile, version) {
        return Ok(());
    }
    let strict = caller.profile.accept == crate::profile::AcceptRule::Strict
        && version >= ProtocolVersion::V2025_06_18;
    Err(Failure::NotAcceptable(if strict {
        "application/json and text/event-stream, both by name"
    } else {
        "application/json"
    }))
}

fn store_failure(error: &crate::session::store::StoreError) -> Failure {
    tracing::error!(%error, "the session store failed");
    Failure::Internal
}

/// A count as a gauge's value.
pub(crate) fn gauge(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;
