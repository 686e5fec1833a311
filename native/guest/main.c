/* The guest as a program of its own, for containers, pods and VMs: the link is its stdin and stdout. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

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

/* -p FD: an open /proc, where the root has none. -d: the root has a size of its own. */
static int take_options(struct guest_config *config, int argc, char **argv)
{
    int option;

    while ((option = getopt(argc, argv, "p:d")) >= 0) {
        if (option == 'p')
            config->proc = atoi(optarg);
        else if (option == 'd')
            config->disk_limited = true;
        else
            return -EINVAL;
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
