//! What a repository brings along for git to run, before anyone has agreed to it: every row is a real call of git in
//! a real session, and what counts is whether the repository's program ran.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use decurion_testkit::proc::{Finished, Home};
use serde_json::{Value, json};

use crate::stand::{Stand, finished, stream};

/// Makes the repository anew that every row starts from. `$EVIL` is the program that leaves a mark.
const FRESH: &str = r#"
set -eu
cd "$WORK"
rm -rf .git sub objects refs HEAD config evil* nested .gitattributes *.txt *.dat
export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b
make() {
  git init -q -b main "$@" .
  printf '*.txt diff=d\n*.dat filter=f\n' > .gitattributes
  echo one > a.txt; echo one > x.dat; git add -A; git commit -qm one
  echo two > a.txt; git commit -qam two
}
nest() { # a repository in sub, with these arguments for git init of it
  mkdir -p sub; (cd sub; git init -q -b main .; echo x > f; git add f; git commit -qm x)
  git add sub 2>/dev/null; git commit -qm nested
}
if [ -d ../base ]; then cp -a ../base/. .; else make; cp -a . ../base; fi
touch_up() { echo three > a.txt; echo two > x.dat; }
config() { git config "$@"; }
"#;

/// One thing that a repository may bring along.
struct Row {
    name: &'static str,
    /// Shell text that brings it.
    brings: &'static str,
    /// What the model then calls.
    calls: &'static str,
    /// Whether this git, on this machine, runs the program if nothing holds it back.
    live: bool,
}

const fn row(name: &'static str, brings: &'static str, calls: &'static str) -> Row {
    Row { name, brings, calls, live: true }
}

/// The same for something that only another git, a terminal or a network would make run.
const fn quiet(name: &'static str, brings: &'static str, calls: &'static str) -> Row {
    Row { name, brings, calls, live: false }
}

