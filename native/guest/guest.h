/* What the launcher, or main() inside a container, hands to the guest. */
#ifndef EXCISE_GUEST_H
#define EXCISE_GUEST_H

#include <stdbool.h>

struct confinement; /* common/confine.h: what sandboxed code may do; NULL: as much as the guest itself may */

enum root_kind {
    ROOT_NONE,      /* nothing came yet */
    ROOT_NEXT_LIFE, /* for the life that a HELLO with WIRE_FLAG_ROOT begins, when every process is dead */
    ROOT_NOW,       /* under this life, if nothing lives in it */
    ROOT_BROKEN,    /* nobody offers roots any more */
};

enum { ROOTS_LEFT = 2 };

/* How a sandbox is given another root; the launcher's part (launch/reroot.h). */
struct guest_roots {
    int (*receive)(void *state); /* an enum root_kind: what has come */
    int (*apply)(void *state);   /* takes on what came; 0 or -errno, and then the sandbox has no root that could be used */
    void (*refuse)(void *state); /* lets go of what came: something lives */
    /* After `apply`: descriptors that are all that is left of the root before, or -1. Closing them is what takes long, and may be done by another. */
    void (*left)(void *state, int left[ROOTS_LEFT]);
};

/* A machine of its own, which may be a copy of another: then it must not go on as that one. */
struct guest_machine {
    int boot_id; /* open for writing: what is shown as /proc/sys/kernel/random/boot_id */
};

struct guest_config {
    int link_in;            /* frames come from here; both may be the same socket */
    int link_out;
    int memory_events;      /* open for reading, or -1: v2 memory.events, v1 memory.oom_control */
    /* Open for writing, or -1: `tasks` of a v1 memory cgroup that programs and workers join, and the guest and its runners do not: what is used up there,
     * by files in memory too, which no kill frees, is then never the guest's own end. */
    int memory_tasks;
    int cgroup;             /* the same on v2: an open directory of a group that programs and workers are made in, or -1 */
    int pids_events;        /* open for reading, or -1: pids.events, both versions */
    int proc;               /* an open /proc, for a root that has none; or -1: the guest opens it */
    int shell;              /* O_PATH or readable descriptor of an execute-only bash that sandboxed code does not own, or -1 */
    bool disk_limited;      /* the root has a size of its own: a full one is the sandbox's doing */
    bool pid1;              /* else the guest makes itself a subreaper */
    const struct confinement *confinement;
    const struct guest_machine *machine; /* NULL: its kernel is not its own */
    int talk; /* readable when a root is offered; -1: it has one root for all its lives */
    const struct guest_roots *roots;
    void *roots_state;
};

/* Serves until the link ends; never returns in a sandbox. The exit status is 0 for a link that ended, 1 for one that broke the protocol. */
int guest_main(const struct guest_config *config);

#endif
