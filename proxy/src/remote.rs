//! The HTTP client for remote servers. It implements the trait of `tooldock_upstream::http_client` on Pingora's connections.
//!
//! ```text
//! RemoteClient ─▶ Pool (one per server) ─▶ Member (one per backend) ─▶ exchange: connection, request, response
//!                  │ balance, health          │ shared between the pools of a server's versions:
//!                  └ upkeep: checks, names    └ Core: health, idle connections, counts
//! ```
//!
//! A connection belongs to the runtime that opened it and is reused on that runtime only, so that a call is written and
//! answered on the thread that serves its client. The protocol is HTTP/1.1: each stream has a separate connection, and a slow
//! stream cannot delay another one.
//!
//! Deliberately not supported:
//! - redirects, except those that only add or remove a slash ([`redirect`])
//! - repeating a request, except with a new token after the server refused the old one. If a connection turns out to be closed
//!   before anything was written to it, no request was sent, and another connection is opened
//! - MCP: this module only transports its messages
//!
//! | file | holds |
//! |---|---|
//! | `client.rs`, `pool.rs`, `balance.rs`, `health.rs` | pools of the served servers; the choice of a backend |
//! | `connect.rs`, `names.rs`, `upkeep.rs` | a connection; addresses of a backend; checks |
//! | `exchange.rs`, `headers.rs`, `response.rs`, `coding.rs`, `redirect.rs` | a request, its headers, its response |
//! | `credentials.rs`, `oauth.rs` | credentials of a principal; access tokens |
//! | `fetch.rs` | requests of the gateway itself, such as for keys of issuers |

mod balance;
mod client;
mod coding;
pub(crate) mod connect;
mod credentials;
mod exchange;
mod failure;
mod fetch;
pub(crate) mod headers;
mod health;
pub(crate) mod idle;
mod metrics;
pub(crate) mod names;
mod oauth;
mod pool;
mod redirect;
pub(crate) mod response;
mod tls;
mod upkeep;

use std::sync::{Mutex, MutexGuard, PoisonError};

#[cfg(test)]
mod tests;

pub(crate) use client::RemoteClient;
pub(crate) use fetch::{Fetch, Fetcher};
pub(crate) use metrics::RemoteMetrics;
pub(crate) use names::SystemNames;
pub(crate) use oauth::authorize;
pub(crate) use oauth::client_assertion::{CLIENT_KEY_NEEDED, is_client_key};
pub(crate) use tls::Material;

/// Locks a mutex. A panic while it was locked is ignored, because it cannot leave the data inconsistent.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
