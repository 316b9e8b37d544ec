//! Renews tokens at the token endpoint to which their authorization is bound. No endpoint is discovered for that.

use std::io;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use oauth2::basic::{
    BasicErrorResponse, BasicErrorResponseType, BasicRevocationErrorResponse,
    BasicTokenIntrospectionResponse,
};
use oauth2::{
    AuthType, ClientId, ClientSecret, RefreshToken, RequestTokenError, Scope,
    StandardRevocableToken, TokenResponse as _, TokenUrl,
};
use rmcp::transport::auth::{OAuthTokenResponse, StoredCredentials};
use tooldock_workers::remote::{ClientAuth, OAuthSpec, RemoteServer};

use super::binding::{Binding, Registration};
use super::http_client::Http;
use super::kept::AuthorizationRecord;
use super::words::Reason;
use crate::remote::RemoteClient;

type Client = oauth2::Client<
    BasicErrorResponse,
    OAuthTokenResponse,
    BasicTokenIntrospectionResponse,
    StandardRevocableToken,
    BasicRevocationErrorResponse,
>;

/// Reason why a token was not renewed.
pub(super) enum RenewalError {
    /// Temporary failure to renew a token: a later attempt may succeed.
    Now(Reason),
    /// Permanent failure to renew a token: the authorization is no longer valid, and later attempts cannot succeed.
    Over(Reason),
}

/// Renews the tokens of an authorization at the authorization server that issued them.
///
/// # Errors
///
/// When the tokens were not renewed. The text is one line.
pub(super) async fn renew(
    client: &Arc<RemoteClient>,
    server: &Arc<RemoteServer>,
    spec: &OAuthSpec,
    bound: &Binding,
    kept: &AuthorizationRecord,
) -> Result<AuthorizationRecord, RenewalError> {
    let before = kept.credentials.token_response.as_ref();
    let refresh = before.and_then(|it| it.refresh_token());
    let refresh = refresh.ok_or_else(|| RenewalError::Over("it has no refresh token".into()))?;
    // The secret of a client that the operator has configured is read from the current configuration; that of a client that the
    // gateway has registered itself is read from the stored authorization.
    let secret = match bound.registration {
        Registration::Configured => spec.client_secret.as_ref().map(|it| it.expose().to_owned()),
        Registration::Dynamic => kept.client_secret.clone(),
    };
    let http = Http::new(client, server);
    http.hide(kept.hidden());
    http.set_issuer(bound.issuer.clone());
    if let Some(secret) = &secret {
        http.hide_client(&kept.client_id, secret);
    }
    let endpoint = TokenUrl::new(bound.token_endpoint.clone());
    let endpoint = endpoint.map_err(|error| RenewalError::Now(http.reason(&error.to_string())))?;
    let mut asking = Client::new(ClientId::new(kept.client_id.clone())).set_token_uri(endpoint);
    if let Some(secret) = &secret {
        asking = asking.set_client_secret(ClientSecret::new(secret.clone()));
    }
    if bound.client_auth == ClientAuth::Post {
        asking = asking.set_auth_type(AuthType::RequestBody);
    }
    let scopes = kept.credentials.granted_scopes.iter().cloned();
    let renewed = asking
        .exchange_refresh_token(refresh)
        .add_extra_param("resource", &bound.resource)
        .add_scopes(scopes.map(Scope::new))
        .request_async(&http)
        .await;
    let renewed = renewed.map_err(|error| failed(&error, &http))?;
    Ok(AuthorizationRecord {
        client_id: kept.client_id.clone(),
        client_secret: secret,
        credentials: credentials(kept, refresh, renewed),
        bound: Some(bound.clone()),
    })
}

fn failed(error: &RequestTokenError<io::Error, BasicErrorResponse>, http: &Http) -> RenewalError {
    match error {
        RequestTokenError::ServerResponse(response)
            if *response.error() == BasicErrorResponseType::InvalidGrant =>
        {
            RenewalError::Over(http.reason(&error.to_string()))
        }
        _ => RenewalError::Now(http.reason(&error.to_string())),
    }
}

/// The renewed tokens as they are stored. If the response has no refresh token or scopes, the previous ones are kept.
fn credentials(
    kept: &AuthorizationRecord,
    refresh: &RefreshToken,
    mut renewed: OAuthTokenResponse,
) -> StoredCredentials {
    if renewed.refresh_token().is_none() {
        renewed.set_refresh_token(Some(refresh.clone()));
    }
    let scopes = renewed.scopes().map(|all| {
        let all = all.iter();
        all.map(|it| it.to_string()).collect()
    });
    let scopes = scopes.unwrap_or_else(|| kept.credentials.granted_scopes.clone());
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let received = now.unwrap_or_default().as_secs();
    let issuer = kept.credentials.issuer.clone();
    StoredCredentials::new(
        kept.client_id.clone(),
        Some(renewed),
        scopes,
        Some(received),
    )
    .with_issuer(issuer)
}
