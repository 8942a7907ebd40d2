// Attempts that a shell cannot make. The first argument names one; "escaped" on the output means that it worked.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <mqueue.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <netinet/in.h>
#include <termios.h>
#include <unistd.h>

static int verdict(int escaped) {
    if (escaped) puts("escaped");
    else printf("refused: %s\n", strerror(errno));
    fflush(stdout);
    return !escaped;
}

// Whether the call got past the filter and the checks of privilege, whatever it made of its arguments.
static int reached(long result) {
    return result >= 0 || (errno != EPERM && errno != ENOSYS && errno != EACCES);
}

static struct sockaddr_un address(const char *name, socklen_t *length) {
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    // An abstract name begins with @.
    strncpy(to.sun_path, name, sizeof to.sun_path - 1);
    *length = offsetof(struct sockaddr_un, sun_path) + strlen(name) + (name[0] != '@');
    if (name[0] == '@') to.sun_path[0] = 0;
    return to;
}

static int send_by_pair(int type, const char *path) {
    int pair[2];
    if (socketpair(AF_UNIX, type, 0, pair) < 0) return verdict(0);
    socklen_t length;
    struct sockaddr_un to = address(path, &length);
    return verdict(sendto(pair[0], "x", 1, 0, (void *)&to, length) == 1);
}

static int connect_unix(int type, const char *name) {
    int fd = socket(AF_UNIX, type, 0);
    socklen_t length;
    struct sockaddr_un to = address(name, &length);
    return verdict(fd >= 0 && connect(fd, (void *)&to, length) == 0);
}

// A pair whose other end is closed: can the rest be connected elsewhere?
static int reconnect(int type, const char *path) {
    int pair[2];
    if (socketpair(AF_UNIX, type, 0, pair) < 0) return verdict(0);
    close(pair[1]);
    struct sockaddr none = {.sa_family = AF_UNSPEC};
    connect(pair[0], &none, sizeof none);
    socklen_t length;
    struct sockaddr_un to = address(path, &length);
    return verdict(connect(pair[0], (void *)&to, length) == 0);
}

static int internet(int type, int port) {
    int fd = socket(AF_INET, type, 0);
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    return verdict(fd >= 0 && connect(fd, (void *)&to, sizeof to) == 0 && send(fd, "x", 1, MSG_NOSIGNAL) == 1 &&
                   // An unheard datagram comes back as an error.
                   send(fd, "x", 1, MSG_NOSIGNAL) == 1);
}

// A system call in the numbering of 32-bit programs.
static long call_i386(long number, long a, long b) {
    long result;
    __asm__ volatile("int $0x80" : "=a"(result) : "a"(number), "b"(a), "c"(b), "d"(0L), "S"(0L), "D"(0L) : "memory", "r8", "r9", "r10", "r11");
    return result;
}

static int new_namespace(const char *how) {
    long flag = CLONE_NEWUSER;
    int status;
    if (!strcmp(how, "unshare")) return verdict(unshare(flag) == 0);
    // The 32-bit numbers of unshare and of the 64-bit filter's harmless calls differ.
    if (!strcmp(how, "i386")) return verdict(call_i386(310, flag, 0) == 0);
    if (!strcmp(how, "x32")) return verdict(syscall(0x40000000 | SYS_unshare, flag) == 0);
    long pid;
    if (!strcmp(how, "clone3")) {
        uint64_t arguments[8] = {flag, 0, 0, 0, SIGCHLD};
        pid = syscall(SYS_clone3, arguments, sizeof arguments);
    } else {
        // The upper half of the flags is not looked at by the kernel.
        pid = syscall(SYS_clone, flag | SIGCHLD | (!strcmp(how, "high") ? 1L << 40 : 0), 0, 0, 0, 0);
    }
    if (pid == 0) _exit(0);
    return verdict(pid > 0 && waitpid(pid, &status, 0) == pid && status == 0);
}

static int terminal_input(void) {
    int master = posix_openpt(O_RDWR | O_NOCTTY);
    if (master < 0 || grantpt(master) || unlockpt(master)) return verdict(0);
    if (fork() == 0) {
        setsid();
        int slave = open(ptsname(master), O_RDWR);
        _exit(verdict(slave >= 0 && ioctl(slave, TIOCSTI, "x") == 0));
    }
    int status;
    wait(&status);
    return status;
}

static int by_handle(const char *path) {
    struct { struct file_handle handle; char bytes[128]; } found = {.handle.handle_bytes = 128};
    int mount, fd, root = open("/", O_RDONLY);
    // What a command knows of a file's number is enough to make its handle by hand.
    if (name_to_handle_at(AT_FDCWD, path, &found.handle, &mount, 0) < 0) return verdict(0);
    char text[64] = {0};
    fd = open_by_handle_at(root, &found.handle, O_RDONLY);
    if (fd < 0 || read(fd, text, sizeof text - 1) <= 0) return verdict(0);
    puts(text);
    return 0;
}

