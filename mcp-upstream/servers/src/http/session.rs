//! A session at a backend, which is the transport of a link over Streamable HTTP.
//!
//! ```text
//! Link ── request ──▶ a task: POST ──▶ backend
//!   ▲                    │  202, JSON, or a stream of events (resumed by GET where it is cut)
//!   └─── Incoming ◀──────┘
//!   ▲
//!   └─── Incoming ◀── the general stream (`listen`): GET, reopened for as long as the session lives
//! ```
//!
//! Each request is a POST with a task of its own, in the runtime of its caller. Until the server has received
//! `notifications/initialized`, no other message is sent. A server of 2026-07-28 has no session: this type is then only its
//! connection to the backend.
//!
//! The layer above decides if a call may be sent again; the reasons are recorded by [`TransportFailure`]: a request is unsent
//! if no part of it can have reached the backend, or if the backend responded that it knows no such session. If a session's
//! backend is gone or not healthy, the session is replaced by one at another backend, unless its state exists at that backend
//! alone.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use tokio::runtime::Handle;
use tokio::sync::{Notify, Semaphore, watch};
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};
use tooldock_base::answers::AnswerAccount;
use tooldock_base::error::{CallError, CallErrorCode};
use tooldock_protocol::jsonrpc;
use tooldock_protocol::jsonrpc::plain::call_number;
use tooldock_protocol::version::ProtocolVersion;
use tooldock_sessions::catalogue::Catalogue;
use tooldock_workers::remote::RemoteServer;

use super::answer::{self, RequestFailure, SessionVerdict};
use super::events::EventReader;
use super::headers::{self, Outgoing};
use super::media::{MediaKind, begins_as_json, media_kind, shown_media_type, without_mark};
use super::port::{
    Backend, BackendRequest, BackendResponse, BackendState, SendError, SendErrorKind, SendRecord,
};
use super::reached::CurrentServer;
use super::{listen, sse, stream};
use crate::link::{Incoming, Transport, TransportFailure};

/// Maximum number of notifications and responses that are being sent at the same time; further ones are not sent.
const SENDS_MAX: usize = 256;
/// Time for which the stream of a cancelled call is still read, since the server may still respond.
const AFTER_CANCEL: Duration = Duration::from_secs(60);
/// Maximum number of retries to deliver `notifications/initialized`. A session cannot be used before this notification arrives.
const INITIALIZED_RETRIES: usize = 5;
/// Pause before a retry of `notifications/initialized`, unless the server says when to try again.
const INITIALIZED_PAUSE: Duration = Duration::from_millis(200);
/// Maximum pause before such a retry, even if the server asks for a longer pause. Calls of the session wait meanwhile.
const INITIALIZED_PAUSE_MAX: Duration = Duration::from_secs(2);
/// Time limit for the request that ends a session at its backend.
const DELETE_WAIT: Duration = Duration::from_secs(2);

/// A session at a backend, or for servers without sessions, a connection to a backend.
pub(super) struct Session {
    pub(super) server: Arc<RemoteServer>,
    reached: Arc<CurrentServer>,
    /// The backend, as it was configured when the session was opened.
    opened_at: Arc<dyn Backend>,
    pub(super) incoming: Incoming,
    /// The runtime for the session's background tasks, which belong to no caller.
    runtime: Handle,
    /// The session's id; unset until the backend has assigned one.
    id: OnceLock<HeaderValue>,
    /// The protocol version that `initialize` negotiated. Contains `None` if the server was opened without `initialize`.
    version: OnceLock<Option<ProtocolVersion>>,
    /// True once requests of clients may be sent; until then they wait.
    open: watch::Sender<bool>,
    /// True once the connection accepts no more calls; running calls continue.
    lost: watch::Sender<bool>,
    /// True once the backend responded that it does not know the session. The session then need not be ended at the backend.
    gone: AtomicBool,
    /// True once the delivery of `notifications/initialized` was given up, since the backend was not available; false until then.
    /// While true, no request of a client is sent.
    without_initialized: AtomicBool,
    /// True if the session replaces one that was dropped because of an error that may concern only the request, and has not yet
    /// answered a client's request. If the error is repeated, it is returned to the client.
    follows_refusal: AtomicBool,
    /// Running requests by id. The map is plain data, so it remains usable after a panic, such as one while a task is spawned
    /// under the lock.
    calls: Mutex<HashMap<u64, SessionCall>>,
    listening: Mutex<Option<AbortHandle>>,
    sends: Arc<Semaphore>,
    /// The transport HTTP+SSE of 2024-11-05, if the backend uses it.
    pub(super) old: sse::Channel,
    /// The server's catalogue. The schemas of its tools mark the arguments that are copied into headers.
    catalogue: Arc<Catalogue>,
    /// The client that the session is opened for.
    opener: Opener,
}

