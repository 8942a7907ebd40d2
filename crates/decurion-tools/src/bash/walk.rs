//! From syntax to commands. Takes a parsed text and where it would run; gives every simple command in it,
//! also those inside substitutions and behind runners, with what each would touch.
//!
//! Nothing is computed: what a variable holds or how often a loop runs is not looked at. A command whose words all
//! stand in the text can be known to only read; any other needs a rule. What is more than commands one after the
//! other (a loop, an assignment, arithmetic) is noted as *not literal*, and such a text is asked about.

use camino::{Utf8Path, Utf8PathBuf};
use decurion_protocol::intent::{Climb, GivenPath, Inside, ShellCommand, ShownFiles, WideTouch};
use decurion_protocol::{Access, Touch};

use super::expand::{Field, PIPE, Pattern, escape, fields, single};
use super::hazard::Hazards;
use super::program::{Call, Kind, judge};
use super::runner::{Inner, Style, runs};
use super::syntax::{
    AndOr, Arithmetic, Assign, Body, Command, MAX_DEPTH, Part, Redirect, RedirectKind, Script, Word,
    is_identifier, parse,
};
use super::{MAX_COMMANDS, given, hazard, path, variable};
use crate::Surroundings;

/// Commands are collected up to this number, so that rules which forbid see more than is ever allowed.
const COLLECTED: usize = 5 * MAX_COMMANDS;

/// Walks a text's tree.
pub(crate) struct Walker<'a> {
    around: &'a Surroundings,
    bodies: Vec<Word>,
    state: State,
    depth: usize,
    pub commands: Vec<ShellCommand>,
    /// What was not understood.
    pub doubt: Option<String>,
    /// What is more than literal commands one after the other.
    pub not_literal: Option<String>,
    /// Whether the directory may change.
    pub moves: bool,
}

/// What is known at one point of the text.
#[derive(Clone)]
struct State {
    /// The directories the shell may be in.
    directories: Vec<Utf8PathBuf>,
    /// Whether a change of directory here would be seen by an earlier command.
    repeats: bool,
    /// Whether its input comes from another command.
    piped: bool,
}

/// How far a path reaches that a command is given.
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own, and any may go with any")]
#[derive(Clone, Copy, Default)]
struct Reach {
    /// All that lies below is meant too.
    below: bool,
    /// But for names that start with a dot.
    visible: bool,
    /// And what links lead to that are met there.
    follows: bool,
    /// Only the names are used.
    names: bool,
}

/// One command about to be judged.
#[derive(Clone, Default)]
struct Job {
    assigns: Vec<String>,
    fields: Vec<Field>,
    touches: Vec<Touch>,
    wide: Vec<WideTouch>,
    climbs: Vec<Climb>,
    inside: Option<Inside>,
    doubt: Option<String>,
    /// What of it does not stand in the text as it is, besides its fields.
    not_literal: Option<String>,
    /// How many redirections it has to or from files.
    redirections: u32,
    /// Texts given as input.
    input: Vec<String>,
}

impl<'a> Walker<'a> {
    /// A walker that starts where the shell would.
    pub fn new(around: &'a Surroundings, bodies: Vec<Word>) -> Self {
        let state = State { directories: vec![around.cwd.clone()], repeats: false, piped: false };
        let (commands, doubt, not_literal) = (Vec::new(), None, None);
        Self { around, bodies, state, depth: 0, commands, doubt, not_literal, moves: false }
    }

    fn doubt(&mut self, text: impl Into<String>) {
        self.doubt.get_or_insert_with(|| text.into());
    }

    fn not_literal(&mut self, text: impl Into<String>) {
        self.not_literal.get_or_insert_with(|| text.into());
    }

    pub fn script(&mut self, script: &Script) {
        for list in &script.lists {
            if list.background {
                self.not_literal("it runs something in the background");
                let state = self.state.clone();
                self.and_or(list);
                self.state = state;
            } else {
                self.and_or(list);
            }
        }
    }

    fn and_or(&mut self, list: &AndOr) {
        let mut others = self.state.directories.clone();
        self.pipeline(&list.first);
        // What runs after a failure runs where the shell was before, and so may all that follows it: in
        // `a || cd b && c` nothing tells which of the two succeeded.
        let mut may_have_failed = list.negated;
        for (on_success, stages) in &list.rest {
            may_have_failed |= !on_success;
            if may_have_failed {
                merge(&mut self.state.directories, &others);
            }
            merge(&mut others, &self.state.directories);
            self.pipeline(stages);
        }
        merge(&mut self.state.directories, &others);
        if self.state.directories.len() > 8 {
            self.doubt("the directory cannot be told");
            self.state.directories.truncate(8);
        }
    }

