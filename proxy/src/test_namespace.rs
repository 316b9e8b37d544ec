//! `tooldock test`: runs an author's tests of a namespace with pytest, in the namespace's environment.

use std::os::unix::process::CommandExt as _;
use std::process::ExitCode;

use tooldock_workers::folder_check::test_command;

use crate::check;
use crate::cli::TestArgs;
use crate::config;
use crate::refuse;

/// Runs `tooldock test`: replaces this process by pytest.
pub(crate) fn run(arguments: &TestArgs) -> ExitCode {
    let data_dir = arguments.data_dir.as_deref();
    let effective = match config::load_for_command(arguments.config.as_deref(), data_dir) {
        Ok(effective) => effective,
        Err(reason) => return refuse(reason),
    };
    let secrets = check::secrets(&effective, None).0;
    let command = test_command(
        &effective.data_dir,
        &arguments.name,
        &effective.config.namespaces,
        &secrets,
        &arguments.options,
    );
    match command {
        Ok(mut command) => refuse(command.exec()),
        Err(reason) => refuse(reason),
    }
}
