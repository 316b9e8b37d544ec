//! Sends a request to a backend: opens or reuses a connection, writes the request, and reads the head and the body of the
//! response.

use std::io::IoSlice;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use bytes::{BufMut as _, BytesMut};
use http::{HeaderName, HeaderValue, Method, StatusCode, header};
use pingora_core::protocols::Stream;
use tokio::io::AsyncWriteExt as _;
use tokio::time::{Instant, timeout, timeout_at};
use tooldock_upstream::http_client::{
    BackendRequest, BackendResponse, BodyError, ResponseBody, SendError, SendErrorKind,
};

use super::coding::{self, BodyDecoder};
use super::failure::{failed, no_head};
use super::headers::{self, Own};
use super::pool::{BackendInFlight, PoolMember};
use super::response::{ReadError, Response};
use crate::timeout::fast_timeout;

/// Time limit for reading the response of a backend that closed its connection while the request's body was being written.
const EARLY_ANSWER: Duration = Duration::from_millis(200);

/// Minimum time for which a standing stream (a stream that belongs to no request) may be silent, regardless of `timeouts.idle`.
/// Servers without keep-alive messages send data on it only when their tools change.
const STANDING_SILENCE: Duration = Duration::from_secs(60 * 60);

/// Maximum size in bytes of a body that is copied behind its head on a TLS connection, so that both fit into one TLS record.
const ONE_RECORD: usize = 16 * 1024;
/// Maximum size in bytes of a body that is copied behind its head on a connection without TLS. Larger bodies are passed to the
/// system call as a separate slice, which costs about as much as copying this number of bytes.
const COPIED: usize = 2 * 1024;

/// The outcome of a request, which is reported once to the backend's health and metrics.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The response's body was read to its end, or its reader stopped reading. Contains the response's status.
    Status(StatusCode),
    /// The connection ended before the end of the response.
    Cut,
    /// The response's body did not arrive within its time limit.
    BodyTimeout,
}

/// A connection on which a request was written and whose response is being read.
struct BackendConnection {
    response: Response,
    address: Option<SocketAddr>,
    /// True if the complete request was written. If false, the connection cannot be reused: the backend would read the next
    /// request as the rest of this one.
    whole: bool,
}

/// Sends a request to a backend and waits for the head of the response. `target` is the path and query of the request.
pub(super) async fn send(
    member: &Arc<PoolMember>,
    request: &BackendRequest,
    target: &str,
    own: &Own,
    in_flight: BackendInFlight,
) -> Result<BackendResponse, SendError> {
    let (id, server) = (&member.spec.id, &member.server);
    let timeouts = server.spec.timeouts;
    let short = goes_with_head(member, &request.body);
    let head = head(member, request, target, own, short)?;
    let behind = if short { &[][..] } else { &request.body };
    let begun = Instant::now();
    let (mut connection, early) = loop {
        let mut open = connection(member).await?;
        if !request.mark_sending() {
            let what = "the request was given up before it was sent";
            return Err(failed(id, SendErrorKind::GivenUp, true, what));
        }
        let reused = open.reused;
        // Nearly every write completes immediately. `fast_timeout` starts a timer only if one does not.
        let written = {
            let written = pin!(write(&mut open.stream, &head, behind));
            fast_timeout(timeouts.head, written).await
        };
        match written {
            Ok(Ok(())) => break (BackendConnection::of(open), None),
            // The backend has closed an idle connection. It cannot have read a complete request, so the loop tries another
            // connection.
            Ok(Err(_)) if reused && short => {}
            Ok(Err(WriteFailure::Head)) if reused => {}
            Ok(Err(WriteFailure::Head)) => {
                let what = "the connection ended before the request was written";
                return Err(failed(id, SendErrorKind::Closed, true, what));
            }
            Ok(Err(WriteFailure::Body)) => {
                // The backend may have sent a response without reading the complete body.
                let mut connection = BackendConnection::of(open);
                let early = timeout(EARLY_ANSWER, connection.response.read_head()).await;
                if let Ok(Ok(head)) = early {
                    connection.whole = false;
                    break (connection, Some(head));
                }
                if !reused {
                    let what = "the connection ended while the request was written";
                    return Err(failed(id, SendErrorKind::Closed, false, what));
                }
            }
            Err(_) => return Err(no_head(id, timeouts.head)),
        }
    };
    let response = match early {
        Some(response) => response,
        None => match timeout(timeouts.head, connection.response.read_head()).await {
            Ok(Ok(response)) => response,
            Ok(Err(error)) => return Err(unreadable(member, error)),
            Err(_) => return Err(no_head(id, timeouts.head)),
        },
    };
    let status = response.status;
    let is_framed = !connection.response.ends_with_connection();
    let mut headers = headers::down(response.headers);
    let streams = request.standing || is_event_stream(&headers);
    let mut decoding = Decoding::None;
    if headers.contains_key(header::CONTENT_ENCODING) {
        let accept = request.headers.iter();
        let accept = accept.filter(|(name, _)| *name == header::ACCEPT_ENCODING);
        decoding = match coding::decoder(&mut headers, accept.map(|(_, value)| value)) {
            Ok(decoder) => decoder.map_or(Decoding::None, Decoding::By),
            Err(error) => {
                headers.remove(header::CONTENT_ENCODING);
                Decoding::Impossible(error)
            }
        };
    }
    let mut body = Body {
        is_framed,
        decoding,
        beginning: Some(Bytes::new()),
        connection: Some(connection),
        member: Arc::clone(member),
        status,
        deadline: (!streams).then(|| begun + timeouts.call),
        standing: request.standing,
        in_flight: Some(in_flight),
    };
    body.release_if_done();
    Ok(BackendResponse {
        backend: id.clone(),
        status,
        headers,
        body: Box::new(body),
    })
}

