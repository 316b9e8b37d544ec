//! A session of ours and the server's session behind it.
//!
//! ```text
//!   initialize ──▶ any backend ──▶ record: backend, its session ──▶ later messages go there
//!                                    │ backend gone, or it does not know the session (404)
//!                                    ▼
//!                     initialize again with the client's own words ──▶ another backend ──▶ record
//! ```
//!
//! A session is reopened by one of its messages while the others wait. Its client hears nothing of that. What the server
//! kept for the old session (log level, subscriptions) is gone; a server whose sessions matter says `stateful: true`, and
//! then the session ends.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use http::header::HeaderName;
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use serde::Deserialize;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};
use tooldock_workers::remote::BackendId;

use super::answer;
use super::failure::Failure;
use super::headers;
use super::up::{Lost, Outgoing, Up};
use crate::mcp::forget_session;
use crate::mcp::head::SESSION_HEADER;
use crate::protocol::ProtocolVersion;
use crate::session::{Affinity, Session, SessionPatch, UPSTREAM_ID_MAX};
use crate::upstream::http::port::{Backend, BackendRequest, BackendResponse, Backends};

/// The longest answer to `initialize`, in bytes.
const OPENING_MAX: usize = 1024 * 1024;

/// How long the end of a session at its server may take. Nobody waits for it.
const END: std::time::Duration = std::time::Duration::from_secs(5);

const CONFIRMATION: &[u8] = br#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;

/// What a live session keeps of its server's session. Dropped with the session, it ends the server's.
pub(super) struct UpstreamSession {
    /// Its one permit is held by the message that reopens the session.
    reopening: Semaphore,
    at: Mutex<Option<Place>>,
}

/// What it takes to end the server's session.
struct Place {
    backends: Arc<dyn Backends>,
    affinity: Arc<Affinity>,
    version: ProtocolVersion,
}

/// The server's answer to `initialize`.
pub(super) struct Opened {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
    /// Where it came from; the version it settles. None where the server refused.
    pub(super) settled: Option<(Affinity, ProtocolVersion)>,
}

impl Default for UpstreamSession {
    fn default() -> Self {
        Self {
            reopening: Semaphore::new(1),
            at: Mutex::default(),
        }
    }
}

impl UpstreamSession {
    fn moved(&self, place: Option<Place>) {
        *self.at.lock().unwrap_or_else(PoisonError::into_inner) = place;
    }
}

impl Drop for UpstreamSession {
    fn drop(&mut self) {
        let own = self.at.get_mut().unwrap_or_else(PoisonError::into_inner);
        let (Some(place), Ok(runtime)) = (own.take(), Handle::try_current()) else {
            return;
        };
        runtime.spawn(timeout(END, async move {
            let Some(backend) = place.backends.get(&BackendId::new(&place.affinity.backend)) else {
                return;
            };
            let version = HeaderValue::from_static(place.version.as_str());
            let mut up = HeaderMap::new();
            up.insert(HeaderName::from_static("mcp-protocol-version"), version);
            let session = place.affinity.session.as_deref();
            let request = BackendRequest {
                method: Method::DELETE,
                target: None,
                headers: headers::in_session(&up, &Method::DELETE, session),
                body: Bytes::new(),
                streams: false,
            };
            // A server that does not know it, or ends no sessions, has none to end.
            let _ = backend.send(request).await;
        }));
    }
}

