//! Modes, rules, questions and answers: the words permission is decided in. The decision itself is the
//! engine's; what is here is data and the syntax of a rule.

use std::fmt;
use std::str::FromStr;

use camino::Utf8PathBuf;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{AgentId, CallId, Elicitation, Elicited, Intent, QuestionId};

/// Who is asked about what no rule decides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Mode {
    /// A person is asked.
    #[default]
    #[serde(alias = "manual")]
    Default,
    /// As `default`, but edits of files in the allowed directories go ahead.
    AcceptEdits,
    /// Nothing is changed: only reads go ahead.
    Plan,
    /// Everything but deny rules goes ahead; logged.
    BypassPermissions,
    /// Ask no questions: calls that no rule decides are allowed and fully logged.
    DontAsk,
    /// As `default`, and the question is shown at the root, naming the asker.
    Bubble,
}

impl Mode {
    /// The name used in flags, files and on the stream.
    pub fn name(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::AcceptEdits => "acceptEdits",
            Self::Plan => "plan",
            Self::BypassPermissions => "bypassPermissions",
            Self::DontAsk => "dontAsk",
            Self::Bubble => "bubble",
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Mode {
    type Err = UnknownMode;
    fn from_str(text: &str) -> Result<Self, UnknownMode> {
        Ok(match text {
            "default" | "manual" => Self::Default,
            "acceptEdits" => Self::AcceptEdits,
            "plan" => Self::Plan,
            "bypassPermissions" => Self::BypassPermissions,
            "dontAsk" => Self::DontAsk,
            "bubble" => Self::Bubble,
            _ => return Err(UnknownMode(text.to_owned())),
        })
    }
}

/// A mode's name that does not exist.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown permission mode (default, acceptEdits, plan, bypassPermissions, dontAsk, bubble): {0:?}")]
pub struct UnknownMode(pub String);

/// One rule, `Tool` or `Tool(specifier)`, and where it came from.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Rule {
    /// The tool's name, `mcp__server__tool`, or a pattern of the latter.
    pub tool: String,
    /// What is inside the parentheses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub specifier: Option<String>,
    /// Where it came from.
    #[serde(default)]
    pub source: RuleSource,
}

/// Where a rule came from, in the ecosystem's words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum RuleSource {
    PolicySettings,
    UserSettings,
    ProjectSettings,
    /// The project's settings of this user.
    LocalSettings,
    /// A settings file or JSON given on the command line.
    FlagSettings,
    #[default]
    CliArg,
    /// An answer given in this session.
    Session,
    /// A command's or skill's `allowed-tools`.
    Command,
}

impl RuleSource {
    /// The settings that a person's answer can be kept in.
    pub const FILES: [Self; 3] = [Self::UserSettings, Self::ProjectSettings, Self::LocalSettings];
}

/// Text that is not a rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}: {rule:?}")]
pub struct InvalidRule {
    pub rule: String,
    /// What is wrong with it.
    pub reason: &'static str,
}

impl Rule {
    /// Reads `Tool` or `Tool(specifier)`.
    pub fn parse(text: &str, source: RuleSource) -> Result<Self, InvalidRule> {
        let invalid = |reason| InvalidRule { rule: text.to_owned(), reason };
        let trimmed = text.trim();
        let (tool, specifier) = match trimmed.split_once('(') {
            None => (trimmed, None),
            Some((tool, rest)) => {
                let inner = rest.strip_suffix(')').ok_or_else(|| invalid("a rule's `(` is not closed"))?;
                (tool, Some(inner))
            }
        };
        if tool.is_empty() {
            return Err(invalid("a rule starts with a tool's name"));
        }
        if !tool.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-*.:/".contains(&byte)) {
            return Err(invalid("a tool's name has letters, digits, `_` and `-` only"));
        }
        let specifier = match specifier.map(str::trim) {
            Some("") => return Err(invalid("the parentheses of a rule are empty")),
            // `Tool(*)` says no more than `Tool`.
            Some("*") => None,
            other => other.map(str::to_owned),
        };
        Ok(Self { tool: tool.to_owned(), specifier, source })
    }

    /// A rule about a path, or a pattern of some, as `sandbox` settings have it: `/x` is absolute there, and `x` begins at
    /// the session's folder.
    pub fn about_path(tool: &str, path: &str, source: RuleSource) -> Self {
        let text = path.strip_suffix("/**").unwrap_or(path).trim_end_matches('/');
        let text = text.strip_prefix("./").unwrap_or(text);
        let as_it_is = text.starts_with("//") || text.starts_with('~');
        let specifier = if as_it_is { text.to_owned() } else { format!("/{text}") };
        Self { tool: tool.to_owned(), specifier: Some(specifier), source }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.specifier {
            None => f.write_str(&self.tool),
            Some(specifier) => write!(f, "{}({specifier})", self.tool),
        }
    }
}

