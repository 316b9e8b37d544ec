//! Namespaces: the folders, files and entries that define them, the registry of the served ones, and their changes.
//!
//! This crate does not depend on HTTP or MCP: there are no status codes and no JSON-RPC. The layers above read a
//! [`registry::Snapshot`], whose namespaces have a worker of `tooldock-process`, or a server described by [`external`] or
//! [`remote`]. `tooldock-credentials` reads secrets and keys; names, limits and files come from `tooldock-base`.
//!
//! ```text
//! reload ── scan ── manifest   folders on disk → the wanted state of each namespace
//!   ├─ external                external MCP servers: commands, and a child with its pipes
//!   ├─ remote                  external MCP servers over HTTP: addresses, and connection settings
//!   ├─ servers                 external MCP servers of both kinds, from all places
//!   ├─ aggregate               many servers behind one namespace: the content of its file
//!   └─ registry                the served namespaces, swapped in one step
//! ```
//!
//! Start with [`registry`], then [`reload`]. A module uses only modules below it, in the order of
//! `tests/architecture/layers.rs`.

pub mod aggregate;
pub mod explain;
pub mod external;
pub mod folder_check;
pub mod hidden;
pub mod manage;
pub mod manifest;
pub mod narrow;
pub mod recipients;
pub mod registry;
pub mod reload;
pub mod remote;
pub mod scan;
pub mod server_settings;
pub mod servers;
pub mod watch;
pub mod yaml_edit;
