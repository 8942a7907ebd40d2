//! Deny rules at the moment a file is opened. Takes the path that holds no links, gives the refusal if a
//! deny rule covers it, so that a link cannot lead around a rule that was decided on the path as named.

use std::sync::Arc;

use camino::Utf8Path;
use decurion_protocol::{Access, Intent, Mode, RuleSet, Verdict};
use decurion_tools::{PathRules, Surroundings};
use serde_json::Value;

use crate::permission::{Around, Policy, decide};

/// The deny rules of one call; none where there are none.
pub struct DenyRules(Option<Policy>);

impl DenyRules {
    /// These rules, for a call that happens here.
    pub fn new(rules: &RuleSet, around: Around) -> Self {
        let deny = RuleSet { deny: rules.deny.clone(), ..RuleSet::default() };
        // A mode that allows everything else leaves just the deny rules to speak.
        let policy = || Policy::new(Mode::BypassPermissions, Arc::new(deny), around);
        Self((!rules.deny.is_empty()).then(policy))
    }
}

impl PathRules for DenyRules {
    fn refuses(&self, path: &Utf8Path, access: Access) -> Option<String> {
        let policy = self.0.as_ref()?;
        let tool = match access {
            Access::Read => "Read",
            Access::Write => "Edit",
        };
        let intent = Intent::titled("").touching(path, access);
        let decision = decide(policy, tool, &Value::Null, &intent);
        (decision.verdict == Verdict::Deny).then_some(decision.reason)
    }
}

/// Where rules count from, for a call that happens here in a run that was started there.
pub fn around(here: &Surroundings, root: &Utf8Path) -> Around {
    Around {
        cwd: here.cwd.clone(),
        root: root.to_owned(),
        directories: here.directories.clone(),
        home: here.home.clone(),
    }
}
