//! The limits of a namespace. They are defined in a table with one row per limit, which contains its default and, for numbers,
//! its bounds.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::time::Duration;

use bytesize::ByteSize;
use serde::{Deserialize, Serialize};

use super::concurrency::Concurrency;
use super::sandbox::{Sandbox, SandboxMode};
use crate::bounds::{BoundedValue, TIMES, within};

/// Maximum number of worker processes that one namespace may have.
pub const PROCESSES_MAX: usize = 64;

/// Bounds of the number of concurrent calls to one worker.
const CALLS: RangeInclusive<Concurrency> = Concurrency::Calls(1)..=Concurrency::Calls(100_000);

/// Bounds of the number of waiting calls; 0 means that no call may wait.
const WAITING_CALLS: RangeInclusive<usize> = 0..=100_000;

/// Bounds of a result's size. They limit memory, because a complete result is in memory.
const RESULT: RangeInclusive<ByteSize> = ByteSize::b(1)..=ByteSize::gib(1);

/// Bounds of the number of threads that run sync tools in one worker.
const TOOL_THREADS: RangeInclusive<usize> = 1..=1_000;

/// Maximum of `queue` and `max_parked` in a namespace's own file. No ceilings can be configured for these two.
pub const QUEUE_MAX: usize = 65_536;
pub(crate) const ASK_TIMEOUT_MAX: Duration = Duration::from_secs(24 * 3600);

/// Maximum of `task_timeout` in a namespace's own file.
pub(crate) const TASK_TIMEOUT_MAX: Duration = Duration::from_secs(24 * 3600);

