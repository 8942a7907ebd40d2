//! Files that no command may make, change or replace, through the program: settings, links in their place, and what
//! `deny Edit` names. Judged by what is on disk afterwards.

use std::fs;
use std::os::unix::fs::symlink;

use crate::sandbox::{names, results, stand};
use crate::stand::{Stand, finished};

/// Runs these texts as scripts, so that the analysis of commands does not know what they do.
fn scripted(texts: &[&str]) -> Stand {
    let commands: Vec<String> = (0..texts.len()).map(|index| format!("sh src/{index}.sh")).collect();
    let stand = stand(&commands.iter().map(String::as_str).collect::<Vec<_>>());
    for (index, text) in texts.iter().enumerate() {
        fs::write(stand.home.work().join(format!("src/{index}.sh")), text).unwrap();
    }
    stand
}

/// The same in a repository with a commit.
fn repository(texts: &[&str]) -> Stand {
    let stand = scripted(texts);
    for arguments in [&["init", "-q"][..], &["add", "-A"], &["commit", "-q", "-m", "x"]] {
        let git =
            stand.home.program("git").args(["-c", "user.name=n", "-c", "user.email=e@x"]).args(arguments);
        assert_eq!(finished(git).ending.code(), 0);
    }
    stand
}

#[test]
fn links_in_place_of_settings_stay() {
    let commands = [
        "rm -f .claude; mkdir .claude && echo x > .claude/settings.json; ln -sfn src .mcp.json; true",
        "perl -e 'unlink q(.claude); rename q(.vscode), q(v); unlink q(.mcp.json)'; echo x > conf/settings.json; \
         echo x > .vscode/tasks.json; mv conf c; mkdir conf; true",
        "cat .claude/settings.json .mcp.json; echo fine > new && cat new",
    ];
    let stand = repository(&commands);
    let work = stand.home.work();
    fs::create_dir_all(work.join("conf")).unwrap();
    fs::create_dir_all(work.join("editor")).unwrap();
    fs::write(work.join("conf/settings.json"), "{}").unwrap();
    fs::write(work.join("servers.json"), "{}").unwrap();
    for (name, target) in [(".claude", "conf"), (".vscode", "editor"), (".mcp.json", "servers.json")] {
        symlink(target, work.join(name)).unwrap();
    }
    let results = results(&stand, &["--allowedTools", "Bash"]);
    for (name, target) in [(".claude", "conf"), (".vscode", "editor"), (".mcp.json", "servers.json")] {
        assert_eq!(fs::read_link(work.join(name)).unwrap().to_str(), Some(target), "{results:?}");
    }
    assert_eq!(fs::read_to_string(work.join("conf/settings.json")).unwrap(), "{}");
    assert_eq!(names(&work.join("editor")), [""; 0]);
    assert_eq!(results[2], "{}{}fine");
}

#[test]
fn a_repository_elsewhere_is_not_opened_by_a_link_or_a_file() {
    let stand = scripted(&[
        "ln -s ../other/.git .git",
        "echo x > ../other/.git/made; echo x > .git/made2",
        "rm .git; echo \"gitdir: $(cd ../other/.git && pwd)\" > .git",
        "echo x > ../other/.git/made3",
        "rm .git; ln -s ../out .git",
        "echo x > .git/made",
    ]);
    let other = stand.home.path().join("other");
    fs::create_dir_all(&other).unwrap();
    finished(stand.home.program("git").args(["init", "-q", other.to_str().unwrap()]));
    let before = names(&other.join(".git"));
    let results = results(&stand, &["--allowedTools", "Bash"]);
    assert_eq!(names(&other.join(".git")), before, "{results:?}");
    assert_eq!(names(&stand.home.path().join("out")), [""; 0], "{results:?}");
}

