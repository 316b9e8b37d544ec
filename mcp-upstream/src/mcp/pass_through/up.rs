//! Sends a message to a backend: chooses the backend, and decides when the message is sent again.
//!
//! If a backend does not answer a message, `tooldock_servers::http::retry` decides whether it is sent to another backend. A
//! message is also sent again if a backend reported that it does not know the session.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use tokio::runtime::Handle;
use tokio::time::timeout;
use tooldock_base::error::{CallError, CallErrorCode};
use tooldock_base::names::NamespaceName;
use tooldock_base::trace::PassedTrace;
use tooldock_engine::connect_links::{LinkSubject, with_link};
use tooldock_engine::trace;
use tooldock_servers::http::media::{MediaKind, ReadAhead, begins_as_json, media_kind};
use tooldock_servers::http::port::{
    Backend, BackendRequest, BackendResponse, Backends, HttpClient, SendError, SendErrorKind,
    SendRecord,
};
use tooldock_servers::http::{SessionVerdict, hash, passed, refusal_words, retry, session_verdict};
use tooldock_sessions::caller::{CallNote, Caller};
use tooldock_sessions::profile::Profile;
use tooldock_sessions::session::{Affinity, Session};
use tooldock_workers::registry::Namespace;
use tooldock_workers::remote::{BackendId, Balance, RemoteServer};

use super::failure::PassThroughFailure;
use super::headers::{self, BodyKind, LAST_EVENT_ID, PROTOCOL_VERSION};
use super::{count, remote};
use crate::jsonrpc::plain::is_same_id;
use crate::mcp::Core;
use crate::reply::JSON;

/// Sends a client's messages to a server's backends, with the headers and the principal of the client. It finds the backends when
/// they are needed: objects that outlive a request use it, since references to the backends would keep removed ones in memory.
#[derive(Clone)]
pub(super) struct ClientSender {
    pub(super) client: Arc<dyn HttpClient>,
    pub(super) server: NamespaceName,
    /// The headers to send to the server, without the server's session id.
    pub(super) headers: Arc<HeaderMap>,
    /// The principal whose credentials are sent, if the server's credentials are personal.
    pub(super) principal: Option<Arc<str>>,
}

/// Time limit for a request whose response does not matter.
pub(super) const BACKGROUND: Duration = Duration::from_secs(5);

impl ClientSender {
    /// Builds a request in the server's session with this id, or without a session.
    pub(super) fn request(
        &self,
        method: Method,
        session: Option<&str>,
        body: Bytes,
    ) -> BackendRequest {
        let headers = headers::in_session(&self.headers, &method, session);
        BackendRequest {
            on_behalf_of: self.principal.clone(),
            ..BackendRequest::new(method, headers, body)
        }
    }

    /// Sends a request to the backend of a session without waiting, and ignores the response. Sends nothing if the backend was
    /// removed.
    pub(super) fn send_in_background(&self, at: &Affinity, request: BackendRequest) {
        let backends = self.client.current(&self.server);
        let backend = backends.and_then(|it| it.get(&BackendId::new(&at.backend)));
        if let (Some(backend), Ok(runtime)) = (backend, Handle::try_current()) {
            runtime.spawn(timeout(BACKGROUND, async move {
                let _ = backend.send(request).await;
            }));
        }
    }
}

/// The context for sending one request to a remote server.
#[derive(Clone)]
pub(super) struct PassThroughContext<'a> {
    pub(super) core: &'a Arc<Core>,
    pub(super) namespace: &'a Arc<Namespace>,
    pub(super) server: &'a Arc<RemoteServer>,
    pub(super) backends: Arc<dyn Backends>,
    pub(super) sender: ClientSender,
    /// Hash that identifies the client, for balancing by client; 0 for other kinds of balancing.
    pub(super) hash: u64,
    /// The settings of the caller's listener.
    profile: Arc<Profile>,
    /// Record for the access log, in which the backend that received the message is noted.
    note: Option<Arc<CallNote>>,
}

/// A message to send to a backend.
pub(super) struct Outgoing<'a> {
    pub(super) method: Method,
    pub(super) body: Bytes,
    /// True for a request whose response is a long stream, see [`BackendRequest::standing`].
    pub(super) standing: bool,
    /// The raw JSON id of the message; `None` if the message is not a request.
    pub(super) id: Option<&'a str>,
    /// Switch that can stop the message before it is sent; `None` if nothing stops it.
    pub(super) send_record: Option<SendRecord>,
    /// Function that returns true if the message may run twice without harm. Such a message may be sent again.
    pub(super) harmless: &'a (dyn Fn() -> bool + Send + Sync),
}

