//! Questions that git can be asked. Takes the arguments of `git`; says whether this call of it only shows
//! something, and where it would look for its repository.

mod runs;
mod shown;

use camino::Utf8PathBuf;

use super::expand::Field;
use super::program::{Call, Flags, Kind, Parsed, parse};
pub(crate) use runs::runs;
pub(crate) use shown::shown;

/// Flags of what shows commits and differences.
const SHOW: &str = "p u s w b a z R --oneline --graph --all --decorate --no-decorate --stat --shortstat --numstat \
    --dirstat --summary --name-only --name-status --patch --no-patch --raw --patch-with-stat --patch-with-raw \
    --cached --staged --merges --no-merges --first-parent --reverse --follow --abbrev-commit --no-abbrev-commit \
    --abbrev --date-order --author-date-order --topo-order --simplify-by-decoration --simplify-merges --full-history \
    --ancestry-path --boundary --left-right --cherry --cherry-pick --cherry-mark --left-only --right-only --branches \
    --tags --remotes --no-color --color --color-words --word-diff --color-moved --no-color-moved --minimal --patience \
    --histogram --ignore-all-space --ignore-space-change --ignore-space-at-eol --ignore-blank-lines \
    --ignore-cr-at-eol --find-renames --find-copies --find-copies-harder --no-renames --full-index --binary --text \
    --exit-code --quiet --check --relative --no-relative --relative-date --no-ext-diff --no-textconv --no-prefix \
    --pickaxe-all --pickaxe-regex --extended-regexp --fixed-strings --perl-regexp --basic-regexp --regexp-ignore-case \
    --all-match --invert-grep --parents --children --no-notes --notes --show-notes --cc \
    --combined-all-paths --function-context --log-size --no-expand-tabs --expand-tabs --no-walk --source --use-mailmap \
    --mailmap --no-mailmap --compact-summary --ita-invisible-in-index --merge-base --submodule --ignore-submodules \
    --walk-reflogs --reflog --stdin --pretty --format --unified --root --no-index --indent-heuristic \
    --no-indent-heuristic --exclude-first-parent-only --sparse --do-walk --dense \
    c m t r g h i E F P M C B D W";
const SHOW_VALUES: &str = "n S G L l --max-count --skip --since --after --until --before --author --committer \
    --grep --grep-reflog --date --diff-filter --word-diff-regex --inter-hunk-context \
    --diff-algorithm --anchored --max-parents --min-parents --glob --exclude --encoding --decorate-refs \
    --decorate-refs-exclude --stat-width --stat-count --ws-error-highlight --find-object --since-as-filter";

/// The flags of `git diff`, and those of them with a value.
#[cfg(test)]
pub(crate) fn diff_flags() -> (&'static str, &'static str) {
    (SHOW, SHOW_VALUES)
}

/// Letters whose value, if they have one, is in the same word: those of what shows differences.
fn glued_letters(flags: &str) -> &'static str {
    if flags == SHOW { "U X" } else { "" }
}

/// One subcommand that only shows something with these flags.
struct Shows {
    name: &'static str,
    flags: &'static str,
    values: &'static str,
    /// Whether operands may be there.
    operands: bool,
}

const fn shows(name: &'static str, flags: &'static str, values: &'static str) -> Shows {
    Shows { name, flags, values, operands: true }
}

const fn bare(name: &'static str, flags: &'static str, values: &'static str) -> Shows {
    Shows { name, flags, values, operands: false }
}

