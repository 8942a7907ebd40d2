//! The `sandbox` of agents' definitions. Takes what the definitions from the root to a run forbid, gives that as rules for
//! its calls and as rules for hosts. All of it tightens: nothing here allows what the session does not.

use decurion_egress::rules::Pattern;
use decurion_egress::{Host, HostRules};
use decurion_protocol::permission::RuleSource;
use decurion_protocol::{AgentSandbox, OwnRules, Rule, RunSpec};

/// What is forbidden, as rules: they hold for file tools and WebFetch as well as for commands.
pub fn rules(sandbox: &AgentSandbox) -> OwnRules {
    let rule = |tool: &str, specifier: Option<String>| Rule {
        tool: tool.to_owned(),
        specifier,
        source: RuleSource::Command,
    };
    let paths = |tool: &'static str, texts: &[String]| {
        texts.iter().map(|text| Rule::about_path(tool, text, RuleSource::Command)).collect::<Vec<_>>()
    };
    let mut deny = paths("Read", &sandbox.deny_read);
    deny.extend(paths("Edit", &sandbox.deny_read));
    deny.extend(paths("Edit", &sandbox.deny_write));
    deny.extend(sandbox.denied_hosts.iter().map(|host| rule("WebFetch", Some(format!("domain:{host}")))));
    deny.extend(sandbox.no_network.then(|| rule("WebFetch", None)));
    OwnRules { deny, ..OwnRules::default() }
}

/// What limits an agent, as the beginning of a sentence.
pub fn source(spec: &RunSpec) -> String {
    let above = if spec.depth > 1 { " or of an agent above it" } else { "" };
    format!("the definition of agent {}{above}", spec.definition.name)
}

/// The hosts of the session's rules that are left.
pub fn narrow(hosts: HostRules, spec: &RunSpec) -> HostRules {
    let (sandbox, source) = (&spec.definition.sandbox, source(spec));
    if sandbox.no_network {
        return HostRules::closed(format!("{source} allows no host (sandbox.network: none)"));
    }
    let lists = sandbox.allowed_hosts.iter();
    lists.fold(hosts, |hosts, list| match HostRules::only(&source, list.iter().map(String::as_str)) {
        Ok(only) => only.narrowed_by(&hosts),
        Err(error) => HostRules::closed(format!("{source} lists hosts that cannot be read: {error}")),
    })
}

/// What made a rule about hosts, if a definition did.
pub fn maker_of(spec: &RunSpec, rule: &Rule) -> Option<String> {
    let key = network_key(&spec.definition.sandbox, &rule.to_string())?;
    Some(format!("{} ({key})", source(spec)))
}

/// Why the commands of an agent have no network, if its definition is the reason.
pub fn closes_network(spec: &RunSpec, through_proxy: bool) -> Option<String> {
    let (sandbox, source) = (&spec.definition.sandbox, source(spec));
    if sandbox.no_network {
        return Some(format!("{source} gives commands no network (sandbox.network: none)"));
    }
    (!may_connect(sandbox, through_proxy)).then(|| {
        format!(
            "{source} lists hosts (sandbox.network), which only the proxy can enforce, and there is none here"
        )
    })
}

/// Why a definition denies what the rule denies that it made, if one did.
pub fn denial(spec: &RunSpec, rule: &str, reason: &str) -> Option<String> {
    let (sandbox, source) = (&spec.definition.sandbox, source(spec));
    if let Some(key) = network_key(sandbox, rule) {
        return Some(format!("{source} denies it ({key})"));
    }
    key_of(sandbox, rule).map(|key| format!("{reason} ({key} in {source})"))
}

/// The key of the definition that made this rule about hosts, if one did.
fn network_key(sandbox: &AgentSandbox, rule: &str) -> Option<&'static str> {
    if sandbox.no_network && rule == "WebFetch" {
        return Some("sandbox.network: none");
    }
    let mut hosts = sandbox.denied_hosts.iter();
    hosts.any(|host| rule == format!("WebFetch(domain:{host})")).then_some("sandbox.network.deniedDomains")
}

/// The key of the definition that made this rule about files, if one did.
pub fn key_of(sandbox: &AgentSandbox, rule: &str) -> Option<&'static str> {
    let made = |tool: &'static str, texts: &[String]| {
        texts.iter().any(|text| Rule::about_path(tool, text, RuleSource::Command).to_string() == rule)
    };
    let reads = made("Read", &sandbox.deny_read) || made("Edit", &sandbox.deny_read);
    let writes = || made("Edit", &sandbox.deny_write);
    reads
        .then_some("sandbox.filesystem.denyRead")
        .or_else(|| writes().then_some("sandbox.filesystem.denyWrite"))
}

/// Why no command runs without a sandbox: nothing else holds it to what the definitions forbid.
pub fn refuses_outside(spec: &RunSpec) -> Option<String> {
    let limited = !spec.definition.sandbox.is_empty();
    limited.then(|| format!("{} limits its sandbox, and this command would run without one", source(spec)))
}

/// Whether commands have a network: only the proxy holds them to lists of hosts.
pub fn may_connect(sandbox: &AgentSandbox, through_proxy: bool) -> bool {
    let lists_hosts = !sandbox.allowed_hosts.is_empty() || !sandbox.denied_hosts.is_empty();
    !sandbox.no_network && (through_proxy || !lists_hosts)
}

/// Why a host may not be fetched from, if one of the definitions does not list it. Without a port, it is enough if it is
/// listed with any.
pub fn refuses_fetch(spec: &RunSpec, host: &str, port: Option<u16>) -> Option<String> {
    let list = list_without(&spec.definition.sandbox, host, port)?;
    Some(format!("{} allows only {} (sandbox.network.allowedDomains)", source(spec), list.join(", ")))
}

/// The first list of hosts that does not have this one.
fn list_without<'a>(sandbox: &'a AgentSandbox, host: &str, port: Option<u16>) -> Option<&'a Vec<String>> {
    let host = Host::parse(host).ok();
    let matches = |pattern: Pattern| {
        let port = port.or(pattern.port()).unwrap_or_default();
        host.as_ref().is_some_and(|host| pattern.matches(host, port))
    };
    let listed = |list: &&Vec<String>| list.iter().filter_map(|text| Pattern::parse(text).ok()).any(matches);
    sandbox.allowed_hosts.iter().find(|list| !listed(list))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_those_that_every_definition_lists() {
        let parent = AgentSandbox {
            allowed_hosts: vec![vec!["*.example.com".to_owned(), "a.org:8443".to_owned()]],
            ..AgentSandbox::default()
        };
        let child =
            AgentSandbox { allowed_hosts: vec![vec!["b.example.com".to_owned()]], ..AgentSandbox::default() };
        let refused =
            |sandbox: &AgentSandbox, host: &str, port: u16| list_without(sandbox, host, Some(port)).is_some();
        assert!(!refused(&parent, "a.example.com", 443));
        assert!(!refused(&parent, "a.org", 8443));
        assert!(refused(&parent, "a.org", 443));
        assert!(list_without(&parent, "a.org", None).is_none());
        let both = child.within(&parent);
        assert!(!refused(&both, "b.example.com", 443));
        assert!(refused(&both, "a.example.com", 443));
        assert!(list_without(&both, "a.example.com", None).is_some());
        let widened =
            AgentSandbox { allowed_hosts: vec![vec!["evil.com".to_owned()]], ..AgentSandbox::default() };
        assert!(refused(&widened.within(&parent), "evil.com", 443));
    }
}
