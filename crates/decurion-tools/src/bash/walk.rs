//! From syntax to commands. Takes a parsed text and where it would run; gives every simple command in it,
//! also those inside substitutions and behind runners, with what each would touch.

use std::collections::BTreeSet;

use camino::{Utf8Path, Utf8PathBuf};
use decurion_protocol::intent::{Climb, Inside, ShellCommand, WideTouch};
use decurion_protocol::{Access, Touch};

use super::expand::{Expansion, Field, PIPE, Value, Variables, escape, fields, single};
use super::program::{Call, Kind, judge};
use super::runner::{Inner, Style, runs};
use super::syntax::{
    AndOr, Arithmetic, Assign, Body, Command, MAX_DEPTH, Part, Redirect, RedirectKind, Script, Word,
    is_identifier, parse,
};
use super::{MAX_COMMANDS, path, variable};
use crate::Surroundings;

/// Commands are collected up to this number, so that rules which forbid see more than is ever allowed.
const COLLECTED: usize = 5 * MAX_COMMANDS;

/// Walks a text's tree.
pub(crate) struct Walker<'a> {
    around: &'a Surroundings,
    bodies: Vec<Word>,
    state: State,
    depth: usize,
    /// What was found.
    pub commands: Vec<ShellCommand>,
    /// What was not understood.
    pub doubt: Option<String>,
    /// Whether the directory may change.
    pub moves: bool,
}

/// What is known at one point of the text.
#[derive(Clone)]
struct State {
    /// The directories the shell may be in.
    directories: Vec<Utf8PathBuf>,
    variables: Variables,
    /// Variables that hold numbers only.
    numbers: BTreeSet<String>,
    /// Whether what is here may not run, or run more than once.
    uncertain: bool,
    /// Whether a change of directory here would be seen by an earlier command.
    repeats: bool,
    /// What comes in by the pipe.
    feed: Feed,
}

/// What a command's output, or its input, is known to be.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Feed {
    /// Nothing is known of it.
    Other,
    /// Paths from inside the workspace.
    Listed,
}

/// How far a path reaches that a command is given.
#[derive(Clone, Copy, Default)]
struct Reach {
    /// All that lies below is meant too.
    below: bool,
    /// But for names that start with a dot.
    visible: bool,
    /// And what links lead to that are met there.
    follows: bool,
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
    /// How many redirections it has to or from files.
    redirections: u32,
    /// Texts given as input.
    input: Vec<String>,
}

impl<'a> Walker<'a> {
    /// A walker that starts where the shell would.
    pub fn new(around: &'a Surroundings, bodies: Vec<Word>) -> Self {
        let state = State {
            directories: vec![around.cwd.clone()],
            variables: Variables::new(),
            numbers: BTreeSet::new(),
            uncertain: false,
            repeats: false,
            feed: Feed::Other,
        };
        Self { around, bodies, state, depth: 0, commands: Vec::new(), doubt: None, moves: false }
    }

    fn doubt(&mut self, text: impl Into<String>) {
        if self.doubt.is_none() {
            self.doubt = Some(text.into());
        }
    }

    /// A whole list; says what its output is.
    pub fn script(&mut self, script: &Script) -> bool {
        let mut feed = Feed::Other;
        for list in &script.lists {
            feed = self.and_or(list);
        }
        feed == Feed::Listed && script.lists.len() == 1
    }

    fn and_or(&mut self, list: &AndOr) -> Feed {
        let before = self.state.uncertain;
        let mut others = self.state.directories.clone();
        let mut feed = self.pipeline(&list.first);
        for (on_success, stages) in &list.rest {
            self.state.uncertain = true;
            if !on_success {
                merge(&mut self.state.directories, &others);
            }
            merge(&mut others, &self.state.directories);
            self.pipeline(stages);
            feed = Feed::Other;
        }
        self.state.uncertain = before;
        merge(&mut self.state.directories, &others);
        if self.state.directories.len() > 8 {
            self.doubt("the directory cannot be told");
            self.state.directories.truncate(8);
        }
        feed
    }

    fn pipeline(&mut self, stages: &[Command]) -> Feed {
        if let [only] = stages {
            let start = self.commands.len();
            let feed = self.state.feed;
            self.command(only);
            return self.output(start, feed);
        }
        // Every stage runs in a shell of its own.
        let state = self.state.clone();
        let mut feed = state.feed;
        for stage in stages {
            self.state = state.clone();
            self.state.repeats = false;
            self.state.feed = feed;
            let start = self.commands.len();
            self.command(stage);
            feed = self.output(start, feed);
        }
        self.state = state;
        feed
    }

