//! The checks that every request must pass, in order. [`Admission::admit`] runs them; each check is a function in a file of its
//! own. The checks read no body, do not wait, and do not write the response.
//!
//! The first check that fails decides the response, and later checks do not run. So the order is part of the contract: cheap
//! checks of the address precede credentials, only admitted principals learn whether a path exists, and the namespace is
//! determined before anything about the body is checked.

use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::Arc;

use governor::clock::{Clock, MonotonicClock};
use http::Method;
use tooldock_base::budget::Budget;
use tooldock_base::names::NamespaceName;
use tooldock_base::namespace_scope::NamespaceScope;
use tooldock_base::route::RouteId;
use tooldock_base::scope::ScopeTable;
use tooldock_credentials::keys::KeyTables;

use crate::bearer::{BearerTokens, Unknown};
use crate::certificate::{Certificates, PeerCertificate};
use crate::concurrency::{Concurrency, Permit};
use crate::config::{AdmissionConfig, ConfigError};
use crate::failures::Failures;
use crate::fields::{Field, Fields};
use crate::flood::FloodGuard;
use crate::host::HostPattern;
use crate::limits::{CountedBy, LimitExceeded, LimitUse, RateLimits, Subject};
use crate::manager::ManagerControls;
use crate::media::AcceptFlags;
use crate::namespace::RequestNamespace;
use crate::network::Peer;
use crate::oauth::{Needs, Oauth, Pending};
use crate::origin::{Answer, CorsHeaders, Openness};
use crate::principal::{ANONYMOUS, BEARER, Principal};
use crate::rejection::{CredentialFailure, ErrorShape, Rejection};
use crate::request::{AdmissionAttempt, AdmissionRequest, Auth};
use crate::route::{MatchedRoute, RouteAccess, RouteNamespace, RouteSpec};
use crate::token::SecretToken;
use crate::{basic, csrf, head, host, media, namespace, network, oauth, origin, route};

/// The admission rules, compiled from the configuration. All listeners share one instance, so that a limit applies to all of
/// them together.
#[derive(Debug)]
pub struct Admission<C: Clock = MonotonicClock> {
    config: AdmissionConfig,
    tokens: BearerTokens,
    certificates: Certificates,
    manager: ManagerControls,
    flood: FloodGuard<C>,
    failures: Failures<C>,
    limits: RateLimits<C>,
    concurrency: Concurrency,
    /// Host of `admission.public_url`, which every listener accepts; `None` if the key is `off`.
    public_host: Option<HostPattern>,
}

/// The decision of the admission checks about a request.
#[derive(Debug)]
pub enum Verdict {
    /// The request is passed to the service.
    Admitted(AdmittedHead),
    /// The admission layer answers the request itself: a CORS preflight, or another `OPTIONS` request.
    Answered(Answer),
    /// The request is refused.
    Refused(Rejection),
    /// The request has to wait for its token's issuer: the issuer's keys, or its answer about the token, must be fetched first.
    /// Then the request is checked again.
    Pending(Pending),
    /// The request has to wait, since its namespace is still starting. Once the namespace is served, or the time limit for that
    /// has passed, the request is checked for the last time.
    Starting(NamespaceName),
}

