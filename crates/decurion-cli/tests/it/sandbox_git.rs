//! Repositories in the sandbox, through the program: what git's settings name, pipes in place of files that we read, and
//! placeholders. Judged by what is on disk afterwards.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

use serde_json::json;

use crate::sandbox::{names, results, stand};
use crate::stand::{DECURION, LIMIT, Stand, finished};

/// Runs git outside of the sandbox.
pub fn git(stand: &Stand, arguments: &[&str]) {
    let git = stand.home.program("git").args(["-c", "user.name=n", "-c", "user.email=e@x"]).args(arguments);
    let run = finished(git);
    assert_eq!(run.ending.code(), 0, "{arguments:?}: {run:?}");
}

/// Runs these texts as scripts in a repository with a commit, so that the analysis of commands does not know what they
/// do.
pub fn repository(texts: &[&str]) -> Stand {
    let commands: Vec<String> = (0..texts.len()).map(|index| format!("sh src/{index}.sh")).collect();
    let stand = stand(&commands.iter().map(String::as_str).collect::<Vec<_>>());
    for (index, text) in texts.iter().enumerate() {
        fs::write(stand.home.work().join(format!("src/{index}.sh")), text).unwrap();
    }
    git(&stand, &["init", "-q", "-b", "main"]);
    git(&stand, &["add", "-A"]);
    git(&stand, &["commit", "-qm", "x"]);
    stand
}

/// Settings of git that name something in the checkout, what a command does with it, and what must be there afterwards;
/// nothing where it must stay absent.
const NAMED: [(&str, &str, &str, &str, Option<&str>); 7] = [
    (
        "core.hooksPath",
        ".githooks",
        "echo evil >> .githooks/pre-commit",
        ".githooks/pre-commit",
        Some("exit 0\n"),
    ),
    (
        "core.hooksPath",
        ".githooks",
        "mv .githooks g; mkdir .githooks; echo evil > .githooks/pre-push",
        ".githooks/pre-push",
        None,
    ),
    (
        "core.hooksPath",
        ".absent/_",
        "mkdir -p .absent; echo evil > .absent/pre-commit",
        ".absent/pre-commit",
        None,
    ),
    ("core.hooksPath", ".husky/_", "echo evil > .husky/pre-commit", ".husky/pre-commit", Some("exit 0\n")),
    ("include.path", "../more", "echo evil >> more", "more", Some("[alias]\n")),
    ("include.path", "../absent", "echo evil >> absent; ln -s more absent", "absent", None),
    ("filter.x.clean", "sh tools/clean.sh %f", "echo evil > tools/clean.sh", "tools/clean.sh", Some("cat\n")),
];

#[test]
fn what_settings_of_git_name_cannot_be_changed() {
    for (setting, value, text, path, expected) in NAMED {
        for sandboxed in [true, false] {
            let stand = repository(&[
                &format!("{text}; exit 0"),
                "git commit -q --allow-empty -m y 2>&- && git log --oneline | wc -l",
            ]);
            let stand = if sandboxed { stand } else { stand.without_sandbox() };
            let work = stand.home.work();
            for (file, text) in [
                (".githooks/pre-commit", "exit 0\n"),
                (".husky/_/pre-commit", ""),
                (".husky/pre-commit", "exit 0\n"),
                ("more", "[alias]\n"),
                ("tools/clean.sh", "cat\n"),
            ] {
                fs::create_dir_all(work.join(file).parent().unwrap()).unwrap();
                fs::write(work.join(file), text).unwrap();
            }
            for (setting, value) in [("user.name", "n"), ("user.email", "e@x"), (setting, value)] {
                git(&stand, &["config", setting, value]);
            }
            let results = results(&stand, &["--allowedTools", "Bash"]);
            let found = fs::read_to_string(work.join(path)).ok();
            assert_eq!(found.as_deref() == expected, sandboxed, "{text}: {found:?} {results:?}");
            if sandboxed {
                assert_eq!(results[1], "2", "{setting}: work goes on");
                assert!(!work.join("absent").exists() && !work.join(".absent").exists(), "{setting}");
            }
        }
    }
}

/// Settings of a submodule, of a worktree and of attributes, in folders of git.
#[test]
fn settings_in_folders_of_git_cannot_be_made() {
    let stand = repository(&[
        "mkdir -p .git/modules/sub/hooks .git/info; echo evil > .git/modules/sub/hooks/pre-commit; \
         echo evil > .git/worktrees/tree/config.worktree; echo evil > .git/config.worktree; \
         echo evil >> .git/worktrees/tree/modules/sub/config; echo evil > .git/info/attributes; mkdir -p .git/remotes .git/branches; echo URL: x > .git/remotes/o; \
         echo x > .git/branches/b; echo evil > .git/modules/sub/config; mv .git/modules .git/m; \
         echo evil > sub/.hooks/pre-commit; true",
        "git status --short; git -C sub status --short; git -C tree status --short",
    ]);
    let work = stand.home.work();
    let other = stand.home.path().join("other");
    git(&stand, &["clone", "-q", "--bare", ".", other.to_str().unwrap()]);
    git(
        &stand,
        &["-c", "protocol.file.allow=always", "submodule", "-q", "add", other.to_str().unwrap(), "sub"],
    );
    git(&stand, &["commit", "-qm", "y"]);
    git(&stand, &["worktree", "add", "-q", "tree"]);
    git(&stand, &["-C", "tree", "-c", "protocol.file.allow=always", "submodule", "-q", "update", "--init"]);
    git(&stand, &["config", "extensions.worktreeConfig", "true"]);
    git(&stand, &["-C", "sub", "config", "core.hooksPath", ".hooks"]);
    fs::create_dir(work.join("sub/.hooks")).unwrap();
    fs::remove_dir_all(work.join(".git/modules/sub/hooks")).unwrap();
    let modules = [".git/modules/sub/config", ".git/worktrees/tree/modules/sub/config"];
    let before = modules.map(|path| fs::read(work.join(path)).unwrap());
    let results = results(&stand, &["--allowedTools", "Bash"]);
    assert_eq!(modules.map(|path| fs::read(work.join(path)).unwrap()), before, "{results:?}");
    for path in [
        ".git/modules/sub/hooks",
        ".git/worktrees/tree/config.worktree",
        ".git/config.worktree",
        ".git/info/attributes",
        ".git/remotes/o",
        ".git/branches/b",
        ".git/m",
        "sub/.hooks/pre-commit",
    ] {
        assert!(!work.join(path).exists(), "{path}: {results:?}");
    }
    assert_eq!(results[1], "?? tree/");
}

