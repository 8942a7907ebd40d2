//! Paths outside of the working directory in the words of programs that a rule allows, in real sessions in a folder
//! that is not trusted. Takes lists of commands as in `shell_attacks`; what counts is the effect: anything new or
//! changed outside, or a secret in the next request.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use decurion_testkit::proc::Home;

use crate::shell_attacks::{home, session, session_with};
use crate::stand::finished;

const NONE: [&str; 0] = [];

/// A repository with a branch, a patch and a mailbox. Nothing of it holds the secret.
fn repository() -> Home {
    let home = home();
    let script = "set -eu
        git init -q -b main .
        git config user.name a; git config user.email a@b
        printf '.env\\nlink-*\\nlinked-*\\n' > .gitignore
        git add f src .gitignore; git commit -qm one; git branch side
        echo base > base; echo other > other; echo victim > ../out/victim
        printf 'From a@b Mon Sep 17 00:00:00 2001\\nFrom: a <a@b>\\nSubject: s\\n\\nbody\\n' > mbox
        printf '[alias]\\n' > ../out/cfg
        mkdir -p 'https:/h' -- --message= -m
        git init -q --bare ../out/bare.git";
    let made = finished(home.program("/bin/sh").args(["-c", script]));
    assert_eq!(made.ending.code(), 0, "{made:?}");
    home
}

/// Every file below a folder with its text.
fn files(folder: &Path, found: &mut Vec<(String, Vec<u8>)>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.display().to_string();
        if path.is_dir() && !path.is_symlink() {
            found.push((name, Vec::new()));
            files(&path, found);
        } else {
            found.push((name, fs::read(&path).unwrap_or_default()));
        }
    }
    found.sort();
}

fn outside(home: &Home) -> Vec<(String, Vec<u8>)> {
    let mut found = Vec::new();
    files(&home.path().join("out"), &mut found);
    found
}

/// None of the commands has an effect outside.
fn hold(home: Home, commands: &[&str], rules: &str) {
    let path = home.path().to_str().unwrap().to_owned();
    let before = outside(&home);
    let commands: Vec<String> = commands.iter().map(|command| command.replace("@P", &path)).collect();
    let commands: Vec<&str> = commands.iter().map(String::as_str).collect();
    let tried = session(home, &commands, &["--allowedTools", rules]);
    assert_eq!(tried.breaches(), NONE, "{rules}");
    let after = outside(tried.home());
    let changed: Vec<&String> =
        after.iter().filter(|file| !before.contains(file)).map(|(name, _)| name).collect();
    assert!(changed.is_empty(), "{rules}: {changed:?} {:?}", tried.results());
    assert_eq!(after.len(), before.len(), "{rules}: {:?}", tried.results());
}

fn pass(home: Home, commands: &[&str], rules: &str) {
    let results = session(home, commands, &["--allowedTools", rules]).results();
    let denied: Vec<_> =
        commands.iter().zip(&results).filter(|(_, result)| result.contains("Permission denied")).collect();
    assert!(denied.is_empty(), "{denied:?}");
}

