//! OAuth for requests to remote servers: the configuration, and the settings with which a token is requested.

use serde::{Deserialize, Serialize};
use tooldock_base::secret::Secret;
use tooldock_base::server_failure::InvalidServer;
use tooldock_base::template::Template;
use tooldock_credentials::personal::AuthorizedBy;

use super::backend::Backend;

/// Maximum number of scopes in the configuration of one server.
const SCOPES_MAX: usize = 64;
/// Maximum length of a client id, a scope or a resource, in bytes.
const TEXT_MAX: usize = 1024;

/// Configuration key `oauth:` of a remote server: settings with which the gateway requests access tokens for the server.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct OAuthConfig {
    /// OAuth grant with which the gateway requests tokens.
    pub grant: Grant,
    /// True if each principal authorizes the gateway for itself, with the grant `authorization_code`; false if one authorization
    /// is used for all.
    pub personal: bool,
    /// Client id of the gateway at the authorization server. With the grant `authorization_code` it may be omitted: the gateway
    /// then registers itself as a client.
    pub client_id: Option<String>,
    /// Client secret of the gateway at the authorization server.
    pub client_secret: Option<Template>,
    /// Private key of the gateway at the authorization server, as PEM, in place of a secret: the gateway signs client assertions
    /// with it (`private_key_jwt`, RFC 7523 §2.2).
    pub client_key: Option<Template>,
    /// Id (`kid`) by which the authorization server finds the public key of `client_key`; `None` if it needs no id.
    pub client_key_id: Option<String>,
    /// URL at which users authorize the gateway; `None` if it is to be discovered.
    pub authorization_url: Option<String>,
    /// URL of the token endpoint; `None` if it is to be discovered.
    pub token_url: Option<String>,
    /// Issuer of the authorization server whose endpoints are to be discovered, if the remote server itself does not name it.
    pub issuer: Option<String>,
    /// OAuth scopes that are requested.
    pub scopes: Vec<String>,
    /// Resource that the token is requested for; `None` for the URL of the first backend.
    pub resource: Option<String>,
    /// Method by which the client secret is sent; `None` for a method that the authorization server supports.
    pub client_auth: Option<ClientAuth>,
    /// Identity provider of the callers, with the grant `id_jag`.
    pub identity: Option<IdentityProviderConfig>,
}

/// Configuration key `oauth.identity` of a remote server: the identity provider that vouches for callers at the authorization
/// server of the remote server, and the gateway as its client.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct IdentityProviderConfig {
    /// Client id of the gateway at the identity provider.
    pub client_id: Option<String>,
    /// Client secret of the gateway at the identity provider.
    pub client_secret: Option<Template>,
    /// Private key of the gateway at the identity provider, as PEM, in place of a secret.
    pub client_key: Option<Template>,
    /// Id (`kid`) of the key.
    pub client_key_id: Option<String>,
    /// URL of the token endpoint; `None` if it is to be discovered.
    pub token_url: Option<String>,
    /// Issuer of the identity provider, whose token endpoint is to be discovered.
    pub issuer: Option<String>,
    /// Method by which the client secret is sent; `None` for a method that the identity provider supports.
    pub client_auth: Option<ClientAuth>,
}

impl IdentityProviderConfig {
    /// Returns the settings with which the gateway exchanges access tokens at the identity provider.
    fn as_oauth(&self) -> OAuthConfig {
        OAuthConfig {
            grant: Grant::TokenExchange,
            client_id: self.client_id.clone(),
            client_secret: self.client_secret.clone(),
            client_key: self.client_key.clone(),
            client_key_id: self.client_key_id.clone(),
            token_url: self.token_url.clone(),
            issuer: self.issuer.clone(),
            client_auth: self.client_auth,
            ..OAuthConfig::default()
        }
    }
}

/// Method by which a client secret is sent to the token endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ClientAuth {
    /// The client secret is sent in the header `Authorization` (`client_secret_basic`).
    Basic,
    /// The client secret is sent in the request's body (`client_secret_post`).
    Post,
}

