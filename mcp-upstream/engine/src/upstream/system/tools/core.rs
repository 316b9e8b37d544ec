//! Tools for the core and the server itself: `reload_core`, `health`, `server_config`.

use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tooldock_base::effect::Effect;
use tooldock_base::error::CallError;

use super::super::Management;
use super::super::core::{CoreHealth, CoreRequest};
use super::super::parameters::Nothing;
use super::super::tool::{Hints, ManagementTool, Progress, Time};

/// The tool `reload_core`, which makes the served namespaces equal to those on disk.
pub(in super::super) struct ReloadCore;

#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub(in super::super) struct ReloadResult {
    reloaded: bool,
    /// Names of all namespaces that are served after the reload.
    namespaces: Vec<String>,
    /// Namespaces whose worker was restarted.
    workers_restarted: Vec<String>,
    /// Namespaces whose packages were installed by the reload.
    deps_synced: Vec<String>,
    /// Namespaces that could not be updated, with the reasons. Their former versions may continue to serve.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    failed: Vec<NamespaceFailure>,
    /// Other problems that the reload found, such as files that were skipped.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    issues: Vec<Issue>,
}

#[derive(Debug, Serialize, Deserialize, JsonSchema)]
struct NamespaceFailure {
    namespace: String,
    code: String,
    message: String,
}

#[derive(Debug, Serialize, Deserialize, JsonSchema)]
struct Issue {
    namespace: String,
    code: String,
    subject: String,
    message: String,
}

impl ReloadResult {
    /// The reason why the secrets of an earlier reload are still in use; `None` if the current secrets are used.
    pub(super) fn with_old_secrets(&self) -> Option<&str> {
        let mut failed = self.failed.iter();
        let secrets = failed.find(|it| it.code == "secrets_unavailable")?;
        Some(&secrets.message)
    }
}

impl ManagementTool for ReloadCore {
    const NAME: &'static str = "reload_core";
    const DESCRIPTION: &'static str = "Make the core serve what is on disk now: needed after create_namespace, delete_namespace, \
        write_tool, delete_tool, add_requirement, install_requirements, add_server, remove_server. Only \
        changed workers restart; calls in flight finish. Mend what `failed` and `issues` in the result name. \
        After calling: test_tool, or list_namespaces.";
    const HINTS: Hints = Hints::ADDS;
    const EFFECTS: &'static [Effect] = &[Effect::Reloads];
    const TIME: Time = Time::Long;
    type Parameters = Nothing;
    type Outcome = ReloadResult;

    async fn run(
        management: Arc<Management>,
        _: Nothing,
        progress: Progress,
    ) -> Result<ReloadResult, CallError> {
        progress.report(0, 1, "reloading the core");
        let reloaded = management.ask_core(CoreRequest::Reload).await;
        progress.report(1, 1, "reloaded");
        reloaded
    }
}

/// The tool `health`: the state of the management server.
pub(in super::super) struct Health;

#[derive(Debug, Serialize, JsonSchema)]
pub(in super::super) struct HealthReport {
    /// Time since the management server was started.
    manager_uptime: String,
    core_reachable: bool,
    /// The version of the Python interpreter that runs tools; absent if no interpreter was found.
    python_version: Option<String>,
    /// Number of namespaces that the core serves; 0 if the core cannot be reached.
    namespaces_loaded: usize,
    /// Number of tools that the core serves.
    total_tools: usize,
    /// The problems that were found; absent if there are none.
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<String>,
}

impl ManagementTool for Health {
    const NAME: &'static str = "health";
    const DESCRIPTION: &'static str = "Show uptime, whether the core can be reached, the Python version of tools, namespaces and tools \
        served. Call this first when something does not work. If core_reachable is false, files can be \
        changed, but reload_core and test_tool wait: ask the operator to start the core.";
    const HINTS: Hints = Hints::READS;
    const EFFECTS: &'static [Effect] = &[Effect::ReadsState];
    type Parameters = Nothing;
    type Outcome = HealthReport;

    async fn run(
        management: Arc<Management>,
        _: Nothing,
        _: Progress,
    ) -> Result<HealthReport, CallError> {
        let reached = management.core().send(CoreRequest::Health).await.is_ok();
        let core = management.ask_core::<CoreHealth>(CoreRequest::Health).await;
        let python = management.workspace.python_version().await;
        let problem = [
            core.as_ref().err().map(|it| it.message.clone()),
            python.as_ref().err().cloned(),
        ];
        let problem: Vec<_> = problem.into_iter().flatten().collect();
        let (namespaces_loaded, total_tools) =
            core.map_or((0, 0), |core| (core.namespaces, core.tools));
        Ok(HealthReport {
            manager_uptime: uptime(management.started.elapsed()),
            core_reachable: reached,
            python_version: python.ok(),
            namespaces_loaded,
            total_tools,
            problem: (!problem.is_empty()).then(|| problem.join("; ")),
        })
    }
}

/// Formats a duration like `2h 15m`, with the two largest units.
fn uptime(time: Duration) -> String {
    let seconds = time.as_secs();
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds}s"),
        (0, 0, minutes) => format!("{minutes}m {}s", seconds % 60),
        (0, hours, minutes) => format!("{hours}h {minutes}m"),
        (days, hours, _) => format!("{days}d {hours}h"),
    }
}

/// The tool `server_config`, which returns the non-secret values of the configuration.
pub(in super::super) struct ServerConfig;

/// The values of `server_config`, none of which is a secret.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct ServerFacts {
    /// The port at which the core serves tools.
    pub core_port: u16,
    /// The port at which the management tools are served.
    pub manager_port: u16,
    /// The path of the data directory.
    pub data_dir: String,
    /// The minimum level of log messages.
    pub log_level: String,
    /// Origins of web pages that may call the server, separated by commas.
    pub cors_origins: String,
    /// Number of hours after which an unused session ends.
    pub mcp_session_ttl_hours: u64,
}

impl ManagementTool for ServerConfig {
    const NAME: &'static str = "server_config";
    const DESCRIPTION: &'static str = "Show the configuration of this server without secrets: ports, data directory, log level, origins, \
        session time. Only the operator changes it. After calling: health.";
    const HINTS: Hints = Hints::READS;
    const EFFECTS: &'static [Effect] = &[Effect::ReadsConfiguration];
    type Parameters = Nothing;
    type Outcome = ServerFacts;

    async fn run(
        management: Arc<Management>,
        _: Nothing,
        _: Progress,
    ) -> Result<ServerFacts, CallError> {
        Ok(ServerFacts::clone(&management.facts()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uptime_is_told_in_its_two_largest_units() {
        for (seconds, text) in [
            (0, "0s"),
            (59, "59s"),
            (61, "1m 1s"),
            (8100, "2h 15m"),
            (3600, "1h 0m"),
            (180_000, "2d 2h"),
        ] {
            assert_eq!(uptime(Duration::from_secs(seconds)), text);
        }
    }
}
