//! The endpoints of an authorization server, configured or discovered.

use std::sync::Arc;

use oauth2::url::Url;
use rmcp::transport::auth::{AuthError, AuthorizationManager, AuthorizationMetadata};
use tooldock_workers::remote::{OAuthSpec, RemoteServer};

use super::http_client::Http;
use super::issuer;
use super::words::Reason;
use crate::remote::RemoteClient;

/// The client of an authorization server, with its metadata.
pub(super) struct Endpoints {
    pub(super) manager: AuthorizationManager,
    pub(super) http: Arc<Http>,
    pub(super) metadata: AuthorizationMetadata,
}

/// Client of a server's authorization server. Metadata come from the addresses of the issuer, also where the remote
/// server named the issuer: naming an issuer does not decide where that issuer takes codes, secrets and tokens.
///
/// # Errors
///
/// The reason why it cannot be asked, in words of the authorization server.
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
    Ok(Endpoints {
        manager,
        http,
        metadata,
    })
}

/// The metadata that the configuration gives. `None`: it names neither endpoints nor an issuer.
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
    // The type requires it, even where no person authorizes anything.
    let authorization_url = spec.authorization_url.as_deref().unwrap_or(token_url);
    authorization_url.clone_into(&mut metadata.authorization_endpoint);
    token_url.clone_into(&mut metadata.token_endpoint);
    metadata
}

/// The issuers that a remote server names now (RFC 9728), in its order; none where it names none.
///
/// # Errors
///
/// The issuers are unknown for now: the server did not answer, or not in a readable way.
pub(super) async fn issuers_of(
    client: &Arc<RemoteClient>,
    server: &Arc<RemoteServer>,
    spec: &OAuthSpec,
) -> Result<Vec<String>, Reason> {
    let http = Arc::new(Http::new(client, server));
    let manager = at_resource(&http, spec).await?;
    match named(&manager).await {
        Ok(named) => Ok(named),
        // An authorization server elsewhere that does not answer was named all the same.
        Err(AuthError::DiscoveryRequestFailed { url, .. }) if !is_at(&url, &spec.resource) => {
            Ok(issuer::of_address(&url))
        }
        Err(error) => Err(http.reason(&error.to_string())),
    }
}

/// Returns true if an address has the origin of a resource.
fn is_at(url: &Url, resource: &str) -> bool {
    Url::parse(resource).is_ok_and(|it| it.origin() == url.origin())
}

/// The manager whose address is the resource, for which tokens are requested.
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
        // Named all the same.
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
    /// The reason that an error gives.
    pub(super) fn reason(&self, error: &AuthError) -> Reason {
        self.http.reason(&error.to_string())
    }
}
