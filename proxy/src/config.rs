//! The configuration: every top-level key of `conf/tooldock.yaml`, and the layers that decide its value.
//!
//! ```text
//! default < file < $DATA/config.yaml < environment < command line      document, data_file, environment
//!                  (takes away only)
//!                          │
//!                       Settings ── unsupported ── validate ── tokens ──▶ Effective
//! ```
//!
//! The keys of other crates (`admission`, `namespaces`, `sessions`, `workers`, audit) are defined there; this module combines
//! them. Loading is a function of files and a captured environment without side effects, so a reload is the same call again.
//! Other modules put the keys into effect.

mod access_log;
mod address;
mod bounds;
mod client_secret;
mod core_url;
mod data_file;
pub(crate) mod dev_tokens;
mod document;
mod environment;
mod error;
mod faults;
mod keys;
mod leaves;
mod listener;
mod live;
mod log_pattern;
mod observability;
mod off;
mod otlp;
mod positions;
mod process;
mod profile;
mod relay;
mod replica_tls;
mod replicas;
mod secrets;
mod tls;
mod tokens;
mod unsupported;
mod validate;
mod vault;
mod watcher;
mod web;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tooldock_base::config::{NamespacesConfig, WorkersConfig};
use tooldock_base::scope::ScopeTable;
use tooldock_base::secret::Secret;
use tooldock_base::yaml::Value;
use tooldock_filters::config::AdmissionConfig;
use tooldock_process::repositories::BuilderConfig;
use tooldock_sessions::session::config::{SessionsConfig, StoreConfig};
use tooldock_workers::aggregate::AggregatesConfig;
use tooldock_workers::servers::ServersConfig;

pub(crate) use crate::header_edits::{HeaderEditsConfig, HeadersConfig};

pub(crate) use self::access_log::{AccessLogConfig, AccessLogFormat};
pub(crate) use self::address::{ListenAddress, SocketMode};
pub(crate) use self::client_secret::client_password;
pub(crate) use self::core_url::{CoreUrl, bare as bare_host};
use self::data_file::{DataFile, Layers};
pub(crate) use self::environment::Environment;
use self::environment::{SaidBy, port_variable_of};
pub(crate) use self::error::ConfigError;
pub(crate) use self::faults::{LeftOut, all as load_or_all_faults};
pub(crate) use self::keys::KeysConfig;
pub(crate) use self::leaves::leaves;
pub(crate) use self::listener::{ListenerConfig, NamespaceRule, ProfileName};
pub(crate) use self::log_pattern::{LogField, LogPattern};
pub(crate) use self::observability::{LogConfig, LogFormat, LogLevel, ObservabilityConfig};
pub(crate) use self::otlp::{OtlpProtocol, OtlpSettings, OtlpSignal, OtlpTls, at as otlp_key};
pub(crate) use self::process::Threads;
pub(crate) use self::profile::ProfileSpec;
pub(crate) use self::relay::RelayConfig;
pub(crate) use self::replica_tls::{ReplicaCertificate, ReplicaTls};
use self::replicas::ReplicasConfig;
pub(crate) use self::replicas::{GRACE_MAX, Peers};
pub(crate) use self::secrets::{KEY as SECRETS_KEY, SecretsSettings};
pub(crate) use self::tls::{ClientAuth, KeyPairFiles, TlsConfig, TlsVersion};
pub(crate) use self::tokens::{GeneratedMarks, GeneratedTokens};
pub(crate) use self::validate::refusal_of_alias;
use self::vault::VaultConfig;
pub(crate) use self::watcher::WatcherConfig;
pub(crate) use self::web::WebSettings;
pub(crate) use crate::cli::Role;

/// The file read when none is named, if it exists.
pub(crate) const DEFAULT_FILE: &str = "conf/tooldock.yaml";