static SHOWING: &[Shows] = &[
    shows(
        "status",
        "s b v z --short --branch --show-stash --porcelain --long --verbose --ignored --ignore-submodules --untracked-files --column --no-column --ahead-behind --no-ahead-behind --renames --no-renames --find-renames u uno uall unormal",
        "",
    ),
    shows("log", SHOW, SHOW_VALUES),
    shows("show", SHOW, SHOW_VALUES),
    shows("diff", SHOW, SHOW_VALUES),
    shows("whatchanged", SHOW, SHOW_VALUES),
    shows("diff-tree", SHOW, SHOW_VALUES),
    shows("diff-index", SHOW, SHOW_VALUES),
    shows("diff-files", SHOW, SHOW_VALUES),
    shows("rev-list", concat_flags::REV_LIST, SHOW_VALUES),
    shows("range-diff", "--no-color --color --no-patch --stat --left-only --right-only", "--creation-factor"),
    shows(
        "shortlog",
        "n s e c w --numbered --summary --email --committer --no-merges --merges --all --first-parent",
        "--format --since --until --after --before --author --group --grep",
    ),
    shows(
        "blame",
        "b c e f l n p s t w C M --root --show-stats --show-name --show-number --show-email --porcelain --line-porcelain --incremental --color-lines --color-by-age --minimal --first-parent --abbrev",
        "L --ignore-rev --since --date",
    ),
    shows("annotate", "l r t", "L"),
    shows(
        "ls-files",
        "c d i k m o s t u v z f --cached --deleted --modified --others --ignored --stage --killed --unmerged --directory --no-empty-directory --exclude-standard --error-unmatch --full-name --abbrev --deduplicate --eol --recurse-submodules --debug --sparse",
        "x --exclude --with-tree",
    ),
    shows(
        "ls-tree",
        "d r t l z --long --name-only --name-status --full-name --full-tree --abbrev --object-only",
        "",
    ),
    shows("cat-file", "e p t s --batch-all-objects --follow-symlinks --unordered", ""),
    shows(
        "rev-parse",
        "q --verify --short --abbrev-ref --symbolic --symbolic-full-name --show-toplevel --show-prefix --show-cdup --git-dir --absolute-git-dir --git-common-dir --is-inside-work-tree --is-inside-git-dir --is-bare-repository --is-shallow-repository --all --branches --tags --remotes --quiet --show-superproject-working-tree --show-object-format --local-env-vars --revs-only --no-revs --flags --no-flags --not --sq",
        "--git-path --default --since --after --until --before --glob --exclude --path-format --disambiguate",
    ),
    shows(
        "describe",
        "--all --tags --contains --long --always --exact-match --first-parent --debug --dirty --broken --abbrev",
        "--candidates --match --exclude",
    ),
    shows("name-rev", "--tags --all --name-only --always --no-undefined", "--refs --exclude"),
    shows("merge-base", "a --all --octopus --independent --is-ancestor --fork-point", ""),
    shows(
        "show-ref",
        "d s q --heads --head --branches --tags --dereference --hash --verify --quiet --exists --abbrev",
        "",
    ),
    shows(
        "show-branch",
        "a r --all --remotes --current --topo-order --date-order --sparse --no-name --sha1-name --topics --no-color --color",
        "",
    ),
    shows(
        "for-each-ref",
        "s p --shell --perl --python --tcl --ignore-case --omit-empty --stdin --color",
        "--count --sort --format --points-at --merged --no-merged --contains --no-contains --exclude",
    ),
    shows("cherry", "v --verbose --abbrev", ""),
    shows("check-ignore", "q v n z --quiet --verbose --non-matching --no-index", ""),
    shows("check-attr", "a z --all --cached", ""),
    bare("count-objects", "v H --verbose --human-readable", ""),
    bare("version", "--build-options", ""),
    shows(
        "grep",
        "a i I w v h H E F G P n l L o q c p W r z --text --ignore-case --word-regexp --invert-match --extended-regexp --fixed-strings --basic-regexp --perl-regexp --line-number --column --files-with-matches --name-only --files-without-match --null --only-matching --count --color --no-color --break --heading --show-function --function-context --quiet --cached --untracked --no-index --exclude-standard --recurse-submodules --full-name --all-match --and --or --not --recursive --no-recursive",
        "e A B C m --max-depth --threads --max-count --context --after-context --before-context",
    ),
];

mod concat_flags {
    pub(super) const REV_LIST: &str = "--count --all --branches --tags --remotes --merges --no-merges --first-parent \
        --reverse --left-right --objects --parents --children --timestamp --header --abbrev-commit --date-order \
        --topo-order --oneline --graph --no-walk --ancestry-path --boundary --cherry-pick --left-only --right-only \
        --not --quiet --pretty --format --disk-usage --reflog --no-commit-header";
}