#[test]
fn ordinary_work_with_git_goes_on() {
    let stand = repository(&[
        "git checkout -qb one && echo 1 > one && git add one && git commit -qm one && git log --oneline | wc -l",
        "git checkout -q main && echo 2 > two && git add two && git commit -qm two && git checkout -q one && git rebase -q \
         main && git log --oneline | wc -l",
        "echo edited > a.txt && git stash -q && cat a.txt && git stash pop -q && cat a.txt && git checkout -q a.txt",
        "git checkout -q main && git merge -q --no-ff --no-edit one && git log --oneline | wc -l",
        "git rebase -q --exec 'echo $((1+1)) > ran' HEAD~1; cat ran; rm ran",
        "git -C sub checkout -q HEAD~1 && git status --short && git -C sub checkout -q - && git \
         status --short && echo same",
    ]);
    git(&stand, &["commit", "-q", "--allow-empty", "-m", "second"]);
    let other = stand.home.path().join("other");
    git(&stand, &["clone", "-q", "--bare", ".", other.to_str().unwrap()]);
    git(
        &stand,
        &["-c", "protocol.file.allow=always", "submodule", "-q", "add", other.to_str().unwrap(), "sub"],
    );
    git(&stand, &["commit", "-qm", "third"]);
    for (setting, value) in [("user.name", "n"), ("user.email", "e@x"), ("core.hooksPath", ".husky/_")] {
        git(&stand, &["config", setting, value]);
    }
    let results = results(&stand, &["--allowedTools", "Bash"]);
    assert_eq!(results, ["4", "5", "one\nedited", "6", "2", " M sub\nsame"]);
}

/// Made elsewhere and moved to the top of the working directory, in a repository and in a plain folder.
#[test]
fn settings_of_editors_and_ours_cannot_be_moved_into_place() {
    const NAMES: [&str; 6] = [".vscode", ".idea", ".devcontainer", ".claude", ".decurion", ".mcp.json"];
    let moves = "mkdir -p box; for n in .vscode .idea .devcontainer .claude .decurion .mcp.json; do \
                 mkdir -p sub/$n; echo x > sub/$n/f; cp -r sub/$n box; mv sub/$n .; mv -T sub/$n $n; cp -r box/$n .; \
                 perl -e 'rename \"box/$ARGV[0]\", $ARGV[0]' $n; ln -s box/$n $n; done; mv box/.??* .; true";
    for in_repository in [true, false] {
        for sandboxed in [true, false] {
            let stand = repository(&[moves]);
            let stand = if sandboxed { stand } else { stand.without_sandbox() };
            let work = stand.home.work();
            if !in_repository {
                fs::remove_dir_all(work.join(".git")).unwrap();
            }
            let mode = ["--permission-mode", "acceptEdits", "--allowedTools", "Bash(sh:*)"];
            let results = results(&stand, &mode);
            for name in NAMES {
                assert_eq!(work.join(name).exists(), !sandboxed, "{name} {in_repository}: {results:?}");
            }
        }
    }
}

/// What needs git's settings, or a place outside, fails and says where.
#[test]
fn git_names_the_path_where_it_is_stopped() {
    let stand =
        repository(&["git submodule update", "git worktree add /usr/decurion-tree", "git remote add x y"]);
    let other = stand.home.path().join("other");
    git(&stand, &["clone", "-q", "--bare", ".", other.to_str().unwrap()]);
    git(
        &stand,
        &["-c", "protocol.file.allow=always", "submodule", "-q", "add", other.to_str().unwrap(), "sub"],
    );
    git(&stand, &["commit", "-qm", "y"]);
    let results = results(&stand, &["--allowedTools", "Bash"]);
    for (result, path) in results.iter().zip([".git/modules/sub/config", "/usr/decurion-tree", ".git/config"])
    {
        assert!(
            result.contains(path) && result.contains("The sandbox refused to write "),
            "{path}: {results:?}"
        );
    }
    assert_eq!(results.len(), 3);
    assert!(!std::path::Path::new("/usr/decurion-tree").exists());
}

#[test]
fn explaining_a_command_has_no_effect() {
    let stand = repository(&[]);
    let work = stand.home.work();
    let changed = || fs::metadata(&work).map(|found| (found.mtime(), found.mtime_nsec())).unwrap();
    let before = changed();
    for of in ["permissions", "sandbox"] {
        let whole = stand.run(&[of, "explain", "make install"]);
        assert!(whole.output().contains(work.join(".vscode").to_str().unwrap()), "{whole:?}");
        assert!(!whole.output().contains(".git/config.worktree"), "{whole:?}");
        // An output that cannot be written ends the program at its first line, as `head` may.
        let cut = ["-c", &format!("'{DECURION}' {of} explain 'make install' > /dev/full")];
        let cut = finished(stand.decurion_through("sh").args(cut));
        assert_eq!(cut.ending.code(), 1, "{cut:?}");
        assert_eq!(changed(), before, "something was made in the working directory: {of}");
        assert_eq!(names(&stand.home.path().join("tmp")), [""; 0], "{of}");
    }
}

#[test]
fn one_session_leaves_the_placeholders_of_another() {
    let stand = repository(&[]);
    let work = stand.home.work();
    let hold = ["sandbox", "run", "--", "sh", "-c", "echo ready; read line"];
    let mut first = stand.decurion().args(hold).start_talking().unwrap();
    first.wait_for_line(LIMIT, |line| line == "ready").unwrap();
    let second = stand.run(&[
        "sandbox",
        "run",
        "--",
        "sh",
        "-c",
        "mkdir .idea/x; echo x > .mcp.json; echo x > .git/commondir; ls -A",
    ]);
    assert!(second.output().contains(".idea") && second.output().contains(".mcp.json"), "{second:?}");
    for name in [".claude", ".idea", ".mcp.json"] {
        assert_eq!(names(&work.join(name)), [""; 0], "{name}");
    }
    // Beside what holds this place a person's git works.
    let common = work.join(".git/commondir");
    assert_eq!(fs::read_to_string(&common).unwrap(), ".\n", "{second:?}");
    git(&stand, &["commit", "-q", "--allow-empty", "-m", "y"]);
    first.say("go").unwrap();
    first.finish(LIMIT).unwrap();
    assert_eq!(names(&work), [".env", ".git", "a.txt", "b.txt", "src"]);
    assert!(!common.exists());
}

