/* What a runner is, and what runs in its process. */
#ifndef EXCISE_GUEST_RUNNER_BODY_H
#define EXCISE_GUEST_RUNNER_BODY_H

#include <stdatomic.h>

#include "guest/runner.h"

struct confinement;

enum { RUNNER_IDLE, RUNNER_BUSY, RUNNER_QUIT };

enum report_kind {
    REPORT_STARTED,
    REPORT_ENDED,   /* nothing is left: the runner is idle */
    REPORT_LEFT,    /* the program has ended, others have not */
    REPORT_EMPTIED, /* now they have: the runner is idle */
    REPORT_BROKEN,  /* it could not be confined, and quits */
};

/* What a runner writes to the guest: small enough for the kernel to write at once. */
struct report {
    struct runner *runner;
    uint64_t kind;
};

struct runner {
    /* Both sides */
    atomic_uint turn; /* RUNNER_*; a futex */
    atomic_int main;  /* the program's process id; put here by the kernel */
    atomic_ullong pending; /* signals that came before the program did */
    struct spawn spawn;
    bool tell_started;
    bool taken; /* it has begun to start the program */
    struct program_end end;
    /* Set before the runner is made */
    int tell;
    int *left; /* descriptors to close first, or NULL */
    const struct confinement *confinement;
    int memory_tasks, cgroup; /* guest_config's */
    const struct rlimit *descriptors; /* how many a program may have open */
    char *stack, *child_stack; /* their ends */
    /* The guest only */
    int pid;
    bool main_ended;
    const struct runner_owner *calls;
    void *owner;
    struct runner **place; /* where the owner keeps it */
    void *memory;
    size_t memory_bytes;
    struct runner *next, *next_free;
};

int runner_body(void *runner);
/* Sends what `pending` holds. */
void runner_deliver(struct runner *runner);

#endif
