//! The MCP and REST service behind the edge: one tool engine for both, called in process.
//!
//! The edge has admitted a request before this crate handles it. A request arrives as a [`caller::Caller`], the relevant
//! headers and the body's bytes, and its response leaves as a [`reply::Reply`]. This crate opens no listener's socket and uses
//! no Pingora type.
//!
//! ```text
//! service ─┬─ mcp, legacy    the protocol's surfaces: version, session, how an answer travels
//!          ├─ surface        the same over the pipes of this process, for one client; tools over the relay's socket
//!          ├─ rest           the same tools as plain HTTP; OpenAPI, health, reload
//!          └─▶ upstream      runs the requests of a namespace: each becomes an answer or a call
//!                └─▶ engine  runs every call: policy, limits, queue, clock, audit, metrics
//! ```

pub mod audit;
pub mod broadcast;
mod call_error;
pub mod caller;
mod catalogue;
mod credentials;
pub mod engine;
mod error;
pub mod health;
mod heavy_work;
mod interaction;
mod legacy;
pub mod log_file;
mod mcp;
pub mod metrics;
mod pages;
pub mod probe;
pub mod probe_events;
pub mod profile;
mod reload;
pub mod replicas;
pub mod reply;
mod rest;
mod scopes;
pub mod service;
pub mod session;
mod stdio;
pub mod stores;
pub mod stream;
mod supervise;
mod surface;
mod tool_result;
mod trace;
mod upstream;
pub mod web;

pub use tooldock_protocol::jsonrpc::subject::Subject;
use tooldock_protocol::{bridge, format, jsonrpc};
pub use tooldock_protocol::{seal, version as protocol};

pub use credentials::Credentials;
pub use mcp::head::{AcceptFlags, Carrier, McpHead, MirroredHeaders};
pub use mcp::{CertificateEnds, ConfigurationChange, ConfigurationView, ConfiguredValue, WebFacts};
pub use pages::Pages;
pub use reload::ReloadControl;
pub use service::{OwnCore, Service, ServiceParts};
pub use surface::relay::{FrameLimits, Guest, Relay};
pub use surface::stdio::ConversationEnd;
pub use upstream::http::port as http_client;
pub use upstream::system as management;

#[cfg(test)]
mod cost;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod transcripts;