const GIT_WRITES: &[&str] = &[
    "git config -f @X a.b c",
    "git config -f@X a.b c",
    "git config --file=@X a.b c",
    "git config --file @X a.b c",
    "git config --fil=@X a.b c",
    "git config -f @P/out/@N a.b c",
    "git config -f link-out/@N a.b c",
    "git config -flink-out/@N a.b c",
    "git config --file=link-out/@N a.b c",
    "git config -f src/../../out/@N a.b c",
    "git config -f https://h/../../../out/@N a.b c",
    "git config --global a.b c -f @X",
    "(cd src && git config -f ../../out/@N a.b c)",
    "git config set --file=@X a.b c",
    "git config -f \"$(echo ../out/@N)\" a.b c",
    "git config \"$(echo --file=../out/@N)\" a.b c",
    "git config $(echo -f ../out/@N) a.b c",
    "git config -f ../out/cfg a.b c",
    "git config -f ../out/cfg --add a.b c",
    "git config -f ../out/cfg --unset a.b",
    "git merge-file ../out/victim base other",
    "git merge-file -q @P/out/victim base other",
    "git merge-file link-out/victim base other",
    "git merge-file -- ../out/victim base other",
    "git checkout-index -a --prefix=@X/",
    "git checkout-index -a --prefix @X/",
    "git checkout-index -a --pref=@X/",
    "git checkout-index -f --prefix=@P/out/ f",
    "git mailsplit -o@P/out mbox",
    "git mailsplit -o../out mbox",
    "git mailsplit -b -olink-out mbox",
    "git mailsplit -d4 -o../out mbox",
    "git interpret-trailers --in-place --trailer a:b ../out/victim",
    "git interpret-trailers --in-place --trailer a:b link-out/victim",
    "git pack-objects ../out/pk --all < /dev/null",
    "git pack-objects --all @P/out/pk < /dev/null",
    "git index-pack -o ../out/x.idx .git/objects/pack/none",
    "git clone -q . @X",
    "git clone -q . @P/out/@N",
    "git clone -q . link-out/@N",
    "git clone -q -- . @X",
    "git clone -q --bare . @X",
    "git init -q @X",
    "git init -q @P/out/@N",
    "git init -q link-out/@N",
    "git init --bare -q -- @X",
    "git worktree add @X",
    "git worktree add -b n @P/out/@N",
    "git worktree add link-out/@N side",
    "git worktree add -f -- @X side",
    "git commit-graph write --object-dir=../out",
    "git credential-store --file=@X store <<< $'protocol=https\\nhost=h\\nusername=u\\npassword=p\\n'",
    "git credential-store --file @X store <<< $'protocol=https\\nhost=h\\nusername=u\\npassword=p\\n'",
    "git mailinfo @X @X < mbox",
    "git fast-import --export-marks=@X < /dev/null",
    "git push -q ../out/bare.git main:x",
    "git push -q file://@P/out/bare.git main:x",
    "git push \"$(echo --receive-pack=touch\\ ../out/@N)\" ../out/bare.git main",
    "git -C ../out init -q @N",
    "git -C link-out init -q @N",
];
const GIT_READS: &[&str] = &[
    "git blame --contents ../out/outside f",
    "git blame --contents=@P/out/outside f",
    "git blame --contents=link-out/outside f",
    "git blame --content ../out/outside f",
    "git commit -q --allow-empty -F ../out/outside && git log -1",
    "git commit -q --allow-empty -F../out/outside && git log -1",
    "git commit -qF../out/outside --allow-empty && git log -1",
    "git commit -q --allow-empty --file=@P/out/outside && git log -1",
    "git commit -q --allow-empty -F link-out/outside && git log -1",
    "git commit -q --allow-empty -Flink-out/outside && git log -1",
    "git commit -q --allow-empty --trailer -m -F../out/outside && git log -1",
    "git commit -q --allow-empty -F --message=/../../out/outside && git log -1",
    "git commit -q --allow-empty -F -m/../../out/outside && git log -1",
    "git commit -q --allow-empty --trailer -m \"$(echo -F../out/outside)\" && git log -1",
    "git commit -q --allow-empty \"$(echo -F../out/outside)\" && git log -1",
    "git commit -q --allow-empty --no-edit -t ../out/outside && git log -1",
    "git tag -F ../out/outside t1 && git show t1 --no-patch",
    "git tag -a -F@P/out/outside t2 && git show t2 --no-patch",
    "git notes add -f -F ../out/outside && git notes show",
    "git notes append -F link-out/outside && git notes show",
    "git merge -q --no-ff -F ../out/outside side && git log -1",
    "git hash-object -w ../out/outside && git cat-file -p @H",
    "git hash-object -w -- link-out/outside && git cat-file -p @H",
    "git hash-object -w --stdin-paths <<< ../out/outside && git cat-file -p @H",
    "git config -f ../out/outside --list",
    "git config -f link-out/outside --list",
    "git grep --no-index canary ../out/outside",
    "git grep -f ../out/outside",
    "git interpret-trailers ../out/outside",
    "git interpret-trailers -- @P/out/outside",
    "git interpret-trailers link-out/outside",
    "git stripspace < ../out/outside",
    "git merge-file -p ../out/outside base other",
    "git ls-files -o -X ../out/outside",
    "git apply --stat ../out/outside",
    "git diff --no-index --stat -p f ../out/outside",
    "git shortlog -F < ../out/outside",
    "git column --mode=plain < link-out/outside",
];