/// Options of git itself that change nothing.
const GLOBAL: [&str; 5] =
    ["--no-pager", "-P", "--no-optional-locks", "--literal-pathspecs", "--no-replace-objects"];

/// Where a call of git may begin to look for its repository, from the directories the shell may be in; the error is
/// why that is not known.
pub(crate) fn places(arguments: &[Field], directories: &[Utf8PathBuf]) -> Result<Vec<Utf8PathBuf>, String> {
    let unknown = || "cannot tell which repository git would use".to_owned();
    let mut directories = directories.to_vec();
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        let text = argument.known().ok_or_else(unknown)?;
        match text {
            "-C" => {
                let place = rest.next().and_then(Field::known).ok_or_else(unknown)?;
                // Behind a link `..` is another place than the text says; what looks there follows it.
                directories = directories.iter().map(|directory| directory.join(place)).collect();
            }
            _ if ["--git-dir", "--work-tree", "--bare", "--exec-path"]
                .iter()
                .any(|flag| text.starts_with(flag)) =>
            {
                return Err(format!("it says itself which repository git uses, by {text}"));
            }
            _ if takes_value(text) => {
                rest.next();
            }
            _ if text.starts_with('-') => {}
            _ => break,
        }
    }
    Ok(directories)
}

/// The subcommand of a call and what follows it; empty where it has none, and nothing where that is not known.
pub(crate) fn subcommand(arguments: &[Field]) -> Option<(&str, &[Field])> {
    let mut at = 0;
    while let Some(argument) = arguments.get(at) {
        let text = argument.known()?;
        if !text.starts_with('-') {
            return Some((text, &arguments[at + 1..]));
        }
        at += if takes_value(text) { 2 } else { 1 };
    }
    Some(("", &[]))
}

/// Whether an option of git itself, before the subcommand, takes the next word as its value.
pub fn takes_value(option: &str) -> bool {
    const VALUED: &str = "-C -c --git-dir --work-tree --namespace --super-prefix --config-env --attr-source";
    VALUED.split(' ').any(|valued| valued == option)
}

fn row(name: &str) -> &'static Shows {
    SHOWING.iter().find(|row| row.name == name).unwrap_or(&SHOWING[0])
}

/// Judges one call of git.
pub(crate) fn judge(arguments: &[Field]) -> Call {
    let mut rest = arguments;
    loop {
        rest = match rest {
            [flag, after @ ..] if flag.known().is_some_and(|text| GLOBAL.contains(&text)) => after,
            [flag, setting, after @ ..]
                if flag.known() == Some("-c") && setting.known().is_some_and(runs::only_shows) =>
            {
                after
            }
            _ => break,
        };
    }
    let Some(subcommand) = rest.first().and_then(Field::known) else {
        return Call::other("what git would do is not known");
    };
    let arguments = &rest[1..];
    if subcommand.starts_with('-') {
        return Call::other(format!("it has a flag that is not known to be harmless, {subcommand}"));
    }
    if let Some(row) = SHOWING.iter().find(|row| row.name == subcommand) {
        return show(row, arguments);
    }
    match subcommand {
        "branch" => branch(arguments),
        "tag" => tag(arguments),
        "remote" => remote(arguments),
        "stash" => stash(arguments),
        "config" => config(arguments),
        "reflog" => reflog(arguments),
        "worktree" | "notes" | "submodule" | "bisect" | "lfs" | "sparse-checkout" => {
            second(subcommand, arguments)
        }
        "symbolic-ref" => symbolic_ref(arguments),
        _ => Call::other(format!("`git {subcommand}` may modify the repository")),
    }
}

fn parsed(arguments: &[Field], flags: &str, values: &str) -> Result<Parsed, Call> {
    parse(
        arguments,
        Flags { plain: flags, values, glued: glued_letters(flags), numbers: true, ..Flags::default() },
    )
    .map_err(Call::other)
}

