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

pub mod address;
pub mod aggregate;
pub mod answers;
pub mod bounds;
pub mod budget;
pub mod config;
pub mod data_dir;
pub(crate) mod definition;
pub mod effect;
pub(crate) mod environment;
pub mod error;
pub mod explain;
pub mod external;
pub mod failures;
pub(crate) mod fault;
pub mod file_lock;
pub mod folder_check;
pub mod gate;
pub mod gateway_process;
pub mod grant;
pub mod hidden;
pub mod issue;
pub mod json;
pub mod keys;
pub mod listening;
pub(crate) mod logins;
pub mod manage;
pub mod manifest;
pub mod mask;
pub mod metric_table;
pub mod metrics;
pub mod names;
pub mod namespace_scope;
pub mod narrow;
pub mod network;
pub mod off_or;
pub mod parking;
pub mod pattern;
pub mod personal;
pub mod policy;
pub mod poll_watch;
pub mod precedence;
pub mod process;
pub mod prompt;
pub mod recipients;
pub(crate) mod redactor;
pub mod registry;
pub mod regular_file;
pub mod reload;
pub mod remote;
pub mod repositories;
pub mod resource;
pub mod route;
pub mod runtimes;
pub mod scan;
pub mod scope;
pub mod secret;
pub mod secrets;
pub mod server_failure;
pub mod server_settings;
pub mod servers;
pub(crate) mod template;
pub mod tool;
pub(crate) mod tree_file;
pub mod watch;
pub mod worker;
pub mod worker_state;
pub mod yaml;
