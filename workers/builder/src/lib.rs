//! The builder's child process, `tooldock __builder`: clones a repository or downloads a package, analyses its source, and
//! searches the MCP registry.
//!
//! ```text
//! job ── source ── reach          the URL of a repository, and the addresses that it may be reached at
//!  ├─ clone                       git without a checkout
//!  ├─ fetch ── registry ── http   packages of npm and PyPI; the MCP registry; requests to public addresses only
//!  ├─ tree                        the files of a repository: only regular files, within limits
//!  ├─ store                       the trees that are stored in `$DATA/repos`
//!  ├─ progress                    messages of progress to the gateway
//!  └─ analysis                    tools, dependencies, hosts and secrets, by a parser for each language
//! ```
//!
//! The gateway's side is [`tooldock_process::repositories`]: it starts the process and defines the messages between both. Only
//! the binary depends on this crate, so that a change of the parsers or of this crate does not rebuild the gateway's other
//! crates.
//!
//! This crate handles no namespaces, workers, MCP or configuration of the gateway, except for the content of a request. Start
//! reading with `job.rs`.

mod analysis;
mod clone;
mod fetch;
mod http;
mod job;
mod progress;
mod reach;
mod registry;
mod source;
mod store;
mod tree;

pub use job::main;

/// Functions that the fuzz targets call. Compiled only for `make fuzz` and for tests.
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzzing {
    pub use crate::analysis::fuzzing::source_file;
    pub use crate::fetch::fuzzing::{archive, registry_answer};
}