impl<'a> Outgoing<'a> {
    /// Creates a message without an id that may run twice without harm, and that cannot be stopped before it is sent. Its response
    /// is no long stream.
    pub(super) fn new(method: Method, body: Bytes) -> Self {
        Self {
            method,
            body,
            standing: false,
            id: None,
            send_record: None,
            harmless: &|| true,
        }
    }
}

impl<'a> PassThroughContext<'a> {
    /// Creates the context for a message to the remote server, and counts the message. Returns `None` if the namespace has no
    /// remote server or the process has no HTTP client.
    pub(super) fn new(
        core: &'a Arc<Core>,
        caller: &Caller,
        namespace: &'a Arc<Namespace>,
    ) -> Option<Self> {
        let server = remote(namespace)?;
        let client = core.http_client.as_ref()?;
        count(core, caller, namespace, "pass_through");
        let none = HeaderMap::new();
        let own = caller.headers.as_deref().unwrap_or(&none);
        let rules = &server.spec.headers;
        let mut headers = headers::for_server(own, &rules.pass, caller.profile.accept);
        if rules.forward_id {
            passed::add_request_id(&mut headers, caller);
        }
        let hash = match server.spec.balance {
            Balance::Hash => hash::of_client(caller, None),
            _ => 0,
        };
        Some(Self {
            core,
            namespace,
            server,
            backends: client.backends(server),
            sender: ClientSender {
                client: Arc::clone(client),
                server: server.name.clone(),
                headers: Arc::new(headers),
                principal: caller.principal.clone(),
            },
            hash,
            profile: Arc::clone(&caller.profile),
            note: caller.note.clone(),
        })
    }

    /// Removes the header `Last-Event-ID`, so that the server starts a new stream.
    pub(super) fn without_place(mut self) -> Self {
        self.remove(&LAST_EVENT_ID);
        self
    }

    /// Removes the client's header `MCP-Protocol-Version`.
    pub(super) fn without_version(mut self) -> Self {
        self.remove(&PROTOCOL_VERSION);
        self
    }

    fn remove(&mut self, name: &HeaderName) {
        let headers = &mut self.sender.headers;
        if headers.contains_key(name) {
            Arc::make_mut(headers).remove(name);
        }
    }

    /// Returns a copy of this context with the headers of the gateway's trace; `None` if the trace is not the gateway's own. The
    /// trace is sent in headers only, and the message is not changed.
    pub(super) fn traced(&self, trace: Option<&PassedTrace>) -> Option<Self> {
        let trace = trace.filter(|it| it.is_own)?;
        let mut traced = self.clone();
        trace::set_headers(Arc::make_mut(&mut traced.sender.headers), trace);
        Some(traced)
    }

    /// Returns the client's `Last-Event-ID`, the event after which it resumes.
    pub(super) fn place_in_stream(&self) -> Option<&HeaderValue> {
        self.sender.headers.get(LAST_EVENT_ID)
    }

    /// Checks that the caller has stored the personal values (such as API keys) that the server needs.
    fn check_credentials(&self) -> Result<(), PassThroughFailure> {
        let own = &self.server.spec.personal;
        let secrets = self.core.registry.personal();
        let checked = own.check(&self.server.name, secrets, self.sender.principal.as_deref());
        checked.map_err(|missing| PassThroughFailure::Refused(self.with_link(missing)))
    }

    /// Adds a link to the error for a missing credential, if the caller can give the credential on a page of the gateway.
    fn with_link(&self, missing: CallError) -> CallError {
        let subject = self
            .sender
            .principal
            .as_deref()
            .map(|principal| LinkSubject {
                namespace: self.namespace,
                profile: &self.profile,
                principal,
                session: None,
            });
        let links = self.core.links.as_ref();
        match links.zip(subject).and_then(|(links, it)| links.offer(&it)) {
            Some(link) => with_link(missing, &link),
            None => missing,
        }
    }

    fn note(&self, backend: &BackendId) {
        if let Some(note) = &self.note {
            note.record_backend(backend);
        }
    }

    fn request(&self, what: &Outgoing<'_>, session: Option<&str>) -> BackendRequest {
        let (method, body) = (what.method.clone(), what.body.clone());
        BackendRequest {
            standing: what.standing,
            send_record: what.send_record.clone(),
            ..self.sender.request(method, session, body)
        }
    }

