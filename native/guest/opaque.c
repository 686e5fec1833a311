/* The file a session's shell is executed from. The kernel makes a process whose program it may not read non-dumpable before its first instruction (would_dump()): ptrace,
 * /proc/PID/mem and fd, pidfd_getfd and process_vm_writev of it then need CAP_SYS_PTRACE, which nothing in a sandbox has; and if the file's owner is not mapped in the
 * sandbox, as for the one root's launcher passes, they need it outside.
 *
 * gVisor's kernel reads what it executes as whoever executes it, so that such a file could not be executed there at all. It is left readable then, and root's shell is made non-dumpable
 * by what it gains: an exec that gives back a capability that was not even permitted lowers it (commit_creds() has that rule too). Another user's gains none; there, gVisor lets nobody but a
 * process's ancestors reach into it (Yama's rule, which only root can lift). */
#include "guest/internal.h"
#include "guest/shell.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "common/sys.h"

#ifndef MFD_EXEC
#define MFD_EXEC 0x0010U
#endif

enum { LARGEST_BASH = 64 << 20, PATH_BYTES = 4096 };

static void close_fd(int *fd)
{
    if (*fd >= 0)
        close(*fd);
}
#define autoclose __attribute__((cleanup(close_fd))) int

/* By what its kernel says of itself, which nobody inside can change: the releases before 2026 by their one date. */
static bool reads_what_it_executes(void)
{
    struct utsname names;

    return sys(SYS_uname, &names) == 0 && (strstr(names.release, "gvisor") != NULL || strcmp(names.version, "#1 SMP Sun Jan 10 15:06:54 PST 2016") == 0);
}

int shell_conceal(void)
{
    const uint32_t reading = 1U << CAP_DAC_OVERRIDE | 1U << CAP_DAC_READ_SEARCH;
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct held[_LINUX_CAPABILITY_U32S_3];
    long result = sys(SYS_capget, &header, held);

    if (result < 0)
        return (int)result;
    held[0].effective &= ~reading; /* root's exec gives them back: they stay permitted */
    if (reads_what_it_executes())
        held[0].permitted &= ~reading; /* and is seen to, where that is what conceals */
    return (int)sys(SYS_capset, &header, held);
}

/* By a path of the sandbox's: a FIFO there must not hold us up, nor a link of /proc lead to what is ours. */
static int open_bash(const char *path)
{
    struct open_how how = {.flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, .resolve = RESOLVE_NO_MAGICLINKS};
    struct stat found;
    int fd = (int)syscall(SYS_openat2, AT_FDCWD, path, &how, sizeof how);

    if (fd < 0)
        return -errno;
    if (fstat(fd, &found) == 0 && S_ISREG(found.st_mode) && (found.st_mode & 0111) != 0 && found.st_size <= LARGEST_BASH)
        return fd;
    close(fd);
    return -ENOEXEC;
}

static int find_bash(char *const *environment)
{
    const char *at = "/usr/local/bin:/usr/bin:/bin";

    for (; *environment != NULL; environment++) {
        if (strncmp(*environment, "PATH=/", 6) == 0)
            at = *environment + 5;
    }
    for (;; at++) {
        int part = (int)strcspn(at, ":"), fd;
        char path[PATH_BYTES];

        if (part > 0 && snprintf(path, sizeof path, "%.*s/bash", part, at) < (int)sizeof path && (fd = open_bash(path)) >= 0)
            return fd;
        at += part;
        if (*at == 0)
            return -ENOENT;
    }
}

/* The same file, not open for writing any more: nothing that is may be executed. */
static int seal(int proc, int file)
{
    char path[64];
    int fd;

    if (fchmod(file, reads_what_it_executes() ? 0555 : 0111) < 0)
        return -errno;
    snprintf(path, sizeof path, "self/fd/%d", file);
    fd = openat(proc, path, O_PATH | O_CLOEXEC);
    return fd < 0 ? -errno : fd;
}

static int copy(int proc, int from)
{
    autoclose file = memfd_create("bash", MFD_CLOEXEC | MFD_EXEC);
    ssize_t put;

    if (file < 0 && errno == EINVAL) /* before Linux 6.3 there is no such flag, nor need for it */
        file = memfd_create("bash", MFD_CLOEXEC);
    if (file < 0)
        return -errno;
    while ((put = sendfile(file, from, NULL, LARGEST_BASH)) > 0)
        ;
    return put < 0 ? -errno : seal(proc, file);
}

int shell_program(struct guest *guest, int *kept)
{
    autoclose bash = -1;

    if (guest->config->shell >= 0)
        return guest->config->shell;
    if (*kept >= 0)
        return *kept;
    bash = find_bash(guest->defaults.environment);
    if (bash < 0)
        return bash;
    return *kept = copy(guest->proc, bash);
}