/// The rules in force, by what they do.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RuleSet {
    /// Goes ahead without a question.
    pub allow: Vec<Rule>,
    /// Ask, even if another rule allows it.
    pub ask: Vec<Rule>,
    pub deny: Vec<Rule>,
}

impl RuleSet {
    /// The rules that do this.
    pub fn of(&mut self, behavior: Verdict) -> &mut Vec<Rule> {
        match behavior {
            Verdict::Allow => &mut self.allow,
            Verdict::Ask => &mut self.ask,
            Verdict::Deny => &mut self.deny,
        }
    }
}

/// A change of permissions for the rest of the session. It concerns the rules of one source only, so that no source can
/// remove the rules of another. If that source is a settings file, a change by a person or a host is written there too.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum PermissionUpdate {
    AddRules {
        behavior: Verdict,
        rules: Vec<Rule>,
    },
    /// These rules in place of those of this source that do the same.
    ReplaceRules {
        behavior: Verdict,
        /// Whose place they take.
        source: RuleSource,
        rules: Vec<Rule>,
    },
    /// Without these rules, where they are of the same source.
    RemoveRules {
        behavior: Verdict,
        rules: Vec<Rule>,
    },
    SetMode {
        mode: Mode,
    },
    AddDirectories {
        directories: Vec<Utf8PathBuf>,
    },
    /// Without these of the further directories.
    RemoveDirectories {
        directories: Vec<Utf8PathBuf>,
    },
    /// Another mode or other directories, which are also written into the settings of this source. Of rules their own
    /// source says where they are kept.
    Kept {
        at: RuleSource,
        update: Box<PermissionUpdate>,
    },
}

impl PermissionUpdate {
    /// Whether it only ever takes rights away.
    pub fn narrows(&self) -> bool {
        match self {
            Self::AddRules { behavior, .. } => *behavior != Verdict::Allow,
            Self::RemoveRules { behavior, .. } => *behavior == Verdict::Allow,
            Self::RemoveDirectories { .. } => true,
            Self::ReplaceRules { .. } | Self::SetMode { .. } | Self::AddDirectories { .. } => false,
            Self::Kept { update, .. } => update.narrows(),
        }
    }

    /// The change itself, wherever it is kept.
    pub fn bare(&self) -> &Self {
        match self {
            Self::Kept { update, .. } => update.bare(),
            other => other,
        }
    }

    /// What of it is to be written into which settings, so that later sessions begin with it.
    pub fn to_keep(&self) -> Vec<(RuleSource, Self)> {
        let split = |rules: &[Rule], make: &dyn Fn(Vec<Rule>) -> Self| {
            let of = |source: RuleSource| {
                let own: Vec<Rule> = rules.iter().filter(|rule| rule.source == source).cloned().collect();
                (!own.is_empty()).then(|| (source, make(own)))
            };
            RuleSource::FILES.into_iter().filter_map(of).collect()
        };
        match self {
            Self::AddRules { behavior, rules } => {
                split(rules, &|rules| Self::AddRules { behavior: *behavior, rules })
            }
            Self::RemoveRules { behavior, rules } => {
                split(rules, &|rules| Self::RemoveRules { behavior: *behavior, rules })
            }
            Self::ReplaceRules { source, .. } if RuleSource::FILES.contains(source) => {
                vec![(*source, self.clone())]
            }
            Self::Kept { at, update } if RuleSource::FILES.contains(at) => vec![(*at, update.bare().clone())],
            _ => Vec::new(),
        }
    }
}

/// The answer of the policy for one call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Decision {
    #[serde(rename = "decision")]
    pub verdict: Verdict,
    /// The rule that decided, as written.
    pub rule: Option<String>,
    /// Why, in one sentence for a person.
    pub reason: String,
    /// What a command may do when it runs, if it was decided for less or more than usual.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<Profile>,
}

/// What the sandbox lets a command do. Without one it may write in the working directories.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Profile {
    /// It can write nothing but temporary files, connect to nothing, and read only the working directories and the
    /// system's own files.
    ReadOnly,
    /// It runs without a sandbox, because a person said so.
    Outside,
}

/// What happens with a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    Allow,
    /// Ask a person; if there is none, refuse.
    Ask,
    Deny,
}

