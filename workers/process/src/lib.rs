//! Child processes of the gateway: their guard and their end, Python workers with the RPC to them, and the environments that
//! workers run on.
//!
//! ```text
//! worker ── child ── __guard   the process that runs the tools, ended with all its descendants
//!    └─── environment          the interpreter and packages of a namespace
//! repositories ── child ── __guard ── __builder   repositories and packages of other authors, read in a separate process
//! ```
//!
//! Knows no registry of namespaces, no folder of tools, no secrets store and no configured server: the crate above,
//! `tooldock-workers`, says what a worker is started with and when. Knows neither HTTP nor MCP: no status codes, no JSON-RPC.
//!
//! Start with [`child`], the life of one process; then [`worker`], a namespace's processes seen as one, and
//! [`environment`]. The runtime inside a worker is Python, in `workers/python/app`.

pub mod child;
pub mod environment;
pub mod metrics;
pub mod repositories;
pub mod requirements;
pub mod sandbox;
pub mod worker;
