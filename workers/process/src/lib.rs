//! Child processes of the gateway: their guard and their end, Python workers with the RPC to them, and the environments that
//! workers run on.
//!
//! ```text
//! worker ── child ── __guard   the process that runs the tools, ended with all its descendants
//!    └─── environment          the interpreter and packages of a namespace
//! repositories ── child ── __guard ── __builder   repositories and packages of other authors, read in a separate process
//! ```
//!
//! This crate handles no registry of namespaces, folder of tools, secrets store or configured server: `tooldock-workers`
//! decides with which settings a worker is started, and when. It does not depend on HTTP or MCP: there are no status codes and
//! no JSON-RPC.
//!
//! Start with [`child`], the life of one process; then [`worker`], the processes of a namespace, and [`environment`]. The
//! runtime inside a worker is Python, in `workers/python/app`.

pub mod child;
pub mod environment;
pub mod metrics;
pub mod repositories;
pub mod requirements;
pub mod sandbox;
pub mod worker;
