//! Attempts to get out of the sandbox, one row each, judged by what they change, read or reach. Every attempt is also
//! made without a sandbox, to see that it would work: a row that proves nothing fails.
//!
//! The table is tried with namespaces, with bubblewrap and with Landlock alone, by the user who runs the tests and, where that is root,
//! once more by an ordinary one.
#![allow(clippy::print_stdout, reason = "a row that is passed over says why")]

use std::io::{BufRead as _, BufReader};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use decurion_exec::{Form, Sandbox};

use crate::sandbox::{ROOMS, Room, rooms};

/// The helper, compiled by the parent of a test that runs as another user.
const PROBE: &str = "DECURION_TEST_PROBE";
/// The user that root becomes to see the sandbox as an ordinary user does.
const USER: u32 = 1000;

/// What an attempt does when it works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Effect {
    /// A file changes that may not be written: its content, mode, owner or times.
    Changes,
    /// The output contains a secret.
    Reads,
    /// The output contains "escaped": a call succeeded that must not.
    Reaches,
    /// A process outside ends, stops, or has other limits or priorities.
    Disturbs,
}
use Effect::{Changes, Disturbs, Reaches, Reads};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Who {
    Anyone,
    /// Others cannot do it outside either.
    Root,
    /// Root needs nothing of the kind.
    User,
}

struct Attempt {
    name: &'static str,
    effect: Effect,
    /// Run before, without a sandbox.
    before: &'static str,
    /// Run before, in the same sandbox.
    first: &'static str,
    command: &'static str,
    /// Run at the end, without a sandbox.
    after: &'static str,
    who: Who,
    /// Whether the command may open internet sockets.
    network: bool,
    /// Why Landlock alone does not refuse it.
    open_in_landlock: Option<&'static str>,
    /// And does so for root.
    only_to_users: bool,
    /// Why bubblewrap does not refuse it.
    open_in_bubblewrap: Option<&'static str>,
    /// Why it cannot be seen to work without a sandbox.
    no_control: Option<&'static str>,
}

const fn attempt(name: &'static str, effect: Effect, command: &'static str) -> Attempt {
    Attempt {
        name,
        effect,
        before: "",
        first: "",
        command,
        after: "",
        who: Who::Anyone,
        network: true,
        open_in_landlock: None,
        only_to_users: false,
        open_in_bubblewrap: None,
        no_control: None,
    }
}

impl Attempt {
    const fn by_root(self) -> Self {
        Self { who: Who::Root, ..self }
    }

    const fn by_user(self) -> Self {
        Self { who: Who::User, ..self }
    }

    const fn first(self, first: &'static str) -> Self {
        Self { first, ..self }
    }

    const fn around(self, before: &'static str, after: &'static str) -> Self {
        Self { before, after, ..self }
    }

    const fn offline(self) -> Self {
        Self { network: false, ..self }
    }

    const fn open_in_landlock(self, reason: &'static str) -> Self {
        Self { open_in_landlock: Some(reason), ..self }
    }

    const fn open_to_users_in_landlock(self, reason: &'static str) -> Self {
        Self { open_in_landlock: Some(reason), only_to_users: true, ..self }
    }

    const fn open_in_bubblewrap(self, reason: &'static str) -> Self {
        Self { open_in_bubblewrap: Some(reason), ..self }
    }

    const fn no_control(self, reason: &'static str) -> Self {
        Self { no_control: Some(reason), ..self }
    }

    fn applies(&self) -> bool {
        match self.who {
            Who::Anyone => true,
            Who::Root => is_root(),
            // Root has made programs with privileges for it.
            Who::User => !is_root() && rooms().join("suid").exists(),
        }
    }
}

const METADATA: &str = "Landlock has no rights for modes, owners, times and attributes";
const NO_NAMESPACE: &str = "Landlock shows the network of the host";
const OPEN_NETWORK: &str = "a command with a network has that of the host: bubblewrap knows no other";
const PRIORITIES: &str = "Landlock has no rights for priorities, and threads need the calls; root's processes differ in capabilities";
const KEPT_AS_NEW: &str = "it fails without a sandbox too: a reaper that was changed ends";
const VISIBLE: &str = "Landlock shows /proc of the host";

