//! Pingora's phases for one request: the request is admitted, passed to the service in this process, answered and counted.
//!
//! `request_filter` runs the admission checks (`gateway/admit.rs`) and responds to refused requests. `proxy_upstream_filter`
//! (`gateway/hand_over.rs`) builds a `Caller`, calls the service as a function and writes its reply. `upstream_peer` is never
//! reached: requests for other replicas are forwarded by `replicas`, which reads their bodies first.
//!
//! For a long stream, Pingora's request ends once the head is written, while the stream continues (see `stream`).

mod admit;
mod connect;
mod credential_validity;
mod hand_over;
mod in_flight;
mod login;
mod probe;
mod resource;

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use arc_swap::ArcSwap;
use async_trait::async_trait;
use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, COOKIE};
use pingora_core::modules::http::HttpModules;
use pingora_core::upstreams::peer::HttpPeer;
use pingora_core::{Error, ErrorType, Result};
use pingora_proxy::{FailToProxy, ProxyHttp, Session};
use prometheus::{Encoder, TextEncoder};
use tokio::sync::watch;
use tooldock_base::answers::{AnswerAccount, AnswerBudget};
use tooldock_base::budget::BudgetNote;
use tooldock_base::trace::{RequestTrace, TraceSink};
use tooldock_credentials::keys::KeyStore;
use tooldock_filters::{
    Admission, AdmissionAttempt, AdmittedHead, ErrorShape, Fields, Permit, Reason, Rejection,
    RouteId, Verdict, lists_any_type,
};
use tooldock_sessions::profile::Profile;
use tooldock_upstream::reply::{Head, Reply};
use tooldock_upstream::{McpHead, Service};
use tooldock_workers::registry::Registry;

use self::admit::{NamespaceServer, tls_of};
use self::credential_validity::CredentialValidity;
use self::hand_over::{HandOverOutcome, mcp_head};
use self::in_flight::InFlightRequest;
use crate::access_log::{AccessLog, Pending};
use crate::connect_pages::ConnectPages;
use crate::header_edits::HeaderEdits;
use crate::issuers::Issuers;
use crate::metrics::EdgeMetrics;
use crate::replicas::{ForwardedFrom, HEADER as PASSPORT, ReplicaLink};
use crate::request_id::RequestIds;
use crate::respond::{self, ClientGone, Envelope};
use crate::rules::Rules;
use crate::telemetry;
use crate::tls::TlsConnection;
use crate::web;
use crate::web_login::{self, PendingLogins};
use crate::web_session::{self, LoginEnd, WebSessions};

/// Error by which Pingora learns that the client has disconnected, so that nothing more is written and the connection is dropped.
const CLIENT_GONE: ErrorType = ErrorType::Custom("ClientGone");

/// Error by which Pingora learns that a long stream has taken over the connection. Pingora must then write nothing and not reuse
/// the connection; its session no longer contains a request.
const LEFT: ErrorType = ErrorType::Custom("StreamLeft");

/// Status under which requests without a response are counted and logged, as in nginx.
const STATUS_CLIENT_GONE: u16 = 499;

/// State that is shared by all requests.
pub(crate) struct Gateway {
    pub(crate) rules: Arc<ArcSwap<Rules>>,
    pub(crate) registry: Arc<Registry>,
    /// Folder that contains the folders of the namespaces.
    pub(crate) tools_dir: Arc<Path>,
    pub(crate) service: Service,
    /// Limit on the memory of all responses together.
    pub(crate) answers: Arc<AnswerBudget>,
    pub(crate) metrics: Arc<EdgeMetrics>,
    pub(crate) exported: prometheus::Registry,
    pub(crate) request_ids: Arc<RequestIds>,
    pub(crate) issuers: Arc<Issuers>,
    pub(crate) keys: Arc<KeyStore>,
    /// Sessions of users who are logged in at the web UI.
    pub(crate) web_sessions: Arc<WebSessions>,
    /// Logins at the web UI that have begun and wait for the response of an issuer.
    pub(crate) begun_logins: Arc<PendingLogins>,
    /// Pages on which principals give their personal credentials; `None` if this process serves no namespaces.
    pub(crate) connect: Option<Arc<ConnectPages>>,
    /// The access log; `None` if it is off.
    pub(crate) access_log: Option<AccessLog>,
    /// Receiver of finished requests for the OTLP export; `None` without an export.
    pub(crate) traces: Option<Arc<dyn TraceSink>>,
    /// Connections to other replicas; `None` for a gateway without replicas.
    pub(crate) replicas: Option<Arc<ReplicaLink>>,
    /// True once the process has been told to stop.
    pub(crate) stops: watch::Receiver<bool>,
}

