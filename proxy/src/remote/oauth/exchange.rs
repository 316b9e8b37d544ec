//! Exchange of a caller's access token for an access token that a remote server accepts (RFC 8693), directly or by an assertion of
//! the caller's identity provider (ID-JAG). Only the authorization server that exchanges it gets the caller's token; the remote
//! server gets only the new token.

use std::sync::Arc;

use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderValue, Method, Request, StatusCode};
use oauth2::TokenResponse as _;
use oauth2::url::form_urlencoded::Serializer;
use rmcp::transport::auth::OAuthTokenResponse;
use serde_json::Value;
use tooldock_base::secret::Secret;
use tooldock_workers::remote::{OAuthSpec, RemoteServer};

use super::Token;
use super::endpoints::manager;
use super::words::Reason;
use crate::remote::RemoteClient;

/// Value of the parameter `grant_type` for exchanges.
const GRANT: &str = "urn:ietf:params:oauth:grant-type:token-exchange";
/// Token type, by RFC 8693, of both the exchanged and the requested token.
const ACCESS_TOKEN: &str = "urn:ietf:params:oauth:token-type:access_token";
/// Token type of an identity assertion for another authorization server (draft-ietf-oauth-identity-assertion-authz-grant).
const ASSERTION: &str = "urn:ietf:params:oauth:token-type:id-jag";
/// Value of the parameter `grant_type` for an access token in return for an assertion (RFC 7523 §2.1).
const ASSERTION_GRANT: &str = "urn:ietf:params:oauth:grant-type:jwt-bearer";

/// Returns the caller's access token from the header `Authorization` of the client's request.
///
/// # Errors
///
/// When the header has no bearer token: the caller used an API key or another credential, or the gateway itself is the caller.
pub(super) fn subject(authorization: Option<&HeaderValue>) -> Result<Secret, String> {
    let value = authorization.and_then(|it| it.to_str().ok());
    let bearer = value.and_then(|it| {
        let (scheme, token) = it.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
    });
    match bearer.filter(|it| !it.is_empty()) {
        Some(bearer) => Ok(Secret::new(bearer)),
        None => Err(
            "the caller has no access token of an issuer in admission.oauth that could be exchanged"
                .to_owned(),
        ),
    }
}

/// Requests an access token for the server in exchange for `subject`, the caller's access token. `before`: earlier tokens, which
/// are removed from error texts.
///
/// With the grant `id_jag`, the identity provider exchanges the caller's token for an assertion, and the server's authorization
/// server grants an access token for the assertion.
///
/// # Errors
///
/// When no usable token was obtained. The text contains the authorization server's own reason, if the server gave one.
pub(super) async fn token(
    client: &Arc<RemoteClient>,
    server: &Arc<RemoteServer>,
    spec: &OAuthSpec,
    subject: &Secret,
    before: Vec<Secret>,
) -> Result<Token, Reason> {
    let hidden = before.into_iter().chain([subject.clone()]).collect();
    let answer = match &spec.identity {
        None => {
            let form = token_request(spec, subject);
            request(client, server, spec, form, hidden).await?.token
        }
        Some(identity) => {
            let mut own = server.spec.clone();
            own.oauth = Some(OAuthSpec::clone(identity));
            let provider = Arc::new(RemoteServer::new(server.name.clone(), own));
            let form = assertion_request(spec, identity, subject);
            let answer = request(client, &provider, identity, form, hidden).await?;
            // A provider that ignores the wanted type could give a token, which no other authorization server may get.
            if answer.issued_type.as_deref() != Some(ASSERTION) {
                return Err("the identity provider gave no identity assertion (id-jag)".into());
            }
            let assertion = Secret::new(answer.token.access_token().secret());
            let form = assertion_form(spec, &assertion);
            let hidden = vec![assertion, subject.clone()];
            request(client, server, spec, form, hidden).await?.token
        }
    };
    let token = Token::new(answer.access_token().secret(), answer.expires_in());
    token.ok_or_else(|| super::UNSENDABLE.into())
}

/// Answer of a token endpoint.
struct ExchangeAnswer {
    token: OAuthTokenResponse,
    /// Type of the token (RFC 8693 §2.2.1).
    issued_type: Option<String>,
}

