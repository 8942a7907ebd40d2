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
rm -rf .git sub d keep src objects refs HEAD config evil* nested .gitattributes .mailmap .git-blame-ignore-revs *.txt *.dat
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
embed() { # a repository below a folder, which git has not been told of
  mkdir -p "$1"; (cd "$1"; git init -q -b main .; echo x > f; git add f; git commit -qm x; echo y > f)
  git -C "$1" config core.fsmonitor $EVIL
}
if [ -d ../base ]; then cp -a ../base/. .; else make; cp -a . ../base; fi
hide() { # a repository at d/$1, which the index does not name: its entry for d stands for all below it
  rm -rf .git d; git init -q -b main .; mkdir d keep; echo x > d/x; echo x > keep/y; git add d keep a.txt; git commit -qm s
  git sparse-checkout set --cone --sparse-index keep
  new=$(git rev-parse HEAD:d); mkdir -p "d/$1"; cp -a ../base/. "d/$1/"; echo three > "d/$1/a.txt"
  old=$new; new=$(printf '160000 commit %s\t%s\n' $(git -C "d/$1" rev-parse HEAD) "${1##*/}" | git mktree --missing)
  case $1 in */*) new=$(printf '040000 tree %s\t%s\n' $new "${1%/*}" | git mktree);; esac
  perl -MDigest::SHA=sha1 -e 'local $/; my ($o, $n) = map { pack "H*", $_ } @ARGV[0,1]; open F, "<", ".git/index";
    my $b = substr <F>, 0, -20; $b =~ s/\Q$o\E/$n/ or die; open F, ">", ".git/index"; print F $b, sha1($b)' $old $new
  git -C "d/$1" config core.fsmonitor $EVIL
}
private() { # another repository of the user, which is none of the folder's, with the program's text in it
  rm -rf ../private; git init -q -b main ../private
  (cd ../private; cp $EVIL s; git add s; git commit -qm s); P=$(cd ../private; pwd -P)
}
bare() { # a repository without a checkout at evil.git, whose hook and settings name the program, and its address
  git init -q -b main --bare evil.git; git push -q ./evil.git main; cp $EVIL evil.git/hooks/pre-receive
  git -C evil.git config tar.foo.command $EVIL; git -C evil.git config tar.foo.remote true
  git -C evil.git config core.alternateRefsCommand $EVIL; git -C evil.git config uploadpack.packObjectsHook $EVIL
  config remote.origin.url "${1:-https://example.com/x.git}"
}
inner() { # a nested repository with such an address, and one that has an address elsewhere
  git init -q -b main --bare ../evil-$$.git; E=$(cd ../evil-$$.git; pwd -P); nest; git -C sub config --unset core.fsmonitor || true
  git -C sub push -q $E HEAD:refs/heads/main; cp $EVIL $E/hooks/pre-receive; git -C sub config remote.origin.url $E
  git -C sub checkout -q -B main; (cd sub; echo y > f; git commit -qam y); git add sub; git commit -qm more
  config remote.origin.url https://127.0.0.1:1/x.git
}
past() { # a repository in sub, of which two commits are in the history and none in the index
  nest; (cd sub; echo y > f; git commit -qam y); git add sub; git commit -qm more
  git rm -q --cached sub; git commit -qm gone; git -C sub config diff.external $EVIL
}
odd() { # a repository whose path is no text, and a link to this place in it
  D=evil$(printf '\377'); mkdir "$D"; cp -a ../base/. "$D"/; mkdir "$D/below"; echo three > "$D/a.txt"
  git -C "$D" config core.fsmonitor $EVIL; ln -s "$D/$1" nested
}
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
    quiet("git-file-by-process", "mv .git evilgit; mkdir sub; cp -a evilgit sub/; echo 'gitdir: /proc/self/cwd/evilgit' > .git; git --git-dir=sub/evilgit config core.fsmonitor $EVIL", "(cd sub && git status)"),
    quiet("worktree-by-process", "config core.worktree /proc/self/cwd; mkdir sub", "(cd sub && git status)"),
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
    quiet("odd-path-1", "odd ''", "(cd nested && git status)"),
    quiet("odd-path-2", "odd ''", "(cd nested && git diff)"),
    quiet("odd-path-3", "odd ''", "(cd nested; git status --short)"),
    quiet("odd-path-4", "odd ''", "git -C nested status"),
    quiet("odd-path-5", "odd ''", "git -C ./nested/ diff"),
    quiet("odd-path-6", "odd ''", "timeout 20 git -C nested status"),
    quiet("odd-path-7", "odd ''", "(cd nested && git ls-files -m)"),
    quiet("odd-path-8", "odd ''", "(cd nested && git grep one)"),
    quiet("odd-path-9", "odd ''", "(cd nested && git status | cat)"),
    quiet("odd-path-10", "odd ''", "(cd nested/ && ls && git status)"),
    quiet("odd-path-11", "odd below", "(cd nested && git status)"),
    quiet("odd-path-12", "odd below", "git -C nested/.. status"),
    quiet("odd-path-13", "odd below", "(cd -P nested/.. && git status)"),
    quiet("odd-path-14", "odd ''", "(cd nested/below && git status)"),
    quiet("odd-path-15", "odd ''", "(cd nested && git blame a.txt)"),
    quiet("odd-path-twice", "odd ''; ln -s nested evillink", "(cd evillink && git status)"),
    quiet("odd-path-glob", "odd ''", "(cd evil?/ && git status)"),
    quiet("pager", "config core.pager $EVIL; config pager.log $EVIL", "git log"),
    quiet("alias", "config alias.whatchanged \"!$EVIL\"", "git whatchanged -1"),
    quiet("configured-hook", "config hook.x.command $EVIL; config hook.x.event post-index-change", "git status"),
    quiet("ssh-command", "config core.sshCommand $EVIL", "git remote -v"),
    quiet("credential", "config credential.helper $EVIL", "git status"),
];

/// Connections to a repository that came with the folder.
#[rustfmt::skip]
const CONNECTED: &[Row] = &[
    row("push-address", "bare ./evil.git", "git push origin main:x"),
    row("push-address-plain", "bare evil.git", "git push origin main:x"),
    row("push-address-whole", "bare $PWD/evil.git", "git push origin main:x"),
    row("push-address-file", "bare file://$PWD/evil.git", "git push origin main:x"),
    row("push-address-only", "bare; config remote.origin.pushurl ./evil.git", "git push origin main:x"),
    row("push-branch", "bare; config branch.main.remote evil.git; config branch.main.merge refs/heads/main; config push.default upstream; git commit -qm x --allow-empty", "git push"),
    row("push-default", "bare; config remote.pushDefault ./evil.git; config push.default current; git commit -qm x --allow-empty", "git push"),
    row("push-path", "bare", "git push ./evil.git main:x"),
    row("push-path-plain", "bare", "git push evil.git main:x"),
    row("push-path-ending", "bare", "git push evil main:x"),
    row("push-path-whole", "bare", "git push \"$PWD/evil.git\" main:x"),
    row("push-file", "bare", "git push file://$PWD/evil.git main:x"),
    quiet("push-option", "bare", "git push --repo=./evil.git"),
    row("push-quiet", "bare", "git push -q -f ./evil.git main:x"),
    quiet("push-below", "bare ../evil.git; mkdir sub", "(cd sub && git push ../evil.git main:x)"),
    row("push-instead", "bare; config url../evil.git.insteadOf https://example.com/x.git", "git push origin main:x"),
    row("push-old-list", "bare; mkdir -p .git/remotes; echo 'URL: ./evil.git' > .git/remotes/old", "git push old main:x"),
    row("archive", "bare", "git archive --remote=./evil.git --format=foo main"),
    row("archive-apart", "bare", "git archive --remote ./evil.git --format=foo main"),
    row("archive-address", "bare ./evil.git", "git archive --remote=origin --format=foo main"),
    row("send-pack", "bare", "git send-pack ./evil.git main:x"),
    quiet("push-nested", "inner", "git push --recurse-submodules=only origin main:x"),
    quiet("push-nested-first", "inner", "git push --recurse-submodules=on-demand origin main:x"),
    quiet("fetch-nested", "inner", "git fetch --recurse-submodules origin"),
    quiet("pull-nested", "inner", "git pull --recurse-submodules"),
    quiet("fetch", "bare", "git fetch ./evil.git"),
    quiet("clone", "bare", "git clone ./evil.git nested"),
    quiet("ls-remote", "bare", "git ls-remote evil.git"),
];

#[test]
fn repositories_on_this_machine_do_not_run_before_trust() {
    let rules = ["--allowedTools", "Bash(git:*),Bash(git push:*),Bash(git archive:*)"];
    held_back(CONNECTED, &rules, &["--permission-mode", "bypassPermissions"]);
}

#[test]
fn repositories_elsewhere_need_no_trust() {
    let add = "git remote add origin";
    let brings: Vec<String> =
        ["https://127.0.0.1:1/x.git", "ssh://git@127.0.0.1:1/x.git", "git@127.0.0.1:x.git"]
            .iter()
            .map(|address| format!("{add} {address}; mkdir src; config branch.main.remote origin"))
            .collect();
    let calls = ["git push origin main", "git fetch", "git push -u origin src", "git archive HEAD"];
    let rows: Vec<Row> = (brings.iter().flat_map(|brings| calls.map(|calls| (brings, calls))))
        .enumerate()
        .map(|(at, (brings, calls))| row(format!("elsewhere-{at}").leak(), brings.clone().leak(), calls))
        .collect();
    let stand = stand(&rows);
    let run = session(&stand, &["--allowedTools", "Bash(git:*)"]);
    assert_eq!(differing(&rows, &run, false), [""; 0]);
}

/// Ways to make git show what is in a file elsewhere: here the text of the program.
#[rustfmt::skip]
const SHOWING: &[Row] = &[
    row("show-bisect", "ln -s $EVIL .git/BISECT_LOG", "git bisect log"),
    row("show-grafts", "mkdir -p .git/info; ln -sf $EVIL .git/info/grafts", "git log"),
    row("show-alternates-link", "mkdir -p .git/objects/info; ln -s $EVIL .git/objects/info/alternates", "git status"),
    row("show-alternates", "private; echo $P/.git/objects > .git/objects/info/alternates; cp ../private/.git/refs/heads/main .git/refs/heads/x", "git show x:s"),
    quiet("show-packed-refs", "ln -s $EVIL .git/packed-refs", "git branch -a"),
    quiet("show-shallow", "ln -s $EVIL .git/shallow", "git log"),
    row("show-sparse", "config core.sparseCheckout true; mkdir -p .git/info; ln -sf $EVIL .git/info/sparse-checkout", "git sparse-checkout list"),
    row("show-rebase", "mkdir .git/rebase-merge; echo x > .git/rebase-merge/interactive; for f in done git-rebase-todo head-name onto; do ln -s $EVIL .git/rebase-merge/$f; done", "git status"),
    row("show-ignored-revisions", "config blame.ignoreRevsFile .git-blame-ignore-revs; ln -s $EVIL .git-blame-ignore-revs", "git blame a.txt"),
    row("show-git-file", "private; rm -rf .git; echo \"gitdir: $P/.git\" > .git", "git show HEAD:s"),
    row("show-git-file-log", "private; rm -rf .git; echo 'gitdir: ../private/.git' > .git", "git log -p"),
    row("show-git-file-object", "private; rm -rf .git; echo \"gitdir: $P/.git\" > .git", "git cat-file -p HEAD:s"),
    row("show-git-file-link", "private; rm -rf .git; ln -s $P/.git evilgit; echo 'gitdir: evilgit' > .git", "git show HEAD:s"),
    row("show-git-link", "private; rm -rf .git; ln -s $P/.git .git", "git show HEAD:s"),
    row("show-common-folder", "private; rm -rf .git; mkdir .git; cp ../private/.git/HEAD .git; echo $P/.git > .git/commondir", "git show HEAD:s"),
    row("show-worktree", "private; mv .git evilgit; mkdir -p evilgit/worktrees/a; cp ../private/.git/HEAD evilgit/worktrees/a; echo $P/.git > evilgit/worktrees/a/commondir; pwd -P | sed 's,$,/.git,' > evilgit/worktrees/a/gitdir; echo 'gitdir: evilgit/worktrees/a' > .git", "git show HEAD:s"),
    row("show-objects", "private; rm -rf .git/objects .git/refs; ln -s $P/.git/objects $P/.git/refs .git/", "git show HEAD:s"),
    row("show-pack", "private; git -C ../private gc -q; rm -rf .git/objects/pack; ln -s $P/.git/objects/pack .git/objects/pack; git -C ../private rev-parse HEAD > .git/refs/heads/x", "git show x:s"),
    row("show-settings", "(echo '[user]'; printf '\tname = '; sed -n 2p $EVIL | tr -d \"'\") > ../private-settings; ln -sf $PWD/../private-settings .git/config", "git config --list"),
    row("show-worktree-list", "mkdir -p .git/worktrees/a; for f in gitdir HEAD locked; do ln -s $EVIL .git/worktrees/a/$f; done; echo ../.. > .git/worktrees/a/commondir", "git worktree list --porcelain"),
    row("show-nested", "private; nest; rm -rf sub/.git; echo \"gitdir: $P/.git\" > sub/.git; git update-index --cacheinfo 160000,$(git -C ../private rev-parse HEAD),sub; rm sub/f; cp $EVIL sub/s", "(cd sub && git show HEAD:s)"),
];

#[test]
fn git_shows_no_file_elsewhere_before_trust() {
    let stand = stand(SHOWING);
    let shown = |run: &Finished| -> Vec<&str> {
        let results = results(run);
        let shows = |at: &usize| results[2 * at + 1]["content"].to_string().contains("/marks/");
        (0..SHOWING.len()).filter(shows).map(|at| SHOWING[at].name).collect()
    };
    let run = session(&stand, &[]);
    assert_eq!(shown(&run), [""; 0]);
    assert_eq!(differing(SHOWING, &run, true), [""; 0]);
    let run = session(&stand, &["--permission-mode", "bypassPermissions"]);
    let shown = shown(&run);
    let idle = SHOWING.iter().filter(|row| row.live && !shown.contains(&row.name));
    let idle: Vec<&str> = idle.map(|row| row.name).collect();
    assert_eq!(idle, [""; 0], "without effect");
}

/// Calls that show a difference of a repository nested in an earlier commit, for which git calls itself there.
#[rustfmt::skip]
const PAST: &[Row] = &[
    row("past-log", "past", "git log -p --submodule=diff"),
    row("past-show", "past", "git show --submodule=diff HEAD~1"),
    row("past-diff", "past", "git diff --submodule=diff HEAD~2 HEAD~1"),
    row("past-diff-last", "past", "git diff HEAD~2 HEAD~1 --submodule=diff"),
    quiet("past-diff-short", "past", "git diff --subm=diff HEAD~2 HEAD~1"),
    row("past-diff-stat", "past", "git diff --stat -p --submodule=diff HEAD~2 HEAD~1"),
    row("past-diff-tree", "past", "git diff-tree -p --submodule=diff HEAD~2 HEAD~1"),
    row("past-diff-index", "past; git reset -q --hard HEAD~1; git rm -q --cached sub", "git diff-index -p --cached --submodule=diff HEAD~1"),
    row("past-whatchanged", "past", "git whatchanged -p --submodule=diff"),
    row("past-reflog", "past", "git reflog -p --submodule=diff"),
    row("past-log-graph", "past", "git --no-pager log --graph --patch --submodule=diff -3"),
    row("past-log-follow", "past", "git log -p --submodule=diff -- sub"),
    row("past-log-last", "past", "git log -p --submodule=log --submodule=diff"),
    row("past-log-quoted", "past", "git log -p --submodule='dif'f"),
];

#[test]
fn differences_within_past_submodules_do_not_run_before_trust() {
    let unchecked = ["--permission-mode", "bypassPermissions"];
    held_back(PAST, &[], &unchecked);
    // A rule for git alone does not allow it either.
    held_back(PAST, &["--allowedTools", "Bash(git:*)"], &unchecked);
}

/// Repositories nested in what a sparse index leaves out, which git adds to it when it looks at the files.
#[rustfmt::skip]
const HIDDEN: &[Row] = &[
    row("sparse-status", "hide sub", "git status"),
    row("sparse-status-short", "hide sub", "git status --short --branch"),
    row("sparse-status-deep", "hide in/sub", "git status"),
    row("sparse-status-below", "hide sub", "(cd keep && git status)"),
    row("sparse-status-here", "hide sub", "git -C . status --porcelain"),
    row("sparse-status-pipe", "hide sub", "git status | cat"),
    row("sparse-timeout", "hide sub", "timeout 20 git status"),
    row("sparse-untracked", "hide sub", "git status -uall --ignored"),
    row("sparse-submodules", "hide sub", "git status --ignore-submodules=none"),
    row("sparse-diff", "hide sub", "git diff"),
    quiet("sparse-describe", "hide sub; git tag v1", "git describe --tags --dirty"),
    row("sparse-diff-index", "hide sub", "git diff-index HEAD"),
];

#[test]
fn repositories_that_a_sparse_index_hides_do_not_run_before_trust() {
    held_back(HIDDEN, &[], &["--trust-folder"]);
}

/// Nothing of these rows runs before trust, all are asked about, and with the arguments that let them they run.
fn held_back(rows: &[Row], more: &[&str], let_run: &[&str]) {
    let stand = stand(rows);
    let run = session(&stand, more);
    assert_eq!(marks(&stand), BTreeSet::new());
    assert_eq!(differing(rows, &run, true), [""; 0]);
    session(&stand, &[more, let_run].concat());
    let ran = marks(&stand);
    let silent: Vec<&str> =
        rows.iter().filter(|row| row.live && !ran.contains(row.name)).map(|row| row.name).collect();
    assert_eq!(silent, [""; 0], "asked about, or without effect");
}

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
    row("past-submodule", "past", "git log -p -3"),
    row("past-submodule-log", "past", "git log -p --submodule=log"),
    row("past-submodule-short", "past", "git diff --submodule=short HEAD~2 HEAD~1"),
    row("past-submodule-plain", "past", "git diff --submodule HEAD~2 HEAD~1"),
    row("linked-checkout", "git worktree add -q nested", "(cd nested && git diff)"),
    row("list-4", "git update-index --index-version 4; nest", "git status"),
    row("list-split", "git update-index --split-index; nest", "git status"),
    row("husky", "mkdir evilhooks; cp $EVIL evilhooks/pre-commit; config core.hooksPath evilhooks", "git status"),
    row("linked-hook", "echo true > nested; ln -s ../../nested .git/hooks/pre-commit", "git status"),
    row("linked-ignore", "echo x > nested; ln -s nested .mailmap", "git log"),
    row("linked-checkout-relative", "git worktree add -q nested; echo 'gitdir: ../.git/worktrees/nested' > nested/.git", "(cd nested && git log -p)"),
    row("separate-git-folder", "mv .git evilgit; echo 'gitdir: evilgit' > .git", "git status"),
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
    Stand::in_home(home, &script).without_sandbox()
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

/// Calls that add a repository to the index and then look into it, all in one text.
#[rustfmt::skip]
const ADDING: &[Row] = &[
    row("add-status", "embed sub", "git add sub && git status"),
    row("add-all-status", "embed sub", "git add -A && git status --short"),
    row("add-dot-diff", "embed sub", "git add .; git diff"),
    quiet("add-commit", "embed sub", "git add -A && git commit -m x"),
    quiet("add-commit-status", "embed sub", "git add sub && git commit -qm x && git status"),
    row("stage-status", "embed sub", "git stage sub && git status"),
    row("add-stat", "embed sub", "git add sub; git diff --stat"),
    quiet("add-describe", "embed sub; git tag v1", "git add -A && git describe --tags --dirty"),
    row("add-in-parentheses", "embed sub", "(git add sub); git status"),
    row("add-slash", "embed sub", "git add ./sub/ && git diff-index HEAD"),
    row("add-pattern", "embed sub", "git add 's*' && git status"),
    row("add-glob", "embed sub", "git add s* && git status"),
    row("add-deep", "embed sub/in/deep", "git add sub && git status"),
    row("add-by-file", "embed sub; mv sub/.git evilgit; echo 'gitdir: ../evilgit' > sub/.git", "git add sub && git status"),
    row("add-filter", "embed sub; (cd sub; git config --unset core.fsmonitor; echo 'f filter=f' > .gitattributes; git config filter.f.clean $EVIL)", "git add sub && git status"),
    quiet("commit-all", "embed sub", "git commit -am x"),
    quiet("commit-path", "embed sub", "git commit -m x sub"),
    quiet("commit-include", "embed sub", "git commit -m x -i sub"),
];

const ADDERS: [&str; 2] = ["--allowedTools", "Bash(git add:*),Bash(git stage:*),Bash(git commit:*)"];

#[test]
fn what_is_added_to_the_index_does_not_run_before_trust() {
    held_back(ADDING, &ADDERS, &["--trust-folder"]);
}

#[test]
fn what_is_usually_added_needs_no_trust() {
    let unset = "embed sub; git -C sub config --unset core.fsmonitor";
    let rows = [
        row("plain", "true", "git add -A && git commit -qm x && git status"),
        row("embedded", unset, "git add sub && git status"),
        row("message", "embed sub", "git commit --allow-empty -m x"),
        row("add-alone", "embed sub", "git add a.txt"),
    ];
    let stand = stand(&rows);
    let run = session(&stand, &ADDERS);
    assert_eq!(differing(&rows, &run, false), [""; 0]);
}

#[test]
fn a_usual_repository_needs_no_trust() {
    let stand = stand(USUAL);
    let run = session(&stand, &[]);
    assert_eq!(differing(USUAL, &run, false), [""; 0]);
}

/// Ways to write the file that makes a folder a repository. `@` is a folder that has everything else of one, and
/// whose settings name a program; `text` is a file with what it needs.
#[rustfmt::skip]
const HEADS: &[&str] = &[
    "Write @/HEAD",
    "Write ./@/./HEAD",
    "Write @/../@/HEAD",
    "Write @/Head",
    "Write @/deeper/HEAD",
    "Write @/link",
    "Write @/around/HEAD",
    "Edit @/HEAD",
    "Edit @/link",
    "echo ref: refs/heads/main > @/HEAD",
    "echo ref: refs/heads/main >> @/HEAD",
    "echo ref: refs/heads/main >| @/HEAD",
    "echo ref: refs/heads/main > @/link",
    "echo ref: refs/heads/main > ./@//HEAD",
    "(cd @ && echo ref: refs/heads/main > HEAD)",
    "cat text > @/HEAD",
    "cp text @/HEAD",
    "cp -T text @/HEAD",
    "mv @/text @/HEAD",
    "mv -T @/text @/HEAD",
    "ln text @/HEAD",
    "ln -s refs/heads/main @/HEAD",
    "(cd @ && cp text HEAD)",
    "tee @/HEAD < text",
    "tee -a @/HEAD < text",
    "tee @/other @/HEAD < text",
    "touch @/HEAD",
    "cp seed/HEAD @",
    "cp seed/HEAD @/",
    "cp -t @ seed/HEAD",
    "cp --target-directory=@ seed/HEAD",
    "mv -t @ moved/HEAD",
    "mv again/HEAD @",
    "dd if=text of=@/HEAD",
    "install text @/HEAD",
    "truncate -s 0 @/HEAD",
];

#[test]
fn edits_do_not_make_a_folder_a_repository() {
    let home = Home::new().unwrap();
    let work = home.work();
    let head = "ref: refs/heads/main\n";
    for folder in ["seed", "moved", "again"] {
        std::fs::create_dir(work.join(folder)).unwrap();
        std::fs::write(work.join(folder).join("HEAD"), head).unwrap();
    }
    std::fs::write(work.join("text"), head).unwrap();
    let mut script = "when turn=1\n".to_owned();
    for (index, row) in HEADS.iter().enumerate() {
        let folder = work.join(format!("f{index}"));
        for below in ["objects", "refs/heads", "deeper/objects", "deeper/refs"] {
            std::fs::create_dir_all(folder.join(below)).unwrap();
        }
        let mark = home.path().join(format!("mark{index}"));
        let settings = format!(
            "[core]\n\tbare = false\n\tworktree = .\n\tfsmonitor = \"touch {};true\"\n",
            mark.display()
        );
        std::fs::write(folder.join("config"), &settings).unwrap();
        std::fs::write(folder.join("deeper/config"), &settings).unwrap();
        std::fs::write(folder.join("text"), head).unwrap();
        std::os::unix::fs::symlink("HEAD", folder.join("link")).unwrap();
        std::os::unix::fs::symlink(".", folder.join("around")).unwrap();
        let row = row.replace('@', &format!("f{index}"));
        let call = match row.split_once(' ') {
            Some(("Write", path)) => ("Write", json!({"file_path": work.join(path), "content": head})),
            Some(("Edit", path)) => {
                ("Edit", json!({"file_path": work.join(path), "old_string": "", "new_string": head}))
            }
            _ => ("Bash", json!({"command": row})),
        };
        let _ = writeln!(script, "  call {} {}", call.0, call.1);
    }
    script.push_str("when turn=2\n");
    for index in 0..HEADS.len() {
        for below in ["", "/deeper"] {
            let command = format!("(cd f{index}{below} && git status)");
            let _ = writeln!(script, "  call Bash {}", json!({ "command": command }));
        }
    }
    script.push_str("when\n  say \"over\"\n");
    let stand = Stand::in_home(home, &script).without_sandbox();
    let made = |stand: &Stand| -> Vec<&str> {
        let heads = ["HEAD", "Head", "deeper/HEAD"];
        let is_made = |index: &usize| {
            let folder = stand.home.work().join(format!("f{index}"));
            let mark = stand.home.path().join(format!("mark{index}"));
            mark.exists() || heads.iter().any(|head| folder.join(head).symlink_metadata().is_ok())
        };
        (0..HEADS.len()).filter(is_made).map(|index| HEADS[index]).collect()
    };
    finished(stand.decurion().args(["-p", "go", "--permission-mode", "acceptEdits"]));
    assert_eq!(made(&stand), [""; 0]);
    // The calls are what they say: where nothing is checked, all make it one but for those that write to a link.
    finished(stand.decurion().args(["-p", "go", "--permission-mode", "bypassPermissions"]));
    let made = made(&stand);
    let idle: Vec<&&str> = HEADS.iter().filter(|row| !made.contains(row)).collect();
    assert_eq!(idle, [&"Write @/link", &"Edit @/link"]);
}

/// What the program itself asks git: what changed, for the prompt, a checkout for an agent and what became of it, and
/// the list of worktrees. What the model calls plays no part, so each thing that a repository brings is tried once.
#[test]
fn own_calls_of_git_run_nothing_of_a_repository() {
    let home = stand(HOSTILE).home;
    let call = json!({
        "description": "d", "prompt": "p", "subagent_type": "general-purpose", "isolation": "worktree",
    });
    let script = format!(
        "when agent=main turn=1\n  call Agent {call}\nwhen agent=general-purpose turn=1\n  call Bash {}\nwhen\n  \
         say \"over\"\n",
        json!({"command": "echo new > new.txt; echo four > a.txt"})
    );
    let stand = Stand::in_home(home, &script);
    let mut ran = Vec::new();
    let mut brought = BTreeSet::new();
    for row in HOSTILE.iter().filter(|row| brought.insert(row.brings)) {
        let set = stand.home.program("/bin/sh").env("WORK", stand.home.work()).args(["../set.sh", row.name]);
        assert_eq!(finished(set).ending.code(), 0, "{}", row.name);
        let run = finished(stand.decurion().args(["-p", "go", "--permission-mode", "bypassPermissions"]));
        assert!(run.output().contains("over"), "{}: {run:?}", row.name);
        finished(stand.decurion().args(["worktrees", "list"]));
        ran.extend(marks(&stand).contains(row.name).then_some(row.name));
    }
    assert_eq!(ran, [""; 0]);
    // An agent that has no checkout of its own does not begin.
    let begun = |body: &[u8]| String::from_utf8_lossy(body).contains("echo new > new.txt");
    let made = stand.model.requests().iter().filter(|request| begun(&request.body)).count();
    assert!(made > brought.len() / 2, "{made} of {} had a checkout made", brought.len());
}