#[test]
fn what_may_not_be_edited_cannot_be_made() {
    let make = "echo x > made.txt; mkdir -p new && echo x > new/file; echo x > new/deep.txt; ln -s a.txt made.txt; \
                perl -e 'rename q(a.txt), q(made.txt); rename q(b.txt), q(new/deep.txt)'; mkdir only; true";
    let commands =
        [make, "git status --short", "echo x > .mcp.json; mkdir -p .idea; echo x > .claude/x; ls -A; exit 0"];
    let rules = "Edit(./made.txt),Edit(new/deep.txt),Edit(only/**),Edit(/etc/passwd),Edit(.secret)";
    let stand = repository(&commands);
    let work = stand.home.work();
    let results = results(&stand, &["--allowedTools", "Bash", "--disallowedTools", rules]);
    // Only what a command was allowed to make is left, and nothing that held a place.
    assert_eq!(names(&work), [".env", ".git", "a.txt", "b.txt", "new", "src"], "{results:?}");
    assert_eq!(names(&work.join("new")), ["file"], "{results:?}");
    assert_eq!(results[1], "?? new/", "what holds places is nothing to git");
    assert!(!results[2].contains("etc"), "{}", results[2]);
    let control = repository(&commands);
    self::results(&control, &["--allowedTools", "Bash"]);
    assert!(control.home.work().join("made.txt").exists());
}

#[test]
fn what_a_person_answered_cannot_be_forged_by_a_command() {
    let stand = scripted(&["true", "true"]);
    let added = stand.run(&["mcp", "add", "mine", "--", "/bin/true"]);
    assert!(added.ending.is_success(), "{added:?}");
    let record = stand.home.state().join("trust.json");
    let local = stand.home.work().join(".decurion/settings.local.json");
    let before = (fs::read_to_string(&record).unwrap(), fs::read_to_string(&local).unwrap());
    assert!(before.0.contains("\"own\""), "{}", before.0);
    let listed = |stand: &Stand| stand.run(&["mcp", "list"]).lines.join("\n");
    assert!(listed(&stand).contains("ready"), "{}", listed(&stand));
    let state = stand.home.state();
    let forge = format!(
        "cd {0}; echo '{{}}' > trust.json; rm -f trust.json; echo x > made && mv made trust.json; cd ..; mv {0} old; true",
        state.display()
    );
    fs::write(stand.home.work().join("src/0.sh"), forge).unwrap();
    let widen = "sed -i 's,/bin/true,/bin/false,' .decurion/settings.local.json; echo x > new && mv new \
                 .decurion/settings.local.json; mv .decurion gone; true";
    fs::write(stand.home.work().join("src/1.sh"), widen).unwrap();
    let results = results(&stand, &["--allowedTools", "Bash"]);
    let after = (fs::read_to_string(&record).unwrap(), fs::read_to_string(&local).unwrap());
    assert_eq!(after, before, "{results:?}");
    assert!(listed(&stand).contains("ready"), "{}", listed(&stand));
    // What changes it all the same, outside of the sandbox, is off.
    fs::write(&local, before.1.replace("/bin/true", "/bin/false")).unwrap();
    assert!(listed(&stand).contains("blocked until this folder is trusted"), "{}", listed(&stand));
}

fn results_of(stand: &Stand) -> Vec<String> {
    results(stand, &["--allowedTools", "Bash,Write", "--permission-mode", "bypassPermissions"])
}

#[test]
fn our_own_tools_do_not_take_a_placeholder_for_the_real_thing() {
    let script = "when agent=main turn=1\n  call Bash {\"command\": \"ls -dA .mcp.json; true\"}\nwhen agent=main turn=2\n  call \
                  Write {\"file_path\": \"WORK/.mcp.json\", \"content\": \"{}\"}\nwhen\n  say \"done\"\n";
    let home = decurion_testkit::proc::Home::new().unwrap();
    let script = script.replace("WORK", home.work().to_str().unwrap());
    let stand = Stand::in_home(home, &script);
    let results = results_of(&stand);
    assert_eq!(results[0], ".mcp.json");
    assert_eq!(fs::read_to_string(stand.home.work().join(".mcp.json")).unwrap(), "{}", "{results:?}");
    // One that a session that was killed has left is no file of servers.
    fs::remove_file(stand.home.work().join(".mcp.json")).unwrap();
    fs::create_dir(stand.home.work().join(".mcp.json")).unwrap();
    let listed = stand.run(&["mcp", "list"]);
    assert!(!format!("{listed:?}").contains("not used"), "{listed:?}");
}

