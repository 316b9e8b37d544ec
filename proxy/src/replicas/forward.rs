//! Sends a request to another replica, and streams the response back.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use bytes::{BufMut as _, Bytes, BytesMut};
use futures_util::stream;
use http::header::{ACCEPT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, EXPECT, ORIGIN, TE, UPGRADE};
use http::{HeaderMap, HeaderName, Method};
use pingora_core::protocols::{Stream, l4};
use tokio::io::AsyncWriteExt as _;
use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};
use tooldock_base::gateway_process::GatewayProcess;
use tooldock_base::metric_table;
use tooldock_sessions::replicas::{Announcement, ReplicaId, Replicas};
use tooldock_upstream::reply::{BodyStream, Head, Reply};
use tooldock_workers::remote::{Backend, BackendId, Host, is_hop_by_hop};

use super::ForwardedRequest;
use super::silence::{self, silence};
use super::tls::ClientTls;
use crate::remote::SystemNames;
use crate::remote::connect::{ConnectTarget, Connector};
use crate::remote::headers::down;
use crate::remote::idle::Idle;
use crate::remote::names::Addresses;
use crate::remote::response::{ReadError, Response, ResponseHead};
use crate::request_id::X_REQUEST_ID;

/// Time limit for connecting to another replica. It is short because replicas are in the same network.
const CONNECT: Duration = Duration::from_secs(1);
/// Time limit for the response to a health request.
const HEALTH: Duration = Duration::from_secs(5);
/// Time limit for the head of the response to requests other than POST. Calls (POST) have no limit here, because they take as
/// long as their tools.
const HEAD: Duration = Duration::from_secs(10);
/// Maximum number of idle connections to each replica. Further ones are closed.
const IDLE: usize = 64;
/// Maximum number of replica addresses for which idle connections are stored.
const REPLICAS: usize = 64;

/// The reason why a request to another replica failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    /// The replica cannot have received the complete request, so that it was not carried out.
    #[error("{0}")]
    Unsent(String),
    /// The replica had closed the reused connection. It cannot have received the complete request.
    #[error("the replica has closed the connection")]
    Stale,
    /// The replica may have received and carried out the request, but its response did not arrive.
    #[error("{0}")]
    Broken(String),
}

metric_table! {
    /// Counters of forwarded requests.
    pub(crate) struct ForwardMetrics(registry) {
        forwarded: IntCounterVec["outcome"] = "tooldock_replica_forwards_total",
            "Requests forwarded to the replica of their session, by outcome (answered, unsent, broken)";
    }
}

/// Sends requests to the other replicas, and stores the idle connections to them.
pub(super) struct Forwarder {
    connector: Connector,
    metrics: Arc<ForwardMetrics>,
    /// TLS settings for new connections to other replicas; `None` for connections without TLS.
    tls: Option<ArcSwap<ClientTls>>,
    /// The other replicas by the address that they have announced.
    peers: Mutex<HashMap<Arc<str>, Arc<PeerAddress>>>,
}

/// The address of another replica, with the idle connections to it.
struct PeerAddress {
    id: BackendId,
    backend: Backend,
    addresses: Addresses,
    idle: Idle,
    /// Time at which the last response from this address began to arrive; `None` before the first.
    answered: Mutex<Option<Instant>>,
}

impl PeerAddress {
    fn note_answer(&self) {
        let mut answered = self.answered.lock().unwrap_or_else(PoisonError::into_inner);
        *answered = Some(Instant::now());
    }

    /// Returns true if the replica has answered within the interval of health requests. No health request is needed then.
    fn has_just_answered(&self) -> bool {
        let answered = self.answered.lock().unwrap_or_else(PoisonError::into_inner);
        answered.is_some_and(|answered| answered.elapsed() < silence::EVERY)
    }
}

impl Forwarder {
    pub(super) fn new(metrics: Arc<ForwardMetrics>, tls: Option<ClientTls>) -> Self {
        Self {
            connector: Connector::default(),
            metrics,
            tls: tls.map(ArcSwap::from_pointee),
            peers: Mutex::default(),
        }
    }

    /// Replaces the certificates for new connections. Does nothing if connections do not use TLS.
    pub(super) fn set_tls(&self, tls: ClientTls) {
        if let Some(before) = &self.tls {
            before.store(Arc::new(tls));
        }
    }