/// An admitted request.
#[derive(Debug, Clone)]
pub struct AdmittedHead {
    /// The entry of the route table that matches the request's path.
    pub route: &'static RouteSpec,
    /// Tool name from the request's path; `None` if the path contains none.
    pub tool: Option<String>,
    /// The remainder of the path below the route, decoded; `None` for routes that match only a complete path.
    pub rest: Option<String>,
    /// True if the request's path contains the namespace's name; false if a header or the listener's configuration selects it.
    pub namespace_in_path: bool,
    /// The principal that sends the request; `None` for a client without credentials on a public path.
    pub principal: Option<Arc<Principal>>,
    /// The namespace that the request is for; `None` on paths that belong to no namespace.
    pub namespace: Option<NamespaceName>,
    /// The client's IP address. Behind a trusted proxy this is the address that the proxy reports.
    pub client: IpAddr,
    /// CORS headers for the response, if the request comes from a page of another origin that may read it.
    pub cors: Option<CorsHeaders>,
    /// True if the request carries the manager's token (`MANAGER_INTERNAL_TOKEN`).
    pub manager: bool,
    /// The media types that the client accepts. A later check, which needs the body, uses them; [`AcceptFlags::ANY`] outside
    /// `/mcp`.
    pub accept: AcceptFlags,
    /// The request's permit under the limits on concurrent requests. It must be kept until the request is answered.
    pub permit: Option<Arc<Permit>>,
    /// The remaining budget of the tightest rate limit that has counted the request.
    pub budget: Option<Budget>,
    /// Record of a wrong credential in a request that is admitted nevertheless, such as a health check.
    pub failure: Option<CredentialFailure>,
    /// True if a health check is answered with its status alone; false if the answer may also contain details. Can be true even
    /// if the listener shows details to all clients: for a request from a foreign page, or beyond the flood limit.
    pub status_only: bool,
}

impl AdmittedHead {
    /// Creates the result for an admitted request on a path that needs no credential.
    fn without_credential(route: &'static RouteSpec, client: IpAddr) -> Self {
        Self {
            route,
            tool: None,
            rest: None,
            namespace_in_path: false,
            principal: None,
            namespace: None,
            client,
            cors: None,
            manager: false,
            accept: AcceptFlags::ANY,
            permit: None,
            budget: None,
            failure: None,
            status_only: false,
        }
    }

    /// Returns true if the request addresses all namespaces together, not a single one.
    pub fn is_for_all_namespaces(&self) -> bool {
        let namespace = self.namespace.as_ref();
        namespace.is_some_and(NamespaceName::is_global)
    }
}

/// Facts about a request that the checks have found when one of them refuses it. The refusal's log line and answer contain them.
#[derive(Default)]
struct RefusalFacts {
    route: Option<&'static RouteSpec>,
    cors: Option<CorsHeaders>,
    principal: Option<Arc<Principal>>,
}

impl Admission {
    /// Compiles the admission rules from a configuration. `bearer` and `manager` are the values of `BEARER_TOKEN` and
    /// `MANAGER_INTERNAL_TOKEN`; `None` if they are not set.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] names the key that cannot be used.
    pub fn new(
        config: &AdmissionConfig,
        bearer: Option<SecretToken>,
        manager: Option<SecretToken>,
    ) -> Result<Self, ConfigError> {
        Self::with_clock(config, bearer, manager, MonotonicClock)
    }
}

impl<C: Clock + Clone> Admission<C> {
    /// Compiles the admission rules as [`Admission::new`] does, but with a given clock for all limits.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] names the key that cannot be used.
    pub fn with_clock(
        config: &AdmissionConfig,
        bearer: Option<SecretToken>,
        manager: Option<SecretToken>,
        clock: C,
    ) -> Result<Self, ConfigError> {
        config.validate()?;
        let tokens =
            BearerTokens::new(&config.tokens, bearer.as_ref()).map_err(|message| ConfigError {
                key: "admission.tokens".into(),
                message,
            })?;
        let certificates =
            Certificates::new(&config.certificates).map_err(|message| ConfigError {
                key: "admission.certificates".into(),
                message,
            })?;
        Ok(Self {
            tokens,
            certificates,
            manager: ManagerControls::new(config.internal_cidrs.clone(), manager),
            limits: RateLimits::new(&config.rate_limits, &clock),
            concurrency: Concurrency::new(&config.limits.concurrency),
            failures: Failures::new(&config.failures, clock.clone()),
            flood: FloodGuard::new(&config.flood, clock),
            public_host: config.public_url.host(),
            config: config.clone(),
        })
    }
}

impl<C: Clock + Clone> Admission<C> {
    /// Takes over state from the rules of the previous configuration: the counts of running requests, the counts of wrong
    /// credentials, and the keys and cached verdicts of OAuth issuers.
    #[must_use]
    pub fn after(mut self, before: &Self) -> Self {
        self.failures.take_over(&before.failures);
        self.concurrency.take_over(&before.concurrency);
        self.tokens.oauth.take_over(&before.tokens.oauth);
        self
    }

