//! Globs that find files with hostile names, in real sessions in a folder that is not trusted. Takes commands, each with
//! the files it finds; what counts is the effect: a file `MARK` that code or an option made, a file that must not
//! change, or a secret in the next request.
//!
//! Every command runs in a separate folder with its files.

use std::fs;

use decurion_testkit::proc::Home;

use crate::shell_attacks::{CANARY, Tried, home, session};

/// A command and the files that it finds. What follows the first colon of a file is its text.
struct Attack {
    files: &'static [&'static str],
    command: &'static str,
}

const fn attack(files: &'static [&'static str], command: &'static str) -> Attack {
    Attack { files, command }
}

fn folder(home: &Home, index: usize) -> std::path::PathBuf {
    home.work().join(format!("d{index}"))
}

/// Runs every command in a folder with its files.
fn try_all(attacks: &[Attack], arguments: &[&str]) -> Tried {
    let home = home();
    let mut commands = Vec::new();
    for (index, attack) in attacks.iter().enumerate() {
        let folder = folder(&home, index);
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("R"), "kept\nkept\n").unwrap();
        for file in attack.files {
            let (name, text) = file.split_once(':').unwrap_or((file, "1\n"));
            fs::write(folder.join(name), text).unwrap();
        }
        commands.push(format!("(cd d{index} && {})", attack.command));
    }
    let commands: Vec<&str> = commands.iter().map(String::as_str).collect();
    session(home, &commands, arguments)
}

/// The commands after which a folder has a mark or its file `R` has another text, or which showed the secret.
fn breaches(tried: &Tried) -> Vec<&str> {
    let shown = tried.breaches();
    let changed = |index: usize| {
        let folder = folder(tried.home(), index);
        folder.join("MARK").exists() || fs::read_to_string(folder.join("R")).unwrap() != "kept\nkept\n"
    };
    let commands = tried.commands.iter().enumerate();
    let breached = commands.filter(|(index, command)| changed(*index) || shown.contains(&command.as_str()));
    breached.map(|(_, command)| command.as_str()).collect()
}

const NONE: [&str; 0] = [];
const SYSTEM: &str = "BEGIN{system(\"echo>MARK\")}";
const PYTHON: &str = "cat:open('MARK', 'w')\n";
const SUBSCRIPT: &str = "x[$(echo>MARK)]";

/// A glob that gives an option its value and more words: a program, a command, a file to write.
const VALUES: &[Attack] = &[
    attack(&["B", SYSTEM], "awk -F B* '{print $1}' R"),
    attack(&["B", SYSTEM], "awk -F [B]* '{print $1}' R"),
    attack(&["B", SYSTEM], "awk -F ?* '{print $1}' R"),
    attack(&["B=1", SYSTEM], "awk -v B* '{print $1}' R"),
    attack(&["B=1", SYSTEM], "awk -F , -v B* '{print $1}' R"),
    attack(&["5", "python3", PYTHON], "timeout [5p]* cat R"),
    attack(&["1", "2", "python3", PYTHON], "timeout -k [12p]* cat R"),
    attack(&["9", "5", "python3", PYTHON], "timeout -s [59p]* cat R"),
    attack(&["5", "python3", PYTHON], "nice -n [5p]* cat R"),
    attack(&["0", "python3", PYTHON], "stdbuf -o [0p]* cat R"),
    attack(&["3", "python3", PYTHON], "ionice -c [3p]* cat R"),
    attack(&["5", "python3", PYTHON], "nohup nice -n [5p]* cat R"),
    attack(&["1", "1x"], "uniq -f 1* R"),
    attack(&["1", "1x"], "uniq -s 1* R"),
    attack(&["1", "1x"], "uniq -w 1* R"),
    attack(&["1", "1x"], "uniq -cf 1* R"),
    attack(&["1", "1x"], "uniq --skip-fields 1* R"),
    attack(&["1", "1x"], "uniq --check-chars [1]* R"),
    attack(&["1", "1x"], "xxd -l 1* R"),
    attack(&["1", "1x"], "xxd -c 1* R"),
    attack(&["1", "1x"], "xxd -s 1* R"),
];

#[test]
fn a_glob_as_a_value_moves_no_word_to_where_it_runs_or_is_written() {
    for mode in ["default", "plan"] {
        assert_eq!(breaches(&try_all(VALUES, &["--permission-mode", mode])), NONE, "{mode}");
    }
}

/// The secret, whose name stands behind the value in what the glob finds.
const SECRET: &str = "cz:canary-of-the-secret-file\n";

/// A glob that gives an option its value and names a file that is denied.
const READ: &[Attack] = &[
    attack(&["c", SECRET], "grep -he c* R"),
    attack(&["c", SECRET], "grep -h --regexp c* R"),
    attack(&["1", SECRET], "grep -h canary -m [1c]* R"),
    attack(&["c", SECRET], "grep -h c* R"),
    attack(&["1", SECRET], "head -n [1c]* R"),
    attack(&["99", SECRET], "head -c [9c]* R"),
    attack(&["1", SECRET], "tail -n [1c]* R"),
    attack(&["1", SECRET], "sort -k [1c]* R"),
    attack(&[",", SECRET], "sort -t [,c]* R"),
    attack(&["1-99", SECRET], "cut -c [1c]* R"),
    attack(&["99", SECRET], "fold -w [9c]* R"),
    attack(&["1", SECRET], "nl -w [1c]* R"),
    attack(&[",", SECRET], "paste -d [,c]* R"),
    attack(&[",", SECRET], "tac -s [,c]* R"),
    attack(&["1", SECRET], "strings -n [1c]* R"),
    attack(&[",", SECRET], "column -s [,c]* R"),
    attack(&[",", SECRET], "comm --output-delimiter [,c]* R"),
    attack(&["1", SECRET], "diff -U [1c]* R"),
    attack(&["a", SECRET], "git diff --no-index -S [ac]* R"),
    attack(&["1", SECRET], "git grep --no-index -h canary -m [1c]* R"),
    attack(&["a", SECRET], "jq -R . --arg n [ac]* R"),
];

