//! Runs the admission checks on a request head, with the rules of its listener and the gateway's current state.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use pingora_core::{Error, ErrorType, Result};
use pingora_proxy::Session;
use tooldock_base::names::NamespaceName;
use tooldock_filters::{
    Access, AdmissionAttempt, AdmittedHead, CredentialFailure, Directory, Fields, Peer,
    PeerCertificate, Reason, Rejection, Verdict, network,
};
use tooldock_workers::registry::{Namespace, UpstreamKind};
use tooldock_workers::scan;

use super::credential_validity::CredentialValidity;
use super::{Gateway, RequestContext};
use crate::connection;
use crate::replicas::ForwardedFrom;
use crate::rules::{GatewayListener, Rules, listener_at};
use crate::tls::{ShownCertificate, TlsConnection};

/// Kind of server behind the namespace of an admitted request, as far as the edge must distinguish it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum NamespaceServer {
    /// The namespace's tools run in processes of this gateway.
    #[default]
    Processes,
    /// The namespace is a remote server, to which headers of the client may be sent.
    RemoteServer,
    /// The request concerns all namespaces or an aggregate. Each of these namespaces checks the client itself, and may be a
    /// remote server.
    OtherNamespaces,
}

impl NamespaceServer {
    fn of(namespace: &Namespace) -> Self {
        match namespace.upstream {
            UpstreamKind::Remote(_) => Self::RemoteServer,
            UpstreamKind::Aggregate(_) => Self::OtherNamespaces,
            _ => Self::Processes,
        }
    }
}

/// The gateway's current state, as the admission checks query it.
struct AdmissionState<'a> {
    gateway: &'a Gateway,
    /// Kind of server behind the namespace to which access was granted last.
    leads_to: Cell<NamespaceServer>,
}

impl AdmissionState<'_> {
    /// Returns a principal's access to a namespace; `None` if no such namespace is served.
    fn served(&self, name: &str, principal: &str) -> Option<Access> {
        let snapshot = self.gateway.registry.load();
        let namespace = snapshot.namespaces.get(name)?;
        if !namespace.policy.allows_principal(principal) {
            return Some(Access::Forbidden);
        }
        self.leads_to.set(NamespaceServer::of(namespace));
        Some(Access::Granted(namespace.name.clone()))
    }
}

impl Directory for AdmissionState<'_> {
    fn namespace(&self, name: &str, principal: &str) -> Access {
        if let Some(access) = self.served(name, principal) {
            return access;
        }
        let registry = &self.gateway.registry;
        match name.parse() {
            Ok(name) if registry.awaits(&name) => Access::Starting(name),
            // The namespace is looked up again, as it may have been published since the first look-up.
            _ => self.served(name, principal).unwrap_or(Access::Unknown),
        }
    }

    fn is_starting(&self) -> bool {
        self.gateway.registry.startup().is_running()
    }

    fn has_folder(&self, name: &NamespaceName) -> bool {
        scan::has_folder(&self.gateway.tools_dir, name)
    }

    fn session_version(&self, session_id: &str, principal: &str) -> Option<&'static str> {
        self.gateway
            .service
            .session_version(session_id, Some(principal))
            .map(|version| version.as_str())
    }

    fn session_namespace(&self, session_id: &str) -> Option<NamespaceName> {
        self.gateway.service.session_namespace(session_id)
    }

    fn passes_header(&self, name: &str) -> bool {
        self.gateway.registry.passes_header(name)
    }
}

impl Gateway {
    /// Runs the admission checks on a request head.
    ///
    /// # Errors
    ///
    /// If the configuration in force no longer has the listener that received the request, so that no rules are known for it.
    pub(super) fn admit(
        &self,
        session: &Session,
        fields: &Fields<'_>,
        passage: &mut RequestContext,
        asked: AdmissionAttempt,
    ) -> Result<Verdict> {
        let rules = Arc::clone(&passage.rules);
        let listener = asked_listener(&rules, passage.arrival.as_deref(), session)?;
        passage.profile = Some(Arc::clone(&listener.profile));
        let header = session.req_header();
        let peer = passage.peer(session);
        let live = AdmissionState {
            gateway: self,
            leads_to: Cell::default(),
        };
        let verdict = rules.admission.admit(&tooldock_filters::AdmissionRequest {
            parts: header,
            fields,
            // The number of header bytes is only known for requests of clients: a forwarded request also contains headers that
            // the forwarding replica has added.
            header_bytes: session
                .as_http1()
                .filter(|_| passage.arrival.is_none())
                .map_or_else(
                    || tooldock_filters::head::header_bytes(header),
                    |h1| h1.get_headers_raw_bytes().len(),
                ),
            peer,
            certificate: passage.certificate(session),
            listener: &listener.rules,
            directory: &live,
            asked,
            forwarded: passage.arrival.is_some(),
        });
        // A public path admits every client without a check, which says nothing about the client.
        let is_let_in = matches!(&verdict, Verdict::Admitted(admitted)
            if admitted.principal.is_some() || admitted.namespace.is_some());
        let noted = connection::note_admitted(is_let_in);
        if let (false, Some(tls)) = (noted, tls_of(session)) {
            tls.note_admitted(is_let_in);
        }
        if let Verdict::Admitted(admitted) = &verdict {
            let principal = admitted.principal.as_deref();
            passage.lasting = principal.and_then(|it| CredentialValidity::of(it, self));
        }
        passage.leads_to = match &verdict {
            Verdict::Admitted(admitted) if admitted.is_for_all_namespaces() => {
                NamespaceServer::OtherNamespaces
            }
            _ => live.leads_to.get(),
        };
        Ok(verdict)
    }