fn show(row: &Shows, arguments: &[Field]) -> Call {
    let arguments = glued(row.flags, arguments);
    let parsed = match parsed(&arguments, row.flags, row.values) {
        Ok(parsed) => parsed,
        Err(call) => return call,
    };
    if !row.operands && !parsed.operands.is_empty() {
        return Call::other("it is given an operand");
    }
    let mut call = Call { kind: Kind::Reads, ..Call::default() };
    let mut operands = parsed.operands.clone();
    // Files and folders that need not be of a repository are compared.
    call.below = row.name == "diff" && parsed.saw(&["--no-index"]);
    if row.name == "grep" {
        call.below = true;
        if !parsed.saw(&["e"]) && !operands.is_empty() {
            operands.remove(0);
        }
        call.here = operands.is_empty();
    }
    for operand in operands {
        // `revision:path` shows a path as it was.
        let path = operand.known().and_then(shown::of_revision).filter(|path| !path.is_empty());
        call.reads.extend(path.map(Field::literal));
        // A revision in a variable or made by a command is no path; what could be one is read.
        let is_revision = path.is_some() || (operand.pattern.is_none() && !operand.splits);
        if is_revision && !matches!(row.name, "diff" | "grep" | "blame") {
            continue;
        }
        call.reads.push(operand);
    }
    call
}

/// The arguments without those that carry their value in the same word in a way of git's own
/// (`-U5`, `-M90%`, `-L1,5:file`).
fn glued(flags: &str, arguments: &[Field]) -> Vec<Field> {
    let plain = |text: &str| {
        let Some(letters) = text.strip_prefix('-') else { return false };
        let mut characters = letters.chars();
        let first = characters.next();
        let tail = characters.as_str();
        matches!(first, Some('M' | 'C' | 'B' | 'D'))
            && !tail.is_empty()
            && tail.chars().all(|c| c.is_ascii_digit() || c == '%')
            && flags.contains(" M")
    };
    let mut ended = false;
    arguments
        .iter()
        .filter(|argument| {
            ended |= argument.known() == Some("--");
            ended || !argument.known().is_some_and(plain)
        })
        .cloned()
        .collect()
}

fn branch(arguments: &[Field]) -> Call {
    const FLAGS: &str = "a r v vv q i l --all --remotes --list --verbose --show-current --no-color --color --column \
        --no-column --ignore-case --no-abbrev --abbrev --quiet --merged --no-merged";
    const VALUES: &str = "--contains --no-contains --points-at --sort --format";
    let parsed = match parsed(arguments, FLAGS, VALUES) {
        Ok(parsed) => parsed,
        Err(call) => return call,
    };
    let lists =
        parsed.saw(&["--list", "l", "--merged", "--no-merged", "--contains", "--no-contains", "--points-at"]);
    if lists || parsed.operands.is_empty() {
        return Call::harmless();
    }
    Call::other("it may make a branch")
}

fn tag(arguments: &[Field]) -> Call {
    const FLAGS: &str =
        "l n i --list --ignore-case --column --no-column --no-color --color --merged --no-merged";
    const VALUES: &str = "--contains --no-contains --points-at --sort --format";
    let kept: Vec<Field> = arguments
        .iter()
        .filter(|argument| {
            !argument.known().is_some_and(|text| {
                text.strip_prefix("-n")
                    .is_some_and(|tail| !tail.is_empty() && tail.bytes().all(|b| b.is_ascii_digit()))
            })
        })
        .cloned()
        .collect();
    let parsed = match parsed(&kept, FLAGS, VALUES) {
        Ok(parsed) => parsed,
        Err(call) => return call,
    };
    let lists =
        parsed.saw(&["--list", "l", "--merged", "--no-merged", "--contains", "--no-contains", "--points-at"]);
    if lists || parsed.operands.is_empty() {
        return Call::harmless();
    }
    Call::other("it may make a tag")
}

