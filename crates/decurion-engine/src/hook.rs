//! Hooks at work. Takes what happened and the hooks in force, runs those that it concerns side by side, and
//! gives back one [`HookResult`]: what they want together, the strictest first, and a report of each.
//!
//! A hook reads one line of JSON and speaks by its exit code and what it prints (`answer.rs`); one that is a function of
//! the host is given the same and answers the same (`host.rs` above). However it fails (`process.rs`), it is bounded,
//! reported, and never an approval.

mod answer;
mod process;

use std::collections::HashSet;
use std::ffi::OsString;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use camino::Utf8PathBuf;
use decurion_exec::{Guard, Launch, Output, Stdin, shell};
use decurion_protocol::{
    CallId, Event, HookDeclaration, HookEnding, HookEvent, HookRun, HostAsked, SessionId,
};
use futures_util::future::join_all;
use regex::{Regex, RegexBuilder};
use serde_json::{Map, Value};

pub use answer::{HookOutcome, HookPermission, HookReport, HookResult};

use crate::host::{HostDesk, HostFailure};
use crate::journal::Who;
use crate::sandbox::ServiceSandbox;

/// How long a hook may take that says nothing else.
const USUAL_TIMEOUT: Duration = Duration::from_secs(60);
/// How large a compiled matcher may be.
const MATCHER_BYTES: usize = 1 << 20;

/// The hooks in force for one agent: the session's, its own, and those of the skills that it has read. Cheap to
/// clone, and a clone is the same agent's.
#[derive(Clone)]
pub struct Hooks {
    armed: Arc<[Arc<Armed>]>,
    /// A small leaf: the agent's run adds to it, whoever runs hooks for it reads it.
    of_skills: Arc<Mutex<OfSkills>>,
    around: Arc<HookSurroundings>,
}

/// The hooks of the skills that an agent has read.
#[derive(Default)]
struct OfSkills {
    known: HashSet<String>,
    armed: Vec<Arc<Armed>>,
}

/// What hooks run in.
#[derive(Clone, Debug)]
pub struct HookSurroundings {
    /// Who starts processes; without, every hook fails.
    pub processes: Option<Guard>,
    /// What the kernel keeps them from; none where nothing is.
    pub sandbox: Option<ServiceSandbox>,
    /// The variables that hooks get, an allow-list; those that name the project and the session are added.
    pub environment: Arc<[(OsString, OsString)]>,
    /// The directory they start in.
    pub cwd: Utf8PathBuf,
    pub project: Utf8PathBuf,
    pub session: SessionId,
    /// The way to hooks that are functions of the host.
    pub host: HostDesk,
}

pub struct HookCall<'a> {
    pub who: &'a Who,
    pub event: HookEvent,
    /// What matchers look at: the tool, the agent's type, the source or the trigger; none is matched by all.
    pub subject: Option<&'a str>,
    /// What hooks read. The event's name is added.
    pub input: Map<String, Value>,
    /// The checkout of its own that the agent works in, in which hooks may write too.
    pub worktree: Option<Utf8PathBuf>,
    /// Whether a permission rule (a hook's `if`) matches the call.
    pub rule_matches: &'a (dyn Fn(&str) -> bool + Sync),
}

/// A declaration ready to be matched. Shared by all agents of a session, so that `once` is once.
struct Armed {
    declaration: HookDeclaration,
    matcher: Matcher,
    spent: AtomicBool,
}

enum Matcher {
    Everything,
    Whole(Regex),
}

impl Hooks {
    /// These hooks, and a sentence about each that is left out since its matcher is no pattern.
    pub fn new(declarations: Vec<HookDeclaration>, around: HookSurroundings) -> (Self, Vec<String>) {
        let none = Self { armed: Arc::from([]), of_skills: Arc::default(), around: Arc::new(around) };
        none.and(declarations)
    }

    /// These and more, for another agent: the session's and its own. What others have read is not its.
    #[must_use = "these hooks stay as they are"]
    pub fn and(&self, declarations: Vec<HookDeclaration>) -> (Self, Vec<String>) {
        let (more, problems) = arm(declarations);
        let armed = if more.is_empty() {
            Arc::clone(&self.armed)
        } else {
            self.armed.iter().cloned().chain(more).collect()
        };
        (Self { armed, of_skills: Arc::default(), around: Arc::clone(&self.around) }, problems)
    }

