//! The engine: the order of a call, and the upstreams that run the calls of namespaces.
//!
//! ```text
//! upstream      handles the requests of a namespace: each becomes a response or a call
//!    └─▶ engine    runs every call: policy, limits, queue, clock, audit, metrics
//! ```
//!
//! This crate does not depend on surfaces or the service: a request arrives as a [`upstream::CallContext`] with the members of a
//! message, and an upstream returns the bytes of a response, or a call for the engine. It chooses no HTTP status, and opens no
//! connection: connections to MCP servers are in `tooldock-servers`, those of Python workers in `tooldock-process`.
//!
//! Start with `engine.rs`, then `upstream.rs`, whose page says how a kind of upstream is added.
//!
//! | module | holds |
//! |---|---|
//! | `engine` | the order of a call; `UpstreamCall`, the trait of a call; `Limiter`, the interface to the limits of the edge |
//! | `hooks` | services of the operator that see, change or refuse calls, results and lists of tools |
//! | `upstream` | the trait `Upstream`, and the list of its kinds |
//! | `upstream/worker.rs`, `upstream/system.rs` | functions of Python workers; the management tools, in the namespace `_system` |
//! | `upstream/client.rs` | MCP servers, over the connections of `tooldock-servers` |
//! | `upstream/aggregate.rs`, `upstream/global.rs` | several namespaces as one; all namespaces at once |
//! | `connect_links` | the interface to pages on which principals give their personal credentials |
//! | `metrics`, `trace` | metrics, spans |
//! | `supervise` | loops that continue after a panic |
//! | `testing` | fakes of workers, upstreams and limits, for tests of this crate and of others |
//!
//! `metrics` is above the connections of `tooldock-servers` and the streams of `tooldock-sessions`: each part counts itself, and
//! `metrics` registers the counters of all parts.

pub mod connect_links;
pub mod engine;
pub mod hooks;
pub mod metrics;
pub mod supervise;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod trace;
pub mod upstream;
