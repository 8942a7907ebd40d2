//! Rules about shell commands. Takes a rule's specifier and a command taken apart; says whether it covers
//! the command, certainly or perhaps.
//!
//! A rule that allows matches the words exactly as written, with or without assignments before them that only change
//! how output looks. A rule that forbids also matches behind
//! assignments, by the program's own name, past git's own options, and however flags are spelled.

use decurion_protocol::intent::ShellCommand;
use decurion_tools::bash;

use super::glob::text_matches;

/// Whether a rule covers a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Match {
    No,
    /// It may: the text does not tell.
    Maybe,
    Yes,
}

/// A specifier taken apart.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Form {
    Exact(Vec<String>),
    /// The first words of it.
    Prefix(Vec<String>),
    /// A text with `*` for anything.
    Wildcard(String),
}

pub(crate) fn form(specifier: &str) -> Form {
    let trimmed = specifier.trim();
    let prefix = trimmed.strip_suffix(":*").or_else(|| trimmed.strip_suffix(" *"));
    match prefix {
        Some(prefix) if !prefix.contains('*') => Form::Prefix(words(prefix)),
        None if !trimmed.contains('*') => Form::Exact(words(trimmed)),
        Some(prefix) if trimmed.ends_with(":*") => Form::Wildcard(format!("{prefix}*")),
        _ => Form::Wildcard(trimmed.to_owned()),
    }
}

fn words(text: &str) -> Vec<String> {
    bash::rule_words(text).unwrap_or_else(|| text.split_whitespace().map(str::to_owned).collect())
}

/// How a rule that allows covers a command, and how many of its words it names or passes over.
pub(crate) fn allows(specifier: &str, command: &ShellCommand) -> Option<Allowed> {
    let form = form(specifier);
    let skipped = command.words.len() - without_harmless_assignments(command).len();
    let whole = allows_from(0, &form, command);
    whole.or_else(|| (skipped > 0).then(|| allows_from(skipped, &form, command)).flatten())
}

/// The words of a command without the assignments before it, if every one of them only changes how output looks.
pub(crate) fn without_harmless_assignments(command: &ShellCommand) -> &[String] {
    match command.words.split_at_checked(command.assigned) {
        Some((assigned, own)) if assigned.iter().all(|word| bash::is_harmless_assignment(word)) => own,
        _ => &command.words,
    }
}

/// The same for the words of a command from one on.
fn allows_from(first: usize, form: &Form, command: &ShellCommand) -> Option<Allowed> {
    let found = &command.words[first..];
    let is_unknown = |index: usize| command.unknown.contains(&(first + index));
    match form {
        Form::Exact(words) => (words == found && !words.is_empty()).then_some(Allowed::Exactly),
        Form::Prefix(words) => {
            let known = !(0..words.len()).any(is_unknown);
            let named = names_hazards(words, command);
            (!words.is_empty() && known && named && found.starts_with(words))
                .then_some(Allowed::Prefix(first + words.len()))
        }
        Form::Wildcard(pattern) => {
            // A `*` never stands for the program itself alone: what is fixed must name something.
            let named = pattern.chars().any(char::is_alphanumeric) && names_hazards(&words(pattern), command);
            let text = rendered(found);
            let matches = text_matches(pattern, &text)
                || pattern.strip_suffix(" *").is_some_and(|pattern| text_matches(pattern, &text));
            (named && matches && !is_unknown(0)).then_some(Allowed::Prefix(first + fixed_words(pattern)))
        }
    }
}

/// Whether a rule names every option of a command that does more than the program's name says.
fn names_hazards(words: &[String], command: &ShellCommand) -> bool {
    command
        .hazards
        .iter()
        .all(|hazard| command.words.get(hazard.word).is_some_and(|word| words.contains(word)))
}

