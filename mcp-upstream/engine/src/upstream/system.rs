//! The management tools: the functions of the namespace `_system`, which run in this program.
//!
//! ```text
//!   listener with the profile `manager` ──▶ the surfaces of every namespace ──▶ FunctionCall ──▶ SystemPort
//!                                                                                                  │  control runtime
//!                                                      tool.rs: parameters, result, hints ◀── tools.rs: the table
//!                                                                                                  │
//!                              Workspace (folders, files, environments) ◀── Management ──▶ CoreLink (reload, test)
//! ```
//!
//! The tools are declared like a worker's, in the [`Namespace`]. So they use the code of `WorkerUpstream` for lists, sessions,
//! eras, limits, audit and metrics, and this module has no transport code.
//!
//! A tool runs in the control runtime, which owns the child processes. Dropping its call ends the tool, and with it the child
//! processes for which the tool waits. A change of files that has begun is finished.
//!
//! `core.rs` is the port to the managed core: `service/own_core.rs` if it is this process, `proxy/serve/core_over_http.rs` with
//! `--role manager`. `registry_package.rs` reads the MCP registry for a server that is added by its name.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tooldock_base::config::{Limits, ToolLimits};
#[cfg(any(test, feature = "testing"))]
use tooldock_base::effect::Effect;
use tooldock_base::effect::ToolEffects;
use tooldock_base::error::{CallError, CallErrorCode};
use tooldock_base::gate::Gate;
use tooldock_base::names::NamespaceName;
use tooldock_base::parking::Parking;
use tooldock_base::policy::ToolPolicy;
use tooldock_credentials::keys::KeyStore;
use tooldock_credentials::secrets::SecretNames;
use tooldock_process::repositories::Builder;
use tooldock_process::worker::{CallSink, Operation, ToolReply, WorkerCall};
use tooldock_workers::explain::{Reach, ReachQuestion};
use tooldock_workers::manage::Workspace;
use tooldock_workers::registry::{Attachment, Namespace, SecretsStatus, UpstreamKind};

use super::worker::WorkerPort;
use crate::engine::{UpstreamReply, Work, unknown_tool};

pub mod core;
mod parameters;
mod registry_package;
mod tool;
mod tools;

pub use registry_package::with_package;
pub use tools::{CALL_AGAIN, KeySummary, KeyTools, ServerFacts};

use self::core::{CoreLink, CoreRequest};
use tool::{ManagementToolEntry, Progress, Time};

/// The management server's instructions for models, sent when a client opens a conversation.
const INSTRUCTIONS: &str = "Management of this ToolDock server: namespaces, tool files, Python packages, secrets. \
    To make a tool: create_namespace, write_tool, add_requirement for each package the code imports, check_secrets, \
    reload_core, test_tool; read_output shows what it printed. To run a server that others wrote: add_server, reload_core. \
    An API key for a client of some namespaces: token_create; explain says what a key may do. Secret values never pass through these tools.";

/// State that the management tools use.
pub struct Management {
    /// The folders of the namespaces, and the operations on them.
    pub workspace: Arc<Workspace>,
    secrets: ManagedSecrets,
    /// Analyser of other authors' repositories and packages, in a child process.
    pub builder: Builder,
    core: Arc<dyn CoreLink>,
    /// Values from the configuration. The lock is held only to copy or replace the pointer.
    facts: Mutex<Arc<ServerFacts>>,
    /// Time limit of an installer, such as pip.
    install: Duration,
    control: Handle,
    started: Instant,
}

/// The secrets as management uses them: their names and statuses, the container in which values are set, and the API keys.
#[derive(Debug, Clone)]
pub struct ManagedSecrets {
    /// The secrets store without access to values.
    pub names: SecretNames,
    /// The container in which operators run `app.cli.secrets` to set values.
    pub container: String,
    /// The store of API keys.
    pub keys: Arc<KeyStore>,
}

impl Management {
    /// Creates the management of `workspace` and of the core that `core` connects to. `install` is the time limit of installers.
    /// Tools run on `control`.
    pub fn new(
        workspace: Arc<Workspace>,
        secrets: ManagedSecrets,
        builder: Builder,
        core: Arc<dyn CoreLink>,
        facts: ServerFacts,
        install: Duration,
        control: Handle,
    ) -> Self {
        Self {
            workspace,
            secrets,
            builder,
            core,
            facts: Mutex::new(Arc::new(facts)),
            install,
            control,
            started: Instant::now(),
        }
    }

    /// Replaces the values from the configuration after it has changed.
    pub fn set_facts(&self, facts: ServerFacts) {
        *self.facts.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(facts);
    }

    /// Runs work that may start child processes on the control runtime. Returns `None` if the work panicked or the runtime ended.
    /// Dropping the future ends the work.
    pub async fn on_control_runtime<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Option<T> {
        let mut task = JoinSet::new();
        task.spawn_on(work, &self.control);
        task.join_next().await?.ok()
    }