    /// Returns true if the decision on a request may have changed since it was admitted: rules or namespaces have changed, or its
    /// credential is no longer valid.
    fn is_outdated(&self, passage: &RequestContext) -> bool {
        let same_rules = self.service.readmissions() == passage.readmissions
            && self.registry.load().generation == passage.generation;
        let lasting = passage.lasting.as_ref();
        !same_rules || !lasting.is_none_or(|it| it.counts(self))
    }

    /// Repeats the admission after the request's body has arrived, if rules, namespaces or the credential have changed meanwhile.
    /// Returns `None` if nothing has changed.
    pub(super) fn admit_after_body(
        &self,
        session: &Session,
        passage: &mut RequestContext,
    ) -> std::result::Result<Option<AdmittedHead>, Rejection> {
        match self.is_outdated(passage) {
            true => self.admit_anew(session, passage).map(Some),
            false => Ok(None),
        }
    }

    /// Repeats the admission of a long stream right after it was opened, if the rules have changed since its request was
    /// admitted: the change has ended only the streams that were open at that time.
    pub(super) fn admit_again(
        &self,
        session: &Session,
        passage: &mut RequestContext,
    ) -> std::result::Result<(), Rejection> {
        if self.service.readmissions() == passage.readmissions {
            return Ok(());
        }
        self.admit_anew(session, passage).map(|_| ())
    }

    /// Waits until the namespace of a request has started or has taken too long, and then decides on the request by the rules and
    /// namespaces of that time.
    ///
    /// # Errors
    ///
    /// The errors of [`Gateway::admit`].
    pub(super) async fn admit_when_up(
        &self,
        session: &Session,
        fields: &Fields<'_>,
        passage: &mut RequestContext,
        name: &NamespaceName,
    ) -> Result<Verdict> {
        self.registry.wait_for(name).await;
        self.renew(passage);
        self.admit(session, fields, passage, AdmissionAttempt::Last)
    }

    /// Returns the verdict on a request whose credential a page or an issuer has given in place of the client. If the verdict
    /// depends on the issuer of the token, asks the issuer first. `not_found`: the message if the request is for no route.
    pub(super) async fn settled_verdict(
        &self,
        session: &Session,
        passage: &mut RequestContext,
        not_found: &'static str,
    ) -> std::result::Result<Verdict, Rejection> {
        let fields = Fields::of(&session.req_header().headers);
        // The flood guard has already counted the request.
        let mut attempt = AdmissionAttempt::Again;
        let mut waited = 0;
        loop {
            let judged = self.admit(session, &fields, passage, attempt);
            let verdict = judged.map_err(|_| Rejection::new(Reason::NotFound, not_found))?;
            let Verdict::Pending(pending) = &verdict else {
                return Ok(verdict);
            };
            waited += 1;
            let client = passage
                .rules
                .admission
                .client_address(passage.peer(session), &fields);
            attempt = Box::pin(self.issuers.settle(pending, client, waited)).await;
        }
    }

    /// Loads the newest rules for a request whose admission is repeated.
    pub(super) fn renew(&self, passage: &mut RequestContext) {
        // The numbers of changes are read before the rules: the rules may then be newer than the numbers, but never older.
        passage.readmissions = self.service.readmissions();
        passage.generation = self.registry.load().generation;
        passage.rules = self.rules.load_full();
    }

    fn admit_anew(
        &self,
        session: &Session,
        passage: &mut RequestContext,
    ) -> std::result::Result<AdmittedHead, Rejection> {
        self.renew(passage);
        // The old permit is released first, since the request would otherwise count twice.
        passage.permit = None;
        let fields = Fields::of(&session.req_header().headers);
        match self.admit(session, &fields, passage, AdmissionAttempt::Last) {
            Ok(Verdict::Admitted(admitted)) => Ok(admitted),
            Ok(Verdict::Refused(rejection)) => Err(rejection),
            Ok(Verdict::Answered(_) | Verdict::Pending(_) | Verdict::Starting(_)) | Err(_) => {
                Err(Rejection::new(
                    Reason::BadRequest,
                    "The rules of this server changed while the request was answered; send it again.",
                ))
            }
        }
    }

