//! Decisions about shell calls. Takes a text that was taken apart; decides by its parts, each of which must be
//! harmless or allowed.

use camino::{Utf8Path, Utf8PathBuf};
use decurion_protocol::intent::{ShellCommand, ShellIntent, ShownFiles, WideTouch};
use decurion_protocol::{Access, Decision, Mode, Profile, Rule, Touch, Verdict};
use serde_json::Value;

use super::commands::{self, Allowed, Match};
use super::paths::{self, Reading};
use super::{Question, Walls, allow, ask, decision, deny};
use crate::symlinks::Reach;

/// One command of a shell text with its own verdict, for people.
#[derive(Clone, Debug, PartialEq)]
pub struct Part {
    /// The command, with what deceives made visible.
    pub text: String,
    /// Whether it would go ahead by itself.
    pub fine: bool,
    /// Why, or why not.
    pub why: String,
}

/// The parts of a shell call, each with its verdict.
pub fn explain(
    policy: &super::Policy,
    tool: &str,
    input: &Value,
    intent: &decurion_protocol::Intent,
) -> Vec<Part> {
    let question = Question { policy, tool, input, intent };
    let Some(shell) = &intent.shell else { return Vec::new() };
    let show = |(index, command): (usize, &ShellCommand)| {
        let text = decurion_tools::bash::visible(&command.text);
        let elsewhere = command.inside.as_ref().is_some_and(|inside| inside.elsewhere);
        let (fine, why) = if elsewhere {
            (true, "runs elsewhere: only deny and ask rules apply".to_owned())
        } else {
            match part(&question, shell, index) {
                Ok(rule) => {
                    (true, rule.map_or_else(|| "harmless".to_owned(), |rule| format!("allowed by {rule}")))
                }
                Err(why) => (false, why),
            }
        };
        Part { text, fine, why }
    };
    shell.commands.iter().enumerate().map(show).collect()
}

/// Decides about a shell call.
pub(crate) fn decide(question: &Question<'_>) -> Decision {
    let (Some(shell), Some(text)) = (&question.intent.shell, text(question)) else {
        return question.forbidden_first().unwrap_or_else(|| ask("the command is not known"));
    };
    if let Some(decision) = question.forbidden_first() {
        let read = is_for_kernel(question, shell).then(|| read_only(question, shell, text)).flatten();
        return read.unwrap_or(decision);
    }
    let mode = question.policy.mode;
    if mode == Mode::Plan {
        let planned = plan(question, shell);
        return match planned.verdict {
            Verdict::Allow => {
                Decision { profile: Some(Profile::ReadOnly).filter(|_| is_enforced(question)), ..planned }
            }
            _ => read_only(question, shell, text).unwrap_or(planned),
        };
    }
    if question.input.get("dangerouslyDisableSandbox") == Some(&Value::Bool(true)) {
        let asked = question.undecided("running outside the sandbox is asked about each time");
        // Only an answer leads outside, and no mode.
        let profile = Some(Profile::Outside).filter(|_| asked.verdict == Verdict::Ask);
        return Decision { profile, ..asked };
    }
    let decided = by_rules(question, shell, text);
    if decided.verdict == Verdict::Allow {
        return decided;
    }
    read_only(question, shell, text).or_else(|| confined(question, shell)).unwrap_or(decided)
}

