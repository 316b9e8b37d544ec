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
//!
//! | file | holds |
//! |---|---|
//! | `version.rs` | protocol revisions, eras, error codes |
//! | `jsonrpc.rs` | messages as spans of their bytes, and the reason for which a message is refused |
//! | `jsonrpc/splice.rs` | edits in place: ids, tokens |
//! | `jsonrpc/nulls.rs` | null members of clients' messages, at the entrance |
//! | `jsonrpc/plain.rs` | ids and null members of servers' messages: on pipes, in client mode and in pass-through |
//! | `format.rs` | results as text, in the form of a client's version |
//! | `seal.rs`, `seal/task.rs` | the key that seals session ids, states and handles; names of tasks behind an aggregate |
//! | `bridge.rs` | translation between eras; no other module knows both forms of a message |
//! | `bridge/params.rs`, `bridge/reply.rs` | the metadata of an era in `params`, and in results |
//! | `bridge/nulls.rs`, `bridge/errors.rs` | null members of results, and errors, in client mode and on pipes |
//! | `testing.rs` | messages for tests |

pub mod bridge;
pub mod format;
pub mod jsonrpc;
pub mod seal;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod version;
