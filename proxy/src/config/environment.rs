//! The environment variables of the gateway: a table with the configuration key that each sets.
//!
//! The environment is captured once, at the start of the process. No other module reads it, and child processes do not inherit
//! it. An empty variable counts as not set. Variables outside the table are ignored, with three exceptions: a secret may come
//! from a file (`secret_file`), every listener has a variable for its port (`ports`), and variables of this program without
//! effect are named in a warning (`unserved`).

mod mode;
mod parse;
mod ports;
mod secret_file;
mod unserved;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

use tooldock_base::names::InvalidNamespaceName;
use tooldock_base::secret::Secret;
use tooldock_sessions::profile::{AcceptRule, BatchRule, SessionRule};
use tooldock_upstream::protocol::ProtocolVersion;

use self::parse::{
    boolean, bytes, calls_at_once, choice, container, debugged, git_schemes, hours, list,
    log_level, milliseconds, milliseconds_or_off, port, seconds, session_key, token, user,
    versions, whole,
};
pub(super) use self::ports::variable_of as port_variable_of;
use super::listener::AuthScheme;
use super::replicas::Peers;
use super::{ConfigError, ListenerConfig, NamespaceRule, ProfileName, Role, Settings};

/// Names of the environment variables that have set configuration keys, by key. Error messages about a key mention its variable.
pub(crate) type VariableNames = BTreeMap<String, String>;

/// An environment variable: its name, its configuration key, and the function that sets it.
struct Variable {
    name: &'static str,
    /// The configuration key that the variable sets; `listeners[]` begins a key of several listeners. For a setting without a
    /// key, a description.
    sets: &'static str,
    set: fn(&mut Settings, &str) -> Result<(), String>,
}

/// A row of the table of variables, in one of three forms: a configuration key and the function that parses its value; a key of
/// every listener that serves MCP, and its value, where `None` leaves the listeners unchanged; or a description, for a setting
/// without a key, and the function that sets it.
macro_rules! variable {
    ($name:literal => $head:ident $(. $tail:ident)* = $read:expr) => {
        Variable {
            name: $name,
            sets: concat!(stringify!($head) $(, ".", stringify!($tail))*),
            set: |settings, text| {
                settings.config.$head$(.$tail)* = $read(text)?;
                Ok(())
            },
        }
    };
    ($name:literal => listeners[].$key:ident = |$text:ident| $value:expr) => {
        Variable {
            name: $name,
            sets: concat!("listeners[].", stringify!($key)),
            set: |settings, $text| {
                let value = $value;
                set_where_mcp_is_served(settings, stringify!($key), $name, value, |it| &mut it.$key);
                Ok(())
            },
        }
    };
    ($name:literal, $sets:literal => |$settings:ident, $text:ident| $set:expr) => {
        Variable {
            name: $name,
            sets: $sets,
            set: |$settings, $text| {
                $set;
                Ok(())
            },
        }
    };
}

