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

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use http::header::HeaderName;
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};
use tooldock_workers::remote::BackendId;

use super::answer;
use super::failure::Failure;
use super::headers;
use super::resume::EventIds;
use super::up::{Lost, Outgoing, Up, Way, labelled};
use crate::jsonrpc::RequestError;
use crate::mcp::forget_session;
use crate::mcp::head::SESSION_HEADER;
use crate::protocol::{ProtocolVersion, negotiated};
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
    /// Which events its client may come back for.
    events: Arc<EventIds>,
    /// The session is recorded in a store: where this process lets it go, another one may go on with it.
    recorded: bool,
}

/// A session at the server. Dropped, it ends that session, unless it was let go.
pub(super) struct Place {
    way: Way,
    pub(super) affinity: Affinity,
    version: Option<ProtocolVersion>,
    /// What goes with the end, of the client who wants it.
    headers: Option<Arc<HeaderMap>>,
    /// Whose credentials go with the end, where they are personal.
    principal: Option<Arc<str>>,
    let_go: bool,
}

/// The server's answer to `initialize`.
pub(super) struct Opened {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
    /// The message in it.
    pub(super) message: Bytes,
    /// Where it came from; the version it settles. None where the server refused.
    pub(super) settled: Option<(Place, ProtocolVersion)>,
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

    /// The session is there now. Where it was before, it ends.
    pub(super) fn moved(&self, place: Option<Place>) {
        let before = std::mem::replace(&mut *self.lock(), place);
        drop(before);
    }

    fn lock(&self) -> MutexGuard<'_, Option<Place>> {
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

impl Drop for Place {
    fn drop(&mut self) {
        let Ok(runtime) = Handle::try_current() else {
            return;
        };
        if self.let_go || self.affinity.session.is_none() {
            return;
        }
        let backends = self.way.backends();
        let backend = backends.and_then(|it| it.get(&BackendId::new(&self.affinity.backend)));
        let Some(backend) = backend else {
            return;
        };
        let mut up = self.headers.take().map_or_else(HeaderMap::new, |own| {
            Arc::try_unwrap(own).unwrap_or_else(|own| HeaderMap::clone(&own))
        });
        if let Some(version) = self.version {
            let version = HeaderValue::from_static(version.as_str());
            up.insert(HeaderName::from_static("mcp-protocol-version"), version);
        }
        let session = self.affinity.session.as_deref();
        let request = BackendRequest {
            method: Method::DELETE,
            target: None,
            headers: headers::in_session(&Arc::new(up), &Method::DELETE, session),
            body: Bytes::new(),
            streams: false,
            departure: None,
            on_behalf_of: self.principal.take(),
        };
        // A server that does not know it, or ends no sessions, has none to end.
        runtime.spawn(timeout(END, async move {
            let _ = backend.send(request).await;
        }));
    }
}

impl Up<'_> {
    fn binding(&self, session: &Session) -> Arc<UpstreamSession> {
        let recorded = self.core.events.is_stored();
        session.upstream_binding(&session.binding().namespace, || {
            Arc::new(UpstreamSession::new(recorded))
        })
    }

    /// The events of a session.
    pub(super) fn events_of(&self, session: &Session) -> Arc<EventIds> {
        Arc::clone(&self.binding(session).events)
    }

    /// What the session keeps of the server's.
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

    /// Ends the server's session, with the headers of the client that wants it.
    pub(super) fn end_at_server(&self, session: &Session) {
        let place = self.kept(session).lock().take();
        if let Some(mut place) = place {
            place.headers = Some(Arc::clone(&self.headers));
        }
    }

    fn place(&self, affinity: Affinity) -> Place {
        Place {
            way: self.way.clone(),
            affinity,
            version: None,
            headers: None,
            principal: self.principal.clone(),
            let_go: false,
        }
    }

