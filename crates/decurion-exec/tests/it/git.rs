//! Git under the guard: what a repository brings along does not run, what is in the way is waited for, and a
//! refusal has git's own words.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use camino::{Utf8Path, Utf8PathBuf};
use decurion_exec::git::{Forecast, NewWorktree};
use decurion_exec::{Git, GitError};
use tempfile::TempDir;

use crate::house::{House, within};

fn git(at: &Path, arguments: &[&str]) {
    let output = Command::new("git")
        .args(["-c", "user.name=T", "-c", "user.email=t@example.com"])
        .args(arguments)
        .current_dir(at)
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .output()
        .unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}

fn repository(at: &Path) -> Utf8PathBuf {
    git(at, &["init", "-q", "-b", "main"]);
    fs::write(at.join("a.txt"), "one\n").unwrap();
    git(at, &["add", "a.txt"]);
    git(at, &["commit", "-qm", "first"]);
    Utf8PathBuf::from_path_buf(at.canonicalize().unwrap()).unwrap()
}

fn ours(house: &House) -> Git {
    let mut environment = house.env();
    environment.push(("GIT_CONFIG_GLOBAL".into(), "/dev/null".into()));
    environment.push(("GIT_DIR".into(), "/nonexistent".into()));
    Git::new(house.guard.clone(), &environment, &private())
}

fn private() -> Utf8PathBuf {
    Utf8Path::new(env!("CARGO_TARGET_TMPDIR")).join("git")
}

fn folder() -> TempDir {
    tempfile::tempdir().unwrap()
}

#[tokio::test]
async fn nothing_that_a_repository_brings_along_runs() {
    let (house, folder) = (House::new(), folder());
    let at = repository(folder.path());
    let mark = folder.path().join("it-ran");
    let script = format!("#!/bin/sh\necho \"$0\" >> {}\n", mark.display());
    for hook in ["post-checkout", "reference-transaction", "pre-commit", "post-index-change"] {
        let path = folder.path().join(".git/hooks").join(hook);
        fs::write(&path, &script).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let monitor = folder.path().join("monitor");
    fs::write(&monitor, &script).unwrap();
    fs::set_permissions(&monitor, fs::Permissions::from_mode(0o755)).unwrap();
    git(folder.path(), &["config", "core.fsmonitor", monitor.to_str().unwrap()]);
    git(folder.path(), &["config", "alias.status", "!false"]);
    let _ = fs::remove_file(&mark);

    let git = ours(&house);
    let head = within(git.head(&at)).await.unwrap();
    assert_eq!(head.branch.as_deref(), Some("main"));
    let base = head.commit.unwrap();
    let status = within(git.status(&at)).await.unwrap();
    assert_eq!(status.untracked(), 1, "{status:?}");
    let elsewhere = self::folder();
    let path = Utf8Path::from_path(elsewhere.path()).unwrap().join("a tree");
    let new = NewWorktree { path: &path, branch: Some("x/y"), base: &base, reason: "in use" };
    within(git.add_worktree(&at, &new)).await.unwrap();
    within(git.reset_hard(&path, &base)).await.unwrap();
    assert_eq!(fs::read_to_string(path.join("a.txt")).unwrap(), "one\n");
    let listed = within(git.worktrees(&at)).await.unwrap();
    assert_eq!(listed[1].branch.as_deref(), Some("x/y"));
    assert_eq!(listed[1].locked.as_deref(), Some("in use"));
    within(git.unlock_worktree(&at, &path)).await.unwrap();
    within(git.unlock_worktree(&at, &path)).await.unwrap();
    within(git.remove_worktree(&at, &path, false)).await.unwrap();
    within(git.delete_branch(&at, "x/y", &base)).await.unwrap();
    assert!(!mark.exists(), "ran: {}", fs::read_to_string(&mark).unwrap());
    house.assert_empty();
}

#[tokio::test]
async fn a_reference_moves_only_from_where_it_was_thought_to_be() {
    let (house, folder) = (House::new(), folder());
    let at = repository(folder.path());
    let git = ours(&house);
    let first = git.commit(&at, "HEAD").await.unwrap().unwrap();
    let tree = git.tree_of(&at, &first).await.unwrap();
    // Nobody has told git a name: it is ours.
    let second = git.commit_tree(&at, &tree, &[&first], "second\n").await.unwrap();
    git.update_reference(&at, "refs/heads/t", &first, None).await.unwrap();
    let there = git.update_reference(&at, "refs/heads/t", &second, None).await.unwrap_err();
    assert!(matches!(there, GitError::Refused { .. }), "{there}");
    let moved = git.update_reference(&at, "refs/heads/t", &second, Some(&second)).await.unwrap_err();
    assert!(moved.to_string().contains("git update-ref"), "{moved}");
    git.update_reference(&at, "refs/heads/t", &second, Some(&first)).await.unwrap();
    assert!(git.delete_branch(&at, "t", &first).await.is_err());
    assert_eq!(git.branch(&at, "t").await.unwrap(), Some(second.clone()));
    assert!(git.is_ancestor(&at, &first, &second).await.unwrap());
    assert!(!git.is_ancestor(&at, &second, &first).await.unwrap());
    assert_eq!(git.count(&at, &first, &second).await.unwrap(), 1);
    assert_eq!(git.commit(&at, "--all").await.unwrap(), None, "a name is never an option");
}

#[tokio::test]
async fn a_merge_is_forecast_without_being_made() {
    let (house, folder) = (House::new(), folder());
    let at = repository(folder.path());
    for (branch, file, text) in
        [("clean", "b.txt", "b\n"), ("left", "a.txt", "l\n"), ("right", "a.txt", "r\n")]
    {
        git(folder.path(), &["checkout", "-q", "-b", branch, "main"]);
        fs::write(folder.path().join(file), text).unwrap();
        git(folder.path(), &["add", file]);
        git(folder.path(), &["commit", "-qm", branch]);
    }
    let git = ours(&house);
    assert!(matches!(git.forecast(&at, "left", "clean").await.unwrap(), Forecast::Clean(_)));
    let conflicts = git.forecast(&at, "left", "right").await.unwrap();
    assert_eq!(conflicts, Forecast::Conflicts(vec!["a.txt".to_owned()]));
    assert!(git.forecast(&at, "left", "nowhere").await.is_err());
}

#[tokio::test]
async fn a_lock_in_the_way_is_waited_for() {
    let (house, folder) = (House::new(), folder());
    let at = repository(folder.path());
    let lock = folder.path().join(".git/index.lock");
    // A git that takes the lock away once it has failed because of it: it is there at the first try and not at the
    // second, however long either takes.
    let (programs, tries) = (tempfile::tempdir().unwrap(), folder.path().join(".git/tries"));
    let script = format!(
        "#!/bin/sh\nexport PATH=$USUAL_PATH\ngit \"$@\"; code=$?\necho $code >> {tries}\n[ $code = 0 ] || rm -f {lock}\nexit $code\n",
        tries = tries.display(),
        lock = lock.display(),
    );
    let program = programs.path().join("git");
    fs::write(&program, script).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o700)).unwrap();
    let mut environment = house.env();
    let usual = environment.iter().find(|(name, _)| name == "PATH").map(|(_, path)| path.clone()).unwrap();
    environment.retain(|(name, _)| name != "PATH");
    environment.push(("PATH".into(), programs.path().into()));
    environment.push(("USUAL_PATH".into(), usual));
    environment.push(("GIT_CONFIG_GLOBAL".into(), "/dev/null".into()));
    let failing = Git::new(house.guard.clone(), &environment, &private());
    let git = ours(&house);
    fs::write(&lock, "").unwrap();
    within(failing.reset_index(&at)).await.unwrap();
    assert_eq!(fs::read_to_string(&tries).unwrap(), "128\n0\n");
    // A look takes no lock and so needs none.
    fs::write(&lock, "").unwrap();
    assert!(git.status(&at).await.unwrap().is_clean());
}

