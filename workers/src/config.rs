//! The keys `workers:` and `namespaces:` of the configuration file. `Default` is the reference for their defaults.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytesize::ByteSize;
use serde::{Deserialize, Serialize};

use crate::names::NamespaceName;
use crate::template::{is_own, is_variable_name};

/// The most worker processes one namespace may have.
pub const PROCESSES_MAX: usize = 64;

/// `workers:` — how Python workers are made and kept alive.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct WorkersConfig {
    /// The interpreter that makes environments: a name on `PATH` or a path.
    pub python: String,
    /// What the base environment holds. Of orjson and uvloop only wheels are taken, and a platform without them does
    /// without.
    pub base_requirements: Vec<String>,
    /// Where the base environment lives; `$DATA` stands for the data directory.
    pub base_env: String,
    /// How long a worker may take from spawn to its ready line.
    #[serde(with = "humantime_serde")]
    pub ready_timeout: Duration,
    /// How long installing one namespace's requirements may take.
    #[serde(with = "humantime_serde")]
    pub sync_timeout: Duration,
    /// Delays between restarts.
    pub backoff: BackoffConfig,
    /// When a worker that keeps dying counts as crash-looping.
    pub crash_loop: CrashLoopConfig,
}

/// `workers.backoff:` — exponential, with jitter.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BackoffConfig {
    /// The first delay.
    #[serde(with = "humantime_serde")]
    pub initial: Duration,
    /// The longest delay.
    #[serde(with = "humantime_serde")]
    pub max: Duration,
}

/// `workers.crash_loop:` — so many failures in so long a window.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CrashLoopConfig {
    /// Failures that make a crash loop.
    pub failures: u32,
    /// The window they are counted in.
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

/// `namespaces:` — limits of every namespace, how far its own file may go, and overrides by name.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NamespacesConfig {
    /// What a namespace gets that says nothing.
    pub defaults: Limits,
    /// Variables of the gateway's environment that `env` of a namespace's own `tooldock.yaml` may name as `${NAME}`.
    pub env_allowed: Vec<String>,
    /// How far a namespace's own `tooldock.yaml` may go.
    pub ceilings: Ceilings,
    /// The operator's last word, by namespace. Not bound by the ceilings.
    pub overrides: BTreeMap<NamespaceName, LimitsPatch>,
    /// What the operator's file alone says, where `$DATA/config.yaml` is part of the above. See [`crate::narrow`].
    #[serde(skip)]
    pub operator: Option<Arc<OperatorLimits>>,
}

/// What the operator's file alone says of limits.
#[derive(Debug, Clone, PartialEq)]
pub struct OperatorLimits {
    /// Its `namespaces:`.
    pub namespaces: NamespacesConfig,
    /// The limits of its servers, `upstreams.stdio.NAME.limits`.
    pub servers: BTreeMap<NamespaceName, LimitsPatch>,
}

/// The limits of one namespace, complete.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Time limit of one call.
    #[serde(with = "humantime_serde")]
    pub timeout: Duration,
    /// Time limit of one question to the client (elicitation, sampling).
    #[serde(with = "humantime_serde")]
    pub ask_timeout: Duration,
    /// Calls that run at once.
    pub max_concurrency: usize,
    /// Calls that may wait for their turn.
    pub queue: usize,
    /// Calls that may wait for an answer from their client.
    pub max_parked: usize,
    /// The largest result of one call, in bytes of JSON.
    pub max_result: ByteSize,
    /// Sync tools that run at once in one process, each on its own thread.
    pub sync_concurrency: usize,
    /// Worker processes that share the namespace's calls.
    pub processes: usize,
    /// Glob patterns of the tools that may be listed and called.
    pub tools_allow: Vec<String>,
    /// Glob patterns of tools that may not; wins over `tools_allow`.
    pub tools_deny: Vec<String>,
    /// Glob patterns of the principals that may use the namespace.
    pub principals: Vec<String>,
    /// Whether callers read of an exception only that there was one, and the id under which the log has it.
    pub mask_errors: bool,
    /// Further lists that must allow a tool and a principal, too: the operator's, where the ones above are not only the
    /// operator's.
    #[serde(skip)]
    pub within: Option<Box<AccessLists>>,
}