/// The client for which a session is opened.
pub(super) struct Opener {
    /// Headers of the session's only client, sent with every message; `None` for shared sessions.
    pub(super) headers: Option<Arc<HeaderMap>>,
    /// The principal whose credentials are sent with every message, if they are personal.
    pub(super) principal: Option<Arc<str>>,
    /// True if several clients share the session, so that the pool chooses the backend for each request; false if the session
    /// stays at its backend.
    pub(super) is_shared: bool,
}

/// Failure to deliver a message that gets no response.
struct Undelivered {
    failure: RequestFailure,
    /// Pause after which another attempt may succeed, if the backend was not reached or is not available; `None` if another
    /// attempt would fail, too.
    again: Option<Duration>,
}

impl Undelivered {
    /// Returns a failure without another attempt, which would fail, too.
    fn for_good(failure: RequestFailure) -> Self {
        Self {
            failure,
            again: None,
        }
    }
}

/// Outcome of a request that was sent without a failure.
enum SendOutcome {
    /// The request was answered or cancelled.
    Over,
    /// The response arrives on the stream of the session (HTTP+SSE).
    AnsweredElsewhere,
}

struct SessionCall {
    task: AbortHandle,
    given_up: Arc<Notify>,
    send_record: SendRecord,
    of_client: ClientHeaders,
}

/// The client's headers that are sent with a message, if there are any.
pub(super) type ClientHeaders = Option<Arc<HeaderMap>>;

impl Session {
    pub(super) fn new(
        reached: Arc<CurrentServer>,
        backend: Arc<dyn Backend>,
        incoming: Incoming,
        runtime: Handle,
        old: sse::Channel,
        catalogue: Arc<Catalogue>,
        opener: Opener,
    ) -> Arc<Self> {
        let server = Arc::clone(&reached.now().server);
        let follows_refusal = AtomicBool::new(reached.take_refusal());
        Arc::new(Self {
            server,
            reached,
            follows_refusal,
            opened_at: backend,
            incoming,
            runtime,
            id: OnceLock::new(),
            version: OnceLock::new(),
            open: watch::Sender::new(false),
            lost: watch::Sender::new(false),
            gone: AtomicBool::new(false),
            without_initialized: AtomicBool::new(false),
            calls: Mutex::default(),
            listening: Mutex::default(),
            sends: Arc::new(Semaphore::new(SENDS_MAX)),
            old,
            catalogue,
            opener,
        })
    }

    /// The session's backend in its current configuration. If the backend is no longer configured, the configuration with which
    /// the session was opened.
    pub(super) fn backend(&self) -> Arc<dyn Backend> {
        let known = self.reached.now().backends.get(self.opened_at.id());
        known.unwrap_or_else(|| Arc::clone(&self.opened_at))
    }

