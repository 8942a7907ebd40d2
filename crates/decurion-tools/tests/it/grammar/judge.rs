//! What ran against what was named. Takes a text; gives what came of comparing, and counts it.

use std::collections::BTreeMap;

use decurion_protocol::intent::{ShellCommand, ShellIntent};
use decurion_protocol::{Access, intent::Touch};
use decurion_tools::Surroundings;

use super::stand::{Done, MARK, Stand, refused, utf8};

/// What came of one text.
#[derive(Debug)]
pub enum Outcome {
    /// It was not run.
    Refused,
    /// The analysis said that it cannot tell, or that it is too much.
    CannotTell(String),
    /// All that ran was named. With how much of the text is literal, and what was named.
    Agrees { literal: bool, ran: usize, not_run: usize },
    /// Something ran that was not named.
    NotNamed(String),
    /// Something was named that must have run and did not.
    NotRun(String),
}

impl Outcome {
    pub fn disagrees(&self) -> bool {
        matches!(self, Self::NotNamed(_) | Self::NotRun(_))
    }
}

/// Runs a text and compares.
pub fn compare(text: &str, stand: &Stand) -> Outcome {
    if refused(text) {
        return Outcome::Refused;
    }
    let (cwd, home) = (stand.cwd(), stand.home());
    let around = Surroundings {
        cwd: utf8(&cwd).to_owned(),
        home: Some(utf8(&home).to_owned()),
        directories: vec![utf8(&cwd).to_owned()],
    };
    let mut named = decurion_tools::bash::analyse(text, &around);
    let doubt =
        named.doubt.as_ref().or_else(|| named.commands.iter().find_map(|command| command.doubt.as_ref()));
    if let Some(doubt) = doubt {
        return Outcome::CannotTell(doubt.clone());
    }
    let done = stand.run(text);
    let mut ran = ran(&done);
    let ran_words = ran.iter_mut().flat_map(Ran::words);
    for word in named.commands.iter_mut().flat_map(|command| &mut command.words).chain(ran_words) {
        *word = without_home(word, home.to_str().unwrap());
    }
    if let Some(strange) = ran.iter().find(|ran| !is_named(ran, &named)) {
        return Outcome::NotNamed(format!("{strange:?} ran; named: {}", texts(&named)));
    }
    if let Some(file) = done.files.iter().find(|file| !may_be_made(file, &named)) {
        return Outcome::NotNamed(format!("{file} was made; named: {}", texts(&named)));
    }
    let missing = |command: &&ShellCommand| {
        command.words.len() > command.assigned && !ran.iter().any(|ran| fits(ran, command))
    };
    let own = || named.commands.iter().filter(|command| command.inside.is_none());
    let not_run = own().filter(missing).count();
    let literal = named.not_literal.is_none() && own().all(|command| command.unknown.is_empty());
    if literal
        && runs_through(text)
        && let Some(command) = own().find(missing)
    {
        return Outcome::NotRun(format!("{:?} did not run; {ran:?} {}", command.text, done.errors));
    }
    Outcome::Agrees { literal, ran: ran.len(), not_run }
}

fn texts(named: &ShellIntent) -> String {
    named.commands.iter().map(|command| command.text.clone()).collect::<Vec<_>>().join(" ¦ ")
}

/// Whether nothing in a text can keep a command of it from running.
fn runs_through(text: &str) -> bool {
    let stops =
        ["&&", "||", "<", "exit", "exec", "return", "break", "continue", "set", ">", "cd", "logout", "${"];
    !stops.iter().any(|word| text.contains(word))
}

/// What bash ran.
#[derive(Debug, PartialEq)]
pub enum Ran {
    Command(Vec<String>),
    /// An assignment to this variable, or a command of this one word.
    Assignment(String, String),
    /// The head of a `for` or the like, or a command of such a name.
    Head(Vec<String>),
}

impl Ran {
    fn words(&mut self) -> &mut [String] {
        match self {
            Self::Command(words) | Self::Head(words) => words,
            Self::Assignment(_, word) => std::slice::from_mut(word),
        }
    }
}

/// A word in which the home folder is `~` again inside of it. The analysis expands it there on purpose where bash may
/// not: a path only looks further away then.
fn without_home(word: &str, home: &str) -> String {
    word.replace(&format!("={home}"), "=~").replace(&format!(":{home}"), ":~")
}

