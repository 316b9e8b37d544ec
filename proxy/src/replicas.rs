//! Forwards requests whose session is in another replica's memory. This module contains both the sending and the receiving side.
//!
//! ```text
//!   client ─▶ replica A: admitted ─▶ service: Elsewhere(B) ─▶ Forwarder ──┐ the request as it came, and a passport
//!                                                                         ▼
//!             replica B: `replicas.address` ─▶ passport opened ─▶ admitted as at A ─▶ service: the live session
//! ```
//!
//! B applies the same rules of admission as A, as if the request had arrived at A's listener, and checks the client's credential
//! again. Limits on requests are counted by A, limits on tool calls by B. The passport is a header that names the listener, the
//! client, and the certificate that the client used at A. It is sealed with the session key, so that only a replica can have
//! created it.

mod forward;
mod passport;
pub(crate) mod peers;
pub(crate) mod reach;
mod silence;
mod tls;

use std::sync::Arc;

use bytes::Bytes;
use http::header::HOST;
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use pingora_core::protocols::l4::socket::SocketAddr as LocalAddress;
use pingora_http::RequestHeader;
use tokio::sync::watch;
use tooldock_filters::{Peer, Reason, Rejection};
use tooldock_sessions::caller::Caller;
use tooldock_sessions::replicas::{
    Announcement, ForwardError, ReplicaId, Replicas, RoutedRequest, RoutingError,
};
use tooldock_upstream::reply::{Refusal, Reply};
use tooldock_upstream::seal::SessionKey;
use tooldock_upstream::service::{AdmittedRequest, Service};

pub(crate) use self::forward::ForwardMetrics;
use self::forward::{Failure, Forwarder};
pub(crate) use self::passport::{ForwardedFrom, HEADER};
use self::passport::{HOPS_MAX, Passport, UsedPassports};
pub(crate) use self::tls::ClientTls;
use crate::config::ListenAddress;
use crate::logging::LogLimit;
use crate::rules::GatewayListener;
use crate::tls::ShownCertificate;

/// Connects this gateway with the other replicas: forwards requests to them, and checks the requests that they forward to this
/// replica.
pub(crate) struct ReplicaLink {
    replicas: Arc<Replicas>,
    key: SessionKey,
    /// This replica's address for requests from other replicas. `None` if it has none.
    address: Option<LocalAddress>,
    forwarder: Forwarder,
    /// Set to true when this gateway drains. The long streams that it forwards then end.
    ended: watch::Sender<bool>,
    used: UsedPassports,
    /// Limits the number of log warnings about refused requests.
    refusals: LogLimit,
}

/// A client's request in the form in which it is forwarded.
pub(crate) struct ForwardedRequest {
    pub(crate) method: Method,
    /// Path and query of the forwarded request.
    pub(crate) target: String,
    pub(crate) headers: HeaderMap,
    pub(crate) passport: Passport,
}

impl ReplicaLink {
    pub(crate) fn new(
        replicas: Arc<Replicas>,
        key: SessionKey,
        address: Option<ListenAddress>,
        metrics: Arc<ForwardMetrics>,
        tls: Option<ClientTls>,
    ) -> Self {
        Self {
            forwarder: Forwarder::new(metrics, tls),
            replicas,
            key,
            address: address.map(LocalAddress::from),
            ended: watch::Sender::new(false),
            used: UsedPassports::default(),
            refusals: LogLimit::default(),
        }
    }

    /// Ends the forwarded long streams, so that their clients reconnect to another replica.
    pub(crate) fn end_streams(&self) {
        self.ended.send_replace(true);
    }

    /// Replaces the certificates for new connections to other replicas.
    pub(crate) fn set_tls(&self, tls: ClientTls) {
        self.forwarder.set_tls(tls);
    }

    /// Returns true if a connection was accepted at this replica's address for other replicas.
    pub(crate) fn is_at_door(&self, local: Option<&LocalAddress>) -> bool {
        local.is_some() && local == self.address.as_ref()
    }

    /// Opens and checks the passport of a request that arrived at the address for replicas.
    ///
    /// # Errors
    ///
    /// When the request has no valid passport for this replica.
    pub(crate) fn arrival(
        &self,
        header: &RequestHeader,
        listeners: &[GatewayListener],
    ) -> Result<ForwardedFrom, Rejection> {
        let opened = Passport::open(header, &self.key, &self.replicas, &self.used);
        let checked = opened.and_then(|passport| {
            let known = listeners.iter().any(|it| *it.name == *passport.listener);
            known.then_some(passport).ok_or(
                "its listener is not in the configuration of this replica: give all replicas the same listeners",
            )
        });
        checked.map(ForwardedFrom::from).map_err(|why| {
            self.tell_refusal(why);
            Rejection::new(
                Reason::Forbidden,
                "This address is for the replicas of this gateway alone.",
            )
        })
    }

    fn tell_refusal(&self, why: &str) {
        if self.refusals.allows() {
            tracing::warn!("a request at replicas.address was refused: {why}");
        } else {
            tracing::debug!("a request at replicas.address was refused: {why}");
        }
    }