    /// Shares the limits on requests and tool calls with other replicas of the gateway. The caller has to send them the use of
    /// these limits, see [`Admission::take_use`].
    #[must_use]
    pub fn shared_by_replicas(mut self) -> Self {
        self.limits = self.limits.shared(&self.config.rate_limits);
        self
    }

    /// Accepts access tokens of the issuers in `admission.oauth`, in addition to other credentials. `table` contains the scopes
    /// of the gateway, to which the configuration maps the issuers' scopes.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] names the key that cannot be used.
    pub fn with_issuers(mut self, table: &ScopeTable) -> Result<Self, ConfigError> {
        self.tokens.oauth =
            Oauth::new(&self.config, table).map_err(|(key, message)| ConfigError {
                key: format!("admission.{key}"),
                message,
            })?;
        Ok(self)
    }

    /// The issuers whose access tokens are accepted.
    pub fn oauth(&self) -> &Oauth {
        &self.tokens.oauth
    }

    /// Accepts API keys, in addition to other credentials. Each request looks its key up in the current tables.
    #[must_use]
    pub fn with_keys(mut self, keys: KeyTables) -> Self {
        self.tokens.set_keys(keys);
        self
    }

    /// Checks a request and decides whether it is admitted.
    pub fn admit(&self, request: &AdmissionRequest<'_>) -> Verdict {
        let mut known = RefusalFacts::default();
        self.checks(request, &mut known)
            .unwrap_or_else(|mut rejection| {
                if request.listener.basic.is_some() {
                    if basic::is_navigation(request, known.route) {
                        basic::ask(&mut rejection);
                    }
                } else if rejection.needs_another_token() {
                    self.tokens.oauth.challenge(request, &mut rejection);
                }
                let path = request.parts.uri.path();
                // To a client without credentials, every path that may be an alias of an MCP endpoint returns errors in the
                // endpoint's format. So the format of an error does not reveal which aliases exist.
                let may_be_alias = || {
                    let listener = request.listener;
                    known.principal.is_none() && listener.aliases.may_have(path, listener.routes)
                };
                rejection.route = known.route.map_or(rejection.route, |route| route.label);
                rejection.shape = match known.route {
                    Some(route) => route.error_shape(),
                    None if may_be_alias() => ErrorShape::Mcp,
                    None => ErrorShape::of_path(path),
                };
                // Without CORS headers, a web page of another origin could not read the reason of the refusal.
                if let Some(cors) = known.cors {
                    rejection.headers.extend(cors.headers());
                }
                rejection.principal = known.principal.map(|it| Arc::clone(&it.name));
                Verdict::Refused(rejection)
            })
    }

    /// Returns true if the request has one header `Origin`, and it is the origin of `admission.public_url`: a page of the gateway
    /// has sent the request. False otherwise.
    fn is_public_origin(&self, fields: &Fields<'_>) -> bool {
        let Field::Once(origin) = fields.origin else {
            return false;
        };
        let public = self.config.public_url.origin();
        public.is_some_and(|public| origin.as_bytes() == public.as_bytes())
    }