/// A session can be killed between the steps by which it makes a placeholder.
#[test]
fn unfinished_placeholders_of_a_killed_session_are_removed() {
    let stand = repository(&["ls -A"]);
    let work = stand.home.work();
    for name in [".idea", "made"] {
        fs::create_dir(work.join(name)).unwrap();
        fs::set_permissions(work.join(name), fs::Permissions::from_mode(0o1700)).unwrap();
    }
    // One that is somebody else's by now.
    fs::write(work.join("made/file"), "x").unwrap();
    let rules = ["--allowedTools", "Bash", "--disallowedTools", "Edit(made/**)"];
    let results = results(&stand, &rules);
    assert!(results[0].contains(".idea"), "{results:?}");
    assert_eq!(names(&work), [".env", ".git", "a.txt", "b.txt", "made", "src"]);
    assert_eq!(names(&work.join("made")), ["file"]);
}

#[test]
fn commands_do_not_run_without_a_placeholder_that_they_need() {
    let stand = repository(&["echo ran > ran; mkdir deep"]);
    let deep = format!("Edit({}x)", "deep/".repeat(20));
    let results = results(&stand, &["--allowedTools", "Bash", "--disallowedTools", &deep]);
    assert!(!stand.home.work().join("ran").exists(), "{results:?}");
    assert!(results[0].contains("cannot protect ") && results[0].contains("deep/deep"), "{results:?}");
}

/// A command can put a pipe that nobody writes to in the place of everything in the working directory that we read.
#[test]
fn pipes_in_place_of_files_hold_nobody_up() {
    let script = "when agent=main turn=1\n  call Glob {\"pattern\": \"**/*.txt\"}\nwhen agent=main turn=2\n  call Grep \
                  {\"pattern\": \"two\"}\nwhen agent=main turn=3\n  call Bash {\"command\": \"echo fine\"}\nwhen\n  say \
                  \"done\"\n";
    let searched = [".gitignore", ".ignore", "src/.gitignore", ".git/info/exclude", "tree/.git"];
    let others = [
        ".git/HEAD",
        ".git/index",
        ".git/config",
        ".git/config.worktree",
        ".git/packed-refs",
        ".git/commondir",
        "AGENTS.md",
        "CLAUDE.md",
        ".mcp.json",
    ];
    for name in searched.iter().chain(&others) {
        let home = repository(&[]).home;
        let stand = Stand::in_home(home, script);
        let path = stand.home.work().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let _ = fs::remove_file(&path);
        finished(stand.home.program("mkfifo").arg(&path));
        let results = results(&stand, &["--trust-folder"]);
        assert!(results[2].starts_with("fine"), "{name}: {results:?}");
        let told = results[0].contains("no ordinary file") && results[0].contains(name);
        assert_eq!(told, searched.contains(name), "{name}: {results:?}");
        assert_eq!(results[1].contains("b.txt"), !told, "{name}: {results:?}");
    }
}

/// A link to a file without an end, and a file that is mostly nothing.
#[test]
fn endless_lists_of_ignored_names_are_not_read() {
    let script = "when agent=main turn=1\n  call Glob {\"pattern\": \"**/*.txt\"}\nwhen\n  say \"done\"\n";
    for made in ["ln -s /dev/zero .gitignore", "truncate -s 100G .gitignore"] {
        let stand = Stand::in_home(repository(&[]).home, script);
        finished(stand.home.program("sh").args(["-c", made]));
        let results = results(&stand, &[]);
        assert!(results[0].contains("no ordinary file, or too long"), "{made}: {results:?}");
    }
}

/// Repositories that a command puts where the person's own `git status` finds them, and what its result says in the sandbox.
const PLANTED: [(&str, &str); 4] = [
    (
        "b=$(printf '\\377'); git init -q $b; git -C $b config core.fsmonitor \"touch $PWD/../ran; true\"; git -C $b -c user.name=n -c \
         user.email=e@x commit -q --allow-empty -m x; git update-index --add --cacheinfo 160000,$(git -C $b rev-parse HEAD),$b",
        "Decurion renamed it",
    ),
    (
        "git init -q n; git -C n config core.fsmonitor \"touch $PWD/../ran; true\"; git -C n -c user.name=n -c user.email=e@x \
     commit -q --allow-empty -m x; git update-index --add --cacheinfo 160000,$(git -C n rev-parse HEAD),n",
        "Decurion renamed it",
    ),
    (
        "mv .git/HEAD .git/old; mkdir -p objects refs; echo ref: refs/heads/main > HEAD; \
     printf '[core]\\nrepositoryformatversion=0\\nbare=false\\nworktree=%s\\nfsmonitor=touch %s/../ran\\n' $PWD $PWD > config",
        "Decurion renamed it",
    ),
    (
        "mkdir evil; cp -r .git/. evil/; git config -f evil/config core.fsmonitor \"touch $PWD/../ran; true\"; \
     echo ../evil > .git/commondir",
        "cannot create .git/commondir: Read-only file system",
    ),
];

#[test]
fn repositories_that_commands_make_run_nothing_for_the_person() {
    for (text, expected) in PLANTED {
        for sandboxed in [true, false] {
            let stand = repository(&[&format!("{text}; exit 0")]);
            let stand = if sandboxed { stand } else { stand.without_sandbox() };
            let results = results(&stand, &["--allowedTools", "Bash"]);
            finished(stand.home.program("git").arg("status"));
            assert_eq!(stand.home.path().join("ran").exists(), !sandboxed, "{text}: {results:?}");
            assert_eq!(results[0].contains(expected), sandboxed, "{text}: {results:?}");
        }
    }
}

#[test]
fn ordinary_nested_repositories_stay() {
    let stand = repository(&[
        "git init -q n; git -C n -c user.name=n -c user.email=e@x commit -q --allow-empty -m x; git add n 2>&-; \
         git clone -q . m; git add m 2>&-; git status --short n m",
    ]);
    let results = results(&stand, &["--allowedTools", "Bash"]);
    assert_eq!(results[0], "A  m\nA  n");
    assert!(stand.home.work().join("n/.git/HEAD").exists() && stand.home.work().join("m/.git/HEAD").exists());
    assert!(!stand.home.work().join(".git/commondir").exists());
}

