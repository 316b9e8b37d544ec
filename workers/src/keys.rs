//! API keys: credentials that people make, narrow, and take back without a restart (SEC-18).
//!
//! ```text
//! $DATA/keys.json        records with salted hashes            keys/file.rs, keys/record.rs
//!       keys.json.lock   held by the one writer                file_lock.rs
//!
//!   text of a key ── its id ──▶ KeyTable ── hash, networks, end ──▶ ApiKey      keys/text.rs, keys/table.rs
//!                                  ▲
//!            KeyStore: create, revoke, another process's changes                 keys/store.rs, keys/follow.rs, keys/readers.rs
//!
//!   a key's maker, where that is a key ── ends it, and bounds it                 keys/lineage.rs
//!   … where that is another credential than the operator's: the same             keys/credential.rs
//! ```
//!
//! Whoever judges requests holds [`KeyTables`] and sees each change with the next request. A table is immutable: it is
//! made from the file and swapped in one step. A file that cannot be read changes nothing while the process runs.
//!
//! This module knows no HTTP: where a key is looked for, and what a caller is told, is decided above.

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

pub use credential::{
    CredentialRecord, EntryHash, EntryName, KeyMaker, KeyMakers, MakerCredential,
};
pub use error::KeysError;
pub use readers::ChangeSocket;
pub use record::{KeyLimit, KeyLimitUnit, KeyRecord, KeyState, NewKey};
pub use store::{KeyStore, MadeKey};
pub use table::{ApiKey, KeyRefusal, KeyTable, KeyTables};
pub use text::{InvalidKeyId, KeyId, KeyKind, looks_like_key};
