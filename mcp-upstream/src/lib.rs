//! The service behind the edge: MCP and REST over one tool engine, called in process.
//!
//! The edge has admitted a request before it comes here; it arrives as a [`caller::Caller`], the few headers that
//! matter and the body's bytes, and leaves as a [`reply::Reply`]. No socket is opened here and no Pingora type is known.
//!
//! ```text
//! service ── mcp ── jsonrpc             one JSON-RPC message as raw spans; version, session, method
//!    │        └── session               who may speak in which conversation
//!    ├────── rest                       the same tools as plain HTTP; OpenAPI, health, reload
//!    └────── engine ── backend          one call path: policy, limits, queue, timeout, audit, metrics
//! ```

pub mod audit;
pub mod backend;
mod bridge;
pub mod broadcast;
mod call_error;
pub mod caller;
pub mod engine;
mod error;
mod format;
pub mod health;
mod interaction;
mod jsonrpc;
mod legacy;
pub mod log_file;
mod mcp;
pub mod metrics;
pub mod profile;
pub mod protocol;
mod reload;
pub mod reply;
mod rest;
pub mod seal;
pub mod service;
pub mod session;
mod stdio;
pub mod stream;
mod supervise;

pub use jsonrpc::subject::Subject;
pub use mcp::head::{AcceptFlags, McpHead, MirroredHeaders};
pub use reload::ReloadControl;
pub use service::{Service, ServiceParts};

#[cfg(test)]
mod cost;
#[cfg(test)]
mod layers;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod transcripts;