/// The lists of [`Limits`] that say who may use what.
#[derive(Debug, Clone, PartialEq)]
pub struct AccessLists {
    /// See [`Limits::tools_allow`].
    pub tools_allow: Vec<String>,
    /// See [`Limits::tools_deny`].
    pub tools_deny: Vec<String>,
    /// See [`Limits::principals`].
    pub principals: Vec<String>,
}

impl Limits {
    /// Its own lists.
    pub fn lists(&self) -> AccessLists {
        AccessLists {
            tools_allow: self.tools_allow.clone(),
            tools_deny: self.tools_deny.clone(),
            principals: self.principals.clone(),
        }
    }

    /// Whether the same principals may use a namespace under both limits.
    pub fn same_principals(&self, other: &Self) -> bool {
        let operators = |limits: &Self| limits.within.as_ref().map(|it| it.principals.clone());
        self.principals == other.principals && operators(self) == operators(other)
    }
}

impl NamespacesConfig {
    /// Why an entry of `env_allowed` cannot be allowed, if one cannot: its index, and the reason.
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

impl Default for Limits {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(30),
            ask_timeout: Duration::from_secs(600),
            max_concurrency: 8,
            queue: 256,
            max_parked: 64,
            max_result: ByteSize::mib(10),
            sync_concurrency: 1,
            processes: 1,
            tools_allow: vec!["*".into()],
            tools_deny: Vec::new(),
            principals: vec!["*".into()],
            mask_errors: false,
            within: None,
        }
    }
}

/// `namespaces.ceilings:` — a value above its ceiling in a namespace's own file is clamped, logged and shown.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Ceilings {
    /// Highest `timeout`.
    #[serde(with = "humantime_serde")]
    pub timeout: Duration,
    /// Highest `max_concurrency`.
    pub max_concurrency: usize,
    /// Highest `max_result`.
    pub max_result: ByteSize,
    /// Highest `sync_concurrency`.
    pub sync_concurrency: usize,
    /// Highest `processes`.
    pub processes: usize,
}

impl Default for Ceilings {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(600),
            max_concurrency: 64,
            max_result: ByteSize::mib(64),
            sync_concurrency: 16,
            processes: 4,
        }
    }
}

/// Limits of which any may be unsaid: one namespace's override, or what its own `tooldock.yaml` asks for.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LimitsPatch {
    /// See [`Limits::timeout`].
    #[serde(with = "humantime_serde", skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Duration>,
    /// See [`Limits::ask_timeout`].
    #[serde(with = "humantime_serde", skip_serializing_if = "Option::is_none")]
    pub ask_timeout: Option<Duration>,
    /// See [`Limits::max_concurrency`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_concurrency: Option<usize>,
    /// See [`Limits::queue`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<usize>,
    /// See [`Limits::max_parked`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_parked: Option<usize>,
    /// See [`Limits::max_result`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_result: Option<ByteSize>,
    /// See [`Limits::sync_concurrency`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sync_concurrency: Option<usize>,
    /// See [`Limits::processes`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub processes: Option<usize>,
    /// See [`Limits::tools_allow`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tools_allow: Option<Vec<String>>,
    /// See [`Limits::tools_deny`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tools_deny: Option<Vec<String>>,
    /// See [`Limits::principals`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub principals: Option<Vec<String>>,
    /// See [`Limits::mask_errors`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mask_errors: Option<bool>,
    /// Limits of single tools, by name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub tools: BTreeMap<String, ToolLimits>,
}

/// Limits of one tool.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ToolLimits {
    /// See [`Limits::timeout`].
    #[serde(with = "humantime_serde", skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Duration>,
    /// See [`Limits::max_result`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_result: Option<ByteSize>,
}
