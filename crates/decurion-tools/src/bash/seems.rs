//! Whether a text looks as if it only reads. Takes the text and what was found in it; says yes for commands that
//! people use to look at things, whatever their arguments.
//!
//! This proves nothing. It chooses which commands are tried in a sandbox that lets them change nothing; one that is
//! taken for a reader and is not fails there without effect.

use decurion_protocol::Access;
use decurion_protocol::intent::{ShellCommand, ShellIntent};

use super::{deceiving, program, syntax};

/// Builtins and programs besides those that are known by their flags.
const READERS: &str = ": [ [[ alias awk b2sum bat base32 base64 basename bc break builtin cal case cat cd cksum cmp \
    column comm command continue csplit cut date dc declare df diff diff3 dig dirname dirs dpkg-query du echo egrep \
    env exa exit expand expr export false fd fdfind fgrep file find fmt fold free gawk getconf getent getopts git \
    grep groups gunzip gzip head hexdump host hostname iconv id identify if jobs join jq less let local locale \
    locate ls lsb_release lsblk lscpu lsof mapfile mawk md5sum mdls mdfind more nl nm nproc numfmt objdump od otool \
    paste pathchk pgrep popd pr printenv printf ps pushd pwd read readarray readelf readlink realpath return rev rg \
    sdiff sed seq set sha1sum sha224sum sha256sum sha384sum sha512sum shift shopt sleep sort ss stat strings \
    tac tail tar test time timeout top tput tr tree true tsort tty type typeset ulimit umask uname unalias unexpand \
    uniq unset uptime vmstat w wait wc whereis which who whoami xargs xmllint xxd yes yq zcat zgrep zipinfo \
    nice nohup stdbuf setsid ionice chrt taskset bash sh dash eval exec";
/// Programs of which only some first words look so.
const SUBCOMMANDS: &[(&str, &str)] = &[
    (
        "git",
        "status diff log show blame annotate grep ls-files ls-tree rev-parse rev-list describe shortlog \
         cat-file branch tag remote config reflog stash name-rev merge-base for-each-ref show-ref show-branch \
         whatchanged diff-tree diff-index diff-files symbolic-ref var version help count-objects check-ignore \
         check-attr cherry range-diff worktree submodule bisect notes",
    ),
    ("npm", "ls list ll config prefix root bin explain why pkg version help"),
    ("yarn", "list why info config --version"),
    ("pnpm", "ls list why config --version"),
    ("pip", "list show freeze check config debug --version"),
    ("pip3", "list show freeze check config debug --version"),
    ("cargo", "tree metadata locate-project pkgid version help --version -V --list"),
    ("rustup", "show which toolchain component target --version"),
    ("rustc", "--version -V -vV --print --explain"),
    ("go", "version env list doc help"),
    ("gem", "list info which environment --version"),
    ("bundle", "list show info config --version"),
    ("poetry", "show env config check --version"),
    ("brew", "list info config --version"),
    ("apt", "list show search policy"),
    ("apt-cache", "policy show search depends rdepends"),
    ("dpkg", "-l -L -s -S --list --listfiles --status --search"),
    ("rpm", "-q -qa -qi -ql -qf"),
    ("uv", "--version version tree"),
    ("conda", "list info --version"),
    ("systemctl", "status list-units is-active is-enabled"),
    ("dotnet", "--version --info --list-sdks"),
    ("mvn", "--version -v"),
    ("gradle", "--version -v"),
    ("make", "-n --dry-run --version"),
    ("docker", "--version"),
    ("kubectl", "--help"),
    ("terraform", "version --version"),
];
/// Words that make a reader write. Their calls are not worth a try.
const WRITING: &[(&str, &[&str])] = &[
    ("sed", &["-i", "--in-place"]),
    ("sort", &["-o", "--output"]),
    ("find", &["-delete", "-fprint", "-fprintf", "-fls", "-ok", "-okdir"]),
    ("gzip", &[]),
    ("gunzip", &[]),
    (
        "tar",
        &[
            "-x",
            "-c",
            "x",
            "c",
            "xf",
            "xzf",
            "cf",
            "czf",
            "-xf",
            "-xzf",
            "-cf",
            "-czf",
            "--extract",
            "--create",
        ],
    ),
    ("awk", &["-i"]),
    ("gawk", &["-i"]),
    ("yq", &["-i", "--inplace"]),
    ("csplit", &[]),
    ("exec", &[]),
];

