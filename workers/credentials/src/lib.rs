//! Credentials that the gateway keeps: secrets of namespaces, API keys of clients, and the personal values of principals.
//!
//! Each store is a file of the data directory with one writer at a time; readers take no lock, and a reload or a request sees
//! the last state that could be read. Values are encrypted at rest, keys are kept as salted hashes, and nothing here prints a
//! value.
//!
//! Knows no namespace that is served, no child process and no server: who gets a value is decided above, in
//! `tooldock-workers`. Knows no HTTP: the edge finds a key in a request and answers the caller.
//!
//! Start with [`secrets`] and [`keys`], whose first lines name the files, and [`personal`], which makes the settings of one
//! principal of them. Locks, writes in one step and the types of names are those of `tooldock-base`.

pub mod keys;
pub mod personal;
pub mod secrets;
