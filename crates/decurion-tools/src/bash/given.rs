//! Paths that a program may open because its words name them, whatever it does with them. Takes a program's name and
//! arguments; gives the texts in them that may be a path.
//!
//! A rule for the first words of a command allows none of these outside of the working directories, unless it names
//! them. Left out is what certainly is no path: a message, a revision, an address.

use super::expand::Field;
use super::git;

/// Subcommands of git with `-m MESSAGE`. A word of theirs that is no option names no file outside of the repository.
const WITH_MESSAGE: [&str; 6] = ["commit", "tag", "merge", "notes", "stash", "commit-tree"];
/// Their letters and words without a value, which may stand before `-m`.
const VALUELESS: &str = "asqvefkp";
const VALUELESS_WORDS: [&str; 7] =
    ["--amend", "--all", "--signoff", "--quiet", "--no-verify", "--allow-empty", "--no-edit"];

/// Programs that build, test and check a project: those of its files are what they are given in ordinary use. Left out
/// are programs whose paths are on another machine or in a container, and those that run any code they are given.
const OF_PROJECT: &str = "cargo go npm pnpm yarn pytest py.test eslint prettier tsc jest vitest mocha ruff black mypy \
    flake8 pylint isort gradle gradlew mvn mvnw dotnet rspec rake ctest ninja bazel phpunit tox nox";

/// A text that may be a path.
#[derive(Debug, PartialEq)]
pub(crate) struct Given {
    /// Which of the arguments it is in.
    pub argument: usize,
    /// None: not known, so it may be any path, or an option.
    pub text: Option<String>,
}

/// The texts in the arguments of a program that may be paths.
pub(crate) fn given(name: &str, arguments: &[Field]) -> Vec<Given> {
    let is_of_project = |name: &str| super::lists(OF_PROJECT, name);
    let module = match arguments {
        [flag, module, ..] if name.starts_with("python") && flag.known() == Some("-m") => module.known(),
        _ => None,
    };
    if is_of_project(name) || module.is_some_and(|module| module == "unittest" || is_of_project(module)) {
        return of_project(arguments);
    }
    if name != "git" {
        return Vec::new();
    }
    let (subcommand, rest) = git::subcommand(arguments).unwrap_or(("", arguments));
    let first = arguments.len() - rest.len();
    let mut found = Vec::new();
    for (argument, word) in arguments.iter().enumerate() {
        let inner = argument.checked_sub(first);
        if inner.is_some_and(|inner| is_text(subcommand, rest, inner)) {
            continue;
        }
        match word.pattern.as_ref().filter(|_| !word.splits) {
            None if prints_revision(&word.text) => {}
            None => found.push(Given { argument, text: None }),
            Some(pattern) => found.extend(
                texts(&pattern.text)
                    .into_iter()
                    .map(|text| Given { argument, text: text.map(str::to_owned) }),
            ),
        }
    }
    found
}

/// The same for a program that builds or checks a project, whose values also follow `:` and `@`.
fn of_project(arguments: &[Field]) -> Vec<Given> {
    let mut found = Vec::new();
    for (argument, word) in arguments.iter().enumerate() {
        let Some(pattern) = word.pattern.as_ref().filter(|_| !word.splits) else { continue };
        let word = pattern.text.as_str();
        let values = word.match_indices([':', '@']).map(|(at, mark)| &word[at + mark.len()..]);
        // What follows a scheme is the name of another machine.
        let values = values.filter(|value| !value.starts_with("//")).map(Some);
        let texts = texts(word).into_iter().chain(values);
        found.extend(texts.map(|text| Given { argument, text: text.map(str::to_owned) }));
    }
    found
}

/// The parts of a word that may be a path: all of it, a value after `=`, one behind letters of an option.
fn texts(word: &str) -> Vec<Option<&str>> {
    let mut found = vec![Some(word)];
    found.extend(word.match_indices('=').map(|(at, mark)| Some(&word[at + mark.len()..])));
    for mark in ["file:", "(optional)"] {
        found.extend(
            word.split_once(mark).map(|(_, path)| if path.contains('%') { None } else { Some(path) }),
        );
    }
    if let Some(letters) = word.strip_prefix('-').filter(|letters| !letters.starts_with('-')) {
        let starts = letters.char_indices().map(|(at, _)| at).skip(1).take(3);
        let climbs = letters.find("../").into_iter().chain(letters.find('/'));
        found.extend(starts.chain(climbs).map(|at| Some(&letters[at..])));
    }
    found
}

