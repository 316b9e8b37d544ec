//! MCP servers that are reached over HTTP.
//!
//! The proxy's HTTP client implements the port below: it knows pools, health and connections, and nothing of MCP. Above it a
//! session at a backend is a connection like a child process (`crate::stdio`), so that pools, handshake, router and bridge are
//! those of stdio servers:
//!
//! ```text
//! Pools ─▶ launch: picks a backend ─▶ session: POST for each message, over the port
//!                                        ├─ answer: meaning of a response     ├─ headers: the headers of a request
//!                                        ├─ stream: the events of one request, resumed
//!                                        ├─ listen: the general stream
//!                                        └─ sse: the transport HTTP+SSE of 2024-11-05
//! ```
//!
//! A reload that changes the address of a server, but not the identity that the gateway uses there, keeps the sessions:
//! `reached` holds their version of the server.
//!
//! Used in both modes: `passed` selects the client's headers that go up, `retry` decides if a message goes to another backend,
//! `hash` makes a number of a client.
//!
//! Connections that all clients share exist at each backend, and the pool spreads requests over them. A client's own session
//! stays at its backend until that is gone; then it is opened at another, and gets its lasting requests again.

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