/// Every key of the configuration file. `Default` is the reference for their defaults.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Config {
    /// The addresses on which the gateway listens.
    pub(crate) listeners: Vec<ListenerConfig>,
    /// The directory of namespaces, environments, sockets and logs.
    pub(crate) data_dir: PathBuf,
    /// Threads of the proxy service.
    pub(crate) threads: Threads,
    /// True when the proxy's threads take tasks from each other.
    pub(crate) work_stealing: bool,
    /// Rules and limits for clients.
    pub(crate) admission: AdmissionConfig,
    /// Limits of namespaces.
    pub(crate) namespaces: NamespacesConfig,
    /// MCP sessions.
    pub(crate) sessions: SessionsConfig,
    /// Python workers.
    pub(crate) workers: WorkersConfig,
    /// Repositories and registries that management tools read.
    pub(crate) builder: BuilderConfig,
    /// MCP servers that are not Python workers.
    pub(crate) upstreams: ServersConfig,
    /// Reloads when files change, without a request.
    pub(crate) watcher: WatcherConfig,
    /// Aggregates.
    pub(crate) toolman: AggregatesConfig,
    /// Settings of the listeners of the profile `vault`.
    pub(crate) vault: VaultConfig,
    /// Tools for containers through a socket, and the scopes of credentials.
    pub(crate) relay: RelayConfig,
    /// API keys.
    pub(crate) keys: KeysConfig,
    /// Other replicas of this gateway.
    pub(crate) replicas: ReplicasConfig,
    /// Logs, audit, traces.
    pub(crate) observability: ObservabilityConfig,
}

impl Default for Config {
    fn default() -> Self {
        let loopback = |port| SocketAddr::from(([127, 0, 0, 1], port)).into();
        let listener = |name, port, profile| ListenerConfig::new(name, loopback(port), profile);
        Self {
            listeners: vec![
                listener("core", 8000, ProfileName::Core),
                listener("manager", 8001, ProfileName::Manager),
                listener("metrics", 9090, ProfileName::Metrics),
            ],
            data_dir: "./tooldock_data".into(),
            threads: Threads::Auto,
            work_stealing: false,
            admission: AdmissionConfig::default(),
            namespaces: NamespacesConfig::default(),
            sessions: SessionsConfig::default(),
            workers: WorkersConfig::default(),
            builder: BuilderConfig::default(),
            upstreams: ServersConfig::default(),
            watcher: WatcherConfig::default(),
            toolman: AggregatesConfig::default(),
            vault: VaultConfig::default(),
            relay: RelayConfig::default(),
            keys: KeysConfig::default(),
            replicas: ReplicasConfig::default(),
            observability: ObservabilityConfig::default(),
        }
    }
}

impl Config {
    /// The listeners a role opens, with their index in `listeners`.
    pub(crate) fn served_listeners(
        &self,
        role: Role,
    ) -> impl Iterator<Item = (usize, &ListenerConfig)> {
        self.listeners
            .iter()
            .enumerate()
            .filter(move |(_, listener)| match role {
                Role::All => true,
                Role::Core => listener.profile != ProfileName::Manager,
                Role::Manager => matches!(
                    listener.profile,
                    ProfileName::Manager | ProfileName::Metrics
                ),
            })
    }

    /// The address at which other replicas reach a process of this role, and the address it binds for them; `None`
    /// without replicas.
    pub(crate) fn replica_address(&self, role: Role) -> Option<(&str, SocketAddr)> {
        let shares_sessions = self.sessions.store != StoreConfig::Memory;
        let address = self.replicas.address();
        address.filter(|_| shares_sessions && role != Role::Manager)
    }

    /// The addresses that the configuration has a process of this role bind, with their keys.
    pub(crate) fn bound_addresses(&self, role: Role) -> Vec<(String, ListenAddress)> {
        let listeners = self.served_listeners(role);
        let listeners = listeners
            .map(|(index, it)| (format!("listeners[{index}].address"), it.address.clone()));
        let relay = self.relay.socket().filter(|_| role != Role::Manager);
        let relay = relay.map(|path| {
            (
                "relay.socket".to_owned(),
                ListenAddress::Unix(path.to_owned()),
            )
        });
        let replicas = self.replica_address(role);
        let replicas =
            replicas.map(|(_, bound)| ("replicas.address".to_owned(), ListenAddress::Tcp(bound)));
        listeners.chain(relay).chain(replicas).collect()
    }
}

/// The purpose for which a configuration is loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// The gateway is to run: a missing token is an error.
    Serve,
    /// The configuration is checked: a missing token is a warning.
    Check,
    /// A command runs next to a gateway: a missing token is a warning, and so is an unusable `$DATA/config.yaml`.
    Command,
}

/// The sources of the configuration.
#[derive(Debug, Clone)]
pub(crate) struct LoadOptions {
    /// The file named on the command line.
    pub(crate) file: Option<PathBuf>,
    /// The half of the gateway that this process runs.
    pub(crate) role: Role,
    /// True for a trial run.
    pub(crate) dev: bool,
    /// The purpose of loading.
    pub(crate) purpose: Purpose,
    /// The variables of the process, captured at start.
    pub(crate) environment: Environment,
    /// Tokens for processes that have none configured. Generated once, so that a reload keeps them.
    pub(crate) generated: GeneratedTokens,
    /// Keys of the file that are ignored. Only used by a check that looks for further faults; otherwise empty.
    pub(crate) left_out: LeftOut,
}