    /// Sends a request and waits until it is answered, has failed or is cancelled.
    async fn call(
        self: Arc<Self>,
        id: u64,
        message: Bytes,
        unsent: TransportFailure,
        given_up: Arc<Notify>,
        send_record: SendRecord,
        of_client: ClientHeaders,
    ) {
        let text = message.clone();
        let outgoing = Outgoing::of(&text);
        let modern = self.is_modern(&outgoing);
        let left = async {
            given_up.notified().await;
            // A modern server is informed of the cancellation by the closed stream, and a request that was not sent gets no
            // response. In all other cases, a response may still arrive.
            if !modern && send_record.has_left() {
                sleep(AFTER_CANCEL).await;
            }
        };
        let outcome = tokio::select! {
            outcome = self.exchange(id, &outgoing, message, &send_record, &of_client) => outcome,
            () = left => Ok(SendOutcome::Over),
        };
        self.calls().remove(&id);
        let error = match outcome {
            Ok(SendOutcome::AnsweredElsewhere) => return,
            Ok(SendOutcome::Over) => {
                CallError::new(CallErrorCode::Cancelled, "the call was given up")
            }
            Err(failed) => {
                if failed.is_session_gone && !failed.is_unsent {
                    unsent.note_session_refused();
                } else if failed.is_session_gone {
                    unsent.note_session_gone();
                } else if failed.is_unsent {
                    unsent.note();
                }
                failed.error
            }
        };
        // Has no effect if the call was answered.
        self.incoming.failed(id, error);
    }

    async fn exchange(
        self: &Arc<Self>,
        id: u64,
        outgoing: &Outgoing<'_>,
        message: Bytes,
        send_record: &SendRecord,
        of_client: &ClientHeaders,
    ) -> Result<SendOutcome, RequestFailure> {
        let probes = outgoing.method() == Some("server/discover") && self.version.get().is_none();
        if !outgoing.opens() {
            self.wait_until_open().await;
            if self.without_initialized.load(Ordering::Relaxed) {
                return Err(self.is_left("did not take notifications/initialized"));
            }
            if self.is_better_elsewhere() {
                return Err(self.is_left("is not healthy where the session was"));
            }
        }
        if self.old.is_used() {
            if probes {
                self.incoming.message(answer::unknown_method(id));
                return Ok(SendOutcome::Over);
            }
            if !send_record.mark_sent() {
                return Ok(SendOutcome::Over);
            }
            self.old.request(self, message, of_client).await?;
            return Ok(SendOutcome::AnsweredElsewhere);
        }
        let is_buffered = self.server.spec.api.is_some();
        let answers = is_buffered.then(|| self.incoming.answers(id)).flatten();
        let sent = self.post(
            outgoing,
            message.clone(),
            Some(send_record),
            of_client,
            answers,
        );
        let response = match sent.await {
            Ok(response) => response,
            // Some servers close the connection when they get an unknown method, such as the probe `server/discover`.
            Err(error) if probes && answer::may_be_no_such_question(&error) => {
                self.incoming.message(answer::unknown_method(id));
                return Ok(SendOutcome::Over);
            }
            Err(error) => return Err(self.not_sent(&error)),
        };
        if outgoing.method() == Some("initialize") {
            if self.old.is_possible() && answer::may_be_sse_only(response.status) {
                let refused = self.refused(response.status, &response.headers);
                drop(response);
                // If HTTP+SSE does not work either, the error for the first refusal is reported.
                self.old.open(self).await.map_err(|_| refused)?;
                self.old.request(self, message, of_client).await?;
                return Ok(SendOutcome::AnsweredElsewhere);
            }
            if let Some(session) = response.headers.get(headers::SESSION) {
                let _ = self.id.set(session.clone());
            }
        }
        if probes && answer::knows_no_such_question(&response) {
            self.incoming.message(answer::unknown_method(id));
            return Ok(SendOutcome::Over);
        }
        let is_taken = response.status.is_success();
        let answered = self.answer(id, response, of_client).await;
        if probes && is_taken && answered.is_err() {
            // The response is invalid, so the server does not support `server/discover`: otherwise it would have answered the
            // probe.
            self.incoming.message(answer::unknown_method(id));
            return Ok(SendOutcome::Over);
        }
        // Lists do not count as answered requests of a client, since the gateway itself reads them in each new session.
        let is_list = outgoing.method().is_some_and(|it| it.ends_with("/list"));
        if answered.is_ok() && !outgoing.opens() && !is_list {
            self.follows_refusal.store(false, Ordering::Relaxed);
        }
        answered.map(|()| SendOutcome::Over)
    }