#[rustfmt::skip]
const HOSTILE: &[Row] = &[
    row("fsmonitor-status", "config core.fsmonitor $EVIL", "git status"),
    row("fsmonitor-diff", "config core.fsmonitor $EVIL", "git diff"),
    row("fsmonitor-ls-files", "config core.fsmonitor $EVIL", "git ls-files -m"),
    row("fsmonitor-describe", "git tag v1; config core.fsmonitor $EVIL", "git describe --tags --dirty"),
    row("fsmonitor-diff-files", "config core.fsmonitor $EVIL", "git diff-files"),
    row("fsmonitor-diff-index", "config core.fsmonitor $EVIL", "git diff-index HEAD"),
    row("fsmonitor-grep", "config core.fsmonitor $EVIL", "git grep one"),
    row("fsmonitor-blame", "config core.fsmonitor $EVIL", "git blame a.txt"),
    row("fsmonitor-timeout", "config core.fsmonitor $EVIL", "timeout 20 git status"),
    row("fsmonitor-pipe", "config core.fsmonitor $EVIL", "git status | cat"),
    row("fsmonitor-and", "config core.fsmonitor $EVIL", "ls && git status --short"),
    row("fsmonitor-here", "config core.fsmonitor $EVIL", "git -C . status"),
    row("fsmonitor-below", "mkdir -p nested; config core.fsmonitor $EVIL", "(cd nested && git status)"),
    row("include", "printf '[core]\\n\\tfsmonitor = %s\\n' $EVIL > .git/more; config include.path more", "git status"),
    row("include-if", "printf '[core]\\n\\tfsmonitor = %s\\n' $EVIL > .git/more; config includeIf.onbranch:main.path more", "git status"),
    row("include-outside", "printf '[core]\\n\\tfsmonitor = %s\\n' $EVIL > evil.inc; config include.path ../evil.inc", "git status"),
    row("diff-external", "config diff.external $EVIL", "git diff"),
    row("diff-command", "config diff.d.command $EVIL", "git diff"),
    row("diff-command-path", "config diff.d.command $EVIL", "git diff -- a.txt"),
    row("textconv-diff", "config diff.d.textconv $EVIL", "git diff"),
    row("textconv-log", "config diff.d.textconv $EVIL", "git log -p"),
    row("textconv-show", "config diff.d.textconv $EVIL", "git show"),
    row("textconv-show-revision", "config diff.d.textconv $EVIL", "git show HEAD~0"),
    row("textconv-blame", "config diff.d.textconv $EVIL", "git blame a.txt"),
    quiet("textconv-stash", "echo s > a.txt; git stash -q; config diff.d.textconv $EVIL", "git stash show -p"),
    row("textconv-reflog", "config diff.d.textconv $EVIL", "git reflog -p"),
    row("filter-process", "config filter.f.process $EVIL; config filter.f.required true", "git status"),
    row("filter-clean-status", "config filter.f.clean $EVIL", "git status"),
    row("filter-clean-diff", "config filter.f.clean $EVIL", "git diff"),
    row("filter-lfs-not-lfs", "echo '*.dat filter=lfs' > .gitattributes; git commit -qam l; config filter.lfs.clean \"$EVIL git-lfs clean -- %f\"", "git diff"),
    row("hooks-path", "mkdir evilhooks; cp $EVIL evilhooks/post-index-change; config core.hooksPath evilhooks", "git status"),
    row("hook", "cp $EVIL .git/hooks/post-index-change", "git status"),
    row("hook-diff", "cp $EVIL .git/hooks/post-index-change; touch -d 2001-01-01 .gitattributes", "git diff"),
    row("nested-fsmonitor", "nest; git -C sub config core.fsmonitor $EVIL", "git status"),
    row("nested-fsmonitor-diff", "nest; git -C sub config core.fsmonitor $EVIL", "git diff"),
    row("nested-filter", "nest; (cd sub; echo 'f filter=f' > .gitattributes; git config filter.f.clean $EVIL; echo y > f)", "git status"),
    row("nested-twice", "nest; (cd sub; mkdir in; cd in; git init -q .; git commit -q --allow-empty -m i; git config core.fsmonitor $EVIL; cd ..; git add in 2>/dev/null; git commit -qm in)", "git status"),
    row("nested-elsewhere", "nest; mv sub/.git evilgit; echo 'gitdir: ../evilgit' > sub/.git; git --git-dir=evilgit config core.fsmonitor $EVIL", "git status"),
    row("nested-list-4", "nest; git update-index --index-version 4; git -C sub config core.fsmonitor $EVIL", "git status"),
    row("nested-list-split", "nest; git update-index --split-index; git -C sub config core.fsmonitor $EVIL", "git status"),
    row("nested-sha256", "rm -rf .git; make --object-format=sha256; mkdir sub; (cd sub; git init -q --object-format=sha256 .; git commit -q --allow-empty -m i); git add sub 2>/dev/null; git commit -qm n; git -C sub config core.fsmonitor $EVIL", "git status"),
    row("nested-cd", "mkdir nested; (cd nested; git init -q .; git config core.fsmonitor $EVIL)", "(cd nested && git status)"),
    row("empty-git-folder", "mkdir -p nested/.git; config core.fsmonitor $EVIL", "(cd nested && git status)"),
    row("signature", "git cat-file commit HEAD | sed '/^committer/a gpgsig -----BEGIN PGP SIGNATURE-----\\n \\n x\\n -----END PGP SIGNATURE-----' > evil.c; git reset -q --hard $(git hash-object -t commit -w evil.c); config gpg.program $EVIL", "git log --format='%G?' -1"),
    row("worktree-config", "config extensions.worktreeConfig true; git config --worktree core.fsmonitor $EVIL", "git status"),
    row("git-file", "mv .git evilgit; echo 'gitdir: evilgit' > .git; git config core.fsmonitor $EVIL", "git status"),
    row("git-link", "mv .git evilgit; ln -s evilgit .git; git config core.fsmonitor $EVIL", "git status"),
    row("common-folder", "mv .git evilgit; git --git-dir=evilgit config core.fsmonitor $EVIL; mkdir .git; cp evilgit/HEAD evilgit/index .git/; echo ../evilgit > .git/commondir", "git status"),
    row("linked-checkout", "config core.fsmonitor $EVIL; git worktree add -q nested", "(cd nested && git status)"),
    row("its-own-folder", "git init -q --bare evilbare; mv evilbare/* .; rm -rf .git evilbare; git config -f config core.bare false; git config -f config core.worktree .; git config -f config core.fsmonitor $EVIL", "git status"),
    row("own-folder-below", "git init -q --bare nested; git -C nested config core.bare false; git -C nested config core.worktree \"$WORK/nested\"; git -C nested config core.fsmonitor $EVIL", "(cd nested && git status)"),
    row("one-line", "printf '[core] fsmonitor = %s\\n' $EVIL >> .git/config", "git status"),
    row("letters", "printf '[CoRe]\\n\\tFsMoNiToR = %s\\n' $EVIL >> .git/config", "git status"),
    row("no-blanks", "printf '[core]\\nfsmonitor=%s' $EVIL >> .git/config", "git status"),
    row("quoted", "printf '[core]\\n\\tfsmonitor = \"%s\" ; true\\n' $EVIL >> .git/config", "git status"),
    row("continued", "printf '[core]\\n\\tabbrev = \\\\\\n7\\n\\tfsmonitor = %s\\n' $EVIL >> .git/config", "git status"),
    row("carriage-returns", "printf '[core]\\r\\n\\tfsmonitor = %s\\r\\n' $EVIL >> .git/config", "git status"),
    row("old-sections", "printf '[diff.d]\\n\\ttextconv = %s\\n' $EVIL >> .git/config", "git diff"),
    row("last-of-two", "config core.fsmonitor false; git config --add core.fsmonitor $EVIL", "git status"),
    row("two-hook-paths", "mkdir evilhooks; cp $EVIL evilhooks/post-index-change; config core.hooksPath evilhooks; printf '[core]\\n\\thooksPath = /nowhere\\n' > .git/config.worktree", "git status"),
    row("config-edit", "config core.editor $EVIL", "git config edit"),
    row("lazy-objects", "git clone -q --bare . evilsrc; rm -rf .git; git init -q -b main .; config extensions.partialClone origin; config remote.origin.url ./evilsrc; config remote.origin.promisor true; config remote.origin.uploadpack \"$EVIL\"; cp evilsrc/packed-refs .git/ 2>/dev/null || true; git -C evilsrc rev-parse main > .git/refs/heads/main", "git log -p"),
    quiet("pager", "config core.pager $EVIL; config pager.log $EVIL", "git log"),
    quiet("alias", "config alias.whatchanged \"!$EVIL\"", "git whatchanged -1"),
    quiet("configured-hook", "config hook.x.command $EVIL; config hook.x.event post-index-change", "git status"),
    quiet("ssh-command", "config core.sshCommand $EVIL", "git remote -v"),
    quiet("credential", "config credential.helper $EVIL", "git status"),
];

