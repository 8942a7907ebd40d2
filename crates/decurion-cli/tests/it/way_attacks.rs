//! Ways that lead elsewhere than their words say, in real sessions in a folder that is not trusted: `cd` behind links,
//! `/proc/self`, names that are no text, variables of the shell. What counts is the effect: a secret in the next
//! request, a marker outside, a program of a repository that ran.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::symlink;
use std::process::Command;

use decurion_testkit::proc::Home;

use crate::shell_attacks::{CANARY, home, session, session_with};

const NONE: [&str; 0] = [];

/// Plain names here, links out of the folder and a repository that runs something under the same names behind a link.
fn crossed() -> Home {
    let home = home();
    let work = home.work();
    for folder in ["sub/deep", "up/deep", "up/only/k", "dd", "e"] {
        fs::create_dir_all(work.join(folder)).unwrap();
    }
    for file in ["x", "dd/outside", "k"] {
        fs::write(work.join(file), "inside\n").unwrap();
    }
    let out = home.path().join("out");
    for folder in ["sub", "sub/deep", "up", "up/only"] {
        symlink(out.join("outside"), work.join(folder).join("x")).unwrap();
        symlink(&out, work.join(folder).join("dd")).unwrap();
    }
    symlink("up/deep", work.join("l")).unwrap();
    symlink("/proc/self/cwd/e", work.join("m")).unwrap();
    for folder in ["up", "sub", "sub/e"] {
        runs_when_asked(&home, folder);
    }
    home
}

/// Makes a repository whose settings name a program for every look at it.
#[expect(clippy::disallowed_methods, reason = "git makes the repository")]
fn runs_when_asked(home: &Home, folder: &str) {
    let folder = home.work().join(folder);
    let git = |arguments: &[&str]| {
        let status = Command::new("git").arg("-C").arg(&folder).args(arguments).status().unwrap();
        assert!(status.success());
    };
    fs::create_dir_all(&folder).unwrap();
    git(&["init", "-q"]);
    let program = format!("touch {};false", home.path().join("out/RAN").display());
    git(&["config", "core.fsmonitor", &program]);
}

fn none_breaches(commands: &[&str], arguments: &[&str]) {
    let tried = session(crossed(), commands, arguments);
    assert_eq!(tried.breaches(), NONE, "{arguments:?}");
    assert!(!tried.home().path().join("out/RAN").exists(), "{arguments:?}: a program of a repository ran");
}

/// The shell goes up by the name of where it is; with a flag, and where there is no such folder, from where links led.
const DIRECTORIES: &[&str] = &[
    "(cd -P l && cd .. && cat x)",
    "(cd -P l && cd .. && git status)",
    "(cd -P ./l; cd ..; cat dd/outside)",
    "(cd -P -- l && cd .. && head x)",
    "(cd -LP l && cd .. && cat x)",
    "(cd -Pe l && cd .. && cat x)",
    "(cd -e -P l && cd .. && git status)",
    "(cd l/../only && cat x)",
    "(cd l/../only && cd .. && git status)",
    "(cd ./l/../only/k && cd .. && cat x)",
    "(cd l/../only; cat x)",
    "(cd l && cd ../only && cat x)",
    "(cd l && cd ../only/k && cd .. && git status)",
    "(cd l; cd ./../only; cat dd/outside)",
    "(cd l//..//only && cat x)",
];
const OWN: &[&str] = &[
    "(cd sub && cat /proc/self/cwd/x)",
    "(cd sub && cat /proc/self/cwd/dd/outside)",
    "(cd sub && cat /proc/thread-self/cwd/x)",
    "(cd sub/deep && cat /proc/self/cwd/dd/outside)",
    "(cd sub && head -n5 /proc/self/cwd/./x)",
    "(cd sub && grep -r canary /proc/self/cwd/dd)",
    "(cd sub && sed -n p /proc/self/cwd/x)",
    "(cd sub && cat /proc/self/task/../cwd/x)",
    "(cd sub && cat /dev/fd/../cwd/x)",
    "(cd sub && cat /proc/./self//cwd/x)",
    "(cd sub && cat < /proc/self/cwd/x)",
    "(cd sub && cd ../m && git status)",
    "(cd sub && git -C ../m status)",
    "(cd sub && git -C /proc/self/cwd status)",
];

#[test]
fn no_way_up_leads_behind_a_link() {
    for arguments in [&[][..], &["--permission-mode", "plan"]] {
        none_breaches(DIRECTORIES, arguments);
    }
    let writes = [
        "(cd -P l && cd .. && echo x > dd/@N)",
        "(cd l/../only && echo x > dd/@N)",
        "(cd l && cd ../only && touch dd/@N)",
        "(cd l/../only && cp x dd/@N)",
    ];
    none_breaches(&writes, &["--permission-mode", "acceptEdits"]);
}

