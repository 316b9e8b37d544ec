//! Answers the calls of a POST: with JSON, or with a stream if a call sends a message before its response.
//!
//! ```text
//!   calls run in the POST ──── all have responses ───────────────────▶ JSON
//!        │
//!        └── a message, or `poll_after` is over ──▶ stream opened ──▶ calls run in a task, POST reads the stream
//! ```
//!
//! In a session the calls do not depend on the POST: messages are stored in the event log, and a client whose connection closed
//! reads them with GET and `Last-Event-ID`. Without a session, dropping the stream cancels the calls.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use smallvec::SmallVec;
use tokio::time::Instant;
use tooldock_base::names::NamespaceName;
use tooldock_engine::engine::{DetachedFuture, UpstreamCall, go_on};
use tooldock_engine::upstream::{CallContext, PreparedRequest};
use tooldock_sessions::session::config::PollAfter;
use tooldock_sessions::session::{Session, SessionState};
use tooldock_sessions::stream::open::OpenKind;
use tooldock_sessions::stream::{Finishing, Stream, StreamKind, frame};

use super::open_stream;
use crate::jsonrpc::RequestError;
use crate::mcp::Core;
use crate::mcp::tasks::{AwaitingPost, RequestOrWait, TaskWait};
use crate::protocol::ProtocolVersion;
use crate::reply::Reply;

mod body;
mod delivery;
mod running;

pub(crate) use body::{events_head, streamed};
use delivery::{Step, StreamedCall};
use running::RunningCalls;

/// Maximum time that a call waits after one message for the reader of its stream to catch up: 5 s. The stream of a slower reader
/// may then be ended, but its events remain in the log.
const PACE: Duration = Duration::from_secs(5);
/// Maximum time that all waits of one POST's calls for their reader take together: 60 s. Without this bound, a reader that reads
/// a little every few seconds would prolong the calls for hours.
const PATIENCE: Duration = Duration::from_secs(60);

/// Remaining time that the calls of a POST may wait for slow readers.
pub(crate) struct Patience(Duration);

impl Default for Patience {
    fn default() -> Self {
        Self(PATIENCE)
    }
}

impl Patience {
    /// Waits for a slow reader within the remaining time.
    pub(crate) async fn wait_for(&mut self, stream: &Stream) {
        if self.0.is_zero() {
            return;
        }
        let began = Instant::now();
        stream.wait_for_reader(PACE.min(self.0)).await;
        self.0 = self.0.saturating_sub(began.elapsed());
    }
}

/// Messages that can be sent to the client now; usually a single response.
type ReadyMessages = SmallVec<[Bytes; 1]>;

/// The running requests of a POST.
pub(crate) struct Exchange {
    core: Arc<Core>,
    session: Option<Arc<Session>>,
    /// Namespace and principal of a POST without a session; `None` in a session.
    alone: Option<(NamespaceName, Option<Arc<str>>)>,
    /// True if the stream that answers the POST begins with an event from which the client can resume.
    primes: bool,
    /// Messages that were not sent yet; at the beginning only responses.
    ready: ReadyMessages,
    calls: RunningCalls,
    /// Ids of the calls, as raw JSON. They are stored with the stream, so that a process that adopts the session can send errors
    /// for missing responses.
    owes: Vec<Box<str>>,
    /// Time at which the POST is ended, so that its client polls for the remaining messages; `None` if it is not ended early.
    poll_at: Option<Instant>,
    /// True for a batch, in which responses wait until all are complete; their memory is counted meanwhile.
    is_batch: bool,
    /// Token of a wait for a task, which ends with the POST as long as there is no stream; `None` for calls.
    post: Option<Arc<AwaitingPost>>,
    /// Error of a call whose credential lacks the needed scope, or of a wait. It sets the HTTP status if it is the only response.
    refused: Arc<OnceLock<RequestError>>,
}

/// Result of running the calls of a POST while the POST waits.
pub(super) enum ExchangeDelivery {
    /// All calls have their responses, and no call has sent a message before its response.
    Answers(ReadyMessages),
    /// A call has sent a message, or polling is due; the remaining messages follow in this stream.
    Events(Reply),
}

