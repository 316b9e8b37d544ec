//! The transport HTTP+SSE of 2024-11-05: the backend's messages arrive on a single stream, which begins with the address for
//! the gateway's messages.
//!
//! A session lasts as long as its stream: the end of the stream ends the session and fails every pending call.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::{Method, StatusCode};
use tokio::sync::oneshot;
use tokio::task::AbortHandle;
use tokio::time::timeout;
use tooldock_workers::remote::{Host, Transport};

use super::answer::RequestFailure;
use super::events::{Data, EventReader, SseEvent};
use super::headers;
use super::media::{MediaKind, media_kind};
use super::port::BackendRequest;
use super::session::{ClientHeaders, Session};
use super::stream::take;
use crate::link::LinkEnd;

/// Time limit for the backend to send the address for messages.
const ENDPOINT_WAIT: Duration = Duration::from_secs(10);
/// Maximum size of the address for messages, in bytes.
const ENDPOINT_MAX: usize = 4096;

/// State of a session's HTTP+SSE transport, also for sessions that do not use that transport.
pub(super) struct Channel {
    transport: Transport,
    used: AtomicBool,
    /// Path and query to which messages are sent, once known.
    endpoint: OnceLock<String>,
    reader: Mutex<Option<AbortHandle>>,
}

impl Channel {
    /// State for a configured transport: HTTP+SSE is used from the beginning (`Sse`), after the backend has refused Streamable
    /// HTTP (`Auto`), or never (any other value).
    pub(super) fn new(transport: Transport) -> Self {
        Self {
            transport,
            used: AtomicBool::new(transport == Transport::Sse),
            endpoint: OnceLock::new(),
            reader: Mutex::default(),
        }
    }

    /// Returns true if the session's messages are sent by HTTP+SSE.
    pub(super) fn is_used(&self) -> bool {
        self.used.load(Ordering::Acquire)
    }

    /// Returns true if HTTP+SSE is tried after the backend refused `initialize` over Streamable HTTP.
    pub(super) fn is_possible(&self) -> bool {
        self.transport == Transport::Auto
    }

    /// Opens the stream and waits for the address for messages.
    ///
    /// # Errors
    ///
    /// When the backend has no such stream, or sends an address at another host.
    pub(super) async fn open(&self, session: &Arc<Session>) -> Result<(), RequestFailure> {
        let response = session.get(None, true, &None).await;
        let response = response.map_err(|error| session.not_sent(&error))?;
        if !response.status.is_success() {
            return Err(session.refused(response.status, &response.headers));
        }
        if media_kind(&response.headers) != MediaKind::Events {
            return Err(session.broken("answered with something else than an event stream"));
        }
        let events = session.events(response);
        let (say, said) = oneshot::channel();
        let reader = session.spawn(read(Arc::clone(session), events, say));
        self.note_reader(reader);
        let endpoint = timeout(ENDPOINT_WAIT, said).await;
        let Ok(Ok(endpoint)) = endpoint else {
            self.end();
            return Err(session.broken("did not say where messages go"));
        };
        let Some(target) = self.own_target(session, &endpoint) else {
            self.end();
            return Err(session.broken("wants messages to be sent to another place than itself"));
        };
        let _ = self.endpoint.set(target);
        self.used.store(true, Ordering::Release);
        Ok(())
    }

    /// Sends a request, whose response arrives on the session's stream.
    pub(super) async fn request(
        &self,
        session: &Arc<Session>,
        message: Bytes,
        of_client: &ClientHeaders,
    ) -> Result<(), RequestFailure> {
        if self.endpoint.get().is_none() {
            self.open(session).await?;
        }
        self.send(session, message, of_client).await
    }

    /// Sends any message to the address that the backend gave for messages.
    pub(super) async fn send(
        &self,
        session: &Session,
        message: Bytes,
        of_client: &ClientHeaders,
    ) -> Result<(), RequestFailure> {
        let mut headers = headers::of_post();
        session.add_of_client(&mut headers, of_client);
        session.legacy_headers(&mut headers);
        let request = BackendRequest {
            target: self.endpoint.get().cloned(),
            on_behalf_of: session.principal(),
            ..BackendRequest::new(Method::POST, headers, message)
        };
        let response = session.backend().send(request).await;
        let response = response.map_err(|error| session.not_sent(&error))?;
        match response.status {
            status if status.is_success() => Ok(()),
            StatusCode::NOT_FOUND => Err(session.session_is_gone()),
            status => Err(session.refused(status, &response.headers)),
        }
    }