/// Whether a rule names a word of a command: the word itself, or a folder that the word is below (`/srv/*`).
pub(crate) fn names(specifier: &str, word: &str) -> bool {
    let below = |named: &String| {
        let folder = named.strip_suffix('*').filter(|folder| folder.ends_with('/') && !folder.contains('*'));
        let rest = folder.and_then(|folder| word.strip_prefix(folder));
        rest.is_some_and(|rest| !rest.split('/').any(|part| part == ".."))
    };
    let (Form::Exact(words) | Form::Prefix(words)) = form(specifier) else {
        return words(specifier).iter().any(|named| named == word || below(named));
    };
    words.iter().any(|named| named == word)
}

/// How far a rule that allows reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Allowed {
    /// The very command was written down.
    Exactly,
    /// This many of its first words were, counted with the assignments before them.
    Prefix(usize),
}

fn fixed_words(pattern: &str) -> usize {
    pattern.split(' ').take_while(|word| !word.contains('*')).count()
}

fn rendered(words: &[String]) -> String {
    words
        .iter()
        .map(|word| {
            if word.is_empty() || word.contains(char::is_whitespace) {
                bash::quote(word)
            } else {
                word.clone()
            }
        })
        .collect::<Vec<_>>()
        .join(" ")
}

/// Whether a rule that forbids covers a command.
pub(crate) fn forbids(specifier: &str, command: &ShellCommand) -> Match {
    let form = form(specifier);
    let shown: Vec<Option<String>> = command
        .words
        .iter()
        .enumerate()
        .map(|(index, word)| (!command.unknown.contains(&index)).then(|| word.clone()))
        .collect();
    let own = &shown[command.assigned.min(shown.len())..];
    let mut best = Match::No;
    for variant in variants(&shown, own) {
        best = best.max(compare(&form, &variant));
    }
    if let Form::Wildcard(pattern) = &form {
        let texts = [&command.words[..], &command.words[command.assigned.min(command.words.len())..]];
        for words in texts {
            let text = rendered(words);
            let based = rendered(&with_base(words));
            let optional = pattern.strip_suffix(" *").unwrap_or(pattern);
            if [pattern.as_str(), optional]
                .iter()
                .any(|pattern| text_matches(pattern, &text) || text_matches(pattern, &based))
            {
                return Match::Yes;
            }
        }
        if !command.unknown.is_empty() {
            let first = pattern.split([' ', '*']).next().unwrap_or("");
            let program = own.first().cloned().flatten();
            if first.is_empty() || program.is_none_or(|program| base(&program) == base(first)) {
                best = best.max(Match::Maybe);
            }
        }
    }
    if may_run(&form, command) {
        best = best.max(Match::Maybe);
    }
    best.max(loosely(&form, own))
}

/// Whether a command may run what a rule forbids under another name: by code that is not for the shell, by an option
/// that runs something, by a link to it, or because its words speak of it.
fn may_run(form: &Form, command: &ShellCommand) -> bool {
    let own = command.words.get(command.assigned..).unwrap_or_default();
    let (Some(wanted), Some(program)) = (program_of(form), own.first().map(|word| base(word))) else {
        return false;
    };
    // What only reads runs nothing. Options of `git` are taken apart elsewhere, and so is what `find` runs.
    if command.read_only || program.eq_ignore_ascii_case(&wanted) {
        return false;
    }
    let linked = command.program.iter().filter_map(|path| path.file_name()).any(|name| name == wanted);
    let hazard =
        command.hazards.iter().any(|hazard| program != "find" || command.unknown.contains(&hazard.word));
    if linked || hazard || command.code.is_some() {
        return true;
    }
    let words: Vec<String> = match form {
        Form::Exact(words) | Form::Prefix(words) => words.iter().map(|word| base(word).to_owned()).collect(),
        Form::Wildcard(_) => vec![wanted],
    };
    let spoken = own[1..].join(" ");
    let tokens: Vec<&str> = spoken.split(|c: char| !(c.is_alphanumeric() || "_-.".contains(c))).collect();
    program != "git" && words.iter().all(|word| tokens.contains(&word.as_str()))
}

