//! A resolved remote server: all its values have been looked up, but no connection has been opened.

use std::fmt;
use std::sync::Arc;

use sha2::{Digest as _, Sha256};
use tooldock_base::names::NamespaceName;
use tooldock_base::redactor::Redactor;
use tooldock_base::secret::Secret;
use tooldock_base::server_failure::InvalidServer;
use tooldock_credentials::personal::Personal;
use tooldock_credentials::secrets::Secrets;

use super::api::ApiSpec;
use super::backend::{Backend, BackendId};
use super::config::RemoteServerConfig;
use super::config::{Balance, Mode, RemoteHealth, RemoteRetry, RemoteTimeouts, Transport};
use super::oauth::OAuthSpec;
use super::resolve::spec;
use crate::server_settings::{Isolation, ListMode};

/// A remote server. An unchanged server is the same `Arc` in successive snapshots of the registry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteServer {
    /// The namespace under which the server is served.
    pub name: NamespaceName,
    /// The server's backends and settings.
    pub spec: RemoteSpec,
    /// Hash over the name and everything in the spec except secrets. Secrets are compared directly and never hashed.
    pub content_hash: [u8; 32],
}

/// Backends of a remote server, and the settings with which they are called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteSpec {
    /// Backends of the server, in the order of the configuration.
    pub backends: Vec<BackendSpec>,
    /// Choice of the backend for a new session, or for a request without a session.
    pub balance: Balance,
    /// Way in which requests are forwarded to the backends.
    pub mode: Mode,
    /// MCP transport of the backends.
    pub transport: Transport,
    /// Rule for sharing a session at the server among clients.
    pub isolation: Isolation,
    /// True if the state of a session exists only at its backend. If false, the gateway may open the session again at another
    /// one.
    pub stateful: bool,
    /// Treatment of the server's lists of tools and resources: corrected for strict clients, or passed on unchanged.
    pub lists: ListMode,
    /// True if host names of backends may resolve to addresses that are not public; otherwise such addresses are refused.
    pub allow_private: bool,
    /// Changes to the headers of forwarded requests.
    pub headers: HeaderRules,
    /// Value of the header `Authorization` in every request; `None` if it is not set.
    pub credentials: Option<Secret>,
    /// Headers with personal values of the calling principal, by their names in lower case.
    pub personal: Personal,
    /// Settings with which the gateway requests access tokens for the server; `None` if it uses no OAuth.
    pub oauth: Option<OAuthSpec>,
    /// Secret values that are masked in logs and errors.
    pub secrets: Vec<Secret>,
    /// Settings of encrypted connections to the backends.
    pub tls: TlsSpec,
    /// Time limits for the steps of a request to a backend.
    pub timeouts: RemoteTimeouts,
    /// Maximum number of idle connections that are kept open to each backend.
    pub keepalive: usize,
    /// Rules for sending a failed request to another backend.
    pub retry: RemoteRetry,
    /// Rules for excluding a failing backend from requests.
    pub health: RemoteHealth,
    /// Document of the API whose operations are served as tools; `None` for MCP servers.
    pub api: Option<ApiSpec>,
}

/// A backend: one of several servers with the same tools.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackendSpec {
    /// Name of the backend within its pool.
    pub id: BackendId,
    /// Parsed URL of the backend.
    pub backend: Backend,
    /// Share of the pool's calls that the backend gets, in proportion to the weights of the others. With 0 it gets no new calls.
    pub weight: u32,
    /// True if the backend is used only while no other backend is healthy.
    pub backup: bool,
}

/// Changes to the headers of forwarded requests. All names are in lower case.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HeaderRules {
    /// Headers that are added to every request, with their values.
    pub set: Vec<(String, Secret)>,
    /// Names of headers that are removed from every request.
    pub remove: Vec<String>,
    /// Names of headers that are forwarded from the client's request. Contains `authorization` if that is forwarded unchanged.
    pub pass: Vec<String>,
    /// True if requests contain the gateway's request id in `x-request-id`; false if they contain no request id.
    pub forward_id: bool,
}

