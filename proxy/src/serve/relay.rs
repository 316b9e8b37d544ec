//! Starts the relay with the configuration and the objects of this gateway.

use std::sync::Arc;

use anyhow::Context;
use bytesize::ByteSize;
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tooldock_base::trace::TraceSink;
use tooldock_credentials::keys::KeyStore;
use tooldock_upstream::{FrameLimits, Relay};

use super::Parts;
use crate::config::{Effective, Role};
use crate::relay::{RelayServer, RelaySocket};
use crate::request_id::RequestIds;
use crate::sockets::PassedSockets;

/// Binds the relay's socket. Returns `None` if the relay is off or this process runs no namespaces.
///
/// # Errors
///
/// A line of text that names the path.
pub(super) fn bind(
    effective: &Effective,
    passed: &mut PassedSockets,
) -> anyhow::Result<Option<RelaySocket>> {
    match effective.role {
        Role::Manager => Ok(None),
        Role::All | Role::Core => RelaySocket::bind(&effective.config.relay, passed),
    }
}

/// Serves the relay to clients with API keys as soon as `gate` is true. A frame may be as large as the body of a request. All
/// frames together may use as much memory as all bodies together, in addition to the memory of the bodies.
///
/// # Errors
///
/// When there is no randomness, or the runtime cannot register the socket.
pub(super) fn start(
    socket: RelaySocket,
    effective: &Effective,
    parts: &Parts,
    keys: Arc<KeyStore>,
    (control, traces): (&Runtime, Option<Arc<dyn TraceSink>>),
    gate: watch::Receiver<bool>,
) -> anyhow::Result<RelayServer> {
    let config = &effective.config;
    let limits = &config.admission.limits;
    let bytes = |size: ByteSize| usize::try_from(size.as_u64()).unwrap_or(usize::MAX);
    let frames = FrameLimits {
        each: bytes(limits.body),
        total: bytes(limits.bodies_total),
    };
    let request_ids = Arc::new(RequestIds::new()?);
    let relay = Relay::new(
        config.relay.namespace.clone(),
        keys,
        frames,
        Arc::new(move || request_ids.mint()),
    )
    .slowing_failures(config.admission.failures.limits())
    .traced(traces);
    let _within = control.enter();
    RelayServer::start(
        socket,
        Arc::new(relay),
        parts.service.clone(),
        Arc::clone(&parts.runtimes),
        parts.metrics.relay_connections.clone(),
        gate,
    )
    .context("the relay's socket")
}
