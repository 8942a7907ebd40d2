//! The system calls that no command may make. Takes which kinds of sockets are allowed and what locks do, gives a program
//! for the kernel's seccomp filter.
//!
//! Everything that is not listed is allowed: the filter closes ways around the namespaces and Landlock, and parts of
//! the kernel that ordinary programs do not use and attacks do.

mod program;

use std::collections::BTreeMap;

use super::Form;
pub(crate) use program::FilterProgram;
use program::{Case, FilterAnswer, Test};

/// Which sockets a command may open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sockets {
    pub internet: bool,
    pub unix: bool,
}

/// What a command's locks on files do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Locks {
    /// What it asks for.
    Held,
    /// Nothing, but the command is told that it succeeded: it can open files of others for reading only, and would make
    /// programs outside wait.
    Pretended,
}

/// Refused with "operation not permitted", with any arguments.
const REFUSED: &[libc::c_long] = &[
    // Other processes.
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_kcmp,
    libc::SYS_pidfd_getfd,
    // Mounts, namespaces and the root.
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    OPEN_TREE_ATTR,
    libc::SYS_setns,
    // Files by handle, which no mount hides.
    libc::SYS_open_by_handle_at,
    libc::SYS_name_to_handle_at,
    // Parts of the kernel that are often attacked and that builds do not need.
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_keyctl,
    libc::SYS_add_key,
    libc::SYS_request_key,
    // The machine.
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_acct,
    libc::SYS_quotactl,
    libc::SYS_quotactl_fd,
    libc::SYS_syslog,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_adjtimex,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_vhangup,
    libc::SYS_fanotify_init,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_iopl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_ioperm,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_modify_ldt,
];
/// Newer than the tables of `libc`; the same numbers on all architectures.
const OPEN_TREE_ATTR: libc::c_long = 467;
const FCHMODAT2: libc::c_long = 452;

/// Answered as if the kernel did not have them: programs then use older calls, whose arguments can be filtered.
const MISSING: &[libc::c_long] = &[
    libc::SYS_clone3,
    libc::SYS_openat2,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
];

/// Memory, semaphores and messages that are shared by number or name: no file rule covers them. Refused where the command
/// is in the IPC namespace of the host.
const SHARED: &[libc::c_long] = &[
    libc::SYS_shmget,
    libc::SYS_shmat,
    libc::SYS_shmctl,
    libc::SYS_semget,
    libc::SYS_semop,
    libc::SYS_semtimedop,
    libc::SYS_semctl,
    libc::SYS_msgget,
    libc::SYS_msgsnd,
    libc::SYS_msgrcv,
    libc::SYS_msgctl,
    libc::SYS_mq_open,
    libc::SYS_mq_unlink,
];

/// Each asks for a new namespace.
const NAMESPACE_FLAGS: [libc::c_int; 8] = [
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWNS,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWNET,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWUTS,
    libc::CLONE_NEWCGROUP,
    0x80, // CLONE_NEWTIME
];

/// Type characters into the terminal, or paste what is selected.
const TERMINAL_INPUT: [u32; 2] = [0x5412, 0x541C];

/// Requests for a notice before another program opens a file, which has to wait: `F_SETLEASE` and `F_SETDELEG`.
const LEASES: [u32; 2] = [1024, 1040];

/// Lock a file: `F_SETLK` and `F_SETLKW`, and the same for open descriptions.
const LOCKS: [libc::c_int; 4] = [libc::F_SETLK, libc::F_SETLKW, libc::F_OFD_SETLK, libc::F_OFD_SETLKW];

/// The set-user-id and set-group-id bits of a mode. They have no effect in the sandbox; outside, other users would run
/// such a file with the rights of this one.
const SET_ID: u32 = libc::S_ISUID | libc::S_ISGID;
/// Each makes `open` create a file. The rest of `O_TMPFILE` is `O_DIRECTORY`.
const CREATING: libc::c_int = libc::O_CREAT | libc::O_TMPFILE & !libc::O_DIRECTORY;
/// Calls that give a file a mode, with the argument that is the mode. `mkdir` ignores these bits itself.
const MODES: &[(libc::c_long, u32)] = &[
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_chmod, 1),
    (libc::SYS_fchmod, 1),
    (libc::SYS_fchmodat, 2),
    (FCHMODAT2, 2),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_creat, 1),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_mknod, 1),
    (libc::SYS_mknodat, 2),
];
/// Calls that do so if they create a file, with the argument that holds the flags, which is before the mode.
const OPENS: &[(libc::c_long, u32)] = &[
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_open, 1),
    (libc::SYS_openat, 2),
];

