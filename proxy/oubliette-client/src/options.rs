//! The command line and the environment variables of `oubliette-client`.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// Default path of the host's relay socket in containers.
const SOCKET: &str = "/mcp/relay.sock";
/// Default time to wait, in milliseconds, until the host has listed the tools of the caller, which started this container (K-25).
const CALLER_WAIT_MS: u64 = 5000;
/// Maximum of the configurable time to wait for the caller's tools, in milliseconds; no MCP client waits longer for its server.
const CALLER_WAIT_MS_MAX: u64 = 600_000;

const HELP: &str = "\
oubliette-client: an MCP server on standard input and output, whose tools are those of a ToolDock host

Usage: oubliette-client [SOCKET]

  SOCKET         the host's relay socket; /mcp/relay.sock unless given
  -h, --help     print this text
  -V, --version  print the version

Environment:
  OUBLIETTE_API_KEY         the key that the host gave this container; without it no tools of the host are offered
  OUBLIETTE_CALLER_WAIT_MS  how many milliseconds the start waits for tools of the caller; 5000, 0 for none

The log is on standard error. The key is never logged.";

/// The task that the command line requests.
#[derive(Debug)]
pub(crate) enum Invocation {
    /// Serve an MCP client on standard input and output.
    Serve(Options),
    /// Print a text, such as the help, and exit.
    Print(String),
}

/// Settings of the MCP server.
#[derive(Debug)]
pub(crate) struct Options {
    /// Path of the host's relay socket.
    pub(crate) socket: PathBuf,
    /// The API key for the host's tools; `None` if none is configured.
    pub(crate) key: Option<ApiKey>,
    /// Maximum time that the start waits for the caller's tools.
    pub(crate) caller_wait: Duration,
}

/// The API key for the host's tools. It has no `Display`, and its `Debug` hides it.
pub(crate) struct ApiKey(String);

impl ApiKey {
    /// Returns the key's text, which only frames may contain.
    pub(crate) fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[redacted]")
    }
}

/// Reads the command line and the environment variables.
///
/// # Errors
///
/// An error message of one line for the operator.
pub(crate) fn read(
    arguments: impl IntoIterator<Item = OsString>,
    variable: impl Fn(&str) -> Option<OsString>,
) -> Result<Invocation, String> {
    let mut socket = None;
    for argument in arguments {
        match argument.to_str() {
            Some("-h" | "--help") => return Ok(Invocation::Print(HELP.to_owned())),
            Some("-V" | "--version") => {
                let version = concat!("oubliette-client ", env!("CARGO_PKG_VERSION"));
                return Ok(Invocation::Print(version.to_owned()));
            }
            Some(option) if option.starts_with('-') => {
                // The unknown argument is not repeated in the message, since it may be an API key typed by mistake.
                return Err("unknown option: see oubliette-client --help".to_owned());
            }
            _ if socket.is_some() => {
                return Err("more than one socket: see oubliette-client --help".to_owned());
            }
            _ => socket = Some(PathBuf::from(argument)),
        }
    }
    let key = variable("OUBLIETTE_API_KEY").map(|key| key.to_string_lossy().trim().to_owned());
    let wait = match variable("OUBLIETTE_CALLER_WAIT_MS") {
        None => CALLER_WAIT_MS,
        Some(text) => text
            .to_str()
            .and_then(|text| text.trim().parse().ok())
            .filter(|wait| *wait <= CALLER_WAIT_MS_MAX)
            .ok_or_else(|| {
                format!(
                    "OUBLIETTE_CALLER_WAIT_MS must be a number of milliseconds up to {CALLER_WAIT_MS_MAX}"
                )
            })?,
    };
    Ok(Invocation::Serve(Options {
        socket: socket.unwrap_or_else(|| SOCKET.into()),
        key: key.filter(|key| !key.is_empty()).map(ApiKey),
        caller_wait: Duration::from_millis(wait),
    }))
}

#[cfg(test)]
pub(crate) fn key(text: &str) -> ApiKey {
    ApiKey(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(arguments: &[&str], variables: &[(&str, &str)]) -> Result<Invocation, String> {
        read(arguments.iter().map(OsString::from), |name| {
            let mut variables = variables.iter();
            let found = variables.find(|(variable, _)| *variable == name);
            found.map(|(_, value)| OsString::from(value))
        })
    }

    fn options(arguments: &[&str], variables: &[(&str, &str)]) -> Options {
        match asked(arguments, variables) {
            Ok(Invocation::Serve(options)) => options,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn everything_has_a_default() {
        let options = options(&[], &[]);
        assert_eq!(options.socket, PathBuf::from("/mcp/relay.sock"));
        assert_eq!(options.caller_wait, Duration::from_secs(5));
        assert!(options.key.is_none());
    }

    #[test]
    fn what_is_given_counts_and_an_empty_key_is_none() {
        let given = [
            ("OUBLIETTE_API_KEY", " oub_x\n"),
            ("OUBLIETTE_CALLER_WAIT_MS", "0"),
        ];
        let options_given = options(&["/run/r.sock"], &given);
        assert_eq!(options_given.socket, PathBuf::from("/run/r.sock"));
        assert_eq!(options_given.caller_wait, Duration::ZERO);
        assert_eq!(
            options_given.key.as_ref().map(ApiKey::expose),
            Some("oub_x")
        );
        assert!(!format!("{options_given:?}").contains("oub_x"));
        assert!(options(&[], &[("OUBLIETTE_API_KEY", "")]).key.is_none());
    }

    #[test]
    fn a_slip_is_told_without_repeating_what_may_be_a_key() {
        let told = |arguments: &[&str], variables: &[(&str, &str)]| {
            asked(arguments, variables).expect_err("a slip")
        };
        assert!(!told(&["--api-key=oub_x"], &[]).contains("oub_x"));
        assert!(told(&["a", "b"], &[]).contains("more than one socket"));
        for wait in ["soon", "-1", "600001", ""] {
            let told = told(&[], &[("OUBLIETTE_CALLER_WAIT_MS", wait)]);
            assert!(told.contains("OUBLIETTE_CALLER_WAIT_MS"), "{told}");
        }
    }

    #[test]
    fn help_names_every_variable() {
        for option in ["-h", "--help"] {
            let Ok(Invocation::Print(text)) = asked(&[option], &[]) else {
                panic!("no help");
            };
            assert!(text.contains("OUBLIETTE_API_KEY"));
            assert!(text.contains("OUBLIETTE_CALLER_WAIT_MS"));
        }
        let version = asked(&["--version"], &[]);
        assert!(
            matches!(version, Ok(Invocation::Print(text)) if text.starts_with("oubliette-client "))
        );
    }
}
