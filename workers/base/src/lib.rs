//! Types and rules that every other crate of the gateway uses, and those files of the data directory that belong to no other
//! crate.
//!
//! This crate does not contain served namespaces, child processes, stores of keys or secrets, or servers. These are in
//! `tooldock-credentials`, `tooldock-process` and `tooldock-workers`. It does not depend on HTTP or MCP. Its I/O is limited to
//! files of the data directory.
//!
//! Start with [`names`], [`tool`] and [`error`], the types of every call; then [`scope`], [`policy`] and [`gate`], which decide
//! about a call; then [`data_dir`].
//!
//! # Names, texts and values
//!
//! | module | holds |
//! |---|---|
//! | `names`, `tool`, `resource`, `prompt`, `definition` | terms of every call: `NamespaceName`, `Tool`, `Resource`, `Prompt` |
//! | `error`, `server_failure`, `issue`, `worker_state` | errors of calls, failures of servers, issues, states of workers |
//! | `route` | `RouteId`: `filters` determines it, `mcp-upstream` uses it; these two crates do not depend on each other |
//! | `config`, `bounds`, `off_or`, `template` | `workers:` and `namespaces:`; bounds, `off` and `${NAME}` in values |
//! | `json`, `yaml` | JSON as spans of its text; YAML, whose library is used in this module only |
//! | `secret`, `redactor` | a secret in memory; removal of secrets from texts before these are logged or shown |
//! | `mask`, `logins` | credentials in server configurations: shown masked, refused in new entries, found in URLs |
//! | `address`, `network` | public addresses; networks in CIDR notation |
//! | `pattern`, `precedence` | glob lists; the choice among several claims to a name |
//! | `metric_table`, `trace` | declaration of metrics as tables; traces of requests, absent without an export |
//!
//! `mask/address.rs` masks passwords in mistyped addresses that an error repeats; `mask/pasted.rs` refuses credentials in a new
//! entry.
//!
//! # Rights and limits
//!
//! | module | holds |
//! |---|---|
//! | `scope`, `grant`, `effect` | scopes as tool patterns; rights of one credential; effects of management tools and paths |
//! | `namespace_scope`, `policy` | namespaces that a credential opens; tools and principals that a namespace admits |
//! | `key_maker` | credentials with which API keys are created |
//! | `gate`, `parking` | concurrent calls and the queue that principals share fairly; calls that wait for their client |
//! | `budget`, `answers` | remaining budgets of rate limits; memory of all responses, shared by principal |
//! | `failures` | wrong credentials by address, user name or user, and the delays that follow |
//!
//! The edge creates a `Grant`, which is passed to every list and call. The rows of `effect` are defined next to the tools
//! (`EFFECTS`) and in `mcp-upstream/web.rs`.
//!
//! # Files and runtimes
//!
//! | module | holds |
//! |---|---|
//! | `data_dir`, `gateway_process` | layout, permissions, lock, atomic writes; the process that holds the lock |
//! | `listening` | addresses of the gateways that run on the data directory |
//! | `regular_file`, `tree_file` | opening files in folders that others can write to, and below `$DATA/tools` |
//! | `file_lock` | the lock that allows one writer of a file at a time |
//! | `heavy_work` | large computations, on separate threads with a limit on their number |
//! | `runtimes`, `poll_watch` | the proxy's runtimes; polls over 50 ms, counted and logged with route, method and namespace |
//! | `fault` | points at which a test kills the process |
//!
//! A module uses only modules below it, in the order of `tests/architecture/layers.rs`. The feature `testing` adds test support
//! for other crates: [`fault`], files that block in [`tree_file`], and a count in [`heavy_work`].

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
pub mod heavy_work;
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
