//! Types and rules that every other crate of the gateway uses, and those files of the data directory that belong to no other
//! crate.
//!
//! Names, tools, resources, prompts and errors; JSON as spans of its text; scopes, grants and policies; the gate of a namespace
//! and other limits; templates with `${NAME}`; secrets in memory and their redaction; the data directory, its lock and atomic
//! writes; tables of metrics.
//!
//! This crate handles no served namespaces, child processes, stores of keys or secrets, or servers, which are in
//! `tooldock-credentials`, `tooldock-process` and `tooldock-workers`. It does not depend on HTTP or MCP. Its I/O is limited to
//! files of the data directory.
//!
//! Start with [`names`], [`tool`] and [`error`], the types of every call; then [`scope`], [`policy`] and [`gate`], which decide
//! about a call; then [`data_dir`].
//!
//! A module uses only modules below it, in the order of `tests/architecture/layers.rs`. The feature `testing` adds test support
//! for other crates: [`fault`], and files that block in [`tree_file`].

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
