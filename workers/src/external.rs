//! MCP servers that run as child processes: their configuration, and a process with its pipes.
//!
//! [`crate::servers`] creates an [`ExternalServer`] from a configuration, and a reload creates an [`ExternalServer`] from a
//! namespace folder whose files make a server. A [`ServerProcess`] runs the server, in as many instances as needed.
//!
//! This module deliberately does not read or write a pipe, and does not decide how many processes exist or when a process is
//! restarted. The MCP layer (`mcp-upstream`) does that, with the settings in [`StdioSpec`].

mod config;
mod file;
mod install;
mod process;
mod registry_name;
mod spec;
mod startable;
mod trial;

pub use config::{Restart, StdioServerConfig, StdioServersConfig, StdioSettings};
pub use file::check_servers_file;
#[cfg(any(test, fuzzing))]
pub use file::fuzzing::servers_file;
pub(crate) use file::{ServersFile, check_entry, is_cached};
pub use install::{InstallStep, NotInstalled};
pub use process::{Pipes, ProcessHost, ServerProcess};
pub use spec::{ExternalServer, ServedFolder, StdioSpec};
pub(crate) use startable::not_startable;
pub(crate) use trial::Trial;
