//! Where a request comes from: addresses, networks, and whose word about them counts.
//!
//! Addresses are canonical: an IPv4 address mapped into IPv6 is the IPv4 address, so that a rule is written once.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::str::FromStr;

use http::HeaderName;
use ipnet::{IpNet, Ipv4Net};
use serde::{Deserialize, Serialize};

use crate::config::CidrsConfig;
use crate::fields::Fields;
use crate::rejection::{Reason, Rejection};

/// The address of a client that has none, because it came by a Unix socket. No packet has this address, and in networks of
/// the configuration it is written `unix`.
pub const UNIX: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

/// How the configuration and the logs name [`UNIX`].
pub const UNIX_NAME: &str = "unix";

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// Who is connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    /// The peer's address.
    pub address: IpAddr,
    /// A proxy that has introduced the connection (PROXY protocol) without an address of its client. The proxy has added
    /// nothing to `X-Forwarded-For` then, so what stands there is the client's own word.
    pub names_no_client: bool,
}

impl From<IpAddr> for Peer {
    fn from(address: IpAddr) -> Self {
        Self {
            address,
            names_no_client: false,
        }
    }
}

/// A network in CIDR notation; a bare address is a network of one. `unix` stands for the clients of Unix sockets, which are
/// in no other network but that of every address.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Cidr(IpNet);

/// Why a text is no network.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "invalid network {0:?}: use an address or ADDRESS/PREFIX, as 10.0.0.0/8 or fd00::/8, or unix"
)]
pub struct InvalidCidr(String);

impl Cidr {
    /// Whether the canonical form of the address lies in the network.
    pub fn contains(&self, address: IpAddr) -> bool {
        if address == UNIX {
            return self.0 == IpNet::from(UNIX) || self.0 == IpNet::V4(Ipv4Net::default());
        }
        match (self.0, address.to_canonical()) {
            (IpNet::V4(net), IpAddr::V4(address)) => {
                let differ = net.addr().to_bits() ^ address.to_bits();
                let host_bits = 32 - u32::from(net.prefix_len());
                // Shifted by all its bits: every address is in a network of prefix 0.
                differ.checked_shr(host_bits).unwrap_or(0) == 0
            }
            (IpNet::V6(net), IpAddr::V6(address)) => {
                let differ = net.addr().to_bits() ^ address.to_bits();
                let host_bits = 128 - u32::from(net.prefix_len());
                differ.checked_shr(host_bits).unwrap_or(0) == 0
            }
            _ => false,
        }
    }
}

impl FromStr for Cidr {
    type Err = InvalidCidr;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == UNIX_NAME {
            return Ok(Self(IpNet::from(UNIX)));
        }
        let net = match text.parse::<IpNet>() {
            Ok(net) => net,
            Err(_) => text
                .parse::<IpAddr>()
                .map(IpNet::from)
                .map_err(|_| InvalidCidr(text.to_owned()))?,
        };
        Ok(Self(canonical(net)))
    }
}

/// `::ffff:10.0.0.0/104` is `10.0.0.0/8`: clients are compared in canonical form, so networks have to be in it too.
fn canonical(net: IpNet) -> IpNet {
    let IpNet::V6(v6) = net else { return net };
    let mapped = v6.addr().to_ipv4_mapped();
    let prefix = v6.prefix_len().checked_sub(96);
    match (mapped, prefix) {
        (Some(address), Some(prefix)) => Ipv4Net::new(address, prefix).map_or(net, IpNet::V4),
        _ => net,
    }
}

