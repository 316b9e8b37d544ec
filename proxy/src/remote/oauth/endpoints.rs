//! The endpoints of an authorization server, from the configuration or from its metadata.

use std::sync::Arc;

use oauth2::url::Url;
use rmcp::transport::auth::{AuthError, AuthorizationManager, AuthorizationMetadata};
use tooldock_workers::remote::{OAuthSpec, RemoteServer};

use super::http_client::Http;
use super::issuer;
use super::words::Reason;
use crate::remote::RemoteClient;

/// The OAuth library's client for an authorization server, with the server's metadata.
pub(super) struct Endpoints {
    pub(super) manager: AuthorizationManager,
    pub(super) http: Arc<Http>,
    pub(super) metadata: AuthorizationMetadata,
}

/// Creates the client for a server's authorization server. The metadata are fetched from addresses that belong to the issuer,
/// even if the remote server named the issuer. Otherwise the remote server could decide where codes, secrets and tokens of the
/// issuer are sent.
///
/// # Errors
///
/// When the authorization server cannot be used. The text contains the server's own reason, if the server gave one.
pub(super) async fn manager(
    client: &Arc<RemoteClient>,
    server: &Arc<RemoteServer>,
    spec: &OAuthSpec,
) -> Result<Endpoints, Reason> {
    let http = Arc::new(Http::new(client, server));
    let mut manager = at_resource(&http, spec).await?;
    let metadata = match configured(&http, spec).await? {
        Some(metadata) => metadata,
        None => {
            let named = match named(&manager).await {
                Ok(named) => named,
                Err(error) => return Err(http.reason(&error.to_string())),
            };
            let named = named.first().ok_or(
                "no authorization server was discovered: write oauth.token_url or oauth.issuer",
            )?;
            issuer::metadata(&http, named).await?
        }
    };
    manager.set_metadata(metadata.clone());
    http.set_issuer(metadata.issuer.clone());
    Ok(Endpoints {
        manager,
        http,
        metadata,
    })
}

/// The metadata of the configured endpoints or issuer; `None` if the configuration names neither.
pub(super) async fn configured(
    http: &Http,
    spec: &OAuthSpec,
) -> Result<Option<AuthorizationMetadata>, Reason> {
    match (&spec.token_url, &spec.issuer) {
        (Some(token_url), _) => Ok(Some(written(spec, token_url))),
        (None, Some(issuer)) => issuer::metadata(http, issuer).await.map(Some),
        (None, None) => Ok(None),
    }
}

fn written(spec: &OAuthSpec, token_url: &str) -> AuthorizationMetadata {
    let mut metadata = AuthorizationMetadata::default();
    // The library's type requires this URL even if no person authorizes the gateway. It is not used then.
    let authorization_url = spec.authorization_url.as_deref().unwrap_or(token_url);
    authorization_url.clone_into(&mut metadata.authorization_endpoint);
    token_url.clone_into(&mut metadata.token_endpoint);
    metadata
}

/// Asks the remote server for its issuers (RFC 9728). Returns them in the server's order; empty if it names none.
///
/// # Errors
///
/// When the server did not answer, or its answer cannot be read.
pub(super) async fn issuers_of(
    client: &Arc<RemoteClient>,
    server: &Arc<RemoteServer>,
    spec: &OAuthSpec,
) -> Result<Vec<String>, Reason> {
    let http = Arc::new(Http::new(client, server));
    let manager = at_resource(&http, spec).await?;
    match named(&manager).await {
        Ok(named) => Ok(named),
        // The failed URL is on another host than the server. So the server has named an issuer there, which does not answer.
        Err(AuthError::DiscoveryRequestFailed { url, .. }) if !is_at(&url, &spec.resource) => {
            Ok(issuer::of_address(&url))
        }
        Err(error) => Err(http.reason(&error.to_string())),
    }
}

/// Returns true if a URL has the same scheme, host and port as a resource.
fn is_at(url: &Url, resource: &str) -> bool {
    Url::parse(resource).is_ok_and(|it| it.origin() == url.origin())
}

/// Creates the OAuth library's client for the resource for which tokens are requested.
async fn at_resource(http: &Arc<Http>, spec: &OAuthSpec) -> Result<AuthorizationManager, Reason> {
    let own = Arc::clone(http);
    let manager = AuthorizationManager::new_with_oauth_http_client(&*spec.resource, own).await;
    manager.map_err(|error| http.reason(&error.to_string()))
}

async fn named(manager: &AuthorizationManager) -> Result<Vec<String>, AuthError> {
    match manager.resolve_metadata().await {
        Ok(found) if found.source.is_discovered() => {
            Ok(found.metadata.issuer.into_iter().collect())
        }
        Ok(_) => Ok(Vec::new()),
        // The remote server has named these issuers, even if they do not answer.
        Err(AuthError::AuthorizationServersUnavailable {
            authorization_servers,
            ..
        }) => Ok(authorization_servers),
        Err(
            AuthError::AuthorizationServerMismatch {
                expected_issuer, ..
            }
            | AuthError::AuthorizationServerMissingIssuer { expected_issuer },
        ) => Ok(vec![expected_issuer]),
        Err(error) => Err(error),
    }
}

impl Endpoints {
    /// Converts an error of the OAuth library to a reason.
    pub(super) fn reason(&self, error: &AuthError) -> Reason {
        self.http.reason(&error.to_string())
    }
}
