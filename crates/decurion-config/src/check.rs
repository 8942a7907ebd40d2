//! One settings document against the table of keys. Takes a parsed document, gives the same document with
//! only known keys in their one spelling, secrets sealed and every value of the type its key takes, and everything
//! that is wrong, with file, line, column, key and what was found.

use decurion_protocol::permission::{Mode, Rule};

use crate::error::{ConfigError, Warning, WarningKind, did_you_mean};
use crate::jsonc::{Document, Kind, Member, Node};
use crate::layer;
use crate::origin::{Family, Layer, Origin, Sources};
use crate::redact::Redactor;
use crate::schema::{self, KEYS, Key, MOVED, Shape};
use crate::secret::{self, Secret};
use crate::shell_env;

/// A document that was checked.
pub(crate) struct Checked {
    /// What can be used of it.
    pub root: Node,
    /// What is wrong with the rest, in the order in which it stands there.
    pub problems: Vec<ConfigError>,
}

/// Checks a whole document.
pub(crate) fn document(document: Document, sources: &Sources, warnings: &mut Vec<Warning>) -> Checked {
    let source = sources.get(document.root.source);
    let (family, layer) = (source.family, source.layer);
    let path = String::new();
    let mut check = Check { sources, warnings, problems: Vec::new(), family, layer, path };
    if family == Family::Ours {
        for (key, at) in &document.repeated {
            let origin = sources.origin_at(document.root.source, *at);
            check.warn(
                WarningKind::RepeatedKey,
                origin,
                format!("this key is given twice, the last one counts: {key:?}"),
            );
        }
    }
    if !matches!(document.root.kind, Kind::Object(_)) {
        let origin = sources.origin(&document.root);
        let problem = ConfigError::Syntax { origin, message: "expected an object: `{` … `}`" };
        return Checked { root: layer::empty(), problems: vec![problem] };
    }
    let mut root = check.members(document.root, KEYS);
    let mut problems = check.problems;
    problems.sort_by_key(|problem| problem.origin().and_then(Origin::position));
    for (from, to) in MOVED {
        move_key(&mut root, from, to);
    }
    Checked { root, problems }
}

/// Gives a key of the ecosystem the name it has here; where both are given, ours counts.
fn move_key(root: &mut Node, from: &str, to: &str) {
    let Kind::Object(members) = &mut root.kind else { return };
    let Some(place) = members.iter().position(|member| member.key == from) else { return };
    let moved = members.remove(place);
    if root.at_path(to).is_none() {
        put(root, to, moved.value);
    }
}

/// Sets the value at a path of keys, making the objects on the way.
pub(crate) fn put(root: &mut Node, path: &str, value: Node) {
    let Kind::Object(members) = &mut root.kind else { return };
    let (key, rest) = path.split_once('.').map_or((path, None), |(key, rest)| (key, Some(rest)));
    let place = members.iter().position(|member| member.key == key).unwrap_or_else(|| {
        let empty = Node { at: value.at, source: value.source, kind: Kind::Object(Vec::new()) };
        members.push(Member { key: key.to_owned(), at: value.at, value: empty });
        members.len() - 1
    });
    match rest {
        Some(rest) => put(&mut members[place].value, rest, value),
        None => members[place].value = value,
    }
}

struct Check<'a> {
    sources: &'a Sources,
    warnings: &'a mut Vec<Warning>,
    /// Found so far, in any order.
    problems: Vec<ConfigError>,
    family: Family,
    layer: Layer,
    /// The path of the value at hand, for errors.
    path: String,
}

