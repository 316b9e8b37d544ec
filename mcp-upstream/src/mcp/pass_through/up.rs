//! One message to a backend: which backend, and when it is sent again.
//!
//! A message that a backend did not answer goes to another one as `upstream::http::retry` says. Besides, it is sent again
//! where a backend said that it does not know the session.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Method, StatusCode};
use tooldock_workers::registry::Namespace;
use tooldock_workers::remote::{BackendId, Balance, RemoteServer};

use super::failure::Failure;
use super::headers::{self, BodyKind};
use crate::caller::Caller;
use crate::mcp::Core;
use crate::session::{Affinity, Session};
use crate::upstream::http::is_unknown_session;
use crate::upstream::http::port::{
    Backend, BackendRequest, BackendResponse, Backends, BodyError, HttpClient, ResponseBody,
    SendError, SendErrorKind,
};
use crate::upstream::http::{hash, retry};

/// The longest refusal that is looked into, in bytes.
const REFUSAL_MAX: usize = 4096;

/// The way up of one request.
pub(super) struct Up<'a> {
    pub(super) core: &'a Arc<Core>,
    pub(super) namespace: &'a Arc<Namespace>,
    pub(super) server: &'a Arc<RemoteServer>,
    pub(super) backends: Arc<dyn Backends>,
    /// What goes up of the request's head, but for its session.
    pub(super) headers: Arc<HeaderMap>,
    /// Leads the same client to the same backend.
    pub(super) hash: u64,
}

/// What is sent.
pub(super) struct Outgoing<'a> {
    pub(super) method: Method,
    pub(super) body: Bytes,
    pub(super) streams: bool,
    /// Whether running it twice is as good as once.
    pub(super) harmless: &'a (dyn Fn() -> bool + Send + Sync),
}

impl<'a> Up<'a> {
    pub(super) fn new(
        core: &'a Arc<Core>,
        client: &dyn HttpClient,
        caller: &Caller,
        namespace: &'a Arc<Namespace>,
        server: &'a Arc<RemoteServer>,
    ) -> Self {
        let none = HeaderMap::new();
        let own = caller.headers.as_deref().unwrap_or(&none);
        let hash = match server.spec.balance {
            Balance::Hash => hash::of_client(caller, None),
            _ => 0,
        };
        Self {
            core,
            namespace,
            server,
            backends: client.backends(server),
            headers: Arc::new(headers::up(own, &server.spec.headers.pass)),
            hash,
        }
    }

    fn request(&self, what: &Outgoing<'_>, session: Option<&str>) -> BackendRequest {
        BackendRequest {
            method: what.method.clone(),
            target: None,
            headers: headers::in_session(&self.headers, &what.method, session),
            body: what.body.clone(),
            streams: what.streams,
        }
    }

    /// Sends a message to any backend but these.
    pub(super) async fn to_any(
        &self,
        what: &Outgoing<'_>,
        mut avoid: Vec<BackendId>,
        hash: u64,
    ) -> Result<(Arc<dyn Backend>, BackendResponse), Failure> {
        let mut tried = 0;
        let mut last = Err(Failure::NoBackend);
        while let Some(backend) = self.backends.pick(&avoid, hash) {
            tried += 1;
            let sent = backend.send(self.request(what, None)).await;
            let goes_on = self.goes_on(&sent, tried, what);
            avoid.push(backend.id().clone());
            let sent = sent.map(|response| (backend, response));
            last = sent.map_err(Failure::Send);
            if !goes_on {
                break;
            }
        }
        last
    }

    /// Whether a message with that outcome at the last of `tried` backends goes to one more.
    fn goes_on(
        &self,
        sent: &Result<BackendResponse, SendError>,
        tried: usize,
        what: &Outgoing<'_>,
    ) -> bool {
        let unsent = match sent {
            Ok(response) if fails_for_itself(response.status) => false,
            Err(error) if error.unsent || ended(error) => error.unsent,
            Ok(_) | Err(_) => return false,
        };
        retry::goes_on(self.server.spec.retry, tried, unsent, what.harmless)
    }