/// Repositories as people have them, in which nothing is asked.
#[rustfmt::skip]
const USUAL: &[Row] = &[
    row("plain", "true", "git status"),
    row("plain-diff", "true", "git diff"),
    row("plain-log", "true", "git log -p"),
    row("plain-below", "mkdir -p nested", "(cd nested && git status)"),
    row("clone", "git clone -q . nested", "(cd nested && git log --oneline)"),
    row("remotes", "git remote add origin https://example.com/x.git; config branch.main.remote origin; config branch.main.merge refs/heads/main; config user.name me; config user.email me@example.com", "git status"),
    row("submodule", "git -c protocol.file.allow=always clone -q . nested/up; git -c protocol.file.allow=always submodule add -q ./nested/up sub", "git status"),
    row("linked-checkout", "git worktree add -q nested", "(cd nested && git diff)"),
    row("list-4", "git update-index --index-version 4; nest", "git status"),
    row("list-split", "git update-index --split-index; nest", "git status"),
    row("husky", "mkdir evilhooks; cp $EVIL evilhooks/pre-commit; config core.hooksPath evilhooks", "git status"),
    row("own-hooks", "cp $EVIL .git/hooks/pre-commit", "git diff"),
    row("own-lfs", "config filter.lfs.clean 'git-lfs clean -- %f'; config filter.lfs.smudge 'git-lfs smudge -- %f'; config filter.lfs.process 'git-lfs filter-process'; config filter.lfs.required true", "git status"),
    row("no-monitor", "config core.fsmonitor false", "git status"),
    row("extra-header", "config http.https://github.com/.extraheader 'AUTHORIZATION: basic x'", "git log"),
    row("sha256", "rm -rf .git; make --object-format=sha256", "git status"),
    row("detached", "git checkout -q --detach", "git status"),
    row("attributes-of-a-user", "echo '*.txt filter=lfs diff=own' > .gitattributes", "git diff"),
    row("no-repository", "rm -rf .git", "git --version"),
];