    /// Asks any backend but these for a session. What comes of it is ended unless it is kept.
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
            id: None,
            departure: None,
            // It may have left a session behind.
            harmless: &|| false,
        };
        // Each session goes to the next backend, whoever opens it: from then on it stays.
        let hash = fastrand::u64(..);
        let (backend, response) = self.to_any(&what, avoid, hash).await?;
        let mut response = labelled(response).await?;
        let mut place = self.place(affinity(&*backend, &response)?);
        place.headers = Some(Arc::clone(&self.headers));
        answer::judged(&response, headers::kind(&response.headers), true)?;
        let limit = self.namespace.limits.timeout;
        let (body, message) = answer::whole(&mut response, deadline, limit, OPENING_MAX).await?;
        let settled = match settled(&message) {
            Ok(version) => {
                place.version = Some(version);
                Some((place, version))
            }
            Err(why) if response.status == StatusCode::OK && !is_error(&message) => {
                return Err(Failure::Version(why));
            }
            Err(_) => None,
        };
        Ok(Opened {
            status: response.status,
            headers: response.headers,
            body,
            message,
            settled,
        })
    }

    /// Notes where a session is, and keeps that for as long as the session lives.
    pub(super) async fn settle(
        &self,
        session: &Arc<Session>,
        mut place: Place,
    ) -> Result<(), RequestError> {
        let patch = SessionPatch::Affinity(place.affinity.clone());
        self.core.changes.commit(session, patch).await?;
        place.headers = None;
        self.binding(session).moved(Some(place));
        Ok(())
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
        if let Some(now) = session.affinity().filter(|now| now != lost) {
            return Ok(now);
        }
        let avoid = match &why {
            Lost::Backend(_) => vec![BackendId::new(&lost.backend)],
            Lost::Session | Lost::Refused => Vec::new(),
        };
        let deadline = Instant::now() + self.namespace.limits.timeout;
        let opened = match (self.open(words_of(session), avoid, deadline).await, why) {
            // The backend that was lost is the only one: why it was not reached says more.
            (Err(Failure::NoBackend), Lost::Backend(Some(error))) => {
                return Err(Failure::Send(error));
            }
            (opened, _) => opened?,
        };
        let Some((place, version)) = opened.settled else {
            return Err(Failure::Malformed("it refused to open the session again"));
        };
        if version != session.version() {
            drop(place);
            self.end(session).await;
            return Err(Failure::SessionEnded);
        }
        tracing::info!(
            namespace = %self.namespace.name, session = %session.tag(),
            from = &*lost.backend, to = &*place.affinity.backend, "session reopened"
        );
        self.confirm(&place.affinity).await;
        kept.events.reopened();
        self.settle(session, place).await?;
        kept.events.moved();
        session.affinity().ok_or(Failure::SessionEnded)
    }

    /// Tells a server that its session is in use. One that does not take it will say so to the next message.
    async fn confirm(&self, affinity: &Affinity) {
        let body = Bytes::from_static(CONFIRMATION);
        let told = told(
            &*self.backends,
            (&self.headers, self.principal.as_ref()),
            affinity,
            body,
        );
        let Some((backend, confirmation)) = told else {
            return;
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

/// A message of ours in a session of the server, and the backend it is for.
pub(super) fn told(
    backends: &dyn Backends,
    (headers, principal): (&Arc<HeaderMap>, Option<&Arc<str>>),
    affinity: &Affinity,
    body: Bytes,
) -> Option<(Arc<dyn Backend>, BackendRequest)> {
    let backend = backends.get(&BackendId::new(&affinity.backend))?;
    let session = affinity.session.as_deref();
    let request = BackendRequest {
        method: Method::POST,
        target: None,
        headers: headers::in_session(headers, &Method::POST, session),
        body,
        streams: false,
        departure: None,
        on_behalf_of: principal.cloned(),
    };
    Some((backend, request))
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
fn settled(message: &[u8]) -> Result<ProtocolVersion, String> {
    #[derive(Deserialize)]
    struct Answer<'a> {
        #[serde(borrow)]
        result: Settled<'a>,
    }
    #[derive(Deserialize)]
    struct Settled<'a> {
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

#[cfg(test)]
mod tests {
    use http::Method;

    use super::*;
    use crate::testing::remote::{FakeClient, FakePool};
    use crate::upstream::http::port::HttpClient;

    #[tokio::test]
    async fn what_another_process_goes_on_with_is_not_ended_with_this_one() {
        for recorded in [false, true] {
            let pool = FakePool::new(1);
            let spec = crate::testing::remote::remote("search", |_| {});
            let server = super::super::remote(&spec).expect("a remote server");
            let client = Arc::new(FakeClient(Arc::clone(&pool))) as Arc<dyn HttpClient>;
            let kept = UpstreamSession::new(recorded);
            kept.moved(Some(Place {
                way: Way::new(&client, server),
                affinity: Affinity {
                    backend: "backend-0:80".into(),
                    session: Some("theirs".into()),
                },
                version: None,
                headers: None,
                principal: None,
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
