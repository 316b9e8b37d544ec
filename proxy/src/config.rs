//! The gateway's configuration: every top-level key of `conf/tooldock.yaml`, and the sources that decide its value. A source
//! further right in the diagram takes precedence; `$DATA/config.yaml` can only restrict what the configuration file allows.
//!
//! ```text
//! default < file < $DATA/config.yaml < environment < command line      document, data_file, environment
//!                  (restricts only)
//!                          │
//!                       Settings ── unsupported ── validate ── tokens ──▶ Effective
//! ```
//!
//! The keys of other crates (`admission`, `namespaces`, `sessions`, `workers`, audit) are defined there; this module combines
//! them. Loading is a function of files and a captured environment without side effects, so that a reload is the same call again.
//! Other modules put the keys into effect.

mod access_log;
mod address;
mod bounds;
mod client_secret;
mod core_url;
mod data_file;
mod debugging;
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
use tooldock_upstream::hooks::HookConfig;
use tooldock_workers::aggregate::AggregatesConfig;
use tooldock_workers::servers::ServersConfig;

pub(crate) use crate::header_edits::{HeaderEditsConfig, HeadersConfig};

pub(crate) use self::access_log::{AccessLogConfig, AccessLogFormat};
pub(crate) use self::address::{ListenAddress, SocketMode};
pub(crate) use self::client_secret::client_password;
pub(crate) use self::core_url::{CoreUrl, bare as bare_host};
use self::data_file::{DataFile, Layers};
pub(crate) use self::environment::Environment;
use self::environment::{VariableNames, port_variable_of};
pub(crate) use self::error::ConfigError;
pub(crate) use self::faults::{IgnoredKeys, all as load_or_all_faults};
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

/// Configuration file that is read if the command line names none and the file exists.
pub(crate) const DEFAULT_FILE: &str = "conf/tooldock.yaml";

/// All keys of the configuration file. The `Default` implementations define the default values.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Config {
    /// The addresses on which the gateway listens.
    pub(crate) listeners: Vec<ListenerConfig>,
    /// The data directory, with the gateway's namespaces, environments, sockets and logs.
    pub(crate) data_dir: PathBuf,
    /// Number of threads that serve HTTP requests.
    pub(crate) threads: Threads,
    /// True if idle HTTP threads take tasks from busy ones; false if each task stays on its thread.
    pub(crate) work_stealing: bool,
    /// Rules and limits for clients: credentials, networks, hosts, rates, sizes and times.
    pub(crate) admission: AdmissionConfig,
    /// Limits and settings of namespaces.
    pub(crate) namespaces: NamespacesConfig,
    /// Settings of MCP sessions.
    pub(crate) sessions: SessionsConfig,
    /// Settings of Python workers.
    pub(crate) workers: WorkersConfig,
    /// Settings with which the management tools read repositories and package registries.
    pub(crate) builder: BuilderConfig,
    /// MCP servers that are not Python workers: child processes and remote servers.
    pub(crate) upstreams: ServersConfig,
    /// Settings for reloading namespaces automatically when their files change.
    pub(crate) watcher: WatcherConfig,
    /// The aggregates: namespaces that combine several others.
    pub(crate) toolman: AggregatesConfig,
    /// The hooks: services and tools that see calls, results and lists of tools, and may change or refuse them.
    pub(crate) hooks: Vec<HookConfig>,
    /// Settings of the listeners of the profile `vault`.
    pub(crate) vault: VaultConfig,
    /// The relay: tools for containers over a Unix socket. Also defines the scopes that credentials may have.
    pub(crate) relay: RelayConfig,
    /// Settings of API keys.
    pub(crate) keys: KeysConfig,
    /// Settings for several replicas of this gateway.
    pub(crate) replicas: ReplicasConfig,
    /// Settings of logs, audit and traces.
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
            hooks: Vec::new(),
            vault: VaultConfig::default(),
            relay: RelayConfig::default(),
            keys: KeysConfig::default(),
            replicas: ReplicasConfig::default(),
            observability: ObservabilityConfig::default(),
        }
    }
}

impl Config {
    /// Iterates over the listeners that a process of this role opens, with their index in `listeners`.
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

    /// Returns the address at which other replicas reach a process of this role, and the address it binds for them; `None` if it
    /// serves only the management tools, if there are no replicas, or if sessions are only in memory.
    pub(crate) fn replica_address(&self, role: Role) -> Option<(&str, SocketAddr)> {
        let shares_sessions = self.sessions.store != StoreConfig::Memory;
        let address = self.replicas.address();
        address.filter(|_| shares_sessions && role != Role::Manager)
    }

