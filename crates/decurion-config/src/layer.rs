//! Layers of settings into one. Takes checked documents from the lowest to the highest, gives one tree in
//! which each value still knows the file, line and column it came from; and tells apart, in a document of a
//! repository, what may hold at once and what waits for trust.

use decurion_protocol::permission::Mode;

use crate::error::{Warning, WarningKind};
use crate::jsonc::{Kind, Member, Node, Position};
use crate::origin::Sources;
use crate::schema::{self, FromProject, KEYS, Key, Shape};
use crate::shell_env;

/// A document with nothing in it.
pub(crate) fn empty() -> Node {
    Node { at: Position::default(), source: 0, kind: Kind::Object(Vec::new()) }
}

/// Lays a document over another: lists of rules add up, objects are merged by key, the rest is replaced.
pub(crate) fn merge(lower: &mut Node, higher: Node) {
    merge_objects(lower, higher, KEYS);
}

fn merge_objects(lower: &mut Node, higher: Node, keys: &'static [Key]) {
    merge_members(lower, higher, |name| schema::find(keys, name).map(|key| &key.shape));
}

fn merge_members(lower: &mut Node, higher: Node, shape_of: impl Fn(&str) -> Option<&'static Shape>) {
    let (Kind::Object(below), Kind::Object(above)) = (&mut lower.kind, higher.kind) else { return };
    for member in above {
        match below.iter_mut().find(|other| other.key == member.key) {
            Some(other) => {
                let shape = shape_of(&member.key);
                merge_values(other, member, shape);
            }
            None => below.push(member),
        }
    }
}

fn merge_values(lower: &mut Member, higher: Member, shape: Option<&'static Shape>) {
    match shape {
        Some(Shape::Object(keys)) => merge_objects(&mut lower.value, higher.value, keys),
        Some(Shape::Each(inner)) => merge_members(&mut lower.value, higher.value, |_| Some(inner)),
        Some(Shape::Variables | Shape::Headers) => merge_members(&mut lower.value, higher.value, |_| None),
        Some(Shape::Aliases) => merge_aliases(&mut lower.value, higher.value),
        Some(Shape::Rules | Shape::AddedTexts | Shape::Gathered | Shape::Matchers | Shape::MatchersEach) => {
            if let (Kind::List(below), Kind::List(above)) = (&mut lower.value.kind, higher.value.kind) {
                below.extend(above);
            }
        }
        _ => *lower = higher,
    }
}

/// Aliases are one or two objects deep.
fn merge_aliases(lower: &mut Node, higher: Node) {
    let (Kind::Object(below), Kind::Object(above)) = (&mut lower.kind, higher.kind) else { return };
    for member in above {
        match below.iter_mut().find(|other| other.key == member.key) {
            Some(other)
                if matches!(other.value.kind, Kind::Object(_))
                    && matches!(member.value.kind, Kind::Object(_)) =>
            {
                merge_members(&mut other.value, member.value, |_| None);
            }
            Some(other) => *other = member,
            None => below.push(member),
        }
    }
}

/// A repository's document, told apart.
pub(crate) struct Split {
    /// What narrows, and so holds at once.
    pub at_once: Node,
    /// What waits for trust.
    pub waiting: Node,
}

/// Tells a repository's document apart. `mode` is the mode that holds without it: a mode that asks no less
/// than that one narrows. What no repository may set is left out, with a warning each.
pub(crate) fn split(document: Node, mode: Mode, sources: &Sources, warnings: &mut Vec<Warning>) -> Split {
    let mut splitter = Splitter { mode, sources, warnings };
    let (at_once, waiting) = splitter.object(document, KEYS, "");
    Split { at_once, waiting }
}

struct Splitter<'a> {
    mode: Mode,
    sources: &'a Sources,
    warnings: &'a mut Vec<Warning>,
}

impl Splitter<'_> {
    fn object(&mut self, node: Node, keys: &'static [Key], path: &str) -> (Node, Node) {
        let (at, source) = (node.at, node.source);
        let Kind::Object(members) = node.kind else { return (empty(), empty()) };
        let (mut at_once, mut waiting) = (Vec::new(), Vec::new());
        for member in members {
            let Some(key) = schema::find(keys, &member.key) else { continue };
            match (key.project, &key.shape) {
                (FromProject::Never, _) => self.refuse(&member, path),
                (FromProject::ByMember, Shape::Object(inner)) => {
                    let (now, later) = self.object(member.value, inner, &format!("{path}{}.", member.key));
                    at_once.push(Member { key: member.key.clone(), at: member.at, value: now });
                    waiting.push(Member { key: member.key, at: member.at, value: later });
                }
                (FromProject::Narrows, _) => at_once.push(member),
                (FromProject::NarrowsIf(narrows), _) if narrows(&member.value) => at_once.push(member),
                (_, Shape::Mode) if self.narrows(&member.value) => at_once.push(member),
                (_, Shape::Variables) => waiting.extend(self.without_protected(member)),
                _ => waiting.push(member),
            }
        }
        let object = |members| Node { at, source, kind: Kind::Object(members) };
        (object(at_once), object(waiting))
    }

    fn narrows(&self, node: &Node) -> bool {
        mode_of(node).is_some_and(|mode| width(mode) <= width(self.mode))
    }

    /// Variables that decide who is talked to, and with what, are the user's alone.
    fn without_protected(&mut self, mut member: Member) -> Option<Member> {
        if let Kind::Object(variables) = &mut member.value.kind {
            let (refused, kept) = std::mem::take(variables)
                .into_iter()
                .partition(|variable| shell_env::is_protected(&variable.key));
            *variables = kept;
            let refused: Vec<Member> = refused;
            for variable in &refused {
                self.refuse(variable, "env.");
            }
        }
        (!member.value.members().is_empty()).then_some(member)
    }

    fn refuse(&mut self, member: &Member, path: &str) {
        let origin = self.sources.origin_at(member.value.source, member.at);
        let text = format!(
            "{path}{} is ignored in project settings; set it in ~/.decurion/settings.json",
            member.key
        );
        self.warnings.push(Warning { kind: WarningKind::NotFromProject, origin: Some(origin), text });
    }
}

/// The mode a checked value names.
pub(crate) fn mode_of(node: &Node) -> Option<Mode> {
    node.text()?.parse().ok()
}

/// How much goes ahead without a question, to compare modes.
fn width(mode: Mode) -> u8 {
    match mode {
        Mode::Plan => 0,
        Mode::Default | Mode::Bubble => 1,
        Mode::AcceptEdits => 2,
        Mode::DontAsk => 3,
        Mode::BypassPermissions => 4,
    }
}
