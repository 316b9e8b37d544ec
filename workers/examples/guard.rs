//! The guard as a program of its own, for tests: what `tooldock __guard -- COMMAND` does.

use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments = std::env::args_os().skip(1);
    tooldock_workers::process::guard::main(arguments.skip_while(|argument| argument == "__guard"))
}
