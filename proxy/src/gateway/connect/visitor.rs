//! Sign-in of the visitors of links: with a key or token of the gateway, or at one of its issuers.

use std::sync::Arc;

use http::header::{ACCEPT, AUTHORIZATION, ORIGIN, RETRY_AFTER};
use http::{HeaderValue, Method, StatusCode, Uri};
use oauth2::url::form_urlencoded;
use pingora_proxy::Session;
use tooldock_base::secret::Secret;
use tooldock_filters::{Reason, Rejection, Verdict};
use tooldock_upstream::reply::Reply;

use super::{Gateway, NOT_BEGUN, OVER, RequestContext, issuers, no_random_numbers, sign_in_page};
use crate::connect_pages::{self, ConnectPage, ConnectPages, LinkResult, LinkView, PageAddresses};
use crate::issuers::login::LoginFailure;
use crate::web_session;

/// Text for a visitor who is not the principal of the link.
const OTHER: &str = "You are signed in as another principal than the one whose call this link was made for. Nothing was stored. If \
                     you did not make that call, another person may want to use your account.";

/// Reason why a visitor may not use a link.
enum VisitorRefusal {
    /// The visitor is another principal.
    Other,
    /// The visitor's key was refused.
    Refused(Rejection),
}

impl Gateway {
    /// Admits the visitor's key. If it belongs to the principal of the link, redirects the browser to the link's page, with a
    /// cookie.
    pub(super) async fn sign_in(
        &self,
        session: &mut Session,
        passage: &mut RequestContext,
        (pages, addresses): (&Arc<ConnectPages>, &PageAddresses),
        link: LinkView,
        key: &Secret,
    ) -> Result<Reply, Rejection> {
        match self.admit_visitor(session, passage, &link, key).await? {
            Ok(()) => {
                let cookie = pages.links.sign_in(link.id).ok_or_else(no_random_numbers)?;
                let cookie = addresses.cookie(link.id, &cookie);
                // The browser requests the page anew, so that its reload button does not send the key again.
                connect_pages::see_other(&link.token, Some(&cookie)).ok_or_else(no_random_numbers)
            }
            Err(VisitorRefusal::Other) => {
                pages.metrics.count(LinkResult::OtherPrincipal);
                tracing::warn!(
                    namespace = %link.namespace,
                    "a visitor of a link signed in as another principal than the link's; nothing was stored"
                );
                Ok(ConnectPage::Stop(OTHER).reply(StatusCode::FORBIDDEN))
            }
            Err(VisitorRefusal::Refused(rejection)) => {
                let status = rejection.status();
                let wrong = match rejection.reason {
                    Reason::Unauthorized => "The gateway does not accept this key.",
                    _ => &*rejection.message,
                };
                let mut reply = sign_in_page(passage, &link, Some(wrong), status);
                if let Reply::Full { head, .. } = &mut reply {
                    let headers = rejection.headers.iter();
                    let wait = headers.filter(|(name, _)| *name == RETRY_AFTER);
                    head.headers.extend(wait.cloned());
                }
                Ok(reply)
            }
        }
    }

    /// Begins a sign-in at one of the gateway's issuers. Responds with a page that links to the issuer. `name`: the issuer's
    /// name.
    pub(super) async fn leave_for_issuer(
        &self,
        passage: &RequestContext,
        (pages, addresses): (&Arc<ConnectPages>, &PageAddresses),
        link: &LinkView,
        name: &str,
    ) -> Result<Reply, Rejection> {
        let issuer = issuers(passage).find(|it| it.config().issuer == name);
        let Some(issuer) = issuer else {
            return Ok(sign_in_page(passage, link, None, StatusCode::BAD_REQUEST));
        };
        // Counted before the issuer is asked, since a visitor need not be signed in to have it asked.
        if !pages.links.attempt(link.id) {
            return Ok(ConnectPage::Stop(OVER).reply(StatusCode::GONE));
        }
        let state = web_session::random().ok_or_else(no_random_numbers)?;
        let requested = self
            .issuers
            .request_authorization(issuer, addresses.signed_in(), &state)
            .await;
        let (address, request) = match requested {
            Ok(requested) => requested,
            Err(failure) => return Ok(not_signed_in(passage, link, name, &failure)),
        };
        let Some(cookie) = pages.links.begin_sign_in(link.id, state, request) else {
            return Ok(ConnectPage::Stop(OVER).reply(StatusCode::GONE));
        };
        let cookie = addresses.cookie(link.id, &cookie);
        let page = ConnectPage::Leave {
            issuer: name,
            address: &address,
        };
        connect_pages::set(page.reply(StatusCode::OK), &cookie).ok_or_else(no_random_numbers)
    }

