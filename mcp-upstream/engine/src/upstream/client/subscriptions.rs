//! Requests that the gateway answers itself, because the process is not the session's own or the server has no such method: log
//! levels, resource subscriptions, `subscriptions/listen`.

use std::sync::Arc;

use tokio::time::{Instant, timeout_at};
use tooldock_base::error::{CallError, CallErrorCode};
use tooldock_process::worker::LogLevel;
use tooldock_protocol::bridge::{errors, server_info};
use tooldock_protocol::format;
use tooldock_protocol::jsonrpc::{self, Key, RequestError, Response, ResponseOutcome};
use tooldock_protocol::version::ServerInfo;
use tooldock_sessions::broadcast::Filter;
use tooldock_sessions::interaction::after;
use tooldock_sessions::session::SessionPatch;

use super::binding::UpstreamBinding;
use super::watch::{NotWatched, Watch};
use super::{ConnectionLease, ExternalServers, Requester};
use crate::upstream::{CallContext, IncomingRequest};

const LISTEN: &str = "subscriptions/listen";

/// Returns true for methods whose effect outlasts the request.
pub(super) fn outlasts_request(method: &str) -> bool {
    matches!(
        method,
        "logging/setLevel" | "resources/subscribe" | "resources/unsubscribe"
    )
}

/// Answers a request with a lasting effect, within the time limit of a call. Returns `None` if the process is the client's own,
/// so that the request must be sent to the server.
pub(super) async fn answer_lasting(
    external: &Arc<ExternalServers>,
    cx: &CallContext<'_>,
    request: IncomingRequest<'_>,
) -> Result<Option<Vec<u8>>, RequestError> {
    match request.method {
        "logging/setLevel" => {
            let level = request.members.get(Key::LogLevel);
            let level: Option<LogLevel> = level
                .and_then(jsonrpc::string)
                .and_then(|level| level.parse().ok());
            if let (Some(session), Some(level)) = (cx.session(), level) {
                let changed = SessionPatch::LogLevel(level);
                external.changes.commit(session, changed).await?;
            }
            let asked = set_level(external, cx, request.id, level);
            in_time(cx, request.method, end_of_call(cx), asked).await
        }
        _ => subscription(external, cx, request).await,
    }
}

/// Answers `logging/setLevel`.
async fn set_level(
    external: &Arc<ExternalServers>,
    cx: &CallContext<'_>,
    id: &str,
    level: Option<LogLevel>,
) -> Result<Option<Vec<u8>>, RequestError> {
    let leased = lease(external, cx, "logging/setLevel").await?;
    match leased.process.opened() {
        ServerInfo::Legacy(_) if !leased.is_common() => return Ok(None),
        ServerInfo::Legacy(_) if !server_info::declares(leased.process.opened(), &["logging"]) => {
            return Err(RequestError::MethodNotFound("logging/setLevel".into()));
        }
        ServerInfo::Legacy(_) | ServerInfo::Modern(_) => {}
    }
    let level = level.ok_or_else(|| {
        let levels = LogLevel::ALL.map(LogLevel::as_str).join(", ");
        RequestError::InvalidParams(format!("params.level must be one of {levels}").into())
    })?;
    if let ServerInfo::Legacy(_) = leased.process.opened() {
        external.want_level(&leased, level).await;
    }
    Ok(Some(empty(cx, id)))
}

