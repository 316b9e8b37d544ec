//! A resolved remote server: all values are looked up, no connection is opened.

use std::fmt;
use std::sync::Arc;

use sha2::{Digest as _, Sha256};
use tooldock_base::names::NamespaceName;
use tooldock_base::redactor::Redactor;
use tooldock_base::secret::Secret;
use tooldock_base::server_failure::InvalidServer;
use tooldock_credentials::personal::Personal;
use tooldock_credentials::secrets::Secrets;

use super::backend::{Backend, BackendId};
use super::config::RemoteServerConfig;
use super::config::{Balance, Mode, RemoteHealth, RemoteRetry, RemoteTimeouts, Transport};
use super::oauth::OAuthSpec;
use super::resolve::spec;
use crate::server_settings::{Isolation, ListMode};

/// A remote server. Every snapshot contains the same `Arc` of an unchanged server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteServer {
    /// The server's namespace.
    pub name: NamespaceName,
    /// The server's backends and settings.
    pub spec: RemoteSpec,
    /// Hash over the name and everything in the spec except secrets, which are compared and never hashed.
    pub content_hash: [u8; 32],
}

/// Backends of a server, and the settings for reaching them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteSpec {
    /// The copies of the server, in the order of the configuration.
    pub backends: Vec<BackendSpec>,
    /// Choice of the backend for a new session, or for a request without a session.
    pub balance: Balance,
    /// How requests are forwarded to the backends.
    pub mode: Mode,
    /// MCP transport of the backends.
    pub transport: Transport,
    /// Sharing of sessions at the server by clients.
    pub isolation: Isolation,
    /// True when a session's state exists only at its backend.
    pub stateful: bool,
    /// Treatment of the server's lists: mended for strict clients, or unchanged.
    pub lists: ListMode,
    /// True if host names of backends may resolve to addresses that are not public.
    pub allow_private: bool,
    /// Changes to the headers of forwarded requests.
    pub headers: HeaderRules,
    /// The value of `Authorization` in every request.
    pub credentials: Option<Secret>,
    /// Headers whose values depend on the caller, by their names in lower case.
    pub personal: Personal,
    /// Settings by which the gateway gets tokens for the server.
    pub oauth: Option<OAuthSpec>,
    /// Values that must not show in logs and errors.
    pub secrets: Vec<Secret>,
    /// Settings of encrypted connections.
    pub tls: TlsSpec,
    /// Time limits for the steps of a request.
    pub timeouts: RemoteTimeouts,
    /// Maximum number of idle connections that are kept to each backend.
    pub keepalive: usize,
    /// Rules for sending a request again.
    pub retry: RemoteRetry,
    /// Rules for excluding a backend from requests.
    pub health: RemoteHealth,
}

/// A backend: one of several servers with the same tools.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackendSpec {
    /// The backend's name within the pool.
    pub id: BackendId,
    /// Parsed URL of the backend.
    pub backend: Backend,
    /// The backend's share of the pool's calls; 0 drains it.
    pub weight: u32,
    /// True if the backend is used only while no other backend is healthy.
    pub backup: bool,
}

/// Changes to the headers of forwarded requests. Names are in lower case.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HeaderRules {
    /// Headers that are added to every request, with their values.
    pub set: Vec<(String, Secret)>,
    /// Names of headers that are removed from every request.
    pub remove: Vec<String>,
    /// Headers of the client's request that are forwarded; includes `authorization` if that is forwarded unchanged.
    pub pass: Vec<String>,
    /// True when requests have the gateway's request id as `x-request-id`.
    pub forward_id: bool,
}

/// Settings of encrypted connections.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsSpec {
    /// Certificates that authenticate the backends, instead of the system's.
    pub ca: Option<Pem>,
    /// Client certificate of the gateway.
    pub identity: Option<TlsIdentity>,
    /// The name in the backends' certificates, if it differs from the one in their URLs.
    pub server_name: Option<String>,
    /// True when the backends' certificates are verified.
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

/// A client certificate with its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsIdentity {
    /// Certificate chain.
    pub cert: Pem,
    /// Private key, as PEM.
    pub key: Secret,
}

/// The content of a file of certificates, so that a renewed certificate results in another spec.
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
    /// Sharing of sessions of the gateway's own client. With `auto`, sessions are not shared if each client sends its own
    /// credentials: unsolicited messages of a server, such as log messages, then concern the user who is logged in. Sessions
    /// with personal credentials are those of one principal.
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
    /// Creates a server, with its content hash.
    pub fn new(name: NamespaceName, spec: RemoteSpec) -> Self {
        let mut hash = Sha256::new();
        // `Debug` quotes texts, so that different specs never have equal text, and prints secrets as `[redacted]`. For a
        // backend it omits the query.
        let targets: Vec<_> = spec.backends.iter().map(|it| &it.backend.target).collect();
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
    /// The key that cannot be used, without the value of any variable.
    pub fn resolve(
        name: &NamespaceName,
        config: &RemoteServerConfig,
        secrets: &Secrets,
        environment: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Self, InvalidServer> {
        let spec = spec(name, config, secrets, environment).map_err(|failure| *failure.reason)?;
        Ok(Self::new(name.clone(), spec))
    }

    /// Returns true if sessions opened under one version may continue under the other: the server is reached with the same
    /// protocol and credentials. The backends, and their choice, time limits and checks, may differ.
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
        } = &self.spec;
        let new = &other.spec;
        self.name == other.name
            && *transport == new.transport
            && self.spec.sharing() == new.sharing()
            && *stateful == new.stateful
            && headers.pass == new.headers.pass
            && *credentials == new.credentials
            && *personal == new.personal
            && *oauth == new.oauth
            // A header may be set to a value that identifies the gateway's user.
            && *secrets == new.secrets
            && *tls == new.tls
    }

    /// A text that quotes the server, with its secrets hidden for the log.
    pub fn without_secrets(&self, text: &str) -> String {
        let hidden = Redactor::new(&self.spec.secrets).hide(text.into(), false);
        String::from_utf8_lossy(&hidden).into_owned()
    }

    /// A text that may quote the server, cut to `max` characters, without the server's secrets and without `more`. Secrets are
    /// hidden before the text is cut, and so are their beginnings if the given text was already cut.
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
