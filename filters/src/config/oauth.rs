//! `admission.oauth:` — the authorization servers whose access tokens are accepted, and the rights that these tokens give.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use tooldock_base::off_or;
use tooldock_base::secret::Secret;
use tooldock_workers::remote;

use crate::algorithm::Algorithm;

const AUTO: &str = "auto";
const OFF: &str = "off";

/// An entry of `admission.oauth`: an authorization server whose access tokens are accepted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OauthConfig {
    /// The issuer's URL, exactly as it is written in the `iss` claim of tokens and in the issuer's metadata.
    pub issuer: String,
    /// The audiences that stand for the gateway. The `aud` claim of a token must contain one of them.
    pub audience: Audience,
    /// The source of the issuer's public keys, which verify the signatures of tokens.
    #[serde(default)]
    pub jwks: JwksSource,
    /// The signature algorithms that tokens may use.
    #[serde(default = "default_algorithms")]
    pub algorithms: Vec<Algorithm>,
    /// Maximum difference between the clocks of issuer and gateway. Time claims of tokens are checked with this tolerance.
    #[serde(default = "default_leeway", with = "humantime_serde")]
    pub leeway: Duration,
    /// Name of the token's claim that contains the principal's name.
    #[serde(default = "default_principal")]
    pub principal: String,
    /// Map from the scopes in a token to the scopes of the gateway that they grant.
    pub scopes: BTreeMap<String, String>,
    /// The namespaces that the issuer's tokens give access to.
    #[serde(default)]
    pub namespaces: TokenNamespaces,
    /// The introspection endpoint that validates tokens which are not JWTs, or `off`.
    #[serde(default)]
    pub introspection: Introspection,
    /// The OAuth client by which users of the web UI log in at the issuer, or `off`.
    #[serde(default)]
    pub web: WebLogin,
    /// True if the issuer's endpoints may have addresses that are not public, and `http:` URLs; false if such endpoints are
    /// refused.
    #[serde(default)]
    pub allow_private: bool,
}

/// The accepted values of a token's `aud` claim: a single text, or a list of which one must match.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(
    untagged,
    expecting = "an audience such as https://gw.example/mcp, or a list of them"
)]
pub enum Audience {
    /// A single accepted audience.
    One(String),
    /// A list of accepted audiences. A token must name at least one.
    Several(Vec<String>),
}

impl Audience {
    /// All accepted audiences, as a list.
    pub fn names(&self) -> &[String] {
        match self {
            Self::One(name) => std::slice::from_ref(name),
            Self::Several(names) => names,
        }
    }
}

/// The source of an issuer's public keys (JWKS).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum JwksSource {
    /// Keys are fetched from the URL that the issuer's metadata contains.
    #[default]
    Auto,
    /// Keys are fetched from this URL.
    Url(String),
    /// Keys are read from this file.
    File(PathBuf),
}

/// The namespaces that the tokens of an issuer give access to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, expecting = "a list of namespaces, or { claim: NAME }")]
pub enum TokenNamespaces {
    /// Namespaces that all tokens of the issuer give access to: names and globs.
    Listed(Vec<String>),
    /// The token itself lists its namespaces, in a claim.
    Claimed(ClaimedNamespaces),
}

/// `{ claim: NAME }`: the name of a claim in which a token lists the namespaces that it gives access to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClaimedNamespaces {
    /// Name of the claim that lists namespaces.
    pub claim: String,
}

/// `introspection:` — `off`, or the introspection endpoint that validates an issuer's opaque tokens.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Introspection {
    /// No introspection: tokens that are not JWTs are refused.
    #[default]
    Off,
    /// The issuer's introspection endpoint (RFC 7662) is asked about tokens.
    At(IntrospectionConfig),
}

/// An introspection endpoint, and the gateway's credentials there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IntrospectionConfig {
    /// URL of the introspection endpoint.
    pub url: String,
    /// Client id with which the gateway authenticates at the issuer.
    pub client_id: String,
    /// Client secret with which the gateway authenticates at the issuer, or `${NAME}` for a variable of the gateway's
    /// environment.
    pub client_secret: ClientSecret,
}

/// `web:` — `off`, or the OAuth client by which users of the web UI log in at an issuer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum WebLogin {
    /// Users of the web UI cannot log in at the issuer.
    #[default]
    Off,
    /// Users of the web UI can log in at the issuer, by this OAuth client.
    By(WebLoginConfig),
}

/// An OAuth client that is registered at an issuer with the redirect URI `/login` of the web UI.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WebLoginConfig {
    /// Id of the OAuth client for logins at the web UI.
    pub client_id: String,
    /// Secret of the OAuth client for logins at the web UI, or `${NAME}` for a variable of the gateway's environment; `None` for
    /// a public client.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_secret: Option<ClientSecret>,
    /// Scopes that a login at the web UI requests. Empty: all scopes in the issuer's `scopes` map.
    #[serde(default)]
    pub scopes: Vec<String>,
    /// Resource that a login at the web UI requests (`resource` parameter, RFC 8707).
    #[serde(default)]
    pub resource: LoginResource,
}

