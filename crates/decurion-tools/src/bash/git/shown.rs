//! What a call of git shows of the files in its repository, as they are or were. Takes the arguments of `git`; gives
//! the paths that limit it, as far as its words tell, or nothing where it shows the content of no file.

use super::{SHOW, SHOW_VALUES};
use crate::bash::expand::Field;
use crate::bash::program::{Flags, parse};

/// What is shown, by the words alone.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Shown {
    /// Files by their path from the top of the repository (`HEAD:src/main.rs`).
    pub files: Vec<String>,
    /// Paths that limit what is shown to them and what lies below.
    pub below: Vec<String>,
    /// Words that name a revision, or a path that limits like those above.
    pub perhaps: Vec<String>,
    /// Whether the words do not limit it, whatever they are.
    pub all: bool,
    /// Whether only files are shown that git has in its index, unless one of the words is an earlier revision.
    pub tracked: bool,
}

impl Shown {
    fn all() -> Self {
        Self { all: true, ..Self::default() }
    }
}

/// Subcommands that show no content unless they ask which part of a change is meant, or are told to show it.
const QUIET: &str = "add am bisect blame annotate branch check-attr check-ignore check-ref-format checkout cherry \
    cherry-pick clean clone commit config count-objects describe fetch fsck gc help init lfs ls-files ls-remote ls-tree \
    maintenance merge merge-base mv name-rev notes pack-refs prune pull push rebase remote repack reset restore rev-list \
    rev-parse revert rm shortlog show-branch show-ref sparse-checkout stage submodule switch symbolic-ref status \
    update-index update-ref var version worktree";
/// Options with which those show content.
const TELLING: &str = "--patch --interactive --edit --verbose --show-current-patch --blob";
/// Options with which a list of commits shows content, or tells whether a text is in it.
const PATCHES: &str = "--patch --unified --cc --dd --remerge-diff --diff-merges --patch-with-stat --patch-with-raw --binary \
    --word-diff --word-diff-regex --color-words --function-context --check --pickaxe-all --pickaxe-regex --find-object \
    --submodule --ext-diff --textconv --relative";
/// The same as letters.
const PATCH_LETTERS: [char; 9] = ['p', 'u', 'c', 'm', 'U', 'W', 'S', 'G', 'L'];
/// Options with which differences are only counted or named.
const SUMMARIES: &str = "-s --no-patch --quiet --stat --shortstat --numstat --dirstat --summary --compact-summary --raw \
    --name-only --name-status";

/// What a call of git shows; nothing where it shows no content.
pub(crate) fn shown(arguments: &[Field]) -> Option<Shown> {
    let Some((subcommand, arguments)) = super::subcommand(arguments) else { return Some(Shown::all()) };
    match subcommand {
        "" => None,
        "diff" | "show" | "range-diff" => differences(subcommand, arguments),
        "log" | "reflog" | "whatchanged" | "diff-tree" | "diff-index" | "diff-files" => {
            commits(subcommand, arguments)
        }
        "stash" => match arguments.first().map(Field::known) {
            Some(Some("show")) => differences("stash", &arguments[1..]),
            Some(Some("list")) => commits("stash", &arguments[1..]),
            _ => telling(subcommand, arguments),
        },
        "grep" => limits(subcommand, arguments, super::row("grep").flags, super::row("grep").values),
        "cat-file" => object(arguments),
        "for-each-ref" | "tag" => {
            // A reference may lead to a file's content.
            let raw = |word: &Field| word.known().is_none_or(|text| text.contains("%(raw"));
            arguments.iter().any(raw).then(Shown::all)
        }
        "worktree" if has(arguments, |text| text == "add") => Some(Shown::all()),
        _ if crate::bash::lists(QUIET, subcommand) => telling(subcommand, arguments),
        _ => Some(Shown::all()),
    }
}

/// Options before `--` that are like this. One that is not known is.
fn has(arguments: &[Field], like: impl Fn(&str) -> bool) -> bool {
    let options = arguments.iter().take_while(|word| word.known() != Some("--"));
    options.into_iter().any(|word| word.known().is_none_or(&like))
}

