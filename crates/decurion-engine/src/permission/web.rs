//! Rules about hosts. Takes an address; gives the host it would reach, or why that cannot be told, and whether a rule names
//! that host, its address or its network.

use std::net::IpAddr;

use decurion_tools::reach::{self, Reach};

/// An address taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    /// The host in small letters, without a final dot; an IPv4 address in its usual form.
    pub host: String,
    /// Why nothing may allow it by its host: it is written so as to be mistaken.
    pub odd: Option<&'static str>,
}

/// Takes an address apart.
pub(crate) fn address(url: &str) -> Result<Address, &'static str> {
    if url.contains(|c: char| c.is_control() || c.is_whitespace() || c == '\\') || url.len() > 8192 {
        return Err("the address has characters that do not belong there");
    }
    let (scheme, rest) = url.split_once("://").ok_or("the address is not one of the web")?;
    if !scheme.eq_ignore_ascii_case("http") && !scheme.eq_ignore_ascii_case("https") {
        return Err("the address is not one of the web");
    }
    let authority = rest.split(['/', '?', '#']).next().unwrap_or("");
    let mut odd = None;
    let host = match authority.rsplit_once('@') {
        Some((_, host)) => {
            odd = Some("the address carries a name or password before its host");
            host
        }
        None => authority,
    };
    let host = if host.starts_with('[') {
        host.split_inclusive(']').next().unwrap_or(host)
    } else {
        match host.split_once(':') {
            Some((name, port)) => {
                if port.parse::<u16>().is_err() {
                    return Err("the address has no proper port");
                }
                name
            }
            None => host,
        }
    };
    if host.is_empty() {
        return Err("the address has no host");
    }
    let mut lower = host.to_lowercase();
    if !lower.starts_with('[')
        && !lower.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte))
    {
        return Err("the host has characters that deceive");
    }
    if let Some(plain) = lower.strip_suffix('.') {
        odd = Some("the host ends in a dot");
        lower = plain.to_owned();
    }
    if lower.starts_with('.') || lower.contains("..") {
        return Err("the host is not a proper name");
    }
    if let Some(number) = ipv4(&lower) {
        if number != lower {
            odd = Some("the host is a number in disguise");
        }
        lower = number;
    }
    Ok(Address { host: lower, odd })
}

/// An IPv4 address in any of the forms that resolvers accept, as four decimal numbers.
fn ipv4(host: &str) -> Option<String> {
    let parts: Vec<u64> = host.split('.').map(number).collect::<Option<_>>()?;
    let (last, first) = parts.split_last()?;
    if first.len() > 3 || first.iter().any(|part| *part > 255) {
        return None;
    }
    let room = 4 - first.len();
    if *last >= 1u64 << (8 * room) {
        return None;
    }
    let mut address = *last;
    for (index, part) in first.iter().enumerate() {
        address |= part << (8 * (3 - index));
    }
    Some(format!("{}.{}.{}.{}", address >> 24 & 255, address >> 16 & 255, address >> 8 & 255, address & 255))
}

fn number(text: &str) -> Option<u64> {
    if let Some(hex) = text.strip_prefix("0x") {
        return u64::from_str_radix(hex, 16).ok();
    }
    if text.len() > 1 && text.starts_with('0') {
        return u64::from_str_radix(text, 8).ok();
    }
    if text.bytes().all(|byte| byte.is_ascii_digit()) { text.parse().ok() } else { None }
}

/// The host a specifier names.
fn named(specifier: &str) -> String {
    let text = specifier.strip_prefix("domain:").unwrap_or(specifier).trim();
    let text = text.split_once("://").map_or(text, |(_, rest)| rest);
    let host = text.split(['/', ':', '?']).next().unwrap_or(text);
    host.trim_end_matches('.').to_lowercase()
}

/// An address or a network that a specifier names: `127.0.0.1`, `[::1]`, `10.0.0.0/8`.
fn network(specifier: &str) -> Option<(IpAddr, u8)> {
    let text = specifier.strip_prefix("domain:").unwrap_or(specifier).trim();
    let bits_of = |address: &IpAddr| if address.is_ipv4() { 32 } else { 128 };
    let Some((address, bits)) = text.split_once('/') else {
        return reach::literal(text).map(|address| (address, bits_of(&address)));
    };
    let address = reach::literal(address)?;
    // What is wider names no network.
    let bits: u8 = bits.parse().ok().filter(|bits| (7..=bits_of(&address)).contains(bits))?;
    Some((address, bits))
}