const FILES: &[Attempt] = &[
    attempt("create a file", Changes, "echo x > ../outside/new"),
    attempt("append to a file", Changes, "echo x >> ../outside/file"),
    attempt("truncate a file", Changes, "truncate -s 0 ../outside/file"),
    attempt("remove a file", Changes, "rm ../outside/file"),
    attempt("rename a file", Changes, "mv ../outside/file ../outside/moved"),
    attempt("move a file in", Changes, "mv ../outside/file mine"),
    attempt("move a file out", Changes, "echo x > mine; mv mine ../outside/mine"),
    attempt("exchange two files", Changes, "echo x > file; $PROBE exchange file ../outside/file"),
    attempt("exchange the workspace", Changes, "$PROBE exchange ../work ../outside; cd ..; ls outside work"),
    attempt("make a folder", Changes, "mkdir ../outside/folder"),
    attempt("make a symbolic link", Changes, "ln -s x ../outside/link"),
    attempt("make a hard link outside", Changes, "ln file ../outside/hard"),
    attempt("write by a hard link", Changes, "ln ../outside/file mine && echo x > mine"),
    attempt("write by a symbolic link", Changes, "ln -s ../outside/file mine; echo x > mine"),
    attempt("write by a folder's link", Changes, "ln -s ../outside way; echo x > way/new"),
    attempt("write by an earlier link", Changes, "echo x > src/way/new").first("ln -s $ROOM/outside src/way"),
    attempt("make a pipe", Changes, "mkfifo ../outside/fifo"),
    attempt("link a nameless file", Changes, "$PROBE nameless src ../outside/new"),
    attempt(
        "unpack absolute names",
        Changes,
        "tar -cP $ROOM/work/file --transform \"s#^$ROOM/work#$ROOM/outside#\" | tar -xP",
    ),
    attempt("write by /proc/self/root", Changes, "echo x > /proc/self/root$ROOM/outside/new"),
    attempt("write by /proc/self/cwd", Changes, "echo x > /proc/self/cwd/../outside/new"),
    attempt("reopen a descriptor", Changes, "exec 5< ../outside/file; echo x > /proc/self/fd/5"),
    attempt("write by another's root", Changes, "echo x > /proc/$VICTIM/root$ROOM/outside/new"),
    attempt("write by another's folder", Changes, "echo x > /proc/$VICTIM/cwd/new"),
    attempt("run a script in memory", Changes, "$PROBE memory $ROOM/outside/new"),
    attempt("write from a new session", Changes, "setsid -w setsid -w bash -c 'echo x > ../outside/new'"),
    attempt("write with another umask and group", Changes, "umask 0; sg $(id -gn) 'echo x > ../outside/new'"),
    attempt("change a mode", Changes, "chmod 777 ../outside/file").open_in_landlock(METADATA),
    attempt("change an owner", Changes, "chown 1 ../outside/file").by_root().open_in_landlock(METADATA),
    attempt("change a time", Changes, "touch -d @1 ../outside/file").open_in_landlock(METADATA),
    attempt("set an attribute", Reaches, "$PROBE attribute ../outside/file").open_in_landlock(METADATA),
    attempt("change a mode of the read-only", Changes, "chmod 777 .git/config").open_in_landlock(METADATA),
    attempt("change a device's times", Reaches, "touch -d @1 /dev/full && echo escaped")
        .by_root()
        .open_in_landlock(METADATA)
        .open_in_bubblewrap("bubblewrap makes the mounts of devices writable"),
    attempt("use shared memory outside", Changes, "echo x > /dev/shm/$NAME"),
    attempt("use the folder for temporary files", Changes, "echo x > /tmp/$NAME"),
    attempt("write to a pipe", Reaches, "exec 5<> ../outside/pipe && echo escaped"),
    attempt("write to a terminal", Reaches, "echo x > $TERMINAL && echo escaped"),
    attempt("read from a terminal", Reaches, "exec 5< $TERMINAL && echo escaped"),
    attempt("write to the console", Reaches, "exec 5> /dev/console && echo escaped").by_root(),
    attempt(
        "write a kernel setting",
        Reaches,
        "cd /proc/sys/kernel; cat domainname > domainname && echo escaped",
    )
    .by_root(),
    attempt(
        "write the core pattern",
        Reaches,
        "cd /proc/sys/kernel; cat core_pattern > core_pattern && echo escaped",
    )
    .by_root(),
    attempt(
        "make a control group",
        Reaches,
        "cd /sys/fs/cgroup/unified || cd /sys/fs/cgroup; mkdir $NAME && echo escaped; rmdir $NAME",
    )
    .by_root(),
    attempt("write a git hook", Changes, "echo x > .git/hooks/pre-commit"),
    attempt("move a git hook in", Changes, "echo x > mine; mv mine .git/hooks/pre-commit"),
    attempt(
        "write git's settings",
        Changes,
        "git config -f .git/config core.fsmonitor x || echo x > .git/config",
    ),
    attempt(
        "replace git's settings",
        Changes,
        "echo x > mine; mv -f mine .git/config || mv -f file .git/config",
    ),
    attempt("replace the folder of git", Changes, "mv .git old; mkdir -p .git/hooks; echo x > .git/config"),
    attempt("exchange the folder of git", Changes, "mkdir -p mine/hooks; $PROBE exchange mine .git"),
    attempt("remove the hooks", Changes, "rm -rf .git/hooks"),
    attempt("replace the folder of git by a link", Changes, "mv .git old; ln -s ../outside .git"),
    attempt("write by a link of an earlier folder", Changes, "echo x > old/config").first("mv .git old"),
    attempt("link the settings and write", Changes, "ln .git/config mine; echo x > mine"),
    attempt("write where another link was made outside", Changes, "echo x > .git/config")
        .around("ln .git/config .git/mine", ""),
    attempt("link the settings for later", Changes, "echo x > mine").first("ln .git/config mine"),
];

const SECRETS: &[Attempt] = &[
    attempt("read a hidden file", Reads, "cat .env"),
    attempt("read in a hidden folder", Reads, "cat $ROOM/home/secret/key"),
    attempt("read a deep hidden file", Reads, "cat src/deep/key"),
    attempt("read by a hard link", Reads, "ln .env mine; cat mine"),
    attempt("read by an earlier hard link", Reads, "cat mine .env").first("ln .env mine"),
    attempt("read where another link was made outside", Reads, "cat .env").around("ln .env mine", ""),
    attempt("read by a symbolic link", Reads, "ln -s $ROOM/home/secret/key src/mine; cat src/mine"),
    attempt("read by an earlier link to the folder", Reads, "cat mine/key")
        .first("ln -s $ROOM/home/secret mine"),
    attempt("read by an earlier link beside", Reads, "cat src/deep/mine $ROOM/work/.env")
        .first("ln -s $ROOM/work/.env src/deep/mine"),
    attempt("move the hidden away", Reads, "mv .env mine; cat mine"),
    attempt("move the hidden away earlier", Reads, "cat mine").first("mv .env mine"),
    attempt("move the folder away", Reads, "mv src moved; cat moved/deep/key"),
    attempt("move the folder away earlier", Reads, "cat moved/deep/key").first("mv src moved"),
    attempt("exchange the hidden", Reads, "$PROBE exchange .env file; cat file"),
    attempt("read by /proc/self/root", Reads, "cat /proc/self/root$ROOM/work/.env"),
    attempt("read by another's root", Reads, "cat /proc/$VICTIM/root$ROOM/work/.env"),
    attempt("read by another's folder", Reads, "cat /proc/$VICTIM/cwd/../home/secret/key"),
    attempt("read another's descriptor", Reads, "cat /proc/$VICTIM/fd/0"),
    attempt("take another's descriptor", Reads, "$PROBE process getfd $VICTIM"),
    attempt("read another's environment", Reads, "cat /proc/$VICTIM/environ"),
    attempt("read another's arguments", Reads, "cat /proc/$VICTIM/cmdline").open_in_landlock(VISIBLE),
    attempt("read another's memory map", Reaches, "grep -q stack /proc/$VICTIM/maps && echo escaped"),
    attempt("open another's memory", Reaches, "exec 5<> /proc/$VICTIM/mem && echo escaped"),
    attempt(
        "read the first process",
        Reaches,
        "cat /proc/1/environ /proc/1/maps > /dev/null && echo escaped",
    )
    .no_control("the first process of a machine may have rights that root has not"),
    attempt("open by handle", Reads, "$PROBE handle $ROOM/home/secret/key").by_root(),
    attempt("list a hidden folder", Reaches, "ls $ROOM/home/secret | grep -q key && echo escaped")
        .open_in_landlock("Landlock's right to list a folder holds for all below"),
    attempt("read a disk", Reaches, "head -c 1 /dev/[sv]da > /dev/null && echo escaped")
        .by_root()
        .no_control("a machine's own control groups may refuse it"),
    attempt("read a loop device", Reaches, "head -c 1 /dev/loop0 > /dev/null && echo escaped").by_root(),
    attempt(
        "make a loop device",
        Reaches,
        "mknod src/mine b 7 0 && head -c 1 src/mine > /dev/null && echo escaped",
    )
    .by_root(),
    attempt(
        "make a device",
        Reaches,
        "mknod src/mine c 1 5 && head -c 1 src/mine > /dev/null && echo escaped",
    )
    .by_root(),
    attempt("read the log of the kernel", Reaches, "exec 5< /dev/kmsg && echo escaped").by_root(),
    attempt("open a disk driver", Reaches, "exec 5< /dev/fuse && echo escaped").by_root(),
    attempt("read shared memory", Reads, "$PROBE shm read $KEY")
        .around("$PROBE shm make $KEY", "$PROBE shm remove $KEY"),
    attempt("read a message queue", Reads, "$PROBE mq read /$NAME")
        .around("$PROBE mq make /$NAME", "$PROBE mq remove /$NAME"),
];