    /// Sends a request to another replica and waits for the head of the response. The wait ends with a failure if the replica
    /// ends, or, for a POST request, does not answer health requests meanwhile. `question` creates such a health request.
    ///
    /// # Errors
    ///
    /// [`Failure`] with the reason why there is no response.
    pub(super) async fn send(
        &self,
        other: &Announcement,
        forwarded: &ForwardedRequest,
        body: Bytes,
        question: impl Fn() -> Result<ForwardedRequest, String> + Sync,
        replicas: Arc<Replicas>,
        ended: watch::Receiver<bool>,
    ) -> Result<Reply, Failure> {
        let sent = self
            .exchange(other, forwarded, body, &question, &replicas)
            .await;
        let outcome = match &sent {
            Ok(_) => "answered",
            Err(Failure::Unsent(_) | Failure::Stale) => "unsent",
            Err(Failure::Broken(_)) => "broken",
        };
        self.metrics.forwarded.with_label_values(&[outcome]).inc();
        let (response, head, peer) = sent?;
        Ok(reply(
            response,
            head,
            &forwarded.method,
            peer,
            Watch {
                replica: other.id,
                replicas,
                ended,
            },
        )
        .await)
    }

    async fn exchange(
        &self,
        other: &Announcement,
        forwarded: &ForwardedRequest,
        body: Bytes,
        question: &(impl Fn() -> Result<ForwardedRequest, String> + Sync),
        replicas: &Replicas,
    ) -> Result<(Response, ResponseHead, Arc<PeerAddress>), Failure> {
        let peer = self.peer(other).map_err(Failure::Unsent)?;
        let head = head(forwarded, body.len());
        let mut response = {
            let (mut stream, reused) = match peer
                .idle
                .take(|address| peer.addresses.still_resolves_to(address))
            {
                Some((stream, _)) => (stream, true),
                None => {
                    let connected = tokio::select! {
                        connected = self.connect(&peer, other, question) => connected,
                        () = replicas.gone(other.id) => {
                            return Err(Failure::Unsent("it ended, or was stopped, before it was connected".into()));
                        }
                    };
                    (connected?, false)
                }
            };
            let written = async {
                stream.write_all(&head).await?;
                stream.write_all(&body).await?;
                stream.flush().await
            };
            let written = tokio::select! {
                biased;
                written = written => written,
                () = replicas.gone(other.id) => {
                    return Err(Failure::Unsent("it ended, or was stopped, before it had read the request".into()));
                }
            };
            match written {
                Ok(()) => Response::new(stream),
                Err(_) if reused => return Err(Failure::Stale),
                Err(_) => {
                    return Err(Failure::Unsent(
                        "the connection ended while the request was written".into(),
                    ));
                }
            }
        };
        let read = tokio::select! {
            head = response.read_head() => head,
            () = replicas.gone(other.id) => {
                return Err(Failure::Broken("it ended, or was stopped, before it answered".into()));
            }
            () = silence(|| Box::pin(self.answers(&peer, other, question))), if forwarded.method == Method::POST => {
                return Err(Failure::Broken("it beats, and answers no requests".into()));
            }
            () = tokio::time::sleep(HEAD), if forwarded.method != Method::POST => {
                return Err(Failure::Broken(format!("it did not answer within {} s", HEAD.as_secs())));
            }
        };
        match read {
            Ok(head) => {
                peer.note_answer();
                Ok((response, head, peer))
            }
            Err(error) => Err(Failure::Broken(unreadable(error))),
        }
    }

    /// Checks that another replica answers a health request on a new connection. If it has just answered another request, no
    /// health request is sent.
    ///
    /// # Errors
    ///
    /// The reason why the replica does not answer.
    pub(super) async fn check(
        &self,
        other: &Announcement,
        question: impl Fn() -> Result<ForwardedRequest, String> + Sync,
    ) -> Result<(), String> {
        let peer = self.peer(other)?;
        if peer.has_just_answered() {
            return Ok(());
        }
        let asked = self.ask(&peer, other, &question).await;
        asked.map(drop).map_err(|failure| failure.to_string())
    }

    /// Returns true if the replica has just answered a request, or answers a health request.
    async fn answers(
        &self,
        peer: &PeerAddress,
        other: &Announcement,
        question: &(impl Fn() -> Result<ForwardedRequest, String> + Sync),
    ) -> bool {
        peer.has_just_answered() || self.ask(peer, other, question).await.is_ok()
    }