    fn pipeline(&mut self, stages: &[Command]) {
        if let [only] = stages {
            return self.command(only);
        }
        // Every stage runs in a shell of its own.
        let state = self.state.clone();
        for (index, stage) in stages.iter().enumerate() {
            self.state = State { repeats: false, piped: state.piped || index > 0, ..state.clone() };
            self.command(stage);
        }
        self.state = state;
    }

    /// Walks something that runs in a shell of its own.
    fn apart(&mut self, script: &Script) {
        let state = self.state.clone();
        self.state.repeats = false;
        self.script(script);
        self.state = state;
    }

    /// Walks something that may not run, or run more than once.
    fn perhaps(&mut self, script: &Script, repeats: bool) {
        let before = self.state.clone();
        self.state.repeats |= repeats;
        self.script(script);
        self.state.repeats = before.repeats;
        merge(&mut self.state.directories, &before.directories);
    }

    fn command(&mut self, command: &Command) {
        if self.depth > MAX_DEPTH {
            return self.doubt("the text is nested too deeply");
        }
        self.depth += 1;
        if let Body::Simple { assigns, words } = &command.body {
            self.simple(assigns, words, &command.redirects);
        } else {
            self.redirected(&command.redirects);
            self.compound(&command.body);
        }
        self.depth -= 1;
    }

    /// Redirections of a compound command, as a command of their own without words.
    fn redirected(&mut self, redirects: &[Redirect]) {
        if redirects.is_empty() {
            return;
        }
        let mut job = Job::default();
        self.redirects(redirects, &mut job);
        self.push(job, Call::harmless());
    }

    fn compound(&mut self, body: &Body) {
        match body {
            Body::Simple { .. } => {}
            Body::Subshell(script) => return self.apart(script),
            Body::Group(script) => return self.script(script),
            Body::If(scripts) => {
                for script in scripts {
                    self.perhaps(script, false);
                }
            }
            Body::Loop(condition, body) => {
                self.perhaps(condition, true);
                self.perhaps(body, true);
            }
            Body::For { name, words, body } => self.each(name, words.as_deref(), body),
            Body::ForArithmetic(arithmetic, body) => {
                self.arithmetic(arithmetic);
                self.perhaps(body, true);
            }
            Body::Case { subject, patterns, branches } => {
                self.nested(&subject.parts);
                for pattern in patterns {
                    self.nested(&pattern.parts);
                }
                for branch in branches {
                    self.perhaps(branch, false);
                }
            }
            Body::Test(words) => self.test(words),
            Body::Arithmetic(arithmetic) => self.arithmetic(arithmetic),
            Body::Function(body) => {
                self.doubt("it defines a function");
                let state = self.state.clone();
                self.command(body);
                self.state = state;
            }
        }
        self.not_literal("it has loops, conditions or the like");
    }

    fn each(&mut self, name: &str, words: Option<&[Word]>, body: &Script) {
        for word in words.unwrap_or_default() {
            // Names that a glob finds in some directory are looked at as well.
            for field in self.fields(word).into_iter().filter(Field::is_glob) {
                let mut job = Job::default();
                self.touch(&field, Access::Read, Reach::default(), &mut job);
                job.fields = vec![Field::literal(":"), field];
                self.push(job, Call::harmless());
            }
        }
        if variable::is_dangerous(name) {
            self.doubt(format!("it sets {name}"));
        }
        self.perhaps(body, true);
    }

    /// The commands inside a word's parts.
    fn nested(&mut self, parts: &[Part]) {
        for part in parts {
            match part {
                Part::Command { script, .. } | Part::Process(script) => self.apart(script),
                Part::Arithmetic(arithmetic) => self.arithmetic(arithmetic),
                Part::Param(param) => self.nested(&param.nested),
                Part::Text { .. } | Part::Ansi(_) | Part::Glob(_) | Part::Mark(_) | Part::Tilde(_) => {}
            }
        }
    }

    fn fields(&mut self, word: &Word) -> Vec<Field> {
        self.nested(&word.parts);
        fields(word, self.around.home.as_deref()).unwrap_or_else(|doubt| {
            self.doubt(doubt);
            vec![Field::unknown(&word.source)]
        })
    }

    /// Bash evaluates the *contents* of variables in arithmetic, commands in subscripts included, so only numbers
    /// that stand in the text pass.
    fn arithmetic(&mut self, arithmetic: &Arithmetic) {
        self.nested(&arithmetic.nested);
        let named = arithmetic.text.contains(|c: char| c.is_alphabetic() || c == '_');
        if named || !arithmetic.nested.is_empty() {
            self.doubt("arithmetic with something that is not known to be a number");
        }
        self.not_literal("it calculates");
    }