    /// What the commands from `start` on print, given what they were fed.
    fn output(&self, start: usize, feed: Feed) -> Feed {
        let [command] = &self.commands[start..] else { return Feed::Other };
        if !command.read_only || command.assigned > 0 || !self.stays_inside(command) {
            return Feed::Other;
        }
        let words: Vec<&str> = command.words.iter().map(String::as_str).collect();
        let has = |wanted: &[&str]| words.iter().any(|word| wanted.contains(word));
        let lists = match words.as_slice() {
            ["find", ..] => !has(&["-printf", "-ls"]),
            ["fd" | "fdfind", ..] => true,
            ["ls", ..] => {
                !words[1..].iter().any(|word| word.starts_with('-') && *word != "-1" && *word != "-a")
            }
            ["git", "ls-files", ..] => !has(&["-s", "--stage", "-t", "-v", "--eol", "--debug"]),
            ["git", "diff", ..] => has(&["--name-only"]),
            ["git", "grep", ..] => has(&["-l", "--files-with-matches", "--name-only"]),
            ["rg", ..] => has(&["-l", "--files", "--files-with-matches"]),
            ["grep", ..] => {
                let names = words.iter().any(|word| {
                    word.starts_with('-') && !word.starts_with("--") && word.contains('l')
                        || *word == "--files-with-matches"
                });
                names && !words.iter().any(|word| word.starts_with("--label")) && !command.wide.is_empty()
            }
            _ => false,
        };
        let filters = command.touches.is_empty() && command.wide.is_empty() && keeps_lines(&words);
        if lists || (filters && feed == Feed::Listed) { Feed::Listed } else { Feed::Other }
    }

    fn stays_inside(&self, command: &ShellCommand) -> bool {
        command.touches.iter().all(|touch| self.is_inside(&touch.path))
            && command.wide.iter().all(|wide| self.is_inside(Utf8Path::new(path::fixed_part(&wide.pattern))))
    }

    fn is_inside(&self, path: &Utf8Path) -> bool {
        path.starts_with(&self.around.cwd)
            || self.around.directories.iter().any(|root| path.starts_with(root))
    }

    /// Walks something that runs in a shell of its own.
    fn apart(&mut self, script: &Script) -> bool {
        let state = self.state.clone();
        self.state.repeats = false;
        let listed = self.script(script);
        self.state = state;
        listed
    }

    /// Walks something that may not run, or run more than once.
    fn perhaps(&mut self, script: &Script, repeats: bool) {
        let before = self.state.clone();
        self.state.uncertain = true;
        self.state.repeats |= repeats;
        self.script(script);
        self.state.uncertain = before.uncertain;
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
        self.state.feed = Feed::Other;
        self.push(job, Call::harmless());
    }

