/* One sandbox from the launcher's side: begun, heard from, ended, reaped. */
#ifndef EXCISE_SANDBOX_H
#define EXCISE_SANDBOX_H

#include "launch/cgroup.h"
#include "launch/failure.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct launcher;
struct plan;

struct sandbox {
    struct sandbox *next;
    uint32_t id;
    pid_t pid;   /* its PID 1, our child; 0 once it is reaped */
    int pidfd;   /* until it goes to the client with READY */
    int talk;    /* our end of the conversation */
    int upper;   /* what it writes into; -1: it made that itself */
    int next_upper; /* the one of the root that was offered to it; -1: none is */
    uint64_t sealed_bytes; /* what lies in `upper` when it is to be sealed */
    uint32_t seal;  /* what `upper` is called as a layer when that root is taken on; 0: it is thrown away */
    uint32_t first_id; /* of its range; 0: it has none */
    bool ready;
    struct cgroups cgroups;
    struct failure failure;
};

/* Starts one and does not wait for it. The plan's descriptors are closed. An error is told to the client; -errno is returned only if that is gone. */
int sandbox_create(struct launcher *launcher, uint32_t id, struct plan *plan);

/* Offers it another root, as the plan says, unless an upper is to be sealed that nothing was written into; ROOTED follows. */
int sandbox_root(struct launcher *launcher, uint32_t id, const struct plan *plan);

/* What it or, with that id, a layer has had written into it; OPENED follows. */
int sandbox_open(struct launcher *launcher, uint32_t id);

/* An empty layer; OPENED follows. */
int sandbox_make_layer(struct launcher *launcher, uint32_t id);

/* The child has said something: READY or ROOTED goes to the client, or the child is killed. */
int sandbox_hear(struct launcher *launcher, struct sandbox *sandbox);

/* Kills it; GONE follows when it has been reaped. One that does not exist is gone already. */
int sandbox_close(struct launcher *launcher, uint32_t id);

/* Reaps every child that has ended, and says so. 1: the kernel still holds on to a cgroup, ask again shortly; 0; or -errno, when the client is gone. */
int sandbox_reap(struct launcher *launcher);

/* Kills and reaps all of them. */
void sandbox_end_all(struct launcher *launcher);

#endif
