//! Affinity: maps a session of the gateway to a session of the server.
//!
//! ```text
//!   initialize ──▶ any backend ──▶ record: backend, id of its session ──▶ later messages go to that backend
//!                                    │ the backend is gone, or it does not know the session (404)
//!                                    ▼
//!                     initialize again with the client's recorded parameters ──▶ another backend ──▶ record
//! ```
//!
//! The first message that finds the server's session gone opens a new one, and later messages of the same client wait for it;
//! the client does not notice. State that the server kept for the old session (log level, subscriptions) is lost. For a server
//! with relevant session state, the operator sets `stateful: true`; then the gateway's session ends instead.

use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};
use tooldock_servers::http::port::{Backend, BackendResponse};
use tooldock_sessions::session::{Affinity, Session, SessionPatch, UPSTREAM_ID_MAX};
use tooldock_workers::remote::BackendId;

use super::answer;
use super::failure::PassThroughFailure;
use super::headers::{self, PROTOCOL_VERSION};
use super::resume::EventIds;
use super::up::{BACKGROUND, BackendLoss, ClientSender, Outgoing, PassThroughContext, labelled};
use crate::jsonrpc::RequestError;
use crate::mcp::forget_session;
use crate::mcp::head::SESSION_HEADER;
use crate::protocol::{ProtocolVersion, negotiated};

/// Maximum size of a server's answer to `initialize`, in bytes.
const OPENING_MAX: usize = 1024 * 1024;

/// Empty headers, for a [`BackendSession`] while no request of its client is handled.
static NO_HEADERS: LazyLock<Arc<HeaderMap>> = LazyLock::new(Arc::default);

const CONFIRMATION: &[u8] = br#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;

/// The server's session that belongs to a live session of the gateway. It is dropped together with the live session, and this
/// ends the server's session, unless the session is recorded in a store.
pub(crate) struct UpstreamSession {
    /// Semaphore with one permit, acquired by the message that reopens the server's session.
    reopening: Semaphore,
    at: Mutex<Option<BackendSession>>,
    /// Ids of the server's events from which the client may resume a stream.
    events: Arc<EventIds>,
    /// True if the gateway's session is recorded in a store. Dropping this value then leaves the server's session open,
    /// since another process may continue with it. False: dropping it ends the server's session.
    recorded: bool,
}

/// A session at the server. Dropping this value ends that session at the server, unless the session was released before.
pub(super) struct BackendSession {
    /// Sender of the request that ends the session. It has the client's headers only while a request of the client is handled.
    sender: ClientSender,
    pub(super) affinity: Affinity,
    version: Option<ProtocolVersion>,
    let_go: bool,
}

/// A server's response to `initialize`.
pub(super) struct InitializeAnswer {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
    /// The JSON-RPC message in the body of the response to `initialize`.
    pub(super) message: Bytes,
    /// The server's new session and the negotiated protocol version; `None` if the server refused `initialize`.
    pub(super) settled: Option<(BackendSession, ProtocolVersion)>,
}

impl UpstreamSession {
    fn new(recorded: bool) -> Self {
        Self {
            reopening: Semaphore::new(1),
            at: Mutex::default(),
            events: Arc::default(),
            recorded,
        }
    }

    /// Replaces the session at the server. The previous session at the server is ended.
    pub(super) fn moved(&self, place: Option<BackendSession>) {
        let before = std::mem::replace(&mut *self.lock(), place);
        drop(before);
    }

    fn lock(&self) -> MutexGuard<'_, Option<BackendSession>> {
        self.at.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for UpstreamSession {
    fn drop(&mut self) {
        let own = self.at.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(place) = own.as_mut().filter(|_| self.recorded) {
            place.let_go = true;
        }
    }
}

impl Drop for BackendSession {
    fn drop(&mut self) {
        if self.let_go || self.affinity.session.is_none() {
            return;
        }
        let session = self.affinity.session.as_deref();
        let mut request = self.sender.request(Method::DELETE, session, Bytes::new());
        if let Some(version) = self.version {
            let version = HeaderValue::from_static(version.as_str());
            request.headers = request.headers.with(PROTOCOL_VERSION, version);
        }
        // A refusal is ignored: the server does not know the session any more, or does not support ending sessions.
        self.sender.send_in_background(&self.affinity, request);
    }
}

impl PassThroughContext<'_> {
    fn binding(&self, session: &Session) -> Arc<UpstreamSession> {
        let recorded = self.core.events.is_stored();
        let namespace = &session.binding().namespace;
        let sessions = &self.core.upstream_sessions;
        sessions.get_or_make(session, namespace, || UpstreamSession::new(recorded))
    }