    /// Counts and logs a refusal. The log contains the cause, which the response does not.
    pub(super) fn refused(&self, rejection: &Rejection, passage: &mut RequestContext) {
        self.metrics.refused(rejection.code());
        if let Some(failure) = &rejection.failure {
            self.credential_failed(failure);
        }
        if let Some(logged) = &mut passage.logged {
            logged.entry.refused(rejection);
        }
        if let Some(trace) = &passage.trace {
            trace.failed(rejection.code());
        }
        tracing::debug!(
            request_id = %passage.request_id(),
            code = rejection.code(),
            cause = rejection.cause,
            principal = rejection.principal.as_deref(),
            message = %rejection.message,
            "refused"
        );
    }

    /// Counts a wrong credential. If its client is delayed from now on, the begin of the delay is logged.
    pub(super) fn credential_failed(&self, failure: &CredentialFailure) {
        self.metrics.credential_failed(failure.delayed);
        if failure.spell_began {
            tracing::warn!(
                client = %network::address_text(failure.client),
                "wrong credentials come often from this address, or for one user name: from now on they are slowed; right ones are not"
            );
        }
    }
}

/// Returns the peer of the request's connection: the client, or a proxy.
fn peer_of(session: &Session) -> Peer {
    let address = session.client_addr().and_then(|address| address.as_inet());
    let address = address.map_or(network::UNIX, |address| address.ip());
    Peer {
        address,
        names_no_client: session
            .client_addr()
            .is_some_and(connection::names_no_client),
    }
}

/// Returns the TLS state of the request's connection; `None` without TLS.
pub(super) fn tls_of(session: &Session) -> Option<&TlsConnection> {
    let tls = session.digest()?.ssl_digest.as_ref()?;
    tls.extension.get::<TlsConnection>()
}

impl RequestContext {
    /// Returns the listener that the client used, which for a forwarded request is one of the replica that received it.
    pub(super) fn listener(&self, session: &Session) -> Result<&GatewayListener> {
        asked_listener(&self.rules, self.arrival.as_deref(), session)
    }

    /// Returns the peer of the client's connection, which for a forwarded request is that of the replica that received it.
    pub(super) fn peer(&self, session: &Session) -> Peer {
        let arrival = self.arrival.as_ref();
        arrival.map_or_else(|| peer_of(session), |arrival| arrival.peer)
    }

    /// Returns the client's certificate, which for a forwarded request was checked by the replica that received it.
    fn certificate<'a>(&'a self, session: &'a Session) -> PeerCertificate<'a> {
        match &self.arrival {
            Some(arrival) => {
                let shown = arrival.certificate.as_ref();
                shown.map_or(PeerCertificate::Nothing, ShownCertificate::certificate)
            }
            None => tls_of(session).map_or(PeerCertificate::Nothing, TlsConnection::certificate),
        }
    }

    /// Returns the client's certificate in the form in which it is sent to another replica with a forwarded request.
    pub(super) fn shown_certificate(&self, session: &Session) -> Option<ShownCertificate> {
        match &self.arrival {
            Some(arrival) => arrival.certificate.clone(),
            None => tls_of(session)?.shown(),
        }
    }

    /// Returns the time for which the client's certificate is still valid; `None` without a certificate.
    pub(super) fn certificate_counts_for(&self, session: &Session) -> Option<Duration> {
        match &self.arrival {
            Some(arrival) => Some(arrival.certificate.as_ref()?.counts_for()),
            None => tls_of(session)?.counts_for(),
        }
    }
}

fn asked_listener<'a>(
    rules: &'a Rules,
    arrival: Option<&ForwardedFrom>,
    session: &Session,
) -> Result<&'a GatewayListener> {
    let Some(arrival) = arrival else {
        return listener_of(&rules.listeners, session);
    };
    let mut listeners = rules.listeners.iter();
    let found = listeners.find(|it| *it.name == *arrival.listener);
    found.ok_or_else(|| {
        Error::explain(
            ErrorType::InternalError,
            "a forwarded request of a listener that is gone",
        )
    })
}

/// Returns the listener that received a request. If there is a single listener, nothing is looked up.
fn listener_of<'a>(
    listeners: &'a [GatewayListener],
    session: &Session,
) -> Result<&'a GatewayListener> {
    if let [only] = listeners {
        return Ok(only);
    }
    listener_at(listeners, session.server_addr()).ok_or_else(|| {
        Error::explain(
            ErrorType::InternalError,
            "a connection that belongs to no listener",
        )
    })
}
