/* The guest's parts, together. */
#ifndef EXCISE_GUEST_INTERNAL_H
#define EXCISE_GUEST_INTERNAL_H

#include "guest/action.h"
#include "guest/guest.h"
#include "guest/link.h"
#include "guest/loop.h"

/* What HELLO said: how actions run unless they say otherwise. */
struct defaults {
    struct request request;
    char **environment; /* ends with NULL */
    size_t environment_count;
    const char *cwd;
    const char *user;
};

/* How an action ended that another may follow. */
struct outcome {
    uint32_t id;
    bool succeeded;
};

struct runners {
    struct runner *all;
    struct runner *free;
    unsigned free_count;
    int tell;             /* runners write here */
    struct watch reports; /* and we read here */
    struct runner *broken; /* were killed; their actions and memory wait until what they left is dead */
    struct kill orphans;
};

int runners_open(struct guest *guest);
/* Hears all that the runners have to say. */
void runners_listen(struct guest *guest);
/* A child of ours died, or stopped: was it a runner? */
bool runner_died(struct guest *guest, int pid);
bool runner_is(const struct guest *guest, int pid);
enum { RUNNERS_KEPT = 8, RUNNERS_MAX = ACTIONS_MAX + RUNNERS_KEPT };
/* How many of them there are, at most `size`. `below`: what is below them is spared, too. */
size_t runners_list(const struct guest *guest, struct spare *spare, size_t size, bool below);
/* Nothing they say is passed on any more: their epoch is over. */
void runners_ignore(struct guest *guest);
/* Every process is dead: forget them all. */
void runners_forget(struct guest *guest);

/* Whether none of them has anything to do. */
bool runners_idle(const struct guest *guest);
/* One to begin a life with. It closes these descriptors first, ROOTS_LEFT of them, or NULL. */
void runner_prepare(struct guest *guest, int *left);

/* roots.c */
struct roots {
    struct watch offers;
    bool wanted; /* the life that begins has another root */
    bool held;   /* and it is here */
    int left[ROOTS_LEFT]; /* of the root before: descriptors that the first runner of the life closes */
};

int roots_open(struct guest *guest);
/* Every process is dead: takes on the root of the next life, if it has another. False: that has not come yet. */
bool roots_ready(struct guest *guest);

/* freeze.c */
struct freeze {
    bool on;
    uint32_t id;
    unsigned looks;     /* in a row that found all standing still */
    struct pids before; /* who was stopped before it, and 0 for the others */
    struct timer again;
};

void freeze_begin(struct guest *guest, uint32_t id);
void freeze_end(struct guest *guest);

/* renew.c: the random numbers, the clock and the names of this machine are its own from now on. 0 or -errno. */
int renew(const struct guest *guest, const struct wire_renewal *renewal);

/* worker.c: the same of a file action's worker. */
bool worker_died(struct guest *guest, int pid, int status, const struct rusage *usage);
bool worker_is(const struct guest *guest, int pid);
size_t workers_list(const struct guest *guest, struct spare *spare, size_t size);

/* exec.c: a main process's end and what it used, as the host is told. */
void usage_record(struct wire_ended *record, int status, const struct rusage *usage, long inherited_kib);
/* Whose and where a program is, by the request or by HELLO. */
void spawn_place(const struct guest *guest, const struct request *request, struct spawn *spawn);

enum { DESCRIPTORS_MAX = 8 * ACTIONS_MAX };

struct sessions; /* session.c */

struct guest {
    const struct guest_config *config;
    struct loop loop;
    struct link link;
    struct defaults defaults;
    struct action *actions[ACTION_BUCKETS];
    struct action *dead; /* freed at the end of a turn: the turn's events may still name them */
    unsigned action_count;
    struct outcome outcomes[ACTIONS_MAX]; /* by id */
    struct runners runners;
    struct roots roots;
    struct freeze freeze;
    struct sessions *sessions; /* session.c's own; NULL before the first */
    struct watch children;     /* a signalfd for SIGCHLD */
    int null;                  /* /dev/null */
    struct rlimit descriptors; /* what programs have; ours is higher */
    int proc;                  /* /proc */
    bool resetting;            /* a HELLO has begun a new epoch and the old one's processes are dying */
    struct kill reset;
    struct request former;     /* the HELLO before, until then */
};

/* HELLO: the first, or one that begins a new life. */
void guest_greet(struct guest *guest, uint32_t epoch, uint8_t flags, const char *payload, size_t length);

/* Looks whether the life that ended is over, and the next may begin. */
void guest_dead(struct guest *guest);

/* Ends the guest and, with it or before it, everything it started. */
void guest_exit(struct guest *guest, int status) __attribute__((noreturn));

/* Reads again the outputs that stood still while the host did not read. */
void actions_resume(struct guest *guest);

/* session.c: a new epoch begins and every process is dying: close what is the sessions', forget them, start nothing. */
void sessions_forget(struct guest *guest);

/* A pipe whose ends are closed at exec; our end, `ours` (0 or 1), does not block. 0 or -errno. */
int pipe_open(int ends[2], int ours);

#endif
