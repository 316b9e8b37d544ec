//! Where an authorization server is asked: what is configured, or what is discovered.

use std::sync::Arc;

use rmcp::transport::auth::{AuthError, AuthorizationManager, AuthorizationMetadata};
use tooldock_workers::remote::{OAuthSpec, RemoteServer};

use super::http_client::Http;
use crate::remote::RemoteClient;

/// The longest reason that is passed on, in characters.
const REASON_MAX: usize = 300;

/// What asks an authorization server.
pub(super) struct Endpoints {
    pub(super) manager: AuthorizationManager,
    pub(super) http: Arc<Http>,
}

/// What asks the authorization server of a server.
///
/// # Errors
///
/// Why it cannot be asked, in words of the authorization server. The caller takes secrets out.
pub(super) async fn manager(
    client: &Arc<RemoteClient>,
    server: &Arc<RemoteServer>,
    spec: &OAuthSpec,
) -> Result<Endpoints, String> {
    let http = Arc::new(Http::new(client, server));
    let at = async |url: &str| {
        let own = Arc::clone(&http);
        let manager = AuthorizationManager::new_with_oauth_http_client(url, own).await;
        manager.map_err(|error| told(&error, &http))
    };
    // Its address is what tokens are for.
    let mut manager = at(&spec.resource).await?;
    let metadata = match (&spec.token_url, &spec.issuer) {
        (Some(token_url), _) => configured(spec, token_url),
        (None, Some(issuer)) => discovered(&at(issuer).await?, &http).await?,
        (None, None) => discovered(&manager, &http).await?,
    };
    manager.set_metadata(metadata);
    Ok(Endpoints { manager, http })
}

fn configured(spec: &OAuthSpec, token_url: &str) -> AuthorizationMetadata {
    let mut metadata = AuthorizationMetadata::default();
    // Part of the type also where nobody authorizes anything.
    let authorization_url = spec.authorization_url.as_deref().unwrap_or(token_url);
    authorization_url.clone_into(&mut metadata.authorization_endpoint);
    token_url.clone_into(&mut metadata.token_endpoint);
    metadata
}

async fn discovered(
    manager: &AuthorizationManager,
    http: &Http,
) -> Result<AuthorizationMetadata, String> {
    let found = manager.resolve_metadata().await;
    let found = found.map_err(|error| told(&error, http))?;
    match found.source.is_discovered() {
        true => Ok(found.metadata),
        false => Err(
            "no authorization server was discovered: write oauth.token_url or oauth.issuer".into(),
        ),
    }
}

impl Endpoints {
    /// What is told of an error.
    pub(super) fn told(&self, error: &AuthError) -> String {
        told(error, &self.http)
    }
}

/// An error of the authorization server as one line of bounded length, with the reason why the last request failed.
pub(super) fn told(error: &AuthError, http: &Http) -> String {
    let failed = http
        .failed()
        .map_or_else(String::new, |reason| format!(" ({reason})"));
    let text = format!("{error}{failed}").replace(char::is_control, " ");
    text.chars().take(REASON_MAX).collect()
}
