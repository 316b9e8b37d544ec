//! Answers requests to the pages on which principals give their personal credentials. See [`crate::connect_pages`].
//!
//! `connect/visitor.rs` admits the visitor's key or token like the credential of a call to the link's namespace, with the same
//! checks and limits. Wrong keys are counted and delayed as in all other requests.

mod visitor;

use std::collections::BTreeMap;
use std::sync::Arc;

use http::{Method, StatusCode};
use oauth2::url::form_urlencoded;
use pingora_proxy::Session;
use tooldock_base::secret::Secret;
use tooldock_filters::oauth::Issuer;
use tooldock_filters::{AdmittedHead, Reason, Rejection};
use tooldock_upstream::reply::Reply;
use tooldock_workers::registry::{Namespace, UpstreamKind};

use super::{Gateway, RequestContext};
use crate::body::BodyLimits;
use crate::connect_pages::{
    self, ConnectPage, ConnectPages, LinkRefusal, LinkResult, LinkView, PageAddresses,
    SignedInVisitor, WantedAccess,
};
use crate::remote::authorize::Asking;

/// Maximum size of the body of a form, in bytes.
const FORM_MAX: usize = 64 * 1024;

/// Text for a link that cannot be used.
const OVER: &str = "This link was used already, has expired, or its session has ended. Repeat the call: it gives you another one.";
/// Text for a redirect back from an authorization server, if this browser did not begin the login or the login has ended already.
const NOT_BEGUN: &str = "This connection was not begun in this browser, took too long, or has ended already. Open the link of the call again.";
/// Text for a visitor whose credential is stored already.
const NOTHING_MISSING: &str = "The server needs no credential of you any more. Repeat the call.";

/// Fields of a page's form: a key or an issuer for a sign-in, or personal values by name.
#[derive(Default)]
struct ConnectForm {
    key: Option<Secret>,
    issuer: Option<String>,
    values: BTreeMap<String, Secret>,
}

impl Gateway {
    /// Responds to an admitted request below [`tooldock_base::route::CONNECT_PATH`].
    pub(super) async fn connect(
        &self,
        session: &mut Session,
        passage: &mut RequestContext,
        admitted: &AdmittedHead,
    ) -> Result<Reply, Rejection> {
        let not_found = || Rejection::new(Reason::NotFound, "No link leads here.");
        let pages = self.connect.as_ref().ok_or_else(not_found)?;
        let profile = passage.profile.clone().ok_or_else(not_found)?;
        let addresses = PageAddresses::of(&profile).ok_or_else(not_found)?;
        let rest = admitted.rest.clone().unwrap_or_default();
        let is_post = session.req_header().method == Method::POST;
        match &*rest {
            connect_pages::CLIENT if !is_post => Ok(connect_pages::client_document(&addresses)),
            connect_pages::DONE if !is_post => Ok(ConnectPage::Done.reply(StatusCode::OK)),
            connect_pages::CALLBACK if !is_post => {
                Ok(self.called_back(session, pages, &addresses).await)
            }
            connect_pages::SIGNED_IN if !is_post => {
                self.signed_in(session, passage, pages, &addresses).await
            }
            token => {
                let link = match pages.links.find(token) {
                    Ok(link) => link,
                    Err(refusal) => return Ok(refused(refusal)),
                };
                match is_post {
                    true => {
                        let form = self.form(session, passage).await?;
                        self.posted(session, passage, (pages, &addresses), link, form)
                            .await
                    }
                    false => Ok(self
                        .page(session, passage, (pages, &addresses), &link, None)
                        .await),
                }
            }
        }
    }

    async fn form(
        &self,
        session: &mut Session,
        passage: &RequestContext,
    ) -> Result<ConnectForm, Rejection> {
        let limits = BodyLimits {
            bytes: FORM_MAX.min(passage.rules.bodies.bytes),
            ..passage.rules.bodies
        };
        let body = self.body_within(session, passage, limits).await?;
        let mut form = ConnectForm::default();
        for (name, value) in form_urlencoded::parse(&body.bytes) {
            match &*name {
                "key" => form.key = Some(Secret::new(value.trim())),
                "issuer" => form.issuer = Some(value.into_owned()),
                _ => {
                    if let Some(name) = name.strip_prefix("value.") {
                        form.values.insert(name.to_owned(), Secret::new(&*value));
                    }
                }
            }
        }
        Ok(form)
    }

