//! The listeners, in front of Pingora's proxy: limits the cost of a connection before its first request and between requests.
//!
//! ```text
//! accept ─▶ counted ─▶ TLS handshake ─▶ head buffered ─▶ Pingora's phases ─▶ kept, or closed
//! (service)  (connections)                (head)           (gateway)
//!                       └──────────── one time limit each, one timer for all ────────────┘
//! ```
//!
//! Pingora limits each single read of a request's head, but not the time for the complete head, and its size only at a megabyte.
//! So a head of HTTP/1 is buffered here and passed to Pingora when it is complete. HTTP/2 connections are handled by Pingora
//! after the handshake. Only the wait for their first request is limited here, and while no request is being answered such a
//! connection may be closed to make room for another.

mod head;
mod proxy_protocol;
mod service;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use async_trait::async_trait;
use http::request::Parts;
use pingora_core::apps::{HttpServerApp, HttpServerOptions, ReusedHttpStream, ServerApp};
use pingora_core::listeners::tls::Acceptor;
use pingora_core::protocols::http::ServerSession;
use pingora_core::protocols::http::v2::server::H2Options;
use pingora_core::protocols::l4::socket::SocketAddr as LocalAddress;
use pingora_core::protocols::{ALPN, Ssl, Stream};
use pingora_core::server::ShutdownWatch;
use pingora_proxy::HttpProxy;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};
use tooldock_filters::{ErrorShape, Rejection};

use self::head::{Head, HeadOutcome, HeadRefusal};
use self::proxy_protocol::NoHeader;
pub(crate) use self::service::{EdgeService, Endpoint, RuntimeCollector};
use crate::access_log::AccessLog;
use crate::connection::{
    Carrier, Chunks, ConnectionLimits, Connections, LINGER, NO_CLIENT_PORT, OpenConnection, Socket,
    Wire, of_connection, with_rest,
};
use crate::gateway::Gateway;
use crate::logging::LogLimit;
use crate::metrics::EdgeMetrics;
use crate::request_id::RequestIds;
use crate::respond;
use crate::rules::{self, Rules};
use crate::tls::TlsConnection;

/// A connection that was just accepted.
pub(crate) struct AcceptedConnection {
    socket: Socket,
    peer: SocketAddr,
    /// The address of the listener that accepted the connection.
    address: Arc<LocalAddress>,
    /// True if the connection must begin with a PROXY protocol header.
    proxy_protocol: bool,
}

/// Pingora's proxy, with the connection limits, rules and metrics of its listeners.
pub(crate) struct Edge {
    pub(crate) proxy: Arc<HttpProxy<Gateway>>,
    pub(crate) limits: Arc<ArcSwap<ConnectionLimits>>,
    /// The rules for requests; here they name the trusted proxies.
    pub(crate) rules: Arc<ArcSwap<Rules>>,
    pub(crate) metrics: Arc<EdgeMetrics>,
    pub(crate) request_ids: Arc<RequestIds>,
    pub(crate) access_log: Option<AccessLog>,
    /// Limits the rate of warnings about failed TLS handshakes. Set for the address for other replicas; `None` for listeners of
    /// clients, where failed handshakes are common and not warned about.
    pub(crate) handshake_warnings: Option<LogLimit>,
}

/// Handles requests of HTTP/2 connections, for which Pingora calls this trait. Requests of HTTP/1 are handled in `Listening`.
#[async_trait]
impl HttpServerApp for Edge {
    async fn process_new_http(
        self: &Arc<Self>,
        session: ServerSession,
        shutdown: &ShutdownWatch,
    ) -> Option<ReusedHttpStream> {
        let digest = session
            .digest()
            .and_then(|digest| digest.ssl_digest.as_ref());
        let connection = digest.and_then(|tls| tls.extension.get::<TlsConnection>());
        // The guard marks the connection as busy until the request has ended, including a long stream.
        let _running = connection.map(|it| it.request_arrived(&self.limits.load()));
        with_rest(self.proxy.process_new_http(session, shutdown)).await
    }

