//! The listening side around Pingora's proxy: how many connections there may be, and how long a request head may take.
//!
//! Pingora bounds each read of a head but never the head as a whole, so a client that sends one byte every few seconds
//! keeps its connection for ever. [`Listening`] sets every request of HTTP/1 a deadline until its head has been seen: exact
//! for the first request of a connection, idle time plus head time for later ones, since a later request starts waiting
//! the moment the one before has ended.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
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
use tokio::time::Instant;
use tooldock_workers::runtimes::Runtimes;

use crate::gateway::Gateway;
use crate::metrics::EdgeMetrics;
use crate::tls::FirstRequest;

/// What is left of a request when Pingora has let go of it.
type Rest = Pin<Box<dyn Future<Output = ()> + Send>>;

tokio::task_local! {
    static CONNECTION: Arc<OpenConnection>;
    static REST: Arc<Mutex<Option<Rest>>>;
}

/// Notes that the head of the current request is complete, which ends its deadline.
///
/// Called from `Gateway::new_ctx`, the first thing Pingora does after it has read a head.
pub(crate) fn head_seen() {
    let _ = CONNECTION.try_with(|connection| connection.head.seen());
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

/// Pingora's proxy, and by when a request head has to be there.
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
        session: ServerSession,
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
        let deadlines = **self.deadlines.load();
        let _ =
            CONNECTION.try_with(|connection| connection.head.awaited(deadlines, Instant::now()));
        self.proxy.process_new_http(session, shutdown).await
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

/// The edge under a cap on open connections and a deadline for request heads. A clone is the same edge under the same cap.
#[derive(Clone)]
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
            let open = Arc::new(open);
            let requests = self.edge.process_new(stream, shutdown);
            let requests = CONNECTION.scope(Arc::clone(&open), requests);
            return self.until_a_head_is_late(&open.head, requests).await;
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

impl Listening {
    /// Serves a connection of HTTP/1 until it ends, or until the head of one of its requests is late.
    ///
    /// One timer for all of its requests. It goes off when the first head would be late, and from then on when the one
    /// that is awaited would be. Limits a reload has shortened are kept from the next time on.
    async fn until_a_head_is_late(
        &self,
        head: &HeadDeadline,
        requests: impl Future<Output = Option<Stream>>,
    ) -> Option<Stream> {
        let header = || self.edge.deadlines.load().header;
        let mut requests = std::pin::pin!(requests);
        let mut timer = std::pin::pin!(tokio::time::sleep(header()));
        loop {
            // Two arms: the connection is over; it is time to look whether a head is late.
            tokio::select! {
                biased;
                ended = requests.as_mut() => return ended,
                () = timer.as_mut() => {}
            }
            let now = Instant::now();
            match head.due() {
                // Whatever is awaited after this request is awaited for at least as long.
                None => timer.as_mut().reset(now + header()),
                Some(due) if due > now => timer.as_mut().reset(due),
                Some(_) => {
                    if head.is_first() {
                        self.edge.metrics.refused("header_timeout");
                    }
                    return None;
                }
            }
        }
    }
}

/// By when a connection's next request head has to be there.
struct HeadDeadline {
    opened: Instant,
    /// Milliseconds after `opened`, or [`HeadDeadline::SEEN`].
    due: AtomicU64,
    /// No head has been seen yet.
    first: AtomicBool,
}

impl HeadDeadline {
    /// A request is being answered.
    const SEEN: u64 = u64::MAX;

    fn new(now: Instant) -> Self {
        Self {
            opened: now,
            due: AtomicU64::new(Self::SEEN),
            first: AtomicBool::new(true),
        }
    }

    /// The head of a request is awaited from now on. Only the connection's own task calls this and [`Self::seen`].
    fn awaited(&self, limits: Deadlines, now: Instant) {
        let patience = if self.is_first() {
            limits.header
        } else {
            limits.keepalive + limits.header
        };
        let due = (now.saturating_duration_since(self.opened) + patience).as_millis();
        let due = u64::try_from(due).unwrap_or(Self::SEEN);
        self.due.store(due, Ordering::Relaxed);
    }

    fn seen(&self) {
        self.due.store(Self::SEEN, Ordering::Relaxed);
        self.first.store(false, Ordering::Relaxed);
    }

    fn is_first(&self) -> bool {
        self.first.load(Ordering::Relaxed)
    }

    fn due(&self) -> Option<Instant> {
        let due = self.due.load(Ordering::Relaxed);
        (due != Self::SEEN).then(|| self.opened + Duration::from_millis(due))
    }
}

/// Counts one connection for as long as it lives.
pub(crate) struct OpenConnection {
    open: Arc<AtomicUsize>,
    gauge: IntGauge,
    number: usize,
    head: HeadDeadline,
}

impl OpenConnection {
    fn new(listening: &Listening) -> Self {
        let gauge = listening.edge.metrics.connections.clone();
        gauge.inc();
        Self {
            number: listening.open.fetch_add(1, Ordering::Relaxed) + 1,
            open: Arc::clone(&listening.open),
            gauge,
            head: HeadDeadline::new(Instant::now()),
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
    /// What it accepts on.
    sockets: ListenFds,
    /// Told of the runtime the service finds itself in.
    runtimes: Option<Arc<Announced>>,
    /// Used in place of Pingora's shutdown watch, so that `/ready` can be asked during the drain.
    lifetime: Option<ShutdownWatch>,
}

impl EdgeService {
    /// A service that stops with the gateway and whose runtime carries message I/O.
    pub(crate) fn traffic(
        inner: Service<Listening>,
        sockets: ListenFds,
        runtimes: Arc<Announced>,
    ) -> Self {
        Self {
            inner,
            sockets,
            runtimes: Some(runtimes),
            lifetime: None,
        }
    }

    /// A service that answers until the process ends.
    pub(crate) fn until_exit(
        inner: Service<Listening>,
        sockets: ListenFds,
        lifetime: ShutdownWatch,
    ) -> Self {
        Self {
            inner,
            sockets,
            runtimes: None,
            lifetime: Some(lifetime),
        }
    }
}

#[async_trait]
impl PingoraService for EdgeService {
    async fn start_service(
        &mut self,
        _: Option<ListenFds>,
        shutdown: ShutdownWatch,
        listeners_per_fd: usize,
    ) {
        if let Some(runtimes) = &self.runtimes {
            runtimes.add(Handle::current());
        }
        // Pingora's own table has one handle per address, and each of several services has to have its own.
        let sockets = Some(Arc::clone(&self.sockets));
        let shutdown = self.lifetime.clone().unwrap_or(shutdown);
        self.inner
            .start_service(sockets, shutdown, listeners_per_fd)
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

/// The runtimes of the services that carry traffic, one each. They are provided when the last service has started.
pub(crate) struct Announced {
    expected: usize,
    known: Mutex<Vec<Handle>>,
    runtimes: Arc<Runtimes>,
}

impl Announced {
    pub(crate) fn new(expected: usize, runtimes: Arc<Runtimes>) -> Self {
        Self {
            expected,
            known: Mutex::default(),
            runtimes,
        }
    }

    fn add(&self, handle: Handle) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.push(handle);
        if known.len() == self.expected {
            self.runtimes.provide(std::mem::take(&mut *known));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Deadlines = Deadlines {
        header: Duration::from_secs(15),
        keepalive: Duration::from_secs(75),
    };

    #[test]
    fn the_first_head_has_its_own_time_and_a_later_one_the_idle_time_too() {
        let opened = Instant::now();
        let head = HeadDeadline::new(opened);
        assert_eq!(head.due(), None);
        head.awaited(LIMITS, opened);
        assert!(head.is_first());
        assert_eq!(head.due(), Some(opened + Duration::from_secs(15)));

        head.seen();
        assert_eq!(head.due(), None);
        assert!(!head.is_first());

        let later = opened + Duration::from_secs(300);
        head.awaited(LIMITS, later);
        assert_eq!(head.due(), Some(later + Duration::from_secs(90)));
    }

    #[tokio::test]
    async fn runtimes_are_known_when_the_last_service_has_started() {
        let runtimes = Arc::new(Runtimes::new());
        let announced = Announced::new(2, Arc::clone(&runtimes));
        let mut first = std::pin::pin!(runtimes.pick());
        announced.add(Handle::current());
        assert!(futures_util::poll!(first.as_mut()).is_pending());
        announced.add(Handle::current());
        assert_eq!(first.await.id(), Handle::current().id());
    }
}