/// Answers a single request whose call may send messages before its response.
pub(super) async fn one(
    core: &Arc<Core>,
    cx: &CallContext<'_>,
    id: &str,
    call: Arc<dyn UpstreamCall>,
) -> Result<Reply, RequestError> {
    let mut exchange = Exchange::new(core, cx);
    exchange.call(cx, id, call);
    exchange.only_answer().await
}

/// Answers a request that waits for the end of a task. The task may ask its client meanwhile.
pub(super) async fn wait(
    core: &Arc<Core>,
    cx: &CallContext<'_>,
    id: &str,
    wait: TaskWait,
) -> Result<Reply, RequestError> {
    let mut exchange = Exchange::new(core, cx);
    exchange.wait(cx, id, wait);
    exchange.only_answer().await
}

impl Exchange {
    /// Creates an exchange (the running calls of a POST) in this session, or for this caller without a session. It has no calls
    /// yet.
    pub(crate) fn new(core: &Arc<Core>, cx: &CallContext<'_>) -> Self {
        Self {
            core: Arc::clone(core),
            session: cx.session().cloned(),
            alone: cx.session().is_none().then(|| whose(cx)),
            primes: primes(cx),
            ready: ReadyMessages::new(),
            calls: RunningCalls::default(),
            owes: Vec::new(),
            // A client that accepts no stream cannot poll.
            poll_at: poll_at(core, cx).filter(|_| cx.streams),
            is_batch: false,
            post: None,
            refused: Arc::default(),
        }
    }

    /// Adds a request that was prepared or refused: its call, response or error.
    pub(crate) fn request(
        &mut self,
        cx: &CallContext<'_>,
        id: &str,
        prepared: Result<RequestOrWait, RequestError>,
    ) {
        self.is_batch = true;
        match prepared {
            Ok(RequestOrWait::Request(PreparedRequest::Response(answer))) => self.answer(answer),
            Ok(RequestOrWait::Request(PreparedRequest::Call(call))) => self.call(cx, id, call),
            Ok(RequestOrWait::Wait(wait)) => self.wait(cx, id, wait),
            Err(failure) => self.answer(failure.body(Some(id))),
        }
    }

    /// Adds a complete response to the messages that are ready.
    pub(crate) fn answer(&mut self, answer: Vec<u8>) {
        self.ready.push(answer.into());
    }

    fn call(&mut self, cx: &CallContext<'_>, id: &str, call: Arc<dyn UpstreamCall>) {
        self.owe(id);
        let call = StreamedCall::new(&self.core, cx, id, call, self.is_batch, &self.refused);
        self.calls.add(call);
    }

    fn wait(&mut self, cx: &CallContext<'_>, id: &str, wait: TaskWait) {
        self.owe(id);
        let post = self.post.get_or_insert_with(|| Arc::new(AwaitingPost));
        let call = StreamedCall::waiting(cx, id, wait, post, &self.refused);
        self.calls.add(call);
    }

    /// Notes that the stream must have a response for this id.
    fn owe(&mut self, id: &str) {
        if self.session.is_some() && self.core.events.is_stored() {
            self.owes.push(id.into());
        }
    }

    /// Answers the POST of a single request.
    async fn only_answer(self) -> Result<Reply, RequestError> {
        let refused = Arc::clone(&self.refused);
        Ok(match self.run().await? {
            ExchangeDelivery::Answers(mut answers) => match refused.get() {
                Some(failure) => return Err(failure.clone()),
                None => Reply::json(StatusCode::OK, answers.pop().unwrap_or_default()),
            },
            ExchangeDelivery::Events(reply) => reply,
        })
    }

    /// Runs the calls until all have their responses or one sends a message. In a session the calls continue when the POST's
    /// connection closes.
    pub(super) async fn run(self) -> Result<ExchangeDelivery, RequestError> {
        let mut kept = AwaitedExchange(Some(self));
        let spoke = kept.exchange().until_spoken().await;
        let exchange = kept.take();
        if !spoke {
            return Ok(ExchangeDelivery::Answers(exchange.ready));
        }
        let goes_on = exchange.session.is_some();
        let stream = Box::pin(exchange.into_stream());
        let reply = match goes_on {
            true => DetachedFuture::new(stream).await,
            false => stream.await,
        };
        reply.map(ExchangeDelivery::Events)
    }