/// All environment variables. Later ones take precedence over earlier ones, such as `PORT` over `CORE_PORT`.
const VARIABLES: &[Variable] = &[
    variable!("BEARER_TOKEN", "a bearer token for all namespaces; without it, `admission.tokens` must hold a token"
        => |s, text| s.bearer = Some(token(text)?)),
    variable!("MANAGER_INTERNAL_TOKEN", "the token of `/reload` (header `X-Manager-Token`); required with `--role core` and `--role manager`, else made at the start"
        => |s, text| s.manager_token = Some(token(text)?)),
    variable!("SESSION_KEY", "the key that seals session ids, of at least 32 characters; without it, a key is made once and kept in `session.key` of the data directory"
        => |s, text| s.session_key = Some(session_key(text)?)),
    variable!("SECRETS_KEY", "the key of the secrets store; required where there are secrets, and with `--role core` and `--role manager`"
        => |s, text| s.secrets.key = Some(Secret::new(text))),
    variable!("SECRETS_KEY_NEW", "the key that `tooldock secrets rekey` changes to"
        => |s, text| s.secrets.new_key = Some(Secret::new(text))),
    variable!("ALLOW_INSECURE_SECRETS", "whether secrets are stored unencrypted while `SECRETS_KEY` is not set; for local use only"
        => |s, text| s.secrets.allow_insecure = boolean(text)?),
    variable!("DOCKER_CONTAINER_NAME", "the container that `prepare_secret` names in its instructions, in place of `tooldock-manager`"
        => |s, text| s.secrets.container = Some(container(text)?)),
    // `SERVER_MODE` decides which listeners exist, so that it is applied before the variables for their ports.
    variable!("SERVER_MODE", "which listeners there are, in place of those of the file: `openapi`, `mcp-http`, `both`, `web-gui`, `all`, `core`, `manager` or `tool-vault`"
        => |s, text| mode::apply(s, text)?),
    variable!("OPENAPI_PORT", "listeners[].address"
        => |s, text| move_listener(s, ProfileName::V1Rest, port(text)?, "OPENAPI_PORT")),
    variable!("MCP_PORT", "listeners[].address"
        => |s, text| move_listener(s, ProfileName::V1Mcp, port(text)?, "MCP_PORT")),
    variable!("TOOL_VAULT_PORT", "listeners[].address"
        => |s, text| move_listener(s, ProfileName::Vault, port(text)?, "TOOL_VAULT_PORT")),
    variable!("GLOBAL_VIEW", "whether listeners of the profiles `v1-rest` and `v1-mcp` serve all namespaces at once to requests that name none"
        => |s, text| if !boolean(text)? { without_global_view(s) }),
    variable!("VAULT_AUTH", "whether listeners of the profile `vault` ask for a token; `off` only on loopback, or with `admission.cidrs.allow`"
        => |s, text| if !boolean(text)? { open_vault(s) }),
    variable!("OUBLIETTE_SOCKET" => relay.socket = |text: &str| Ok::<_, String>(text.into())),
    variable!("VAULT_NAMESPACE" => vault.namespace = |text: &str| text.parse().map_err(|error: InvalidNamespaceName| error.to_string())),
    variable!("VAULT_TOOLS_DIR" => vault.tools_dir = |text: &str| Ok::<_, String>(text.into())),
    variable!("VAULT_UI_DIR" => vault.ui_dir = |text: &str| Ok::<_, String>(text.into())),
    variable!("VAULT_REST" => vault.rest = boolean),
    variable!("VAULT_RAW_RESULT" => vault.raw_result = boolean),
    variable!("CORE_PORT", "listeners[].address"
        => |s, text| move_listener(s, ProfileName::Core, port(text)?, "CORE_PORT")),
    variable!("MANAGER_PORT", "listeners[].address"
        => |s, text| move_listener(s, ProfileName::Manager, port(text)?, "MANAGER_PORT")),
    variable!("WEB_PORT", "listeners[].address"
        => |s, text| move_listener(s, ProfileName::V1Web, port(text)?, "WEB_PORT")),
    variable!("ADMIN_USERNAME", "the user name that browsers send to a listener of the profile `v1-web`, in place of `admin`; the password is a bearer token"
        => |s, text| s.web.user = user(text)?),
    variable!("HOST_DATA_DIR", "what the web UI shows as the data directory's place on the host, in place of `./tooldock_data`"
        => |s, text| s.web.host_data_dir = text.to_owned()),
    variable!("CORE_URL", "where a process with `--role manager` reaches the core; without it, `http://172.30.0.11:8000`"
        => |s, text| s.core_url = text.parse()?),
    variable!("PORT", "listeners[].address" => |s, text| {
        let profile = match s.role {
            Role::All | Role::Core => ProfileName::Core,
            Role::Manager => ProfileName::Manager,
        };
        move_listener(s, profile, port(text)?, "PORT")
    }),
    // `MCP_PROTOCOL_VERSIONS` and `MCP_SUPPORTED_VERSIONS` set the versions of different profiles. If only one of them is set, it
    // sets the versions of all these profiles (K-10).
    variable!("MCP_PROTOCOL_VERSIONS", "listeners[].versions"
        => |s, text| set_versions(s, &[ProfileName::V1Mcp], "MCP_PROTOCOL_VERSIONS", versions(text)?)),
    variable!("MCP_SUPPORTED_VERSIONS", "listeners[].versions"
        => |s, text| set_versions(s, &[ProfileName::Core, ProfileName::Manager], "MCP_SUPPORTED_VERSIONS", versions(text)?)),
    variable!("MCP_PROTOCOL_VERSION", "listeners[].default_version" => |s, text| {
        let offered = parse::version(text)?;
        for listener in &mut s.config.listeners {
            if listener.profile == ProfileName::V1Mcp {
                listener.default_version = Some(offered);
            }
        }
    }),
    variable!("MCP_BATCH" => listeners[].batch = |text| choice(text, &[
        ("auto", None),
        ("accept", Some(BatchRule::Accept2025_03_26)),
        ("reject", Some(BatchRule::Reject)),
    ])?),
    variable!("MCP_ACCEPT_POLICY" => listeners[].accept = |text| choice(text, &[
        ("auto", None),
        ("strict", Some(AcceptRule::Strict)),
        ("lenient", Some(AcceptRule::Lenient)),
    ])?),
    variable!("SESSION_POLICY" => listeners[].session = |text| choice(text, &[
        ("auto", None),
        ("required", Some(SessionRule::Required)),
        ("optional", Some(SessionRule::Optional)),
    ])?),
    variable!("REQUIRE_INITIALIZED", "whether tools in a session wait for notifications/initialized" => |s, text| {
        s.require_initialized = choice(text, &[("auto", None), ("on", Some(true)), ("off", Some(false))])?
    }),
    variable!("DATA_DIR" => data_dir = |text: &str| Ok::<_, String>(text.into())),
    variable!("LOG_LEVEL" => observability.log.level = log_level),
    variable!("LOG_RETENTION_DAYS" => observability.audit.retention_days = whole),
    variable!("CORS_ORIGINS" => admission.origins = list),
    variable!("INTERNAL_ALLOWED_CIDRS" => admission.internal_cidrs = list),
    variable!("TRUSTED_PROXIES" => admission.trusted_proxies = list),
    variable!("MAX_BODY_BYTES" => admission.limits.body = bytes),
    variable!("MAX_RESULT_BYTES" => namespaces.defaults.max_result = bytes),
    variable!("TOOL_CALL_TIMEOUT_SECONDS" => namespaces.defaults.timeout = seconds),
    variable!("NAMESPACE_MAX_CONCURRENCY" => namespaces.defaults.max_concurrency = calls_at_once),
    variable!("MCP_SESSION_TTL_HOURS" => sessions.ttl = hours),
    variable!("DEPS_SYNC_TIMEOUT_SECONDS" => workers.sync_timeout = seconds),
    variable!("GRACE_SECONDS" => replicas.grace = seconds),
    variable!("GIT_ALLOWED_SCHEMES" => builder.git_schemes = git_schemes),
    variable!("GIT_PRIVATE_HOSTS" => builder.private_hosts = list),
    variable!("MCP_REGISTRY_URL" => builder.registry = |text: &str| Ok::<_, String>(text.into())),
    variable!("REPLICA_ID" => replicas.id = |text: &str| Ok::<_, String>(text.to_owned())),
    variable!("REPLICA_PEERS" => replicas.peers = |text: &str| Ok::<_, String>(Peers::of_variable(text))),
    variable!("ENABLE_LEGACY_MCP", "whether /sse and /messages are served"
        => |s, text| s.legacy_sse = boolean(text)?),
    variable!("TOOLDOCK_DEBUG", "the namespace whose worker waits for a debugger; only with `--dev`"
        => |s, text| s.config.namespaces.debugged = Some(debugged(text)?)),
    variable!("ENABLE_FS_WATCHER" => watcher.enabled = boolean),
    variable!("FS_WATCHER_DEBOUNCE_MS" => watcher.debounce = milliseconds),
    variable!("FS_WATCHER_POLL_MS" => watcher.poll = milliseconds_or_off),
];