/// An old name of packet sockets, as a type of internet sockets.
const SOCK_PACKET: libc::c_int = 10;

/// The filter for the kernel. `None` where the architecture is not known.
pub(crate) fn compile(sockets: Sockets, locks: Locks, form: Form) -> Option<FilterProgram> {
    program::make(&answers(sockets, locks, form))
}

fn answers(sockets: Sockets, locks: Locks, form: Form) -> BTreeMap<libc::c_long, FilterAnswer> {
    let shared = if form == Form::Landlock { SHARED } else { &[] };
    let refused = REFUSED.iter().chain(shared).map(|call| (*call, FilterAnswer::Always(libc::EPERM)));
    let missing = MISSING.iter().map(|call| (*call, FilterAnswer::Always(libc::ENOSYS)));
    let mut answers: BTreeMap<libc::c_long, FilterAnswer> = refused.chain(missing).collect();
    let refused = |tests| Case { errno: libc::EPERM, tests };
    let mut when = |call, cases: Vec<Vec<Test>>| {
        answers.insert(call, FilterAnswer::When(cases.into_iter().map(refused).collect()));
    };
    when(libc::SYS_socket, refused_sockets(sockets));
    // A datagram socket of a pair can still send to any Unix socket by its path; a raw one is the same there.
    let pairs = [libc::SOCK_DGRAM, libc::SOCK_RAW];
    when(libc::SYS_socketpair, pairs.iter().map(|kind| vec![of_kind(*kind)]).collect());
    // The kernel asks for the same user only. A limit on processor time would end a process outside.
    when(libc::SYS_prlimit64, vec![vec![Test::Not(0, 0), Test::NotNull(2)]]);
    when(libc::SYS_ioctl, TERMINAL_INPUT.iter().map(|request| vec![Test::Is(1, *request)]).collect());
    for (call, mode) in MODES {
        when(*call, vec![vec![Test::Any(*mode, SET_ID)]]);
    }
    for (call, flags) in OPENS {
        let creates = Test::Any(*flags, CREATING.cast_unsigned());
        when(*call, vec![vec![creates, Test::Any(flags + 1, SET_ID)]]);
    }
    // As a flag of clone the bit of the last belongs to the signal of a child's end.
    let namespaces = |flags: &[libc::c_int]| flags.iter().fold(0, |all, flag| all | flag.cast_unsigned());
    when(libc::SYS_unshare, vec![vec![Test::Any(0, namespaces(&NAMESPACE_FLAGS))]]);
    when(libc::SYS_clone, vec![vec![Test::Any(0, namespaces(&NAMESPACE_FLAGS[..7]))]]);
    let command = |errno| move |command: u32| Case { errno, tests: vec![Test::Is(1, command)] };
    let mut commands: Vec<Case> = LEASES.into_iter().map(command(libc::EPERM)).collect();
    if locks == Locks::Pretended {
        commands.extend(LOCKS.map(libc::c_int::cast_unsigned).map(command(0)));
        answers.insert(libc::SYS_flock, FilterAnswer::Always(0));
    }
    answers.insert(libc::SYS_fcntl, FilterAnswer::When(commands));
    answers
}

/// Refuses every family but those that are allowed. Netlink is allowed for questions about the command's own
/// network interfaces, which Node and Go ask at start.
fn refused_sockets(sockets: Sockets) -> Vec<Vec<Test>> {
    let mut allowed = Vec::new();
    if sockets.internet {
        allowed.extend([libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK]);
    }
    if sockets.unix {
        allowed.push(libc::AF_UNIX);
    }
    if allowed.is_empty() {
        // A case without tests always holds.
        return vec![Vec::new()];
    }
    let mut cases = vec![allowed.iter().map(|family| Test::Not(0, family.cast_unsigned())).collect()];
    if sockets.internet {
        let family = |family: libc::c_int| Test::Is(0, family.cast_unsigned());
        cases.push(vec![family(libc::AF_NETLINK), Test::Not(2, libc::NETLINK_ROUTE.cast_unsigned())]);
        // Raw sockets see and forge what others send; the kernel refuses them to all but root.
        for (of, kind) in
            [(libc::AF_INET, libc::SOCK_RAW), (libc::AF_INET6, libc::SOCK_RAW), (libc::AF_INET, SOCK_PACKET)]
        {
            cases.push(vec![family(of), of_kind(kind)]);
        }
    }
    cases
}

