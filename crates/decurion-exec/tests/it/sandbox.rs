//! What a sandboxed command can and cannot do, judged by effects. Each attempt is also made without a sandbox, to see
//! that it works there.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use decurion_exec::{Exit, Form, Launch, LaunchError, Reach, Sandbox, Stdin, shell};
use tempfile::TempDir;

use rustix::process::{Pid, Signal, kill_process};

use crate::house::{House, children, wait_for_ends, watch, within};

/// Where rooms are made, if not where the build has its temporary files.
pub const ROOMS: &str = "DECURION_TEST_ROOMS";

/// Not in the folder for temporary files, which is covered.
pub fn rooms() -> PathBuf {
    std::env::var_os(ROOMS).map_or_else(|| env!("CARGO_TARGET_TMPDIR").into(), PathBuf::from)
}

/// A guard, and a folder with a workspace, a secret and a place outside.
pub struct Room {
    pub house: House,
    folder: TempDir,
}

impl Room {
    pub fn new() -> Self {
        Self::new_in(&rooms())
    }

    pub fn new_in(parent: &Path) -> Self {
        let folder = tempfile::tempdir_in(parent).unwrap();
        for name in ["work/src/deep", "work/.git/hooks", "tmp", "outside", "home/secret", "home/tool"] {
            std::fs::create_dir_all(folder.path().join(name)).unwrap();
        }
        for name in ["home/secret/key", "home/note", "home/tool/key", "work/.env", "work/src/deep/key"] {
            std::fs::write(folder.path().join(name), "canary").unwrap();
        }
        for name in ["work/.git/config", "work/file", "outside/file"] {
            std::fs::write(folder.path().join(name), "before").unwrap();
        }
        Self { house: House::new(), folder }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().canonicalize().unwrap().join(name)
    }

    /// The workspace can be written, but for git's settings; two files and a folder are hidden.
    pub fn sandbox(&self) -> Sandbox {
        Sandbox {
            writable: vec![self.path("work")],
            read_only: vec![self.path("work/.git/hooks"), self.path("work/.git/config")],
            links: Vec::new(),
            hidden: ["home/secret", "work/.env", "work/src/deep/key"].map(|name| self.path(name)).to_vec(),
            visible: vec![self.path("work")],
            tmp: Some(self.path("tmp")),
            shown_tmp: None,
            network: true,
            reach: Reach::Session,
            unix_sockets: false,
            sees_machine: false,
        }
    }

    pub fn launch(&self, command: &str, sandbox: Option<Sandbox>) -> Launch {
        let mut env = self.house.env();
        env.push(("ROOM".into(), self.path("").into()));
        Launch { sandbox: sandbox.map(Arc::new), env, ..shell::bash(command, self.path("work"), false) }
    }

    pub async fn run(&self, command: &str, sandbox: Option<Sandbox>) -> (String, Exit) {
        self.house.run(self.launch(command, sandbox)).await
    }

    /// The reapers of the guard that starts commands in a sandbox of this form.
    fn reapers(&self, form: Form) -> Vec<Pid> {
        let guard = &self.house.guard;
        let guard = if form == Form::Namespaces { guard.sandbox_pid() } else { guard.pid() };
        children(guard.unwrap())
    }

    /// Puts another file in the place of a hidden one.
    fn replace_hidden(&self) {
        std::fs::write(self.path("work/fresh"), "canary").unwrap();
        std::fs::rename(self.path("work/fresh"), self.path("work/.env")).unwrap();
    }

    /// How often commands wrote to the file `log`.
    fn lines_written(&self) -> usize {
        std::fs::read_to_string(self.path("work/log")).unwrap_or_default().lines().count()
    }

    /// All files below the folder with their modes and contents, but for those of the private temporary folder.
    fn snapshot(&self) -> Vec<(PathBuf, u32, Vec<u8>)> {
        let mut found = Vec::new();
        let mut folders = vec![self.path("")];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap().flatten() {
                use std::os::unix::fs::PermissionsExt as _;
                let (path, about) = (entry.path(), entry.metadata().unwrap());
                if about.is_dir() && path != self.path("tmp") {
                    folders.push(path.clone());
                }
                let content = if about.is_file() { std::fs::read(&path).unwrap() } else { Vec::new() };
                found.push((path, about.permissions().mode(), content));
            }
        }
        found.sort();
        found
    }
}

/// Attempts that change something outside of what may be written.
const CHANGES: &[&str] = &[
    "echo x > ../outside/new",
    "echo x >> ../outside/file",
    "rm ../outside/file",
    "mv ../outside/file ../outside/moved",
    "mkdir ../outside/folder",
    "ln -s x ../outside/link",
    "ln file ../outside/hard",
    "chmod 777 ../outside/file",
    "mkfifo ../outside/pipe",
    "truncate -s 0 ../outside/file",
    "cp file ../outside/copy",
    "cd .. && echo x > outside/new",
    "ln -s ../outside way && echo x > way/new; rm -f way",
    "bash -c 'setsid -w bash -c \"echo x > ../outside/new\"'",
    "echo x > .git/hooks/pre-commit",
    "echo x > .git/config",
    "rm .git/config",
    "echo x > c && mv c .git/config; rm -f c",
    "mv .git git && echo x > git/config && mv git .git; [ -d git ] && mv git .git",
    "rm -rf .git/hooks",
    "echo x > $ROOM/home/note",
];

