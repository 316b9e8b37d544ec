//! Commands that query a running gateway: `status`, `tools`, `call`, `logs`, `reload`, `sessions` and `pins`.
//!
//! Where their data comes from:
//! - The gateway is found as `explain` finds it ([`gateway`]), and all requests go to its listener of the profile `core`.
//! - `status`, `logs`, `reload`, `sessions` and `pins` use `/operator/…` ([`client`]): the handlers of the web API's `/api/…`, under
//!   the same table of rights (`mcp-upstream/web.rs`, `COMMAND_PATHS`). A listener of the profile `v1-web` is not needed.
//! - They take a token that opens `_system`, and an address in `admission.internal_cidrs`. `MANAGER_INTERNAL_TOKEN`, which
//!   `explain` shows, is not needed: scopes decide which sessions and logs a key may see, and which sessions it may end.
//! - `tools` and `call` are an ordinary MCP client ([`mcp`]) at `/mcp/NAMESPACE`, and take any token.
//! - `/ready` and `/metrics` are not read: `/operator/status` has their states, with reasons.
//! - All output goes through [`output`]: names, logs and results come from tools and clients.

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
/// Exit code of a call that Ctrl-C ended, as shells have it for SIGINT.
const EXIT_INTERRUPTED: u8 = 130;

/// Reason why a command was not done, in one line.
#[derive(Debug)]
pub(crate) enum CommandFailure {
    /// The gateway answered with a failure.
    Refused(String),
    /// Arguments or the configuration are wrong.
    Usage(String),
    /// No gateway was reached.
    Unreachable(String),
    /// The failure is part of the output already.
    Shown,
    /// Ctrl-C ended the command.
    Interrupted,
}

impl CommandFailure {
    /// Prints the reason. Returns the exit code.
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
    /// The reason without its kind.
    pub(crate) fn into_reason(self) -> String {
        match self {
            Self::Refused(reason) | Self::Usage(reason) | Self::Unreachable(reason) => reason,
            Self::Shown | Self::Interrupted => String::new(),
        }
    }
}

/// Result of a command or of a step of it.
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
    // A thread may still wait for a line of the terminal, which must not delay the end.
    runtime.shutdown_background();
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.exit(),
    }
}