const PROCESSES: &[Attempt] = &[
    attempt("kill a process", Disturbs, "kill -KILL $VICTIM"),
    attempt("stop a process", Disturbs, "kill -STOP $VICTIM"),
    attempt("kill by a queue", Disturbs, "$PROBE process queue $VICTIM"),
    attempt("kill a thread", Disturbs, "$PROBE process tgkill $VICTIM"),
    attempt("kill by a descriptor", Disturbs, "$PROBE process pidfd $VICTIM"),
    attempt("kill a group", Disturbs, "kill -KILL -- -$VICTIM"),
    attempt("kill by an owner", Disturbs, "$PROBE owner $VICTIM"),
    attempt("set another's limits", Disturbs, "$PROBE process prlimit $VICTIM"),
    attempt("set another's priority", Disturbs, "$PROBE process priority $VICTIM")
        .open_to_users_in_landlock(PRIORITIES),
    attempt("set another's processors", Disturbs, "$PROBE process affinity $VICTIM")
        .open_to_users_in_landlock(PRIORITIES),
    attempt("set another's scheduler", Disturbs, "$PROBE process scheduler $VICTIM")
        .open_to_users_in_landlock(PRIORITIES),
    attempt("set another's priority on disks", Reaches, "$PROBE process io_priority $VICTIM")
        .open_to_users_in_landlock(PRIORITIES),
    attempt(
        "offer a process to the memory killer",
        Reaches,
        "echo 1000 > /proc/$VICTIM/oom_score_adj && echo escaped",
    ),
    attempt("trace a process", Reaches, "$PROBE process ptrace $VICTIM"),
    attempt("read a process's memory", Reaches, "$PROBE process vm_readv $VICTIM"),
    attempt("write a process's memory", Reaches, "$PROBE process vm_writev $VICTIM"),
    attempt("signal the reaper", Reaches, "kill -0 $PPID && echo escaped"),
    attempt("stop the reaper", Reaches, "kill -STOP $PPID && echo escaped"),
    attempt("set the reaper's limits", Reaches, "$PROBE process prlimit $PPID"),
    attempt("trace the reaper", Reaches, "$PROBE process ptrace $PPID").by_root(),
    attempt("limit the next command", Reaches, "[ $(ulimit -n) = 7 ] && echo escaped")
        .first("$PROBE process prlimit $PPID > /dev/null")
        .no_control(KEPT_AS_NEW),
    attempt("slow the next command", Reaches, "[ $(nice) = 7 ] && echo escaped")
        .first("$PROBE process priority $PPID > /dev/null")
        .no_control(KEPT_AS_NEW),
    attempt("tie the next command to a processor", Reaches, "[ $(nproc) = 1 ] && echo escaped")
        .first("$PROBE process affinity $PPID > /dev/null")
        .no_control(KEPT_AS_NEW),
    attempt("dump core", Reaches, "ulimit -c unlimited && echo escaped")
        .no_control("core dumps are off without a sandbox too"),
    attempt("inherit a descriptor", Reaches, "$PROBE descriptors")
        .no_control("no command inherits any, sandboxed or not"),
];

const SOCKETS: &[Attempt] = &[
    attempt("connect to a daemon", Reaches, "$PROBE connect 1 $ROOM/outside/socket"),
    attempt("send to a daemon", Reaches, "$PROBE connect 2 $ROOM/outside/datagram"),
    attempt("connect to an abstract name", Reaches, "$PROBE connect 1 @$NAME"),
    attempt("send by a pair", Reaches, "$PROBE pair 2 $ROOM/outside/datagram"),
    attempt("send by a raw pair", Reaches, "$PROBE pair 3 $ROOM/outside/datagram"),
    attempt("send by a raw pair with flags", Reaches, "$PROBE pair $((3 + 02000000)) $ROOM/outside/datagram"),
    attempt("reconnect a pair", Reaches, "$PROBE reconnect 1 $ROOM/outside/socket")
        .no_control("the kernel does not let go of a stream's other end"),
    attempt("reconnect a raw pair", Reaches, "$PROBE reconnect 3 $ROOM/outside/datagram"),
    attempt("connect to the host", Reaches, "$PROBE internet 1 $PORT")
        .open_in_landlock(NO_NAMESPACE)
        .open_in_bubblewrap(OPEN_NETWORK),
    attempt("send to the host", Reaches, "$PROBE internet 2 $UDP_PORT")
        .open_in_landlock(NO_NAMESPACE)
        .open_in_bubblewrap(OPEN_NETWORK),
    attempt("connect to the host while offline", Reaches, "$PROBE internet 1 $PORT").offline(),
    attempt("send to the host while offline", Reaches, "$PROBE internet 2 $UDP_PORT").offline(),
    attempt("open a netlink socket for audits", Reaches, "$PROBE socket 16 3 9"),
    attempt("open a netlink socket for devices", Reaches, "$PROBE socket 16 3 15"),
    attempt("open a netlink socket while offline", Reaches, "$PROBE socket 16 3 0").offline(),
    attempt("open a packet socket", Reaches, "$PROBE socket 17 3 768").by_root(),
    attempt("open a packet socket of old", Reaches, "$PROBE socket 2 10 768").by_root(),
    attempt("open a raw socket", Reaches, "$PROBE socket 2 3 1").by_root(),
    attempt("open a socket to the host machine", Reaches, "$PROBE socket 40 1"),
    attempt("open a socket for ciphers", Reaches, "$PROBE socket 38 5"),
];