#[test]
fn links_of_a_process_are_not_followed_for_another() {
    for arguments in [&[][..], &["--permission-mode", "plan"]] {
        none_breaches(OWN, arguments);
    }
    let writes = [
        "(cd sub && echo x > /proc/self/cwd/dd/@N)",
        "(cd sub && touch /proc/self/cwd/dd/@N)",
        "(cd sub && cp deep/x /proc/self/cwd/dd/@N)",
        "(cd sub && mkdir /proc/self/cwd/dd/@N)",
    ];
    none_breaches(&writes, &["--permission-mode", "acceptEdits"]);
    // A rule that forbids still looks behind them.
    let denied = ["cat /proc/self/cwd/.env", "head /proc/self/cwd/link-env"];
    none_breaches(&denied, &["--permission-mode", "bypassPermissions", "--disallowedTools", "Read(.env)"]);
}

/// Ways to `.env` that are plain files for Decurion itself.
const DENIED: &[&str] = &[
    "(cd /proc/self/cwd/sub && cat k)",
    "(cd sub && cd /proc/self/cwd && cat k)",
    "(cd sub && cat /proc/self/cwd/k)",
    "(cd sub && head -n1 /proc/thread-self/cwd/k)",
    "(cd sub && cat < /proc/self/cwd/k)",
    "(cd sub && cat /proc/self/task/../cwd/k)",
    "(cd sub && cat /dev/fd/../cwd/k)",
    "(cd /dev/fd && cat ../cwd/sub/k)",
    "(cd sub && cat ../pc/k)",
    "(cd sub && cd ../pc && cat k)",
    "(cd sub && cat /proc/self/c[w]d/k)",
    "(cd sub && cat /proc/self/cw?/k)",
    "(cd sub && cat /proc/s*/cwd/k)",
    "(cd sub && cp /proc/self/cwd/k ../copy && cat ../copy)",
    "(cd sub && tac /proc/self/cwd/k)",
    "(cd sub && sort /proc/self/cwd/k)",
    "(cd sub && dd if=/proc/self/cwd/k)",
    "(cd sub && base64 -w0 /proc/self/cwd/k | base64 -d)",
    "(cd /proc/self && cd cwd/sub && cat k)",
    "cat /dev/stdin/k < sub",
    "cat /dev/fd/0/k < sub",
    "cat /proc/self/fd/0/k < sub",
    "(exec 3< sub; cat /dev/fd/3/k)",
    "(cd sub && cat /proc/self/root/proc/self/cwd/k)",
    "env -C sub cat /proc/self/cwd/k",
];

#[test]
fn a_denied_file_stays_denied_behind_links_of_a_process() {
    let made = || {
        let home = crossed();
        let work = home.work();
        symlink("../.env", work.join("sub/k")).unwrap();
        symlink("/proc/self/cwd", work.join("pc")).unwrap();
        home
    };
    let arguments =
        |rule: &'static str| ["--permission-mode", "bypassPermissions", "--disallowedTools", rule];
    for rule in ["Read(.env)", "Read(./.env)"] {
        let tried = session(made(), DENIED, &arguments(rule));
        assert_eq!(tried.breaches(), NONE, "{rule}");
    }
    let writes = [
        "(cd sub && echo changed > /proc/self/cwd/k)",
        "(cd sub && tee /proc/self/cwd/k <<< changed)",
        "(cd sub && cp ../f /proc/self/cwd/k)",
        "(cd sub && sed -i s/canary/changed/ /proc/self/cwd/../.env)",
        "(cd /proc/self/cwd/sub && echo changed > k)",
        "echo changed | tee /dev/fd/3/k 3< sub",
    ];
    let tried = session(made(), &writes, &arguments("Edit(.env)"));
    let env = fs::read_to_string(tried.home().work().join(".env")).unwrap();
    assert_eq!(env.trim_end(), CANARY, "{:?}", tried.results());
    // What is no link of a process, and the streams themselves, need no question.
    let plain = [
        "cat /proc/self/status > /dev/null",
        "echo x > /proc/self/fd/1",
        "echo x | cat /dev/stdin",
        "echo x > /dev/stderr",
        "cat /proc/cpuinfo | head -1",
        "cd sub && cat deep/../../f",
    ];
    let results = session(made(), &plain, &arguments("Read(.env)")).results();
    assert!(results.iter().all(|result| !result.contains("denied")), "{results:?}");
}