    /// Ends the stream, and with it the session.
    pub(super) fn end(&self) {
        let reader = self
            .reader
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(reader) = reader {
            reader.abort();
        }
    }

    fn note_reader(&self, reader: AbortHandle) {
        let mut place = self.reader.lock().unwrap_or_else(PoisonError::into_inner);
        *place = Some(reader);
    }

    /// Path and query of the address for messages; `None` if the address is not at the backend itself, since messages must not be
    /// sent to another host.
    fn own_target(&self, session: &Session, endpoint: &str) -> Option<String> {
        let backends = &session.server.spec.backends;
        let own = backends
            .iter()
            .find(|it| it.id == *session.backend().id())?;
        let authority = match own.backend.host {
            Host::Unix(_) => None,
            _ => Some((own.backend.tls, own.backend.authority())),
        };
        target(endpoint, own.backend.path(), authority)
    }
}

/// Resolves the address for messages. `endpoint` may be relative to `base`; `own` is the origin of the backend (true for HTTPS,
/// and the authority). `None` if the address is at another origin.
fn target(endpoint: &str, base: &str, own: Option<(bool, String)>) -> Option<String> {
    let endpoint = endpoint.trim();
    let plain = endpoint
        .bytes()
        .all(|byte| byte.is_ascii_graphic() && byte != b'\\');
    if endpoint.is_empty() || endpoint.len() > ENDPOINT_MAX || !plain || endpoint.contains('#') {
        return None;
    }
    if endpoint.starts_with("//") {
        return None;
    }
    if endpoint.starts_with('/') {
        return Some(endpoint.to_owned());
    }
    if let Some((scheme, rest)) = endpoint.split_once("://")
        && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric())
    {
        let (tls, own) = own?;
        let wanted = if tls { "https" } else { "http" };
        let at = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, target) = rest.split_at(at);
        let default = if tls { ":443" } else { ":80" };
        let authority = authority.strip_suffix(default).unwrap_or(authority);
        let same = scheme.eq_ignore_ascii_case(wanted) && authority.eq_ignore_ascii_case(&own);
        return same.then(|| match target.starts_with('/') {
            true => target.to_owned(),
            false => format!("/{target}"),
        });
    }
    if endpoint.starts_with('?') {
        return Some(format!("{base}{endpoint}"));
    }
    // An address with a scheme but no host, such as `javascript:`, is refused.
    let first = endpoint.split(['/', '?']).next().unwrap_or_default();
    if first.contains(':') {
        return None;
    }
    let folder = base.rfind('/').map_or("/", |at| &base[..=at]);
    Some(format!("{folder}{endpoint}"))
}

/// Reads the stream until the session ends. The address for messages, which is the first event, is sent to `say`.
async fn read(session: Arc<Session>, mut events: EventReader, say: oneshot::Sender<String>) {
    let mut say = Some(say);
    while let Ok(event) = events.next().await {
        match (&event, say.take()) {
            (
                SseEvent {
                    name: Some(name),
                    data: Data::Whole(data),
                    ..
                },
                Some(say),
            ) if name == "endpoint" => {
                let _ = say.send(String::from_utf8_lossy(data).into_owned());
            }
            (_, waiting) => {
                say = waiting;
                take(&session, None, event);
            }
        }
    }
    session.note_lost();
    session.incoming.close(LinkEnd::Disconnected);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_of_messages_is_only_taken_where_it_is_at_the_backend_itself() {
        let own = || Some((false, "a:8080".to_owned()));
        for (endpoint, expected) in [
            ("/messages?session_id=1", Some("/messages?session_id=1")),
            ("messages?s=1", Some("/mcp/messages?s=1")),
            ("?s=1", Some("/mcp/sse?s=1")),
            ("http://a:8080/m", Some("/m")),
            ("HTTP://A:8080?x=1", Some("/?x=1")),
            ("http://a/m", None),
            ("https://a:8080/m", None),
            ("http://evil/m", None),
            ("http://a:8080@evil/m", None),
            ("//evil/m", None),
            ("/\\evil", None),
            ("/a b", None),
            ("/a\r\nX: 1", None),
            ("/a#b", None),
            ("javascript:alert(1)", None),
            ("", None),
        ] {
            let found = target(endpoint, "/mcp/sse", own());
            assert_eq!(found.as_deref(), expected, "{endpoint}");
        }
        let encrypted = || Some((true, "a".to_owned()));
        assert_eq!(
            target("https://a:443/m", "/", encrypted()).as_deref(),
            Some("/m")
        );
        assert_eq!(target("http://localhost/m", "/", None), None);
    }
}