    /// Copies a request into the form for forwarding. This is done before it is known whether the request must be forwarded.
    pub(crate) fn forwarded(
        &self,
        header: &RequestHeader,
        arrival: Option<&ForwardedFrom>,
        met: RequestFacts<'_>,
    ) -> ForwardedRequest {
        let target = header.uri.path_and_query();
        let mut headers = header.headers.clone();
        // An HTTP/2 request has its host in `:authority`. It is copied to the header `Host`, because HTTP/1.1 is used for
        // forwarding.
        let authority = header
            .uri
            .authority()
            .filter(|_| !headers.contains_key(HOST));
        let host = authority.and_then(|it| HeaderValue::from_str(it.as_str()).ok());
        if let Some(host) = host {
            headers.insert(HOST, host);
        }
        ForwardedRequest {
            method: header.method.clone(),
            target: target.map_or("/", |it| it.as_str()).to_owned(),
            headers,
            passport: Passport::of(&self.replicas, arrival, met),
        }
    }

    /// Answers a request, either in this replica or by forwarding it to the replica that has its session.
    pub(crate) async fn answer(
        &self,
        service: &Service,
        caller: Caller,
        request: AdmittedRequest,
        forwarded: ForwardedRequest,
    ) -> Reply {
        let mut request = HttpRequest {
            link: self,
            service,
            caller,
            request,
            forwarded,
            refusals: None,
        };
        let routed = self.replicas.route(&mut request).await;
        match (routed, request.refusals) {
            (Ok(reply), _) => reply,
            (Err(RoutingError::Lost), Some((_, lost))) => (*lost).into(),
            (Err(RoutingError::Unreachable), Some((unreachable, _))) => unreachable.into(),
            // This case does not occur: routing fails only after `here` has found that another replica has the session, and
            // `here` then sets `refusals`.
            (Err(_), None) => Reply::empty(StatusCode::BAD_GATEWAY),
        }
    }

    /// Creates a health request for another replica.
    fn question(&self, other: &Announcement) -> Result<ForwardedRequest, String> {
        let passport = Passport::of_health(&self.replicas);
        let (method, target) = (Method::GET, "/health");
        let line = (method.as_str(), target);
        let sealed = passport.seal(&self.key, &self.replicas, other.id, line)?;
        let headers = [
            (HOST, HeaderValue::from_static("localhost")),
            (HEADER, sealed),
        ];
        Ok(ForwardedRequest {
            method,
            target: target.to_owned(),
            headers: headers.into_iter().collect(),
            passport,
        })
    }

    /// Sends a request to another replica, with a new passport for that replica.
    async fn send(
        &self,
        other: &Announcement,
        forwarded: &mut ForwardedRequest,
        body: Bytes,
    ) -> Result<Reply, Failure> {
        loop {
            let line = (forwarded.method.as_str(), &*forwarded.target);
            let sealed = forwarded
                .passport
                .seal(&self.key, &self.replicas, other.id, line);
            let sealed = sealed.map_err(Failure::Unsent)?;
            forwarded.headers.insert(HEADER, sealed);
            let question = || self.question(other);
            let sending = self.forwarder.send(
                other,
                forwarded,
                body.clone(),
                question,
                self.replicas.clone(),
                self.ended.subscribe(),
            );
            match sending.await {
                // The loop seals another passport for the retry, because each passport is valid only once.
                Err(Failure::Stale) => {}
                sent => return sent,
            }
        }
    }
}

/// A client's request while it is routed to the replica that has its session.
struct HttpRequest<'a> {
    link: &'a ReplicaLink,
    service: &'a Service,
    caller: Caller,
    request: AdmittedRequest,
    forwarded: ForwardedRequest,
    /// Responses to the client in two cases: the replica that has the session cannot be reached (first), or it ends before it has
    /// answered (second).
    refusals: Option<(Refusal, Box<Refusal>)>,
}

impl RoutedRequest for HttpRequest<'_> {
    type Answer = Reply;

    async fn here(&mut self) -> Result<Reply, ReplicaId> {
        let (caller, request) = (self.caller.clone(), self.request.clone());
        match self.service.handle(caller, request).await {
            Reply::Elsewhere {
                replica,
                unreachable,
                lost,
            } => {
                self.refusals = Some((unreachable, lost));
                Err(replica)
            }
            reply => Ok(reply),
        }
    }

    async fn there(&mut self, other: &Announcement) -> Result<Reply, ForwardError> {
        let body = self.request.body.clone();
        let sent = self.link.send(other, &mut self.forwarded, body).await;
        let failure = match sent {
            Ok(reply) => return Ok(reply),
            Err(failure) => failure,
        };
        tracing::warn!(
            request_id = &*self.caller.request_id,
            replica = &*other.name,
            "a request was not answered by replica {}: {failure}",
            other.name
        );
        let may_repeat =
            matches!(failure, Failure::Unsent(_)) || self.request.method != Method::POST;
        Err(match may_repeat {
            true => ForwardError::Repeatable,
            false => ForwardError::Lost,
        })
    }

    fn may_be_forwarded(&self) -> bool {
        self.forwarded.passport.hops < HOPS_MAX
    }
}

/// Facts about a client's request at this gateway: listener, peer, client certificate, and request id.
pub(crate) struct RequestFacts<'a> {
    pub(crate) listener: &'a GatewayListener,
    pub(crate) peer: Peer,
    pub(crate) certificate: Option<ShownCertificate>,
    pub(crate) request_id: &'a str,
}
