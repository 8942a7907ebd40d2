//! The rules again, at the moment a file is opened. Takes the path that holds no links, gives the refusal
//! if a deny rule covers it, or if it is not the one decided about and would not be allowed by itself: a link cannot
//! lead around a rule, nor be changed between the decision and the use.

use std::net::IpAddr;
use std::sync::Arc;

use camino::Utf8Path;
use decurion_protocol::{Access, Intent, Mode, RuleSet, RunSpec, Verdict};
use decurion_tools::{AddressRule, PathRules, Surroundings};
use serde_json::Value;

use crate::confine::Confinement;
use crate::permission::{Around, Checkouts, Policy, UserFiles, address_rule, decide, names_host};
use crate::symlinks::Symlinks;

/// The rules of one call that was allowed.
pub struct OpenRules {
    /// All rules, as they were asked.
    policy: Policy,
    /// The deny rules alone, which a search asks once per file; none where there are none.
    deny: Option<Policy>,
    /// What was decided about, with the real paths.
    decided: Intent,
    /// Where the run may write at all.
    bounds: Option<Confinement>,
}

impl OpenRules {
    /// The rules of a call that was allowed to do this.
    pub fn new(policy: Policy, decided: Intent) -> Self {
        let deny = RuleSet { deny: policy.rules.deny.clone(), ..RuleSet::default() };
        // A mode that allows everything else leaves just the deny rules to speak.
        let only_deny = || Policy::new(Mode::BypassPermissions, Arc::new(deny), policy.around.clone());
        let deny = (!policy.rules.deny.is_empty()).then(only_deny);
        Self { policy, deny, decided, bounds: None }
    }

    /// The same for a run that may write only there.
    pub fn confined(self, bounds: Option<Confinement>) -> Self {
        Self { bounds, ..self }
    }
}

impl PathRules for OpenRules {
    fn refuses(&self, path: &Utf8Path, access: Access) -> Option<String> {
        if access == Access::Write
            && let Some(reason) = self.bounds.as_ref().and_then(|bounds| bounds.refuses_write(path))
        {
            return Some(reason);
        }
        let tool = match access {
            Access::Read => "Read",
            Access::Write => "Edit",
        };
        let intent = Intent::titled("").touching(path, access);
        let ask = |policy| decide(policy, tool, &Value::Null, &intent);
        if let Some(denied) = self.deny.as_ref().map(ask).filter(|decision| decision.verdict == Verdict::Deny)
        {
            return Some(denied.reason);
        }
        // A search reads all that lies below the place it was allowed to read.
        let decided = |there: &Utf8Path| path == there || (access == Access::Read && path.starts_with(there));
        if self.decided.touches.iter().any(|touch| decided(&touch.path)) {
            return None;
        }
        let decision = ask(&self.policy);
        let reason = || format!("it leads to {path}, which was not decided about: {}", decision.reason);
        (decision.verdict != Verdict::Allow).then(reason)
    }

    fn decided(&self, path: &Utf8Path) -> bool {
        self.decided.touches.iter().any(|touch| touch.path == path)
    }

    fn address(&self, address: IpAddr) -> AddressRule {
        address_rule(&self.policy.rules, address)
    }

    fn names_host(&self, host: &str) -> bool {
        names_host(&self.policy.rules, host)
    }
}

/// Where rules count from, for a call that happens here in a run that was started there. Looks at the disk.
pub fn around(here: &Surroundings, root: &Utf8Path, spec: &RunSpec, user_files: &Arc<UserFiles>) -> Around {
    let worktree = spec.worktree.iter();
    let known = worktree.flat_map(|worktree| std::iter::once(&worktree.path).chain(worktree.origins()));
    Around {
        checkouts: Checkouts::of(root, known.cloned()),
        cwd: here.cwd.clone(),
        root: root.to_owned(),
        directories: here.directories.clone(),
        home: here.home.clone(),
        user_files: Arc::clone(user_files),
        checkout: Confinement::of(spec),
        trails: Symlinks::on_disk(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use decurion_protocol::permission::RuleSource;

    fn rules(mode: Mode, deny: &[&str]) -> OpenRules {
        let rule = |text: &&str| decurion_protocol::Rule::parse(text, RuleSource::Command).unwrap();
        let set = RuleSet { deny: deny.iter().map(rule).collect(), ..RuleSet::default() };
        let around = Around {
            cwd: "/project".into(),
            root: "/project".into(),
            directories: vec!["/project".into()],
            home: None,
            user_files: Arc::default(),
            checkout: None,
            checkouts: Checkouts::default(),
            trails: Symlinks::default(),
        };
        let decided = Intent::titled("").touching("/project/notes.txt", Access::Write);
        OpenRules::new(Policy::new(mode, Arc::new(set), around), decided)
    }

    /// Whether a file may be opened so.
    fn opens(rules: &OpenRules, path: &str, access: Access) -> bool {
        rules.refuses(path.into(), access).is_none()
    }

    #[test]
    fn a_write_goes_where_it_was_decided_or_where_it_would_be_allowed() {
        let edits = rules(Mode::AcceptEdits, &["Edit(secret/**)"]);
        assert!(opens(&edits, "/project/notes.txt", Access::Write));
        assert!(opens(&edits, "/project/other.txt", Access::Write));
        assert!(!opens(&edits, "/project/.git/hooks/pre-commit", Access::Write), "a protected path");
        assert!(!opens(&edits, "/etc/passwd", Access::Write), "outside");
        assert!(!opens(&edits, "/project/secret/key", Access::Write), "a deny rule");
        assert!(!opens(&edits, "/etc/passwd", Access::Read), "outside, and nobody decided about it");
        assert!(opens(&edits, "/project/other.txt", Access::Read));
        let asked = rules(Mode::Default, &[]);
        assert!(opens(&asked, "/project/notes.txt", Access::Write), "a person allowed this one");
        assert!(!opens(&asked, "/project/other.txt", Access::Write), "and not that one");
        let elsewhere = Intent::titled("").touching("/data/set", Access::Read);
        let search = OpenRules { decided: elsewhere, ..rules(Mode::Default, &["Read(key)"]) };
        assert!(opens(&search, "/data/set/a/b", Access::Read), "a person allowed the folder");
        assert!(!opens(&search, "/data/set/key", Access::Read), "a deny rule");
        assert!(!opens(&search, "/data/settings", Access::Read), "and not that one");
        assert!(!opens(&search, "/data/set/a", Access::Write), "and only to read");
    }
}
