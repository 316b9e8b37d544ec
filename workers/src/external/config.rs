//! The keys of one stdio server, under `upstreams.stdio` and in `$DATA/external/config.yaml`.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, de};
use tooldock_base::bounds::{TIMES, within};
use tooldock_base::config::{LimitsPatch, PinMode, Sandbox};
use tooldock_base::names::NamespaceName;
use tooldock_base::precedence::Source;
use tooldock_base::server_failure::InvalidServer;
use tooldock_base::template::{Template, scalar};
use tooldock_base::yaml::Value;
use tooldock_credentials::personal;

use crate::server_settings::{Isolation, ListMode, check_limits};

/// Configuration key `upstreams.stdio:`, with the servers by namespace.
pub type StdioServersConfig = BTreeMap<NamespaceName, StdioServerConfig>;

/// Maximum number of arguments of one server, and maximum number of its environment variables.
const ENTRIES_MAX: usize = 1_000;
/// Maximum length of a command, an argument or a value, in bytes; the kernel does not accept longer ones.
const TEXT_MAX: usize = 128 * 1024 - 1;
/// Allowed range of a configured number of processes; a machine cannot run more.
const PROCESSES: RangeInclusive<usize> = 1..=100_000;
/// Allowed range of the number of spare processes, each of which needs as much memory as a process in use.
const SPARES: RangeInclusive<usize> = 0..=100;