/// What rules that allow say, and what is harmless by itself.
fn by_rules(question: &Question<'_>, shell: &ShellIntent, text: &str) -> Decision {
    let allowing = &question.policy.rules.allow;
    let own = |rule: &&Rule| rule.tool == "Bash" || rule.tool == question.tool;
    let exact = |rule: &&Rule| {
        rule.specifier
            .as_deref()
            .is_some_and(|specifier| specifier.trim() == text.trim() && !specifier.contains('*'))
    };
    if let Some(rule) = allowing.iter().filter(own).find(exact) {
        return decision(Verdict::Allow, Some(rule), format!("allowed by {rule}"));
    }
    let everything =
        |rule: &&Rule| rule.specifier.as_deref().is_none_or(|specifier| matches!(specifier, "**" | "*"));
    if let Some(rule) = allowing.iter().filter(own).find(everything) {
        return match reaches_too_far(question, shell) {
            Some(reason) => question.undecided(reason),
            None => decision(Verdict::Allow, Some(rule), format!("allowed by {rule}")),
        };
    }
    if let Some(unclear) = unclear(shell) {
        let reason = first_reason(question, shell).filter(|_| doubt(shell).is_none());
        let reason = reason.unwrap_or_else(|| format!("Decurion does not fully understand it: {unclear}"));
        return question.undecided(reason);
    }
    if let Some(reason) = moved_before(shell) {
        return question.undecided(reason);
    }
    let mut used = None;
    for index in 0..shell.commands.len() {
        match part(question, shell, index) {
            Ok(rule) => used = used.or(rule),
            Err(reason) => return question.undecided(reason),
        }
    }
    if let Some(rule) = used {
        return decision(
            Verdict::Allow,
            Some(rule),
            format!("every command is harmless or allowed, by {rule}"),
        );
    }
    let reads = shell.commands.iter().all(|command| command.read_only || command.wrapper);
    let profile = Some(Profile::ReadOnly).filter(|_| reads && is_enforced(question));
    Decision { profile, ..allow("every command in it only reads, or does what the rules for paths allow") }
}

fn is_enforced(question: &Question<'_>) -> bool {
    question.policy.walls != Walls::Absent
}

/// Whether all that is not known is if a rule about paths denies what the text may touch. Of a command that only reads,
/// the kernel sees to that, but for files that git has recorded: it cannot hide some of them.
fn is_for_kernel(question: &Question<'_>, shell: &ShellIntent) -> bool {
    let Some((_, Match::Maybe)) = question.first_forbidding(&question.policy.rules.deny) else {
        return false;
    };
    let about_paths = |rule: &Rule| super::denied_access(&rule.tool).is_some();
    let in_history = |rule: &Rule| {
        let shown = shell.commands.iter().filter_map(|command| command.shown.as_ref());
        rule.tool == "Read"
            && shown
                .into_iter()
                .any(|shown| may_show(rule.specifier.as_deref(), shown, &question.policy.around))
    };
    let unsure = question.policy.rules.deny.iter().filter(|rule| question.forbidden(rule) == Match::Maybe);
    unsure.into_iter().all(|rule| about_paths(rule) && !in_history(rule))
        && question.first_forbidding(&question.policy.rules.ask).is_none()
}

/// The decision about a text that looks as if it only reads, where the kernel sees to it that it does no more. What it
/// reads by names in its text is decided as ever; what it finds out while it runs is in the working directories, or
/// not personal.
fn read_only(question: &Question<'_>, shell: &ShellIntent, text: &str) -> Option<Decision> {
    // What is excluded runs without the sandbox, so that only what is known to read needs no question.
    let excluded = question.policy.excluded.covers(shell);
    if !is_enforced(question) || excluded || !decurion_tools::bash::seems_to_read(text, shell) {
        return None;
    }
    let around = &question.policy.around;
    let may_read =
        |path: &Utf8Path| paths::is_of_system(path) || question.path_allowed(path, Access::Read).is_ok();
    let named = shell.commands.iter().flat_map(|command| &command.touches).map(|touch| touch.path.as_path());
    let wide = shell.commands.iter().flat_map(|command| &command.wide);
    let inside = |wide: &WideTouch| {
        let fixed = paths::fixed_part(&wide.pattern);
        // Where it begins is not known from the text.
        fixed == "/" || paths::is_of_system(&fixed) || paths::stays_inside(wide, around) || may_read(&fixed)
    };
    if !named.into_iter().all(may_read) || !wide.into_iter().all(inside) {
        return None;
    }
    let reason = "it looks as if it only reads, and the sandbox lets it do nothing else";
    Some(Decision { profile: Some(Profile::ReadOnly), ..allow(reason) })
}

/// The decision about a text that can do nothing but what is allowed anyway: change the working directories.
fn confined(question: &Question<'_>, shell: &ShellIntent) -> Option<Decision> {
    let elsewhere = |command: &ShellCommand| command.inside.as_ref().is_some_and(|inside| inside.elsewhere);
    if question.policy.walls != Walls::Trusted || shell.commands.iter().any(elsewhere) {
        return None;
    }
    Some(allow(
        "the sandbox lets it change nothing but the working directories (sandbox.autoAllowBashIfSandboxed)",
    ))
}

fn text<'a>(question: &Question<'a>) -> Option<&'a str> {
    question.input.get("command")?.as_str()
}

