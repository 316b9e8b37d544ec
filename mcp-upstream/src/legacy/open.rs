//! `GET /sse`: opens a session and its stream, which end together.

use std::sync::Arc;

use tooldock_sessions::caller::Caller;
use tooldock_sessions::session::{Binding, EndSession as _, Session, SessionTransport};
use tooldock_sessions::stream::{StreamKind, frame};

use crate::jsonrpc::RequestError;
use crate::mcp::{self, Core};
use crate::protocol::ProtocolVersion;
use crate::reply::{HeldByStream, Reply};

/// Path for the client's POST requests, without the listener's prefix and the session's id.
const MESSAGES: &str = "/messages?session_id=";

pub(super) async fn answer(core: &Arc<Core>, caller: &Caller) -> Result<Reply, RequestError> {
    let namespace = mcp::namespace(core, caller)?;
    let place = mcp::stream_place(core, caller, 0)?;
    let binding = Binding {
        namespace: namespace.name.clone(),
        principal: caller.principal.clone(),
        version: ProtocolVersion::V2024_11_05,
        transport: SessionTransport::Sse,
    };
    let session = mcp::create_session(core, binding, None).await?;
    let end = EndOfStream {
        core: Arc::clone(core),
        session: Arc::clone(&session),
    };
    let stream = mcp::open_stream(core, &session, StreamKind::Sse, false, &[]).await?;
    let prefix = &caller.profile.path_prefix;
    let endpoint = format!("{prefix}{MESSAGES}{}", session.id().as_str());
    core.audience.join(&session);
    stream.push(frame::named("endpoint", &endpoint));
    Ok(Reply::Events {
        head: mcp::events_head(),
        events: stream.read(),
        guards: vec![Box::new(end), Box::new(place)],
    })
}

impl HeldByStream for EndOfStream {}

/// Guard that ends the session when its stream ends (LEG-08).
struct EndOfStream {
    core: Arc<Core>,
    session: Arc<Session>,
}

impl Drop for EndOfStream {
    fn drop(&mut self) {
        Arc::clone(&self.core).end_without_waiting(Arc::clone(&self.session));
    }
}