#[tokio::test]
async fn refusals_have_gits_words_and_strange_paths_are_refused_by_name() {
    let (house, folder) = (House::new(), folder());
    let git = ours(&house);
    let plain = Utf8PathBuf::from_path_buf(folder.path().canonicalize().unwrap()).unwrap();
    let error = git.repository(&plain).await.unwrap_err().to_string();
    assert!(error.starts_with("`git rev-parse") && error.contains("exit code 128"), "{error}");
    assert!(error.contains("not a git repository"), "{error}");
    for name in [&b"two\nlines"[..], b"not \xff text"] {
        let path = folder.path().join(std::ffi::OsStr::from_bytes(name));
        fs::create_dir(&path).unwrap();
        self::git(&path, &["init", "-q"]);
        // Asked through a link, since such a path cannot be named here.
        let link = plain.join("link");
        let _ = fs::remove_file(&link);
        std::os::unix::fs::symlink(&path, &link).unwrap();
        let error = git.repository(&link).await.unwrap_err();
        assert!(matches!(error, GitError::Path { .. }), "{error}");
    }
    let nothing = Git::new(house.guard.clone(), &[("PATH".into(), "/nonexistent".into())], &private());
    assert!(matches!(nothing.version().await.unwrap_err(), GitError::NoGit));
}

/// An index with a file of the checkout's own commit, and another one at this path.
fn poison(at: &Utf8Path, own: &Utf8Path, path: &str) {
    let output = Command::new("git").args(["rev-parse", "HEAD:a.txt"]).current_dir(at).output().unwrap();
    let name = String::from_utf8(output.stdout).unwrap();
    let name: Vec<u8> =
        (0..20).map(|byte| u8::from_str_radix(&name[byte * 2..byte * 2 + 2], 16).unwrap()).collect();
    let mut index = b"DIRC\0\0\0\x02\0\0\0\x02".to_vec();
    for path in [path, "a.txt"] {
        let begin = index.len();
        index.extend([0; 24]);
        index.extend(0o100_644_u32.to_be_bytes());
        index.extend([0; 12]);
        index.extend(&name);
        index.extend(u16::try_from(path.len()).unwrap().to_be_bytes());
        index.extend(path.bytes());
        index.resize(begin + (index.len() - begin) / 8 * 8 + 8, 0);
    }
    // Without a checksum, as `index.skipHash` writes it.
    index.extend([0; 20]);
    fs::write(own.join("index"), index).unwrap();
}

#[tokio::test]
async fn index_that_names_files_out_of_the_checkout_is_refused() {
    let (house, folder) = (House::new(), folder());
    fs::create_dir(folder.path().join("work")).unwrap();
    let at = repository(&folder.path().join("work"));
    let outside = folder.path().join("secret");
    fs::write(&outside, "secret\n").unwrap();
    let copy = Utf8PathBuf::from_path_buf(folder.path().join("copy")).unwrap();
    let ours = ours(&house);
    let tree = within(ours.tree_of_folder(&at, &copy, &|_| false)).await.unwrap();
    for path in ["../secret", ".git/hooks/post-checkout"] {
        poison(&at, &at.join(".git"), path);
        let kept = within(ours.tree_of_folder(&at, &copy, &|_| false)).await;
        let restored = within(ours.restore_files(&at, &tree, &copy)).await;
        for error in [kept.unwrap_err(), restored.unwrap_err()] {
            assert!(error.to_string().contains("names a file out of the checkout"), "{error}");
        }
    }
    assert!(outside.exists());
    assert!(!at.join(".git/hooks/post-checkout").exists());
}