fn remote(arguments: &[Field]) -> Call {
    let texts: Option<Vec<&str>> = arguments.iter().map(Field::known).collect();
    match texts.as_deref() {
        Some([] | ["-v" | "--verbose"]) => Call::harmless(),
        Some(["get-url", rest @ ..])
            if rest.len() <= 3
                && rest.iter().all(|word| !word.starts_with('-') || matches!(*word, "--all" | "--push")) =>
        {
            Call::harmless()
        }
        _ => Call::other("it may change a remote or talk to one"),
    }
}

fn stash(arguments: &[Field]) -> Call {
    match arguments.first().and_then(Field::known) {
        Some("list" | "show") => match parsed(&arguments[1..], SHOW, SHOW_VALUES) {
            Ok(_) => Call::harmless(),
            Err(call) => call,
        },
        _ => Call::other("it may change the stash"),
    }
}

fn config(arguments: &[Field]) -> Call {
    const FLAGS: &str = "l z --list --get --get-all --get-regexp --get-urlmatch --global --local --system --worktree \
        --show-origin --show-scope --name-only --null --includes --no-includes --bool --int --path --all --regexp";
    const VALUES: &str = "--type --default";
    let parsed = match parsed(arguments, FLAGS, VALUES) {
        Ok(parsed) => parsed,
        Err(call) => return call,
    };
    let words: Vec<Option<&str>> = parsed.operands.iter().map(Field::known).collect();
    match words.as_slice() {
        _ if asks_config(arguments) => Call::harmless(),
        [Some("list" | "get"), ..] => Call::harmless(),
        // A name has a dot; other words are commands, and `edit` starts an editor.
        // What follows a name is its new value, even if it looks like a flag.
        [Some(name)] if name.contains('.') && arguments.last() == parsed.operands.last() => Call::harmless(),
        _ => Call::other("it may change the settings of git"),
    }
}

/// Whether `git config` is asked for settings: by a flag before its first operand, or by the first operand. What
/// comes after that is a name or a value, whatever it looks like.
fn asks_config(arguments: &[Field]) -> bool {
    const FLAGS: &str = "-z --global --local --system --worktree --show-origin --show-scope --name-only --null \
        --includes --no-includes --bool --int --path";
    let mut words = arguments.iter().map(Field::known);
    let first = words.find(|word| word.is_none_or(|word| !super::lists(FLAGS, word)));
    matches!(
        first.flatten(),
        Some("list" | "get" | "-l" | "--list" | "--get" | "--get-all" | "--get-regexp" | "--get-urlmatch")
    )
}

fn reflog(arguments: &[Field]) -> Call {
    let rest = match arguments.first().and_then(Field::known) {
        Some("expire" | "delete" | "drop" | "write") => return Call::other("it may change the reflog"),
        Some("show" | "list" | "exists") => &arguments[1..],
        _ => arguments,
    };
    match parsed(rest, SHOW, SHOW_VALUES) {
        Ok(_) => Call::harmless(),
        Err(call) => call,
    }
}

/// Subcommands that show something with one word of their own.
fn second(subcommand: &str, arguments: &[Field]) -> Call {
    let texts: Option<Vec<&str>> = arguments.iter().map(Field::known).collect();
    let harmless = match (subcommand, texts.as_deref()) {
        ("worktree", Some(["list", rest @ ..])) => {
            rest.iter().all(|word| matches!(*word, "-v" | "-z" | "--verbose" | "--porcelain"))
        }
        ("notes", Some(["list" | "show", rest @ ..])) => rest.iter().all(|word| !word.starts_with('-')),
        ("submodule", Some(["status", rest @ ..])) => {
            rest.iter().all(|word| !word.starts_with('-') || matches!(*word, "--recursive" | "--cached"))
        }
        ("bisect", Some(["log"])) | ("sparse-checkout", Some(["list"])) => true,
        _ => false,
    };
    if harmless { Call::harmless() } else { Call::other(format!("`git {subcommand}` may change something")) }
}

fn symbolic_ref(arguments: &[Field]) -> Call {
    match parsed(arguments, "q --quiet --short --no-recurse", "") {
        Ok(parsed) if parsed.operands.len() == 1 => Call::harmless(),
        Ok(_) => Call::other("it may change a reference"),
        Err(call) => call,
    }
}
