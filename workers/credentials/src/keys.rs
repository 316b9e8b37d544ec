//! API keys: credentials that people create, restrict, and revoke without a restart (SEC-18).
//!
//! ```text
//! $DATA/keys.json        records with salted hashes            keys/file.rs, keys/record.rs
//!       keys.json.lock   lock of the only writer               file_lock.rs
//!
//!   text of a key ── its id ──▶ KeyTable ── hash, networks, expiry ──▶ ApiKey   keys/text.rs, keys/table.rs
//!                                  ▲
//!            KeyStore: create, revoke, changes by other processes                keys/store.rs, keys/follow.rs, keys/readers.rs
//!
//!   key created by a key ── has no more rights, and becomes invalid with it      keys/lineage.rs
//!   key created by a configured entry or an access token: likewise               keys/credential.rs
//! ```
//!
//! The filters that admit requests use [`KeyTables`], so each change is in force from the next request on. A table is immutable:
//! it is built from the file and replaced atomically. If the file becomes unreadable while the process runs, the previous table
//! stays in force.
//!
//! This module does not depend on HTTP: the callers extract the key from a request and respond to the client.

mod credential;
mod error;
mod file;
mod follow;
mod lineage;
mod readers;
mod record;
mod store;
mod table;
mod text;

pub use credential::{CredentialRecord, KeyMakers};
pub use error::KeysError;
pub use readers::ChangeSocket;
pub use record::{KeyLimit, KeyLimitUnit, KeyRecord, KeyState, NewKey};
pub use store::{KeyStore, MadeKey};
pub use table::{ApiKey, KeyRefusal, KeyTable, KeyTables};
pub use text::{KeyKind, looks_like_key};