#[tokio::test]
async fn worktree_that_says_it_is_of_another_repository_is_taken_for_one_of_its_own() {
    let (house, folder) = (House::new(), folder());
    for name in ["work", "evil"] {
        fs::create_dir(folder.path().join(name)).unwrap();
    }
    let (at, evil) = (repository(&folder.path().join("work")), repository(&folder.path().join("evil")));
    let mark = folder.path().join("it-ran");
    git(evil.as_std_path(), &["config", "filter.e.clean", &format!("touch {}; cat", mark.display())]);
    git(evil.as_std_path(), &["config", "filter.e.smudge", &format!("touch {}; cat", mark.display())]);
    let tree = Utf8PathBuf::from_path_buf(folder.path().canonicalize().unwrap().join("tree")).unwrap();
    let ours = ours(&house);
    let base = within(ours.head(&at)).await.unwrap().commit.unwrap();
    let new = NewWorktree { path: &tree, branch: None, base: &base, reason: "test" };
    within(ours.add_worktree(&at, &new)).await.unwrap();
    fs::write(at.join(".git/worktrees/tree/commondir"), format!("{evil}/.git\n")).unwrap();
    fs::write(tree.join(".gitattributes"), "* filter=e\n").unwrap();
    within(ours.reset_hard(&tree, &base)).await.unwrap();
    fs::write(tree.join("a.txt"), "two\n").unwrap();
    assert!(!within(ours.status(&tree)).await.unwrap().is_clean());
    within(ours.unlock_worktree(&at, &tree)).await.unwrap();
    // Git looks whether it is clean.
    within(ours.remove_worktree(&at.join(".git"), &tree, false)).await.unwrap_err();
    assert!(!mark.exists(), "what the other repository names ran");
}

/// A worktree of ours, and a command by which a filter leaves a mark.
async fn worktree(house: &House, folder: &Path) -> (Utf8PathBuf, Utf8PathBuf, String) {
    fs::create_dir(folder.join("work")).unwrap();
    let at = repository(&folder.join("work"));
    let tree = Utf8PathBuf::from_path_buf(folder.canonicalize().unwrap().join("tree")).unwrap();
    let base = within(ours(house).head(&at)).await.unwrap().commit.unwrap();
    let new = NewWorktree { path: &tree, branch: None, base: &base, reason: "test" };
    within(ours(house).add_worktree(&at, &new)).await.unwrap();
    (at, tree, base)
}

fn filter(folder: &Path) -> String {
    let run = format!("touch {}; cat", folder.join("it-ran").display());
    format!("[filter \"e\"]\n\tclean = \"{run}\"\n\tsmudge = \"{run}\"\n")
}

#[tokio::test]
async fn git_writes_nothing_outside_where_a_command_leads_it() {
    let (house, folder) = (House::new(), folder());
    let (at, tree, base) = worktree(&house, folder.path()).await;
    let ours = ours(&house);
    // In folders for temporary files git may write.
    let beside = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let profile = beside.path().join("profile");
    fs::write(&profile, "mine\n").unwrap();
    let own = at.join(".git/worktrees/tree");
    fs::create_dir_all(own.join("logs")).unwrap();
    std::os::unix::fs::symlink(&profile, own.join("logs/HEAD")).unwrap();
    within(ours.reset_hard(&tree, &base)).await.unwrap();
    within(ours.reset_index(&tree)).await.unwrap();
    let same = within(ours.tree_of(&at, &base)).await.unwrap();
    let next = within(ours.commit_tree(&at, &same, &[&base], "next")).await.unwrap();
    assert_eq!(fs::read_to_string(&profile).unwrap(), "mine\n", "as it was without a log");
    // The head moves, and the line about it would be written there.
    let moved = within(ours.reset_hard(&tree, &next)).await;
    assert_eq!(fs::read_to_string(&profile).unwrap(), "mine\n", "as it was without a way there: {moved:?}");
    git(tree.as_std_path(), &["reset", "--quiet", "--hard", &next]);
    assert_ne!(fs::read(&profile).unwrap(), b"mine\n", "git itself follows such links");
}

#[tokio::test]
async fn change_in_the_second_of_the_checkout_is_seen() {
    const BY_SECONDS: &str = "[core]\ntrustctime = false\ncheckStat = minimal\n";
    let (house, folder) = (House::new(), folder());
    fs::create_dir(folder.path().join("work")).unwrap();
    let at = repository(&folder.path().join("work"));
    let config = folder.path().join("config");
    fs::write(&config, BY_SECONDS).unwrap();
    // As if all of it had happened in one second, long ago.
    let then = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000);
    let date = |name: &str| {
        fs::File::options().write(true).open(at.join(name)).unwrap().set_modified(then).unwrap();
    };
    date("a.txt");
    git(
        at.as_std_path(),
        &["-c", "core.trustctime=false", "-c", "core.checkStat=minimal", "update-index", "--refresh"],
    );
    date(".git/index");
    let mut environment = house.env();
    environment.push(("GIT_CONFIG_GLOBAL".into(), config.into()));
    let ours = Git::new(house.guard.clone(), &environment, &private());
    let copy = Utf8PathBuf::from_path_buf(folder.path().join("copy")).unwrap();
    let before = within(ours.tree_of_folder(&at, &copy, &|_| false)).await.unwrap();
    fs::write(at.join("a.txt"), "two\n").unwrap();
    date("a.txt");
    let after = within(ours.tree_of_folder(&at, &copy, &|_| false)).await.unwrap();
    assert_ne!(before, after, "the change is lost");
}

#[tokio::test]
async fn pipe_in_the_place_of_an_index_is_not_waited_for() {
    let (house, folder) = (House::new(), folder());
    let (at, tree, base) = worktree(&house, folder.path()).await;
    let ours = ours(&house);
    within(ours.reset_hard(&tree, &base)).await.unwrap();
    let index = at.join(".git/worktrees/tree/index");
    fs::remove_file(&index).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, index.as_std_path(), rustix::fs::Mode::RUSR).unwrap();
    let copy = Utf8PathBuf::from_path_buf(folder.path().join("copy")).unwrap();
    let error = within(ours.tree_of_folder(&tree, &copy, &|_| false)).await.unwrap_err().to_string();
    assert!(error.contains("not an ordinary file"), "{error}");
}