/// A home with a script that sets each row up, and a model that does one after the other.
fn stand(rows: &[Row]) -> Stand {
    let home = Home::new().unwrap();
    let evil = home.path().join("evil");
    let marks = home.path().join("marks");
    std::fs::create_dir_all(&evil).unwrap();
    std::fs::create_dir_all(&marks).unwrap();
    let mut set = String::from(FRESH);
    set.push_str("case $1 in\n");
    let mut script = String::new();
    for (index, row) in rows.iter().enumerate() {
        let program = evil.join(row.name);
        let mark = marks.join(row.name);
        let text = format!("#!/bin/sh\ntouch '{}'\ncat \"$@\" 2>/dev/null\nexit 0\n", mark.display());
        std::fs::write(&program, text).unwrap();
        let _ = writeln!(set, "{}) EVIL='{}'; {};;", row.name, program.display(), row.brings);
        let calls = [format!("sh ../set.sh {}", row.name), row.calls.to_owned()];
        let _ = writeln!(script, "when turn={}", index + 1);
        for call in calls {
            let _ = writeln!(script, "  call Bash {}", json!({ "command": call }));
        }
    }
    set.push_str("esac\ntouch_up\nrm -f \"../marks/$1\"\n");
    script.push_str("when\n  say \"over\"\n");
    std::fs::write(home.work().join("../set.sh"), set).unwrap();
    for entry in std::fs::read_dir(&evil).unwrap() {
        let permissions = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(entry.unwrap().path(), permissions).unwrap();
    }
    Stand::in_home(home, &script)
}

fn session(stand: &Stand, more: &[&str]) -> Finished {
    let run = stand
        .decurion()
        .env("WORK", stand.home.work())
        .args(["-p", "go", "--output-format", "stream-json", "--verbose", "--max-turns", "200"])
        .args(["--allowedTools", "Bash(sh ../set.sh:*)"])
        .args(more);
    let run = finished(run);
    assert!(run.output().contains("over"), "{run:?}");
    run
}

/// The rows whose program ran.
fn marks(stand: &Stand) -> BTreeSet<String> {
    let entries = std::fs::read_dir(stand.home.path().join("marks")).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

/// The results of all calls, in order.
fn results(run: &Finished) -> Vec<Value> {
    let blocks = stream(run).into_iter().filter(|line| line["type"] == "user");
    let blocks = blocks.flat_map(|line| line["message"]["content"].as_array().cloned().unwrap_or_default());
    blocks.filter(|block| block["type"] == "tool_result").collect()
}

/// The rows that could not be set up, and those whose call was refused or not, unlike what is wanted.
fn differing(rows: &[Row], run: &Finished, refused: bool) -> Vec<String> {
    let results = results(run);
    assert_eq!(results.len(), 2 * rows.len());
    let mut found = Vec::new();
    for (row, pair) in rows.iter().zip(results.chunks(2)) {
        let is_refused = |result: &Value| result["content"].to_string().contains("Permission denied");
        if pair[0]["is_error"] == true || is_refused(&pair[1]) != refused {
            found.push(format!("{}: {} / {}", row.name, pair[0]["content"], pair[1]["content"]));
        }
    }
    found
}

#[test]
fn nothing_of_a_repository_runs_before_trust() {
    let stand = stand(HOSTILE);
    let run = session(&stand, &[]);
    assert_eq!(marks(&stand), BTreeSet::new());
    assert_eq!(differing(HOSTILE, &run, true), [""; 0]);
    // The rows are what they say: once the folder is trusted, git runs them.
    session(&stand, &["--trust-folder"]);
    let live: BTreeSet<String> =
        HOSTILE.iter().filter(|row| row.live).map(|row| row.name.to_owned()).collect();
    let ran = marks(&stand);
    let silent: Vec<&String> = live.difference(&ran).collect();
    assert_eq!(
        silent,
        ["config-edit", "its-own-folder", "nested-cd", "own-folder-below"],
        "asked about though trusted"
    );
}

#[test]
fn a_usual_repository_needs_no_trust() {
    let stand = stand(USUAL);
    let run = session(&stand, &[]);
    assert_eq!(differing(USUAL, &run, false), [""; 0]);
}
