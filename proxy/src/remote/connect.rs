//! Opens connections to backends.

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use pingora_core::connectors::{ConnectorOptions, TransportConnector};
use pingora_core::protocols::Stream;
use pingora_core::upstreams::peer::HttpPeer;
use tokio::time::Instant;
use tooldock_upstream::http_client::{SendError, SendErrorKind};
use tooldock_workers::remote::{Backend, BackendId, BackendSpec, Host, RemoteServer, TlsSpec};

use super::failure::{failed, late, no_address, not_connected};
use super::names::Addresses;
use super::tls::Material;

/// Opens connections for all servers. It contains the system's trusted certificates. Open connections are stored elsewhere.
#[derive(Default)]
pub(crate) struct Connector(OnceLock<TransportConnector>);

/// The backend of a new connection, with the settings for opening it.
#[derive(Clone, Copy)]
pub(crate) struct ConnectTarget<'a> {
    pub(crate) id: &'a BackendId,
    pub(crate) backend: &'a Backend,
    pub(crate) tls: &'a TlsSpec,
    /// Time limit for trying all addresses together.
    pub(crate) limit: Duration,
    pub(crate) addresses: &'a Addresses,
    pub(crate) material: &'a Material,
}

impl Connector {
    /// Opens a connection to one of a backend's addresses. `timeouts.connect` limits the time for all addresses together.
    pub(crate) async fn connect(
        &self,
        server: &RemoteServer,
        backend: &BackendSpec,
        addresses: &Addresses,
        material: &Material,
    ) -> Result<(Stream, Option<SocketAddr>), SendError> {
        self.connect_to(ConnectTarget {
            id: &backend.id,
            backend: &backend.backend,
            tls: &server.spec.tls,
            limit: server.spec.timeouts.connect,
            addresses,
            material,
        })
        .await
    }

    /// Opens a connection to the target. Its addresses are tried one after the other until one connects.
    pub(crate) async fn connect_to(
        &self,
        target: ConnectTarget<'_>,
    ) -> Result<(Stream, Option<SocketAddr>), SendError> {
        let ConnectTarget { id, limit, .. } = target;
        let deadline = Instant::now() + limit;
        if let Host::Unix(path) = &target.backend.host {
            let path = path.to_string_lossy();
            let mut peer = HttpPeer::new_uds(&path, false, String::new()).map_err(|_| {
                let what = "the path of its socket cannot be used";
                failed(id, SendErrorKind::Connect, true, what)
            })?;
            let stream = self.open(&mut peer, limit).await;
            let stream = stream.map_err(|error| not_connected(id, &error))?;
            return Ok((stream, None));
        }
        let to_try = target.addresses.addresses_to_try(limit).await;
        let to_try = to_try.map_err(|reason| no_address(id, &reason))?;
        let mut left = to_try.len();
        let mut last = late(id);
        for address in to_try {
            let remaining = deadline.saturating_duration_since(Instant::now());
            if remaining.is_zero() {
                break;
            }
            // Each address gets an equal share of the remaining time, so that an unresponsive one does not use up all of it.
            let share = remaining / u32::try_from(left).unwrap_or(1);
            left -= 1;
            let mut peer = peer(address, target);
            match self.open(&mut peer, share).await {
                Ok(stream) => return Ok((stream, Some(address))),
                Err(error) => last = not_connected(id, &error),
            }
        }
        target.addresses.mark_outdated();
        Err(last)
    }

    async fn open(&self, peer: &mut HttpPeer, limit: Duration) -> pingora_core::Result<Stream> {
        peer.options.connection_timeout = Some(limit);
        peer.options.total_connection_timeout = Some(limit);
        // The connector is created for the first connection only, because creating it reads the system's trusted certificates.
        let connector = || TransportConnector::new(Some(ConnectorOptions::new(1)));
        self.0.get_or_init(connector).new_stream(peer).await
    }
}

fn peer(address: SocketAddr, target: ConnectTarget<'_>) -> HttpPeer {
    let ConnectTarget { tls, material, .. } = target;
    let encrypted = target.backend.tls;
    let name = match (encrypted, &tls.server_name, &target.backend.host) {
        (false, ..) => String::new(),
        (true, Some(name), _) => name.clone(),
        (true, None, Host::Name(name, _)) => name.trim_end_matches('.').to_owned(),
        // The expected name must not be empty, because Pingora then would not check the certificate.
        (true, None, _) => address.ip().to_string(),
    };
    let mut peer = HttpPeer::new(address, encrypted, name);
    peer.options.verify_cert = tls.verify;
    peer.options.verify_hostname = tls.verify;
    peer.options.ca = material.ca.as_ref().map(Arc::clone);
    peer.client_cert_key = material.identity.as_ref().map(Arc::clone);
    peer
}
