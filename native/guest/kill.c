#include "guest/internal.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
    STOPS = 8, /* so often a fork may outrun us before we kill what we have */
    STOPS_NS = 20000000, /* and not for longer: thousands of zombies, which go only with the parent that leaves them, take their time to look at */
    AGAIN_NS = 2000000,
    PATIENCE_NS = 1000000000,
    GRACE_NS = 30000000, /* a debugger of an earlier action that lets go in time is not killed with what it traces */
};

static int kill_one(int pid, int number)
{
    return kill(pid, number) < 0 ? -errno : 0;
}

/* Tells whether two looks saw the same processes. */
static uint64_t fingerprint(const struct pids *pids)
{
    uint64_t sum = pids->count;

    for (size_t i = 0; i < pids->count; i++) {
        uint64_t mixed = (uint64_t)pids->pid[i] * 0x9e3779b97f4a7c15u;

        sum += mixed ^ (mixed >> 29);
    }
    return sum;
}

/* Stops all there is, again until nothing new is seen: a fork may be under way in a process when it is stopped, and what is stopped keeps
 * its place in the pids limit, so that a fork bomb comes to its end. */
static struct pids stop_below(const struct kill *kill, int proc)
{
    struct pids pids = {0};
    uint64_t before = 0, began_ns = now_ns();

    for (int i = 0; i < STOPS && (i == 0 || now_ns() - began_ns < STOPS_NS); i++) {
        uint64_t now;

        free(pids.pid);
        pids = pids_below(proc, kill->root, kill->spare, kill->spared, SIGSTOP);
        now = fingerprint(&pids);
        if (now == before)
            break;
        before = now;
    }
    return pids;
}

enum { ALL_DEAD = -1, NOT_KNOWN = -2 };

/* A descriptor of the first that is not dead yet, or one of the above; one that is not ours to kill counts as dead. */
static int first_living(const struct pids *pids)
{
    for (size_t i = 0; i < pids->count; i++) {
        int fd = (int)syscall(SYS_pidfd_open, pids->pid[i], 0);
        struct pollfd end = {.fd = fd, .events = POLLIN};

        if (fd < 0 && errno != ESRCH)
            return NOT_KNOWN;
        if (fd < 0)
            continue;
        if (poll(&end, 1, 0) == 0 && kill_one(pids->pid[i], 0) == 0)
            return fd;
        close(fd);
    }
    return ALL_DEAD;
}

/* One round: stop, kill, and find one to wait for. `guest` is NULL if everything is to die, who traces another included. */
static int kill_round(const struct guest *guest, const struct kill *kill, int proc)
{
    struct pids pids = stop_below(kill, proc);
    bool late = guest != NULL && now_ns() - kill->began_ns > GRACE_NS;
    int living;

    if (late)
        pids_held(guest, &pids, true);
    /* Children before parents: a process group whose last outside parent dies is continued by the kernel. */
    for (size_t i = pids.count; i > 0; i--)
        kill_one(pids.pid[i - 1], SIGKILL);
    living = first_living(&pids);
    if (living == ALL_DEAD && guest != NULL && pids_held(guest, &pids, false))
        living = NOT_KNOWN;
    free(pids.pid);
    return living;
}

/* To everything of the sandbox's that is not ours. */
static void signal_all(struct guest *guest, int number)
{
    struct spare spare[RUNNERS_MAX + ACTIONS_MAX];
    size_t count = runners_list(guest, spare, RUNNERS_MAX, false);

    count += workers_list(guest, spare + count, ACTIONS_MAX);
    free(pids_below(guest->proc, getpid(), spare, count, number).pid);
}

/* What is to die needs processor time for it, and its runner to see to it. Where others leave them none (a hundred loops, and a nice of 19), those stand still
 * until it is over. */
static void make_way(struct guest *guest, struct kill *kill)
{
    uint64_t now = now_ns();

    if (now - kill->began_ns < PATIENCE_NS || now - kill->cleared_ns < PATIENCE_NS)
        return;
    kill->cleared_ns = now;
    signal_all(guest, SIGSTOP);
}

static void work(struct guest *guest, struct kill *kill)
{
    int living;

    watch_close(guest, &kill->end);
    if (kill->refresh != NULL)
        kill->refresh(guest, kill);
    living = kill_round(guest, kill, guest->proc);
    if (living == ALL_DEAD && kill->done != NULL) {
        kill_cancel(guest, kill);
        kill->done(guest, kill);
        return;
    }
    make_way(guest, kill);
    if (living == ALL_DEAD)
        living = NOT_KNOWN;
    kill->end.fd = living;
    /* One that has just been found by a tracer does not end: look again in any case. */
    timer_set(guest, &kill->again, now_ns() + (living == NOT_KNOWN || watch_set(guest, &kill->end, EPOLLIN) < 0 ? AGAIN_NS : GRACE_NS));
}

static void one_ended(struct guest *guest, struct watch *watch, uint32_t events)
{
    (void)events;
    work(guest, (struct kill *)((char *)watch - offsetof(struct kill, end)));
}

static void go_on(struct guest *guest, struct timer *timer)
{
    work(guest, (struct kill *)((char *)timer - offsetof(struct kill, again)));
}

void kill_spare(struct kill *kill, const struct spare *spare, size_t spared)
{
    free(kill->spare);
    kill->spare = NULL;
    kill->spared = 0;
    if (spared == 0)
        return;
    if ((kill->spare = calloc(spared, sizeof *spare)) == NULL)
        abort(); /* else it would kill what must live */
    memcpy(kill->spare, spare, spared * sizeof *spare);
    kill->spared = spared;
}

void kill_begin(struct guest *guest, struct kill *kill, int root, const struct spare *spare, size_t spared, void (*done)(struct guest *, struct kill *))
{
    kill_cancel(guest, kill);
    kill_spare(kill, spare, spared);
    kill->root = root;
    kill->done = done;
    kill->end = (struct watch){.fd = -1, .ready = one_ended};
    kill->again.expired = go_on;
    kill->running = true;
    kill->began_ns = now_ns();
    timer_set(guest, &kill->again, 1); /* long past: the loop's next timers */
}

void kill_cancel(struct guest *guest, struct kill *kill)
{
    if (!kill->running)
        return;
    kill->running = false;
    watch_close(guest, &kill->end);
    timer_clear(guest, &kill->again);
    kill_spare(kill, NULL, 0);
    if (kill->cleared_ns != 0)
        signal_all(guest, SIGCONT);
    kill->cleared_ns = 0;
}

void kill_all_now(int proc)
{
    struct kill all = {.root = getpid()};
    int living;

    while ((living = kill_round(NULL, &all, proc)) != ALL_DEAD) {
        struct pollfd end = {.fd = living, .events = POLLIN};

        poll(&end, 1, living < 0 ? 1 : -1);
        if (living >= 0)
            close(living);
    }
}
