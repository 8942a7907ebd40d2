//! Which hosts a client may reach. Takes patterns from settings, gives for each host whether it is allowed, denied or
//! unknown, and for each address whether it may be connected to.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use crate::address::{AddressRange, embedded_v4, special_kind};
use crate::host::{Host, HostError, parse_port};

/// What a client may reach. Denied patterns beat allowed ones.
///
/// Rules narrowed by others keep both: a host is allowed if each of them allows it, and denied if one denies it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostRules {
    /// Shared: many programs have the same rules.
    layers: Vec<Arc<RuleLayer>>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct RuleLayer {
    allowed: Vec<Pattern>,
    denied: Vec<DenyPattern>,
    open: bool,
    /// For a list that no answer adds to: what makes it one, as the beginning of a sentence.
    strict: Option<String>,
    /// For a list that allows nothing: why, as a sentence.
    closed: Option<String>,
}

/// A pattern that denies hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
struct DenyPattern {
    pattern: Pattern,
    /// What it was made from, for people.
    by: String,
}

/// What rules say about a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// A pattern allows it.
    Listed,
    /// No pattern is about it, and the rules are open.
    Open,
    /// A pattern denies it.
    Denied {
        /// What denies it: "the rule WebFetch(domain:example.com)".
        by: String,
    },
    /// No pattern is about it: a person is asked.
    Unknown,
    /// A list that no answer adds to does not have it.
    Outside {
        /// What makes it such a list: "the definition of agent deployer".
        by: String,
        allowed: String,
    },
    /// No host is allowed, for this reason.
    Closed { why: String },
    /// It is an address that is not listed. No question is asked, because an address does not show whose it is.
    UnlistedAddress,
}

/// Why an address that a name led to may not be connected to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AddressFault {
    /// A pattern denies it.
    Denied {
        /// What denies it: "the rule WebFetch(domain:example.com)".
        by: String,
    },
    /// It is not on the public network and not listed.
    Special {
        /// What it is: "private", "loopback", …
        kind: &'static str,
    },
}

/// A pattern that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot use host pattern {pattern:?}: {reason}")]
pub struct PatternError {
    /// The pattern as it was written.
    pub pattern: String,
    /// What is wrong with it.
    pub reason: PatternFault,
}

/// What is wrong with a pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PatternFault {
    /// The host in it is none.
    #[error("{0}")]
    Host(#[from] HostError),
    /// The part after the colon is no port.
    #[error("the port is not a number from 1 to 65535")]
    Port,
    /// `*` elsewhere than as the first label.
    #[error("'*' is only allowed as the first label, as in *.example.com")]
    Wildcard,
    /// It is the address of a page.
    #[error("this is the address of a page; name its host alone, as in example.com")]
    Url,
    #[error("'*' alone would be every host; name hosts, or names below one as in *.example.com")]
    All,
    /// The part after the slash is no prefix length, or the address has bits after it.
    #[error("the address range is malformed")]
    Range,
}