#[test]
fn a_nested_repository_keeps_its_settings() {
    let commands = [
        "cd sub && echo x > .git/hooks/pre-commit; git config core.fsmonitor ./x; mv .git g; echo x > .git/config; true",
        "cd sub && touch f && git add f && git -c user.name=n -c user.email=e commit -qm x && git log --oneline | wc -l",
        "git init -q fresh && cd fresh && git config a.b c && git config a.b",
    ];
    let stand = scripted(&commands);
    let sub = stand.home.work().join("sub");
    fs::create_dir_all(&sub).unwrap();
    finished(stand.home.program("git").args(["init", "-q", sub.to_str().unwrap()]));
    let before = fs::read(sub.join(".git/config")).unwrap();
    let results = results(&stand, &["--allowedTools", "Bash"]);
    assert!(results[0].contains("Read-only file system"), "{results:?}");
    assert!(!sub.join(".git/hooks/pre-commit").exists(), "{results:?}");
    assert_eq!(fs::read(sub.join(".git/config")).unwrap(), before, "{results:?}");
    assert_eq!(&results[1..], ["1", "c"], "ordinary work in nested repositories");
}

#[test]
fn a_command_line_is_explained_with_its_policy() {
    let stand = stand(&[]);
    let asked = stand.run(&["permissions", "explain", "make install"]);
    let work = stand.home.work();
    assert!(asked.output().contains("Needs permission: "), "{asked:?}");
    assert!(asked.output().contains("can write\n"), "{asked:?}");
    assert!(asked.output().contains(work.to_str().unwrap()), "{asked:?}");
    let reads = stand.run(&["permissions", "explain", "for f in *.txt; do cat $f; done"]);
    let without = "Without the read-only sandbox it would need permission: ";
    assert!(reads.output().contains(without), "{reads:?}");
    assert!(reads.output().contains("  ok  *.txt (words of a loop or an assignment): "), "{reads:?}");
    let settings = r#"{"sandbox": {"autoAllowBashIfSandboxed": true}}"#;
    fs::write(stand.home.state().join("settings.json"), settings).unwrap();
    let fewer = stand.run(&["permissions", "explain", "make install"]);
    let without = "Without sandbox.autoAllowBashIfSandboxed it would need permission: ";
    assert!(fewer.output().contains(without), "{fewer:?}");
    let off = stand.without_sandbox();
    let without = off.run(&["permissions", "explain", "make install"]);
    assert!(without.output().contains("Runs without a sandbox"), "{without:?}");
}

#[test]
fn a_repository_that_a_command_made_runs_nothing_of_ours_outside() {
    let hostile = "[core]\n\trepositoryformatversion = 0\n[filter \"x\"]\n\tclean = touch ../out/made; cat\n";
    let stand = stand(&["git status --short; true"]);
    finished(stand.home.program("git").args(["init", "-q"]));
    let work = stand.home.work();
    fs::write(work.join(".gitattributes"), "* filter=x\n").unwrap();
    let commit = ["-c", "user.name=n", "-c", "user.email=e@x", "commit", "-qam", "x"];
    finished(stand.home.program("git").args(["add", "-A"]));
    finished(stand.home.program("git").args(commit));
    fs::write(work.join(".git/config"), hostile).unwrap();
    fs::write(work.join("a.txt"), "new\n").unwrap();
    let made = stand.home.path().join("out/made");
    let run = finished(stand.decurion().args(["-p", "go", "--trust-folder"]));
    assert!(!made.exists(), "{run:?}");
    finished(stand.home.program("git").args(["status", "--short"]));
    assert!(made.exists(), "without the sandbox it runs");
}