/// Defines the configuration keys of a stdio server. The keys in `settings` define the sharing and lifetime of the server's
/// processes; each is written once, with its default.
macro_rules! server_keys {
    (settings {$( $(#[$doc:meta])* $key:ident: $type:ty = $default:expr; )*}) => {
        /// Configuration of a stdio server. `Default` contains the defaults of all keys except `command`, which has none.
        #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct StdioServerConfig {
            /// The program to run: a path, or a name on `PATH`.
            pub command: String,
            /// Arguments of the program, passed without a shell.
            #[serde(deserialize_with = "texts")]
            pub args: Vec<String>,
            /// Environment variables of the program; `${NAME}` refers to a secret or a variable of the gateway.
            #[serde(deserialize_with = "variables")]
            pub env: BTreeMap<String, Template>,
            /// Names of variables in `env` for which each principal stores its own value.
            pub personal: Vec<String>,
            /// Working directory of the program, relative to the gateway's working directory.
            pub cwd: PathBuf,
            $($(#[$doc])* pub $key: $type,)*
            /// Isolation of the program from the rest of the machine. Replaces `limits.sandbox` if both are set.
            #[serde(skip_serializing_if = "Option::is_none")]
            pub sandbox: Option<Sandbox>,
            /// Treatment of tool definitions that differ from the recorded ones. Replaces `limits.pins` if both are set.
            #[serde(skip_serializing_if = "Option::is_none")]
            pub pins: Option<PinMode>,
            /// Limits of the server's namespace: allowed tools, the time limit of a call, and the like.
            pub limits: LimitsPatch,
            /// True if the server is served under its namespace; false if it is switched off.
            pub enabled: bool,
            /// The configuration file that defines the server.
            #[serde(skip)]
            pub source: Source,
        }

        impl Default for StdioServerConfig {
            fn default() -> Self {
                Self {
                    command: String::new(),
                    args: Vec::new(),
                    env: BTreeMap::new(),
                    personal: Vec::new(),
                    cwd: ".".into(),
                    $($key: $default,)*
                    sandbox: None,
                    pins: None,
                    limits: LimitsPatch::default(),
                    enabled: true,
                    source: Source::default(),
                }
            }
        }

        impl StdioServerConfig {
            /// The limits of the server's namespace, including the server's own keys `sandbox` and `pins`.
            pub fn own_limits(&self) -> LimitsPatch {
                let mut limits = self.limits.clone();
                limits.pins = self.pins.or(limits.pins);
                if self.sandbox.is_some() {
                    limits.sandbox.clone_from(&self.sandbox);
                }
                limits
            }

            /// The settings for the sharing and lifetime of the server's processes.
            pub fn settings(&self) -> StdioSettings {
                StdioSettings { $($key: self.$key,)* }
            }
        }

        /// Settings for the sharing and lifetime of a server's processes.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
        pub struct StdioSettings {
            $($(#[$doc])* pub $key: $type,)*
        }

        impl Default for StdioSettings {
            fn default() -> Self {
                Self { $($key: $default,)* }
            }
        }
    };
}

server_keys! {
    settings {
        /// Rule for sharing a process among clients.
        isolation: Isolation = Isolation::Auto;
        /// Reaction to an unexpected end of a process.
        restart: Restart = Restart::OnFailure;
        /// Time limit from the start of a process until it accepts calls.
        #[serde(with = "humantime_serde")]
        connect_timeout: Duration = Duration::from_secs(30);
        /// Time limit for installing the package of a server that `npx` or `uvx` runs, before it is started.
        #[serde(with = "humantime_serde")]
        install_timeout: Duration = Duration::from_secs(600);
        /// Time limit for the server to answer the request for its protocol version.
        #[serde(with = "humantime_serde")]
        probe_timeout: Duration = Duration::from_secs(5);
        /// Time without use after which a process is ended.
        #[serde(with = "humantime_serde")]
        idle_stop: Duration = Duration::from_secs(600);
        /// Age at which a process is replaced by a new one.
        #[serde(with = "humantime_serde")]
        max_lifetime: Duration = Duration::from_secs(24 * 3600);
        /// Maximum time for which a shared process may withhold the log messages of all clients after one client's call was
        /// cancelled; the process is then replaced.
        #[serde(with = "humantime_serde")]
        isolation_mute: Duration = Duration::from_secs(30);
        /// Maximum number of concurrent processes of the server.
        max_processes: usize = 100;
        /// Maximum number of concurrent processes of the server for one principal.
        max_per_principal: usize = 16;
        /// Number of spare processes that are started before a client needs them.
        warm: usize = 1;
        /// Treatment of the server's lists of tools and resources: corrected for strict clients, or passed on unchanged.
        lists: ListMode = ListMode::Mend;
    }
}

/// Reaction to an unexpected end of a process (K-17).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Restart {
    /// A process that ended is not replaced until the next reload.
    Never,
    /// A new process is started, unless the ended one had exit code 0.
    OnFailure,
    /// A new process is started after every unexpected end.
    Always,
}

impl StdioServerConfig {
    /// Checks the keys, as far as possible without I/O. A server that is switched off is not checked, because it may be
    /// unfinished.
    ///
    /// # Errors
    ///
    /// The first invalid key.
    pub fn validate(&self) -> Result<(), InvalidServer> {
        if !self.enabled {
            return Ok(());
        }
        if self.command.trim().is_empty() {
            return Err(InvalidServer::new("command", "is missing or empty"));
        }
        text("command", &self.command)?;
        few("args", self.args.len())?;
        for (index, argument) in self.args.iter().enumerate() {
            let key = format!("args[{index}]");
            text(&key, argument)?;
        }
        few("env", self.env.len())?;
        for name in self.env.keys() {
            if name.is_empty() || name.contains(['=', '\0']) || name.len() > 256 {
                let key = format!("env.{}", name.replace('\0', "\u{fffd}"));
                return Err(InvalidServer::new(key, "is no variable name"));
            }
        }
        personal::check(&self.personal, self.env.values())?;
        if !self.personal.is_empty() && self.isolation != Isolation::Principal {
            let message = "needs isolation: principal, so that nobody uses a process that was started with the values of \
                           somebody else: write isolation: principal";
            return Err(InvalidServer::new("personal", message));
        }
        if self.cwd.as_os_str().is_empty() {
            return Err(InvalidServer::new("cwd", "is empty"));
        }
        for (key, value) in [
            ("connect_timeout", self.connect_timeout),
            ("install_timeout", self.install_timeout),
            ("probe_timeout", self.probe_timeout),
            ("idle_stop", self.idle_stop),
            ("max_lifetime", self.max_lifetime),
            ("isolation_mute", self.isolation_mute),
        ] {
            within(value, &TIMES).map_err(|message| InvalidServer::new(key, message))?;
        }
        for (key, value, bounds) in [
            ("max_processes", self.max_processes, PROCESSES),
            ("max_per_principal", self.max_per_principal, PROCESSES),
            ("warm", self.warm, SPARES),
        ] {
            within(value, &bounds).map_err(|message| InvalidServer::new(key, message))?;
        }
        check_limits(&self.limits, "an external server has max_processes")
    }
}

fn text(key: &str, text: &str) -> Result<(), InvalidServer> {
    if text.contains('\0') {
        return Err(InvalidServer::new(key, "must not contain a NUL"));
    }
    if text.len() > TEXT_MAX {
        return Err(InvalidServer::new(key, "is too long"));
    }
    Ok(())
}

fn few(key: &str, count: usize) -> Result<(), InvalidServer> {
    if count > ENTRIES_MAX {
        let message = format!("more than {ENTRIES_MAX} entries");
        return Err(InvalidServer::new(key, message));
    }
    Ok(())
}

/// Deserializes variables by name. The error for an invalid variable is created here, because serde's error would quote a
/// value, which may be a secret.
fn variables<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<BTreeMap<String, Template>, D::Error> {
    let wrong = || de::Error::custom("must be a mapping of names to single values");
    let Value::Mapping(mapping) = Value::deserialize(deserializer)? else {
        return Err(wrong());
    };
    let variables = mapping.into_iter().map(|(name, value)| {
        let name = scalar(name).ok_or_else(wrong)?;
        Ok((name, Template::new(scalar(value).ok_or_else(wrong)?)))
    });
    variables.collect()
}

/// Deserializes a list of single values as texts, so that `[--port, 8080]` may be written without quotes.
fn texts<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    // The error is created here, because serde's error would quote a value that may be a credential.
    let Value::Sequence(values) = Value::deserialize(deserializer)? else {
        return Err(de::Error::custom("must be a list of single values"));
    };
    let texts = values.into_iter().map(|value| {
        scalar(value).ok_or_else(|| de::Error::custom("every argument must be a single value"))
    });
    texts.collect()
}

#[cfg(test)]
mod tests {
    use tooldock_base::yaml;

    use super::*;

    #[test]
    fn arguments_that_are_no_list_are_refused_without_being_quoted() {
        let error = yaml::from_str::<StdioServerConfig>("{ command: x, args: --key=hunter2 }");
        let error = error.expect_err("no list").to_string();
        assert!(error.contains("must be a list"), "{error}");
        assert!(!error.contains("hunter2"), "{error}");
    }

    fn parse(yaml: &str) -> StdioServerConfig {
        yaml::from_str(yaml).expect(yaml)
    }

    #[test]
    fn every_key_is_read_by_its_name() {
        let config = parse(
            "{ command: x, args: [--port, 8080], env: { A: '${B}' }, cwd: /tmp, isolation: principal, \
             restart: on-failure, connect_timeout: 1s, install_timeout: 90s, probe_timeout: 2s, idle_stop: 3s, max_lifetime: 4s, isolation_mute: 8s, \
             max_processes: 5, max_per_principal: 6, warm: 0, enabled: false, \
             limits: { timeout: 1m, tools_allow: ['get_*'], tools: { get_all: { max_result: 1MiB } } } }",
        );
        assert_eq!(config.args, ["--port", "8080"]);
        assert_eq!(config.isolation, Isolation::Principal);
        assert_eq!(config.settings().max_per_principal, 6);
        assert_eq!(config.settings().isolation_mute, Duration::from_secs(8));
        assert_eq!(config.settings().install_timeout, Duration::from_secs(90));
        assert_eq!(config.limits.timeout, Some(Duration::from_secs(60)));
        assert_eq!(config.limits.tools.len(), 1);
        assert!(!config.enabled && config.validate().is_ok());
        assert!(yaml::from_str::<StdioServerConfig>("{ command: x, port: 1 }").is_err());
    }

    #[test]
    fn a_wrong_value_names_its_key() {
        let long = "x".repeat(TEXT_MAX + 1);
        for (yaml, key) in [
            ("{}", "command"),
            ("{ command: '  ' }", "command"),
            ("{ command: \"a\\0\" }", "command"),
            ("{ command: x, args: [a, \"b\\0\"] }", "args[1]"),
            (&format!("{{ command: x, args: [{long}] }}"), "args[0]"),
            ("{ command: x, env: { 'A=B': c } }", "env.A=B"),
            ("{ command: x, cwd: '' }", "cwd"),
            ("{ command: x, connect_timeout: 0s }", "connect_timeout"),
            ("{ command: x, install_timeout: 0s }", "install_timeout"),
            ("{ command: x, probe_timeout: 0s }", "probe_timeout"),
            ("{ command: x, idle_stop: 2years }", "idle_stop"),
            ("{ command: x, max_lifetime: 0s }", "max_lifetime"),
            ("{ command: x, isolation_mute: 0s }", "isolation_mute"),
            ("{ command: x, max_processes: 0 }", "max_processes"),
            ("{ command: x, max_per_principal: 0 }", "max_per_principal"),
            ("{ command: x, warm: 101 }", "warm"),
            ("{ command: x, limits: { timeout: 0s } }", "limits.timeout"),
            (
                "{ command: x, limits: { tools: { a: { timeout: 0s } } } }",
                "limits.tools.a.timeout",
            ),
            (
                "{ command: x, limits: { tools: { a: { max_result: 2GiB } } } }",
                "limits.tools.a.max_result",
            ),
            (
                "{ command: x, limits: { max_concurrency: 0 } }",
                "limits.max_concurrency",
            ),
            ("{ command: x, limits: { queue: 100001 } }", "limits.queue"),
            (
                "{ command: x, limits: { tools_allow: ['['] } }",
                "limits.tools_allow",
            ),
            (
                "{ command: x, limits: { sync_concurrency: 2 } }",
                "limits.sync_concurrency",
            ),
            (
                "{ command: x, limits: { processes: 2 } }",
                "limits.processes",
            ),
        ] {
            assert_eq!(parse(yaml).validate().unwrap_err().key, key, "{yaml}");
        }
    }

    #[test]
    fn of_a_server_that_is_switched_off_nothing_is_asked() {
        assert!(parse("{ enabled: false, warm: 101 }").validate().is_ok());
    }

    #[test]
    fn a_complaint_about_a_variable_does_not_quote_its_value() {
        for yaml in [
            "{ env: hunter2 }",
            "{ env: [hunter2] }",
            "{ env: { A: [hunter2] } }",
        ] {
            let error = yaml::from_str::<StdioServerConfig>(yaml).unwrap_err();
            assert!(!error.to_string().contains("hunter2"), "{error}");
        }
    }

    #[test]
    fn printing_a_server_shows_no_literal_of_its_environment() {
        let text = format!(
            "{:?}",
            parse("{ command: x, env: { A: hunter2, B: '${TOKEN}' } }")
        );
        assert!(
            text.contains("${TOKEN}") && !text.contains("hunter2"),
            "{text}"
        );
    }
}
