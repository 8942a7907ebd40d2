//! Host names and addresses as clients write them. Takes the text of a host from a request, gives one normal form to
//! compare, or the reason why the text is not a host.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The most bytes that a host name may have (RFC 1035).
const NAME_MAX: usize = 253;
/// The most bytes between two dots.
const LABEL_MAX: usize = 63;

/// A host in normal form: equal hosts are equal values.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Host {
    /// A DNS name in lower case, without a final dot.
    Name(String),
    /// An address, however it was spelled. IPv4 inside IPv6 (`::ffff:a.b.c.d`) is the IPv4 address.
    Address(IpAddr),
}

/// Why a text is not a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HostError {
    /// Nothing, or only a dot.
    #[error("the host is empty")]
    Empty,
    /// Longer than DNS allows, as a whole or between two dots.
    #[error("the host name is too long")]
    TooLong,
    /// Two dots in a row, or a dot in front.
    #[error("the host name has an empty label")]
    EmptyLabel,
    /// A character outside of letters, digits, `-`, `_` and `.`.
    #[error("the host name has a character that is not allowed")]
    Character,
    /// The last label is a number, but the whole is no IPv4 address in any spelling.
    #[error("the host ends in a number but is not an address")]
    Number,
    /// An IPv6 address with a zone (`fe80::1%eth0`), which names an interface of this machine.
    #[error("an address with a zone is not allowed")]
    Zone,
    /// Brackets or colons around something that is no IPv6 address.
    #[error("the host is not an IPv6 address")]
    Ipv6,
}

impl Host {
    /// Reads a host without its port. IPv6 addresses may have brackets.
    pub fn parse(text: &str) -> Result<Self, HostError> {
        let inner = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        if inner.is_some() || text.contains(':') {
            return parse_v6(inner.unwrap_or(text));
        }
        let name = text.strip_suffix('.').unwrap_or(text);
        check_name(name)?;
        let name = name.to_ascii_lowercase();
        if ends_in_number(&name) {
            return parse_v4(&name).map(|address| Self::Address(address.into())).ok_or(HostError::Number);
        }
        Ok(Self::Name(name))
    }

    /// Reads `host:port`, or `host` if a default port is given.
    pub(crate) fn parse_with_port(text: &str, default: Option<u16>) -> Option<(&str, u16)> {
        let (host, port) = match text.rfind(']') {
            Some(end) if text.starts_with('[') => match &text[end + 1..] {
                "" => (text, None),
                rest => (&text[..=end], Some(rest.strip_prefix(':')?)),
            },
            _ => text.rsplit_once(':').map_or((text, None), |(host, port)| (host, Some(port))),
        };
        let port = match port {
            Some(digits) => parse_port(digits)?,
            None => default?,
        };
        (!host.is_empty()).then_some((host, port))
    }

    /// The address, if the host is one.
    pub fn address(&self) -> Option<IpAddr> {
        match self {
            Self::Name(_) => None,
            Self::Address(address) => Some(*address),
        }
    }

    /// As it stands before a port: IPv6 addresses in brackets.
    pub fn in_authority(&self) -> String {
        match self {
            Self::Address(IpAddr::V6(address)) => format!("[{address}]"),
            other => other.to_string(),
        }
    }
}

impl From<IpAddr> for Host {
    fn from(address: IpAddr) -> Self {
        Self::Address(address.to_canonical())
    }
}

impl fmt::Display for Host {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => formatter.write_str(name),
            Self::Address(address) => address.fmt(formatter),
        }
    }
}

/// Digits only: `u16::from_str` would take a plus sign.
pub(crate) fn parse_port(digits: &str) -> Option<u16> {
    let plain = !digits.is_empty() && digits.len() <= 5 && digits.bytes().all(|byte| byte.is_ascii_digit());
    plain.then(|| digits.parse().ok()).flatten().filter(|port| *port != 0)
}

fn parse_v6(text: &str) -> Result<Host, HostError> {
    if text.contains('%') {
        return Err(HostError::Zone);
    }
    let address: Ipv6Addr = text.parse().map_err(|_| HostError::Ipv6)?;
    Ok(IpAddr::V6(address).into())
}

fn check_name(name: &str) -> Result<(), HostError> {
    if name.is_empty() {
        return Err(HostError::Empty);
    }
    if name.len() > NAME_MAX {
        return Err(HostError::TooLong);
    }
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    if !name.bytes().all(allowed) {
        return Err(HostError::Character);
    }
    for label in name.split('.') {
        if label.is_empty() {
            return Err(HostError::EmptyLabel);
        }
        if label.len() > LABEL_MAX {
            return Err(HostError::TooLong);
        }
    }
    Ok(())
}

/// Whether resolvers may read the name as an IPv4 address: the rule of the WHATWG URL standard, which covers all that
/// `inet_aton` takes.
fn ends_in_number(name: &str) -> bool {
    let last = name.rsplit('.').next().unwrap_or(name);
    let hex = last.strip_prefix("0x").is_some_and(|rest| rest.bytes().all(|byte| byte.is_ascii_hexdigit()));
    hex || last.bytes().all(|byte| byte.is_ascii_digit())
}