/// Why a text is not fully understood.
fn doubt(shell: &ShellIntent) -> Option<&str> {
    let inner = |command: &'_ ShellCommand| !command.inside.as_ref().is_some_and(|inside| inside.elsewhere);
    shell.doubt.as_deref().or_else(|| {
        shell.commands.iter().filter(|command| inner(command)).find_map(|command| command.doubt.as_deref())
    })
}

/// Why paths of a text may not be what they were when it was decided: a command before renames or copies links, or
/// makes files that a glob then finds.
fn moved_before(shell: &ShellIntent) -> Option<String> {
    let program =
        |command: &ShellCommand| command.words.get(command.assigned).map_or("", String::as_str).to_owned();
    let writes = |command: &ShellCommand| command.touches.iter().any(|touch| touch.access == Access::Write);
    let (mut moved, mut written) = (false, false);
    for command in &shell.commands {
        let uses = !command.touches.is_empty() || !command.wide.is_empty();
        if moved && uses {
            return Some(format!("where its paths lead may change while it runs: {}", command.text));
        }
        if written && !command.may_find_flags.is_empty() {
            return Some(format!("which files its globs find may change while it runs: {}", command.text));
        }
        let copies = command
            .words
            .iter()
            .any(|word| word.starts_with('-') && word.contains(['r', 'R', 'a', 'd', 'P']));
        moved |= match path_name(&program(command)) {
            "mv" | "ln" | "link" => true,
            "cp" => copies,
            _ => false,
        };
        written |= writes(command);
    }
    None
}

/// Why an edit that needs no question could change where other paths lead: it moves or copies links, or a repository. What
/// was decided for commands that are under way would then hold for other files.
fn carries_links(question: &Question<'_>, command: &ShellCommand) -> Option<String> {
    let own = command.words.get(command.assigned..).unwrap_or_default();
    let keeps_links = |word: &String| word.starts_with('-') && word.contains(['r', 'R', 'a', 'd', 'P']);
    match path_name(own.first().map_or("", String::as_str)) {
        "mv" => {}
        "cp" if own.iter().any(keeps_links) => {}
        _ => return None,
    }
    let trails = &question.policy.around.trails;
    // The target stands there with the names that would be in it.
    let is_target = |path: &Utf8Path| command.touches.iter().any(|touch| touch.path.parent() == Some(path));
    let of_git = |path: &Utf8Path| {
        path.file_name().is_some_and(|name| matches!(&*name.to_lowercase(), ".git" | "head"))
    };
    let reach = Reach { parts: &[], matches: &|_, _| false, follows: true };
    let carries = |path: &Utf8Path| {
        trails.of(path).iter().any(|step| step.link == path)
            || trails.met(path, &reach).is_none_or(|links| !links.is_empty())
            || (trails.looks() && trails.any_below(path, &of_git).unwrap_or(true))
    };
    let paths = command.touches.iter().map(|touch| touch.path.as_path());
    let carried = paths.filter(|path| !is_target(path)).find(|path| carries(path))?;
    Some(format!("there are links or a repository in what it moves or copies: {carried}"))
}

fn path_name(program: &str) -> &str {
    program.rsplit('/').next().unwrap_or(program)
}

/// Why a text as a whole needs a question: it is not understood, or more than literal commands one after the other.
fn unclear(shell: &ShellIntent) -> Option<&str> {
    doubt(shell).or(shell.not_literal.as_deref())
}

fn plan(question: &Question<'_>, shell: &ShellIntent) -> Decision {
    if let Some(doubt) = unclear(shell) {
        return deny(format!(
            "mode plan changes nothing, and Decurion does not fully understand this: {doubt}"
        ));
    }
    for command in &shell.commands {
        if !command.read_only {
            return deny(format!("mode plan changes nothing: {}", command.text));
        }
        if let Err(reason) = touches_allowed(question, command) {
            return ask(reason);
        }
    }
    allow("every command in it only reads")
}

