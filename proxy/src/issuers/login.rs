//! Logins of users at an issuer: creates the authorization request to which a browser is sent, and exchanges the resulting
//! code for an access token. The grant is `authorization_code` with PKCE (RFC 6749, RFC 7636).
//!
//! The access token is admitted like any other. The rest of the token endpoint's response is ignored, such as an ID token or a
//! refresh token.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::StatusCode;
use oauth2::url::form_urlencoded::{Serializer, byte_serialize};
use oauth2::{PkceCodeChallenge, PkceCodeVerifier};
use serde::Deserialize;
use tokio::time::Instant;
use tooldock_base::secret::Secret;
use tooldock_filters::config::{OauthConfig, WebLoginConfig};
use tooldock_filters::oauth::Issuer;

use super::metadata::{Metadata, discover};
use super::{Issuers, lock};
use crate::config::client_password;
use crate::remote::Fetch;

/// Maximum size of the token endpoint's response, in bytes.
const ANSWER_MAX: usize = 256 * 1024;

/// Time limit for the token endpoint's response.
const DEADLINE: Duration = Duration::from_secs(10);

/// Maximum age of an issuer's metadata. A login with older metadata fetches it again.
const METADATA_COUNT: Duration = Duration::from_secs(300);

/// Maximum number of concurrent requests to issuers for logins; further logins are refused.
pub(super) const EXCHANGES_MAX: usize = 16;

/// Metadata of an issuer that was fetched for a login.
pub(super) struct FetchedMetadata {
    config: OauthConfig,
    metadata: Metadata,
    since: Instant,
}

/// An authorization request whose code has not arrived yet. It has no `Debug`, since it contains a secret.
pub(crate) struct AuthorizationRequest {
    /// The issuer's configuration at the time of the request.
    config: OauthConfig,
    token_endpoint: String,
    /// True if the client secret is sent in the body; false if it is sent in the header `Authorization`.
    posts_secret: bool,
    /// True if the redirect must name the issuer (RFC 9207).
    names_issuer: bool,
    verifier: PkceCodeVerifier,
    redirect: String,
}

/// The reason why a login at an issuer failed.
#[derive(Debug)]
pub(crate) enum LoginFailure {
    /// The issuer or a check of the redirect refused the login; another attempt may succeed.
    Refused(String),
    /// The issuer's response is unusable, or too many logins are running.
    Unavailable(String),
    /// No request can be sent to the issuer. The cause, such as a private address or a missing variable, is only shown to the
    /// operator.
    Unreachable(String),
}

/// The fields of a token endpoint's response that the gateway uses. It has no `Debug`, since it contains a token.
#[derive(Deserialize)]
struct TokenAnswer {
    access_token: String,
    token_type: String,
}

/// An error response of a token endpoint (RFC 6749, 5.2).
#[derive(Deserialize)]
struct TokenError {
    error: String,
}

impl AuthorizationRequest {
    /// Returns the issuer's configuration at the time of the request.
    pub(crate) fn config(&self) -> &OauthConfig {
        &self.config
    }

    /// Returns an error if a redirect names another issuer than the one of the request, or names none although it must (RFC
    /// 9207).
    fn check_issuer(&self, named: Option<&str>) -> Result<(), LoginFailure> {
        let is_right = match named {
            Some(named) => named == self.config.issuer,
            None => !self.names_issuer,
        };
        match is_right {
            true => Ok(()),
            false => Err(LoginFailure::Refused(
                "the answer comes from another issuer than the login began at".into(),
            )),
        }
    }
}