/// State of a request, which Pingora passes from phase to phase.
pub(crate) struct RequestContext {
    started: Instant,
    /// The request's id; `None` before the head has been read.
    request_id: Option<Arc<str>>,
    /// Number of times that the service had ended all streams for a new admission, at the time when `rules` were loaded. If the
    /// number has changed, the request is admitted again.
    readmissions: u64,
    /// Number of the snapshot of namespaces that was in force before the request's namespace was looked up. If a reload has
    /// published another snapshot since, the request is admitted again.
    generation: u64,
    rules: Arc<Rules>,
    admitted: Option<AdmittedHead>,
    /// The headers of an MCP request, in the form that the service requires.
    head: McpHead,
    profile: Option<Arc<Profile>>,
    /// The listener's changes to header fields; `None` if it has none.
    headers: Option<Arc<HeaderEdits>>,
    /// Storage for the remaining budgets of the rate limits that count the request; `None` if no limit counts it.
    budget: Option<Arc<BudgetNote>>,
    /// Permit of the limit on concurrent requests; it is released when the request ends.
    permit: Option<Arc<Permit>>,
    route: &'static str,
    /// Kind of server behind the request's namespace.
    leads_to: NamespaceServer,
    /// The validity of the request's credential; `None` if the credential never ceases to be valid.
    lasting: Option<CredentialValidity>,
    /// The end of the web UI's session from which the request's credential was taken; `None` for other requests.
    login: Option<Box<LoginEnd>>,
    /// The HTTP status of a long stream that has taken over the connection; `None` if there is no such stream.
    left_with: Option<u16>,
    /// True if the response's body gets a newline at its end, see [`Envelope::newline`].
    newline: bool,
    /// Format of error responses for this client.
    shape: ErrorShape,
    /// The request's entry in the access log; `None` if the log is off.
    logged: Option<Pending>,
    /// The request's trace; `None` if none is exported.
    trace: Option<Arc<RequestTrace>>,
    in_flight: InFlightRequest,
    /// Listener and client of a request that another replica has forwarded; `None` for other requests.
    arrival: Option<Box<ForwardedFrom>>,
}

impl RequestContext {
    /// Returns the request's id; empty before the head has been read.
    fn request_id(&self) -> &str {
        self.request_id.as_deref().unwrap_or_default()
    }

    /// Applies the listener's changes to the request's headers, and stores its changes to the response's headers.
    fn edit_request(&mut self, session: &mut Session) -> Result<()> {
        self.headers = self.listener(session)?.headers.clone();
        if let Some(headers) = &self.headers {
            headers.request.apply_to_request(session.req_header_mut());
        }
        Ok(())
    }

    /// Adds the token of a login at the web UI as an `Authorization` header, if the request proves such a login by its cookie and
    /// header. Cookie and header are removed from the request.
    fn show_login(&mut self, session: &mut Session, sessions: &WebSessions) -> Result<()> {
        if web_session::shown_id(&session.req_header().headers).is_none() {
            return Ok(());
        }
        let Some(user) = self.listener(session)?.rules.basic.clone() else {
            return Ok(());
        };
        let header = session.req_header_mut();
        // Requests of a login at an issuer have no credentials yet. Their cookie belongs to the login that has begun, and is not
        // removed.
        if header.uri.path().starts_with(web_login::PATH) {
            return Ok(());
        }
        if let Some(shown) = sessions.shown(&user, header) {
            header.insert_header(AUTHORIZATION, shown.authorization)?;
            self.login = Some(Box::new(shown.end));
        }
        if header.uri.path() != web_session::PATH {
            header.remove_header(&COOKIE);
            header.remove_header(&web_session::HALF);
        }
        Ok(())
    }
}

impl Gateway {
    /// Responds to another replica's health request. It is not admitted, counted or logged.
    async fn answer_replica(
        &self,
        session: &mut Session,
        passage: &mut RequestContext,
    ) -> Result<bool> {
        passage.route = "health";
        let request_id = self.request_ids.of(None);
        let envelope = Envelope {
            request_id: &request_id,
            cors: None,
            write_timeout: passage.rules.write_timeout,
            newline: false,
            edits: None,
            budget: None,
            answers: None,
            claim: None,
        };
        let head = Head::new(http::StatusCode::NO_CONTENT);
        // The future is boxed to keep the futures of other requests small.
        Box::pin(respond::unread(session, head, Bytes::new(), &envelope))
            .await
            .map(|()| true)
            .map_err(|ClientGone| Error::new(CLIENT_GONE))
    }