    /// Sends a message of a session to where the session is, or to where it is after that. A server without sessions
    /// answers anywhere.
    pub(super) async fn in_session(
        &self,
        session: &Arc<Session>,
        what: &Outgoing<'_>,
    ) -> Result<BackendResponse, Failure> {
        let at = session.affinity().ok_or(Failure::SessionEnded)?;
        if at.session.is_none() {
            let (_, response) = self.to_any(what, Vec::new(), self.hash).await?;
            return Ok(response);
        }
        let retry = self.server.spec.retry;
        let mut sent = self.to(&at, what, self.server.spec.stateful).await;
        if let Err(Failure::Send(error)) = &sent
            && ended(error)
            && retry::goes_on(retry, 1, false, what.harmless)
        {
            // The backend may be there all the same, with the session. If not, this says so without being read.
            sent = self.to(&at, what, self.server.spec.stateful).await;
        }
        let lost = match sent? {
            Ok(response) => return Ok(response),
            Err(lost) => lost,
        };
        if self.server.spec.stateful {
            self.end(session).await;
            return Err(Failure::SessionEnded);
        }
        if let Lost::Backend(Some(error)) = &lost
            && !retry::goes_on(retry, 1, true, || true)
        {
            return Err(Failure::Send(error.clone()));
        }
        let healed = self.heal(session, &at, lost).await?;
        match self.to(&healed, what, true).await? {
            Ok(response) => Ok(response),
            Err(Lost::Backend(error)) => Err(error.map_or(Failure::NoBackend, Failure::Send)),
            Err(Lost::Session) => {
                self.end(session).await;
                Err(Failure::SessionEnded)
            }
        }
    }

    /// Sends a message of a session to its backend. The inner error says that nothing was done with it, and why.
    async fn to(
        &self,
        at: &Affinity,
        what: &Outgoing<'_>,
        anyway: bool,
    ) -> Result<Result<BackendResponse, Lost>, Failure> {
        let backend = self.backends.get(&BackendId::new(&at.backend));
        let Some(backend) = backend.filter(|it| anyway || it.is_healthy()) else {
            return Ok(Err(Lost::Backend(None)));
        };
        let request = self.request(what, at.session.as_deref());
        match backend.send(request).await {
            Ok(response) => known(response).await,
            Err(error) if error.unsent => Ok(Err(Lost::Backend(Some(error)))),
            Err(error) => Err(Failure::Send(error)),
        }
    }
}

/// Whether a connection ended, or said nothing of HTTP, when the message may have been read.
fn ended(error: &SendError) -> bool {
    matches!(error.kind, SendErrorKind::Closed | SendErrorKind::Malformed)
}

/// Whether a status says that the backend itself failed. One that ran out of time is no reason to begin again elsewhere.
fn fails_for_itself(status: StatusCode) -> bool {
    status.is_server_error() && status != StatusCode::GATEWAY_TIMEOUT
}

/// Whether the backend knows the session. Some servers say that they do not with 400 and words: what is short enough to be
/// no more than that is read before it is passed on.
async fn known(mut response: BackendResponse) -> Result<Result<BackendResponse, Lost>, Failure> {
    let status = response.status;
    let mut read = BytesMut::new();
    if status == StatusCode::BAD_REQUEST && headers::kind(&response.headers) == BodyKind::Json {
        while read.len() < REFUSAL_MAX
            && let Some(piece) = response.body.chunk().await.map_err(Failure::Body)?
        {
            read.extend_from_slice(&piece);
        }
    }
    if is_unknown_session(status, &read) {
        return Ok(Err(Lost::Session));
    }
    if !read.is_empty() {
        response.body = Box::new(ReadAhead {
            read: Some(read.freeze()),
            rest: response.body,
        });
    }
    Ok(Ok(response))
}

/// A body whose beginning was read.
struct ReadAhead {
    read: Option<Bytes>,
    rest: Box<dyn ResponseBody>,
}

#[async_trait]
impl ResponseBody for ReadAhead {
    async fn chunk(&mut self) -> Result<Option<Bytes>, BodyError> {
        match self.read.take() {
            Some(read) => Ok(Some(read)),
            None => self.rest.chunk().await,
        }
    }
}

/// Why a session's backend did nothing with a message.
#[derive(Debug)]
pub(super) enum Lost {
    /// The backend is gone, not healthy, or was not reached.
    Backend(Option<SendError>),
    /// The backend does not know the session.
    Session,
}