/// Attempts to read what is hidden.
const READS: &[&str] = &[
    "cat .env",
    "cat $ROOM/home/secret/key",
    "ln .env other && cat other; rm -f other",
    "ln -s .env other && cat other; rm -f other",
    "cp .env other && cat other; rm -f other",
    "cat /proc/self/root/$ROOM/work/.env",
    "cat /proc/self/cwd/.env",
    "cat src/deep/key",
    "mv src moved && cat moved/deep/key; [ -d moved ] && mv moved src",
    "mv src/deep moved && cat moved/key; [ -d moved ] && mv moved src/deep",
    "tar c . | tar x -O ./.env",
    "grep -r canary .",
    "exec 5<.env; cat <&5",
    "xargs -a .env echo",
];

#[tokio::test]
async fn nothing_outside_changes() {
    let room = Room::new();
    assert_eq!(room.house.guard.form().await.unwrap(), Form::Namespaces);
    for attempt in CHANGES {
        let before = room.snapshot();
        let (output, _) = room.run(attempt, Some(room.sandbox())).await;
        assert_eq!(before, room.snapshot(), "{attempt}: {output}");
        let open = Room::new();
        let before = open.snapshot();
        open.run(attempt, None).await;
        assert_ne!(before, open.snapshot(), "without a sandbox this has no effect: {attempt}");
    }
}

#[tokio::test]
async fn links_can_be_followed_and_not_replaced() {
    let room = Room::new();
    std::fs::create_dir_all(room.path("work/conf/deep")).unwrap();
    std::fs::write(room.path("work/conf/deep/file"), "kept").unwrap();
    let link = |name: &str, target: &str| {
        std::os::unix::fs::symlink(target, room.path(name)).unwrap();
        room.path(name)
    };
    let links = vec![
        link("work/.claude", "conf/deep"),
        link("work/src/settings", "../conf/deep/file"),
        link("work/dangling", "nowhere"),
    ];
    let pinned = Sandbox { links, read_only: vec![room.path("work/conf/deep")], ..room.sandbox() };
    let (output, exit) =
        room.run("cat .claude/file src/settings; readlink dangling", Some(pinned.clone())).await;
    assert!(exit.success(), "{output}");
    assert_eq!(output, "keptkeptnowhere\n");
    for attempt in [
        "rm -f .claude; mkdir .claude && echo x > .claude/file",
        "ln -sfn src .claude",
        "mv .claude gone",
        "mv src s && mkdir src && echo x > src/settings",
        "echo x > new && mv -fT new src/settings; rm -f new",
        "echo x > .claude/file",
        "rm dangling && echo x > dangling",
        "mv conf c",
        "perl -e 'unlink q(.claude); rename q(src/settings), q(z); symlink q(src), q(dangling)'",
    ] {
        let before = room.snapshot();
        let (output, _) = room.run(attempt, Some(pinned.clone())).await;
        assert_eq!(before, room.snapshot(), "{attempt}: {output}");
    }
    let before = room.snapshot();
    let open = Sandbox { links: Vec::new(), ..pinned };
    room.run("rm -f .claude; mkdir .claude", Some(open)).await;
    assert_ne!(before, room.snapshot(), "a link that is not pinned can be replaced");
}

#[tokio::test]
async fn what_is_hidden_cannot_be_read() {
    let room = Room::new();
    for attempt in READS {
        let (output, _) = room.run(attempt, Some(room.sandbox())).await;
        assert!(!output.contains("canary"), "{attempt}: {output}");
        let (output, _) = Room::new().run(attempt, None).await;
        assert!(output.contains("canary"), "without a sandbox this does not read it: {attempt}: {output}");
    }
}

#[tokio::test]
async fn ordinary_work_is_not_disturbed() {
    for form in [Form::Namespaces, Form::Bubblewrap] {
        let room = Room::new();
        room.house.guard.force_form(form);
        work_as_usual(&room).await;
    }
}

async fn work_as_usual(room: &Room) {
    for work in [
        "echo x > new && cat new && mv new newer && rm newer",
        "mkdir -p a/b && touch a/b/c && rm -r a",
        "echo x > /tmp/x && cat /var/tmp/x && rm /tmp/x",
        "touch .git/index.lock && mv .git/index.lock .git/index",
        "cat ../outside/file $ROOM/home/note",
        "ls -la / /etc /usr/bin > /dev/null",
        "head -c 10 /dev/urandom > /dev/null; echo > /dev/null",
        "sleep 0 & wait",
        "(trap 'exit 0' TERM; kill -TERM $BASHPID; exit 1)",
        "diff <(echo a) <(echo a)",
        "ps ax | grep -q ps",
        "script -qec 'test -t 1 && tty' /dev/null",
        "test $$ -gt 1",
    ] {
        let (output, exit) = room.run(work, Some(room.sandbox())).await;
        assert!(exit.success(), "{work}: {exit:?} {output}");
    }
}