    /// Runs the calls until all have their responses, one sends a message, or polling is due. Returns false in the first case,
    /// else true. Cancel safe.
    async fn until_spoken(&mut self) -> bool {
        loop {
            // step: a call has sent a message before its response, so that the POST becomes a stream; or a call has ended.
            // sleep: polling is due, and the client gets a stream that it can resume.
            tokio::select! { biased;
                step = self.calls.next() => match step {
                    Some(Step::Said(message)) => {
                        self.ready.push(message.into());
                        return true;
                    }
                    Some(Step::Over(response)) => self.ready.push(response),
                    None => return false,
                },
                () = sleep_until(self.poll_at) => return true,
            }
        }
    }

    /// Converts the POST to a stream that begins with the ready messages.
    async fn into_stream(mut self) -> Result<Reply, RequestError> {
        let Some(session) = self.session.clone() else {
            self.post = None;
            let stream = Stream::detached(&self.core.keep_alive);
            let events = stream.read();
            let listed = self.alone.as_ref().map(|(namespace, principal)| {
                let open = &self.core.open_streams;
                open.enter(OpenKind::Answer, namespace, principal.as_ref(), &stream)
            });
            let task = tokio::spawn(self.deliver(Destination::Bare(stream)));
            return Ok(body::tied(events, task, listed));
        };
        let kind = StreamKind::Request;
        let stream = open_stream(&self.core, &session, kind, self.primes, &self.owes).await?;
        let events = stream.read();
        // From here on, the stream's reader keeps the session in use.
        self.post = None;
        let poll_at = self.poll_at;
        // The task ends with the calls, which have time limits. The end of the session or cancelling every call ends it early.
        tokio::spawn(self.deliver(Destination::Logged { session, stream }));
        Ok(streamed(events, poll_at, ()))
    }

    /// Sends all messages to the stream of an HTTP+SSE session: complete responses immediately, the messages of calls that still
    /// run from a separate task.
    pub(crate) async fn settle(mut self, session: Arc<Session>) {
        self.post = None;
        let target = Destination::Whole(session);
        for answer in std::mem::take(&mut self.ready) {
            target.append(&self.core, &answer).await;
        }
        if !self.calls.is_empty() {
            // The task ends with the calls, which have time limits. The end of the session ends it early.
            tokio::spawn(self.deliver(target));
        }
    }

    /// Runs the calls to their end, and sends their messages to the destination.
    async fn deliver(mut self, target: Destination) {
        let core = Arc::clone(&self.core);
        let _finishing = target.finish_on_drop();
        let mut patience = Patience::default();
        for message in std::mem::take(&mut self.ready) {
            if !target.append(&core, &message).await {
                return;
            }
        }
        while let Some(step) = self.calls.next().await {
            let message = match step {
                Step::Said(message) => message.into(),
                Step::Over(response) => response,
            };
            if !target.append(&core, &message).await {
                return;
            }
            target.pace(&mut patience).await;
        }
    }
}

fn whose(cx: &CallContext<'_>) -> (NamespaceName, Option<Arc<str>>) {
    (cx.namespace.name.clone(), cx.caller.principal.clone())
}

/// The running calls of a POST that is still waiting for the response.
struct AwaitedExchange(Option<Exchange>);

impl AwaitedExchange {
    fn exchange(&mut self) -> &mut Exchange {
        self.0.as_mut().expect("it is taken last")
    }

    fn take(mut self) -> Exchange {
        self.0.take().expect("it is taken once")
    }
}

impl Drop for AwaitedExchange {
    /// Handles the end of the POST's connection. Without a session the calls end with it, and a wait for a task does in any case. In
    /// a session the calls continue, and their messages are kept in the event log.
    fn drop(&mut self) {
        if let Some(mut exchange) = self.0.take()
            && exchange.session.is_some()
            && exchange.post.is_none()
        {
            go_on(async move {
                if exchange.until_spoken().await {
                    let _ = exchange.into_stream().await;
                }
            });
        }
    }
}

/// Destination of the messages of a POST's calls.
enum Destination {
    /// A separate stream of a session, whose events are kept in the event log.
    Logged {
        session: Arc<Session>,
        stream: Arc<Stream>,
    },
    /// The only stream of an HTTP+SSE session.
    Whole(Arc<Session>),
    /// A stream without a session, whose events are not kept.
    Bare(Arc<Stream>),
}

