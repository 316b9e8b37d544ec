//! The configuration keys of one remote server, under `upstreams.remote`.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use tooldock_base::bounds::{TIMES, within};
use tooldock_base::config::{LimitsPatch, PinMode};
use tooldock_base::names::NamespaceName;
use tooldock_base::server_failure::InvalidServer;
use tooldock_base::template::Template;
use tooldock_credentials::personal;

use super::api::ApiConfig;
use super::backend::{Backend, BackendConfig};
use super::headers::HeadersConfig;
use super::oauth::OAuthConfig;
use crate::server_settings::{Isolation, ListMode, check_limits};

/// Configuration key `upstreams.remote:`, with the servers by namespace.
pub type RemoteServersConfig = BTreeMap<NamespaceName, RemoteServerConfig>;

/// Maximum number of backends of one remote server.
const BACKENDS_MAX: usize = 1_000;
/// Maximum weight of a backend; a higher one would not change its share noticeably.
const WEIGHT_MAX: u32 = 1_000;
/// Allowed range of `keepalive`, the number of idle connections that are kept open to each backend.
const KEEPALIVE: RangeInclusive<usize> = 0..=10_000;
/// Allowed range of `retry.max`, the number of further backends to which a failed request is sent.
const RETRIES: RangeInclusive<u32> = 0..=10;
/// Allowed range of `health.passive.failures`, the number of consecutive failures after which a backend is excluded.
const FAILURES: RangeInclusive<u32> = 1..=1_000;

/// Configuration of a remote server. `Default` contains the defaults of all keys except `backends`, which has none.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RemoteServerConfig {
    /// Backends of the server. All of them serve the same tools.
    pub backends: Vec<BackendConfig>,
    /// Choice of the backend for a new session, or for a request without a session.
    pub balance: Balance,
    /// Way in which requests are forwarded to the backends.
    pub mode: Mode,
    /// MCP transport of the backends.
    pub transport: Transport,
    /// Rule for sharing a session at the server among clients.
    pub isolation: Isolation,
    /// True if the state of a session exists only at its backend; such a session ends together with its backend. If false, the
    /// gateway may open the session again at another backend.
    pub stateful: bool,
    /// Treatment of the server's lists of tools and resources: corrected for strict clients, or passed on unchanged. Pass-through
    /// never changes them.
    pub lists: ListMode,
    /// True if host names of backends may resolve to addresses that are not public; otherwise such addresses are refused.
    pub allow_private: bool,
    /// Changes to the headers of forwarded requests.
    pub headers: HeadersConfig,
    /// Value of the header `Authorization` in every request. With `pass`, the header of the client's request is forwarded if it
    /// contains an access token that `admission.oauth` accepts.
    pub credentials: Option<Template>,
    /// Names in `credentials` and `headers.set` for which each principal stores its own value.
    pub personal: Vec<String>,
    /// Settings with which the gateway requests access tokens for the server, instead of `credentials`.
    pub oauth: Option<OAuthConfig>,
    /// Settings of encrypted connections to the backends.
    pub tls: RemoteTls,
    /// Time limits for the steps of a request to a backend.
    pub timeouts: RemoteTimeouts,
    /// Maximum number of idle connections that are kept open to each backend.
    pub keepalive: usize,
    /// Rules for sending a failed request to another backend.
    pub retry: RemoteRetry,
    /// Rules for excluding a failing backend from requests.
    pub health: RemoteHealth,
    /// Treatment of tool definitions that differ from the recorded ones. Replaces `limits.pins` if both are set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pins: Option<PinMode>,
    /// Limits of the server's namespace, such as the allowed tools and the time limit of a call.
    pub limits: LimitsPatch,
    /// True if the server is served under its namespace; false if it is switched off.
    pub enabled: bool,
    /// Document of an API whose operations are served as tools; `None` for MCP servers. See [`crate::openapi`].
    #[serde(skip)]
    pub api: Option<ApiConfig>,
}

impl Default for RemoteServerConfig {
    fn default() -> Self {
        Self {
            backends: Vec::new(),
            balance: Balance::RoundRobin,
            mode: Mode::Auto,
            transport: Transport::Auto,
            isolation: Isolation::Auto,
            stateful: false,
            lists: ListMode::default(),
            allow_private: false,
            headers: HeadersConfig::default(),
            credentials: None,
            personal: Vec::new(),
            oauth: None,
            tls: RemoteTls::default(),
            timeouts: RemoteTimeouts::default(),
            keepalive: 64,
            retry: RemoteRetry::default(),
            health: RemoteHealth::default(),
            pins: None,
            limits: LimitsPatch::default(),
            enabled: true,
            api: None,
        }
    }
}

