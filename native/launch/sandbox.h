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
    int talk;    /* our end of the conversation, until the child has said that it is ready, or why not */
    uint32_t first_id; /* of its range; 0: it has none */
    bool ready;
    struct cgroups cgroups;
    struct failure failure;
};

/* Starts one and does not wait for it. The plan's descriptors are closed. An error is told to the client; -errno is returned only if that is gone. */
int sandbox_create(struct launcher *launcher, uint32_t id, struct plan *plan);

/* The child has said something: READY goes to the client, or the child is killed. */
int sandbox_hear(struct launcher *launcher, struct sandbox *sandbox);

/* Kills it; GONE follows when it has been reaped. One that does not exist is gone already. */
int sandbox_close(struct launcher *launcher, uint32_t id);

/* Reaps every child that has ended, and says so. 1: the kernel still holds on to a cgroup, ask again shortly; 0; or -errno, when the client is gone. */
int sandbox_reap(struct launcher *launcher);

/* Kills and reaps all of them. */
void sandbox_end_all(struct launcher *launcher);

#endif
