//! API keys: credentials that people create, restrict, and revoke without a restart (SEC-18).
//!
//! ```text
//! $DATA/keys.json        records with salted hashes            keys/file.rs, keys/record.rs
//!       keys.json.lock   held by the one writer                file_lock.rs
//!
//!   text of a key ── its id ──▶ KeyTable ── hash, networks, end ──▶ ApiKey      keys/text.rs, keys/table.rs
//!                                  ▲
//!            KeyStore: create, revoke, another process's changes                 keys/store.rs, keys/follow.rs, keys/readers.rs
//!
//!   key made by another key ── ends with it, and is bounded by it                keys/lineage.rs
//!   key made by another credential than the operator's: the same                 keys/credential.rs
//! ```
//!
//! The filters that judge requests hold [`KeyTables`] and see each change with the next request. A table is immutable: it is
//! built from the file and swapped in one step. A file that cannot be read changes nothing while the process runs.
//!
//! This module does not depend on HTTP: the callers find the key in a request and answer the client.

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