#[tokio::test]
async fn landlock_alone_lets_most_work_be_done() {
    let room = Room::new();
    room.house.guard.force_form(Form::Landlock);
    std::fs::create_dir(room.path("work/lib")).unwrap();
    for work in [
        "echo x > file && cat file",
        "cd lib && echo x > new && cat new && mv new newer && ln newer other && rm newer other",
        "cd lib && mkdir -p a/b && touch a/b/c && rm -r a",
        "echo x > $ROOM/tmp/x && cat $ROOM/tmp/x && rm $ROOM/tmp/x",
        "cat ../outside/file $ROOM/home/note .git/config",
        "ls -la / /etc /usr/bin . > /dev/null",
        "head -c 10 /dev/urandom > /dev/null; echo > /dev/null",
        "sleep 0 & wait; diff <(echo a) <(echo a)",
        "(trap 'exit 0' TERM; kill -TERM $BASHPID; exit 1)",
        "cat /proc/self/status /proc/cpuinfo > /dev/null; echo x > /dev/stderr",
    ] {
        let (output, exit) = room.run(work, Some(room.sandbox())).await;
        assert!(exit.success(), "{work}: {exit:?} {output}");
    }
    let open = Sandbox { read_only: Vec::new(), hidden: vec![room.path("home/secret")], ..room.sandbox() };
    let (output, exit) =
        room.run("mkdir new && echo x > new/file && mv new newer && rm -r newer", Some(open)).await;
    assert!(exit.success(), "{exit:?} {output}");
}

#[tokio::test]
async fn a_hidden_folder_keeps_what_must_stay_in_sight() {
    for form in [Form::Namespaces, Form::Bubblewrap] {
        let room = Room::new();
        room.house.guard.force_form(form);
        keep_in_sight(&room).await;
    }
}

async fn keep_in_sight(room: &Room) {
    let sandbox = Sandbox {
        hidden: vec![room.path("home")],
        visible: vec![room.path("home/tool")],
        writable: vec![room.path("home/secret")],
        ..room.sandbox()
    };
    let (output, exit) = room
        .run(
            "cat $ROOM/home/tool/key; echo; ls $ROOM/home; echo x > $ROOM/home/secret/new",
            Some(sandbox.clone()),
        )
        .await;
    assert_eq!(output, "canary\nsecret\ntool\n");
    assert!(exit.success());
    assert_eq!(std::fs::read_to_string(room.path("home/secret/new")).unwrap(), "x\n");
    for attempt in ["cat $ROOM/home/note", "echo x > $ROOM/home/tool/key", "echo x > $ROOM/home/new"] {
        let before = room.snapshot();
        let (output, exit) = room.run(attempt, Some(sandbox.clone())).await;
        assert!(!exit.success() && !output.contains("canary"), "{attempt}: {output}");
        assert_eq!(before, room.snapshot(), "{attempt}");
    }
}

#[tokio::test]
async fn what_is_shown_in_a_writable_folder_stays_writable() {
    for form in [Form::Namespaces, Form::Bubblewrap] {
        let room = Room::new();
        room.house.guard.force_form(form);
        write_what_is_shown(&room).await;
    }
}

async fn write_what_is_shown(room: &Room) {
    let sandbox = Sandbox {
        hidden: vec![room.path("")],
        writable: vec![room.path("work")],
        visible: vec![room.path("work/src"), room.path("outside")],
        read_only: Vec::new(),
        ..room.sandbox()
    };
    let (output, exit) =
        room.run("echo x > src/new && mv src moved && cat ../outside/file", Some(sandbox)).await;
    assert!(exit.success(), "{output}");
    assert_eq!(output, "before");
}

/// As where a container has its home below `/tmp`.
#[tokio::test]
async fn a_home_below_the_folder_for_temporary_files_is_shown_with_its_files() {
    for form in [Form::Namespaces, Form::Bubblewrap] {
        let room = Room::new_in(Path::new("/var/tmp"));
        room.house.guard.force_form(form);
        let sandbox = Sandbox {
            visible: ["work", "home", "home/note"].map(|name| room.path(name)).to_vec(),
            ..room.sandbox()
        };
        let (output, exit) = room.run("touch new && cat $ROOM/home/note", Some(sandbox.clone())).await;
        assert_eq!((output.as_str(), exit.success()), ("canary", true));
        let before = room.snapshot();
        for attempt in ["echo x > $ROOM/home/note", "echo x > $ROOM/home/new", "cat $ROOM/home/secret/key"] {
            let (output, exit) = room.run(attempt, Some(sandbox.clone())).await;
            assert!(!exit.success() && !output.contains("canary"), "{attempt}: {output}");
        }
        assert_eq!(before, room.snapshot());
    }
}

