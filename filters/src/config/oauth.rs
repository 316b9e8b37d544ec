//! `admission.oauth:` — the authorization servers whose tokens are accepted, and the rights of their tokens.

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

/// An entry of `admission.oauth`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OauthConfig {
    /// The issuer's URL, exactly as tokens and the issuer's metadata spell it.
    pub issuer: String,
    /// The audiences of the gateway: the `aud` of a token has to name one.
    pub audience: Audience,
    /// The source of the keys that the issuer signs with.
    #[serde(default)]
    pub jwks: JwksSource,
    /// The signature algorithms that are accepted.
    #[serde(default = "default_algorithms")]
    pub algorithms: Vec<Algorithm>,
    /// How far the clocks of issuer and gateway may differ.
    #[serde(default = "default_leeway", with = "humantime_serde")]
    pub leeway: Duration,
    /// The claim that names the principal.
    #[serde(default = "default_principal")]
    pub principal: String,
    /// The gateway's scope that each scope of a token grants, by the scope of the token.
    pub scopes: BTreeMap<String, String>,
    /// The namespaces that tokens open.
    #[serde(default)]
    pub namespaces: TokenNamespaces,
    /// The endpoint that validates tokens other than JWTs.
    #[serde(default)]
    pub introspection: Introspection,
    /// The gateway's client at the issuer, for logins at the web UI.
    #[serde(default)]
    pub web: WebLogin,
    /// True if host names of the issuer's endpoints may resolve to addresses that are not public.
    #[serde(default)]
    pub allow_private: bool,
}

/// The audience that the `aud` of a token has to name: one text, or any of a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(
    untagged,
    expecting = "an audience such as https://gw.example/mcp, or a list of them"
)]
pub enum Audience {
    /// A single audience.
    One(String),
    /// Any audience of a list.
    Several(Vec<String>),
}

impl Audience {
    /// All accepted audiences.
    pub fn names(&self) -> &[String] {
        match self {
            Self::One(name) => std::slice::from_ref(name),
            Self::Several(names) => names,
        }
    }
}

/// The source of an issuer's keys.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum JwksSource {
    /// Keys from the URL that the issuer's metadata names.
    #[default]
    Auto,
    /// Keys from this URL.
    Url(String),
    /// Keys from this file.
    File(PathBuf),
}

/// The namespaces that the tokens of an issuer open.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, expecting = "a list of namespaces, or { claim: NAME }")]
pub enum TokenNamespaces {
    /// Namespaces that all tokens open: names and globs.
    Listed(Vec<String>),
    /// The namespaces that a claim of the token lists.
    Claimed(ClaimedNamespaces),
}

/// `{ claim: NAME }`: the claim of a token that lists the namespaces which the token opens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClaimedNamespaces {
    /// The claim's name.
    pub claim: String,
}

/// `introspection:` — `off`, or the endpoint that validates an issuer's tokens.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Introspection {
    /// Tokens that are no JWT are refused.
    #[default]
    Off,
    /// The endpoint of RFC 7662.
    At(IntrospectionConfig),
}

/// An introspection endpoint, and the credentials with which the gateway asks it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IntrospectionConfig {
    /// URL of the endpoint.
    pub url: String,
    /// The gateway's client id at the issuer.
    pub client_id: String,
    /// The gateway's client secret at the issuer, or `${NAME}` for a variable of the gateway's environment.
    pub client_secret: ClientSecret,
}

/// `web:` — `off`, or the gateway's client at an issuer for logins at the web UI.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum WebLogin {
    /// The web UI offers no login by the issuer.
    #[default]
    Off,
    /// The client by which users of the web UI log in.
    By(WebLoginConfig),
}

/// A client that is registered at an issuer with the redirect address `/login` of the web UI.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WebLoginConfig {
    /// The client id.
    pub client_id: String,
    /// The client secret, or `${NAME}` for a variable of the gateway's environment; `None` for a public client.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_secret: Option<ClientSecret>,
    /// The scopes to request; all keys of the issuer's `scopes` if empty.
    #[serde(default)]
    pub scopes: Vec<String>,
    /// The resource to request (RFC 8707).
    #[serde(default)]
    pub resource: LoginResource,
}

/// The `resource` of authorization requests.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum LoginResource {
    /// The first audience that is a URL.
    #[default]
    Auto,
    /// No resource: for issuers that do not know the parameter.
    Off,
    /// This resource.
    Named(String),
}

/// A client secret. Neither `Debug` nor serialisation shows it, unless it is nothing but a reference to a variable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientSecret(Secret);

impl ClientSecret {
    /// The client secret as it is written in the configuration.
    pub fn written(&self) -> &Secret {
        &self.0
    }

    /// The variable that contains the client secret, if the secret is written as `${NAME}`.
    pub fn variable(&self) -> Option<&str> {
        let inside = self.0.expose().strip_prefix("${")?.strip_suffix('}')?;
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
        (!inside.is_empty() && inside.bytes().all(fits)).then_some(inside)
    }
}

impl OauthConfig {
    /// The gateway's client for logins at the web UI.
    pub fn web_login(&self) -> Option<&WebLoginConfig> {
        match &self.web {
            WebLogin::Off => None,
            WebLogin::By(client) => Some(client),
        }
    }

    /// The resource that logins at the web UI request (RFC 8707); `None` for none.
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

    /// Parses the URL of a key that names an endpoint; `http:` is accepted for loopback hosts only, where no other
    /// machine can listen on the way.
    ///
    /// # Errors
    ///
    /// A message with the fault and a correct value.
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