// Makes a file without a name and gives it one elsewhere.
static int link_nameless(const char *from, const char *to) {
    int fd = open(from, O_TMPFILE | O_RDWR, 0600);
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    return verdict(fd >= 0 && linkat(AT_FDCWD, path, AT_FDCWD, to, AT_SYMLINK_FOLLOW) == 0);
}

// Gives a file the set-user-id and set-group-id bits in one of the ways that the kernel has.
static int set_id(const char *how, const char *path) {
    struct { uint64_t flags, mode, resolve; } open_how = {O_CREAT | O_RDWR, 06755, 0};
    struct stat about = {0};
    long done = -1;
    int fd;
    umask(0);
    if (!strcmp(how, "chmod")) done = syscall(SYS_chmod, path, 06755);
    if (!strcmp(how, "fchmod")) done = syscall(SYS_fchmod, open(path, O_RDONLY), 06755);
    if (!strcmp(how, "fchmodat")) done = syscall(SYS_fchmodat, AT_FDCWD, path, 06755);
    if (!strcmp(how, "fchmodat2")) done = syscall(452, AT_FDCWD, path, 06755, 0);
    // The kernel looks at the lower half of the mode.
    if (!strcmp(how, "high")) done = syscall(SYS_fchmodat, AT_FDCWD, path, 0xFFFFFFFF00000000L | 06755);
    if (!strcmp(how, "i386")) {
        // Such a call takes addresses of 32 bits.
        char *low = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
        done = call_i386(15, (long)strcpy(low, path), 06755);
    }
    if (!strcmp(how, "x32")) done = syscall(0x40000000 | SYS_chmod, path, 06755);
    if (!strcmp(how, "creat")) done = syscall(SYS_creat, path, 06755);
    if (!strcmp(how, "open")) done = syscall(SYS_open, path, O_CREAT | O_WRONLY, 06755);
    if (!strcmp(how, "openat")) done = syscall(SYS_openat, AT_FDCWD, path, O_CREAT | O_WRONLY, 06755);
    if (!strcmp(how, "openat2")) done = syscall(SYS_openat2, AT_FDCWD, path, &open_how, sizeof open_how);
    if (!strcmp(how, "mknod")) done = syscall(SYS_mknod, path, S_IFREG | 06755, 0);
    if (!strcmp(how, "mknodat")) done = syscall(SYS_mknodat, AT_FDCWD, path, S_IFREG | 06755, 0);
    if (!strcmp(how, "nameless")) {
        char link[64], folder[512];
        snprintf(folder, sizeof folder, "%s", path);
        *strrchr(folder, '/') = 0;
        fd = syscall(SYS_openat, AT_FDCWD, folder, O_TMPFILE | O_RDWR, 06755);
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        done = fd < 0 ? -1 : linkat(AT_FDCWD, link, AT_FDCWD, path, AT_SYMLINK_FOLLOW);
    }
    return verdict(done >= 0 && stat(path, &about) == 0 && about.st_mode & (S_ISUID | S_ISGID));
}

// Locks a file that can be read, tells so and holds the lock until its input ends.
static int hold_lock(const char *how, const char *path) {
    int fd = open(path, O_RDONLY);
    struct flock all = {.l_type = F_RDLCK, .l_whence = SEEK_SET};
    int done = !strcmp(how, "flock") ? flock(fd, LOCK_EX) : fcntl(fd, !strcmp(how, "record") ? F_SETLKW : F_OFD_SETLKW, &all);
    if (fd < 0 || done) return verdict(0);
    puts("up");
    fflush(stdout);
    char byte;
    return read(0, &byte, 1) < 0;
}

static int from_memory(const char *target) {
    char script[512];
    int fd = memfd_create("script", 0), length = snprintf(script, sizeof script, "#!/bin/sh\necho x > %s\n", target);
    if (write(fd, script, length) != length) return 1;
    char *arguments[] = {"script", NULL}, *none[] = {NULL};
    fexecve(fd, arguments, none);
    return verdict(0);
}

// Asks the kernel to send SIGKILL to a process when input arrives.
static int signal_by_descriptor(int pid) {
    int ends[2];
    if (pipe(ends)) return verdict(0);
    if (fcntl(ends[0], F_SETOWN, pid) || fcntl(ends[0], F_SETSIG, SIGKILL) || fcntl(ends[0], F_SETFL, O_ASYNC)) return verdict(0);
    return write(ends[1], "x", 1) != 1;
}

static int has_capability(int number) {
    char line[256];
    FILE *status = fopen("/proc/self/status", "r");
    while (status && fgets(line, sizeof line, status))
        if (!strncmp(line, "CapEff:", 7)) {
            unsigned long long set = strtoull(line + 7, NULL, 16);
            printf("%llx\n", set);
            return verdict(number < 0 ? set != 0 : (set >> number) & 1);
        }
    return verdict(0);
}