/// Choice of the backend for a new session, or for a request without a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Balance {
    /// Backends are used in turn, in proportion to their weights.
    RoundRobin,
    /// The backend with the fewest requests in flight, relative to its weight, is used.
    LeastBusy,
    /// A backend is chosen at random, with a probability in proportion to its weight.
    Random,
    /// The backend is selected by a hash of the client, so that each client always uses the same one.
    Hash,
}

/// Way in which requests are forwarded to the backends of a remote server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// A request is forwarded unchanged if nothing in it needs to change; otherwise the gateway's own MCP client sends it.
    Auto,
    /// Requests are always forwarded unchanged.
    PassThrough,
    /// The gateway's own MCP client sends all requests.
    Client,
}

/// MCP transport of the backends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Transport {
    /// The gateway detects the MCP transport of the backends.
    Auto,
    /// The backends use Streamable HTTP.
    Streamable,
    /// The backends use HTTP+SSE, the MCP transport of 2024-11-05.
    Sse,
}

/// Configuration key `tls:` of a remote server: settings of encrypted connections.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RemoteTls {
    /// File with the certificates that authenticate the backends, used instead of the system's certificates.
    pub ca: Option<PathBuf>,
    /// File with the gateway's client certificate.
    pub cert: Option<PathBuf>,
    /// File with the private key of the gateway's client certificate.
    pub key: Option<PathBuf>,
    /// Name in the backends' certificates, if it differs from the host in their URLs.
    pub server_name: Option<String>,
    /// True if the backends' certificates are verified; false accepts any certificate.
    pub verify: bool,
}

impl Default for RemoteTls {
    fn default() -> Self {
        Self {
            ca: None,
            cert: None,
            key: None,
            server_name: None,
            verify: true,
        }
    }
}

/// Returns true if the text is a host name or an address, as certificates contain them.
pub fn is_server_name(name: &str) -> bool {
    let parsed = Backend::parse(&format!("https://{name}/"));
    parsed.is_ok_and(|it| it.id().as_str().strip_suffix(":443") == Some(&name.to_ascii_lowercase()))
}

/// Configuration key `timeouts:` of a remote server: time limits of requests to its backends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RemoteTimeouts {
    /// Time limit for establishing a connection, including TLS.
    #[serde(with = "humantime_serde")]
    pub connect: Duration,
    /// Time limit from the end of a request to the status and headers of its response.
    #[serde(with = "humantime_serde")]
    pub head: Duration,
    /// Time without data after which a streamed response is closed.
    #[serde(with = "humantime_serde")]
    pub idle: Duration,
    /// Time limit for a complete response that is not a stream.
    #[serde(with = "humantime_serde")]
    pub call: Duration,
}

impl Default for RemoteTimeouts {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(5),
            head: Duration::from_secs(30),
            idle: Duration::from_secs(3600),
            call: Duration::from_secs(30),
        }
    }
}

/// Configuration key `retry:` of a remote server: rules for sending a failed request to another backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RemoteRetry {
    /// Maximum number of further backends to which a failed request is sent. It is sent again only if no backend can have
    /// received it, or if repeating it is harmless.
    pub max: u32,
}

impl Default for RemoteRetry {
    fn default() -> Self {
        Self { max: 1 }
    }
}

/// Configuration key `health:` of a remote server: rules for excluding a failing backend.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RemoteHealth {
    /// Active checks: requests that the gateway sends to the backends to check them.
    pub active: ActiveHealth,
    /// Passive checks: failures of clients' requests are counted.
    pub passive: PassiveHealth,
}

/// Configuration key `health.active:` of a remote server: checks by requests of the gateway.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ActiveHealth {
    /// Interval at which each backend is checked.
    #[serde(with = "humantime_serde")]
    pub every: Duration,
    /// Time limit for the response to a check.
    #[serde(with = "humantime_serde")]
    pub timeout: Duration,
    /// Request that checks a backend.
    pub path: HealthPath,
}