const KERNEL: &[Attempt] = &[
    attempt("make a user namespace", Reaches, "$PROBE namespace unshare"),
    attempt("make a user namespace by clone", Reaches, "$PROBE namespace clone"),
    attempt("make a user namespace by clone3", Reaches, "$PROBE namespace clone3"),
    attempt("make a user namespace with high flags", Reaches, "$PROBE namespace high"),
    attempt("make a user namespace as a 32-bit program", Reaches, "$PROBE namespace i386"),
    attempt("make a user namespace by x32", Reaches, "$PROBE namespace x32")
        .no_control("kernels are built without x32"),
    attempt("make an IPC namespace", Reaches, "unshare --ipc true && echo escaped").by_root(),
    attempt("make namespaces by a program", Reaches, "unshare -Urm true && echo escaped"),
    attempt("mount in a namespace", Changes, "unshare -Urm bash -c 'mount -t tmpfs x ../outside; echo x > ../outside/new; umount ../outside; echo x > ../outside/new'"),
    attempt("type into a terminal", Reaches, "$PROBE input"),
    attempt("enter a namespace", Reaches, "$PROBE call setns").by_root(),
    attempt("enter the first process's namespaces", Changes, "nsenter -t $VICTIM -m bash -c \"echo x > $ROOM/outside/new\"")
        .by_root(),
    attempt("change the root", Reaches, "$PROBE call chroot").by_root(),
    attempt("pivot the root", Reaches, "$PROBE call pivot_root").by_root(),
    attempt("mount", Reaches, "$PROBE call mount"),
    attempt("unmount", Reaches, "$PROBE call umount"),
    attempt("unmount what covers the hidden", Reads, "umount -l .env; umount -l $ROOM/home/secret; cat .env"),
    attempt("make the workspace's mount writable", Changes, "mount -o remount,rw,bind /; echo x > ../outside/new"),
    attempt("move a mount", Reaches, "$PROBE call move_mount").by_root(),
    attempt("copy a mount", Reaches, "$PROBE call open_tree").by_root(),
    attempt("copy a mount with attributes", Reaches, "$PROBE call open_tree_attr").by_root(),
    attempt("open a file system", Reaches, "$PROBE call fsopen").by_root(),
    attempt("pick a file system", Reaches, "$PROBE call fspick").by_root(),
    attempt("change a mount", Reaches, "$PROBE call mount_setattr").by_root(),
    attempt("load a program into the kernel", Reaches, "$PROBE call bpf"),
    attempt("count events", Reaches, "$PROBE call perf").by_root(),
    attempt("handle page faults", Reaches, "$PROBE call userfaultfd"),
    attempt("open a ring", Reaches, "$PROBE call io_uring"),
    attempt("watch a file system", Reaches, "$PROBE call fanotify"),
    attempt("add a key", Reaches, "$PROBE call add_key"),
    attempt("use the keys", Reaches, "$PROBE call keyctl"),
    attempt("request a key", Reaches, "$PROBE call request_key"),
    attempt("lease a file, so that others wait who open it", Reaches, "perl -e 'open(F, q(<), qq($ENV{ROOM}/outside/file)) && fcntl(F, 1024, 0) && print q(escaped)'"),
    attempt("compare processes", Reaches, "$PROBE call kcmp"),
    attempt("read the kernel's log by a call", Reaches, "$PROBE call syslog").by_root(),
    attempt("swap", Reaches, "$PROBE call swapon").by_root(),
    attempt("set quotas", Reaches, "$PROBE call quotactl"),
    attempt("account processes", Reaches, "$PROBE call acct").by_root(),
    attempt("reboot", Reaches, "$PROBE call reboot").by_root(),
    attempt("set a clock", Reaches, "$PROBE call clock_settime"),
    attempt("name the machine", Reaches, "$PROBE call sethostname").by_root(),
    attempt("change segments", Reaches, "$PROBE call modify_ldt"),
    attempt("keep the right to mount", Reaches, "$PROBE capability 21").by_root(),
    attempt("keep the right to trace", Reaches, "$PROBE capability 19").by_root(),
    attempt("regain rights by setpriv", Reaches, "setpriv --inh-caps +sys_admin $PROBE capability 21; capsh --iab=^cap_sys_admin -- -c '$PROBE capability 21'")
        .by_root(),
    attempt("become root by a set-user-id program", Reaches, "$SUID root").by_user(),
    attempt("gain rights by a program's capabilities", Reaches, "$CAPPED capability -1").by_user(),
];

/// Files that other users would run with the rights of this one. Each is made in a folder in which Landlock alone lets
/// files be made too.
const SET_ID: &[Attempt] = &[
    set_id("set the set-user-id bit", "chmod u+s lib/mine; [ -u lib/mine ] && echo escaped"),
    set_id("set the set-group-id bit", "chmod g+s lib/mine; [ -g lib/mine ] && echo escaped"),
    set_id("install with a bit", "install -m 4755 lib/mine lib/new; [ -u lib/new ] && echo escaped"),
    set_id(
        "unpack with a bit",
        "tar -c --mode=4755 lib/mine | tar -xp -C lib; [ -u lib/lib/mine ] && echo escaped",
    ),
    set_id("set the bits by chmod", "$PROBE set-id chmod lib/mine"),
    set_id("set the bits by fchmod", "$PROBE set-id fchmod lib/mine"),
    set_id("set the bits by fchmodat", "$PROBE set-id fchmodat lib/mine"),
    set_id("set the bits by fchmodat2", "$PROBE set-id fchmodat2 lib/mine"),
    set_id("set the bits by a mode with high bits", "$PROBE set-id high lib/mine"),
    set_id("set the bits as a 32-bit program", "$PROBE set-id i386 lib/mine"),
    set_id("set the bits by x32", "$PROBE set-id x32 lib/mine").no_control("kernels are built without x32"),
    set_id("create a file with the bits by creat", "$PROBE set-id creat lib/new"),
    set_id("create a file with the bits by open", "$PROBE set-id open lib/new"),
    set_id("create a file with the bits by openat", "$PROBE set-id openat lib/new"),
    set_id("create a file with the bits by openat2", "$PROBE set-id openat2 lib/new"),
    set_id("create a file with the bits by mknod", "$PROBE set-id mknod lib/new"),
    set_id("create a file with the bits by mknodat", "$PROBE set-id mknodat lib/new"),
    set_id("create a file with the bits without a name", "$PROBE set-id nameless lib/new"),
    set_id("copy a file with its bit", "cp -p lib/theirs lib/new; [ -u lib/new ] && echo escaped")
        .around("mkdir lib; cp $PROBE lib/theirs; chmod 4755 lib/theirs", ""),
    set_id("give a file capabilities", "PATH+=:/usr/sbin; setcap cap_sys_admin+ep lib/mine; getcap lib/mine | grep -q sys_admin && echo escaped")
        .by_root(),
    set_id("give a file capabilities of a user namespace", "PATH+=:/usr/sbin; unshare -Ur setcap cap_sys_admin+ep lib/mine; getcap lib/mine | grep -q sys_admin && echo escaped"),
];