    /// Returns the addresses that a process of this role binds, each with its configuration key.
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
    /// For running the gateway: a missing token is an error.
    Serve,
    /// For checking the configuration: a missing token is a warning.
    Check,
    /// For a command that runs next to a gateway: a missing token is a warning, and so is an unusable `$DATA/config.yaml`.
    Command,
}

/// The sources from which the configuration is loaded, and the purpose of loading it.
#[derive(Debug, Clone)]
pub(crate) struct LoadOptions {
    /// The configuration file that the command line names; `None` if it names none.
    pub(crate) file: Option<PathBuf>,
    /// The half of the gateway that this process runs.
    pub(crate) role: Role,
    /// True if the gateway was started with `--dev`, for trying it out.
    pub(crate) dev: bool,
    /// The purpose for which the configuration is loaded.
    pub(crate) purpose: Purpose,
    /// The environment variables of the process, captured at its start.
    pub(crate) environment: Environment,
    /// Random tokens that are used if no token is configured. They are generated once, so that a reload does not change them.
    pub(crate) generated: GeneratedTokens,
    /// Keys of the configuration file that are ignored. Only a check that looks for further faults sets this; otherwise it is
    /// empty.
    pub(crate) left_out: IgnoredKeys,
}

impl LoadOptions {
    /// Returns the path of the configuration file: the file named on the command line, or the default file if it exists.
    fn source(&self) -> Option<PathBuf> {
        match &self.file {
            Some(file) => Some(file.clone()),
            None => Some(PathBuf::from(DEFAULT_FILE)).filter(|file| file.exists()),
        }
    }
}

/// The configuration in force, after all checks.
#[derive(Debug, Clone)]
pub(crate) struct Effective {
    /// The values of all keys of the configuration file.
    pub(crate) config: Config,
    /// The half of the gateway that this process runs.
    pub(crate) role: Role,
    /// True if the gateway was started with `--dev`, for trying it out.
    pub(crate) dev: bool,
    /// The configuration file that was read; `None` if there is none.
    pub(crate) source: Option<PathBuf>,
    /// The bearer token that opens everything; `None` if there is none.
    pub(crate) bearer: Option<Secret>,
    /// The token that `X-Manager-Token` must contain.
    pub(crate) manager_token: Secret,
    /// The key that seals session ids; `None` if the operator has set none.
    pub(crate) session_key: Option<Secret>,
    /// The key that encrypts the secrets store, if there is one.
    pub(crate) secrets: SecretsSettings,
    /// The address of the core, for a process that runs only the management tools.
    pub(crate) core_url: CoreUrl,
    /// Settings that only the web UI uses.
    pub(crate) web: WebSettings,
    /// True if the HTTP+SSE transport of MCP 2024-11-05 is served.
    pub(crate) legacy_sse: bool,
    /// For all listeners: true if tools wait until the client has sent `notifications/initialized`, false if not. `None` if the
    /// profile of each listener decides.
    pub(crate) require_initialized: Option<bool>,
    /// True for each token that this process has generated; false for a configured token.
    pub(crate) generated: GeneratedMarks,
    /// The absolute path of the data directory.
    pub(crate) data_dir: PathBuf,
    /// Warnings for the operator, one sentence each.
    pub(crate) warnings: Vec<String>,
    /// Keys that have changed since the start of this process and take effect only at the next start.
    pub(crate) waiting: Vec<&'static str>,
    data_file: DataFile,
    said_by: VariableNames,
    options: LoadOptions,
    /// True if the configuration file exists and is not empty.
    sets_keys: bool,
    /// The keys that the configuration file sets.
    file_keys: BTreeSet<String>,
}

impl Effective {
    /// Loads the configuration again from its sources. Keys that cannot change in a running process keep their values, and are
    /// logged.
    ///
    /// # Errors
    ///
    /// The errors of [`load`]. A configuration file that was read before must still exist, since the defaults could open access
    /// that the file closed. The new rules must also be safe on the sockets that stay open.
    ///
    /// An unusable `$DATA/config.yaml` is no error: its last usable content remains in force.
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

    /// Returns the configuration that a reload would put in force, and the configuration that its sources contain now. The two
    /// differ in the keys that cannot change in a running process. The running configuration is not changed, and nothing is
    /// logged.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::reload`].
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

    /// Returns the source of a key's value: the name of an environment variable, the path of a file, or `default`.
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

