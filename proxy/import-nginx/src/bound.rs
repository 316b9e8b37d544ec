//! Merges `listen` addresses that the gateway binds as one socket: all addresses of a port, for IPv4 and IPv6.

use std::collections::BTreeSet;
use std::net::{Ipv6Addr, SocketAddr};

use crate::listeners::{Listen, ListenOn};
use crate::report::Report;

/// Merges `listen` addresses that the gateway binds as one socket.
pub(crate) fn as_bound(listens: &mut Vec<Listen<'_>>, report: &mut Report) {
    join_families(listens, report);
    drop_covered(listens, report);
}

fn tcp(listen: &Listen<'_>) -> Option<SocketAddr> {
    match listen.address {
        ListenOn::Port(address) => Some(address),
        ListenOn::Socket(_) => None,
    }
}

/// The address of a `listen`, if it covers all addresses of its port; `None` otherwise.
fn everywhere(listen: &Listen<'_>) -> Option<SocketAddr> {
    tcp(listen).filter(|it| it.ip().is_unspecified())
}

/// Merges `0.0.0.0` with `[::]` on the same port: the socket of `[::]` also accepts IPv4, so a second socket could not be bound.
fn join_families(listens: &mut [Listen<'_>], report: &mut Report) {
    let addresses = listens.iter().filter_map(everywhere);
    let ports: BTreeSet<u16> = addresses
        .filter(SocketAddr::is_ipv6)
        .map(|it| it.port())
        .collect();
    for port in ports {
        let mut here: Vec<_> = listens
            .iter_mut()
            .filter(|it| everywhere(it).is_some_and(|it| it.port() == port))
            .collect();
        let of_family = |is_wanted: &dyn Fn(&Listen<'_>, SocketAddr) -> bool| -> BTreeSet<usize> {
            let wanted = here.iter();
            let wanted = wanted.filter(|it| everywhere(it).is_some_and(|at| is_wanted(it, at)));
            wanted.map(|it| it.site).collect()
        };
        let by_ipv4 = of_family(&|listen, at| at.is_ipv4() || listen.at.has("ipv6only=off"));
        let by_ipv6 = of_family(&|_, at| at.is_ipv6());
        for listen in &mut here {
            if by_ipv4.contains(&listen.site) != by_ipv6.contains(&listen.site) {
                report.security(listen.at, "the gateway takes IPv4 and IPv6 on all addresses of this port, and nginx one of the two for this server");
            }
            listen.address = ListenOn::Port((Ipv6Addr::UNSPECIFIED, port).into());
        }
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
            report.plain(
                listen.at,
                "the gateway listens on all addresses of this port already, for another server",
            );
        }
        !covered
    });
}