#[tokio::test]
async fn sandboxes_change_from_command_to_command() {
    for form in [Form::Namespaces, Form::Bubblewrap, Form::Landlock] {
        let room = Room::new();
        room.house.guard.force_form(form);
        let mut reading = room.sandbox();
        reading.writable.clear();
        let mut hiding = room.sandbox();
        hiding.hidden.push(room.path("work/file"));
        for _ in 0..3 {
            let (_, exit) = room.run("echo x > file", Some(room.sandbox())).await;
            assert!(exit.success());
            let (output, exit) = room.run("cat file && echo y > file", Some(reading.clone())).await;
            assert!(!exit.success() && output.starts_with("x\n"), "{form:?}: {output}");
            let (output, exit) = room.run("cat file", Some(hiding.clone())).await;
            assert!(!exit.success() && !output.contains('x'), "{form:?}: {output}");
        }
    }
}

#[tokio::test]
async fn each_sandbox_has_a_reaper_which_is_filtered_once() {
    let count_filters = "sed -n 's/^Seccomp_filters:.//p' /proc/self/status";
    let filters = |pid: Pid| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("Seccomp_filters:"));
        line.unwrap().trim().parse::<usize>().unwrap()
    };
    // These tests may run in a sandbox themselves.
    let before = filters(rustix::process::getpid());
    for form in [Form::Namespaces, Form::Landlock] {
        let room = Room::new();
        room.house.guard.force_form(form);
        let reading = Sandbox { writable: vec![room.path("tmp")], ..room.sandbox() };
        let mut reapers = Vec::new();
        for round in 0..3 {
            for (sandbox, expected) in
                [(Some(room.sandbox()), before + 1), (Some(reading.clone()), before + 1), (None, before)]
            {
                let (output, exit) = room.run(count_filters, sandbox).await;
                assert_eq!((output, exit), (format!("{expected}\n"), Exit::Code(0)), "{form:?} {round}");
            }
            if round == 0 {
                reapers = room.reapers(form);
            }
        }
        assert_eq!(room.reapers(form), reapers, "{form:?}: reapers are used again");
        let mut counts: Vec<usize> = reapers.into_iter().map(|pid| filters(pid) - before).collect();
        counts.sort_unstable();
        // Without namespaces the same guard has a reaper for commands without a sandbox.
        let expected = if form == Form::Namespaces { vec![1, 1] } else { vec![0, 1, 1] };
        assert_eq!(counts, expected, "{form:?}");
    }
}

#[tokio::test]
async fn a_command_that_two_reapers_cannot_start_any_more_is_started_once_by_a_third() {
    let room = Room::new();
    room.house.guard.force_form(Form::Namespaces);
    let launch = |command| Launch { stdin: Stdin::Piped, ..room.launch(command, Some(room.sandbox())) };
    let wait = "echo x >> log; cat; cat .env";
    let mut both = Vec::new();
    for _ in 0..2 {
        both.push(room.house.guard.start(launch(wait)).await.unwrap());
    }
    for process in &mut both {
        process.stdin = None;
        within(process.wait()).await;
    }
    let idle = room.reapers(Form::Namespaces);
    assert_eq!(idle.len(), 2);
    let ends = watch(&idle);
    room.replace_hidden();
    let (output, _) = room.run("echo x >> log; cat .env", Some(room.sandbox())).await;
    assert!(!output.contains("canary"), "{output}");
    assert_eq!(room.lines_written(), 3);
    wait_for_ends(&ends);
    assert_eq!(room.reapers(Form::Namespaces).len(), 1);
}

#[tokio::test]
async fn a_command_is_not_started_twice_when_its_reaper_is_killed() {
    let room = Room::new();
    room.house.guard.force_form(Form::Namespaces);
    let mut written = 0;
    for round in 0..60_u32 {
        // An idle reaper, which cannot start the next command.
        let (_, exit) = room.run("echo x >> log", Some(room.sandbox())).await;
        written += 1;
        assert_eq!((exit, room.lines_written()), (Exit::Code(0), written), "{round}");
        room.replace_hidden();
        let idle = room.reapers(Form::Namespaces);
        let killer = tokio::task::spawn_blocking(move || {
            // Each round a little later than the one before, so that the reaper dies at all points of its work.
            let begun = std::time::Instant::now();
            while begun.elapsed() < std::time::Duration::from_micros(10) * round {
                std::hint::spin_loop();
            }
            for pid in idle {
                let _ = kill_process(pid, Signal::KILL);
            }
        });
        let (_, exit) = room.run("echo x >> log", Some(room.sandbox())).await;
        killer.await.unwrap();
        let now = room.lines_written();
        assert!(now == written + 1 || exit == Exit::Unknown && now == written, "{round}: {exit:?}");
        written = now;
    }
}

