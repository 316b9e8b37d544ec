//! Logins at the web UI through an issuer of access tokens: handles the requests that the login page sends. See
//! [`crate::web_login`].
//!
//! The access token is admitted like that of a request to `/api/login`: with the same checks, limits and rights as any bearer
//! token.

use std::net::IpAddr;

use http::header::{AUTHORIZATION, ORIGIN};
use http::{HeaderValue, Method, Uri};
use pingora_proxy::Session;
use serde::de::DeserializeOwned;
use tooldock_base::secret::Secret;
use tooldock_filters::oauth::Issuer;
use tooldock_filters::{AdmittedHead, Reason, Rejection, Verdict};
use tooldock_upstream::reply::Reply;

use super::admit::tls_of;
use super::credential_validity::CredentialValidity;
use super::{Gateway, RequestContext};
use crate::body::BodyLimits;
use crate::issuers::login::LoginFailure;
use crate::web_login::{self, LoginBeginning, LoginCode};
use crate::web_session;

/// Maximum size of the body of a login request, in bytes. Authorization codes have some hundred.
const BODY_MAX: usize = 32 * 1024;

/// Error message if the issuer cannot be asked. The cause is only in the log, since the client has no credentials yet.
const UNREACHABLE: &str = "the gateway cannot ask the issuer now; its log has the cause";

/// Error message for a request that completes no login that has begun, or one that another browser has begun.
const NOT_BEGUN: &str = "This login was not begun in this browser, took longer than 10 minutes, or has ended already. Begin again.";

impl Gateway {
    /// Responds to a request below [`web_login::PATH`] that was admitted.
    pub(super) async fn log_in(
        &self,
        session: &mut Session,
        passage: &mut RequestContext,
        admitted: &AdmittedHead,
    ) -> Result<Reply, Rejection> {
        if session.req_header().method != Method::POST {
            let issuers = passage.rules.admission.oauth().issuers();
            return Ok(web_login::offered(issuers.iter().map(|it| &**it)));
        }
        // The limit is low because clients have no credentials yet; large bodies could use up the memory for all bodies.
        let limits = BodyLimits {
            bytes: BODY_MAX.min(passage.rules.bodies.bytes),
            ..passage.rules.bodies
        };
        let body = self.body_within(session, passage, limits).await?;
        match session.req_header().uri.path() {
            web_login::PATH => {
                let beginning = read(&body.bytes)?;
                self.begin_login(session, passage, admitted.client, beginning)
                    .await
            }
            _ => {
                let code = read(&body.bytes)?;
                self.end_login(session, passage, code).await
            }
        }
    }

    /// Begins a login. Returns the issuer's URL for the browser, and the values by which the issuer's response is recognized.
    async fn begin_login(
        &self,
        session: &Session,
        passage: &RequestContext,
        client: IpAddr,
        beginning: LoginBeginning,
    ) -> Result<Reply, Rejection> {
        let mut issuers = passage.rules.admission.oauth().issuers().iter();
        let issuer = issuers.find(|it| it.config().issuer == beginning.issuer);
        let Some(issuer) = issuer.filter(|it| it.config().web_login().is_some()) else {
            return Err(Rejection::new(
                Reason::NotFound,
                "No login is offered by this issuer. The operator configures it at admission.oauth[].web.",
            ));
        };
        let headers = &session.req_header().headers;
        // Admission has compared `Origin` with `Host`, and the issuer accepts registered redirect addresses only.
        let origin = headers.get(ORIGIN).and_then(|it| it.to_str().ok());
        let origin = origin.ok_or_else(|| Rejection::new(Reason::Csrf, NOT_BEGUN))?;
        let redirect = format!("{origin}{}", web_login::REDIRECT);
        let state = web_session::random().ok_or_else(no_random_numbers)?;
        let requested = self
            .issuers
            .request_authorization(issuer, redirect, &state)
            .await;
        let (address, request) = requested.map_err(|failure| refused(issuer, failure))?;
        let begun = self.begun_logins.begin(&state, client, request);
        let (cookie, proof) = begun.ok_or_else(no_random_numbers)?;
        let secure = web_session::is_secure(headers, tls_of(session).is_some());
        Ok(web_login::begun(&address, &state, &proof, &cookie, secure))
    }

