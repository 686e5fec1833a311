/* The control groups of one sandbox: made and limited before it starts, joined by it, removed after it. One directory on v2; on v1 one for each controller. */
#ifndef EXCISE_CGROUP_H
#define EXCISE_CGROUP_H

#include <stdbool.h>
#include <stddef.h>

enum { CGROUPS_MAX = 8 };

struct cgroup {
    char *path;
    int directory; /* -1 when it is no longer needed */
    int tasks;     /* v1: the file a process joins by; -1 on v2 */
};

struct cgroups {
    unsigned count;
    struct cgroup list[CGROUPS_MAX];
};

/* Makes what the CGROUP fields of a request name and writes what its WRITE fields say; other fields are not looked at. After an error nothing is left, and `step` says in words which call it was. 0 or -errno. */
int cgroups_make(struct cgroups *groups, const void *payload, size_t length, const char **step);

/* For clone3's CLONE_INTO_CGROUP: the v2 directory, or -1 when there is none. */
int cgroups_clone_into(const struct cgroups *groups);

/* In the child, before it makes a cgroup namespace: joins the v1 groups. A process that writes 0 itself spares the 8 ms that moving another one costs. 0 or -errno. */
int cgroups_join(const struct cgroups *groups);

/* What tells the guest that its sandbox met a limit: open for reading, or -1 when that limit was not asked for. */
int cgroups_memory_events(const struct cgroups *groups);
int cgroups_pids_events(const struct cgroups *groups);

/* The descriptors are needed until the child has joined; the paths until the groups are removed. */
void cgroups_close(struct cgroups *groups);

/* Removes them once the sandbox is dead and reaped. -EBUSY: the kernel has not let go of the last process yet (it may take a moment longer than the wait for it); ask again shortly. Others are errors. */
int cgroups_remove(struct cgroups *groups);

#endif