    /// Processes the response to a request.
    async fn answer(
        &self,
        id: u64,
        response: BackendResponse,
        of_client: &ClientHeaders,
    ) -> Result<(), RequestFailure> {
        if response.is_refusal() {
            return Err(self.refused(response.status, &response.headers));
        }
        let mut response = response;
        let mut kind = media_kind(&response.headers);
        let is_empty = [StatusCode::ACCEPTED, StatusCode::NO_CONTENT].contains(&response.status);
        if kind == MediaKind::Unlabelled && !is_empty {
            let read = begins_as_json(response).await;
            let (read, is_json) = read.map_err(|error| self.cut(error))?;
            response = read;
            kind = match is_json {
                true => MediaKind::Json,
                false => MediaKind::Unlabelled,
            };
        }
        match kind {
            MediaKind::Events if response.status == StatusCode::OK => {
                stream::read(self, id, self.events(response), of_client).await
            }
            MediaKind::Json if response.status != StatusCode::NO_CONTENT => {
                let status = response.status;
                let headers = response.headers.clone();
                let answers = self.incoming.answers(id);
                let fits = |size| self.incoming.fits(size);
                let body = answer::body(response, fits, answers.as_ref()).await;
                let body = match body {
                    Ok(body) => without_mark(body),
                    Err(answer::BodyReadError::TooLarge(size)) => {
                        self.incoming.too_large(id, size);
                        return Ok(());
                    }
                    Err(answer::BodyReadError::NoRoom(no_room)) => {
                        self.incoming.failed(id, no_room.into());
                        return Ok(());
                    }
                    Err(answer::BodyReadError::Cut(error)) => return Err(self.cut(error)),
                };
                if let Some(failed) = self.without_session(status, &body, Some(id)) {
                    return Err(failed);
                }
                let body = answer::error_of_request(&body, id).unwrap_or(body);
                if status == StatusCode::OK || answer::answers(&body, id) {
                    self.incoming.message(body.clone());
                    return match self.incoming.is_awaited(id) {
                        true => {
                            let received = jsonrpc::received(&body);
                            Err(self.broken(&format!("answered with {received}")))
                        }
                        false => Ok(()),
                    };
                }
                Err(self.refused(status, &headers))
            }
            _ if self.is_unknown(response.status) => Err(self.session_is_gone()),
            MediaKind::Other | MediaKind::Unlabelled if self.may_say_unknown(response.status) => {
                let mut response = response;
                // A body that cannot be read is treated as empty.
                let words = answer::refusal_words(&mut *response.body).await;
                let words = words.unwrap_or_default();
                let gone = self.without_session(response.status, &words, Some(id));
                Err(gone.unwrap_or_else(|| self.refused(response.status, &response.headers)))
            }
            _ if response.status.is_success() => {
                let shown = shown_media_type(&response.headers);
                let what = match response.status {
                    StatusCode::ACCEPTED => "took the request without answering it".to_owned(),
                    StatusCode::NO_CONTENT => "gave an empty answer (HTTP 204)".to_owned(),
                    _ => {
                        format!("answered with {shown}, which is neither JSON nor an event stream")
                    }
                };
                Err(self.broken(&what))
            }
            _ => Err(self.refused(response.status, &response.headers)),
        }
    }

    /// Sends a message that is not a request, as soon as messages may be sent.
    async fn tell(&self, message: Bytes, of_client: &ClientHeaders) {
        let text = message.clone();
        let outgoing = Outgoing::of(&text);
        let is_initialized = outgoing.method() == Some("notifications/initialized");
        if !is_initialized {
            self.wait_until_open().await;
        }
        let mut told = self.deliver(&outgoing, message.clone(), of_client).await;
        if is_initialized {
            for _ in 0..INITIALIZED_RETRIES {
                let Some(pause) = told.as_ref().err().and_then(|failed| failed.again) else {
                    break;
                };
                if self.is_lost() || self.is_better_elsewhere() {
                    break;
                }
                sleep(pause.min(INITIALIZED_PAUSE_MAX)).await;
                told = self.deliver(&outgoing, message.clone(), of_client).await;
            }
            if told.as_ref().is_err_and(|failed| failed.again.is_some()) {
                // The session is dropped, since the server would refuse every request of a session without this notification.
                self.without_initialized.store(true, Ordering::Relaxed);
                self.lose();
            }
        }
        if let Err(failed) = told {
            tracing::debug!(
                namespace = %self.server.name,
                backend = %self.opened_at.id(),
                "a notification or an answer did not reach the server: {}",
                failed.failure.error.message
            );
        }
        if is_initialized {
            self.open.send_replace(true);
        }
    }