    /// Returns the address at which other replicas reach this process, and the address it binds for them; `None` if it has no
    /// connections with replicas.
    pub(crate) fn replica_address(&self) -> Option<(&str, SocketAddr)> {
        self.config.replica_address(self.role)
    }

    /// Returns the TLS settings for connections from other replicas; `None` without replicas, or without TLS.
    pub(crate) fn replica_tls(&self) -> Option<TlsConfig> {
        self.replica_address()?;
        self.config.replicas.tls.listener()
    }

    /// Returns this replica's certificate with the name that other replicas expect in it; `None` without replicas, or without
    /// TLS.
    pub(crate) fn replica_certificate(&self) -> Option<ReplicaCertificate<'_>> {
        let (address, _) = self.replica_address()?;
        self.config.replicas.tls.certificate(address)
    }

    /// Returns the name of this replica if it shares its data directory, and the sessions stored there, with other replicas;
    /// otherwise `None`.
    pub(crate) fn shared_as(&self) -> Option<&str> {
        let shares = self.config.sessions.store == StoreConfig::Disk && self.role != Role::Manager;
        self.config.replicas.name().filter(|_| shares)
    }

    /// Returns the reason why the present content of `$DATA/config.yaml` is not in force; `None` if it is.
    pub(crate) fn data_file_problem(&self) -> Option<&str> {
        self.data_file.problem.as_deref()
    }

    /// Returns the purpose for which the configuration was loaded.
    pub(crate) fn purpose(&self) -> Purpose {
        self.options.purpose
    }

    /// Replaces the generated bearer token by the token that an earlier process stored in the data directory. Does nothing if the
    /// operator has configured a token.
    pub(crate) fn keep_bearer(&mut self, kept: Secret) {
        if self.generated.bearer {
            self.bearer = Some(kept.clone());
            self.options.generated.bearer = kept;
        }
    }

    /// Replaces the generated manager token by the token that an earlier process stored in the data directory. Does nothing if
    /// the operator has configured a token.
    pub(crate) fn keep_manager(&mut self, kept: Secret) {
        if self.generated.manager {
            self.manager_token = kept.clone();
            self.options.generated.manager = kept;
        }
    }

    /// Returns a text that names the key or variable which sets the port of a listener, for an error message about an address in
    /// use.
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

    /// Iterates over the listeners that this process opens, with their index in `listeners`.
    pub(crate) fn served_listeners(&self) -> impl Iterator<Item = (usize, &ListenerConfig)> {
        self.config.served_listeners(self.role)
    }

    /// Returns the path of the file of API keys.
    pub(crate) fn keys_file(&self) -> PathBuf {
        self.config.keys.path(&self.data_dir)
    }

    /// Returns the scopes that API keys and tokens may have.
    pub(crate) fn scopes(&self) -> ScopeTable {
        // Invalid scopes were refused when the configuration was loaded.
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

/// The merged settings of all sources, before they are checked.
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
    said_by: VariableNames,
    warnings: Vec<String>,
}

impl Settings {
    /// Creates the settings from the files alone; environment variables are applied later.
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
            said_by: VariableNames::new(),
            warnings: Vec::new(),
        }
    }
}

/// Loads the configuration that `serve` would use, for a command that runs next to a gateway. `data_dir` takes precedence over
/// the configured data directory.
///
/// # Errors
///
/// The message of the first fault that [`load`] finds.
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
        left_out: IgnoredKeys::default(),
    };
    let mut effective = load(&options).map_err(|error| error.to_string())?;
    if let Some(problem) = effective.data_file_problem() {
        eprintln!("tooldock: {problem}");
    }
    let found = effective.secrets.find_dev_key(&effective.data_dir);
    found.map_err(|error| error.to_string())?;
    Ok(effective)
}

/// Checks a text before it is written as the configuration file. Environment variables, and the files that the configuration
/// names, are not considered.
///
/// # Errors
///
/// The first key that is wrong.
pub(crate) fn check_text(text: &str) -> Result<(), ConfigError> {
    let config = document::parse_text(text)?;
    unsupported::refuse(&config)?;
    validate::check(&config, Role::All, false)
}

/// Reads all sources of the configuration, checks the result, and chooses the tokens.
///
/// # Errors
///
/// The first fault, with its file, key or variable.
pub(crate) fn load(options: &LoadOptions) -> Result<Effective, ConfigError> {
    load_after(options, None)
}

/// Loads the configuration. `before` is the configuration in force if this is a reload, and `None` at the start.
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
    // The data directory is determined first, since it contains the second configuration file.
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
    debugging::settle(&mut settings, options, &data_dir, &mut warnings)?;
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
