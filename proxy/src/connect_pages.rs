//! Pages on which a principal gives the gateway its personal credential for an MCP server: consent at the server's authorization
//! server (OAuth with PKCE), or personal values.
//!
//! ```text
//! call ─▶ offer ─▶ link ─▶ browser: /connect/LINK ─▶ sign in (key, or issuer) ─▶ consent ─▶ authorization server
//!   └───── goes on ◀── AuthorizationStore, SecretStore ◀── /connect/callback ◀───────────────────┘
//! ```
//!
//! - A link proves nothing, since any person may have sent it. The visitor therefore first signs in to the gateway, and must be
//!   the principal whose call the link was made for. Otherwise an attacker could send a link of its own call to another person,
//!   whose account would then serve the attacker's calls.
//! - A link is sealed with the session key, can be used once in each replica, and ends after [`LIFETIME`]. In the replica that
//!   made it, the link also ends with the session of its call. Any replica with the same key serves the link, but a connection
//!   that has begun continues only in the replica where it began.
//! - The browser that signed in gets a cookie (`HttpOnly`, `SameSite=Lax`). Only that browser can complete the connection, so the
//!   redirect of an authorization server has no effect in other browsers.
//! - The number of open links is bounded. A new link displaces the oldest link of a principal that has too many, and is not made
//!   if there are too many in total.
//!
//! `links.rs` holds the open links, `cookies.rs` reads and writes the cookies of browsers, `page.rs` writes the pages, and
//! `gateway/connect.rs` answers the requests.

mod cookies;
mod links;
mod page;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tooldock_base::metric_table;
use tooldock_base::route::CONNECT_PATH;
use tooldock_base::secret::Secret;
use tooldock_credentials::personal::{MissingCredentials, Personal};
use tooldock_credentials::secrets::{
    Authorization, AuthorizationStore, Scope, SecretStore, SecretsError,
};
use tooldock_sessions::profile::Profile;
use tooldock_upstream::{ConnectLink, ConnectLinks, LinkSubject, ReloadControl};
use tooldock_workers::registry::{Namespace, Registry, UpstreamKind};
use tooldock_workers::remote::RemoteServer;

use crate::remote::RemoteClient;
use crate::remote::authorize::{Asking, RedirectOutcome};

pub(crate) use links::{LinkId, LinkRefusal, LinkTable, LinkView, SignedInVisitor};
pub(crate) use page::{ConnectPage, WantedAccess, client_document, see_other, set};

/// Last segment of the path to which authorization servers redirect browsers.
pub(crate) const CALLBACK: &str = "callback";
/// Last segment of the path to which the gateway's own issuers redirect browsers after a sign-in.
pub(crate) const SIGNED_IN: &str = "signed-in";
/// Last segment of the path of the client metadata document, which describes the gateway to authorization servers.
pub(crate) const CLIENT: &str = "client";
/// Last segment of the path of the page that says that a connection is complete.
pub(crate) const DONE: &str = "done";
/// Lifetime of a link.
pub(crate) const LIFETIME: Duration = Duration::from_secs(600);
/// Maximum number of concurrent requests for an authorization on behalf of visitors. Exchanges of codes are not counted.
const REQUESTS_MAX: usize = 16;

metric_table! {
    /// Counters of the links and of the connections that were made with them.
    pub(crate) struct ConnectMetrics(registry) {
        results: IntCounterVec["result"] = "tooldock_connect_links_total",
            "Links to pages on which principals give their own credentials, by result";
    }
}

/// Event in the life of a link, as the metric counts it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LinkResult {
    /// A new link was given to a client.
    Offered,
    /// The credential was stored.
    Connected,
    /// The connection failed: the authorization server or the person refused, or the credential could not be stored.
    Refused,
    /// A principal other than the link's signed in.
    OtherPrincipal,
}

impl ConnectMetrics {
    /// Counts the result of a link.
    pub(crate) fn count(&self, result: LinkResult) {
        let label = match result {
            LinkResult::Offered => "offered",
            LinkResult::Connected => "connected",
            LinkResult::Refused => "refused",
            LinkResult::OtherPrincipal => "other_principal",
        };
        self.results.with_label_values(&[label]).inc();
    }
}

