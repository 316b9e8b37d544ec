//! Upstreams behind the surfaces: each kind answers clients of both eras, by the service as the proxy calls it.

mod client;
mod global;
mod in_memory;
mod worker;
