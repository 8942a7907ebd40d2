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
    Git::new(house.guard.clone(), &environment)
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
    let failing = Git::new(house.guard.clone(), &environment);
    let git = ours(&house);
    let head = git.commit(&at, "HEAD").await.unwrap().unwrap();
    fs::write(&lock, "").unwrap();
    within(failing.reset_hard(&at, &head)).await.unwrap();
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
    let nothing = Git::new(house.guard.clone(), &[("PATH".into(), "/nonexistent".into())]);
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