    /// Puts the hooks of skills in force that the agent has read, each skill's once. What is wrong with them is
    /// given back.
    pub fn learn(&self, skills: &[String], declared: impl Fn(&str) -> Vec<HookDeclaration>) -> Vec<String> {
        let mut of_skills = self.of_skills();
        if of_skills.known.len() == skills.len() {
            return Vec::new();
        }
        let mut problems = Vec::new();
        for name in skills {
            if of_skills.known.insert(name.clone()) {
                let (armed, mut wrong) = arm(declared(name));
                of_skills.armed.extend(armed);
                problems.append(&mut wrong);
            }
        }
        problems
    }

    /// What is in force, in the order it was declared.
    pub fn declared(&self) -> Vec<HookDeclaration> {
        let of_skills = self.of_skills();
        let all = self.armed.iter().chain(&of_skills.armed);
        all.map(|armed| armed.declaration.clone()).collect()
    }

    fn of_skills(&self) -> std::sync::MutexGuard<'_, OfSkills> {
        self.of_skills.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether any hook waits for this, so that its input is worth making.
    pub fn wait_for(&self, event: HookEvent) -> bool {
        let waits = |armed: &Arc<Armed>| armed.declaration.event == event;
        self.armed.iter().any(waits) || self.of_skills().armed.iter().any(waits)
    }

    /// Runs all hooks that this concerns, side by side, and gives what they say in the order they were
    /// declared. Dropping the future ends them and all they started.
    pub async fn run(&self, call: HookCall<'_>) -> HookResult {
        let chosen = self.choose(&call);
        if chosen.is_empty() {
            return HookResult::default();
        }
        let (event, who, worktree) = (call.event, call.who, call.worktree);
        let input = with_event(event, call.input);
        let name = match call.subject {
            Some(subject) => format!("{event}:{subject}"),
            None => event.to_string(),
        };
        let runs = chosen.iter().map(|hook| async {
            let id = uuid::Uuid::new_v4().to_string();
            let shown = HookRun { id, event: event.to_string(), name: name.clone() };
            let told = Told::begin(&self.around.host, who, shown);
            let result = self.run_one(who, event, hook, &input, worktree.as_ref()).await;
            told.end(&result);
            result
        });
        join_all(runs).await.into_iter().fold(HookResult::default(), HookResult::merge)
    }

    async fn run_one(
        &self,
        who: &Who,
        event: HookEvent,
        hook: &HookDeclaration,
        input: &Value,
        worktree: Option<&Utf8PathBuf>,
    ) -> HookResult {
        let limit = hook.timeout.unwrap_or(USUAL_TIMEOUT);
        if let Some(callback) = &hook.callback {
            let said = self.ask_host(who, callback, input, limit).await;
            return answer::heard(event, hook, said);
        }
        let launch = self.confine(hook, self.launch(hook, line(input)), worktree);
        let ran = process::run(self.around.processes.as_ref(), launch, limit).await;
        if let (Some(sandbox), Some(refusal)) = (&self.around.sandbox, answer::refused(&ran)) {
            sandbox.record(&format!("{event} hook {}", hook.command), &refusal);
        }
        answer::read(event, hook, &ran)
    }

    /// Puts a hook into its sandbox, beside the runtime. The error is why it cannot be started.
    async fn confine(
        &self,
        hook: &HookDeclaration,
        launch: Launch,
        worktree: Option<&Utf8PathBuf>,
    ) -> Result<Launch, String> {
        let Some(sandbox) = self.around.sandbox.clone() else { return Ok(launch) };
        let (hook, worktree) = (hook.clone(), worktree.cloned());
        let confine = move || sandbox.confine_hook(&hook, worktree.as_deref(), launch);
        let confined = tokio::task::spawn_blocking(confine).await.map_err(|error| error.to_string())?;
        confined.map_err(|error| error.to_string())
    }