    /// Returns the page of a link: the sign-in, or, once the link's principal has signed in, the request for the missing
    /// credential. `wrong`: the reason why the visitor's last form was refused.
    async fn page(
        &self,
        session: &Session,
        passage: &RequestContext,
        (pages, addresses): (&Arc<ConnectPages>, &PageAddresses),
        link: &LinkView,
        wrong: Option<&str>,
    ) -> Reply {
        let headers = &session.req_header().headers;
        let Some(SignedInVisitor { link, asking }) = pages
            .links
            .signed_in(link.id, (headers, addresses.is_secure()))
        else {
            return sign_in_page(passage, link, wrong, StatusCode::OK);
        };
        let Some((namespace, missing)) = pages.wanted(&link) else {
            return ConnectPage::Stop(NOTHING_MISSING).reply(StatusCode::GONE);
        };
        let explain = |wanted: WantedAccess<'_>, wrong: Option<&str>| {
            let page = ConnectPage::Explain {
                namespace: namespace.name.as_str(),
                server: server_name(&namespace),
                principal: &link.principal,
                wanted,
                wrong,
            };
            page.reply(StatusCode::OK)
        };
        if !missing.slots.is_empty() {
            return explain(WantedAccess::Values(&missing.slots), wrong);
        }
        let UpstreamKind::Remote(server) = &namespace.upstream else {
            return ConnectPage::Stop(NOTHING_MISSING).reply(StatusCode::GONE);
        };
        let asking: Arc<Asking> = match asking {
            Some(asking) => asking,
            None if !pages.links.attempt(link.id) => {
                return ConnectPage::Stop(OVER).reply(StatusCode::GONE);
            }
            None => match pages.begin(server, addresses).await {
                Ok(asking) => {
                    let asking = Arc::new(asking);
                    pages.links.set_asking(link.id, Arc::clone(&asking));
                    asking
                }
                Err(reason) => {
                    let reason = server.without_secrets(&reason);
                    tracing::warn!(namespace = %namespace.name, "no authorization can be requested on a page: {reason}");
                    let told = "The authorization server of this server cannot be asked now; the gateway's log has the cause.";
                    return ConnectPage::Stop(told).reply(StatusCode::BAD_GATEWAY);
                }
            },
        };
        let spec = server.spec.oauth.as_ref();
        let wanted = WantedAccess::Consent {
            issuer: asking.issuer(),
            scopes: spec.map_or(&[][..], |it| &it.scopes),
            address: asking.address(),
        };
        explain(wanted, wrong)
    }

    /// Handles a form: a key, the choice of an issuer for a sign-in, or the values of a principal who has signed in.
    async fn posted(
        &self,
        session: &mut Session,
        passage: &mut RequestContext,
        (pages, addresses): (&Arc<ConnectPages>, &PageAddresses),
        link: LinkView,
        form: ConnectForm,
    ) -> Result<Reply, Rejection> {
        if let Some(key) = form.key {
            return self
                .sign_in(session, passage, (pages, addresses), link, &key)
                .await;
        }
        if let Some(issuer) = form.issuer {
            return self
                .leave_for_issuer(passage, (pages, addresses), &link, &issuer)
                .await;
        }
        let headers = &session.req_header().headers;
        let Some(SignedInVisitor { link, .. }) = pages
            .links
            .signed_in(link.id, (headers, addresses.is_secure()))
        else {
            return Ok(sign_in_page(passage, &link, None, StatusCode::FORBIDDEN));
        };
        let Some((_, missing)) = pages.wanted(&link) else {
            return Ok(ConnectPage::Stop(NOTHING_MISSING).reply(StatusCode::GONE));
        };
        let given = |slot: &String| {
            form.values
                .get(slot)
                .is_some_and(|it| !it.expose().is_empty())
        };
        if missing.slots.is_empty() || !missing.slots.iter().all(given) {
            let wrong = Some("Each value is needed.");
            return Ok(self
                .page(session, passage, (pages, addresses), &link, wrong)
                .await);
        }
        let mut values = form.values;
        values.retain(|name, _| missing.slots.contains(name));
        Ok(match pages.store_values(values, &link).await {
            Ok(()) => connected(pages, &link),
            Err(reason) => failed(pages, &link, &reason),
        })
    }

    /// Handles the redirect from a server's authorization server: completes the connection of this browser.
    async fn called_back(
        &self,
        session: &Session,
        pages: &Arc<ConnectPages>,
        addresses: &PageAddresses,
    ) -> Reply {
        let header = session.req_header();
        let query = header.uri.query().unwrap_or_default();
        let address = format!("{}?{query}", addresses.callback());
        let Some((link, asking)) = pages
            .links
            .take_asking(&address, (&header.headers, addresses.is_secure()))
        else {
            return ConnectPage::Stop(NOT_BEGUN).reply(StatusCode::BAD_REQUEST);
        };
        match pages.finish(asking, address, &link).await {
            Ok(()) => connected(pages, &link),
            Err(reason) => failed(pages, &link, &reason),
        }
    }
}