/// By a file `commondir` git would take the settings of a repository from elsewhere.
#[test]
fn git_is_not_led_to_settings_elsewhere() {
    let places = [".git", "sub/.git", ".git/modules/module"];
    let make = "for d in .git sub/.git .git/modules/module; do echo /x > $d/commondir; done";
    let set_up = |stand: Stand| {
        let other = stand.home.path().join("other");
        git(&stand, &["clone", "-q", "--bare", ".", other.to_str().unwrap()]);
        let other = other.to_str().unwrap();
        git(&stand, &["-c", "protocol.file.allow=always", "submodule", "-q", "add", other, "module"]);
        git(&stand, &["init", "-q", "sub"]);
        stand
    };
    let left = |stand: &Stand| {
        let there = |place: &&&str| stand.home.work().join(place).join("commondir").exists();
        places.iter().filter(there).count()
    };
    let stand = set_up(repository(&[make, "git status --short | wc -l"]));
    let told = results(&stand, &["--allowedTools", "Bash"]);
    assert_eq!(told[0].matches("commondir: ").count(), 3, "{told:?}");
    assert_eq!((told[1].as_str(), left(&stand)), ("3", 0), "{told:?}");
    // One in the background ends when no other is left to look after.
    let script = "when agent=main turn=1\n  call Bash {\"command\": \"sh src/0.sh\", \"run_in_background\": true}\nwhen agent=main \
                  turn=2 result=/ID: (\\w+)/\n  call TaskOutput {\"task_id\": \"$1\", \"block\": true}\nwhen\n  say \"done\"\n";
    let stand = Stand::in_home(set_up(repository(&[&format!("{make}; echo made")])).home, script);
    let told = results(&stand, &["--allowedTools", "Bash"]);
    assert!(told[1].contains("made"), "{told:?}");
    assert_eq!(left(&stand), 0);
}

/// A link among the settings makes the file that it leads to a setting, for commands and for edits that need no question.
#[test]
fn what_links_among_settings_lead_to_is_protected() {
    let links = [(".git/hooks/pre-commit", "../../check.sh"), (".vscode/tasks.json", "../check.sh")];
    for (link, target) in links {
        let set_up = |stand: &Stand| {
            let work = stand.home.work();
            fs::write(work.join("check.sh"), "true\n").unwrap();
            fs::create_dir_all(work.join(link).parent().unwrap()).unwrap();
            std::os::unix::fs::symlink(target, work.join(link)).unwrap();
        };
        let stand =
            repository(&["echo evil > check.sh; rm -f check.sh; exit 0", "echo more >> a.txt; cat a.txt"]);
        set_up(&stand);
        let told = results(&stand, &["--allowedTools", "Bash"]);
        assert_eq!(fs::read_to_string(stand.home.work().join("check.sh")).unwrap(), "true\n", "{told:?}");
        assert!(told[1].contains("more"), "{told:?}");
        let home = repository(&[]).home;
        let input = serde_json::json!({"file_path": home.work().join("check.sh"), "content": "evil\n"});
        let other = serde_json::json!({"file_path": home.work().join("new.sh"), "content": "x\n"});
        let script = format!(
            "when agent=main turn=1\n  call Write {input}\n  call Write {other}\nwhen\n  say \"done\"\n"
        );
        let stand = Stand::in_home(home, &script);
        set_up(&stand);
        let told = results(&stand, &["--permission-mode", "acceptEdits"]);
        assert_eq!(fs::read_to_string(stand.home.work().join("check.sh")).unwrap(), "true\n", "{told:?}");
        assert!(told[0].contains("settings lead to it"), "{told:?}");
        assert!(stand.home.work().join("new.sh").exists(), "{told:?}");
    }
}

/// Runs a text of the person in the working directory.
pub fn person(stand: &Stand, text: &str) {
    finished(stand.home.program("sh").args(["-c", text]));
}

