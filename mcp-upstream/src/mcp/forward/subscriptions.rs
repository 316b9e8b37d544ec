//! What is answered here because the process is not the session's own, or has no such method: log levels, resource
//! subscriptions, `subscriptions/listen`.

use std::sync::Arc;

use tokio::time::timeout;
use tooldock_workers::error::{CallError, CallErrorCode};
use tooldock_workers::registry::Namespace;
use tooldock_workers::worker::LogLevel;

use super::Leased;
use super::binding::UpstreamBinding;
use super::connector::ServerInfo;
use super::isolation::Client;
use super::watch::{NotWatched, Watch};
use crate::bridge::server_info;
use crate::broadcast::Filter;
use crate::engine::ResponseOutcome;
use crate::format;
use crate::jsonrpc::{self, Key, Members, RequestError, Response};
use crate::mcp::{CallContext, Core, commit};
use crate::session::{PatchRefused, Session, SessionPatch};

const LISTEN: &str = "subscriptions/listen";

/// Whether a request of that method asks for something that lasts.
pub(super) fn lasts(method: &str) -> bool {
    matches!(
        method,
        "logging/setLevel" | "resources/subscribe" | "resources/unsubscribe"
    )
}

/// `logging/setLevel`. `None`: the server is to answer.
pub(super) async fn set_level(
    cx: &CallContext<'_>,
    client: &Client,
    id: &str,
    members: &Members<'_>,
) -> Result<Option<Vec<u8>>, RequestError> {
    let level = members.get(Key::LogLevel);
    let level: Option<LogLevel> = level
        .and_then(jsonrpc::string)
        .and_then(|level| level.parse().ok());
    if let (Client::Session(session), Some(level)) = (client, level) {
        commit(cx.core, session, SessionPatch::LogLevel(level)).await?;
    }
    let asked = set_level_at(cx, (client, id), level);
    in_time(cx, "logging/setLevel", asked).await
}

async fn set_level_at(
    cx: &CallContext<'_>,
    (client, id): (&Client, &str),
    level: Option<LogLevel>,
) -> Result<Option<Vec<u8>>, RequestError> {
    let leased = lease(cx, client, "logging/setLevel").await?;
    match leased.process.opening() {
        ServerInfo::Legacy(_) if !leased.is_common() => return Ok(None),
        ServerInfo::Legacy(_) if !server_info::declares(leased.process.opening(), &["logging"]) => {
            return Err(RequestError::MethodNotFound("logging/setLevel".into()));
        }
        ServerInfo::Legacy(_) | ServerInfo::Modern(_) => {}
    }
    let level = level.ok_or_else(|| {
        let levels = LogLevel::ALL.map(LogLevel::as_str).join(", ");
        RequestError::InvalidParams(format!("params.level must be one of {levels}").into())
    })?;
    if let ServerInfo::Legacy(_) = leased.process.opening() {
        let external = &cx.core.external;
        external.want_level(&leased, level).await;
    }
    Ok(Some(empty(cx, id)))
}

/// `resources/subscribe` and `resources/unsubscribe`. `None`: the server is to answer.
pub(super) async fn subscription(
    cx: &CallContext<'_>,
    client: &Client,
    (id, method): (&str, &str),
    members: &Members<'_>,
) -> Result<Option<Vec<u8>>, RequestError> {
    let asked = subscription_at(cx, client, (id, method), members);
    in_time(cx, method, asked).await
}