/// Private key with which the gateway signs client assertions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientKey {
    /// The key as PEM.
    pub pem: Secret,
    /// Id (`kid`) of the key at the authorization server.
    pub id: Option<String>,
}

/// OAuth grant with which the gateway requests tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Grant {
    /// The gateway requests tokens for itself, with its client secret.
    #[default]
    ClientCredentials,
    /// The gateway requests tokens for a user who has authorized it in a browser.
    AuthorizationCode,
    /// The gateway exchanges the caller's access token for an access token that the server accepts (RFC 8693).
    TokenExchange,
    /// The gateway has the caller's identity provider issue an assertion for the server's authorization server, which grants an
    /// access token for it (Identity Assertion JWT Authorization Grant, draft-ietf-oauth-identity-assertion-authz-grant).
    IdJag,
}

impl Grant {
    /// Returns true if the gateway exchanges the caller's access token.
    pub(super) fn takes_access_tokens(self) -> bool {
        matches!(self, Self::TokenExchange | Self::IdJag)
    }

    /// Returns the name of the grant in the configuration.
    fn as_str(self) -> &'static str {
        match self {
            Self::ClientCredentials => "client_credentials",
            Self::AuthorizationCode => "authorization_code",
            Self::TokenExchange => "token_exchange",
            Self::IdJag => "id_jag",
        }
    }
}

/// Resolved settings with which the gateway requests access tokens for a remote server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OAuthSpec {
    /// OAuth grant with which the gateway requests tokens.
    pub grant: Grant,
    /// Client id of the gateway; `None` if the gateway registers itself as a client.
    pub client_id: Option<String>,
    /// Client secret of the gateway, if it has one.
    pub client_secret: Option<Secret>,
    /// Private key of the gateway, if it has one in place of a secret.
    pub client_key: Option<ClientKey>,
    /// URL at which users authorize the gateway; `None` if it is discovered, or not needed for the grant.
    pub authorization_url: Option<String>,
    /// URL of the token endpoint; `None` if it is discovered.
    pub token_url: Option<String>,
    /// Configured issuer of the authorization server; `None` if it is discovered.
    pub issuer: Option<String>,
    /// OAuth scopes that are requested.
    pub scopes: Vec<String>,
    /// Resource that the token is requested for.
    pub resource: String,
    /// Method by which the client secret is sent; `None` for a method that the authorization server supports.
    pub client_auth: Option<ClientAuth>,
    /// Settings for the callers' identity provider, with the grant `id_jag`.
    pub identity: Option<Box<OAuthSpec>>,
}