/// The `resource` parameter (RFC 8707) of authorization requests to an issuer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum LoginResource {
    /// The parameter is the first configured audience that is a URL.
    #[default]
    Auto,
    /// The parameter is not sent, for issuers that do not support it.
    Off,
    /// The parameter has this configured value.
    Named(String),
}

/// A client secret. `Debug` and serialisation hide it, unless it is only a reference to an environment variable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientSecret(Secret);

impl ClientSecret {
    /// The client secret as written in the configuration: the secret itself, or `${NAME}`.
    pub fn written(&self) -> &Secret {
        &self.0
    }

    /// Name of the environment variable that contains the client secret; `None` if the secret is not written as `${NAME}`.
    pub fn variable(&self) -> Option<&str> {
        let inside = self.0.expose().strip_prefix("${")?.strip_suffix('}')?;
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
        (!inside.is_empty() && inside.bytes().all(fits)).then_some(inside)
    }
}

impl OauthConfig {
    /// The OAuth client for logins at the web UI; `None` if there are no such logins.
    pub fn web_login(&self) -> Option<&WebLoginConfig> {
        match &self.web {
            WebLogin::Off => None,
            WebLogin::By(client) => Some(client),
        }
    }

    /// The `resource` parameter (RFC 8707) of logins at the web UI; `None` if it is not sent.
    pub fn login_resource(&self) -> Option<&str> {
        let is_url = |name: &&String| name.starts_with("https://") || name.starts_with("http://");
        match &self.web_login()?.resource {
            LoginResource::Off => None,
            LoginResource::Named(name) => Some(name),
            LoginResource::Auto => self
                .audience
                .names()
                .iter()
                .find(is_url)
                .map(String::as_str),
        }
    }

    /// Parses the URL of one of the issuer's endpoints. `http:` is accepted only for loopback addresses, where no other machine
    /// can intercept the request, or with `allow_private: true`.
    ///
    /// # Errors
    ///
    /// A message that describes the fault and a correct value.
    pub fn endpoint(&self, url: &str) -> Result<remote::Backend, String> {
        let backend = remote::Backend::parse(url)?;
        let loopback = match &backend.host {
            remote::Host::Address(address, _) => address.is_loopback(),
            remote::Host::Name(..) => false,
            remote::Host::Unix(_) => return Err("must be an https URL".into()),
        };
        if !backend.tls && !loopback && !self.allow_private {
            return Err(
                "must be an https URL; http is for loopback addresses, and for others with allow_private: true".into(),
            );
        }
        Ok(backend)
    }
}

fn default_algorithms() -> Vec<Algorithm> {
    vec![Algorithm::Rs256, Algorithm::Es256]
}

fn default_leeway() -> Duration {
    Duration::from_secs(60)
}

fn default_principal() -> String {
    "sub".to_owned()
}

impl Default for TokenNamespaces {
    fn default() -> Self {
        Self::Listed(vec!["*".to_owned()])
    }
}

impl Serialize for JwksSource {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Auto => serializer.serialize_str(AUTO),
            Self::Url(url) => serializer.serialize_str(url),
            Self::File(file) => serializer.collect_str(&file.display()),
        }
    }
}

impl<'de> Deserialize<'de> for JwksSource {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        match text.as_str() {
            AUTO => Ok(Self::Auto),
            "" | "off" => Err(de::Error::custom(
                "jwks is `auto`, the URL of a JWKS, or the path of a file with one",
            )),
            _ if text.contains("://") => Ok(Self::Url(text)),
            _ => Ok(Self::File(text.into())),
        }
    }
}

impl Serialize for Introspection {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let at = match self {
            Self::Off => None,
            Self::At(at) => Some(at),
        };
        off_or::serialize(at, serializer)
    }
}

impl<'de> Deserialize<'de> for Introspection {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let at = off_or::deserialize(deserializer, "`off` or {url, client_id, client_secret}")?;
        Ok(at.map_or(Self::Off, Self::At))
    }
}

impl Serialize for WebLogin {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let by = match self {
            Self::Off => None,
            Self::By(by) => Some(by),
        };
        off_or::serialize(by, serializer)
    }
}

impl<'de> Deserialize<'de> for WebLogin {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let expected = "`off` or {client_id, client_secret, scopes, resource}";
        let by = off_or::deserialize(deserializer, expected)?;
        Ok(by.map_or(Self::Off, Self::By))
    }
}

impl Serialize for LoginResource {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(match self {
            Self::Auto => AUTO,
            Self::Off => OFF,
            Self::Named(name) => name,
        })
    }
}

impl<'de> Deserialize<'de> for LoginResource {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Ok(match text.as_str() {
            AUTO => Self::Auto,
            OFF => Self::Off,
            _ => Self::Named(text),
        })
    }
}

