//! The fronts of a server: the gateway in both layouts, nginx and peers; and the cases in which each is measured.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;

use super::case::{Case, Client, DUAL, LEGACY, Server, Text};
use crate::message::{EchoCall, Envelope};
use crate::options::Options;
use crate::processes::descendants;
use crate::servers::echo::{App, EchoProgram, Era};
use crate::servers::gateway::{Gateway, Layout, NAMESPACE, Setup, TOKEN, threads};
use crate::servers::nginx::{self, Nginx};
use crate::servers::peers::{self, Kind, Peer};

pub(super) const GATEWAY: &str = "tooldock";
pub(super) const STEALING: &str = "tooldock, work_stealing";
pub(super) const NGINX: &str = "nginx";

const STDIO: Server = Server::Stdio(Era::Legacy);

/// Cases of the gateway with its defaults.
const ALL: [Case; 15] = [
    Case::new(Server::None, Client::Session),
    Case::new(Server::None, Client::Sessionless),
    Case::new(Server::None, Client::Modern),
    Case::new(Server::Async, Client::Session),
    Case::new(Server::Async, Client::Sessionless),
    Case::new(Server::Async, Client::Modern),
    Case::new(Server::Async, Client::Session).with(Text::Kb16),
    Case::new(Server::Async, Client::Session).with(Text::Mb1),
    Case::new(Server::Sync, Client::Session),
    Case::new(STDIO, Client::Session),
    Case::new(STDIO, Client::Sessionless),
    Case::new(STDIO, Client::Modern),
    Case::new(Server::Stdio(Era::Dual), Client::Modern),
    Case::new(STDIO, Client::Session).with(Text::Kb16),
    Case::new(STDIO, Client::Session).with(Text::Mb1),
];
/// Cases of the gateway with `work_stealing: true`.
const MAIN: [Case; 5] = [
    Case::new(Server::None, Client::Session),
    Case::new(Server::None, Client::Sessionless),
    Case::new(Server::Async, Client::Session),
    Case::new(Server::Sync, Client::Session),
    Case::new(STDIO, Client::Session),
];
const OF_NGINX: [Case; 3] = [
    Case::new(Server::App, Client::Sessionless),
    Case::new(Server::App, Client::Sessionless).with(Text::Kb16),
    Case::new(Server::App, Client::Sessionless).with(Text::Mb1),
];
const OF_PEERS: [Case; 1] = [Case::new(STDIO, Client::Session)];

/// A program that can be started in front of a server.
pub(super) enum Front {
    Gateway(Layout),
    Nginx(PathBuf),
    Peer(Peer),
}

impl Front {
    /// All fronts in the order of the tables, and the reasons for missing ones.
    pub(super) fn find(options: &Options) -> anyhow::Result<(Vec<Self>, Vec<String>)> {
        let (mut fronts, mut missing) = (Vec::new(), Vec::new());
        match nginx::program() {
            Some(program) => fronts.push(Self::Nginx(program)),
            None => missing
                .push("nginx in front of an HTTP application: it is not installed".to_owned()),
        }
        fronts.extend([Layout::Separate, Layout::Stealing].map(Self::Gateway));
        let target = options.target_folder()?;
        for kind in Kind::ALL {
            match Peer::find(kind, &target) {
                Some(peer) => fronts.push(Self::Peer(peer)),
                None => missing.push(format!("{} (make load-peers)", kind.name())),
            }
        }
        let given = options.peers.iter().cloned().map(Peer::Given);
        fronts.extend(given.map(Self::Peer));
        Ok((fronts, missing))
    }

    pub(super) fn name(&self) -> &str {
        match self {
            Self::Gateway(Layout::Separate) => GATEWAY,
            Self::Gateway(Layout::Stealing) => STEALING,
            Self::Nginx(_) => NGINX,
            Self::Peer(peer) => peer.name(),
        }
    }

    /// The front's version and settings, if the name does not show them.
    pub(super) fn description(&self) -> Option<String> {
        match self {
            Self::Gateway(Layout::Separate) => Some(format!(
                "{} with its defaults and load-tests/conf.yaml: tokens, every filter, audit log and metrics on",
                env!("CARGO_PKG_VERSION")
            )),
            Self::Gateway(Layout::Stealing) => None,
            Self::Nginx(_) => Some(
                "`return 200` is the unit n; before the HTTP application it checks the token and keeps connections"
                    .to_owned(),
            ),
            Self::Peer(peer) => Some(peer.description()),
        }
    }

    /// Returns true if an error of the front is a failure of the run, and not a result.
    pub(super) fn must_be_right(&self) -> bool {
        !matches!(self, Self::Peer(_))
    }