/// Answers `resources/subscribe` and `resources/unsubscribe`.
async fn subscription(
    external: &Arc<ExternalServers>,
    cx: &CallContext<'_>,
    IncomingRequest {
        id,
        method,
        members,
    }: IncomingRequest<'_>,
) -> Result<Option<Vec<u8>>, RequestError> {
    let end = end_of_call(cx);
    let leased = in_time(cx, method, end, lease(external, cx, method)).await?;
    if let ServerInfo::Legacy(_) = leased.process.opened()
        && !leased.is_common()
    {
        return Ok(None);
    }
    let session = cx.session().ok_or(RequestError::SessionRequired)?;
    let uri = members.get(Key::Uri).and_then(jsonrpc::string);
    let uri: Arc<str> = uri
        .ok_or_else(|| RequestError::InvalidParams("params.uri must be a string".into()))?
        .into();
    if !server_info::declares(leased.process.opened(), &["resources", "subscribe"]) {
        return Err(RequestError::MethodNotFound(method.to_owned()));
    }
    let upstream_binding = UpstreamBinding::of(external, &cx.namespace.name, session);
    if method == "resources/unsubscribe" {
        upstream_binding.leave(&uri);
        external
            .changes
            .commit(session, SessionPatch::Unsubscribe(uri))
            .await?;
        return Ok(Some(empty(cx, id)));
    }
    // The subscription is recorded before the server confirms it, since an update may follow directly after the server's
    // response.
    let subscribed = SessionPatch::Subscribe(Arc::clone(&uri));
    let is_new = external.changes.commit(session, subscribed).await?;
    if !upstream_binding.watches(&uri) {
        let uris = std::iter::once(Arc::clone(&uri));
        let watched = async {
            let watch = Watch::begin(external, &cx.namespace, &leased, uris).await;
            watch.map_err(RequestError::from)
        };
        match in_time(cx, method, end, watched).await {
            Ok(watch) => upstream_binding.keep(&uri, watch),
            Err(failure) => {
                if is_new {
                    let left = SessionPatch::Unsubscribe(uri);
                    external.changes.commit(session, left).await?;
                }
                return Err(failure);
            }
        }
    }
    Ok(Some(empty(cx, id)))
}

/// Grants the parts of a `subscriptions/listen` request that the server supports. Returns the granted filter and the
/// subscription.
pub(super) async fn listen(
    external: &Arc<ExternalServers>,
    cx: &CallContext<'_>,
    wanted: Filter,
) -> Result<(Filter, Watch), RequestError> {
    let granted = listen_at(external, cx, wanted);
    in_time(cx, LISTEN, end_of_call(cx), granted).await
}

async fn listen_at(
    external: &Arc<ExternalServers>,
    cx: &CallContext<'_>,
    wanted: Filter,
) -> Result<(Filter, Watch), RequestError> {
    let leased = lease(external, cx, LISTEN).await?;
    let opening = leased.process.opened();
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
    let watch = Watch::begin(external, &cx.namespace, &leased, uris.into_iter()).await;
    Ok((granted, watch?))
}

impl From<NotWatched> for RequestError {
    fn from(not: NotWatched) -> Self {
        match not {
            NotWatched::Refused(error) => {
                let error = errors::mended(&error).map_or(error, Into::into);
                Self::forwarded(Response::from_outcome(ResponseOutcome::Error(error)))
            }
            NotWatched::Failed(error) => Self::Upstream(error),
        }
    }
}

/// Deadline of a request that begins now, by the time limit of a call.
fn end_of_call(cx: &CallContext<'_>) -> Instant {
    after(Instant::now(), cx.namespace.limits.timeout)
}

/// Applies the deadline of a call to a request. If a process does not respond in time, its lease ends without a response, and the
/// process is checked, since it may be stuck.
async fn in_time<T>(
    cx: &CallContext<'_>,
    method: &str,
    end: Instant,
    answered: impl Future<Output = Result<T, RequestError>>,
) -> Result<T, RequestError> {
    let namespace = &cx.namespace;
    let outcome = timeout_at(end, answered).await;
    outcome.unwrap_or_else(|_| {
        let name = &namespace.name;
        let reason = format!("the server of namespace {name} did not answer {method} in time");
        let error = CallError::new(CallErrorCode::ExecutionTimeout, reason);
        Err(RequestError::Upstream(error))
    })
}

async fn lease(
    external: &Arc<ExternalServers>,
    cx: &CallContext<'_>,
    method: &str,
) -> Result<ConnectionLease, RequestError> {
    let requester = Requester::of(cx);
    let leased = async {
        let target = external.target(&cx.namespace, &cx.client, &requester, method);
        let target = target.await?;
        external.lease(&cx.namespace, &cx.client, target).await
    };
    leased.await.map_err(RequestError::Upstream)
}

fn empty(cx: &CallContext<'_>, id: &str) -> Vec<u8> {
    format::ResultWriter::begin(id, &cx.result_format(), 0).end()
}
