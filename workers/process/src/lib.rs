//! Child processes of the gateway: their guard and their end, Python workers with the RPC to them, and the environments in which
//! workers run.
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
//! Start reading with [`child`], the life of one process; then [`worker`], the processes of a namespace, and [`environment`]. The
//! runtime inside a worker is written in Python, in `workers/python/app/` (`workers/python/README.md`).
//!
//! | file | content |
//! |---|---|
//! | `child.rs`, `child/guard.rs` | one child process and its end; the guard, `tooldock __guard` |
//! | `child/low.rs` | children of low priority: installers, clones, analyses, checks of code |
//! | `child/slice.rs` | longer time slices for those, for workers until they are ready, and for the control runtime |
//! | `child/output.rs`, `child/output/recent.rs` | output of children in the log, without secrets; last lines, for operators |
//! | `sandbox.rs`, `child/confine.rs` | the sandbox of a namespace's processes: its policy, and its features in the kernel |
//! | `child/variables.rs` | environment variables of children |
//! | `worker.rs` | the handle for the processes of a namespace |
//! | `worker/state.rs`, `worker/supervisor.rs` | the state machine, without I/O, and the task that runs it |
//! | `worker/instance.rs`, `worker/blocked.rs` | one process; detection of a blocked event loop |
//! | `worker/rpc.rs`, `worker/rpc/io.rs` | connections and calls; the tasks that write and read |
//! | `environment.rs`, `environment/base.rs` | the interpreter; the base environment |
//! | `environment/venv.rs` | one virtual environment per namespace |
//! | `requirements.rs`, `requirements/local.rs` | the files that a `requirements.txt` names, and their contents |
//! | `repositories.rs` | the messages between gateway and builder |
//! | `repositories/run.rs`, `repositories/store.rs` | starts `tooldock __builder`; reads the trees in `$DATA/repos` |
//! | `metrics.rs` | metrics of workers and processes |
//!
//! A call is sent directly on the connection of the process with the fewest calls; no supervisor task is involved.
//! `child/slice.rs` and `child/confine/kernel.rs` contain `unsafe` code, for system calls that no library supports.

pub mod child;
pub mod environment;
pub mod metrics;
pub mod repositories;
pub mod requirements;
pub mod sandbox;
pub mod worker;