/// Everything that bash traced, and that stubs noted.
fn ran(done: &Done) -> Vec<Ran> {
    let mut found: Vec<Ran> = done.stubs.iter().cloned().map(Ran::Command).collect();
    // Where a limit ended the shell, the last line is not whole.
    let trace = done.trace.rsplit_once('\n').map_or("", |(whole, _)| whole);
    // A text with this mark in it is never believed, so it only stands where a line of the trace begins.
    for line in trace.split("\n\u{1}").map(|line| line.trim_start_matches(MARK)) {
        let Some(line) = line.trim_end_matches('\n').strip_prefix("> ") else { continue };
        let compound = ["[[ ", "(( ", "((", "case ", "for ", "select "];
        // The stand turns the trace on, a stub that is read as a script turns it off, and a nested bash may have it on already.
        if line == "set -x" || line == "set +x" {
            continue;
        }
        if compound.iter().any(|head| line.starts_with(head)) {
            found.push(Ran::Head(words(line)));
            continue;
        }
        if let Some(name) = assigned(line) {
            found.push(Ran::Assignment(name.to_owned(), words(line).concat()));
            continue;
        }
        found.push(Ran::Command(words(line)));
    }
    found.dedup();
    found
}

/// The variable that a line of the trace assigns to.
fn assigned(line: &str) -> Option<&str> {
    let (name, value) = line.split_once('=')?;
    let name = name.strip_suffix('+').unwrap_or(name);
    let plain = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') && !name.is_empty();
    // A command of such a name has words behind it.
    (plain && (value.starts_with('(') || (words(value).len() <= 1 && !value.starts_with(' '))))
        .then_some(name)
}

/// The words of a line of the trace, which bash quotes so that it could read them again.
fn words(line: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut word: Option<String> = None;
    let mut chars = line.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            ' ' => found.extend(word.take()),
            '\\' => word.get_or_insert_default().extend(chars.next()),
            '\'' => {
                let quoted: String = chars.by_ref().take_while(|c| *c != '\'').collect();
                word.get_or_insert_default().push_str(&quoted);
            }
            '$' if chars.peek() == Some(&'\'') => {
                chars.next();
                let text = word.get_or_insert_default();
                while let Some(c) = chars.next().filter(|c| *c != '\'') {
                    text.push(if c == '\\' { escaped(&mut chars) } else { c });
                }
            }
            _ => word.get_or_insert_default().push(c),
        }
    }
    found.extend(word);
    found
}

/// What follows a backslash inside `$'…'`.
fn escaped(chars: &mut std::iter::Peekable<std::str::Chars<'_>>) -> char {
    match chars.next().unwrap_or('\\') {
        'n' => '\n',
        't' => '\t',
        'r' => '\r',
        'a' => '\u{7}',
        'b' => '\u{8}',
        'v' => '\u{b}',
        'f' => '\u{c}',
        'E' => '\u{1b}',
        digit @ '0'..='7' => {
            let mut code = digit.to_digit(8).unwrap();
            for _ in 0..2 {
                let Some(next) = chars.peek().and_then(|c| c.to_digit(8)) else { break };
                code = code * 8 + next;
                chars.next();
            }
            char::from_u32(code).unwrap_or('?')
        }
        other => other,
    }
}

fn is_named(ran: &Ran, named: &ShellIntent) -> bool {
    // What only may happen elsewhere is a guess and names nothing.
    let here = |command: &&ShellCommand| !command.inside.as_ref().is_some_and(|inside| inside.elsewhere);
    let mut commands = named.commands.iter().filter(here);
    match ran {
        Ran::Head(_) => true,
        Ran::Command(_) => commands.any(|command| fits(ran, command)),
        Ran::Assignment(name, _) => {
            let sets = |word: &String| assigns(word, name);
            commands.any(|command| {
                let own = &command.words[command.assigned..];
                let declares = own.first().is_some_and(|name| matches!(name.as_str(), "export" | "readonly"));
                fits(ran, command)
                    || command.words[..command.assigned].iter().any(sets)
                    || (declares && own.iter().any(|word| assigns(word, name)))
            })
        }
    }
}

fn assigns(word: &str, name: &str) -> bool {
    word.strip_prefix(name).is_some_and(|rest| rest.starts_with('=') || rest.starts_with("+="))
}

