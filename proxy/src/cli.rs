//! The command line: which subcommands there are and what each may be told.
//!
//! Parsing only. What a subcommand does stands in `main.rs`; subcommands of later versions are not listed until they work.

use std::path::PathBuf;

use clap::{Parser, Subcommand, ValueEnum};
use tooldock_workers::secrets::Scope;

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
    /// Keep the secrets of namespaces: give them values, list, edit and remove them, change their key
    Secrets(SecretsArgs),
    /// Serve many MCP servers as one, on standard input and output, from the tools.toml of a project
    Toolman(ToolmanArgs),
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

/// `tooldock toolman`. Its standard output is for the client alone; what there is to say else goes to standard error.
#[derive(Debug, clap::Args)]
pub(crate) struct ToolmanArgs {
    /// The file that lists the servers and what of them is active at the start. Its relative paths start at its own folder
    #[arg(long, value_name = "FILE", default_value = "tools.toml")]
    pub(crate) config: PathBuf,
}

/// `tooldock secrets`. Values are never arguments: they are typed without echo, or come from standard input.
#[derive(Debug, clap::Args)]
#[command(arg_required_else_help = true)]
pub(crate) struct SecretsArgs {
    #[command(subcommand)]
    pub(crate) command: SecretsCommand,
    /// Configuration file, for the data directory [default: conf/tooldock.yaml, if there is one]
    #[arg(short = 'c', long = "config", value_name = "FILE", global = true)]
    pub(crate) config: Option<PathBuf>,
    /// Data directory [default: that of the configuration, or DATA_DIR]
    #[arg(long, value_name = "DIR", global = true)]
    pub(crate) data_dir: Option<PathBuf>,
}

/// What to do with secrets.
#[derive(Debug, Subcommand)]
pub(crate) enum SecretsCommand {
    /// Give a secret a value. Asks without echo; where standard input is no terminal, takes its first line
    Set {
        /// Name of the environment variable that tools find the value in
        #[arg(long)]
        key: String,
        /// `global` for every namespace, or the name of one
        #[arg(long)]
        scope: Scope,
    },
    /// Open all secrets in $EDITOR; nobody else can write meanwhile
    Edit,
    /// Show names, scopes and statuses. Values are never shown
    List {
        /// Only this scope
        #[arg(long)]
        scope: Option<Scope>,
    },
    /// Take a secret away, with its value
    Remove {
        /// The secret's name
        #[arg(long)]
        key: String,
        /// `global`, or the name of a namespace
        #[arg(long)]
        scope: Scope,
    },
    /// Encrypt all secrets with a new key: SECRETS_KEY_NEW, or what is typed. SECRETS_KEY is the present one
    Rekey,
    /// Write all secrets, encrypted under SECRETS_KEY, in a format of other systems
    Export {
        /// `fernet`: what the older Python system reads as its secrets.enc
        #[arg(long, value_enum, default_value_t = ExportFormat::Fernet)]
        format: ExportFormat,
        /// File to make [default: standard output]
        #[arg(long, value_name = "FILE")]
        output: Option<PathBuf>,
    },
}

/// How secrets are exported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ExportFormat {
    /// Version 1 of the file
    Fernet,
}

/// Which half of the gateway a process is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Role {
    /// All parts of the gateway in one process
    All,
    /// Tools over MCP and REST
    Core,
    /// The management tools, beside a process that runs the core
    Manager,
}

impl ServeArgs {
    /// The first option given that this version does not support.
    pub(crate) fn unsupported(&self) -> Option<&'static str> {
        if self.upgrade {
            Some("--upgrade")
        } else if self.role == Role::Manager && self.dev {
            Some("--dev with --role manager")
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
            !help.contains("--upgrade") && help.contains("- manager"),
            "{help}"
        );
    }

    #[test]
    fn upgrade_and_trying_out_a_manager_alone_are_not_supported() {
        assert_eq!(serve(&["--upgrade"]).unsupported(), Some("--upgrade"));
        assert_eq!(
            serve(&["--role", "manager", "--dev"]).unsupported(),
            Some("--dev with --role manager")
        );
        assert_eq!(serve(&["--role", "manager"]).unsupported(), None);
    }

    #[test]
    fn toolman_reads_the_file_of_the_working_directory_unless_told() {
        for (args, file) in [
            (&[][..], "tools.toml"),
            (&["--config", "p/x.toml"], "p/x.toml"),
        ] {
            let command = Cli::try_parse_from([&["tooldock", "toolman"], args].concat());
            match command.expect("valid").command {
                Command::Toolman(toolman) => assert_eq!(toolman.config, PathBuf::from(file)),
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn later_subcommands_are_unknown() {
        for name in ["keys", "import-nginx", "__guard"] {
            assert!(Cli::try_parse_from(["tooldock", name]).is_err(), "{name}");
        }
    }

    #[test]
    fn secrets_take_no_value_and_find_the_data_directory_as_check_does() {
        let parse = |args: &[&str]| Cli::try_parse_from([&["tooldock", "secrets"], args].concat());
        let set = ["set", "--key", "K", "--scope", "global"];
        for more in [&["-c", "x.yaml"][..], &["--data-dir", "d"], &[]] {
            assert!(parse(&[&set, more].concat()).is_ok(), "{more:?}");
        }
        for wrong in [
            &["set", "--key", "K"][..],
            &["set", "--key", "K", "--scope", "global", "value"],
            &["set", "--key", "K", "--scope", "_system"],
            &["export", "--format", "plain"],
            &[],
        ] {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
    }
}
