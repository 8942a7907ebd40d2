// Loaded into the program under test: the answers of systems that refuse namespaces or bubblewrap, and of a name server
// that an attacker has. Takes what is refused from the environment, where commands do not find it again.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sched.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#define NAMESPACES (CLONE_NEWNS | CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS)
#define REAL(function) __typeof__(function) *real = (__typeof__(function) *)dlsym(RTLD_NEXT, #function)
// An address of the public network. It refuses connections here, so that a test reaches nothing outside.
#define PUBLIC "93.184.215.14"

static int refuses_namespaces, refuses_bubblewrap;

__attribute__((constructor)) static void begin(void) {
    const char *refused = getenv("TEST_SYSTEM_REFUSES");
    refuses_namespaces = refused && strstr(refused, "namespaces");
    refuses_bubblewrap = refused && strstr(refused, "bubblewrap");
    unsetenv("TEST_SYSTEM_REFUSES");
    unsetenv("LD_PRELOAD");
}

static int refused(long flags) {
    if (!refuses_namespaces || !(flags & NAMESPACES)) return 0;
    errno = EPERM;
    return 1;
}

int unshare(int flags) {
    REAL(unshare);
    return refused(flags) ? -1 : real(flags);
}

int clone(int (*run)(void *), void *stack, int flags, void *argument, ...) {
    REAL(clone);
    return refused(flags) ? -1 : real(run, stack, flags, argument);
}

long syscall(long number, ...) {
    REAL(syscall);
    long given[6];
    va_list list;
    va_start(list, number);
    for (int index = 0; index < 6; index++) given[index] = va_arg(list, long);
    va_end(list);
    if (number == SYS_clone && refused(given[0])) return -1;
    return real(number, given[0], given[1], given[2], given[3], given[4], given[5]);
}

static int is_refused(const char *path) {
    const char *slash = strrchr(path, '/');
    return refuses_bubblewrap && !strcmp(slash ? slash + 1 : path, "bwrap");
}

int posix_spawnp(pid_t *pid, const char *path, const posix_spawn_file_actions_t *actions,
                 const posix_spawnattr_t *attributes, char *const arguments[], char *const environment[]) {
    REAL(posix_spawnp);
    return is_refused(path) ? EACCES : real(pid, path, actions, attributes, arguments, environment);
}

int execvp(const char *path, char *const arguments[]) {
    REAL(execvp);
    if (!is_refused(path)) return real(path, arguments);
    errno = EACCES;
    return -1;
}

int getaddrinfo(const char *name, const char *service, const struct addrinfo *hints, struct addrinfo **found) {
    REAL(getaddrinfo);
    static int asked;
    if (name && (!strcmp(name, "listed.test") || !strcmp(name, "inside.test"))) name = "127.0.0.1";
    // Another address each time.
    if (name && !strcmp(name, "rebind.test")) name = asked++ % 2 ? "127.0.0.1" : PUBLIC;
    return real(name, service, hints, found);
}

int connect(int socket, const struct sockaddr *address, socklen_t length) {
    REAL(connect);
    const struct sockaddr_in *internet = (const struct sockaddr_in *)address;
    if (internet->sin_family != AF_INET || internet->sin_addr.s_addr != inet_addr(PUBLIC))
        return real(socket, address, length);
    errno = ECONNREFUSED;
    return -1;
}