/// How the sandbox keeps a repository from running something.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kept {
    /// The command could not write something, as this part of its result says.
    Unwritten(&'static str),
    /// The command has made this, and Decurion has renamed it.
    Renamed(&'static str),
}

/// What is there before the session, what a command does, what the person does then, in which `ran` must not come to be
/// beside the working directory, and how the sandbox keeps it from that.
const BELOW: [(&str, &str, &str, Kept); 15] = [
    (
        "git init -q --bare x.git",
        "printf '[core]\nbare=false\nworktree=..\nfsmonitor=touch %s/../ran;\n' $PWD >> x.git/config",
        "cd x.git && git status",
        Kept::Unwritten("cannot create x.git/config: Read-only file system"),
    ),
    (
        "git init -q --bare x.git; git remote add o x.git",
        "printf '#!/bin/sh\ntouch %s/../ran' $PWD > x.git/hooks/update; chmod +x x.git/hooks/update",
        "git push -q o main",
        Kept::Unwritten("cannot create x.git/hooks/update: Read-only file system"),
    ),
    (
        "git init -q --bare x.git; rm -r x.git/config",
        "git init -q e; printf '[core]\nfsmonitor=touch %s/../ran;\n' $PWD >> e/.git/config; echo ../e/.git > x.git/commondir",
        "cd x.git && git --work-tree=.. status",
        Kept::Unwritten("cannot create x.git/commondir: Read-only file system"),
    ),
    (
        "mkdir -p n deep/er; git init -q n/0; for n in $(seq 201); do cp -r n/0 n/$n; done; cp -r n/0 deep/er/last",
        "git -C deep/er/last config core.fsmonitor \"touch $PWD/../ran;\"",
        "git -C deep/er/last status",
        Kept::Unwritten("could not lock config file .git/config: Read-only file system"),
    ),
    (
        "",
        "git worktree add -q w; git init -q e; git -C e config core.fsmonitor \"touch $PWD/../ran;\"; echo \
         ../../../e/.git > .git/worktrees/w/commondir",
        "git -C w status",
        Kept::Renamed(".git/w"),
    ),
    (
        "git config extensions.worktreeConfig true",
        "git worktree add -q w; git -C w config --worktree core.fsmonitor \"touch $PWD/../ran;\"",
        "git -C w status",
        Kept::Renamed(".git/w"),
    ),
    (
        "",
        "git worktree add -q w; rm w/.git; git init -q w; git -C w config core.fsmonitor \"touch $PWD/../ran;\"",
        "git -C w status",
        Kept::Renamed("w/.git"),
    ),
    (
        "git clone -q . lib; git -c protocol.file.allow=always submodule add $PWD/lib sub; git commit -qm s; git \
         submodule deinit -f sub; rm -r .git/modules/sub",
        "git clone -q --bare lib .git/modules/sub; git -C .git/modules/sub config core.bare false; printf '#!/bin/sh\ntouch %s/../ran' $PWD > \
         .git/modules/sub/hooks/post-checkout; chmod +x .git/modules/sub/hooks/post-checkout",
        "git -c protocol.file.allow=always submodule update --init",
        Kept::Renamed(".git/sub"),
    ),
    (
        "git clone -q . lib; git -c protocol.file.allow=always submodule add $PWD/lib a/sub; git commit -qm s; git \
         submodule deinit -f a/sub; rm -r .git/modules/a/sub",
        "seq 2100 | (cd .git/modules; xargs mkdir); git clone -q --bare lib .git/modules/a/sub; git -C \
         .git/modules/a/sub config core.bare false; printf '#!/bin/sh\ntouch %s/../ran' $PWD > .git/modules/a/sub/hooks/post-checkout; \
         chmod +x .git/modules/a/sub/hooks/post-checkout",
        "git -c protocol.file.allow=always submodule update --init",
        Kept::Renamed(".git/sub"),
    ),
    (
        "",
        "git worktree add -q w; git clone -q --bare . e; printf '#!/bin/sh\ntouch %s/../ran' $PWD > e/hooks/reference-transaction; \
         chmod +x e/hooks/reference-transaction; echo $PWD/e > .git/worktrees/w/commondir",
        "git -C w branch z",
        Kept::Renamed(".git/w"),
    ),
    (
        "",
        "mkdir -p x/objects/ab x/refs; echo ref: refs/heads/main > x/HEAD; git init -q x/objects/ab; git -C x/objects/ab config \
         core.fsmonitor \"touch $PWD/../ran;\"",
        "git -C x/objects/ab status",
        Kept::Renamed("x/objects/ab/.git"),
    ),
    (
        "",
        "git clone -q . s; touch s/ran; git -C s add ran; git -C s -c user.name=n -c user.email=e@x commit -qm x; rm s/ran; git -C s \
         config core.worktree $PWD/..",
        "git -C s checkout -qf",
        Kept::Renamed("s/.git"),
    ),
    (
        "",
        "git init -q s; git -C s config core.fsmonitor \"touch $PWD/../ran;\"",
        "git -C s status",
        Kept::Renamed("s/.git"),
    ),
    (
        "rm -rf .git",
        "git init -q s; git -C s config core.fsmonitor \"touch $PWD/../ran;\"",
        "git -C s status",
        Kept::Renamed("s/.git"),
    ),
    (
        "",
        "git init -q --bare s.git; printf '[core]\nbare=false\nworktree=..\nfsmonitor=touch %s/../ran;\n' $PWD >> \
         s.git/config",
        "cd s.git && git status",
        Kept::Renamed("s.git/HEAD"),
    ),
];

#[test]
fn repositories_below_run_nothing_for_the_person() {
    for (before, text, after, kept) in BELOW {
        for sandboxed in [true, false] {
            let stand = repository(&[&format!("{text}; exit 0")]);
            let stand = if sandboxed { stand } else { stand.without_sandbox() };
            git(&stand, &["config", "user.name", "n"]);
            git(&stand, &["config", "user.email", "e@x"]);
            person(&stand, before);
            let results = results(&stand, &["--allowedTools", "Bash"]);
            person(&stand, after);
            assert_eq!(stand.home.path().join("ran").exists(), !sandboxed, "{text}: {results:?}");
            let done = match kept {
                Kept::Unwritten(refusal) => results[0].contains(refusal),
                Kept::Renamed(name) => {
                    let find =
                        stand.home.program("find").args([".", "-path", &format!("./{name}.refused-*")]);
                    !finished(find).lines.is_empty()
                }
            };
            assert_eq!(done, sandboxed, "{text}: {kept:?} {results:?}");
        }
    }
}

/// Files that a command puts into a folder of git: what is there before the session, what the command does, and what the
/// person does then, through which `ran` must not come to be beside the working directory.
const IN_FOLDERS_OF_GIT: [(&str, &str, &str); 19] = [
    ("", "rm .git/COMMIT_EDITMSG; ln -s ../../ran .git/COMMIT_EDITMSG", "git commit -q --allow-empty -m y"),
    ("git branch z HEAD~1", "ln -s ../../ran .git/FETCH_HEAD", "git fetch -q . z"),
    ("git checkout -q HEAD~1", "ln -s $(realpath ..)/ran .git/SQUASH_MSG", "git merge -q --squash main"),
    ("", "rm .git/index; ln -s ../../ran .git/index", "git add a.txt"),
    ("", "ln -s ../../ran .git/packed-refs", "git pack-refs --all"),
    ("", "rm .git/logs/HEAD; ln -s ../../../ran .git/logs/HEAD", "git commit -q --allow-empty -m y"),
    (
        "",
        "b=$(printf '\\377'); git checkout -q -b $b; rm .git/logs/refs/heads/$b; ln -s ../../../../../ran .git/logs/refs/heads/$b",
        "git commit -q --allow-empty -m y",
    ),
    (
        "",
        "git checkout -q -b objects/ab/x; cd .git/logs/refs/heads/objects/ab; rm x; ln -s ../../../../../../../ran x",
        "git commit -q --allow-empty -m y",
    ),
    (
        "",
        "rm -r .git/logs/refs; ln -s ../../../out .git/logs/refs",
        "git branch z; find ../out -type f -exec touch ../ran ';'",
    ),
    (
        "",
        "ln -s ../../../../out .git/refs/heads/d",
        "git branch d/z; find ../out -type f -exec touch ../ran ';'",
    ),
    (
        "",
        "rmdir .git/objects/pack; ln -s ../../../out .git/objects/pack",
        "git repack -adq; find ../out -type f -exec touch ../ran ';'",
    ),
    (
        "git worktree add -q w",
        "ln -s ../../../../ran .git/worktrees/w/FETCH_HEAD",
        "git -C w fetch -q .. main",
    ),
    ("git init -q n", "ln -s ../../../ran n/.git/FETCH_HEAD", "git -C n fetch -q .. main"),
    ("", "git init -q n; ln -s ../../../ran n/.git/FETCH_HEAD", "git -C n fetch -q .. main"),
    (
        "git checkout -q -b z HEAD~1; printf '[core]\nfsmonitor=touch ../ran;\n' | git commit -q --allow-empty -F-",
        "ln -s config .git/MERGE_MSG; rm .git/COMMIT_EDITMSG",
        "git merge --no-commit --no-ff -q main -m \"$(git log -1 --format=%B z)\"; git status",
    ),
    (
        "git checkout -q -b z HEAD~1; echo 1 > a.txt; git commit -qam 1; echo 2 > b.txt; git commit -qam 2; git rebase -q main",
        "mkdir git-merge-; printf '#!/bin/sh\ntouch ../ran\nexit 1' > evil; chmod +x evil; echo /../evil > .git/rebase-merge/strategy",
        "git rebase --skip",
    ),
    (
        "git checkout -q -b z HEAD~1; echo 1 > a.txt; git commit -qam 1; echo 2 > b.txt; git commit -qam 2; git checkout -q main; \
         git cherry-pick z~1 z",
        "mkdir git-merge-; printf '#!/bin/sh\ntouch ../ran\nexit 1' > evil; chmod +x evil; printf '[options]\nstrategy=/../evil\n' > \
         .git/sequencer/opts",
        "git cherry-pick --skip",
    ),
    (
        "git checkout -q -b z HEAD~1; echo 1 > a.txt; git commit -qam 1; echo 2 > b.txt; git commit -qam 2; git format-patch -q -2 -o p; \
         git checkout -q main; git am -q p/*",
        "printf \" '--build-fake-ancestor=../ran'\" > .git/rebase-apply/apply-opt",
        "git am --skip",
    ),
    (
        "echo secret > ../out/key",
        "i=$(printf %040d 1); mkdir -p .git/rr-cache/$i; cp a.txt .git/rr-cache/$i/preimage; printf '%s\t../out/key\\0' $i > .git/MERGE_RR",
        "git commit -q --allow-empty -m y; grep -rq secret .git/rr-cache && touch ../ran",
    ),
];

#[test]
fn files_in_folders_of_git_lead_the_git_of_the_person_nowhere() {
    for (before, text, after) in IN_FOLDERS_OF_GIT {
        for sandboxed in [true, false] {
            let stand = repository(&[&format!("{text}; exit 0")]);
            let stand = if sandboxed { stand } else { stand.without_sandbox() };
            git(&stand, &["config", "user.name", "n"]);
            git(&stand, &["config", "user.email", "e@x"]);
            person(&stand, "echo 3 > a.txt; git commit -qam y");
            person(&stand, before);
            let run = finished(stand.decurion().args(["-p", "go", "--allowedTools", "Bash"]));
            person(&stand, after);
            assert_eq!(stand.home.path().join("ran").exists(), !sandboxed, "{text}: {run:?}");
            // The model hears of it after the command, or the person at the end.
            let told = format!("{:?} {}", stand.results(), run.errors);
            assert_eq!(
                told.matches("Decurion renamed them: ").count(),
                usize::from(sandboxed),
                "{text}: {told}"
            );
        }
    }
}

/// What the person made before the session stays: links of a repository that shares another one's objects, and an operation
/// with a strategy that is not git's.
#[test]
fn links_in_folders_of_git_that_were_there_stay() {
    let stand = repository(&[
        "git commit -q --allow-empty -m z; git branch k; git pack-refs --all; git log --oneline | wc -l",
    ]);
    git(&stand, &["config", "user.name", "n"]);
    git(&stand, &["config", "user.email", "e@x"]);
    person(
        &stand,
        "mv .git/objects ../out/objects; ln -s ../../out/objects .git/objects; ln -s ../../out/k .git/COMMIT_EDITMSG2; mkdir \
         .git/rebase-merge; echo mine > .git/rebase-merge/strategy",
    );
    let results = results(&stand, &["--allowedTools", "Bash", "--add-dir", "../out"]);
    assert_eq!(results[0], "2");
    for name in ["objects", "COMMIT_EDITMSG2", "rebase-merge/strategy"] {
        assert!(stand.home.work().join(".git").join(name).symlink_metadata().is_ok(), "{name}: {results:?}");
    }
}

/// What there was before the session is not removed in part: the command does not start.
const REMOVALS: [(&str, &str); 5] = [
    ("git worktree add -q w", "git worktree remove --force w"),
    ("git worktree add -q w; mv w ../out/w", "git worktree prune"),
    ("git worktree add -q ../out/w", "git worktree remove --force ../out/w"),
    ("git clone -q . n", "rm -rf n"),
    ("git clone -q --bare . n/b.git", "rm -r -f ./n"),
];

#[test]
fn repositories_are_not_removed_half_way() {
    let state = "find .git n w ../out -not -name index | sort";
    for (before, text) in REMOVALS {
        let stand = stand(&[text, "true"]);
        git(&stand, &["init", "-q", "-b", "main"]);
        git(&stand, &["add", "-A"]);
        git(&stand, &["commit", "-qm", "x"]);
        person(&stand, before);
        let listed = || finished(stand.home.program("sh").args(["-c", state])).output();
        let there = listed();
        let results = results(&stand, &["--allowedTools", "Bash"]);
        assert_eq!(listed(), there, "{text}: {results:?}");
        assert!(results[0].contains(&format!("`{text}` would remove a part")), "{text}: {results:?}");
        person(&stand, text);
        assert_ne!(listed(), there, "{text}: the person can");
    }
}

/// What commands of the session made they can remove.
#[test]
fn commands_remove_worktrees_and_clones_that_they_made() {
    let stand = repository(&[]);
    let home = stand.home;
    let commands = [
        "git worktree add -q w; git worktree add -q v; git clone -q . n",
        "git worktree remove w; rm -r v n; git worktree prune; git worktree list | wc -l; ls -d .git/worktrees n w v 2>&-; true",
    ];
    let mut script = String::new();
    for (index, command) in commands.iter().enumerate() {
        let call = serde_json::json!({"command": command});
        script.push_str(&format!("when agent=main turn={}\n  call Bash {call}\n", index + 1));
    }
    let stand = Stand::in_home(home, &(script + "when\n  say \"done\"\n"));
    let results = results(&stand, &["--allowedTools", "Bash"]);
    assert_eq!(results[1], "1", "{results:?}");
}

/// A folder that a command closed is opened for the look at the end, and closed again.
#[test]
fn repositories_in_closed_folders_are_found_at_the_end() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let make = "mkdir -p d/e; git init -q d/e/s; git -C d/e/s config core.fsmonitor \"touch $PWD/../ran;\"; ln -s ../../out d/l; \
                chmod 0 d/e; chmod 400 d; chmod 0 ../out; exit 0";
    let stand = repository(&[make]);
    fs::set_permissions(stand.home.path().join("out"), fs::Permissions::from_mode(0o000)).unwrap();
    let owned = stand.home.program("chown").args(["-R", "65534:65534"]).arg(stand.home.path());
    assert_eq!(finished(owned).ending.code(), 0);
    // As a user whom the system does not let look everywhere.
    let user = ["--reuid=65534", "--regid=65534", "--clear-groups", DECURION];
    let program = stand.decurion().instead("/usr/bin/setpriv").args(user);
    let run = finished(program.args(["-p", "go", "--allowedTools", "Bash"]));
    let work = stand.home.work();
    let mode = |path: &str| fs::metadata(work.join(path)).unwrap().mode() & 0o777;
    assert_eq!((mode("d"), mode("d/e"), mode("../out")), (0o400, 0o000, 0o000), "{run:?}");
    assert!(run.errors.contains("Decurion renamed it: "), "{run:?}");
    assert!(!work.join("d/e/s/.git").exists(), "{run:?}");
}