/// What a rule for all of Bash does not reach.
fn reaches_too_far(question: &Question<'_>, shell: &ShellIntent) -> Option<String> {
    for command in &shell.commands {
        for touch in command.touches.iter().filter(|touch| touch.access == Access::Write) {
            // What runs without the sandbox has no folder of its own there.
            let temporary = !question.policy.excluded.covers(shell)
                && (touch.path.starts_with("/tmp") || touch.path.starts_with("/var/tmp"));
            if paths::protected(&touch.path, &question.policy.around).is_some() {
                return Some(format!("it writes to a protected path: {}", touch.path));
            }
            if !temporary
                && question.path_allowed(&touch.path, Access::Write).is_err()
                && !paths::is_inside(&touch.path, &question.policy.around)
            {
                return Some(format!("it writes outside the working directory: {}", touch.path));
            }
        }
    }
    None
}

/// What in a text that is more than literal commands needs a question: what it writes outside of the working directories,
/// or the first command in it that would need one by itself. Either says more to a person than that there is a loop.
fn first_reason(question: &Question<'_>, shell: &ShellIntent) -> Option<String> {
    let outside = reaches_too_far(question, shell);
    outside.or_else(|| (0..shell.commands.len()).find_map(|index| part(question, shell, index).err()))
}

/// Whether one command may go ahead, and by which rule; else why not.
fn part<'q>(question: &Question<'q>, shell: &ShellIntent, index: usize) -> Result<Option<&'q Rule>, String> {
    let command = &shell.commands[index];
    if command.inside.as_ref().is_some_and(|inside| inside.elsewhere) || command.wrapper {
        return Ok(None);
    }
    if let Some(doubt) = &command.doubt {
        return Err(format!("{doubt}: {}", command.text));
    }
    // Whoever wrote down a command wrote down its operands, and nothing of where its output goes.
    if let Some((rule, Allowed::Exactly)) = allowed(question, shell, index)
        && command.redirections == 0
    {
        return Ok(Some(rule));
    }
    let touches = touches_allowed(question, command);
    let lends = lends(shell, index);
    if command.read_only && !lends {
        return touches.map(|()| None);
    }
    let edits = !command.read_only && command.because.is_some();
    if command.files_only && !lends && (!edits || question.policy.mode == Mode::AcceptEdits) {
        return match carries_links(question, command) {
            Some(reason) if allowed(question, shell, index).is_none() => Err(reason),
            _ => touches.map(|()| None),
        };
    }
    match allowed(question, shell, index) {
        Some((rule, _)) => match touches
            .and_then(|()| no_protected(question, command, rule))
            .and_then(|()| nothing_outside(question, command, rule))
        {
            Ok(()) => Ok(Some(rule)),
            Err(reason) => Err(format!("{reason}; {}", beyond(question, command, rule))),
        },
        None => Err(match command.hazards.first().map(|hazard| &hazard.why).or(command.because.as_ref()) {
            Some(because) => format!("{because}, and no rule allows it: {}", command.text),
            None => format!("no rule allows it: {}", command.text),
        }),
    }
}

/// Whether nothing that a program is given is a protected path which the rule does not name: it may write there by an
/// option that is not known, where a redirection would be asked about.
fn no_protected(question: &Question<'_>, command: &ShellCommand, rule: &Rule) -> Result<(), String> {
    let specifier = rule.specifier.as_deref().unwrap_or("");
    // What git does to its own files is judged with its options.
    let program = command.words.get(command.assigned).and_then(|word| word.rsplit('/').next());
    let judged = |path: &camino::Utf8PathBuf| command.touches.iter().any(|touch| touch.path == *path);
    // For many programs this word names a revision.
    let revision = question.policy.around.cwd.join("HEAD");
    let unnamed = |path: &&camino::Utf8PathBuf| {
        !judged(path)
            && **path != revision
            && paths::protected(path, &question.policy.around)
                .is_some_and(|part| !specifier.to_lowercase().contains(&part))
    };
    match command.mentions.iter().chain(&command.leads).find(unnamed) {
        Some(path) if program != Some("git") => Err(format!("it is given a protected path: {path}")),
        _ => Ok(()),
    }
}