impl LoadOptions {
    /// The configuration file: the file named on the command line, or the default file if it exists.
    fn source(&self) -> Option<PathBuf> {
        match &self.file {
            Some(file) => Some(file.clone()),
            None => Some(PathBuf::from(DEFAULT_FILE)).filter(|file| file.exists()),
        }
    }
}

/// The configuration in force, checked.
#[derive(Debug, Clone)]
pub(crate) struct Effective {
    /// All keys.
    pub(crate) config: Config,
    /// The half of the gateway that this process runs.
    pub(crate) role: Role,
    /// True for a trial run.
    pub(crate) dev: bool,
    /// The file that was read, if any.
    pub(crate) source: Option<PathBuf>,
    /// The unrestricted bearer token, if there is one.
    pub(crate) bearer: Option<Secret>,
    /// The token that `X-Manager-Token` must contain.
    pub(crate) manager_token: Secret,
    /// The key that seals session ids; `None` if the operator has set none.
    pub(crate) session_key: Option<Secret>,
    /// The key of the secrets store, or none.
    pub(crate) secrets: SecretsSettings,
    /// The address at which a manager in a separate process reaches the core.
    pub(crate) core_url: CoreUrl,
    /// Settings for the web UI alone.
    pub(crate) web: WebSettings,
    /// True when the transport of MCP 2024-11-05 is served.
    pub(crate) legacy_sse: bool,
    /// `Some` if the operator decided for all listeners whether tools wait for `notifications/initialized`; `None`
    /// leaves it to each listener's profile.
    pub(crate) require_initialized: Option<bool>,
    /// True for each token that this process has generated.
    pub(crate) generated: GeneratedMarks,
    /// The data directory, absolute.
    pub(crate) data_dir: PathBuf,
    /// Warnings for the operator, a sentence each.
    pub(crate) warnings: Vec<String>,
    /// Keys that have changed since the start of this process and take effect only at the next start.
    pub(crate) waiting: Vec<&'static str>,
    data_file: DataFile,
    said_by: SaidBy,
    options: LoadOptions,
    /// True if the configuration file sets a key.
    sets_keys: bool,
    /// The keys that the configuration file sets.
    file_keys: BTreeSet<String>,
}

impl Effective {
    /// Loads the configuration again from its sources. Keys that cannot change in a running process keep their values, and are
    /// named in the log.
    ///
    /// # Errors
    ///
    /// As [`load`]. A file that was read before must still exist: falling back to the defaults would open access that the file
    /// closed. The new rules must also be safe on the sockets that stay open.
    ///
    /// An unusable `$DATA/config.yaml` is no error: its last used content remains in force.
    pub(crate) fn reload(&self) -> Result<Self, ConfigError> {
        let mut next = self.read_again()?;
        next.waiting = live::keep_unreloadable(&self.config, &mut next.config);
        if next.session_key != self.session_key {
            next.waiting.push("SESSION_KEY");
            next.session_key.clone_from(&self.session_key);
        }
        for key in &next.waiting {
            tracing::warn!(
                key,
                "{key} has changed, but takes effect only at the next start"
            );
        }
        next.options = self.options.clone();
        Ok(next)
    }

    /// The configuration that a reload would put in force, and the current content of its sources: they differ in the keys that
    /// cannot change in a running process. Changes and logs nothing.
    ///
    /// # Errors
    ///
    /// As [`Self::reload`].
    pub(crate) fn preview(&self) -> Result<(Self, Config), ConfigError> {
        let mut next = self.read_again()?;
        let written = next.config.clone();
        live::keep_unreloadable(&self.config, &mut next.config);
        Ok((next, written))
    }

    fn read_again(&self) -> Result<Self, ConfigError> {
        let file = self.source.clone().or_else(|| self.options.file.clone());
        let options = LoadOptions {
            file,
            ..self.options.clone()
        };
        load_after(&options, Some(self))
    }

    /// The source of a key's value: the name of a variable, the path of a file, or `default`.
    pub(crate) fn source_of(&self, key: &str) -> String {
        let is_about = |set: &str| leaves::is_within(key, set) || leaves::is_within(set, key);
        if let Some((_, variable)) = self.said_by.iter().find(|(set, _)| is_about(set)) {
            return variable.clone();
        }
        if self.data_file.keys().iter().any(|set| is_about(set)) {
            return document::data_file(&self.data_dir).display().to_string();
        }
        match &self.source {
            Some(file) if self.file_keys.iter().any(|set| is_about(set)) => {
                file.display().to_string()
            }
            _ => "default".to_owned(),
        }
    }

