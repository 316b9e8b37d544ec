//! Commands that query a running gateway: `status`, `tools`, `call`, `logs`, `reload`, `sessions` and `pins`.
//!
//! Where their data comes from:
//! - [`gateway`] finds the running gateway, also for the command `explain`. All requests go to its listener of the profile
//!   `core`.
//! - `status`, `logs`, `reload`, `sessions` and `pins` use `/operator/…` ([`client`]). These paths have the same handlers as the
//!   web API's `/api/…` and the same table of rights (`mcp-upstream/web.rs`, `COMMAND_PATHS`). A listener of the profile `v1-web`
//!   is not needed.
//! - These five commands need a token that opens `_system`, and an address in `admission.internal_cidrs`. They do not need
//!   `MANAGER_INTERNAL_TOKEN`, which `explain` shows. Scopes decide which sessions and logs a key may see, and which sessions it
//!   may end.
//! - `tools` and `call` are an ordinary MCP client ([`mcp`]) at `/mcp/NAMESPACE`, and accept any token.
//! - `/ready` and `/metrics` are not read: `/operator/status` reports the same states, with reasons.
//! - All output goes through [`output`], because names, logs and results come from tools and clients.

use std::process::ExitCode;

use tooldock_process::child::output::printable_text;

use crate::EXIT_USAGE;
use crate::cli::OperatorCommand;

mod call;
pub(crate) mod client;
pub(crate) mod gateway;
mod logs;
mod mcp;
pub(crate) mod output;
mod pins;
mod reload;
mod sessions;
mod status;
mod tools;

/// Exit code when no gateway can be reached.
pub(crate) const EXIT_UNREACHABLE: u8 = 3;
/// Exit code of a command that Ctrl-C ended: 128 plus the number of SIGINT, as in shells.
const EXIT_INTERRUPTED: u8 = 130;

/// Reason why a command failed, as one line for the user.
#[derive(Debug)]
pub(crate) enum CommandFailure {
    /// The gateway answered the command's request with an error. Contains the error's text.
    Refused(String),
    /// The command's arguments or the configuration are wrong. Contains the reason.
    Usage(String),
    /// No gateway could be reached. Contains the reason.
    Unreachable(String),
    /// The failure has already been printed; no further message follows.
    Shown,
    /// The user ended the command with Ctrl-C.
    Interrupted,
}

impl CommandFailure {
    /// Prints the reason of the failure and returns the exit code for it.
    pub(crate) fn exit(self) -> ExitCode {
        let (code, reason) = match self {
            Self::Refused(reason) => (1, reason),
            Self::Usage(reason) => (EXIT_USAGE, reason),
            Self::Unreachable(reason) => (EXIT_UNREACHABLE, reason),
            Self::Shown => return ExitCode::FAILURE,
            Self::Interrupted => (EXIT_INTERRUPTED, "cancelled".to_owned()),
        };
        eprintln!("tooldock: {}", printable_text(&reason));
        ExitCode::from(code)
    }
}

impl CommandFailure {
    /// The failure's text, without the distinction of its kind. Empty if there is nothing to print.
    pub(crate) fn into_reason(self) -> String {
        match self {
            Self::Refused(reason) | Self::Usage(reason) | Self::Unreachable(reason) => reason,
            Self::Shown | Self::Interrupted => String::new(),
        }
    }
}

/// Result of a command or of one of its steps.
pub(crate) type Outcome<T = ()> = Result<T, CommandFailure>;

/// Runs a command against the running gateway.
pub(crate) fn run(command: OperatorCommand) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => return CommandFailure::Refused(error.to_string()).exit(),
    };
    let outcome = runtime.block_on(async {
        match command {
            OperatorCommand::Status(arguments) => status::run(arguments).await,
            OperatorCommand::Tools(arguments) => tools::run(arguments).await,
            OperatorCommand::Call(arguments) => call::run(arguments).await,
            OperatorCommand::Logs(arguments) => logs::run(arguments).await,
            OperatorCommand::Reload(arguments) => reload::run(arguments).await,
            OperatorCommand::Sessions(arguments) => sessions::run(arguments).await,
            OperatorCommand::Pins(arguments) => pins::run(arguments).await,
        }
    });
    // A thread may still be reading a line from the terminal. The command does not wait for it.
    runtime.shutdown_background();
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.exit(),
    }
}
