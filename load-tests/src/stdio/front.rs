//! What stands in front of the stdio server: the gateway, or a peer.

use std::net::SocketAddr;
use std::time::Duration;

use super::{Client, GATEWAY};
use crate::options::Options;
use crate::servers::echo::{EchoProgram, Era};
use crate::servers::gateway::Gateway;
use crate::servers::peers::{self, Kind, Peer};

/// The gateway's namespace of the echo server. `conf.yaml` has its limits.
pub(super) const NAMESPACE: &str = "echo";
pub(super) const FIRST_CALL_LIMIT: Duration = Duration::from_secs(10);

pub(super) enum Front {
    Gateway,
    Peer(Peer),
}

impl Front {
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Gateway => GATEWAY,
            Self::Peer(peer) => peer.kind.name(),
        }
    }

    pub(super) fn version(&self) -> &str {
        match self {
            Self::Gateway => env!("CARGO_PKG_VERSION"),
            Self::Peer(peer) => &peer.version,
        }
    }

    pub(super) fn mode(&self) -> &'static str {
        match self {
            Self::Gateway => {
                "defaults and load-tests/conf.yaml: tokens, every filter, audit log and metrics on"
            }
            Self::Peer(peer) => peer.kind.mode(),
        }
    }

    /// Before which servers, and for which clients.
    pub(super) fn setups(&self) -> &'static [(Era, &'static [Client])] {
        match self {
            // An old server for both kinds of clients, which is the common case, and a new one for new clients.
            Self::Gateway => &[
                (Era::Legacy, &[Client::Session, Client::Modern]),
                (Era::Dual, &[Client::Modern]),
            ],
            Self::Peer(peer) => match peer.kind {
                // It does not translate.
                Kind::Supergateway => &[
                    (Era::Legacy, &[Client::Session]),
                    (Era::Dual, &[Client::Modern]),
                ],
                Kind::McpProxyNode => &[(Era::Legacy, &[Client::Session, Client::Modern])],
                Kind::McpProxyPython => &[(Era::Legacy, &[Client::Session])],
            },
        }
    }

    pub(super) async fn start(
        &self,
        options: &Options,
        echo: &EchoProgram,
        era: Era,
    ) -> anyhow::Result<Running> {
        Ok(match self {
            Self::Gateway => {
                let servers = [(NAMESPACE, echo.command(era))];
                Running::Gateway(Gateway::with_stdio(options, &servers).await?)
            }
            Self::Peer(peer) => Running::Peer(peer.start(echo, era).await?),
        })
    }
}

pub(super) enum Running {
    Gateway(Gateway),
    Peer(peers::Running),
}

impl Running {
    pub(super) fn address(&self) -> SocketAddr {
        match self {
            Self::Gateway(gateway) => gateway.address,
            Self::Peer(peer) => peer.address,
        }
    }

    pub(super) fn id(&self) -> u32 {
        match self {
            Self::Gateway(gateway) => gateway.id(),
            Self::Peer(peer) => peer.id(),
        }
    }
}