    /// Runs all admission checks in order. Stores facts for the log line of a refusal in `known`.
    fn checks(
        &self,
        request: &AdmissionRequest<'_>,
        known: &mut RefusalFacts,
    ) -> Result<Verdict, Rejection> {
        let AdmissionRequest {
            parts,
            fields,
            listener,
            directory,
            ..
        } = *request;

        head::check(parts, fields, request.header_bytes, &self.config.limits)?;

        let client = network::client_address(request.peer, fields, &self.config.trusted_proxies);
        network::check(client, &self.config.cidrs)?;

        let path = parts.uri.path();
        let found = listener.routes.find_with(path, &listener.aliases);
        known.route = found.as_ref().map(|found| found.spec);
        match known.route.filter(|it| it.access == RouteAccess::Probe) {
            // Load balancers send health checks to an IP address, not to a name of the listener. So the Host header of a health
            // check may have any well-formed value.
            Some(route) => {
                host::check_probe(parts, fields)?;
                let is_options = parts.method == Method::OPTIONS;
                if !is_options && route.check_method(&parts.method).is_ok() {
                    return Ok(Verdict::Admitted(self.probe(request, route, client)));
                }
            }
            None => self.check_host(request)?,
        }
        if request.asked == AdmissionAttempt::First && !request.forwarded {
            self.flood.check(client)?;
        }

        let is_connect = known.route.is_some_and(|it| it.id == RouteId::Connect);
        let own_page = match is_connect {
            true => origin::is_own(parts, fields) || self.is_public_origin(fields),
            false => listener.basic.is_some() && origin::is_own(parts, fields),
        };
        if !own_page {
            known.cors = origin::check(fields, &self.config.origins, listener.openness())?;
        }
        // Preflights need no credential and must not reveal which aliases exist. So every path that could be an alias of an
        // MCP endpoint is answered as if it were one.
        let may_be_alias = || listener.aliases.may_have(path, listener.routes);
        let endpoint = || {
            let endpoint = listener.routes.find_of_alias(path);
            endpoint.map(|endpoint| endpoint.spec)
        };
        let asked_for = match known.route {
            None if may_be_alias() => endpoint(),
            route => route,
        };
        if let Some(route) = asked_for
            && let Some(answer) = origin::preflight(parts, route, known.cors.as_ref(), directory)
        {
            return Ok(Verdict::Answered(answer));
        }

        if let Some(route) = known.route
            && matches!(route.access, RouteAccess::Public | RouteAccess::Probe)
        {
            route.check_method(&parts.method)?;
            if route.id == RouteId::WebLogin {
                csrf::check_login(&parts.method, own_page, fields)?;
            }
            if is_connect {
                csrf::check_form(&parts.method, own_page, fields)?;
            }
            return Ok(if parts.method == Method::OPTIONS {
                Verdict::Answered(origin::options(route))
            } else {
                Verdict::Admitted(AdmittedHead {
                    rest: found
                        .as_ref()
                        .map(MatchedRoute::rest)
                        .transpose()?
                        .flatten(),
                    cors: known.cors.take(),
                    ..AdmittedHead::without_credential(route, client)
                })
            });
        }

        let principal = match self.principal(request, client) {
            Ok(principal) => &*known.principal.insert(principal),
            Err(Unknown::Refused(rejection)) => return Err(rejection),
            Err(Unknown::Wrong(rejection)) => {
                return Err(self.failures.refuse(request, client, rejection));
            }
            Err(Unknown::Unjudged) => return Err(Rejection::issuer_silent()),
            Err(Unknown::Pending(pending)) => match (request.asked, pending.needs) {
                (AdmissionAttempt::Last, _) => return Err(Rejection::issuer_silent()),
                (AdmissionAttempt::ByNewestKeys, Needs::Keys) => {
                    let rejection = Rejection::by_unknown_key();
                    return Err(self.failures.refuse(request, client, rejection));
                }
                _ => return Ok(Verdict::Pending(pending)),
            },
        };

        let found = found.ok_or_else(|| route::not_found(parts.uri.path()))?;
        let route = found.spec;
        route.check_method(&parts.method)?;
        if listener.modern {
            route.check_modern_method(&parts.method, fields)?;
        }
        if parts.method == Method::OPTIONS {
            return Ok(Verdict::Answered(origin::options(route)));
        }

        if listener.basic.is_some() || route.access == RouteAccess::Internal {
            csrf::check(&parts.method, fields)?;
        }

        oauth::check_scopes(principal)?;

        let settle_namespace = || match route.namespace {
            RouteNamespace::None => Ok(None),
            _ => namespace::admitted(
                &listener.namespace,
                parts,
                fields,
                &found,
                principal,
                directory,
            )
            .map(Some),
        };
        // This check precedes all counting. A request that waits for its namespace is checked twice, but so counted only once.
        if directory.is_starting()
            && request.asked != AdmissionAttempt::Last
            && let Ok(Some(RequestNamespace::Starting(name))) = settle_namespace()
        {
            return Ok(Verdict::Starting(name));
        }

        let mut subject = Subject {
            principal: &principal.name,
            client,
            namespace: None,
            tool: None,
            own: principal.limits(),
            key: principal.grant().and_then(|it| Some(&**it.key_id()?)),
        };
        let budget = match request.forwarded {
            true => None,
            false => self.limits.check_request(subject)?,
        };
        let permit = match place(route, &parts.method) {
            CountingMoment::AtOnce => self.concurrency.enter(&principal.name, client)?,
            CountingMoment::ByMessage | CountingMoment::None => None,
        };

        let namespace = match settle_namespace()? {
            None => None,
            Some(RequestNamespace::Served(name)) => Some(name),
            Some(RequestNamespace::Starting(name)) => return Err(Rejection::starting(&name)),
        };
        subject.namespace = namespace.as_ref();
        let of_namespace = match request.forwarded {
            true => None,
            false => self.limits.check_namespace_request(subject)?,
        };
        let budget = match of_namespace {
            Some(of_namespace) => Some(Budget::tighter(budget, of_namespace)),
            None => budget,
        };

        if route.access == RouteAccess::Internal {
            self.manager.check_address(client)?;
        }
        let manager = if route.access == RouteAccess::Manager {
            self.manager.check(client, fields).map_err(|rejection| {
                match fields.manager_token.is_absent() {
                    true => rejection,
                    false => self.failures.refuse(request, client, rejection),
                }
            })?;
            true
        } else {
            self.manager.token_presented(fields)
        };

        media::check_content_type(&parts.method, fields, route)?;
        let accept = media::check_accept(
            &parts.method,
            fields,
            route,
            listener.accept,
            (directory, &principal.name),
        )?;
        media::check_body_size(fields, self.config.limits.body.as_u64())?;

        Ok(Verdict::Admitted(AdmittedHead {
            route,
            tool: found.name()?.map(Cow::into_owned),
            rest: found.rest()?,
            namespace_in_path: found.names_namespace(),
            principal: known.principal.take(),
            namespace,
            client,
            cors: known.cors.take(),
            manager,
            accept,
            permit,
            budget,
            failure: None,
            status_only: false,
        }))
    }