    fn h2_options(&self) -> Option<H2Options> {
        self.proxy.h2_options()
    }

    fn server_options(&self) -> Option<&HttpServerOptions> {
        self.proxy.server_options()
    }
}

/// An [`Edge`] with its open connections. The maximum number of connections applies to all its listeners together.
pub(crate) struct Listening {
    edge: Arc<Edge>,
    connections: Arc<Connections>,
    handed_over: watch::Receiver<bool>,
}

impl Listening {
    /// Creates the listening side of an edge. `handed_over` is true once a new process has replaced this one; idle connections
    /// then stay open for a short time.
    pub(crate) fn new(
        edge: Edge,
        max_connections: usize,
        handed_over: watch::Receiver<bool>,
    ) -> Arc<Self> {
        let gauge = edge.metrics.connections.clone();
        Arc::new(Self {
            edge: Arc::new(edge),
            connections: Connections::new(max_connections, gauge),
            handed_over,
        })
    }

    /// Serves a connection that was just accepted, in a separate task.
    fn take(
        self: Arc<Self>,
        accepted: AcceptedConnection,
        tls: Option<Arc<Acceptor>>,
        shutdown: ShutdownWatch,
    ) {
        let limits = **self.edge.limits.load();
        let Some(open) = self.connections.admit(&limits, accepted.peer.ip()) else {
            // The connection is closed without a response: the maximum number of connections is to save the cost of serving it.
            self.edge.metrics.refused("connections");
            return;
        };
        let open = Arc::new(open);
        tokio::spawn(async move {
            let served = self.serve(accepted, tls, &open, &shutdown);
            let served = of_connection(Arc::clone(&open), served);
            self.until_it_is_late(&open, served).await;
        });
    }

    /// Waits briefly for other connections to close, if there are so many that the next one would be refused.
    async fn room_for_next(&self) {
        self.connections.room_for_next().await;
    }

    /// Returns true if another connection must be closed to serve the next one.
    fn is_full(&self) -> bool {
        self.connections.is_full()
    }

    /// Closes a connection that waits for a request, if there is one.
    fn make_room(&self) {
        self.connections.make_room();
    }

    /// Closes the connections without a request, after the listeners have stopped accepting connections. If a new process has
    /// replaced this one, idle connections stay open for a short time first: their clients do not expect the end, and may just be
    /// sending a request.
    async fn stopped(&self) {
        if *self.handed_over.borrow() {
            let _ = timeout(LINGER, self.connections.all_closed()).await;
        }
        self.edge.proxy.http_cleanup().await;
        self.connections.dismiss_waiting();
    }

    async fn serve(
        &self,
        mut accepted: AcceptedConnection,
        tls: Option<Arc<Acceptor>>,
        open: &OpenConnection,
        shutdown: &ShutdownWatch,
    ) {
        // The future is boxed, since it is large and would be part of every connection's future.
        if accepted.proxy_protocol {
            if !Box::pin(self.introduced(&mut accepted)).await {
                return;
            }
            open.comes_from(accepted.peer.ip());
        }
        // The check is omitted at the address for other replicas: plain requests there are reported as failed handshakes.
        let is_plain = tls.is_some()
            && self.edge.handshake_warnings.is_none()
            && accepted.socket.begins_as_text().await;
        let write_limit = self.edge.limits.load().write;
        let wire = Wire::accepted(
            accepted.socket,
            accepted.peer,
            &accepted.address,
            write_limit,
        );
        let Some(tls) = tls else {
            return self.http1(Box::new(wire), open, shutdown).await;
        };
        // The future is boxed, like that of the handshake below, since it is large and would be part of every connection's
        // future.
        if is_plain {
            return Box::pin(self.refuse_plain(wire, open)).await;
        }
        let tls = match Box::pin(tls.tls_handshake(wire)).await {
            Ok(tls) => tls,
            Err(error) => {
                self.edge.metrics.refused("tls_handshake");
                let limit = self.edge.handshake_warnings.as_ref();
                match limit.is_some_and(LogLimit::allows) {
                    true => tracing::warn!(
                        peer = %accepted.peer,
                        "a TLS handshake at replicas.address failed: {error}; a replica that connects needs a certificate of \
                         replicas.tls.ca"
                    ),
                    false => tracing::debug!(%error, "a TLS handshake failed"),
                }
                return;
            }
        };
        let limits = **self.edge.limits.load();
        let wire = Box::new(Wire::encrypted(tls, limits.write));
        if !matches!(wire.selected_alpn_proto(), Some(ALPN::H2)) {
            return self.http1(wire, open, shutdown).await;
        }
        open.waiting.awaited(&limits, Instant::now());
        let wire: Stream = wire;
        ServerApp::process_new(&self.edge, wire, shutdown).await;
    }