    /// Sends a message that gets no JSON-RPC response.
    async fn deliver(
        &self,
        outgoing: &Outgoing<'_>,
        message: Bytes,
        of_client: &ClientHeaders,
    ) -> Result<(), Undelivered> {
        if self.old.is_used() {
            let sent = self.old.send(self, message, of_client).await;
            return sent.map_err(Undelivered::for_good);
        }
        let sent = self.post_unanswered(outgoing, message, of_client).await;
        let mut response = sent.map_err(|error| Undelivered {
            // No further attempt if the message was sent, even without an answer: the server may have processed it.
            again: error.unsent.then_some(INITIALIZED_PAUSE),
            failure: self.not_sent(&error),
        })?;
        let status = response.status;
        if status.is_success() {
            return Ok(());
        }
        if self.is_unknown(status) {
            return Err(Undelivered::for_good(self.session_is_gone()));
        }
        if self.may_say_unknown(status) {
            let words = answer::refusal_words(&mut *response.body).await;
            let gone = self.without_session(status, &words.unwrap_or_default(), None);
            let failure = gone.unwrap_or_else(|| self.refused(status, &response.headers));
            return Err(Undelivered::for_good(failure));
        }
        let failure = self.refused(status, &response.headers);
        Err(Undelivered {
            again: match status.as_u16() {
                408 | 429 | 502..=504 => {
                    answer::retry_after(&response.headers).or(Some(INITIALIZED_PAUSE))
                }
                _ => None,
            },
            failure,
        })
    }

    /// Sends a message that gets no JSON-RPC response: a notification, or a response to the server. If the connection ends
    /// meanwhile, the message is sent once more, since such a message may arrive twice without harm.
    async fn post_unanswered(
        &self,
        outgoing: &Outgoing<'_>,
        message: Bytes,
        of_client: &ClientHeaders,
    ) -> Result<BackendResponse, SendError> {
        let sent = self
            .post(outgoing, message.clone(), None, of_client, None)
            .await;
        match sent {
            Err(error) if error.kind == SendErrorKind::Closed && self.server.spec.retry.max > 0 => {
                self.post(outgoing, message, None, of_client, None).await
            }
            sent => sent,
        }
    }

    /// Sends a message to the backend.
    async fn post(
        &self,
        outgoing: &Outgoing<'_>,
        message: Bytes,
        send_record: Option<&SendRecord>,
        of_client: &ClientHeaders,
        answers: Option<AnswerAccount>,
    ) -> Result<BackendResponse, SendError> {
        let modern = self.is_modern(outgoing);
        let mut headers = headers::of_post();
        self.add_of_client(&mut headers, of_client);
        match modern {
            true => outgoing.mirror(&mut headers, &self.catalogue),
            false => self.legacy_headers(&mut headers),
        }
        self.backend()
            .send(BackendRequest {
                standing: outgoing.method() == Some("subscriptions/listen"),
                send_record: send_record.cloned(),
                on_behalf_of: self.principal(),
                answers,
                ..BackendRequest::new(Method::POST, headers, message)
            })
            .await
    }

    /// Opens a stream of the session by GET: the general stream (`standing`), or the continuation of a call's stream.
    pub(super) async fn get(
        &self,
        after: Option<&str>,
        standing: bool,
        of_client: &ClientHeaders,
    ) -> Result<BackendResponse, SendError> {
        let mut headers = headers::of_get(after);
        self.add_of_client(&mut headers, of_client);
        self.legacy_headers(&mut headers);
        self.backend()
            .send(BackendRequest {
                standing,
                on_behalf_of: self.principal(),
                ..BackendRequest::new(Method::GET, headers, Bytes::new())
            })
            .await
    }

    /// The principal whose credentials are sent with the session's messages, if they are personal.
    pub(super) fn principal(&self) -> Option<Arc<str>> {
        self.opener.principal.clone()
    }