/// Settings of encrypted connections to the backends, with the content of the files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsSpec {
    /// Certificates that authenticate the backends; `None` for the system's certificates.
    pub ca: Option<Pem>,
    /// Client certificate of the gateway; `None` if it sends none.
    pub identity: Option<TlsIdentity>,
    /// Name in the backends' certificates, if it differs from the host in their URLs.
    pub server_name: Option<String>,
    /// True if the backends' certificates are verified; false accepts any certificate.
    pub verify: bool,
}

impl Default for TlsSpec {
    fn default() -> Self {
        Self {
            ca: None,
            identity: None,
            server_name: None,
            verify: true,
        }
    }
}

/// A client certificate with its private key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsIdentity {
    /// Chain of the client certificate.
    pub cert: Pem,
    /// Private key of the client certificate, as PEM text.
    pub key: Secret,
}

/// Content of a certificate file. The spec contains it instead of the path, so that a renewed certificate changes the spec.
#[derive(Clone, PartialEq, Eq)]
pub struct Pem(pub Arc<[u8]>);

impl fmt::Debug for Pem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pem({})", hex(&Sha256::digest(&self.0)[..8]))
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl RemoteSpec {
    /// Returns the settings for requests to another server on behalf of this one, such as its authorization server. Rules for
    /// addresses, TLS and time limits stay; credentials, headers and the client certificate are for this server alone and are
    /// removed. `passed`: name of the only header of the request that is sent.
    pub fn elsewhere(&self, backend: Backend, passed: &str) -> Self {
        Self {
            backends: vec![BackendSpec {
                id: backend.id(),
                backend,
                weight: 1,
                backup: false,
            }],
            headers: HeaderRules {
                pass: vec![passed.to_owned()],
                ..HeaderRules::default()
            },
            credentials: None,
            personal: Personal::default(),
            oauth: None,
            keepalive: 0,
            api: None,
            tls: TlsSpec {
                identity: None,
                server_name: None,
                ..self.tls.clone()
            },
            ..self.clone()
        }
    }

    /// Rule for sharing the sessions that the gateway's own MCP client opens at the server. With `auto`, sessions are not shared
    /// if each client sends its own credentials: unsolicited messages of the server, such as log messages, then concern a single
    /// user. Sessions with personal credentials are shared only within one principal.
    pub fn sharing(&self) -> Isolation {
        let logged_in = self.headers.pass.iter().any(|name| name == "authorization");
        match self.isolation {
            _ if self.personal.is_needed() => Isolation::Principal,
            Isolation::Auto if logged_in => Isolation::Session,
            said => said,
        }
    }
}

