//! The lowest layer: namespaces, the registry snapshot, worker processes and the RPC with them.
//!
//! Knows neither HTTP nor MCP: no status codes, no JSON-RPC. The layers above ask it for a [`registry::Snapshot`] and call
//! tools, resources and prompts through a [`worker::Worker`], or speak the protocol of an [`external::ServerProcess`] on its
//! pipes.
//!
//! ```text
//! reload ── scan ── manifest          folders on disk → the wanted state of each namespace
//!   │  └─── environment               the interpreter and packages that workers run on
//!   ├─ worker ── process ── __guard   the process that runs the tools, ended with all its descendants
//!   ├─ external ─────┘                external MCP servers: commands, and a child with its pipes
//!   ├─ remote                         external MCP servers over HTTP: addresses, and connection settings
//!   ├─ servers                        external MCP servers of both kinds, from all places
//!   ├─ aggregate                      many servers behind one namespace: the content of its file
//!   └─ registry                       the served namespaces, swapped in one step
//! repositories ── __builder ── __guard   repositories and packages of other authors, read in a separate process
//! ```
//!
//! A module uses only modules below it, in the order of `tests/architecture/layers.rs`.

pub mod aggregate;
pub(crate) mod environment;
pub mod explain;
pub mod external;
pub mod folder_check;
pub mod hidden;
pub mod manage;
pub mod manifest;
pub mod metrics;
pub mod narrow;
pub mod process;
pub mod recipients;
pub mod registry;
pub mod reload;
pub mod remote;
pub mod repositories;
pub(crate) mod requirements;
pub mod scan;
pub mod server_settings;
pub mod servers;
pub mod watch;
pub mod worker;
