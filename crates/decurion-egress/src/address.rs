//! Kinds and ranges of addresses. Takes an IP address, gives whether it belongs to the public network and, if not, what
//! it is; takes a range such as `10.0.0.0/8`, gives whether an address belongs to it.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Services with a public address that hand out credentials to the machine they run on (Azure's host agent).
const METADATA_V4: [Ipv4Addr; 3] =
    [Ipv4Addr::new(169, 254, 169, 254), Ipv4Addr::new(100, 100, 100, 200), Ipv4Addr::new(168, 63, 129, 16)];
const METADATA_V6: [Ipv6Addr; 2] =
    [Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254), Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254)];

/// Ranges of IPv4 that are not the public network. Those for documentation are not among them: nothing is routed there, and
/// closed networks use them for mirrors of public hosts.
const SPECIAL_V4: &[(Ipv4Addr, u8, &str)] = &[
    (Ipv4Addr::UNSPECIFIED, 8, "unspecified"),
    (Ipv4Addr::new(10, 0, 0, 0), 8, "private"),
    (Ipv4Addr::new(100, 64, 0, 0), 10, "carrier-grade NAT"),
    (Ipv4Addr::new(127, 0, 0, 0), 8, "loopback"),
    (Ipv4Addr::new(169, 254, 0, 0), 16, "link-local"),
    (Ipv4Addr::new(172, 16, 0, 0), 12, "private"),
    (Ipv4Addr::new(192, 0, 0, 0), 24, "reserved"),
    (Ipv4Addr::new(192, 168, 0, 0), 16, "private"),
    (Ipv4Addr::new(198, 18, 0, 0), 15, "benchmarking"),
    (Ipv4Addr::new(224, 0, 0, 0), 4, "multicast"),
    (Ipv4Addr::new(240, 0, 0, 0), 4, "reserved"),
];

/// Ranges of IPv6 that are not the public network. Those that carry an IPv4 address are in [`embedded_v4`].
const SPECIAL_V6: &[(Ipv6Addr, u8, &str)] = &[
    (Ipv6Addr::UNSPECIFIED, 128, "unspecified"),
    (Ipv6Addr::LOCALHOST, 128, "loopback"),
    (Ipv6Addr::new(0x64, 0xff9b, 1, 0, 0, 0, 0, 0), 48, "local NAT64"),
    (Ipv6Addr::new(0x100, 0, 0, 0, 0, 0, 0, 0), 64, "discard"),
    (Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, 0, 0), 32, "Teredo"),
    (Ipv6Addr::new(0x5f00, 0, 0, 0, 0, 0, 0, 0), 16, "segment routing"),
    (Ipv6Addr::new(0xfc00, 0, 0, 0, 0, 0, 0, 0), 7, "unique-local"),
    (Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0), 10, "link-local"),
    (Ipv6Addr::new(0xfec0, 0, 0, 0, 0, 0, 0, 0), 10, "site-local"),
    (Ipv6Addr::new(0xff00, 0, 0, 0, 0, 0, 0, 0), 8, "multicast"),
];

/// What kind of address this is, if it is not on the public network.
pub fn special_kind(address: IpAddr) -> Option<&'static str> {
    match address {
        IpAddr::V4(address) => special_v4(address),
        IpAddr::V6(address) if METADATA_V6.contains(&address) => Some("cloud metadata"),
        IpAddr::V6(address) => {
            let own = SPECIAL_V6.iter().find(|(base, prefix, _)| same_prefix_v6(*base, address, *prefix));
            own.map(|(_, _, kind)| *kind).or_else(|| embedded_v4(address).and_then(special_v4))
        }
    }
}

fn special_v4(address: Ipv4Addr) -> Option<&'static str> {
    if METADATA_V4.contains(&address) {
        return Some("cloud metadata");
    }
    let found = SPECIAL_V4.iter().find(|(base, prefix, _)| same_prefix_v4(*base, address, *prefix));
    found.map(|(_, _, kind)| *kind)
}

/// The IPv4 address to which a gateway would carry an IPv6 packet: mapped, compatible, NAT64, 6to4, Teredo and ISATAP forms.
pub fn embedded_v4(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let parts = address.segments();
    let from = |high: u16, low: u16| Some(Ipv4Addr::from(u32::from(high) << 16 | u32::from(low)));
    match parts {
        // This machine and "any" are not the IPv4 addresses 0.0.0.1 and 0.0.0.0.
        [0, 0, 0, 0, 0, 0, 0, 0 | 1] => None,
        // Teredo turns every bit of the client's address around.
        [0x2001, 0, _, _, _, _, high, low] => from(!high, !low),
        [0, 0, 0, 0, 0, 0 | 0xffff, high, low]
        | [0, 0, 0, 0, 0xffff, 0, high, low]
        | [0x64, 0xff9b, 0 | 1, _, _, _, high, low]
        | [_, _, _, _, 0 | 0x200, 0x5efe, high, low]
        | [0x2002, high, low, ..] => from(high, low),
        _ => None,
    }
}

/// A range of addresses: `10.0.0.0/8`, `fd00::/8`, or one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressRange {
    base: IpAddr,
    prefix: u8,
}

