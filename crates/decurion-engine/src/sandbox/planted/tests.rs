//! What is remembered of working directories, and what a look renames there, without commands.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::sync::Barrier;

use camino::{Utf8Path, Utf8PathBuf};
use decurion_exec::Form;
use decurion_store::WatchedFolders;

use super::super::{Holding, MOST_PROTECTED, OwnFolder, SandboxMaker, SandboxSettings, User};
use super::{Before, Found, Planted, saved};

/// A folder of its own, without links in its path.
fn folder() -> (tempfile::TempDir, Utf8PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let root = Utf8PathBuf::from_path_buf(folder.path().canonicalize().unwrap()).unwrap();
    (folder, root)
}

/// A maker whose state is in this folder, and a working directory with a repository.
fn session(root: &Utf8Path) -> (SandboxMaker, Utf8PathBuf) {
    let (own, work) = (root.join("state"), root.join("work"));
    fs::create_dir_all(work.join(".git/objects")).unwrap();
    fs::create_dir_all(&own).unwrap();
    let maker = SandboxMaker::new(SandboxSettings {
        form: Form::Namespaces,
        asks_less: false,
        allows_outside: true,
        excluded: Vec::new(),
        writable: Vec::new(),
        hidden: Vec::new(),
        personal: Vec::new(),
        visible: Vec::new(),
        temporary: root.join("tmp"),
        network_open: false,
        unix_sockets: false,
        own: Some(OwnFolder { folder: own, shown: Vec::new() }),
        report: |_| {},
    });
    (maker, work)
}

/// A repository that runs a program when git looks at it.
fn plant(folder: &Utf8Path) {
    for name in ["objects", "refs"] {
        fs::create_dir_all(folder.join(".git").join(name)).unwrap();
    }
    fs::write(folder.join(".git/HEAD"), "ref: refs/heads/main\n").unwrap();
    fs::write(folder.join(".git/config"), "[core]\n\tfsmonitor = touch ran;\n").unwrap();
}

#[test]
fn first_commands_at_once_leave_nothing_to_the_next_session() {
    const THREADS: usize = 8;
    let (_folder, root) = folder();
    let (maker, work) = session(&root);
    let barrier = Barrier::new(THREADS);
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                barrier.wait();
                maker.known_nested(&work, User::default(), Holding::Done);
            });
        }
    });
    // A record that nobody has locked is that of a killed session.
    assert_eq!(WatchedFolders::new(root.join("state")).left(&work).len(), 0);
}

#[test]
fn what_was_only_listed_is_looked_for_again_before_the_first_command() {
    let (_folder, root) = folder();
    let (maker, work) = session(&root);
    let count = |holding| maker.known_nested(&work, User::default(), holding).repositories.len();
    assert_eq!(count(Holding::Listed), 0);
    plant(&work.join("a"));
    assert_eq!(count(Holding::Done), 1);
    plant(&work.join("b"));
    assert_eq!((count(Holding::Done), count(Holding::Listed)), (1, 1));
}

/// What a session that is killed now leaves: a record that nobody has locked.
fn watch_and_be_killed(root: &Utf8Path, work: &Utf8Path) -> Planted {
    let planted = || Planted::new(Some(WatchedFolders::new(root.join("state"))));
    planted().watch(work, Before::default());
    planted()
}

/// How many records are left.
fn records(root: &Utf8Path, work: &Utf8Path) -> usize {
    WatchedFolders::new(root.join("state")).left(work).len()
}

#[test]
fn what_a_killed_session_left_is_renamed_and_its_record_removed() {
    let (_folder, root) = folder();
    let work = session(&root).1;
    let planted = watch_and_be_killed(&root, &work);
    plant(&work.join("a"));
    assert_eq!(records(&root, &work), 1);
    planted.look_after_killed(&work);
    let told = planted.take_pending().concat();
    assert!(told.contains("A git repository created during that session or after it could run"), "{told}");
    assert!(!work.join("a/.git").exists());
    assert_eq!(records(&root, &work), 0);
}

/// A repository that is there from the beginning cannot be replaced by a command.
#[test]
fn record_of_a_folder_that_a_person_replaced_is_dropped() {
    for replaced in ["work", "work/.git"] {
        let (_folder, root) = folder();
        let work = session(&root).1;
        let planted = watch_and_be_killed(&root, &work);
        // What has another name keeps its inode.
        fs::rename(root.join(replaced), root.join("old")).unwrap();
        fs::create_dir_all(work.join(".git")).unwrap();
        plant(&work.join("a"));
        planted.look_after_killed(&work);
        assert_eq!(planted.take_pending(), [""; 0], "{replaced}");
        assert!(work.join("a/.git").exists());
        assert_eq!(records(&root, &work), 0, "{replaced}");
    }
}