    /// Reads the client's address from the PROXY protocol header at the beginning of a connection. Returns false if the
    /// connection must be closed: its peer is not a trusted proxy, or has sent no valid header.
    ///
    /// The header and the TLS handshake must be complete within the time limit of the first request's head, see
    /// [`Listening::until_it_is_late`].
    async fn introduced(&self, accepted: &mut AcceptedConnection) -> bool {
        let peer = accepted.peer;
        if !self.edge.rules.load().admission.trusts_proxy(peer.ip()) {
            self.edge.metrics.refused("proxy_protocol_untrusted");
            tracing::debug!(%peer, "a connection is closed: its peer is not in admission.trusted_proxies");
            return false;
        }
        match proxy_protocol::read(&mut accepted.socket).await {
            Ok(Some(client)) => accepted.peer = client,
            // The header names no client, so the proxy's own address is used: headers such as `X-Forwarded-For` may come from the
            // client.
            Ok(None) => accepted.peer.set_port(NO_CLIENT_PORT),
            // The peer has sent nothing: it only tested whether the port is open, as health checks do.
            Err(NoHeader::Ended { read: 0 }) => return false,
            Err(error) => {
                self.edge.metrics.refused("proxy_protocol_malformed");
                tracing::debug!(%peer, %error, "a connection is closed");
                return false;
            }
        }
        true
    }

    /// Serves the requests of an HTTP/1 connection, one after the other.
    async fn http1<C: Carrier>(
        &self,
        mut wire: Box<Wire<C>>,
        open: &OpenConnection,
        shutdown: &ShutdownWatch,
    ) {
        loop {
            let limits = **self.edge.limits.load();
            open.waiting.awaited(&limits, Instant::now());
            let begun = || open.waiting.begun(&limits, Instant::now());
            let gathered = head::gather(&mut wire, limits.header_bytes, begun).await;
            open.waiting.seen();
            let Head { bytes, end, coded } = match gathered {
                HeadOutcome::Whole(head) => head,
                HeadOutcome::Refused(refusal) => return self.refuse(wire, refusal).await,
                // The client has disconnected, so that no response is possible.
                HeadOutcome::Closed => return,
            };
            let mut chunks = coded.then(Chunks::default);
            if let Some(chunks) = &mut chunks
                && chunks.follow(&bytes[end..]).is_err()
            {
                return self.refuse(wire, HeadRefusal::of_body(bytes)).await;
            }
            wire.follow(chunks);
            let mut session = ServerSession::new_http1(wire);
            // Pingora gets the bytes that were already read here as the first ones of the request.
            session.set_pipelined_prefix(bytes);
            let ended = self.edge.proxy.process_new_http(session, shutdown).await;
            let Some((stream, _)) = ended.map(ReusedHttpStream::consume) else {
                return;
            };
            let Ok(same) = stream.into_any().downcast() else {
                return;
            };
            wire = same;
        }
    }