impl OAuthConfig {
    /// Checks the keys of `oauth`. `personal` are the names whose values each principal stores itself.
    ///
    /// # Errors
    ///
    /// The first invalid key, and the remedy.
    pub(super) fn validate(&self, personal: &[String]) -> Result<(), InvalidServer> {
        let wrong = |key: &str, message: &str| {
            Err(InvalidServer::new(
                format!("oauth.{key}"),
                message.to_owned(),
            ))
        };
        let text = |text: &str| {
            !text.is_empty()
                && text.len() <= TEXT_MAX
                && text.bytes().all(|it| it.is_ascii_graphic())
        };
        let alone = self.grant != Grant::AuthorizationCode;
        match &self.client_id {
            Some(id) if !text(id) => {
                return wrong("client_id", "is empty, too long, or has a space in it");
            }
            None if alone => return wrong("client_id", "is missing"),
            None if self.client_secret.is_some() || self.client_key.is_some() => {
                return wrong(
                    "client_id",
                    "is missing: client_secret and client_key belong to a client",
                );
            }
            _ => {}
        }
        self.validate_client_key()?;
        self.validate_identity(personal)?;
        if alone && self.client_secret.is_none() && self.client_key.is_none() {
            return wrong(
                "client_secret",
                "is missing: write ${NAME}, the name of a secret (or client_key, a private key)",
            );
        }
        if alone && self.personal {
            let message =
                "needs somebody who authorizes the gateway: write grant: authorization_code";
            return wrong("personal", message);
        }
        match (alone, &self.authorization_url, &self.token_url) {
            (true, Some(_), _) => {
                let message = format!("is of no use with grant: {}", self.grant.as_str());
                return wrong("authorization_url", &message);
            }
            (false, None, Some(_)) => {
                return wrong(
                    "authorization_url",
                    "is missing: token_url needs it with grant: authorization_code",
                );
            }
            (false, Some(_), None) => {
                return wrong("token_url", "is missing: authorization_url needs it");
            }
            _ => {}
        }
        for (key, template) in [
            ("client_secret", &self.client_secret),
            ("client_key", &self.client_key),
        ] {
            let mut names = template.iter().flat_map(Template::names);
            if names.any(|name| personal.iter().any(|it| it == name)) {
                let message =
                    "refers to a name under personal, but the client is the gateway itself";
                return wrong(key, message);
            }
        }
        if self.scopes.len() > SCOPES_MAX || !self.scopes.iter().all(|it| text(it)) {
            return wrong("scopes", "are single words, at most 64");
        }
        if self.token_url.is_some() && self.issuer.is_some() {
            return wrong(
                "issuer",
                "is of no use beside token_url: leave out one of them",
            );
        }
        for (key, url) in [
            ("authorization_url", &self.authorization_url),
            ("token_url", &self.token_url),
            ("issuer", &self.issuer),
            ("resource", &self.resource),
        ] {
            let Some(url) = url else { continue };
            if url.starts_with("unix:") {
                return wrong(key, "must be an https or http URL");
            }
            Backend::parse(url)
                .map_err(|message| InvalidServer::new(format!("oauth.{key}"), message))?;
        }
        let has_credential = self.client_secret.is_some() || self.client_key.is_some();
        if has_credential && self.issuer.is_none() && self.token_url.is_none() {
            let message = "is missing: the remote server must not choose where the client authenticates (or write token_url)";
            return wrong("issuer", message);
        }
        Ok(())
    }

    /// Checks that `client_key` is the only credential of the client.
    fn validate_client_key(&self) -> Result<(), InvalidServer> {
        let wrong = |key: &str, message: &str| {
            let key = format!("oauth.{key}");
            Err(InvalidServer::new(key, message.to_owned()))
        };
        match (&self.client_key, &self.client_key_id) {
            (None, Some(_)) => wrong("client_key_id", "is of no use without client_key"),
            (Some(_), _) if self.client_secret.is_some() => wrong(
                "client_key",
                "stands in place of client_secret: leave out one of them",
            ),
            (Some(_), _) if self.client_auth.is_some() => wrong(
                "client_auth",
                "is of no use with client_key: no secret is sent",
            ),
            (Some(_), Some(id)) if id.is_empty() || id.len() > TEXT_MAX => {
                wrong("client_key_id", "is empty or too long")
            }
            _ => Ok(()),
        }
    }

    /// Checks `identity` and the keys that the grant `id_jag` needs.
    fn validate_identity(&self, personal: &[String]) -> Result<(), InvalidServer> {
        let wrong = |key: &str, message: &str| {
            let key = format!("oauth.{key}");
            Err(InvalidServer::new(key, message.to_owned()))
        };
        match (&self.identity, self.grant) {
            (None, Grant::IdJag) => wrong(
                "identity",
                "is missing: grant: id_jag needs the identity provider of the callers",
            ),
            (Some(_), Grant::IdJag) if self.issuer.is_none() => wrong(
                "issuer",
                "is missing: the identity provider issues an assertion for it",
            ),
            (Some(identity), Grant::IdJag) => {
                let checked = identity.as_oauth().validate(personal);
                checked.map_err(|InvalidServer { key, message }| {
                    InvalidServer::new(key.replacen("oauth", "oauth.identity", 1), message)
                })
            }
            (Some(_), _) => wrong("identity", "is of no use without grant: id_jag"),
            (None, _) => Ok(()),
        }
    }

    /// Returns the values of all client secrets and keys.
    pub(super) fn credentials(&self) -> impl Iterator<Item = &Template> {
        let identity = self.identity.iter();
        let identity = identity.flat_map(|it| it.client_secret.iter().chain(&it.client_key));
        let own = self.client_secret.iter().chain(&self.client_key);
        own.chain(identity)
    }

