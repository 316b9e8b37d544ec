//! The guard as a separate program for tests, equal to `tooldock __guard -- COMMAND`. A binary of this package, so that cargo
//! builds it with every test that starts processes.

use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments = std::env::args_os().skip(1);
    tooldock_process::child::guard::main(arguments.skip_while(|argument| argument == "__guard"))
}