    async fn ask_host(
        &self,
        who: &Who,
        callback: &str,
        input: &Value,
        limit: Duration,
    ) -> Result<Value, HostFailure> {
        let call = input.get("tool_use_id").and_then(Value::as_str).map(|id| CallId(id.to_owned()));
        let asked = HostAsked::Hook { callback: callback.to_owned(), input: input.clone(), call };
        self.around.host.ask(who, asked, limit).await
    }

    fn choose(&self, call: &HookCall<'_>) -> Vec<HookDeclaration> {
        let of_skills = self.of_skills();
        choose(self.armed.iter().chain(&of_skills.armed), call)
    }

    fn launch(&self, hook: &HookDeclaration, line: Vec<u8>) -> Launch {
        let cwd = self.around.cwd.as_std_path();
        let launch = match &hook.args {
            None => shell::bash(&hook.command, cwd, false),
            Some(args) => {
                // There is no shell that could do it.
                let filled = |text: &String| self.fill_in(hook, text);
                Launch::new(self.fill_in(hook, &hook.command), cwd).args(args.iter().map(filled))
            }
        };
        Launch { env: self.environment(hook), stdin: Stdin::Bytes(line), output: Output::Separate, ..launch }
    }

    /// The names that stand for folders, and what they stand for.
    fn folders<'a>(&'a self, hook: &'a HookDeclaration) -> impl Iterator<Item = (&'static str, &'a str)> {
        let project = ["CLAUDE_PROJECT_DIR", "DECURION_PROJECT_DIR"];
        let plugin = ["CLAUDE_PLUGIN_ROOT", "DECURION_PLUGIN_ROOT"];
        let root = hook.plugin_root.iter().flat_map(move |root| plugin.map(|name| (name, root.as_str())));
        project.map(|name| (name, self.around.project.as_str())).into_iter().chain(root)
    }

    fn environment(&self, hook: &HookDeclaration) -> Vec<(OsString, OsString)> {
        let mut added: Vec<(OsString, OsString)> =
            self.folders(hook).map(|(name, folder)| (name.into(), folder.into())).collect();
        added.push(("DECURION_SESSION_ID".into(), self.around.session.to_string().into()));
        let given = self.around.environment.iter();
        let kept: Vec<_> =
            given.filter(|(name, _)| added.iter().all(|(ours, _)| ours != name)).cloned().collect();
        kept.into_iter().chain(added).collect()
    }

    fn fill_in(&self, hook: &HookDeclaration, text: &str) -> String {
        let fill = |text: String, (name, folder): (&str, &str)| text.replace(&format!("${{{name}}}"), folder);
        self.folders(hook).fold(text.to_owned(), fill)
    }
}

/// What is wrong with the matchers of these, in words.
pub fn problems(declarations: &[HookDeclaration]) -> Vec<String> {
    arm(declarations.to_vec()).1
}

/// Declarations ready to be matched, and a sentence about each that is left out.
fn arm(declarations: Vec<HookDeclaration>) -> (Vec<Arc<Armed>>, Vec<String>) {
    let (mut armed, mut problems) = (Vec::new(), Vec::new());
    for declaration in declarations {
        match Matcher::new(declaration.matcher.as_deref()) {
            Ok(matcher) => {
                let spent = AtomicBool::new(false);
                armed.push(Arc::new(Armed { declaration, matcher, spent }));
            }
            // A function of the host sees for itself what it is called for, and may be a guard: too often is harmless,
            // never is not.
            Err(reason) if declaration.callback.is_some() => {
                problems.push(format!(
                    "{}: called for everything: the matcher of this {} hook is not a pattern here ({reason}): {:?}",
                    declaration.source,
                    declaration.event,
                    declaration.matcher.as_deref().unwrap_or_default(),
                ));
                let (matcher, spent) = (Matcher::Everything, AtomicBool::new(false));
                armed.push(Arc::new(Armed { declaration, matcher, spent }));
            }
            Err(reason) => problems.push(format!(
                "{}: left out: the matcher of this {} hook is not a pattern ({reason}): {:?}",
                declaration.source,
                declaration.event,
                declaration.matcher.unwrap_or_default(),
            )),
        }
    }
    (armed, problems)
}

impl std::fmt::Debug for Hooks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.armed.iter().map(|armed| &armed.declaration)).finish()
    }
}