    /// Sends a message to any backend that is not in `avoid`.
    pub(super) async fn to_any(
        &self,
        what: &Outgoing<'_>,
        mut avoid: Vec<BackendId>,
        hash: u64,
    ) -> Result<(Arc<dyn Backend>, BackendResponse), PassThroughFailure> {
        self.check_credentials()?;
        let mut tried = 0;
        let mut last = Err(PassThroughFailure::NoBackend);
        while let Some(backend) = self.backends.pick(&avoid, hash) {
            tried += 1;
            self.note(backend.id());
            let sent = backend.send(self.request(what, None)).await;
            let goes_on = self.may_resend(&sent, tried, what);
            avoid.push(backend.id().clone());
            let sent = sent.map(|response| (backend, response));
            last = sent.map_err(PassThroughFailure::Send);
            if !goes_on {
                break;
            }
        }
        match last {
            Ok((backend, response)) if what.id.is_some() => {
                Ok((backend, labelled(response).await?))
            }
            last => last,
        }
    }

    /// Returns true if a message is sent to another backend after this outcome. `tried`: number of backends that got it so far.
    fn may_resend(
        &self,
        sent: &Result<BackendResponse, SendError>,
        tried: usize,
        what: &Outgoing<'_>,
    ) -> bool {
        let unsent = match sent {
            Ok(response) if fails_for_itself(response.status) => false,
            Err(error) if error.kind == SendErrorKind::GivenUp => return false,
            Err(error) if error.unsent || ended(error) => error.unsent,
            Ok(_) | Err(_) => return false,
        };
        retry::may_resend(self.server.spec.retry, tried, unsent, what.harmless)
    }

    /// Sends a message of a session to the session's backend, or to its new backend if the session moves. If the server has no
    /// sessions, any backend is used.
    pub(super) async fn in_session(
        &self,
        session: &Arc<Session>,
        what: &Outgoing<'_>,
    ) -> Result<BackendResponse, PassThroughFailure> {
        let at = session.affinity().ok_or(PassThroughFailure::SessionEnded)?;
        if at.session.is_none() {
            let (_, response) = self.to_any(what, Vec::new(), self.hash).await?;
            return Ok(response);
        }
        if self.is_to_leave(session, &at, what) {
            return Box::pin(self.elsewhere(session, &at, what, BackendLoss::Backend(None))).await;
        }
        let retry = self.server.spec.retry;
        let mut sent = self.to(&at, what, self.server.spec.stateful, false).await;
        if let Err(PassThroughFailure::Send(error)) = &sent
            && ended(error)
            && retry::may_resend(retry, 1, false, what.harmless)
        {
            // The connection ended, but the backend may still run and have the session, so it is tried once more. If it does not
            // run, this attempt fails before the server reads the message.
            sent = self.to(&at, what, self.server.spec.stateful, false).await;
        }
        let lost = match sent? {
            Ok(response) => return Ok(response),
            Err(lost) => lost,
        };
        // The future is boxed, so that the usual case does not reserve space for it.
        Box::pin(self.elsewhere(session, &at, what, lost)).await
    }

    /// Reopens a session that was lost at the server, and sends the message in the new session.
    async fn elsewhere(
        &self,
        session: &Arc<Session>,
        at: &Arc<Affinity>,
        what: &Outgoing<'_>,
        lost: BackendLoss,
    ) -> Result<BackendResponse, PassThroughFailure> {
        let retry = self.server.spec.retry;
        if self.server.spec.stateful {
            self.end(session).await;
            return Err(PassThroughFailure::SessionEnded);
        }
        if let BackendLoss::Backend(Some(error)) = &lost
            && !retry::may_resend(retry, 1, true, || true)
        {
            return Err(PassThroughFailure::Send(error.clone()));
        }
        let repeats = !matches!(lost, BackendLoss::Refused) || (what.harmless)();
        // The server lost the events of the old session, so the client cannot resume from them.
        let afresh = self.clone().without_place();
        let healed = afresh.reopen(session, at, lost).await?;
        if !repeats {
            return Err(self.not_repeated());
        }
        match afresh.to(&healed, what, true, true).await? {
            Ok(response) => Ok(response),
            Err(BackendLoss::Backend(error)) => {
                Err(error.map_or(PassThroughFailure::NoBackend, PassThroughFailure::Send))
            }
            Err(BackendLoss::Session | BackendLoss::Refused) => {
                self.end(session).await;
                Err(PassThroughFailure::SessionEnded)
            }
        }
    }