impl Variable {
    /// Returns the configuration key that the variable sets; `None` if it sets several, or a setting without a key.
    fn key(&self) -> Option<&'static str> {
        (!self.sets.contains([' ', '['])).then_some(self.sets)
    }
}

/// The environment variables of this program, as they were when the process started. `Debug` shows only their names.
#[derive(Clone, Default)]
pub(crate) struct Environment(BTreeMap<String, OsString>);

/// The value of an environment variable, and its source.
struct VariableValue<'a> {
    text: Cow<'a, str>,
    /// The variable's name for error messages; for a value from a file, the name of the variable that names the file.
    name: &'static str,
    /// The file from which the value was read; `None` if the variable itself contains the value.
    file: Option<&'a str>,
}

impl Environment {
    /// Captures the environment of this process.
    pub(crate) fn of_process() -> Self {
        Self::from_vars(std::env::vars_os())
    }

    /// Selects the variables of this program out of all variables.
    pub(crate) fn from_vars(variables: impl IntoIterator<Item = (OsString, OsString)>) -> Self {
        let ours = |(name, value): (OsString, OsString)| {
            let name = name.into_string().ok()?;
            (!value.is_empty() && is_ours(&name)).then_some((name, value))
        };
        Self(variables.into_iter().filter_map(ours).collect())
    }

    /// Sets the variable `DATA_DIR` to `data_dir`.
    pub(crate) fn with_data_dir(mut self, data_dir: &Path) -> Self {
        self.0.insert("DATA_DIR".to_owned(), data_dir.into());
        self
    }

    /// Returns the role of this process, which `--role` (`said`) or `SERVER_MODE` decides.
    pub(super) fn role(&self, said: Role) -> Result<Role, ConfigError> {
        mode::role(self, said)
    }

    /// Returns the value of `DATA_DIR`, which is needed before the other variables are applied.
    pub(super) fn data_dir(&self) -> Result<Option<PathBuf>, ConfigError> {
        Ok(self.text("DATA_DIR")?.map(PathBuf::from))
    }

    /// Applies all variables to the settings from the files, and reads the files with secrets that variables name.
    pub(super) fn apply(&self, settings: &mut Settings) -> Result<(), ConfigError> {
        for variable in VARIABLES {
            let Some(said) = self.variable_value(variable.name)? else {
                continue;
            };
            (variable.set)(settings, &said.text).map_err(|reason| {
                let reason = match said.file {
                    Some(file) => format!("{file}: {reason}"),
                    None => reason,
                };
                ConfigError::variable(said.name, reason)
            })?;
            if let Some(key) = variable.key() {
                let name = variable.name.to_owned();
                settings.said_by.insert(key.to_owned(), name);
            }
        }
        ports::apply(self, settings)?;
        settings.warnings.extend(unserved::warning(self, settings));
        Ok(())
    }

