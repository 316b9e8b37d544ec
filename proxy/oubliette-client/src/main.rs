//! `oubliette-client`: an MCP server for containers. It offers the tools of a ToolDock host, to which the container has no
//! connection but the host's relay socket (REL-11…16).
//!
//! ```text
//!   MCP client ─ stdin ─▶ server.rs ──▶ relay.rs ─▶ /mcp/relay.sock ─▶ host
//!              ◀─ stdout ─ output.rs ◀──── reader thread ◀────────────────┘
//! ```
//!
//! | file | content |
//! |---|---|
//! | `options.rs` | the command line and the environment |
//! | `server.rs` | the MCP server: both eras of the protocol, one message per line |
//! | `message.rs` | the fields of the MCP client's messages that this program uses |
//! | `output.rs` | writing of answers and notifications, each as one line |
//! | `relay.rs` | the connection to the host: calls in flight, and reconnects |
//! | `pause.rs` | pauses between attempts to connect |
//! | `frame.rs` | frames of the relay |
//! | `tools.rs` | the tools under the names that the MCP client sees |
//! | `lines.rs` | lines with a maximum length |
//!
//! There are two threads: the main thread reads from the MCP client, the other one from the host. A call has no thread: the
//! thread that reads the host's answer also writes the answer to the MCP client. The API key is sent in frames and never logged.

mod frame;
mod lines;
mod message;
mod options;
mod output;
mod pause;
mod relay;
mod server;
mod tools;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use crate::options::{Invocation, Options};
use crate::output::Output;
use crate::relay::Relay;
use crate::server::Server;

/// Maximum time that the start waits for the host's tools. The MCP client waits for its first answer meanwhile, most clients for
/// up to a minute.
const TOOLS_WAIT: Duration = Duration::from_secs(10);

/// Writes a warning to standard error, which the MCP client shows as this server's log.
macro_rules! warning {
    ($($what:tt)*) => {
        eprintln!("WARNING: oubliette-client: {}", format_args!($($what)*))
    };
}
pub(crate) use warning;

fn main() -> ExitCode {
    let options = match options::read(std::env::args_os().skip(1), |name| std::env::var_os(name)) {
        Ok(Invocation::Serve(options)) => options,
        Ok(Invocation::Print(text)) => {
            println!("{text}");
            return ExitCode::SUCCESS;
        }
        Err(reason) => {
            eprintln!("oubliette-client: {reason}");
            return ExitCode::from(2);
        }
    };
    serve(options);
    ExitCode::SUCCESS
}

/// Runs the program in the order of REL-15: fetches the host's tools, waits for the caller's tools, then serves the MCP client.
fn serve(options: Options) {
    let Options {
        socket,
        key,
        caller_wait,
    } = options;
    if key.is_none() {
        warning!("OUBLIETTE_API_KEY is not set or empty: none of the host's tools are offered");
    }
    let output = Arc::new(Output::new(std::io::stdout()));
    let relay = Relay::start(socket, key, Arc::clone(&output));
    if relay.wait_for_tools(TOOLS_WAIT) {
        relay.wait_for_caller(caller_wait);
    }
    Server::new(output, relay).run(std::io::stdin());
}