impl HostRules {
    /// Rules of these patterns: `example.com`, `*.example.com` (names below it, not itself), `example.com:8443` (this
    /// port only), an address, or a range such as `10.0.0.0/8`. Without a port, a pattern covers all ports.
    ///
    /// If `open` is true, names that no pattern covers are allowed. Addresses outside of the public network, and
    /// addresses in place of a name, must be listed even then.
    pub fn new<'a>(
        allowed: impl IntoIterator<Item = &'a str>,
        denied: impl IntoIterator<Item = &'a str>,
        open: bool,
    ) -> Result<Self, PatternError> {
        let allowed = allowed.into_iter().map(Pattern::parse).collect::<Result<_, _>>()?;
        let rules = Self { layers: vec![Arc::new(RuleLayer { allowed, open, ..RuleLayer::default() })] };
        let by_setting = |pattern: &str| format!("\"{pattern}\" in sandbox.network.deniedDomains");
        denied.into_iter().try_fold(rules, |rules, pattern| rules.denying(pattern, by_setting(pattern)))
    }

    /// The same rules, which deny this pattern too. `by` is what denies it, as part of a sentence.
    pub fn denying(mut self, pattern: &str, by: impl Into<String>) -> Result<Self, PatternError> {
        let denial = DenyPattern { pattern: Pattern::parse(pattern)?, by: by.into() };
        match self.layers.first_mut() {
            Some(layer) => Arc::make_mut(layer).denied.push(denial),
            None => self.layers.push(Arc::new(RuleLayer { denied: vec![denial], ..RuleLayer::default() })),
        }
        Ok(self)
    }

    /// Rules that allow what these patterns list, and no person is asked about other hosts. `by` is what lists them,
    /// such as "the definition of agent deployer".
    pub fn only<'a>(
        by: impl Into<String>,
        allowed: impl IntoIterator<Item = &'a str>,
    ) -> Result<Self, PatternError> {
        let allowed = allowed.into_iter().map(Pattern::parse).collect::<Result<_, _>>()?;
        Ok(Self {
            layers: vec![Arc::new(RuleLayer { allowed, strict: Some(by.into()), ..RuleLayer::default() })],
        })
    }

    /// Rules that allow nothing, for this reason, and no person is asked.
    pub fn closed(why: impl Into<String>) -> Self {
        Self { layers: vec![Arc::new(RuleLayer { closed: Some(why.into()), ..RuleLayer::default() })] }
    }

    /// Whether they allow nothing, even if a person says yes.
    pub fn is_closed(&self) -> bool {
        self.layers.iter().any(|layer| layer.closed.is_some())
    }

    /// These rules within the bounds of a parent's: what both allow.
    #[must_use]
    pub fn narrowed_by(&self, parent: &Self) -> Self {
        let mut layers = parent.layers.clone();
        layers.extend(self.layers.iter().filter(|layer| !parent.layers.contains(layer)).cloned());
        Self { layers }
    }

    /// Whether every name that is not denied is allowed.
    pub fn is_open(&self) -> bool {
        self.layers.iter().all(|layer| layer.open)
    }

    fn layers(&self) -> impl Iterator<Item = &RuleLayer> {
        self.layers.iter().map(Arc::as_ref)
    }

    /// What the rules say about a host, before it is looked up.
    pub fn decide(&self, host: &Host, port: u16) -> Decision {
        if let Some(why) = self.layers.iter().find_map(|layer| layer.closed.clone()) {
            return Decision::Closed { why };
        }
        if let Some(by) = self.denial(host, port) {
            return Decision::Denied { by };
        }
        let listed = |layer: &RuleLayer| layer.allowed.iter().any(|pattern| pattern.matches(host, port));
        let outside = |layer: &&RuleLayer| layer.strict.is_some() && !listed(layer);
        if let Some(RuleLayer { strict: Some(by), allowed, .. }) = self.layers().find(outside) {
            let allowed = allowed.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
            return Decision::Outside { by: by.clone(), allowed };
        }
        if let Some(address) = host.address() {
            return if self.lists(address, port) { Decision::Listed } else { Decision::UnlistedAddress };
        }
        if self.layers().all(listed) {
            return Decision::Listed;
        }
        if self.layers().all(|layer| layer.open || listed(layer)) {
            return Decision::Open;
        }
        Decision::Unknown
    }

    /// Whether an address that a host led to may be connected to.
    pub fn vet(&self, address: IpAddr, port: u16) -> Result<(), AddressFault> {
        let address = address.to_canonical();
        let carried = match address {
            IpAddr::V6(address) => embedded_v4(address).map(IpAddr::V4),
            IpAddr::V4(_) => None,
        };
        for address in [Some(address), carried].into_iter().flatten() {
            if let Some(by) = self.denial(&Host::Address(address), port) {
                return Err(AddressFault::Denied { by });
            }
        }
        match special_kind(address) {
            Some(kind) if !self.lists(address, port) => Err(AddressFault::Special { kind }),
            _ => Ok(()),
        }
    }

    fn denial(&self, host: &Host, port: u16) -> Option<String> {
        let mut denied = self.layers.iter().flat_map(|layer| &layer.denied);
        denied.find(|denial| denial.pattern.matches(host, port)).map(|denial| denial.by.clone())
    }

    fn lists(&self, address: IpAddr, port: u16) -> bool {
        let host = Host::Address(address);
        self.layers.iter().all(|layer| layer.allowed.iter().any(|pattern| pattern.matches(&host, port)))
    }
}

