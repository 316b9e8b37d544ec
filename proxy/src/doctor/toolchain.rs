//! Checks the programs that namespaces and servers need: Python, `uv`, Node, and the commands of stdio servers. They are searched
//! for in the same way as by the gateway.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;
use tokio::time::timeout;
use tooldock_process::environment::find_program;
use tooldock_workers::servers::CheckedServer;

use super::{Finding, for_shell};
use crate::config::Effective;

const CHECK: &str = "toolchain";
/// The oldest Python version that workers can use.
const PYTHON_MIN: (u32, u32) = (3, 11);
/// Time limit for a program that prints its version.
const VERSION_LIMIT: Duration = Duration::from_secs(4);
/// Maximum length of a displayed version, in characters.
const VERSION_MAX: usize = 40;
/// Python code that prints the interpreter's version, and whether it can create environments without `uv`.
const PROBE: &str = "\
import importlib.util, sys
print('%d.%d' % sys.version_info[:2])
print(all(importlib.util.find_spec(it) for it in ('venv', 'ensurepip')))
";

/// Checks all programs that the configuration needs.
pub(super) async fn check(effective: &Effective, servers: &[CheckedServer]) -> Vec<Finding> {
    let uv = find_program("uv");
    let npx = find_program("npx");
    let node = find_program("node");
    let (python, uv_version, node_version) = tokio::join!(
        python(effective, uv.is_some()),
        version(uv.as_deref()),
        version(node.as_deref()),
    );
    let mut findings = vec![python];
    findings.push(match (&uv, uv_version) {
        (Some(path), Some(version)) => Finding::ok(CHECK, format!("{}: {version}", path.display())),
        (Some(path), None) => Finding::warning(
            CHECK,
            format!("{} does not run, or is slow", path.display()),
            format!("{} --version", path.display()),
        ),
        _ => Finding::skipped(
            CHECK,
            "uv is not on PATH: pip installs packages, which takes longer",
        )
        .with("pipx install uv"),
    });
    findings.push(match (&npx, &node, node_version) {
        (Some(_), Some(path), Some(version)) => {
            Finding::ok(CHECK, format!("npx, and {}: {version}", path.display()))
        }
        (None, _, _) => Finding::skipped(CHECK, "npx is not on PATH, for servers of npm"),
        _ => Finding::warning(
            CHECK,
            "npx is on PATH, and no node that runs",
            "node --version",
        ),
    });
    let lacking = servers.iter().filter_map(|server| {
        let lacks = server.lacks.as_ref()?;
        let remedy = match server.command.as_str() {
            "npx" => "sudo apt install npm".to_owned(),
            "uvx" => "pipx install uv".to_owned(),
            program => format!("command -v {}", for_shell(program)),
        };
        Some(Finding::problem(
            CHECK,
            format!("{}: {lacks}", server.place),
            remedy,
        ))
    });
    findings.extend(lacking);
    findings
}

/// Checks the Python interpreter of workers. Its absence is only a problem if a namespace contains Python files.
async fn python(effective: &Effective, has_uv: bool) -> Finding {
    let name = &effective.config.workers.python;
    let is_needed = needs_python(effective);
    let weighed = |said: String, remedy: &str| match is_needed {
        true => Finding::problem(CHECK, said, remedy),
        false => Finding::skipped(CHECK, format!("{said}; no namespace needs it")),
    };
    let install = "sudo apt install python3 python3-venv";
    let Some(program) = find_program(name) else {
        return weighed(format!("workers.python: {name} was not found"), install);
    };
    let shown = program.display();
    let told = match output(&program, &["-I", "-c", PROBE]).await {
        Ok(told) => told,
        Err(Silence::Slow) => {
            let seconds = VERSION_LIMIT.as_secs();
            let said =
                format!("workers.python: {shown} does not tell its version within {seconds} s");
            return Finding::warning(CHECK, said, format!("{shown} --version"));
        }
        Err(Silence::Failed) => {
            return weighed(format!("workers.python: {shown} does not run"), install);
        }
    };
    let mut lines = told.lines();
    let (version, has_venv) = (
        lines.next().unwrap_or_default(),
        lines.next() == Some("True"),
    );
    let number = version
        .split_once('.')
        .and_then(|(major, minor)| Some((major.parse::<u32>().ok()?, minor.parse::<u32>().ok()?)));
    match number {
        None => weighed(
            format!("workers.python: {shown} does not answer like Python 3"),
            install,
        ),
        Some(number) if number < PYTHON_MIN => weighed(
            format!("workers.python: {shown} is Python {version}, and 3.11 or newer is needed"),
            "workers: { python: python3.12 }",
        ),
        Some(_) if !has_venv && !has_uv => weighed(
            format!("workers.python: {shown} has no venv, and uv is not on PATH"),
            "sudo apt install python3-venv",
        ),
        Some(_) => Finding::ok(CHECK, format!("{shown}: Python {version}")),
    }
}

/// Returns true if a namespace in the data directory contains a Python file, or if the first start will create one.
fn needs_python(effective: &Effective) -> bool {
    let data = &effective.data_dir;
    if effective.config.namespaces.starter && !data.join("version").exists() {
        return true;
    }
    let entries = |folder: &Path| {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        entries.map(|it| it.path()).collect::<Vec<_>>()
    };
    let is_python = |file: &Path| file.extension().is_some_and(|it| it == "py");
    let folders = entries(&data.join("tools"));
    let mut folders = folders.iter().filter(|it| it.is_dir());
    folders.any(|folder| entries(folder).iter().any(|file| is_python(file)))
}

/// Returns the first line that a program prints for `--version`; `None` if it fails.
async fn version(program: Option<&Path>) -> Option<String> {
    let told = output(program?, &["--version"]).await.ok()?;
    let line = told.lines().next()?.trim();
    Some(line.chars().take(VERSION_MAX).collect())
}

/// The reason why a program has no output.
enum Silence {
    /// The program could not be run, or failed.
    Failed,
    /// The program took longer than [`VERSION_LIMIT`].
    Slow,
}

async fn output(program: &Path, arguments: &[&str]) -> Result<String, Silence> {
    let ran = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .output();
    match timeout(VERSION_LIMIT, ran).await {
        Err(_) => Err(Silence::Slow),
        Ok(Ok(ran)) if ran.status.success() => {
            Ok(String::from_utf8_lossy(&ran.stdout).into_owned())
        }
        Ok(_) => Err(Silence::Failed),
    }
}
