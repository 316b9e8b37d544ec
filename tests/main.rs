//! Black-box tests: they start the real binary and talk to it over sockets. One file per part of what a client sees.

#![allow(
    missing_docs,
    unreachable_pub,
    clippy::unwrap_used,
    reason = "a test binary has no readers of its API, and a failed unwrap is a failed test"
)]

mod architecture;
mod command_line;
mod edge;
mod http_traps;
mod mcp;
mod observability;
mod reload;
mod rest;
mod sdk;
mod shutdown;
mod support;
mod tls;
mod workers;
