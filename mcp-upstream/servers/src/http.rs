//! MCP servers that the gateway calls over HTTP.
//!
//! The proxy's HTTP client implements the port below ([`port`]), with pools, health and connections; it knows nothing about
//! MCP. Above the port, a session at a backend is a connection like a child process, so that stdio and remote servers
//! have their pools, handshake, router and bridge in common:
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
//! `reached` contains the version of the server that sessions use.
//!
//! An HTTP API whose operations are tools is a remote server, too: `api` answers the MCP messages of a session by requests to the
//! API.
//!
//! Client mode and pass-through mode share some modules: `passed` selects the client's headers that are forwarded, `retry`
//! decides if a message is sent to another backend, `hash` computes a client's number for choosing a backend.
//!
//! Connections that all clients share exist at each backend, and the pool spreads requests over them. A client's own session
//! stays at its backend until the backend is gone; then a new session is opened at another backend, and its lasting requests
//! are sent again.

mod answer;
mod api;
mod events;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
pub mod hash;
mod headers;
pub mod launch;
mod listen;
pub mod media;
pub mod passed;
pub mod port;
mod reached;
pub mod retry;
mod session;
mod session_words;
mod sse;
mod stream;

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

pub use answer::{
    BodyReadError, CountedBody, SessionVerdict, body, error_of_request, redirect_target,
    refusal_words, session_verdict,
};