pub(super) fn is_event_stream(headers: &http::HeaderMap) -> bool {
    let value = headers.get(header::CONTENT_TYPE);
    let value = value.and_then(|it| it.to_str().ok()).unwrap_or_default();
    let essence = value.split(';').next().unwrap_or_default().trim();
    essence.eq_ignore_ascii_case("text/event-stream")
}

/// Path and query of a request. If the request has none, those of the configured URL are used.
pub(super) fn target<'a>(member: &'a PoolMember, request: &'a BackendRequest) -> &'a str {
    let target = request.target.as_ref();
    target.unwrap_or(&member.spec.backend.target)
}

/// The bytes of the request's head as it is sent, followed by the body if `short` is true.
fn head(
    member: &PoolMember,
    request: &BackendRequest,
    target: &str,
    own: &Own,
    short: bool,
) -> Result<Bytes, SendError> {
    if !target.starts_with('/') || !target.bytes().all(|byte| byte.is_ascii_graphic()) {
        let what = "the request's path is no path";
        return Err(failed(&member.spec.id, SendErrorKind::Request, true, what));
    }
    let has_body = !request.body.is_empty() || request.method == Method::POST;
    let length = has_body.then_some(request.body.len());
    let mut head = BytesMut::with_capacity(1024 + if short { request.body.len() } else { 0 });
    head.put_slice(request.method.as_str().as_bytes());
    head.put_u8(b' ');
    head.put_slice(target.as_bytes());
    head.put_slice(b" HTTP/1.1\r\n");
    // No line can be injected, because header names and values cannot contain a line end.
    let line = |name: &HeaderName, value: &[u8]| {
        head.put_slice(name.as_str().as_bytes());
        head.put_slice(b": ");
        head.put_slice(value);
        head.put_slice(b"\r\n");
    };
    let authority = &member.authority;
    let headers = &member.headers;
    headers.up(request.headers.iter(), own, authority, length, line);
    head.put_slice(b"\r\n");
    if short {
        head.put_slice(&request.body);
    }
    Ok(head.freeze())
}

fn goes_with_head(member: &PoolMember, body: &Bytes) -> bool {
    let most = if member.spec.backend.tls {
        ONE_RECORD
    } else {
        COPIED
    };
    body.len() <= most
}

/// A connection on which nothing of this request has been written yet.
struct OpenedConnection {
    stream: Stream,
    address: Option<SocketAddr>,
    reused: bool,
}