impl Default for ActiveHealth {
    fn default() -> Self {
        Self {
            every: Duration::from_secs(10),
            timeout: Duration::from_secs(3),
            path: HealthPath::Off,
        }
    }
}

/// Request with which the gateway checks a backend.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum HealthPath {
    /// The check is an MCP `ping` to the endpoint; any response except a server error (5xx) passes.
    #[default]
    Off,
    /// The check is a `GET` of this path, which must return a 2xx status.
    Path(String),
}

impl Serialize for HealthPath {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(match self {
            Self::Off => "off",
            Self::Path(path) => path,
        })
    }
}

impl<'de> Deserialize<'de> for HealthPath {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        match text.as_str() {
            "off" => Ok(Self::Off),
            path if path.starts_with('/') && path.bytes().all(|byte| byte.is_ascii_graphic()) => {
                Ok(Self::Path(text))
            }
            _ => Err(de::Error::custom(
                "must be off or a path that begins with a slash",
            )),
        }
    }
}

/// Configuration key `health.passive:` of a remote server: exclusion of a backend after failed requests of clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PassiveHealth {
    /// Number of consecutive failures after which a backend is excluded.
    pub failures: u32,
    /// Time for which a failing backend is excluded.
    #[serde(with = "humantime_serde")]
    pub eject: Duration,
}

impl Default for PassiveHealth {
    fn default() -> Self {
        Self {
            failures: 3,
            eject: Duration::from_secs(10),
        }
    }
}

impl RemoteServerConfig {
    /// Checks the keys, as far as possible without I/O. A server that is switched off is not checked.
    ///
    /// # Errors
    ///
    /// The first invalid key, and the remedy.
    pub fn validate(&self) -> Result<(), InvalidServer> {
        if !self.enabled {
            return Ok(());
        }
        let encrypted = self.validate_backends()?;
        if let Some(oauth) = &self.oauth {
            if self.credentials.is_some() {
                let message = "is the Authorization of every request, as the token of oauth is: leave out one of them";
                return Err(InvalidServer::new("credentials", message));
            }
            oauth.validate(&self.personal)?;
        }
        let misspelt = |it: &&Template| ["Pass", "PASS"].iter().any(|text| it.is(text));
        if self.credentials.as_ref().filter(misspelt).is_some() {
            let message = "is written in lower case: pass";
            return Err(InvalidServer::new("credentials", message));
        }
        let authorizes = self.credentials.is_some() || self.oauth.is_some();
        self.headers.validate(authorizes)?;
        let templates = self.headers.set.values().chain(&self.credentials);
        personal::check(&self.personal, templates)?;
        self.validate_tls(encrypted)?;
        for (key, value) in [
            ("timeouts.connect", self.timeouts.connect),
            ("timeouts.head", self.timeouts.head),
            ("timeouts.idle", self.timeouts.idle),
            ("timeouts.call", self.timeouts.call),
            ("health.active.every", self.health.active.every),
            ("health.active.timeout", self.health.active.timeout),
            ("health.passive.eject", self.health.passive.eject),
        ] {
            within(value, &TIMES).map_err(|message| InvalidServer::new(key, message))?;
        }
        for (key, value, bounds) in [
            ("retry.max", self.retry.max, RETRIES),
            (
                "health.passive.failures",
                self.health.passive.failures,
                FAILURES,
            ),
        ] {
            within(value, &bounds).map_err(|message| InvalidServer::new(key, message))?;
        }
        within(self.keepalive, &KEEPALIVE)
            .map_err(|message| InvalidServer::new("keepalive", message))?;
        check_limits(&self.limits, "the server runs its own")?;
        self.validate_mode()?;
        self.validate_isolation()
    }