/// Whether nothing that a program is given is a path outside of the working directories which neither the rule names
/// nor another one allows to write: what it does there is not known.
fn nothing_outside(question: &Question<'_>, command: &ShellCommand, rule: &Rule) -> Result<(), String> {
    let judged = |path: &Utf8Path| command.touches.iter().any(|touch| touch.path == *path);
    let fine = |path: &Utf8Path| {
        paths::is_inside(path, &question.policy.around)
            || judged(path)
            || question.path_allowed(path, Access::Write).is_ok()
    };
    let specifier = rule.specifier.as_deref().unwrap_or("");
    for given in &command.given {
        let word = command.words.get(given.word).map_or("", String::as_str);
        if given.path.as_deref().is_some_and(fine) || commands::names(specifier, word) {
            continue;
        }
        return Err(match &given.path {
            Some(path) => format!("it is given a path outside the working directory: {path}"),
            None => format!("its text does not show what it is given: {word}"),
        });
    }
    Ok(())
}

/// What is missing where a rule allows a program and nothing allows the files that it uses.
fn beyond(question: &Question<'_>, command: &ShellCommand, rule: &Rule) -> String {
    let refused = |touch: &&Touch| question.path_allowed(&touch.path, touch.access).is_err();
    let Some(touch) = command.touches.iter().find(refused) else {
        return format!("`{rule}` allows the program, not the files it uses");
    };
    let path = match touch.path.strip_prefix(&question.policy.around.cwd) {
        Ok(inside) => inside.to_string(),
        Err(_) => format!("/{}", touch.path),
    };
    let around = &question.policy.around;
    // `Edit` alone does not speak for what is protected or lies elsewhere.
    let is_plain = paths::is_inside(&touch.path, around) && paths::protected(&touch.path, around).is_none();
    match touch.access {
        Access::Write => format!(
            "`{rule}` allows the program, not the file it writes: add {}`Write({path})`",
            if is_plain { "`Edit`, or " } else { "" }
        ),
        Access::Read => format!("`{rule}` allows the program, not the file it reads: add `Read({path})`"),
    }
}

/// Whether a command that is harmless in itself runs one that is not: then a rule for the inner one does not
/// speak for both.
fn lends(shell: &ShellIntent, index: usize) -> bool {
    shell.commands.iter().enumerate().skip(index + 1).any(|(inner, command)| {
        command.inside.as_ref().is_some_and(|inside| {
            inside.command == index && !inside.elsewhere && (!command.read_only || lends(shell, inner))
        })
    })
}

/// Whether a rule holds the very words of a command, and with them the paths among them.
pub(crate) fn is_written_down(question: &Question<'_>, shell: &ShellIntent, index: usize) -> bool {
    let has_redirections = shell.commands.get(index).is_none_or(|command| command.redirections != 0);
    !has_redirections && matches!(allowed(question, shell, index), Some((_, Allowed::Exactly)))
}

