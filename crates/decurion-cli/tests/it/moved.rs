//! Keys and settings that are not at their usual places, because variables or links of the user move them: what commands
//! can read and write of them. Judged by effects, each with a control.

use std::fs;
use std::os::unix::fs::symlink;

use decurion_testkit::proc::Program;
use serde_json::json;

use crate::sandbox::{stand, told};
use crate::stand::Stand;

/// A run in which every command is allowed by a rule.
fn allowed(stand: &Stand) -> Program {
    stand.decurion().args(["-p", "go", "--allowedTools", "Bash"])
}

#[test]
fn keys_are_hidden_where_variables_and_links_say_that_they_are() {
    let commands = ["cat ../keys/kube", "cat ../keys/moved/gh/hosts.yml", "cat ../dotfiles/id"];
    let stand = stand(&commands);
    let root = stand.home.path().to_owned();
    for (file, text) in
        [("keys/kube", "canary"), ("keys/moved/gh/hosts.yml", "canary"), ("dotfiles/id", "canary")]
    {
        fs::create_dir_all(root.join(file).parent().unwrap()).unwrap();
        fs::write(root.join(file), text).unwrap();
    }
    let open = told(&stand, allowed(&stand));
    assert_eq!(open.concat().matches("canary").count(), 3, "{open:?}");
    fs::create_dir_all(stand.home.home().join(".ssh")).unwrap();
    symlink(root.join("dotfiles/id"), stand.home.home().join(".ssh/id")).unwrap();
    let named = allowed(&stand)
        .env("KUBECONFIG", format!("/nothing:{}", root.join("keys/kube").display()))
        .env("XDG_CONFIG_HOME", root.join("keys/moved"));
    let held = told(&stand, named);
    assert!(!held.concat().contains("canary"), "{held:?}");
}

/// What files in the project hold after a run in which commands and edits tried to change them.
fn after(stand: &Stand, program: Program) -> [String; 3] {
    let read = |name: &str| fs::read_to_string(stand.home.work().join(name)).unwrap_or_default();
    for name in ["tools/pager", "gitconfig", "absent"] {
        let _ = fs::remove_file(stand.home.work().join(name));
    }
    fs::create_dir_all(stand.home.work().join("tools")).unwrap();
    fs::write(stand.home.work().join("tools/pager"), "#!/bin/sh\n").unwrap();
    fs::write(stand.home.work().join("gitconfig"), "[core]\n").unwrap();
    told(stand, program);
    ["tools/pager", "gitconfig", "absent"].map(read)
}

#[test]
fn settings_of_git_that_variables_name_are_protected_with_the_programs_in_them() {
    let stand = stand(&["echo x >> tools/pager; echo x >> gitconfig; echo x >> absent; true"]);
    let work = stand.home.work();
    let unprotected = ["#!/bin/sh\nx\n", "[core]\nx\n", "x\n"];
    assert_eq!(after(&stand, allowed(&stand)), unprotected);
    let named = |program: Program| {
        program
            .env("GIT_CONFIG_GLOBAL", work.join("gitconfig"))
            .env("GIT_CONFIG_SYSTEM", work.join("absent"))
            .env("GIT_PAGER", format!("{} --plain", work.join("tools/pager").display()))
    };
    let protected = ["#!/bin/sh\n", "[core]\n", ""];
    assert_eq!(after(&stand, named(allowed(&stand))), protected);
    // A program that the user's own settings name by its whole path.
    let settings = format!("[core]\n\tpager = {}\n", work.join("tools/pager").display());
    fs::write(stand.home.home().join(".gitconfig"), settings).unwrap();
    assert_eq!(after(&stand, allowed(&stand)), ["#!/bin/sh\n", "[core]\nx\n", "x\n"]);
}