    /// Returns the record of the event ids that a session's client has received.
    pub(super) fn events_of(&self, session: &Session) -> Arc<EventIds> {
        Arc::clone(&self.binding(session).events)
    }

    /// Returns the server's session of a session of the gateway. If this process does not have it yet, it is restored from the
    /// session's record.
    fn kept(&self, session: &Session) -> Arc<UpstreamSession> {
        let kept = self.binding(session);
        let mut at = kept.lock();
        if at.is_none()
            && let Some(affinity) = session.affinity()
        {
            let mut place = self.place(Affinity::clone(&affinity));
            place.version = Some(session.version());
            *at = Some(place);
        }
        drop(at);
        kept
    }

    /// Ends the server's session. The request uses the headers of the current client request.
    pub(super) fn end_at_server(&self, session: &Session) {
        let place = self.kept(session).lock().take();
        if let Some(mut place) = place {
            place.sender.headers = Arc::clone(&self.sender.headers);
        }
    }

    fn place(&self, affinity: Affinity) -> BackendSession {
        BackendSession {
            sender: ClientSender {
                headers: Arc::clone(&NO_HEADERS),
                ..self.sender.clone()
            },
            affinity,
            version: None,
            let_go: false,
        }
    }

    /// Opens a session at any backend that is not in `avoid`. Dropping the result ends that session at the server.
    pub(super) async fn open(
        &self,
        body: Bytes,
        avoid: Vec<BackendId>,
        deadline: Instant,
    ) -> Result<InitializeAnswer, PassThroughFailure> {
        // Repeating `initialize` is harmless: if the first backend opened a session, its id was lost with the connection, and the
        // unused session expires there.
        let what = Outgoing::new(Method::POST, body);
        // The hash is random: successive sessions use different backends, even for the same client. A session stays at its
        // backend.
        let hash = fastrand::u64(..);
        let (backend, response) = self.to_any(&what, avoid, hash).await?;
        let mut response = labelled(response).await?;
        let mut place = self.place(affinity(&*backend, &response)?);
        place.sender.headers = Arc::clone(&self.sender.headers);
        answer::judged(&response, headers::kind(&response.headers), true)?;
        let limit = self.namespace.limits.timeout;
        let (body, message) = answer::whole(&mut response, deadline, limit, OPENING_MAX).await?;
        let settled = match settled(&message) {
            Ok(version) => {
                place.version = Some(version);
                Some((place, version))
            }
            Err(why) if response.status == StatusCode::OK && !is_error(&message) => {
                return Err(PassThroughFailure::Version(why));
            }
            Err(_) => None,
        };
        Ok(InitializeAnswer {
            status: response.status,
            headers: response.headers,
            body,
            message,
            settled,
        })
    }

    /// Records the backend and the server's session for a session of the gateway, and keeps the server's session until the
    /// gateway's session ends.
    pub(super) async fn settle(
        &self,
        session: &Arc<Session>,
        mut place: BackendSession,
    ) -> Result<(), RequestError> {
        let patch = SessionPatch::Affinity(place.affinity.clone());
        self.core.changes.commit(session, patch).await?;
        place.sender.headers = Arc::clone(&NO_HEADERS);
        self.binding(session).moved(Some(place));
        Ok(())
    }

    /// Reopens a session at the server, unless another message has reopened it meanwhile.
    pub(super) async fn reopen(
        &self,
        session: &Arc<Session>,
        lost: &Arc<Affinity>,
        why: BackendLoss,
    ) -> Result<Arc<Affinity>, PassThroughFailure> {
        let kept = self.kept(session);
        let _alone = kept.reopening.acquire().await;
        if let Some(now) = session.affinity().filter(|now| now != lost) {
            return Ok(now);
        }
        let avoid = match &why {
            BackendLoss::Backend(_) => vec![BackendId::new(&lost.backend)],
            BackendLoss::Session | BackendLoss::Refused => Vec::new(),
        };
        let deadline = Instant::now() + self.namespace.limits.timeout;
        let opened = match (self.open(words_of(session), avoid, deadline).await, why) {
            // The server has no other backend. The client gets the connection error of the lost backend, since that error is more
            // useful than the message that no backend is left.
            (Err(PassThroughFailure::NoBackend), BackendLoss::Backend(Some(error))) => {
                return Err(PassThroughFailure::Send(error));
            }
            (opened, _) => opened?,
        };
        let Some((place, version)) = opened.settled else {
            return Err(PassThroughFailure::Malformed(
                "it refused to open the session again",
            ));
        };
        if version != session.version() {
            drop(place);
            self.end(session).await;
            return Err(PassThroughFailure::SessionEnded);
        }
        tracing::info!(
            namespace = %self.namespace.name, session = %session.tag(),
            from = &*lost.backend, to = &*place.affinity.backend, "session reopened"
        );
        self.confirm(&place.affinity).await;
        kept.events.reopened();
        self.settle(session, place).await?;
        kept.events.moved();
        session.affinity().ok_or(PassThroughFailure::SessionEnded)
    }