impl AddressRange {
    /// Reads `address/prefix`. Bits after the prefix must be zero, so that a slip is not a larger range than meant.
    pub fn parse(text: &str) -> Option<Self> {
        let (base, prefix) = text.split_once('/')?;
        let base: IpAddr = base.parse().ok()?;
        let plain = !prefix.is_empty() && prefix.bytes().all(|byte| byte.is_ascii_digit());
        let prefix: u8 = plain.then(|| prefix.parse().ok())??;
        let (longest, rest_is_zero) = match base {
            IpAddr::V4(base) => (32, u32::from(base) & !mask_v4(prefix) == 0),
            IpAddr::V6(base) => (128, u128::from(base) & !mask_v6(prefix) == 0),
        };
        (prefix <= longest && rest_is_zero).then_some(Self { base, prefix })
    }

    /// The range of one address.
    pub fn single(address: IpAddr) -> Self {
        let prefix = if address.is_ipv4() { 32 } else { 128 };
        Self { base: address, prefix }
    }

    /// Whether the range is one of IPv6 addresses.
    pub fn is_ipv6(&self) -> bool {
        self.base.is_ipv6()
    }

    /// Whether the address lies in the range.
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.base, address) {
            (IpAddr::V4(base), IpAddr::V4(address)) => same_prefix_v4(base, address, self.prefix),
            (IpAddr::V6(base), IpAddr::V6(address)) => same_prefix_v6(base, address, self.prefix),
            _ => false,
        }
    }
}

impl fmt::Display for AddressRange {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole = if self.base.is_ipv4() { 32 } else { 128 };
        if self.prefix == whole {
            return self.base.fmt(formatter);
        }
        write!(formatter, "{}/{}", self.base, self.prefix)
    }
}

fn mask_v4(prefix: u8) -> u32 {
    u32::MAX.checked_shl(32_u32.saturating_sub(prefix.into())).unwrap_or(0)
}

fn mask_v6(prefix: u8) -> u128 {
    u128::MAX.checked_shl(128_u32.saturating_sub(prefix.into())).unwrap_or(0)
}

fn same_prefix_v4(one: Ipv4Addr, other: Ipv4Addr, prefix: u8) -> bool {
    (u32::from(one) ^ u32::from(other)) & mask_v4(prefix) == 0
}

fn same_prefix_v6(one: Ipv6Addr, other: Ipv6Addr, prefix: u8) -> bool {
    (u128::from(one) ^ u128::from(other)) & mask_v6(prefix) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_outside_of_the_public_network_are_known_in_every_form() {
        let cases = [
            ("127.0.0.1", "loopback"),
            ("10.255.0.1", "private"),
            ("172.31.255.255", "private"),
            ("192.168.1.1", "private"),
            ("100.127.0.1", "carrier-grade NAT"),
            ("169.254.1.1", "link-local"),
            ("169.254.169.254", "cloud metadata"),
            ("168.63.129.16", "cloud metadata"),
            ("0.0.0.0", "unspecified"),
            ("224.0.0.1", "multicast"),
            ("255.255.255.255", "reserved"),
            ("::", "unspecified"),
            ("::1", "loopback"),
            ("fe80::1", "link-local"),
            ("fd12::1", "unique-local"),
            ("fd00:ec2::254", "cloud metadata"),
            ("ff02::1", "multicast"),
            ("::ffff:10.0.0.1", "private"),
            ("::10.0.0.1", "private"),
            ("64:ff9b::169.254.169.254", "cloud metadata"),
            ("64:ff9b:1::1", "local NAT64"),
            ("2002:7f00:1::", "loopback"),
            ("2001:0:1::1", "Teredo"),
            ("2a00::200:5efe:10.0.0.1", "private"),
        ];
        for (text, kind) in cases {
            assert_eq!(special_kind(text.parse().unwrap()), Some(kind), "{text}");
        }
    }

    #[test]
    fn public_addresses_are_public_also_behind_a_gateway() {
        for text in [
            "1.1.1.1",
            "203.0.113.80",
            "172.32.0.1",
            "100.128.0.1",
            "2606:4700::1",
            "64:ff9b::8.8.8.8",
            "2002:808:808::1",
        ] {
            assert_eq!(special_kind(text.parse().unwrap()), None, "{text}");
        }
    }

    #[test]
    fn a_range_holds_what_shares_its_prefix() {
        let range = AddressRange::parse("10.0.0.0/8").unwrap();
        assert!(range.contains("10.255.255.255".parse().unwrap()));
        assert!(!range.contains("11.0.0.0".parse().unwrap()));
        assert!(!range.contains("::ffff:10.0.0.1".parse().unwrap()));
        assert!(AddressRange::parse("0.0.0.0/0").unwrap().contains("8.8.8.8".parse().unwrap()));
        assert!(AddressRange::parse("fd00::/8").unwrap().contains("fdff::1".parse().unwrap()));
        for text in [
            "10.0.0.1/8",
            "10.0.0.0/33",
            "10.0.0.0/",
            "10.0.0.0/+8",
            "10/8",
            "fd00::1/8",
            "::/129",
            "10.0.0.0",
        ] {
            assert_eq!(AddressRange::parse(text), None, "{text}");
        }
    }
}
