//! Command that runs an author's tests of a namespace, in the environment that a gateway made for the namespace.

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

use tooldock_base::config::NamespacesConfig;
use tooldock_base::names::NamespaceName;
use tooldock_credentials::secrets::Secrets;
use tooldock_process::child::variables::worker_variables;

use super::variables;
use crate::scan::scan_one;

/// Returns the command that runs pytest on the tests in the folder of a namespace, with the variables and secrets of its worker.
/// `options` are passed on to pytest.
///
/// # Errors
///
/// When the namespace has no folder or cannot be served, is served by an MCP server, or has no environment yet. The message gives
/// the reason.
pub fn command(
    data_dir: &Path,
    name: &NamespaceName,
    namespaces: &NamespacesConfig,
    secrets: &Secrets,
    options: &[OsString],
) -> Result<Command, String> {
    let tools = data_dir.join("tools");
    let source = scan_one(&tools, name).map_err(|error| format!("{}: {error}", tools.display()))?;
    let source = source.ok_or_else(|| format!("{}: there is no folder {name}", tools.display()))?;
    if let Some(failure) = &source.failure {
        return Err(failure.message.clone());
    }
    if let Some(program) = &source.program {
        return Err(format!(
            "{}: makes an MCP server; its tests call the server object, with pytest alone",
            source.dir.join(program.file()).display()
        ));
    }
    let environment = data_dir.join("venvs").join(name.as_str());
    let python = environment.join("bin/python");
    if !python.exists() {
        return Err(format!(
            "{}: the namespace has no environment yet; start the gateway or reload it",
            environment.display()
        ));
    }
    let secrets = source.secrets(namespaces, secrets);
    let (variables, _) = variables(&source, namespaces, &secrets);
    let (environment, _) = worker_variables(Some(&environment), &variables.values, secrets.values);
    let mut command = Command::new(python);
    command
        .args([
            "-m",
            "app.test_main",
            "--namespace",
            name.as_str(),
            "--tools",
        ])
        .arg(&source.dir)
        .args(options)
        .current_dir(&source.dir)
        .env_clear();
    for (name, value) in &environment {
        command.env(name, value.expose());
    }
    Ok(command)
}
