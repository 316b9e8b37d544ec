//! The command line: which subcommands there are and what each may be told.
//!
//! Parsing only. What a subcommand does stands in `main.rs`; subcommands of later versions are not listed until they work.

use std::path::PathBuf;

use clap::{Parser, Subcommand, ValueEnum};

/// A gateway that serves folders of Python tools and stdio MCP servers over MCP and REST.
#[derive(Debug, Parser)]
#[command(name = "tooldock", version, arg_required_else_help = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run the gateway
    Serve(ServeArgs),
    /// Validate the configuration or one part of it; print the effective values, listeners and external servers
    Check(CheckArgs),
}

/// `tooldock serve`.
#[derive(Debug, clap::Args)]
pub(crate) struct ServeArgs {
    /// Configuration file [default: conf/tooldock.yaml, if there is one]
    #[arg(short = 'c', long = "config", value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Which part of the gateway this process runs
    #[arg(long, value_enum, default_value_t = Role::All)]
    pub(crate) role: Role,
    /// Try ToolDock out: listen on loopback only, make a token, place example tools, print lines to paste
    #[arg(long)]
    pub(crate) dev: bool,
    /// Take over the listening sockets of a running gateway. Hidden, since this version refuses it
    #[arg(long, hide = true)]
    pub(crate) upgrade: bool,
}

/// `tooldock check`.
#[derive(Debug, clap::Args)]
pub(crate) struct CheckArgs {
    /// Configuration file [default: conf/tooldock.yaml, if there is one]
    #[arg(short = 'c', long = "config", value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Check only this: a data directory with everything in it, an external/config.yaml, a namespace's tooldock.yaml, or
    /// the folder of a namespace. Ceilings and limits come from the configuration
    #[arg(value_name = "PATH")]
    pub(crate) path: Option<PathBuf>,
}

/// Which half of the gateway a process is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Role {
    /// All parts of the gateway in one process
    All,
    /// Tools over MCP and REST
    Core,
    /// The management server. Hidden, since this version refuses it
    #[value(hide = true)]
    Manager,
}

impl ServeArgs {
    /// The first option given that this version does not support.
    pub(crate) fn unsupported(&self) -> Option<&'static str> {
        if self.upgrade {
            Some("--upgrade")
        } else if self.role == Role::Manager {
            Some("--role manager")
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn serve(args: &[&str]) -> ServeArgs {
        match Cli::try_parse_from([&["tooldock", "serve"], args].concat())
            .expect("valid")
            .command
        {
            Command::Serve(serve) => serve,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn serve_runs_all_roles_unless_told() {
        let args = serve(&[]);
        assert_eq!(args.role, Role::All);
        assert!(!args.dev && args.config.is_none() && args.unsupported().is_none());
    }

    #[test]
    fn serve_takes_file_role_and_dev() {
        let args = serve(&["-c", "x.yaml", "--role", "core", "--dev"]);
        assert_eq!(args.config, Some(PathBuf::from("x.yaml")));
        assert_eq!(args.role, Role::Core);
        assert!(args.dev);
    }

    #[test]
    fn help_shows_nothing_that_is_refused() {
        let help = Cli::try_parse_from(["tooldock", "serve", "--help"]).expect_err("help");
        let help = help.to_string();
        assert!(help.contains("--dev") && help.contains("core"), "{help}");
        assert!(
            !help.contains("--upgrade") && !help.contains("- manager"),
            "{help}"
        );
    }

    #[test]
    fn upgrade_and_the_manager_role_are_not_supported_yet() {
        assert_eq!(serve(&["--upgrade"]).unsupported(), Some("--upgrade"));
        assert_eq!(
            serve(&["--role", "manager"]).unsupported(),
            Some("--role manager")
        );
    }

    #[test]
    fn later_subcommands_are_unknown() {
        for name in ["toolman", "secrets", "keys", "import-nginx", "__guard"] {
            assert!(Cli::try_parse_from(["tooldock", name]).is_err(), "{name}");
        }
    }
}