    /// Finds the principal of a request that requires one. A token in the request decides alone, whether valid or not. Without a
    /// token, the client certificate decides, on listeners where certificates identify principals.
    fn principal(
        &self,
        request: &AdmissionRequest<'_>,
        client: IpAddr,
    ) -> Result<Arc<Principal>, Unknown> {
        let (auth, fields) = (request.listener.auth, request.fields);
        if auth != Auth::None && !fields.authorization.is_absent() {
            return match &request.listener.basic {
                Some(user) => self.tokens.authenticate_browser(user, fields, client),
                None => self.tokens.authenticate(fields, client),
            };
        }
        let listener = request.listener.certificates.as_deref();
        let principal = match (listener, request.certificate) {
            (None, _) | (_, PeerCertificate::Nothing) => None,
            (Some(_), PeerCertificate::Outdated) => {
                let outdated = "The client certificate of this connection counts no longer: it has ended, or its \
                     authorities were replaced. Connect again.";
                return Err(Rejection::unauthorized(outdated).into());
            }
            (Some(listener), PeerCertificate::Certificate(certificate)) => {
                self.certificates.principal(certificate, listener)
            }
        };
        match (principal, auth) {
            (Some(principal), _) => Ok(Arc::clone(principal)),
            (None, Auth::Optional | Auth::None) => Ok(Arc::clone(self.tokens.anonymous())),
            (None, Auth::Required) => {
                let refused = self.tokens.authenticate(fields, client);
                refused.map_err(|unknown| match (unknown, listener, request.certificate) {
                    (Unknown::Refused(refused), Some(_), PeerCertificate::Certificate(_)) => {
                        refused
                            .because("admission.certificates has no such certificate")
                            .into()
                    }
                    (unknown, ..) => unknown,
                })
            }
        }
    }

