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
//!
//! | file | holds |
//! |---|---|
//! | `registry.rs`, `registry/startup.rs` | the snapshot; starting namespaces, and the bound on requests that wait for them |
//! | `reload.rs`, `reload/run.rs`, `reload/wanted.rs` | scan, compare, start, swap, drain; one run; the wanted state |
//! | `reload/secrets.rs` | secrets of a reload: those of the last one if they cannot be read |
//! | `reload/aggregate/serve.rs` | the namespace of an aggregate |
//! | `scan.rs`, `scan/ignored.rs` | the folders below `$DATA/tools`; files and folders that do not count |
//! | `manifest.rs`, `narrow.rs` | `tooldock.yaml` of a namespace; limits that the data directory lowers |
//! | `folder_check.rs`, `folder_check/trial.rs` | folders for `tooldock check`: parsed alone, or imported on trial |
//! | `watch.rs`, `watch/burst.rs` | changes of the data directory, by inotify or by looking; many changes as one reload |
//! | `explain.rs` | each rule between a credential and a tool, in words |
//! | `hidden.rs` | secrets hidden in results of `test_tool`, and in errors by `mcp-upstream/engine/secrecy.rs` |
//! | `pins.rs` | recorded definitions of servers, their changes, and the operator's decisions about them |
//! | `recipients.rs` | namespaces and servers that receive a secret |
//!
//! Configured servers:
//!
//! | file | holds |
//! |---|---|
//! | `external.rs`, `external/config.rs` | stdio servers and their keys |
//! | `external/file.rs`, `external/install.rs` | `$DATA/external/config.yaml`; packages for `npx` and `uvx` |
//! | `external/process.rs` | one child with its pipes |
//! | `remote.rs`, `remote/config.rs`, `remote/oauth.rs` | remote servers and their keys |
//! | `remote/spec.rs`, `remote/backend.rs`, `remote/resolve.rs` | connection settings, backends, and their resolution |
//! | `server_settings.rs` | settings of both kinds |
//! | `servers.rs`, `servers/check.rs` | servers of all places, for reloads and for `tooldock check` |
//! | `aggregate.rs`, `aggregate/spec.rs`, `aggregate/file.rs` | aggregates: their file and its content |
//! | `aggregate/nesting.rs` | refusal of aggregates that are members of each other in a circle, or nested too deep |
//!
//! Each server of an aggregate's file is a hidden namespace of its own kind, `AGGREGATE.PREFIX`: it is in the snapshot inside
//! its aggregate, and no name that a client sends leads to it.
//!
//! Changes by managers, each under one lock and by a rename:
//!
//! | file | holds |
//! |---|---|
//! | `manage.rs`, `manage/folder.rs` | the workspace; folders |
//! | `manage/tool_file.rs`, `manage/history.rs` | tool files; their earlier versions |
//! | `manage/inspect.rs`, `manage/requirements.rs` | code, read by Python's parser; packages, added and installed |
//! | `manage/servers.rs`, `manage/servers_file.rs` | entries of `external/config.yaml`, by tools and by commands |
//! | `yaml_edit.rs` | one entry of a YAML text, with all comments kept |
//! | `manage/leftovers.rs` | removal of leftovers of a crash |
//!
//! Each step of a change can be the last in tests: `workers/base/fault.rs`.

pub mod aggregate;
pub mod explain;
pub mod external;
pub mod folder_check;
pub mod hidden;
pub mod manage;
pub mod manifest;
pub mod narrow;
pub mod pins;
pub mod recipients;
pub mod registry;
pub mod reload;
pub mod remote;
pub mod scan;
pub mod server_settings;
pub mod servers;
pub mod watch;
pub mod yaml_edit;