impl Destination {
    /// Sends a message. Returns false if the session has ended or the reader has disconnected, so that the calls can be
    /// cancelled.
    async fn append(&self, core: &Core, message: &[u8]) -> bool {
        match self {
            Self::Logged { session, stream } => core.events.append(session, stream, message).await,
            Self::Whole(session) => {
                core.events.append_general(session, message).await;
            }
            Self::Bare(stream) => return stream.push(frame::message(None, message)),
        }
        self.is_open()
    }

    /// Returns true if further messages can still reach a client.
    fn is_open(&self) -> bool {
        match self {
            Self::Logged { session, .. } | Self::Whole(session) => {
                session.state() != SessionState::Closed
            }
            Self::Bare(stream) => !stream.is_over(),
        }
    }

    /// Waits for a slow reader of the destination's stream, within the remaining time.
    async fn pace(&self, patience: &mut Patience) {
        let stream = match self {
            Self::Logged { stream, .. } | Self::Bare(stream) => Some(Arc::clone(stream)),
            Self::Whole(session) => session.streams().general(),
        };
        if let Some(stream) = stream {
            patience.wait_for(&stream).await;
        }
    }

    /// Returns a guard that finishes the stream when the calls of the POST have ended; `None` for the stream of an HTTP+SSE
    /// session, which also has messages of other POSTs.
    fn finish_on_drop(&self) -> Option<Finishing> {
        match self {
            Self::Logged { stream, .. } | Self::Bare(stream) => Some(stream.finish_on_drop()),
            Self::Whole(_) => None,
        }
    }
}

/// Time at which a POST is ended so that its client polls; `None` if polling is off or the client cannot resume.
pub(super) fn poll_at(core: &Core, cx: &CallContext<'_>) -> Option<Instant> {
    let PollAfter::After(after) = core.poll_after else {
        return None;
    };
    let resumes = cx.session().is_some() && primes(cx);
    resumes.then(|| Instant::now() + after)
}

fn primes(cx: &CallContext<'_>) -> bool {
    let version = cx.version();
    version.is_some_and(ProtocolVersion::has_priming_events)
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use tooldock_sessions::session::{Binding, SessionId, SessionTransport};
    use tooldock_sessions::stream::KeepAlive;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_exchange_waits_a_minute_for_its_readers_in_all() {
        let stream = Stream::detached(&KeepAlive::new(Duration::from_secs(15)));
        for _ in 0..1024 {
            assert!(stream.push(frame::message(None, b"{}")));
        }
        let mut patience = Patience::default();
        let mut readers = Vec::new();
        let start = Instant::now();
        for _ in 0..20 {
            // None of the readers reads, and each is waited for anew.
            readers.push(stream.read());
            patience.wait_for(&stream).await;
        }
        assert_eq!(start.elapsed(), PATIENCE);
    }

    #[tokio::test]
    async fn a_call_that_panics_leaves_no_reader_waiting() {
        let stream = Stream::detached(&KeepAlive::new(Duration::from_secs(15)));
        let mut events = stream.read();
        let target = Destination::Bare(stream);
        let task = tokio::spawn(async move {
            let _finishing = target.finish_on_drop();
            assert!(target.is_open());
            panic!("a call panics, as this test wants it to");
        });
        task.await.expect_err("it panicked");
        assert_eq!(events.next().await, None);
    }

    #[tokio::test]
    async fn nobody_gets_what_comes_after_the_end_of_a_session() {
        let binding = Binding {
            namespace: "shared".parse().expect("a name"),
            principal: None,
            version: ProtocolVersion::V2025_11_25,
            transport: SessionTransport::Sse,
        };
        let session = Arc::new(Session::new(SessionId::random(), binding, Instant::now()));
        let stream = Stream::detached(&KeepAlive::new(Duration::from_secs(15)));
        let whole = Destination::Whole(Arc::clone(&session));
        let logged = Destination::Logged {
            session: Arc::clone(&session),
            stream,
        };
        assert!(whole.is_open() && logged.is_open());
        session.close();
        assert!(!whole.is_open() && !logged.is_open());
    }
}