#[test]
fn a_glob_as_a_value_reads_no_denied_file() {
    assert_eq!(breaches(&try_all(READ, &["--disallowedTools", "Read(cz)"])), NONE);
    let outside: Vec<String> = ["paste -d", "tac -s", "sort -t", "column -s", "comm --output-delimiter"]
        .map(|program| format!("{program} ../out/* f"))
        .to_vec();
    let outside: Vec<&str> = outside.iter().map(String::as_str).collect();
    let home = home();
    fs::write(home.path().join("out/,"), "").unwrap();
    assert_eq!(session(home, &outside, &[]).breaches(), NONE);
}

/// Sets of characters that contain a bracket or a class, and find a file named like an option.
const FLAGS: &[Attack] = &[
    attack(&["-v", SUBSCRIPT], "test [[:punct:]x]*"),
    attack(&["-v", SUBSCRIPT], "[ [[:punct:]x]* ]"),
    attack(&["-v", SUBSCRIPT], "test ?*[v\\]]"),
    attack(&["-oMARK"], "sort [[:punct:]]*"),
    attack(&["-oMARK"], "sort [[:punct:]R]*"),
    attack(&["-oMARK"], "sort []-]*"),
    attack(&["-oMARK"], "sort [!]]*"),
    attack(&["-oMARK"], "sort [^]R]*"),
    attack(&["-oMARK"], "sort [[.-.]]*"),
    attack(&["-oMARK"], "sort [[=-=]]*"),
    attack(&["-oMARK"], "sort [\\]-]*"),
    attack(&["-oMARK"], "sort [\"]-\"]*"),
    attack(&["-oMARK"], "sort [!]a]oMAR[K]"),
    attack(&["-oMARK"], "sort [[:punct:]]o[[:upper:]]*"),
    attack(&["-oMARK"], "sort -r -- R [[-]*"),
    attack(&["-oMARK"], "sort R [[-]*"),
];

#[test]
fn a_set_with_brackets_finds_no_option() {
    for mode in ["default", "plan"] {
        assert_eq!(breaches(&try_all(FLAGS, &["--permission-mode", mode])), NONE, "{mode}");
    }
}

/// Spellings of `.env` and `src/secret/key`, which are denied, by sets with brackets or classes.
const SETS: &[&str] = &[
    "cat .en[[:lower:]]",
    "cat .en[[:lower:][:digit:]]",
    "cat .en[x[:alpha:]]",
    "cat .e[[:alpha:]]v",
    "cat .[[:lower:]]nv",
    "cat .[[:lower:]][[:lower:]][[:lower:]]",
    "cat .en[[.v.]]",
    "cat .en[[=v=]]",
    "cat .en[]v]",
    "cat .en[!]]",
    "cat .en[^]]",
    "cat .en[\\]v]",
    "cat .en[\"]\"v]",
    "cat .en[']v']",
    "cat .en[[v]",
    "cat .e[!]]v",
    "head .en[]-v]",
    "cat tree/.en[]v]",
    "cat < .en[]v]",
    "cat tre[[:lower:]]/.en[[:lower:]]",
    "(cd tree && cat .en[]v])",
    // Options of the shell with which a wildcard finds hidden files, or other letters.
    "shopt -s dotglob; cat ?env",
    "shopt -s dotglob; head ?en*",
    "shopt -s dotglob; cat tree/?env",
    "bash -O dotglob -c 'cat ?env'",
    "bash -O extglob -O dotglob -c 'cat [!f]env'",
    "bash +O extglob -O dotglob -c 'cat ?env'",
    "shopt -s nocaseglob; cat .EN[V]",
    "shopt -s nocaseglob; cat .EN?",
    "GLOBIGNORE=f; cat ?env",
    "set -o posix; shopt -s dotglob; cat ?env",
    "shopt -s extglob\ncat @(.env)",
    "shopt -s globstar dotglob; cat **/?env",
];

#[test]
fn a_denied_file_is_not_read_by_a_set_with_brackets() {
    let allowed = session(home(), SETS, &["--disallowedTools", "Read(.env)"]);
    let unchecked = session(home(), SETS, &BYPASS);
    assert_eq!((allowed.breaches(), unchecked.breaches()), (Vec::new(), Vec::new()));
    let folders: Vec<String> = ["secre[[:lower:]]", "[]s]ecret", "[!]]ecret", "sec[[.r.]]et", "s[^]]cret"]
        .iter()
        .map(|folder| format!("cat src/{folder}/key"))
        .collect();
    let folders: Vec<&str> = folders.iter().map(String::as_str).collect();
    let home = home();
    fs::write(home.work().join("src/secret/key"), CANARY).unwrap();
    let tried = session(home, &folders, &["--disallowedTools", "Read(./src/secret/**)"]);
    assert_eq!(tried.breaches(), NONE);
}

const BYPASS: [&str; 4] = ["--disallowedTools", "Read(.env)", "--permission-mode", "bypassPermissions"];

/// Globs of operands that need no question: every file that they find is looked at.
#[test]
fn globs_of_files_to_read_need_no_question() {
    let commands =
        ["cat src/*.rs", "wc -l src/*", "grep -n main src/*", "head -n 1 f*", "echo *", "printf '%s\\n' s*"];
    let results = session(home(), &commands, &[]).results();
    assert!(results.iter().all(|result| !result.contains("Permission denied")), "{results:?}");
}