/// The pages, with the stores to which they write.
pub(crate) struct ConnectPages {
    pub(crate) links: LinkTable,
    pub(crate) registry: Arc<Registry>,
    pub(crate) secrets: Arc<SecretStore>,
    pub(crate) authorizations: Arc<AuthorizationStore>,
    pub(crate) client: Arc<RemoteClient>,
    /// Reloads the namespaces after personal values were stored, so that servers get the values.
    pub(crate) reloader: Arc<dyn ReloadControl>,
    pub(crate) metrics: ConnectMetrics,
    /// The runtime for requests to authorization servers. A request on it continues even if the browser disconnects.
    pub(crate) control: Handle,
    requests: Arc<Semaphore>,
}

/// Text for a page's visitor that says why the connection cannot be completed.
pub(crate) type ConnectFailure = String;

impl ConnectPages {
    /// Creates the pages over these stores.
    pub(crate) fn new(
        links: LinkTable,
        registry: Arc<Registry>,
        stores: (Arc<SecretStore>, Arc<AuthorizationStore>),
        client: Arc<RemoteClient>,
        reloader: Arc<dyn ReloadControl>,
        metrics: ConnectMetrics,
        control: Handle,
    ) -> Arc<Self> {
        let (secrets, authorizations) = stores;
        Arc::new(Self {
            links,
            registry,
            secrets,
            authorizations,
            client,
            reloader,
            metrics,
            control,
            requests: Arc::new(Semaphore::new(REQUESTS_MAX)),
        })
    }

    /// Returns the namespace of a link, with the credentials that the link's principal has not given yet. `None` if no credential
    /// is missing, if the namespace does not exist any more, or if the principal may not use it.
    pub(crate) fn wanted(&self, link: &LinkView) -> Option<(Arc<Namespace>, MissingCredentials)> {
        let snapshot = self.registry.load();
        let namespace = snapshot.namespaces.get(link.namespace.as_str())?;
        if !namespace.policy.allows_principal(&link.principal) {
            return None;
        }
        let missing = self.missing(namespace, &link.principal)?;
        Some((Arc::clone(namespace), missing))
    }

    fn missing(&self, namespace: &Namespace, principal: &str) -> Option<MissingCredentials> {
        let personal = personal(namespace)?;
        personal.missing(&namespace.name, self.registry.personal(), principal)
    }

    /// Requests that the authorization server of `server` authorize the gateway. `addresses`: the page addresses at the listener
    /// that the browser uses.
    pub(crate) async fn begin(
        &self,
        server: &Arc<RemoteServer>,
        addresses: &PageAddresses,
    ) -> Result<Asking, ConnectFailure> {
        let Ok(permit) = Arc::clone(&self.requests).try_acquire_owned() else {
            return Err("Too many connections are being made; try again in a moment".into());
        };
        let (client, server) = (Arc::clone(&self.client), Arc::clone(server));
        let (redirect, document) = (addresses.callback(), addresses.client_document());
        let work = self.control.spawn(async move {
            let _permit = permit;
            let spec = server.spec.oauth.as_ref();
            let spec = spec.ok_or_else(|| "the server uses no OAuth".to_owned())?;
            Asking::begin(&client, &server, spec, &redirect, Some(&document)).await
        });
        work.await
            .unwrap_or_else(|_| Err("the request was interrupted".into()))
    }

    /// Exchanges the code of an authorization server's redirect, and stores the authorization for the link's principal.
    pub(crate) async fn finish(
        &self,
        asking: Arc<Asking>,
        address: String,
        link: &LinkView,
    ) -> Result<(), ConnectFailure> {
        let work = self
            .control
            .spawn(async move { asking.finish(&address).await });
        match work.await {
            Ok(RedirectOutcome::Given(given)) => self.store(given, link).await,
            Ok(RedirectOutcome::Refused(reason)) => Err(reason),
            Ok(RedirectOutcome::Failed(reason)) => {
                let namespace = &link.namespace;
                tracing::warn!(%namespace, "an authorization server did not accept a code: {}", reason.logged);
                Err(reason.told)
            }
            Ok(RedirectOutcome::Foreign) | Err(_) => Err("the answer belongs to no request".into()),
        }
    }

    async fn store(&self, given: Authorization, link: &LinkView) -> Result<(), ConnectFailure> {
        // A reload may have changed the namespace, its policy or the need for the authorization, so all are checked again.
        let wanted = self
            .wanted(link)
            .and_then(|(_, missing)| missing.authorizer);
        let authorizer = wanted.ok_or("the server does not need this authorization any more")?;
        if !self.links.use_up(link.id) {
            return Err("the link was used already, or has ended".into());
        }
        let store = Arc::clone(&self.authorizations);
        let stored = tokio::task::spawn_blocking(move || store.set(authorizer, given)).await;
        told(stored)
    }