    /// Completes a login: exchanges the authorization code for an access token, and opens a session of the web UI for the token.
    async fn end_login(
        &self,
        session: &mut Session,
        passage: &mut RequestContext,
        code: LoginCode,
    ) -> Result<Reply, Rejection> {
        let headers = &session.req_header().headers;
        let secure = web_session::is_secure(headers, tls_of(session).is_some());
        let request = self.begun_logins.take(&code.state, &code.proof, headers);
        let Some(request) = request else {
            return Err(Rejection::new(Reason::BadRequest, NOT_BEGUN));
        };
        // The newest rules are loaded, since the issuer's settings may have changed after the login began.
        let rules = self.rules.load_full();
        let mut issuers = rules.admission.oauth().issuers().iter();
        let Some(issuer) = issuers.find(|it| it.config() == request.config()) else {
            return Err(Rejection::new(
                Reason::BadRequest,
                "The configuration of the issuer has changed since this login began. Begin again.",
            ));
        };
        let exchanged = self
            .issuers
            .exchange(request, &code.code, code.iss.as_deref())
            .await;
        let token = exchanged.map_err(|failure| refused(issuer, failure))?;
        self.admit_token(session, passage, issuer, &token).await?;
        let left = passage.lasting.as_ref().and_then(CredentialValidity::left);
        let is_tls = tls_of(session).is_some();
        let opened = self.web_sessions.answer(session.req_header(), is_tls, left);
        let mut opened = opened.ok_or_else(no_random_numbers)?;
        web_login::forgotten(&mut opened, secure);
        Ok(opened)
    }

    /// Rewrites the request into one to `/api/login` with this access token, and admits it as such.
    async fn admit_token(
        &self,
        session: &mut Session,
        passage: &mut RequestContext,
        issuer: &Issuer,
        token: &Secret,
    ) -> Result<(), Rejection> {
        let name = &issuer.config().issuer;
        let unusable = || {
            let message = format!("{name} answered with a token that no header can hold.");
            Rejection::new(Reason::IssuerUnavailable, message)
        };
        let value = HeaderValue::from_str(&format!("Bearer {}", token.expose()));
        let mut value = value.map_err(|_| unusable())?;
        value.set_sensitive(true);
        let header = session.req_header_mut();
        let inserted = header.insert_header(AUTHORIZATION, value);
        inserted.map_err(|_| unusable())?;
        header.set_uri(Uri::from_static(web_session::PATH));
        self.renew(passage);
        let verdict = self.settled_verdict(session, passage, NOT_BEGUN).await?;
        let mut admitted = match verdict {
            Verdict::Admitted(admitted) => admitted,
            Verdict::Refused(rejection) => return Err(explained(issuer, rejection)),
            _ => return Err(Rejection::new(Reason::BadRequest, NOT_BEGUN)),
        };
        let of_issuer = format!("oauth:{name}#");
        let principal = admitted.principal.as_ref();
        if !principal.is_some_and(|it| it.name().starts_with(&of_issuer)) {
            let message = format!("{name} answered with a token that is not its own.");
            return Err(Rejection::new(Reason::IssuerUnavailable, message));
        }
        passage.permit = admitted.permit.take();
        if let Some(logged) = &mut passage.logged {
            logged.entry.admitted(&admitted, None);
        }
        Ok(())
    }
}

/// Parses the body of a login request.
fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, Rejection> {
    if body.len() > BODY_MAX {
        return Err(Rejection::body_too_large(BODY_MAX as u64));
    }
    // The parser's error is not returned, since it may quote a part of the body.
    serde_json::from_slice(body).map_err(|_| {
        Rejection::new(
            Reason::BadRequest,
            "The body is no step of a login: see the page Login of the API.",
        )
    })
}

/// Creates the refusal of a login that failed at the issuer.
fn refused(issuer: &Issuer, failure: LoginFailure) -> Rejection {
    let name = &issuer.config().issuer;
    let (reason, cause, told) = match &failure {
        LoginFailure::Refused(cause) => (Reason::BadRequest, cause, cause.as_str()),
        LoginFailure::Unavailable(cause) => (Reason::IssuerUnavailable, cause, cause.as_str()),
        LoginFailure::Unreachable(cause) => (Reason::IssuerUnavailable, cause, UNREACHABLE),
    };
    tracing::warn!(issuer = name, %cause, "a login at the web UI by an issuer failed");
    Rejection::new(reason, format!("The login by {name} failed: {told}."))
}

/// Rewrites the refusal of an issuer's token into a message for the person who logs in.
fn explained(issuer: &Issuer, mut rejection: Rejection) -> Rejection {
    let name = &issuer.config().issuer;
    let cause = rejection.cause.unwrap_or_default();
    tracing::warn!(
        issuer = name,
        code = rejection.code(),
        cause,
        "the access token of a login at the web UI was refused"
    );
    rejection.message = match rejection.reason {
        Reason::Unauthorized => format!(
            "You are logged in at {name}, but the gateway does not accept its access token. The gateway's log has the cause."
        ),
        Reason::InsufficientScope | Reason::NamespaceForbidden => format!(
            "You are logged in at {name}, but its access token does not open the web UI: {}",
            rejection.message
        ),
        _ => return rejection,
    }
    .into();
    rejection
}

fn no_random_numbers() -> Rejection {
    let message = "No random numbers are available; try again.";
    Rejection::new(Reason::Overloaded, message)
}