static int open_descriptors(void) {
    int found = 0;
    for (int fd = 3; fd < 4096; fd++)
        if (fcntl(fd, F_GETFD) >= 0) found = fd;
    printf("%d\n", found);
    return verdict(found);
}

static int shared_memory(const char *how, const char *key) {
    int id = shmget(strtol(key, NULL, 0), 4096, !strcmp(how, "make") ? IPC_CREAT | 0600 : 0);
    if (!strcmp(how, "remove")) return shmctl(id, IPC_RMID, NULL);
    char *memory = id < 0 ? (void *)-1 : shmat(id, NULL, 0);
    if (memory == (void *)-1) return verdict(0);
    if (!strcmp(how, "make")) strcpy(memory, "canary");
    else puts(memory);
    return 0;
}

static int message_queue(const char *how, const char *name) {
    struct mq_attr attributes = {.mq_maxmsg = 1, .mq_msgsize = 16};
    if (!strcmp(how, "remove")) return mq_unlink(name);
    if (!strcmp(how, "make")) {
        mqd_t queue = mq_open(name, O_CREAT | O_RDWR, 0600, &attributes);
        return queue < 0 || mq_send(queue, "canary", 7, 0);
    }
    char text[16];
    mqd_t queue = mq_open(name, O_RDWR | O_NONBLOCK);
    if (queue < 0 || mq_receive(queue, text, sizeof text, NULL) < 0) return verdict(0);
    puts(text);
    return 0;
}

// Calls that are refused whatever their arguments: with arguments that the kernel would take, where that is harmless.
static int kernel_call(const char *name) {
    static char page[4096] __attribute__((aligned(4096)));
    struct { const char *name; long number, arguments[5]; } calls[] = {
        {"bpf", SYS_bpf, {0, (long)page, 32}},
        {"perf", SYS_perf_event_open, {(long)page, 0, -1, -1, 0}},
        {"userfaultfd", SYS_userfaultfd, {1 /* user mode only */}},
        {"io_uring", SYS_io_uring_setup, {1, (long)page}},
        {"fanotify", SYS_fanotify_init, {0x200 /* reports file ids */, 0}},
        {"add_key", SYS_add_key, {(long)"user", (long)"decurion", (long)"x", 1, -3}},
        {"keyctl", SYS_keyctl, {0, -3, 1}},
        {"request_key", SYS_request_key, {(long)"user", (long)"none", 0, 0}},
        {"setns", SYS_setns, {open("/proc/self/ns/net", O_RDONLY), 0}},
        {"chroot", SYS_chroot, {(long)"."}},
        {"pivot_root", SYS_pivot_root, {(long)".", (long)"."}},
        {"mount", SYS_mount, {(long)"none", (long)"/none", (long)"none", 0, 0}},
        {"umount", SYS_umount2, {(long)"/none", 0}},
        {"move_mount", SYS_move_mount, {-100, (long)"/none", -100, (long)"/none", 0}},
        {"open_tree", SYS_open_tree, {-100, (long)"/", 1}},
        {"open_tree_attr", 467, {-100, (long)"/", 1}},
        {"fsopen", SYS_fsopen, {(long)"tmpfs", 0}},
        {"fspick", SYS_fspick, {-100, (long)"/", 0}},
        {"mount_setattr", SYS_mount_setattr, {-100, (long)"/none", 0, (long)page, 32}},
        {"kcmp", SYS_kcmp, {getpid(), getpid(), 0, 0, 0}},
        {"syslog", SYS_syslog, {3, (long)page, sizeof page}},
        {"swapon", SYS_swapon, {(long)"/none", 0}},
        {"quotactl", SYS_quotactl, {0, (long)"/none", 0, 0}},
        {"acct", SYS_acct, {(long)"/none"}},
        {"reboot", SYS_reboot, {0, 0, 0}},
        {"clock_settime", SYS_clock_settime, {1000, (long)page}},
        {"sethostname", SYS_sethostname, {(long)page, -1}},
        {"modify_ldt", SYS_modify_ldt, {0, (long)page, 16}},
    };
    for (unsigned at = 0; at < sizeof calls / sizeof *calls; at++)
        if (!strcmp(calls[at].name, name)) {
            long *a = calls[at].arguments;
            errno = 0;
            return verdict(reached(syscall(calls[at].number, a[0], a[1], a[2], a[3], a[4])));
        }
    return 2;
}

int main(int count, char **words);

