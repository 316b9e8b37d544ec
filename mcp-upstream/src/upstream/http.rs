//! MCP servers that are reached over HTTP.
//!
//! The port below is what the proxy's HTTP client implements: it knows pools, health and connections, and nothing of MCP.
//! Above it a session at a backend is a connection like a child process (`crate::stdio`), so that pools, handshake, router
//! and bridge are those of stdio servers:
//!
//! ```text
//! Pools ─▶ launch: picks a backend ─▶ session: POST for each message, over the port
//!                                        ├─ answer: what a response means     ├─ headers: what a request says beside its body
//!                                        ├─ stream: the events of one request, resumed
//!                                        ├─ listen: the general stream
//!                                        └─ sse: the same over HTTP+SSE of 2024-11-05
//! ```
//!
//! A reload that changes where a server is, but not in whose name the gateway speaks with it, keeps the sessions: `reached`
//! holds the version of the server that they go by.
//!
//! What both modes share: `passed` says which of a client's own headers go up, `retry` when a message goes to another
//! backend, `hash` what stands for a client.
//!
//! What everybody shares has a connection at each backend, and the pool spreads requests over these. A client's own
//! session stays at its backend until that is gone; then it is opened at another, and told what it had been told.

mod answer;
mod events;
pub(crate) mod hash;
mod headers;
pub(crate) mod launch;
mod listen;
pub(crate) mod media;
pub(crate) mod passed;
pub mod port;
mod reached;
pub(crate) mod retry;
mod session;
mod session_words;
mod sse;
mod stream;

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

pub(crate) use answer::{
    CountedBody, SessionVerdict, error_of_request, redirect_target, refusal_words, session_verdict,
};