impl Matcher {
    fn new(pattern: Option<&str>) -> Result<Self, String> {
        let Some(pattern) = pattern.filter(|pattern| !matches!(*pattern, "" | "*")) else {
            return Ok(Self::Everything);
        };
        let compile = |pattern: &str| {
            let compiled = RegexBuilder::new(pattern).size_limit(MATCHER_BYTES).build();
            // The library draws a picture of several lines; the last one says it.
            compiled.map_err(|error| error.to_string().lines().last().unwrap_or_default().trim().to_owned())
        };
        // By itself first, so that no parenthesis of it closes ours.
        compile(pattern)?;
        compile(&format!(r"\A(?:{pattern})\z")).map(Self::Whole)
    }

    fn matches(&self, event: HookEvent, subject: Option<&str>) -> bool {
        let (Self::Whole(pattern), Some(subject)) = (self, subject) else { return true };
        pattern.is_match(subject)
            || (event.is_about_a_call() && other_name(subject).is_some_and(|other| pattern.is_match(other)))
    }
}

/// A hook that whoever listens was told of. However it ends, also by nobody waiting for it any more, they are told.
struct Told<'a> {
    host: &'a HostDesk,
    who: &'a Who,
    /// None once its end is told.
    hook: Option<HookRun>,
}

impl<'a> Told<'a> {
    fn begin(host: &'a HostDesk, who: &'a Who, hook: HookRun) -> Self {
        host.tell(who, Event::HookStarted { hook: hook.clone() });
        Self { host, who, hook: Some(hook) }
    }

    fn end(mut self, result: &HookResult) {
        let Some(hook) = self.hook.take() else { return };
        let report = result.reports.first();
        let text = |part: fn(&HookReport) -> &String| report.map(part).cloned().unwrap_or_default();
        let is_well = report.is_none_or(|report| report.outcome == HookOutcome::Success);
        let ended = Event::HookEnded {
            hook,
            stdout: text(|report| &report.stdout),
            stderr: text(|report| &report.stderr),
            exit_code: report.and_then(|report| report.exit_code),
            ending: if is_well { HookEnding::Success } else { HookEnding::Error },
        };
        self.host.tell(self.who, ended);
    }
}

impl Drop for Told<'_> {
    fn drop(&mut self) {
        if let Some(hook) = self.hook.take() {
            self.host.tell(self.who, Event::hook_cancelled(hook));
        }
    }
}

/// The tool that starts agents has two names, and hooks were written for both.
fn other_name(tool: &str) -> Option<&'static str> {
    match tool {
        "Agent" => Some("Task"),
        "Task" => Some("Agent"),
        _ => None,
    }
}

/// The hooks to run. A command that is declared twice runs once, as strictly as either declaration wants.
fn choose<'a>(armed: impl Iterator<Item = &'a Arc<Armed>>, call: &HookCall<'_>) -> Vec<HookDeclaration> {
    let mut chosen: Vec<HookDeclaration> = Vec::new();
    for hook in armed {
        let declaration = &hook.declaration;
        let concerned = declaration.event == call.event
            && hook.matcher.matches(call.event, call.subject)
            && declaration.if_rule.as_deref().is_none_or(call.rule_matches);
        if !concerned || (declaration.once && hook.spent.swap(true, Ordering::Relaxed)) {
            continue;
        }
        let same = |other: &&mut HookDeclaration| {
            (&other.command, &other.callback, &other.args, &other.plugin_root)
                == (&declaration.command, &declaration.callback, &declaration.args, &declaration.plugin_root)
        };
        match chosen.iter_mut().find(same) {
            None => chosen.push(declaration.clone()),
            Some(first) => {
                let [one, other] =
                    [&first.timeout, &declaration.timeout].map(|own| own.unwrap_or(USUAL_TIMEOUT));
                first.timeout = Some(one.max(other));
                first.on_failure = first.on_failure.max(declaration.on_failure);
            }
        }
    }
    chosen
}

/// What hooks read: one object …
fn with_event(event: HookEvent, mut input: Map<String, Value>) -> Value {
    input.insert("hook_event_name".to_owned(), Value::from(event.name()));
    Value::Object(input)
}

/// … on one line.
fn line(input: &Value) -> Vec<u8> {
    let mut line = input.to_string().into_bytes();
    line.push(b'\n');
    line
}