    /// Returns all metrics in Prometheus's text format.
    fn exposition(&self) -> Reply {
        let mut text = Vec::with_capacity(16 * 1024);
        let encoder = TextEncoder::new();
        self.metrics.process.read();
        self.service.show_conditions();
        if let Err(error) = encoder.encode(&self.exported.gather(), &mut text) {
            tracing::error!(%error, "metrics could not be written");
        }
        Reply::Full {
            head: Head::new(http::StatusCode::OK).with(
                CONTENT_TYPE,
                http::HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8"),
            ),
            body: Bytes::from(text),
        }
    }
}

/// Opens the passport of a forwarded request, and stores its content in `passage`. The passport is sealed data about the
/// request's client and listener, from the replica that received the request.
///
/// # Errors
///
/// If the request has no valid passport.
fn arrive(
    replicas: &ReplicaLink,
    session: &mut Session,
    passage: &mut RequestContext,
) -> std::result::Result<(), Rejection> {
    if replicas.is_at_door(session.server_addr()) {
        let arrival = replicas.arrival(session.req_header(), &passage.rules.listeners)?;
        passage.arrival = Some(Box::new(arrival));
    }
    session.req_header_mut().remove_header(&PASSPORT);
    Ok(())
}

/// Creates the storage for the remaining budgets of the rate limits that count a request, and stores the budget that admission
/// has already found. Returns `None` if no limit counts the request.
fn budget_note(admission: &Admission, admitted: &mut AdmittedHead) -> Option<Arc<BudgetNote>> {
    let found = admitted.budget.take();
    let principal = admitted.principal.as_ref();
    let has_own_limits = principal.is_some_and(|it| !it.limits().is_empty());
    if found.is_none() && !has_own_limits && !admission.limits_tool_calls() {
        return None;
    }
    let note = BudgetNote::default();
    if let Some(found) = found {
        note.write(found);
    }
    Some(Arc::new(note))
}

#[async_trait]
impl ProxyHttp for Gateway {
    type CTX = RequestContext;

    fn new_ctx(&self) -> RequestContext {
        RequestContext {
            started: Instant::now(),
            request_id: None,
            // The numbers of changes are read before the rules: the rules may then be newer than the numbers, but never older.
            readmissions: self.service.readmissions(),
            generation: self.registry.load().generation,
            rules: self.rules.load_full(),
            admitted: None,
            head: McpHead::default(),
            profile: None,
            headers: None,
            budget: None,
            permit: None,
            route: "unknown",
            leads_to: NamespaceServer::default(),
            lasting: None,
            login: None,
            left_with: None,
            newline: false,
            shape: ErrorShape::Rest,
            logged: None,
            trace: None,
            in_flight: InFlightRequest::new(&self.metrics.in_flight),
            arrival: None,
        }
    }

    /// Registers no modules. Pingora's only default module is compression, which would buffer streams.
    fn init_downstream_modules(&self, _modules: &mut HttpModules) {}