    /// Returns who must authorize the gateway at the authorization server: each principal, or the operator once. `None` if no
    /// authorization is needed.
    pub(super) fn authorized_by(&self) -> Option<AuthorizedBy> {
        match (self.grant, self.personal) {
            (Grant::ClientCredentials | Grant::TokenExchange | Grant::IdJag, _) => None,
            (Grant::AuthorizationCode, true) => Some(AuthorizedBy::Principal),
            (Grant::AuthorizationCode, false) => Some(AuthorizedBy::Operator),
        }
    }

    /// Returns the resolved settings. `resource` is used if the configuration sets no resource. `fill` returns the value of a
    /// secret or key; its first argument is the configuration key, relative to `oauth`.
    ///
    /// # Errors
    ///
    /// The first error of `fill`.
    pub(super) fn spec<E>(
        &self,
        resource: &str,
        fill: &mut dyn FnMut(&str, &Template) -> Result<Secret, E>,
    ) -> Result<OAuthSpec, E> {
        let resource = self.resource.as_deref().unwrap_or(resource);
        let identity = self.identity.as_ref().map(|it| {
            let mut fill =
                |key: &str, template: &Template| fill(&format!("identity.{key}"), template);
            it.as_oauth().spec(resource, &mut fill).map(Box::new)
        });
        let identity = identity.transpose()?;
        let mut value = |key, template: &Option<Template>| {
            let value = template.as_ref().map(|it| fill(key, it));
            value.transpose()
        };
        let client_secret = value("client_secret", &self.client_secret)?;
        let client_key = value("client_key", &self.client_key)?;
        Ok(OAuthSpec {
            grant: self.grant,
            client_id: self.client_id.clone(),
            client_secret,
            client_key: client_key.map(|pem| ClientKey {
                pem,
                id: self.client_key_id.clone(),
            }),
            authorization_url: self.authorization_url.clone(),
            token_url: self.token_url.clone(),
            issuer: self.issuer.clone(),
            scopes: self.scopes.clone(),
            resource: resource.to_owned(),
            client_auth: self.client_auth,
            identity,
        })
    }
}

#[cfg(test)]
mod tests {
    use tooldock_base::yaml;

    use super::*;
    use crate::remote::RemoteServerConfig;

    const WHOLE: &str =
        "client_id: gw, client_secret: '${S}', token_url: 'https://a/token', scopes: [read]";

    fn checked(oauth: &str, more: &str) -> Result<(), String> {
        let text = format!("{{ backends: ['https://a/mcp'], oauth: {{ {oauth} }}, {more} }}");
        let config: RemoteServerConfig = yaml::from_str(&text).map_err(|it| it.to_string())?;
        config.validate().map_err(|it| it.to_string())
    }

