//! The listening side around Pingora's proxy: how many connections there may be, and how long a request head may take.
//!
//! Pingora bounds each read of a head but never the head as a whole, so a client that sends one byte every few seconds
//! keeps its connection for ever. [`Edge`] puts one deadline around every request until its head has been seen: exact for
//! the first request of a connection, idle time plus head time for later ones, since a later request starts waiting the
//! moment the one before has ended.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use async_trait::async_trait;
use pingora_core::apps::{HttpServerApp, HttpServerOptions, ReusedHttpStream, ServerApp};
use pingora_core::protocols::http::ServerSession;
use pingora_core::protocols::http::v2::server::H2Options;
use pingora_core::protocols::{ALPN, Stream};
use pingora_core::server::{ListenFds, ShutdownWatch};
use pingora_core::services::Service as PingoraService;
use pingora_core::services::listening::Service;
use pingora_proxy::HttpProxy;
use pingora_timeout::fast_timeout::fast_timeout;
use prometheus::IntGauge;
use tokio::runtime::Handle;
use tooldock_workers::runtimes::Runtimes;

use crate::gateway::Gateway;
use crate::metrics::EdgeMetrics;
use crate::tls::FirstRequest;

/// What is left of a request when Pingora has let go of it.
type Rest = Pin<Box<dyn Future<Output = ()> + Send>>;

tokio::task_local! {
    static HEAD_SEEN: Arc<AtomicBool>;
    static CONNECTION: Arc<OpenConnection>;
    static REST: Arc<Mutex<Option<Rest>>>;
}

/// Notes that the head of the current request is complete, which ends its deadline.
///
/// Called from `Gateway::new_ctx`, the first thing Pingora does after it has read a head.
pub(crate) fn head_seen() {
    let _ = HEAD_SEEN.try_with(|seen| seen.store(true, Ordering::Release));
}

/// The connection of the current request, to be held by what outlives the request. None for HTTP/2, whose connections
/// outlive their requests anyway.
pub(crate) fn open_connection() -> Option<Arc<OpenConnection>> {
    CONNECTION.try_with(Arc::clone).ok()
}

/// Runs `rest` in the task of the current HTTP/2 request, after Pingora has dropped everything it held for it.
///
/// In that task, because Pingora closes a connection as idle when the tasks of its requests have ended.
pub(crate) fn afterwards(rest: impl Future<Output = ()> + Send + 'static) {
    let mut rest: Option<Rest> = Some(Box::pin(rest));
    let _ = REST.try_with(|slot| {
        *slot.lock().unwrap_or_else(PoisonError::into_inner) = rest.take();
    });
    // Every HTTP/2 request has the slot; without one the stream would merely be cut by the idle time.
    if let Some(rest) = rest {
        tokio::spawn(rest);
    }
}

/// Time limits of a request head; swapped on reload.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Deadlines {
    /// From the first byte to the last one of a head.
    pub(crate) header: Duration,
    /// How long a connection may idle between two requests.
    pub(crate) keepalive: Duration,
}

/// Pingora's proxy under a head deadline.
pub(crate) struct Edge {
    proxy: Arc<HttpProxy<Gateway>>,
    deadlines: Arc<ArcSwap<Deadlines>>,
    metrics: Arc<EdgeMetrics>,
}

impl Edge {
    pub(crate) fn new(
        proxy: HttpProxy<Gateway>,
        deadlines: Arc<ArcSwap<Deadlines>>,
        metrics: Arc<EdgeMetrics>,
    ) -> Self {
        Self {
            proxy: Arc::new(proxy),
            deadlines,
            metrics,
        }
    }
}

#[async_trait]
impl HttpServerApp for Edge {
    async fn process_new_http(
        self: &Arc<Self>,
        mut session: ServerSession,
        shutdown: &ShutdownWatch,
    ) -> Option<ReusedHttpStream> {
        // An HTTP/2 stream comes with its head; only the connection can idle, and `h2_idle_timeout` bounds that.
        if session.is_http2() {
            let digest = session
                .digest()
                .and_then(|digest| digest.ssl_digest.as_ref());
            if let Some(first) = digest.and_then(|tls| tls.extension.get::<FirstRequest>()) {
                first.0.store(true, Ordering::Release);
            }
            let slot = Arc::new(Mutex::new(None));
            let ended = REST
                .scope(
                    Arc::clone(&slot),
                    self.proxy.process_new_http(session, shutdown),
                )
                .await;
            let rest = slot.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(rest) = rest {
                rest.await;
            }
            return ended;
        }
        let reused = session.take_connection_user_context().is_some();
        let Deadlines { header, keepalive } = **self.deadlines.load();
        let deadline = if reused { keepalive + header } else { header };

        let seen = Arc::new(AtomicBool::new(false));
        let request = HEAD_SEEN.scope(
            Arc::clone(&seen),
            self.proxy.process_new_http(session, shutdown),
        );
        // Not polled again after it has ended: each arm leaves this function or awaits it exactly once more.
        let mut request = std::pin::pin!(request);
        match fast_timeout(deadline, request.as_mut()).await {
            Ok(reusable) => reusable,
            Err(_) if seen.load(Ordering::Acquire) => request.await,
            Err(_) => {
                if !reused {
                    self.metrics.refused("header_timeout");
                }
                None
            }
        }
    }