/// What a folder holds that a command closed is protected all the same: another command could open it again.
#[test]
fn closed_folders_do_not_hide_what_is_protected_in_them() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    for (close, text, written) in [
        ("chmod 300 conf", "chmod 755 conf; cat conf/.env", None),
        (
            "chmod 300 .git/modules",
            "git config -f .git/modules/m/config core.fsmonitor evil; chmod 755 .git/modules",
            Some(".git/modules/m/config"),
        ),
        ("chmod 0 .git", "chmod 755 .git; echo evil >> tools/pre-commit", Some("tools/pre-commit")),
        ("chmod 0 deep", "chmod 755 deep; echo evil >> deep/er/settings.json", Some("deep/er/settings.json")),
    ] {
        for sandboxed in [true, false] {
            let stand = repository(&[close, text]);
            let stand = if sandboxed { stand } else { stand.without_sandbox() };
            person(
                &stand,
                "mkdir .git/modules; git clone -q --separate-git-dir .git/modules/m . sub; mkdir -p conf tools deep/er .claude; echo hush > \
                 conf/.env; touch tools/pre-commit deep/er/settings.json; git config core.hooksPath tools; ln -s \
                 ../deep/er/settings.json .claude/settings.json",
            );
            let owned = stand.home.program("chown").args(["-R", "54321:54321"]).arg(stand.home.path());
            assert_eq!(finished(owned).ending.code(), 0);
            let user = ["--reuid=54321", "--regid=54321", "--clear-groups", DECURION];
            let program = stand.decurion().instead("/usr/bin/setpriv").args(user);
            // `~` is the home of others too, which this user cannot enter.
            let rules = ["--allowedTools", "Bash", "--disallowedTools", "Read(.env),Edit(~/none)"];
            let run = finished(program.args(["-p", "go"]).args(rules));
            let results = stand.results();
            assert!(!format!("{results:?}").contains("not started"), "{results:?}");
            let read = |path: &str| fs::read_to_string(stand.home.work().join(path)).unwrap();
            let had_effect = written
                .map_or_else(|| results[1].to_string().contains("hush"), |path| read(path).contains("evil"));
            assert_eq!(had_effect, !sandboxed, "{close}: {results:?} {run:?}");
        }
    }
}