impl Issuers {
    /// Creates an authorization request at an issuer for the web UI. Returns the URL for the browser, and the data needed to
    /// handle the redirect. `redirect` is the URL of the login page; `state` is the value by which the redirect is recognized.
    ///
    /// # Errors
    ///
    /// [`LoginFailure::Unreachable`] if the issuer's metadata cannot be fetched, [`LoginFailure::Unavailable`] if it is unusable.
    pub(crate) async fn request_authorization(
        &self,
        issuer: &Issuer,
        redirect: String,
        state: &str,
    ) -> Result<(String, AuthorizationRequest), LoginFailure> {
        let config = issuer.config();
        let Some(client) = config.web_login() else {
            let message = "admission.oauth[].web of the issuer is off".to_owned();
            return Err(LoginFailure::Unreachable(message));
        };
        let metadata = self.metadata_for_login(config).await;
        let metadata = metadata.map_err(LoginFailure::Unreachable)?;
        let usable = || -> Result<_, String> {
            let methods = metadata.code_challenge_methods_supported.as_ref();
            if methods.is_some_and(|it| !it.iter().any(|it| it == "S256")) {
                return Err("its metadata name no S256 among the methods of PKCE".into());
            }
            Ok((metadata.authorization(config)?, metadata.token(config)?))
        };
        let (authorization, token_endpoint) = usable().map_err(LoginFailure::Unavailable)?;
        let (challenge, verifier) = PkceCodeChallenge::new_random_sha256();
        let address = address(
            &authorization,
            config,
            client,
            &redirect,
            state,
            challenge.as_str(),
        );
        let has = |form: &str| {
            let forms = &metadata.token_endpoint_auth_methods_supported;
            forms.iter().any(|it| it == form)
        };
        Ok((
            address,
            AuthorizationRequest {
                config: config.clone(),
                token_endpoint,
                posts_secret: has("client_secret_post") && !has("client_secret_basic"),
                names_issuer: metadata.authorization_response_iss_parameter_supported,
                verifier,
                redirect,
            },
        ))
    }

    /// Exchanges the code of a redirect for an access token. `named` is the issuer that the redirect names.
    ///
    /// # Errors
    ///
    /// [`LoginFailure`] with a message for the person who logs in. It contains neither the code nor a secret.
    pub(crate) async fn exchange(
        &self,
        request: AuthorizationRequest,
        code: &str,
        named: Option<&str>,
    ) -> Result<Secret, LoginFailure> {
        request.check_issuer(named)?;
        let config = &request.config;
        let Some(client) = config.web_login() else {
            let message = "the issuer is no longer configured for logins".to_owned();
            return Err(LoginFailure::Refused(message));
        };
        let Ok(_permit) = self.exchanges.try_acquire() else {
            let message = "too many logins are running; try again in a moment".to_owned();
            return Err(LoginFailure::Unavailable(message));
        };
        let from = config.endpoint(&request.token_endpoint);
        let from = from.map_err(LoginFailure::Unreachable)?;
        let secret = match &client.client_secret {
            None => None,
            Some(secret) => {
                let secret = client_password("web", secret).map_err(LoginFailure::Unreachable)?;
                Some(Secret::new(secret))
            }
        };
        let (form, authorization) = form(&request, client, code, secret.as_ref());
        let fetched = self.fetcher.fetch(Fetch {
            from: &from,
            allow_private: config.allow_private,
            form: Some(form.expose()),
            authorization: authorization.as_ref().map(Secret::expose),
            bytes_max: ANSWER_MAX,
            deadline: DEADLINE,
        });
        let (status, body) = fetched.await.map_err(LoginFailure::Unreachable)?;
        if status == StatusCode::OK {
            return access_token(&body);
        }
        let code = serde_json::from_slice::<TokenError>(&body);
        let code = code.ok().map(|it| it.error);
        Err(match code.filter(|it| is_error_code(it)) {
            Some(code) if code == "invalid_client" => LoginFailure::Unavailable(
                "it does not accept the gateway's client (invalid_client); check web.client_id and web.client_secret".into(),
            ),
            Some(code) => LoginFailure::Refused(format!("it refused the login's code ({code})")),
            None => LoginFailure::Unavailable(format!("its token endpoint answered {status}")),
        })
    }