#[tokio::test]
async fn a_hidden_file_that_is_replaced_between_commands_stays_hidden() {
    for form in [Form::Namespaces, Form::Bubblewrap, Form::Landlock] {
        let room = Room::new();
        room.house.guard.force_form(form);
        let other = Sandbox { network: false, ..room.sandbox() };
        for round in 0..3 {
            std::fs::write(room.path("work/fresh"), format!("canary {round}")).unwrap();
            // What was made for these is kept; the folder's last change is old enough for its time to tell of the next.
            for sandbox in [&other, &room.sandbox(), &other] {
                let (output, _) = room.run("sleep 0.1; cat fresh", Some(sandbox.clone())).await;
                assert!(output.contains("canary"), "{form:?}: {output}");
            }
            std::fs::rename(room.path("work/fresh"), room.path("work/.env")).unwrap();
            for sandbox in [&room.sandbox(), &other] {
                let (output, _) = room.run("cat .env", Some(sandbox.clone())).await;
                assert!(!output.contains("canary"), "{form:?}: {output}");
            }
            std::fs::remove_file(room.path("work/.env")).unwrap();
            let (output, exit) = room.run("cat .env", Some(room.sandbox())).await;
            assert!(!exit.success() && output.contains("No such file"), "{form:?}: {output}");
        }
    }
}

#[tokio::test]
async fn folder_that_is_exchanged_between_commands_is_not_written() {
    for form in [Form::Namespaces, Form::Bubblewrap, Form::Landlock] {
        let room = Room::new();
        room.house.guard.force_form(form);
        let sandbox = Sandbox { read_only: Vec::new(), hidden: Vec::new(), ..room.sandbox() };
        let run = async |command: &str| {
            let launch = Launch { cwd: "/".into(), ..room.launch(command, Some(sandbox.clone())) };
            room.house.run(launch).await.1.success()
        };
        assert!(run("sleep 0.1; echo x > $ROOM/work/file").await, "{form:?}");
        assert!(run("echo x > $ROOM/work/file").await, "{form:?}");
        std::fs::rename(room.path("work"), room.path("moved")).unwrap();
        std::fs::create_dir(room.path("work")).unwrap();
        assert!(!run("echo x > $ROOM/moved/file").await, "{form:?}");
        assert!(run("echo x > $ROOM/work/file").await, "{form:?}");
    }
}

#[tokio::test]
async fn a_link_on_the_way_fails_the_start() {
    for form in [Form::Namespaces, Form::Bubblewrap, Form::Landlock] {
        let room = Room::new();
        room.house.guard.force_form(form);
        std::os::unix::fs::symlink(room.path("outside"), room.path("work/link")).unwrap();
        for list in 0..3 {
            for name in ["work/link", "work/link/file"] {
                let mut sandbox = room.sandbox();
                let lists = [&mut sandbox.writable, &mut sandbox.read_only, &mut sandbox.hidden];
                lists.into_iter().nth(list).unwrap().push(room.path(name));
                let error = room.house.guard.start(room.launch("true", Some(sandbox))).await.unwrap_err();
                let LaunchError::Sandbox { what, .. } = &error else { panic!("{error}") };
                // A folder above it may be found first.
                let named = [room.path(name).display().to_string(), "its view of the files".to_owned()];
                assert!(named.contains(what), "{form:?}: {what}");
            }
        }
    }
}

#[tokio::test]
async fn sockets_that_are_not_allowed_cannot_be_opened() {
    let room = Room::new();
    let open = |family: &str| {
        format!(
            "perl -MSocket -e 'socket(my $s, {family}, SOCK_STREAM, 0) or die \"refused: $!\"; print \"open\"'"
        )
    };
    let offline = Sandbox { network: false, ..room.sandbox() };
    for (family, sandbox, opens) in [
        ("AF_INET", room.sandbox(), true),
        ("AF_INET6", room.sandbox(), true),
        ("AF_UNIX", room.sandbox(), false),
        ("AF_UNIX", Sandbox { unix_sockets: true, ..room.sandbox() }, true),
        ("17", room.sandbox(), false),
        ("40", room.sandbox(), false),
        ("AF_INET", offline.clone(), false),
        ("AF_INET6", offline, false),
    ] {
        let (output, _) = room.run(&open(family), Some(sandbox)).await;
        assert_eq!(output.contains("open"), opens, "{family}: {output}");
    }
}

#[tokio::test]
async fn the_network_is_the_command_s_own() {
    let room = Room::new();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let connect = format!("exec 3<>/dev/tcp/127.0.0.1/{port}");
    let (output, exit) = room.run(&connect, Some(room.sandbox())).await;
    assert!(!exit.success(), "{output}");
    assert!(room.run(&connect, None).await.1.success());
}

