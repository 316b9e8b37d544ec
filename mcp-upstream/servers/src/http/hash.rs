//! Hashes of clients, for `balance: hash`.

use std::hash::{DefaultHasher, Hash, Hasher};

use tooldock_sessions::caller::Caller;
use tooldock_sessions::session::Session;

/// The hash of a client: of its session, if it has one, else of its principal and address.
pub fn of_client(caller: &Caller, session: Option<&Session>) -> u64 {
    let mut hasher = DefaultHasher::new();
    match session {
        Some(session) => session.tag().hash(&mut hasher),
        None => (caller.principal_name(), caller.client).hash(&mut hasher),
    }
    hasher.finish()
}