    fn h2_options(&self) -> Option<H2Options> {
        self.proxy.h2_options()
    }

    fn server_options(&self) -> Option<&HttpServerOptions> {
        self.proxy.server_options()
    }

    async fn http_cleanup(&self) {
        self.proxy.http_cleanup().await;
    }
}

/// The edge under a cap on open connections.
pub(crate) struct Listening {
    edge: Arc<Edge>,
    open: Arc<AtomicUsize>,
    max: usize,
}

impl Listening {
    pub(crate) fn new(edge: Edge, max_connections: usize) -> Self {
        Self {
            edge: Arc::new(edge),
            open: Arc::default(),
            max: max_connections,
        }
    }
}

#[async_trait]
impl ServerApp for Listening {
    async fn process_new(
        self: &Arc<Self>,
        stream: Stream,
        shutdown: &ShutdownWatch,
    ) -> Option<Stream> {
        let open = OpenConnection::new(self);
        if open.number > self.max {
            // Closed without a word: an answer would cost what the cap is there to save.
            self.edge.metrics.refused("connections");
            return None;
        }
        let tls = stream.get_ssl_digest();
        if !matches!(stream.selected_alpn_proto(), Some(ALPN::H2)) {
            let requests = self.edge.process_new(stream, shutdown);
            return CONNECTION.scope(Arc::new(open), requests).await;
        }
        // Neither the HTTP/2 handshake nor the wait for the first request has a limit of its own.
        let header = self.edge.deadlines.load().header;
        let mut connection = std::pin::pin!(self.edge.process_new(stream, shutdown));
        if let Ok(ended) = fast_timeout(header, connection.as_mut()).await {
            return ended;
        }
        let used = tls
            .as_ref()
            .and_then(|tls| tls.extension.get::<FirstRequest>())
            .is_some_and(|first| first.0.load(Ordering::Acquire));
        if used {
            return connection.await;
        }
        self.edge.metrics.refused("header_timeout");
        None
    }

    async fn cleanup(&self) {
        ServerApp::cleanup(&*self.edge).await;
    }
}

/// Counts one connection for as long as it lives.
pub(crate) struct OpenConnection {
    open: Arc<AtomicUsize>,
    gauge: IntGauge,
    number: usize,
}

impl OpenConnection {
    fn new(listening: &Listening) -> Self {
        let gauge = listening.edge.metrics.connections.clone();
        gauge.inc();
        Self {
            number: listening.open.fetch_add(1, Ordering::Relaxed) + 1,
            open: Arc::clone(&listening.open),
            gauge,
        }
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.open.fetch_sub(1, Ordering::Relaxed);
        self.gauge.dec();
    }
}

/// How Pingora runs the listeners, with the two things it does not do: tell us its runtimes, and let one listener
/// outlive the drain.
pub(crate) struct EdgeService {
    inner: Service<Listening>,
    /// Filled from inside the service, where its runtimes can be seen.
    runtimes: Option<Arc<Runtimes>>,
    /// Used in place of Pingora's shutdown watch, so that `/ready` can be asked during the drain.
    lifetime: Option<ShutdownWatch>,
}

impl EdgeService {
    /// A service that stops with the gateway and whose runtimes carry the message I/O.
    pub(crate) fn traffic(inner: Service<Listening>, runtimes: Arc<Runtimes>) -> Self {
        Self {
            inner,
            runtimes: Some(runtimes),
            lifetime: None,
        }
    }

    /// A service that answers until the process ends.
    pub(crate) fn until_exit(inner: Service<Listening>, lifetime: ShutdownWatch) -> Self {
        Self {
            inner,
            runtimes: None,
            lifetime: Some(lifetime),
        }
    }
}

#[async_trait]
impl PingoraService for EdgeService {
    async fn start_service(
        &mut self,
        fds: Option<ListenFds>,
        shutdown: ShutdownWatch,
        listeners_per_fd: usize,
    ) {
        if let Some(runtimes) = &self.runtimes {
            runtimes.provide(own_runtimes(listeners_per_fd));
        }
        let shutdown = self.lifetime.clone().unwrap_or(shutdown);
        self.inner
            .start_service(fds, shutdown, listeners_per_fd)
            .await;
    }

    fn name(&self) -> &str {
        PingoraService::name(&self.inner)
    }

    fn threads(&self) -> Option<usize> {
        PingoraService::threads(&self.inner)
    }

    fn listen_addresses(&self) -> Option<Vec<String>> {
        PingoraService::listen_addresses(&self.inner)
    }
}

/// The runtimes of the service this is called in.
///
/// Without work stealing Pingora has one runtime per thread and offers only a random one at a time, so they are drawn
/// until every one has been seen. The bound makes a miss possible in theory and harmless in fact: message I/O would use
/// fewer threads.
fn own_runtimes(expected: usize) -> Vec<Handle> {
    let mut handles: Vec<Handle> = Vec::new();
    for _ in 0..expected * 200 {
        let handle = pingora_runtime::current_handle();
        if handles.iter().all(|known| known.id() != handle.id()) {
            handles.push(handle);
        }
        if handles.len() >= expected {
            break;
        }
    }
    handles
}