/// What is found when the session ends is told to the person, also of commands in the background.
#[test]
fn what_a_command_in_the_background_made_is_found_at_the_end() {
    let make = "git init -q s; git -C s config core.fsmonitor \"touch $PWD/../ran;\"; git rebase -q --exec 'exit 1' \
                HEAD~1; git rebase --edit-todo; echo made; sleep 1000";
    let script = "when agent=main turn=1\n  call Bash {\"command\": \"GIT_SEQUENCE_EDITOR='echo exec touch x >>' sh \
                  src/0.sh\", \"run_in_background\": true}\nwhen agent=main turn=2 result=/ID: (\\w+)/\n  call Bash \
                  {\"command\": \"while ! grep -q touch .git/rebase-merge/git-rebase-todo; do sleep 0.01; done\"}\nwhen\n  say \"done\"\n";
    let home = repository(&[make]).home;
    let stand = Stand::in_home(home, script);
    git(&stand, &["commit", "-q", "--allow-empty", "-m", "y"]);
    let at_once = ["--settings", "{\"print\": {\"backgroundWait\": 0}}"];
    let run = finished(stand.decurion().args(["-p", "go", "--allowedTools", "Bash"]).args(at_once));
    assert!(run.errors.contains("exec touch x"), "{run:?}");
    person(&stand, "git -C s status");
    assert!(!stand.home.path().join("ran").exists());
}

/// Work in repositories that commands make goes on, also where it sets up hooks.
#[test]
fn work_goes_on_in_repositories_below() {
    let stand = repository(&[
        "git clone -q . c; cd c; git config user.name n; git config user.email e@x; git config core.hooksPath .husky/_; \
         git config alias.co checkout; git config gitflow.branch.master main; mkdir ../fake; touch ../fake/.git; echo true > .git/hooks/pre-commit; git clone -q --bare . ../b.git; git worktree \
         add -q ../w",
        "cd c && git commit -q --allow-empty -m y && git push -q ../b.git HEAD:x && git log --oneline | wc -l && git -C ../w \
         status --short",
    ]);
    let results = results(&stand, &["--allowedTools", "Bash"]);
    assert_eq!(results[1], "2", "{results:?}");
    for path in ["c/.git/HEAD", "b.git/HEAD", "w/.git", "fake/.git"] {
        assert!(stand.home.work().join(path).exists(), "{path}: {results:?}");
    }
}

/// In a home folder that is worked in, a login shell reads what it read before.
#[test]
fn files_that_shells_read_cannot_be_made_in_a_home_folder() {
    const NAMES: [&str; 6] =
        [".zshenv", ".bash_profile", ".bash_login", ".bashrc", ".config/fish/config.fish", ".gitconfig"];
    let open = serde_json::json!({"sandbox": {"filesystem": {"allowWrite": ["~", "~/.opened"]}}}).to_string();
    for (sandboxed, in_home) in [(true, true), (true, false), (false, true)] {
        let stand = stand(&["sh x.sh", "bash -lc 'echo $MINE'"]);
        let stand = if sandboxed { stand } else { stand.without_sandbox() };
        let (home, work) = (stand.home.home(), stand.home.work());
        let folder = if in_home { &home } else { &work };
        let made = NAMES.map(|name| format!("mkdir -p $(dirname ~/{name}); echo MINE=evil >> ~/{name}\n"));
        fs::write(home.join(".opened"), "").unwrap();
        fs::write(folder.join("x.sh"), made.concat() + "echo > ~/usual; echo x > ~/.opened").unwrap();
        fs::write(home.join(".profile"), "MINE=own\n").unwrap();
        let program = stand.decurion().cwd(folder).args(["-p", "go", "--allowedTools", "Bash"]);
        let run = finished(if in_home { program } else { program.args(["--settings", &open]) });
        let requests = stand.model.requests();
        let last = String::from_utf8_lossy(&requests.last().unwrap().body).into_owned();
        assert_eq!(last.contains("\"own\""), sandboxed, "{last}");
        for name in NAMES {
            assert_eq!(home.join(name).exists(), !sandboxed, "{name}: {run:?}");
        }
        assert!(home.join("usual").exists(), "{run:?}");
        assert_eq!(
            fs::read_to_string(home.join(".opened")).unwrap() == "x\n",
            !(sandboxed && in_home),
            "{run:?}"
        );
    }
}