#[tokio::test]
async fn settings_of_a_worktree_name_no_program_of_ours() {
    let (house, folder) = (House::new(), folder());
    let (at, tree, base) = worktree(&house, folder.path()).await;
    let (ours, mark) = (ours(&house), folder.path().join("it-ran"));
    git(at.as_std_path(), &["config", "extensions.worktreeConfig", "true"]);
    fs::write(tree.join(".gitattributes"), "* filter=e\n").unwrap();
    fs::write(at.join(".git/worktrees/tree/config.worktree"), filter(folder.path())).unwrap();
    let copy = Utf8PathBuf::from_path_buf(folder.path().join("copy")).unwrap();
    within(ours.reset_hard(&tree, &base)).await.unwrap();
    fs::write(tree.join("a.txt"), "two\n").unwrap();
    assert!(!within(ours.status(&tree)).await.unwrap().is_clean());
    let kept = within(ours.tree_of_folder(&tree, &copy, &|_| false)).await.unwrap();
    within(ours.restore_files(&tree, &kept, &copy)).await.unwrap();
    assert_eq!(within(ours.diffstat(&tree, &base, None)).await.unwrap().files, 1);
    within(ours.reset_index(&tree)).await.unwrap();
    within(ours.unlock_worktree(&at, &tree)).await.unwrap();
    within(ours.remove_worktree(&at.join(".git"), &tree, false)).await.unwrap_err();
    assert!(!mark.exists(), "what its settings name ran");
    git(tree.as_std_path(), &["status"]);
    assert!(mark.exists(), "the settings are ones that git heeds");
    within(ours.remove_worktree(&at.join(".git"), &tree, true)).await.unwrap();
    assert!(!tree.exists());
}

#[tokio::test]
async fn settings_of_a_nested_repository_name_no_program_of_ours() {
    let (house, folder) = (House::new(), folder());
    let (at, tree, base) = worktree(&house, folder.path()).await;
    let (ours, mark) = (ours(&house), folder.path().join("it-ran"));
    within(ours.reset_hard(&tree, &base)).await.unwrap();
    let nested = tree.join("nested");
    fs::create_dir(&nested).unwrap();
    repository(nested.as_std_path());
    let config = fs::read_to_string(nested.join(".git/config")).unwrap();
    git(tree.as_std_path(), &["add", "nested"]);
    let copy = Utf8PathBuf::from_path_buf(folder.path().join("copy")).unwrap();
    let as_added = within(ours.tree_of_folder(&tree, &copy, &|_| false)).await.unwrap();
    git(tree.as_std_path(), &["commit", "-qm", "nested"]);
    assert!(within(ours.status(&tree)).await.unwrap().is_clean());
    fs::write(nested.join(".git/config"), config + &filter(folder.path())).unwrap();
    fs::write(nested.join(".git/info/attributes"), "* filter=e\n").unwrap();
    fs::write(nested.join("a.txt"), "two\n").unwrap();
    let status = within(ours.status(&tree)).await.unwrap();
    assert_eq!(
        (status.changes[0].kind, &*status.changes[0].path),
        (*b" M", &b"nested"[..]),
        "it is looked into"
    );
    within(ours.diffstat(&tree, &base, None)).await.unwrap();
    assert_eq!(within(ours.tree_of_folder(&tree, &copy, &|_| false)).await.unwrap(), as_added);
    within(ours.own_commits(&nested)).await.unwrap();
    within(ours.unlock_worktree(&at, &tree)).await.unwrap();
    within(ours.remove_worktree(&at.join(".git"), &tree, false)).await.unwrap_err();
    assert!(!mark.exists(), "what its settings name ran");
    // What it has come to is part of the tree, and so is its removal.
    fs::write(nested.join(".git/config"), "[core]\n\trepositoryformatversion = 0\n").unwrap();
    fs::remove_file(nested.join(".git/info/attributes")).unwrap();
    git(nested.as_std_path(), &["commit", "-qam", "second"]);
    let moved = within(ours.tree_of_folder(&tree, &copy, &|_| false)).await.unwrap();
    assert_ne!(moved, as_added);
    assert_eq!(within(ours.new_links(&tree, &as_added, &moved)).await.unwrap(), ["nested"]);
    fs::remove_dir_all(&nested).unwrap();
    let removed = within(ours.tree_of_folder(&tree, &copy, &|_| false)).await.unwrap();
    assert_eq!(removed, within(ours.tree_of(&tree, &base)).await.unwrap());
}

/// By the index that is there, git would remove files which are not in the commit.
#[tokio::test]
async fn checkout_of_a_worktree_removes_no_file_out_of_it() {
    let (house, folder) = (House::new(), folder());
    let (at, tree, base) = worktree(&house, folder.path()).await;
    let outside = folder.path().join("secret");
    fs::write(&outside, "secret\n").unwrap();
    poison(&at, &at.join(".git/worktrees/tree"), "../secret");
    let error = within(ours(&house).reset_hard(&tree, &base)).await.unwrap_err().to_string();
    assert!(error.contains("names a file out of the checkout"), "{error}");
    assert!(outside.exists() && !at.join(".git/worktrees/tree/index.lock").exists());
}

