//! Credentials that the gateway stores: secrets of namespaces, API keys of clients, and the personal values of principals.
//!
//! Each store is a file of the data directory with one writer at a time. Readers take no lock; a reload or a request uses the
//! last state that could be read. Values are encrypted at rest, keys are stored as salted hashes, and no code prints a value.
//!
//! This crate handles no served namespaces, child processes or servers: `tooldock-workers` decides to whom a value is given. It
//! does not depend on HTTP: the edge extracts a key from a request and responds to the client.
//!
//! Start reading with [`secrets`] and [`keys`], whose first lines name the files, and [`personal`], which derives the settings of
//! one principal from them. Locks, atomic writes and the types of names come from `tooldock-base`.
//!
//! | file | content |
//! |---|---|
//! | `secrets/store.rs`, `secrets/transaction.rs` | reads and writes values; one change, in an order that a crash cannot break |
//! | `secrets/envelope.rs`, `secrets/values.rs` | encryption; the document of values |
//! | `secrets/names.rs` | the store without its values, for management |
//! | `secrets/authorizations.rs` | tokens that people granted to the gateway, in a separate file, since they are renewed often |
//! | `secrets/personal.rs` | the values of all principals |
//! | `keys/store.rs`, `keys/record.rs` | creates and revokes keys in one file; the record of one key |
//! | `keys/table.rs`, `keys/text.rs` | the table against which requests are checked; the form of a key |
//! | `keys/lineage.rs` | keys created by other keys, which become invalid with them |
//! | `keys/follow.rs`, `keys/readers.rs` | changes of other processes; waiting until running gateways have read a change |
//! | `personal.rs` | the settings of a server that depend on the caller |
//!
//! Personal values are stored in the registry separately from the snapshot, so that a new value does not change any namespace.

pub mod keys;
pub mod personal;
pub mod secrets;