impl TryFrom<String> for Cidr {
    type Error = InvalidCidr;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<Cidr> for String {
    fn from(cidr: Cidr) -> Self {
        cidr.to_string()
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == IpNet::from(UNIX) {
            return f.write_str(UNIX_NAME);
        }
        self.0.fmt(f)
    }
}

impl fmt::Debug for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

pub(crate) fn any_contains(cidrs: &[Cidr], address: IpAddr) -> bool {
    cidrs.iter().any(|cidr| cidr.contains(address))
}

/// Refuses denied addresses, and those outside a non-empty allow-list. Deny wins.
pub(crate) fn check(client: IpAddr, cidrs: &CidrsConfig) -> Result<(), Rejection> {
    let allowed = cidrs.allow.is_empty() || any_contains(&cidrs.allow, client);
    if allowed && !any_contains(&cidrs.deny, client) {
        Ok(())
    } else {
        Err(Rejection::new(
            Reason::AddressNotAllowed,
            format!("Requests from {} are not allowed here.", shown(client)),
        ))
    }
}

/// The address a request is judged by: the peer's, or, where the peer is a trusted proxy, the right-most hop of
/// `X-Forwarded-For` that is none itself.
///
/// Each hop was written by the one right of it, so a hop counts only as far as everything right of it is trusted. What
/// cannot be read (`unknown`, garbage) ends the walk at the last hop that could: a proxy, which is then the client. That
/// can only take rights away as long as proxies are not given more than clients.
pub(crate) fn client_address(peer: Peer, fields: &Fields<'_>, trusted_proxies: &[Cidr]) -> IpAddr {
    let mut client = peer.address.to_canonical();
    let walked = !trusted_proxies.is_empty() && !fields.forwarded_for.is_absent();
    if !walked || peer.names_no_client {
        return client;
    }
    for value in fields.map.get_all(X_FORWARDED_FOR).iter().rev() {
        // RFC 9110 §5.3: several headers are one list in their order, so the last header holds the last hops.
        for hop in value.as_bytes().rsplit(|byte| *byte == b',') {
            if !any_contains(trusted_proxies, client) {
                return client;
            }
            let Some(hop) = parse_hop(hop) else {
                return client;
            };
            client = hop;
        }
    }
    client
}

/// An address as logs show it; that of a client without one is `unix`.
pub fn shown(address: IpAddr) -> String {
    match address {
        UNIX => UNIX_NAME.to_owned(),
        address => address.to_string(),
    }
}

/// `10.0.0.1`, `10.0.0.1:5000`, `fd00::1`, `[fd00::1]`, `[fd00::1]:5000`.
fn parse_hop(hop: &[u8]) -> Option<IpAddr> {
    let hop = std::str::from_utf8(hop).ok()?.trim_matches([' ', '\t']);
    let bare = || hop.parse().ok();
    let bracketed = || hop.strip_prefix('[')?.strip_suffix(']')?.parse().ok();
    let with_port = || hop.parse::<SocketAddr>().ok().map(|address| address.ip());
    let address: IpAddr = bare().or_else(with_port).or_else(bracketed)?;
    // Written by somebody who does not know, or who wants to pass for a client of a Unix socket.
    Some(address.to_canonical()).filter(|address| *address != UNIX)
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, HeaderValue};

    use super::*;

    fn cidrs(texts: &[&str]) -> Vec<Cidr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn client(peer: &str, forwarded: &[&[u8]], trusted: &[&str]) -> String {
        let mut headers = HeaderMap::new();
        for value in forwarded {
            headers.append(X_FORWARDED_FOR, HeaderValue::from_bytes(value).unwrap());
        }
        client_address(
            peer.parse::<IpAddr>().unwrap().into(),
            &Fields::of(&headers),
            &cidrs(trusted),
        )
        .to_string()
    }

    #[test]
    fn clients_of_unix_sockets_are_in_their_own_network_and_in_that_of_all() {
        let only = |cidr: &str| {
            check(
                UNIX,
                &CidrsConfig {
                    allow: cidrs(&[cidr]),
                    deny: Vec::new(),
                },
            )
        };
        for (cidr, allowed) in [
            ("unix", true),
            ("0.0.0.0/0", true),
            ("::/0", false),
            ("127.0.0.0/8", false),
            ("10.0.0.0/8", false),
        ] {
            assert_eq!(only(cidr).is_ok(), allowed, "{cidr}");
        }
        assert!(!cidrs(&["unix"])[0].contains("127.0.0.1".parse().unwrap()));
        assert_eq!(cidrs(&["unix"])[0].to_string(), "unix");
        let refused = only("10.0.0.0/8").unwrap_err();
        assert!(refused.message.contains("from unix"), "{}", refused.message);
    }

    #[test]
    fn nobody_passes_for_a_client_of_a_unix_socket_by_a_header() {
        for hop in [&b"0.0.0.0"[..], b"0.0.0.0:1", b"::ffff:0.0.0.0", b"unix"] {
            assert_eq!(client("10.0.0.1", &[hop], &["10.0.0.0/8"]), "10.0.0.1");
        }
        assert_eq!(client("0.0.0.0", &[b"192.0.2.7"], &["unix"]), "192.0.2.7");
        assert_eq!(
            client("0.0.0.0", &[b"192.0.2.7"], &["10.0.0.0/8"]),
            "0.0.0.0"
        );
    }

    #[test]
    fn deny_wins_over_allow() {
        let rules = CidrsConfig {
            allow: cidrs(&["10.0.0.0/8"]),
            deny: cidrs(&["10.6.6.0/24"]),
        };
        let admitted = |address: &str| check(address.parse().unwrap(), &rules).is_ok();
        assert!(admitted("10.1.2.3"));
        assert!(admitted("::ffff:10.1.2.3"));
        assert!(!admitted("10.6.6.6"));
        assert!(!admitted("::ffff:10.6.6.6"));
        assert!(!admitted("192.0.2.1"));
        assert!(!admitted("fd00::1"));
    }

    #[test]
    fn an_empty_allow_list_is_everyone() {
        assert!(check("192.0.2.1".parse().unwrap(), &CidrsConfig::default()).is_ok());
    }

    #[test]
    fn mapped_networks_are_the_ipv4_networks() {
        let mapped: Cidr = "::ffff:10.0.0.0/104".parse().unwrap();
        assert_eq!(mapped.to_string(), "10.0.0.0/8");
        assert!(mapped.contains("10.9.9.9".parse().unwrap()));
        assert!(!mapped.contains("11.0.0.0".parse().unwrap()));
        assert_eq!("::1".parse::<Cidr>().unwrap().to_string(), "::1/128");
    }