#[tokio::test]
async fn worktrees_keep_filters_line_ends_and_sparse_patterns() {
    let (house, folder) = (House::new(), folder());
    let at = repository(folder.path());
    let ours = ours(&house);
    fs::create_dir(at.join("left-out")).unwrap();
    for (file, text) in [
        (".gitattributes", "*.up filter=up\n"),
        ("b.up", "text\n"),
        ("left-out/c", "c\n"),
        ("crlf.txt", "one\n"),
    ] {
        fs::write(at.join(file), text).unwrap();
    }
    git(at.as_std_path(), &["add", "-A"]);
    git(at.as_std_path(), &["commit", "-qm", "second"]);
    // The first is in the settings of the repository, the others in those of the checkout.
    git(at.as_std_path(), &["config", "filter.up.smudge", "tr a-z A-Z"]);
    git(at.as_std_path(), &["config", "filter.up.clean", "tr A-Z a-z"]);
    git(at.as_std_path(), &["sparse-checkout", "set", "--no-cone", "/*", "!/left-out/"]);
    git(at.as_std_path(), &["config", "--worktree", "core.autocrlf", "true"]);
    let base = within(ours.head(&at)).await.unwrap().commit.unwrap();
    let all = tempfile::tempdir().unwrap();
    let all = Utf8PathBuf::from_path_buf(all.path().canonicalize().unwrap()).unwrap();
    // One from the main checkout, and one from that one.
    let mut from = at.clone();
    for name in ["one", "two"] {
        let tree = all.join(name);
        let new = NewWorktree { path: &tree, branch: None, base: &base, reason: "test" };
        within(ours.add_worktree(&from, &new)).await.unwrap();
        within(ours.reset_hard(&tree, &base)).await.unwrap();
        assert_eq!(fs::read_to_string(tree.join("b.up")).unwrap(), "TEXT\r\n", "{name}");
        assert_eq!(fs::read_to_string(tree.join("crlf.txt")).unwrap(), "one\r\n", "{name}");
        assert!(!tree.join("left-out").exists(), "{name}");
        assert!(within(ours.status(&tree)).await.unwrap().is_clean(), "{name}");
        assert_eq!(within(ours.sparse(&tree)).await.unwrap(), within(ours.sparse(&at)).await.unwrap());
        let seen = Command::new("git").args(["status", "--porcelain"]).current_dir(&tree).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&seen.stdout), "", "{name}: the user's git sees the same");
        from = tree;
    }
}

/// Git with a private folder that no other test uses.
fn ours_with(house: &House, private: &Utf8Path) -> Git {
    let mut environment = house.env();
    environment.push(("GIT_CONFIG_GLOBAL".into(), "/dev/null".into()));
    Git::new(house.guard.clone(), &environment, private)
}

fn root(folder: &TempDir) -> Utf8PathBuf {
    Utf8PathBuf::from_path_buf(folder.path().canonicalize().unwrap()).unwrap()
}

/// What `git worktree add` writes where `worktree.useRelativePaths` is set.
#[tokio::test]
async fn worktree_with_relative_paths_is_one_of_its_repository() {
    let (house, folder) = (House::new(), folder());
    let (at, tree, base) = worktree(&house, folder.path()).await;
    let ours = ours(&house);
    fs::write(tree.join(".git"), "gitdir: ../work/.git/worktrees/tree\n").unwrap();
    fs::write(at.join(".git/worktrees/tree/gitdir"), "../../../../tree/.git\n").unwrap();
    git(at.as_std_path(), &["config", "filter.up.smudge", "tr a-z A-Z"]);
    fs::write(at.join(".git/info/attributes"), "* filter=up\n").unwrap();
    for worktree_config in ["false", "true"] {
        git(at.as_std_path(), &["config", "extensions.worktreeConfig", worktree_config]);
        fs::remove_file(tree.join("a.txt")).unwrap_or_default();
        assert_eq!(within(ours.head(&tree)).await.unwrap().commit.as_ref(), Some(&base));
        within(ours.reset_hard(&tree, &base)).await.unwrap();
        assert_eq!(fs::read_to_string(tree.join("a.txt")).unwrap(), "ONE\n", "filters hold");
    }
    // A command makes a repository of the folder of the worktree, and lets it be for another one.
    let own = at.join(".git/worktrees/tree");
    for name in ["objects", "refs"] {
        fs::create_dir_all(own.join(name)).unwrap();
    }
    for name in ["config", "config.worktree"] {
        let core = "[core]\n\trepositoryformatversion = 0\n\tbare = false\n";
        fs::write(own.join(name), core.to_owned() + &filter(folder.path())).unwrap();
    }
    fs::write(at.join(".git/info/attributes"), "").unwrap();
    fs::write(tree.join(".gitattributes"), "* filter=e\n").unwrap();
    for commondir in [Some("."), Some("/nonexistent"), None] {
        let _ = fs::remove_file(own.join("commondir"));
        if let Some(commondir) = commondir {
            fs::write(own.join("commondir"), commondir).unwrap();
        }
        fs::write(tree.join("a.txt"), "two\n").unwrap();
        let _ = within(ours.status(&tree)).await;
        let _ = within(ours.reset_hard(&tree, &base)).await;
    }
    assert!(!folder.path().join("it-ran").exists(), "what its settings name ran");
}

#[tokio::test]
async fn settings_of_a_repository_may_be_a_link_and_hold_any_bytes() {
    let (house, folder) = (House::new(), folder());
    let (at, tree, base) = worktree(&house, folder.path()).await;
    let ours = ours(&house);
    git(at.as_std_path(), &["config", "extensions.worktreeConfig", "true"]);
    let config = at.join(".git/config");
    let mut text = fs::read(&config).unwrap();
    text.extend(b"[user]\n\tname = M\xfcller\n\temail = m@example.com\n");
    let elsewhere = folder.path().join("dotfiles");
    fs::write(&elsewhere, text).unwrap();
    fs::remove_file(&config).unwrap();
    std::os::unix::fs::symlink(&elsewhere, &config).unwrap();
    within(ours.reset_hard(&tree, &base)).await.unwrap();
    assert!(within(ours.status(&tree)).await.unwrap().is_clean());
    let files = within(ours.tree_of(&tree, &base)).await.unwrap();
    let commit = within(ours.commit_tree(&tree, &files, &[&base], "second\n")).await.unwrap();
    let said = Command::new("git").args(["cat-file", "-p", &commit]).current_dir(&at).output().unwrap();
    // Git takes what is not UTF-8 for Latin-1.
    let said = String::from_utf8_lossy(&said.stdout);
    assert!(said.contains("author Müller <m@example.com>"), "{said}");
}