/// A call that waits for a person: to be allowed, or because its server asks for something.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Question {
    pub id: QuestionId,
    /// Who asks; none is the root.
    pub agent: Option<AgentId>,
    /// The path of agents from the root to the asker, for people.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub path: Vec<String>,
    pub call: CallId,
    pub tool: String,
    pub input: Value,
    /// What it would touch.
    pub intent: Intent,
    /// Why it is asked.
    pub reason: String,
    /// What made it one that is asked about.
    #[serde(default)]
    pub asked_by: AskedBy,
    /// The path outside of the working directories that it would touch, where that is why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocked: Option<Utf8PathBuf>,
    /// Rules that would allow this and little else, to be offered with an answer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub suggestions: Vec<Rule>,
    /// Whether it comes from the background: rules of its answer are then for the asker and all below it, unless the
    /// answer says otherwise.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub behind: bool,
    /// The lines of a file that it would change, numbered as they are now, as in the result of an edit (`structuredPatch`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub patch: Option<Value>,
    /// What an MCP server asks for, where that is the question; else it is whether the call may run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub elicitation: Option<Box<Elicitation>>,
}

/// The tool that a question is about whether a command may connect to a host, in the ecosystem's words. Its input has the
/// `host` and the `port`.
pub const CONNECTION: &str = "SandboxNetworkAccess";

impl Question {
    /// Whether a Yes lets the call run without the sandbox, with all rights of the user.
    pub fn leaves_sandbox(&self) -> bool {
        self.input.get("dangerouslyDisableSandbox") == Some(&Value::Bool(true))
    }

    /// What is asked, in a line: `Edit src/main.rs?`.
    pub fn title(&self) -> String {
        match self.input.get("host").and_then(Value::as_str).filter(|_| self.tool == CONNECTION) {
            Some(host) => format!("Let a command connect to {host}?"),
            None if self.leaves_sandbox() => "Run this command without the sandbox?".to_owned(),
            None if self.tool == "Bash" => "Run this command?".to_owned(),
            None => format!("{}?", self.intent.title),
        }
    }
}

/// What makes a call one that is asked about, in the ecosystem's words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum AskedBy {
    Rule,
    Hook,
    /// That it goes beyond the working directories.
    WorkingDir,
    /// That no rule decides about it.
    #[default]
    Other,
}

/// The answer of a person, a program, or no one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "behavior", rename_all = "snake_case")]
pub enum Answer {
    /// Run it, perhaps with another input, and remember these rules: for the session, or, where an agent in
    /// the background asked, for that agent and all below it.
    Allow {
        /// The input to use instead.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        input: Option<Value>,
        /// Rules to remember. Those whose source is a settings file ([`RuleSource::FILES`]) are written there too, and
        /// hold in later sessions.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        rules: Vec<Rule>,
        /// Whether they hold for the whole session, for every agent.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        everywhere: bool,
    },
    /// Do not run it.
    Deny {
        /// What to tell the model.
        message: String,
        /// Whether the turn ends too.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        interrupt: bool,
    },
    /// What an MCP server is given that asked for something.
    Elicited(Elicited),
}

impl Answer {
    /// The answer as it is put on record, without what is for one reader alone.
    #[must_use]
    pub fn on_record(&self) -> Self {
        match self {
            Self::Elicited(elicited) => Self::Elicited(elicited.on_record()),
            other => other.clone(),
        }
    }
}

/// Rules in the form in which hosts and hooks are offered them.
pub fn session_updates(rules: &[Rule]) -> Vec<Value> {
    if rules.is_empty() {
        return Vec::new();
    }
    let rule = |rule: &Rule| match &rule.specifier {
        Some(specifier) => json!({"toolName": rule.tool, "ruleContent": specifier}),
        None => json!({"toolName": rule.tool}),
    };
    let rules: Vec<Value> = rules.iter().map(rule).collect();
    vec![json!({"type": "addRules", "rules": rules, "behavior": "allow", "destination": "session"})]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_settings_become_rules() {
        for (path, specifier) in [
            ("vendor/", "/vendor"),
            ("./a/**", "/a"),
            ("a/**/*.pem", "/a/**/*.pem"),
            ("/etc", "//etc"),
            ("//etc", "//etc"),
            ("~/x", "~/x"),
        ] {
            let rule = Rule::about_path("Read", path, RuleSource::Command);
            assert_eq!(rule.specifier.as_deref(), Some(specifier), "{path}");
        }
    }

    #[test]
    fn rules_are_read_and_written_alike() {
        for text in ["Bash", "Bash(git push *)", "Read(//etc/**)", "mcp__a__b", "Bash(echo (x))", "mcp__a__*"]
        {
            assert_eq!(Rule::parse(text, RuleSource::CliArg).unwrap().to_string(), text);
        }
        assert_eq!(Rule::parse(" Bash( * ) ", RuleSource::CliArg).unwrap().to_string(), "Bash");
    }

    #[test]
    fn bad_rules_say_what_is_wrong() {
        for text in ["", "(x)", "Bash(", "Bash()", "Ba sh", "Bash(x) y"] {
            let error = Rule::parse(text, RuleSource::CliArg).unwrap_err().to_string();
            assert!(error.contains(&format!("{text:?}")), "{error}");
        }
    }
}
