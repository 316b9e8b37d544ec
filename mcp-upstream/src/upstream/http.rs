//! MCP servers that are reached over HTTP.
//!
//! The port below is what the proxy's HTTP client implements: it knows pools, health and connections, and nothing of MCP.

pub mod port;
