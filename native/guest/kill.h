/* Ends every process below one, however it detached: stop what is there, again until nothing new is found, then SIGKILL, and wait for their ends. */
#ifndef EXCISE_GUEST_KILL_H
#define EXCISE_GUEST_KILL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "guest/loop.h"

struct spare {
    int pid;
    bool below; /* what is below it is spared too */
};

struct kill {
    int root; /* below this process; itself is not touched */
    struct spare *spare;
    size_t spared;
    void (*refresh)(struct guest *guest, struct kill *kill); /* NULL, or called before each look, to kill_spare() anew */
    bool running;
    void (*done)(struct guest *guest, struct kill *kill); /* all of it is dead; zombies may wait for their parents. NULL: goes on until it is cancelled */
    /* private */
    uint64_t began_ns, cleared_ns; /* cleared: when all others were last stopped; 0: never */
    struct watch end;
    struct timer again;
};

/* Begins; `done` is called from the loop, never from here. `spare` is copied. */
void kill_begin(struct guest *guest, struct kill *kill, int root, const struct spare *spare, size_t spared, void (*done)(struct guest *, struct kill *));
void kill_spare(struct kill *kill, const struct spare *spare, size_t spared);
void kill_cancel(struct guest *guest, struct kill *kill);

/* The processes below `root`, parents first, each sent `signal` as soon as it is seen (0: none). Those with `pids` NULL: there was no memory to say. The caller frees them. */
struct pids {
    int *pid;
    size_t count;
};
struct pids pids_below(int proc, int root, const struct spare *spare, size_t spared, int signal);
/* Whether one who is not among them, and not ours, traces one of them. `add`: and takes such in. */
bool pids_held(const struct guest *guest, struct pids *pids, bool add);

/* Ends everything below this process before it returns: for a guest that ends. */
void kill_all_now(int proc);

#endif
