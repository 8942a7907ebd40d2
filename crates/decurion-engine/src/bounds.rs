//! The `sandbox` of agents' definitions. Takes what the definitions from the root to a run forbid, gives that as rules for
//! its calls and as rules for hosts. All of it tightens: nothing here allows what the session does not.

use decurion_egress::rules::Pattern;
use decurion_egress::{Host, HostRules};
use decurion_protocol::permission::RuleSource;
use decurion_protocol::{AgentSandbox, OwnRules, Rule};

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

/// The hosts of the session's rules that are left.
pub fn narrow(hosts: HostRules, sandbox: &AgentSandbox) -> HostRules {
    if sandbox.no_network {
        return HostRules::closed();
    }
    let lists = sandbox.allowed_hosts.iter();
    lists.fold(hosts, |hosts, list| match HostRules::only(list.iter().map(String::as_str)) {
        Ok(only) => only.narrowed_by(&hosts),
        Err(_) => HostRules::closed(),
    })
}

/// Why no command runs without a sandbox: nothing else holds it to what the definitions forbid.
pub fn refuses_outside(sandbox: &AgentSandbox) -> Option<String> {
    let reason = "the definition of this agent limits its sandbox, and this command would run without one";
    (!sandbox.is_empty()).then(|| reason.to_owned())
}

/// Whether commands have a network: only the proxy holds them to lists of hosts.
pub fn may_connect(sandbox: &AgentSandbox, through_proxy: bool) -> bool {
    let lists_hosts = !sandbox.allowed_hosts.is_empty() || !sandbox.denied_hosts.is_empty();
    !sandbox.no_network && (through_proxy || !lists_hosts)
}

/// Why a host may not be fetched from, if one of the definitions does not list it. Without a port, it is enough if it is
/// listed with any.
pub fn refuses_fetch(sandbox: &AgentSandbox, host: &str, port: Option<u16>) -> Option<String> {
    let host = Host::parse(host).ok();
    let matches = |pattern: Pattern| {
        let port = port.or(pattern.port()).unwrap_or_default();
        host.as_ref().is_some_and(|host| pattern.matches(host, port))
    };
    let listed = |list: &&Vec<String>| list.iter().filter_map(|text| Pattern::parse(text).ok()).any(matches);
    let missing = sandbox.allowed_hosts.iter().find(|list| !listed(list))?;
    Some(format!("the definition of this agent lets it reach only: {}", missing.join(", ")))
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
        let refused = |sandbox: &AgentSandbox, host: &str, port: u16| {
            refuses_fetch(sandbox, host, Some(port)).is_some()
        };
        assert!(!refused(&parent, "a.example.com", 443));
        assert!(!refused(&parent, "a.org", 8443));
        assert!(refused(&parent, "a.org", 443));
        assert!(refuses_fetch(&parent, "a.org", None).is_none());
        let both = child.within(&parent);
        assert!(!refused(&both, "b.example.com", 443));
        assert!(refused(&both, "a.example.com", 443));
        assert!(refuses_fetch(&both, "a.example.com", None).is_some());
        let widened =
            AgentSandbox { allowed_hosts: vec![vec!["evil.com".to_owned()]], ..AgentSandbox::default() };
        assert!(refused(&widened.within(&parent), "evil.com", 443));
    }
}