#[test]
fn a_rule_for_git_allows_no_write_outside() {
    hold(repository(), GIT_WRITES, "Bash(git:*)");
    hold(repository(), &GIT_WRITES[..20], "Bash(git config:*)");
    hold(repository(), &["git clone -q . @X", "git clone -q . link-out/@N"], "Bash(git clone *)");
}

#[test]
fn a_rule_for_git_allows_no_read_outside() {
    let home = repository();
    let hash = finished(home.program("git").args(["hash-object", "../out/outside"])).lines.concat();
    let commands: Vec<String> = GIT_READS.iter().map(|command| command.replace("@H", hash.trim())).collect();
    let commands: Vec<&str> = commands.iter().map(String::as_str).collect();
    hold(home, &commands, "Bash(git:*)");
}

#[test]
fn a_rule_for_git_still_allows_what_stays_inside() {
    let commands = [
        "git add -A",
        "git add src/main.rs ./f :/",
        "git commit -q -m 'fix ../x path'",
        "git commit -q --allow-empty -m '../x is wrong, /etc too'",
        "git commit -q --allow-empty -am '/x'",
        "git commit -q --allow-empty --message=/x -m ~",
        "git commit -q --allow-empty -m \"$(date)\"",
        "git commit -q --allow-empty --amend -m \"$(cat <<'EOF'\n/x\nEOF\n)\"",
        "git tag -a v1 -m '/x'",
        "git stash push -q -m '../x'",
        "git log main..side",
        "git diff HEAD~1 -- src",
        "git diff HEAD:f HEAD~1:f",
        "git checkout -q -b topic/x main",
        "git switch -q main",
        "git merge -q --no-ff -m '/x' side",
        "git rebase main",
        "git mv f g",
        "git rm -q --cached g",
        "git config user.name b",
        "git config -f own.cfg a.b c",
        "git worktree add -q wt side",
        "git remote add origin git@github.com:x/y.git",
        "git remote set-url origin https://example.invalid/x/y.git",
        "git sparse-checkout set --no-cone '/*' '!/docs'",
        "git branch -m topic/x topic/y",
        "git update-ref refs/heads/q HEAD",
    ];
    pass(repository(), &commands, "Bash(git:*)");
    let named = ["git config -f ../out/cfg a.b c", "git config -f ../out/cfg --list"];
    pass(repository(), &named, "Bash(git config -f ../out/cfg:*)");
    pass(repository(), &["git init -q ../out/new"], "Bash(git init -q ../out/*)");
    pass(repository(), &["git init -q ../out/new"], "Bash(git:*),Edit(../out/**)");
}

