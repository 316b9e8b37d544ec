//! Surfaces that no listener has: a client is connected by other means than HTTP.

pub(crate) mod stdio;