    /// Reads from a client that did not begin a TLS handshake at an address that requires TLS. A request of plain HTTP/1 gets an
    /// error response; anything else counts as a failed handshake.
    async fn refuse_plain(&self, mut wire: Wire<Socket>, open: &OpenConnection) {
        let limit = self.edge.limits.load().header_bytes;
        let gathered = head::gather(&mut wire, limit, || {}).await;
        open.waiting.seen();
        match gathered {
            HeadOutcome::Whole(head) => {
                let refusal = HeadRefusal::of_plain(head.bytes);
                self.refuse(Box::new(wire), refusal).await;
            }
            HeadOutcome::Refused(_) | HeadOutcome::Closed => {
                self.edge.metrics.refused("tls_handshake");
            }
        }
    }

    /// Responds to a request whose head is refused and is not passed to Pingora.
    async fn refuse(&self, stream: Stream, refusal: HeadRefusal) {
        let mut rejection = refusal.rejection();
        self.edge.metrics.refused(rejection.code());
        let request_id = self.edge.request_ids.of(None);
        let parts = refusal.parts();
        self.note(&stream, &parts, &rejection, &request_id);
        tracing::debug!(%request_id, code = rejection.code(), message = %rejection.message, "refused");
        rejection.shape = ErrorShape::of_path(parts.uri.path());
        let rules = self.edge.rules.load_full();
        let socket = stream.get_socket_digest();
        let local = socket.as_ref().and_then(|socket| socket.local_addr());
        let listener = rules::listener_at(&rules.listeners, local);
        let edits = listener.and_then(|listener| listener.headers.as_ref());
        let edits = edits.map(|edits| &edits.response);
        respond::refuse_before_request(stream, &rejection, &request_id, edits).await;
    }

    /// Writes the refusal of a head to the access log.
    fn note(&self, stream: &Stream, parts: &Parts, rejection: &Rejection, request_id: &Arc<str>) {
        let Some(log) = &self.edge.access_log else {
            return;
        };
        let socket = stream.get_socket_digest();
        let peer = socket.as_ref().and_then(|socket| socket.peer_addr());
        let Some(peer) = peer.and_then(|peer| peer.as_inet()) else {
            return;
        };
        let mut logged = log.entry(parts, request_id, peer.ip());
        logged.entry.refused(rejection);
        logged.answered(rejection.status().as_u16(), 0, Duration::ZERO);
    }

    /// Serves a connection until it ends, its client misses a deadline, or it is closed to make room for another.
    ///
    /// A single timer serves all requests of the connection. It fires at least once in the time limit of a head, so that it is
    /// never too late for a deadline that was set meanwhile. A limit that a reload has shortened applies to the next deadline.
    async fn until_it_is_late(&self, open: &OpenConnection, served: impl Future<Output = ()>) {
        let header = || self.edge.limits.load().header;
        let waiting = &open.waiting;
        let mut served = std::pin::pin!(served);
        let mut timer = std::pin::pin!(tokio::time::sleep(header()));
        let mut looked = false;
        loop {
            // Three events end the wait: the connection has ended; its closing was requested; the client's deadline has to be
            // checked.
            tokio::select! {
                biased;
                () = served.as_mut() => return,
                () = waiting.dismissal() => {
                    if std::mem::replace(&mut looked, true) {
                        return;
                    }
                    // Another poll lets the connection read a request that the client has already sent; such a request is
                    // answered.
                    tokio::task::yield_now().await;
                    continue;
                }
                () = timer.as_mut() => {}
            }
            let now = Instant::now();
            let look_again = now + header();
            match waiting.due() {
                None => timer.as_mut().reset(look_again),
                Some(due) if due > now => timer.as_mut().reset(due.min(look_again)),
                Some(_) => {
                    if waiting.is_overdue_request() {
                        self.edge.metrics.refused("header_timeout");
                    }
                    return;
                }
            }
        }
    }
}