#[tokio::test]
async fn private_folder_may_lie_behind_a_link() {
    let (house, folder) = (House::new(), folder());
    let (at, tree, base) = worktree(&house, folder.path()).await;
    git(at.as_std_path(), &["config", "extensions.worktreeConfig", "true"]);
    let root = root(&folder);
    fs::create_dir(root.join("state")).unwrap();
    std::os::unix::fs::symlink("state", root.join("link")).unwrap();
    let ours = ours_with(&house, &root.join("link/git"));
    let second = root.join("second");
    let new = NewWorktree { path: &second, branch: None, base: &base, reason: "test" };
    within(ours.add_worktree(&tree, &new)).await.unwrap();
    within(ours.reset_hard(&second, &base)).await.unwrap();
    let named = fs::read_to_string(second.join(".git")).unwrap();
    assert_eq!(named, format!("gitdir: {at}/.git/worktrees/second\n"));
    git(second.as_std_path(), &["status"]);
}

/// A submodule of this name, in the checkout.
fn add_submodule(at: &Utf8Path, source: &Utf8Path, name: &str, path: &str) {
    let allow = "protocol.file.allow=always";
    let add = ["-c", allow, "submodule", "--quiet", "add", "--name", name, "--", source.as_str(), path];
    git(at.as_std_path(), &add);
    git(at.as_std_path(), &["commit", "-qm", "submodule"]);
}

#[tokio::test]
async fn submodule_of_a_worktree_gets_its_first_worktree() {
    let (house, folder) = (House::new(), folder());
    fs::create_dir(folder.path().join("source")).unwrap();
    let source = repository(&folder.path().join("source"));
    let (at, tree, _) = worktree(&house, folder.path()).await;
    add_submodule(&tree, &source, "sub", "sub");
    let sub = tree.join("sub");
    let kept = at.join(".git/worktrees/tree/modules/sub");
    assert!(kept.is_dir() && !kept.join("worktrees").exists());
    // Git has made it there: it would be for git to find another name if there were one of this name.
    let look = format!("[ -d {kept}/worktrees/of-sub ]");
    let ours = ours_with_command(&house, &root(&folder), &look);
    let base = within(ours.head(&sub)).await.unwrap().commit.unwrap();
    let new_tree = root(&folder).join("of-sub");
    let new = NewWorktree { path: &new_tree, branch: None, base: &base, reason: "test" };
    within(ours.add_worktree(&sub, &new)).await.unwrap();
    within(ours.reset_hard(&new_tree, &base)).await.unwrap();
    assert_eq!(fs::read_to_string(new_tree.join("a.txt")).unwrap(), "one\n");
    assert!(kept.join("worktrees/of-sub").is_dir());
    git(new_tree.as_std_path(), &["status"]);
}

/// Only below the folder of a repository do such names say that commands could write it.
#[tokio::test]
async fn settings_of_a_submodule_hold_whatever_its_name_and_place() {
    let (house, folder) = (House::new(), folder());
    let place = folder.path().join("worktrees/a/modules");
    fs::create_dir_all(&place).unwrap();
    fs::create_dir(folder.path().join("source")).unwrap();
    let source = repository(&folder.path().join("source"));
    fs::create_dir(place.join("work")).unwrap();
    let at = repository(&place.join("work"));
    let ours = ours(&house);
    for (name, path) in [("worktrees/x/modules/y", "one"), ("worktrees/z", "two")] {
        add_submodule(&at, &source, name, path);
        let sub = at.join(path);
        git(sub.as_std_path(), &["config", "filter.up.smudge", "tr a-z A-Z"]);
        fs::write(at.join(".git/modules").join(name).join("info/attributes"), "* filter=up\n").unwrap();
        let base = within(ours.head(&sub)).await.unwrap().commit.unwrap();
        let tree = root(&folder).join(format!("of-{path}"));
        let new = NewWorktree { path: &tree, branch: None, base: &base, reason: "test" };
        within(ours.add_worktree(&sub, &new)).await.unwrap();
        within(ours.reset_hard(&tree, &base)).await.unwrap();
        assert_eq!(fs::read_to_string(tree.join("a.txt")).unwrap(), "ONE\n", "{name}");
        git(tree.as_std_path(), &["status"]);
    }
}

/// The process may be one of another pid namespace, whose number says nothing here.
#[tokio::test]
async fn private_folder_in_use_is_not_removed() {
    let (house, folder) = (House::new(), folder());
    let (at, tree, base) = worktree(&house, folder.path()).await;
    git(at.as_std_path(), &["config", "extensions.worktreeConfig", "true"]);
    let private = root(&folder).join("private");
    let ours = ours_with(&house, &private);
    let in_use = private.join("4294967295-1");
    fs::create_dir_all(&in_use).unwrap();
    let lock = fs::File::create(in_use.join("decurion.lock")).unwrap();
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).unwrap();
    within(ours.reset_hard(&tree, &base)).await.unwrap();
    assert!(in_use.exists());
    drop(lock);
    within(ours.reset_hard(&tree, &base)).await.unwrap();
    assert_eq!(private.read_dir_utf8().unwrap().count(), 0, "those of killed processes are removed");
}