/// Wherever commands may write, and whatever links lead there.
#[test]
fn settings_that_variables_name_are_protected_in_folders_that_are_opened_and_behind_links() {
    let stand =
        stand(&["echo x >> ../data/gitconfig; echo x >> ../data/env.sh; echo x > ../data/free; true"]);
    let data = stand.home.path().join("data");
    fs::create_dir(&data).unwrap();
    symlink(&data, stand.home.path().join("cfg")).unwrap();
    let settings = json!({"sandbox": {"filesystem": {"allowWrite": [data]}}}).to_string();
    let made = |program: Program| {
        for name in ["env.sh", "free"] {
            let _ = fs::remove_file(data.join(name));
        }
        fs::write(data.join("gitconfig"), "").unwrap();
        told(&stand, program.args(["--settings", &settings]));
        ["gitconfig", "env.sh", "free"].map(|name| fs::read_to_string(data.join(name)).unwrap_or_default())
    };
    assert_eq!(made(allowed(&stand)), ["x\n"; 3]);
    let named = allowed(&stand)
        .env("GIT_CONFIG_GLOBAL", stand.home.path().join("cfg/gitconfig"))
        .env("BASH_ENV", data.join("env.sh"));
    assert_eq!(made(named), ["", "", "x\n"]);
}

#[test]
fn settings_of_the_user_behind_a_linked_folder_are_protected() {
    let stand =
        stand(&["echo x >> config/git/config; echo x >> skills/a/SKILL.md; echo x > config/free; true"]);
    let (home, work) = (stand.home.home(), stand.home.work());
    // The usual settings of a test let commands write in the home folder.
    fs::write(home.join(".claude/settings.json"), "{}").unwrap();
    for name in ["config/git", "skills/a"] {
        fs::create_dir_all(work.join(name)).unwrap();
    }
    let made = || {
        let names = ["config/git/config", "skills/a/SKILL.md", "config/free"];
        for name in names {
            fs::write(work.join(name), "").unwrap();
        }
        told(&stand, allowed(&stand));
        names.map(|name| fs::read_to_string(work.join(name)).unwrap())
    };
    assert_eq!(made(), ["x\n"; 3]);
    symlink(work.join("config"), home.join(".config")).unwrap();
    fs::create_dir_all(home.join(".claude/skills")).unwrap();
    symlink(work.join("skills/a"), home.join(".claude/skills/a")).unwrap();
    assert_eq!(made(), ["", "", "x\n"]);
}

#[test]
fn edits_of_settings_that_variables_name_are_asked_about() {
    let home = decurion_testkit::proc::Home::new().unwrap();
    let work = home.work();
    let edit = json!({"file_path": work.join("gitconfig"), "content": "[core]\n\tpager = sh\n"});
    let stand =
        Stand::in_home(home, &format!("when agent=main turn=1\n  call Write {edit}\nwhen\n  say \"done\"\n"));
    let program = || stand.decurion().args(["-p", "go", "--permission-mode", "acceptEdits"]);
    told(&stand, program().env("GIT_CONFIG_GLOBAL", work.join("gitconfig")));
    assert!(!work.join("gitconfig").exists());
    told(&stand, program());
    assert!(work.join("gitconfig").exists());
}

#[test]
fn what_a_rule_denies_every_editing_tool_is_denied_to_commands() {
    for tool in ["Edit", "MultiEdit", "NotebookEdit", "Write"] {
        let stand = stand(&["perl -e 'open(F, q(>>a.txt)) and print F q(x)'"]);
        let rule = format!("{tool}(a.txt)");
        told(&stand, allowed(&stand).args(["--disallowedTools", &rule]));
        assert_eq!(fs::read_to_string(stand.home.work().join("a.txt")).unwrap(), "one\n", "{tool}");
    }
    let stand = stand(&["perl -e 'open(F, q(>>a.txt)) and print F q(x)'"]);
    told(&stand, allowed(&stand));
    assert_eq!(fs::read_to_string(stand.home.work().join("a.txt")).unwrap(), "one\nx");
}

#[test]
fn rule_for_a_whole_command_opens_no_settings_in_the_home_folder() {
    let stand = stand(&["cp a.txt ~/.config/new/init", "cp a.txt ~/notes/new"]);
    let home = stand.home.home();
    for name in [".config/new", "notes"] {
        fs::create_dir_all(home.join(name)).unwrap();
    }
    let rules = "Bash(cp a.txt ~/.config/new/init),Bash(cp a.txt ~/notes/new)";
    let run = |rules: &str| told(&stand, stand.decurion().args(["-p", "go", "--allowedTools", rules]));
    let results = run(rules);
    assert!(!home.join(".config/new/init").exists(), "{results:?}");
    assert!(home.join("notes/new").exists(), "{results:?}");
    // A rule for the path says that this is meant.
    let results = run(&format!("{rules},Edit(~/.config/new/**)"));
    assert!(home.join(".config/new/init").exists(), "{results:?}");
}
