//! The keys `workers:` and `namespaces:` of the configuration file. `Default` is the reference for their defaults.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::names::NamespaceName;
use crate::template::{is_own, is_variable_name};

mod concurrency;
mod limits;
mod sandbox;

pub use concurrency::{Concurrency, InvalidConcurrency};
pub use limits::{
    AccessLists, Ceilings, GlobalSecrets, Limits, LimitsPatch, OutOfBounds, OutputSchema,
    PROCESSES_MAX, PinMode, QUEUE_MAX, ToolLimits,
};
pub use sandbox::{InvalidSandboxAddress, Sandbox, SandboxAddress, SandboxMode, SandboxNetwork};

/// `workers:` — the environments, starts and restarts of Python workers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct WorkersConfig {
    /// The Python interpreter that creates environments: a name on `PATH`, or a path.
    pub python: String,
    /// Packages of the base environment. orjson and uvloop are installed only from wheels, and omitted on platforms without
    /// them.
    pub base_requirements: Vec<String>,
    /// Path of the base environment; `$DATA` is replaced by the data directory.
    pub base_env: String,
    /// Maximum time of a worker from spawn to its ready line.
    #[serde(with = "humantime_serde")]
    pub ready_timeout: Duration,
    /// Maximum time of installing one namespace's requirements.
    #[serde(with = "humantime_serde")]
    pub sync_timeout: Duration,
    /// Delays between restarts.
    pub backoff: BackoffConfig,
    /// Rule that decides whether a worker with repeated failures counts as crash-looping.
    pub crash_loop: CrashLoopConfig,
}

/// `workers.backoff:` — exponential, with jitter.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BackoffConfig {
    /// The delay before the first restart.
    #[serde(with = "humantime_serde")]
    pub initial: Duration,
    /// The longest delay between restarts.
    #[serde(with = "humantime_serde")]
    pub max: Duration,
}

/// `workers.crash_loop:` — a number of failures within a window.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CrashLoopConfig {
    /// Number of failures that make a crash loop.
    pub failures: u32,
    /// The length of the window in which failures are counted.
    #[serde(with = "humantime_serde")]
    pub window: Duration,
}

impl Default for WorkersConfig {
    fn default() -> Self {
        Self {
            python: "python3".into(),
            base_requirements: ["pydantic>=2", "orjson>=3.10,<4", "uvloop>=0.21,<1"]
                .map(Into::into)
                .into(),
            base_env: "$DATA/venvs/.base".into(),
            ready_timeout: Duration::from_secs(30),
            sync_timeout: Duration::from_secs(600),
            backoff: BackoffConfig::default(),
            crash_loop: CrashLoopConfig::default(),
        }
    }
}

impl Default for BackoffConfig {
    fn default() -> Self {
        Self {
            initial: Duration::from_millis(500),
            max: Duration::from_secs(60),
        }
    }
}

impl Default for CrashLoopConfig {
    fn default() -> Self {
        Self {
            failures: 5,
            window: Duration::from_secs(60),
        }
    }
}

/// `namespaces:` — limits of every namespace, ceilings for its own file, and overrides by name.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NamespacesConfig {
    /// Limits of a namespace that sets none.
    pub defaults: Limits,
    /// True when a fresh data directory gets the namespace `shared`.
    pub starter: bool,
    /// Variables of the gateway's environment that may be referred to as `${NAME}` by `env` of a namespace's own
    /// `tooldock.yaml`, and by servers in files of the data directory.
    pub env_allowed: Vec<String>,
    /// Ceilings for a namespace's own `tooldock.yaml`.
    pub ceilings: Ceilings,
    /// The operator's limits by namespace. They take precedence over all other limits and may exceed the ceilings.
    pub overrides: BTreeMap<NamespaceName, LimitsPatch>,
    /// Limits of the operator's file alone, if `$DATA/config.yaml` is merged into the other fields. See `narrow` in
    /// `tooldock-workers`.
    #[serde(skip)]
    pub operator: Option<Arc<OperatorLimits>>,
}

/// Limits of the operator's file alone.
#[derive(Debug, Clone, PartialEq)]
pub struct OperatorLimits {
    /// `namespaces:` of the operator's file.
    pub namespaces: NamespacesConfig,
    /// The limits of the operator's servers, `upstreams.KIND.NAME.limits`.
    pub servers: BTreeMap<NamespaceName, LimitsPatch>,
    /// The names of the operator's servers: their limits may not exceed those of the operator's file.
    pub names: BTreeSet<NamespaceName>,
}

impl Default for NamespacesConfig {
    fn default() -> Self {
        Self {
            defaults: Limits::default(),
            starter: true,
            env_allowed: Vec::new(),
            ceilings: Ceilings::default(),
            overrides: BTreeMap::new(),
            operator: None,
        }
    }
}

impl NamespacesConfig {
    /// An entry of `env_allowed` that cannot be allowed, if any: its index, and the reason.
    pub fn env_not_allowable(&self) -> Option<(usize, &'static str)> {
        let reason = |name: &str| match name {
            name if !is_variable_name(name) => Some("is not a variable name"),
            name if is_own(name) => Some("opens the gateway itself and is given to no namespace"),
            _ => None,
        };
        let mut reasons = self.env_allowed.iter().map(|name| reason(name)).enumerate();
        reasons.find_map(|(index, reason)| Some((index, reason?)))
    }
}