async fn subscription_at(
    cx: &CallContext<'_>,
    client: &Client,
    (id, method): (&str, &str),
    members: &Members<'_>,
) -> Result<Option<Vec<u8>>, RequestError> {
    let leased = lease(cx, client, method).await?;
    if let ServerInfo::Legacy(_) = leased.process.opening()
        && !leased.is_common()
    {
        return Ok(None);
    }
    let Client::Session(session) = client else {
        return Err(RequestError::SessionRequired);
    };
    let uri = members.get(Key::Uri).and_then(jsonrpc::string);
    let uri: Arc<str> = uri
        .ok_or_else(|| RequestError::InvalidParams("params.uri must be a string".into()))?
        .into();
    if !server_info::declares(leased.process.opening(), &["resources", "subscribe"]) {
        return Err(RequestError::MethodNotFound(method.to_owned()));
    }
    let external = &cx.core.external;
    let upstream_binding = UpstreamBinding::of(external, session);
    if method == "resources/unsubscribe" {
        upstream_binding.leave(&uri);
        commit(cx.core, session, SessionPatch::Unsubscribe(uri)).await?;
        return Ok(Some(empty(cx, id)));
    }
    // Refused before the server hears of it; the commit below is what decides.
    session
        .subscriptions()
        .check(&uri)
        .map_err(PatchRefused::from)?;
    let watch = match upstream_binding.watches(&uri) {
        true => None,
        false => {
            let uris = std::iter::once(Arc::clone(&uri));
            Some(Watch::begin(external, &cx.namespace, &leased, uris).await?)
        }
    };
    let subscribed = SessionPatch::Subscribe(Arc::clone(&uri));
    commit(cx.core, session, subscribed).await?;
    if let Some(watch) = watch {
        upstream_binding.keep(&uri, watch);
    }
    Ok(Some(empty(cx, id)))
}

/// Lets a `subscriptions/listen` request hear of what its server has of it: what is granted, and the wish itself.
pub(crate) async fn listen(
    cx: &CallContext<'_>,
    wanted: Filter,
) -> Result<(Filter, Watch), RequestError> {
    let granted = listen_at(cx, wanted);
    in_time(cx, LISTEN, granted).await
}

async fn listen_at(cx: &CallContext<'_>, wanted: Filter) -> Result<(Filter, Watch), RequestError> {
    let client = cx.client();
    let leased = lease(cx, &client, LISTEN).await?;
    let opening = leased.process.opening();
    let has = |path: &[&str]| server_info::declares(opening, path);
    let granted = Filter {
        tools: wanted.tools && has(&["tools", "listChanged"]),
        prompts: wanted.prompts && has(&["prompts", "listChanged"]),
        resources: wanted.resources && has(&["resources", "listChanged"]),
        updates: if has(&["resources", "subscribe"]) {
            wanted.updates
        } else {
            Vec::new()
        },
    };
    let uris: Vec<Arc<str>> = granted.updates.iter().map(|uri| (&**uri).into()).collect();
    let external = &cx.core.external;
    let watch = Watch::begin(external, &cx.namespace, &leased, uris.into_iter()).await;
    Ok((granted, watch?))
}

impl From<NotWatched> for RequestError {
    fn from(not: NotWatched) -> Self {
        match not {
            NotWatched::Refused(error) => {
                Self::forwarded(Response::from_outcome(ResponseOutcome::Error(error)))
            }
            NotWatched::Failed(error) => Self::Upstream(error),
        }
    }
}

/// The session has a stream for what its server says on its own.
pub(crate) fn listens(core: &Arc<Core>, namespace: &Arc<Namespace>, session: &Arc<Session>) {
    if core.external.serves(namespace) {
        let upstream_binding = UpstreamBinding::of(&core.external, session);
        upstream_binding.stream_opened();
        if upstream_binding.has_own() {
            core.external.processes.session_returned(session.tag());
        }
    }
}

/// Gives a request no more time than a call has. A process that leaves it unanswered is given back like that, which makes
/// it suspect.
async fn in_time<T>(
    cx: &CallContext<'_>,
    method: &str,
    answered: impl Future<Output = Result<T, RequestError>>,
) -> Result<T, RequestError> {
    let namespace = &cx.namespace;
    let outcome = timeout(namespace.limits.timeout, answered).await;
    outcome.unwrap_or_else(|_| {
        let name = &namespace.name;
        let reason = format!("the server of namespace {name} did not answer {method} in time");
        let error = CallError::new(CallErrorCode::ExecutionTimeout, reason);
        Err(RequestError::Upstream(error))
    })
}

async fn lease(
    cx: &CallContext<'_>,
    client: &Client,
    method: &str,
) -> Result<Leased, RequestError> {
    let external = &cx.core.external;
    let principal = cx.caller.principal.as_ref();
    let leased = external.lease(&cx.namespace, client, principal, method);
    leased.await.map_err(RequestError::Upstream)
}

fn empty(cx: &CallContext<'_>, id: &str) -> Vec<u8> {
    format::ResultWriter::begin(id, &cx.result_format(), 0).end()
}
