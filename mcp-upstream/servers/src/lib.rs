//! Connections to MCP servers: to child processes over pipes, one JSON-RPC message per line, and to remote servers over HTTP.
//!
//! ```text
//! pool ── leases of processes; starting, keeping and ending them
//!    ├─ turns ─── limits how many processes start at once, over all servers
//!    └─ process ── one process: opening, watching, routing of its messages
//!         └─ launch ── opening a connection: to a child process, or to a backend
//! handshake ── finding the protocol revisions of a server, and opening a connection in one of them
//!    └─ link ── pending calls, messages of each call, the server's own requests
//!         ├─ pipes ─── lines over two pipes, with limits in both directions
//!         └─ http ──── sessions at backends, over the port to the proxy's HTTP client
//! ```
//!
//! This crate does not depend on the engine, upstreams or surfaces: it opens connections and carries messages, and others decide
//! which call uses which connection, and what its client is told. No code here translates between revisions of the protocol. It
//! opens no connection of HTTP: the proxy implements [`http::port`].
//!
//! Start with [`pool`] and [`link`]; [`http`] has a page of its own.
//!
//! | module | holds |
//! |---|---|
//! | `pool`, `pool/pools.rs` | the connections of one server; of all servers |
//! | `pool/state.rs` | decisions of a pool, without I/O; `pool/state/restart.rs`: a restart by an operator |
//! | `pool/lease.rs`, `pool/leased.rs` | requests for a connection; a connection in use |
//! | `pool/process.rs` | one connection; `pool/process/keep.rs` owns it, `pool/process/router.rs`: messages without a call |
//! | `pool/process/tasks.rs`, `pool/process/replay.rs` | tasks of the server; requests that a new connection gets again |
//! | `key` | which requests share a connection, and how it is opened |
//! | `launch`, `turns`, `breaker` | how a connection is opened; starts at once; a stop of starts after failures |
//! | `handshake` | revisions of a server |
//! | `link` | calls on a connection; `link/transport.rs`: messages without pipes; `link/owner.rs`: the call of a message |
//! | `pipes` | lines of a child process |
//! | `http` | client mode: a remote server, or an HTTP API, as a server that speaks MCP |
//! | `metrics` | counts of servers and their processes |
//! | `testing` | servers for tests of this crate and of others: a real process, and one that a test plays in memory |
//!
//! For tests of this crate: `scene` (a server on pipes whose lines a test reads and writes).
//!
//! Processes were implemented first and gave the names: in `pool` and `link`, a *process* is any connection. Only `pipes`, and
//! the code in `launch` that starts children, are specific to pipes. Code in `pool/process.rs` and its submodules starts and
//! ends no process. When a reload changes a server, its pool continues to be used if the launcher can apply the new
//! configuration (`Launcher::adopt`).

pub mod breaker;
pub mod handshake;
pub mod http;
mod key;
pub mod launch;
pub mod link;
pub mod metrics;
pub mod pipes;
pub mod pool;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod turns;

/// Functions that the fuzz targets call. Compiled only for `make fuzz` and for tests.
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzzing {
    pub use crate::http::fuzzing::server_events;
    pub use crate::pipes::fuzzing::server_lines;
}

#[cfg(test)]
mod scene;