    /// Handles the redirect from an issuer after a sign-in: exchanges the code for a token, and admits the token as a key.
    pub(super) async fn signed_in(
        &self,
        session: &mut Session,
        passage: &mut RequestContext,
        pages: &Arc<ConnectPages>,
        addresses: &PageAddresses,
    ) -> Result<Reply, Rejection> {
        let header = session.req_header();
        let query = header.uri.query().unwrap_or_default();
        let part = |wanted: &str| {
            let mut pairs = form_urlencoded::parse(query.as_bytes());
            let found = pairs.find(|(name, _)| name == wanted);
            found.map(|(_, value)| value.into_owned())
        };
        let state = part("state").unwrap_or_default();
        let Some((link, request)) = pages
            .links
            .take_sign_in(&state, (&header.headers, addresses.is_secure()))
        else {
            return Ok(ConnectPage::Stop(NOT_BEGUN).reply(StatusCode::BAD_REQUEST));
        };
        let name = request.config().issuer.clone();
        // The issuer's settings may have changed after the sign-in began, so the newest rules are compared.
        let rules = self.rules.load_full();
        let mut known = rules.admission.oauth().issuers().iter();
        if !known.any(|it| it.config() == request.config()) {
            return Ok(ConnectPage::Stop(NOT_BEGUN).reply(StatusCode::BAD_REQUEST));
        }
        let code = part("code").unwrap_or_default();
        let exchanged = self
            .issuers
            .exchange(request, &code, part("iss").as_deref())
            .await;
        match exchanged {
            Ok(token) => {
                self.sign_in(session, passage, (pages, addresses), link, &token)
                    .await
            }
            Err(failure) => Ok(not_signed_in(passage, &link, &name, &failure)),
        }
    }

    /// Checks the visitor's key as if it came with a request to the link's namespace: changes the request's method, URI and
    /// headers for the check, and restores them afterwards. The inner error tells why the visitor may not use the link.
    async fn admit_visitor(
        &self,
        session: &mut Session,
        passage: &mut RequestContext,
        link: &LinkView,
        key: &Secret,
    ) -> Result<Result<(), VisitorRefusal>, Rejection> {
        let value = HeaderValue::from_str(&format!("Bearer {}", key.expose()));
        let Ok(mut value) = value else {
            let rejection = Rejection::new(Reason::Unauthorized, "This is no key.");
            return Ok(Err(VisitorRefusal::Refused(rejection)));
        };
        value.set_sensitive(true);
        let broken = |_| Rejection::new(Reason::BadRequest, "The key cannot be checked.");
        let uri: Uri = format!("/mcp/{}", link.namespace)
            .parse()
            .map_err(|_| Rejection::new(Reason::BadRequest, "The key cannot be checked."))?;
        let header = session.req_header_mut();
        let (method, own_uri) = (header.method.clone(), header.uri.clone());
        // `Origin` is removed for the check: the form came from the gateway's own page, which `admission.origins` need not list.
        let replaced = [ORIGIN, ACCEPT].map(|name| (header.remove_header(&name), name));
        header.insert_header(AUTHORIZATION, value).map_err(broken)?;
        header
            .insert_header(ACCEPT, "text/event-stream")
            .map_err(broken)?;
        header.set_method(Method::GET);
        header.set_uri(uri);
        self.renew(passage);
        let admitted = self.settled_verdict(session, passage, NOT_BEGUN).await;
        let header = session.req_header_mut();
        header.remove_header(&AUTHORIZATION);
        header.remove_header(&ACCEPT);
        for (value, name) in replaced {
            if let Some(value) = value {
                header.insert_header(name, value).map_err(broken)?;
            }
        }
        header.set_method(method);
        header.set_uri(own_uri);
        match admitted? {
            Verdict::Admitted(mut admitted) => {
                passage.permit = admitted.permit.take();
                if let Some(logged) = &mut passage.logged {
                    logged.entry.admitted(&admitted, None);
                }
                let principal = admitted.principal.as_ref();
                let is_own = principal.is_some_and(|it| **it.name() == *link.principal);
                Ok(is_own.then_some(()).ok_or(VisitorRefusal::Other))
            }
            Verdict::Refused(rejection) => {
                self.refused(&rejection, passage);
                let is_of_link = rejection.principal.as_deref() == Some(&*link.principal);
                Ok(Err(match rejection.reason {
                    Reason::NamespaceForbidden if !is_of_link => VisitorRefusal::Other,
                    _ => VisitorRefusal::Refused(rejection),
                }))
            }
            _ => Err(Rejection::new(
                Reason::Overloaded,
                "The namespace is starting; try again in a moment.",
            )),
        }
    }
}

fn not_signed_in(
    passage: &RequestContext,
    link: &LinkView,
    issuer: &str,
    failure: &LoginFailure,
) -> Reply {
    let (LoginFailure::Refused(cause)
    | LoginFailure::Unavailable(cause)
    | LoginFailure::Unreachable(cause)) = failure;
    tracing::warn!(issuer, %cause, "a sign-in by an issuer for a link failed");
    let wrong = "The sign-in at the issuer failed; the gateway's log has the cause.";
    sign_in_page(passage, link, Some(wrong), StatusCode::BAD_GATEWAY)
}