/// Whether a socket has this kind, with any flags.
fn of_kind(kind: libc::c_int) -> Test {
    Test::Masked(1, 0xF, kind.cast_unsigned())
}

#[cfg(test)]
mod tests {
    use super::program::tests::{ALLOWED, answered, run};
    use super::*;

    const SOCKETS: Sockets = Sockets { internet: true, unix: false };

    #[test]
    fn filter_is_short() {
        let program = compile(SOCKETS, Locks::Pretended, Form::Landlock).unwrap();
        // The kernel translates it for each reaper.
        assert!(program.len() < 280, "{}", program.len());
    }

    #[test]
    fn files_are_opened_in_few_steps() {
        let program = compile(SOCKETS, Locks::Held, Form::Namespaces).unwrap();
        let (creating, mode) = (u64::from(CREATING.cast_unsigned()), 0o644);
        for arguments in [[0, 0, 0, 0o6755, 0, 0], [0, 0, creating, mode, 0, 0]] {
            // The kernel runs it for each call, since the answer depends on the arguments.
            let (answer, steps) = run(&program, u32::try_from(libc::SYS_openat).unwrap(), arguments);
            assert_eq!(answer, ALLOWED, "{arguments:?}");
            assert!(steps <= 16, "{steps}");
        }
    }

    #[test]
    fn namespaces_are_refused() {
        for form in [Form::Namespaces, Form::Bubblewrap, Form::Landlock] {
            let program = compile(SOCKETS, Locks::Held, form).unwrap();
            let run = |call: libc::c_long, flags: libc::c_int| {
                let flags = u64::from(flags.cast_unsigned());
                run(&program, u32::try_from(call).unwrap(), [flags, 0, 0, 0, 0, 0]).0
            };
            for flag in NAMESPACE_FLAGS {
                assert_eq!(run(libc::SYS_unshare, flag), answered(libc::EPERM), "{form:?} {flag:x}");
                assert_eq!(run(libc::SYS_unshare, flag | libc::CLONE_FS), answered(libc::EPERM), "{flag:x}");
            }
            assert_eq!(run(libc::SYS_unshare, libc::CLONE_FILES), ALLOWED);
            assert_eq!(run(libc::SYS_clone, libc::CLONE_NEWIPC | libc::SIGCHLD), answered(libc::EPERM));
        }
    }

    #[test]
    fn modes_with_the_rights_of_others_are_refused() {
        let program = compile(SOCKETS, Locks::Held, Form::Namespaces).unwrap();
        let run = |call: libc::c_long, arguments| run(&program, u32::try_from(call).unwrap(), arguments).0;
        let set = |pairs: &[(u32, u32)]| {
            let mut arguments = [0; 6];
            for (at, value) in pairs {
                arguments[*at as usize] = u64::from(*value);
            }
            arguments
        };
        for bit in [libc::S_ISUID, libc::S_ISGID] {
            for (call, mode) in MODES {
                assert_eq!(run(*call, set(&[(*mode, bit | 0o755)])), answered(libc::EPERM), "{call}");
                assert_eq!(run(*call, set(&[(*mode, 0o1777)])), ALLOWED, "{call}");
            }
            for (call, flags) in OPENS {
                for creating in [libc::O_CREAT | libc::O_WRONLY, libc::O_TMPFILE | libc::O_RDWR] {
                    let creating = set(&[(*flags, creating.cast_unsigned()), (flags + 1, bit)]);
                    assert_eq!(run(*call, creating), answered(libc::EPERM), "{call}");
                }
                // The mode of a call that creates nothing means nothing.
                let reading = libc::O_RDONLY | libc::O_DIRECTORY;
                assert_eq!(run(*call, set(&[(*flags, reading.cast_unsigned()), (flags + 1, bit)])), ALLOWED);
            }
        }
        assert_eq!(run(libc::SYS_openat2, [0; 6]), answered(libc::ENOSYS));
    }
}