    /// The address at which other replicas reach this process, and the address it binds for them; `None` without
    /// replicas.
    pub(crate) fn replica_address(&self) -> Option<(&str, SocketAddr)> {
        self.config.replica_address(self.role)
    }

    /// TLS between this process and other replicas; `None` without replicas, or without TLS.
    pub(crate) fn replica_tls(&self) -> Option<TlsConfig> {
        self.replica_address()?;
        self.config.replicas.tls.listener()
    }

    /// The certificate of this replica as other replicas check it; `None` without replicas, or without TLS.
    pub(crate) fn replica_certificate(&self) -> Option<ReplicaCertificate<'_>> {
        let (address, _) = self.replica_address()?;
        self.config.replicas.tls.certificate(address)
    }

    /// The name of this replica if it shares its data directory, and the sessions stored there, with other replicas; otherwise
    /// `None`.
    pub(crate) fn shared_as(&self) -> Option<&str> {
        let shares = self.config.sessions.store == StoreConfig::Disk && self.role != Role::Manager;
        self.config.replicas.name().filter(|_| shares)
    }

    /// The reason why the present content of `$DATA/config.yaml` is not in force; `None` if it is.
    pub(crate) fn data_file_problem(&self) -> Option<&str> {
        self.data_file.problem.as_deref()
    }

    /// The purpose of loading.
    pub(crate) fn purpose(&self) -> Purpose {
        self.options.purpose
    }

    /// Replaces the generated bearer token by the one stored in the data directory. A token of the operator is not replaced.
    pub(crate) fn keep_bearer(&mut self, kept: Secret) {
        if self.generated.bearer {
            self.bearer = Some(kept.clone());
            self.options.generated.bearer = kept;
        }
    }

    /// Replaces the generated manager token by the one stored in the data directory. A token of the operator is not replaced.
    pub(crate) fn keep_manager(&mut self, kept: Secret) {
        if self.generated.manager {
            self.manager_token = kept.clone();
            self.options.generated.manager = kept;
        }
    }

    /// The key or variable that sets the port of a listener, for the message about an address that is in use.
    pub(crate) fn port_is_set_by(&self, index: usize, listener: &ListenerConfig) -> String {
        let key = format!("listeners[{index}].address");
        if listener.address.port().is_none() {
            return format!("{key} moves it");
        }
        if let Some(variable) = self.said_by.get(&key) {
            return format!("{variable} sets this port");
        }
        let variable = port_variable_of(&listener.name);
        match &self.source {
            Some(file) => format!("{variable}, or {key} in {}, moves it", file.display()),
            None => format!("{variable} moves it, or {key} in a file that -c names"),
        }
    }

    /// The listeners this process opens, with their index in `listeners`.
    pub(crate) fn served_listeners(&self) -> impl Iterator<Item = (usize, &ListenerConfig)> {
        self.config.served_listeners(self.role)
    }

    /// The file of API keys.
    pub(crate) fn keys_file(&self) -> PathBuf {
        self.config.keys.path(&self.data_dir)
    }

    /// The scopes that keys and tokens may have.
    pub(crate) fn scopes(&self) -> ScopeTable {
        // Loading has refused invalid scopes.
        ScopeTable::new(&self.config.relay.scopes).unwrap_or_default()
    }

    /// Returns true if this process serves Tool Vault.
    pub(crate) fn serves_vault(&self) -> bool {
        let mut listeners = self.served_listeners();
        listeners.any(|(_, listener)| listener.profile == ProfileName::Vault)
    }

    /// Returns true if this process serves the management tools.
    pub(crate) fn serves_management(&self) -> bool {
        let mut listeners = self.served_listeners();
        listeners.any(|(_, listener)| {
            matches!(listener.profile, ProfileName::Manager | ProfileName::V1Web)
        })
    }
}

/// The settings of all layers together, before they are checked.
#[derive(Debug)]
struct Settings {
    config: Config,
    role: Role,
    bearer: Option<Secret>,
    manager_token: Option<Secret>,
    session_key: Option<Secret>,
    secrets: SecretsSettings,
    core_url: CoreUrl,
    web: WebSettings,
    legacy_sse: bool,
    require_initialized: Option<bool>,
    said_by: SaidBy,
    warnings: Vec<String>,
}

