//! Networks in CIDR notation, used by every list of networks in the configuration.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::str::FromStr;

use ipnet::{IpNet, Ipv4Net};
use serde::{Deserialize, Serialize};

/// The address recorded for clients of Unix sockets, which have no IP address. No packet comes from this address; in networks of
/// the configuration it is written `unix`.
pub const UNIX: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

/// Name of [`UNIX`] in the configuration and the logs.
pub const UNIX_NAME: &str = "unix";

/// A network in CIDR notation; an address without a prefix is a network of this address alone. `unix` is the network of the
/// clients of Unix sockets; of all other networks, only `0.0.0.0/0` contains these clients.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Cidr(IpNet);

/// Reason why a text is not a network.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "invalid network {0:?}: use an address or ADDRESS/PREFIX, as 10.0.0.0/8 or fd00::/8, or unix"
)]
pub struct InvalidCidr(String);

impl Cidr {
    /// Returns true if this network contains all addresses of another network.
    pub fn covers(&self, other: &Self) -> bool {
        match other.0 == IpNet::from(UNIX) {
            true => self.contains(UNIX),
            false => self.0.contains(&other.0),
        }
    }

    /// Returns true if the network contains the canonical form of the address, such as `10.0.0.1` for `::ffff:10.0.0.1`.
    pub fn contains(&self, address: IpAddr) -> bool {
        if address == UNIX {
            // An IPv4 network with prefix length 0 contains every address, including those of clients of Unix sockets.
            let of_every_address = matches!(self.0, IpNet::V4(net) if net.prefix_len() == 0);
            return of_every_address || self.0 == IpNet::from(UNIX);
        }
        match (self.0, address.to_canonical()) {
            (IpNet::V4(net), IpAddr::V4(address)) => {
                let differ = net.addr().to_bits() ^ address.to_bits();
                let host_bits = 32 - u32::from(net.prefix_len());
                // With prefix length 0 the shift is by 32 bits, for which `checked_shr` returns `None`: every address is in the
                // network.
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

/// Converts a network to its canonical form: `10.0.0.0/8` for `::ffff:10.0.0.0/104`. Addresses of clients are compared in
/// canonical form, so networks must have it, too.
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

#[cfg(test)]
mod tests {
    use super::*;

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
    fn clients_of_unix_sockets_are_in_their_own_network_and_in_that_of_every_address() {
        for (network, holds) in [
            ("unix", true),
            ("0.0.0.0/0", true),
            ("10.0.0.0/0", true),
            ("::/0", false),
            ("10.0.0.0/8", false),
        ] {
            let cidr: Cidr = network.parse().unwrap();
            assert_eq!(cidr.contains(UNIX), holds, "{network}");
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
}