    fn test(&mut self, words: &[Word]) {
        for word in words {
            self.nested(&word.parts);
        }
        let number = |word: Option<&Word>| {
            word.and_then(Word::bare).is_some_and(|text| {
                let digits = text.strip_prefix('-').unwrap_or(&text);
                !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
            })
        };
        for (index, word) in words.iter().enumerate() {
            let evaluates = match word.bare().as_deref() {
                Some("-eq" | "-ne" | "-lt" | "-le" | "-gt" | "-ge") => {
                    let before = index.checked_sub(1).and_then(|before| words.get(before));
                    !number(before) || !number(words.get(index + 1))
                }
                Some("-v" | "-R") => {
                    !words.get(index + 1).and_then(Word::bare).is_some_and(|name| is_identifier(&name))
                }
                _ => false,
            };
            if evaluates {
                self.doubt("a test that evaluates what it is given");
            }
        }
    }

    fn simple(&mut self, assigns: &[Assign], words: &[Word], redirects: &[Redirect]) {
        let mut job = Job::default();
        for assign in assigns {
            self.assign(assign, &mut job);
        }
        if words.is_empty() && !assigns.is_empty() {
            self.not_literal("it sets a variable");
        }
        let program = words.first().and_then(Word::bare);
        // `IFS= read -r line` changes nothing but how that line is read.
        if program.as_deref() == Some("read") && assigns.iter().all(|assign| assign.name == "IFS") {
            job.doubt = None;
        }
        let shows = matches!(program.as_deref(), Some("echo" | "exit" | "test" | "["));
        for word in words {
            let fields = if shows { self.fields(&with_status(word)) } else { self.fields(word) };
            job.fields.extend(fields);
        }
        self.redirects(redirects, &mut job);
        self.run(job);
    }

    fn assign(&mut self, assign: &Assign, job: &mut Job) {
        self.nested(&assign.value.parts);
        let mark = if assign.append { "+" } else { "" };
        job.assigns.push(match single(&assign.value, self.around.home.as_deref()) {
            Some(value) => format!("{}{mark}={value}", assign.name),
            None => written(assign),
        });
        job.not_literal = Some(format!("it sets {}", assign.name));
        if variable::is_dangerous(&assign.name) {
            job.doubt = Some(format!("it sets {}", assign.name));
        }
    }

    fn redirects(&mut self, redirects: &[Redirect], job: &mut Job) {
        for redirect in redirects {
            match redirect.kind {
                RedirectKind::Duplicate => {}
                RedirectKind::HereString => {
                    self.nested(&redirect.target.parts);
                    let text = single(&redirect.target, self.around.home.as_deref());
                    if text.is_none() {
                        job.not_literal = Some("its input is not known".to_owned());
                    }
                    job.input.push(text.unwrap_or_else(|| redirect.target.source.clone()));
                }
                RedirectKind::HereDocument => self.here_document(redirect, job),
                kind => self.redirect(kind, &redirect.target, job),
            }
        }
    }

    fn redirect(&mut self, kind: RedirectKind, target: &Word, job: &mut Job) {
        job.redirections += 1;
        for field in self.fields(target) {
            if field.pattern.as_ref().is_some_and(|pattern| is_network(&pattern.text)) {
                job.doubt = Some("it opens a connection".to_owned());
            }
            if !field.literal || field.is_glob() || kind == RedirectKind::ReadWrite {
                job.not_literal = Some(format!("where it redirects to is not known, {}", target.source));
            }
            if kind != RedirectKind::Write {
                self.touch(&field, Access::Read, Reach::default(), job);
            }
            if kind != RedirectKind::Read {
                self.touch(&field, Access::Write, Reach::default(), job);
            }
        }
    }

    fn here_document(&mut self, redirect: &Redirect, job: &mut Job) {
        let Some(body) = redirect.body.and_then(|index| self.bodies.get(index)).cloned() else { return };
        self.nested(&body.parts);
        if !body.parts.iter().all(|part| matches!(part, Part::Text { .. })) {
            job.not_literal = Some("its input is not known".to_owned());
        }
        let plain = |part: &Part| match part {
            Part::Text { .. } => true,
            Part::Param(param) => param.nested.is_empty(),
            _ => false,
        };
        if !body.parts.iter().all(plain) {
            job.doubt = Some("a here-document runs something".to_owned());
        }
        job.input.push(body.source);
    }