    /// Sends a health request on a new connection and reads the response; every response is accepted. Returns the connection if
    /// it can be reused.
    async fn ask(
        &self,
        peer: &PeerAddress,
        other: &Announcement,
        question: &(impl Fn() -> Result<ForwardedRequest, String> + Sync),
    ) -> Result<Option<Stream>, Failure> {
        let head = head(&question().map_err(Failure::Unsent)?, 0);
        let mut stream = self.open(peer, other).await?;
        let answer = async {
            // Errors of writing are ignored: the following read reports them, after any response that the replica has sent
            // before.
            let _ = stream.write_all(&head).await;
            let _ = stream.flush().await;
            let mut response = Response::new(stream);
            response.read_head().await?;
            peer.note_answer();
            while response.next().await?.is_some() {}
            Ok(response.into_idle().map(|(stream, _)| stream))
        };
        match timeout(HEALTH, answer).await {
            Ok(Ok(kept)) => Ok(kept),
            Ok(Err(ReadError::Closed)) if peer.backend.tls => Err(Failure::Unsent(
                "it closed the connection after the TLS handshake: it may refuse this replica's certificate (replicas.tls; \
                 its log says why)"
                    .into(),
            )),
            Ok(Err(error)) => Err(Failure::Unsent(unreadable(error))),
            Err(_) => Err(Failure::Unsent(format!(
                "a health request was not answered within {} s",
                HEALTH.as_secs()
            ))),
        }
    }

    /// Connects to another replica. With TLS, a health request is sent first and its response awaited. The reason: in TLS 1.3 the
    /// replica refuses this replica's certificate only after the handshake, when a client's request would already have been sent.
    async fn connect(
        &self,
        peer: &PeerAddress,
        other: &Announcement,
        question: &(impl Fn() -> Result<ForwardedRequest, String> + Sync),
    ) -> Result<Stream, Failure> {
        if peer.backend.tls
            && let Some(kept) = self.ask(peer, other, question).await?
        {
            return Ok(kept);
        }
        self.open(peer, other).await
    }

    async fn open(&self, peer: &PeerAddress, other: &Announcement) -> Result<Stream, Failure> {
        if let Host::Unix(path) = &peer.backend.host {
            let opened = timeout(CONNECT, connect_unix(path, other.process.as_deref())).await;
            let opened = opened.unwrap_or_else(|_| Err("its socket does not answer".into()));
            return opened.map_err(Failure::Unsent);
        }
        let tls = self.tls.as_ref().map(ArcSwap::load_full);
        let (no_spec, no_material) = Default::default();
        let (spec, material) = match &tls {
            Some(tls) => (&tls.spec, &tls.material),
            None => (&no_spec, &no_material),
        };
        let target = ConnectTarget {
            id: &peer.id,
            backend: &peer.backend,
            tls: spec,
            limit: CONNECT,
            addresses: &peer.addresses,
            material,
        };
        let connected = self.connector.connect_to(target).await;
        let (stream, _) = connected.map_err(|error| Failure::Unsent(error.message))?;
        Ok(stream)
    }

    fn peer(&self, other: &Announcement) -> Result<Arc<PeerAddress>, String> {
        let address = other.address.clone().unwrap_or_default();
        let mut peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = peers.get(&address) {
            return Ok(Arc::clone(known));
        }
        let backend = backend(&address, self.tls.is_some())
            .map_err(|why| format!("its replicas.address {why}"))?;
        if peers.len() >= REPLICAS {
            // Too many addresses are stored. All are dropped, because most belong to replicas that no longer run.
            peers.clear();
        }
        let peer = Arc::new(PeerAddress {
            id: backend.id(),
            addresses: Addresses::new(backend.host.clone(), true, Arc::new(SystemNames)),
            backend,
            idle: Idle::new(IDLE),
            answered: Mutex::default(),
        });
        peers.insert(address, Arc::clone(&peer));
        Ok(peer)
    }
}

/// A text for the reason why a response cannot be read.
fn unreadable(error: ReadError) -> String {
    match error {
        ReadError::Closed => "the connection ended before the response".to_owned(),
        ReadError::Malformed(fault) => format!(
            "the response is not HTTP/1.1: {fault}; is replicas.address another program's, or does that replica have \
             replicas.tls?"
        ),
    }
}

/// Connects to a replica on this machine through its Unix socket.
///
/// A process that can write to the data directory could replace the replica's socket by its own. Therefore the listening process,
/// as reported by the kernel, must be the process that the replica's sealed announcement names.
async fn connect_unix(path: &Path, process: Option<&str>) -> Result<Stream, String> {
    let printed = path.display();
    let failed = |error| format!("{printed}: cannot connect: {error}");
    let stream = UnixStream::connect(path).await.map_err(failed)?;
    let listens = stream.peer_cred().map_err(failed)?.pid();
    let listens = listens
        .and_then(GatewayProcess::of)
        .map(|it| it.to_string());
    if listens.is_none() || listens.as_deref() != process {
        return Err(format!("{printed}: another process listens there"));
    }
    Ok(Box::new(l4::stream::Stream::from(stream)))
}