#[tokio::test]
async fn with_the_machine_s_network_the_rest_of_the_sandbox_holds() {
    for form in [Form::Namespaces, Form::Landlock] {
        let room = Room::new();
        room.house.guard.force_form(form);
        let machine = || Some(Sandbox { reach: Reach::Machine, ..room.sandbox() });
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let connect = format!("exec 3<>/dev/tcp/127.0.0.1/{}", listener.local_addr().unwrap().port());
        let (output, exit) = room.run(&connect, machine()).await;
        assert!(exit.success(), "{form:?}: {output}");
        assert!(listener.accept().is_ok());
        let attempts = "echo x > $ROOM/outside/file; echo x > .git/config; cat $ROOM/home/secret/key .env; \
                        perl -MSocket -e 'socket(my $s, AF_UNIX, SOCK_STREAM, 0) and print \"canary\"'; echo x > file";
        let (output, _) = room.run(attempts, machine()).await;
        assert!(!output.contains("canary"), "{form:?}: {output}");
        let content = |name: &str| std::fs::read_to_string(room.path(name)).unwrap();
        let contents = [content("outside/file"), content("work/.git/config"), content("work/file")];
        assert_eq!(contents, ["before", "before", "x\n"], "{form:?}: {output}");
        let (kill, _) = room.run(&format!("kill -0 {} && echo there", std::process::id()), machine()).await;
        assert!(!kill.contains("there"), "{form:?}: {kill}");
        // Commands do not get that network, whichever came first.
        let (output, exit) = room.run(&connect, Some(room.sandbox())).await;
        assert_eq!(exit.success(), form == Form::Landlock, "{output}");
        assert_eq!(room.house.guard.machine_pid().is_some(), form == Form::Namespaces);
    }
}

#[tokio::test]
async fn commands_of_a_session_reach_each_other_s_servers() {
    let room = Room::new();
    let serve = "perl -MIO::Socket::INET -e '$s = IO::Socket::INET->new(Listen => 1, LocalPort => 8123) or die; \
                 $| = 1; print \"up\\n\"; $c = $s->accept; print $c \"hello\\n\"'";
    let mut server = room.house.guard.start(room.launch(serve, Some(room.sandbox()))).await.unwrap();
    let mut up = [0_u8; 3];
    let stdout = server.stdout.as_mut().unwrap();
    within(tokio::io::AsyncReadExt::read_exact(stdout, &mut up)).await.unwrap();
    let (output, _) = room.run("exec 3<>/dev/tcp/127.0.0.1/8123; cat <&3", Some(room.sandbox())).await;
    assert_eq!(output, "hello\n");
    assert!(within(server.wait()).await.success());
}

#[tokio::test]
async fn a_command_ends_with_all_it_started_when_its_first_process_is_killed() {
    let room = Room::new();
    let command = "setsid nohup sleep 1000 & (sleep 1000 & disown); trap '' TERM; echo up; sleep 1000";
    let mut process = room.house.guard.start(room.launch(command, Some(room.sandbox()))).await.unwrap();
    let mut up = [0_u8; 3];
    let stdout = process.stdout.as_mut().unwrap();
    within(tokio::io::AsyncReadExt::read_exact(stdout, &mut up)).await.unwrap();
    // The kernel ends what is in a pid namespace with its first process, whoever else is killed with it.
    let guard = room.house.guard.sandbox_pid().unwrap();
    let reapers = children(guard);
    assert_eq!(reapers.len(), 1);
    let watched = watch(&room.house.alive());
    assert!(watched.len() >= 3, "the command and what it started");
    for pid in reapers.into_iter().chain(rustix::process::Pid::from_raw(guard.cast_signed())) {
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    }
    assert_eq!(within(process.wait()).await, Exit::Unknown);
    wait_for_ends(&watched);
    room.house.assert_empty();
}

#[tokio::test]
async fn bubblewrap_keeps_what_other_paths_decide() {
    let room = Room::new();
    room.house.guard.force_form(Form::Bubblewrap);
    std::fs::create_dir_all(room.path("work/fixed/open")).unwrap();
    std::fs::create_dir_all(room.path("work/fixed/way/deep")).unwrap();
    std::fs::write(room.path("work/fixed/way/deep/key"), "canary").unwrap();
    // In a read-only folder: one that can be written, and a way to what is hidden.
    let mut sandbox = room.sandbox();
    sandbox.read_only.extend([room.path("work/fixed"), room.path("home/secret/key")]);
    sandbox.writable.push(room.path("work/fixed/open"));
    sandbox.hidden.push(room.path("work/fixed/way/deep/key"));
    for (work, succeeds) in [
        ("echo x > fixed/open/new", true),
        ("echo x > fixed/new", false),
        ("echo x > fixed/way/new", false),
        ("echo x > fixed/way/deep/new", false),
        ("cat fixed/way/deep/key", false),
        ("cat $ROOM/home/secret/key", false),
        ("mv fixed/way fixed/open/way", false),
        ("ls fixed/way/deep/key && test -w fixed/open", true),
    ] {
        let (output, exit) = room.run(work, Some(sandbox.clone())).await;
        assert_eq!(exit.success(), succeeds, "{work}: {output}");
        assert!(!output.contains("canary"), "{work}: {output}");
    }
}

