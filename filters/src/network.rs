//! Client addresses of requests: parsing addresses, matching networks, and finding the client behind trusted proxies.
//!
//! Addresses are canonical: an IPv4 address that is mapped into IPv6 is converted to IPv4. So a rule for an IPv4 network
//! also applies to its mapped form.

use std::net::{IpAddr, SocketAddr};

use http::HeaderName;
pub use tooldock_base::network::{Cidr, InvalidCidr, UNIX, UNIX_NAME};

use crate::config::CidrsConfig;
use crate::fields::Fields;
use crate::rejection::{Reason, Rejection};

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// The remote end of a connection: a client or a proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    /// The peer's address.
    pub address: IpAddr,
    /// True if the peer is a proxy that used the PROXY protocol without stating its client's address. Such a proxy adds nothing
    /// to `X-Forwarded-For`, so the header was written by the client itself and cannot be trusted.
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

pub(crate) fn any_contains(cidrs: &[Cidr], address: IpAddr) -> bool {
    cidrs.iter().any(|cidr| cidr.contains(address))
}

/// Refuses addresses in `deny`, and addresses outside a non-empty `allow`. `deny` takes precedence.
pub(crate) fn check(client: IpAddr, cidrs: &CidrsConfig) -> Result<(), Rejection> {
    let allowed = cidrs.allow.is_empty() || any_contains(&cidrs.allow, client);
    if allowed && !any_contains(&cidrs.deny, client) {
        Ok(())
    } else {
        Err(Rejection::new(
            Reason::AddressNotAllowed,
            format!(
                "Requests from {} are not allowed here.",
                address_text(client)
            ),
        ))
    }
}

/// The client's address, to which all rules apply: the peer's address or, if the peer is a trusted proxy, the right-most address
/// in `X-Forwarded-For` that is not a trusted proxy.
///
/// Each element of the header was written by the host to its right, so an element is used only if all hosts to its right are
/// trusted. An element that is not an address (`unknown`, garbage) ends the search: then the proxy to its right counts as the
/// client. That can only reduce rights, as long as proxies have no more rights than clients.
pub(crate) fn client_address(peer: Peer, fields: &Fields<'_>, trusted_proxies: &[Cidr]) -> IpAddr {
    let mut client = peer.address.to_canonical();
    let walked = !trusted_proxies.is_empty() && !fields.forwarded_for.is_absent();
    if !walked || peer.names_no_client {
        return client;
    }
    for value in fields.map.get_all(X_FORWARDED_FOR).iter().rev() {
        // Several headers form one list in their order (RFC 9110 §5.3). The search begins at its end, so with the last header.
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

/// The address or network that counts as one client in limits per client address: an IPv4 address, or the /64 of an IPv6 address.
pub fn network_of(client: IpAddr) -> IpAddr {
    match client.to_canonical() {
        IpAddr::V6(address) => {
            let prefix = address.to_bits() & !u128::from(u64::MAX);
            IpAddr::V6(prefix.into())
        }
        v4 => v4,
    }
}

/// The text of an address in logs; `unix` for clients of Unix sockets, which have no address.
pub fn address_text(address: IpAddr) -> String {
    match address {
        UNIX => UNIX_NAME.to_owned(),
        address => address.to_string(),
    }
}

/// Parses an element of `X-Forwarded-For`: `10.0.0.1`, `10.0.0.1:5000`, `fd00::1`, `[fd00::1]`, `[fd00::1]:5000`.
fn parse_hop(hop: &[u8]) -> Option<IpAddr> {
    let hop = std::str::from_utf8(hop).ok()?.trim_matches([' ', '\t']);
    let bare = || hop.parse().ok();
    let bracketed = || hop.strip_prefix('[')?.strip_suffix(']')?.parse().ok();
    let with_port = || hop.parse::<SocketAddr>().ok().map(|address| address.ip());
    let address: IpAddr = bare().or_else(with_port).or_else(bracketed)?;
    // The address that stands for clients of Unix sockets is refused in the header. Otherwise a client could pretend to use a
    // Unix socket.
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
        // Hops that the client itself wrote, on the left, do not count.
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
    fn a_chain_as_long_as_a_head_is_walked_to_its_rightmost_client() {
        let trusted = &["10.0.0.0/8"];
        let proxies = "10.0.0.9,".repeat(4_000);
        let chain = format!("127.0.0.1,192.0.2.7,{proxies}10.0.0.2");
        assert_eq!(
            client("10.0.0.1", &[chain.as_bytes()], trusted),
            "192.0.2.7"
        );
        let lines = vec![&b"10.0.0.9"[..]; 90];
        let lines = [&[&b"127.0.0.1, 192.0.2.7"[..]][..], &lines].concat();
        assert_eq!(client("10.0.0.1", &lines, trusted), "192.0.2.7");
        // An empty line, or a comma at the end, is a hop that cannot be read.
        let lines = [&b"192.0.2.7"[..], b""];
        assert_eq!(client("10.0.0.1", &lines, trusted), "10.0.0.1");
    }

    #[test]
    fn spellings_of_a_trusted_proxy_are_that_proxy_and_those_of_others_are_none() {
        let trusted = &["10.0.0.0/8", "fd00::/8"];
        for proxy in [
            "10.0.0.2:80",
            "::ffff:10.0.0.2",
            "[::ffff:10.0.0.2]:80",
            "[fd00::1]:80",
            " \tfd00::1",
        ] {
            let chain = format!("127.0.0.1, 192.0.2.7, {proxy}");
            assert_eq!(
                client("10.0.0.1", &[chain.as_bytes()], trusted),
                "192.0.2.7"
            );
        }
        for no_address in [
            "010.0.0.2",
            "10.2",
            "167772162",
            "0x0a000002",
            "fe80::1%eth0",
            "[10.0.0.2]x",
            "10.0.0.2:",
            "10.0.0.2:99999",
            "for=10.0.0.2",
            "10.0.0.2;10.0.0.3",
        ] {
            let chain = format!("127.0.0.1, {no_address}");
            assert_eq!(client("10.0.0.1", &[chain.as_bytes()], trusted), "10.0.0.1");
        }
    }

    #[test]
    fn the_forwarded_header_is_nobodys_word() {
        let mut headers = HeaderMap::new();
        headers.append("forwarded", HeaderValue::from_static("for=127.0.0.1"));
        headers.append("x-real-ip", HeaderValue::from_static("127.0.0.1"));
        headers.append("x-forwarded-for", HeaderValue::from_static("192.0.2.7"));
        let peer: IpAddr = "10.0.0.1".parse().unwrap();
        let found = client_address(peer.into(), &Fields::of(&headers), &cidrs(&["10.0.0.0/8"]));
        assert_eq!(found.to_string(), "192.0.2.7");
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
