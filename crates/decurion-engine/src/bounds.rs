//! The `sandbox` of agents' definitions. Takes what the definitions from the root to a run forbid, gives that as rules for
//! its calls and as rules for hosts. All of it tightens: nothing here allows what the session does not.

use decurion_egress::HostRules;
use decurion_egress::rules::Pattern;
use decurion_protocol::permission::RuleSource;
use decurion_protocol::{AgentSandbox, OwnRules, Rule};
use serde_json::Value;

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

/// Why an address may not be fetched, if the definitions do not list its host.
pub fn refuses_fetch(sandbox: &AgentSandbox, host: &str, input: &Value) -> Option<String> {
    let url = input.get("url").and_then(Value::as_str).unwrap_or_default();
    let authority = url.split_once("://").map_or("", |(_, rest)| rest).split(['/', '?', '#']).next();
    let port = authority.and_then(|text| text.rsplit_once(':')?.1.parse().ok()).unwrap_or(443);
    let host = decurion_egress::Host::parse(host).ok();
    let listed = |list: &Vec<String>| {
        let mut patterns = list.iter().filter_map(|text| Pattern::parse(text).ok());
        host.as_ref().is_some_and(|host| patterns.any(|pattern| pattern.matches(host, port)))
    };
    let missing = sandbox.allowed_hosts.iter().find(|list| !listed(list))?;
    Some(format!("the definition of this agent lets it reach only: {}", missing.join(", ")))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn hosts_are_those_that_every_definition_lists() {
        let parent = AgentSandbox {
            allowed_hosts: vec![vec!["*.example.com".to_owned(), "a.org:8443".to_owned()]],
            ..AgentSandbox::default()
        };
        let child =
            AgentSandbox { allowed_hosts: vec![vec!["b.example.com".to_owned()]], ..AgentSandbox::default() };
        let refused = |sandbox: &AgentSandbox, url: &str, host: &str| {
            refuses_fetch(sandbox, host, &json!({"url": url})).is_some()
        };
        assert!(!refused(&parent, "https://a.example.com/x", "a.example.com"));
        assert!(!refused(&parent, "https://a.org:8443/x", "a.org"));
        assert!(refused(&parent, "https://a.org/x", "a.org"));
        let both = child.within(&parent);
        assert!(!refused(&both, "https://b.example.com/", "b.example.com"));
        assert!(refused(&both, "https://a.example.com/", "a.example.com"));
        let widened =
            AgentSandbox { allowed_hosts: vec![vec!["evil.com".to_owned()]], ..AgentSandbox::default() };
        assert!(refused(&widened.within(&parent), "https://evil.com/", "evil.com"));
    }
}
