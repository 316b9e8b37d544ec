//! The official conformance suite, one revision after the other, against gateways whose namespace offers its contract:
//! a worker, a stdio server of either era and of both, and a remote server that is another gateway in front of those.
//!
//! Every check must pass, whether the revision requires its scenario or not; a warning counts as a failure. Scenarios of
//! the extensions for tasks and for skills have namespaces of their own.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value, json};

use crate::support::gateway::Builder;
use crate::support::{Gateway, everything, programs};

/// The results of a run of the suite, by scenario.
#[derive(Default)]
struct Report {
    passed: BTreeMap<String, usize>,
    faults: Vec<String>,
}

impl Report {
    /// `selected_extension`: true if the run was about an extension.
    fn read(folder: &Path, selected_extension: bool) -> Self {
        let mut report = Self::default();
        for entry in std::fs::read_dir(folder).expect("the suite's results") {
            let entry = entry.expect("an entry").path();
            let name = entry
                .file_name()
                .expect("a name")
                .to_string_lossy()
                .into_owned();
            let scenario = scenario(&name);
            if is_extension(&scenario) && !selected_extension {
                continue;
            }
            let text = std::fs::read_to_string(entry.join("checks.json")).expect("the checks");
            let checks: Vec<Value> = serde_json::from_str(&text).expect("a list of checks");
            report.add(scenario, &checks);
        }
        report
    }

    fn add(&mut self, scenario: String, checks: &[Value]) {
        let passed = self.passed.entry(scenario.clone()).or_default();
        for check in checks {
            match check["status"].as_str() {
                Some("SUCCESS") => *passed += 1,
                Some("INFO" | "SKIPPED") => {}
                status => self.faults.push(format!(
                    "{scenario}: {} {}: {} {} {}",
                    status.unwrap_or("no status"),
                    check["id"],
                    check["description"],
                    check["errorMessage"],
                    check["details"],
                )),
            }
        }
    }

    fn total(&self) -> usize {
        self.passed.values().sum()
    }
}

/// `server-NAME-2026-11-22T01-53-17-460Z` without its ends.
fn scenario(folder: &str) -> String {
    let name = folder.strip_prefix("server-").unwrap_or(folder);
    let name = name.get(..name.len().saturating_sub(25)).unwrap_or(name);
    name.to_owned()
}

fn is_extension(scenario: &str) -> bool {
    scenario.starts_with("tasks-") || scenario.starts_with("sep-2640-")
}

