//! Credentials that the gateway stores: secrets of namespaces, API keys of clients, and the personal values of principals.
//!
//! Each store is a file of the data directory with one writer at a time; readers take no lock, and a reload or a request sees
//! the last state that could be read. Values are encrypted at rest, keys are stored as salted hashes, and no code prints a
//! value.
//!
//! This crate handles no served namespaces, child processes or servers: `tooldock-workers` decides who gets a value. It does
//! not depend on HTTP: the edge finds a key in a request and answers the client.
//!
//! Start with [`secrets`] and [`keys`], whose first lines name the files, and [`personal`], which derives the settings of one
//! principal from them. Locks, atomic writes and the types of names come from `tooldock-base`.

pub mod keys;
pub mod personal;
pub mod secrets;