/// Whether a word of a subcommand certainly is a text and no path: a message, or a pattern.
fn is_text(subcommand: &str, words: &[Field], index: usize) -> bool {
    let word = &words[index];
    if subcommand == "sparse-checkout" {
        return index > 0 && !word.may_be_flag();
    }
    if !WITH_MESSAGE.contains(&subcommand) || word.splits {
        return false;
    }
    let before = |back: usize| index.checked_sub(back).map(|at| words[at].known().unwrap_or("-"));
    let is_message = |option: &str| {
        option == "--message"
            || option.strip_prefix('-').is_some_and(|letters| {
                letters
                    .strip_suffix('m')
                    .is_some_and(|before| before.chars().all(|c| c.is_ascii_alphabetic()))
            })
    };
    if before(1).is_some_and(is_message) {
        let plain = word.known().is_some_and(|text| !text.starts_with('-'));
        return plain || (word.is_one_word() && takes_message(before(1), before(2)));
    }
    let glued = word.known().is_some_and(|text| {
        let value = text.strip_prefix("--message=").or_else(|| text.strip_prefix("-m"));
        // It may still be the value of the option before it, and then is a path from here.
        value.is_some() && !text.split('/').any(|part| part == "..")
    });
    glued || (word.text.starts_with("--message=") && is_valueless(before(1)))
}

/// Whether an option takes the next word as a message, whatever that is: it is no value of the one before.
fn takes_message(option: Option<&str>, before: Option<&str>) -> bool {
    let letters = option.and_then(|option| option.strip_prefix('-')).unwrap_or("");
    let plain = letters == "-message"
        || letters.strip_suffix('m').is_some_and(|letters| letters.chars().all(|c| VALUELESS.contains(c)));
    plain && is_valueless(before)
}

/// Whether a word is none, or no option with a value in the next word.
fn is_valueless(word: Option<&str>) -> bool {
    let Some(letters) = word.and_then(|word| word.strip_prefix('-')) else { return true };
    let short = !letters.is_empty() && letters.chars().all(|c| VALUELESS.contains(c));
    short || word.is_some_and(|word| VALUELESS_WORDS.contains(&word))
}

/// Whether a word is what git prints as the name of a commit: never an option, nor a path.
fn prints_revision(source: &str) -> bool {
    let source = source.trim_matches('"');
    let Some(command) = source.strip_prefix("$(").and_then(|rest| rest.strip_suffix(')')) else {
        return false;
    };
    let plain = |word: &&str| word.chars().all(|c| c.is_ascii_alphanumeric() || "/_.@{}^~-".contains(c));
    let words: Vec<&str> = command.split_whitespace().collect();
    match words.as_slice() {
        ["git", "merge-base", revisions @ ..] => revisions.iter().all(plain),
        ["git", "rev-parse", "--short" | "--verify", revision] | ["git", "rev-parse", revision] => {
            revision.starts_with("HEAD") && plain(revision) && !revision.contains(['/', '.'])
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts_of(command: &[&str]) -> Vec<String> {
        let arguments: Vec<Field> = command.iter().map(|word| Field::literal(word)).collect();
        given("git", &arguments).into_iter().filter_map(|given| given.text).collect()
    }

    #[test]
    fn messages_are_no_paths_and_what_may_be_an_option_is() {
        for command in [
            &["commit", "-m", "../x"][..],
            &["commit", "-am", "/x"],
            &["commit", "-m", "a", "-m", "/x"],
            &["commit", "--message=/x"],
            &["commit", "-m/x"],
            &["tag", "-a", "v1", "-m", "/x"],
            &["stash", "push", "-m", "/x"],
        ] {
            assert!(!texts_of(command).iter().any(|text| text.starts_with(['/', '.'])), "{command:?}");
        }
        for command in [
            &["commit", "-F", "/x"][..],
            &["commit", "-F/x"],
            &["commit", "-qF/x"],
            &["commit", "--trailer", "-m", "-F/x"],
            &["commit", "--file=/x"],
            &["am", "-m", "/x"],
            &["-C", "/x", "commit", "-m", "a"],
            &["config", "--file=a=/x"],
            &["fetch", "file:/x"],
        ] {
            assert!(texts_of(command).contains(&"/x".to_owned()), "{command:?}");
        }
        for (source, revision) in [
            ("$(git merge-base main HEAD)", true),
            ("\"$(git rev-parse --short HEAD~2)\"", true),
            ("$(git rev-parse link/x)", false),
            ("$(git rev-parse --show-toplevel)", false),
            ("$(git merge-base a b; echo -F/x)", false),
            ("$(git branch --show-current)", false),
            ("$(git merge-base a b)$(echo x)", false),
        ] {
            assert_eq!(prints_revision(source), revision, "{source}");
        }
        assert!(texts_of(&["commit", "-F", "-m/../../x"]).contains(&"-m/../../x".to_owned()));
    }
}
