//! Tokens of the grant `authorization_code`: a person has authorized the gateway in a browser ([`super::authorize`]). The tokens
//! are in the store of authorizations, and are renewed there.
//!
//! A renewed token is stored before it is used, because many authorization servers accept a refresh token only once. If the
//! authorization server refuses to renew, or the remote server names another authorization server, the authorization is removed,
//! and a person must authorize the gateway again. If the configuration has changed, the authorization stays stored for the case
//! that the configuration is changed back, but its tokens are not used ([`Binding`]).

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures_util::future::BoxFuture;
use http::HeaderValue;
use oauth2::TokenResponse as _;
use oauth2::url::Url;
use rmcp::transport::auth::StoredCredentials;
use serde::{Deserialize, Serialize};
use tokio::time::timeout;
use tooldock_base::secret::Secret;
use tooldock_credentials::personal::not_authorized;
use tooldock_credentials::secrets::{Authorization, AuthorizationStore, Authorizer};
use tooldock_workers::remote::{OAuthSpec, RemoteServer};

use super::binding::Binding;
use super::endpoints::{configured, issuers_of};
use super::http_client::Http;
use super::issuer;
use super::renewal::{RenewalError, renew};
use super::words::{Reason, one_line};
use super::{End, NoToken, Token};
use crate::remote::RemoteClient;

/// Assumed lifetime of a token whose lifetime the token endpoint does not state. A server may refuse the token earlier.
const UNSAID: Duration = Duration::from_secs(24 * 3600);

/// An authorization as it is stored.
#[derive(Serialize, Deserialize)]
pub(super) struct AuthorizationRecord {
    /// Client id of the gateway at the authorization server.
    pub(super) client_id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) client_secret: Option<String>,
    pub(super) credentials: StoredCredentials,
    /// The authorization server, client and resource that the authorization is for. `None` in records of earlier versions, which
    /// did not store them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) bound: Option<Binding>,
}

impl AuthorizationRecord {
    /// The authorization as JSON text, for the store.
    pub(super) fn secret(&self) -> Secret {
        Secret::new(serde_json::to_string(self).expect("texts and numbers are JSON"))
    }

    /// The secret values in the record, which must not appear in messages.
    pub(super) fn hidden(&self) -> Vec<Secret> {
        let response = self.credentials.token_response.as_ref();
        let access = response.map(|it| it.access_token().secret());
        let refresh = response.and_then(|it| Some(it.refresh_token()?.secret()));
        let values = [access, refresh, self.client_secret.as_ref()];
        values.into_iter().flatten().map(Secret::new).collect()
    }

    /// The access token with its remaining lifetime. `None` if there is none, or it cannot be the value of a header.
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

/// The entry of an authorization in the store: the store, and the person who authorized the gateway.
pub(super) struct AuthorizationSlot<'a> {
    pub(super) store: &'a Arc<AuthorizationStore>,
    pub(super) authorizer: &'a Authorizer,
}

