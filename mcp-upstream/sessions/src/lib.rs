//! Sessions of clients: their table, streams, questions and tool lists, the stores of their records, and the audit log.
//!
//! ```text
//! stores, broadcast ──▶ session ──▶ interaction ──▶ replicas ──▶ stream    conversations, questions, processes, events
//! catalogue ──▶ caller ──▶ profile                                         entries of a namespace, as one caller sees them
//! audit ──▶ call_error, log_file                                           a line per call
//! ```
//!
//! This crate does not depend on connections to servers, the engine, upstreams or surfaces: it opens a stream's events, but no
//! response, and a question's answer reaches its server by a value that the asking upstream passed in. Its HTTP types are names
//! of headers and statuses.
//!
//! Start with [`session`], then `session/table.rs` and [`stream`]; [`interaction`] and [`catalogue`] can be read on their own.
//!
//! | module | holds |
//! |---|---|
//! | `caller`, `profile` | the caller of a request, as the edge has authenticated it; the rules of its listener |
//! | `session` | sessions; `session/patch.rs` is the only change of a record |
//! | `session/table.rs` | the table of live sessions; `session/table/adopt.rs` claims sessions of ended processes |
//! | `stream`, `stream/log.rs` | server-sent events with at most one reader; the events kept for resumption |
//! | `interaction` | questions to clients, their deadline and bounds, suspended calls |
//! | `tasks` | records, states and stores of tasks of Python tools |
//! | `broadcast` | changes of namespaces, announced to clients |
//! | `catalogue` | tools and lists of a namespace, mended for strict clients, and the view of one caller |
//! | `stores` | SQLite and Redis behind `session/store.rs` and `stream/store.rs`; `stores/contract.rs`: facts of each |
//! | `replicas` | replicas that share a store: beats, routing, news, reloads |
//! | `audit`, `log_file` | audit lines; files of lines, which the access log uses, too |
//! | `call_error` | details and statuses of failed calls |
//! | `testing` | fixtures for tests, of this crate and of others |
//!
//! For tests of this crate: `cost` (allocations), `simulation` (many replicas over a simulated Redis and clock;
//! `filters/limits/shared/simulation.rs` for limits).

pub mod audit;
pub mod broadcast;
pub mod call_error;
pub mod caller;
pub mod catalogue;
pub mod interaction;
pub mod log_file;
pub mod profile;
pub mod replicas;
pub mod session;
pub mod stores;
pub mod stream;
pub mod tasks;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

#[cfg(test)]
mod cost;
#[cfg(test)]
mod simulation;
