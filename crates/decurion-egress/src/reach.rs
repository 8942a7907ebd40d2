//! What an address of the network reaches. Takes a host or an IP address, gives whether it is this machine, an internal
//! network, a cloud's store of credentials or the public network, however the address is written.

use std::net::IpAddr;

use crate::address::{embedded_v4, special_kind};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    Public,
    /// A private network, or one that is not routed.
    Internal,
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

/// What an address reaches.
pub fn of(address: IpAddr) -> Reach {
    match special_kind(plain(address)) {
        None => Reach::Public,
        Some("link-local" | "cloud metadata") => Reach::Secrets,
        // Connecting to "any address" connects to this machine.
        Some("loopback" | "unspecified") => Reach::Own,
        Some(_) => Reach::Internal,
    }
}

/// An address without its disguises: an IPv4 address that an IPv6 address stands for is that IPv4 address.
pub fn plain(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V6(address) => embedded_v4(address).map_or(IpAddr::V6(address), IpAddr::V4),
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