#[test]
fn record_that_cannot_be_read_is_dropped_and_that_of_another_folder_is_kept() {
    let (_folder, root) = folder();
    let work = session(&root).1;
    let all = WatchedFolders::new(root.join("state"));
    let other = Found::new(&root.join("other"), Before::default());
    for bytes in [b"{}".to_vec(), saved::bytes_of(&other, &[]).unwrap()] {
        drop(all.keep(&work, &bytes).unwrap());
    }
    Planted::new(Some(all)).look_after_killed(&work);
    assert_eq!(records(&root, &work), 1);
}

#[test]
fn repositories_beyond_those_that_are_protected_are_looked_at() {
    let (_folder, root) = folder();
    let work = session(&root).1;
    let repositories: Vec<Utf8PathBuf> =
        (0..MOST_PROTECTED + 2).map(|at| work.join(format!("r{at}/.git"))).collect();
    let [.., persons, changed] = repositories.as_slice() else { panic!("there are some") };
    plant(persons.parent().unwrap());
    plant(changed.parent().unwrap());
    fs::write(changed.join("config"), "").unwrap();
    let planted = Planted::default();
    planted.watch(&work, Before { repositories: repositories.clone(), ..Before::default() });
    plant(changed.parent().unwrap());
    let moved = planted.set_aside(&work, true);
    assert_eq!(moved.repositories.len(), 1, "{moved:?}");
    assert!(!changed.exists() && persons.exists());
}

/// Each look gives the outermost ones a name that is text.
#[test]
fn more_names_that_are_no_text_than_are_renamed_are_reported_and_hide_nothing_else() {
    let (_folder, root) = folder();
    let work = session(&root).1;
    let planted = Planted::default();
    planted.watch(&work, Before::default());
    let deep =
        [OsStr::from_bytes(b"\xff"); 30].iter().fold(work.clone().into_std_path_buf(), |a, b| a.join(b));
    fs::create_dir_all(deep.join(".git")).unwrap();
    plant(&work.join("a"));
    let moved = planted.set_aside(&work, true);
    assert_eq!(moved.cut, [work.clone()].into(), "{moved:?}");
    assert!(!work.join("a/.git").exists(), "{moved:?}");
}

#[test]
fn a_checkout_may_lie_only_where_commands_may_write() {
    let (_folder, root) = folder();
    let work = session(&root).1;
    plant(&work.join("bare"));
    fs::rename(work.join("bare/.git"), work.join("bare.git")).unwrap();
    std::os::unix::fs::symlink(".git", work.join("link")).unwrap();
    fs::create_dir(work.join("free")).unwrap();
    std::os::unix::fs::symlink("free", work.join("to-free")).unwrap();
    let rows = [
        ("../../free", false),
        ("../../to-free/new", false),
        ("../../new/deep", false),
        ("../../.decurion/worktrees/agent/sub", false),
        ("../../.git", true),
        ("../../.git/hooks", true),
        ("../../.claude", true),
        ("../../.decurion/worktrees/agent/.git/hooks", true),
        ("../../sub/.vscode", true),
        ("../../bare.git/hooks", true),
        ("../../link/hooks", true),
        ("..", false),
        (".", true),
        ("../../..", true),
    ];
    for (worktree, is_renamed) in rows {
        let planted = Planted::default();
        let repositories = vec![work.join("bare.git")];
        planted.watch(&work, Before { repositories, ..Before::default() });
        plant(&work.join("a"));
        let config = format!("[core]\n\tworktree = {worktree}\n");
        fs::write(work.join("a/.git/config"), config).unwrap();
        let moved = planted.set_aside(&work, true);
        assert_eq!(!work.join("a/.git").exists(), is_renamed, "{worktree}: {moved:?}");
        fs::remove_dir_all(work.join("a")).unwrap();
    }
}

/// Decurion, a person or another agent may add a worktree while a command ends.
#[test]
fn worktree_that_git_is_adding_is_left_alone() {
    let (_folder, root) = folder();
    let work = session(&root).1;
    let planted = Planted::default();
    planted.watch(&work, Before::default());
    let added = work.join(".git/worktrees/added");
    fs::create_dir_all(&added).unwrap();
    // In the order in which git makes them; each is empty for a moment.
    for (name, text) in [
        ("locked", "initializing"),
        ("gitdir", "/elsewhere/.git\n"),
        ("HEAD", "0000000000000000000000000000000000000000\n"),
        ("commondir", "../..\n"),
    ] {
        for text in ["", text] {
            fs::write(added.join(name), text).unwrap();
            let moved = planted.set_aside(&work, true).text("this session");
            assert_eq!(moved, None, "{name}: {text:?}");
        }
    }
    fs::write(added.join("commondir"), "../../..\n").unwrap();
    assert!(planted.set_aside(&work, true).text("this session").is_some());
}