const fn set_id(name: &'static str, command: &'static str) -> Attempt {
    attempt(name, Reaches, command).around("mkdir lib; cp $PROBE lib/mine", "")
}

const ALL: &[&[Attempt]] = &[FILES, SECRETS, PROCESSES, SOCKETS, KERNEL, SET_ID];

/// What an attempt finds: a room, and beside it a process, sockets and a terminal that are not the sandbox's.
struct Scene {
    room: Room,
    name: String,
    key: u32,
    victim: Child,
    terminal: Child,
    terminal_path: String,
    ports: [u16; 2],
    _open: Vec<OwnedFd>,
}

impl Scene {
    fn new(form: Option<Form>) -> Self {
        let room = Room::new();
        if let Some(form) = form {
            room.house.guard.force_form(form);
        }
        let name = room.path("").file_name().map(|name| format!("decurion{}", name.display())).unwrap();
        let outside = room.path("outside");
        let secret = std::fs::File::open(room.path("home/secret/key")).unwrap();
        let mut victim = Command::new(probe());
        victim
            .args(["victim", "canary"])
            .env("SECRET", "canary")
            .current_dir(&outside)
            .stdin(secret)
            .process_group(0);
        let (victim, _) = started(&mut victim);
        let (terminal, terminal_path) = started(Command::new(probe()).arg("terminal").stdin(Stdio::piped()));
        let (open, ports) = listen(&outside, &name);
        let key = 0x0dec_0000 | victim.id() & 0xFFFF;
        Self { room, name, key, victim, terminal, terminal_path, ports, _open: open }
    }

    async fn run(&self, command: &str, sandbox: Option<Sandbox>) -> String {
        let mut launch = self.room.launch(command, sandbox);
        let room = self.room.path("").display().to_string();
        let values: [(&str, String); 10] = [
            ("ROOM", room.trim_end_matches('/').to_owned()),
            ("PROBE", probe().display().to_string()),
            ("VICTIM", self.victim.id().to_string()),
            ("NAME", self.name.clone()),
            ("KEY", self.key.to_string()),
            ("TERMINAL", self.terminal_path.clone()),
            ("PORT", self.ports[0].to_string()),
            ("UDP_PORT", self.ports[1].to_string()),
            ("SUID", rooms().join("suid").display().to_string()),
            ("CAPPED", rooms().join("capped").display().to_string()),
        ];
        launch.env.retain(|(name, _)| name != "ROOM");
        launch.env.extend(values.map(|(name, value)| (name.into(), value.into())));
        self.room.house.run(launch).await.0
    }

    /// Makes an attempt. Gives the effects it had, and its output.
    async fn make(&self, attempt: &Attempt, sandbox: Option<Sandbox>) -> (Vec<Effect>, String) {
        if !attempt.before.is_empty() {
            self.run(attempt.before, None).await;
        }
        let before = (self.files(), self.state_of_victim());
        let mut output = String::new();
        for command in [attempt.first, attempt.command].into_iter().filter(|command| !command.is_empty()) {
            output += &self.run(command, sandbox.clone()).await;
        }
        let after = (self.files(), self.state_of_victim());
        if !attempt.after.is_empty() {
            self.run(attempt.after, None).await;
        }
        let found = [
            (Changes, before.0 != after.0),
            (Reads, output.contains("canary")),
            (Reaches, output.contains("escaped")),
            (Disturbs, before.1 != after.1),
        ];
        (found.into_iter().filter(|(_, seen)| *seen).map(|(effect, _)| effect).collect(), output)
    }

    /// What no command may change.
    fn files(&self) -> Vec<String> {
        let mut paths =
            ["outside", "home", "work/.git/hooks", "work/.git/config", "work/.env", "work/src/deep/key"]
                .map(|name| self.room.path(name))
                .to_vec();
        paths.extend(["/tmp", "/var/tmp", "/dev/shm"].map(|folder| Path::new(folder).join(&self.name)));
        let mut found = Vec::new();
        while let Some(path) = paths.pop() {
            let Ok(about) = path.symlink_metadata() else { continue };
            let entries = std::fs::read_dir(&path).into_iter().flatten().flatten();
            paths.extend(entries.filter(|_| about.is_dir()).map(|entry| entry.path()));
            let content = if about.is_file() { std::fs::read_to_string(&path).ok() } else { None };
            // A folder's times change with its files, which are listed.
            let time = if about.is_file() { (about.mtime(), about.mtime_nsec()) } else { (0, 0) };
            let (path, mode, owner) = (path.display(), about.mode(), about.uid());
            found.push(format!("{path} {mode:o} {owner} {time:?} {content:?}"));
        }
        found.sort();
        found
    }

    /// Whether the victim lives, with its limits and priorities.
    fn state_of_victim(&self) -> String {
        let read = |name: &str| {
            std::fs::read_to_string(format!("/proc/{}/{name}", self.victim.id())).unwrap_or_default()
        };
        // A signal that was sent may not have been taken yet: what waits is looked at before what was taken.
        let (status, stat) = (read("status"), read("stat"));
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        let field = |number: usize| fields.get(number - 3).copied().unwrap_or_default().to_owned();
        let state = match field(3).as_str() {
            "R" | "S" | "D" => "lives".to_owned(),
            other => other.to_owned(),
        };
        let told = ["SigPnd:", "ShdPnd:", "Cpus_allowed:"];
        let told: Vec<&str> =
            status.lines().filter(|line| told.iter().any(|name| line.starts_with(name))).collect();
        format!("{state} nice {} policy {} {told:?} {}", field(19), field(41), read("limits"))
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        for child in [&mut self.victim, &mut self.terminal] {
            let _ = child.kill();
            let _ = child.wait();
        }
        for folder in ["/tmp", "/var/tmp", "/dev/shm"] {
            let _ = std::fs::remove_file(Path::new(folder).join(&self.name));
        }
    }
}