static int of_process(const char *how, int pid) {
    char text[64] = {0};
    struct iovec here = {text, sizeof text}, there = {(void *)main, 8};
    struct rlimit limit = {7, 7};
    if (!strcmp(how, "ptrace")) return verdict(ptrace(PTRACE_SEIZE, pid, 0, 0) == 0);
    if (!strcmp(how, "vm_readv")) return verdict(process_vm_readv(pid, &here, 1, &there, 1, 0) >= 0 || errno == EFAULT);
    if (!strcmp(how, "vm_writev")) return verdict(process_vm_writev(pid, &here, 1, &there, 1, 0) >= 0 || errno == EFAULT);
    if (!strcmp(how, "prlimit")) return verdict(prlimit(pid, RLIMIT_NOFILE, &limit, NULL) == 0);
    if (!strcmp(how, "priority")) return verdict(setpriority(PRIO_PROCESS, pid, 7) == 0);
    if (!strcmp(how, "affinity")) {
        cpu_set_t first;
        CPU_ZERO(&first);
        CPU_SET(0, &first);
        return verdict(sched_setaffinity(pid, sizeof first, &first) == 0);
    }
    if (!strcmp(how, "scheduler")) {
        struct sched_param none = {0};
        return verdict(sched_setscheduler(pid, SCHED_BATCH, &none) == 0);
    }
    if (!strcmp(how, "io_priority")) return verdict(syscall(SYS_ioprio_set, 1, pid, 2 << 13 | 7) == 0);
    if (!strcmp(how, "queue")) {
        union sigval value = {0};
        return verdict(sigqueue(pid, SIGKILL, value) == 0);
    }
    if (!strcmp(how, "tgkill")) return verdict(syscall(SYS_tgkill, pid, pid, SIGKILL) == 0);
    int fd = syscall(SYS_pidfd_open, pid, 0);
    if (!strcmp(how, "pidfd")) return verdict(fd >= 0 && syscall(SYS_pidfd_send_signal, fd, SIGKILL, NULL, 0) == 0);
    if (!strcmp(how, "getfd")) {
        // The victim reads a secret as its standard input.
        int theirs = syscall(SYS_pidfd_getfd, fd, 0, 0);
        if (fd < 0 || theirs < 0 || pread(theirs, text, sizeof text - 1, 0) <= 0) return verdict(0);
        puts(text);
        return 0;
    }
    return 2;
}

// Lives until it is killed. Its arguments, its environment and its standard input are secrets.
static int be_victim(void) {
    puts("up");
    fflush(stdout);
    for (;;) pause();
}

// Opens a terminal, tells its name and holds it until its input ends.
static int hold_terminal(void) {
    int master = posix_openpt(O_RDWR | O_NOCTTY);
    if (master < 0 || grantpt(master) || unlockpt(master)) return 1;
    puts(ptsname(master));
    fflush(stdout);
    char byte;
    return read(0, &byte, 1) < 0;
}

int main(int count, char **words) {
    const char *what = count > 1 ? words[1] : "", *first = count > 2 ? words[2] : "", *second = count > 3 ? words[3] : "";
    if (!strcmp(what, "pair")) return send_by_pair(atoi(first), second);
    if (!strcmp(what, "reconnect")) return reconnect(atoi(first), second);
    if (!strcmp(what, "connect")) return connect_unix(atoi(first), second);
    if (!strcmp(what, "internet")) return internet(atoi(first), atoi(second));
    if (!strcmp(what, "socket")) return verdict(reached(socket(atoi(first), atoi(second), count > 4 ? atoi(words[4]) : 0)));
    if (!strcmp(what, "namespace")) return new_namespace(first);
    if (!strcmp(what, "input")) return terminal_input();
    if (!strcmp(what, "handle")) return by_handle(first);
    if (!strcmp(what, "nameless")) return link_nameless(first, second);
    if (!strcmp(what, "exchange")) return verdict(renameat2(AT_FDCWD, first, AT_FDCWD, second, RENAME_EXCHANGE) == 0);
    if (!strcmp(what, "attribute")) return verdict(syscall(SYS_setxattr, first, "user.escape", "x", 1, 0) == 0);
    if (!strcmp(what, "set-id")) return set_id(first, second);
    if (!strcmp(what, "lock")) return hold_lock(first, second);
    if (!strcmp(what, "memory")) return from_memory(first);
    if (!strcmp(what, "owner")) return signal_by_descriptor(atoi(first));
    if (!strcmp(what, "capability")) return has_capability(atoi(first));
    if (!strcmp(what, "root")) return verdict(geteuid() == 0);
    if (!strcmp(what, "descriptors")) return open_descriptors();
    if (!strcmp(what, "shm")) return shared_memory(first, second);
    if (!strcmp(what, "mq")) return message_queue(first, second);
    if (!strcmp(what, "call")) return kernel_call(first);
    if (!strcmp(what, "process")) return of_process(first, atoi(second));
    if (!strcmp(what, "terminal")) return hold_terminal();
    if (!strcmp(what, "victim")) return be_victim();
    return 2;
}
