//! Handles each message of a client over pipes like a POST, and writes the replies as lines.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::stream::BoxStream;
use tooldock_base::error::{CallError, CallErrorCode};
use tooldock_base::poll_watch::PollSubject;
use tooldock_base::trace::TraceSink;
use tooldock_engine::trace;
use tooldock_sessions::caller::Caller;
use tooldock_sessions::stream::frame;

use crate::jsonrpc::{self, Message, RequestError};
use crate::mcp::head::{AcceptFlags, Carrier, McpHead, SESSION_HEADER};
use crate::mcp::{self, Core};
use crate::reply::{Reply, ReplyGuards};
use crate::surface::outbox::Outbox;

/// A client that is connected over pipes.
pub(super) struct Conversation {
    core: Arc<Core>,
    caller: Caller,
    /// Receiver of finished requests for the export of traces; `None` if traces are not exported.
    traces: Option<Arc<dyn TraceSink>>,
    pub(super) outbox: Outbox,
    /// The session's id; `None` until `initialize` has opened a session. The lock is never held across an await.
    session: Mutex<Option<Arc<str>>>,
}

/// The events of a reply, with guards that are dropped when the events have been written.
struct ReplyEvents {
    chunks: BoxStream<'static, Bytes>,
    _guards: ReplyGuards,
}

impl Conversation {
    pub(super) fn new(
        core: Arc<Core>,
        caller: Caller,
        traces: Option<Arc<dyn TraceSink>>,
        outbox: Outbox,
    ) -> Self {
        Self {
            core,
            caller,
            traces,
            outbox,
            session: Mutex::default(),
        }
    }

    pub(super) fn session(&self) -> Option<Arc<str>> {
        let session = self.session.lock();
        session.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sends a message to the client.
    pub(super) async fn say(&self, message: Bytes) {
        self.outbox.send(message).await;
    }

    /// Answers `initialize`, and stores the id of the session that it opens.
    pub(super) async fn initialize(&self, id: &str, line: Bytes) {
        if self.session().is_some() {
            let reason =
                "the session is initialized already: start another process for another session";
            let refused = RequestError::Shape(reason.into()).body(Some(id));
            return self.say(refused.into()).await;
        }
        let caller = self.traced();
        match mcp::post(&self.core, &caller, &head(None), &line).await {
            Reply::Opening {
                head,
                body,
                session,
            } => {
                let mut headers = head.headers.iter();
                let id = headers.find(|(name, _)| *name == SESSION_HEADER);
                let id = id.and_then(|(_, value)| value.to_str().ok());
                *self.session.lock().unwrap_or_else(PoisonError::into_inner) = id.map(Into::into);
                self.say(body).await;
                session.delivered();
            }
            refused => self.pass_on(Some(id), refused, None).await,
        }
    }

    /// Handles a message that gets no answer, such as a notification. Its errors are logged.
    pub(super) async fn notice(&self, line: Bytes) {
        let session = self.session();
        mcp::post(&self.core, &self.caller(), &head(session.as_deref()), &line).await;
    }

    /// Answers a request. `id`: its id as raw JSON; `None` for a message without an id, or for a batch.
    pub(super) async fn answer(&self, id: Option<&str>, line: Bytes, session: Option<&str>) {
        let (caller, head) = (self.traced(), head(session));
        let subject = PollSubject {
            route: "stdio",
            namespace: caller.namespace.clone(),
        };
        let post = || Box::pin(mcp::post(&self.core, &caller, &head, &line));
        let reply = self.core.metrics.polls.over(subject, post).await;
        drop(line);
        let _answer = caller.trace.as_ref().map(|it| it.part("answer"));
        self.pass_on(id, reply, session).await;
    }

    /// Opens the session's general stream, for messages of the server that belong to no request.
    pub(super) async fn general_stream(&self, session: &str) -> Reply {
        mcp::get(&self.core, &self.caller(), &head(Some(session))).await
    }

    /// Writes a complete reply as lines. `id`: the request to which the reply belongs; `None` for a stream that belongs to no
    /// request. A stream that ended before the response, because it was read too slowly, is resumed.
    pub(super) async fn pass_on(&self, id: Option<&str>, mut reply: Reply, session: Option<&str>) {
        let mut last = None;
        loop {
            let mut events = match ReplyEvents::of(reply) {
                Ok(events) => events,
                Err(body) if last.is_some() => break tracing::debug!(?body, "not resumed"),
                Err(body) if body.is_empty() => return,
                Err(body) => return self.say(body).await,
            };
            let mut came = false;
            while let Some(event) = events.chunks.next().await {
                let (event_id, message) = frame::read(&event);
                if let Some(event_id) = event_id {
                    last = Some(event_id.to_owned());
                    came = true;
                }
                let Some(message) = message else { continue };
                let over = id.is_some_and(|id| answers(&message, id));
                self.say(message).await;
                if over {
                    return;
                }
            }
            // The stream cannot be resumed, or resuming it brought no events, so no more events will follow.
            let (Some(last), Some(session), true) = (&last, session, came) else {
                break;
            };
            let head = McpHead {
                last_event_id: Some(last.clone()),
                ..head(Some(session))
            };
            reply = mcp::get(&self.core, &self.caller(), &head).await;
        }
        if let Some(id) = id {
            let lost = RequestError::Upstream(CallError::new(
                CallErrorCode::InternalError,
                "The answer is lost: what the call said before was not read in time",
            ));
            self.say(lost.body(Some(id)).into()).await;
        }
    }

    /// Ends the session with its calls, if there is one.
    pub(super) async fn end_session(&self) {
        if let Some(session) = self.session() {
            mcp::delete(&self.core, &self.caller(), &head(Some(&session))).await;
        }
    }

    /// Returns the caller of a request. If traces are exported, a trace is begun for it.
    fn traced(&self) -> Caller {
        let traces = self.traces.as_ref();
        Caller {
            trace: traces.map(|sink| trace::begin(sink, trace::PIPES, Instant::now(), false)),
            ..self.caller()
        }
    }

    /// Returns the caller with a new request id.
    fn caller(&self) -> Caller {
        Caller {
            request_id: format!("stdio-{:016x}", fastrand::u64(..)).into(),
            ..self.caller.clone()
        }
    }
}

impl ReplyEvents {
    /// Returns the events of a reply. The error is the body of a reply without events.
    fn of(reply: Reply) -> Result<Self, Bytes> {
        let (chunks, guards) = match reply {
            Reply::Full { body, .. } | Reply::Opening { body, .. } => return Err(body),
            Reply::Elsewhere { unreachable, .. } => return Err(unreachable.body),
            Reply::Body { body, .. } => {
                let chunks = body.filter_map(|chunk| std::future::ready(chunk.ok()));
                (chunks.boxed(), ReplyGuards::new())
            }
            Reply::Events { events, guards, .. } => (events.boxed(), guards),
        };
        Ok(Self {
            chunks,
            _guards: guards,
        })
    }
}

/// Returns true if a message is the response to the request with this id.
fn answers(message: &Bytes, id: &str) -> bool {
    let text = std::str::from_utf8(message).unwrap_or_default();
    matches!(jsonrpc::message(text), Ok(Message::Response { id: answered, .. }) if answered == id)
}

fn head(session: Option<&str>) -> McpHead {
    McpHead {
        session: session.map(str::to_owned),
        accept: AcceptFlags {
            json_named: true,
            sse_named: true,
            json_acceptable: true,
            sse_acceptable: true,
        },
        carrier: Carrier::Lines,
        ..McpHead::default()
    }
}
