//! MCP messages: JSON-RPC over raw bytes, the protocol revisions, the translation between them, and encrypted ids.
//!
//! ```text
//! bridge ──▶ jsonrpc ──▶ version   translates messages between the eras
//!    │       format ─────────┤       writes results as text; a server's bytes are copied
//!    └─────▶ seal ───────────┘       session ids, states and handles that only this gateway can decrypt
//! ```
//!
//! No message is decoded and encoded again: a parsed message contains its bytes and the positions of its members. This crate does
//! not depend on sessions, connections, upstreams or HTTP. It describes a refused request as a [`jsonrpc::RequestError`]; the
//! surfaces choose the HTTP status for it.
//!
//! Start reading with [`jsonrpc`], then [`version`]. [`bridge`] lists all differences between the eras.
//!
//! | file | contents |
//! |---|---|
//! | `version.rs` | protocol revisions, eras, error codes |
//! | `jsonrpc.rs` | messages with the positions of their members, and the reasons for which a message is refused |
//! | `jsonrpc/splice.rs` | edits of ids and tokens in a message's text |
//! | `jsonrpc/nulls.rs` | removes members that are null from messages of clients |
//! | `jsonrpc/plain.rs` | corrects ids and members that are null in messages of servers |
//! | `format.rs` | results as text, in the format of the client's version |
//! | `seal.rs`, `seal/task.rs` | the key that encrypts session ids, states and handles; names of tasks behind an aggregate |
//! | `bridge.rs` | translation between eras; no other module handles both formats of a message |
//! | `bridge/params.rs`, `bridge/reply.rs` | the metadata of an era in `params`, and in results |
//! | `bridge/nulls.rs`, `bridge/errors.rs` | corrects members that are null, and errors, in messages of servers |
//! | `testing.rs` | messages for tests |

pub mod bridge;
pub mod format;
pub mod jsonrpc;
pub mod seal;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod version;
