//! Types and rules that every other crate of the gateway uses, and the files of the data directory that belong to none of them.
//!
//! Names, tools, resources, prompts and errors; JSON as spans of its text; scopes, grants and policies; the gate of a namespace
//! and other limits; values with `${NAME}` in them; secrets in memory and their redaction; the data directory, its lock and
//! writes in one step; tables of metrics.
//!
//! Knows no namespace that is served, no child process, no store of keys or secrets, and no server: those stand in the crates
//! above, `tooldock-credentials`, `tooldock-process` and `tooldock-workers`. Knows neither HTTP nor MCP. Its I/O is on files of
//! the data directory.
//!
//! Start with [`names`], [`tool`] and [`error`], the types of every call; then [`scope`], [`policy`] and [`gate`], which
//! decide about one; then [`data_dir`].
//!
//! A module uses only modules below it, in the order of `tests/architecture/layers.rs`. The feature `testing` adds what tests of
//! other crates use: [`fault`], and files that block in [`tree_file`].

pub mod address;
pub mod answers;
pub mod bounds;
pub mod budget;
pub mod config;
pub mod data_dir;
pub(crate) mod definition;
pub mod effect;
pub mod error;
pub mod failures;
pub mod fault;
pub mod file_lock;
pub mod gate;
pub mod gateway_process;
pub mod grant;
pub mod issue;
pub mod json;
pub mod key_maker;
pub mod listening;
pub mod logins;
pub mod mask;
pub mod metric_table;
pub mod names;
pub mod namespace_scope;
pub mod network;
pub mod off_or;
pub mod parking;
pub mod pattern;
pub mod policy;
pub mod poll_watch;
pub mod precedence;
pub mod prompt;
pub mod redactor;
pub mod regular_file;
pub mod resource;
pub mod route;
pub mod runtimes;
pub mod scope;
pub mod secret;
pub mod server_failure;
pub mod template;
pub mod tool;
pub mod trace;
pub mod tree_file;
pub mod worker_state;
pub mod yaml;