/// Returns the issuers in the gateway's configuration that offer a sign-in with a browser.
fn issuers(passage: &RequestContext) -> impl Iterator<Item = &Issuer> {
    let issuers = passage.rules.admission.oauth().issuers().iter();
    issuers
        .map(|it| &**it)
        .filter(|it| it.config().web_login().is_some())
}

fn sign_in_page(
    passage: &RequestContext,
    link: &LinkView,
    wrong: Option<&str>,
    status: StatusCode,
) -> Reply {
    let page = ConnectPage::SignIn {
        namespace: link.namespace.as_str(),
        issuers: issuers(passage).map(|it| &*it.config().issuer).collect(),
        wrong,
    };
    page.reply(status)
}

fn connected(pages: &ConnectPages, link: &LinkView) -> Reply {
    pages.metrics.count(LinkResult::Connected);
    tracing::info!(
        namespace = %link.namespace,
        principal = &*link.principal,
        "a principal has given the gateway its credential for the server of namespace {}",
        link.namespace
    );
    // The redirect removes the code of the authorization server from the browser's address.
    let moved = connect_pages::see_other(connect_pages::DONE, None);
    moved.unwrap_or_else(|| ConnectPage::Done.reply(StatusCode::OK))
}

fn failed(pages: &ConnectPages, link: &LinkView, reason: &str) -> Reply {
    pages.metrics.count(LinkResult::Refused);
    tracing::warn!(namespace = %link.namespace, "a connection on a page failed: {reason}");
    let told = format!("The server was not connected: {reason}. Open the link of the call again.");
    ConnectPage::Stop(&told).reply(StatusCode::BAD_REQUEST)
}

fn refused(refusal: LinkRefusal) -> Reply {
    match refusal {
        LinkRefusal::Unknown => {
            ConnectPage::Stop("This gateway has not made this link.").reply(StatusCode::NOT_FOUND)
        }
        LinkRefusal::Over => ConnectPage::Stop(OVER).reply(StatusCode::GONE),
        LinkRefusal::Full => {
            let told = "Too many links are open; try again in a few minutes.";
            ConnectPage::Stop(told).reply(StatusCode::SERVICE_UNAVAILABLE)
        }
    }
}

/// Returns the name of a remote server's first backend (`host:port` or `unix:/path`), by which a visitor may know the server.
/// `None` for other servers.
fn server_name(namespace: &Namespace) -> Option<String> {
    match &namespace.upstream {
        UpstreamKind::Remote(server) => {
            let first = server.spec.backends.first()?;
            Some(first.id.to_string())
        }
        _ => None,
    }
}

fn no_random_numbers() -> Rejection {
    let message = "No random numbers are available; try again.";
    Rejection::new(Reason::Overloaded, message)
}