    /// The tools for API keys.
    fn key_tools(&self) -> KeyTools {
        KeyTools::of_management(Arc::clone(&self.secrets.keys))
    }

    /// The store of API keys.
    pub fn keys(&self) -> Arc<KeyStore> {
        Arc::clone(&self.secrets.keys)
    }

    /// The tools that a principal or key opens, as reported by the core.
    ///
    /// # Errors
    ///
    /// When the core cannot be reached, or does not know the principal.
    pub async fn reach_of(&self, who: String) -> Result<Reach, CallError> {
        let question = tool::written(&ReachQuestion { who })?;
        self.ask_core(CoreRequest::Explain { question }).await
    }

    /// The secrets store without access to values.
    pub fn secret_names(&self) -> SecretNames {
        self.secrets.names.clone()
    }

    fn facts(&self) -> Arc<ServerFacts> {
        Arc::clone(&self.facts.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The effects of each tool, in the order in which lists show the tools.
    pub const EFFECTS: ToolEffects = ToolEffects::new(tools::EFFECTS);

    /// The names of all tools with their effects.
    #[cfg(any(test, feature = "testing"))]
    pub const fn effects() -> &'static [(&'static str, &'static [Effect])] {
        tools::EFFECTS
    }

    /// The namespace of the tools, for the registry.
    pub fn namespace(&self) -> Namespace {
        // The namespace has the longest time limit that one of its tools needs.
        Self::namespace_within(self.install.max(self.builder.timeout()))
    }

    fn namespace_within(install: Duration) -> Namespace {
        let entries = tools::all();
        let limits = Limits {
            timeout: Time::Short.limit(install),
            ..Limits::default()
        };
        let tool_limits = entries.iter().map(|entry| {
            let own = ToolLimits {
                timeout: Some(entry.time.limit(install)),
                max_result: None,
            };
            (entry.declaration.name.to_string(), own)
        });
        Namespace {
            name: NamespaceName::system(),
            description: INSTRUCTIONS.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            secrets: Vec::new(),
            secrets_status: SecretsStatus::NoSecretsNeeded,
            has_requirements: false,
            policy: ToolPolicy::new(&limits)
                .expect("the default lists have valid patterns")
                .with_effects(Self::EFFECTS),
            tool_limits: tool_limits.collect::<BTreeMap<_, _>>(),
            gate: Arc::new(Gate::new(limits.max_concurrency.local(), limits.queue)),
            parked: Arc::new(Parking::new(limits.max_parked)),
            tools: entries
                .iter()
                .map(|it| Arc::clone(&it.declaration))
                .collect(),
            limits,
            resources: Vec::new(),
            resource_templates: Vec::new(),
            prompts: Vec::new(),
            completions: false,
            files: Vec::new(),
            issues: Vec::new(),
            upstream: UpstreamKind::System,
            content_hash: [0; 32],
            attached: Attachment::default(),
            recovering: std::sync::Weak::new(),
        }
    }
}

impl fmt::Debug for Management {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Management").finish_non_exhaustive()
    }
}

/// The worker port that runs the calls of the management tools.
pub struct SystemPort {
    management: Arc<Management>,
    entries: Vec<ManagementToolEntry>,
}

impl SystemPort {
    /// Creates the port of the management tools.
    pub fn new(management: Arc<Management>) -> Self {
        Self {
            management,
            entries: tools::all(),
        }
    }
}

impl WorkerPort for SystemPort {
    fn call(self: Arc<Self>, call: WorkerCall, sink: Option<Arc<dyn CallSink>>) -> Work {
        Box::pin(async move {
            let Operation::CallTool { tool, arguments } = call.operation else {
                return Err(unknown_tool(call.operation.subject()));
            };
            let mut entries = self.entries.iter();
            let found = entries.find(|entry| entry.declaration.name == tool);
            let entry = found.ok_or_else(|| unknown_tool(&tool))?;
            let management = Arc::clone(&self.management);
            let progress = Progress::new(sink, call.maker);
            let run = (entry.run)(management, arguments, progress);
            // The call is the only task of the set: dropping the set aborts the task.
            let mut task = JoinSet::new();
            task.spawn_on(run, &self.management.control);
            let value = match task.join_next().await {
                Some(Ok(outcome)) => outcome?,
                Some(Err(error)) => {
                    tracing::error!(%error, tool = &*tool, "a management tool was interrupted");
                    return Err(interrupted());
                }
                None => return Err(interrupted()),
            };
            Ok(UpstreamReply::Value(ToolReply {
                value,
                content: None,
                meta: None,
            }))
        })
    }
}

fn interrupted() -> CallError {
    CallError::new(
        CallErrorCode::InternalError,
        "The tool was interrupted. The log of the gateway says more",
    )
}

#[cfg(test)]
mod tests;