impl Serialize for ClientSecret {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(match self.variable() {
            Some(_) => self.0.expose(),
            None => "***MASKED***",
        })
    }
}

impl<'de> Deserialize<'de> for ClientSecret {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(|text| Self(Secret::new(text)))
    }
}

#[cfg(test)]
mod tests {
    use tooldock_base::yaml;

    use super::*;

    const WHOLE: &str = r#"{ issuer: "https://idp.example", audience: "https://gw.example/mcp", jwks: auto, algorithms: [RS256, ES256],
        leeway: 60s, principal: sub, scopes: { "mcp:read": read, "mcp:admin": admin }, namespaces: ["*"],
        introspection: off, web: off, allow_private: false }"#;

    fn read(text: &str) -> Result<OauthConfig, String> {
        yaml::from_str(text).map_err(|error| error.to_string())
    }

    #[test]
    fn the_documented_entry_has_the_defaults() {
        let short = r#"{ issuer: "https://idp.example", audience: "https://gw.example/mcp", scopes: { "mcp:read": read, "mcp:admin": admin } }"#;
        let whole = read(WHOLE).unwrap();
        assert_eq!(read(short).unwrap(), whole);
        assert_eq!(read(&yaml::to_string(&whole).unwrap()).unwrap(), whole);
    }

    #[test]
    fn every_documented_form_is_read() {
        let form = |key: &str, value: &str| {
            let text =
                format!(r#"{{ issuer: "https://i", audience: a, scopes: {{}}, {key}: {value} }}"#);
            read(&text.replace(
                "audience: a, scopes",
                match key {
                    "audience" => "scopes",
                    _ => "audience: a, scopes",
                },
            ))
        };
        assert_eq!(
            form("audience", "[a, b]").unwrap().audience.names(),
            ["a", "b"]
        );
        let file = form("jwks", "/etc/keys.json").unwrap().jwks;
        assert_eq!(file, JwksSource::File("/etc/keys.json".into()));
        let url = form("jwks", "'https://i/keys'").unwrap().jwks;
        assert_eq!(url, JwksSource::Url("https://i/keys".into()));
        let claimed = form("namespaces", "{ claim: groups }").unwrap().namespaces;
        assert!(matches!(claimed, TokenNamespaces::Claimed(it) if it.claim == "groups"));
        let at = "{ url: 'https://i/introspect', client_id: gw, client_secret: hunter2 }";
        assert!(matches!(
            form("introspection", at).unwrap().introspection,
            Introspection::At(_)
        ));
        let web = "{ client_id: ui, client_secret: hunter2, scopes: [openid], resource: off }";
        let web = form("web", web).unwrap();
        let client = web.web_login().unwrap();
        assert_eq!(client.scopes, ["openid"]);
        assert_eq!(web.login_resource(), None);
        let web = form("web", "{ client_id: ui }").unwrap();
        assert_eq!(web.web_login().unwrap().client_secret, None);
        assert_eq!(web.login_resource(), None, "the audience is no URL");
        let web = form("web", "{ client_id: ui, resource: 'https://r' }").unwrap();
        assert_eq!(web.login_resource(), Some("https://r"));
        for (key, value, said) in [
            ("web", "on", "`off` or"),
            ("web", "{ client_id: ui, secret: x }", "secret"),
            ("algorithms", "[HS256]", "HS256"),
            ("algorithms", "[none]", "none"),
            ("jwks", "off", "jwks is"),
            ("namespaces", "{ claims: x }", "{ claim: NAME }"),
            ("introspection", "on", "`off` or"),
            ("audiences", "x", "audiences"),
        ] {
            let error = form(key, value).unwrap_err();
            assert!(error.contains(said), "{key}: {value}: {error}");
        }
    }

    #[test]
    fn a_client_secret_is_shown_as_a_reference_only() {
        let shown = |secret: &str| {
            let secret: ClientSecret = yaml::from_str(&format!("'{secret}'")).unwrap();
            format!("{secret:?} {}", yaml::to_string(&secret).unwrap())
        };
        assert!(!shown("hunter2").contains("hunter2"));
        assert!(shown("${IDP_SECRET}").contains("${IDP_SECRET}"));
    }

    #[test]
    fn plain_http_is_for_loopback_addresses_unless_the_operator_says_otherwise() {
        let mut config = read(WHOLE).unwrap();
        assert!(config.endpoint("https://idp.example/keys").is_ok());
        assert!(config.endpoint("http://127.0.0.1:9000/keys").is_ok());
        for url in [
            "http://idp.example/keys",
            "http://localhost/",
            "unix:/run/x.sock",
            "keys",
        ] {
            assert!(config.endpoint(url).is_err(), "{url}");
        }
        config.allow_private = true;
        assert!(config.endpoint("http://keycloak:8080/keys").is_ok());
    }
}