    async fn request_filter(
        &self,
        session: &mut Session,
        passage: &mut RequestContext,
    ) -> Result<bool> {
        // Keep-alive is only set if Pingora has not turned it off. Pingora does so after a request with both `Content-Length` and
        // `Transfer-Encoding`, after `Connection: close`, and during shutdown.
        if session.get_keepalive().is_some() {
            let outdated = tls_of(session).is_some_and(TlsConnection::is_outdated);
            session.set_keepalive(passage.rules.keepalive.filter(|_| !outdated));
        }
        let arrived = match &self.replicas {
            Some(replicas) => arrive(replicas, session, passage),
            None => Ok(()),
        };
        if passage.arrival.as_ref().is_some_and(|it| it.is_health) {
            return self.answer_replica(session, passage).await;
        }
        // The headers of a forwarded request were already changed by the replica that received it.
        if passage.rules.edits_headers && arrived.is_ok() && passage.arrival.is_none() {
            passage.edit_request(session)?;
        }
        if self.web_sessions.are_any() && arrived.is_ok() && passage.arrival.is_none() {
            passage.show_login(session, &self.web_sessions)?;
        }
        let header = session.req_header();
        let fields = Fields::of(&header.headers);
        let request_id = match &passage.arrival {
            Some(arrival) => Arc::from(&*arrival.request_id),
            None => self.request_ids.of(fields.request_id()),
        };
        passage.request_id = Some(Arc::clone(&request_id));
        if let Some(log) = &self.access_log {
            let admission = &passage.rules.admission;
            let address = admission.client_address(passage.peer(session), &fields);
            passage.logged = Some(log.entry(header, &request_id, address));
        }
        let mut verdict = match arrived {
            Ok(()) => self.admit(session, &fields, passage, AdmissionAttempt::First)?,
            Err(rejection) => Verdict::Refused(rejection),
        };
        let mut waited = 0;
        while let Verdict::Pending(pending) = &verdict {
            waited += 1;
            let client = passage
                .rules
                .admission
                .client_address(passage.peer(session), &fields);
            // The future is boxed to keep the futures of other requests small; few requests wait for an issuer.
            let asked = Box::pin(self.issuers.settle(pending, client, waited)).await;
            verdict = self.admit(session, &fields, passage, asked)?;
        }
        if let Verdict::Starting(name) = &verdict {
            verdict = Box::pin(self.admit_when_up(session, &fields, passage, name)).await?;
        }
        match &verdict {
            Verdict::Admitted(admitted) => {
                if let Some(failure) = &admitted.failure {
                    self.credential_failed(failure);
                }
                passage.shape = admitted.route.error_shape();
                if admitted.route.is_mcp() {
                    passage.head = mcp_head(header, &fields, admitted);
                }
            }
            Verdict::Refused(rejection) => passage.shape = rejection.shape,
            Verdict::Answered(_) | Verdict::Pending(_) | Verdict::Starting(_) => {}
        }
        let headers = passage.headers.clone();
        // JSON for terminals ends with a newline; MCP messages do not need one.
        passage.newline = passage.shape == ErrorShape::Rest && lists_any_type(&fields);
        let envelope = Envelope {
            request_id: &request_id,
            cors: None,
            write_timeout: passage.rules.write_timeout,
            newline: passage.newline,
            edits: headers.as_deref().map(|headers| &headers.response),
            budget: None,
            answers: None,
            claim: None,
        };
        match verdict {
            Verdict::Admitted(admitted) => {
                passage.route = admitted.route.label;
                if let Some(logged) = &mut passage.logged {
                    let session = passage.head.session.as_deref();
                    logged.entry.admitted(&admitted, session);
                }
                passage.admitted = Some(admitted);
                Ok(false)
            }
            Verdict::Answered(answer) => {
                passage.route = answer.route;
                let head = Head {
                    headers: answer.headers.into(),
                    ..Head::new(answer.status)
                };
                // The future is boxed to keep the future of an admitted request small.
                Box::pin(respond::unread(session, head, Bytes::new(), &envelope))
                    .await
                    .map(|()| true)
                    .map_err(|ClientGone| Error::new(CLIENT_GONE))
            }
            Verdict::Pending(_) | Verdict::Starting(_) => Err(Error::explain(
                ErrorType::InternalError,
                "a request that waited for an issuer or a namespace was not judged",
            )),
            Verdict::Refused(rejection) => {
                passage.route = rejection.route;
                self.refused(&rejection, passage);
                if let Some(sink) = &self.traces {
                    let (headers, code) = (&session.req_header().headers, rejection.code());
                    telemetry::refused(sink, rejection.route, headers, passage.started, code);
                }
                Box::pin(respond::rejection(session, &rejection, &envelope))
                    .await
                    .map(|()| true)
                    .map_err(|ClientGone| Error::new(CLIENT_GONE))
            }
        }
    }