    /// Notes what an operand or a redirection would touch.
    fn touch(&self, field: &Field, access: Access, reach: Reach, job: &mut Job) {
        let Reach { below, visible, follows, names } = reach;
        let Some(Pattern { text, glob }) = &field.pattern else {
            let pattern = "/".to_owned();
            job.wide.push(WideTouch { pattern, below: true, visible: false, follows: false, names, access });
            return;
        };
        for directory in &self.state.directories {
            job.climbs.extend(path::climb(directory, text, *glob));
            if *glob {
                let pattern = path::absolute_glob(directory, text);
                let below = below || pattern == "/";
                job.wide.push(WideTouch { pattern, below, visible, follows, names, access });
                continue;
            }
            let absolute = path::absolute(directory, text);
            if is_stream(&absolute) {
                continue;
            }
            if below {
                let pattern = escape(absolute.as_str());
                job.wide.push(WideTouch { pattern, below: true, visible, follows, names, access });
            }
            job.touches.push(Touch { path: absolute, access });
        }
    }

    fn run(&mut self, mut job: Job) {
        if self.commands.len() >= COLLECTED || self.depth > MAX_DEPTH {
            return self.doubt("there are too many commands in it");
        }
        let Some(first) = job.fields.first() else {
            // Assignments and redirections alone.
            return self.push(job, Call::harmless());
        };
        let Some(program) = first.known().map(str::to_owned) else {
            let doubt = format!("which program it would run is not known, {}", first.text);
            return self.push(job, Call::doubtful(doubt));
        };
        if let Some(doubt) = strange_name(&program) {
            return self.push(job, Call::doubtful(doubt));
        }
        if !first.literal {
            // Rules that forbid see what it is; nothing allows it.
            job.doubt = Some(format!("the program's name is not written out, {program}"));
        }
        let (name, trusted) = path::program(&program);
        let arguments = job.fields[1..].to_vec();
        if self.shell_builtin(&name, &arguments, &job) {
            return;
        }
        if let Some(runs) = runs(&name, &arguments) {
            return self.runner(job, &name, trusted, runs);
        }
        let call = if trusted {
            let call = judge(&name, self.here(&name, &arguments));
            let inside = |directory: &Utf8PathBuf| self.is_inside(directory);
            if name == "git" && call.kind == Kind::Reads && !self.state.directories.iter().all(inside) {
                Call::other("git runs in another directory")
            } else {
                call
            }
        } else {
            Call::other("it is a program from an unusual place")
        };
        self.push(job, call);
    }

    fn is_inside(&self, path: &Utf8Path) -> bool {
        path.starts_with(&self.around.cwd)
            || self.around.directories.iter().any(|root| path.starts_with(root))
    }

