/* What the launcher's child does until it is the sandbox's guest. */
#ifndef EXCISE_CHILD_H
#define EXCISE_CHILD_H

#include "launch/failure.h"

#include <stdbool.h>
#include <stdint.h>

struct cgroups;
struct confinement;
struct plan;

/* Inherited by fork: nothing of it crosses the conversation. */
struct child_start {
    const struct plan *plan;
    const struct cgroups *cgroups;
    const struct confinement *confinement;
    uint32_t users; /* how many the sandbox has: 65536, or 1 */
    bool host_root; /* the sandbox's root has the id of the host's */
    bool has_upper; /* the launcher hands over an upper among the mounts, and other roots later */
    int launcher;   /* the launcher's pidfd */
    int talk;       /* our end of the conversation with it */
};

/* The conversation, in order: the launcher says MAPPED when the user namespace has its users, and MOUNTS, with what clones_open opened; the child sends a
 * struct failure, with error 0 and the listener, if one was asked for, when all is done. What may follow is in launch/reroot.h. */
enum { CHILD_MAPPED = 'u', CHILD_MOUNTS = 'm' };

_Noreturn void child_main(const struct child_start *start);

#endif