/// One pattern of hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    hosts: HostPattern,
    /// All ports, if none.
    port: Option<u16>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum HostPattern {
    Name(String),
    /// Names that end in this, which begins with a dot.
    Below(String),
    Addresses(AddressRange),
}

impl Pattern {
    /// Reads a pattern as [`HostRules::new`] describes it.
    pub fn parse(text: &str) -> Result<Self, PatternError> {
        Self::read(text).map_err(|reason| PatternError { pattern: text.to_owned(), reason })
    }

    fn read(text: &str) -> Result<Self, PatternFault> {
        if text.contains("://") {
            return Err(PatternFault::Url);
        }
        if text == "*" {
            return Err(PatternFault::All);
        }
        if let Some((host, _)) = text.split_once('/') {
            let is_address = host.trim_matches(['[', ']']).parse::<IpAddr>().is_ok();
            if !is_address && host.contains(|letter: char| letter.is_ascii_alphabetic()) {
                return Err(PatternFault::Url);
            }
            let range = AddressRange::parse(text).ok_or(PatternFault::Range)?;
            return Ok(Self { hosts: HostPattern::Addresses(range), port: None });
        }
        let (host, port) = split_port(text)?;
        let below = host.strip_prefix("*.");
        if below.unwrap_or(host).contains('*') {
            return Err(PatternFault::Wildcard);
        }
        let hosts = match (below, Host::parse(below.unwrap_or(host))?) {
            (None, Host::Name(name)) => HostPattern::Name(name),
            (None, Host::Address(address)) => HostPattern::Addresses(AddressRange::single(address)),
            (Some(_), Host::Name(name)) => HostPattern::Below(format!(".{name}")),
            (Some(_), Host::Address(_)) => return Err(PatternFault::Wildcard),
        };
        Ok(Self { hosts, port })
    }

    /// Whether the pattern is about this host and port.
    pub fn matches(&self, host: &Host, port: u16) -> bool {
        let same_host = match (&self.hosts, host) {
            (HostPattern::Name(name), Host::Name(host)) => name == host,
            (HostPattern::Below(suffix), Host::Name(host)) => host.ends_with(suffix.as_str()),
            (HostPattern::Addresses(range), Host::Address(address)) => range.contains(*address),
            // The one name that always leads to this machine.
            (HostPattern::Name(name), Host::Address(address)) => name == "localhost" && address.is_loopback(),
            _ => false,
        };
        same_host && self.port.is_none_or(|own| own == port)
    }

    /// The only port that this pattern is about, if it names one.
    pub fn port(&self) -> Option<u16> {
        self.port
    }

    /// The name that this pattern is or lies below; none for addresses.
    pub fn base_name(&self) -> Option<&str> {
        match &self.hosts {
            HostPattern::Name(name) => Some(name),
            HostPattern::Below(suffix) => suffix.strip_prefix('.'),
            HostPattern::Addresses(_) => None,
        }
    }
}