impl Settings {
    /// The settings of the files, without any environment variable.
    fn new(config: Config, role: Role) -> Self {
        Self {
            config,
            role,
            bearer: None,
            manager_token: None,
            session_key: None,
            secrets: SecretsSettings::default(),
            core_url: CoreUrl::default(),
            web: WebSettings::default(),
            legacy_sse: true,
            require_initialized: None,
            said_by: SaidBy::new(),
            warnings: Vec::new(),
        }
    }
}

/// The configuration that `serve` would use, for commands that run next to a gateway. `data_dir` replaces the environment's
/// data directory.
///
/// # Errors
///
/// A message about the first fault; see [`load`].
pub(crate) fn load_for_command(
    file: Option<&Path>,
    data_dir: Option<&Path>,
) -> Result<Effective, String> {
    let environment = Environment::of_process();
    let options = LoadOptions {
        file: file.map(Path::to_owned),
        role: Role::All,
        dev: false,
        purpose: Purpose::Command,
        environment: match data_dir {
            Some(data) => environment.with_data_dir(data),
            None => environment,
        },
        generated: GeneratedTokens::new().map_err(|error| error.to_string())?,
        left_out: LeftOut::default(),
    };
    let mut effective = load(&options).map_err(|error| error.to_string())?;
    if let Some(problem) = effective.data_file_problem() {
        eprintln!("tooldock: {problem}");
    }
    let found = effective.secrets.find_dev_key(&effective.data_dir);
    found.map_err(|error| error.to_string())?;
    Ok(effective)
}

/// Checks a text before it is written as a configuration file, without environment variables and without the files that the
/// configuration names.
///
/// # Errors
///
/// The first key that is wrong.
pub(crate) fn check_text(text: &str) -> Result<(), ConfigError> {
    let config = document::parse_text(text)?;
    unsupported::refuse(&config)?;
    validate::check(&config, Role::All, false)
}

/// Reads all layers, checks the result and settles the tokens.
///
/// # Errors
///
/// The first fault, with its file, key or variable.
pub(crate) fn load(options: &LoadOptions) -> Result<Effective, ConfigError> {
    load_after(options, None)
}

/// Loads for a process that already runs with the configuration `before`, if given.
fn load_after(options: &LoadOptions, before: Option<&Effective>) -> Result<Effective, ConfigError> {
    let options = &LoadOptions {
        role: options.environment.role(options.role)?,
        ..options.clone()
    };
    let source = options.source();
    let (config, tree) = document::read_file(source.as_deref(), &options.left_out)?;
    let sets_keys = tree != Value::Null;
    let file_keys = leaves(&tree).into_iter().map(|(key, _)| key).collect();
    if let (Some(file), false) = (&source, sets_keys)
        && before.is_some_and(|it| it.sets_keys)
    {
        let reason =
            "is empty, and was not before: it may have been cut short. {} stands for the defaults"
                .to_owned();
        return Err(ConfigError::File {
            file: file.clone(),
            reason,
        });
    }
    // The data directory decides which second file is read, so the data directory is determined first.
    let configured = options
        .environment
        .data_dir()?
        .unwrap_or_else(|| config.data_dir.clone());
    let data_dir = std::path::absolute(&configured).map_err(|error| {
        ConfigError::key("data_dir", format!("{}: {error}", configured.display()))
    })?;
    let data_dir = before.map_or(data_dir, |it| it.data_dir.clone());
    let layers = Layers {
        options,
        operator: config,
        tree,
        before,
    };
    let (mut settings, data_file) = layers.settle(&data_dir)?;
    let mut warnings = std::mem::take(&mut settings.warnings);
    warnings.extend(validate::warnings(&settings.config, options.role));
    let tokens = tokens::settle(&settings, options, &data_dir, &mut warnings)?;
    let circumstances = (options.role, options.dev, options.purpose);
    settings
        .secrets
        .settle(&data_dir, circumstances, &mut warnings)?;
    Ok(Effective {
        config: settings.config,
        role: options.role,
        dev: options.dev,
        source,
        bearer: tokens.bearer,
        manager_token: tokens.manager,
        session_key: settings.session_key,
        secrets: settings.secrets,
        core_url: settings.core_url,
        web: settings.web,
        legacy_sse: settings.legacy_sse,
        require_initialized: settings.require_initialized,
        generated: tokens.generated,
        data_dir,
        warnings,
        waiting: Vec::new(),
        data_file,
        said_by: settings.said_by,
        options: options.clone(),
        sets_keys,
        file_keys,
    })
}

#[cfg(test)]
mod reference;
#[cfg(test)]
mod tests;
#[cfg(test)]
pub(crate) mod tests_support;