/// Whether a word is one of these long options, perhaps shortened, as git takes them.
fn is_one_of(list: &str, text: &str) -> bool {
    let name = text.split('=').next().unwrap_or(text);
    name.len() > 2 && name.starts_with("--") && list.split_whitespace().any(|option| option.starts_with(name))
}

fn letters(text: &str) -> &str {
    text.strip_prefix('-').filter(|letters| !letters.starts_with('-')).unwrap_or("")
}

fn telling(subcommand: &str, arguments: &[Field]) -> Option<Shown> {
    let telling: &[char] = match subcommand {
        "add" | "stage" => &['p', 'i', 'e'],
        "commit" | "status" => &['p', 'v'],
        "checkout" | "reset" | "restore" | "stash" => &['p'],
        "am" | "rebase" | "config" => &[],
        _ => return None,
    };
    let tells = |text: &str| is_one_of(TELLING, text) || letters(text).contains(telling);
    has(arguments, tells).then(Shown::all)
}

fn is_patch(text: &str) -> bool {
    // Options whose names others begin with.
    let own = matches!(text, "--color" | "--text") || text.starts_with("--color=");
    let number = |letters: &str| letters.strip_prefix('n').is_some_and(|rest| !rest.contains(PATCH_LETTERS));
    (!own && is_one_of(PATCHES, text)) || (!number(letters(text)) && letters(text).contains(PATCH_LETTERS))
}

/// A list of commits, which shows content only where it is told to.
fn commits(subcommand: &str, arguments: &[Field]) -> Option<Shown> {
    has(arguments, is_patch).then(|| limits(subcommand, arguments, SHOW, SHOW_VALUES)).flatten()
}

/// A difference, which shows content unless it is told to count or name only.
fn differences(subcommand: &str, arguments: &[Field]) -> Option<Shown> {
    let summary = |text: &str| {
        let name = text.split('=').next().unwrap_or(text);
        crate::bash::lists(SUMMARIES, name)
    };
    let is_summary = |word: &Field| word.known().is_some_and(summary);
    let mut before = arguments.iter().take_while(|word| word.known() != Some("--"));
    let counts = before.any(is_summary) && !has(arguments, is_patch);
    if counts && (subcommand != "show" || shows_commits(arguments)) {
        return None;
    }
    limits(subcommand, arguments, SHOW, SHOW_VALUES)
}

fn known<'a>(flags: &'a str, values: &'a str) -> Flags<'a> {
    Flags { plain: flags, values, glued: super::glued_letters(flags), numbers: true, ..Flags::default() }
}

/// Whether `git show` is certainly given commits only: it prints the content of any other object whatever its options
/// say, and a name may lead to one.
fn shows_commits(arguments: &[Field]) -> bool {
    const NAMING: [&str; 9] = [
        "--all",
        "--branches",
        "--tags",
        "--remotes",
        "--glob",
        "--stdin",
        "--reflog",
        "--walk-reflogs",
        "g",
    ];
    let last = |word: &Field| {
        let rest = word.known().and_then(|text| text.strip_prefix("HEAD").or_else(|| text.strip_prefix('@')));
        rest.is_some_and(|rest| rest.chars().all(|c| "~^".contains(c) || c.is_ascii_digit()))
    };
    let before = arguments.iter().position(|word| word.known() == Some("--")).unwrap_or(arguments.len());
    let parsed = parse(&super::glued(SHOW, &arguments[..before]), known(SHOW, SHOW_VALUES));
    parsed.is_ok_and(|parsed| !parsed.saw(&NAMING) && parsed.operands.iter().all(last))
}