    #[test]
    fn a_wrong_key_is_named_with_what_to_write_instead() {
        assert_eq!(checked(WHOLE, ""), Ok(()));
        let alone = "client_id: gw, client_secret: '${S}', issuer: 'https://i'";
        assert_eq!(checked(alone, ""), Ok(()));
        let signed = "client_id: gw, client_key: '${K}', client_key_id: k1, issuer: 'https://i'";
        assert_eq!(checked(signed, ""), Ok(()));
        let exchange = format!("grant: token_exchange, {WHOLE}");
        assert_eq!(checked(&exchange, ""), Ok(()));
        let asserted = |identity: &str| {
            format!(
                "grant: id_jag, client_id: gw, client_secret: '${{S}}', issuer: 'https://i'{identity}"
            )
        };
        let identity =
            asserted(", identity: { client_id: gw, client_key: '${K}', issuer: 'https://idp' }");
        assert_eq!(checked(&identity, ""), Ok(()));
        for exchange in [&exchange, &identity] {
            for (more, key) in [
                ("isolation: shared", "isolation"),
                ("credentials: pass", "credentials"),
            ] {
                let error = checked(exchange, more).expect_err(more);
                assert!(error.contains(key), "{more}: {error}");
            }
        }
        for (oauth, key) in [
            (asserted(""), "oauth.identity"),
            (
                asserted(", identity: { client_id: gw, issuer: 'https://idp' }"),
                "oauth.identity.client_secret",
            ),
            (
                asserted(", identity: { client_id: gw, client_secret: s }"),
                "oauth.identity.issuer",
            ),
            (
                identity.replace("issuer: 'https://i'", "token_url: 'https://i'"),
                "oauth.issuer",
            ),
            (
                identity.replace("id_jag", "client_credentials"),
                "oauth.identity",
            ),
        ] {
            let error = checked(&oauth, "").expect_err(&oauth);
            assert!(error.contains(key), "{oauth}: {error}");
        }
        let code = |keys: &str| format!("grant: authorization_code{keys}");
        assert_eq!(checked(&code(""), ""), Ok(()));
        assert_eq!(
            checked(&code(", personal: true, client_id: gw"), ""),
            Ok(())
        );
        for (keys, more, key) in [
            (", client_secret: '${S}'", "", "oauth.client_id"),
            (", token_url: 'https://a/t'", "", "oauth.authorization_url"),
            (", authorization_url: 'https://a/t'", "", "oauth.token_url"),
            (", personal: true", "isolation: shared", "isolation"),
        ] {
            let error = checked(&code(keys), more).expect_err(keys);
            assert!(error.contains(key), "{keys}: {error}");
        }
        for (oauth, more, key) in [
            ("client_secret: '${S}'", "", "oauth.client_id"),
            ("client_id: gw, client_secret: '${S}'", "", "oauth.issuer"),
            ("client_id: gw", "", "oauth.client_secret"),
            (
                "client_id: gw, client_secret: s, token_url: a",
                "",
                "oauth.token_url",
            ),
            (
                "client_id: gw, client_secret: s, token_url: 'unix:/a'",
                "",
                "oauth.token_url",
            ),
            (
                "client_id: gw, client_secret: s, scopes: ['a b']",
                "",
                "oauth.scopes",
            ),
            (
                "client_id: gw, client_secret: s, grant: password",
                "",
                "grant",
            ),
            ("client_id: gw, client_secret: s, secret: x", "", "secret"),
            (
                "client_id: gw, client_secret: s, personal: true",
                "",
                "oauth.personal",
            ),
            (
                "client_id: gw, client_secret: s, authorization_url: 'https://a'",
                "",
                "oauth.authorization_url",
            ),
            (
                "client_id: gw, client_key: '${K}', client_secret: s, issuer: 'https://i'",
                "",
                "oauth.client_key",
            ),
            (
                "client_id: gw, client_key: '${K}', client_auth: post, issuer: 'https://i'",
                "",
                "oauth.client_auth",
            ),
            (
                "client_id: gw, client_secret: s, client_key_id: k, issuer: 'https://i'",
                "",
                "oauth.client_key_id",
            ),
            ("client_id: gw, client_key: '${K}'", "", "oauth.issuer"),
            (
                "client_id: gw, client_key: '${K}', issuer: 'https://i'",
                "headers: { set: { X: '${K}' } }, personal: [K]",
                "oauth.client_key",
            ),
            (WHOLE, "credentials: 'Bearer x'", "credentials"),
            (
                WHOLE,
                "headers: { set: { Authorization: x } }",
                "headers.set.Authorization",
            ),
            (
                WHOLE,
                "headers: { set: { X: '${S}' } }, personal: [S]",
                "oauth.client_secret",
            ),
        ] {
            let error = checked(oauth, more).expect_err(oauth);
            assert!(error.contains(key), "{oauth} {more}: {error}");
        }
    }

    #[test]
    fn the_token_is_for_the_first_backend_unless_the_configuration_says_otherwise() {
        let spec = |oauth: &str| {
            let config = yaml::from_str::<OAuthConfig>(oauth).expect(oauth);
            let mut fill = |_: &str, _: &Template| Err("the configuration has no secret");
            config.spec("https://a/mcp", &mut fill).expect(oauth)
        };
        assert_eq!(spec("{ client_id: gw }").resource, "https://a/mcp");
        let spec = spec("{ client_id: gw, resource: 'https://b' }");
        assert_eq!(spec.resource, "https://b");
    }
}
