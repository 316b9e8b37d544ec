//! External MCP servers that run as child processes: their configuration, and a process with its pipes.
//!
//! ```text
//! upstreams.stdio ───────┐
//!                        ├─▶ resolve ─▶ variables ─▶ ExternalServer, in the snapshot ─▶ ServerProcess, as many as needed
//! external/config.yaml ──┘
//! ```
//!
//! `check` goes the same way up to `ExternalServer`, for operators who want to find problems before a start.
//!
//! This module deliberately does not read or write a pipe, and does not decide how many processes there are or when a process
//! is restarted. The module that speaks the servers' protocol does that, with the settings in [`StdioSpec`].

mod check;
mod config;
mod file;
mod install;
mod process;
mod registry_name;
mod resolve;
mod spec;
mod startable;

pub use crate::template::Template;
pub use check::{CheckedServer, Finding, ServerCheck, check, check_file};
pub use config::{Restart, StdioServerConfig, StdioServersConfig, StdioSettings};
pub(crate) use file::{ServersFile, check_entry, is_cached};
pub use install::{InstallStep, NotInstalled};
pub use process::{Pipes, ProcessHost, ServerProcess};
pub(crate) use resolve::{External, remote_member, resolve, stdio_member};
pub use resolve::{ServersConfig, named_variables};
pub use spec::{ExternalServer, StdioSpec};