    fn compound(&mut self, body: &Body) {
        match body {
            Body::Simple { .. } => {}
            Body::Subshell(script) => {
                self.apart(script);
            }
            Body::Group(script) => {
                self.script(script);
            }
            Body::If(scripts) => {
                for script in scripts {
                    self.perhaps(script, false);
                }
            }
            Body::Loop(condition, body) => {
                self.forget(&[condition, body]);
                self.perhaps(condition, true);
                self.perhaps(body, true);
            }
            Body::For { name, words, body } => self.each(name, words.as_deref(), body),
            Body::ForArithmetic(arithmetic, body) => {
                self.forget(&[body]);
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
    }

    fn each(&mut self, name: &str, words: Option<&[Word]>, body: &Script) {
        let mut value = Value::Unknown;
        if let Some(words) = words {
            let mut all = Vec::new();
            for word in words {
                all.extend(self.fields(word));
            }
            // Names that a glob finds in some directory are looked at as well.
            for field in &all {
                if field.options.iter().any(|option| option.glob) {
                    let mut job = Job::default();
                    self.touch(field, Access::Read, Reach::default(), &mut job);
                    job.fields = vec![Field::literal(":"), field.clone()];
                    self.push(job, Call::harmless());
                }
            }
            let known = all.iter().all(|field| !field.options.is_empty());
            let listed = all.iter().all(|field| field.listed);
            let options: Vec<_> = all.iter().flat_map(|field| field.options.clone()).collect();
            if known && options.len() <= 64 {
                value = Value::Known(options);
            } else if listed {
                value = Value::Listed;
            }
        }
        self.forget(&[body]);
        if variable::is_dangerous(name) {
            self.doubt(format!("it sets {name}"));
        }
        self.state.variables.insert(name.to_owned(), value);
        self.perhaps(body, true);
        self.state.variables.insert(name.to_owned(), Value::Unknown);
    }

    /// What a loop's body sets is not known when the body begins.
    fn forget(&mut self, scripts: &[&Script]) {
        let mut names = BTreeSet::new();
        for script in scripts {
            names_set(script, &mut names);
        }
        for name in names {
            self.state.numbers.remove(&name);
            self.state.variables.insert(name, Value::Unknown);
        }
    }

    /// The commands inside a word's parts; whether all of them list paths.
    fn nested(&mut self, parts: &[Part]) -> bool {
        let mut listed = true;
        for part in parts {
            match part {
                Part::Command { script, .. } => {
                    let feed = std::mem::replace(&mut self.state.feed, Feed::Other);
                    listed &= self.apart(script);
                    self.state.feed = feed;
                }
                Part::Process(script) => {
                    self.apart(script);
                }
                Part::Arithmetic(arithmetic) => self.arithmetic(arithmetic),
                Part::Param(param) => {
                    self.nested(&param.nested);
                }
                Part::Text { .. } | Part::Glob(_) | Part::Mark(_) | Part::Tilde(_) => {}
            }
        }
        listed
    }

    fn expansion(&self, listed: bool) -> Expansion<'_> {
        Expansion {
            variables: &self.state.variables,
            home: self.around.home.as_deref(),
            directory: match self.state.directories.as_slice() {
                [only] => Some(only),
                _ => None,
            },
            listed,
        }
    }

    fn fields(&mut self, word: &Word) -> Vec<Field> {
        let listed = self.nested(&word.parts);
        let found = fields(word, &self.expansion(listed));
        match found {
            Ok(fields) => fields,
            Err(doubt) => {
                self.doubt(doubt);
                vec![Field::unknown(&word.source)]
            }
        }
    }

    /// Bash evaluates the *contents* of variables in arithmetic, commands in subscripts included, so only
    /// what is known to be a number passes.
    fn arithmetic(&mut self, arithmetic: &Arithmetic) {
        let start = self.commands.len();
        self.nested(&arithmetic.nested);
        for part in &arithmetic.nested {
            let harmless = match part {
                Part::Param(param) => param.plain && self.is_number(&param.name),
                Part::Command { .. } => self.commands[start..].iter().all(|command| {
                    matches!(command.words.first().map(String::as_str), Some("wc" | "date" | "nproc"))
                }),
                Part::Arithmetic(_) => true,
                _ => false,
            };
            if !harmless {
                self.doubt("arithmetic with something that is not known to be a number");
            }
        }
        let names: Vec<&str> = arithmetic
            .text
            .split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'))
            .filter(|word| is_identifier(word))
            .collect();
        for name in names {
            let assigned = arithmetic.text.trim_start().strip_prefix(name).is_some_and(|rest| {
                let rest = rest.trim_start();
                rest.starts_with('=') && !rest.starts_with("==")
            });
            if assigned && !variable::is_dangerous(name) {
                self.state.variables.insert(name.to_owned(), Value::Unknown);
                self.state.numbers.insert(name.to_owned());
            } else if !self.is_number(name) {
                self.doubt("arithmetic with something that is not known to be a number");
            } else if arithmetic.text.contains(['=', '+', '-']) && self.state.variables.contains_key(name) {
                self.state.variables.insert(name.to_owned(), Value::Unknown);
                self.state.numbers.insert(name.to_owned());
            }
        }
    }

    fn is_number(&self, name: &str) -> bool {
        if matches!(name, "#" | "?" | "$" | "!") || self.state.numbers.contains(name) {
            return true;
        }
        match self.state.variables.get(name) {
            Some(Value::Known(values)) => values
                .iter()
                .all(|value| !value.text.is_empty() && value.text.bytes().all(|byte| byte.is_ascii_digit())),
            Some(_) => false,
            None => {
                matches!(name, "RANDOM" | "SECONDS" | "LINENO" | "UID" | "EUID" | "PPID" | "EPOCHSECONDS")
            }
        }
    }

    /// `[[ … ]]`.
    fn test(&mut self, words: &[Word]) {
        for word in words {
            self.nested(&word.parts);
        }
        let values: Vec<Value> = words.iter().map(|word| single(word, &self.expansion(false))).collect();
        let number = |walker: &Self, index: usize| {
            let known = matches!(&values[index], Value::Known(all) if all.iter().all(|value| {
                let digits = value.text.strip_prefix('-').unwrap_or(&value.text);
                !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
            }));
            let named = matches!(words[index].parts.as_slice(), [Part::Param(param)] if param.plain && walker.is_number(&param.name));
            let length = matches!(words[index].parts.as_slice(), [Part::Param(param)] if !param.plain && words[index].source.contains("{#"));
            known || named || length
        };
        for (index, word) in words.iter().enumerate() {
            let bare = word.bare();
            match bare.as_deref() {
                Some("-eq" | "-ne" | "-lt" | "-le" | "-gt" | "-ge")
                    if index == 0
                        || index + 1 >= words.len()
                        || !number(self, index - 1)
                        || !number(self, index + 1) =>
                {
                    self.doubt("arithmetic with something that is not known to be a number");
                }
                Some("-v" | "-R") => {
                    let plain =
                        words.get(index + 1).and_then(Word::bare).is_some_and(|name| is_identifier(&name));
                    if !plain {
                        self.doubt("it evaluates a name");
                    }
                }
                _ => {}
            }
        }
    }

    fn simple(&mut self, assigns: &[Assign], words: &[Word], redirects: &[Redirect]) {
        let mut job = Job::default();
        for assign in assigns {
            self.assign(assign, words.is_empty(), &mut job);
        }
        // `IFS= read -r line` changes nothing but how that line is read.
        let reads = words.first().and_then(Word::bare).as_deref() == Some("read");
        if reads && assigns.iter().all(|assign| assign.name == "IFS") {
            job.assigns.clear();
            job.doubt = None;
        }
        for word in words {
            let fields = self.fields(word);
            job.fields.extend(fields);
        }
        self.redirects(redirects, &mut job);
        self.run(job);
    }

    fn assign(&mut self, assign: &Assign, lasts: bool, job: &mut Job) {
        let listed = self.nested(&assign.value.parts);
        let value = single(&assign.value, &self.expansion(listed));
        let shown = match &value {
            Value::Known(all) if all.len() == 1 && !all[0].glob => {
                format!("{}{}={}", assign.name, if assign.append { "+" } else { "" }, all[0].text)
            }
            _ => assign.value.source.clone(),
        };
        job.assigns.push(shown);
        if variable::is_dangerous(&assign.name) {
            job.doubt = Some(format!("it sets {}", assign.name));
        }
        if lasts {
            let value = if assign.append || self.state.uncertain { Value::Unknown } else { value };
            self.state.numbers.remove(&assign.name);
            self.state.variables.insert(assign.name.clone(), value);
        }
    }

    fn redirects(&mut self, redirects: &[Redirect], job: &mut Job) {
        for redirect in redirects {
            match redirect.kind {
                RedirectKind::Duplicate => {}
                RedirectKind::HereString => {
                    self.nested(&redirect.target.parts);
                    match single(&redirect.target, &self.expansion(false)) {
                        Value::Known(values) => job.input.extend(values.into_iter().map(|value| value.text)),
                        _ => job.input.push(redirect.target.source.clone()),
                    }
                }
                RedirectKind::HereDocument => self.here_document(redirect, job),
                kind => {
                    job.redirections += 1;
                    for field in self.fields(&redirect.target) {
                        if field.options.iter().any(|option| is_network(&option.text)) {
                            job.doubt = Some("it opens a connection".to_owned());
                        }
                        if kind != RedirectKind::Write {
                            self.touch(&field, Access::Read, Reach::default(), job);
                        }
                        if kind != RedirectKind::Read {
                            self.touch(&field, Access::Write, Reach::default(), job);
                        }
                    }
                }
            }
        }
    }

    fn here_document(&mut self, redirect: &Redirect, job: &mut Job) {
        let Some(body) = redirect.body.and_then(|index| self.bodies.get(index)).cloned() else { return };
        let plain = |part: &Part| match part {
            Part::Text { .. } => true,
            Part::Param(param) => param.nested.is_empty(),
            _ => false,
        };
        self.nested(&body.parts);
        if !body.parts.iter().all(plain) {
            job.doubt = Some("a here-document runs something".to_owned());
        }
        job.input.push(body.source);
    }

    /// Notes what an operand or a redirection would touch.
    fn touch(&self, field: &Field, access: Access, reach: Reach, job: &mut Job) {
        let Reach { below, visible, follows } = reach;
        if field.options.is_empty() {
            let roots: Vec<String> = if field.listed {
                self.state.directories.iter().map(|directory| escape(directory.as_str())).collect()
            } else {
                vec!["/".to_owned()]
            };
            for pattern in roots {
                // What was listed is opened by name, whatever is a link among it.
                job.wide.push(WideTouch {
                    pattern,
                    below: true,
                    visible: false,
                    follows: field.listed,
                    access,
                });
            }
            return;
        }
        for option in &field.options {
            for directory in &self.state.directories {
                job.climbs.extend(path::climb(directory, &option.text, option.glob));
                if option.glob {
                    let pattern = path::absolute_glob(directory, &option.text);
                    let below = below || pattern == "/";
                    job.wide.push(WideTouch { pattern, below, visible, follows, access });
                    continue;
                }
                let absolute = path::absolute(directory, &option.text);
                if is_stream(&absolute) {
                    continue;
                }
                if below {
                    let pattern = escape(absolute.as_str());
                    job.wide.push(WideTouch { pattern, below: true, visible, follows, access });
                }
                job.touches.push(Touch { path: absolute, access });
            }
        }
    }

    fn run(&mut self, job: Job) {
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
        let mut job = job;
        if job.fields[0].dynamic {
            // Rules that forbid see what it is; nothing allows it.
            job.doubt = Some(format!("the program's name comes from a variable, {program}"));
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
            let call = judge(&name, self.here(&name, &arguments), false);
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
        let program_fields = job.fields.len() - job.fields.len().saturating_sub(1);
        let mut call = match &runs.rest {
            Some(rest) => judge(name, rest, false),
            None => Call::harmless(),
        };
        if let Some(doubt) = runs.doubt {
            call = Call { doubt: Some(doubt), ..Call::default() };
        } else if runs.style == Style::Own || !trusted {
            let because =
                if trusted { runs.because } else { Some("it is a program from an unusual place".into()) };
            call = Call::other(because.unwrap_or_else(|| "it runs another command".to_owned()));
        }
        if runs.assigns.iter().any(|assign| variable::is_dangerous(assign.split('=').next().unwrap_or(""))) {
            call = Call::doubtful("it sets a variable that changes what is run");
        }
        let wrapper = runs.style == Style::Wrapper && call.doubt.is_none() && trusted;
        let mut forwarded = job.clone();
        forwarded.touches.clear();
        let redirected = job.touches.iter().any(|touch| touch.access == Access::Write)
            || job.wide.iter().any(|wide| wide.access == Access::Write);
        let parent = self.commands.len();
        self.push(job, call);
        if let Some(outer) = self.commands.get_mut(parent) {
            outer.wrapper = wrapper && !redirected;
        }
        let feeds_shell = name == "bash" || name == "sh" || name == "zsh" || name == "dash";
        self.depth += 1;
        for inner in runs.inner {
            let assigns: Vec<String> = own_assigns.iter().chain(&runs.assigns).cloned().collect();
            self.inner(inner, parent, program_fields, assigns, name == "xargs");
        }
        if feeds_shell {
            for text in input {
                self.text(&text, parent, true);
            }
        }
        self.depth -= 1;
    }

    fn inner(&mut self, inner: Inner, parent: usize, before: usize, assigns: Vec<String>, piped: bool) {
        match inner {
            Inner::Words { from, mut words, elsewhere } => {
                let word = self.commands.get(parent).map(|outer| outer.assigned + before + from);
                if piped && self.state.feed != Feed::Listed {
                    for word in &mut words {
                        word.listed = false;
                    }
                }
                let inside = Inside { command: parent, word, elsewhere };
                let job = Job { assigns, fields: words, inside: Some(inside), ..Job::default() };
                let (state, doubt) = (self.state.clone(), self.doubt.clone());
                self.run(job);
                self.state = state;
                if elsewhere {
                    self.doubt = doubt;
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
        let (state, doubt) = (self.state.clone(), self.doubt.clone());
        let bodies = std::mem::replace(&mut self.bodies, parsed.bodies);
        self.state.repeats = false;
        self.depth += 1;
        self.script(&parsed.script);
        self.depth -= 1;
        self.bodies = bodies;
        self.state = state;
        if elsewhere {
            self.doubt = doubt;
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
        match name {
            "cd" => self.change_directory(arguments, job.clone()),
            "pushd" | "popd" => {
                self.moves = true;
                self.push(job.clone(), Call::doubtful("the directory cannot be told"));
            }
            "read" => {
                let call = self.read(arguments);
                self.push(job.clone(), call);
            }
            "export" | "declare" | "typeset" | "local" | "readonly" | "unset" | "mapfile" | "readarray"
            | "getopts" | "let" => {
                for argument in arguments {
                    let name = argument.text.split('=').next().unwrap_or("").trim_end_matches('+').to_owned();
                    self.state.numbers.remove(&name);
                    self.state.variables.insert(name, Value::Unknown);
                }
                let dangerous = arguments
                    .iter()
                    .any(|argument| variable::is_dangerous(argument.text.split('=').next().unwrap_or("")));
                let call = if dangerous || matches!(name, "let" | "mapfile" | "readarray") {
                    Call::doubtful("it changes variables that change what is run")
                } else {
                    Call::other("it changes the shell's variables")
                };
                self.push(job.clone(), call);
            }
            _ => return false,
        }
        true
    }

    fn change_directory(&mut self, arguments: &[Field], mut job: Job) {
        self.moves = true;
        let operands: Vec<&Field> = arguments
            .iter()
            .filter(|argument| !matches!(argument.known(), Some("-L" | "-P" | "--")))
            .collect();
        let target = match operands.as_slice() {
            [] => self.around.home.as_ref().map(|home| Field::literal(home.as_str())),
            [only] => Some((*only).clone()),
            _ => None,
        };
        // The shell goes up by the name of where it is; with this flag it goes up from where links led.
        let physical = arguments.iter().any(|argument| argument.known() == Some("-P"));
        let plain = |field: &Field| {
            let stays = |text: &str| !physical || text.split('/').all(|part| part != "..");
            !field.options.is_empty()
                && field.options.iter().all(|option| stays(&option.text))
                && field
                    .options
                    .iter()
                    .all(|option| !option.glob && !option.text.starts_with('-') && !option.text.is_empty())
        };
        match target {
            Some(target) if plain(&target) && !self.state.repeats => {
                self.touch(&target, Access::Read, Reach::default(), &mut job);
                let mut directories = Vec::new();
                for option in &target.options {
                    for directory in &self.state.directories {
                        let next = path::absolute(directory, &option.text);
                        if !directories.contains(&next) {
                            directories.push(next);
                        }
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

    fn read(&mut self, arguments: &[Field]) -> Call {
        let known = super::program::Flags { plain: "r s e", values: "p n t d N u", ..Default::default() };
        let parsed = match super::program::parse(arguments, known) {
            Ok(parsed) => parsed,
            Err(because) => return Call::other(because),
        };
        for operand in &parsed.operands {
            match operand.known() {
                Some(name) if is_identifier(name) && !variable::is_dangerous(name) => {
                    // With several names a line is taken apart at its blanks.
                    let whole = parsed.operands.len() == 1 && self.state.feed == Feed::Listed;
                    let value = if whole { Value::Listed } else { Value::Unknown };
                    self.state.numbers.remove(name);
                    self.state.variables.insert(name.to_owned(), value);
                }
                _ => return Call::doubtful("it sets a variable that is not known"),
            }
        }
        Call::harmless()
    }

    /// Records a command.
    fn push(&mut self, mut job: Job, call: Call) {
        let reach = Reach { below: call.below, visible: call.visible, follows: call.follows };
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
            if call.reads.is_empty() && field.options.iter().any(|option| option.glob) {
                self.touch(field, Access::Read, Reach::default(), &mut job);
            }
        }
        let mentions = if call.kind == Kind::Other { self.mentions(&mut job) } else { Vec::new() };
        let code = inline_code(&job.fields);
        let writes = job.touches.iter().any(|touch| touch.access == Access::Write)
            || job.wide.iter().any(|wide| wide.access == Access::Write);
        let tame = job.assigns.iter().all(|assign| {
            let name = assign.split('=').next().unwrap_or("");
            variable::is_harmless(name) || (job.fields.is_empty() && !variable::is_dangerous(name))
        });
        let repositories = self.repositories(&job).unwrap_or_else(|doubt| {
            job.doubt.get_or_insert(doubt);
            Vec::new()
        });
        let doubt = job.doubt.take().or(call.doubt);
        let known = doubt.is_none() && tame;
        let because = call.because.or_else(|| (!tame).then(|| "it sets variables for a program".to_owned()));
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
            because,
            touches: job.touches,
            wide: job.wide,
            mentions,
            leads: Vec::new(),
            climbs: job.climbs,
            code,
            repositories,
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

    /// Operands that could be paths.
    fn mentions(&self, job: &mut Job) -> Vec<Utf8PathBuf> {
        let mut found = Vec::new();
        for option in job.fields.iter().skip(1).flat_map(|field| &field.options) {
            let text = option.text.as_str();
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
}

/// Whether a filter gives out lines only as they came in: a part of a path may be a path to elsewhere.
fn keeps_lines(words: &[&str]) -> bool {
    let letters: &str = match words.first() {
        Some(&"grep") => "viEFGwxqse",
        Some(&"sort") => "rnufVbdhs",
        Some(&"uniq") => "dui",
        Some(&("head" | "tail")) => "n0123456789",
        Some(&"cat") => "",
        _ => return false,
    };
    words[1..].iter().all(|word| {
        !word.starts_with("--")
            && word.strip_prefix('-').is_none_or(|flags| flags.chars().all(|flag| letters.contains(flag)))
    })
}

fn merge(into: &mut Vec<Utf8PathBuf>, from: &[Utf8PathBuf]) {
    for directory in from {
        if !into.contains(directory) {
            into.push(directory.clone());
        }
    }
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

/// Code for an interpreter, given in the words of the command.
fn inline_code(fields: &[Field]) -> Option<String> {
    let name = fields.first()?.known().map(|program| path::program(program).0)?;
    let flags: &[&str] = match name.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.') {
        "python" | "pypy" => &["-c"],
        "node" | "deno" | "bun" => &["-e", "--eval", "-p", "--print", "eval", "-pe"],
        "perl" => &["-e", "-E", "-ne", "-pe", "-lne", "-i"],
        "ruby" | "lua" | "luajit" | "osascript" | "Rscript" | "julia" | "elixir" => &["-e", "--eval"],
        "php" => &["-r"],
        "awk" | "gawk" | "mawk" | "sed" => return Some(texts(&fields[1..])),
        _ => return None,
    };
    let found = fields.iter().any(|field| {
        field.known().is_some_and(|text| {
            flags.contains(&text)
                || (text.starts_with('-') && !text.starts_with("--") && text.contains(['c', 'e', 'E', 'r']))
        })
    });
    found.then(|| texts(&fields[1..]))
}

fn texts(fields: &[Field]) -> String {
    fields.iter().map(|field| field.text.as_str()).collect::<Vec<_>>().join("\n")
}

/// The variables that a list may set in the shell it runs in.
fn names_set(script: &Script, names: &mut BTreeSet<String>) {
    for list in &script.lists {
        let stages = list.first.iter().chain(list.rest.iter().flat_map(|(_, stages)| stages));
        for command in stages {
            names_set_by(command, names);
        }
    }
}

fn names_set_by(command: &Command, names: &mut BTreeSet<String>) {
    match &command.body {
        Body::Simple { assigns, words } => {
            names.extend(assigns.iter().map(|assign| assign.name.clone()));
            // Builtins set the variables they are given; taking every word for one costs nothing.
            let bare = words.iter().filter_map(Word::bare);
            names.extend(
                bare.map(|text| text.split('=').next().unwrap_or("").to_owned())
                    .filter(|name| is_identifier(name)),
            );
        }
        Body::Subshell(script) | Body::Group(script) | Body::ForArithmetic(_, script) => {
            names_set(script, names);
        }
        Body::If(scripts) => scripts.iter().for_each(|script| names_set(script, names)),
        Body::Loop(condition, body) => {
            names_set(condition, names);
            names_set(body, names);
        }
        Body::For { name, body, .. } => {
            names.insert(name.clone());
            names_set(body, names);
        }
        Body::Case { branches, .. } => branches.iter().for_each(|script| names_set(script, names)),
        Body::Function(body) => names_set_by(body, names),
        Body::Test(_) | Body::Arithmetic(_) => {}
    }
}