/// Starts a process that says a line once it is ready.
fn started(command: &mut Command) -> (Child, String) {
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    (child, line.trim().to_owned())
}

/// Opens what daemons outside would: sockets and a pipe, none of which a command may reach.
fn listen(folder: &Path, name: &str) -> (Vec<OwnedFd>, [u16; 2]) {
    use std::os::linux::net::SocketAddrExt as _;
    use std::os::unix::net::{SocketAddr, UnixDatagram, UnixListener};
    let stream = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let datagrams = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let ports = [stream.local_addr().unwrap().port(), datagrams.local_addr().unwrap().port()];
    let hidden = SocketAddr::from_abstract_name(name).unwrap();
    let pipe = folder.join("pipe");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    let reader = std::fs::OpenOptions::new().read(true).write(true).open(pipe).unwrap();
    let open: Vec<OwnedFd> = vec![
        stream.into(),
        datagrams.into(),
        UnixListener::bind(folder.join("socket")).unwrap().into(),
        UnixListener::bind_addr(&hidden).unwrap().into(),
        UnixDatagram::bind(folder.join("datagram")).unwrap().into(),
        reader.into(),
    ];
    (open, ports)
}

/// The helper for what a shell cannot do, compiled once.
fn probe() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| {
        if let Some(path) = std::env::var_os(PROBE) {
            return path.into();
        }
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/escapes.c");
        let path = rooms().join("escapes");
        let fresh = rooms().join(format!("escapes-{}", std::process::id()));
        assert!(Command::new("cc").args(["-O1", "-o"]).arg(&fresh).arg(source).status().unwrap().success());
        // Another test may have set a mask for new files.
        std::fs::set_permissions(&fresh, std::fs::Permissions::from_mode(0o755)).unwrap();
        std::fs::rename(fresh, &path).unwrap();
        path
    })
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

async fn try_all(form: Form) {
    let mut failures = Vec::new();
    for attempt in ALL.iter().copied().flatten().filter(|attempt| attempt.applies()) {
        let open = match form {
            Form::Namespaces => None,
            Form::Bubblewrap => attempt.open_in_bubblewrap,
            Form::Landlock => attempt.open_in_landlock.filter(|_| !(attempt.only_to_users && is_root())),
        };
        if let Some(reason) = open {
            println!("{}: {}: not refused: {reason}", form.name(), attempt.name);
            continue;
        }
        let scene = Scene::new(Some(form));
        let sandbox = Sandbox { network: attempt.network, ..scene.room.sandbox() };
        let (effects, output) = scene.make(attempt, Some(sandbox)).await;
        println!(
            "{}: {}: {}",
            form.name(),
            attempt.name,
            if effects.is_empty() { "held" } else { "ESCAPED" }
        );
        if !effects.is_empty() {
            failures.push(format!("{}: {effects:?}: {output}", attempt.name));
        }
    }
    assert!(failures.is_empty(), "{} escapes:\n{}", failures.len(), failures.join("\n"));
}

#[tokio::test]
async fn attempts_fail_with_namespaces() {
    try_all(Form::Namespaces).await;
}

#[tokio::test]
async fn attempts_fail_with_landlock_alone() {
    try_all(Form::Landlock).await;
}

#[tokio::test]
async fn attempts_fail_with_bubblewrap() {
    try_all(Form::Bubblewrap).await;
}

#[tokio::test]
async fn attempts_work_without_a_sandbox() {
    let mut failures = Vec::new();
    for attempt in ALL.iter().copied().flatten().filter(|attempt| attempt.applies()) {
        if let Some(reason) = attempt.no_control {
            println!("{}: no control: {reason}", attempt.name);
            continue;
        }
        let (effects, output) = Scene::new(None).make(attempt, None).await;
        if !effects.contains(&attempt.effect) {
            failures.push(format!("{}: {effects:?}: {output}", attempt.name));
        }
    }
    assert!(failures.is_empty(), "{} prove nothing:\n{}", failures.len(), failures.join("\n"));
}

#[tokio::test]
async fn no_capability_is_kept_or_inherited() {
    // Those that root needs to work on files of other users.
    let harmless: u64 = if is_root() { 0b100_1111_1011 } else { 0 };
    for form in [Form::Namespaces, Form::Bubblewrap, Form::Landlock] {
        let scene = Scene::new(Some(form));
        let output = scene.run("grep ^Cap /proc/self/status", Some(scene.room.sandbox())).await;
        let sets: Vec<(&str, &str)> = output.lines().filter_map(|line| line.split_once(":\t")).collect();
        assert_eq!(sets.len(), 5, "{output}");
        for (name, set) in sets.into_iter().filter(|(name, _)| *name != "CapBnd") {
            let set = u64::from_str_radix(set, 16).unwrap();
            let allowed = if matches!(name, "CapInh" | "CapAmb") { 0 } else { harmless };
            assert_eq!(set & !allowed, 0, "{}: {name}: {set:x}", form.name());
        }
    }
}

