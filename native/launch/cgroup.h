/* The control groups of one sandbox: made and limited before it starts, joined by it, removed after it. One directory on v2, for its programs alone; on v1 one for each controller. */
#ifndef EXCISE_CGROUP_H
#define EXCISE_CGROUP_H

#include "launch/failure.h"
#include "launch/plan.h"

#include <sys/types.h>

struct cgroup {
    char *path;
    int directory; /* -1 when it is no longer needed */
    int tasks;     /* v1: the file a process joins by; -1 on v2 */
};

struct cgroups {
    unsigned count;
    struct cgroup list[PLAN_CGROUPS];
};

/* Makes what the plan names, with its limits; `owner`, unless it is 0, may start processes in it. After an error nothing is left. 0 or -errno. */
int cgroups_make(struct cgroups *groups, const struct plan *plan, uid_t owner, struct failure *failure);

/* For clone3's CLONE_INTO_CGROUP: the v2 directory, or -1 when there is none. */
int cgroups_unified(const struct cgroups *groups);

/* In the child, before it makes a cgroup namespace: joins the v1 groups but that of memory, which is for what it starts. A process that writes 0 itself spares the 8 ms that moving another one costs. 0 or -errno. */
int cgroups_join(const struct cgroups *groups);

/* What programs join the v1 memory group by: open for writing, or -1. */
int cgroups_memory_tasks(const struct cgroups *groups);

/* What tells the guest that its sandbox met a limit: open for reading, or -1 when that limit was not asked for. */
int cgroups_memory_events(const struct cgroups *groups);
int cgroups_pids_events(const struct cgroups *groups);

/* The descriptors are needed until the child has joined; the paths until the groups are removed. */
void cgroups_close(struct cgroups *groups);

/* Removes them once the sandbox is dead and reaped. -EBUSY: the kernel has not let go of the last process yet (it may take a moment longer than the wait for it); ask again shortly. Others are errors. */
int cgroups_remove(struct cgroups *groups);

#endif