/// The rule that allows a command: by its own words, or by those of the command that runs it.
fn allowed<'q>(question: &Question<'q>, shell: &ShellIntent, index: usize) -> Option<(&'q Rule, Allowed)> {
    let rules: &'q [Rule] = &question.policy.rules.allow;
    let find = |command: &ShellCommand, reaches: &dyn Fn(Allowed) -> bool| {
        let mut best: Option<(&'q Rule, Allowed)> = None;
        for rule in rules.iter().filter(|rule| rule.tool == "Bash" || rule.tool == question.tool) {
            let Some(specifier) = rule.specifier.as_deref() else { continue };
            if let Some(allowed) = commands::allows(specifier, command).filter(|allowed| reaches(*allowed))
                && (best.is_none() || allowed == Allowed::Exactly)
            {
                best = Some((rule, allowed));
            }
        }
        best
    };
    if let Some(found) = find(&shell.commands[index], &|_| true) {
        return Some(found);
    }
    // A rule that names the runner and what it runs covers both.
    let mut inner = &shell.commands[index];
    for _ in 0..64 {
        let inside = inner.inside.as_ref()?;
        let outer = shell.commands.get(inside.command)?;
        let reaches = |allowed: Allowed| match allowed {
            Allowed::Exactly => true,
            Allowed::Prefix(words) => inside.word.is_some_and(|word| words > word),
        };
        if let Some(found) = find(outer, &reaches) {
            return Some(found);
        }
        inner = outer;
    }
    None
}

fn touches_allowed(question: &Question<'_>, command: &ShellCommand) -> Result<(), String> {
    for touch in &command.touches {
        question.path_allowed(&touch.path, touch.access)?;
    }
    for wide in &command.wide {
        wide_allowed(question, wide)?;
    }
    Ok(())
}

fn wide_allowed(question: &Question<'_>, wide: &WideTouch) -> Result<(), String> {
    let fixed = paths::fixed_part(&wide.pattern);
    if wide.access == Access::Write {
        // What a glob would write to may be protected.
        return Err(format!("cannot tell which paths it writes below {fixed}"));
    }
    if paths::stays_inside(wide, &question.policy.around) {
        return Ok(());
    }
    let everywhere = |rule: &Rule| rule.tool == "Read" && rule.specifier.is_none();
    if question.policy.rules.allow.iter().any(everywhere) {
        return Ok(());
    }
    if fixed == "/" {
        return Err("cannot tell which paths it reads".to_owned());
    }
    question.path_allowed(&fixed, Access::Read).map(|_| ())
}

/// Whether a shell call stays within the commands an agent was given.
pub(crate) fn granted(question: &Question<'_>, rules: &[&Rule]) -> bool {
    let Some(shell) = &question.intent.shell else { return false };
    if unclear(shell).is_some() {
        return false;
    }
    let named = |command: &ShellCommand| {
        rules.iter().any(|rule| {
            rule.specifier.as_deref().is_some_and(|specifier| commands::allows(specifier, command).is_some())
        })
    };
    shell.commands.iter().any(named)
        && shell.commands.iter().all(|command| {
            let elsewhere = command.inside.as_ref().is_some_and(|inside| inside.elsewhere);
            command.read_only || command.wrapper || elsewhere || named(command)
        })
}

/// How a rule that forbids covers a shell call.
pub(crate) fn forbidden(question: &Question<'_>, rule: &Rule) -> Match {
    let access = match rule.tool.as_str() {
        "Bash" => return command_forbidden(question, rule),
        tool if let Some(access) = super::denied_access(tool) => access,
        tool if super::tool_matches(tool, question.tool, Reading::Wide) => return Match::Yes,
        _ => return Match::No,
    };
    let Some(shell) = &question.intent.shell else { return Match::No };
    let around = &question.policy.around;
    let mut best = Match::No;
    for command in &shell.commands {
        for touch in &command.touches {
            // What may be read may not be written over, and what may not be written may still be read.
            let concerned =
                touch.access == access || (access == Access::Read && touch.access == Access::Write);
            if !concerned {
                continue;
            }
            best = best.max(match rule.specifier.as_deref() {
                None if touch.access == access => Match::Yes,
                Some(specifier) if paths::covers(specifier, &touch.path, around, Reading::Wide) => Match::Yes,
                Some(specifier) if paths::covering(specifier, around)(&touch.path) => Match::Maybe,
                None | Some(_) => Match::No,
            });
        }
        let shown = command.shown.as_ref().filter(|_| access == Access::Read);
        if shown.is_some_and(|shown| may_show(rule.specifier.as_deref(), shown, around)) {
            best = best.max(Match::Maybe);
        }
        let Some(specifier) = rule.specifier.as_deref() else { continue };
        if through_process(command, access) {
            best = best.max(Match::Maybe);
        }
        let changes = changes_trees(command);
        let concerned = |wide: &&WideTouch| wide.access == access || wide.access == Access::Write || changes;
        for wide in command.wide.iter().filter(concerned) {
            let wide = WideTouch { below: wide.below || changes, ..wide.clone() };
            if may_cover(specifier, &wide, around) {
                best = best.max(Match::Maybe);
            }
        }
        let here = implicit(command).then_some(&around.cwd);
        for path in command.mentions.iter().chain(&command.leads).chain(here) {
            if paths::covers(specifier, path, around, Reading::Wide) {
                best = best.max(Match::Yes);
            } else if changes && may_cover(specifier, &below(path, access), around) {
                // What lies below is changed as well, or has another name then, which what follows may use.
                best = best.max(Match::Maybe);
            }
        }
        if let Some(code) = command.code.as_deref().filter(|_| !command.read_only) {
            let name =
                specifier.trim_end_matches("/**").trim_end_matches('/').rsplit('/').next().unwrap_or("");
            if name.len() > 2 && !name.contains('*') && code.contains(name) {
                best = best.max(Match::Maybe);
            }
        }
    }
    if best == Match::No && rule.specifier.is_some() && doubt(shell).is_some() {
        return Match::Maybe;
    }
    best
}

/// Whether a path of a command leads through a link of a process (`/proc/self/cwd/x`, `/dev/fd/3/x`): where that
/// leads for the command is not known here.
fn through_process(command: &ShellCommand, access: Access) -> bool {
    let concerned = |found: Access| found == access || found == Access::Write;
    let touched = command.touches.iter().filter(|touch| concerned(touch.access)).map(|touch| &touch.path);
    let written = command.climbs.iter().map(|climb| &climb.written);
    let named = command.mentions.iter().chain(&command.leads).chain(&command.program);
    let wide = command.wide.iter().filter(|wide| concerned(wide.access));
    touched.chain(written).chain(named).any(|path| paths::is_of_process(path))
        || wide.map(|wide| paths::fixed_part(&wide.pattern)).any(|path| paths::is_of_process(&path))
}

/// Whether a rule that forbids could cover something of a set of paths. Where that is all that lies below a folder,
/// what is there now decides.
fn may_cover(specifier: &str, wide: &WideTouch, around: &super::Around) -> bool {
    if !paths::may_cover(specifier, wide, around) {
        return false;
    }
    let fixed = paths::fixed_part(&wide.pattern);
    let plain = wide.below && !wide.follows && paths::special_parts(&wide.pattern).is_empty();
    let covered = |path: &Utf8Path| paths::covering(specifier, around)(path);
    !plain || fixed == "/" || around.trails.any_below(&fixed, &covered).unwrap_or(true)
}

/// Whether a file that git shows, as it is or was, could be one that a rule forbids to read. What was once in a
/// repository is not known; what git has in its index is.
fn may_show(specifier: Option<&str>, shown: &ShownFiles, around: &super::Around) -> bool {
    let Some(specifier) = specifier else { return true };
    let covered = paths::covering(specifier, around);
    let any_below = |folder: &Utf8PathBuf| {
        paths::may_cover(specifier, &below(folder, Access::Read), around)
            && !(shown.tracked
                && around.trails.looks()
                && crate::repository::any_tracked(folder, &covered) == Some(false))
    };
    shown.files.iter().any(|path| covered(path)) || shown.below.iter().any(any_below)
}

/// Whether a command changes, moves or links whole trees that it names.
fn changes_trees(command: &ShellCommand) -> bool {
    const PROGRAMS: &str = "rm rmdir mv cp ln link unlink mount rsync install shred truncate chmod chown chgrp chattr setfacl \
        find fd fdfind sed perl tar unzip cpio 7z patch rename dd tee git touch mkdir";
    let program = command.words.get(command.assigned).and_then(|word| word.rsplit('/').next());
    !command.read_only
        && program.is_some_and(|program| PROGRAMS.split_whitespace().any(|known| known == program))
}

/// Whether a command changes the folder it runs in without naming it.
fn implicit(command: &ShellCommand) -> bool {
    let own = command.words.get(command.assigned..).unwrap_or_default();
    let mut words = own.iter().map(|word| word.rsplit('/').next().unwrap_or(word));
    let program = words.next();
    let subcommand = words.find(|word| !word.starts_with('-')).unwrap_or("");
    match program {
        _ if command.read_only => false,
        Some("tar" | "unzip" | "cpio" | "7z" | "patch") => true,
        Some("git") => matches!(
            subcommand,
            "clean"
                | "checkout"
                | "restore"
                | "reset"
                | "stash"
                | "switch"
                | "apply"
                | "am"
                | "pull"
                | "merge"
                | "rebase"
                | "revert"
                | "cherry-pick"
                | "read-tree"
                | "checkout-index"
        ),
        _ => false,
    }
}

fn below(path: &Utf8Path, access: Access) -> WideTouch {
    WideTouch {
        pattern: paths::escaped(path),
        below: true,
        visible: false,
        follows: false,
        names: false,
        access,
    }
}

fn command_forbidden(question: &Question<'_>, rule: &Rule) -> Match {
    let Some(specifier) = rule.specifier.as_deref() else { return Match::Yes };
    let (Some(shell), Some(text)) = (&question.intent.shell, text(question)) else { return Match::Maybe };
    let mut best = if text.trim() == specifier.trim() { Match::Yes } else { Match::No };
    for command in &shell.commands {
        best = best.max(commands::forbids(specifier, command));
    }
    if best < Match::Yes && doubt(shell).is_some() {
        best = best.max(commands::mentions(specifier, text));
    }
    best
}
