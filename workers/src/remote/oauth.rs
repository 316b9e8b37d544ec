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

/// OAuth grant with which the gateway requests tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Grant {
    /// The gateway requests tokens for itself, with its client secret.
    #[default]
    ClientCredentials,
    /// The gateway requests tokens for a user who has authorized it in a browser.
    AuthorizationCode,
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
        let alone = self.grant == Grant::ClientCredentials;
        match &self.client_id {
            Some(id) if !text(id) => {
                return wrong("client_id", "is empty, too long, or has a space in it");
            }
            None if alone => return wrong("client_id", "is missing"),
            None if self.client_secret.is_some() => {
                return wrong(
                    "client_id",
                    "is missing: client_secret is the secret of a client",
                );
            }
            _ => {}
        }
        if alone && self.client_secret.is_none() {
            return wrong(
                "client_secret",
                "is missing: write ${NAME}, the name of a secret",
            );
        }
        if alone && self.personal {
            let message =
                "needs somebody who authorizes the gateway: write grant: authorization_code";
            return wrong("personal", message);
        }
        match (alone, &self.authorization_url, &self.token_url) {
            (true, Some(_), _) => {
                return wrong(
                    "authorization_url",
                    "is of no use with grant: client_credentials",
                );
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
        let names = self.client_secret.as_ref().map(Template::names);
        if names
            .iter()
            .flatten()
            .any(|name| personal.iter().any(|it| it == name))
        {
            let message = "refers to a name under personal: the client is the gateway itself, and its secret is everybody's";
            return wrong("client_secret", message);
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
        if self.client_secret.is_some() && self.issuer.is_none() && self.token_url.is_none() {
            let message = "is missing: the remote server must not choose where client_secret is sent (or write token_url)";
            return wrong("issuer", message);
        }
        Ok(())
    }

    /// Returns who must authorize the gateway at the authorization server: each principal, or the operator once. `None` if no
    /// authorization is needed.
    pub(super) fn authorized_by(&self) -> Option<AuthorizedBy> {
        match (self.grant, self.personal) {
            (Grant::ClientCredentials, _) => None,
            (Grant::AuthorizationCode, true) => Some(AuthorizedBy::Principal),
            (Grant::AuthorizationCode, false) => Some(AuthorizedBy::Operator),
        }
    }

    /// Returns the resolved settings. `resource` is used if the configuration sets no resource.
    pub(super) fn spec(&self, client_secret: Option<Secret>, resource: &str) -> OAuthSpec {
        OAuthSpec {
            grant: self.grant,
            client_id: self.client_id.clone(),
            client_secret,
            authorization_url: self.authorization_url.clone(),
            token_url: self.token_url.clone(),
            issuer: self.issuer.clone(),
            scopes: self.scopes.clone(),
            resource: self.resource.clone().unwrap_or_else(|| resource.to_owned()),
            client_auth: self.client_auth,
        }
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
        let config = |oauth: &str| yaml::from_str::<OAuthConfig>(oauth).expect(oauth);
        let spec = config("{ client_id: gw }").spec(None, "https://a/mcp");
        assert_eq!(spec.resource, "https://a/mcp");
        let spec = config("{ client_id: gw, resource: 'https://b' }").spec(None, "https://a/mcp");
        assert_eq!(spec.resource, "https://b");
    }
}