/// Parses a replica's address: `HOST:PORT`, or `unix:PATH`.
fn backend(address: &str, encrypts: bool) -> Result<Backend, String> {
    match address.strip_prefix("unix:") {
        // A socket's path is not parsed as a URL, because it may contain characters that URLs do not allow.
        Some(path) => Ok(Backend {
            host: Host::Unix(path.into()),
            tls: false,
            target: "/".to_owned(),
        }),
        None if encrypts => Backend::parse(&format!("https://{address}/")),
        None => Backend::parse(&format!("http://{address}/")),
    }
}

/// Creates the head of the forwarded request from the client's headers, without those that concern the client's connection.
/// `Origin` is omitted, too: this replica has checked it, and adds the CORS headers when it sends the response to the client.
fn head(forwarded: &ForwardedRequest, length: usize) -> Bytes {
    let mut head = BytesMut::with_capacity(2048);
    let mut put = |parts: &[&[u8]]| parts.iter().for_each(|part| head.put_slice(part));
    put(&[
        forwarded.method.as_str().as_bytes(),
        b" ",
        forwarded.target.as_bytes(),
        b" HTTP/1.1\r\n",
    ]);
    for (name, value) in forwarded.headers.iter().filter(|(name, _)| goes_on(name)) {
        put(&[name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"]);
    }
    if length > 0 || forwarded.method == Method::POST {
        put(&[b"content-length: ", length.to_string().as_bytes(), b"\r\n"]);
    }
    put(&[b"\r\n"]);
    head.freeze()
}

fn goes_on(name: &HeaderName) -> bool {
    let stays = [ACCEPT_ENCODING, CONTENT_LENGTH, EXPECT, ORIGIN, TE, UPGRADE];
    !is_hop_by_hop(name.as_str()) && !stays.contains(name)
}

/// Events that end a forwarded response early: the other replica ends, or this replica drains.
struct Watch {
    replica: ReplicaId,
    replicas: Arc<Replicas>,
    ended: watch::Receiver<bool>,
}

/// Converts the other replica's response to the reply for the client.
async fn reply(
    response: Response,
    head: ResponseHead,
    method: &Method,
    peer: Arc<PeerAddress>,
    watch: Watch,
) -> Reply {
    let mut headers = down(head.headers);
    for own in [CONTENT_LENGTH, X_REQUEST_ID] {
        headers.remove(own);
    }
    let streams = is_stream(&headers) && *method == Method::GET;
    let mut told = Head::new(head.status);
    let mut name = None;
    for (next, value) in headers {
        name = next.or(name);
        if let Some(name) = &name {
            told = told.with(name.clone(), value);
        }
    }
    Reply::Body {
        head: told,
        body: pieces(response, peer, watch, streams),
    }
}

fn is_stream(headers: &HeaderMap) -> bool {
    let value = headers.get(CONTENT_TYPE).map(http::HeaderValue::as_bytes);
    value.is_some_and(|value| value.starts_with(b"text/event-stream"))
}

/// Forwards the response's body in pieces. A long stream ends when this replica drains. Any body is aborted when the other
/// replica ends.
fn pieces(response: Response, peer: Arc<PeerAddress>, watch: Watch, streams: bool) -> BodyStream {
    let begin = Some((response, peer, watch));
    Box::pin(stream::unfold(begin, move |state| async move {
        let (mut response, peer, mut watch) = state?;
        let mut ended = watch.ended.clone();
        let next = tokio::select! {
            biased;
            next = response.next() => next,
            () = watch.replicas.gone(watch.replica) => Err(ReadError::Closed),
            _ = ended.wait_for(|ended| *ended), if streams => return None,
        };
        watch.ended = ended;
        match next {
            Ok(Some(piece)) => Some((Ok(piece), Some((response, peer, watch)))),
            Ok(None) => {
                if let Some((stream, patience)) = response.into_idle() {
                    peer.idle.put(stream, None, patience);
                }
                None
            }
            Err(_) => {
                let error = "the replica of this session ended before the whole answer";
                Some((Err(error.into()), None))
            }
        }
    }))
}