    /// Returns the failure of a message that the server refused because it does not know the session. The message is not sent
    /// again, since the server may have begun to process it.
    fn not_repeated(&self) -> PassThroughFailure {
        let message = format!(
            "The server of {} did not know its session any more. A new session is open for the next request; this request was \
             not repeated, since it may have begun",
            self.namespace.name
        );
        PassThroughFailure::Refused(CallError::new(CallErrorCode::WorkerUnavailable, message))
    }

    /// Returns true if a session moves to another backend with this message, because a reload removed its backend. The session
    /// stays at the removed backend while other requests of the session are in flight there: that backend finishes them, and the
    /// client's answers to the server's questions belong to them.
    fn is_to_leave(&self, session: &Session, at: &Affinity, what: &Outgoing<'_>) -> bool {
        let backends = &self.server.spec.backends;
        let is_configured = backends.iter().any(|it| it.id.as_str() == &*at.backend);
        // `requests()` counts the current request, too, so it is 1 if no other request of the session is in flight.
        !is_configured
            && !self.server.spec.stateful
            && what.id.is_some()
            && session.in_flight().requests() <= 1
    }

    /// Sends a message of a session to its backend. The inner error is the reason why the session must be reopened. `anyway`:
    /// true to use an unhealthy backend, too. `reopened`: true if the session was opened for this message.
    async fn to(
        &self,
        at: &Affinity,
        what: &Outgoing<'_>,
        anyway: bool,
        reopened: bool,
    ) -> Result<Result<BackendResponse, BackendLoss>, PassThroughFailure> {
        self.check_credentials()?;
        let backend = self.backends.get(&BackendId::new(&at.backend));
        let Some(backend) = backend.filter(|it| anyway || it.is_healthy()) else {
            return Ok(Err(BackendLoss::Backend(None)));
        };
        let request = self.request(what, at.session.as_deref());
        self.note(backend.id());
        match backend.send(request).await {
            Ok(response) => check_session(response, what.id, reopened).await,
            // The client cancelled the message, so it is not sent to another backend.
            Err(error) if error.kind == SendErrorKind::GivenUp => {
                Err(PassThroughFailure::Send(error))
            }
            // The backend may be busy only for a moment, and it has the session's state. So the session is not reopened.
            Err(error)
                if error.kind == SendErrorKind::ConnectTimeout
                    && self.server.spec.stateful
                    && backend.is_healthy() =>
            {
                Err(PassThroughFailure::Send(error))
            }
            Err(error) if error.unsent => Ok(Err(BackendLoss::Backend(Some(error)))),
            Err(error) => Err(PassThroughFailure::Send(error)),
        }
    }
}

/// Returns true if the connection ended, or the response was not valid HTTP, after the server may have read the message.
fn ended(error: &SendError) -> bool {
    matches!(error.kind, SendErrorKind::Closed | SendErrorKind::Malformed)
}

/// Returns true if a status reports a failure of the backend itself, after which another backend may get the message. 504 is
/// excluded: after a timeout the message is not sent again.
fn fails_for_itself(status: StatusCode) -> bool {
    status.is_server_error() && status != StatusCode::GATEWAY_TIMEOUT
}

/// Checks from a response whether the backend knows the session. Some servers report an unknown session with 400 and a text, and
/// some answer a refused message with 404. So a short body is read before the response is forwarded.
async fn check_session(
    mut response: BackendResponse,
    id: Option<&str>,
    reopened: bool,
) -> Result<Result<BackendResponse, BackendLoss>, PassThroughFailure> {
    let status = response.status;
    let refuses = [
        StatusCode::BAD_REQUEST,
        StatusCode::NOT_FOUND,
        StatusCode::GONE,
    ];
    let read =
        match refuses.contains(&status) && headers::kind(&response.headers) != BodyKind::Events {
            true => refusal_words(&mut *response.body)
                .await
                .map_err(PassThroughFailure::Body)?,
            false => BytesMut::new(),
        };
    let is_own = |answered: &str| id.is_some_and(|id| is_same_id(answered, id));
    match session_verdict(status, &read, is_own) {
        SessionVerdict::Unknown => return Ok(Err(BackendLoss::Session)),
        SessionVerdict::Refused { in_words } if in_words || !reopened => {
            return Ok(Err(BackendLoss::Refused));
        }
        SessionVerdict::Refused { .. } | SessionVerdict::Known => {}
    }
    if !read.is_empty() {
        response.body = Box::new(ReadAhead::new(read.freeze(), response.body));
    }
    if id.is_some() {
        response = labelled(response).await?;
    }
    if status == StatusCode::NOT_FOUND && headers::kind(&response.headers) == BodyKind::Json {
        // The body is a valid answer to the message. With the status 404 the client would conclude that its session has ended.
        response.status = StatusCode::OK;
    }
    Ok(Ok(response))
}