    /// Checks the backends. Returns true if connections to at least one of them are encrypted.
    fn validate_backends(&self) -> Result<bool, InvalidServer> {
        let wrong = |message: &str| Err(InvalidServer::new("backends", message.to_owned()));
        if self.backends.is_empty() {
            return wrong("is missing or empty: write [\"https://host/mcp\"]");
        }
        if self.backends.len() > BACKENDS_MAX {
            return wrong(&format!("has more than {BACKENDS_MAX} entries"));
        }
        let mut ids = BTreeSet::new();
        let mut encrypted = false;
        for (index, entry) in self.backends.iter().enumerate() {
            let key = format!("backends[{index}]");
            let backend =
                Backend::parse(&entry.url).map_err(|message| InvalidServer::new(&*key, message))?;
            if entry.weight > WEIGHT_MAX {
                let message = format!("{} is not between 0 and {WEIGHT_MAX}", entry.weight);
                return Err(InvalidServer::new(format!("{key}.weight"), message));
            }
            let id = backend.id();
            if ids.contains(&id) {
                let message = format!("{id} is listed twice: give it a weight instead");
                return Err(InvalidServer::new(key, message));
            }
            ids.insert(id);
            encrypted |= backend.tls;
        }
        if self.backends.iter().all(|entry| entry.weight == 0) {
            return wrong("has no entry with a weight above 0, so that none would be used");
        }
        if self.backends.iter().all(|entry| entry.backup) {
            return wrong("has nothing but backups: leave out backup: true of one entry at least");
        }
        Ok(encrypted)
    }

    fn validate_tls(&self, encrypted: bool) -> Result<(), InvalidServer> {
        let tls = &self.tls;
        let wrong = |key: &str, message: &str| Err(InvalidServer::new(key, message.to_owned()));
        if *tls != RemoteTls::default() && !encrypted {
            return wrong("tls", "is said, and no backend's URL begins with https");
        }
        match (&tls.cert, &tls.key) {
            (Some(_), None) => return wrong("tls.key", "is missing: tls.cert needs its key"),
            (None, Some(_)) => {
                return wrong("tls.cert", "is missing: tls.key needs its certificate");
            }
            _ => {}
        }
        if tls.ca.is_some() && !tls.verify {
            return wrong(
                "tls.verify",
                "is false, so that tls.ca would vouch for nothing: leave out one of them",
            );
        }
        let name = tls.server_name.as_deref();
        if name.is_some_and(|name| !is_server_name(name)) {
            return wrong("tls.server_name", "is neither a host name nor an address");
        }
        Ok(())
    }

    /// Returns true if clients' own access tokens are forwarded: `credentials: pass`.
    pub fn passes_credentials(&self) -> bool {
        self.credentials.as_ref().is_some_and(|it| it.is("pass"))
    }

    /// Returns true if requests to the server need the clients' access tokens, to forward or to exchange them; false otherwise.
    pub fn takes_access_tokens(&self) -> bool {
        let exchanges = |it: &OAuthConfig| it.grant.takes_access_tokens();
        self.passes_credentials() || self.oauth.as_ref().is_some_and(exchanges)
    }

    /// Checks `isolation`: clients with different credentials must not share a session, because a server sends unsolicited
    /// messages, such as log messages, to all clients of a session.
    fn validate_isolation(&self) -> Result<(), InvalidServer> {
        if self.isolation == Isolation::Shared && self.takes_access_tokens() {
            let message = "is shared, and each client has a token of its own there: clients would hear what the server says about each other; \
                           write isolation: session or principal";
            return Err(InvalidServer::new("isolation", message));
        }
        let own = matches!(self.isolation, Isolation::Auto | Isolation::Principal);
        let is_personal =
            !self.personal.is_empty() || self.oauth.as_ref().is_some_and(|it| it.personal);
        if is_personal && !own {
            let message = "keeps no principal's sessions apart, and personal stands for credentials of principals: write \
                           isolation: principal, or leave it out";
            return Err(InvalidServer::new("isolation", message));
        }
        Ok(())
    }

    /// The limits of the server's namespace, including the server's own key `pins`.
    pub fn own_limits(&self) -> LimitsPatch {
        let mut limits = self.limits.clone();
        limits.pins = self.pins.or(limits.pins);
        limits
    }