macro_rules! limits {
    (
        numbers {$( $(#[$doc:meta])* $number:ident: $kind:ty = $number_default:expr, $bounds:expr; )*}
        others {$( $(#[$other_doc:meta])* $other:ident: $type:ty = $default:expr; )*}
    ) => {
        /// All limits of one namespace.
        #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct Limits {
            $($(#[$doc])* pub $number: $kind,)*
            $($(#[$other_doc])* pub $other: $type,)*
            /// The operator's own lists for tools and principals, if `tools_allow`, `tools_deny` and `principals` may come from
            /// other sources, too. A tool or principal must then be allowed by both.
            #[serde(skip)]
            pub within: Option<Box<AccessLists>>,
        }

        impl Default for Limits {
            fn default() -> Self {
                Self {
                    $($number: $number_default,)*
                    $($other: $default,)*
                    within: None,
                }
            }
        }

        /// Limits of which each may be unset: an override for one namespace, or the values in its own `tooldock.yaml`.
        #[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct LimitsPatch {
            $($(#[$doc])* #[serde(skip_serializing_if = "Option::is_none")] pub $number: Option<$kind>,)*
            $($(#[$other_doc])* #[serde(skip_serializing_if = "Option::is_none")] pub $other: Option<$type>,)*
            /// Limits for single tools, by the tool's name.
            #[serde(skip_serializing_if = "BTreeMap::is_empty")]
            pub tools: BTreeMap<String, ToolLimits>,
            /// Further paths of the namespace's MCP endpoint. Only allowed in the operator's overrides.
            #[serde(skip_serializing_if = "Vec::is_empty")]
            pub aliases: Vec<String>,
        }

        impl Limits {
            /// Sets the limits that the patch contains. Limits of single tools are ignored.
            pub fn apply(&mut self, patch: &LimitsPatch) {
                $(if let Some(said) = patch.$number { self.$number = said; })*
                $(if let Some(said) = &patch.$other { self.$other.clone_from(said); })*
            }

            /// Lowers each number to that of `most` if it is higher.
            pub fn lower_to(&mut self, most: &Self) {
                $(self.$number = self.$number.min(most.$number);)*
            }

            /// Creates a patch that sets each limit to its value in these limits.
            pub fn patch(&self) -> LimitsPatch {
                LimitsPatch {
                    $($number: Some(self.$number),)*
                    $($other: Some(self.$other.clone()),)*
                    tools: BTreeMap::new(),
                    aliases: Vec::new(),
                }
            }
        }

        impl LimitsPatch {
            /// All keys that a patch of limits may have.
            pub const KEYS: &[&str] = &[$(stringify!($number),)* $(stringify!($other),)* "tools"];

            /// Checks all numbers against their bounds, and that there are no `aliases`, which are only allowed in overrides.
            ///
            /// # Errors
            ///
            /// The first number that is out of bounds, or the key `aliases`.
            pub fn check(&self) -> Result<(), OutOfBounds> {
                if !self.aliases.is_empty() {
                    return Err(OutOfBounds {
                        key: "aliases".to_owned(),
                        message: "belongs to namespaces.overrides.NAME of the operator's file".to_owned(),
                        too_low: false,
                    });
                }
                self.check_numbers()
            }

            /// Checks all numbers against their bounds.
            ///
            /// # Errors
            ///
            /// The first number that is out of bounds.
            pub fn check_numbers(&self) -> Result<(), OutOfBounds> {
                $(check(|| stringify!($number).to_owned(), self.$number, &$bounds)?;)*
                for (name, tool) in &self.tools {
                    check(|| format!("tools.{name}.timeout"), tool.timeout, &TIMES)?;
                    check(|| format!("tools.{name}.max_result"), tool.max_result, &RESULT)?;
                }
                Ok(())
            }

            /// Lowers each number to its ceiling, or to the operator's number if that is higher. Calls `say` with the key and a
            /// message for each lowered number.
            pub fn cap(&mut self, operator: &Self, ceilings: &Self, mut say: impl FnMut(&str, String)) {
                $(cap(&mut self.$number, operator.$number, ceilings.$number, |it| say(stringify!($number), it));)*
                for (name, tool) in &mut self.tools {
                    let own = operator.tools.get(name).copied().unwrap_or_default();
                    let mut say = |limit, it| say(&format!("tools.{name}.{limit}"), it);
                    cap(&mut tool.timeout, own.timeout, ceilings.timeout, |it| say("timeout", it));
                    cap(&mut tool.max_result, own.max_result, ceilings.max_result, |it| say("max_result", it));
                }
                // A sandbox that the operator has configured is not changed, even if it is weaker than the ceiling allows.
                if let (Some(asked), Some(ceiling)) = (&mut self.sandbox, &ceilings.sandbox)
                    && operator.sandbox.as_ref() != Some(asked)
                {
                    for said in asked.lower_to(ceiling) {
                        say("sandbox", said);
                    }
                }
            }
        }
    };
}

limits! {
    numbers {
        /// Time limit for one call of a tool.
        #[serde(with = "humantime_serde")]
        timeout: Duration = Duration::from_secs(30), TIMES;
        /// Time limit for the answer to one question to the client (elicitation, sampling).
        #[serde(with = "humantime_serde")]
        ask_timeout: Duration = Duration::from_secs(600), TIMES;
        /// Time limit for one call of a tool that runs as a task.
        #[serde(with = "humantime_serde")]
        task_timeout: Duration = Duration::from_secs(3600), TIMES;
        /// Maximum number of concurrent calls; `auto` is 8, and 512 for remote servers.
        max_concurrency: Concurrency = Concurrency::Auto, CALLS;
        /// Maximum number of calls that wait until another call ends. Further ones are refused.
        queue: usize = 256, WAITING_CALLS;
        /// Maximum number of calls that wait for an answer from their client. Further ones are refused.
        max_parked: usize = 64, WAITING_CALLS;
        /// Maximum size of the result of one call, in bytes of JSON.
        max_result: ByteSize = ByteSize::mib(10), RESULT;
        /// Maximum number of sync tools that run at the same time in one process, each on a separate thread.
        sync_concurrency: usize = 1, TOOL_THREADS;
        /// Number of worker processes that share the namespace's calls.
        processes: usize = 1, 1..=PROCESSES_MAX;
    }
    others {
        /// Glob patterns of the tools that may be listed and called.
        tools_allow: Vec<String> = vec!["*".into()];
        /// Glob patterns of tools that may not be listed or called, even if `tools_allow` contains them.
        tools_deny: Vec<String> = Vec::new();
        /// Glob patterns of the principals that may use the namespace.
        principals: Vec<String> = vec!["*".into()];
        /// True if callers are told only that an exception occurred, with the id of its log entry. False if they get the
        /// exception itself.
        mask_errors: bool = false;
        /// Selects the secrets of scope `global` that the namespace's workers get.
        global_secrets: GlobalSecrets = GlobalSecrets::All;
        /// Selects the treatment of a server's result that violates the `outputSchema` of its tool.
        output_schema: OutputSchema = OutputSchema::Warn;
        /// True if an argument that was sent as a string with JSON in it is converted to the object, array, number or boolean
        /// that the tool's schema demands.
        coerce_arguments: bool = false;
        /// Restrictions on the access of the namespace's processes to the rest of the machine.
        sandbox: Sandbox = Sandbox::default();
        /// Selects the treatment of a server's definitions that differ from the recorded ones.
        pins: PinMode = PinMode::Warn;
    }
}

/// The treatment of a server's result that violates the `outputSchema` of its tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OutputSchema {
    /// Results are not checked against the `outputSchema` of their tool.
    Off,
    /// A result that violates the schema is returned to the caller, counted as a violation, and logged once for each tool and
    /// fault.
    Warn,
    /// A call fails with the error `output_type` if its result violates the schema.
    Strict,
}

/// The treatment of a server's definitions (tools, prompts, resource templates) that differ from the recorded ones. The variants
/// are ordered from the least to the most strict.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum PinMode {
    /// Definitions of servers are neither recorded nor compared.
    Off,
    /// Definitions that differ from the recorded ones are reported, but still offered to clients.
    #[default]
    Warn,
    /// Definitions that differ from the recorded ones are reported, and hidden from clients until an operator approves them.
    Enforce,
}

impl PinMode {
    /// The pin mode as it is written in a configuration file.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Warn => "warn",
            Self::Enforce => "enforce",
        }
    }
}

/// The secrets of scope `global` that the workers of a namespace get (WRK-18).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GlobalSecrets {
    /// Workers get all global secrets.
    All,
    /// Workers get only the secrets that the namespace's `tooldock.yaml` declares under `secrets:`.
    Declared,
}

/// Limits for one tool, which replace those of its namespace.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ToolLimits {
    /// Time limit for one call of the tool; `None` for the namespace's [`Limits::timeout`].
    #[serde(with = "humantime_serde", skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Duration>,
    /// Maximum size of the tool's result; `None` for the namespace's [`Limits::max_result`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_result: Option<ByteSize>,
}

impl ToolLimits {
    /// Lowers the time limit and the maximum result size to those of `own`. If `own` does not set a number, that of the
    /// namespace is used instead.
    pub fn lower_to(&mut self, own: Option<&Self>, namespace: &Limits) {
        let own = own.copied().unwrap_or_default();
        let timeout = own.timeout.unwrap_or(namespace.timeout);
        let max_result = own.max_result.unwrap_or(namespace.max_result);
        self.timeout = self.timeout.map(|it| it.min(timeout));
        self.max_result = self.max_result.map(|it| it.min(max_result));
    }
}

/// The lists in [`Limits`] that decide which tools and principals are allowed.
#[derive(Debug, Clone, PartialEq)]
pub struct AccessLists {
    /// Glob patterns of allowed tools, as in [`Limits::tools_allow`].
    pub tools_allow: Vec<String>,
    /// Glob patterns of denied tools, as in [`Limits::tools_deny`].
    pub tools_deny: Vec<String>,
    /// Glob patterns of allowed principals, as in [`Limits::principals`].
    pub principals: Vec<String>,
}

impl Limits {
    /// The lists for tools and principals in these limits.
    pub fn lists(&self) -> AccessLists {
        AccessLists {
            tools_allow: self.tools_allow.clone(),
            tools_deny: self.tools_deny.clone(),
            principals: self.principals.clone(),
        }
    }

    /// Returns true if the same principals may use a namespace under both limits.
    pub fn same_principals(&self, other: &Self) -> bool {
        let operators = |limits: &Self| limits.within.as_ref().map(|it| it.principals.clone());
        self.principals == other.principals && operators(self) == operators(other)
    }
}

/// The key `namespaces.ceilings:`: maximum values for limits in a namespace's own file. A higher value is lowered to its ceiling,
/// and a warning is logged and shown.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Ceilings {
    /// Ceiling of `timeout`, the time limit for one call.
    #[serde(with = "humantime_serde")]
    pub timeout: Duration,
    /// Ceiling of `max_concurrency`, the number of concurrent calls.
    pub max_concurrency: usize,
    /// Ceiling of `max_result`, the size of a result.
    pub max_result: ByteSize,
    /// Ceiling of `sync_concurrency`, the number of concurrent sync tools in one process.
    pub sync_concurrency: usize,
    /// Ceiling of `processes`, the number of worker processes of a namespace.
    pub processes: usize,
    /// The weakest `sandbox` that a namespace's own `tooldock.yaml` may choose.
    pub sandbox: Sandbox,
}

impl Default for Ceilings {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(600),
            max_concurrency: 64,
            max_result: ByteSize::mib(64),
            sync_concurrency: 16,
            processes: 4,
            sandbox: Sandbox::of(SandboxMode::Off),
        }
    }
}

impl Ceilings {
    /// The maximum of each number, including the maxima that cannot be configured.
    pub fn patch(&self) -> LimitsPatch {
        // All fields are listed, so that the compiler reports this line when a ceiling is added.
        let Self {
            timeout,
            max_concurrency,
            max_result,
            sync_concurrency,
            processes,
            ref sandbox,
        } = *self;
        LimitsPatch {
            sandbox: Some(sandbox.clone()),
            timeout: Some(timeout),
            ask_timeout: Some(ASK_TIMEOUT_MAX),
            task_timeout: Some(TASK_TIMEOUT_MAX),
            max_concurrency: Some(Concurrency::Calls(max_concurrency)),
            queue: Some(QUEUE_MAX),
            max_parked: Some(QUEUE_MAX),
            max_result: Some(max_result),
            sync_concurrency: Some(sync_concurrency),
            processes: Some(processes),
            ..LimitsPatch::default()
        }
    }
}

/// A limit that is out of bounds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutOfBounds {
    /// The key of the limit, relative to the key that contains the limits.
    pub key: String,
    /// Error text that names the value and its bounds.
    pub message: String,
    /// True if the limit is below its bounds, false if it is above.
    pub too_low: bool,
}

fn check<T: BoundedValue>(
    key: impl Fn() -> String,
    said: Option<T>,
    bounds: &RangeInclusive<T>,
) -> Result<(), OutOfBounds> {
    let Some(value) = said else { return Ok(()) };
    within(value, bounds).map_err(|message| OutOfBounds {
        key: key(),
        message,
        too_low: value < *bounds.start(),
    })
}

fn cap<T: BoundedValue>(
    said: &mut Option<T>,
    operator: Option<T>,
    ceiling: Option<T>,
    say: impl FnOnce(String),
) {
    let most = operator.filter(|own| Some(*own) > ceiling).or(ceiling);
    if let (Some(asked), Some(most)) = (*said, most)
        && asked > most
    {
        let (asked, applies) = (asked.spelled(), most.spelled());
        say(format!("{asked} is above the ceiling; {applies} applies"));
        *said = Some(most);
    }
}