impl Check<'_> {
    /// Runs a check with one more key on the path.
    fn below<T>(&mut self, key: &str, check: impl FnOnce(&mut Self) -> T) -> T {
        let length = self.path.len();
        if length > 0 && !key.starts_with('[') {
            self.path.push('.');
        }
        // A key is a repository's text: show enough to find it, not all of it.
        self.path.extend(key.chars().take(80).filter(|character| !character.is_control()));
        let result = check(self);
        self.path.truncate(length);
        result
    }

    fn object(&mut self, node: Node, keys: &'static [Key]) -> Result<Node, ConfigError> {
        if !matches!(node.kind, Kind::Object(_)) {
            return Err(self.wrong(&node, "an object"));
        }
        Ok(self.members(node, keys))
    }

    /// The members of an object that can be used; the problems of the others are collected.
    fn members(&mut self, node: Node, keys: &'static [Key]) -> Node {
        let (at, source) = (node.at, node.source);
        let Kind::Object(members) = node.kind else { return layer::empty() };
        let mut kept: Vec<Member> = Vec::with_capacity(members.len());
        for member in members {
            let name = self.spelling(&member.key);
            let key = schema::find(keys, &name).filter(|key| key.shared || self.family == Family::Ours);
            let Some(key) = key else {
                let result = self.unknown(&member, source, keys);
                self.problems.extend(result.err());
                continue;
            };
            // `null` is how one writes "not set".
            if member.value.kind == Kind::Null {
                continue;
            }
            if kept.iter().any(|other| other.key == key.name) {
                let origin = self.sources.origin_at(source, member.at);
                let text = format!("this key is given twice, the first one counts: {name:?}");
                self.warn(WarningKind::RepeatedKey, origin, text);
                continue;
            }
            let checked = self.below(key.name, |check| {
                let checked = check.value(member.value, &key.shape);
                check.or_ignored(checked)
            });
            match checked {
                Ok(Some(value)) => kept.push(Member { key: key.name.to_owned(), at: member.at, value }),
                Ok(None) => {}
                Err(problem) => self.problems.push(problem),
            }
        }
        Node { at, source, kind: Kind::Object(kept) }
    }

    /// The first of these problems as an error; the others are collected where they are errors too.
    fn none_of(&mut self, problems: Vec<ConfigError>) -> Result<(), ConfigError> {
        let mut problems = problems.into_iter();
        let Some(first) = problems.next() else { return Ok(()) };
        if !self.is_repository() || may_forbid(&self.path) {
            self.problems.extend(problems);
        }
        Err(first)
    }

    /// A wrong value in a repository's file is left out with a warning, so that a repository does not decide whether the
    /// program starts. What may forbid something is not left out, and what the user wrote is an error.
    fn or_ignored(
        &mut self,
        checked: Result<Option<Node>, ConfigError>,
    ) -> Result<Option<Node>, ConfigError> {
        match checked {
            Err(error) if self.is_repository() && !may_forbid(&self.path) => {
                let text = format!("{} is ignored: {error}", self.path);
                self.warnings.push(Warning { kind: WarningKind::Ignored, origin: None, text });
                Ok(None)
            }
            checked => checked,
        }
    }

    fn is_repository(&self) -> bool {
        matches!(self.layer, Layer::Project | Layer::Local)
    }

    /// The name of a key; files of the ecosystem have one spelling only.
    fn spelling(&self, key: &str) -> String {
        if self.family == Family::Shared { key.to_owned() } else { camel_case(key) }
    }

    fn unknown(&mut self, member: &Member, source: u16, keys: &'static [Key]) -> Result<(), ConfigError> {
        if member.key == "$schema" {
            return Ok(());
        }
        let meant = schema::meant(keys, &member.key, self.family == Family::Shared);
        let near = meant.map(|meant| meant.path);
        let origin = self.sources.origin_at(source, member.at);
        let key = self.below(&member.key, |check| check.path.clone());
        let may_stop =
            !self.is_repository() || may_forbid(&key) || self.path.is_empty() && near.is_some_and(may_forbid);
        // A misspelt restriction would not hold.
        if may_stop && meant.is_some_and(|meant| meant.restricts) {
            return Err(ConfigError::Key { origin, key, near });
        }
        // The ecosystem's files hold many keys that are not for us.
        if self.family == Family::Shared && near.is_none() {
            return Ok(());
        }
        if key.starts_with("sandbox.") && self.family == Family::Ours && !self.is_repository() {
            return Err(ConfigError::Key { origin, key, near });
        }
        let hint = near.map(|near| format!(" (did you mean {near}?)")).unwrap_or_default();
        self.warn(WarningKind::UnknownKey, origin, format!("unknown key: {key}{hint}"));
        Ok(())
    }

    /// The value in the form the rest of the program relies on; none if it is left out with a warning.
    fn value(&mut self, node: Node, shape: &'static Shape) -> Result<Option<Node>, ConfigError> {
        let fits = match shape {
            Shape::Bool => node.bool().is_some(),
            Shape::Text => node.text().is_some_and(is_plain_text),
            Shape::Url => node.text().is_some_and(is_base_url),
            Shape::Word(words) => node.text().is_some_and(|text| words.contains(&text)),
            Shape::Integer(least, most) => {
                node.integer().is_some_and(|number| (least..=most).contains(&&number))
            }
            Shape::Number(least, most) => {
                node.number().is_some_and(|number| (least..=most).contains(&&number))
            }
            Shape::Matchers => is_matchers(&node),
            Shape::MatchersEach if is_matchers(&node) => return Ok(Some(alone(node))),
            Shape::MatchersEach => false,
            Shape::Opaque => matches!(node.kind, Kind::Object(_)),
            Shape::Mode => return self.mode(node),
            Shape::Look(known) => return self.look(node, known),
            Shape::Secret => return self.secret(&node).map(Some),
            Shape::TextOrTexts if node.text().is_some_and(is_plain_text) => {
                let (at, source) = (node.at, node.source);
                return Ok(Some(Node { at, source, kind: Kind::List(vec![node]) }));
            }
            Shape::TextOrTexts | Shape::Texts | Shape::AddedTexts => return self.texts(node).map(Some),
            Shape::Rules => return self.rules(node).map(Some),
            Shape::Variables => {
                return self
                    .each(node, "an object", |check, name, value| check.variable(name, &value))
                    .map(Some);
            }
            Shape::Headers => {
                return self
                    .each(node, "an object", |check, name, value| check.header(name, &value))
                    .map(Some);
            }
            Shape::Aliases => return self.each(node, "an object", Self::alias).map(Some),
            Shape::Object(keys) => return self.object(node, keys).map(Some),
            Shape::Each(inner) => {
                return self.each(node, "an object", |check, _, value| check.value(value, inner)).map(Some);
            }
            Shape::Gathered => return self.gathered(node).map(Some),
        };
        if fits { Ok(Some(node)) } else { Err(self.wrong_shape(&node, shape)) }
    }

    fn mode(&mut self, node: Node) -> Result<Option<Node>, ConfigError> {
        match node.text().map(str::parse::<Mode>) {
            Some(Ok(_)) => Ok(Some(node)),
            // The ecosystem has modes that we have not; ignoring one widens nothing.
            Some(Err(_)) if self.family == Family::Shared => {
                let origin = self.sources.origin(&node);
                self.warn(
                    WarningKind::Ignored,
                    origin,
                    format!("{}: a mode that is not known here is ignored", self.path),
                );
                Ok(None)
            }
            _ => Err(self.wrong_shape(&node, &Shape::Mode)),
        }
    }

    fn look(&mut self, node: Node, known: &'static [&'static str]) -> Result<Option<Node>, ConfigError> {
        match node.text() {
            Some(word) if known.contains(&word) => Ok(Some(node)),
            // The ecosystem has more of them, also a person's own.
            Some(_) if self.family == Family::Shared => {
                let origin = self.sources.origin(&node);
                let text = format!("{}: what is not known here is ignored", self.path);
                self.warn(WarningKind::Ignored, origin, text);
                Ok(None)
            }
            _ => Err(self.wrong_shape(&node, &Shape::Look(known))),
        }
    }

    fn secret(&mut self, node: &Node) -> Result<Node, ConfigError> {
        let Some(text) = node.text() else { return Err(self.wrong(node, &Shape::Secret.expected())) };
        if let Err(reason) = secret::check_header_value(text.trim()) {
            return Err(self.wrong_words(node, "a key in visible characters", &format!("one that {reason}")));
        }
        if self.layer != Layer::Environment {
            let origin = self.sources.origin(node);
            let text = format!(
                "{}: a key in a settings file is easily shared; use apiKeyEnv or apiKeyFile",
                self.path
            );
            self.warn(WarningKind::ExposedSecret, origin, text);
        }
        Ok(Node { kind: Kind::Secret(Secret::new(text.trim())), at: node.at, source: node.source })
    }

    fn texts(&mut self, node: Node) -> Result<Node, ConfigError> {
        if !matches!(node.kind, Kind::List(_)) {
            return Err(self.wrong(&node, "an array of strings"));
        }
        let mut problems = Vec::new();
        for (index, item) in node.items().iter().enumerate() {
            if !item.text().is_some_and(is_plain_text) {
                problems
                    .push(self.below(&format!("[{index}]"), |check| check.wrong(item, "a non-empty string")));
            }
        }
        self.none_of(problems)?;
        Ok(node)
    }

    fn rules(&mut self, node: Node) -> Result<Node, ConfigError> {
        let (at, source) = (node.at, node.source);
        let Kind::List(items) = node.kind else { return Err(self.wrong(&node, "an array of rules")) };
        let allows = self.path == "permissions.allow";
        let (mut kept, mut problems) = (Vec::with_capacity(items.len()), Vec::new());
        for (index, item) in items.into_iter().enumerate() {
            let key = || format!("[{index}]");
            let Some(text) = item.text() else {
                problems.push(self.below(&key(), |check| check.wrong(&item, "a rule, as a string")));
                continue;
            };
            match Rule::parse(text, self.layer.rule_source()) {
                Ok(_) => kept.push(item),
                // Leaving out what would allow something is safe; leaving out what forbids it is not.
                Err(error) if allows && (self.family == Family::Shared || self.is_repository()) => {
                    let origin = self.sources.origin(&item);
                    let text = format!("{}{}: this rule is ignored: {}", self.path, key(), error.reason);
                    self.warn(WarningKind::Ignored, origin, text);
                }
                Err(error) => {
                    let rule = Redactor::new([], true).redact(&shorten(&error.rule)).into_owned();
                    let (origin, key) = (self.sources.origin(&item), format!("{}{}", self.path, key()));
                    problems.push(ConfigError::Rule { origin, key, reason: error.reason, rule });
                }
            }
        }
        self.none_of(problems)?;
        Ok(Node { at, source, kind: Kind::List(kept) })
    }

    /// An object of any keys: each value goes through `check` with its key.
    fn each(
        &mut self,
        node: Node,
        expected: &str,
        check: impl Fn(&mut Self, &str, Node) -> Result<Option<Node>, ConfigError>,
    ) -> Result<Node, ConfigError> {
        let (at, source) = (node.at, node.source);
        let Kind::Object(members) = node.kind else { return Err(self.wrong(&node, expected)) };
        let (mut kept, mut problems) = (Vec::with_capacity(members.len()), Vec::new());
        for Member { key, at, value } in members {
            if value.kind == Kind::Null {
                continue;
            }
            match self.below(&key, |this| check(this, &key, value)) {
                Ok(value) => kept.extend(value.map(|value| Member { key, at, value })),
                Err(problem) => problems.push(problem),
            }
        }
        self.none_of(problems)?;
        Ok(Node { at, source, kind: Kind::Object(kept) })
    }

    fn variable(&mut self, name: &str, node: &Node) -> Result<Option<Node>, ConfigError> {
        if !shell_env::is_variable_name(name) {
            return Err(self.wrong_words(node, "a variable's name (letters, digits and `_`)", "another key"));
        }
        let text = match &node.kind {
            Kind::Text(text) if !text.contains('\0') => text.clone(),
            Kind::Number(number) => number.to_string(),
            Kind::Bool(value) => value.to_string(),
            _ => return Err(self.wrong(node, "a string")),
        };
        let kind =
            if shell_env::is_secret_name(name) { Kind::Secret(Secret::new(text)) } else { Kind::Text(text) };
        Ok(Some(Node { at: node.at, source: node.source, kind }))
    }

    fn header(&mut self, name: &str, node: &Node) -> Result<Option<Node>, ConfigError> {
        if !is_header_name(name) {
            return Err(self.wrong_words(node, "a header's name", "another key"));
        }
        match node.text().map(|text| (text, secret::check_header_value(text))) {
            Some((text, Ok(()))) => {
                Ok(Some(Node { at: node.at, source: node.source, kind: Kind::Secret(Secret::new(text)) }))
            }
            Some((_, Err(reason))) => {
                Err(self.wrong_words(node, "a header's value", &format!("one that {reason}")))
            }
            None => Err(self.wrong(node, "a string")),
        }
    }

    fn alias(&mut self, _: &str, node: Node) -> Result<Option<Node>, ConfigError> {
        if node.text().is_some_and(is_plain_text) {
            return Ok(Some(node));
        }
        self.each(node, "a model, or an object of names and models", |check, _, inner| {
            if inner.text().is_some_and(is_plain_text) {
                Ok(Some(inner))
            } else {
                Err(check.wrong(&inner, "a model"))
            }
        })
        .map(Some)
    }

    fn gathered(&mut self, node: Node) -> Result<Node, ConfigError> {
        if !matches!(node.kind, Kind::Object(_)) {
            return Err(self.wrong(&node, "an object"));
        }
        Ok(alone(node))
    }

    fn warn(&mut self, kind: WarningKind, origin: Origin, text: String) {
        self.warnings.push(Warning { kind, origin: Some(origin), text });
    }

    /// A value that its key does not take, with the one that may be meant.
    fn wrong_shape(&self, node: &Node, shape: &Shape) -> ConfigError {
        let near = node.text().and_then(|text| shape.meant(text));
        let found = format!("{}{}", self.found(node), did_you_mean(near.as_ref()));
        self.wrong_words(node, &shape.expected(), &found)
    }

    fn wrong(&self, node: &Node, expected: &str) -> ConfigError {
        self.wrong_words(node, expected, &self.found(node))
    }

    /// A value as an error may show it: what could be a key, or hold one, is not repeated.
    fn found(&self, node: &Node) -> String {
        let name = self.path.rsplit('.').next().unwrap_or_default();
        let may_be_secret = shell_env::is_secret_name(name) || self.path.contains("headers");
        match &node.kind {
            Kind::Text(text) if text.is_empty() => "an empty string".to_owned(),
            Kind::Text(text) if is_word(text) || !may_be_secret && is_harmless(text) => format!("{text:?}"),
            Kind::Number(number) if !may_be_secret => number.to_string(),
            Kind::Bool(value) => value.to_string(),
            _ => node.kind_name().to_owned(),
        }
    }

    fn wrong_words(&self, node: &Node, expected: &str, found: &str) -> ConfigError {
        ConfigError::Value {
            origin: self.sources.origin(node),
            key: self.path.clone(),
            expected: expected.to_owned(),
            found: found.to_owned(),
        }
    }
}

