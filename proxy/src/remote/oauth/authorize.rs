//! Lets a person in a browser authorize the gateway at the authorization server of a remote server.
//!
//! ```text
//! begin ──▶ address ──▶ browser: log in, agree ──▶ redirect address ──▶ finish ──▶ Authorization
//! ```
//!
//! The grant is `authorization_code` with PKCE. If the configuration names no client, the gateway registers one (RFC 7591).

use std::sync::Arc;

use oauth2::url::Url;
use rmcp::transport::auth::{
    AuthorizationCallback, AuthorizationMetadata, AuthorizationRequest, AuthorizationSession,
    CredentialStore as _, InMemoryCredentialStore,
};
use tooldock_base::secret::Secret;
use tooldock_credentials::secrets::Authorization;
use tooldock_workers::remote::{OAuthSpec, RemoteServer};

use super::binding::Binding;
use super::endpoints::{Endpoints, manager};
use super::http_client::Http;
use super::kept::AuthorizationRecord;
use super::words::Reason;
use crate::remote::RemoteClient;

/// The name under which the gateway registers as a client.
const CLIENT_NAME: &str = "ToolDock";

/// An authorization that was requested, but not yet consented to by a person.
pub(crate) struct Asking {
    session: AuthorizationSession,
    http: Arc<Http>,
    store: InMemoryCredentialStore,
    client_id: String,
    client_secret: Option<String>,
    state: String,
    bound: Binding,
}

/// The result of the browser's redirect back to the gateway.
pub(crate) enum RedirectOutcome {
    /// The person consented, and the authorization server has sent tokens.
    Given(Authorization),
    /// The person refused, or the redirect comes from another authorization server. Contains the reason, which may be shown to
    /// every visitor.
    Refused(String),
    /// The authorization server did not accept the code. Contains the reason.
    Failed(Reason),
    /// The redirect belongs to another request for authorization, or to none. It is ignored.
    Foreign,
}

impl Asking {
    /// Prepares an authorization, after which the authorization server redirects the browser to the URL `redirect`. `document`:
    /// the URL of the gateway's client metadata document, used as the client id at authorization servers that accept such
    /// documents; `None` if the gateway serves no document for this redirect.
    ///
    /// # Errors
    ///
    /// When no authorization can be requested. The text names the reason.
    pub(crate) async fn begin(
        client: &Arc<RemoteClient>,
        server: &Arc<RemoteServer>,
        spec: &OAuthSpec,
        redirect: &str,
        document: Option<&str>,
    ) -> Result<Self, String> {
        let Endpoints {
            mut manager,
            http,
            metadata,
        } = manager(client, server, spec).await.map_err(logged)?;
        let store = InMemoryCredentialStore::new();
        manager.set_credential_store(store.clone());
        let (id, secret) = match &spec.client_id {
            Some(id) => {
                let secret = spec.client_secret.as_ref();
                (id.clone(), secret.map(|it| it.expose().to_owned()))
            }
            None if document.is_some() && takes_documents(&metadata) => {
                (document.unwrap_or_default().to_owned(), None)
            }
            None => {
                let scopes: Vec<_> = spec.scopes.iter().map(String::as_str).collect();
                let registered = manager
                    .register_client(CLIENT_NAME, redirect, &scopes)
                    .await;
                let registered = registered.map_err(|error| {
                    format!(
                        "the gateway could not register by itself: {}. Register a client with the redirect address {redirect} and \
                         write oauth.client_id",
                        http.reason(&error.to_string()).logged
                    )
                })?;
                (registered.client_id, registered.client_secret)
            }
        };
        let mut request = AuthorizationRequest::new(redirect)
            .with_preregistered_client(&*id)
            .with_scopes(spec.scopes.clone())
            .with_initial_scope_selection();
        request.client_secret.clone_from(&secret);
        if let Some(secret) = &secret {
            http.hide_client(&id, secret);
        }
        let session = AuthorizationSession::new(manager, request).await;
        let session = session.map_err(|(_, error)| logged(http.reason(&error.to_string())))?;
        let url = Url::parse(&session.auth_url).map_err(|error| error.to_string())?;
        let state = query(&url, "state").ok_or("the address has no state")?;
        let resource = query(&url, "resource").ok_or("the address has no resource")?;
        let bound = Binding::new(server, spec, &metadata, resource);
        Ok(Self {
            session,
            http,
            store,
            client_id: id,
            client_secret: secret,
            state,
            bound,
        })
    }

