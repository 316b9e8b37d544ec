//! The environment variables: one table of what there is and what each sets.
//!
//! The process's environment is captured once and passed in; nothing here reads it in place, and nothing hands it on to
//! children. An empty variable is an unset one. Variables this table does not name are not looked at.

mod parse;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;

use tooldock_upstream::protocol::ProtocolVersion;

use self::parse::{
    boolean, bytes, list, only_default, port, session_key, span, token, versions, whole,
};
use super::{Config, ConfigError, LogLevel, ProfileName, ReplicasConfig, Role, Settings};

/// A variable: its name, what it sets, and how.
struct Variable {
    name: &'static str,
    /// The key of the file it wins over, or in words what has no key there.
    #[cfg_attr(
        not(test),
        expect(
            dead_code,
            reason = "the table is documentation too; a test holds it to the keys"
        )
    )]
    sets: &'static str,
    set: fn(&mut Settings, &str) -> Result<(), String>,
}

/// Later entries win over earlier ones: `PORT` over `CORE_PORT`.
const VARIABLES: &[Variable] = &[
    Variable {
        name: "BEARER_TOKEN",
        sets: "the unrestricted bearer token",
        set: |s, text| token(text).map(|token| s.bearer = Some(token)),
    },
    Variable {
        name: "MANAGER_INTERNAL_TOKEN",
        sets: "the token of /reload",
        set: |s, text| token(text).map(|token| s.manager_token = Some(token)),
    },
    Variable {
        name: "SESSION_KEY",
        sets: "what session ids are sealed with",
        set: |s, text| session_key(text).map(|key| s.session_key = Some(key)),
    },
    Variable {
        name: "CORE_PORT",
        sets: "listeners",
        set: |s, text| port(text).map(|port| move_listener(&mut s.config, ProfileName::Core, port)),
    },
    Variable {
        name: "MANAGER_PORT",
        sets: "listeners",
        set: |s, text| {
            port(text).map(|port| move_listener(&mut s.config, ProfileName::Manager, port))
        },
    },
    Variable {
        name: "PORT",
        sets: "listeners",
        set: |s, text| {
            let profile = match s.role {
                Role::All | Role::Core => ProfileName::Core,
                Role::Manager => ProfileName::Manager,
            };
            port(text).map(|port| move_listener(&mut s.config, profile, port))
        },
    },
    Variable {
        name: "MCP_SUPPORTED_VERSIONS",
        sets: "listeners",
        set: |s, text| versions(text).map(|versions| serve_versions(&mut s.config, &versions)),
    },
    Variable {
        name: "DATA_DIR",
        sets: "data_dir",
        set: |s, text| {
            s.config.data_dir = text.into();
            Ok(())
        },
    },
    Variable {
        name: "LOG_LEVEL",
        sets: "observability.log.level",
        set: |s, text| {
            let level = LogLevel::from_name(text);
            s.config.observability.log.level =
                level.ok_or("expected error, warn, info, debug or trace")?;
            Ok(())
        },
    },
    Variable {
        name: "LOG_RETENTION_DAYS",
        sets: "observability.audit.retention_days",
        set: |s, text| whole(text).map(|days| s.config.observability.audit.retention_days = days),
    },
    Variable {
        name: "CORS_ORIGINS",
        sets: "admission.origins",
        set: |s, text| list(text).map(|origins| s.config.admission.origins = origins),
    },
    Variable {
        name: "INTERNAL_ALLOWED_CIDRS",
        sets: "admission.internal_cidrs",
        set: |s, text| list(text).map(|networks| s.config.admission.internal_cidrs = networks),
    },
    Variable {
        name: "TRUSTED_PROXIES",
        sets: "admission.trusted_proxies",
        set: |s, text| list(text).map(|networks| s.config.admission.trusted_proxies = networks),
    },
    Variable {
        name: "MAX_BODY_BYTES",
        sets: "admission.limits.body",
        set: |s, text| bytes(text).map(|size| s.config.admission.limits.body = size),
    },
    Variable {
        name: "MAX_RESULT_BYTES",
        sets: "namespaces.defaults.max_result",
        set: |s, text| bytes(text).map(|size| s.config.namespaces.defaults.max_result = size),
    },
    Variable {
        name: "TOOL_CALL_TIMEOUT_SECONDS",
        sets: "namespaces.defaults.timeout",
        set: |s, text| span(text, 1.0).map(|limit| s.config.namespaces.defaults.timeout = limit),
    },
    Variable {
        name: "NAMESPACE_MAX_CONCURRENCY",
        sets: "namespaces.defaults.max_concurrency",
        set: |s, text| {
            whole(text).map(|calls| s.config.namespaces.defaults.max_concurrency = calls)
        },
    },
    Variable {
        name: "MCP_SESSION_TTL_HOURS",
        sets: "sessions.ttl",
        set: |s, text| span(text, 3600.0).map(|ttl| s.config.sessions.ttl = ttl),
    },
    Variable {
        name: "DEPS_SYNC_TIMEOUT_SECONDS",
        sets: "workers.sync_timeout",
        set: |s, text| span(text, 1.0).map(|limit| s.config.workers.sync_timeout = limit),
    },
    Variable {
        name: "GRACE_SECONDS",
        sets: "replicas.grace",
        set: |s, text| span(text, 1.0).map(|grace| s.config.replicas.grace = grace),
    },
    Variable {
        name: "REPLICA_ID",
        sets: "replicas.id",
        set: |_, text| only_default(text == ReplicasConfig::default().id),
    },
    Variable {
        name: "ENABLE_LEGACY_MCP",
        sets: "whether /sse and /messages are served",
        set: |s, text| boolean(text).map(|on| s.legacy_sse = on),
    },
    Variable {
        name: "ENABLE_FS_WATCHER",
        sets: "nothing yet: off is all there is",
        set: |_, text| only_default(!boolean(text)?),
    },
    Variable {
        name: "FS_WATCHER_DEBOUNCE_MS",
        sets: "nothing yet: the watcher is no part of this version",
        set: |_, text| only_default(whole::<u32>(text)? == 1500),
    },
];