/// Whether what stands at this path of keys may forbid something. Then it also counts if a repository says it.
fn may_forbid(path: &str) -> bool {
    path.starts_with("permissions") || path.starts_with("hooks")
}

/// A list with this in it, to which other layers add theirs.
fn alone(node: Node) -> Node {
    let (at, source) = (node.at, node.source);
    Node { at, source, kind: Kind::List(vec![node]) }
}

fn is_matchers(node: &Node) -> bool {
    node.items().iter().all(is_matcher) && matches!(node.kind, Kind::List(_))
}

/// A server by name, command or address.
fn is_matcher(node: &Node) -> bool {
    let texts =
        |node: &Node| !node.items().is_empty() && node.items().iter().all(|item| item.text().is_some());
    match node.members() {
        [] => node.text().is_some_and(is_plain_text),
        [Member { key, value, .. }] => match key.as_str() {
            "serverName" | "serverUrl" => value.text().is_some_and(is_plain_text),
            "serverCommand" => texts(value),
            _ => false,
        },
        _ => false,
    }
}

fn is_plain_text(text: &str) -> bool {
    !text.trim().is_empty() && text.len() <= 4096 && !text.contains('\0')
}

fn is_word(text: &str) -> bool {
    text.len() <= 20 && text.bytes().all(|byte| byte.is_ascii_alphabetic() || byte == b'-' || byte == b'_')
}

