//! Runs a call of the upstream for a request, and writes its response.

use std::sync::Arc;

use futures_util::future::{AbortHandle, Abortable, Aborted};
use http::StatusCode;
use tooldock_base::error::{CallError, CallErrorCode};
use tooldock_engine::engine::{
    CallFacts, CallMessages, CallOutcome, DetachedFuture, UpstreamCall, UpstreamReply, tool_value,
};
use tooldock_engine::upstream::CallContext;
use tooldock_sessions::caller::Caller;
use tooldock_sessions::session::{CancelNotice, InFlightCalls, Session};

use super::{Core, exchange, forget_session};
use crate::format::{self, CacheScope, ResultFormat};
use crate::jsonrpc::RequestError;
use crate::protocol::method::{RESOURCES_READ, SKILLS_GET, SKILLS_LIST};
use crate::reply::Reply;
use crate::scopes;
use crate::tool_result;

/// Runs a call and answers its request: with JSON, or with a stream if the call may send messages before its response.
pub(super) async fn answer(
    core: &Arc<Core>,
    cx: &CallContext<'_>,
    id: &str,
    call: Arc<dyn UpstreamCall>,
) -> Result<Reply, RequestError> {
    let answer = of_call(core, cx, id, &call).await?;
    // The error for the lost session can replace only a complete response. After a streamed response, the client's next request
    // is answered with that error.
    let may_end = matches!(answer, Reply::Full { .. }) && call.has_lost_its_session();
    if let Some(session) = cx.session().filter(|_| may_end) {
        drop(answer);
        forget_session(core, session).await?;
        return Err(RequestError::SessionNotFound);
    }
    Ok(answer)
}

async fn of_call(
    core: &Arc<Core>,
    cx: &CallContext<'_>,
    id: &str,
    call: &Arc<dyn UpstreamCall>,
) -> Result<Reply, RequestError> {
    if cx.streams
        && (call.facts().talks != CallMessages::No || exchange::poll_at(core, cx).is_some())
    {
        return exchange::one(core, cx, id, Arc::clone(call)).await;
    }
    let outcome = match cx.session() {
        Some(session) => quiet_in_session(core, cx, session, id, call).await,
        None => core.engine.run(cx.caller, call, None).await,
    };
    let response = response(call.facts(), id, cx.caller, &cx.result_format(), outcome)?;
    Ok(Reply::json(StatusCode::OK, response))
}

/// Runs a call that sends no messages before its response. In a session the call continues when the connection of its POST
/// closes. It is then ended by `notifications/cancelled`, the end of the session or the tool's time limit.
async fn quiet_in_session(
    core: &Arc<Core>,
    cx: &CallContext<'_>,
    session: &Arc<Session>,
    id: &str,
    call: &Arc<dyn UpstreamCall>,
) -> CallOutcome {
    let (handle, registration) = AbortHandle::new_pair();
    let notice = Arc::clone(call) as Arc<dyn CancelNotice>;
    let entry = InFlightCalls::enter(session, id, handle, notice);
    let (core, call) = (Arc::clone(core), Arc::clone(call));
    let caller = cx.caller.clone();
    DetachedFuture::new(async move {
        let run = core.engine.run(&caller, &call, None);
        let outcome = Abortable::new(run, registration).await;
        drop(entry);
        outcome.unwrap_or_else(|Aborted| Err(cancelled()))
    })
    .await
}

/// Builds the response to the request with this raw id. A tool's failure is a result object, with two exceptions that are error
/// objects: a missing capability in the modern era, and a credential without the tool's scope. All other failures are error
/// objects.
///
/// # Errors
///
/// Failures that become error objects: [`ResultFormat::error`] writes them.
pub(crate) fn response(
    facts: &CallFacts,
    id: &str,
    caller: &Caller,
    format: &ResultFormat,
    outcome: CallOutcome,
) -> Result<Vec<u8>, RequestError> {
    let modern = matches!(format, ResultFormat::Modern(_));
    match outcome {
        // Only the modern era maps a server's error to an HTTP status.
        Ok(UpstreamReply::Response(answer)) if answer.is_error() && modern => {
            Err(RequestError::forwarded(answer))
        }
        Ok(UpstreamReply::Response(answer)) => Ok(answer.with_id(id)),
        Ok(UpstreamReply::Value(reply)) if caller.profile.raw_result && !modern => {
            Ok(format::raw_result(id, tool_value::value(&reply)))
        }
        Ok(UpstreamReply::Value(reply)) => Ok(tool_result::success(id, &reply, format)),
        Ok(UpstreamReply::Result(result)) => result_of(facts, id, format, &result),
        Err(error) => {
            let refused = match facts.method.is_tool_call() {
                true => scopes::refusal(&error, caller, &facts.subject),
                false => None,
            };
            let missing = || RequestError::missing_capability(&error).filter(|_| modern);
            match refused.or_else(missing) {
                Some(failure) => Err(failure),
                None if facts.method.is_tool_call() => {
                    Ok(tool_result::failure(id, &error, caller, format))
                }
                None => Err(RequestError::of_call(error, &facts.subject)),
            }
        }
    }
}

/// Writes a result object in the form of the client's era.
fn result_of(
    facts: &CallFacts,
    id: &str,
    format: &ResultFormat,
    result: &[u8],
) -> Result<Vec<u8>, RequestError> {
    let result = result.trim_ascii();
    if !(result.starts_with(b"{") && result.ends_with(b"}")) {
        return Err(RequestError::Upstream(CallError::new(
            CallErrorCode::InternalError,
            "The worker's answer is no result of this method",
        )));
    }
    let mut answer = format::ResultWriter::begin(id, format, result.len());
    let mut skipped = 0;
    if [RESOURCES_READ, SKILLS_LIST, SKILLS_GET].contains(&&*facts.method) {
        // A resource is the current value of a function, possibly for this caller only, and the digests of skills are those of
        // the files as they are now. Clients must therefore not cache them, unless the function allows it.
        let (ttl_ms, length) = own_ttl(result).unwrap_or((0, 0));
        skipped = length;
        answer = answer.cached_for(ttl_ms, CacheScope::Private);
    }
    answer.members_after(skipped, result);
    Ok(answer.end())
}

/// Reads the number of milliseconds for which a worker allows its result to be cached, and the length in bytes of this key with
/// its value, which come first in the object.
fn own_ttl(result: &[u8]) -> Option<(u64, usize)> {
    let name = b"\"ttlMs\":";
    let rest = result.strip_prefix(b"{")?.strip_prefix(name)?;
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let ttl_ms = std::str::from_utf8(&rest[..digits]).ok()?.parse().ok()?;
    rest[digits..]
        .starts_with(b",")
        .then_some((ttl_ms, name.len() + digits + 1))
}

/// Creates the error for a call that was stopped by its client, or by the end of its session.
pub(super) fn cancelled() -> CallError {
    CallError::new(CallErrorCode::Cancelled, "The call was cancelled")
}