/// Whether a text looks so.
pub fn seems_to_read(text: &str, shell: &ShellIntent) -> bool {
    // What could not be taken apart may be anything.
    let whole = syntax::parse(text).doubt.is_none() && deceiving(text).is_none();
    whole && !shell.commands.is_empty() && shell.commands.iter().all(reads)
}

fn reads(command: &ShellCommand) -> bool {
    let nowhere = |path: &str| matches!(path, "/dev/null" | "/dev/stderr" | "/dev/stdout" | "/dev/tty");
    let writes =
        command.touches.iter().any(|touch| touch.access == Access::Write && !nowhere(touch.path.as_str()))
            || command.wide.iter().any(|wide| wide.access == Access::Write);
    if writes || command.inside.as_ref().is_some_and(|inside| inside.elsewhere) {
        return false;
    }
    let own = command.words.get(command.assigned..).unwrap_or_default();
    let Some(word) = own.first() else { return true };
    // A word that is only known when it runs.
    if command.unknown.contains(&command.assigned) {
        return false;
    }
    let name = word.rsplit('/').next().unwrap_or(word);
    let arguments = &own[1..];
    let has = |list: &str| list.split_ascii_whitespace().any(|known| known == name);
    if let Some((_, known)) = SUBCOMMANDS.iter().find(|(program, _)| *program == name) {
        return subcommand_reads(name, known, arguments);
    }
    if !has(READERS) && !program::is_known(name) {
        return arguments.len() == 1 && matches!(arguments[0].as_str(), "--version" | "-V" | "--help");
    }
    let writing = WRITING.iter().find(|(program, _)| *program == name).map(|(_, words)| *words);
    writing.is_none_or(|words| !words.is_empty() && !arguments.iter().any(|word| is_one_of(word, words)))
}

/// A word, with or without a value behind it.
fn is_one_of(word: &str, known: &[&str]) -> bool {
    known.iter().any(|flag| {
        word == *flag
            || word.strip_prefix(flag).is_some_and(|rest| rest.starts_with('='))
            || (flag.len() == 2 && flag.starts_with('-') && !word.starts_with("--") && word.starts_with(flag))
    })
}

fn subcommand_reads(program: &str, known: &str, arguments: &[String]) -> bool {
    let mut words = arguments.iter().map(String::as_str);
    let mut first = words.next();
    if program == "git" {
        // Options of git itself, two of which take a word.
        while let Some(option) = first.filter(|word| word.starts_with('-') && *word != "--version") {
            if matches!(option, "-C" | "-c") {
                words.next();
            }
            first = words.next();
        }
        let rest: Vec<&str> = words.collect();
        return first.is_none_or(|word| {
            word == "--version"
                || known.split_ascii_whitespace().any(|name| name == word) && git_reads(word, &rest)
        });
    }
    first.is_some_and(|word| known.split_ascii_whitespace().any(|name| name == word))
}

/// Whether a subcommand of git that can do both looks as if it only reads.
fn git_reads(subcommand: &str, arguments: &[&str]) -> bool {
    let names = arguments.iter().filter(|word| !word.starts_with('-')).count();
    let lists = |words: &[&str]| arguments.first().is_none_or(|first| words.contains(first));
    match subcommand {
        "branch" => {
            !arguments.iter().any(|word| {
                matches!(*word, "-d" | "-D" | "-m" | "-M" | "-c" | "-C" | "-u" | "-f" | "--delete" | "--move")
            }) && (names == 0
                || arguments.iter().any(|word| word.starts_with("--") || matches!(*word, "-l" | "-a" | "-r")))
        }
        "tag" => {
            names == 0
                || arguments
                    .iter()
                    .any(|word| matches!(*word, "-l" | "--list" | "--contains" | "--points-at"))
        }
        "remote" => lists(&["-v", "--verbose", "show", "get-url"]),
        "config" => {
            names <= 1
                || arguments.iter().any(|word| {
                    word.starts_with("--get") || matches!(*word, "get" | "list" | "-l" | "--list")
                })
        }
        "reflog" => lists(&["show", "exists"]) || arguments.first().is_some_and(|word| word.starts_with('-')),
        "stash" => arguments.first().is_some_and(|word| matches!(*word, "list" | "show")),
        "worktree" => arguments.first() == Some(&"list"),
        "submodule" => lists(&["status", "summary"]),
        "bisect" => arguments.first().is_some_and(|word| matches!(*word, "log" | "view")),
        "notes" => lists(&["list", "show"]),
        "symbolic-ref" => names <= 1 && !arguments.contains(&"-d"),
        _ => true,
    }
}
