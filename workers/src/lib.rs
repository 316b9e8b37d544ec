//! Namespaces: the folders, files and entries that define them, the registry of the served ones, and their changes.
//!
//! This crate does not depend on HTTP or MCP: there are no status codes and no JSON-RPC. The layers above read a
//! [`registry::Snapshot`], whose namespaces have a worker of `tooldock-process`, or a server described by [`external`] or
//! [`remote`]. `tooldock-credentials` reads secrets and keys; names, limits and files come from `tooldock-base`.
//!
//! ```text
//! reload ── scan ── manifest   folders on disk → the wanted state of each namespace
//!   ├─ external                external MCP servers as child processes: commands and pipes
//!   ├─ remote                  external MCP servers over HTTP: addresses and connection settings
//!   ├─ openapi                 HTTP APIs whose operations are tools, as remote servers
//!   ├─ servers                 external MCP servers of both kinds, from all configuration files
//!   ├─ aggregate               many servers behind one namespace: the content of its file
//!   └─ registry                the served namespaces, replaced in one step
//! ```
//!
//! Start with [`registry`], then [`reload`]. A module uses only modules below it, in the order of
//! `tests/architecture/layers.rs`.
//!
//! | file | content |
//! |---|---|
//! | `registry.rs`, `registry/startup.rs` | the snapshot; starting namespaces, and the requests that wait for them |
//! | `reload.rs`, `reload/run.rs`, `reload/wanted.rs` | queue of reloads; one run; the wanted state of a namespace |
//! | `reload/secrets.rs` | secrets of a reload: the previous ones if they cannot be read |
//! | `reload/aggregate/serve.rs` | the namespace of an aggregate |
//! | `scan.rs`, `scan/ignored.rs` | the folders below `$DATA/tools`; issues about files and folders that are not served |
//! | `manifest.rs`, `narrow.rs` | `tooldock.yaml` of a namespace; limits that the data directory's configuration lowers |
//! | `folder_check.rs`, `folder_check/trial.rs` | checks of folders for `tooldock check`, by parsing or importing their files |
//! | `watch.rs`, `watch/burst.rs` | detection of changes in the data directory; combination of many changes into one reload |
//! | `explain.rs` | explanation of access: each rule that a request for a tool passes, in words |
//! | `hidden.rs` | masking of secrets in results of `test_tool`, and in errors (`mcp-upstream/engine/engine/secrecy.rs`) |
//! | `pins.rs` | recorded definitions of servers, their changes, and the operator's decisions about them |
//! | `recipients.rs` | namespaces and servers that receive a secret |
//!
//! Configured servers:
//!
//! | file | content |
//! |---|---|
//! | `external.rs`, `external/config.rs` | stdio servers and their keys |
//! | `external/file.rs`, `external/install.rs` | `$DATA/external/config.yaml`; installation of packages for `npx` and `uvx` |
//! | `external/process.rs` | a server's child process with its pipes |
//! | `remote.rs`, `remote/config.rs`, `remote/oauth.rs` | remote servers and their keys |
//! | `remote/spec.rs`, `remote/backend.rs`, `remote/resolve.rs` | connection settings, backends, and their resolution |
//! | `openapi.rs`, `remote/api.rs` | keys of HTTP APIs; their documents and base URLs |
//! | `server_settings.rs` | settings of both kinds |
//! | `servers.rs`, `servers/check.rs` | servers of all configuration files, for reloads and for `tooldock check` |
//! | `aggregate.rs`, `aggregate/spec.rs`, `aggregate/file.rs` | aggregates: their file and its content |
//! | `aggregate/nesting.rs` | refusal of aggregates that contain each other in a circle, or are nested too deep |
//!
//! Each server of an aggregate's file is a hidden namespace with the name `AGGREGATE.PREFIX`. The snapshot contains it inside its
//! aggregate, and clients cannot address it by name.
//!
//! Changes by managers, each made under one lock and by a rename:
//!
//! | file | content |
//! |---|---|
//! | `manage.rs`, `manage/folder.rs` | the workspace; folders of namespaces |
//! | `manage/tool_file.rs`, `manage/history.rs` | tool files; their earlier versions |
//! | `manage/inspect.rs`, `manage/requirements.rs` | parsing of tool files; adding and installing of packages |
//! | `manage/servers.rs`, `manage/servers_file.rs` | entries of `external/config.yaml`, changed by tools and by commands |
//! | `yaml_edit.rs` | change of one entry in a YAML text, with all comments kept |
//! | `manage/leftovers.rs` | removal of leftovers of a crash |
//!
//! Tests interrupt a change after each of its steps, with `workers/base/fault.rs`.

pub mod aggregate;
pub mod explain;
pub mod external;
pub mod folder_check;
pub mod hidden;
pub mod manage;
pub mod manifest;
pub mod narrow;
pub mod openapi;
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

/// Functions that the fuzz targets call. Compiled only for `make fuzz` and for tests.
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzzing {
    pub use crate::aggregate::aggregate_file;
    pub use crate::external::servers_file;
    pub use crate::pins::fuzzing::{definitions, pins_file};
}
