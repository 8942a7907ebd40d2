//! What acceptEdits and commands without a rule do in real sessions in a folder that is not trusted: commands that wait
//! until another one would have changed where their paths lead, and files of the home folder that programs run later. What
//! counts is the effect.

#![allow(clippy::disallowed_methods)] // a test makes a repository with the real program

use std::fs;
use std::os::unix::fs::symlink;

use decurion_testkit::proc::Home;
use serde_json::json;

use crate::shell_attacks::{CANARY, home};
use crate::stand::{Stand, finished};

/// Commands that use a path or git after they waited. `@X` is the path of a marker, by way of `q/l`.
const WAITS: &[&str] = &[
    "sleep 2; echo x > @X",
    "sleep 2 && echo x > @X",
    "sleep 2; touch @X",
    "sleep 2; cp f @X",
    "sleep 2; mkdir @X",
    "sleep 1; sleep 1; echo x >> @X",
    "timeout 9 sleep 2; echo x > @X",
    "timeout 2 tail -f f; echo x > @X",
    "timeout 2 tail --follow f; touch @X",
    "/bin/sleep 2; echo x > @X",
    "nice sleep 2; touch @X",
    "sleep 2 | cat; touch @X",
    "cd q && sleep 2 && touch ../@X",
    "(sleep 2; touch @X)",
    "{ sleep 2; echo x; } > f2; touch @X",
    "timeout 2 yes > /dev/null; touch @X",
    "sleep 2; cat q/x",
    "sleep 2 | cat - q/x",
    "cat <(sleep 2) q/x",
    "timeout 4 tail -F q/x",
    "timeout 4 tail --retry --follow=name q/x",
    "sleep 2; grep . q/x",
    "sleep 2; cd d && git status",
    "cd d && sleep 2 && git status",
    "cd d; timeout 2 tail -f ../f; git status",
    "timeout 2 seq inf | wc -l; touch @X",
    "timeout 2 seq inf | wc -l; cat q/x",
    "timeout 2 seq inf | wc -l; cd d && git status",
    "timeout 2 cat; touch @X",
    "timeout 2 sort; cat q/x",
];

/// Ways to put links or a repository where plain folders were.
const SWAPS: &[&str] = &[
    "mv r q",
    "mv e d",
    "mv -T r q",
    "mv -t q r/l",
    "mv r/l q/l",
    "mv r/x q/x",
    "mv r q/..",
    "cp -r r q",
    "cp -a r/. q",
    "cp -d r/l q",
    "cp -P r/x q/x",
    "cp -R e d",
    "cp --archive e/.git d",
    "mv e/.git d/.git",
    "mv ./r ./q",
];

/// `q` has plain folders and files, `r` links to outside; `d` is a plain folder and `e` a repository with a program.
fn swapped() -> Home {
    let home = home();
    let (work, out) = (home.work(), home.path().join("out"));
    for folder in ["q/l", "r", "d", "e"] {
        fs::create_dir_all(work.join(folder)).unwrap();
    }
    fs::write(work.join("q/x"), "plain\n").unwrap();
    symlink(&out, work.join("r/l")).unwrap();
    symlink(out.join("outside"), work.join("r/x")).unwrap();
    for folder in [".", "e"] {
        let git = |arguments: &[&str]| {
            let git =
                std::process::Command::new("git").args(arguments).current_dir(work.join(folder)).status();
            assert!(git.unwrap().success());
        };
        git(&["init", "-q"]);
        if folder == "e" {
            git(&["config", "core.fsmonitor", &format!("touch {}/program; false", out.display())]);
        }
    }
    home
}