/// The paths among the operands.
fn limits(subcommand: &str, arguments: &[Field], flags: &str, values: &str) -> Option<Shown> {
    let end = arguments.iter().position(|word| word.known() == Some("--")).unwrap_or(arguments.len());
    let known = known(flags, values);
    // An option that is not known may take the next word, also the one that ends the options.
    let Ok(parsed) = parse(&super::glued(flags, arguments), known) else { return Some(Shown::all()) };
    let Ok(first) = parse(&super::glued(flags, &arguments[..end]), known) else { return Some(Shown::all()) };
    if parsed.saw(&["--no-index"]) && subcommand == "diff" {
        // These are judged as files.
        return None;
    }
    let mut shown = Shown::default();
    let mut now = true;
    // A file that was renamed is shown under its earlier names.
    shown.all |= parsed.saw(&["--follow"]);
    let pattern = usize::from(subcommand == "grep" && !parsed.saw(&["e"]));
    for (index, operand) in parsed.operands.iter().enumerate().skip(pattern) {
        let plain = |text: &&str| !text.starts_with(':') && !text.contains(['*', '?', '[', '\\']);
        match operand.known() {
            Some(text) if index >= first.operands.len() && plain(&text) => shown.below.push(text.to_owned()),
            Some(text) if index < first.operands.len() && text.contains(':') => {
                let path = of_revision(text);
                shown.files.extend(path.map(str::to_owned));
                shown.all |= path.is_none();
                now = false;
            }
            Some(text) if index < first.operands.len() && plain(&text) && !may_be_tree(text) => {
                shown.perhaps.push(text.to_owned());
            }
            _ => {
                shown.all = true;
                now &= index >= first.operands.len();
            }
        }
    }
    // A line of a file is named by an option, and so are folders and contents of nested repositories.
    shown.all |= parsed.saw(&["L", "--relative", "--submodule", "--stdin", "--recurse-submodules"]);
    let outside = ["--untracked", "--no-index", "--recurse-submodules", "--submodule"];
    shown.tracked = now && matches!(subcommand, "diff" | "grep") && !parsed.saw(&outside);
    Some(shown)
}

/// The path in `revision:path`, where the revision is a plain name: others may have a colon in them.
pub(super) fn of_revision(text: &str) -> Option<&str> {
    let (revision, path) = text.split_once(':')?;
    let plain = |c: char| c.is_ascii_alphanumeric() || "._/~^@-".contains(c);
    let certain = !revision.is_empty() && revision.chars().all(plain) && !may_be_tree(revision);
    certain.then_some(path)
}

/// Whether a revision may be the hash of a tree, below which paths have other names. A file may be named like one too.
fn may_be_tree(revision: &str) -> bool {
    let hash = |part: &str| {
        let part = part.split(['~', '^']).next().unwrap_or(part);
        part.len() >= 4 && part.bytes().all(|byte| byte.is_ascii_hexdigit())
    };
    revision.split("..").any(|part| hash(part.trim_start_matches('.')))
}

/// `cat-file`, which shows an object whole, or only asks about it.
fn object(arguments: &[Field]) -> Option<Shown> {
    let words: Option<Vec<&str>> = arguments.iter().map(Field::known).collect();
    match words.as_deref() {
        Some(["-t" | "-s" | "-e", _]) => None,
        Some(["-p" | "blob", object]) => match of_revision(object) {
            Some(path) => Some(Shown { files: vec![path.to_owned()], ..Shown::default() }),
            None => Some(Shown::all()),
        },
        _ => Some(Shown::all()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Option<Shown> {
        shown(&text.split(' ').map(Field::literal).collect::<Vec<_>>())
    }

    #[test]
    fn contents_are_told_from_names_and_counts() {
        for quiet in
            ["status", "log", "log --stat -n5", "diff --stat", "show -s", "stash list", "cat-file -t x"]
        {
            assert_eq!(of(quiet), None, "{quiet}");
        }
        for all in
            ["log -p -x", "show :0:a", "diff a:b:c", "log -p -- :/a", "archive HEAD", "st", "cat-file -p a"]
        {
            assert!(of(all).is_some_and(|shown| shown.all || !shown.files.is_empty()), "{all}");
        }
    }

    #[test]
    fn paths_limit_what_is_shown() {
        let shown = of("log -p main -- src").unwrap();
        assert_eq!((shown.perhaps, shown.below, shown.all), (vec!["main".into()], vec!["src".into()], false));
        assert_eq!(of("show HEAD~1:src/main.rs").unwrap().files, ["src/main.rs"]);
        for all in [
            "show 4b825dc:key",
            "log -p 4b825dc642cb -- key",
            "diff 4b82..abcd12 -- key",
            "log --follow -p a",
        ] {
            assert!(of(all).unwrap().all, "{all}");
        }
        assert!(of("diff HEAD").unwrap().tracked);
        assert!(!of("diff @{1}:a").unwrap().tracked);
    }
}
