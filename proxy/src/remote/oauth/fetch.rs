//! Fetches a token that the gateway gets in its own name, without a person's authorization.

use std::sync::Arc;

use oauth2::TokenResponse as _;
use rmcp::transport::auth::ClientCredentialsConfig;
use tooldock_base::secret::Secret;
use tooldock_workers::remote::{OAuthSpec, RemoteServer};

use super::Token;
use super::endpoints::manager;
use super::words::Reason;
use crate::remote::RemoteClient;

/// Requests a token from the server's authorization server. `before` contains earlier tokens, so that they can be removed from
/// error texts.
///
/// # Errors
///
/// When no usable token was obtained. The text contains the authorization server's own reason, if the server gave one.
pub(super) async fn token(
    client: &Arc<RemoteClient>,
    server: &Arc<RemoteServer>,
    spec: &OAuthSpec,
    before: Vec<Secret>,
) -> Result<Token, Reason> {
    let mut asked = manager(client, server, spec).await?;
    asked.http.hide(before);
    let secret = spec.client_secret.as_ref();
    let config = ClientCredentialsConfig::ClientSecret {
        client_id: spec.client_id.clone().unwrap_or_default(),
        client_secret: secret.map(|it| it.expose().to_owned()).unwrap_or_default(),
        scopes: spec.scopes.clone(),
        resource: Some(spec.resource.clone()),
    };
    let configured = asked.manager.configure_client_credentials(&config);
    configured.map_err(|error| asked.reason(&error))?;
    let response = asked.manager.exchange_client_credentials(&config).await;
    let response = response.map_err(|error| asked.reason(&error))?;
    let token = Token::new(response.access_token().secret(), response.expires_in());
    token.ok_or_else(|| super::UNSENDABLE.into())
}