impl RemoteServer {
    /// Creates a server, and computes its content hash.
    pub fn new(name: NamespaceName, spec: RemoteSpec) -> Self {
        let mut hash = Sha256::new();
        // The `Debug` form quotes texts, so that different specs never result in equal text, and prints secrets as `[redacted]`.
        // It omits the queries of the backends' URLs and the URL of an API's document, so these are added.
        let targets = spec.backends.iter().map(|it| it.backend.target.as_str());
        let document = spec.api.iter().filter_map(ApiSpec::document_url);
        let targets: Vec<_> = targets.chain(document).collect();
        for part in [name.as_str(), &format!("{spec:?}"), &format!("{targets:?}")] {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        Self {
            name,
            spec,
            content_hash: hash.finalize().into(),
        }
    }

    /// Resolves a configuration with the values of its variables.
    ///
    /// # Errors
    ///
    /// The configuration key that cannot be used. The error contains no value of a variable.
    pub fn resolve(
        name: &NamespaceName,
        config: &RemoteServerConfig,
        secrets: &Secrets,
        environment: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Self, InvalidServer> {
        let spec = spec(name, config, secrets, environment).map_err(|failure| *failure.reason)?;
        Ok(Self::new(name.clone(), spec))
    }

    /// Returns true if sessions that were opened with one of the two configurations may continue with the other: protocol and
    /// credentials are the same. Backends, their selection, time limits and health checks may differ.
    pub fn keeps_sessions(&self, other: &Self) -> bool {
        let RemoteSpec {
            backends: _,
            balance: _,
            mode: _,
            transport,
            isolation: _,
            stateful,
            lists: _,
            allow_private: _,
            headers,
            credentials,
            personal,
            oauth,
            secrets,
            tls,
            timeouts: _,
            keepalive: _,
            retry: _,
            health: _,
            api,
        } = &self.spec;
        let new = &other.spec;
        self.name == other.name
            && *transport == new.transport
            && self.spec.sharing() == new.sharing()
            && *stateful == new.stateful
            && *api == new.api
            && headers.pass == new.headers.pass
            && *credentials == new.credentials
            && *personal == new.personal
            && *oauth == new.oauth
            // A header value that contains a secret may identify the user as whom the gateway calls the server.
            && *secrets == new.secrets
            && *tls == new.tls
    }

    /// Returns the configuration key that contains the server, such as `upstreams.remote.NAME`.
    pub fn key(&self) -> String {
        let kind = match self.spec.api {
            Some(_) => "openapi",
            None => "remote",
        };
        format!("upstreams.{kind}.{}", self.name)
    }

    /// Returns `text` with the server's secrets masked, for the log.
    pub fn without_secrets(&self, text: &str) -> String {
        let hidden = Redactor::new(&self.spec.secrets).hide(text.into(), false);
        String::from_utf8_lossy(&hidden).into_owned()
    }

    /// Returns at most `max` characters of a text that may quote the server, with the server's secrets and `more` masked.
    /// Secrets are masked before the text is shortened. If the given text was already cut off in a secret, the secret's
    /// beginning is masked, too.
    pub fn excerpt(&self, text: &str, more: &[Secret], max: usize) -> String {
        let redactor = Redactor::new(self.spec.secrets.iter().chain(more));
        let hide = |text: &str| {
            let hidden = redactor.hide(text.into(), true);
            String::from_utf8_lossy(&hidden).into_owned()
        };
        let whole = hide(text);
        let parts = whole.split("...").map(|part| {
            let parts: Vec<_> = part.split('…').map(hide).collect();
            parts.join("…")
        });
        let parts: Vec<_> = parts.collect();
        let cut: String = parts.join("...").chars().take(max).collect();
        hide(&cut)
    }
}

#[cfg(test)]
mod tests {
    use tooldock_base::yaml;

    use super::*;

    fn server(yaml: &str, token: &str) -> RemoteServer {
        let config: RemoteServerConfig = yaml::from_str(yaml).expect(yaml);
        let name: NamespaceName = "ns".parse().expect("a name");
        let environment = |_: &str| Some(token.to_owned());
        RemoteServer::resolve(&name, &config, &Secrets::default(), &environment).expect("a spec")
    }

    const SERVER: &str = "{ backends: ['https://a/mcp?k=hunter2'], credentials: 'Bearer ${TOKEN}', headers: { set: { X-Key: '${KEY}' } } }";

    #[test]
    fn a_new_value_of_a_variable_is_a_difference_but_no_new_hash() {
        let (one, other) = (server(SERVER, "hunter2"), server(SERVER, "hunter3"));
        assert_ne!(one, other);
        assert_eq!(one.content_hash, other.content_hash);
        let weighty = SERVER.replace(
            "['https://a/mcp?k=hunter2']",
            "[{ url: 'https://a/mcp?k=hunter2', weight: 2 }]",
        );
        assert_ne!(one.content_hash, server(&weighty, "hunter2").content_hash);
        let elsewhere = SERVER.replace("k=", "l=");
        assert_ne!(one.content_hash, server(&elsewhere, "hunter2").content_hash);
    }

    #[test]
    fn clients_with_credentials_of_their_own_share_no_session_by_themselves() {
        for (keys, expected) in [
            ("credentials: pass", Isolation::Session),
            ("headers: { pass: [x-tenant] }", Isolation::Auto),
            (
                "isolation: principal, credentials: pass",
                Isolation::Principal,
            ),
        ] {
            let server = server(&format!("{{ backends: ['https://a'], {keys} }}"), "");
            assert_eq!(server.spec.sharing(), expected, "{keys}");
        }
    }

    #[test]
    fn printing_a_server_shows_no_secret() {
        let server = server(SERVER, "hunter2");
        let text = format!("{server:?}");
        assert!(
            text.contains("x-key") && !text.contains("hunter2"),
            "{text}"
        );
        assert_eq!(
            server.without_secrets("refused: Bearer hunter2"),
            "refused: [redacted]"
        );
    }
}