    /// Refuses a request whose Host is not a name that its listener accepts.
    fn check_host(&self, request: &AdmissionRequest<'_>) -> Result<(), Rejection> {
        let hosts = (&*self.config.hosts, self.public_host.as_ref());
        let loopback = request.listener.loopback;
        host::check(request.parts, request.fields, loopback, hosts)
    }

    /// Admits a health check. A wrong token does not make the check fail: the request is treated as if it had no token.
    ///
    /// Neither the Host nor the Origin header makes the check fail. But a malicious page may have rebound its own DNS name to
    /// this listener, or belong to another origin. So if the Host or the Origin is not accepted, the response contains details
    /// only if the request has a valid token, which such a page does not have. If the details need no token, `*` in
    /// `admission.origins` does not allow other pages to read them. A client certificate does not replace the token here, since
    /// browsers send it automatically.
    ///
    /// The response shows whether a token is valid. So each request with a token counts against the flood limit, and so does each
    /// request that gets the details without a token. Beyond the limit, only the status is returned. A wrong token is recorded as
    /// a failed credential of the client.
    fn probe(
        &self,
        request: &AdmissionRequest<'_>,
        route: &'static RouteSpec,
        client: IpAddr,
    ) -> AdmittedHead {
        let AdmissionRequest {
            parts,
            fields,
            listener,
            ..
        } = *request;
        let origins = &self.config.origins;
        let cors = origin::check(fields, origins, listener.openness());
        let own_page = listener.basic.is_some() && origin::is_own(parts, fields);
        let openness = match listener.openness() {
            Openness::Closed if listener.tells_details_to_strangers() => Openness::ToEverybody,
            openness => openness,
        };
        let no_strange_page = (own_page || origin::check(fields, origins, openness).is_ok())
            && self.check_host(request).is_ok();
        let mut admitted = AdmittedHead {
            cors: cors.ok().flatten(),
            ..AdmittedHead::without_credential(route, client)
        };
        let silent = fields.authorization.is_absent() && fields.manager_token.is_absent();
        let counted = !silent || (no_strange_page && listener.tells_details_to_strangers());
        if counted && self.flood.check(client).is_err() {
            admitted.status_only = true;
            return admitted;
        }
        admitted.manager = self.manager.token_presented(fields);
        let principal = self.principal(request, client);
        let wrong = matches!(principal, Err(Unknown::Wrong(_)))
            || (!admitted.manager && !fields.manager_token.is_absent());
        admitted.failure = wrong.then(|| self.failures.note(request, client)).flatten();
        let reads_tokens = listener.auth != Auth::None && !fields.authorization.is_absent();
        let has_token = admitted.manager || (reads_tokens && principal.is_ok());
        admitted.status_only = !no_strange_page && !has_token;
        admitted.principal = principal.ok().filter(|_| !admitted.status_only);
        admitted
    }

    /// Returns true if the request must be counted by [`Admission::enter`] once its body is known. The caller does not count a
    /// message that a running call may wait for (an answer or a cancellation).
    pub fn counts_messages(&self, admitted: &AdmittedHead, method: &Method) -> bool {
        self.concurrency.is_on() && place(admitted.route, method) == CountingMoment::ByMessage
    }

    /// Finds the principal with this name among tokens and certificates. Returns it with the patterns of the namespaces that it
    /// may use.
    pub fn named(&self, name: &str) -> Option<(Arc<Principal>, Vec<String>)> {
        if name == ANONYMOUS {
            return Some((Arc::clone(self.tokens.anonymous()), vec!["*".to_owned()]));
        }
        if let Some(bearer) = self.tokens.named(name) {
            let listed = self.config.tokens.iter().find(|token| token.name == name);
            let patterns = listed.map(|token| token.namespaces.clone());
            let everything = || ["*", "_system"].map(str::to_owned).to_vec();
            return Some((Arc::clone(bearer), patterns.unwrap_or_else(everything)));
        }
        let mut certificates = self.config.certificates.iter();
        let listed = certificates.find(|certificate| certificate.name == name)?;
        let namespaces = NamespaceScope::new(&listed.namespaces).ok()?;
        let principal = Arc::new(Principal::unlimited(name, namespaces));
        Some((principal, listed.namespaces.clone()))
    }