/// Whether a text is no key: short, and no long part of it mixes kinds of letters.
fn is_harmless(text: &str) -> bool {
    let looks_random = |part: &str| {
        let has = |is: fn(&u8) -> bool| part.as_bytes().iter().any(is);
        let mixes = has(u8::is_ascii_digit) && has(u8::is_ascii_alphabetic);
        part.len() >= 10 && mixes
            || part.len() >= 20 && has(u8::is_ascii_uppercase) && has(u8::is_ascii_lowercase)
    };
    text.len() <= 60
        && !text.chars().any(char::is_control)
        && !text.split(|letter: char| !letter.is_ascii_alphanumeric()).any(looks_random)
        && !text.contains('@')
        && Redactor::new([], true).redact(text) == text
}

fn shorten(text: &str) -> String {
    if text.chars().count() <= 120 {
        text.to_owned()
    } else {
        text.chars().take(119).chain(['…']).collect()
    }
}

pub(crate) fn is_header_name(name: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    (1..=128).contains(&name.len()) && name.bytes().all(is_part)
}

/// An address that requests can be appended to, and that holds no credentials.
pub(crate) fn is_base_url(text: &str) -> bool {
    let rest = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
    let Some(rest) = rest else { return false };
    let host = rest.split('/').next().unwrap_or_default();
    text.len() <= 2048
        && !host.is_empty()
        && !host.starts_with(':')
        && !rest.contains(['@', '?', '#', '\\'])
        && rest.bytes().all(|byte| byte.is_ascii_graphic())
}

/// `max_depth` is `maxDepth`.
pub(crate) fn camel_case(key: &str) -> String {
    let mut words = key.split('_');
    let mut name = words.next().unwrap_or_default().to_owned();
    for word in words {
        let mut characters = word.chars();
        name.extend(characters.next().map(|first| first.to_ascii_uppercase()));
        name.push_str(characters.as_str());
    }
    name
}