#[test]
fn a_pipe_in_place_of_a_repository_stops_nothing() {
    let stand = stand(&["cat a.txt"]);
    finished(stand.home.program("mkfifo").args([stand.home.work().join(".git")]));
    assert_eq!(results(&stand, &["--trust-folder"]), ["one"]);
}

#[test]
fn rules_with_wildcards_hold_wherever_they_name() {
    let commands = [
        "cat \"$HOME\"/keys/deep/k.pem \"$HOME\"/keys/deep/k.txt; cat src/*.KEY src/*.crt",
        "mkdir -p d && cd d && printf x > \"$(printf 'n\\377.pem')\" && cd .. && cat d/*.pem; echo end",
    ];
    let stand = scripted(&commands);
    let keys = stand.home.home().join("keys/deep");
    fs::create_dir_all(&keys).unwrap();
    fs::write(keys.join("k.pem"), "canary\n").unwrap();
    fs::write(keys.join("k.txt"), "plain\n").unwrap();
    fs::write(stand.home.work().join("src/a.KEY"), "canary\n").unwrap();
    fs::write(stand.home.work().join("src/b.crt"), "canary\n").unwrap();
    let rules = "Read(~/keys/**/*.pem),Read({src,lib}/*.{key,crt})";
    let held = results(&stand, &["--allowedTools", "Bash", "--disallowedTools", rules]);
    assert!(held[0].contains("plain") && !held.concat().contains("canary"), "{held:?}");
    let control = scripted(&commands);
    fs::create_dir_all(control.home.home().join("keys/deep")).unwrap();
    fs::write(control.home.home().join("keys/deep/k.pem"), "canary\n").unwrap();
    let open = results(&control, &["--allowedTools", "Bash"]);
    assert!(open[0].contains("canary"), "{open:?}");
}

/// What a rule denies stays hidden where it is, or holds, the directory of the shell or of the run.
#[test]
fn working_directories_are_hidden_too_if_a_rule_denies_them() {
    let set_up = |commands: &[&str]| {
        let stand = stand(commands);
        let work = stand.home.work();
        fs::create_dir(work.join("keys")).unwrap();
        fs::write(work.join("keys/a.pem"), "canary").unwrap();
        stand
    };
    let first = ["k=keys; cd $k; pwd", "x=a.pem; cat $x", "cd ..; x=keys/a.pem; cat $x"];
    for (rule, commands) in [
        ("Read(keys/**)", &first[..]),
        ("Read(./**)", &["x=keys/a.pem; cat $x"]),
        ("Read(**)", &["for f in keys/*; do cat \"$f\"; done"]),
    ] {
        let results = results(&set_up(commands), &["--disallowedTools", rule]);
        assert!(!results.iter().any(|result| result.contains("canary")), "{rule}: {results:?}");
    }
    let shown = results(&set_up(&first), &[]);
    assert_eq!(shown[1..], ["canary", "canary"]);
}

/// Where a rule denies a file, its history is closed to programs that run others.
#[test]
fn history_of_denied_files_is_closed_to_readers_that_run_programs() {
    let text = "awk 'BEGIN { system(\"git show HEAD:src/0.sh\") }'";
    let set_up = || {
        let stand = stand(&[text]);
        fs::write(stand.home.work().join("src/0.sh"), "canary").unwrap();
        for arguments in [&["init", "-q"][..], &["add", "-A"], &["commit", "-q", "-m", "x"]] {
            let git =
                stand.home.program("git").args(["-c", "user.name=n", "-c", "user.email=e@x"]).args(arguments);
            assert_eq!(finished(git).ending.code(), 0);
        }
        stand
    };
    let denied = results(&set_up(), &["--disallowedTools", "Read(src/0.sh)"]);
    assert!(!denied[0].contains("canary"), "{denied:?}");
    assert_eq!(results(&set_up(), &[]), ["canary"]);
}
