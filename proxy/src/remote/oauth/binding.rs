//! Binds an authorization to the authorization server, client and resource for which it was given. Its tokens and its client's
//! secret are sent only there, regardless of what the remote server or a changed configuration names later.

use std::collections::BTreeSet;

use rmcp::transport::auth::AuthorizationMetadata;
use serde::{Deserialize, Serialize};
use tooldock_workers::remote::{Backend, ClientAuth, OAuthSpec, RemoteServer};

use super::issuer;

/// The way in which the gateway became a client of the authorization server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Registration {
    /// The operator has registered the client and named it in the configuration.
    Configured,
    /// The gateway registered the client itself (RFC 7591). The client is valid only at this authorization server.
    Dynamic,
}

/// The binding of an authorization. It is stored together with the tokens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Binding {
    /// The issuer of the authorization server; `None` if the configuration names endpoints instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) issuer: Option<String>,
    /// The token endpoint. Tokens are renewed at this URL only.
    pub(super) token_endpoint: String,
    pub(super) registration: Registration,
    pub(super) client_auth: ClientAuth,
    /// The resource that was requested from the authorization server (RFC 8707).
    pub(super) resource: String,
    /// The resource in the configuration. It differs from the requested one if the remote server named a wider resource.
    asked_for: String,
    /// The scopes that the configuration contained when the authorization was given.
    scopes: BTreeSet<String>,
    /// Scheme, host and port of each backend to which the tokens may be sent.
    origins: BTreeSet<String>,
}

impl Binding {
    /// Binds an authorization to the server as it is configured now, and to the authorization server that `metadata` describes.
    pub(super) fn new(
        server: &RemoteServer,
        spec: &OAuthSpec,
        metadata: &AuthorizationMetadata,
        resource: String,
    ) -> Self {
        Self {
            issuer: metadata.issuer.clone().filter(|_| spec.token_url.is_none()),
            token_endpoint: metadata.token_endpoint.clone(),
            registration: registration(spec),
            client_auth: client_auth(metadata),
            resource,
            asked_for: spec.resource.clone(),
            scopes: spec.scopes.iter().cloned().collect(),
            origins: origins(server),
        }
    }

    /// Returns the reason why the authorization is not valid for the server as it is configured now; `None` if it is valid. The
    /// text continues the phrase "it was given for".
    ///
    /// A removed backend does not make the authorization invalid: the tokens may still be sent to the remaining backends.
    pub(super) fn differs(
        &self,
        server: &RemoteServer,
        spec: &OAuthSpec,
        client_id: &str,
    ) -> Option<String> {
        let now = origins(server);
        if let Some(new) = now.difference(&self.origins).next() {
            let before: Vec<_> = self.origins.iter().map(String::as_str).collect();
            return Some(format!(
                "{}, and a backend is at {new} now",
                before.join(", ")
            ));
        }
        let unlike = |what: &str, given: &str, now: &str| {
            Some(format!(
                "{what} {given}, and the configuration has {now} now"
            ))
        };
        if registration(spec) != self.registration {
            return Some(match self.registration {
                Registration::Configured => {
                    "a configured client, and the configuration has no client_id now".to_owned()
                }
                Registration::Dynamic => {
                    "a client that the gateway had registered, and the configuration has a client_id now".to_owned()
                }
            });
        }
        if let Some(configured) = spec.client_id.as_deref().filter(|it| *it != client_id) {
            return unlike("the client_id", client_id, configured);
        }
        let issuer = self.issuer.as_deref().unwrap_or("of configured endpoints");
        match (&spec.token_url, &spec.issuer) {
            (Some(now), _) if self.issuer.is_some() => return unlike("the issuer", issuer, now),
            (Some(now), _) if *now != self.token_endpoint => {
                return unlike("the token_url", &self.token_endpoint, now);
            }
            (None, Some(now)) if !issuer::is_same(now, issuer) => {
                return unlike("the issuer", issuer, now);
            }
            (None, None) if self.issuer.is_none() => {
                return unlike("the token_url", &self.token_endpoint, "none");
            }
            _ => {}
        }
        if spec.resource != self.asked_for {
            return Some("another resource than the configuration has now".to_owned());
        }
        if spec.scopes.iter().cloned().collect::<BTreeSet<_>>() != self.scopes {
            return Some("other scopes than the configuration has now".to_owned());
        }
        None
    }

    /// Returns the first issuer in `named` if the issuer of this authorization is not in `named`. Otherwise returns `None`.
    pub(super) fn other_issuer<'a>(&self, named: &'a [String]) -> Option<&'a str> {
        let own = self.issuer.as_deref()?;
        let is_own = |it: &String| issuer::is_same(it, own);
        match named.iter().any(is_own) {
            true => None,
            false => named.first().map(String::as_str),
        }
    }
}