/// Sends a form to the token endpoint of `spec`. `hidden`: secrets that are removed from error texts.
async fn request(
    client: &Arc<RemoteClient>,
    server: &Arc<RemoteServer>,
    spec: &OAuthSpec,
    form: Secret,
    hidden: Vec<Secret>,
) -> Result<ExchangeAnswer, Reason> {
    let endpoints = manager(client, server, spec).await?;
    let http = &endpoints.http;
    http.hide(hidden);
    let request = Request::builder()
        .method(Method::POST)
        .uri(&endpoints.metadata.token_endpoint)
        .header(CONTENT_TYPE, "application/x-www-form-urlencoded")
        .header(ACCEPT, "application/json")
        .body(form.expose().as_bytes().to_vec());
    let request = request.map_err(|error| http.reason(&error.to_string()))?;
    let answer = http.send(request).await;
    let answer = answer.map_err(|error| http.reason(&error.to_string()))?;
    if answer.status() != StatusCode::OK {
        let said = String::from_utf8_lossy(answer.body());
        let status = answer.status().as_u16();
        return Err(http.reason(&format!("the exchange was refused (HTTP {status}): {said}")));
    }
    let token = serde_json::from_slice(answer.body())
        .map_err(|_| http.reason("the answer to the exchange has no token"))?;
    let members: Value = serde_json::from_slice(answer.body()).unwrap_or_default();
    let issued_type = members["issued_token_type"].as_str().map(str::to_owned);
    Ok(ExchangeAnswer { token, issued_type })
}

/// Returns the form of an exchange request (RFC 8693 §2.1), without the requested token's type and the client.
fn exchange_form(spec: &OAuthSpec, subject: &Secret) -> Serializer<'static, String> {
    let mut form = Serializer::new(String::new());
    form.append_pair("grant_type", GRANT)
        .append_pair("subject_token", subject.expose())
        .append_pair("subject_token_type", ACCESS_TOKEN);
    add_target(&mut form, spec);
    form
}

/// Returns the form with which an access token for the server is requested in exchange for the caller's.
fn token_request(spec: &OAuthSpec, subject: &Secret) -> Secret {
    let mut form = exchange_form(spec, subject);
    form.append_pair("requested_token_type", ACCESS_TOKEN);
    with_client(form, spec)
}

/// Returns the form with which the identity provider is asked for an assertion about the caller. The assertion is for the
/// issuer of `spec`.
fn assertion_request(spec: &OAuthSpec, identity: &OAuthSpec, subject: &Secret) -> Secret {
    let audience = spec.issuer.as_deref().unwrap_or_default();
    let mut form = exchange_form(spec, subject);
    form.append_pair("requested_token_type", ASSERTION)
        .append_pair("audience", audience);
    with_client(form, identity)
}

/// Returns the form with which an access token is requested for an assertion.
fn assertion_form(spec: &OAuthSpec, assertion: &Secret) -> Secret {
    let mut form = Serializer::new(String::new());
    form.append_pair("grant_type", ASSERTION_GRANT)
        .append_pair("assertion", assertion.expose());
    add_target(&mut form, spec);
    with_client(form, spec)
}

/// Adds the resource and the scopes for which a token is requested.
fn add_target(form: &mut Serializer<'static, String>, spec: &OAuthSpec) {
    form.append_pair("resource", &spec.resource);
    if !spec.scopes.is_empty() {
        form.append_pair("scope", &spec.scopes.join(" "));
    }
}

/// Completes a form by the client's id and secret. If the token endpoint requires them in a header, `http.send` moves them there.
fn with_client(mut form: Serializer<'static, String>, spec: &OAuthSpec) -> Secret {
    if let (Some(id), Some(secret)) = (&spec.client_id, &spec.client_secret) {
        form.append_pair("client_id", id)
            .append_pair("client_secret", secret.expose());
    }
    Secret::new(form.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_bearer_token_is_exchanged() {
        let of = |text: &'static str| {
            let value = HeaderValue::from_static(text);
            subject(Some(&value)).ok().map(|it| it.expose().to_owned())
        };
        assert_eq!(of("Bearer abc").as_deref(), Some("abc"));
        assert_eq!(of("bearer  abc").as_deref(), Some("abc"));
        for other in ["Basic abc", "Bearer ", "abc"] {
            assert_eq!(of(other), None, "{other}");
        }
        assert!(subject(None).is_err());
    }
}