/// The name of the program a rule is about.
pub(crate) fn program_of(form: &Form) -> Option<String> {
    match form {
        Form::Exact(words) | Form::Prefix(words) => words.first().map(|word| base(word).to_owned()),
        Form::Wildcard(pattern) => {
            let first = pattern.split([' ', '*']).next().unwrap_or("");
            (!first.is_empty()).then(|| base(first).to_owned())
        }
    }
}

fn base(word: &str) -> &str {
    word.rsplit('/').next().unwrap_or(word)
}

fn with_base(words: &[String]) -> Vec<String> {
    let mut words = words.to_vec();
    if let Some(first) = words.first_mut() {
        *first = base(first).to_lowercase();
    }
    words
}

/// The forms of a command that a rule which forbids may have had in mind.
fn variants(shown: &[Option<String>], own: &[Option<String>]) -> Vec<Vec<Option<String>>> {
    let mut found = vec![shown.to_vec(), own.to_vec()];
    let mut named = own.to_vec();
    if let Some(Some(program)) = named.first_mut() {
        *program = base(program).to_lowercase();
    }
    if named.first() == Some(&Some("git".to_owned())) {
        found.push(without_git_options(&named));
    }
    found.push(named);
    found
}

/// `git -C x -c y=z push` as `git push`.
fn without_git_options(words: &[Option<String>]) -> Vec<Option<String>> {
    let mut rest = words.iter().skip(1).peekable();
    while let Some(Some(word)) = rest.peek() {
        if !word.starts_with('-') {
            break;
        }
        let valued = bash::git_option_takes_value(word);
        rest.next();
        if valued {
            rest.next();
        }
    }
    words.iter().take(1).chain(rest).cloned().collect()
}

fn compare(form: &Form, command: &[Option<String>]) -> Match {
    let (wanted, whole) = match form {
        Form::Exact(words) => (words, true),
        Form::Prefix(words) => (words, false),
        Form::Wildcard(_) => return Match::No,
    };
    for (index, word) in wanted.iter().enumerate() {
        match command.get(index) {
            Some(None) => return Match::Maybe,
            Some(Some(found)) if found == word || (index == 0 && found == base(word)) => {}
            None | Some(Some(_)) => return Match::No,
        }
    }
    if whole && command.len() != wanted.len() {
        return if command.iter().any(Option::is_none) { Match::Maybe } else { Match::No };
    }
    Match::Yes
}

/// The same program, the same words and at least the same flags, in any order and spelling.
fn loosely(form: &Form, command: &[Option<String>]) -> Match {
    let fixed: Vec<String>;
    let mut partial = None;
    let (wanted, whole) = match form {
        Form::Exact(words) => (words, true),
        Form::Prefix(words) => (words, false),
        Form::Wildcard(pattern) => {
            // `rm -rf /*`: the last word is only begun.
            let Some(begun) = pattern.strip_suffix('*').filter(|begun| !begun.contains('*')) else {
                return Match::No;
            };
            let mut words = words(begun);
            partial = words.pop();
            fixed = words;
            (&fixed, false)
        }
    };
    let Some((program, wanted)) = wanted.split_first() else { return Match::Yes };
    let Some(Some(found)) = command.first() else { return Match::No };
    if !base(found).eq_ignore_ascii_case(base(program)) || (wanted.is_empty() && partial.is_none()) {
        return Match::No;
    }
    let known: Vec<&str> = command[1..].iter().flatten().map(String::as_str).collect();
    let (operands, flags) = sorted(&known);
    let wanted: Vec<&str> = wanted.iter().map(String::as_str).collect();
    let (wanted_operands, wanted_flags) = sorted(&wanted);
    let has_flags = wanted_flags.iter().all(|flag| flags.contains(flag));
    let has_operands =
        if whole { operands == wanted_operands } else { operands.starts_with(&wanted_operands) };
    let has_operands = has_operands
        && partial.as_ref().is_none_or(|begun| {
            operands
                .get(wanted_operands.len()..)
                .is_some_and(|rest| rest.iter().any(|word| word.starts_with(begun.as_str())))
        });
    if has_flags && has_operands && known.len() + 1 == command.len() {
        return Match::Yes;
    }
    if known.len() + 1 < command.len() {
        return Match::Maybe;
    }
    // An option with a value of its own may stand before the subcommand.
    let option_first = known.first().is_some_and(|word| word.starts_with('-'));
    let subcommand = wanted_operands.first();
    if option_first && has_flags && subcommand.is_some_and(|word| operands.contains(word)) {
        return Match::Maybe;
    }
    Match::No
}

