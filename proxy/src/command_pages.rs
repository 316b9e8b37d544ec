//! `tooldock completions` and `tooldock man`: files about the command line, generated from its definition in `cli.rs`.

use std::fs;
use std::process::ExitCode;

use clap::CommandFactory as _;
use clap_complete::Shell;

use crate::cli::{Cli, CompletedShell, CompletionsArgs, ManArgs};
use crate::print;

/// Prints the completion script for a shell.
pub(crate) fn completions(arguments: &CompletionsArgs) -> ExitCode {
    let shell = match arguments.shell {
        CompletedShell::Bash => Shell::Bash,
        CompletedShell::Zsh => Shell::Zsh,
        CompletedShell::Fish => Shell::Fish,
    };
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "tooldock", &mut script);
    print(&String::from_utf8_lossy(&script))
}

/// Writes a manual page for each command into a folder, which is created if missing.
pub(crate) fn man(arguments: &ManArgs) -> ExitCode {
    let folder = &arguments.output;
    let written =
        fs::create_dir_all(folder).and_then(|()| clap_mangen::generate_to(Cli::command(), folder));
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tooldock: {}: {error}", folder.display());
            ExitCode::FAILURE
        }
    }
}