    /// Returns an error for keys that cannot be combined with the configured `mode`.
    fn validate_mode(&self) -> Result<(), InvalidServer> {
        if self.mode != Mode::PassThrough {
            return Ok(());
        }
        let instead = "cannot be with mode: pass_through, which changes nothing of a request or an answer: write mode: client or auto";
        let limits = &self.limits;
        let denies = limits.tools_deny.as_ref().is_some_and(|it| !it.is_empty());
        let allows = limits.tools_allow.as_ref().is_some_and(|it| it != &["*"]);
        for (key, contradicts) in [
            ("limits.tools_deny", denies),
            ("limits.tools_allow", allows),
            ("pins", self.own_limits().pins == Some(PinMode::Enforce)),
            ("isolation", self.isolation != Isolation::Auto),
            ("transport", self.transport == Transport::Sse),
        ] {
            if contradicts {
                return Err(InvalidServer::new(key, instead));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use tooldock_base::yaml;

    use super::*;

    fn parse(yaml: &str) -> RemoteServerConfig {
        yaml::from_str(yaml).expect(yaml)
    }

    #[test]
    fn every_key_is_read_by_its_name() {
        let config = parse(
            "{ backends: ['https://a/mcp', { url: 'https://b/mcp', weight: 2, backup: true }], balance: least_busy, \
             mode: client, transport: streamable, isolation: session, stateful: true, allow_private: true, \
             headers: { set: { X-A: '${B}' }, remove: [x-b], pass: [x-c] }, credentials: 'Bearer ${T}', \
             tls: { ca: a, cert: b, key: c, server_name: a.example, verify: true }, \
             timeouts: { connect: 1s, head: 2s, idle: 3s, call: 4s }, keepalive: 5, retry: { max: 2 }, \
             health: { active: { every: 6s, timeout: 7s, path: /health }, passive: { failures: 8, eject: 9s } }, \
             limits: { timeout: 1m, tools_allow: ['get_*'] }, enabled: true }",
        );
        assert_eq!(config.validate(), Ok(()));
        assert_eq!(config.balance, Balance::LeastBusy);
        assert_eq!(
            config.health.active.path,
            HealthPath::Path("/health".into())
        );
        assert_eq!(config.timeouts.idle, Duration::from_secs(3));
        assert_eq!(config.limits.timeout, Some(Duration::from_secs(60)));
        let written = yaml::to_string(&config).expect("yaml");
        assert_eq!(parse(&written), config);
    }

    #[test]
    fn a_wrong_value_names_its_key_and_what_to_write_instead() {
        let pass_through = "mode: pass_through, backends: ['https://a']";
        for (yaml, key, said) in [
            ("{}", "backends", "missing or empty"),
            ("{ backends: [a/mcp] }", "backends[0]", "has no scheme"),
            (
                "{ backends: ['https://a', 'https://u:p@b'] }",
                "backends[1]",
                "write credentials",
            ),
            (
                "{ backends: ['https://a#b'] }",
                "backends[0]",
                "leave out \"#\"",
            ),
            (
                "{ backends: ['https://a', 'https://a:443/x'] }",
                "backends[1]",
                "a:443 is listed twice",
            ),
            (
                "{ backends: [{ url: 'https://a', weight: 0 }] }",
                "backends",
                "weight above 0",
            ),
            (
                "{ backends: [{ url: 'https://a', weight: 1001 }] }",
                "backends[0].weight",
                "between 0 and 1000",
            ),
            (
                "{ backends: [{ url: 'https://a', backup: true }] }",
                "backends",
                "nothing but backups",
            ),
            (
                "{ backends: ['https://a'], headers: { set: { 'a b': c } } }",
                "headers.set.a b",
                "no name",
            ),
            (
                "{ backends: ['https://a'], headers: { set: { Connection: c } } }",
                "headers.set.Connection",
                "never goes up",
            ),
            (
                "{ backends: ['https://a'], headers: { remove: [mcp-session-id] } }",
                "headers.remove",
                "by the protocol",
            ),
            (
                "{ backends: ['https://a'], headers: { pass: [Host] } }",
                "headers.pass",
                "backend's URL",
            ),
            (
                "{ backends: ['https://a'], headers: { remove: [Host] } }",
                "headers.remove",
                "every request needs: leave it out, or write another one in headers.set",
            ),
            (
                "{ backends: ['https://a'], headers: { remove: [X-A], pass: [x-a] } }",
                "headers.remove",
                "has X-A, and headers.pass has it, too: leave out one",
            ),
            (
                "{ backends: ['https://a'], isolation: shared, credentials: pass }",
                "isolation",
                "write isolation: session or principal",
            ),
            (
                "{ backends: ['https://a'], headers: { set: { A: b, a: c } } }",
                "headers.set.a",
                "set twice",
            ),
            (
                "{ backends: ['https://a'], headers: { set: { A: b }, pass: [a] } }",
                "headers.set.A",
                "leave out one",
            ),
            (
                "{ backends: ['https://a'], headers: { pass: [AuthoriZation] } }",
                "headers.pass",
                "Write credentials: pass",
            ),
            (
                "{ backends: ['https://a'], credentials: pass, headers: { pass: [Authorization] } }",
                "headers.pass",
                "leave it out",
            ),
            (
                "{ backends: ['https://a'], headers: { pass: [X-Manager-Token] } }",
                "headers.pass",
                "opens this gateway",
            ),
            (
                "{ backends: ['https://a'], headers: { pass: [Proxy-Authorization] } }",
                "headers.pass",
                "never goes up",
            ),
            (
                "{ backends: ['https://a'], credentials: PASS }",
                "credentials",
                "in lower case",
            ),
            (
                "{ backends: ['https://a'], credentials: pass, headers: { remove: [Authorization] } }",
                "headers.remove",
                "leave out one",
            ),
            (
                "{ backends: ['https://a'], credentials: x, headers: { set: { Authorization: y } } }",
                "headers.set.Authorization",
                "leave out one",
            ),
            (
                "{ backends: ['http://a'], tls: { verify: false } }",
                "tls",
                "begins with https",
            ),
            (
                "{ backends: ['https://a'], tls: { cert: c } }",
                "tls.key",
                "needs its key",
            ),
            (
                "{ backends: ['https://a'], tls: { key: c } }",
                "tls.cert",
                "needs its certificate",
            ),
            (
                "{ backends: ['https://a'], tls: { ca: c, verify: false } }",
                "tls.verify",
                "leave out one",
            ),
            (
                "{ backends: ['https://a'], tls: { server_name: 'a b' } }",
                "tls.server_name",
                "host name",
            ),
            (
                "{ backends: ['https://a'], timeouts: { connect: 0s } }",
                "timeouts.connect",
                "between",
            ),
            (
                "{ backends: ['https://a'], keepalive: 10001 }",
                "keepalive",
                "between",
            ),
            (
                "{ backends: ['https://a'], retry: { max: 11 } }",
                "retry.max",
                "between",
            ),
            (
                "{ backends: ['https://a'], health: { active: { every: 0s } } }",
                "health.active.every",
                "between",
            ),
            (
                "{ backends: ['https://a'], health: { passive: { failures: 0 } } }",
                "health.passive.failures",
                "between",
            ),
            (
                "{ backends: ['https://a'], limits: { processes: 2 } }",
                "limits.processes",
                "the server runs its own",
            ),
            (
                "{ backends: ['https://a'], limits: { timeout: 0s } }",
                "limits.timeout",
                "between",
            ),
            (
                &format!("{{ {pass_through}, limits: {{ tools_deny: [x] }} }}"),
                "limits.tools_deny",
                "mode: client or auto",
            ),
            (
                &format!("{{ {pass_through}, limits: {{ tools_allow: [x] }} }}"),
                "limits.tools_allow",
                "mode: client or auto",
            ),
            (
                &format!("{{ {pass_through}, isolation: session }}"),
                "isolation",
                "mode: client or auto",
            ),
            (
                &format!("{{ {pass_through}, transport: sse }}"),
                "transport",
                "mode: client or auto",
            ),
        ] {
            let error = parse(yaml).validate().expect_err(yaml);
            assert_eq!(error.key, key, "{yaml}: {error}");
            assert!(error.message.contains(said), "{yaml}: {error}");
        }
        for yaml in [
            "{ balance: least_conn }",
            "{ mode: proxy }",
            "{ transport: http }",
            "{ health: { active: { path: health } } }",
            "{ backend: ['https://a'] }",
        ] {
            assert!(
                yaml::from_str::<RemoteServerConfig>(yaml).is_err(),
                "{yaml}"
            );
        }
    }

    #[test]
    fn of_a_server_that_is_switched_off_nothing_is_asked() {
        assert_eq!(
            parse("{ enabled: false, keepalive: 10001 }").validate(),
            Ok(())
        );
        assert_eq!(
            parse(
                "{ mode: pass_through, backends: ['https://a'], limits: { tools_allow: ['*'] } }"
            )
            .validate(),
            Ok(())
        );
    }

    #[test]
    fn an_unknown_policy_is_answered_with_the_known_ones() {
        let error = yaml::from_str::<RemoteServerConfig>("{ balance: least_conn }");
        let error = error.expect_err("unknown").to_string();
        assert!(
            error.contains("`round_robin`, `least_busy`, `random`, `hash`"),
            "{error}"
        );
    }
}
