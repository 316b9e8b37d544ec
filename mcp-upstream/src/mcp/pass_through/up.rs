//! One message to a backend: which backend, and when it is sent again.
//!
//! A message is sent again only where nothing of it can have reached a backend, or where a backend said that it does not
//! know the session.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, Method, StatusCode};
use tooldock_workers::registry::Namespace;
use tooldock_workers::remote::{BackendId, Balance, RemoteServer};

use super::failure::Failure;
use super::headers;
use crate::caller::Caller;
use crate::mcp::Core;
use crate::session::{Affinity, Session};
use crate::upstream::http::port::{
    Backend, BackendRequest, BackendResponse, Backends, HttpClient, SendError,
};

/// The way up of one request.
pub(super) struct Up<'a> {
    pub(super) core: &'a Arc<Core>,
    pub(super) namespace: &'a Arc<Namespace>,
    pub(super) server: &'a Arc<RemoteServer>,
    pub(super) backends: Arc<dyn Backends>,
    /// What goes up of the request's head, but for its session.
    pub(super) headers: HeaderMap,
    /// Leads the same client to the same backend.
    hash: u64,
}

/// What is sent.
pub(super) struct Outgoing {
    pub(super) method: Method,
    pub(super) body: Bytes,
    pub(super) streams: bool,
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
            Balance::Hash => {
                let mut hasher = DefaultHasher::new();
                (caller.principal_name(), caller.client).hash(&mut hasher);
                hasher.finish()
            }
            _ => 0,
        };
        Self {
            core,
            namespace,
            server,
            backends: client.backends(server),
            headers: headers::up(own, &server.spec.headers.pass),
            hash,
        }
    }

    fn request(&self, what: &Outgoing, session: Option<&str>) -> BackendRequest {
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
        what: &Outgoing,
        mut avoid: Vec<BackendId>,
    ) -> Result<(Arc<dyn Backend>, BackendResponse), Failure> {
        let mut tries = 0;
        let mut last: Option<SendError> = None;
        loop {
            let Some(backend) = self.backends.pick(&avoid, self.hash) else {
                return Err(last.map_or(Failure::NoBackend, Failure::Send));
            };
            match backend.send(self.request(what, None)).await {
                Ok(response) => return Ok((backend, response)),
                Err(error) if error.unsent && tries < self.server.spec.retry.max => {
                    tries += 1;
                    avoid.push(backend.id().clone());
                    last = Some(error);
                }
                Err(error) => return Err(Failure::Send(error)),
            }
        }
    }

    /// Sends a message of a session to where the session is, or to where it is after that. A server without sessions
    /// answers anywhere.
    pub(super) async fn in_session(
        &self,
        session: &Arc<Session>,
        what: &Outgoing,
    ) -> Result<BackendResponse, Failure> {
        let ended = || Failure::SessionEnded;
        let at = session.affinity().ok_or_else(ended)?;
        if at.session.is_none() {
            let (_, response) = self.to_any(what, Vec::new()).await?;
            return Ok(response);
        }
        let lost = match self.to(&at, what, self.server.spec.stateful).await? {
            Ok(response) => return Ok(response),
            Err(lost) => lost,
        };
        if self.server.spec.stateful {
            self.end(session).await;
            return Err(Failure::SessionEnded);
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
        what: &Outgoing,
        anyway: bool,
    ) -> Result<Result<BackendResponse, Lost>, Failure> {
        let backend = self.backends.get(&BackendId::new(&at.backend));
        let Some(backend) = backend.filter(|it| anyway || it.is_healthy()) else {
            return Ok(Err(Lost::Backend(None)));
        };
        let request = self.request(what, at.session.as_deref());
        match backend.send(request).await {
            Ok(response) if response.status == StatusCode::NOT_FOUND => Ok(Err(Lost::Session)),
            Ok(response) => Ok(Ok(response)),
            Err(error) if error.unsent => Ok(Err(Lost::Backend(Some(error)))),
            Err(error) => Err(Failure::Send(error)),
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
