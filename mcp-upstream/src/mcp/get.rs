//! GET on an MCP path: a stream of what the server has to say outside of answers, or what is left of an earlier stream.

use std::sync::Arc;

use super::head::McpHead;
use super::{
    agree, events_head, header_version, namespace, open_stream, resume_stream, session,
    stream_place, takes_method,
};
use crate::caller::Caller;
use crate::jsonrpc::RequestError;
use crate::mcp::Core;
use crate::reply::Reply;
use crate::stream::StreamKind;

/// Opens the stream (MCP-02), or resumes the one `Last-Event-ID` names (MCP-34).
pub(super) async fn answer(
    core: &Arc<Core>,
    caller: &Caller,
    head: &McpHead,
) -> Result<Reply, RequestError> {
    takes_method(caller, head)?;
    let namespace = namespace(core, caller)?;
    let header = header_version(caller, head)?;
    let session = session(core, caller, head, &namespace).await?;
    let version = agree(header, session.as_ref())?;
    let session = session.ok_or(RequestError::SessionRequired)?;
    if !head.accept.sse_named {
        return Err(RequestError::NotAcceptable("text/event-stream"));
    }
    // Before anything is replayed: a client that may not hold another stream must not take one over either.
    let place = stream_place(core, caller, 0)?;
    let events = match &head.last_event_id {
        Some(id) => {
            let events = resume_stream(core, &session, id).await?;
            core.upstreams
                .of(&namespace)
                .stream_opened(&namespace, &session);
            events
        }
        None => {
            let prime = version.has_priming_events();
            let stream = open_stream(core, &session, StreamKind::General, prime, &[]).await?;
            core.audience.join(&session);
            core.upstreams
                .of(&namespace)
                .stream_opened(&namespace, &session);
            stream.read()
        }
    };
    Ok(Reply::Events {
        head: events_head(),
        events,
        guards: vec![Box::new(place)],
    })
}