#[tokio::test]
async fn bubblewrap_runs_commands_as_they_would_run_without() {
    let room = Room::new();
    room.house.guard.force_form(Form::Bubblewrap);
    for (command, exit) in [("exit 7", Exit::Code(7)), ("kill -9 $$", Exit::Code(137))] {
        assert_eq!(room.run(command, Some(room.sandbox())).await.1, exit);
    }
    // The environment is the command's, and only that; so are its directory and arguments.
    let (output, _) = room.run("env | cut -d= -f1 | sort | tr '\\n' ' '; pwd", Some(room.sandbox())).await;
    let told = format!("DECURION_TEST_MARK PATH PWD ROOM SHLVL _ {}\n", room.path("work").display());
    assert_eq!(output, told);
    let missing = Launch { program: "no-such-program".into(), ..room.launch("true", Some(room.sandbox())) };
    let error = room.house.guard.start(missing).await.unwrap_err();
    assert!(matches!(error, LaunchError::NoProgram { .. }), "{error}");
    let elsewhere = Launch { cwd: room.path("home/secret"), ..room.launch("cat key", Some(room.sandbox())) };
    assert!(!room.house.run(elsewhere).await.0.contains("canary"));
    // It is asked to end before it is killed, and what it left ends with it.
    let command =
        "setsid sleep 1000 & trap 'echo asked; exit 5' TERM; echo up; while true; do sleep 0.1; done";
    let mut process = room.house.guard.start(room.launch(command, Some(room.sandbox()))).await.unwrap();
    let mut up = [0_u8; 3];
    let stdout = process.stdout.as_mut().unwrap();
    within(tokio::io::AsyncReadExt::read_exact(stdout, &mut up)).await.unwrap();
    assert_eq!(within(process.stop(std::time::Duration::from_secs(50))).await, Exit::Code(5));
    room.house.assert_empty();
}

#[tokio::test]
async fn a_command_that_lists_the_machine_sees_it_and_writes_nothing() {
    let room = Room::new();
    let sandbox = Sandbox { sees_machine: true, writable: Vec::new(), network: false, ..room.sandbox() };
    let list = format!("ps -p {}; echo x > file; cat .env", std::process::id());
    let (output, _) = room.run(&list, Some(sandbox)).await;
    assert!(output.contains(&std::process::id().to_string()), "{output}");
    assert!(!output.contains("canary"), "{output}");
    assert_eq!(std::fs::read_to_string(room.path("work/file")).unwrap(), "before");
}

#[tokio::test]
async fn other_processes_can_be_neither_seen_nor_ended() {
    let room = Room::new();
    let outside = std::process::id();
    let attempts =
        [format!("kill -0 {outside}"), "kill -KILL 1".to_owned(), "cat /proc/1/environ".to_owned()];
    for attempt in attempts {
        let (output, exit) = room.run(&attempt, Some(room.sandbox())).await;
        assert!(!exit.success(), "{attempt}: {output}");
    }
}

#[tokio::test]
async fn a_private_folder_that_is_replaced_between_commands_can_be_used() {
    let room = Room::new();
    for _ in 0..3 {
        let (output, exit) = room.run("echo x > /tmp/x && cat /tmp/x", Some(room.sandbox())).await;
        assert!(exit.success(), "{output}");
        std::fs::remove_dir_all(room.path("tmp")).unwrap();
        std::fs::create_dir(room.path("tmp")).unwrap();
    }
}

#[tokio::test]
async fn another_temporary_folder_is_shown_and_cannot_be_written() {
    for form in [Form::Namespaces, Form::Bubblewrap] {
        let room = Room::new();
        room.house.guard.force_form(form);
        std::fs::create_dir(room.path("own")).unwrap();
        std::fs::write(room.path("tmp/log"), "of another").unwrap();
        let mut sandbox =
            Sandbox { tmp: Some(room.path("own")), shown_tmp: Some(room.path("tmp")), ..room.sandbox() };
        sandbox.writable = vec![room.path("own")];
        let attempts = "for to in /tmp /var/tmp $ROOM/tmp; do echo x > $to/new; echo x > $to/log; done; \
                        chmod 777 /tmp/log; rm -f /tmp/log; mv /tmp/log /tmp/moved";
        room.run(attempts, Some(sandbox.clone())).await;
        for (command, expected) in [
            ("cat /tmp/log /var/tmp/log $ROOM/tmp/log", "of anotherof anotherof another"),
            ("echo x > $ROOM/own/x; cd /dev/shm; mkdir y; echo *", "x y\n"),
        ] {
            let (output, _) = room.run(command, Some(sandbox.clone())).await;
            assert!(output.starts_with(expected), "{form:?}: {command}: {output}");
        }
        let left: Vec<_> = std::fs::read_dir(room.path("tmp")).unwrap().flatten().collect();
        assert_eq!(left.len(), 1, "{form:?}: {left:?}");
        assert_eq!(std::fs::read_to_string(room.path("tmp/log")).unwrap(), "of another", "{form:?}");
    }
}

#[tokio::test]
async fn terminals_of_a_command_are_its_own() {
    let room = Room::new();
    let terminal = "script -qec 'tty; sleep 600' /dev/null";
    let mut process = room.house.guard.start(room.launch(terminal, Some(room.sandbox()))).await.unwrap();
    let mut up = [0_u8; 10];
    let stdout = process.stdout.as_mut().unwrap();
    within(tokio::io::AsyncReadExt::read_exact(stdout, &mut up)).await.unwrap();
    assert_eq!(std::str::from_utf8(&up), Ok("/dev/pts/0"));
    let reader = Sandbox { writable: vec![room.path("tmp")], ..room.sandbox() };
    for other in [room.sandbox(), reader] {
        let (output, _) = room.run("echo text > /dev/pts/0 && echo escaped", Some(other)).await;
        assert!(!output.contains("escaped"), "{output}");
    }
    assert_eq!(within(process.stop(std::time::Duration::ZERO)).await, Exit::Signal(9));
}

