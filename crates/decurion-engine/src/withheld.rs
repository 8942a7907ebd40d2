//! Files that the program itself puts before a model: instruction files, what they import, and the texts of skills.
//! Takes the deny rules and where they count from, gives what a rule forbids to read; that is left out.

use std::sync::Arc;

use camino::{Utf8Path, Utf8PathBuf};
use decurion_protocol::{Access, Intent, Mode, Rule, RuleSet, Verdict, Worktree};
use serde_json::Value;

use crate::permission::{Around, Checkouts, Policy, decide};
use crate::ports::Instructions;
use crate::symlinks::Symlinks;
use decurion_tools::bash::normal;

/// The deny rules about files.
pub struct Withheld {
    policy: Option<Policy>,
    trails: Symlinks,
}

impl Withheld {
    /// The rules of a session in `root`, for a run that works in `cwd`. In a worktree a rule holds there and in every
    /// checkout that it was made from.
    pub fn new(
        rules: &RuleSet,
        root: &Utf8Path,
        cwd: &Utf8Path,
        worktree: Option<&Worktree>,
        home: Option<&Utf8Path>,
    ) -> Self {
        let trails = Symlinks::on_disk();
        // A rule that denies a tool as a whole is about what the model may call, not about a file.
        let deny: Vec<Rule> = rules.deny.iter().filter(|rule| rule.specifier.is_some()).cloned().collect();
        if deny.is_empty() {
            return Self { policy: None, trails };
        }
        let rules = Arc::new(RuleSet { deny, ..RuleSet::default() });
        let known =
            worktree.iter().flat_map(|worktree| std::iter::once(&worktree.path).chain(worktree.origins()));
        let around = Around {
            cwd: cwd.to_owned(),
            root: root.to_owned(),
            home: home.map(Utf8Path::to_owned),
            checkouts: Checkouts::of(root, known.cloned()),
            trails: trails.clone(),
            ..Around::default()
        };
        Self { policy: Some(Policy::new(Mode::BypassPermissions, rules, around)), trails }
    }

    /// Why a file that some text names is left out: a rule forbids to read it under this name or where it leads.
    pub fn named(&self, path: &Utf8Path) -> Option<String> {
        let path = normal(path);
        self.denied(std::iter::once(path.clone()).chain(self.places(&path)))
    }

    /// The same for a file that is read because of where it stands, such as `AGENTS.md`: only where its links lead is
    /// judged, since a rule about reading files is not meant to switch instructions off.
    pub fn standing(&self, path: &Utf8Path) -> Option<String> {
        self.denied(self.places(&normal(path)).into_iter())
    }

    /// The instructions that may be told, and for each of the others why it is left out. What a file that is left out
    /// imports is left out with it.
    pub fn split(&self, all: &[Instructions]) -> (Vec<Instructions>, Vec<String>) {
        let (mut told, mut left_out) = (Vec::new(), Vec::new());
        let mut gone: Vec<&Utf8Path> = Vec::new();
        for one in all {
            let reason = match &one.imported_by {
                Some(from) if gone.contains(&from.as_path()) => {
                    Some(format!("it is imported by a file that is left out, {from}"))
                }
                Some(_) => self.named(&one.path),
                None => self.standing(&one.path),
            };
            // Its links may lead elsewhere by now.
            let moved = || Some(&one.place).filter(|place| **place != one.path).cloned();
            let reason = reason.or_else(|| self.denied(moved().into_iter()));
            match reason {
                Some(reason) => {
                    gone.push(&one.path);
                    left_out.push(format!("{}: left out of the instructions: {reason}", normal(&one.path)));
                }
                None => told.push(one.clone()),
            }
        }
        (told, left_out)
    }

    fn places(&self, path: &Utf8Path) -> Vec<Utf8PathBuf> {
        if self.policy.is_none() {
            return Vec::new();
        }
        self.trails.of(path).iter().map(|step| step.name.clone()).collect()
    }

    fn denied(&self, names: impl Iterator<Item = Utf8PathBuf>) -> Option<String> {
        let intent = names.fold(Intent::titled(""), |intent, name| intent.touching(name, Access::Read));
        if intent.touches.is_empty() {
            return None;
        }
        let decision = decide(self.policy.as_ref()?, "Read", &Value::Null, &intent);
        (decision.verdict != Verdict::Allow).then_some(decision.reason)
    }
}