    /// Stores personal values of the link's principal, and reloads the namespaces, so that they read the values.
    pub(crate) async fn store_values(
        &self,
        values: BTreeMap<String, Secret>,
        link: &LinkView,
    ) -> Result<(), ConnectFailure> {
        let principal = link.principal.parse();
        let principal = principal.map_err(|_| "the principal has no values of its own")?;
        if !self.links.use_up(link.id) {
            return Err("the link was used already, or has ended".into());
        }
        let (store, scope) = (Arc::clone(&self.secrets), Scope::Principal(principal));
        let stored = tokio::task::spawn_blocking(move || {
            let values = values.into_iter();
            store.set_all(
                "connect",
                values.map(|(key, value)| (key, scope.clone(), value)),
            )
        });
        told(stored.await)?;
        if let Err(error) = self.reloader.reload().await {
            // The values are stored, and the next reload reads them.
            tracing::warn!(%error, "values that a principal gave on a page are stored, and could not be read by a reload");
        }
        Ok(())
    }
}

/// Converts the result of a write to a store into text for the visitor. The cause of an error is only in the log.
fn told(
    stored: Result<Result<(), SecretsError>, tokio::task::JoinError>,
) -> Result<(), ConnectFailure> {
    match stored {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => {
            tracing::error!(%error, "a credential that a principal gave on a page cannot be stored");
            Err("the gateway cannot store it now; its log has the cause".into())
        }
        Err(_) => Err("the gateway is shutting down".into()),
    }
}

/// Returns the settings of a namespace's server that depend on the caller; `None` for namespaces that no MCP server serves.
fn personal(namespace: &Namespace) -> Option<&Personal> {
    match &namespace.upstream {
        UpstreamKind::External(server) => Some(&server.spec.personal),
        UpstreamKind::Remote(server) => Some(&server.spec.personal),
        _ => None,
    }
}

/// The public addresses of the pages at one listener.
pub(crate) struct PageAddresses {
    base: String,
    /// Path of the pages, with the listener's prefix.
    path: String,
}

impl PageAddresses {
    /// Returns the addresses at a listener; `None` if the gateway has no public URL.
    pub(crate) fn of(profile: &Profile) -> Option<Self> {
        let origin = &profile.public_url;
        let path = format!("{}{CONNECT_PATH}", profile.path_prefix);
        (!origin.is_empty()).then(|| Self {
            base: format!("{origin}{path}"),
            path,
        })
    }

    /// Returns the URL of the page of the link with this token.
    fn link(&self, token: &str) -> String {
        format!("{}/{token}", self.base)
    }

    /// Returns the URL to which authorization servers redirect browsers.
    pub(crate) fn callback(&self) -> String {
        format!("{}/{CALLBACK}", self.base)
    }

    /// Returns the URL to which the gateway's own issuers redirect browsers after a sign-in.
    pub(crate) fn signed_in(&self) -> String {
        format!("{}/{SIGNED_IN}", self.base)
    }

    /// Returns the URL of the client metadata document.
    pub(crate) fn client_document(&self) -> String {
        format!("{}/{CLIENT}", self.base)
    }

    /// Returns the value of the header `Set-Cookie` that stores the cookie of a link in a browser.
    pub(crate) fn cookie(&self, id: LinkId, value: &str) -> String {
        cookies::set_cookie(id, value, &self.path, self.is_secure())
    }

    /// Returns true if browsers reach the pages over https; false over http.
    pub(crate) fn is_secure(&self) -> bool {
        self.base.starts_with("https:")
    }
}

impl ConnectLinks for ConnectPages {
    fn offers(&self, subject: &LinkSubject<'_>) -> bool {
        PageAddresses::of(subject.profile).is_some()
            && self.secrets.can_write().is_ok()
            && self.missing(subject.namespace, subject.principal).is_some()
    }

    fn offer(&self, subject: &LinkSubject<'_>) -> Option<ConnectLink> {
        let addresses = PageAddresses::of(subject.profile).filter(|_| self.offers(subject))?;
        let open = self
            .links
            .open(&subject.namespace.name, subject.principal, subject.session)?;
        if open.is_new {
            self.metrics.count(LinkResult::Offered);
        }
        Some(ConnectLink {
            url: addresses.link(&open.token),
            id: hex::encode(open.id),
            lifetime: open.left,
        })
    }
}