/// A filter that keeps a copy of what passes in the shared folder of git, as that of git-lfs does.
fn keeping_filter(at: &Utf8Path, folder: &Path, first: &str) {
    let script = format!(
        "#!/bin/sh\n{first}\nfolder=$(git rev-parse --git-common-dir)/lfs/objects\nmkdir -p $folder/ab\ntee $folder/ab/object\n"
    );
    let program = folder.join("filter");
    fs::write(&program, script).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o700)).unwrap();
    git(at.as_std_path(), &["config", "extensions.worktreeConfig", "true"]);
    git(at.as_std_path(), &["config", "filter.k.smudge", program.to_str().unwrap()]);
    fs::write(at.join(".git/info/attributes"), "a.txt filter=k\n").unwrap();
}

#[tokio::test]
async fn files_of_a_filter_come_to_the_shared_folder() {
    let (house, folder) = (House::new(), folder());
    let (at, tree, base) = worktree(&house, folder.path()).await;
    let private = root(&folder).join("private");
    let ours = ours_with(&house, &private);
    let object = at.join(".git/lfs/objects/ab/object");
    // Another process has stored the same meanwhile.
    let meanwhile = format!(
        "[ ! -e {tree}/.again ] || {{ mkdir -p {parent}; echo one > {object}; }}",
        parent = object.parent().unwrap()
    );
    keeping_filter(&at, folder.path(), &meanwhile);
    for is_again in [false, true] {
        within(ours.reset_hard(&tree, &base)).await.unwrap();
        assert_eq!(fs::read_to_string(&object).unwrap(), "one\n");
        assert!(!at.join(".git/decurion.lock").exists() && !at.join(".git/index.lock").exists());
        assert_eq!(private.read_dir_utf8().unwrap().count(), 0);
        fs::write(tree.join(".again"), "").unwrap();
        fs::remove_file(tree.join("a.txt")).unwrap();
        if !is_again {
            fs::remove_dir_all(at.join(".git/lfs")).unwrap();
        }
    }
}

#[tokio::test]
async fn files_of_a_filter_stay_where_something_is_in_their_way() {
    for (name, meanwhile) in [
        ("link", "ln -s OUT GIT/lfs"),
        ("file", "mkdir -p GIT/lfs/objects/ab; echo other > GIT/lfs/objects/ab/object"),
    ] {
        let (house, folder) = (House::new(), folder());
        let (at, tree, base) = worktree(&house, folder.path()).await;
        let (private, outside) = (root(&folder).join("private"), root(&folder).join("outside"));
        fs::create_dir(&outside).unwrap();
        let meanwhile = meanwhile.replace("GIT", at.join(".git").as_str()).replace("OUT", outside.as_str());
        keeping_filter(&at, folder.path(), &meanwhile);
        let ours = ours_with(&house, &private);
        let error = within(ours.reset_hard(&tree, &base)).await.unwrap_err().to_string();
        let mut kept = private.read_dir_utf8().unwrap().map(|entry| entry.unwrap().path().to_owned());
        let stands = kept.next().unwrap();
        assert!(error.contains(stands.as_str()), "{name}: {error}");
        let text = || fs::read_to_string(stands.join("lfs/objects/ab/object"));
        assert_eq!((kept.next(), text().unwrap()), (None, "one\n".to_owned()), "{name}");
        assert_eq!(outside.read_dir_utf8().unwrap().count(), 0, "{name}");
        // Later calls leave it there, until nothing is in the way.
        within(ours.status(&tree)).await.unwrap();
        assert_eq!(text().unwrap(), "one\n", "{name}");
        fs::rename(at.join(".git/lfs"), root(&folder).join("away")).unwrap();
        within(ours.status(&tree)).await.unwrap();
        assert!(!stands.exists(), "{name}");
        assert_eq!(fs::read_to_string(at.join(".git/lfs/objects/ab/object")).unwrap(), "one\n", "{name}");
    }
}

/// A command can put links into the folder of a worktree that was just made.
#[tokio::test]
async fn submodule_is_not_put_behind_a_link() {
    let (house, folder) = (House::new(), folder());
    fs::create_dir(folder.path().join("source")).unwrap();
    let source = repository(&folder.path().join("source"));
    fs::create_dir(folder.path().join("work")).unwrap();
    let at = repository(&folder.path().join("work"));
    add_submodule(&at, &source, "deep/sub", "sub");
    // From another file system, where there is one.
    let memory = tempfile::tempdir_in("/dev/shm").unwrap_or_else(|_| self::folder());
    let ours = ours_with(&house, &root(&memory));
    let base = within(ours.head(&at)).await.unwrap().commit.unwrap();
    let (tree, outside) = (root(&folder).join("tree"), root(&folder).join("outside"));
    let new = NewWorktree { path: &tree, branch: None, base: &base, reason: "test" };
    within(ours.add_worktree(&at, &new)).await.unwrap();
    within(ours.reset_hard(&tree, &base)).await.unwrap();
    fs::create_dir(&outside).unwrap();
    let modules = at.join(".git/worktrees/tree/modules");
    std::os::unix::fs::symlink(&outside, &modules).unwrap();
    let theirs = at.join("sub");
    let copy = || ours.copy_submodule(&tree, Utf8Path::new("sub"), &theirs);
    let error = within(copy()).await.unwrap_err().to_string();
    assert!(error.contains("cannot be put in its place"), "{error}");
    assert_eq!(outside.read_dir_utf8().unwrap().count(), 0);
    fs::remove_file(&modules).unwrap();
    fs::remove_dir_all(tree.join("sub")).unwrap();
    std::os::unix::fs::symlink(&outside, tree.join("sub")).unwrap();
    let error = within(copy()).await.unwrap_err().to_string();
    assert!(error.contains("symbolic link on the way"), "{error}");
    assert_eq!(outside.read_dir_utf8().unwrap().count(), 0);
    fs::remove_file(tree.join("sub")).unwrap();
    fs::create_dir(tree.join("sub")).unwrap();
    fs::write(outside.join("file"), "theirs\n").unwrap();
    std::os::unix::fs::symlink(outside.join("file"), tree.join("sub/.git")).unwrap();
    within(copy()).await.unwrap();
    assert_eq!(fs::read_to_string(outside.join("file")).unwrap(), "theirs\n");
    assert!(within(ours.status(&tree)).await.unwrap().is_clean());
    assert_eq!(fs::read_to_string(tree.join("sub/a.txt")).unwrap(), "one\n");
}