/// One to four parts in decimal, octal (`0…`) or hexadecimal (`0x…`); the last part fills the bytes that are left.
fn parse_v4(name: &str) -> Option<Ipv4Addr> {
    let parts: Vec<u64> = name.split('.').map(parse_v4_part).collect::<Option<_>>()?;
    let (last, front) = parts.split_last()?;
    if front.len() > 3 || front.iter().any(|part| *part > 255) {
        return None;
    }
    let bytes_left = 4 - front.len();
    if *last >= 1 << (8 * bytes_left) {
        return None;
    }
    let high = front.iter().fold(0, |value, part| value << 8 | part);
    u32::try_from(high << (8 * bytes_left) | last).ok().map(Ipv4Addr::from)
}

fn parse_v4_part(part: &str) -> Option<u64> {
    let (digits, radix) = if let Some(rest) = part.strip_prefix("0x") {
        (rest, 16)
    } else if part.len() > 1 && part.starts_with('0') {
        (&part[1..], 8)
    } else {
        (part, 10)
    };
    let digits_only = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    digits_only
        .then(|| u64::from_str_radix(digits, radix).ok())
        .flatten()
        .filter(|value| *value <= u32::MAX.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> Host {
        Host::Address(text.parse().unwrap())
    }

    #[test]
    fn every_spelling_of_an_address_is_that_address() {
        let loopback = [
            "127.0.0.1",
            "127.1",
            "127.0.1",
            "2130706433",
            "0x7f000001",
            "0x7f.1",
            "0177.0.0.1",
            "017700000001",
        ];
        for text in
            loopback.into_iter().chain(["0X7F.0.0.0x1", "127.0.0.1.", "[::ffff:127.0.0.1]", "::ffff:7f00:1"])
        {
            assert_eq!(Host::parse(text), Ok(address("127.0.0.1")), "{text}");
        }
        assert_eq!(Host::parse("0"), Ok(address("0.0.0.0")));
        assert_eq!(Host::parse("10.1"), Ok(address("10.0.0.1")));
        assert_eq!(Host::parse("[::1]"), Ok(address("::1")));
        assert_eq!(Host::parse("0:0:0:0:0:0:0:1"), Ok(address("::1")));
        assert_eq!(Host::parse("64:ff9b::10.0.0.1"), Ok(address("64:ff9b::a00:1")));
    }

    #[test]
    fn names_are_compared_in_lower_case_and_without_one_final_dot() {
        assert_eq!(Host::parse("Example.COM."), Ok(Host::Name("example.com".to_owned())));
        assert_eq!(Host::parse("a_b-c.example"), Ok(Host::Name("a_b-c.example".to_owned())));
        assert_eq!(Host::parse("0xg.example"), Ok(Host::Name("0xg.example".to_owned())));
    }

    #[test]
    fn what_is_not_a_host_is_refused_with_its_reason() {
        let long_name = format!("{}.com", "a.".repeat(130));
        let long_label = format!("{}.com", "a".repeat(64));
        let cases = [
            ("", HostError::Empty),
            (".", HostError::Empty),
            ("example.com..", HostError::EmptyLabel),
            (".example.com", HostError::EmptyLabel),
            ("a..b", HostError::EmptyLabel),
            ("user@example.com", HostError::Character),
            ("example.com\0.evil.com", HostError::Character),
            ("example.com\r\n", HostError::Character),
            ("example com", HostError::Character),
            ("example%2ecom", HostError::Character),
            ("exämple.com", HostError::Character),
            ("１２７.0.0.1", HostError::Character),
            ("*.example.com", HostError::Character),
            ("example.com/x", HostError::Character),
            ("1.2.3.4.5", HostError::Number),
            ("256.1.1.1", HostError::Number),
            ("08.1", HostError::Number),
            ("0x", HostError::Number),
            ("4294967296", HostError::Number),
            ("example.0x1", HostError::Number),
            ("1.2.3.+4", HostError::Character),
            ("fe80::1%eth0", HostError::Zone),
            ("[fe80::1%25eth0]", HostError::Zone),
            ("[example.com]", HostError::Ipv6),
            ("::ffff:999.0.0.1", HostError::Ipv6),
            (&long_name, HostError::TooLong),
            (&long_label, HostError::TooLong),
        ];
        for (text, error) in cases {
            assert_eq!(Host::parse(text), Err(error), "{text:?}");
        }
    }

    #[test]
    fn a_port_is_split_off_only_where_it_is_one() {
        assert_eq!(Host::parse_with_port("a.com:443", None), Some(("a.com", 443)));
        assert_eq!(Host::parse_with_port("a.com", Some(80)), Some(("a.com", 80)));
        assert_eq!(Host::parse_with_port("[::1]:8080", None), Some(("[::1]", 8080)));
        assert_eq!(Host::parse_with_port("[::1]", Some(80)), Some(("[::1]", 80)));
        for text in [
            "a.com",
            "a.com:",
            "a.com:0",
            "a.com:65536",
            "a.com:+80",
            "a.com: 80",
            ":80",
            "[::1]80",
            "a.com:00000080",
        ] {
            assert_eq!(Host::parse_with_port(text, None), None, "{text}");
        }
    }
}