/// IPv6 addresses have colons too: a port after one needs brackets.
fn split_port(text: &str) -> Result<(&str, Option<u16>), PatternFault> {
    if text.matches(':').count() > 1 && !text.starts_with('[') {
        return Ok((text, None));
    }
    match text.rsplit_once(':') {
        Some((host, digits)) if !text.ends_with(']') => {
            Ok((host, Some(parse_port(digits).ok_or(PatternFault::Port)?)))
        }
        _ => Ok((text, None)),
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.hosts {
            HostPattern::Name(name) => formatter.write_str(name)?,
            HostPattern::Below(suffix) => write!(formatter, "*{suffix}")?,
            HostPattern::Addresses(range) if self.port.is_some() && range.is_ipv6() => {
                write!(formatter, "[{range}]")?;
            }
            HostPattern::Addresses(range) => range.fmt(formatter)?,
        }
        self.port.map_or(Ok(()), |port| write!(formatter, ":{port}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(allowed: &[&str], denied: &[&str], open: bool) -> HostRules {
        HostRules::new(allowed.iter().copied(), denied.iter().copied(), open).unwrap()
    }

    fn decide(rules: &HostRules, host: &str, port: u16) -> Decision {
        rules.decide(&Host::parse(host).unwrap(), port)
    }

    #[test]
    fn a_pattern_matches_its_host_and_port_and_nothing_beside_it() {
        let cases = [
            ("example.com", "EXAMPLE.com.", 1, true),
            ("example.com", "a.example.com", 443, false),
            ("example.com", "notexample.com", 443, false),
            ("example.com", "example.com.evil.org", 443, false),
            ("*.example.com", "a.example.com", 443, true),
            ("*.example.com", "a.b.example.com", 443, true),
            ("*.example.com", "example.com", 443, false),
            ("*.example.com", "evilexample.com", 443, false),
            ("example.com:8443", "example.com", 8443, true),
            ("example.com:8443", "example.com", 443, false),
            ("*.example.com:8443", "a.example.com", 8443, true),
            ("10.0.0.0/8", "10.1.2.3", 80, true),
            ("10.0.0.0/8", "0xa010203", 80, true),
            ("10.0.0.0/8", "11.0.0.1", 80, false),
            ("10.0.0.1:80", "10.0.0.1", 81, false),
            ("[::1]:80", "::1", 80, true),
            ("::1", "0:0::1", 80, true),
            ("localhost:80", "127.0.0.1", 80, true),
            ("localhost:80", "::1", 80, true),
            ("localhost:80", "127.0.0.1", 81, false),
            ("localhost", "10.0.0.1", 80, false),
            ("example.com", "127.0.0.1", 80, false),
        ];
        for (pattern, host, port, expected) in cases {
            let decision = decide(&rules(&[pattern], &[], false), host, port);
            assert_eq!(decision == Decision::Listed, expected, "{pattern} {host}:{port}");
        }
    }

    #[test]
    fn a_listed_localhost_may_lead_to_this_machine_and_nothing_else_there() {
        let listed = rules(&["localhost:9443", "example.com"], &[], false);
        let this = IpAddr::from([127, 0, 0, 1]);
        assert_eq!(listed.vet(this, 9443), Ok(()));
        assert_eq!(listed.vet(this, 443), Err(AddressFault::Special { kind: "loopback" }));
        assert_eq!(
            listed.vet(IpAddr::from([10, 0, 0, 1]), 9443),
            Err(AddressFault::Special { kind: "private" })
        );
        let denied = rules(&["127.0.0.1"], &["localhost"], false);
        assert!(matches!(denied.vet(this, 80), Err(AddressFault::Denied { .. })));
    }

    #[test]
    fn a_pattern_that_cannot_be_read_says_what_is_wrong() {
        let cases = [
            ("*", PatternFault::All),
            ("a.*.com", PatternFault::Wildcard),
            ("**.com", PatternFault::Wildcard),
            ("*.10.0.0.1", PatternFault::Wildcard),
            ("example.com:0", PatternFault::Port),
            ("example.com:http", PatternFault::Port),
            ("10.0.0.1/8", PatternFault::Range),
            ("https://example.com", PatternFault::Url),
            ("example.com/v1", PatternFault::Url),
            ("example.com:8443/", PatternFault::Url),
            ("", PatternFault::Host(HostError::Empty)),
            ("exa mple.com", PatternFault::Host(HostError::Character)),
        ];
        for (pattern, reason) in cases {
            assert_eq!(Pattern::parse(pattern).unwrap_err().reason, reason, "{pattern}");
        }
    }

    #[test]
    fn patterns_are_shown_as_they_are_written() {
        for pattern in
            ["example.com", "*.example.com:8443", "10.0.0.0/8", "10.0.0.1:80", "[::1]:80", "fd00::/8"]
        {
            assert_eq!(Pattern::parse(pattern).unwrap().to_string(), pattern);
        }
    }

    #[test]
    fn denied_beats_allowed_and_open() {
        let rules = rules(&["*.example.com"], &["bad.example.com"], true);
        assert_eq!(decide(&rules, "good.example.com", 443), Decision::Listed);
        assert_eq!(decide(&rules, "other.org", 443), Decision::Open);
        let by = |by: &str| Decision::Denied { by: by.to_owned() };
        let denied = by("\"bad.example.com\" in sandbox.network.deniedDomains");
        assert_eq!(decide(&rules, "Bad.Example.com.", 443), denied);
        let rules = rules.denying("worse.example.com", "the rule A").unwrap();
        assert_eq!(decide(&rules, "worse.example.com", 443), by("the rule A"));
    }

    #[test]
    fn an_address_has_to_be_listed_even_if_the_rules_are_open() {
        assert_eq!(decide(&rules(&[], &[], true), "8.8.8.8", 443), Decision::UnlistedAddress);
        assert_eq!(decide(&rules(&["8.8.8.8"], &[], false), "8.8.8.8", 443), Decision::Listed);
    }

    #[test]
    fn a_child_reaches_only_what_its_parent_reaches_too() {
        let parent = rules(&["a.com", "b.com", "10.0.0.0/8"], &["x.b.com"], false);
        let child = rules(&["b.com", "c.com", "10.1.0.0/16", "*.b.com"], &[], true).narrowed_by(&parent);
        assert_eq!(decide(&child, "a.com", 443), Decision::Open);
        assert_eq!(decide(&child, "b.com", 443), Decision::Listed);
        assert_eq!(decide(&child, "c.com", 443), Decision::Unknown);
        assert!(matches!(decide(&child, "x.b.com", 443), Decision::Denied { .. }));
        assert_eq!(decide(&child, "10.1.0.1", 443), Decision::Listed);
        assert_eq!(decide(&child, "10.2.0.1", 443), Decision::UnlistedAddress);
        assert!(!child.is_open());
        assert_eq!(child.narrowed_by(&parent), child.narrowed_by(&child));
    }

    #[test]
    fn closed_rules_ask_no_person() {
        let closed = HostRules::closed("every host is denied");
        for rules in [closed.clone(), rules(&["a.com"], &[], true).narrowed_by(&closed)] {
            for host in ["a.com", "1.2.3.4"] {
                assert_eq!(
                    decide(&rules, host, 443),
                    Decision::Closed { why: "every host is denied".to_owned() }
                );
            }
        }
    }

    #[test]
    fn private_addresses_need_to_be_listed_themselves() {
        let open = rules(&["db.example.com"], &["9.9.9.9", "10.0.0.9"], true);
        let vet = |rules: &HostRules, text: &str| rules.vet(text.parse().unwrap(), 443);
        assert_eq!(vet(&open, "8.8.8.8"), Ok(()));
        assert_eq!(vet(&open, "10.0.0.1"), Err(AddressFault::Special { kind: "private" }));
        assert!(matches!(vet(&open, "9.9.9.9"), Err(AddressFault::Denied { .. })));
        assert!(matches!(vet(&open, "64:ff9b::9.9.9.9"), Err(AddressFault::Denied { .. })));
        let listed = rules(&["10.0.0.0/8"], &["10.0.0.9"], false);
        assert_eq!(vet(&listed, "10.0.0.1"), Ok(()));
        assert_eq!(vet(&listed, "::ffff:10.0.0.1"), Ok(()));
        assert_eq!(vet(&listed, "64:ff9b::10.0.0.1"), Err(AddressFault::Special { kind: "private" }));
        assert!(matches!(vet(&listed, "10.0.0.9"), Err(AddressFault::Denied { .. })));
        assert_eq!(vet(&listed, "192.168.0.1"), Err(AddressFault::Special { kind: "private" }));
    }
}
