//! Deny rules at the moment a file is opened. Takes the path that holds no links, gives the refusal if a
//! deny rule covers it, so that a link cannot lead around a rule that was decided on the path as named.

use camino::Utf8Path;
use decurion_protocol::{Access, RuleSet};
use decurion_tools::{PathRules, Surroundings};

use crate::permission::denied_path;

/// The deny rules of one call.
pub struct DenyRules {
    rules: RuleSet,
    around: Surroundings,
}

impl DenyRules {
    /// These rules, for a call that happens here.
    pub fn new(rules: RuleSet, around: &Surroundings) -> Self {
        Self { rules, around: around.clone() }
    }
}

impl PathRules for DenyRules {
    fn refuses(&self, path: &Utf8Path, access: Access) -> Option<String> {
        if self.rules.deny.is_empty() {
            return None;
        }
        denied_path(&self.rules, &self.around, path, access)
    }
}
