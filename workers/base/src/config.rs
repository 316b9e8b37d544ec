//! The keys `workers:` and `namespaces:` of the configuration file. `Default` is the reference for their defaults.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::names::NamespaceName;
use crate::off_or;
use crate::template::{is_own, is_variable_name};

mod concurrency;
mod debugger;
mod limits;
mod sandbox;

pub use concurrency::{Concurrency, InvalidConcurrency};
pub use debugger::DEBUGGER_TIMEOUT;
pub use limits::{
    AccessLists, Ceilings, GlobalSecrets, Limits, LimitsPatch, OutOfBounds, OutputSchema,
    PROCESSES_MAX, PinMode, QUEUE_MAX, ToolLimits,
};
pub use sandbox::{InvalidSandboxAddress, Sandbox, SandboxAddress, SandboxMode, SandboxNetwork};

/// The key `workers:`: environments, starts and restarts of Python workers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct WorkersConfig {
    /// The Python interpreter that creates environments: a name on `PATH`, or a path.
    pub python: String,
    /// Packages that are installed in the base environment. orjson and uvloop are installed from wheels only; on platforms
    /// without wheels they are omitted.
    pub base_requirements: Vec<String>,
    /// Path of the base environment; `$DATA` is replaced by the data directory.
    pub base_env: String,
    /// Maximum time from the start of a worker process until it reports that it is ready.
    #[serde(with = "humantime_serde")]
    pub ready_timeout: Duration,
    /// Maximum time for installing the requirements of one namespace.
    #[serde(with = "humantime_serde")]
    pub sync_timeout: Duration,
    /// Delays between restarts of a worker.
    pub backoff: BackoffConfig,
    /// The rule by which a worker counts as crash-looping. Such a worker is restarted only at the longest delay of `backoff`.
    pub crash_loop: CrashLoopConfig,
    /// Time without a call after which the processes of a namespace are stopped, until its next call; `None` if they always run.
    #[serde(with = "off_or::duration")]
    pub idle_stop: Option<Duration>,
}

/// The key `workers.backoff:`: delays between restarts, which grow exponentially and have a random component.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BackoffConfig {
    /// The delay before the first restart of a worker.
    #[serde(with = "humantime_serde")]
    pub initial: Duration,
    /// The longest delay between restarts of a worker.
    #[serde(with = "humantime_serde")]
    pub max: Duration,
}

/// The key `workers.crash_loop:`: the number of failures within a time window that make a crash loop.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CrashLoopConfig {
    /// Number of failures within the window that make a crash loop.
    pub failures: u32,
    /// Length of the time window in which failures are counted.
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
            idle_stop: None,
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

/// The key `namespaces:`: default limits of all namespaces, ceilings for the files of namespaces, and overrides by name.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NamespacesConfig {
    /// Limits for namespaces that do not set them.
    pub defaults: Limits,
    /// True if the namespace `shared` is created in a new data directory.
    pub starter: bool,
    /// Names of environment variables of the gateway. Only these may be used as `${NAME}` in `env` of a namespace's own
    /// `tooldock.yaml`, and by servers in files of the data directory.
    pub env_allowed: Vec<String>,
    /// Maximum values for limits in a namespace's own `tooldock.yaml`.
    pub ceilings: Ceilings,
    /// The operator's limits by namespace. They take precedence over all other limits and may exceed the ceilings.
    pub overrides: BTreeMap<NamespaceName, LimitsPatch>,
    /// The limits of the operator's file alone, if `$DATA/config.yaml` was merged into the other fields; otherwise `None`. See
    /// `narrow` in `tooldock-workers`.
    #[serde(skip)]
    pub operator: Option<Arc<OperatorLimits>>,
    /// The namespace whose worker waits for a debugger (`TOOLDOCK_DEBUG`); `None` for none.
    #[serde(skip)]
    pub debugged: Option<NamespaceName>,
}

/// Limits from the operator's file only, without those of `$DATA/config.yaml`.
#[derive(Debug, Clone, PartialEq)]
pub struct OperatorLimits {
    /// The key `namespaces:` in the operator's file.
    pub namespaces: NamespacesConfig,
    /// The limits of the servers in the operator's file (`upstreams.KIND.NAME.limits`).
    pub servers: BTreeMap<NamespaceName, LimitsPatch>,
    /// Names of the servers in the operator's file. Other files cannot raise their limits.
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
            debugged: None,
        }
    }
}

impl NamespacesConfig {
    /// The first entry of `env_allowed` that cannot be allowed: its index, and the reason. `None` if all entries can be allowed.
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
