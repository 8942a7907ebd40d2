//! What an address of the network reaches. Takes a host or an IP address, gives whether it is this machine, an internal
//! network, a cloud's store of credentials or the public network, however the address is written.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// What is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// The public network.
    Public,
    /// A private network, or one that is not routed.
    Internal,
    /// This machine.
    Own,
    /// The link, and where clouds hand out a machine's credentials: never fetched.
    Secrets,
}

impl Reach {
    /// Whether only a rule about this very address lets a name lead there.
    pub fn is_inside(self) -> bool {
        self != Self::Public
    }
}

/// Addresses outside of the link-local ranges at which clouds hand out credentials or run their agent.
const CLOUD_V4: [Ipv4Addr; 2] = [Ipv4Addr::new(100, 100, 100, 200), Ipv4Addr::new(168, 63, 129, 16)];
const CLOUD_V6: [Ipv6Addr; 2] = [
    Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254),
    // Another cloud's, at the same place of its own network.
    Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254),
];

/// What an address reaches.
pub fn of(address: IpAddr) -> Reach {
    match plain(address) {
        IpAddr::V4(address) => of_v4(address),
        IpAddr::V6(address) => of_v6(address),
    }
}

/// An address without its disguises: an IPv4 address that an IPv6 address stands for is that IPv4 address.
pub fn plain(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V6(address) => embedded(address).map_or(IpAddr::V6(address), IpAddr::V4),
        v4 @ IpAddr::V4(_) => v4,
    }
}

/// Names that mean this machine by definition.
pub fn is_local_name(host: &str) -> bool {
    let host = host.trim_end_matches('.');
    host.eq_ignore_ascii_case("localhost") || host.to_ascii_lowercase().ends_with(".localhost")
}

/// The address that a host is, if it is one: with or without brackets, not a name.
pub fn literal(host: &str) -> Option<IpAddr> {
    host.trim_matches(['[', ']']).parse().ok().map(plain)
}

fn of_v4(address: Ipv4Addr) -> Reach {
    let [first, second, third, _] = address.octets();
    if address.is_link_local() || CLOUD_V4.contains(&address) {
        return Reach::Secrets;
    }
    // Connecting to "any address" connects to this machine.
    if address.is_loopback() || first == 0 {
        return Reach::Own;
    }
    let shared = first == 100 && (64..128).contains(&second);
    let protocol = (first, second, third) == (192, 0, 0);
    let benchmark = first == 198 && (second == 18 || second == 19);
    if address.is_private() || shared || protocol || benchmark || first >= 224 {
        return Reach::Internal;
    }
    Reach::Public
}

fn of_v6(address: Ipv6Addr) -> Reach {
    let first = address.segments()[0];
    if address.is_unicast_link_local() || CLOUD_V6.contains(&address) {
        return Reach::Secrets;
    }
    if address.is_loopback() || address.is_unspecified() {
        return Reach::Own;
    }
    let site_local = first & 0xffc0 == 0xfec0;
    if address.is_unique_local() || site_local || address.is_multicast() {
        return Reach::Internal;
    }
    Reach::Public
}

/// The IPv4 address that an IPv6 address is translated to or tunnelled through.
fn embedded(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let parts = address.segments();
    let v4 = |high: u16, low: u16| {
        let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
        Ipv4Addr::new(a, b, c, d)
    };
    let last = v4(parts[6], parts[7]);
    match parts {
        // This machine and "any" are not the IPv4 addresses 0.0.0.1 and 0.0.0.0.
        [0, 0, 0, 0, 0, 0, 0, 0 | 1] => None,
        // 6to4.
        [0x2002, high, low, ..] => Some(v4(high, low)),
        // Teredo turns every bit of the client's address around.
        [0x2001, 0, ..] => Some(v4(!parts[6], !parts[7])),
        // Mapped, compatible, and mapped as translators write it; NAT64, with the prefix everybody knows and those for
        // use inside; ISATAP.
        [0, 0, 0, 0, 0, 0 | 0xffff, ..]
        | [0, 0, 0, 0, 0xffff, 0, ..]
        | [0x64, 0xff9b, 0 | 1, ..]
        | [.., 0 | 0x200, 0x5efe, _, _] => Some(last),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_known_in_every_form() {
        for (text, expected) in [
            ("8.8.8.8", Reach::Public),
            ("192.0.2.1", Reach::Public),
            ("100.63.0.1", Reach::Public),
            ("172.32.0.1", Reach::Public),
            ("2606:4700::1111", Reach::Public),
            ("2002:808:808::1", Reach::Public),
            ("64:ff9b::808:808", Reach::Public),
            ("127.0.0.1", Reach::Own),
            ("127.9.9.9", Reach::Own),
            ("0.0.0.0", Reach::Own),
            ("0.1.2.3", Reach::Own),
            ("::1", Reach::Own),
            ("::", Reach::Own),
            ("::ffff:127.0.0.1", Reach::Own),
            ("::127.0.0.1", Reach::Own),
            ("::ffff:0:127.0.0.1", Reach::Own),
            ("64:ff9b::127.0.0.1", Reach::Own),
            ("2002:7f00:1::", Reach::Own),
            ("2001:0:1:2:3:4:80ff:fffe", Reach::Own),
            ("2001:db8::5efe:127.0.0.1", Reach::Own),
            ("10.0.0.1", Reach::Internal),
            ("172.16.0.1", Reach::Internal),
            ("192.168.1.1", Reach::Internal),
            ("100.64.0.1", Reach::Internal),
            ("192.0.0.8", Reach::Internal),
            ("198.18.0.1", Reach::Internal),
            ("224.0.0.1", Reach::Internal),
            ("255.255.255.255", Reach::Internal),
            ("fc00::1", Reach::Internal),
            ("fd12:3456::1", Reach::Internal),
            ("fec0::1", Reach::Internal),
            ("ff02::1", Reach::Internal),
            ("::ffff:10.0.0.1", Reach::Internal),
            ("64:ff9b::10.0.0.1", Reach::Internal),
            ("64:ff9b:1::10.0.0.1", Reach::Internal),
            ("2002:a00:1::", Reach::Internal),
            ("169.254.169.254", Reach::Secrets),
            ("169.254.170.2", Reach::Secrets),
            ("100.100.100.200", Reach::Secrets),
            ("168.63.129.16", Reach::Secrets),
            ("fd00:ec2::254", Reach::Secrets),
            ("fe80::1", Reach::Secrets),
            ("::ffff:169.254.169.254", Reach::Secrets),
            ("::169.254.169.254", Reach::Secrets),
            ("64:ff9b::169.254.169.254", Reach::Secrets),
            ("2002:a9fe:a9fe::", Reach::Secrets),
            ("64:ff9b::6464:64c8", Reach::Secrets),
        ] {
            assert_eq!(of(text.parse().unwrap()), expected, "{text}");
        }
    }
}