/// In the folder that stands for the shared one are links, which git must not replace.
#[tokio::test]
async fn references_and_logs_come_to_the_shared_folder() {
    let (house, folder) = (House::new(), folder());
    let (at, tree, base) = worktree(&house, folder.path()).await;
    git(at.as_std_path(), &["config", "extensions.worktreeConfig", "true"]);
    git(at.as_std_path(), &["branch", "packed"]);
    git(at.as_std_path(), &["pack-refs", "--all"]);
    fs::remove_dir_all(at.join(".git/logs")).unwrap();
    let private = root(&folder).join("private");
    let ours = ours_with(&house, &private);
    within(ours.delete_branch(&tree, "packed", &base)).await.unwrap();
    assert_eq!(within(ours.branch(&at, "packed")).await.unwrap(), None);
    let second = root(&folder).join("second");
    let new = NewWorktree { path: &second, branch: Some("new"), base: &base, reason: "test" };
    within(ours.add_worktree(&tree, &new)).await.unwrap();
    assert_eq!(within(ours.branch(&at, "new")).await.unwrap().as_ref(), Some(&base));
    within(ours.update_reference(&tree, "refs/heads/logged", &base, None)).await.unwrap();
    assert!(at.join(".git/logs/refs/heads/logged").is_file());
    assert_eq!(private.read_dir_utf8().unwrap().count(), 0);
}

/// Git, after which a script runs where it has made a worktree: a command that runs at the same time.
fn ours_with_command(house: &House, folder: &Utf8Path, script: &str) -> Git {
    let programs = folder.join("programs");
    fs::create_dir(&programs).unwrap();
    let text = format!(
        "#!/bin/sh\nexport PATH=$USUAL_PATH\ngit \"$@\" || exit\ncase \"$*\" in *'worktree add'*) {script};; esac\n"
    );
    fs::write(programs.join("git"), text).unwrap();
    fs::set_permissions(programs.join("git"), fs::Permissions::from_mode(0o700)).unwrap();
    let mut environment = house.env();
    let usual = environment.iter().find(|(name, _)| name == "PATH").map(|(_, path)| path.clone()).unwrap();
    environment.retain(|(name, _)| name != "PATH");
    environment.push(("PATH".into(), programs.as_std_path().into()));
    environment.push(("USUAL_PATH".into(), usual));
    environment.push(("GIT_CONFIG_GLOBAL".into(), "/dev/null".into()));
    Git::new(house.guard.clone(), &environment, &folder.join("private"))
}

#[tokio::test]
async fn new_worktree_that_a_command_changes_is_refused() {
    for (script, words) in [
        ("echo 'gitdir: /nonexistent' > TREE/.git", "names another folder: /nonexistent"),
        ("mv TREE/.git OUT/file; ln -s OUT/file TREE/.git", "symbolic link"),
        ("mv TREE OUT/tree; ln -s OUT/tree TREE", "symbolic link on the way"),
        ("mv OWN OUT/own; ln -s OUT/own OWN", "symbolic link on the way"),
    ] {
        let (house, folder) = (House::new(), folder());
        let (at, tree, base) = worktree(&house, folder.path()).await;
        git(at.as_std_path(), &["config", "extensions.worktreeConfig", "true"]);
        git(tree.as_std_path(), &["config", "--worktree", "core.autocrlf", "true"]);
        let (outside, second) = (root(&folder).join("outside"), root(&folder).join("second"));
        fs::create_dir(&outside).unwrap();
        let script = script.replace("TREE", second.as_str()).replace("OUT", outside.as_str());
        let script = script.replace("OWN", at.join(".git/worktrees/second").as_str());
        let ours = ours_with_command(&house, &root(&folder), &script);
        let new = NewWorktree { path: &second, branch: None, base: &base, reason: "test" };
        let error = within(ours.add_worktree(&tree, &new)).await.unwrap_err().to_string();
        assert!(error.contains(words), "{script}: {error}");
        let text = ["file", "tree/.git"].iter().find_map(|name| fs::read_to_string(outside.join(name)).ok());
        assert!(text.is_none_or(|text| text.contains("/private/")), "{script}: a file outside was written");
        assert!(!outside.join("own/config.worktree").exists(), "{script}: a file outside was written");
    }
}

#[tokio::test]
async fn nested_repository_may_be_a_worktree_of_another_one() {
    let (house, folder) = (House::new(), folder());
    let (at, tree, base) = worktree(&house, folder.path()).await;
    let ours = ours(&house);
    within(ours.reset_hard(&tree, &base)).await.unwrap();
    let nested = tree.join("nested");
    git(at.as_std_path(), &["worktree", "add", "-q", nested.as_str()]);
    git(tree.as_std_path(), &["add", "nested"]);
    git(tree.as_std_path(), &["commit", "-qm", "nested"]);
    assert!(within(ours.status(&tree)).await.unwrap().is_clean());
    // A command may have written the name of the repository, so its filters do not hold.
    let config = fs::read_to_string(at.join(".git/config")).unwrap();
    fs::write(at.join(".git/config"), config + &filter(folder.path())).unwrap();
    fs::write(nested.join(".gitattributes"), "* filter=e\n").unwrap();
    fs::write(nested.join("a.txt"), "two\n").unwrap();
    let status = within(ours.status(&tree)).await.unwrap();
    assert_eq!((status.changes.len(), &*status.changes[0].path), (1, &b"nested"[..]));
    assert!(!folder.path().join("it-ran").exists(), "what its settings name ran");
}