/// Labels a JSON body as `application/json` if the server used another label or none, so that clients can read it.
pub(super) async fn labelled(
    mut response: BackendResponse,
) -> Result<BackendResponse, PassThroughFailure> {
    let kind = headers::kind(&response.headers);
    let is_coded = response.headers.contains_key(CONTENT_ENCODING);
    if matches!(kind, BodyKind::Json | BodyKind::Events) || is_coded {
        return Ok(response);
    }
    let is_empty = [StatusCode::ACCEPTED, StatusCode::NO_CONTENT].contains(&response.status);
    let is_json = match media_kind(&response.headers) {
        MediaKind::Json => true,
        MediaKind::Unlabelled if !is_empty && !response.is_refusal() => {
            let read = begins_as_json(response)
                .await
                .map_err(PassThroughFailure::Body)?;
            response = read.0;
            read.1
        }
        MediaKind::Unlabelled | MediaKind::Events | MediaKind::Other => false,
    };
    if is_json {
        response.headers.insert(CONTENT_TYPE, JSON);
    }
    Ok(response)
}

/// Reason why a message of a session got no response. The session is reopened at the server then.
#[derive(Debug)]
pub(super) enum BackendLoss {
    /// The backend was removed, is not healthy, or could not be reached.
    Backend(Option<SendError>),
    /// The backend does not know the session. It did not process the message.
    Session,
    /// The backend refused the message because it does not know the session. It may have begun to process the message before.
    Refused,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::remote::{JSON, Then, in_pieces, response};

    #[tokio::test]
    async fn what_was_read_of_a_refusal_does_not_hide_that_its_end_is_nowhere_told() {
        for (then, expected) in [(Then::Closes, true), (Then::Ends, false)] {
            let refusal = Bytes::from_static(b"{\"no\":1}");
            let refused = in_pieces(400, &[JSON], vec![Ok(refusal.clone())], then);
            let known = check_session(refused, None, false).await.expect("read");
            let mut response = known.expect("no word of the session");
            assert_eq!(response.body.may_be_cut(), expected);
            assert_eq!(response.body.chunk().await, Ok(Some(refusal)));
            assert_eq!(response.body.chunk().await, Ok(None));
        }
    }

    #[tokio::test]
    async fn a_404_is_the_end_of_the_session_unless_its_error_is_about_the_request() {
        let coded = |id: &str, code: i64, words: &str| {
            format!(
                r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":{code},"message":"{words}"}}}}"#
            )
        };
        let error = |id: &str, words: &str| coded(id, -32000, words);
        for (status, body, passed_with) in [
            (404, error("7", "no such tool"), None),
            (404, coded("7", -32601, "no such method"), Some(200)),
            (404, coded("7", -32602, "no such tool"), Some(200)),
            (404, coded("7", -32001, "Session not found"), None),
            (404, coded("7", -32600, "Not found"), None),
            (404, error("8", "no such tool"), None),
            (404, error("null", "Session not found"), None),
            (404, String::new(), None),
            (400, error("null", "No valid session ID provided"), None),
            (400, error("7", "No valid session ID provided"), None),
            (400, error("7", "Server not initialized"), None),
            (
                400,
                r#"{"detail":"Session 123 does not exist"}"#.into(),
                None,
            ),
            (400, "Invalid or missing session ID".into(), None),
            (410, r#""invalid_session_id""#.into(), None),
            (404, coded("7", -32602, "Session not found"), None),
            (410, coded("7", -32000, "the page is gone"), Some(410)),
            (400, coded("7", -32600, "Invalid session ID"), None),
            (
                400,
                coded("7", -32602, "the session must be a number"),
                Some(400),
            ),
            (
                400,
                error("null", "the tool keeps one session per user"),
                Some(400),
            ),
        ] {
            let response = response(status, &[JSON], body.clone());
            let known = check_session(response, Some("7"), false)
                .await
                .expect("read");
            let found = known.ok().map(|it| it.status.as_u16());
            assert_eq!(found, passed_with, "{status} {body}");
        }
        // In a session that was opened for the message, such an error is the answer, unless its text names the session.
        for (words, passed_with) in [("Not found", Some(200)), ("Session not found", None)] {
            let again = response(404, &[JSON], error("7", words));
            let known = check_session(again, Some("7"), true).await.expect("read");
            let found = known.ok().map(|it| it.status.as_u16());
            assert_eq!(found, passed_with, "{words}");
        }
    }
}
