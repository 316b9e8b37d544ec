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
//! runtime inside a worker is Python, in `workers/python/app/` (`workers/python/README.md`).
//!
//! | file | holds |
//! |---|---|
//! | `child.rs`, `child/guard.rs` | one child process and its end; the guard, `tooldock __guard` |
//! | `child/low.rs` | children of low priority: installers, clones, analyses, checks of code |
//! | `child/slice.rs` | longer time slices for those, for workers until they are ready, and for the control runtime |
//! | `child/output.rs`, `child/output/recent.rs` | output of children in the log, without secrets; last lines, for operators |
//! | `sandbox.rs`, `child/confine.rs` | the sandbox of a namespace's processes: its policy, and its parts in the kernel |
//! | `child/variables.rs` | environment variables of children |
//! | `worker.rs` | the handle for the processes of a namespace |
//! | `worker/state.rs`, `worker/supervisor.rs` | the pure state machine, and the task that runs it |
//! | `worker/instance.rs`, `worker/blocked.rs` | one process; an event loop that does not turn |
//! | `worker/rpc.rs`, `worker/rpc/io.rs` | connections and calls; their flusher and reader |
//! | `environment.rs`, `environment/base.rs` | the interpreter; the base environment |
//! | `environment/venv.rs` | one virtual environment per namespace |
//! | `requirements.rs`, `requirements/local.rs` | the files that a `requirements.txt` names, and their contents |
//! | `repositories.rs` | the messages between gateway and builder |
//! | `repositories/run.rs`, `repositories/store.rs` | starts `tooldock __builder`; reads the trees in `$DATA/repos` |
//! | `metrics.rs` | metrics of workers and processes |
//!
//! A call takes the connection of the process with the fewest calls and passes no supervisor. `child/slice.rs` and
//! `child/confine/kernel.rs` have `unsafe`, for calls of the kernel that no library has.

pub mod child;
pub mod environment;
pub mod metrics;
pub mod repositories;
pub mod requirements;
pub mod sandbox;
pub mod worker;