    /// The arguments of `git` without a `-C` that leads to where it is anyway.
    fn here<'f>(&self, name: &str, arguments: &'f [Field]) -> &'f [Field] {
        match arguments {
            [flag, place, rest @ ..] if name == "git" && flag.known() == Some("-C") => {
                let stays = place.known().is_some_and(|place| {
                    !place.is_empty()
                        // Behind a link `..` is another place than the text says.
                        && !place.split('/').any(|part| part == "..")
                        && self
                            .state
                            .directories
                            .iter()
                            .all(|from| path::absolute(from, place) == self.around.cwd)
                });
                if stays { rest } else { arguments }
            }
            _ => arguments,
        }
    }

    fn runner(&mut self, job: Job, name: &str, trusted: bool, runs: super::runner::Runs) {
        let own_assigns = job.assigns.clone();
        let input = job.input.clone();
        let mut call = match &runs.rest {
            Some(rest) => judge(name, rest),
            None => Call::harmless(),
        };
        if let Some(doubt) = runs.doubt {
            call = Call { doubt: Some(doubt), ..call };
        }
        if runs.style == Style::Own || !trusted {
            let because =
                if trusted { runs.because } else { Some("it is a program from an unusual place".into()) };
            let because = because.unwrap_or_else(|| "it runs another command".to_owned());
            call = Call { kind: Kind::Other, because: Some(because), ..call };
        }
        call.reads.extend(runs.reads);
        if runs.assigns.iter().any(|assign| variable::is_dangerous(assign.split('=').next().unwrap_or(""))) {
            call.doubt = Some("it sets a variable that changes what is run".to_owned());
        }
        // These run in the shell itself, where a change of directory lasts.
        let moves = |word: &Field| matches!(word.known(), Some("cd" | "pushd" | "popd"));
        if matches!(name, "command" | "builtin") && job.fields.iter().any(moves) {
            self.moves = true;
            call.doubt = Some("the directory cannot be told".to_owned());
        }
        let redirected = job.touches.iter().any(|touch| touch.access == Access::Write)
            || job.wide.iter().any(|wide| wide.access == Access::Write);
        let plain = call.doubt.is_none() && job.not_literal.is_none() && trusted && !redirected;
        let parent = self.commands.len();
        self.push(job, call);
        if let Some(outer) = self.commands.get_mut(parent) {
            outer.wrapper = runs.style == Style::Wrapper && plain;
        }
        self.depth += 1;
        let moved_before = std::mem::take(&mut self.moves);
        for inner in runs.inner {
            let assigns: Vec<String> = own_assigns.iter().chain(&runs.assigns).cloned().collect();
            self.inner(inner, parent, assigns);
        }
        // A text that runs in the shell itself moves what follows, or all that follows.
        if matches!(name, "eval" | "trap") && self.moves {
            self.doubt("the directory cannot be told");
        }
        self.moves |= moved_before;
        if super::runner::feeds_shell(name) {
            for text in input {
                self.text(&text, parent, true);
            }
        }
        self.depth -= 1;
    }

    fn inner(&mut self, inner: Inner, parent: usize, assigns: Vec<String>) {
        match inner {
            Inner::Words { from, words, elsewhere } => {
                // The program's own name comes before its arguments.
                let word = self.commands.get(parent).map(|outer| outer.assigned + 1 + from);
                let inside = Inside { command: parent, word, elsewhere };
                let not_literal = (!assigns.is_empty()).then(|| "it sets a variable".to_owned());
                let job = Job { assigns, fields: words, inside: Some(inside), not_literal, ..Job::default() };
                let (state, doubt, loose) =
                    (self.state.clone(), self.doubt.clone(), self.not_literal.clone());
                self.run(job);
                self.state = state;
                if elsewhere {
                    (self.doubt, self.not_literal) = (doubt, loose);
                }
            }
            Inner::Text { text, elsewhere } => self.text(&text, parent, elsewhere),
        }
    }

    /// A text that another command would give to a shell.
    fn text(&mut self, text: &str, parent: usize, elsewhere: bool) {
        if self.depth > MAX_DEPTH {
            return self.doubt("the text is nested too deeply");
        }
        let parsed = parse(text);
        let start = self.commands.len();
        let (state, doubt, not_literal) = (self.state.clone(), self.doubt.clone(), self.not_literal.clone());
        let bodies = std::mem::replace(&mut self.bodies, parsed.bodies);
        self.state.repeats = false;
        self.depth += 1;
        self.script(&parsed.script);
        self.depth -= 1;
        self.bodies = bodies;
        self.state = state;
        if elsewhere {
            (self.doubt, self.not_literal) = (doubt, not_literal);
        } else if let Some(doubt) = parsed.doubt {
            self.doubt(doubt);
        }
        for command in &mut self.commands[start..] {
            match &mut command.inside {
                Some(inside) => inside.elsewhere |= elsewhere,
                none => *none = Some(Inside { command: parent, word: None, elsewhere }),
            }
        }
    }

    /// Builtins that change what is known. Says whether it was one.
    fn shell_builtin(&mut self, name: &str, arguments: &[Field], job: &Job) -> bool {
        let call = match name {
            "cd" => {
                self.change_directory(arguments, job.clone());
                return true;
            }
            "pushd" | "popd" => {
                self.moves = true;
                Call::doubtful("the directory cannot be told")
            }
            // These evaluate the subscript of a name that they are given, and some the value.
            "read" | "export" | "readonly" | "unset" if arguments.iter().all(sets_plain_name) => {
                Call::other("it changes the shell's variables")
            }
            "read" | "export" | "readonly" | "unset" | "declare" | "typeset" | "local" | "let"
            | "mapfile" | "readarray" | "getopts" => {
                Call::doubtful("it changes variables that change what is run")
            }
            // `compgen -C` and `-W` run a text, and the others change what a name or a key runs.
            "compgen" | "complete" | "compopt" | "bind" | "enable" => {
                Call::doubtful("it may run something, or change what is run")
            }
            _ => return false,
        };
        self.push(job.clone(), call);
        true
    }

    fn change_directory(&mut self, arguments: &[Field], mut job: Job) {
        let moved_before = std::mem::replace(&mut self.moves, true);
        let operands: Vec<&Field> =
            arguments.iter().filter(|argument| argument.known() != Some("--")).collect();
        let target = match operands.as_slice() {
            [] => self.around.home.as_ref().map(|home| Field::literal(home.as_str())),
            [only] => Some((*only).clone()),
            _ => None,
        };
        // The shell goes up by the name of where it is, and where there is no such folder, from where links led.
        let plain = |text: &str| {
            let below = text.trim_start_matches("../").trim_end_matches('/');
            let goes_up = below == ".." || below.len() < text.trim_end_matches('/').len();
            let turns_back = below != ".." && below.split('/').any(|part| part == "..");
            let is_unclear = turns_back || (goes_up && moved_before);
            !is_unclear && !text.is_empty() && !text.starts_with('-')
        };
        let pattern = target.as_ref().and_then(|target| target.pattern.as_ref());
        match (&target, pattern) {
            (Some(target), Some(Pattern { text, glob: false })) if plain(text) && !self.state.repeats => {
                self.touch(target, Access::Read, Reach::default(), &mut job);
                let mut directories = Vec::new();
                for directory in &self.state.directories {
                    let next = path::absolute(directory, text);
                    if !directories.contains(&next) {
                        directories.push(next);
                    }
                }
                directories.truncate(16);
                self.state.directories = directories;
                self.push(job, Call::harmless());
            }
            _ => {
                self.state.directories.push(Utf8PathBuf::from("/"));
                self.push(job, Call::doubtful("the directory cannot be told"));
            }
        }
    }

    fn push(&mut self, mut job: Job, mut call: Call) {
        let mut hazards = Hazards::default();
        if let Some((program, arguments)) = job.fields.split_first()
            && call.kind != Kind::Reads
        {
            hazards = hazard::hazards(&path::program(&program.text).0, arguments);
            call.reads.append(&mut hazards.reads);
            call.writes.append(&mut hazards.writes);
            for hazard in &mut hazards.found {
                // After the assignments and the program's name.
                hazard.word += job.assigns.len() + 1;
            }
        }
        let reach =
            Reach { below: call.below, visible: call.visible, follows: call.follows, names: call.names };
        for field in &call.reads {
            if field.known() != Some("-") {
                self.touch(field, Access::Read, reach, &mut job);
            }
        }
        for field in &call.writes {
            let reach = Reach { below: call.below, ..Reach::default() };
            self.touch(field, Access::Write, reach, &mut job);
        }
        if call.here {
            self.touch(&Field::literal("."), Access::Read, Reach { below: true, ..reach }, &mut job);
        }
        if call.anywhere {
            self.touch(&Field::unknown(""), Access::Read, Reach::default(), &mut job);
        }
        // Whatever the program, a glob shows the names in a directory.
        for field in &job.fields.clone() {
            if field.is_glob() && !call.reads.contains(field) && !call.writes.contains(field) {
                let reach = Reach { names: call.kind == Kind::Reads, ..Reach::default() };
                self.touch(field, Access::Read, reach, &mut job);
            }
        }
        let may_find_flags = self.may_find_flags(&job.fields);
        let mentions = if call.kind == Kind::Reads { Vec::new() } else { self.mentions(&mut job) };
        let given = if call.kind == Kind::Reads { Vec::new() } else { self.given(&mut job) };
        let code = inline_code(&job.fields, &job.input, self.state.piped);
        let program = self.program_paths(&job.fields);
        let writes = job.touches.iter().any(|touch| touch.access == Access::Write)
            || job.wide.iter().any(|wide| wide.access == Access::Write);
        let repositories = self.repositories(&job).unwrap_or_else(|doubt| {
            job.doubt.get_or_insert(doubt);
            Vec::new()
        });
        let shown = self.shown(&job.fields);
        let doubt = job.doubt.take().or(call.doubt);
        let loose = job.fields.iter().find(|field| !field.literal);
        let loose = loose.map(|field| format!("what it is given is not known from the text, {}", field.text));
        let not_literal = job.not_literal.take().or(loose);
        let known = doubt.is_none() && not_literal.is_none();
        let unknown = job
            .fields
            .iter()
            .enumerate()
            .filter(|(_, field)| field.known().is_none())
            .map(|(index, _)| index + job.assigns.len())
            .collect();
        let assigned = job.assigns.len();
        let words: Vec<String> =
            job.assigns.into_iter().chain(job.fields.iter().map(|field| field.text.clone())).collect();
        self.commands.push(ShellCommand {
            text: words.iter().map(|word| super::quote(word)).collect::<Vec<_>>().join(" "),
            words,
            assigned,
            unknown,
            read_only: known && call.kind == Kind::Reads && !writes,
            files_only: known && (call.kind == Kind::Edits || (call.kind == Kind::Reads && writes)),
            redirections: job.redirections,
            wrapper: false,
            doubt,
            because: call.because.or(not_literal),
            touches: job.touches,
            wide: job.wide,
            mentions,
            leads: Vec::new(),
            given,
            climbs: job.climbs,
            code,
            repositories,
            shown,
            program,
            hazards: hazards.found,
            may_find_flags,
            inside: job.inside,
        });
    }

    /// Where a call of git may begin to look for its repository.
    fn repositories(&self, job: &Job) -> Result<Vec<Utf8PathBuf>, String> {
        let program = job.fields.first().and_then(Field::known).map(|program| path::program(program).0);
        match program.as_deref() {
            Some("git") => super::git::places(&job.fields[1..], &self.state.directories),
            _ => Ok(Vec::new()),
        }
    }

    /// What a call of git shows of files.
    fn shown(&self, fields: &[Field]) -> Option<ShownFiles> {
        let program = path::program(fields.first()?.known()?).0;
        let shown = match program.strip_prefix("git-") {
            // Its subcommands are programs too.
            Some(subcommand) => super::git::shown(&[&[Field::literal(subcommand)], &fields[1..]].concat()),
            None if program == "git" => super::git::shown(&fields[1..]),
            None => None,
        }?;
        let directories = super::git::places(&fields[1..], &self.state.directories);
        let directories = directories.unwrap_or_else(|_| self.state.directories.clone());
        let absolute = |paths: &[String]| -> Vec<Utf8PathBuf> {
            let joined = |directory: &Utf8PathBuf| {
                paths.iter().map(|path| path::absolute(directory, path)).collect::<Vec<_>>()
            };
            directories.iter().flat_map(joined).collect()
        };
        // Where the repository begins is not known here.
        let tops = directories.iter().flat_map(|directory| directory.ancestors());
        let of_top =
            |top: &Utf8Path| shown.files.iter().map(|path| path::absolute(top, path)).collect::<Vec<_>>();
        Some(ShownFiles {
            files: tops.flat_map(of_top).collect(),
            below: absolute(&shown.below),
            perhaps: absolute(&shown.perhaps),
            all: shown.all,
            tracked: shown.tracked,
        })
    }

    /// The program's file, where a path names it.
    fn program_paths(&self, fields: &[Field]) -> Vec<Utf8PathBuf> {
        let Some(path) = fields.first().and_then(Field::known).filter(|text| text.contains('/')) else {
            return Vec::new();
        };
        self.state.directories.iter().map(|directory| path::absolute(directory, path)).collect()
    }

    /// Globs of which a file with a name like a flag would be taken for one.
    fn may_find_flags(&self, fields: &[Field]) -> Vec<String> {
        let finding = fields.iter().filter(|field| field.may_find_flag());
        let absolute = |glob: &Pattern| {
            let directories = self.state.directories.iter();
            directories.map(|directory| path::absolute_glob(directory, &glob.text)).collect::<Vec<_>>()
        };
        finding.filter_map(|field| field.pattern.as_ref()).flat_map(absolute).collect()
    }

    /// Operands that could be paths.
    fn mentions(&self, job: &mut Job) -> Vec<Utf8PathBuf> {
        let mut found = Vec::new();
        for pattern in job.fields.iter().skip(1).filter_map(|field| field.pattern.as_ref()) {
            let text = pattern.text.as_str();
            let after = |mark: char| text.split_once(mark).map(|(_, tail)| tail);
            // `-o/x/y`: a letter and its value.
            let glued = text
                .strip_prefix('-')
                .and_then(|tail| tail.find('/').filter(|at| *at == 1).map(|_| &tail[1..]));
            for candidate in [Some(text), after('='), after('@'), after(':'), glued].into_iter().flatten() {
                if candidate.is_empty()
                    || candidate.starts_with('-')
                    || candidate.len() > 4096
                    || found.len() >= 256
                {
                    continue;
                }
                for directory in &self.state.directories {
                    job.climbs.extend(path::climb(directory, candidate, false));
                    found.push(path::absolute(directory, candidate));
                }
            }
        }
        found
    }

    /// Paths that the program may open because its words name them. Those that are inside by their text are listed
    /// too: links may lead out.
    fn given(&self, job: &mut Job) -> Vec<GivenPath> {
        let Some((program, arguments)) = job.fields.split_first() else { return Vec::new() };
        let mut found: Vec<GivenPath> = Vec::new();
        for given::Given { argument, text } in given::given(&path::program(&program.text).0, arguments) {
            // After the assignments and the program's name.
            let word = argument + job.assigns.len() + 1;
            let Some(text) = text else {
                found.push(GivenPath { word, path: None });
                continue;
            };
            let text = match (text.strip_prefix('~'), &self.around.home) {
                (Some(rest), Some(home)) if rest.is_empty() || rest.starts_with('/') => {
                    format!("{home}{rest}")
                }
                (Some(_), _) => format!("/{text}"),
                (None, _) => text,
            };
            for directory in &self.state.directories {
                job.climbs.extend(path::climb(directory, &text, false));
                let path = path::absolute(directory, &text);
                let new = GivenPath { word, path: Some(path) };
                if !new.path.as_deref().is_some_and(is_stream) && !found.contains(&new) {
                    found.push(new);
                }
            }
        }
        found
    }
}

