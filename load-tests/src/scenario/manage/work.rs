//! The work of the management tools: a generated repository, a generated package, and the tools called with them. It
//! needs no network.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use rustix::process::nice;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::message::Envelope;
use crate::servers::gateway::Setup;
use crate::streams::Aside;
use crate::wire::exchange;

/// The namespace that the work changes. Calls go to another one, since a namespace with a new worker would have slow
/// first calls.
pub(super) const MANAGED: &str = "managed";

/// The tools of one piece of work, in the order of their calls.
pub(super) const STEPS: [&str; 3] = ["analyze_repo", "write_tool", "add_requirement"];

/// Number of source files in the repository, and of functions in each.
const FILES: usize = 400;
const FUNCTIONS: usize = 30;
/// Number of functions in the code that is checked.
const CHECKED: usize = 200;
/// Number of versions of the package. A version that is already installed needs no work.
const VERSIONS: usize = 500;
/// The nice value of the lowest priority.
const LOWEST: i32 = 19;
/// Time limit of one tool call.
const LIMIT: Duration = Duration::from_secs(60);

/// Python script that writes a wheel for each version without a build tool.
const WHEELS: &str = include_str!("../../../tools/wheels.py");

/// The repository and the packages for the work.
pub(super) struct Work {
    folder: TempDir,
}

/// The work, with the management tools of a running gateway.
pub(super) struct Working {
    work: Work,
    manager: Envelope<'static>,
    done: usize,
}

/// Duration of each step of a piece of work, in milliseconds.
type Piece = [(&'static str, f64); 3];

impl Work {
    /// Creates the repository and the packages.
    pub(super) fn prepare() -> anyhow::Result<Self> {
        let folder = TempDir::with_prefix("tooldock-load-").context("a temporary folder")?;
        let repository = folder.path().join("repository");
        fs::create_dir_all(repository.join("src")).context("the repository")?;
        for number in 0..FILES {
            fs::write(
                repository.join(format!("src/tools{number}.py")),
                code(number, FUNCTIONS),
            )
            .context("a file of the repository")?;
        }
        for arguments in [
            &["init", "--quiet"][..],
            &["add", "--all"],
            &["commit", "--quiet", "--message=load"],
        ] {
            let mut git = Command::new("git");
            git.args(["-c", "user.name=load", "-c", "user.email=load@localhost"])
                .args(arguments)
                .env("GIT_CONFIG_GLOBAL", "/dev/null")
                .current_dir(&repository);
            done(git, "git")?;
        }
        let wheels = folder.path().join("wheels");
        fs::create_dir(&wheels).context("the packages")?;
        let mut python = Command::new("python3");
        python
            .args(["-c", WHEELS])
            .arg(&wheels)
            .arg(VERSIONS.to_string());
        done(python, "python3")?;
        Ok(Self { folder })
    }

    /// Adds the settings that a gateway needs for the work.
    pub(super) fn setup(&self, setup: Setup) -> Setup {
        let wheels = self.path("wheels");
        setup
            .config("builder: { git_schemes: [https, file] }")
            .variable("PIP_NO_INDEX", "1")
            .variable("PIP_FIND_LINKS", &wheels)
            .variable("UV_NO_INDEX", "1")
            .variable("UV_FIND_LINKS", &wheels)
    }

    /// Binds the work to the management tools of a gateway.
    pub(super) fn on(self, manager: Envelope<'static>) -> Working {
        Working {
            work: self,
            manager,
            done: 0,
        }
    }

    fn path(&self, name: &str) -> String {
        let path: &Path = &self.folder.path().join(name);
        path.display().to_string()
    }
}

impl Working {
    /// Repeats the work for the time `lasts`, and until the current piece is done, on a separate thread: the thread that sends
    /// the calls must neither write code of hundreds of functions nor parse the analysis of a repository.
    pub(super) async fn keep_on(mut self, lasts: Duration) -> anyhow::Result<(Self, Vec<Piece>)> {
        let thread = Aside::start("work")?;
        let work = async move {
            // Programs that manage a gateway usually run on other machines, and take no core away from its calls.
            let _ = nice(LOWEST);
            let (begin, mut pieces) = (Instant::now(), Vec::new());
            while begin.elapsed() < lasts {
                pieces.push(self.piece().await?);
            }
            Ok((self, pieces))
        };
        thread
            .handle()
            .spawn(work)
            .await
            .context("the work's thread")?
    }

    /// Does one piece of work; returns the milliseconds of each step.
    pub(super) async fn piece(&mut self) -> anyhow::Result<Piece> {
        ensure!(self.done < VERSIONS, "no package is left to install");
        let repository = format!("file://{}", self.work.path("repository"));
        let arguments = [
            json!({"repo_url": repository}),
            json!({"namespace": MANAGED, "filename": "checked.py", "code": code(self.done, CHECKED)}),
            json!({"namespace": MANAGED, "package": format!("load_package=={}", self.done)}),
        ];
        self.done += 1;
        let mut took = STEPS.map(|step| (step, 0.0));
        for ((step, ms), arguments) in took.iter_mut().zip(arguments) {
            let start = Instant::now();
            let value = call(self.manager, step, &arguments).await?;
            *ms = start.elapsed().as_secs_f64() * 1e3;
            let refused = ["written", "added"].iter().any(|key| value[key] == false);
            ensure!(!refused, "{step}: {value}");
        }
        Ok(took)
    }
}

/// Calls a management tool and returns its value.
async fn call(manager: Envelope<'_>, tool: &str, arguments: &Value) -> anyhow::Result<Value> {
    let message = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call",
        "params": {"name": tool, "arguments": arguments}});
    let request = manager.post(&message.to_string());
    let (status, _, body) = exchange(manager.to, &request, LIMIT).await?;
    let answer: Value =
        serde_json::from_str(&body).with_context(|| format!("{tool} answered {status}: {body}"))?;
    if status != 200 || answer["result"]["isError"] != false {
        bail!("{tool} answered {status}: {body}");
    }
    // Requests without a session use 2025-03-26, which has no structured results.
    let text = answer["result"]["content"][0]["text"].as_str();
    serde_json::from_str(text.unwrap_or_default()).context("the tool's value")
}

/// A file with tools. Its content differs for each number.
fn code(number: usize, functions: usize) -> String {
    let mut code = String::from("import os\n\nfrom fastmcp.tools import tool\n");
    for function in 0..functions {
        code += &format!(
            "\n\n@tool\ndef tool_{number}_{function}(name: str, count: int = {function}) -> str:\n    \
             \"\"\"Repeats a name.\n\n    Args:\n        name: What is repeated.\n        count: How often.\n    \"\"\"\n    \
             token = os.environ[\"LOAD_TOKEN\"]\n    return \" \".join([name, token] * count)\n"
        );
    }
    code
}

fn done(mut command: Command, name: &str) -> anyhow::Result<()> {
    let output = command
        .output()
        .with_context(|| format!("{name} is needed"))?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.success(), "{name}: {said}");
    Ok(())
}