/// Whether what ran is this command. A word that is not known stands for any number of words.
fn fits(ran: &Ran, command: &ShellCommand) -> bool {
    let ran = match ran {
        Ran::Command(words) | Ran::Head(words) => words.as_slice(),
        Ran::Assignment(_, word) => std::slice::from_ref(word),
    };
    let named: Vec<Option<&str>> = (command.assigned..command.words.len())
        .map(|index| (!command.unknown.contains(&index)).then_some(command.words[index].as_str()))
        .collect();
    // The last status is named as a number, of which only that matters.
    let status = named.first().is_some_and(|name| matches!(name, Some("echo" | "exit" | "test" | "[")));
    same(ran, &named, status)
}

fn same(ran: &[String], named: &[Option<&str>], status: bool) -> bool {
    match named {
        [] => ran.is_empty(),
        [None, rest @ ..] => (0..=ran.len()).any(|skip| same(&ran[skip..], rest, status)),
        [Some(word), rest @ ..] => ran.split_first().is_some_and(|(first, others)| {
            let both_pipes = is_pipe(first) && is_pipe(word);
            let both_numbers = status && digits(first).is_some_and(|first| Some(first) == digits(word));
            (first == word || both_pipes || both_numbers) && same(others, rest, status)
        }),
    }
}

/// The name of a pipe, which differs from others in its number.
fn is_pipe(word: &str) -> bool {
    let number = word.strip_prefix("/dev/fd/").and_then(|number| number.parse::<u32>().ok());
    number.is_some_and(|number| number > 9)
}

/// The word with each number in it as `0`, where it has one.
fn digits(word: &str) -> Option<String> {
    let mut found = String::new();
    for c in word.chars() {
        if !c.is_ascii_digit() {
            found.push(c);
        } else if !found.ends_with('0') {
            found.push('0');
        }
    }
    found.contains('0').then_some(found)
}

/// Whether the analysis names a write to this file, or to somewhere that it does not know.
fn may_be_made(file: &str, named: &ShellIntent) -> bool {
    let writes = |touch: &Touch| touch.access == Access::Write && touch.path.as_str() == file;
    named.commands.iter().any(|command| {
        command.touches.iter().any(writes) || command.wide.iter().any(|wide| wide.access == Access::Write)
    })
}

/// How many texts came to what.
#[derive(Default)]
pub struct Tally {
    refused: usize,
    literal: usize,
    not_literal: usize,
    ran: usize,
    not_run: usize,
    cannot_tell: BTreeMap<String, usize>,
    disagreements: Vec<(String, String)>,
}

impl Tally {
    pub fn note(&mut self, text: String, outcome: &Outcome) {
        match outcome {
            Outcome::Refused => self.refused += 1,
            Outcome::CannotTell(doubt) => *self.cannot_tell.entry(kind(doubt)).or_default() += 1,
            Outcome::Agrees { literal, ran, not_run } => {
                *if *literal { &mut self.literal } else { &mut self.not_literal } += 1;
                self.ran += ran;
                self.not_run += not_run;
            }
            Outcome::NotNamed(why) | Outcome::NotRun(why) => self.disagreements.push((text, why.clone())),
        }
    }

    pub fn add(&mut self, other: Self) {
        self.refused += other.refused;
        self.literal += other.literal;
        self.not_literal += other.not_literal;
        self.ran += other.ran;
        self.not_run += other.not_run;
        for (doubt, count) in other.cannot_tell {
            *self.cannot_tell.entry(doubt).or_default() += count;
        }
        self.disagreements.extend(other.disagreements);
    }

    /// The figures.
    pub fn figures(&self) -> String {
        let Self { literal, not_literal, .. } = self;
        let agree = literal + not_literal;
        let doubts: usize = self.cannot_tell.values().sum();
        let all = agree + doubts + self.disagreements.len();
        let mut kinds: Vec<_> = self.cannot_tell.iter().collect();
        kinds.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
        let kinds: String =
            kinds.iter().take(25).map(|(doubt, count)| format!("  {count:6} {doubt}\n")).collect();
        format!(
            "{all} texts, {} more refused by the stand\n\
             {agree} agree: {literal} literal, {not_literal} not; {} commands ran, {} were named and did not\n\
             {doubts} cannot be told ({} %)\n{kinds}",
            self.refused,
            self.ran,
            self.not_run,
            100 * doubts / all.max(1)
        )
    }

    /// The texts that disagree, and why.
    pub fn disagreements(&self) -> &[(String, String)] {
        &self.disagreements
    }
}

/// A doubt without the words it is about.
fn kind(doubt: &str) -> String {
    doubt.split([',', '$']).next().unwrap_or_default().to_owned()
}