/// The variables of the table that are set, as they were when the process began. `Debug` shows names only.
#[derive(Clone, Default)]
pub(crate) struct Environment(BTreeMap<&'static str, OsString>);

impl Environment {
    /// What the process was started with.
    pub(crate) fn of_process() -> Self {
        Self::from_lookup(|name| std::env::var_os(name))
    }

    /// The variables `lookup` knows.
    pub(crate) fn from_lookup(lookup: impl Fn(&str) -> Option<OsString>) -> Self {
        let set = |variable: &Variable| {
            let value = lookup(variable.name).filter(|value| !value.is_empty())?;
            Some((variable.name, value))
        };
        Self(VARIABLES.iter().filter_map(set).collect())
    }

    /// The data directory, which is needed before the rest.
    pub(super) fn data_dir(&self) -> Result<Option<PathBuf>, ConfigError> {
        Ok(self.text("DATA_DIR")?.map(PathBuf::from))
    }

    /// Puts every variable over the settings of the files.
    pub(super) fn apply(&self, settings: &mut Settings) -> Result<(), ConfigError> {
        for variable in VARIABLES {
            if let Some(text) = self.text(variable.name)? {
                (variable.set)(settings, text)
                    .map_err(|reason| ConfigError::variable(variable.name, reason))?;
            }
        }
        Ok(())
    }

    fn text(&self, name: &'static str) -> Result<Option<&str>, ConfigError> {
        match self.0.get(name) {
            Some(value) => match value.to_str() {
                Some(text) => Ok(Some(text)),
                None => Err(ConfigError::variable(name, "is not UTF-8")),
            },
            None => Ok(None),
        }
    }
}

impl fmt::Debug for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

fn move_listener(config: &mut Config, profile: ProfileName, port: u16) {
    if let Some(listener) = config.listeners.iter_mut().find(|l| l.profile == profile) {
        listener.address.set_port(port);
    }
}

fn serve_versions(config: &mut Config, versions: &[ProtocolVersion]) {
    for listener in &mut config.listeners {
        if matches!(listener.profile, ProfileName::Core | ProfileName::Manager) {
            listener.versions = Some(versions.to_vec());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bytesize::ByteSize;
    use tooldock_workers::secrets::Secret;

    use super::*;

    fn apply(role: Role, variables: &[(&str, &str)]) -> Result<Settings, ConfigError> {
        let variables: BTreeMap<&str, &str> = variables.iter().copied().collect();
        let mut settings = Settings::new(Config::default(), role);
        Environment::from_lookup(|name| variables.get(name).map(OsString::from))
            .apply(&mut settings)?;
        Ok(settings)
    }

    #[test]
    fn a_wrong_value_names_its_variable() {
        let wrong = [
            ("BEARER_TOKEN", "two words"),
            ("MANAGER_INTERNAL_TOKEN", "tökén"),
            ("SESSION_KEY", "thirty-one characters, one less"),
            ("CORE_PORT", "0"),
            ("MANAGER_PORT", "65536"),
            ("PORT", "http"),
            ("LOG_LEVEL", "loud"),
            ("LOG_RETENTION_DAYS", "a month"),
            ("INTERNAL_ALLOWED_CIDRS", "10.0.0.0/33"),
            ("TRUSTED_PROXIES", "proxy"),
            ("MAX_BODY_BYTES", "4MX"),
            ("MAX_RESULT_BYTES", "-1"),
            ("TOOL_CALL_TIMEOUT_SECONDS", "0"),
            ("NAMESPACE_MAX_CONCURRENCY", "eight"),
            ("MCP_SESSION_TTL_HOURS", "abc"),
            ("MCP_SUPPORTED_VERSIONS", "2025-11-25,1999-01-01"),
            ("DEPS_SYNC_TIMEOUT_SECONDS", "inf"),
            ("GRACE_SECONDS", "NaN"),
            ("REPLICA_ID", "a"),
            ("ENABLE_LEGACY_MCP", "maybe"),
            ("ENABLE_FS_WATCHER", "true"),
            ("FS_WATCHER_DEBOUNCE_MS", "100"),
        ];
        for (name, value) in wrong {
            let error = apply(Role::All, &[(name, value)])
                .expect_err(name)
                .to_string();
            assert!(error.starts_with(&format!("{name}: ")), "{error}");
            assert!(!error.contains('\n'), "{error}");
        }
        let tested = wrong.map(|(name, _)| name);
        let any_text = ["CORS_ORIGINS", "DATA_DIR"];
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
        assert_eq!(c.observability.log.level, LogLevel::Debug);
        assert_eq!(c.observability.audit.retention_days, 7);
        assert_eq!(c.admission.origins.len(), 2);
        assert_eq!(c.admission.internal_cidrs.len(), 1);
        assert_eq!(c.admission.trusted_proxies.len(), 2);
        assert_eq!(c.admission.limits.body, ByteSize::mib(1));
        assert_eq!(c.namespaces.defaults.max_result, ByteSize::mib(2));
        assert_eq!(c.namespaces.defaults.timeout, Duration::from_millis(2500));
        assert_eq!(c.namespaces.defaults.max_concurrency, 3);
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
            .map(|l| l.address.port())
            .collect();
        assert_eq!(ports, [9001, 9002, 9090]);
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
                ("REPLICA_ID", "auto"),
            ];
            assert!(apply(Role::All, &variables).is_ok(), "{legacy}");
        }
    }

    #[test]
    fn debug_output_shows_no_value() {
        let environment = Environment::from_lookup(|_| Some("hush".into()));
        let shown = format!("{environment:?}");
        assert!(
            shown.contains("BEARER_TOKEN") && !shown.contains("hush"),
            "{shown}"
        );
    }

    #[test]
    fn every_variable_names_a_key_that_exists_or_says_why_not() {
        let tree = serde_yaml::to_value(Config::default()).expect("yaml");
        for variable in VARIABLES.iter().filter(|v| !v.sets.contains(' ')) {
            let found = variable
                .sets
                .split('.')
                .try_fold(&tree, |tree, key| tree.get(key));
            assert!(found.is_some(), "{}: {}", variable.name, variable.sets);
        }
    }
}