    /// Sends `notifications/initialized` to the server. A failure is ignored here; the next message then fails.
    async fn confirm(&self, affinity: &Affinity) {
        let Some(backend) = self.backends.get(&BackendId::new(&affinity.backend)) else {
            return;
        };
        let (session, body) = (
            affinity.session.as_deref(),
            Bytes::from_static(CONFIRMATION),
        );
        let confirmation = self.sender.request(Method::POST, session, body);
        if let Ok(mut taken) = backend.send(confirmation).await {
            // The response is read to its end, so that the connection can be reused. Its body is empty or short.
            let _ = timeout(BACKGROUND, taken.body.chunk()).await;
        }
    }

    /// Ends a session of the gateway whose server session is lost and cannot be reopened.
    pub(super) async fn end(&self, session: &Arc<Session>) {
        self.kept(session).moved(None);
        // A failure of the store was logged before. The record that stays there expires.
        let _ = forget_session(self.core, session).await;
    }
}

/// Builds an `initialize` request from the recorded protocol version, capabilities and name of the session's client.
fn words_of(session: &Session) -> Bytes {
    let client = session.client();
    let info = match &client.info {
        Some(info) => format!(r#","clientInfo":{}"#, info.get()),
        None => String::new(),
    };
    format!(
        r#"{{"jsonrpc":"2.0","id":"tooldock/initialize","method":"initialize","params":{{"protocolVersion":"{}","capabilities":{}{info}}}}}"#,
        session.version(),
        client.capabilities.get(),
    )
    .into()
}

/// Returns the protocol version that the server chose in its answer to `initialize`.
fn settled(message: &[u8]) -> Result<ProtocolVersion, String> {
    #[derive(Deserialize)]
    struct Answer<'a> {
        #[serde(borrow)]
        result: VersionField<'a>,
    }
    #[derive(Deserialize)]
    struct VersionField<'a> {
        #[serde(borrow, rename = "protocolVersion")]
        version: &'a RawValue,
    }
    let answer = serde_json::from_slice::<Answer<'_>>(message).ok();
    negotiated(answer.map(|answer| answer.result.version))
}

fn is_error(message: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Answer {
        #[serde(rename = "error")]
        _error: serde::de::IgnoredAny,
    }
    serde_json::from_slice::<Answer>(message).is_ok()
}

/// Reads the affinity from a response to `initialize`: the backend that answered, and the id of the server's session.
fn affinity(
    backend: &dyn Backend,
    response: &BackendResponse,
) -> Result<Affinity, PassThroughFailure> {
    let session = match response.headers.get(SESSION_HEADER) {
        None => None,
        Some(id) => {
            let text = id.to_str().ok();
            let visible = |id: &&str| id.len() <= UPSTREAM_ID_MAX && !id.contains([' ', '\t']);
            let text = text.filter(visible).filter(|id| !id.is_empty());
            let odd = PassThroughFailure::Malformed(
                "its session id is empty, too long or no visible ASCII",
            );
            Some(text.ok_or(odd)?.into())
        }
    };
    Ok(Affinity {
        backend: backend.id().as_str().into(),
        session,
    })
}

#[cfg(test)]
mod tests {
    use http::Method;
    use tooldock_servers::http::port::HttpClient;

    use super::*;
    use crate::testing::remote::{FakeClient, FakePool};

    #[tokio::test]
    async fn what_another_process_goes_on_with_is_not_ended_with_this_one() {
        for recorded in [false, true] {
            let pool = FakePool::new(1);
            let client = Arc::new(FakeClient(Arc::clone(&pool))) as Arc<dyn HttpClient>;
            let kept = UpstreamSession::new(recorded);
            kept.moved(Some(BackendSession {
                sender: ClientSender {
                    client,
                    server: "search".parse().expect("a name"),
                    headers: Arc::default(),
                    principal: None,
                },
                affinity: Affinity {
                    backend: "backend-0:80".into(),
                    session: Some("theirs".into()),
                },
                version: None,
                let_go: false,
            }));
            drop(kept);
            for _ in 0..10 {
                tokio::task::yield_now().await;
            }
            let ended = pool.backends[0].ended();
            assert_eq!(ended.is_empty(), recorded, "{ended:?}");
            assert!(
                pool.backends[0]
                    .seen()
                    .iter()
                    .all(|it| it.method == Method::DELETE)
            );
        }
    }
}
