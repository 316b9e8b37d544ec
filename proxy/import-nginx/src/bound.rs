//! Merges `listen` addresses that the gateway binds as one socket: all addresses of a port, for IPv4 and IPv6.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use crate::listeners::Listen;
use crate::report::Report;

/// Merges `listen` addresses that the gateway binds as one socket.
pub(crate) fn as_bound(listens: &mut Vec<Listen<'_>>, report: &mut Report) {
    join_families(listens, report);
    drop_covered(listens, report);
}

fn tcp(listen: &Listen<'_>) -> Option<SocketAddr> {
    listen.address.parse().ok()
}

/// The address of a `listen`, if it covers all addresses of its port; `None` otherwise.
fn everywhere(listen: &Listen<'_>) -> Option<SocketAddr> {
    tcp(listen).filter(|it| it.ip().is_unspecified())
}

/// Merges `0.0.0.0` with `[::]` on the same port: the socket of `[::]` also accepts IPv4, so a second socket could not be bound.
fn join_families(listens: &mut [Listen<'_>], report: &mut Report) {
    let mut bound = BTreeSet::new();
    for listen in listens.iter() {
        let Some(address) = everywhere(listen) else {
            continue;
        };
        bound.insert((address.port(), listen.site, address.is_ipv6()));
        if listen.at.has("ipv6only=off") {
            bound.insert((address.port(), listen.site, false));
        }
    }
    let by_ipv6 = bound.iter().filter(|(.., is_ipv6)| *is_ipv6);
    let ports: BTreeSet<u16> = by_ipv6.map(|(port, ..)| *port).collect();
    for listen in listens {
        let port = everywhere(listen).map(|it| it.port());
        let Some(port) = port.filter(|it| ports.contains(it)) else {
            continue;
        };
        let has = |is_ipv6| bound.contains(&(port, listen.site, is_ipv6));
        if has(false) != has(true) {
            report.security(listen.at, "the gateway takes IPv4 and IPv6 on all addresses of this port, and nginx one of the two for this server");
        }
        listen.address = format!("[::]:{port}");
    }
}

/// Removes addresses whose port is already bound on all addresses.
fn drop_covered(listens: &mut Vec<Listen<'_>>, report: &mut Report) {
    let everywhere: Vec<_> = listens.iter().filter_map(everywhere).collect();
    listens.retain(|listen| {
        let covers = |own: SocketAddr| {
            let same =
                |it: &&SocketAddr| it.port() == own.port() && (it.is_ipv6() || own.is_ipv4());
            !own.ip().is_unspecified() && everywhere.iter().any(|it| same(&it))
        };
        let covered = tcp(listen).is_some_and(covers);
        if covered {
            let why =
                "the gateway listens on all addresses of this port already, for another server";
            report.plain(listen.at, why);
        }
        !covered
    });
}