async fn run_suite(url: String, selection: &'static [&'static str]) -> Report {
    tokio::task::spawn_blocking(move || {
        let results = tempfile::TempDir::new().expect("a temporary directory");
        let (mut node, packages) = programs::node();
        let suite = "node_modules/@modelcontextprotocol/conformance/dist/index.js";
        let output = node
            .arg(packages.join(suite))
            .args(["server", "--url", &url, "--output-dir"])
            .arg(results.path())
            .args(selection)
            .output()
            .expect("the suite starts");
        let about_extension = selection.iter().any(|it| is_extension(it));
        let report = Report::read(results.path(), about_extension);
        assert!(
            report.total() > 0,
            "the suite checked nothing\n{}\n{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
        report
    })
    .await
    .expect("not cancelled")
}

/// How the suite is told what to run, and how many checks there are. (One more at 2025-11-25 looks at short answers
/// only where they come as event streams; here they are JSON.)
const RUNS: [(&[&str], usize); 4] = [
    (&["--requirements", "2025-11-25"], 83),
    (&["--requirements", "2026-07-28"], 152),
    (&["--suite", "all", "--spec-version", "2025-06-18"], 56),
    (&["--suite", "all", "--spec-version", "2025-03-26"], 3),
];

/// Scenarios no revision requires, and how many checks they have.
const BEYOND: [(&str, &str, usize); 6] = [
    ("2025-11-25", "server-sse-polling", 3),
    ("2025-11-25", "server-session-lifecycle", 3),
    ("2025-11-25", "json-schema-2020-12", 8),
    ("2026-07-28", "json-schema-2020-12", 8),
    ("2026-07-28", "http-header-validation", 14),
    ("2026-07-28", "http-custom-header-server-validation", 10),
];

/// Scenarios of the tasks extension, and how many checks they have. One more scenario has no checks yet.
const TASKS: [(&[&str], usize); 9] = [
    (&["--scenario", "tasks-lifecycle"], 9),
    (&["--scenario", "tasks-capability-negotiation"], 5),
    (&["--scenario", "tasks-wire-fields"], 4),
    (&["--scenario", "tasks-request-state-removal"], 3),
    (&["--scenario", "tasks-mrtr-input"], 4),
    (&["--scenario", "tasks-request-headers"], 5),
    (&["--scenario", "tasks-dispatch-and-envelope"], 9),
    (&["--scenario", "tasks-required-task-error"], 3),
    (&["--scenario", "tasks-mrtr-composition"], 2),
];

/// Scenarios of the skills extension, and how many checks they have.
const SKILLS: [(&[&str], usize); 3] = [
    (&["--scenario", "sep-2640-skills-enumeration"], 32),
    (&["--scenario", "sep-2640-skills-manifest"], 6),
    (&["--scenario", "sep-2640-skills-directory"], 7),
];

/// The kind of server with the suite's contract behind the gateway.
#[derive(Clone, Copy)]
enum Upstream {
    /// Python functions in a worker.
    Worker,
    /// A process that speaks the protocol, in this era.
    Stdio(&'static str),
    /// A server over HTTP that speaks the protocol in this era.
    Remote(&'static str),
}

impl Upstream {
    /// The gateway, and the server behind it where that is one of its own.
    async fn behind_a_gateway(self) -> (Gateway, Option<Gateway>) {
        let (gateway, server) = match self {
            Self::Worker => {
                let gateway = Gateway::empty().fixture("everything", "conformance/everything");
                (gateway, None)
            }
            Self::Stdio(era) => (everything::behind_a_gateway(&[("everything", era)]), None),
            Self::Remote(era) => {
                let server = everything::behind_a_gateway(&[("everything", era)])
                    .config(json!({"admission": {"origins": []}}))
                    .core(json!({"auth": ["none"], "modern": era != "legacy"}));
                let server = everything::start(server).await;
                let remote = json!({
                    "everything": {"backends": [server.url("/mcp/everything")], "mode": "client"}
                });
                let gateway = Gateway::empty().config(json!({"upstreams": {"remote": remote}}));
                (gateway, Some(server))
            }
        };
        (everything::start(as_the_suite_wants(gateway)).await, server)
    }
}

/// The configuration of a gateway that the suite asks.
pub(crate) fn as_the_suite_wants(gateway: Builder) -> Builder {
    gateway
        .config(json!({"sessions": {"poll_after": "200ms"}, "admission": {"origins": []}}))
        .core(json!({"auth": ["none"]}))
}

async fn every_check_passes_at_every_revision(upstream: Upstream) {
    let (gateway, _server) = upstream.behind_a_gateway().await;
    every_check_passes(&gateway.url("/mcp/everything")).await;
}

/// Runs the suite at every revision against the namespace `everything` at `url`.
///
/// # Panics
///
/// When a check fails, or is not made.
pub(crate) async fn every_check_passes(url: &str) {
    let mut faults = Vec::new();
    for (selection, expected) in RUNS {
        let revision = selection.last().copied().expect("a revision");
        let report = run_suite(url.to_owned(), selection).await;
        println!("{revision}: {} checks passed", report.total());
        faults.extend(
            report
                .faults
                .iter()
                .map(|fault| format!("{revision} {fault}")),
        );
        if report.total() < expected {
            faults.push(format!(
                "{revision}: {} checks passed, {expected} are there: {:?}",
                report.total(),
                report.passed
            ));
        }
        for (_, scenario, checks) in BEYOND.iter().filter(|beyond| beyond.0 == revision) {
            let passed = report.passed.get(*scenario).copied().unwrap_or_default();
            if passed < *checks {
                faults.push(format!(
                    "{revision} {scenario}: {passed} of {checks} passed"
                ));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[tokio::test]
async fn every_check_passes_with_a_worker() {
    every_check_passes_at_every_revision(Upstream::Worker).await;
}

#[tokio::test]
async fn every_check_passes_with_a_stdio_server_of_both_eras() {
    every_check_passes_at_every_revision(Upstream::Stdio("dual")).await;
}

#[tokio::test]
async fn every_check_passes_with_a_legacy_stdio_server() {
    every_check_passes_at_every_revision(Upstream::Stdio("legacy")).await;
}

#[tokio::test]
async fn every_check_passes_with_a_modern_stdio_server() {
    every_check_passes_at_every_revision(Upstream::Stdio("modern")).await;
}

#[tokio::test]
async fn every_check_passes_with_a_legacy_remote_server() {
    every_check_passes_at_every_revision(Upstream::Remote("legacy")).await;
}

#[tokio::test]
async fn every_check_passes_with_a_remote_server_of_both_eras() {
    every_check_passes_at_every_revision(Upstream::Remote("dual")).await;
}

#[tokio::test]
async fn every_check_of_tasks_passes_with_a_worker() {
    let gateway = Gateway::empty().fixture("tasks", "conformance/tasks");
    let gateway = everything::start(as_the_suite_wants(gateway)).await;
    every_check_of_an_extension_passes(&gateway.url("/mcp/tasks"), &TASKS).await;
}

#[tokio::test]
async fn every_check_of_tasks_passes_with_an_aggregate() {
    let folder = tempfile::TempDir::new().expect("a temporary directory");
    let file = folder.path().join("tools.toml");
    let servers = "active_toolsets = [\"*\"]\n[[servers]]\nnamespace = \"\"\nfrom = \"tasks\"\n";
    std::fs::write(&file, servers).expect("written");
    let gateway = Gateway::empty()
        .fixture("tasks", "conformance/tasks")
        .config(json!({"toolman": {"all": {"config": file}}}));
    let gateway = everything::start(as_the_suite_wants(gateway)).await;
    every_check_of_an_extension_passes(&gateway.url("/mcp/all"), &TASKS).await;
}

#[tokio::test]
async fn every_check_of_skills_passes_with_a_worker() {
    let gateway = Gateway::empty().fixture("skills", "conformance/skills");
    let gateway = everything::start(as_the_suite_wants(gateway)).await;
    every_check_of_an_extension_passes(&gateway.url("/mcp/skills"), &SKILLS).await;
}

/// Runs the scenarios of an extension against the namespace at `url`.
///
/// # Panics
///
/// When a check fails, or is not made.
async fn every_check_of_an_extension_passes(
    url: &str,
    scenarios: &[(&'static [&'static str], usize)],
) {
    let mut faults = Vec::new();
    for &(selection, expected) in scenarios {
        let report = run_suite(url.to_owned(), selection).await;
        if report.total() < expected {
            let passed = report.total();
            faults.push(format!("{selection:?}: {passed} of {expected} passed"));
        }
        faults.extend(report.faults);
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn a_results_folder_names_its_scenario() {
    assert_eq!(scenario("server-ping-2026-11-22T01-53-17-460Z"), "ping");
    assert_eq!(
        scenario("server-server-sse-polling-2026-11-22T01-53-17-460Z"),
        "server-sse-polling"
    );
}

#[test]
fn a_failed_or_warned_check_is_a_fault() {
    let mut report = Report::default();
    let checks = [
        json!({"id": "a", "status": "SUCCESS"}),
        json!({"id": "b", "status": "FAILURE", "errorMessage": "no"}),
        json!({"id": "c", "status": "WARNING"}),
        json!({"id": "d", "status": "INFO"}),
    ];
    report.add("ping".into(), &checks);
    assert_eq!(report.total(), 1);
    assert_eq!(report.faults.len(), 2, "{:?}", report.faults);
}
