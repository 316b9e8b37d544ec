//! Surfaces without HTTP. Their clients are connected over pipes or a Unix socket.

mod outbox;
pub(crate) mod relay;
mod requests;
pub(crate) mod stdio;