#[tokio::test]
async fn what_a_command_shares_by_number_or_name_ends_with_it() {
    let room = Room::new();
    let make = "perl -e 'printf qq(%d %d %d\\n), map { defined } \
                shmget(4217, 100, 01600), msgget(4217, 01600), semget(4217, 1, 01600)'";
    let find = make.replace("01600", "0");
    for form in [Form::Namespaces, Form::Bubblewrap] {
        room.house.guard.force_form(form);
        let (output, _) = room.run(&format!("{make}; {find}"), Some(room.sandbox())).await;
        assert_eq!(output, "1 1 1\n1 1 1\n", "{form:?}: the command itself finds them");
        let (output, _) = room.run(&find, Some(room.sandbox())).await;
        assert_eq!(output, "0 0 0\n", "{form:?}");
    }
}

#[tokio::test]
#[ignore = "a measurement: run it alone, in a release build, with --nocapture"]
#[allow(clippy::print_stdout, reason = "it is what the measurement is for")]
async fn what_a_sandbox_costs() {
    let forms = [Form::Namespaces, Form::Namespaces, Form::Landlock, Form::Landlock, Form::Bubblewrap];
    let rooms = forms.map(|form| {
        let room = Room::new();
        room.house.guard.force_form(form);
        room
    });
    let [namespaces, changed, alone, changed_alone, wrapped] = &rooms;
    let other = Sandbox { read_only: Vec::new(), ..namespaces.sandbox() };
    let turns = [
        ("none", namespaces, vec![None]),
        ("namespaces, the same", namespaces, vec![Some(namespaces.sandbox())]),
        ("namespaces, two in turn", namespaces, vec![Some(namespaces.sandbox()), Some(other)]),
        ("namespaces, after a hidden file was replaced", changed, vec![Some(changed.sandbox())]),
        ("landlock", alone, vec![Some(alone.sandbox())]),
        ("landlock, after a folder was changed", changed_alone, vec![Some(changed_alone.sandbox())]),
        ("bubblewrap", wrapped, vec![Some(wrapped.sandbox())]),
    ];
    // By turns, so that what else the machine does weighs on all alike. The first rounds start guards and reapers. What
    // bubblewrap leaves to the kernel would weigh on the others, so that it comes last.
    let (cheap, dear) = ((0..630), (630..1260));
    let mut took: Vec<Vec<std::time::Duration>> = vec![Vec::new(); turns.len()];
    for round in cheap.chain(dear.clone()) {
        let is_due = |what: &str| (what == "bubblewrap") == dear.contains(&round);
        let due = turns.iter().zip(&mut took).filter(|((what, ..), _)| is_due(what));
        for ((what, room, sandboxes), took) in due {
            let sandbox = sandboxes[round % sandboxes.len()].clone();
            if what.contains("after") {
                std::fs::write(room.path("work/fresh"), "canary").unwrap();
                std::fs::rename(room.path("work/fresh"), room.path("work/.env")).unwrap();
            }
            let begun = std::time::Instant::now();
            let (_, exit) = room.run("true", sandbox).await;
            took.push(begun.elapsed());
            assert!(exit.success());
        }
    }
    let floor = *{
        took[0][30..].sort();
        &took[0][30 + 300]
    };
    for ((what, ..), took) in turns.iter().zip(&mut took) {
        let took = &mut took[30..];
        took.sort();
        let (p10, p50, p90) = (took[60], took[300], took[540]);
        let ratio = p50.as_secs_f64() / floor.as_secs_f64();
        println!("{what}: p10 {p10:?}, p50 {p50:?}, p90 {p90:?}: {ratio:.2} of none");
    }
}

#[tokio::test]
async fn link_in_a_hidden_folder_can_be_shown_alone() {
    for form in [Form::Namespaces, Form::Bubblewrap] {
        let room = Room::new();
        room.house.guard.force_form(form);
        let mut sandbox = room.sandbox();
        sandbox.hidden = vec![room.path("home/secret")];
        std::fs::create_dir(room.path("kept")).unwrap();
        std::fs::write(room.path("kept/behind"), "behind").unwrap();
        std::fs::create_dir(room.path("home/secret/deep")).unwrap();
        let (link, other) = (room.path("home/secret/deep/link"), room.path("home/secret/deep/other"));
        for link in [&link, &other] {
            std::os::unix::fs::symlink(room.path("kept/behind"), link).unwrap();
        }
        sandbox.visible = vec![link];
        let (output, _) =
            room.run("cd $ROOM/home/secret; cat deep/link; find . -type l; touch x", Some(sandbox)).await;
        assert!(output.starts_with("behind./deep/link\n"), "{form:?}: {output}");
        assert!(!room.path("home/secret/x").exists() && !output.contains("other"), "{form:?}: {output}");
    }
}