    /// Adds the headers of the message's client, or of the session's only client.
    pub(super) fn add_of_client(&self, headers: &mut HeaderMap, of_client: &ClientHeaders) {
        for (name, value) in of_client
            .iter()
            .chain(&self.opener.headers)
            .take(1)
            .flat_map(|it| &**it)
        {
            headers.append(name, value.clone());
        }
    }

    pub(super) fn legacy_headers(&self, headers: &mut HeaderMap) {
        if let Some(id) = self.id.get() {
            headers.insert(headers::SESSION, id.clone());
        }
        if let Some(Some(version)) = self.version.get() {
            let version = HeaderValue::from_static(version.as_str());
            headers.insert(headers::VERSION, version);
        }
    }

    pub(super) fn events(&self, response: BackendResponse) -> EventReader {
        let incoming = self.incoming.clone();
        EventReader::new(response.body, move |size| incoming.fits(size))
    }

    /// Returns true if a message is for a server of version 2026-07-28, as far as known. The first message to an unopened server
    /// is a probe for such a server.
    fn is_modern(&self, outgoing: &Outgoing<'_>) -> bool {
        match self.version.get() {
            Some(version) => version.is_none(),
            None => outgoing.method() == Some("server/discover"),
        }
    }

    /// Returns true if the server was opened by `initialize`.
    pub(super) fn is_legacy(&self) -> bool {
        matches!(self.version.get(), Some(Some(_)))
    }

    async fn wait_until_open(&self) {
        let mut open = self.open.subscribe();
        // The wait cannot fail, since the sender of the channel is a field of `self`.
        let _ = open.wait_for(|open| *open).await;
    }

    /// Returns true if the status alone means that the backend does not know the session.
    fn is_unknown(&self, status: StatusCode) -> bool {
        self.id.get().is_some() && status == StatusCode::NOT_FOUND
    }

    /// Returns true if the text of a refusal with this status may mean that the backend does not know the session.
    fn may_say_unknown(&self, status: StatusCode) -> bool {
        let words = [StatusCode::BAD_REQUEST, StatusCode::GONE];
        self.id.get().is_some() && words.contains(&status)
    }

    /// The error for a response which means that the backend does not know the session; `None` for other responses.
    fn without_session(
        &self,
        status: StatusCode,
        body: &[u8],
        id: Option<u64>,
    ) -> Option<RequestFailure> {
        self.id.get()?;
        let is_own = |answered: &str| id.is_some_and(|id| call_number(answered) == Some(id));
        match answer::session_verdict(status, body, is_own) {
            SessionVerdict::Known => None,
            SessionVerdict::Unknown => Some(self.session_is_gone()),
            SessionVerdict::Refused { in_words } => {
                // If this session replaced one that was dropped for the same error, the repetition shows that the error concerns
                // the request. It is returned as the response to the request.
                if self.follows_refusal.swap(false, Ordering::Relaxed) && !in_words {
                    return None;
                }
                self.reached.note_refusal();
                let gone = self.session_is_gone();
                let error = self.error(
                    "did not know its session any more. A new session is open for the next request; this request was not \
                     repeated, since it may have begun",
                );
                Some(RequestFailure {
                    error,
                    is_unsent: false,
                    ..gone
                })
            }
        }
    }

    /// Drops the session, which the backend no longer knows. The next call opens a new session.
    pub(super) fn session_is_gone(&self) -> RequestFailure {
        self.gone.store(true, Ordering::Relaxed);
        self.lose();
        RequestFailure {
            error: self.error("does not know its session any more"),
            is_unsent: true,
            is_session_gone: true,
        }
    }

    /// Returns true if requests should be sent to another backend: this session's backend is not healthy, another backend accepts
    /// new sessions, and no state is lost with this session.
    fn is_better_elsewhere(&self) -> bool {
        if self.version.get().is_none() || self.backend().is_healthy() {
            return false;
        }
        let now = self.reached.now();
        let takes_new = |it: &BackendState| it.healthy && !it.draining;
        let others = || now.backends.states().iter().any(takes_new);
        self.may_move() && others()
    }

    /// Returns true if a session at another backend can replace this session without loss.
    fn may_move(&self) -> bool {
        !self.opener.is_shared && !self.server.spec.stateful
    }