#[test]
fn a_command_that_waits_does_not_use_paths_that_another_one_changes() {
    let mut script = "when agent=main turn=1\n".to_owned();
    for (index, command) in WAITS.iter().enumerate() {
        let command = command.replace("@X", &format!("q/l/m{index}"));
        script.push_str(&format!("  call Bash {}\n", json!({"command": command, "run_in_background": true})));
    }
    let swaps = ["mv q q0", "mv d d0"].iter().chain(SWAPS).chain(&["sleep 3"]);
    for (turn, command) in swaps.enumerate() {
        let call = json!({"command": command});
        script.push_str(&format!("when agent=main turn={}\n  call Bash {call}\n", turn + 2));
    }
    script.push_str("when\n  say \"done\"\n");
    let stand = Stand::in_home(swapped(), &script);
    finished(stand.decurion().args(["-p", "go", "--permission-mode", "acceptEdits"]));
    let mut found: Vec<_> = fs::read_dir(stand.home.path().join("out"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    found.sort();
    assert_eq!(found, ["outside"]);
    let last = stand.model.requests().last().unwrap().body.clone();
    let last: serde_json::Value = serde_json::from_slice(&last).unwrap();
    let denied = last.to_string().matches("Permission denied").count();
    assert!(denied >= SWAPS.len(), "{last:#}");
    assert!(!stand.home.work().join("q").exists() && !stand.home.work().join("d").exists());
    assert!(!last.to_string().contains(CANARY));
}

#[test]
fn waiting_and_moving_plain_files_need_no_question() {
    let commands = [
        "sleep 0.01",
        "sleep 0.01; echo done",
        "sleep 0.01 && date",
        "ls; sleep 0.01",
        "sleep 0.01; cat f",
        "sleep 0.01 && tail -20 f",
        "tail -n 1 f; cat f",
    ];
    let results = crate::shell_attacks::session(home(), &commands, &[]).results();
    assert!(results.iter().all(|result| !result.contains("Permission denied")), "{results:?}");
    let commands =
        ["mv f g", "mv g src/", "mv src/g .", "cp g g2", "mv src moved", "mv g g2 moved", "mv moved/g ./f"];
    let results =
        crate::shell_attacks::session(home(), &commands, &["--permission-mode", "acceptEdits"]).results();
    assert!(results.iter().all(|result| !result.contains("Permission denied")), "{results:?}");
}

/// Files below the home folder, and files of a project, that programs read and run what they say.
const RUN_LATER: &[&str] = &[
    ".config/git/config",
    ".config/fish/config.fish",
    ".config/systemd/user/x.service",
    ".config/autostart/x.desktop",
    ".local/bin/ls",
    ".local/share/x",
    ".newrc",
    ".xsessionrc",
    ".m2/settings.xml",
    ".gradle/init.gradle",
    ".kube/config",
    ".tool-versions",
];

/// Those of a project, whichever the folder.
const OF_A_PROJECT: &[&str] = &[
    ".tool-versions",
    "mise.toml",
    ".mise.toml",
    "sub/.gdbinit",
    ".tmux.conf",
    ".xprofile",
    ".emacs",
    ".emacs.d/init.el",
    ".vim/plugin/x.vim",
    ".docker/config.json",
    ".bundle/config",
    ".yarn/releases/yarn.cjs",
    ".pam_environment",
    ".bash_functions",
    ".config/git/config",
    "sub/.CONFIG/Git/attributes",
];

/// Writes each file by the tool and by the shell, and says which exist then.
fn written(
    stand: impl Fn(&str) -> (Stand, std::path::PathBuf),
    files: &[&str],
    arguments: &[&str],
) -> Vec<String> {
    let mut found = Vec::new();
    for shell in [false, true] {
        let mut script = "when agent=main turn=1\n".to_owned();
        for file in files {
            let call = if shell {
                json!({"command": format!("echo x > {file}")})
            } else {
                json!({"file_path": format!("@ROOT/{file}"), "content": "x\n"})
            };
            script.push_str(&format!("  call {} {call}\n", if shell { "Bash" } else { "Write" }));
        }
        script.push_str("when\n  say \"done\"\n");
        let (stand, root) = stand(&script);
        for file in files {
            fs::create_dir_all(root.join(file).parent().unwrap()).unwrap();
        }
        finished(
            stand
                .decurion()
                .cwd(&root)
                .args(["-p", "go", "--permission-mode", "acceptEdits"])
                .args(arguments),
        );
        found.extend(files.iter().filter(|file| root.join(file).exists()).map(|file| (*file).to_owned()));
    }
    found
}

/// A session in the home folder or in the folder above it.
fn at_home(script: &str) -> (Stand, std::path::PathBuf) {
    let home = home();
    let root = home.home();
    let script = script.replace("@ROOT", root.to_str().unwrap());
    (Stand::in_home(home, &script), root)
}

fn at_work(script: &str) -> (Stand, std::path::PathBuf) {
    let home = home();
    let root = home.work();
    let script = script.replace("@ROOT", root.to_str().unwrap());
    (Stand::in_home(home, &script), root)
}

/// A session in a folder whose name begins with a dot, below the home folder.
fn in_dotfiles(script: &str) -> (Stand, std::path::PathBuf) {
    let home = home();
    let root = home.home().join(".dotfiles");
    fs::create_dir_all(&root).unwrap();
    let script = script.replace("@ROOT", root.to_str().unwrap());
    (Stand::in_home(home, &script), root)
}

#[test]
fn edits_that_need_no_question_write_no_dot_file_of_the_home_folder() {
    let none = Vec::<String>::new();
    assert_eq!(written(at_home, RUN_LATER, &[]), none);
    let plain = ["notes.txt", "src/.hidden"];
    assert_eq!(written(at_home, &plain, &[]), [plain, plain].concat());
    let named = [".newrc", ".config/fish/x"];
    assert_eq!(
        written(at_home, &named, &["--allowedTools", "Edit(.newrc),Edit(.config/fish/**)"]),
        [named, named].concat()
    );
    assert_eq!(written(in_dotfiles, &["x", ".fish"], &[]), ["x", ".fish", "x", ".fish"]);
}

#[test]
fn edits_that_need_no_question_write_nothing_that_programs_run_later() {
    assert_eq!(written(at_work, OF_A_PROJECT, &[]), Vec::<String>::new());
    let plain = [".config/x", ".yarn/x", ".docker/x", ".github/x", "emacs"];
    assert_eq!(written(at_work, &plain, &[]), [plain, plain].concat());
}
