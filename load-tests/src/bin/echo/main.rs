//! `tooldock-load-echo`: an MCP server with minimal cost, so that the programs in front of it can be measured.
//!
//! Its only tool, `echo`, returns its text. It supports the protocol versions that begin with `initialize`, and with
//! `--era dual` 2026-07-28 as well: over standard input and output, one message per line, or with `--http ADDRESS` over
//! HTTP. It runs in one thread either way.

mod answer;
mod http;
mod json;
mod lines;

use std::io;
use std::net::SocketAddr;
use std::process::ExitCode;

use answer::Era;

/// Maximum size of a line and of a body, in bytes.
const MESSAGE_MAX: usize = 4 * 1024 * 1024;
const USAGE: &str = "usage: tooldock-load-echo [--era legacy|dual] [--http ADDRESS:PORT]";

/// The options of the command line.
#[derive(Debug, PartialEq, Eq)]
struct Arguments {
    era: Era,
    /// The address to listen on; `None` for standard input and output.
    http: Option<SocketAddr>,
}

fn main() -> ExitCode {
    let Some(arguments) = parsed(std::env::args().skip(1)) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    let served = match arguments.http {
        None => lines::serve(arguments.era, io::stdin().lock(), io::stdout().lock()),
        Some(address) => http::serve(arguments.era, address),
    };
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tooldock-load-echo: {error}");
            ExitCode::FAILURE
        }
    }
}

fn parsed(mut words: impl Iterator<Item = String>) -> Option<Arguments> {
    let mut arguments = Arguments {
        era: Era::Legacy,
        http: None,
    };
    while let Some(word) = words.next() {
        let value = words.next()?;
        match (word.as_str(), value.as_str()) {
            ("--era", "legacy") => arguments.era = Era::Legacy,
            ("--era", "dual") => arguments.era = Era::Dual,
            ("--http", address) => arguments.http = Some(address.parse().ok()?),
            _ => return None,
        }
    }
    Some(arguments)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(line: &str) -> Option<Arguments> {
        parsed(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn an_old_server_at_its_pipes_unless_asked_otherwise() {
        let plain = of("").unwrap();
        assert_eq!((plain.era, plain.http), (Era::Legacy, None));
        let asked = of("--http 127.0.0.1:80 --era dual").unwrap();
        assert_eq!((asked.era, asked.http.unwrap().port()), (Era::Dual, 80));
        for wrong in ["--era", "--era new", "--http 80", "--help", "echo"] {
            assert_eq!(of(wrong), None, "{wrong}");
        }
    }
}