    /// Drops the session, so that the next request opens another session. `why`: the reason, as a predicate of the server.
    fn is_left(&self, why: &str) -> RequestFailure {
        self.lose();
        RequestFailure {
            error: self.error(why),
            is_unsent: true,
            is_session_gone: true,
        }
    }

    /// Makes the connection refuse new calls, because it can no longer use its backend. Pending calls continue.
    pub(super) fn lose(&self) {
        self.lost.send_replace(true);
        self.incoming.lost();
    }

    /// Records that the connection has ended on its own. Unlike `lose`, this does not notify `incoming`.
    pub(super) fn note_lost(&self) {
        self.lost.send_replace(true);
    }

    /// Spawns a task on the session's runtime.
    pub(super) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) -> AbortHandle {
        self.runtime.spawn(work).abort_handle()
    }

    pub(super) fn is_lost(&self) -> bool {
        *self.lost.borrow()
    }

    /// The error for a request that could not be sent, or got no response.
    pub(super) fn not_sent(&self, error: &SendError) -> RequestFailure {
        let code = match error.kind {
            SendErrorKind::HeadTimeout => CallErrorCode::ExecutionTimeout,
            _ => CallErrorCode::WorkerUnavailable,
        };
        // The backend cannot be reached, so the session is dropped, and the next call uses a healthy backend.
        let away = match error.kind {
            SendErrorKind::Resolve | SendErrorKind::Connect | SendErrorKind::Tls => true,
            // A healthy backend may only be busy for a moment, so its session is kept.
            SendErrorKind::ConnectTimeout => !self.backend().is_healthy(),
            _ => false,
        };
        let left = away && self.version.get().is_some();
        if left {
            self.lose();
        }
        let failing = match error.kind {
            SendErrorKind::HeadTimeout => "is too slow",
            _ => "cannot be reached",
        };
        // A failure to get an access token was logged when it occurred.
        if !matches!(
            error.kind,
            SendErrorKind::GivenUp | SendErrorKind::Authorization
        ) {
            tracing::warn!(
                namespace = %self.server.name,
                "the server of namespace {} {failing}: {error}",
                self.server.name
            );
        }
        let what = match error.kind {
            SendErrorKind::Authorization => format!("was not asked: {}", error.message),
            kind => format!("{failing}: {}", kind.description()),
        };
        let mut failed = self.failed(code, &what);
        failed.error = failed.error.caused_by(error.kind.as_str(), &*error.message);
        failed.is_unsent = error.unsent;
        // The failed attempt is reported like a lost session, so that it does not count as a retry: an earlier attempt
        // may have sent the request to this backend before the connection ended.
        let retries = self.server.spec.retry.max > 0;
        failed.is_session_gone = left && error.unsent && retries && self.may_move();
        failed
    }

    /// The error for a request whose response was cut off or took too long.
    pub(super) fn cut(&self, error: super::port::BodyError) -> RequestFailure {
        use super::port::BodyError;
        let (code, what) = match error {
            BodyError::Cut => (
                CallErrorCode::WorkerUnavailable,
                format!("did not finish its answer: {error}"),
            ),
            BodyError::Timeout(_) => (
                CallErrorCode::ExecutionTimeout,
                format!("did not finish its answer: {error}"),
            ),
            BodyError::Coding(_) | BodyError::UnknownCoding(_) => (
                CallErrorCode::WorkerUnavailable,
                format!("sent an answer that cannot be read: {error}"),
            ),
        };
        self.failed(code, &what)
    }

    pub(super) fn broken(&self, what: &str) -> RequestFailure {
        self.failed(CallErrorCode::WorkerUnavailable, what)
    }

    pub(super) fn refused(&self, status: StatusCode, headers: &HeaderMap) -> RequestFailure {
        answer::refused(&self.server, self.opened_at.id(), status, headers)
    }

    fn error(&self, what: &str) -> CallError {
        self.broken(what).error
    }

    fn failed(&self, code: CallErrorCode, what: &str) -> RequestFailure {
        answer::failed(&self.server, self.opened_at.id(), code, what)
    }

    fn calls(&self) -> MutexGuard<'_, HashMap<u64, SessionCall>> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn runtime(&self) -> Handle {
        Handle::try_current().unwrap_or_else(|_| self.runtime.clone())
    }

    /// Ends the session at the backend by DELETE.
    pub(super) async fn delete(&self) {
        self.stop_listening();
        let gone = self.gone.load(Ordering::Relaxed);
        if self.id.get().is_none() || gone || self.old.is_used() {
            return;
        }
        let mut headers = HeaderMap::new();
        self.add_of_client(&mut headers, &None);
        self.legacy_headers(&mut headers);
        let request = BackendRequest {
            on_behalf_of: self.principal(),
            ..BackendRequest::new(Method::DELETE, headers, Bytes::new())
        };
        // If a backend refuses DELETE, the session ends there by the backend's own timeout.
        let _ = timeout(DELETE_WAIT, self.backend().send(request)).await;
    }

    fn stop_listening(&self) {
        let listening = self.listening();
        if let Some(listening) = &*listening {
            listening.abort();
        }
    }

    fn listening(&self) -> MutexGuard<'_, Option<AbortHandle>> {
        self.listening
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// The session as the [`Transport`] of its link.
pub(super) struct SessionTransport(pub(super) Arc<Session>);

