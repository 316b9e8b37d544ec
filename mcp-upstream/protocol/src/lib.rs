//! MCP as messages: JSON-RPC over raw bytes, the protocol revisions, the translation between them, and sealed ids.
//!
//! ```text
//! bridge ──▶ jsonrpc ──▶ version   a message of one era as a message of the other
//!    │       format ─────────┤       results as text, around spans of a server's bytes
//!    └─────▶ seal ───────────┘       session ids, states and handles that only this gateway can open
//! ```
//!
//! No message is decoded and encoded again: a parsed message contains the spans of its bytes. This crate does not depend on
//! sessions, connections, upstreams or HTTP: a refused request is a [`jsonrpc::RequestError`], whose HTTP status the surfaces
//! choose.
//!
//! Start with [`jsonrpc`], then [`version`]; [`bridge`] has the table of all differences between the eras.

pub mod bridge;
pub mod format;
pub mod jsonrpc;
pub mod seal;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod version;
