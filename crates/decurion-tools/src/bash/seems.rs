//! Whether a text looks as if it only reads. Takes the text and what was found in it; says yes for commands that
//! people use to look at things, whatever their arguments.
//!
//! This proves nothing. It chooses which commands are tried in a sandbox that lets them change nothing; one that is
//! taken for a reader and is not fails there without effect.

use decurion_protocol::Access;
use decurion_protocol::intent::{ShellCommand, ShellIntent};

use super::{deceiving, program, syntax};

/// Builtins and programs besides those that are known by their flags (`program::is_known`).
const READERS: &str = "[ [[ alias awk bat bc break builtin case cd command continue csplit date dc declare diff3 \
    dig dirs dpkg-query env exa export find gawk getent getopts host identify if jobs jq less let local locate \
    lsb_release lsof mapfile mawk mdls mdfind more nm objdump otool pathchk pgrep popd printf ps pushd read \
    readarray readelf return sdiff sed set shift shopt ss tar test time timeout top tput typeset unalias unset \
    vmstat w wait whereis who xargs xmllint yq zgrep zipinfo nice nohup stdbuf setsid ionice chrt taskset bash sh \
    dash eval exec trap hash ldd netstat shuf size findmnt lsmod unzip zless zmore bzcat xzcat zstdcat ip";
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
    ("sqlite3", "-version --version"),
    ("java", "-version --version"),
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
    ("unzip", &["-o", "-n", "-d", "-f", "-u", "-q", "-qq", "-j"]),
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
    let whole = syntax::parse(text).complete && deceiving(text).is_none();
    whole && !shell.commands.is_empty() && shell.commands.iter().all(|command| reads(text, command))
}

fn reads(text: &str, command: &ShellCommand) -> bool {
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
    let has = |list: &str| super::lists(list, name);
    if let Some(inline) = interprets_text(name, arguments) {
        return inline;
    }
    match name {
        // They replace files unless they are told to print.
        "gzip" | "gunzip" => return prints_instead(arguments),
        "unzip" if !arguments.iter().any(|word| is_cluster(word, &['l', 'p', 't', 'Z', 'v'])) => {
            return false;
        }
        _ => {}
    }
    if let Some((_, known)) = SUBCOMMANDS.iter().find(|(program, _)| *program == name) {
        return subcommand_reads(name, known, arguments);
    }
    if !has(READERS) && !program::is_known(name) && !defines(text, name) {
        return arguments.len() == 1 && matches!(arguments[0].as_str(), "--version" | "-V" | "--help");
    }
    let writing = WRITING.iter().find(|(program, _)| *program == name).map(|(_, words)| *words);
    writing.is_none_or(|words| !words.is_empty() && !arguments.iter().any(|word| is_one_of(word, words)))
}

/// Whether an interpreter is given its code in the text or by its input, or only asked about itself; none for what is no
/// interpreter. The code may try anything.
fn interprets_text(name: &str, arguments: &[String]) -> Option<bool> {
    const MODULES: [&str; 8] =
        ["json.tool", "ast", "calendar", "dis", "platform", "sysconfig", "timeit", "tokenize"];
    let versioned = |stem: &str| {
        name.strip_prefix(stem)
            .is_some_and(|rest| rest.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.'))
    };
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let by_input = matches!(words.first(), None | Some(&"-" | &"--version" | &"-v" | &"-V"));
    let module = |word: &&&str| word.starts_with("-M") || word.starts_with("-m") || word.starts_with("-I");
    let in_place = || words.iter().filter(|word| !module(word)).any(|word| is_cluster(word, &['i']));
    if versioned("python") {
        let first = words.iter().position(|word| !is_cluster(word, &['I', 'S', 's', 'B', 'E', 'u', 'q']));
        let code = first.and_then(|at| words.get(at..)).unwrap_or_default();
        return Some(
            by_input
                || matches!(code, ["-c", ..])
                || matches!(code, ["-m", module, ..] if MODULES.contains(module)),
        );
    }
    let inline = match name {
        "node" => words.iter().any(|word| matches!(*word, "-e" | "-p" | "-pe" | "--eval" | "--print")),
        "perl" | "ruby" => words.iter().any(|word| is_cluster(word, &['e', 'E'])) && !in_place(),
        "php" => words.contains(&"-r"),
        "lua" => words.contains(&"-e"),
        _ => return None,
    };
    Some(inline || by_input)
}

/// Whether gzip is told to print or to look.
fn prints_instead(arguments: &[String]) -> bool {
    let asks = |word: &String| {
        is_cluster(word, &['c', 'l', 't'])
            || matches!(word.as_str(), "--stdout" | "--list" | "--test" | "--version")
    };
    arguments.is_empty() || arguments.iter().any(asks)
}

/// Whether a word is letters behind one dash, with one of these among them.
fn is_cluster(word: &str, letters: &[char]) -> bool {
    let cluster = word.strip_prefix('-').unwrap_or_default();
    cluster.chars().all(char::is_alphanumeric) && cluster.contains(letters)
}

/// Whether the text defines a function of this name: what that does stands in the text as well.
fn defines(text: &str, name: &str) -> bool {
    let is_name = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-');
    let begins = |before: &str| !before.ends_with(is_name);
    text.match_indices(name).any(|(at, _)| {
        let (before, after) = (&text[..at], text[at + name.len()..].trim_start_matches(' '));
        let parentheses =
            after.strip_prefix('(').is_some_and(|rest| rest.trim_start_matches(' ').starts_with(')'));
        begins(before) && (parentheses || before.trim_end_matches(' ').ends_with("function"))
    })
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
        return first
            .is_none_or(|word| word == "--version" || super::lists(known, word) && git_reads(word, &rest));
    }
    first.is_some_and(|word| super::lists(known, word))
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