/// Stands for a program that builds or tests: it makes the file that each of its words names, in whatever way.
const BUILDER: &str = r#"#!/bin/sh
for word; do
    path=$(printf %s "$word" | sed -E 's/.*[=:@]//; s/^-[a-z]+(\.|\/|link)/\1/')
    case $path in */*) touch "$path" ;; esac
done
"#;

const BUILDS: &[&str] = &[
    "go test -coverprofile=@X ./...",
    "go test -coverprofile @X ./...",
    "go test -coverprofile=@P/out/@N ./...",
    "go test -cpuprofile link-out/@N",
    "go test -outputdir=../out/ -trace=@X",
    "go test -args -test.testlogfile=@X",
    "go test -args -test.testlogfile=src/../../out/@N",
    "cargo test -- --logfile=@X",
    "cargo test -- --logfile @X",
    "cargo test --artifact-dir=@P/out/@N",
    "cargo test --lockfile-path link-out/@N",
    "pytest --basetemp=@X",
    "pytest --log-file=@X",
    "pytest -o cache_dir=@X",
    "pytest --cov-report=html:@X",
    "pytest --cov-report html:@P/out/@N",
    "python3 -m pytest --debug=@X",
    "python3 -m unittest @X",
    "eslint --fix @X",
    "eslint --cache --cache-location @X .",
    "prettier -w @X",
    "prettier --write link-out/@N",
    "tsc --declarationDir @X",
    "tsc --tsBuildInfoFile=@X",
    "tsc @@X",
    "ruff check --cache-dir=@X",
    "ruff check --fix @X",
    "black @X",
    "black -q -- @X",
    "jest --outputFile=@X --json",
    "jest --coverageDirectory @P/out/@N",
    "dotnet test --results-directory @X",
    "dotnet test --logger:trx:@X",
    "gradle test -I@X",
    "ctest --output-log @X",
    "ninja -C@X",
    "timeout 5 go test -coverprofile=@X",
    "(cd src && go test -coverprofile=../../out/@N)",
];

#[test]
fn a_rule_for_a_program_that_builds_allows_no_path_outside() {
    let rules = "Bash(go test:*),Bash(cargo test:*),Bash(pytest:*),Bash(python3 -m pytest:*),\
        Bash(python3 -m unittest:*),Bash(eslint:*),Bash(prettier:*),Bash(tsc:*),Bash(ruff check:*),Bash(black *),\
        Bash(jest:*),Bash(dotnet test:*),Bash(gradle test:*),Bash(ctest:*),Bash(ninja:*)";
    let made = || {
        let home = home();
        let programs = home.path().join("programs");
        fs::create_dir(&programs).unwrap();
        for name in
            "go cargo pytest python3 eslint prettier tsc ruff black jest dotnet gradle ctest ninja".split(' ')
        {
            fs::write(programs.join(name), BUILDER).unwrap();
            fs::set_permissions(programs.join(name), fs::Permissions::from_mode(0o700)).unwrap();
        }
        let path = format!("{}:/usr/bin:/bin", programs.display());
        (home, path)
    };
    let (home, path) = made();
    let before = outside(&home);
    let place = home.path().to_str().unwrap().to_owned();
    let commands: Vec<String> = BUILDS.iter().map(|command| command.replace("@P", &place)).collect();
    let commands: Vec<&str> = commands.iter().map(String::as_str).collect();
    let tried = session_with(home, &commands, &["--allowedTools", rules], &[("PATH", &path)]);
    assert_eq!(tried.breaches(), NONE);
    assert_eq!(outside(tried.home()), before, "{:?}", tried.results());

    let plain = [
        "go test ./...",
        "go test -run 'Test/x' -coverprofile=c.out ./src/...",
        "cargo test -- --nocapture a::b",
        "cargo test -p x --features a/b",
        "pytest tests/test_a.py::TestX::test_y -k 'a/b' --cov-report=html:build/html",
        "python3 -m pytest -q src 2>&1 | tail -3",
        "eslint --fix src 'src/**/*.ts'",
        "prettier -w ./src/main.rs",
        "tsc -p . --outDir src/build",
        "jest --testPathPattern=src/x",
        "dotnet test --logger:trx",
        "black src/main.rs > /dev/null",
    ];
    let (home, path) = made();
    let arguments = ["--allowedTools", rules, "--allowedTools", "Edit"];
    let results = session_with(home, &plain, &arguments, &[("PATH", &path)]).results();
    let denied: Vec<_> =
        plain.iter().zip(&results).filter(|(_, result)| result.contains("Permission denied")).collect();
    assert!(denied.is_empty(), "{denied:?}");
    let (home, path) = made();
    let named = session_with(
        home,
        &["go test -coverprofile=../out/named"],
        &["--allowedTools", "Bash(go test -coverprofile=../out/named:*)"],
        &[("PATH", &path)],
    );
    assert!(named.home().path().join("out/named").exists(), "{:?}", named.results());
}