async fn connection(member: &PoolMember) -> Result<OpenedConnection, SendError> {
    let core = &member.core;
    let still_has = |address: &SocketAddr| core.addresses.still_resolves_to(address);
    let (reused, (stream, address)) = match core.idle.take(still_has) {
        Some(kept) => (true, kept),
        None => {
            let opening = core.connector.connect(
                &member.server,
                &member.spec,
                &core.addresses,
                &core.material,
            );
            // The future is boxed, because it resolves names and opens TLS and is therefore large. Requests on reused connections
            // do not need it.
            (false, Box::pin(opening).await?)
        }
    };
    Ok(OpenedConnection {
        stream,
        address,
        reused,
    })
}

impl BackendConnection {
    /// Creates the state of a connection on which the complete request has been written.
    fn of(open: OpenedConnection) -> Self {
        Self {
            response: Response::new(open.stream),
            address: open.address,
            whole: true,
        }
    }
}

/// The state of a request whose writing failed, by how much of it the backend may have received.
enum WriteFailure {
    /// Nothing was written: the kernel accepted no bytes, so the backend cannot have read a request.
    Head,
    /// Some bytes may have been written, but not the whole request. The connection cannot be used for another request.
    Body,
}

/// Writes head and body of a request in one system call. Pingora's own client would send the head separately, which costs
/// another system call on both sides.
async fn write(stream: &mut Stream, head: &[u8], body: &[u8]) -> Result<(), WriteFailure> {
    let parts = [IoSlice::new(head), IoSlice::new(body)];
    let taken = stream.write_vectored(&parts).await;
    let taken = taken.map_err(|_| WriteFailure::Head)?;
    let rest = async {
        stream.write_all(&head[taken.min(head.len())..]).await?;
        let of_body = taken.saturating_sub(head.len());
        stream.write_all(&body[of_body..]).await?;
        stream.flush().await
    };
    rest.await.map_err(|_| WriteFailure::Body)
}

fn unreadable(member: &PoolMember, error: ReadError) -> SendError {
    let (kind, what) = match error {
        ReadError::Malformed(what) => (SendErrorKind::Malformed, what),
        ReadError::Closed => (
            SendErrorKind::Closed,
            "the connection ended before a response came",
        ),
    };
    failed(&member.spec.id, kind, false, what)
}

/// The decoding that a response's body needs.
enum Decoding {
    /// The body is not compressed.
    None,
    By(Box<BodyDecoder>),
    /// The body cannot be decoded, because its coding is unknown or not supported. The body is not read.
    Impossible(BodyError),
}

/// A UTF-8 byte order mark. Some servers write it before their JSON (RFC 8259 §8.1).
pub(super) const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// The body of a response. If it is dropped before its end was read, the connection is closed.
struct Body {
    /// The connection from which the body is read. `None` after the end of the body.
    connection: Option<BackendConnection>,
    member: Arc<PoolMember>,
    status: StatusCode,
    /// True if the length or chunking in the response defines the end of the body; false if the connection's end does.
    is_framed: bool,
    decoding: Decoding,
    /// The first bytes of the body, stored until it is decided whether they are a byte order mark. `None` after that.
    beginning: Option<Bytes>,
    /// Time at which the complete body must have arrived. `None` for a stream, which only has a limit for silence.
    deadline: Option<Instant>,
    /// True for a stream that belongs to no request ([`BackendRequest::standing`]). Its silence is no failure of the backend.
    standing: bool,
    /// The request's entry among the backend's running requests. `None` after the outcome was reported.
    in_flight: Option<BackendInFlight>,
}