impl Up<'_> {
    /// What the session keeps of the server's.
    pub(super) fn kept(&self, session: &Session) -> Arc<UpstreamSession> {
        let kept = session.upstream_binding(Arc::<UpstreamSession>::default);
        let mut at = kept.at.lock().unwrap_or_else(PoisonError::into_inner);
        if at.is_none() {
            *at = self.place(session);
        }
        drop(at);
        kept
    }

    fn place(&self, session: &Session) -> Option<Place> {
        let affinity = session.affinity().filter(|it| it.session.is_some())?;
        Some(Place {
            backends: Arc::clone(&self.backends),
            affinity,
            version: session.version(),
        })
    }

    /// Asks any backend but these for a session.
    pub(super) async fn open(
        &self,
        body: Bytes,
        avoid: Vec<BackendId>,
        deadline: Instant,
    ) -> Result<Opened, Failure> {
        let what = Outgoing {
            method: Method::POST,
            body,
            streams: false,
        };
        let (backend, mut response) = self.to_any(&what, avoid).await?;
        answer::judged(&response, headers::kind(&response.headers), true)?;
        let limit = self.namespace.limits.timeout;
        let (body, message) = answer::whole(&mut response, deadline, limit, OPENING_MAX).await?;
        let settled = match settled(&message) {
            Some(version) => Some((affinity(&*backend, &response)?, version)),
            None if response.status == StatusCode::OK && !is_error(&message) => {
                return Err(Failure::Malformed(
                    "it settles no protocol version that is spoken here",
                ));
            }
            None => None,
        };
        Ok(Opened {
            status: response.status,
            headers: response.headers,
            body,
            settled,
        })
    }

    /// Gives a session another end at its server, unless another message has done so meanwhile.
    pub(super) async fn heal(
        &self,
        session: &Arc<Session>,
        lost: &Arc<Affinity>,
        why: Lost,
    ) -> Result<Arc<Affinity>, Failure> {
        let kept = self.kept(session);
        let _alone = kept.reopening.acquire().await;
        if let Some(now) = session.affinity().filter(|now| !Arc::ptr_eq(now, lost)) {
            return Ok(now);
        }
        let avoid = match &why {
            Lost::Backend(_) => vec![BackendId::new(&lost.backend)],
            Lost::Session => Vec::new(),
        };
        let deadline = Instant::now() + self.namespace.limits.timeout;
        let opened = match (self.open(words_of(session), avoid, deadline).await, why) {
            // The backend that was lost is the only one: why it was not reached says more.
            (Err(Failure::NoBackend), Lost::Backend(Some(error))) => {
                return Err(Failure::Send(error));
            }
            (opened, _) => opened?,
        };
        let Some((affinity, version)) = opened.settled else {
            return Err(Failure::Malformed("it refused to open the session again"));
        };
        if version != session.version() {
            self.end(session).await;
            return Err(Failure::SessionEnded);
        }
        tracing::info!(
            namespace = %self.namespace.name, session = %session.tag(),
            from = &*lost.backend, to = &*affinity.backend, "session reopened"
        );
        self.confirm(&affinity).await;
        let patch = SessionPatch::Affinity(affinity);
        self.core.changes.commit(session, patch).await?;
        kept.moved(self.place(session));
        session.affinity().ok_or(Failure::SessionEnded)
    }

    /// Tells a server that its session is in use. One that does not take it will say so to the next message.
    async fn confirm(&self, affinity: &Affinity) {
        let Some(backend) = self.backends.get(&BackendId::new(&affinity.backend)) else {
            return;
        };
        let session = affinity.session.as_deref();
        let confirmation = BackendRequest {
            method: Method::POST,
            target: None,
            headers: headers::in_session(&self.headers, &Method::POST, session),
            body: Bytes::from_static(CONFIRMATION),
            streams: false,
        };
        if let Ok(mut taken) = backend.send(confirmation).await {
            // To its end, so that the connection can be used again; it has none to speak of.
            let _ = timeout(END, taken.body.chunk()).await;
        }
    }

    /// The session has no end at its server any more, and cannot have another one.
    pub(super) async fn end(&self, session: &Arc<Session>) {
        self.kept(session).moved(None);
        // A store that cannot be asked has said so in the log, and forgets by time.
        let _ = forget_session(self.core, session).await;
    }
}

/// `initialize` in the words of the session's client.
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

/// The version that an answer to `initialize` settles.
fn settled(message: &[u8]) -> Option<ProtocolVersion> {
    #[derive(Deserialize)]
    struct Answer<'a> {
        #[serde(borrow)]
        result: Settled<'a>,
    }
    #[derive(Deserialize)]
    struct Settled<'a> {
        #[serde(borrow, rename = "protocolVersion")]
        version: std::borrow::Cow<'a, str>,
    }
    let answer: Answer<'_> = serde_json::from_slice(message).ok()?;
    answer.result.version.parse().ok()
}

fn is_error(message: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Answer {
        #[serde(rename = "error")]
        _error: serde::de::IgnoredAny,
    }
    serde_json::from_slice::<Answer>(message).is_ok()
}

/// Where an answer came from.
fn affinity(backend: &dyn Backend, response: &BackendResponse) -> Result<Affinity, Failure> {
    let session = match response.headers.get(SESSION_HEADER) {
        None => None,
        Some(id) => {
            let text = id.to_str().ok();
            let visible = |id: &&str| id.len() <= UPSTREAM_ID_MAX && !id.contains([' ', '\t']);
            let text = text.filter(visible).filter(|id| !id.is_empty());
            let odd = Failure::Malformed("its session id is empty, too long or no visible ASCII");
            Some(text.ok_or(odd)?.into())
        }
    };
    Ok(Affinity {
        backend: backend.id().as_str().into(),
        session,
    })
}
