//! Tokens of the grant `authorization_code`: given by somebody in a browser ([`super::authorize`]), kept in the store of
//! authorizations, and renewed there.
//!
//! A renewed token is kept before it is used: many authorization servers take a refresh token once. Where the authorization
//! server refuses to renew, what was given counts no more, and somebody has to authorize the gateway again.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::HeaderValue;
use oauth2::TokenResponse as _;
use rmcp::transport::auth::{
    AuthError, CredentialStore as _, InMemoryCredentialStore, OAuthClientConfig, StoredCredentials,
};
use serde::{Deserialize, Serialize};
use tooldock_workers::personal::not_authorized;
use tooldock_workers::remote::{OAuthSpec, RemoteServer};
use tooldock_workers::secrets::{Authorization, AuthorizationStore, Authorizer, Secret};

use super::Token;
use super::endpoints::manager;
use crate::remote::RemoteClient;

/// The lifetime of a token whose server does not say: until the server refuses it.
const UNSAID: Duration = Duration::from_secs(24 * 3600);

/// What is kept of an authorization.
#[derive(Serialize, Deserialize)]
pub(super) struct Kept {
    /// The client that the gateway is at the authorization server.
    pub(super) client_id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) client_secret: Option<String>,
    pub(super) credentials: StoredCredentials,
}

impl Kept {
    /// The same as the store keeps it.
    pub(super) fn secret(&self) -> Secret {
        Secret::new(serde_json::to_string(self).expect("texts and numbers are JSON"))
    }

    /// Its access token, with what is left of its lifetime. `None`: there is none, or it can be sent to nobody.
    fn token(&self) -> Option<Token> {
        let response = self.credentials.token_response.as_ref()?;
        let received = self.credentials.token_received_at.unwrap_or_default();
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let age = now
            .unwrap_or_default()
            .saturating_sub(Duration::from_secs(received));
        let lifetime = response.expires_in().unwrap_or(UNSAID);
        Token::aged(response.access_token().secret(), lifetime, age)
    }
}

/// Where tokens are kept, and whose.
pub(super) struct Place<'a> {
    pub(super) store: &'a Arc<AuthorizationStore>,
    pub(super) authorizer: &'a Authorizer,
}

/// The token of an authorization, renewed where it is old, expired, or `refused` by the server.
///
/// # Errors
///
/// Why there is none. The caller takes secrets out.
pub(super) async fn token(
    client: &Arc<RemoteClient>,
    server: &Arc<RemoteServer>,
    spec: &OAuthSpec,
    place: Place<'_>,
    refused: Option<&HeaderValue>,
) -> Result<Token, String> {
    let lost = || not_authorized(place.authorizer.clone()).message;
    let given = place.store.get(place.authorizer).ok_or_else(lost)?;
    let kept: Kept = serde_json::from_str(given.tokens.expose())
        .map_err(|_| "what was kept of the authorization is damaged".to_owned())?;
    let token = kept.token();
    let usable = token.filter(|it| it.is_valid() && refused != Some(&it.authorization));
    if let Some(token) = usable.as_ref().filter(|it| !it.is_old()) {
        return Ok(token.clone());
    }
    let (before, renewed) = match renew(client, server, spec, kept).await {
        Ok(renewed) => (given, renewed),
        Err(Failed::Over(reason)) => {
            let message = lost();
            put(&place, given, None).await;
            return Err(format!("the authorization is over ({reason}): {message}"));
        }
        // Its time is not over yet.
        Err(Failed::Now(reason)) => return usable.ok_or(reason),
    };
    let token = renewed.token();
    let now = Authorization {
        since: before.since,
        tokens: renewed.secret(),
    };
    put(&place, before, Some(now)).await;
    token.ok_or_else(|| super::UNSENDABLE.to_owned())
}

/// Why a token was not renewed.
enum Failed {
    /// Not this time.
    Now(String),
    /// Never again.
    Over(String),
}

async fn renew(
    client: &Arc<RemoteClient>,
    server: &Arc<RemoteServer>,
    spec: &OAuthSpec,
    kept: Kept,
) -> Result<Kept, Failed> {
    let asked = manager(client, server, spec).await;
    let mut asked = asked.map_err(Failed::Now)?;
    // What the operator says now counts; a client that registered by itself has the secret it got then.
    let id = spec.client_id.clone().unwrap_or(kept.client_id);
    let secret = spec.client_secret.as_ref().map(|it| it.expose().to_owned());
    let secret = secret.or(kept.client_secret);
    // Nobody is sent anywhere.
    let mut config = OAuthClientConfig::new(&*id, &*spec.resource);
    config.client_secret.clone_from(&secret);
    let store = InMemoryCredentialStore::new();
    let renewed = async {
        asked.manager.configure_client(config)?;
        store.save(kept.credentials).await?;
        asked.manager.set_credential_store(store.clone());
        asked.manager.refresh_token().await?;
        store.load().await
    };
    let credentials = renewed.await.map_err(|error| match error {
        AuthError::TokenRefreshRejected(_) | AuthError::AuthorizationRequired => {
            Failed::Over(asked.told(&error))
        }
        error => Failed::Now(asked.told(&error)),
    })?;
    let credentials = credentials.ok_or_else(|| Failed::Now("no token came".to_owned()))?;
    Ok(Kept {
        client_id: id,
        client_secret: secret,
        credentials,
    })
}

/// Keeps renewed tokens, or takes away what counts no more.
async fn put(place: &Place<'_>, before: Authorization, now: Option<Authorization>) {
    let (store, authorizer) = (Arc::clone(place.store), place.authorizer.clone());
    let namespace = authorizer.namespace.clone();
    let work = move || store.renew(&authorizer, &before, now);
    let put = tokio::task::spawn_blocking(work).await;
    if let Ok(Err(error)) = put {
        tracing::error!(
            %namespace,
            "a renewed token for the server of namespace {namespace} is in memory alone, since it cannot be kept: {error}. After \
             a restart, somebody may have to authorize the gateway again"
        );
    }
}
