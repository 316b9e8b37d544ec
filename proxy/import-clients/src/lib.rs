//! Reads the files in which MCP clients store their servers, and converts the servers to entries of the gateway's configuration.
//!
//! ```text
//! text ── syntax ──▶ tree ── formats ──▶ entries ── entry ──▶ ClientServer: keys of the gateway, credentials apart
//!      (JSON, TOML, YAML)  (which client)        │ (stdio, remote, variable, credential)
//!                                                └──▶ Finding: keys that are not imported, with their lines
//! ```
//!
//! | file | content |
//! |---|---|
//! | `syntax`, `tree` | the formats of files, and the tree that each file is parsed into |
//! | `formats` | the keys under which clients store their servers |
//! | `entry`, `stdio`, `remote`, `limits` | the keys of a server |
//! | `variable`, `credential`, `name` | variables in texts, values that are secrets, names of namespaces |
//! | `finding`, `server` | the results |
//! | `connect` | the reverse direction: an entry for the gateway in the file of a client |
//!
//! Three rules apply everywhere. An unusual entry does not affect the others. No credential is written to an entry or a finding:
//! both contain names in place of values. A server with restrictions in its file that the gateway cannot enforce is disabled.
//!
//! This crate uses the names and values of the gateway's configuration (`tooldock_base`). It does not access the file system or
//! the command line, and does not know which names are in use: the caller passes texts, and writes the results.

pub mod connect;
mod credential;
mod entry;
mod finding;
mod formats;
mod limits;
pub mod name;
mod remote;
mod server;
mod stdio;
mod syntax;
mod tree;
mod variable;

use std::path::Path;

pub use self::entry::ServerOptions;
pub use self::finding::{Finding, Weight};
pub use self::server::{ClientServer, Kind, WantedVariable};

/// The configuration file of an MCP client.
#[derive(Debug, Clone, Copy)]
pub struct ClientFile<'a> {
    /// Text of the file.
    pub text: &'a str,
    /// Absolute path of the folder that contains the file.
    pub folder: &'a Path,
    /// Home folder of the user, for `~` and `${userHome}`; `None` if it is not known.
    pub home: Option<&'a Path>,
}

/// The servers that were read from a client's file, with the findings about them.
#[derive(Debug, Default)]
pub struct Import {
    /// The servers, in the order of the file.
    pub servers: Vec<ClientServer>,
    /// Findings about keys that are not imported or are imported with a change, in the order of the file.
    pub findings: Vec<Finding>,
}

/// Reason why no servers can be read from a file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{line}: {reason}")]
pub struct Unreadable {
    /// Line of the problem in the file, from 1.
    pub line: usize,
    /// Description of the problem. It quotes nothing of the file, which may contain secrets.
    pub reason: String,
}

impl Unreadable {
    pub(crate) fn new(line: usize, reason: impl Into<String>) -> Self {
        Self {
            line,
            reason: reason.into(),
        }
    }
}

/// Reads the servers of a client's file.
///
/// # Errors
///
/// The line and the problem, if the file cannot be parsed or contains no servers.
pub fn read(file: &ClientFile<'_>) -> Result<Import, Unreadable> {
    let tree = syntax::read(file.text)?;
    let found = formats::find(&tree, file)?;
    let mut import = Import {
        servers: Vec::new(),
        findings: found.findings,
    };
    for entry in &found.entries {
        import.servers.extend(entry::read(
            entry,
            &found.inputs,
            file,
            &mut import.findings,
        ));
    }
    import.findings.sort();
    import.findings.dedup();
    Ok(import)
}

/// Reads a server that is specified on a command line, by the same rules as servers of a file.
pub fn given(label: &str, given: &ServerOptions, file: &ClientFile<'_>) -> Import {
    let mut findings = Vec::new();
    let server = entry::read_given(label, given, file, &mut findings);
    Import {
        servers: server.into_iter().collect(),
        findings,
    }
}

#[cfg(test)]
mod tests;
