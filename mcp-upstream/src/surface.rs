//! Surfaces that no listener has: a client is connected by other means than HTTP.

mod outbox;
pub(crate) mod relay;
mod requests;
pub(crate) mod stdio;
