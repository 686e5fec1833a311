/* Runners: processes that share the guest's memory and descriptors, are subreapers, and start one program at a time.
 * All that a program starts, however it detaches, stays below its runner. A runner uses raw system calls only. */
#ifndef EXCISE_GUEST_RUNNER_H
#define EXCISE_GUEST_RUNNER_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/resource.h>

#include "guest/users.h"

struct guest;
struct runner;

enum { SPAWN_DESCRIPTORS = 8 };

/* A program to start. What it points to must live until the runner's `ended`. */
struct spawn {
    int descriptors[SPAWN_DESCRIPTORS]; /* becomes 0, 1, 2, ... of the program; -1: none. The same one may stand twice */
    bool close_after[SPAWN_DESCRIPTORS]; /* the runner closes it, for the guest too, once the program has it */
    bool terminal;     /* descriptor 0 becomes its controlling terminal */
    int program;       /* a descriptor to execute; -1: argv[0], looked up by the PATH in `environment` */
    char **argv;
    char **environment; /* ends with NULL, after which ENVIRONMENT_SPARE slots more are free for what follows from the user */
    const char *directory; /* NULL or empty: / */
    const char *relative;  /* then here, NULL: stay */
    const char *user;      /* NULL: as the runner */
};

enum { ENVIRONMENT_SPARE = 2 };

/* How a program ended. */
struct program_end {
    int status;       /* as of wait4 */
    int error;        /* not 0: the program was never started, for this errno */
    bool left_running; /* it left processes behind */
    bool starved;     /* there was no memory to execute it */
    uint64_t duration_ns;
    struct rusage usage;
    /* The kernel begins a program's peak with that of the memory it left at exec, which is ours: a figure not above this says nothing. */
    long inherited_kib;
};

struct runner_owner {
    /* The program runs. Called only if asked for. */
    void (*started)(struct guest *guest, void *owner);
    /* Its main process has ended. If it left processes, the runner stays bound to the owner until `emptied`. */
    void (*ended)(struct guest *guest, void *owner, const struct program_end *end);
    /* Nothing is left below the runner, and it is not the owner's any more. Comes after `ended`, at once if nothing was left. */
    void (*emptied)(struct guest *guest, void *owner);
};

/* Starts a program in a free runner, made if there is none. It is the owner's until `emptied`; `*runner`, which must last as long, is another one
 * if sandboxed code killed the first before it could start. 0 or -errno: nothing was started. */
int runner_start(struct guest *guest, const struct spawn *spawn, bool tell_started, const struct runner_owner *calls, void *owner, struct runner **runner);

int runner_pid(const struct runner *runner);
/* The program's process id; 0 while there is none. */
int runner_main(const struct runner *runner);
/* A signal for the program's process group. */
void runner_signal(struct runner *runner, int number);

#endif
