//! Surfaces without a listener: their clients are connected by other means than HTTP.

mod outbox;
pub(crate) mod relay;
mod requests;
pub(crate) mod stdio;