    /// Returns the metadata of an issuer, which is fetched again when it is older than [`METADATA_COUNT`].
    async fn metadata_for_login(&self, config: &OauthConfig) -> Result<Metadata, String> {
        {
            let known = lock(&self.metadata);
            if let Some(known) = known.get(&config.issuer)
                && known.config == *config
                && known.since.elapsed() < METADATA_COUNT
            {
                return Ok(known.metadata.clone());
            }
        }
        let Ok(_permit) = self.exchanges.try_acquire() else {
            return Err("too many logins are running; try again in a moment".into());
        };
        let metadata = discover(&self.fetcher, config).await?;
        let fetched = FetchedMetadata {
            config: config.clone(),
            metadata: metadata.clone(),
            since: Instant::now(),
        };
        lock(&self.metadata).insert(config.issuer.clone(), fetched);
        Ok(metadata)
    }
}

/// Returns the URL of an authorization request.
fn address(
    endpoint: &str,
    config: &OauthConfig,
    client: &WebLoginConfig,
    redirect: &str,
    state: &str,
    challenge: &str,
) -> String {
    let scopes = match client.scopes.is_empty() {
        true => config.scopes.keys().cloned().collect::<Vec<_>>(),
        false => client.scopes.clone(),
    };
    let mut query = Serializer::new(String::new());
    query
        .append_pair("response_type", "code")
        .append_pair("client_id", &client.client_id)
        .append_pair("redirect_uri", redirect)
        .append_pair("scope", &scopes.join(" "))
        .append_pair("state", state)
        .append_pair("code_challenge", challenge)
        .append_pair("code_challenge_method", "S256");
    if let Some(resource) = config.login_resource() {
        query.append_pair("resource", resource);
    }
    let joint = if endpoint.contains('?') { '&' } else { '?' };
    format!("{endpoint}{joint}{}", query.finish())
}

/// Returns the form for the token endpoint, and the value of the header `Authorization` if the secret is sent in it.
fn form(
    request: &AuthorizationRequest,
    client: &WebLoginConfig,
    code: &str,
    secret: Option<&Secret>,
) -> (Secret, Option<Secret>) {
    let mut form = Serializer::new(String::new());
    form.append_pair("grant_type", "authorization_code")
        .append_pair("code", code)
        .append_pair("redirect_uri", &request.redirect)
        .append_pair("code_verifier", request.verifier.secret());
    if let Some(resource) = request.config.login_resource() {
        form.append_pair("resource", resource);
    }
    let mut authorization = None;
    match secret {
        Some(secret) if !request.posts_secret => {
            let encoded = |text: &str| byte_serialize(text.as_bytes()).collect::<String>();
            let pair = format!(
                "{}:{}",
                encoded(&client.client_id),
                encoded(secret.expose())
            );
            authorization = Some(Secret::new(format!("Basic {}", STANDARD.encode(pair))));
        }
        Some(secret) => {
            form.append_pair("client_id", &client.client_id)
                .append_pair("client_secret", secret.expose());
        }
        None => {
            form.append_pair("client_id", &client.client_id);
        }
    }
    (Secret::new(form.finish()), authorization)
}

/// Extracts the access token from a token endpoint's response.
fn access_token(body: &[u8]) -> Result<Secret, LoginFailure> {
    let unusable = || LoginFailure::Unavailable("it answered with no bearer token".to_owned());
    let answer: TokenAnswer = serde_json::from_slice(body).map_err(|_| unusable())?;
    let token = Secret::new(answer.access_token);
    let is_usable = answer.token_type.eq_ignore_ascii_case("bearer")
        && !token.expose().is_empty()
        && token.expose().bytes().all(|byte| byte.is_ascii_graphic());
    match is_usable {
        true => Ok(token),
        false => Err(unusable()),
    }
}

/// Returns true if a text has the form of an error code of OAuth (RFC 6749): lower-case letters and underscores.
fn is_error_code(text: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_lowercase() || byte == b'_';
    (1..=64).contains(&text.len()) && text.bytes().all(fits)
}

#[cfg(test)]
pub(crate) mod tests {
    use tooldock_base::yaml;

    use super::*;