/// Returns the access token of an authorization. It is renewed first if it is old, expired, or equal to `refused`, the value that
/// the server has refused.
///
/// # Errors
///
/// When the authorization is missing, damaged or no longer valid, or its token could not be renewed.
pub(super) async fn token(
    client: &Arc<RemoteClient>,
    server: &Arc<RemoteServer>,
    spec: &OAuthSpec,
    place: AuthorizationSlot<'_>,
    refused: Option<&HeaderValue>,
) -> Result<Token, NoToken> {
    let lost = || not_authorized(place.authorizer.clone()).message;
    let given = place.store.get(place.authorizer);
    let given = given.ok_or_else(|| NoToken::Now(lost().into()))?;
    let kept: AuthorizationRecord = serde_json::from_str(given.tokens.expose())
        .map_err(|_| NoToken::Now("what was kept of the authorization is damaged".into()))?;
    let ended =
        |end, reason: Reason| NoToken::Ended(end, reason.followed_by(&format!(": {}", lost())));
    let (given, kept, bound) = match kept.bound.clone() {
        Some(bound) => (given, kept, bound),
        None => match adopt(client, server, spec, &kept).await? {
            Ok(bound) => {
                let kept = AuthorizationRecord {
                    bound: Some(bound.clone()),
                    ..kept
                };
                let now = Authorization {
                    since: given.since,
                    tokens: kept.secret(),
                };
                put(&place, given, Some(now.clone())).await;
                (now, kept, bound)
            }
            Err(reason) => return Err(ended(End::Unbound, reason.into())),
        },
    };
    if let Some(why) = bound.differs(server, spec, &kept.client_id) {
        let reason = format!("the authorization was given for {why}, and its tokens are not sent");
        return Err(ended(End::Configuration, reason.into()));
    }
    let token = kept.token();
    let usable = token.filter(|it| it.is_valid() && refused != Some(&it.authorization));
    if let Some(token) = usable.as_ref().filter(|it| !it.is_old()) {
        return Ok(token.clone());
    }
    if let Some(other) = elsewhere(client, server, spec, &bound, &kept).await {
        put(&place, given, None).await;
        let own = bound.issuer.as_deref().unwrap_or_default();
        let reason = format!(
            "the server names the authorization server {other}, and the gateway was authorized at {own}: none of its tokens \
             goes elsewhere, and the authorization is over"
        );
        return Err(ended(End::Issuer, reason.into()));
    }
    let renewing: BoxFuture<'_, _> = Box::pin(renew(client, server, spec, &bound, &kept));
    let renewed = match renewing.await {
        Ok(renewed) => renewed,
        Err(RenewalError::Over(reason)) => {
            put(&place, given, None).await;
            let reason = reason.map(|it| format!("the authorization is over ({it})"));
            return Err(ended(End::Refused, reason));
        }
        // The renewal failed for now. The old token is used if it is still valid.
        Err(RenewalError::Now(reason)) => return usable.ok_or(NoToken::Now(reason)),
    };
    let now = Authorization {
        since: given.since,
        tokens: renewed.secret(),
    };
    put(&place, given, Some(now)).await;
    renewed
        .token()
        .ok_or_else(|| NoToken::Now(super::UNSENDABLE.into()))
}

/// Creates the binding of an authorization that an earlier version stored without one. This works only if the configuration names
/// the authorization server. Otherwise the remote server would name it, and a changed server could name another one and get the
/// refresh token.
///
/// The inner error is the reason why the authorization is no longer valid.
async fn adopt(
    client: &Arc<RemoteClient>,
    server: &Arc<RemoteServer>,
    spec: &OAuthSpec,
    kept: &AuthorizationRecord,
) -> Result<Result<Binding, String>, NoToken> {
    let http = Http::new(client, server);
    http.hide(kept.hidden());
    let metadata = configured(&http, spec).await.map_err(NoToken::Now)?;
    let Some(metadata) = metadata else {
        let reason = "the authorization is of a version that did not keep at which authorization server it was given. Name that \
                      server in oauth.issuer, or authorize the gateway again";
        return Ok(Err(reason.to_owned()));
    };
    let before = kept.credentials.issuer.as_deref();
    let another = |it: &&str| {
        !metadata
            .issuer
            .as_deref()
            .is_some_and(|own| issuer::is_same(it, own))
    };
    if let Some(before) = before.filter(another) {
        return Ok(Err(format!("the authorization was given at {before}")));
    }
    // The resource is normalized in the same way as by the OAuth library.
    let resource = Url::parse(&spec.resource).map_or_else(|_| spec.resource.clone(), String::from);
    Ok(Ok(Binding::new(server, spec, &metadata, resource)))
}

/// Returns the authorization server that the remote server names now, if it is another than the one that authorized the gateway.
/// `None` if it is unchanged, configured, or not named.
async fn elsewhere(
    client: &Arc<RemoteClient>,
    server: &Arc<RemoteServer>,
    spec: &OAuthSpec,
    bound: &Binding,
    kept: &AuthorizationRecord,
) -> Option<String> {
    if spec.issuer.is_some() || spec.token_url.is_some() {
        return None;
    }
    let timeouts = server.spec.timeouts;
    // Only half of the time limit is used, because the renewal follows.
    let limit = (timeouts.connect + timeouts.head) / 2;
    let named = timeout(limit, issuers_of(client, server, spec)).await;
    let named = match named {
        Ok(Ok(named)) => named,
        Ok(Err(reason)) => {
            let reason = one_line(server, &kept.hidden(), &reason.logged);
            tracing::debug!(namespace = %server.name, "the server does not say who authorizes the gateway: {reason}");
            return None;
        }
        Err(_) => return None,
    };
    let other = bound.other_issuer(&named)?;
    Some(one_line(server, &kept.hidden(), other))
}

/// Stores renewed tokens. If `now` is `None`, removes the authorization because it is no longer valid.
async fn put(place: &AuthorizationSlot<'_>, before: Authorization, now: Option<Authorization>) {
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
