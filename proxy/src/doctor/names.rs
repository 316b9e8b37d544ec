//! Checks the hosts of remote servers and of issuers: whether their names resolve, to which kind of address, and whether they
//! accept connections.

use std::net::SocketAddr;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::net::{TcpStream, UnixStream, lookup_host};
use tokio::time::timeout;
use tooldock_base::address::is_public;
use tooldock_workers::remote::{Backend, Host};
use tooldock_workers::servers::CheckedServer;

use super::{Finding, for_shell};
use crate::config::Effective;

const CHECK: &str = "names";
/// Time limit for resolving a name, and for opening a connection.
const STEP_LIMIT: Duration = Duration::from_secs(2);
/// Maximum number of hosts that are checked.
const HOSTS_MAX: usize = 256;

/// A host that the configuration names.
struct NamedHost {
    /// The configuration key that names the host.
    place: String,
    backend: Backend,
    allow_private: bool,
}

/// Resolves the hosts that the configuration names, and connects to each.
pub(super) async fn check(effective: &Effective, servers: &[CheckedServer]) -> Vec<Finding> {
    let of_servers = servers.iter().flat_map(|server| {
        server.backends.iter().map(|backend| NamedHost {
            place: server.place.clone(),
            backend: backend.clone(),
            allow_private: server.allow_private,
        })
    });
    let issuers = effective.config.admission.oauth.iter().enumerate();
    let of_issuers = issuers.filter_map(|(index, issuer)| {
        Some(NamedHost {
            place: format!("admission.oauth[{index}]"),
            backend: Backend::parse(&issuer.issuer).ok()?,
            allow_private: issuer.allow_private,
        })
    });
    let hosts: Vec<_> = of_servers.chain(of_issuers).take(HOSTS_MAX).collect();
    if hosts.is_empty() {
        let said = "no remote server and no issuer is configured";
        return vec![Finding::skipped(CHECK, said)];
    }
    join_all(hosts.iter().map(examined)).await
}

async fn examined(host: &NamedHost) -> Finding {
    let NamedHost { place, backend, .. } = host;
    let addresses = match &backend.host {
        Host::Unix(path) => {
            let connected = timeout(STEP_LIMIT, UnixStream::connect(path)).await;
            let path = path.display();
            return match connected.map_err(|_| "no answer in time".to_owned()) {
                Ok(Ok(_)) => Finding::ok(CHECK, format!("{place}: {path} takes connections")),
                Ok(Err(error)) => unreachable(place, &path.to_string(), &error.to_string()),
                Err(why) => unreachable(place, &path.to_string(), &why),
            };
        }
        Host::Address(address, port) => vec![SocketAddr::new(*address, *port)],
        Host::Name(name, port) => {
            match timeout(STEP_LIMIT, lookup_host((name.as_str(), *port))).await {
                Ok(Ok(found)) => found.collect(),
                Ok(Err(error)) => {
                    return Finding::problem(
                        CHECK,
                        format!("{place}: {name} has no address: {error}"),
                        format!("getent ahosts {name}"),
                    );
                }
                Err(_) => {
                    let seconds = STEP_LIMIT.as_secs();
                    let said =
                        format!("{place}: no name server answered for {name} within {seconds} s");
                    return Finding::problem(CHECK, said, "cat /etc/resolv.conf");
                }
            }
        }
    };
    let is_name = matches!(backend.host, Host::Name(..));
    let may_use = |address: &SocketAddr| !is_name || host.allow_private || is_public(address.ip());
    let usable: Vec<_> = addresses.iter().copied().filter(may_use).collect();
    let at = backend.authority();
    if usable.is_empty() {
        let shown = addresses
            .first()
            .map_or_else(String::new, ToString::to_string);
        return Finding::problem(
            CHECK,
            format!("{place}: {at} resolves to the private address {shown}, which is refused"),
            format!("{place}.allow_private: true"),
        );
    }
    match timeout(STEP_LIMIT, TcpStream::connect(&usable[..])).await {
        Ok(Ok(_)) => Finding::ok(CHECK, format!("{place}: {at} takes connections")),
        Ok(Err(error)) => unreachable(place, &at, &error.to_string()),
        Err(_) => unreachable(place, &at, "no answer in time"),
    }
}

fn unreachable(place: &str, at: &str, why: &str) -> Finding {
    let remedy = match at.starts_with('/') {
        true => format!("ls -l {}", for_shell(at)),
        false => format!("curl -v {}", for_shell(&format!("http://{at}/"))),
    };
    let said = format!("{place}: no connection to {at}: {why}");
    Finding::problem(CHECK, said, remedy)
}