fn merge(into: &mut Vec<Utf8PathBuf>, from: &[Utf8PathBuf]) {
    for directory in from {
        if !into.contains(directory) {
            into.push(directory.clone());
        }
    }
}

/// An assignment as it is written, with its name in one piece: a line may be continued inside of it.
fn written(assign: &Assign) -> String {
    let source = &assign.value.source;
    let mark = if assign.append { "+" } else { "" };
    let rest = source.split_once('=').filter(|_| source.replace("\\\n", "").starts_with(&assign.name));
    rest.map_or_else(|| source.clone(), |(_, value)| format!("{}{mark}={value}", assign.name))
}

/// Streams that every process has.
fn is_stream(path: &Utf8Path) -> bool {
    matches!(
        path.as_str(),
        PIPE | "/dev/null"
            | "/dev/stdin"
            | "/dev/stdout"
            | "/dev/stderr"
            | "/dev/fd/0"
            | "/dev/fd/1"
            | "/dev/fd/2"
    )
}

fn is_network(text: &str) -> bool {
    let text = path::absolute(Utf8Path::new("/"), text);
    text.starts_with("/dev/tcp") || text.starts_with("/dev/udp")
}

fn strange_name(program: &str) -> Option<String> {
    if program.is_empty() {
        return Some("the program has no name".to_owned());
    }
    let strange = |c: char| !c.is_ascii() || c.is_control() || c == ' ';
    program.contains(strange).then(|| "the program's name has characters that deceive".to_owned())
}

