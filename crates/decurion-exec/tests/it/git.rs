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
    assert!(error.contains("is no file"), "{error}");
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
