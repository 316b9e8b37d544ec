//! The gateway's subcommands `__guard` and `__builder` as a program for tests.

use std::process::ExitCode;

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1).peekable();
    if arguments.next_if(|first| first == "__builder").is_some() {
        return tooldock_builder::main();
    }
    tooldock_process::child::guard::main(arguments.skip_while(|argument| argument == "__guard"))
}