#[cfg(test)]
mod tests {
    use decurion_protocol::OnFailure;
    use serde_json::json;

    use super::*;

    fn around() -> HookSurroundings {
        HookSurroundings {
            processes: None,
            sandbox: None,
            environment: Arc::from([]),
            cwd: "/".into(),
            project: "/project".into(),
            session: "018f3b1e-0000-7000-8000-000000000000".parse().unwrap(),
            host: HostDesk::default(),
        }
    }

    fn hook(event: HookEvent, command: &str) -> HookDeclaration {
        HookDeclaration::new(event, command)
    }

    fn chosen(hooks: &Hooks, event: HookEvent, subject: Option<&str>) -> Vec<HookDeclaration> {
        let rule_matches = |rule: &str| rule == "yes";
        let who = &Who { run: crate::ports::new_run(), agent: None };
        let input = Map::new();
        hooks.choose(&HookCall { who, event, subject, input, worktree: None, rule_matches: &rule_matches })
    }

    #[test]
    fn matchers_match_whole_names() {
        use HookEvent::{PreToolUse, SessionStart, Stop, SubagentStop};
        let rows: &[(Option<&str>, HookEvent, Option<&str>, bool)] = &[
            (None, PreToolUse, Some("Bash"), true),
            (Some(""), PreToolUse, Some("Bash"), true),
            (Some("*"), PreToolUse, Some("Bash"), true),
            (Some("Bash"), PreToolUse, Some("Bash"), true),
            (Some("Bash"), PreToolUse, Some("BashOutput"), false),
            (Some("Bash"), PreToolUse, Some("bash"), false),
            (Some("ash"), PreToolUse, Some("Bash"), false),
            (Some("Edit|Write"), PreToolUse, Some("Write"), true),
            (Some("Edit|Write"), PreToolUse, Some("WriteAll"), false),
            (Some("Edit|EditAll"), PreToolUse, Some("EditAll"), true),
            (Some("Notebook.*"), PreToolUse, Some("NotebookEdit"), true),
            (Some("mcp__.*__get"), PreToolUse, Some("mcp__db__get"), true),
            (Some("Task"), PreToolUse, Some("Agent"), true),
            (Some("Agent"), PreToolUse, Some("Task"), true),
            (Some("Ag.*"), PreToolUse, Some("Task"), true),
            (Some("Task"), PreToolUse, Some("TaskStop"), false),
            (Some("Task"), SubagentStop, Some("Agent"), false),
            (Some("Explore"), SubagentStop, Some("Explore"), true),
            (Some("resume"), SessionStart, Some("startup"), false),
            (Some("anything"), Stop, None, true),
        ];
        for (pattern, event, subject, expected) in rows {
            let matcher = Matcher::new(*pattern).unwrap();
            assert_eq!(matcher.matches(*event, *subject), *expected, "{pattern:?} on {subject:?}");
        }
    }

    #[test]
    fn a_matcher_that_is_no_pattern_is_named_and_its_hook_left_out() {
        for pattern in ["*.py", "a)|(b", "(?!Bash).*", r"(\w{1000}){1000}", "(?x)a #"] {
            let declaration = HookDeclaration {
                matcher: Some(pattern.into()),
                source: "f.json: hooks.Stop[0]".into(),
                ..hook(HookEvent::Stop, "x")
            };
            let hosts = HookDeclaration { callback: Some("h".into()), ..declaration.clone() };
            let (hooks, problems) = Hooks::new(vec![hosts], around());
            assert!(problems[0].contains("called for everything"), "{problems:?}");
            assert_eq!(chosen(&hooks, HookEvent::Stop, Some("anything")).len(), 1, "{pattern}");
            let (hooks, problems) = Hooks::new(vec![declaration, hook(HookEvent::Stop, "y")], around());
            assert_eq!(hooks.armed.len(), 1);
            let [problem] = &problems[..] else { panic!("{problems:?}") };
            assert!(problem.starts_with("f.json: hooks.Stop[0]: left out: the matcher of this Stop hook"));
            assert!(problem.ends_with(&format!("{pattern:?}")) && !problem.contains('\n'), "{problem}");
        }
    }

