//! `oubliette-client`: tools of a ToolDock host, for a model's client inside a container that has nothing but the host's
//! relay socket (REL-11…16).
//!
//! ```text
//!   MCP client ─ stdin ─▶ server.rs ──▶ relay.rs ─▶ /mcp/relay.sock ─▶ host
//!              ◀─ stdout ─ output.rs ◀──── reader thread ◀────────────────┘
//! ```
//!
//! | file | holds |
//! |---|---|
//! | `options.rs` | the command line and the environment |
//! | `server.rs` | the MCP server: both eras of the protocol, one message a line |
//! | `message.rs` | messages of the MCP client, read as far as they matter |
//! | `output.rs` | answers and notifications, each written whole |
//! | `relay.rs` | the connection to the host: calls in flight, and another connection when one is lost |
//! | `pause.rs` | pauses before another try |
//! | `frame.rs` | frames of the relay |
//! | `tools.rs` | the tools under the names that the MCP client sees |
//! | `lines.rs` | lines with a bound |
//!
//! Two threads: the main thread reads from the MCP client, the other one from the host. A call has no thread of
//! its own: the thread that reads its answer writes the answer on. The API key goes into frames and nowhere else.

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

/// How long the start waits for the host's tools. The MCP client waits meanwhile, and most wait for a minute.
const TOOLS_WAIT: Duration = Duration::from_secs(10);

/// Writes a warning to the log: the MCP client shows standard error as this server's log.
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

/// Serves in the order of REL-15: the host's tools, the caller's tools, then the MCP server.
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