/// Whether a specifier names an address, or a network that it is in.
pub(crate) fn covers_address(specifier: &str, address: IpAddr, forbids: bool) -> bool {
    let address = reach::plain(address);
    // This machine has many addresses; one that is forbidden is all of them.
    let own = forbids && reach::of(address) == Reach::Own;
    if own && reach::is_local_name(&named(specifier)) {
        return true;
    }
    let Some((network, bits)) = network(specifier) else { return false };
    let same = match (network, address) {
        (IpAddr::V4(network), IpAddr::V4(address)) => {
            (network.to_bits() ^ address.to_bits()).leading_zeros() >= u32::from(bits)
        }
        (IpAddr::V6(network), IpAddr::V6(address)) => {
            (network.to_bits() ^ address.to_bits()).leading_zeros() >= u32::from(bits)
        }
        _ => false,
    };
    same || (own && reach::of(network) == Reach::Own)
}

/// What a host reaches, as far as its name says.
pub(crate) fn reach_of(host: &str) -> Reach {
    match reach::literal(host) {
        Some(address) => reach::of(address),
        None if reach::is_local_name(host) => Reach::Own,
        None => Reach::Public,
    }
}

/// Whether a specifier names this very host, rather than many.
pub(crate) fn names(specifier: &str, host: &str) -> bool {
    let is_many = specifier.contains('*') && !named(specifier).ends_with(".localhost");
    !is_many && covers(specifier, host, false)
}

/// Whether a specifier covers a host. One that forbids covers what is under it too.
pub(crate) fn covers(specifier: &str, host: &str, forbids: bool) -> bool {
    if let Some(address) = reach::literal(host)
        && covers_address(specifier, address, forbids)
    {
        return true;
    }
    // A name of this machine is another name of its addresses.
    let own = forbids && reach::is_local_name(host);
    if own && network(specifier).is_some_and(|(address, _)| reach::of(address) == Reach::Own) {
        return true;
    }
    let named = named(specifier);
    if named.is_empty() {
        return forbids;
    }
    let under =
        |parent: &str| host.strip_suffix(parent).is_some_and(|rest| rest.ends_with('.') && rest.len() > 1);
    if let Some(parent) = named.strip_prefix("*.") {
        return under(parent) || (forbids && host == parent);
    }
    if named == "*" {
        return true;
    }
    if named.contains('*') {
        return forbids && super::glob::text_matches(&named, host);
    }
    host == named || (forbids && (under(&named) || ipv4(&named).is_some_and(|number| number == host)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_found_whatever_stands_around_them() {
        for (url, host) in [
            ("https://example.com/x", "example.com"),
            ("HTTPS://EXAMPLE.COM:443/x", "example.com"),
            ("https://example.com@evil.org/", "evil.org"),
            ("https://example.com:80@evil.org/", "evil.org"),
            ("https://evil.org/#example.com", "evil.org"),
            ("https://evil.org?example.com", "evil.org"),
            ("http://2130706433/", "127.0.0.1"),
            ("http://0x7f.1/", "127.0.0.1"),
            ("http://example.com./", "example.com"),
        ] {
            assert_eq!(address(url).unwrap().host, host, "{url}");
        }
        for url in [
            "file:///etc/passwd",
            "javascript:x",
            "https://",
            "https://ex\u{430}mple.com",
            "https://a\\@b.org",
            "https://a%2eb/",
        ] {
            assert!(address(url).is_err(), "{url}");
        }
    }

    #[test]
    fn a_domain_is_itself_and_nothing_that_looks_like_it() {
        assert!(covers("domain:example.com", "example.com", false));
        for host in ["example.com.evil.org", "notexample.com", "a.example.com", "example.co"] {
            assert!(!covers("domain:example.com", host, false), "{host}");
        }
        assert!(covers("domain:*.example.com", "a.example.com", false));
        assert!(!covers("domain:*.example.com", "example.com", false));
        assert!(covers("domain:example.com", "a.example.com", true));
    }
}