#[async_trait]
impl ResponseBody for Body {
    async fn chunk(&mut self) -> Result<Option<Bytes>, BodyError> {
        if self.beginning.is_none() && matches!(self.decoding, Decoding::None) {
            return self.received().await;
        }
        loop {
            let piece = self.decoded().await?;
            let Some(beginning) = self.beginning.take() else {
                return Ok(piece);
            };
            let Some(piece) = piece else {
                return Ok((!beginning.is_empty()).then_some(beginning));
            };
            let piece = match beginning.is_empty() {
                true => piece,
                false => [&beginning[..], &piece[..]].concat().into(),
            };
            if piece.len() < BYTE_ORDER_MARK.len() && BYTE_ORDER_MARK.starts_with(&piece) {
                self.beginning = Some(piece);
                continue;
            }
            if !piece.starts_with(BYTE_ORDER_MARK) {
                return Ok(Some(piece));
            }
            if let Decoding::By(decoder) = &mut self.decoding {
                decoder.forget_received();
            }
            if piece.len() > BYTE_ORDER_MARK.len() {
                return Ok(Some(piece.slice(BYTE_ORDER_MARK.len()..)));
            }
        }
    }

    fn is_over(&self) -> bool {
        let begun = self.beginning.as_ref().is_none_or(Bytes::is_empty);
        self.connection.is_none() && matches!(self.decoding, Decoding::None) && begun
    }

    fn may_be_cut(&self) -> bool {
        !self.is_framed && matches!(self.decoding, Decoding::None)
    }

    fn take_coded(&mut self) -> Option<(HeaderValue, Bytes)> {
        match &mut self.decoding {
            Decoding::By(decoder) => decoder.take_received(),
            Decoding::None | Decoding::Impossible(_) => None,
        }
    }
}

impl Body {
    /// Returns the next piece of the body after decoding it.
    async fn decoded(&mut self) -> Result<Option<Bytes>, BodyError> {
        loop {
            match &mut self.decoding {
                Decoding::None => {}
                Decoding::Impossible(error) => {
                    let error = *error;
                    self.end(Outcome::Status(self.status));
                    return Err(error);
                }
                Decoding::By(decoder) => match decoder.next() {
                    Ok(Some(piece)) => return Ok(Some(piece)),
                    Ok(None) => {}
                    Err(error) => {
                        self.end(Outcome::Status(self.status));
                        return Err(error);
                    }
                },
            }
            let received = self.received().await?;
            match (&mut self.decoding, received) {
                (Decoding::By(decoder), Some(piece)) => decoder.push(piece),
                (Decoding::By(decoder), None) if !decoder.is_complete() => {
                    return Err(BodyError::Cut);
                }
                (_, received) => return Ok(received),
            }
        }
    }

    /// Returns the next piece of the body as received, without decoding it.
    async fn received(&mut self) -> Result<Option<Bytes>, BodyError> {
        let timeouts = self.member.server.spec.timeouts;
        let Some(connection) = &mut self.connection else {
            return Ok(None);
        };
        let reading = connection.response.next();
        let (read, limit) = match self.deadline {
            Some(deadline) => (timeout_at(deadline, reading).await, timeouts.call),
            None => {
                let idle = match self.standing {
                    true => timeouts.idle.max(STANDING_SILENCE),
                    false => timeouts.idle,
                };
                (timeout(idle, reading).await, idle)
            }
        };
        match read {
            Ok(Ok(Some(piece))) => {
                self.release_if_done();
                Ok(Some(piece))
            }
            Ok(Ok(None)) => {
                self.release_if_done();
                Ok(None)
            }
            Ok(Err(_)) => {
                self.end(Outcome::Cut);
                Err(BodyError::Cut)
            }
            Err(_) => {
                self.end(match self.standing {
                    true => Outcome::Status(self.status),
                    false => Outcome::BodyTimeout,
                });
                Err(BodyError::Timeout(limit))
            }
        }
    }

    /// If the body is complete, reports the outcome and makes the connection available for other requests.
    fn release_if_done(&mut self) {
        let Some(connection) = self.connection.take_if(|it| it.response.is_done()) else {
            return;
        };
        self.end(Outcome::Status(self.status));
        if connection.whole
            && let Some((stream, patience)) = connection.response.into_idle()
        {
            self.member
                .core
                .idle
                .put(stream, connection.address, patience);
        }
    }

    fn end(&mut self, outcome: Outcome) {
        self.connection = None;
        if let Some(in_flight) = self.in_flight.take() {
            in_flight.ended(outcome);
        }
    }
}

impl Drop for Body {
    fn drop(&mut self) {
        self.end(Outcome::Status(self.status));
    }
}