    /// All principals of the configuration, as pairs of a name and the kind of its credential: tokens, certificates, and the
    /// principal of requests without a credential.
    pub fn principals(&self) -> impl Iterator<Item = (&str, &'static str)> {
        let bearer = self.tokens.named(BEARER).map(|_| (BEARER, "BEARER_TOKEN"));
        let tokens = self.config.tokens.iter();
        let tokens = tokens.map(|token| (&*token.name, "token"));
        let certificates = self.config.certificates.iter();
        let certificates = certificates.map(|it| (&*it.name, "certificate"));
        let all = bearer.into_iter().chain(tokens).chain(certificates);
        all.chain([(ANONYMOUS, "none")])
    }

    /// Counts an admitted request against the limits on concurrent requests, until the returned permit is dropped.
    ///
    /// # Errors
    ///
    /// 429, if the principal or the client's address already has as many running requests as its limit allows.
    pub fn enter(&self, admitted: &AdmittedHead) -> Result<Option<Arc<Permit>>, Rejection> {
        let Some(principal) = &admitted.principal else {
            return Ok(None);
        };
        let entered = self.concurrency.enter(principal.name(), admitted.client);
        entered.map_err(|mut rejection| {
            rejection.principal = Some(Arc::clone(principal.name()));
            rejection
        })
    }

    /// The client's IP address, to which all checks apply. Behind a trusted proxy this is the address that the proxy reports.
    pub fn client_address(&self, peer: Peer, fields: &Fields<'_>) -> IpAddr {
        network::client_address(peer, fields, &self.config.trusted_proxies)
    }

    /// Returns true if the address belongs to a trusted proxy, whose `X-Forwarded-For` header is used.
    pub fn trusts_proxy(&self, peer: IpAddr) -> bool {
        network::any_contains(&self.config.trusted_proxies, peer)
    }

    /// Returns true if an address is one of `admission.internal_cidrs`.
    pub fn is_internal(&self, client: IpAddr) -> bool {
        network::any_contains(&self.config.internal_cidrs, client)
    }

    /// Returns true if the configuration contains a limit that counts tool calls.
    pub fn limits_tool_calls(&self) -> bool {
        self.limits.count_tool_calls()
    }

    /// Takes the use of the limits on requests and tool calls since the previous call of this function, to be sent to other
    /// replicas. Empty if the limits are not shared.
    pub fn take_use(&self) -> LimitUse<C> {
        self.limits.take_use()
    }

    /// Counts one tool call against all limits on tool calls, and returns the budget with the least remaining. Called by the
    /// engine, since only it has parsed the calls in a request's body.
    ///
    /// # Errors
    ///
    /// [`LimitExceeded`] with the time that the caller has to wait.
    pub fn check_tool_call(
        &self,
        subject: Subject<'_>,
        counted: CountedBy,
    ) -> Result<Option<Budget>, LimitExceeded> {
        self.limits.check_tool_call(subject, counted)
    }

    /// Counts one request against all limits on requests. Used for requests that do not arrive over HTTP.
    ///
    /// # Errors
    ///
    /// [`LimitExceeded`] with the time that the caller has to wait.
    pub fn check_request(&self, subject: Subject<'_>) -> Result<(), LimitExceeded> {
        self.limits.check_any_request(subject)
    }
}

/// The moment at which the limits on concurrent requests count a request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CountingMoment {
    /// The request is counted as soon as its principal is known.
    AtOnce,
    /// The request is counted once its message is parsed. A message that answers or cancels a running call is not counted: the
    /// call may wait for that message, and must not be blocked by a limit that it uses up itself.
    ByMessage,
    /// The request is never counted: a DELETE ends a session, and thereby releases the permits of the session's requests.
    None,
}

fn place(route: &RouteSpec, method: &Method) -> CountingMoment {
    match *method {
        Method::POST if route.is_mcp() => CountingMoment::ByMessage,
        Method::DELETE if route.is_mcp() => CountingMoment::None,
        _ => CountingMoment::AtOnce,
    }
}

#[cfg(test)]
mod tests;
