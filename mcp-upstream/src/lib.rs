//! The MCP and REST service behind the edge: surfaces over one tool engine, called in process.
//!
//! The edge has admitted a request before this crate handles it. A request consists of a [`tooldock_sessions::caller::Caller`],
//! the relevant headers and the bytes of the body; its response is a [`reply::Reply`]. This crate opens no listening socket,
//! uses no Pingora type, and does not depend on `tooldock-filters`. Messages and versions are in `tooldock-protocol`; sessions,
//! streams, questions to clients, lists of entries, stores and the audit log in `tooldock-sessions`; connections to MCP servers
//! in `tooldock-servers`; the engine and the upstreams of namespaces in `tooldock-engine`.
//!
//! ```text
//! service ─┬─ mcp, legacy    MCP over HTTP: version, session, form of the response
//!          ├─ surface        MCP over the pipes of this process, for one client; tools over the relay's socket
//!          └─ rest, web      tools as plain HTTP; OpenAPI, health, reload; the app and its paths
//!                └─▶ tooldock-engine   upstreams of namespaces, and the order of a call
//! ```
//!
//! Start with `service.rs`, then `mcp.rs`. The first lines of a module name its files.
//!
//! # Surfaces
//!
//! | module | holds |
//! |---|---|
//! | `service`, `mcp/core.rs` | the entry for the proxy: one `match` over the route's id; the state that all requests share |
//! | `reply` | the reply to a request, as a value |
//! | `mcp` | POST on `/mcp`; `mcp/call.rs` runs a call, `mcp/exchange.rs` makes its response a stream |
//! | `mcp/tasks.rs` | calls of Python tools that continue after their requests |
//! | `mcp/sessions.rs`, `mcp/modern.rs` | GET and DELETE; requests of 2026-07-28 |
//! | `mcp/pass_through.rs` | messages of remote servers that are forwarded unchanged, and observed for records |
//! | `legacy` | HTTP+SSE of 2024-11-05 |
//! | `rest` | REST, OpenAPI, reload, health; `rest/shape.rs`, `rest/vault.rs`, `rest/info.rs`: the older surfaces |
//! | `web`, `pages` | `/api/*`, a file per group; the app of `/ui/`, read into memory at the start and by reloads |
//! | `surface` | one client over pipes (`surface/stdio.rs`); the relay's frames (`surface/relay.rs`), which pass no filter |
//! | `error`, `tool_result` | statuses and bodies of refusals; values as results |
//! | `scopes`, `credentials`, `reload` | scopes that include a tool; interfaces to the edge's credentials and to reloads |
//! | `probe`, `probe_events`, `health` | probes of `tooldock doctor`; `/health` and `/ready` |
//!
//! For tests: `testing` (a service over fakes), `upstreams` (each kind behind the surfaces), `transcripts` (messages byte by
//! byte), `cost` (allocations and instructions of a message).
//!
//! # Odd messages
//!
//! Messages keep their bytes, except in these places:
//!
//! | odd part | rewritten by |
//! |---|---|
//! | null keys of clients' messages | `mcp-upstream/protocol/jsonrpc/nulls.rs`, when a message is received |
//! | ids and null keys of servers' messages | `mcp-upstream/protocol/jsonrpc/plain.rs`: pipes, client mode, pass-through |
//! | null keys of results; errors | `mcp-upstream/protocol/bridge/nulls.rs`, `mcp-upstream/protocol/bridge/errors.rs` |
//! | lists; arguments in strings | `mcp-upstream/sessions/catalogue/mend.rs`, `mcp-upstream/sessions/catalogue/coerce.rs` |
//! | results that miss their schema | `mcp-upstream/sessions/catalogue/results.rs` |
//! | the form of responses on a lenient listener | `mcp/form.rs` |
//! | messages that do not name their call | `mcp-upstream/servers/link/owner.rs` finds the call |
//!
//! `RequestError` is in `tooldock_protocol::jsonrpc`, beside the parsers that return it, and its HTTP status is in `error.rs`.

mod credentials;
mod error;
pub mod health;
mod legacy;
mod mcp;
mod pages;
pub mod probe;
pub mod probe_events;
mod reload;
pub mod reply;
mod rest;
mod scopes;
pub mod service;
mod surface;
mod tool_result;
pub mod web;

pub use tooldock_protocol::jsonrpc::subject::Subject;
use tooldock_protocol::{format, jsonrpc};
pub use tooldock_protocol::{seal, version as protocol};

pub use credentials::Credentials;
pub use mcp::head::{AcceptFlags, Carrier, McpHead, MirroredHeaders};
pub use mcp::{CertificateEnds, ConfigurationChange, ConfigurationView, ConfiguredValue, WebFacts};
pub use pages::Pages;
pub use reload::ReloadControl;
pub use service::{OwnCore, Service, ServiceParts};
pub use surface::relay::{FrameLimits, Relay, RelayRegistration};
pub use surface::stdio::ConversationEnd;
pub use tooldock_engine::connect_links::{ConnectLink, ConnectLinks, LinkSubject};
pub use tooldock_engine::upstream::system as management;
pub use tooldock_engine::{engine, hooks, metrics};
pub use tooldock_servers::http::port as http_client;

/// Functions that the fuzz targets call. Compiled only for `make fuzz` and for tests.
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzzing {
    pub use crate::surface::relay::fuzzing::relay_frame;
}

#[cfg(test)]
mod cost;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod transcripts;
#[cfg(test)]
mod upstreams;