#[test]
fn capabilities_of_the_session_are_not_inherited() {
    let test = "escapes::no_capability_is_kept_or_inherited";
    let all = "+sys_admin,+sys_ptrace,+dac_override,+dac_read_search,+net_admin";
    for more in [&["--inh-caps", all, "--ambient-caps", all][..], &["--inh-caps", all], &[]] {
        let Some((passed, text)) = run_as_user(&[test], more) else { return };
        assert!(passed && text.contains("1 passed"), "{more:?}: {text}");
    }
    let mut as_root = Command::new("setpriv");
    as_root.args(["--inh-caps", all, "--ambient-caps", all]).arg(std::env::current_exe().unwrap());
    let done = as_root.args([test, "--exact", "--nocapture"]).env(PROBE, probe()).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

/// Runs tests of this binary as an ordinary user. Gives whether they passed; `None` where that is not possible.
pub fn run_as_user(tests: &[&str], more: &[&str]) -> Option<(bool, String)> {
    if !is_root() {
        println!("skipped: only root can become another user");
        return None;
    }
    let folder = tempfile::tempdir_in(rooms()).unwrap();
    let path = folder.path().canonicalize().unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    for (name, mode) in [("suid", 0o4755), ("capped", 0o755)] {
        std::fs::copy(probe(), path.join(name)).unwrap();
        std::fs::set_permissions(path.join(name), std::fs::Permissions::from_mode(mode)).unwrap();
    }
    let capped = Command::new("setcap").arg("cap_sys_admin+ep").arg(path.join("capped")).status();
    assert!(capped.unwrap().success());
    std::os::unix::fs::chown(&path, Some(USER), Some(USER)).unwrap();
    let user = USER.to_string();
    let mut command = Command::new("setpriv");
    command.args(["--reuid", &user, "--regid", &user, "--clear-groups"]).args(more);
    command.arg(std::env::current_exe().unwrap()).args(tests).args([
        "--exact",
        "--nocapture",
        "--test-threads=1",
    ]);
    let done = command.env(ROOMS, &path).env(PROBE, probe()).current_dir("/").output().unwrap();
    let text = [done.stdout, done.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    println!("{text}");
    Some((done.status.success(), text))
}

#[test]
fn ordinary_work_of_an_ordinary_user_is_not_disturbed() {
    let Some((passed, text)) = run_as_user(&["sandbox::ordinary_work_is_not_disturbed"], &[]) else { return };
    assert!(passed && text.contains("1 passed"), "{text}");
}

#[test]
fn attempts_fail_for_an_ordinary_user_too() {
    let forms = ["namespaces", "bubblewrap", "landlock_alone"];
    let tests = forms.map(|form| format!("escapes::attempts_fail_with_{form}"));
    let tests = [&tests[0], &tests[1], &tests[2], "escapes::attempts_work_without_a_sandbox"];
    let Some((passed, text)) = run_as_user(&tests, &[]) else { return };
    assert!(passed && text.contains("4 passed"), "{text}");
}

/// Commands start while a folder on their way is swapped with a link to another.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn folders_swapped_during_the_start_lead_nowhere() {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    for form in [Form::Namespaces, Form::Bubblewrap, Form::Landlock] {
        let scene = Scene::new(Some(form));
        let (work, link) = (scene.room.path("work"), scene.room.path("link"));
        std::os::unix::fs::symlink(scene.room.path("outside"), &link).unwrap();
        let done = Arc::new(AtomicBool::new(false));
        let swapping = std::thread::spawn({
            let done = done.clone();
            move || {
                while !done.load(Ordering::Relaxed) {
                    let flags = rustix::fs::RenameFlags::EXCHANGE;
                    rustix::fs::renameat_with(rustix::fs::CWD, &work, rustix::fs::CWD, &link, flags).unwrap();
                }
            }
        });
        let sandbox = Sandbox { read_only: Vec::new(), hidden: Vec::new(), ..scene.room.sandbox() };
        let (mut started, mut refused) = (0, 0);
        for _ in 0..200 {
            let command = "echo x > $ROOM/work/new; echo x > $ROOM/link/new; echo x > $ROOM/outside/new";
            let mut launch = scene.room.launch(command, Some(sandbox.clone()));
            launch.cwd = "/".into();
            match scene.room.house.guard.start(launch).await {
                Ok(mut process) => {
                    process.wait().await;
                    started += 1;
                }
                Err(_) => refused += 1,
            }
        }
        done.store(true, Ordering::Relaxed);
        swapping.join().unwrap();
        println!("{}: {started} started, {refused} refused", form.name());
        let new = |name: &str| scene.room.path(name).join("new").exists();
        assert!(!new("outside"), "{}", form.name());
        // Bubblewrap's own look at the paths lasts long: it may refuse all.
        let enough = refused > 0 && (started > 0 || form == Form::Bubblewrap);
        assert!(enough, "no start met a swap");
    }
}

/// What is missing fails the start, wherever it is missed; what starts is sandboxed.
#[tokio::test]
async fn a_start_that_runs_out_of_descriptors_fails_closed() {
    let attempt = attempt(
        "write and read",
        Changes,
        "cat .env src/deep/key; echo x > ../outside/new; echo x > .git/config; ls -d /proc/$VICTIM",
    );
    for form in [Form::Namespaces, Form::Bubblewrap, Form::Landlock] {
        let scene = Scene::new(Some(form));
        scene.run("true", Some(scene.room.sandbox())).await;
        let guard = &scene.room.house.guard;
        let before = scene.files();
        let (mut started, mut refused) = (0, 0);
        for most in (3..64).rev() {
            // One that could not go on was replaced.
            let pid = if form == Form::Namespaces { guard.sandbox_pid() } else { guard.pid() }.unwrap();
            let pids = crate::house::children(pid).into_iter();
            let limit = rustix::process::Rlimit { current: Some(most), maximum: Some(4096) };
            // Reapers are kept for later commands, with the limit that they were made with.
            for pid in pids.chain(rustix::process::Pid::from_raw(pid.cast_signed())) {
                let _ = rustix::process::prlimit(Some(pid), rustix::process::Resource::Nofile, limit);
            }
            // A second one needs a reaper with the new limit.
            let mut hold = scene.room.launch("read", Some(scene.room.sandbox()));
            hold.stdin = decurion_exec::Stdin::Piped;
            let mut hold = guard.start(hold).await;
            refused += u32::from(hold.is_err());
            let mut launch = scene.room.launch(attempt.command, Some(scene.room.sandbox()));
            launch.env.push(("VICTIM".into(), scene.victim.id().to_string().into()));
            match guard.start(launch).await {
                Ok(mut process) => {
                    let mut capture = decurion_exec::Capture::new(decurion_exec::CaptureBounds {
                        head: 1 << 16,
                        tail: 0,
                        file: 0,
                    });
                    process.collect(&mut capture, None, |_| {}).await;
                    let output = String::from_utf8_lossy(&capture.finish().head).into_owned();
                    assert!(!output.contains("canary"), "{} with {most}: {output}", form.name());
                    started += 1;
                }
                Err(_) => refused += 1,
            }
            if let Ok(process) = &mut hold {
                process.stop(std::time::Duration::ZERO).await;
            }
            assert_eq!(before, scene.files(), "{} with {most}", form.name());
        }
        println!("{}: {started} started, {refused} refused", form.name());
        assert!(started > 0 && refused > 0, "{}: {started} started, {refused} refused", form.name());
    }
}

