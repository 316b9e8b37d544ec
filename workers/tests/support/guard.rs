//! The guard as a separate program for tests, equal to `tooldock __guard -- COMMAND`. A binary of this package, so that cargo
//! builds it with every test that starts processes. With the feature `builder` it is `tooldock __builder`, too.

use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments = std::env::args_os().skip(1);
    #[cfg(feature = "builder")]
    if std::env::args_os()
        .nth(1)
        .is_some_and(|first| first == "__builder")
    {
        return tooldock_workers::builder::main();
    }
    tooldock_workers::process::guard::main(arguments.skip_while(|argument| argument == "__guard"))
}