    #[test]
    fn a_network_holds_the_addresses_that_share_its_prefix() {
        for (network, inside, outside) in [
            (
                "10.0.0.0/8",
                &["10.0.0.0", "10.255.255.255"][..],
                &["9.255.255.255", "11.0.0.0"][..],
            ),
            (
                "10.1.2.3/24",
                &["10.1.2.0", "10.1.2.255"],
                &["10.1.1.255", "10.1.3.0"],
            ),
            ("192.0.2.1/31", &["192.0.2.0", "192.0.2.1"], &["192.0.2.2"]),
            (
                "192.0.2.1",
                &["192.0.2.1"],
                &["192.0.2.0", "192.0.2.2", "::1"],
            ),
            (
                "0.0.0.0/0",
                &["0.0.0.0", "255.255.255.255", "::ffff:1.2.3.4"],
                &["::1"],
            ),
            (
                "fd00::/8",
                &["fd00::", "fdff:ffff::1"],
                &["fc00::", "fe00::", "10.0.0.1"],
            ),
            ("2001:db8::7/128", &["2001:db8::7"], &["2001:db8::6"]),
            ("::/0", &["::", "ffff::"], &["10.0.0.1"]),
        ] {
            let network: Cidr = network.parse().unwrap();
            let holds = |address: &&str| network.contains(address.parse().unwrap());
            assert!(inside.iter().all(holds), "{network}");
            assert!(!outside.iter().any(holds), "{network}");
        }
    }

    #[test]
    fn what_is_no_network_is_refused() {
        for text in [
            "",
            "10.0.0.0/33",
            "10.0.0/8",
            "fd00::/129",
            "10.0.0.0/",
            "a.example",
            "10.0.0.1:80",
        ] {
            assert!(text.parse::<Cidr>().is_err(), "{text}");
        }
    }

    #[test]
    fn forwarded_for_is_not_believed_from_just_anyone() {
        assert_eq!(client("192.0.2.1", &[b"127.0.0.1"], &[]), "192.0.2.1");
        assert_eq!(
            client("192.0.2.1", &[b"127.0.0.1"], &["10.0.0.0/8"]),
            "192.0.2.1"
        );
    }

    #[test]
    fn the_rightmost_hop_that_is_no_trusted_proxy_is_the_client() {
        let trusted = &["10.0.0.0/8"];
        assert_eq!(client("10.0.0.1", &[b"192.0.2.7"], trusted), "192.0.2.7");
        // What the client itself wrote to the left does not count.
        assert_eq!(
            client("10.0.0.1", &[b"127.0.0.1, 192.0.2.7"], trusted),
            "192.0.2.7"
        );
        assert_eq!(
            client("10.0.0.1", &[b"127.0.0.1,192.0.2.7 , 10.0.0.2"], trusted),
            "192.0.2.7"
        );
        assert_eq!(
            client("::ffff:10.0.0.1", &[b"::ffff:192.0.2.7"], trusted),
            "192.0.2.7"
        );
    }

    #[test]
    fn several_headers_are_one_list_in_their_order() {
        let trusted = &["10.0.0.0/8"];
        assert_eq!(
            client("10.0.0.1", &[b"127.0.0.1", b"192.0.2.7"], trusted),
            "192.0.2.7"
        );
        assert_eq!(
            client("10.0.0.1", &[b"192.0.2.7", b"10.0.0.3, 10.0.0.2"], trusted),
            "192.0.2.7"
        );
    }

    #[test]
    fn hops_may_carry_ports_and_brackets() {
        for (hop, address) in [
            ("192.0.2.7:4711", "192.0.2.7"),
            ("2001:db8::7", "2001:db8::7"),
            ("[2001:db8::7]", "2001:db8::7"),
            ("[2001:db8::7]:4711", "2001:db8::7"),
        ] {
            assert_eq!(
                client("10.0.0.1", &[hop.as_bytes()], &["10.0.0.0/8"]),
                address
            );
        }
    }

    #[test]
    fn an_unreadable_hop_ends_the_walk_at_the_last_good_one() {
        let trusted = &["10.0.0.0/8"];
        for garbage in [
            &b"unknown"[..],
            b"",
            b"\xff",
            b"10.0.0.300",
            b"[::1",
            b"a.example",
            b"\"192.0.2.7\"",
        ] {
            assert_eq!(client("10.0.0.1", &[garbage], trusted), "10.0.0.1");
            let list = [b"192.0.2.7, ", garbage, b", 10.0.0.2"].concat();
            assert_eq!(client("10.0.0.1", &[&list], trusted), "10.0.0.2");
        }
    }

    #[test]
    fn a_chain_of_trusted_proxies_only_ends_at_its_first() {
        assert_eq!(
            client("10.0.0.1", &[b"10.0.0.3, 10.0.0.2"], &["10.0.0.0/8"]),
            "10.0.0.3"
        );
        assert_eq!(client("10.0.0.1", &[], &["10.0.0.0/8"]), "10.0.0.1");
    }
}
