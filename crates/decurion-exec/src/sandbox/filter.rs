//! The system calls that no command may make. Takes which kinds of sockets are allowed, gives a program for the
//! kernel's seccomp filter.
//!
//! Everything that is not listed is allowed: the filter closes ways around the namespaces and Landlock, and parts of
//! the kernel that ordinary programs do not use and attacks do.

use std::collections::BTreeMap;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    sock_filter,
};

use super::Form;

/// Which sockets a command may open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sockets {
    pub internet: bool,
    pub unix: bool,
}

/// Refused with "operation not permitted", whatever the arguments.
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
/// Newer than the table of `libc`; the same number on all architectures.
const OPEN_TREE_ATTR: libc::c_long = 467;

/// Answered as if the kernel did not have them: programs then use older calls, whose arguments can be filtered.
const MISSING: &[libc::c_long] =
    &[libc::SYS_clone3, libc::SYS_io_uring_setup, libc::SYS_io_uring_enter, libc::SYS_io_uring_register];

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

/// An old name of packet sockets, as a type of internet sockets.
const SOCK_PACKET: libc::c_int = 10;

/// The two filters for the kernel; the stricter answer counts. `None` where the architecture is not known.
pub(crate) fn compile(sockets: Sockets, form: Form) -> Option<[BpfProgram; 2]> {
    let filter = |rules, errno: libc::c_int| -> Option<BpfProgram> {
        let architecture = std::env::consts::ARCH.try_into().ok()?;
        let answer = SeccompAction::Errno(errno.cast_unsigned());
        SeccompFilter::new(rules, SeccompAction::Allow, answer, architecture).ok()?.try_into().ok()
    };
    let missing = filter(MISSING.iter().map(|call| (*call, Vec::new())).collect(), libc::ENOSYS)?;
    Some([without_second_numbering(missing), filter(refusals(sockets, form)?, libc::EPERM)?])
}

fn refusals(sockets: Sockets, form: Form) -> Option<BTreeMap<i64, Vec<SeccompRule>>> {
    let shared = if form == Form::Landlock { SHARED } else { &[] };
    let refused = REFUSED.iter().chain(shared).map(|call| (*call, Vec::new()));
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = refused.collect();
    rules.insert(libc::SYS_socket, socket_rules(sockets)?);
    // A datagram socket of a pair can still send to any Unix socket by its path; a raw one is the same there.
    let pairs = [libc::SOCK_DGRAM, libc::SOCK_RAW];
    let pair = |kind: libc::c_int| SeccompRule::new(vec![masked(1, 0xF, kind)?]).ok();
    rules.insert(libc::SYS_socketpair, pairs.map(pair).into_iter().collect::<Option<_>>()?);
    // The kernel asks for the same user only. A limit on processor time would end a process outside.
    let (of_another, new) = (differs(0, 0)?, differs_whole(2, 0)?);
    rules.insert(libc::SYS_prlimit64, vec![SeccompRule::new(vec![of_another, new]).ok()?]);
    rules.insert(
        libc::SYS_ioctl,
        TERMINAL_INPUT
            .iter()
            .map(|request| SeccompRule::new(vec![equals(1, u64::from(*request))?]).ok())
            .collect::<Option<_>>()?,
    );
    for call in [libc::SYS_clone, libc::SYS_unshare] {
        let flag = |flag: &libc::c_int| {
            let bit = u64::from(flag.cast_unsigned());
            let set = SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::MaskedEq(bit), bit);
            SeccompRule::new(vec![set.ok()?]).ok()
        };
        // As a flag of clone this bit belongs to the signal of a child's end.
        let flags = NAMESPACE_FLAGS.iter().filter(|flag| call == libc::SYS_unshare || **flag != 0x80);
        rules.insert(call, flags.map(flag).collect::<Option<_>>()?);
    }
    Some(rules)
}

/// Refuses every family but those that are allowed. Netlink is allowed for questions about the command's own
/// network interfaces, which Node and Go ask at start.
fn socket_rules(sockets: Sockets) -> Option<Vec<SeccompRule>> {
    let mut allowed = Vec::new();
    if sockets.internet {
        allowed.extend([libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK]);
    }
    if sockets.unix {
        allowed.push(libc::AF_UNIX);
    }
    let not = |family: &libc::c_int| differs(0, u64::from(family.cast_unsigned()));
    if allowed.is_empty() {
        return Some(Vec::new());
    }
    let mut rules = vec![SeccompRule::new(allowed.iter().map(not).collect::<Option<_>>()?).ok()?];
    if sockets.internet {
        let route = u64::from(libc::NETLINK_ROUTE.cast_unsigned());
        let netlink = equals(0, u64::from(libc::AF_NETLINK.cast_unsigned()))?;
        rules.push(SeccompRule::new(vec![netlink, differs(2, route)?]).ok()?);
        // Raw sockets see and forge what others send; the kernel refuses them to all but root.
        for (family, kind) in
            [(libc::AF_INET, libc::SOCK_RAW), (libc::AF_INET6, libc::SOCK_RAW), (libc::AF_INET, SOCK_PACKET)]
        {
            let family = equals(0, u64::from(family.cast_unsigned()))?;
            rules.push(SeccompRule::new(vec![family, masked(1, 0xF, kind)?]).ok()?);
        }
    }
    Some(rules)
}

fn equals(argument: u8, value: u64) -> Option<SeccompCondition> {
    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, value).ok()
}

fn differs(argument: u8, value: u64) -> Option<SeccompCondition> {
    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, SeccompCmpOp::Ne, value).ok()
}

/// The same for an argument of 64 bits.
fn differs_whole(argument: u8, value: u64) -> Option<SeccompCondition> {
    SeccompCondition::new(argument, SeccompCmpArgLen::Qword, SeccompCmpOp::Ne, value).ok()
}

fn masked(argument: u8, mask: u64, value: libc::c_int) -> Option<SeccompCondition> {
    let value = u64::from(value.cast_unsigned());
    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, SeccompCmpOp::MaskedEq(mask), value).ok()
}

/// A program that first refuses the second numbering of system calls that 64-bit x86 kernels may offer: its numbers
/// are in no list.
fn without_second_numbering(program: BpfProgram) -> BpfProgram {
    const REFUSE: u32 = 0x0005_0000;
    let load_number = sock_filter { code: 0x20, jt: 0, jf: 0, k: 0 };
    let at_least = sock_filter { code: 0x35, jt: 0, jf: 1, k: 0x4000_0000 };
    let refuse = sock_filter { code: 0x06, jt: 0, jf: 0, k: REFUSE | libc::EPERM.cast_unsigned() };
    [load_number, at_least, refuse].into_iter().chain(program).collect()
}