    #[test]
    fn event_matcher_rule_and_once_choose() {
        let declarations = vec![
            HookDeclaration { matcher: Some("Bash".into()), ..hook(HookEvent::PreToolUse, "bash") },
            HookDeclaration { if_rule: Some("yes".into()), ..hook(HookEvent::PreToolUse, "if") },
            HookDeclaration { if_rule: Some("no".into()), ..hook(HookEvent::PreToolUse, "never") },
            HookDeclaration { once: true, ..hook(HookEvent::PreToolUse, "once") },
            hook(HookEvent::Stop, "stop"),
        ];
        let (hooks, _) = Hooks::new(declarations, around());
        let (with_own, _) = hooks.and(vec![hook(HookEvent::PreToolUse, "own")]);
        let names = |hooks: &Hooks, tool: &str| {
            let chosen = chosen(hooks, HookEvent::PreToolUse, Some(tool));
            chosen.into_iter().map(|hook| hook.command).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(names(&with_own, "Edit"), "if once own");
        assert_eq!(names(&with_own, "Bash"), "bash if own", "once is once");
        assert_eq!(names(&hooks, "Bash"), "bash if", "for all agents of the session");
        assert!(hooks.wait_for(HookEvent::Stop) && !hooks.wait_for(HookEvent::SubagentStop));
    }

    #[test]
    fn a_command_declared_twice_runs_once_and_as_strictly_as_either() {
        let seconds = |seconds| Some(Duration::from_secs(seconds));
        let with =
            |timeout, on_failure| HookDeclaration { timeout, on_failure, ..hook(HookEvent::Stop, "same") };
        let rows = [
            (with(None, OnFailure::Default), with(seconds(5), OnFailure::Continue), 60, OnFailure::Default),
            (with(seconds(1), OnFailure::Continue), with(seconds(5), OnFailure::Block), 5, OnFailure::Block),
            (with(seconds(90), OnFailure::Block), with(None, OnFailure::Default), 90, OnFailure::Block),
        ];
        for (first, second, limit, on_failure) in rows {
            let others = HookDeclaration { args: Some(vec![]), ..hook(HookEvent::Stop, "same") };
            let (hooks, _) = Hooks::new(vec![first, second, others], around());
            let chosen = chosen(&hooks, HookEvent::Stop, None);
            assert_eq!(chosen.len(), 2, "one for the shell, one a program");
            assert_eq!((chosen[0].timeout, chosen[0].on_failure), (seconds(limit), on_failure));
        }
    }

    #[test]
    fn the_environment_is_what_was_given_and_three_names_that_are_ours() {
        let given = [("PATH", "/bin"), ("CLAUDE_PROJECT_DIR", "/elsewhere")];
        let given = given.map(|(name, value)| (OsString::from(name), OsString::from(value)));
        let (hooks, _) = Hooks::new(vec![], HookSurroundings { environment: Arc::from(given), ..around() });
        let program = HookDeclaration {
            args: Some(vec!["${CLAUDE_PROJECT_DIR}/x".into(), "$HOME".into()]),
            ..hook(HookEvent::Stop, "${DECURION_PROJECT_DIR}/run")
        };
        let launch = hooks.launch(&program, Vec::new());
        assert_eq!(
            (launch.program, launch.args),
            ("/project/run".into(), vec!["/project/x".into(), "$HOME".into()])
        );
        let lines: Vec<_> = launch
            .env
            .iter()
            .map(|(name, value)| format!("{}={}", name.display(), value.display()))
            .collect();
        assert_eq!(
            lines,
            [
                "PATH=/bin",
                "CLAUDE_PROJECT_DIR=/project",
                "DECURION_PROJECT_DIR=/project",
                "DECURION_SESSION_ID=018f3b1e-0000-7000-8000-000000000000",
            ]
        );
    }

    #[test]
    fn the_input_is_one_line() {
        let Value::Object(input) = json!({"prompt": "a\nb", "hook_event_name": "Other"}) else { return };
        let line = String::from_utf8(line(&with_event(HookEvent::Stop, input))).unwrap();
        assert_eq!(line, "{\"prompt\":\"a\\nb\",\"hook_event_name\":\"Stop\"}\n");
    }
}
