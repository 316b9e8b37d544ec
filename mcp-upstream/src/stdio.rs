//! Connections to MCP servers: to child processes over pipes, one JSON-RPC message per line, and to remote servers by sessions.
//!
//! Processes were implemented first and gave the names: in `pool`, `process` and `link`, a *process* is any connection. Only
//! `wire`, and the code in `launch` that starts children, are specific to pipes.
//!
//! ```text
//! pool ── leases of processes; starting, keeping and ending them
//!    ├─ turns ─── limits how many processes start at once, over all servers
//!    └─ process ── one process: opening, watching, routing of its messages
//!         └─ launch ── opening a connection: to a child process, or to a backend
//! handshake ── finding the protocol revisions of a server, and opening a connection in one of them
//!    └─ link ── pending calls, messages of each call, the server's own requests
//!         ├─ splice ── rewriting ids and tokens in place; all other bytes are unchanged
//!         └─ wire ──── lines over two pipes, with limits in both directions
//! ```
//!
//! Code in `process` and its submodules starts and ends no process, and no code here translates between revisions of the
//! protocol.
//!
//! `process/keep.rs` is the task that owns a connection, `link/transport.rs` transports messages without pipes, and
//! `pool/state/restart.rs` carries out a restart by an operator. When a reload changes a server, its pool continues to be used if
//! the launcher can apply the new configuration (`Launcher::adopt`).

pub(crate) mod breaker;
pub(crate) mod handshake;
pub(crate) mod launch;
pub(crate) mod link;
pub(crate) mod metrics;
pub(crate) mod pool;
pub(crate) mod process;
pub(crate) mod turns;
pub(crate) mod wire;

#[cfg(test)]
pub(crate) mod testing;