impl Transport for SessionTransport {
    fn request(
        &self,
        id: u64,
        message: Bytes,
        unsent: TransportFailure,
        of_client: Option<Arc<HeaderMap>>,
    ) -> Result<(), CallError> {
        let session = &self.0;
        let given_up = Arc::<Notify>::default();
        let mut calls = session.calls();
        let send_record = SendRecord::default();
        let (gives_up, leaves, own) = (
            Arc::clone(&given_up),
            send_record.clone(),
            of_client.clone(),
        );
        let run = Arc::clone(session).call(id, message, unsent, gives_up, leaves, own);
        let task = session.runtime().spawn(run).abort_handle();
        let call = SessionCall {
            task,
            given_up,
            send_record,
            of_client,
        };
        calls.insert(id, call);
        Ok(())
    }

    fn send(&self, message: Bytes) -> Result<(), CallError> {
        self.send_of(message, None)
    }

    fn give_up(&self, id: u64, words: Option<Bytes>) {
        let session = &self.0;
        let mut of_client = None;
        let mut unsent = false;
        if let Some(call) = session.calls().get(&id) {
            unsent = call.send_record.give_up();
            call.given_up.notify_one();
            of_client = call.of_client.clone();
        }
        let legacy = session.is_legacy() || session.old.is_used();
        if let Some(words) = words.filter(|_| legacy && !unsent) {
            // If too many messages are being sent, the cancellation is not sent, and the server continues to work on the request.
            let _ = self.send_of(words, of_client);
        }
    }

    fn opened(&self, version: Option<ProtocolVersion>) {
        let session = &self.0;
        let _ = session.version.set(version);
        match version {
            None => {
                session.open.send_replace(true);
            }
            Some(_) if session.old.is_used() => {}
            Some(_) => {
                let task = session.spawn(listen::run(Arc::clone(session)));
                *session.listening() = Some(task);
            }
        }
    }

    fn end(&self) {
        self.0.stop_listening();
        self.0.old.end();
        let calls = std::mem::take(&mut *self.0.calls());
        for call in calls.into_values() {
            call.task.abort();
        }
    }
}

impl SessionTransport {
    /// Sends a message that is no request. `of_client`: the client's headers to send along.
    fn send_of(&self, message: Bytes, of_client: ClientHeaders) -> Result<(), CallError> {
        let session = Arc::clone(&self.0);
        let Ok(permit) = Arc::clone(&session.sends).try_acquire_owned() else {
            let error = session.error("does not take messages as fast as they come");
            return Err(error.retry_after(Duration::from_secs(1)));
        };
        session.runtime().spawn(async move {
            session.tell(message, &of_client).await;
            drop(permit);
        });
        Ok(())
    }
}

impl Session {
    /// Waits until `notifications/initialized` was sent to the server.
    pub(super) async fn opened(&self) {
        self.wait_until_open().await;
    }
}