    /// The cases with many clients.
    pub(super) fn cases(&self) -> &'static [Case] {
        match self {
            Self::Gateway(Layout::Separate) => &ALL,
            Self::Gateway(Layout::Stealing) => &MAIN,
            Self::Nginx(_) => &OF_NGINX,
            Self::Peer(_) => &OF_PEERS,
        }
    }

    /// The cases with one client.
    pub(super) fn cases_alone(&self) -> &'static [Case] {
        const GATEWAY: [Case; 2] = [
            Case::new(Server::Async, Client::Session),
            Case::new(STDIO, Client::Session),
        ];
        match self {
            Self::Gateway(_) => &GATEWAY,
            Self::Nginx(_) => &OF_NGINX[..1],
            Self::Peer(_) => &OF_PEERS,
        }
    }

    /// A request of a modern client that is tried once, if it is unknown whether the front supports such clients.
    pub(super) fn case_to_try(&self) -> Option<Case> {
        let modern = Case::new(Server::None, Client::Modern);
        matches!(self, Self::Peer(_)).then_some(modern)
    }

    /// Approximate time for its start, the sessions of its clients, and its end.
    pub(super) fn start_takes(&self) -> Duration {
        Duration::from_millis(match self {
            Self::Gateway(_) => 2000,
            Self::Nginx(_) => 500,
            Self::Peer(_) => 3000,
        })
    }

    pub(super) async fn start(
        &self,
        options: &Options,
        echo: &EchoProgram,
    ) -> anyhow::Result<Running> {
        Ok(match self {
            Self::Gateway(layout) => {
                let setup = Setup::new(*layout)
                    .python(NAMESPACE)
                    .stdio(LEGACY, echo.command(Era::Legacy))
                    .stdio(DUAL, echo.command(Era::Dual));
                let gateway = Gateway::start(options, &setup).await?;
                gateway.has_worker(NAMESPACE).await?;
                Running::Gateway(gateway)
            }
            Self::Nginx(program) => {
                let app = App::start(echo).await?;
                let clients = OF_NGINX.iter().map(|case| case.clients(options)).max();
                let clients = clients.unwrap_or_default();
                let nginx =
                    Nginx::in_front_of_app(program, threads()?, app.address, clients).await?;
                Running::Nginx { nginx, app }
            }
            Self::Peer(peer) => Running::Peer(peer.start(echo, Era::Legacy).await?),
        })
    }
}

pub(super) enum Running {
    Gateway(Gateway),
    Nginx { nginx: Nginx, app: App },
    Peer(peers::Running),
}

/// The processes of a case, for CPU time.
pub(super) struct Processes {
    /// The front with all processes it started, except the servers; the first one must run to the end.
    pub(super) front: Vec<u32>,
    pub(super) servers: Vec<u32>,
}

impl Running {
    pub(super) fn address(&self) -> SocketAddr {
        match self {
            Self::Gateway(gateway) => gateway.address,
            Self::Nginx { nginx, .. } => nginx.address,
            Self::Peer(peer) => peer.address,
        }
    }

    pub(super) fn envelope(&self) -> Envelope<'static> {
        Envelope {
            to: self.address(),
            token: TOKEN,
            path: match self {
                Self::Peer(peer) => peer.path,
                _ => Envelope::PATH,
            },
            namespace: LEGACY,
            session: None,
        }
    }

    /// The name under which the front offers the echo server's tool.
    pub(super) fn echo_tool(&self) -> &'static str {
        match self {
            Self::Peer(peer) => peer.echo_tool,
            _ => EchoCall::SMALL.tool,
        }
    }

    pub(super) fn processes(&self, case: Case, echo: &EchoProgram) -> anyhow::Result<Processes> {
        let below = |process: u32| -> (Vec<u32>, Vec<u32>) {
            let below = descendants(process).into_iter();
            below.partition(|process| echo.is_run_by(*process))
        };
        Ok(match self {
            Self::Gateway(gateway) => {
                // The other processes that it started are idle: a worker has a guard, and so has a stdio server.
                let servers = match case.server {
                    Server::None | Server::App => Vec::new(),
                    Server::Async | Server::Sync => vec![gateway.worker(NAMESPACE)?.0],
                    Server::Stdio(era) => {
                        let all = below(gateway.id()).0.into_iter();
                        all.filter(|process| echo.era_of(*process) == Some(era))
                            .collect()
                    }
                };
                Processes {
                    front: vec![gateway.id()],
                    servers,
                }
            }
            Self::Nginx { nginx, app } => Processes {
                front: nginx.processes(),
                servers: vec![app.id()],
            },
            Self::Peer(peer) => {
                let (servers, others) = below(peer.id());
                Processes {
                    front: [peer.id()].into_iter().chain(others).collect(),
                    servers,
                }
            }
        })
    }

    /// The path of the worker's own socket.
    pub(super) fn worker_socket(&self) -> anyhow::Result<PathBuf> {
        match self {
            Self::Gateway(gateway) => Ok(gateway.worker(NAMESPACE)?.1),
            _ => Err(anyhow::anyhow!("only the gateway has Python workers")),
        }
    }

    pub(super) fn app(&self) -> anyhow::Result<SocketAddr> {
        match self {
            Self::Nginx { app, .. } => Ok(app.address),
            _ => None.context("only nginx has an application behind it"),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[test]
    fn every_peer_is_there_or_named_as_missing() {
        let options = Options::parse_from(["x", "--peer", "mine=x {port} {server}"]);
        let (fronts, missing) = Front::find(&options).unwrap();
        let names: Vec<_> = fronts.iter().map(Front::name).collect();
        let gateways = |pair: &[&str]| pair == [GATEWAY, STEALING];
        assert!(names.windows(2).any(gateways) && names.ends_with(&["mine"]));
        for kind in Kind::ALL {
            let known = names.contains(&kind.name());
            let said = missing.iter().any(|text| text.contains(kind.name()));
            assert!(known != said, "{}", kind.name());
        }
    }

    #[test]
    fn every_front_is_measured_in_cases_that_can_be_told_apart() {
        for cases in [&ALL[..], &MAIN, &OF_NGINX, &OF_PEERS] {
            for (at, case) in cases.iter().enumerate() {
                assert!(!cases[..at].contains(case), "{case}");
            }
        }
        assert!(MAIN.iter().all(|case| ALL.contains(case)));
    }
}