    async fn proxy_upstream_filter(
        &self,
        session: &mut Session,
        passage: &mut RequestContext,
    ) -> Result<bool> {
        let Some(mut admitted) = passage.admitted.take() else {
            return Err(Error::explain(
                ErrorType::InternalError,
                "handed over without admission",
            ));
        };
        let request_id = passage.request_id.clone().unwrap_or_default();
        let cors = admitted.cors.clone();
        let headers = passage.headers.clone();
        passage.permit = admitted.permit.take();
        let budget = budget_note(&passage.rules.admission, &mut admitted);
        passage.budget.clone_from(&budget);
        let principal = admitted.principal.as_ref().map(|it| it.name());
        let answers = AnswerAccount::new(&self.answers, principal, admitted.client);
        let mut envelope = Envelope {
            request_id: &request_id,
            cors: cors.as_ref(),
            write_timeout: passage.rules.write_timeout,
            newline: passage.newline,
            edits: headers.as_deref().map(|headers| &headers.response),
            budget: budget.as_deref(),
            answers: Some(&answers),
            claim: None,
        };
        let is_tls = tls_of(session).is_some();
        let login = match admitted.route.id {
            RouteId::Api => {
                let left = passage.lasting.as_ref().and_then(CredentialValidity::left);
                let header = session.req_header();
                self.web_sessions.answer(header, is_tls, left)
            }
            _ => None,
        };
        let outcome = match admitted.route.id {
            RouteId::Metrics => Ok(Some(self.exposition())),
            // The future is boxed to keep the future of usual responses small.
            RouteId::FrontProbe => Box::pin(self.probed(session, passage, &admitted))
                .await
                .map(Some),
            RouteId::WebLogin => Box::pin(self.log_in(session, passage, &admitted))
                .await
                .map(Some),
            RouteId::Connect => Box::pin(self.connect(session, passage, &admitted))
                .await
                .map(Some),
            RouteId::WebPage => Ok(Some(web::page(session.req_header()))),
            RouteId::WebAsset => web::asset(session.req_header())
                .map(Some)
                .ok_or_else(|| Rejection::new(Reason::NotFound, "The web UI has no such file.")),
            _ => match login.or_else(|| resource::metadata(session, passage, &admitted)) {
                Some(document) => Ok(Some(document)),
                None => self.hand_over(session, passage, admitted).await,
            },
        };
        let outcome = outcome.and_then(|reply| reply.map(|it| envelope.counted(it)).transpose());
        let written = match outcome {
            Ok(Some(reply)) => self.write(session, passage, reply, &envelope).await,
            Ok(None) => Err(ClientGone),
            Err(mut rejection) => {
                rejection.shape = passage.shape;
                self.refused(&rejection, passage);
                Box::pin(respond::rejection(session, &rejection, &envelope))
                    .await
                    .map(|()| HandOverOutcome::Whole)
            }
        };
        match written {
            Ok(HandOverOutcome::Whole) => Ok(false),
            Ok(HandOverOutcome::Left) => Err(Error::new(LEFT)),
            Err(ClientGone) => Err(Error::new(CLIENT_GONE)),
        }
    }

    async fn upstream_peer(
        &self,
        _session: &mut Session,
        _passage: &mut RequestContext,
    ) -> Result<Box<HttpPeer>> {
        Err(Error::explain(
            ErrorType::InternalError,
            "nothing leaves the process in this version",
        ))
    }

    async fn fail_to_proxy(
        &self,
        session: &mut Session,
        error: &Error,
        passage: &mut RequestContext,
    ) -> FailToProxy {
        if matches!(*error.etype(), CLIENT_GONE | LEFT) {
            return FailToProxy {
                error_code: passage.left_with.unwrap_or(STATUS_CLIENT_GONE),
                can_reuse_downstream: false,
            };
        }
        tracing::error!(request_id = %passage.request_id(), %error, "a request failed inside the gateway");
        let envelope = Envelope {
            request_id: passage.request_id(),
            cors: None,
            write_timeout: passage.rules.write_timeout,
            newline: passage.newline,
            edits: passage.headers.as_deref().map(|headers| &headers.response),
            budget: None,
            answers: None,
            claim: None,
        };
        if session.response_written().is_none() {
            let _ = respond::internal_error(session, passage.shape, &envelope).await;
        }
        FailToProxy {
            error_code: 500,
            can_reuse_downstream: false,
        }
    }

    /// Turns off Pingora's own log message: each failure is logged where it is handled.
    fn suppress_error_log(
        &self,
        _session: &Session,
        _passage: &RequestContext,
        _error: &Error,
    ) -> bool {
        true
    }

    async fn logging(
        &self,
        session: &mut Session,
        _error: Option<&Error>,
        passage: &mut RequestContext,
    ) {
        let elapsed = passage.started.elapsed();
        let written = || {
            let response = session.response_written()?;
            Some(response.status.as_u16())
        };
        let status = passage
            .left_with
            .or_else(written)
            .unwrap_or(STATUS_CLIENT_GONE);
        self.metrics.answered(passage.route, status, elapsed);
        if let Some(mut logged) = passage.logged.take() {
            if status == STATUS_CLIENT_GONE {
                logged.entry.because("client_left");
            }
            let bytes = session.downstream_session.body_bytes_sent();
            logged.answered(status, bytes as u64, elapsed);
        }
        tracing::debug!(
            request_id = %passage.request_id(),
            route = passage.route,
            status,
            elapsed_us = elapsed.as_micros() as u64,
            "answered"
        );
    }
}
