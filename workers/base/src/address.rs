//! Decides whether an IP address is public. Names from the configuration or from callers may resolve only to public addresses,
//! unless the operator allows others.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// IPv4 networks that do not belong to the public Internet: address and length of the prefix in bits.
const NOT_PUBLIC_V4: [(Ipv4Addr, u32); 16] = [
    (Ipv4Addr::new(0, 0, 0, 0), 8),
    (Ipv4Addr::new(10, 0, 0, 0), 8),
    (Ipv4Addr::new(100, 64, 0, 0), 10),
    (Ipv4Addr::new(127, 0, 0, 0), 8),
    (Ipv4Addr::new(169, 254, 0, 0), 16),
    (Ipv4Addr::new(172, 16, 0, 0), 12),
    (Ipv4Addr::new(192, 0, 0, 0), 24),
    (Ipv4Addr::new(192, 0, 2, 0), 24),
    (Ipv4Addr::new(192, 88, 99, 0), 24),
    (Ipv4Addr::new(192, 168, 0, 0), 16),
    (Ipv4Addr::new(198, 18, 0, 0), 15),
    (Ipv4Addr::new(198, 51, 100, 0), 24),
    (Ipv4Addr::new(203, 0, 113, 0), 24),
    (Ipv4Addr::new(224, 0, 0, 0), 4),
    (Ipv4Addr::new(240, 0, 0, 0), 4),
    (Ipv4Addr::new(168, 63, 129, 16), 32),
];

/// IPv6 networks inside 2000::/3 that do not belong to the public Internet: address and length of the prefix in bits.
const NOT_PUBLIC_V6: [(Ipv6Addr, u32); 3] = [
    (Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, 0, 0), 23),
    (Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0), 32),
    (Ipv6Addr::new(0x3fff, 0, 0, 0, 0, 0, 0, 0), 20),
];

/// Returns true if an address belongs to the public Internet. For an IPv6 address that contains an IPv4 address, the IPv4
/// address decides.
pub fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => match inner_v4(address) {
            Some(inner) => is_public_v4(inner),
            None => is_public_v6(address),
        },
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let within = |(network, length): &(Ipv4Addr, u32)| {
        (u32::from(address) ^ u32::from(*network)) >> (32 - length) == 0
    };
    !NOT_PUBLIC_V4.iter().any(within)
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    let within = |(network, length): &(Ipv6Addr, u32)| {
        (u128::from(address) ^ u128::from(*network)) >> (128 - length) == 0
    };
    // Addresses outside 2000::/3 are local, reserved or multicast.
    let global = address.segments()[0] >> 13 == 1;
    global && !NOT_PUBLIC_V6.iter().any(within)
}

/// The IPv4 address that is contained in an IPv6 address: mapped, translated (64:ff9b::/96) or tunnelled (2002::/16). `None` for
/// other IPv6 addresses.
fn inner_v4(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let segments = address.segments();
    let of = |high: u16, low: u16| Ipv4Addr::from((u32::from(high) << 16) | u32::from(low));
    match segments {
        [0, 0, 0, 0, 0, 0xffff, high, low] | [0x64, 0xff9b, 0, 0, 0, 0, high, low] => {
            Some(of(high, low))
        }
        [0x2002, high, low, ..] => Some(of(high, low)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_of_the_public_internet_are_public() {
        for (address, public) in [
            ("1.1.1.1", true),
            ("8.8.8.8", true),
            ("172.15.255.255", true),
            ("172.16.0.0", false),
            ("172.31.255.255", false),
            ("172.32.0.0", true),
            ("0.0.0.0", false),
            ("10.0.0.1", false),
            ("100.63.255.255", true),
            ("100.64.0.1", false),
            ("127.0.0.1", false),
            ("127.255.255.255", false),
            ("169.254.169.254", false),
            ("168.63.129.16", false),
            ("192.168.1.1", false),
            ("192.169.1.1", true),
            ("198.19.255.255", false),
            ("203.0.113.7", false),
            ("224.0.0.1", false),
            ("255.255.255.255", false),
            ("::", false),
            ("::1", false),
            ("::7f00:1", false),
            ("::ffff:127.0.0.1", false),
            ("::ffff:10.0.0.1", false),
            ("::ffff:1.1.1.1", true),
            ("::ffff:169.254.169.254", false),
            ("::ffff:0.0.0.0", false),
            ("::ffff:0:127.0.0.1", false),
            ("::ffff:0:1.1.1.1", false),
            ("64:ff9b::169.254.169.254", false),
            ("64:ff9b::127.0.0.1", false),
            ("64:ff9b:1::a00:1", false),
            ("2002:a9fe:a9fe::1", false),
            ("2002:e000:1::1", false),
            ("192.0.0.192", false),
            ("100.100.100.200", false),
            ("239.255.255.250", false),
            ("240.0.0.1", false),
            ("ff0e::1", false),
            ("5f00::1", false),
            ("4000::1", false),
            ("64:ff9b::a00:1", false),
            ("64:ff9b::101:101", true),
            ("64:ff9b:1::101:101", false),
            ("2002:a00:1::", false),
            ("2002:7f00:1::1", false),
            ("2002:101:101::", true),
            ("2001::1", false),
            ("2001:db8::1", false),
            ("2001:4860:4860::8888", true),
            ("2606:4700::1111", true),
            ("fc00::1", false),
            ("fd12:3456::1", false),
            ("fe80::1", false),
            ("fec0::1", false),
            ("ff02::1", false),
            ("fd00:ec2::254", false),
            ("100::1", false),
        ] {
            let parsed: IpAddr = address.parse().expect("an address");
            assert_eq!(is_public(parsed), public, "{address}");
        }
    }
}