/// Programs that run what they read, if they are given no file.
const INTERPRETERS: &str = "python pypy node deno bun perl ruby irb lua luajit php tclsh wish expect ed ex vi vim nvim \
    emacs sqlite psql mysql make gmake gdb lldb dc m4 R Rscript julia elixir iex erl ghci ocaml guile racket sbcl jshell \
    osascript at batch crontab ftp sftp telnet";

/// Code for an interpreter, given in the words of the command or as its input.
fn inline_code(fields: &[Field], input: &[String], piped: bool) -> Option<String> {
    let name = fields.first()?.known().map(|program| path::program(program).0)?;
    // `python3.12`, but not `m4`.
    let bare = name.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.');
    let name = if name == "m4" { "m4" } else { bare };
    let flags: &[&str] = match name {
        "python" | "pypy" => &["-c"],
        "node" | "deno" | "bun" => &["-e", "--eval", "-p", "--print", "eval", "-pe"],
        "perl" => &["-e", "-E", "-ne", "-pe", "-lne", "-i"],
        "ruby" | "lua" | "luajit" | "osascript" | "Rscript" | "julia" | "elixir" => &["-e", "--eval"],
        "php" => &["-r"],
        "awk" | "gawk" | "mawk" | "sed" => return Some(texts(&fields[1..])),
        _ => &[],
    };
    if !super::lists(INTERPRETERS, name) {
        return None;
    }
    let given = |text: &str| {
        let letters = text.starts_with('-') && !text.starts_with("--") && text.contains(['c', 'e', 'E', 'r']);
        let long = text.split('=').next().is_some_and(|name| flags.contains(&name));
        long || (letters && !flags.is_empty())
    };
    let in_words = fields[1..].iter().filter_map(Field::known).any(given);
    // Without a file, or with `-` for one, it reads its input.
    let reads_input = fields[1..].iter().all(|field| field.known().is_some_and(|text| text.starts_with('-')))
        || fields[1..].iter().any(|field| field.known() == Some("-"));
    let from_input = !input.is_empty() || (reads_input && piped);
    (in_words || from_input).then(|| [texts(&fields[1..]), input.join("\n")].join("\n"))
}

fn texts(fields: &[Field]) -> String {
    fields.iter().map(|field| field.text.as_str()).collect::<Vec<_>>().join("\n")
}

/// A word in which the last exit code stands as a number: `echo "exit: $?"`.
fn with_status(word: &Word) -> Word {
    let part = |part: &Part| match part {
        Part::Param(param) if param.name == "?" && param.plain => {
            Part::Text { text: "0".to_owned(), quoted: true }
        }
        part => part.clone(),
    };
    Word { parts: word.parts.iter().map(part).collect(), source: word.source.clone() }
}

/// Whether a word of a builtin is a plain flag, or sets a variable that changes nothing else.
fn sets_plain_name(argument: &Field) -> bool {
    let name = argument.text.split('=').next().unwrap_or("").trim_end_matches('+');
    matches!(argument.known(), Some("-r" | "-s" | "-x"))
        || (is_identifier(name) && !variable::is_dangerous(name))
}