#[tokio::test]
async fn commands_of_a_session_do_not_see_each_other() {
    for form in [Form::Namespaces, Form::Bubblewrap, Form::Landlock] {
        let scene = Scene::new(Some(form));
        let mut launch = scene.room.launch("echo up; read; : canary", Some(scene.room.sandbox()));
        launch.env.push(("SECRET".into(), "canary".into()));
        launch.stdin = decurion_exec::Stdin::Piped;
        let mut other = scene.room.house.guard.start(launch).await.unwrap();
        let mut up = [0_u8; 3];
        let stdout = other.stdout.as_mut().unwrap();
        crate::house::within(tokio::io::AsyncReadExt::read_exact(stdout, &mut up)).await.unwrap();
        let sandbox = scene.room.sandbox();
        // With Landlock alone arguments can be seen.
        let files = if form == Form::Landlock { "{environ,maps,mem}" } else { "{environ,cmdline,maps,mem}" };
        let look = format!(
            "grep -sa 'canary' /proc/[0-9]*/{files} | grep -v grep | tr -d '\\0' | sed s/canary/found/"
        );
        let output = scene.run(&look, Some(sandbox.clone())).await;
        assert!(!output.contains("found"), "{}: {output}", form.name());
        let own = scene
            .run("pkill -f -KILL 'echo up' ; kill -KILL $(pgrep -f 'echo up' | grep -v $$)", Some(sandbox))
            .await;
        drop(other.stdin.take());
        let exit = crate::house::within(other.wait()).await;
        assert!(matches!(exit, decurion_exec::Exit::Code(_)), "{}: {exit:?} {own}", form.name());
    }
}

#[tokio::test]
async fn locks_of_a_command_that_only_reads_have_no_effect() {
    for form in [None, Some(Form::Namespaces), Some(Form::Bubblewrap), Some(Form::Landlock)] {
        let scene = Scene::new(form);
        let usual = form.map(|_| scene.room.sandbox());
        let reading = usual
            .clone()
            .map(|sandbox| Sandbox { writable: sandbox.tmp.iter().cloned().collect(), ..sandbox });
        for how in ["flock", "record", "description"] {
            for (name, sandbox, held) in [
                ("outside/file", &reading, form.is_none()),
                // Commands that may write rely on theirs.
                ("work/file", &usual, true),
            ] {
                let path = scene.room.path(name);
                let mut launch =
                    scene.room.launch(&format!("$PROBE lock {how} {}", path.display()), sandbox.clone());
                launch.env.push(("PROBE".into(), probe().into()));
                launch.stdin = decurion_exec::Stdin::Piped;
                let mut holder = scene.room.house.guard.start(launch).await.unwrap();
                let mut up = [0_u8; 3];
                let stdout = holder.stdout.as_mut().unwrap();
                crate::house::within(tokio::io::AsyncReadExt::read_exact(stdout, &mut up)).await.unwrap();
                assert_eq!(&up, b"up\n", "{form:?} {how} {name}");
                assert_eq!(is_locked(&path, how), held, "{form:?} {how} {name}");
                drop(holder.stdin.take());
                crate::house::within(holder.wait()).await;
            }
        }
    }
}

/// Whether another process holds a lock on a file.
fn is_locked(path: &Path, how: &str) -> bool {
    use rustix::fs::{FlockOperation, fcntl_lock, flock};
    let file = std::fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
    let operation = FlockOperation::NonBlockingLockExclusive;
    if how == "flock" { flock(file, operation) } else { fcntl_lock(file, operation) }.is_err()
}

/// The filter of the outer sandbox has no `openat2`.
#[tokio::test]
async fn sandboxed_program_can_sandbox_its_own_commands() {
    let test = "sandbox::landlock_alone_lets_most_work_be_done";
    for form in [Form::Namespaces, Form::Bubblewrap, Form::Landlock] {
        let scene = Scene::new(Some(form));
        let own = std::env::current_exe().unwrap();
        let folder = if form == Form::Landlock { "$ROOM/tmp" } else { "/tmp" };
        let command = format!("{ROOMS}={folder} {} {test} --exact 2>&1", own.display());
        let output = scene.run(&command, Some(scene.room.sandbox())).await;
        assert!(output.contains("1 passed"), "{form:?}: {output}");
    }
}

#[tokio::test]
async fn a_crowd_of_processes_stays_below_its_bound() {
    let host = || std::fs::read_to_string("/proc/sys/kernel/pid_max").unwrap();
    let before = host();
    let scene = Scene::new(Some(Form::Namespaces));
    let output = scene.run("cat /proc/sys/kernel/pid_max", Some(scene.room.sandbox())).await;
    if output == before {
        println!("skipped: this kernel has one bound for the whole machine");
        return;
    }
    assert_eq!(output, "4396\n");
    assert_eq!(host(), before);
}

/// Makes a mount namespace for a test that mounts something, and runs the test in it once more.
fn in_own_mounts(test: &str) -> bool {
    const INSIDE: &str = "DECURION_TEST_MOUNTS";
    if std::env::var_os(INSIDE).is_some() {
        return true;
    }
    if !is_root() {
        println!("skipped: only root can mount");
        return false;
    }
    for more in [&["-m"][..], &["-Urm"]] {
        let mut command = Command::new("unshare");
        command.args(more).arg(std::env::current_exe().unwrap()).args([test, "--exact", "--nocapture"]);
        let done = command.env(INSIDE, "1").env(PROBE, probe()).output().unwrap();
        let text =
            [done.stdout, done.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
        assert!(done.status.success() && text.contains("1 passed"), "{more:?}: {text}");
    }
    false
}

#[tokio::test]
async fn what_is_mounted_read_only_outside_stays_so() {
    if !in_own_mounts("escapes::what_is_mounted_read_only_outside_stays_so") {
        return;
    }
    let scene = Scene::new(Some(Form::Namespaces));
    let mount = |arguments: &[&str], name: &str| {
        std::fs::create_dir_all(scene.room.path(name)).unwrap();
        let done = Command::new("mount").args(arguments).arg(scene.room.path(name)).status().unwrap();
        assert!(done.success());
    };
    let outside = scene.room.path("outside").display().to_string();
    mount(&["-t", "tmpfs", "none"], "work/open");
    mount(&["-o", "bind,ro", &outside], "work/fixed");
    mount(&["-o", "bind,ro", &outside], "fixed");
    std::fs::create_dir_all(scene.room.path("outside/folder")).unwrap();
    let mut sandbox = scene.room.sandbox();
    sandbox.writable.push(scene.room.path("fixed/folder"));
    let command =
        "echo x > new && echo x > open/new && echo fine; echo x > fixed/new; echo x > $ROOM/fixed/folder/new";
    for _ in 0..2 {
        let output = scene.run(command, Some(sandbox.clone())).await;
        assert!(output.starts_with("fine\n"), "{output}");
        assert_eq!(output.matches("Read-only file system").count(), 2, "{output}");
    }
    for name in ["work/open", "work/fixed", "fixed"] {
        assert!(Command::new("umount").arg(scene.room.path(name)).status().unwrap().success());
    }
}