fn registration(spec: &OAuthSpec) -> Registration {
    match spec.client_id {
        Some(_) => Registration::Configured,
        None => Registration::Dynamic,
    }
}

/// The form in which the OAuth library sends the client's secret when it exchanges an authorization code. The form depends on
/// the methods that the metadata declare.
fn client_auth(metadata: &AuthorizationMetadata) -> ClientAuth {
    let methods = metadata
        .additional_fields
        .get("token_endpoint_auth_methods_supported")
        .and_then(|it| it.as_array());
    let has =
        |method: &str| methods.is_some_and(|all| all.iter().any(|it| it.as_str() == Some(method)));
    match has("client_secret_post") && !has("client_secret_basic") {
        true => ClientAuth::Post,
        false => ClientAuth::Basic,
    }
}

fn origins(server: &RemoteServer) -> BTreeSet<String> {
    let backends = server.spec.backends.iter();
    backends.map(|it| origin(&it.backend)).collect()
}

fn origin(backend: &Backend) -> String {
    let id = backend.id();
    match backend.tls {
        true => format!("https://{id}"),
        false => format!("http://{id}"),
    }
}

#[cfg(test)]
mod tests {
    use tooldock_base::yaml;
    use tooldock_credentials::secrets::Secrets;
    use tooldock_workers::remote::RemoteServerConfig;

    use super::*;

    fn server(backends: &str, oauth: &str) -> RemoteServer {
        let text = format!(
            "{{ backends: [{backends}], oauth: {{ grant: authorization_code, {oauth} }} }}"
        );
        let config: RemoteServerConfig = yaml::from_str(&text).expect(&text);
        let name = "ns".parse().expect("a name");
        RemoteServer::resolve(&name, &config, &Secrets::default(), &|_| None).expect(&text)
    }

    fn bound(server: &RemoteServer) -> Binding {
        let mut metadata = AuthorizationMetadata::default();
        metadata.issuer = Some("https://i".to_owned());
        metadata.token_endpoint = "https://i/token".to_owned();
        let spec = server.spec.oauth.as_ref().expect("oauth");
        Binding::new(server, spec, &metadata, spec.resource.clone())
    }

    const TWO: &str = "'https://a/mcp', 'https://b/mcp'";

    #[test]
    fn an_authorization_counts_for_the_configuration_it_was_given_for() {
        let before = server(TWO, "client_id: gw, scopes: [x, y]");
        let bound = bound(&before);
        for (backends, oauth, why) in [
            (TWO, "client_id: gw, scopes: [y, x]", None),
            ("'https://a/mcp'", "client_id: gw, scopes: [x, y]", None),
            (
                TWO,
                "client_id: gw, scopes: [x, y], issuer: 'https://i/'",
                None,
            ),
            (
                "'https://a/mcp', 'https://c/mcp'",
                "client_id: gw, scopes: [x, y]",
                Some("a backend is at https://c:443"),
            ),
            (
                "'http://a/mcp'",
                "client_id: gw, scopes: [x, y], resource: 'https://a/mcp'",
                Some("a backend is at http://a:80"),
            ),
            (
                "'https://a/other'",
                "client_id: gw, scopes: [x, y]",
                Some("another resource"),
            ),
            (
                TWO,
                "client_id: other, scopes: [x, y]",
                Some("client_id gw"),
            ),
            (TWO, "scopes: [x, y]", Some("no client_id now")),
            (TWO, "client_id: gw, scopes: [x]", Some("other scopes")),
            (
                TWO,
                "client_id: gw, scopes: [x, y], issuer: 'https://j'",
                Some("the issuer https://i"),
            ),
            (
                TWO,
                "client_id: gw, scopes: [x, y], token_url: 'https://i/token', authorization_url: 'https://i/a'",
                Some("the issuer https://i"),
            ),
        ] {
            let now = server(backends, oauth);
            let spec = now.spec.oauth.as_ref().expect("oauth");
            let found = bound.differs(&now, spec, "gw");
            match why {
                None => assert_eq!(found, None, "{backends} {oauth}"),
                Some(why) => {
                    let found = found.expect(oauth);
                    assert!(found.contains(why), "{backends} {oauth}: {found}");
                }
            }
        }
    }

    #[test]
    fn another_issuer_is_one_beside_which_the_own_is_not_named() {
        let bound = bound(&server(TWO, "client_id: gw"));
        let another = |named: &[&str]| {
            let named: Vec<_> = named.iter().map(ToString::to_string).collect();
            bound.other_issuer(&named).map(str::to_owned)
        };
        assert_eq!(another(&[]), None);
        assert_eq!(another(&["https://j", "https://i/"]), None);
        assert_eq!(another(&["https://j"]).as_deref(), Some("https://j"));
    }
}