    /// Returns the value of a variable, or the content of the file that its `_FILE` variable names. Returns an error if both are
    /// set.
    fn variable_value(&self, name: &'static str) -> Result<Option<VariableValue<'_>>, ConfigError> {
        let direct = self.text(name)?;
        let named = match secret_file::variable_of(name) {
            Some(variable) => self.text(variable)?.map(|file| (variable, file)),
            None => None,
        };
        let (text, name, file) = match (direct, named) {
            (None, None) => return Ok(None),
            (Some(text), None) => (text.into(), name, None),
            (None, Some((variable, file))) => {
                let text = secret_file::read(Path::new(file)).map_err(|reason| {
                    ConfigError::variable(variable, format!("{file}: {reason}"))
                })?;
                (text.into(), variable, Some(file))
            }
            (Some(_), Some((variable, _))) => {
                let reason = format!("{name} is set, too; leave out one of the two");
                return Err(ConfigError::variable(variable, reason));
            }
        };
        Ok(Some(VariableValue { text, name, file }))
    }

    fn text(&self, name: &str) -> Result<Option<&str>, ConfigError> {
        match self.0.get(name) {
            Some(value) => match value.to_str() {
                Some(text) => Ok(Some(text)),
                None => Err(ConfigError::variable(name.to_owned(), "is not UTF-8")),
            },
            None => Ok(None),
        }
    }
}

/// Iterates over the table of environment variables. Each has the configuration key that it sets, or, if it sets none, a
/// description.
#[cfg(test)]
pub(super) fn documented_variables() -> impl Iterator<Item = (&'static str, &'static str)> {
    VARIABLES
        .iter()
        .map(|variable| (variable.name, variable.sets))
}

fn is_ours(name: &str) -> bool {
    VARIABLES.iter().any(|variable| variable.name == name)
        || secret_file::is_variable(name)
        || ports::is_variable(name)
        || unserved::is_variable(name)
}

/// Adds the name of an environment variable to an error about a configuration key, if the variable has set the key's value.
pub(super) fn blame(error: ConfigError, said_by: &VariableNames) -> ConfigError {
    let ConfigError::Key { key, reason } = &error else {
        return error;
    };
    let is_about = |said: &str| {
        let rest = key.strip_prefix(said);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
    };
    if let Some((_, name)) = said_by.iter().find(|(said, _)| is_about(said)) {
        return ConfigError::variable(name.clone(), format!("{reason} (it sets {key})"));
    }
    // The error's reason may mention another key that a variable has set, such as the address of another listener.
    match said_by.iter().find(|(said, _)| reason.contains(*said)) {
        Some((said, name)) => ConfigError::key(key, format!("{reason} ({name} sets {said})")),
        None => error,
    }
}

impl fmt::Debug for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

/// Sets the port of the first listener with a profile. Listeners on Unix sockets are skipped.
fn move_listener(settings: &mut Settings, profile: ProfileName, port: u16, variable: &'static str) {
    let listeners = &mut settings.config.listeners;
    let moved = |it: &mut ListenerConfig| it.profile == profile && it.address.set_port(port);
    if let Some(index) = listeners.iter_mut().position(moved) {
        let key = format!("listeners[{index}].address");
        settings.said_by.insert(key, variable.to_owned());
    }
}

/// Returns true if MCP is the main protocol of listeners with this profile.
fn speaks_mcp(profile: ProfileName) -> bool {
    use ProfileName::{Core, Manager, V1Mcp, Vault};
    matches!(profile, Core | Manager | V1Mcp | Vault)
}

/// Changes listeners that serve all namespaces at once, so that each of their requests must name a namespace.
fn without_global_view(settings: &mut Settings) {
    for listener in &mut settings.config.listeners {
        let spec = listener.profile.spec();
        if listener.namespace_source(spec) == NamespaceRule::Global {
            listener.namespace = Some(NamespaceRule::Header);
        }
    }
}

/// Makes Tool Vault's listeners accept requests without credentials. Validation later refuses this for unsafe listeners.
fn open_vault(settings: &mut Settings) {
    let listeners = settings.config.listeners.iter_mut().enumerate();
    for (index, listener) in listeners.filter(|(_, it)| it.profile == ProfileName::Vault) {
        listener.auth = Some(vec![AuthScheme::None]);
        let key = format!("listeners[{index}].auth");
        settings.said_by.insert(key, "VAULT_AUTH".to_owned());
    }
}

/// Sets `versions` of listeners: of those with the profiles `own`, and of other MCP listeners whose versions no variable has set.
fn set_versions(
    settings: &mut Settings,
    own: &[ProfileName],
    variable: &'static str,
    versions: Vec<ProtocolVersion>,
) {
    use ProfileName::{Core, Manager, V1Mcp};
    for (index, listener) in settings.config.listeners.iter_mut().enumerate() {
        let key = format!("listeners[{index}].versions");
        let is_set = settings.said_by.contains_key(&key);
        let is_other = matches!(listener.profile, Core | Manager | V1Mcp) && !is_set;
        if own.contains(&listener.profile) || is_other {
            listener.versions = Some(versions.clone());
            settings.said_by.insert(key, variable.to_owned());
        }
    }
}

/// Sets a key of every listener that serves MCP; does nothing if `value` is `None`.
fn set_where_mcp_is_served<T: Clone>(
    settings: &mut Settings,
    key: &str,
    variable: &'static str,
    value: Option<T>,
    of: fn(&mut ListenerConfig) -> &mut Option<T>,
) {
    if value.is_none() {
        return;
    }
    for (index, listener) in settings.config.listeners.iter_mut().enumerate() {
        if speaks_mcp(listener.profile) {
            of(listener).clone_from(&value);
            let key = format!("listeners[{index}].{key}");
            settings.said_by.insert(key, variable.to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bytesize::ByteSize;
    use tooldock_base::secret::Secret;
    use tooldock_process::repositories::GitScheme;
    use tooldock_upstream::protocol::ProtocolVersion;

    use tooldock_base::yaml;

    use super::*;
    use crate::config::{Config, LogLevel};

    fn apply(role: Role, variables: &[(&str, &str)]) -> Result<Settings, ConfigError> {
        let variables = variables
            .iter()
            .map(|(name, value)| (name.into(), value.into()));
        let mut settings = Settings::new(Config::default(), role);
        Environment::from_vars(variables).apply(&mut settings)?;
        Ok(settings)
    }

    #[test]
    fn a_wrong_value_names_its_variable() {
        let wrong = [
            ("SERVER_MODE", "everything"),
            ("OPENAPI_PORT", "0"),
            ("MCP_PORT", "x"),
            ("TOOL_VAULT_PORT", "70000"),
            ("GLOBAL_VIEW", "perhaps"),
            ("VAULT_AUTH", "none"),
            ("VAULT_NAMESPACE", "Bad Name"),
            ("VAULT_REST", "2"),
            ("VAULT_RAW_RESULT", "2"),
            ("MCP_PROTOCOL_VERSION", "1.0"),
            ("BEARER_TOKEN", "two words"),
            ("MANAGER_INTERNAL_TOKEN", "tökén"),
            ("SESSION_KEY", "thirty-one characters, one less"),
            ("CORE_PORT", "0"),
            ("CORE_URL", "ftp://core:8000"),
            ("MANAGER_PORT", "65536"),
            ("PORT", "http"),
            ("LOG_LEVEL", "loud"),
            ("GIT_ALLOWED_SCHEMES", "https,ext"),
            ("LOG_RETENTION_DAYS", "a month"),
            ("INTERNAL_ALLOWED_CIDRS", "10.0.0.0/33"),
            ("TRUSTED_PROXIES", "proxy"),
            ("MAX_BODY_BYTES", "4MX"),
            ("MAX_RESULT_BYTES", "-1"),
            ("TOOL_CALL_TIMEOUT_SECONDS", "0"),
            ("NAMESPACE_MAX_CONCURRENCY", "eight"),
            ("MCP_SESSION_TTL_HOURS", "abc"),
            ("MCP_PROTOCOL_VERSIONS", "1999-01-01"),
            ("MCP_SUPPORTED_VERSIONS", "2025-11-25,1999-01-01"),
            ("MCP_BATCH", "yes"),
            ("MCP_ACCEPT_POLICY", "loose"),
            ("SESSION_POLICY", "none"),
            ("REQUIRE_INITIALIZED", "maybe"),
            ("DEPS_SYNC_TIMEOUT_SECONDS", "inf"),
            ("GRACE_SECONDS", "NaN"),
            ("ENABLE_LEGACY_MCP", "maybe"),
            ("ALLOW_INSECURE_SECRETS", "perhaps"),
            ("DOCKER_CONTAINER_NAME", "two words"),
            ("ENABLE_FS_WATCHER", "perhaps"),
            ("FS_WATCHER_DEBOUNCE_MS", "1500ms"),
            ("FS_WATCHER_POLL_MS", "often"),
            ("TOOLDOCK_DEBUG", "*"),
            ("WEB_PORT", "0"),
            ("ADMIN_USERNAME", "a:b"),
        ];
        for (name, value) in wrong {
            let error = apply(Role::All, &[(name, value)])
                .expect_err(name)
                .to_string();
            assert!(error.starts_with(&format!("{name}: ")), "{error}");
            assert!(!error.contains('\n'), "{error}");
        }
        let tested = wrong.map(|(name, _)| name);
        let any_text = [
            "GIT_PRIVATE_HOSTS",
            "REPLICA_ID",
            "REPLICA_PEERS",
            "VAULT_TOOLS_DIR",
            "VAULT_UI_DIR",
            "MCP_REGISTRY_URL",
            "CORS_ORIGINS",
            "DATA_DIR",
            "SECRETS_KEY",
            "SECRETS_KEY_NEW",
            "HOST_DATA_DIR",
            "OUBLIETTE_SOCKET",
        ];
        for variable in VARIABLES {
            assert!(
                tested.contains(&variable.name) || any_text.contains(&variable.name),
                "{}",
                variable.name
            );
        }
    }

    #[test]
    fn a_refused_token_is_not_shown() {
        for name in ["BEARER_TOKEN", "SESSION_KEY"] {
            let error = apply(Role::All, &[(name, "hush hush")])
                .expect_err(name)
                .to_string();
            assert!(!error.contains("hush"), "{error}");
        }
    }

    #[test]
    fn every_variable_sets_its_key() {
        let s = apply(
            Role::All,
            &[
                ("LOG_LEVEL", "DEBUG"),
                ("LOG_RETENTION_DAYS", "7"),
                ("GIT_ALLOWED_SCHEMES", "https, SSH"),
                ("GIT_PRIVATE_HOSTS", "git.corp.example"),
                ("MCP_REGISTRY_URL", "http://registry"),
                ("CORS_ORIGINS", "https://a.example, https://b.example"),
                ("INTERNAL_ALLOWED_CIDRS", "10.0.0.0/8"),
                ("TRUSTED_PROXIES", "10.1.0.0/16,fd00::/8"),
                ("MAX_BODY_BYTES", "1048576"),
                ("MAX_RESULT_BYTES", "2MiB"),
                ("TOOL_CALL_TIMEOUT_SECONDS", "2.5"),
                ("NAMESPACE_MAX_CONCURRENCY", "3"),
                ("MCP_SESSION_TTL_HOURS", "0.5"),
                ("DEPS_SYNC_TIMEOUT_SECONDS", "60"),
                ("GRACE_SECONDS", "5"),
                ("DATA_DIR", "/data"),
                ("BEARER_TOKEN", "b"),
                ("MANAGER_INTERNAL_TOKEN", "m"),
                ("SESSION_KEY", "a sentence of more than 32 letters"),
                ("ENABLE_LEGACY_MCP", "false"),
            ],
        )
        .expect("valid");
        let c = &s.config;
        assert_eq!(
            s.config.builder.git_schemes,
            [GitScheme::Https, GitScheme::Ssh]
        );
        assert_eq!(s.config.builder.private_hosts, ["git.corp.example"]);
        assert_eq!(s.config.builder.registry, "http://registry");
        assert_eq!(c.observability.log.level, LogLevel::Debug);
        assert_eq!(c.observability.audit.retention_days, 7);
        assert_eq!(c.admission.origins.len(), 2);
        assert_eq!(c.admission.internal_cidrs.len(), 1);
        assert_eq!(c.admission.trusted_proxies.len(), 2);
        assert_eq!(c.admission.limits.body, ByteSize::mib(1));
        assert_eq!(c.namespaces.defaults.max_result, ByteSize::mib(2));
        assert_eq!(c.namespaces.defaults.timeout, Duration::from_millis(2500));
        assert_eq!(c.namespaces.defaults.max_concurrency.local(), 3);
        assert_eq!(c.sessions.ttl, Duration::from_secs(1800));
        assert_eq!(c.workers.sync_timeout, Duration::from_secs(60));
        assert_eq!(c.replicas.grace, Duration::from_secs(5));
        assert_eq!(c.data_dir, PathBuf::from("/data"));
        assert_eq!(s.bearer.as_ref().map(Secret::expose), Some("b"));
        assert_eq!(s.manager_token.as_ref().map(Secret::expose), Some("m"));
        assert_eq!(
            s.session_key.as_ref().map(Secret::expose),
            Some("a sentence of more than 32 letters")
        );
        assert!(!s.legacy_sse);
    }

    #[test]
    fn port_wins_over_core_port() {
        let s = apply(
            Role::Core,
            &[
                ("CORE_PORT", "9000"),
                ("PORT", "9001"),
                ("MANAGER_PORT", "9002"),
            ],
        )
        .expect("valid");
        let ports: Vec<u16> = s
            .config
            .listeners
            .iter()
            .filter_map(|l| l.address.port())
            .collect();
        assert_eq!(ports, [9001, 9002, 9090]);
    }

    #[test]
    fn a_listeners_own_variable_wins_over_that_of_its_profile() {
        let ports = |variables: &[(&str, &str)]| {
            let s = apply(Role::All, variables).expect("valid");
            let ports = s.config.listeners.iter().filter_map(|l| l.address.port());
            (ports.collect::<Vec<_>>(), s.warnings)
        };
        let (moved, warnings) = ports(&[
            ("TOOLDOCK_METRICS_PORT", "9191"),
            ("TOOLDOCK_CORE_PORT", "9000"),
            ("PORT", "9001"),
        ]);
        assert_eq!((moved, warnings), (vec![9000, 8001, 9191], Vec::new()));
        // The value that Kubernetes sets for a service of that name is no port.
        let (moved, warnings) = ports(&[("TOOLDOCK_METRICS_PORT", "tcp://10.0.0.1:9090")]);
        assert_eq!(moved, [8000, 8001, 9090]);
        assert!(
            warnings[0].starts_with("TOOLDOCK_METRICS_PORT: "),
            "{warnings:?}"
        );
        for wrong in ["0", "http", "70000"] {
            let error = apply(Role::All, &[("TOOLDOCK_METRICS_PORT", wrong)]).expect_err(wrong);
            assert!(
                error.to_string().starts_with("TOOLDOCK_METRICS_PORT: "),
                "{error}"
            );
        }
    }

    #[test]
    fn a_variable_that_two_listeners_share_is_refused() {
        let mut settings = Settings::new(Config::default(), Role::All);
        settings.config.listeners[0].name = "my-tools".to_owned();
        settings.config.listeners[2].name = "my.tools".to_owned();
        let variable = [("TOOLDOCK_MY_TOOLS_PORT".into(), "9000".into())];
        let error = Environment::from_vars(variable)
            .apply(&mut settings)
            .expect_err("whose?")
            .to_string();
        assert!(error.contains("my-tools and my.tools"), "{error}");
    }

    #[test]
    fn a_secret_comes_from_a_file_without_its_last_newline() {
        let folder = tempfile::tempdir().expect("directory");
        let file = folder.path().join("secret");
        let path = file.to_str().expect("text");
        for (written, expected) in [("hush", "hush"), ("hush\n", "hush"), ("hush\r\n", "hush")] {
            std::fs::write(&file, written).expect("write");
            let s = apply(
                Role::All,
                &[
                    ("BEARER_TOKEN_FILE", path),
                    ("MANAGER_INTERNAL_TOKEN_FILE", path),
                ],
            )
            .expect("valid");
            assert_eq!(s.bearer.as_ref().map(Secret::expose), Some(expected));
            assert_eq!(s.manager_token.as_ref().map(Secret::expose), Some(expected));
        }
        std::fs::write(&file, "a sentence of more than 32 letters\n").expect("write");
        let s = apply(Role::All, &[("SESSION_KEY_FILE", path)]).expect("valid");
        assert_eq!(
            s.session_key.as_ref().map(Secret::expose),
            Some("a sentence of more than 32 letters")
        );
    }

    #[test]
    fn a_file_without_a_secret_is_one_line_that_names_variable_and_file_and_not_what_it_holds() {
        let folder = tempfile::tempdir().expect("directory");
        let at = |name: &str| folder.path().join(name).to_str().expect("text").to_owned();
        std::fs::write(at("empty"), "\n").expect("write");
        std::fs::write(at("words"), "hush hush").expect("write");
        std::fs::write(at("two"), "hush\n\n").expect("write");
        std::fs::write(at("bytes"), b"hush\xff").expect("write");
        std::fs::write(at("large"), "hush".repeat(20_000)).expect("write");
        for (name, reason) in [
            ("missing", "No such file"),
            ("", "not a regular file"),
            ("empty", "is empty"),
            ("words", ""),
            ("two", ""),
            ("bytes", "UTF-8"),
            ("large", "larger than 64 KiB"),
        ] {
            let file = at(name);
            let error = apply(Role::All, &[("BEARER_TOKEN_FILE", &file)])
                .expect_err(name)
                .to_string();
            let begins = format!("BEARER_TOKEN_FILE: {file}: ");
            assert!(
                error.starts_with(&begins) && error.contains(reason),
                "{error}"
            );
            assert!(!error.contains("hush") && !error.contains('\n'), "{error}");
        }
        let error = apply(
            Role::All,
            &[("SESSION_KEY", "x"), ("SESSION_KEY_FILE", &at("words"))],
        );
        let error = error.expect_err("both").to_string();
        assert!(
            error.starts_with("SESSION_KEY_FILE: SESSION_KEY is set, too"),
            "{error}"
        );
    }

    #[test]
    fn supported_versions_reach_the_listeners_that_negotiate() {
        let s = apply(Role::All, &[("MCP_SUPPORTED_VERSIONS", "2025-06-18")]).expect("valid");
        let said: Vec<bool> = s
            .config
            .listeners
            .iter()
            .map(|l| l.versions.is_some())
            .collect();
        assert_eq!(said, [true, true, false]);
        assert!(apply(Role::All, &[("MCP_SUPPORTED_VERSIONS", " , ")]).is_err());
    }

    #[test]
    fn the_other_name_of_supported_versions_counts_where_it_is_the_only_one() {
        let versions = |variables: &[(&str, &str)]| {
            let settings = apply(Role::All, variables).expect("valid");
            settings.config.listeners[0].versions.clone()
        };
        let other = ("MCP_PROTOCOL_VERSIONS", "2025-03-26");
        let alone = versions(&[other]);
        assert_eq!(alone, Some(vec![ProtocolVersion::V2025_03_26]));
        let both = versions(&[other, ("MCP_SUPPORTED_VERSIONS", "2025-06-18")]);
        assert_eq!(both, Some(vec![ProtocolVersion::V2025_06_18]));
    }

    #[test]
    fn policies_reach_the_listeners_that_speak_mcp_and_auto_leaves_them_as_they_are() {
        let policies = |values: [&str; 4]| {
            let names = [
                "MCP_BATCH",
                "MCP_ACCEPT_POLICY",
                "SESSION_POLICY",
                "REQUIRE_INITIALIZED",
            ];
            let variables: Vec<_> = names.into_iter().zip(values).collect();
            apply(Role::All, &variables).expect("valid")
        };
        let s = policies(["reject", "Lenient", "optional", "off"]);
        let [core, manager, metrics] = &s.config.listeners[..] else {
            panic!("three listeners");
        };
        for listener in [core, manager] {
            assert_eq!(listener.batch, Some(BatchRule::Reject));
            assert_eq!(listener.accept, Some(AcceptRule::Lenient));
            assert_eq!(listener.session, Some(SessionRule::Optional));
        }
        assert_eq!(
            (metrics.batch, metrics.accept, metrics.session),
            (None, None, None)
        );
        assert_eq!(s.require_initialized, Some(false));
        let s = policies(["accept", "strict", "required", "on"]);
        assert_eq!(s.config.listeners[0].session, Some(SessionRule::Required));
        let auto = policies(["auto"; 4]);
        assert_eq!(
            (auto.config, auto.require_initialized),
            (Config::default(), None)
        );
    }

    #[test]
    fn the_socket_of_the_relay_may_be_named() {
        let s = apply(Role::All, &[("OUBLIETTE_SOCKET", "/run/relay.sock")]).expect("valid");
        let socket = s.config.relay.socket();
        assert_eq!(socket, Some(Path::new("/run/relay.sock")));
        assert_eq!(s.said_by["relay.socket"], "OUBLIETTE_SOCKET");
        assert!(s.warnings.is_empty(), "{:?}", s.warnings);
        let s = apply(Role::All, &[("OUBLIETTE_SOCKET", "off")]).expect("valid");
        assert_eq!(s.config.relay.socket(), None);
    }

    #[test]
    fn empty_is_unset_and_unknown_is_not_looked_at() {
        let s = apply(Role::All, &[("LOG_LEVEL", ""), ("PORT", ""), ("TERM", "x")]).expect("valid");
        assert_eq!(s.config, Config::default());
    }

    #[test]
    fn the_values_of_the_example_environment_are_accepted() {
        for legacy in ["1", "0", "true", "FALSE", "yes", "no", "on", "off"] {
            let variables = [
                ("ENABLE_LEGACY_MCP", legacy),
                ("ENABLE_FS_WATCHER", "false"),
                ("FS_WATCHER_DEBOUNCE_MS", "1500"),
                ("REPLICA_ID", "gateway-0"),
                ("REPLICA_PEERS", "auto"),
            ];
            assert!(apply(Role::All, &variables).is_ok(), "{legacy}");
        }
    }

    #[test]
    fn debug_output_shows_no_value() {
        let all = ["BEARER_TOKEN", "BEARER_TOKEN_FILE", "TOOLDOCK_CORE_PORT"];
        let environment = Environment::from_vars(all.map(|name| (name.into(), "hush".into())));
        let shown = format!("{environment:?}");
        assert!(
            shown.contains("BEARER_TOKEN") && !shown.contains("hush"),
            "{shown}"
        );
    }

    #[test]
    fn every_variable_names_a_key_that_exists_or_says_why_not() {
        let tree = yaml::to_value(Config::default()).expect("yaml");
        for variable in VARIABLES.iter().filter(|v| !v.sets.contains(' ')) {
            let found = variable.sets.split('.').try_fold(&tree, |tree, key| {
                match key.strip_suffix("[]") {
                    Some(list) => tree.get(list)?.get(0),
                    None => tree.get(key),
                }
            });
            // A listener says its switches only where they are not its profile's.
            let switches = ["versions", "default_version", "batch", "accept", "session"];
            let switch = variable.sets.strip_prefix("listeners[].");
            let found = found.or(switch.filter(|it| switches.contains(it)).and(Some(&tree)));
            assert!(found.is_some(), "{}: {}", variable.name, variable.sets);
        }
    }
}
