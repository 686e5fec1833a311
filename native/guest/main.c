/* The guest as a program of its own, for containers, pods and VMs: the link is its stdin and stdout. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <unistd.h>

#include "common/confine.h"
#include "guest/arrive.h"
#include "guest/guest.h"

/* The first of these files that is there: version 2 of control groups, then version 1. A container sees its own group at the root of the tree. */
static int open_first(const char *const *paths)
{
    for (; *paths != NULL; paths++) {
        int fd = open(*paths, O_RDONLY | O_CLOEXEC);

        if (fd >= 0)
            return fd;
    }
    return -1;
}

/* Ends the program: `what` it was asked to do for a pod is done, or `result` says why not. */
static void finish(const char *what, int result)
{
    if (result < 0)
        fprintf(stderr, "excise-guest: %s: %s\n", what, strerror(-result));
    exit(result < 0);
}

static void take_link(struct guest_config *config, const char *what, int result, const int link[2])
{
    if (result < 0)
        finish(what, result);
    config->link_in = link[0];
    config->link_out = link[1];
}

/* Sandboxed code has what a container has, and cannot signal us. Without CAP_SYS_ADMIN, which we hold for this and it does not, the kernel takes a filter only with no_new_privs. */
static void guard(struct guest_config *config)
{
    static struct sock_fprog filter;
    static struct confinement confinement;
    int result = confine_build_guard(&filter);

    if (result < 0)
        finish("guard", result);
    confinement = (struct confinement){.capabilities = confine_default_capabilities(), .filter = &filter};
    config->confinement = &confinement;
}

/* DIRECTORY:LIMIT, of a group that we are in, on a kernel whose groups are set from inside. It is then out of reach of what we start: only CAP_SYS_ADMIN could mount it again. */
static void limit_processes(struct guest_config *config, char *given)
{
    char path[PATH_MAX], *limit = strrchr(given, ':');
    int file, result;

    if (limit == NULL)
        finish("limit processes", -EINVAL);
    *limit++ = 0;
    snprintf(path, sizeof path, "%s/pids.max", given);
    file = open(path, O_WRONLY | O_CLOEXEC);
    result = file < 0 || write(file, limit, strlen(limit)) < 0 || close(file) < 0 ? -errno : 0;
    snprintf(path, sizeof path, "%s/pids.events", given);
    if (result == 0 && (config->pids_events = open(path, O_RDONLY | O_CLOEXEC)) < 0)
        result = -errno;
    if (result == 0 && umount2("/sys/fs/cgroup", MNT_DETACH) < 0)
        result = -errno;
    if (result < 0)
        finish("limit processes", result);
}

/* -p FD: an open /proc, where the root has none. -d: the root has a size of its own. -u: the kernel lets PID 1 be killed from inside, and must not. -n DIRECTORY:LIMIT: so many processes.
 * In a pod: -c PATH copies the program and ends; -w PATH waits for a link there; -g PATH gives it one, its own; -f PORT
 * listens for one that is forwarded, -l PORT for one from anywhere. */
static int take_options(struct guest_config *config, int argc, char **argv)
{
    int option, link[2], result;

    while ((option = getopt(argc, argv, "p:dun:c:w:g:f:l:")) >= 0) {
        switch (option) {
        case 'p': config->proc = atoi(optarg); break;
        case 'd': config->disk_limited = true; break;
        case 'u': guard(config); break;
        case 'n': limit_processes(config, optarg); break;
        case 'c': finish("copy", arrive_copy(optarg)); break;
        case 'g': finish("give", (result = arrive_tell(STDOUT_FILENO)) < 0 ? result : arrive_give(optarg)); break;
        case 'w': result = arrive_wait(optarg, link); take_link(config, "wait", result, link); break;
        case 'f':
        case 'l': result = arrive_listen((uint16_t)atoi(optarg), option == 'f', link); take_link(config, "listen", result, link); break;
        default: return -EINVAL;
        }
    }
    return 0;
}

int main(int argc, char **argv)
{
    static const char *const memory[] = {"/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control", NULL};
    static const char *const pids[] = {"/sys/fs/cgroup/pids.events", "/sys/fs/cgroup/pids/pids.events", NULL};
    struct guest_config config = {
        .link_in = STDIN_FILENO,
        .link_out = STDOUT_FILENO,
        .memory_events = open_first(memory),
        .memory_tasks = -1,
        .cgroup = -1,
        .pids_events = open_first(pids),
        .proc = -1,
        .shell = -1,
        .talk = -1,
        .pid1 = getpid() == 1,
    };

    if (take_options(&config, argc, argv) < 0)
        return 1;
    return guest_main(&config);
}