    /// The URL that the person must open in a browser.
    pub(crate) fn address(&self) -> &str {
        &self.session.auth_url
    }

    /// Name of the authorization server for messages: its issuer, or the configured token endpoint if there is no issuer.
    pub(crate) fn issuer(&self) -> String {
        let issuer = self.bound.issuer.as_deref();
        self.http
            .words(issuer.unwrap_or(&self.bound.token_endpoint))
    }

    /// Returns true if the browser's redirect to this URL answers this request.
    pub(crate) fn is_for(&self, address: &str) -> bool {
        let url = Url::parse(address).ok();
        url.and_then(|url| query(&url, "state")).as_deref() == Some(&*self.state)
    }

    /// Completes the authorization. `address` is the URL to which the browser was redirected.
    pub(crate) async fn finish(&self, address: &str) -> RedirectOutcome {
        let Ok(url) = Url::parse(address) else {
            return RedirectOutcome::Foreign;
        };
        if query(&url, "state").as_deref() != Some(&*self.state) {
            return RedirectOutcome::Foreign;
        }
        if let Some(reason) = self.mixed_up(&url) {
            return RedirectOutcome::Refused(reason);
        }
        if let Some(error) = query(&url, "error") {
            let description = query(&url, "error_description").unwrap_or_default();
            let reason = self.http.words(format!("{error} {description}").trim());
            return RedirectOutcome::Refused(reason);
        }
        let exchanged = async {
            let callback = AuthorizationCallback::from_redirect_url(address)?;
            self.http.hide([Secret::new(&*callback.code)]);
            let issuer = callback.issuer.as_deref();
            let exchanged = self.session.handle_callback_with_issuer(
                &callback.code,
                &callback.csrf_token,
                issuer,
            );
            exchanged.await?;
            self.store.load().await
        };
        match exchanged.await {
            Ok(Some(credentials)) => {
                let kept = AuthorizationRecord {
                    client_id: self.client_id.clone(),
                    client_secret: self.client_secret.clone(),
                    credentials,
                    bound: Some(self.bound.clone()),
                };
                RedirectOutcome::Given(Authorization::new(kept.secret()))
            }
            Ok(None) => RedirectOutcome::Refused("no token came".to_owned()),
            Err(error) => RedirectOutcome::Failed(self.http.reason(&error.to_string())),
        }
    }

    /// Returns the reason why a redirect cannot come from the expected authorization server (RFC 9207). `None` if it names the
    /// expected issuer or no issuer.
    fn mixed_up(&self, url: &Url) -> Option<String> {
        let mut issuers = url.query_pairs().filter(|(name, _)| name == "iss");
        let (_, named) = issuers.next()?;
        let reason = match (&self.bound.issuer, issuers.next()) {
            (_, Some(_)) => "the answer names several authorization servers".to_owned(),
            (Some(own), None) if *own == named => return None,
            (Some(own), None) => {
                format!(
                    "the answer is that of the authorization server {named}, and {own} was asked"
                )
            }
            (None, None) => format!(
                "the answer names the authorization server {named}, and the configuration has token_url in the place of \
                 issuer: write oauth.issuer instead"
            ),
        };
        Some(self.http.words(&reason))
    }
}

/// Returns true if an authorization server accepts URLs of client metadata documents as client ids.
fn takes_documents(metadata: &AuthorizationMetadata) -> bool {
    let member = metadata
        .additional_fields
        .get("client_id_metadata_document_supported");
    member.and_then(serde_json::Value::as_bool) == Some(true)
}

/// The text of the reason for the log. It may be shown here because the operator runs the command.
fn logged(reason: Reason) -> String {
    reason.logged
}

fn query(url: &Url, wanted: &str) -> Option<String> {
    let mut pairs = url.query_pairs();
    let found = pairs.find(|(name, _)| name == wanted);
    found.map(|(_, value)| value.into_owned())
}