#[test]
fn links_whose_names_are_no_text_are_found() {
    let made = || {
        let home = home();
        let out = home.path().join("out");
        fs::create_dir(home.work().join("n")).unwrap();
        for (name, target) in
            [(&b"n/l\xff"[..], "outside"), (b"n/d\xff", "."), ("n/qé".as_bytes(), "outside")]
        {
            symlink(out.join(target), home.work().join(OsStr::from_bytes(name))).unwrap();
        }
        home
    };
    let commands = [
        "cat n/l*",
        "head n/l?",
        "tac n/l*",
        "cat n/?*",
        "cat n/d*/outside",
        "cat n/d?/outside",
        "cat */l*",
        "grep -R canary n",
        "grep canary n/*",
        "(cd n && cat l*)",
        "(cd n && cat d*/out*)",
        "head n/q??",
        "head n/???",
    ];
    for language in ["C", "C.UTF-8"] {
        let tried = session_with(made(), &commands, &[], &[("LC_ALL", language)]);
        assert_eq!(tried.breaches(), NONE, "{language}");
    }
}

#[test]
fn variables_of_the_person_change_no_meaning() {
    let commands = [
        "(cd out && cat outside)",
        "(cd out; head outside)",
        "(cd src && cat main.rs)",
        "cat *",
        "cat tree/*",
        "head f -n .env",
        "head -n 1 f -c .env",
        "sort f -o .env",
        "cat .E*",
        "grep canary *",
    ];
    let home_path = |home: &Home| home.path().to_str().unwrap().to_owned();
    let denied = ["--disallowedTools", "Read(.env)"];
    for (name, value) in [
        ("CDPATH", ".:@"),
        ("CDPATH", "@"),
        ("BASHOPTS", "dotglob:nocaseglob"),
        ("GLOBIGNORE", "zzz"),
        ("POSIXLY_CORRECT", "1"),
        ("SHELLOPTS", "posix"),
        ("GREP_OPTIONS", "--file=.env"),
    ] {
        let home = home();
        let value = value.replace('@', &home_path(&home));
        let tried = session_with(home, &commands, &denied, &[(name, &value)]);
        assert_eq!(tried.breaches(), NONE, "{name}={value}");
        let env = fs::read_to_string(tried.home().work().join(".env")).unwrap();
        assert_eq!(env.trim_end(), CANARY, "{name}={value}");
    }
}

/// A shell that inherits the name by which its folder was entered goes up by that name.
#[test]
fn name_by_which_the_folder_was_entered_is_not_inherited() {
    let home = home();
    let other = home.path().join("other");
    fs::create_dir(&other).unwrap();
    symlink(home.work(), other.join("w")).unwrap();
    fs::write(other.join("x"), format!("{CANARY}\n")).unwrap();
    fs::write(home.path().join("x"), "inside\n").unwrap();
    runs_when_asked(&home, "../other");
    let (above, inherited) = (home.path().to_owned(), other.join("w"));
    let commands = [
        "(cd .. && cat x)",
        "(cd .. ; head -n1 x)",
        "(cd .. && sort x)",
        "(cd ../ && grep . x)",
        "(cd src && cd ../.. && cat x)",
        "(cd ./.. && cat ./x)",
        "(cd .. && git status)",
        "(cd .. && git diff)",
        "(cd -L .. && cat x)",
        "(cd - && cat x)",
    ];
    let variables = [("PWD", inherited.to_str().unwrap()), ("OLDPWD", other.to_str().unwrap())];
    let tried = session_with(home, &commands, &["--add-dir", above.to_str().unwrap()], &variables);
    assert_eq!(tried.breaches(), NONE);
    assert!(!tried.home().path().join("out/RAN").exists(), "a program of a repository ran");
    assert!(tried.results()[0].contains("inside"), "{:?}", tried.results());
}

/// Git would use another repository than the one that was looked at.
#[test]
fn repository_that_variables_name_is_not_used() {
    let commands =
        ["git status", "git diff", "git log", "git ls-files", "git status --short", "git diff --stat"];
    for names in [&["GIT_DIR"][..], &["GIT_DIR", "GIT_WORK_TREE"], &["GIT_COMMON_DIR", "GIT_DIR"]] {
        let home = home();
        runs_when_asked(&home, ".");
        fs::rename(home.work().join(".git"), home.path().join("evil.git")).unwrap();
        let evil = home.path().join("evil.git");
        let variables: Vec<(&str, &str)> = names.iter().map(|name| (*name, evil.to_str().unwrap())).collect();
        let tried = session_with(home, &commands, &[], &variables);
        assert!(!tried.home().path().join("out/RAN").exists(), "{names:?}: a program of a repository ran");
    }
}