/// Operands, and flags one by one.
fn sorted<'a>(words: &[&'a str]) -> (Vec<&'a str>, Vec<String>) {
    let (mut operands, mut flags) = (Vec::new(), Vec::new());
    for word in words {
        if let Some(long) = word.strip_prefix("--").filter(|long| !long.is_empty()) {
            let name = long.split('=').next().unwrap_or(long);
            flags.push(match name {
                "recursive" => "r".to_owned(),
                "force" => "f".to_owned(),
                name => name.to_owned(),
            });
        } else if let Some(letters) = word.strip_prefix('-').filter(|letters| !letters.is_empty()) {
            for letter in letters.chars() {
                flags.push(if letter == 'R' { "r".to_owned() } else { letter.to_string() });
            }
        } else if *word != "--" {
            operands.push(*word);
        }
    }
    (operands, flags)
}

/// Whether a text that could not be taken apart speaks of what a rule forbids.
pub(crate) fn mentions(specifier: &str, text: &str) -> Match {
    let wanted = match form(specifier) {
        Form::Exact(words) | Form::Prefix(words) => words,
        Form::Wildcard(pattern) => {
            return if text_matches(&format!("*{pattern}*"), text) { Match::Yes } else { Match::Maybe };
        }
    };
    let plain: String = text.chars().filter(|c| !matches!(c, '\'' | '"' | '\\')).collect();
    let tokens: Vec<&str> = plain
        .split(|c: char| c.is_whitespace() || ";|&()<>`${}=".contains(c))
        .filter(|token| !token.is_empty())
        .collect();
    let found = tokens.windows(wanted.len().max(1)).any(|window| {
        window
            .iter()
            .zip(&wanted)
            .enumerate()
            .all(|(index, (token, word))| *token == word || (index == 0 && base(token) == base(word)))
    });
    if found { Match::Yes } else { Match::Maybe }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(text: &str) -> ShellCommand {
        let words: Vec<String> = text.split(' ').map(str::to_owned).collect();
        ShellCommand { text: text.to_owned(), words, ..ShellCommand::default() }
    }

    #[test]
    fn a_prefix_ends_at_a_word() {
        assert!(allows("npm test:*", &command("npm test")).is_some());
        assert!(allows("npm test *", &command("npm test --x")).is_some());
        assert!(allows("npm test:*", &command("npm testing")).is_none());
        assert!(allows("npm test", &command("npm test --x")).is_none());
        assert!(allows("git * main", &command("git push origin main")).is_some());
        assert!(allows("*", &command("rm")).is_none());
    }

    #[test]
    fn what_forbids_sees_through_spelling() {
        for text in ["rm -rf x", "/bin/rm -rf x", "rm -r -f x", "rm --force --recursive x", "RM -fr x"] {
            assert_eq!(forbids("rm -rf:*", &command(text)), Match::Yes, "{text}");
        }
        assert_eq!(forbids("rm -rf:*", &command("rm -r x")), Match::No);
        assert_eq!(forbids("git push:*", &command("git -C /x push")), Match::Yes);
        assert_eq!(forbids("git push:*", &command("git stash push")), Match::No);
        assert_eq!(forbids("git push --force:*", &command("git push origin main --force")), Match::Yes);
    }
}
