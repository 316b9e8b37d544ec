//! MCP servers of others that run as child processes: what is configured, and one process with its pipes.
//!
//! ```text
//! upstreams.stdio ───────┐
//!                        ├─▶ resolve ─▶ variables ─▶ ExternalServer, in the snapshot ─▶ ServerProcess, as many as needed
//! external/config.yaml ──┘
//! ```
//!
//! `check` goes the same way as far as `ExternalServer`, for whoever wants to know before a start.
//!
//! What it deliberately does not do: read or write a pipe, decide how many processes there are or when one is started
//! anew. Whoever speaks the servers' protocol does that, with the settings in [`StdioSpec`].

mod check;
mod config;
mod file;
mod install;
mod process;
mod registry_name;
mod resolve;
mod spec;

pub use crate::template::Template;
pub use check::{Checked, Finding, Listed, check, check_file};
pub(crate) use config::check_limits;
pub use config::{
    InvalidServer, Isolation, ListMode, Restart, StdioServerConfig, StdioServersConfig,
    StdioSettings,
};
pub(crate) use file::{EXTERNAL_FILE, ServersFile, check_entry, is_cached};
pub use install::{InstallStep, NotInstalled};
pub use process::{Pipes, ProcessHost, ServerProcess};
pub(crate) use resolve::{
    External, ExternalFailure, INVALID, MISSING, remote_member, resolve, stdio_member,
};
pub use resolve::{ServersConfig, named_variables};
pub use spec::{ExternalServer, StdioSpec};
