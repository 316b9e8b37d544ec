//! `/api/sessions` and `/api/streams`: lists and ends sessions, and open streams that belong to no session.

use std::sync::Arc;

use serde_json::{Value, json};
use tokio::time::Instant;
use tooldock_sessions::caller::Caller;
use tooldock_sessions::session::Session;

use super::answer::{Answer, WebFailure, json_of};
use super::request::ApiRequest;
use super::trail;
use crate::mcp::{Core, forget_session};

pub(super) fn list(core: &Arc<Core>, request: &ApiRequest) -> Answer {
    let now = Instant::now();
    let mut sessions = core.sessions.all();
    sessions.sort_by_cached_key(|session| std::cmp::Reverse(session.used_at(now)));
    let all = sessions.iter().map(|session| session_json(session, now));
    request.page("sessions", all.collect(), json!({}))
}

fn session_json(session: &Session, now: Instant) -> Value {
    let binding = session.binding();
    let used = session.used_at(now);
    let info = session.client().info.as_ref();
    let info: Option<Value> = info.and_then(|info| serde_json::from_str(info.get()).ok());
    json!({
        "id": &**session.tag(),
        "namespace": binding.namespace,
        "principal": binding.principal.as_deref(),
        "protocol_version": session.version().as_str(),
        "client": info.map(|info| json!({"name": info["name"], "version": info["version"]})),
        "last_used_seconds": now.saturating_duration_since(used).as_secs(),
        "streams": session.streams().len(),
        "bytes": session.weight(),
    })
}

pub(super) async fn end(core: &Arc<Core>, caller: &Caller, id: &str) -> Answer {
    let mut all = core.sessions.all().into_iter();
    let found = all.find(|session| &**session.tag() == id).ok_or_else(|| {
        WebFailure::not_found(
            "session_not_found",
            "There is no such session; it may have ended",
        )
    })?;
    let ended = forget_session(core, &found).await;
    let ended = ended.map_err(|_| {
        WebFailure::refused("The session store cannot be written; the session goes on")
    });
    trail::note(core, caller, "end_session", &ended);
    ended?;
    json_of(&json!({ "success": true }))
}

/// Responds with the open streams that belong to no session.
pub(super) fn streams(core: &Arc<Core>, request: &ApiRequest) -> Answer {
    let now = Instant::now();
    let all = core.open_streams.all().into_iter();
    let all = all.map(|(number, stream)| {
        json!({
            "id": number.to_string(),
            "kind": stream.kind.as_str(),
            "namespace": stream.namespace,
            "principal": stream.principal.as_deref(),
            "open_seconds": now.saturating_duration_since(stream.since).as_secs(),
        })
    });
    request.page("streams", all.collect(), json!({}))
}

pub(super) fn end_stream(core: &Arc<Core>, caller: &Caller, id: &str) -> Answer {
    let number = id.parse().ok();
    let ended = match number.is_some_and(|number| core.open_streams.end(number)) {
        true => Ok(()),
        false => Err(WebFailure::not_found(
            "stream_not_found",
            "There is no such stream; it may have ended",
        )),
    };
    trail::note(core, caller, "end_stream", &ended);
    ended?;
    json_of(&json!({ "success": true }))
}