/// What holds the place of `commondir` while commands run leads git nowhere.
#[test]
fn commits_go_on_in_a_folder_that_is_not_trusted() {
    let commit = "git commit -q --allow-empty -m more";
    let stand = stand(&[commit, commit, "git log --oneline | wc -l"]);
    git(&stand, &["init", "-q", "-b", "main"]);
    git(&stand, &["commit", "-q", "--allow-empty", "-m", "x"]);
    git(&stand, &["config", "user.name", "n"]);
    git(&stand, &["config", "user.email", "e@x"]);
    let results = results(&stand, &["--allowedTools", "Bash(git commit:*)"]);
    assert!(results[..2].iter().all(|result| !result.contains("Permission denied")), "{results:?}");
    assert!(results[2].ends_with('3'), "{results:?}");
}

/// Writes an index with a repository at the path that it is given.
const NAMES_REPOSITORY: &str = r"import hashlib, struct, sys
path = sys.argv[1].encode()
entry = struct.pack('>10I', 0, 0, 0, 0, 0, 0, 0o160000, 0, 0, 0) + b'\x11' * 20 + struct.pack('>H', len(path)) + path
entry += b'\0' * (8 - len(entry) % 8)
index = b'DIRC' + struct.pack('>2I', 2, 1) + entry
open('.git/index', 'wb').write(index + hashlib.sha1(index).digest())
";

/// A command can write any index. What it names is renamed only below the checkout.
#[test]
fn an_index_that_names_other_repositories_makes_decurion_rename_none() {
    for path in [".", "", "src/..", "../out/r", "OUT/r", ".git/modules/r"] {
        let stand = stand(&["sh -c 'python3 index.py \"$(cat path)\"'", "true"]);
        let (work, out) = (stand.home.work(), stand.home.path().join("out"));
        git(&stand, &["init", "-q", "-b", "main"]);
        git(&stand, &["commit", "-q", "--allow-empty", "-m", "x"]);
        person(
            &stand,
            "for r in ../out/r .git/modules/r; do git init -q $r; git -C $r config alias.a b; done; git config alias.a b",
        );
        fs::write(work.join("index.py"), NAMES_REPOSITORY).unwrap();
        fs::write(work.join("path"), path.replace("OUT", out.to_str().unwrap())).unwrap();
        let results = results(&stand, &["--allowedTools", "Bash"]);
        for folder in [work.clone(), out.join("r"), work.join(".git/modules/r")] {
            assert!(folder.join(".git/HEAD").exists(), "{path}: {} {results:?}", folder.display());
        }
    }
}

/// Git's objects can be read by commands that may not read a file itself. A rule denies the file, or the definition of the
/// agent that asks or of the one that works in the worktree, or nothing.
#[test]
fn what_is_denied_to_read_is_not_copied_into_a_worktree() {
    const DENIED: [(&str, &[&str], &str, &str); 7] = [
        ("no rule", &[], "", ""),
        ("a rule", &["--disallowedTools", "Read(.env)"], "", ""),
        ("the definition of who asks", &[], "[new]", ""),
        ("the definition of who works in it", &[], "", "[new]"),
        ("a rule of a session that enters a worktree", &["--disallowedTools", "Read(.env)"], "", ""),
        (
            "a rule of the session in a worktree of its own",
            &["--worktree=w", "--disallowedTools", "Read(.env)"],
            "",
            "",
        ),
        ("the definition of the session in a worktree of its own", &["--worktree=w"], "[new]", ""),
    ];
    let find = "import glob,zlib; print([p for p in glob.glob('.git/objects/??/*') if b'canary' in zlib.decompress(open(p,'rb').read())])";
    for (what, arguments, asker, worker) in DENIED {
        let agent = json!({"description": "look", "prompt": "look", "subagent_type": "worker", "isolation": "worktree+dirty"});
        let call =
            if what.contains("enters") { "EnterWorktree {}".to_owned() } else { format!("Agent {agent}") };
        let script = format!("when agent=main turn=1\n  call {call}\nwhen\n  say \"done\"\n");
        let stand = Stand::new(&script);
        let work = stand.home.work();
        fs::create_dir_all(work.join(".decurion/agents")).unwrap();
        for (name, deny) in [("asker", asker), ("worker", worker)] {
            let sandbox = format!("sandbox:\n  filesystem:\n    denyRead: {deny}\n");
            let sandbox = if deny.is_empty() { "" } else { &sandbox };
            let text = format!("---\nname: {name}\ndescription: d\n{sandbox}---\nWork.\n");
            fs::write(work.join(format!(".decurion/agents/{name}.md")), text).unwrap();
        }
        git(&stand, &["init", "-q"]);
        git(&stand, &["add", "-A"]);
        git(&stand, &["commit", "-q", "-m", "first"]);
        fs::create_dir(work.join("new")).unwrap();
        fs::write(work.join("new/.env"), "canary\n").unwrap();
        fs::write(work.join("other.txt"), "other\n").unwrap();
        let copy = ["--settings", "{\"worktree\": {\"copyDirty\": true}}"];
        let allowed = ["-p", "go", "--agent", "asker", "--allowedTools", "Bash,Agent,EnterWorktree"];
        let run = finished(stand.decurion().args(allowed).args(copy).args(arguments));
        let requests = if what.contains("enters") { 2 } else { 3 };
        assert_eq!(stand.model.requests().len(), requests, "{what}: {run:?}");
        let found = finished(stand.home.program("python3").args(["-c", find]).cwd(&work)).output();
        assert_eq!(found.contains(".git/objects/"), what == "no rule", "{what}: {found} {run:?}");
    }
}
