//! What is answered here because the process is not the session's own, or has no such method: log levels, resource
//! subscriptions, `subscriptions/listen`.

use std::sync::Arc;

use serde_json::value::RawValue;
use tokio::time::timeout;
use tooldock_workers::error::{CallError, CallErrorCode};
use tooldock_workers::registry::Namespace;
use tooldock_workers::worker::LogLevel;

use super::Leased;
use super::companion::Companion;
use super::isolation::Who;
use super::process::Opening;
use super::watch::{NotWatched, Watch};
use crate::bridge::opening as openings;
use crate::engine::ResponseOutcome;
use crate::format;
use crate::jsonrpc::{self, RequestError, Response, spans};
use crate::mcp::{Conversation, weigh};
use crate::session::Session;
use crate::state::Core;
use crate::stream::audience::Filter;

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
    conversation: &Conversation<'_>,
    who: &Who,
    id: &str,
    params: Option<&RawValue>,
) -> Result<Option<Vec<u8>>, RequestError> {
    let level = params.and_then(|it| spans::member(it, "level"));
    let level: Option<LogLevel> = level
        .and_then(jsonrpc::string)
        .and_then(|level| level.parse().ok());
    if let (Who::Session(session), Some(level)) = (who, level) {
        session.set_log_level(level);
    }
    let asked = set_level_at(conversation, (who, id), level);
    in_time(conversation, "logging/setLevel", asked).await
}

async fn set_level_at(
    conversation: &Conversation<'_>,
    (who, id): (&Who, &str),
    level: Option<LogLevel>,
) -> Result<Option<Vec<u8>>, RequestError> {
    let leased = lease(conversation, who, "logging/setLevel").await?;
    match leased.process.opening() {
        Opening::Legacy(_) if !leased.is_common() => return Ok(None),
        Opening::Legacy(_) if !openings::declares(leased.process.opening(), &["logging"]) => {
            return Err(RequestError::MethodNotFound("logging/setLevel".into()));
        }
        Opening::Legacy(_) | Opening::Modern(_) => {}
    }
    let level = level.ok_or_else(|| {
        let levels = LogLevel::ALL.map(LogLevel::as_str).join(", ");
        RequestError::InvalidParams(format!("params.level must be one of {levels}").into())
    })?;
    if let Opening::Legacy(_) = leased.process.opening() {
        let external = &conversation.core.external;
        external.want_level(&leased, level).await;
    }
    Ok(Some(empty(conversation, id)))
}

/// `resources/subscribe` and `resources/unsubscribe`. `None`: the server is to answer.
pub(super) async fn subscription(
    conversation: &Conversation<'_>,
    who: &Who,
    (id, method): (&str, &str),
    params: Option<&RawValue>,
) -> Result<Option<Vec<u8>>, RequestError> {
    let asked = subscription_at(conversation, who, (id, method), params);
    in_time(conversation, method, asked).await
}

async fn subscription_at(
    conversation: &Conversation<'_>,
    who: &Who,
    (id, method): (&str, &str),
    params: Option<&RawValue>,
) -> Result<Option<Vec<u8>>, RequestError> {
    let leased = lease(conversation, who, method).await?;
    if let Opening::Legacy(_) = leased.process.opening()
        && !leased.is_common()
    {
        return Ok(None);
    }
    let Who::Session(session) = who else {
        return Err(RequestError::SessionRequired);
    };
    let uri = params.and_then(|it| spans::member(it, "uri"));
    let uri = uri.and_then(jsonrpc::string);
    let uri =
        uri.ok_or_else(|| RequestError::InvalidParams("params.uri must be a string".into()))?;
    if !openings::declares(leased.process.opening(), &["resources", "subscribe"]) {
        return Err(RequestError::MethodNotFound(method.to_owned()));
    }
    let external = &conversation.core.external;
    let companion = Companion::of(external, session);
    if method == "resources/unsubscribe" {
        session.subscriptions().remove(&uri);
        companion.leave(&uri);
        weigh(conversation.core, session);
        return Ok(Some(empty(conversation, id)));
    }
    if session.subscriptions().add(&uri).is_err() {
        return Err(RequestError::InvalidParams(
            "the session has the maximum of subscriptions: unsubscribe from a resource first"
                .into(),
        ));
    }
    weigh(conversation.core, session);
    if companion.watches(&uri) {
        return Ok(Some(empty(conversation, id)));
    }
    // Whatever ends this, the time included.
    let undo = Undo {
        session,
        uri: Some(&uri),
    };
    let namespace = &conversation.namespace;
    let uris = std::iter::once(Arc::from(&*uri));
    let watch = Watch::begin(external, namespace, &leased, uris).await?;
    companion.keep(&uri, watch);
    undo.confirm();
    Ok(Some(empty(conversation, id)))
}

/// Takes a session's subscription back that its server did not confirm.
struct Undo<'a> {
    session: &'a Session,
    uri: Option<&'a str>,
}

impl Undo<'_> {
    fn confirm(mut self) {
        self.uri = None;
    }
}

impl Drop for Undo<'_> {
    fn drop(&mut self) {
        if let Some(uri) = self.uri {
            self.session.subscriptions().remove(uri);
        }
    }
}

/// Lets a `subscriptions/listen` request hear of what its server has of it: what is granted, and the wish itself.
pub(crate) async fn listen(
    conversation: &Conversation<'_>,
    wanted: Filter,
) -> Result<(Filter, Watch), RequestError> {
    let granted = listen_at(conversation, wanted);
    in_time(conversation, LISTEN, granted).await
}

async fn listen_at(
    conversation: &Conversation<'_>,
    wanted: Filter,
) -> Result<(Filter, Watch), RequestError> {
    let who = conversation.who();
    let leased = lease(conversation, &who, LISTEN).await?;
    let opening = leased.process.opening();
    let has = |path: &[&str]| openings::declares(opening, path);
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
    let external = &conversation.core.external;
    let watch = Watch::begin(external, &conversation.namespace, &leased, uris.into_iter()).await;
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
        let companion = Companion::of(&core.external, session);
        companion.kick();
        if companion.has_own() {
            core.external.processes.session_returned(session.tag());
        }
    }
}

/// Gives a request no more time than a call has. A process that leaves it unanswered is given back like that, which makes
/// it suspect.
async fn in_time<T>(
    conversation: &Conversation<'_>,
    method: &str,
    answered: impl Future<Output = Result<T, RequestError>>,
) -> Result<T, RequestError> {
    let namespace = &conversation.namespace;
    let outcome = timeout(namespace.limits.timeout, answered).await;
    outcome.unwrap_or_else(|_| {
        let name = &namespace.name;
        let reason = format!("the server of namespace {name} did not answer {method} in time");
        let error = CallError::new(CallErrorCode::ExecutionTimeout, reason);
        Err(RequestError::Upstream(error))
    })
}

async fn lease(
    conversation: &Conversation<'_>,
    who: &Who,
    method: &str,
) -> Result<Leased, RequestError> {
    let external = &conversation.core.external;
    let principal = conversation.caller.principal.as_ref();
    let leased = external.lease(&conversation.namespace, who, principal, method);
    leased.await.map_err(RequestError::Upstream)
}

fn empty(conversation: &Conversation<'_>, id: &str) -> Vec<u8> {
    format::ResultWriter::begin(id, &conversation.result_format(), 0).end()
}