    /// Creates an authorization request for tests. `web` is the configuration of the client.
    pub(crate) fn request(
        web: &str,
        posts_secret: bool,
        names_issuer: bool,
    ) -> AuthorizationRequest {
        let text = format!(
            "{{ issuer: 'https://idp.example', audience: [a, 'https://gw.example/mcp'], scopes: {{ b: read, a: admin }}, web: {web} }}"
        );
        AuthorizationRequest {
            config: yaml::from_str(&text).expect("an issuer"),
            token_endpoint: "https://idp.example/token".into(),
            posts_secret,
            names_issuer,
            verifier: PkceCodeVerifier::new("verifier".into()),
            redirect: "https://tools.example/login".into(),
        }
    }

    fn sent(request: &AuthorizationRequest, secret: Option<&str>) -> (String, Option<String>) {
        let client = request.config.web_login().expect("a client");
        let secret = secret.map(Secret::new);
        let (form, authorization) = form(request, client, "c&de", secret.as_ref());
        (
            form.expose().to_owned(),
            authorization.map(|it| it.expose().to_owned()),
        )
    }

    #[test]
    fn the_browser_is_sent_with_every_part_of_the_request_encoded() {
        let of = |web: &str, endpoint: &str| {
            let request = request(web, false, false);
            let client = request.config.web_login().expect("a client");
            address(
                endpoint,
                &request.config,
                client,
                &request.redirect,
                "st&te",
                "hash",
            )
        };
        assert_eq!(
            of("{ client_id: 'u i' }", "https://idp.example/authorize"),
            "https://idp.example/authorize?response_type=code&client_id=u+i\
             &redirect_uri=https%3A%2F%2Ftools.example%2Flogin&scope=a+b&state=st%26te&code_challenge=hash\
             &code_challenge_method=S256&resource=https%3A%2F%2Fgw.example%2Fmcp"
        );
        let other = of(
            "{ client_id: ui, scopes: [openid], resource: off }",
            "https://idp.example/authorize?tenant=1",
        );
        assert!(other.starts_with("https://idp.example/authorize?tenant=1&response_type=code&"));
        assert!(other.contains("&scope=openid&") && !other.contains("resource="));
    }

    #[test]
    fn the_client_shows_itself_in_the_form_that_the_issuer_takes() {
        let common = "grant_type=authorization_code&code=c%26de&redirect_uri=https%3A%2F%2Ftools.example%2Flogin\
                      &code_verifier=verifier&resource=https%3A%2F%2Fgw.example%2Fmcp";
        let public = sent(&request("{ client_id: ui }", false, false), None);
        assert_eq!(public, (format!("{common}&client_id=ui"), None));
        let basic = sent(&request("{ client_id: ui }", false, false), Some("s:1"));
        let pair = STANDARD.encode("ui:s%3A1");
        assert_eq!(basic, (common.to_owned(), Some(format!("Basic {pair}"))));
        let posted = sent(&request("{ client_id: ui }", true, false), Some("s:1"));
        let form = format!("{common}&client_id=ui&client_secret=s%3A1");
        assert_eq!(posted, (form, None));
    }

    #[test]
    fn a_redirect_from_another_issuer_is_refused() {
        let right = Some("https://idp.example");
        for (names_issuer, named, expected) in [
            (false, None, true),
            (false, right, true),
            (true, right, true),
            (true, None, false),
            (false, Some("https://idp.example/"), false),
            (true, Some("https://evil.example"), false),
        ] {
            let request = request("{ client_id: ui }", false, names_issuer);
            assert_eq!(request.check_issuer(named).is_ok(), expected, "{named:?}");
        }
    }

    #[test]
    fn only_bearer_tokens_that_a_header_can_hold_are_taken() {
        for (body, expected) in [
            (r#"{"access_token":"abc","token_type":"Bearer"}"#, true),
            (r#"{"access_token":"abc","token_type":"DPoP"}"#, false),
            (r#"{"access_token":"a\nb","token_type":"bearer"}"#, false),
            (r#"{"access_token":"","token_type":"bearer"}"#, false),
            (r#"{"id_token":"abc","token_type":"bearer"}"#, false),
            ("no JSON", false),
        ] {
            assert_eq!(access_token(body.as_bytes()).is_ok(), expected, "{body}");
        }
    }
}
