/* The guest's parts, together. */
#ifndef EXCISE_GUEST_INTERNAL_H
#define EXCISE_GUEST_INTERNAL_H

#include "guest/action.h"
#include "guest/guest.h"
#include "guest/link.h"
#include "guest/loop.h"

/* What HELLO said: how actions run unless they say otherwise. */
struct defaults {
    char *bytes;
    char **environment; /* ends with NULL */
    size_t environment_count;
    const char *cwd;
    const char *user;
};

struct runners {
    struct runner *all;
    struct runner *free;
    unsigned free_count;
    int tell;             /* runners write here */
    struct watch reports; /* and we read here */
    unsigned broken;      /* runners that were killed, whose memory waits until what they left is dead */
    struct kill orphans;
};

struct sessions; /* session.c */

struct guest {
    const struct guest_config *config;
    struct loop loop;
    struct link link;
    struct defaults defaults;
    struct action *actions[ACTION_BUCKETS];
    struct action *dead; /* freed at the end of a turn: the turn's events may still name them */
    unsigned action_count;
    struct runners runners;
    struct sessions *sessions; /* session.c's own; NULL before the first */
    struct watch children;     /* a signalfd for SIGCHLD */
    int null;                  /* /dev/null */
    int proc;                  /* /proc */
    bool resetting;            /* a HELLO has begun a new epoch and the old one's processes are dying */
};

/* session.c: a new epoch has begun and every process is dead: forget all sessions. */
void sessions_forget(struct guest *guest);

/* A pipe whose ends are closed at exec; our end, `ours` (0 or 1), does not block. 0 or -errno. */
int pipe_open(int ends[2], int ours);

/* The environment an action's program has: the request's over HELLO's, in one allocation, with ENVIRONMENT_SPARE free slots. NULL: no memory. */
char **environment_of(const struct defaults *defaults, char *const *own);

#endif
